//! The requests that a broken connection leaves undecided, and until when.
//!
//! The server may still run a request of a broken connection until it has noticed the break and run
//! its jobs. The world sees both sides, so it knows when this time is over.

use super::Actor;
use super::task::Task;
use crate::common::Common;
use crate::model::content::ChangeId;
use crate::model::names::FileNumber;
use crate::server::Server;
use dafs_dat::sim::SimNetwork;

#[derive(Debug, Clone)]
enum Waiting {
    /// Waits for the server's side of these connections to end.
    Connections(Vec<u64>),
    /// Waits for the engine to see that.
    Turn(u64),
    /// Waits for the jobs submitted before that.
    Jobs(u64),
}

/// One broken session.
#[derive(Debug)]
pub(super) struct Doubt {
    waiting: Waiting,
    changes: Vec<(FileNumber, ChangeId)>,
}

impl Doubt {
    pub(super) fn begin(network: &SimNetwork, host: u32) -> Self {
        let waiting = Waiting::Connections(network.connections(host));
        Self { waiting, changes: Vec::new() }
    }

    /// Advances as far as the world has come. Returns true when no request is undecided any more.
    fn advance(&mut self, network: &SimNetwork, host: u32, server: &Server) -> bool {
        if let Waiting::Connections(ids) = &self.waiting {
            let live = network.connections(host);
            if ids.iter().any(|id| live.contains(id)) {
                return false;
            }
            self.waiting = Waiting::Turn(server.turns + 1);
        }
        if let Waiting::Turn(turn) = self.waiting {
            if server.turns < turn {
                return false;
            }
            self.waiting = Waiting::Jobs(server.jobs.submitted());
        }
        matches!(self.waiting, Waiting::Jobs(last) if server.jobs.has_run(last))
    }
}

impl Actor {
    /// True when no old session can change anything any more.
    pub(super) fn is_settled(&self) -> bool {
        self.doubts.is_empty()
    }

    /// Notes an operation that will not be answered.
    pub(super) fn lost(&mut self, common: &mut Common, task: Task) {
        common.counts.lost += 1;
        if let Some(change) = task.change() {
            let change = change.clone();
            self.home.in_doubt(&change);
            self.version += 1;
        }
        match task {
            Task::Write { file, change, .. } | Task::Truncate { file, change, .. } => {
                self.lost_changes.push((file, change));
            }
            Task::Read { begin, .. } | Task::Stat { begin, .. } => common.end_read(begin),
            Task::Close { file } => {
                self.opens.remove(&file);
            }
            _ => {}
        }
    }

    /// Adds the lost changes to the latest doubt.
    pub(super) fn take_doubts(&mut self, common: &mut Common) {
        let changes = std::mem::take(&mut self.lost_changes);
        common.note(|| format!("c{} is in doubt about {changes:?}", self.number));
        if let Some(doubt) = self.doubts.last_mut() {
            doubt.changes = changes;
        }
    }

    /// Ends the doubts that are over.
    pub(crate) fn settle(&mut self, common: &mut Common, server: &Server) {
        let host = self.host;
        let mut settled = Vec::new();
        self.doubts.retain_mut(|doubt| {
            let over = doubt.advance(&common.network, host, server);
            if over {
                settled.append(&mut doubt.changes);
            }
            !over
        });
        for (file, change) in settled {
            let tick = common.tick();
            common.files[file].model.settled(change, tick);
        }
    }
}
