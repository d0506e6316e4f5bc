//! A client of a world: the shipped session code. It does random operations, loses its connection
//! and starts again.
//!
//! Invariants
//! * Its own tree is changed by one operation at a time. No operation changes it while it is
//!   uncertain or a broken connection may still change it.
//! * Every operation started is answered or lost, and the models learn which.

mod answer;
mod blocks;
pub(crate) mod buffers;
mod doubt;
mod issue;
pub(crate) mod names;
mod task;

pub(crate) use issue::STAT;

use crate::common::{Common, OPENING_TIME_MAX, poll};
use crate::limits::{FIRST_CLIENT_HOST, LEASE, SERVER_HOST};
use crate::model::content::ChangeId;
use crate::model::names::{FileNumber, HomeModel};
use crate::plan::ActorPlan;
use blocks::Blocks;
use buffers::{Buffers, MEMORY_BYTES};
use dafs_client::core::{
    Completed, CredentialIds, Done, RemoteReadStats, SessionConfig, SessionCore, Stage,
};
use dafs_dat::sim::{SimAdapter, SimNetwork, SimRng};
use dafs_dat::{Adapter, Address, Instant};
use dafs_mem::Buffer;
use dafs_wire::dafs::{FileHandle, StateId, Verifier};
use doubt::Doubt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use task::Task;

/// A file that this client has open.
#[derive(Debug, Clone, Copy)]
struct OpenRecord {
    state: StateId,
    reads: bool,
    writes: bool,
    /// The server may have dropped it: it is from an earlier session, its lease may have expired,
    /// or an old session may still close it.
    shaky: bool,
}

pub(crate) struct Actor {
    pub(crate) number: usize,
    pub(crate) host: u32,
    plan: ActorPlan,
    rng: SimRng,
    adapter: SimAdapter,
    session: Option<SessionCore>,
    session_since: Instant,
    buffers: Option<Buffers>,
    /// The run (process) of the client.
    run: u64,
    flights: BTreeMap<u64, Task>,
    last_tag: u64,
    home: HomeModel,
    /// Changes whenever a change of the tree begins or ends.
    version: u64,
    home_handle: Option<FileHandle>,
    directories: BTreeMap<u8, FileHandle>,
    opens: BTreeMap<FileNumber, OpenRecord>,
    blocks: Blocks,
    doubts: Vec<Doubt>,
    /// Changes of files that were lost with the session that is ending.
    lost_changes: Vec<(FileNumber, ChangeId)>,
    remaining: u32,
    next_action: Instant,
    last_answer: Instant,
    /// The requests of its session that were answered, as of the last turn.
    answered: u64,
    /// The reads by RDMA of its session, as of the last turn.
    remote_reads: RemoteReadStats,
}

impl Actor {
    pub(crate) fn new(
        number: usize,
        plan: ActorPlan,
        network: &SimNetwork,
        mut rng: SimRng,
    ) -> Self {
        let host = FIRST_CLIENT_HOST + number as u32;
        Self {
            number,
            host,
            remaining: plan.operations,
            plan,
            adapter: network.adapter(host),
            session: None,
            session_since: Instant(0),
            buffers: None,
            run: rng.bits(),
            rng,
            flights: BTreeMap::new(),
            last_tag: 0,
            home: HomeModel::default(),
            version: 0,
            home_handle: None,
            directories: BTreeMap::new(),
            opens: BTreeMap::new(),
            blocks: Blocks::default(),
            doubts: Vec::new(),
            lost_changes: Vec::new(),
            next_action: Instant(0),
            last_answer: Instant(0),
            answered: 0,
            remote_reads: RemoteReadStats::default(),
        }
    }

    /// The user that owns the client's tree.
    pub(crate) fn uid(number: usize, plan: &ActorPlan) -> u32 {
        if plan.uses_credential { 1000 + number as u32 } else { 65534 }
    }

    /// The name of the client's tree.
    pub(crate) fn home_name(number: usize) -> Vec<u8> {
        format!("c{number}").into_bytes()
    }

    /// The credential that its requests name, if they name one.
    pub(crate) fn credential(&self) -> Option<CredentialIds> {
        self.plan.uses_credential.then(|| {
            let uid = Self::uid(self.number, &self.plan);
            CredentialIds { uid, gid: uid, groups: vec![100, 200] }
        })
    }

    /// The model of its tree.
    pub(crate) fn home(&self) -> &HomeModel {
        &self.home
    }

    /// True when it will start nothing more by itself.
    pub(crate) fn is_done(&self) -> bool {
        self.remaining == 0 && self.session.is_none() && self.doubts.is_empty()
    }

    /// Stops starting operations.
    pub(crate) fn rest(&mut self) {
        self.remaining = 0;
    }

    /// The time of its next turn if nothing arrives.
    pub(crate) fn next(&self) -> Option<Instant> {
        let Some(session) = &self.session else {
            return (self.remaining > 0).then_some(self.next_action);
        };
        let timer = session.next_timeout();
        let opening = self.session_since + OPENING_TIME_MAX;
        let wants = match session.stage() {
            Stage::Ready if self.remaining > 0 && self.flights.len() < self.plan.depth => {
                Some(self.next_action)
            }
            Stage::Connecting | Stage::Opening => Some(opening),
            _ => None,
        };
        timer.into_iter().chain(wants).min()
    }

    /// Handles events, then goes on.
    pub(crate) fn turn(&mut self, common: &mut Common) -> Result<(), String> {
        poll((&mut self.adapter, &mut self.session), self.session_since, common.now);
        self.count_remote_reads(common);
        self.collect(common)?;
        self.act(common)?;
        self.adapter.flush();
        Ok(())
    }

    /// Counts the reads by RDMA since the last turn.
    fn count_remote_reads(&mut self, common: &mut Common) {
        let Some(session) = self.session.as_ref().filter(|_| self.plan.remote) else { return };
        let (stats, answered) = (session.remote_read_stats(), session.stats().answered);
        common.counts.hits += stats.hits - self.remote_reads.hits;
        common.counts.stale += stats.stale - self.remote_reads.stale;
        self.remote_reads = stats;
        // A hit renews no lease.
        if answered > self.answered {
            self.renewed(common.now);
        }
        self.answered = answered;
    }

    /// Notes an answer of the server. After a long silence opens may be gone.
    fn renewed(&mut self, now: Instant) {
        if now.since(self.last_answer) > LEASE / 3 {
            self.opens.values_mut().for_each(|open| open.shaky = true);
        }
        self.last_answer = now;
    }

    /// Handles completed operations and the end of the session.
    fn collect(&mut self, common: &mut Common) -> Result<(), String> {
        while let Some(Completed { tag, done }) =
            self.session.as_mut().and_then(SessionCore::take_completed)
        {
            let task = self.flights.remove(&tag);
            let task = task.ok_or_else(|| format!("tag {tag} completed twice or unasked"))?;
            if let Done::Lost(failure) = done {
                common.note(|| format!("c{} {task:?} lost: {failure}", self.number));
                self.lost(common, task);
                continue;
            }
            if !self.plan.remote {
                self.renewed(common.now);
            }
            let text = format!("c{} {task:?}", self.number);
            self.answered(common, task, done).map_err(|error| format!("{text}: {error}"))?;
        }
        if self.session.as_ref().is_some_and(|session| session.stage() == Stage::Over) {
            self.session_over(common, false);
        }
        Ok(())
    }

    /// Connects, issues operations, or ends the session.
    fn act(&mut self, common: &mut Common) -> Result<(), String> {
        let now = common.now;
        let Some(session) = &mut self.session else {
            if self.remaining > 0 && now >= self.next_action {
                self.connect(common);
            }
            return Ok(());
        };
        if session.stage() != Stage::Ready {
            return Ok(());
        }
        if self.buffers.is_none() {
            self.session_ready(common)?;
        }
        while self.remaining > 0
            && self.flights.len() < self.plan.depth
            && now >= self.next_action
            && self.session.is_some()
        {
            self.remaining -= 1;
            let steps = self.rng.below(self.plan.think_steps_max + 1);
            self.next_action = now + Duration::from_micros(10 * steps);
            self.issue(common)?;
        }
        if self.remaining == 0
            && self.flights.is_empty()
            && let Some(session) = &mut self.session
        {
            session.close(&mut self.adapter, now);
        }
        Ok(())
    }

    fn connect(&mut self, common: &mut Common) {
        let plan = &self.plan;
        let name = format!("client {}", self.number).into_bytes();
        let mut config = SessionConfig::new(name, Verifier(self.run.to_be_bytes()));
        config.byte_order = plan.byte_order;
        config.checksums = plan.checksums;
        config.requests = plan.requests;
        config.requests_max = plan.requests_max;
        config.inline_bytes = plan.inline_bytes;
        config.inline_write_header_bytes = plan.inline_write_header_bytes;
        config.pad_writes = plan.inline_write_header_bytes > 0;
        config.always_direct = plan.always_direct;
        config.optimistic = plan.optimistic && plan.remote;
        config.session_differentiator = (self.rng.bits() as u32).to_be_bytes();
        config.credential = self.credential();
        common.note(|| format!("c{} connects", self.number));
        self.session_since = common.now;
        let address = Address::Sim(SERVER_HOST);
        // A failure at once would repeat: the address is right, so the server will refuse later.
        self.session = SessionCore::connect(&mut self.adapter, config, &address, common.now).ok();
        (self.answered, self.remote_reads) = (0, RemoteReadStats::default());
        self.next_action = common.now + Duration::from_micros(10 * self.rng.log_below(20_000));
    }

    fn session_ready(&mut self, common: &mut Common) -> Result<(), String> {
        let Some(session) = &mut self.session else { return Ok(()) };
        common.note(|| format!("c{} is ready: {:?}", self.number, session.info()));
        common.counts.sessions += 1;
        let buffer = Arc::new(Buffer::zeroed(MEMORY_BYTES).map_err(|error| error.to_string())?);
        let memory = session.register(&mut self.adapter, buffer);
        self.buffers = Some(Buffers::new(memory.map_err(|error| error.to_string())?));
        Ok(())
    }

    /// Ends the session; `killed` if the process ended.
    fn session_over(&mut self, common: &mut Common, killed: bool) {
        for (_, task) in std::mem::take(&mut self.flights) {
            self.lost(common, task);
        }
        self.buffers = None;
        self.blocks.session_over();
        if let Some(mut session) = self.session.take() {
            let failure = session.failure().map(ToString::to_string);
            common.note(|| format!("c{} session over: {failure:?}", self.number));
            if !killed {
                session.release(&mut self.adapter);
            }
        }
        self.doubts.push(Doubt::begin(&common.network, self.host));
        self.take_doubts(common);
        self.directories.clear();
        // A new run of the client holds no state of the old one. A new session of the same run may.
        if killed || self.rng.chance(300_000) {
            self.run = self.rng.bits();
            self.opens.clear();
        }
        self.opens.values_mut().for_each(|open| open.shaky = true);
        self.next_action = common.now + Duration::from_micros(10 * self.rng.log_below(50_000));
    }

    /// Ends the process without a disconnect and starts it again.
    pub(crate) fn kill(&mut self, common: &mut Common) {
        common.note(|| format!("c{} is killed", self.number));
        self.adapter = common.network.adapter(self.host);
        self.blocks = Blocks::default();
        self.session_over(common, true);
    }

    fn remember(&mut self, task: Task) -> u64 {
        self.last_tag += 1;
        self.flights.insert(self.last_tag, task);
        self.last_tag
    }
}
