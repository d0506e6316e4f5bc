//! Nodes whose directory is lost: what files had there is given up, a piece at a time, and then an empty
//! directory can take its place. Mending does the rest.
//!
//! Invariants
//! * The data server is let in with another directory when two looks in a row through all directories have
//!   met no file that counts on what was lost, and none that is in use does.
//! * Should the directory come back before, it is the node's as it was; what was given up meanwhile is
//!   mended.

use super::OpenNode;
use crate::limits::MOVE_TURN;
use dafs_cluster::RemoteNode;
use dafs_dat::Instant;
use dafs_store::{FileId, Result, Store, StoreError};
use dafs_striped::{StripedStore, Walk};
use std::collections::BTreeMap;
use std::time::Duration;

/// Looks in a row that have to meet nothing.
const CLEAN_LOOKS: u32 = 2;

/// How long to wait after a look through all directories.
const PAUSE: Duration = Duration::from_secs(1);

/// What does it.
#[derive(Default)]
pub(super) struct Replacing {
    looks: BTreeMap<u32, Look>,
}

/// How far it has come with one node.
#[derive(Default)]
struct Look {
    walk: Option<Walk>,
    /// Something was met in this look.
    met: bool,
    clean: u32,
    /// What stands in the way.
    trouble: String,
    pause_until_ns: u64,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Replacing {
    /// Does some of it, for a bounded time.
    pub(super) fn turn(&mut self, store: &StripedStore, nodes: &[OpenNode]) {
        let lost = store.lost();
        self.looks.retain(|number, _| lost.contains(number));
        for number in lost {
            let is_it = |open: &&OpenNode| open.node().number() == number;
            let Some(OpenNode::Far(node)) = nodes.iter().find(is_it) else { continue };
            let look = self.looks.entry(number).or_default();
            if let Err(error) = look.turn(store, number, node) {
                look.note(error.to_string());
            }
        }
    }

    /// What stands in the way of each, in words.
    pub(super) fn told(&self) -> BTreeMap<u32, String> {
        let told = |(number, look): (&u32, &Look)| {
            let text = "its directory is lost, and copies there are given up".to_owned();
            let trouble = if look.trouble.is_empty() { "" } else { ": " };
            (*number, text + trouble + &look.trouble)
        };
        self.looks.iter().map(told).collect()
    }
}

impl Look {
    fn turn(&mut self, store: &StripedStore, number: u32, node: &RemoteNode) -> Result<()> {
        if node.status().connected {
            tracing::info!(number, "the directory of a node is there again");
            return store.set_lost(number, false);
        }
        let now_ns = Instant::now().0;
        if now_ns >= self.pause_until_ns
            && self.go_on(store, number, now_ns.saturating_add(nanoseconds(MOVE_TURN)))?
        {
            node.give_up_directory()?;
            tracing::info!(number, "an empty directory can take the place of one that is lost");
            return store.set_lost(number, false);
        }
        Ok(())
    }

    /// Goes on until then. True when nothing counts any more on what was there.
    fn go_on(&mut self, store: &StripedStore, number: u32, end_ns: u64) -> Result<bool> {
        while Instant::now().0 < end_ns {
            let walk = self.walk.get_or_insert_with(|| store.walk());
            let met = store.relying_on(number, walk).inspect_err(|_| self.walk = None)?;
            if let Some(files) = met {
                files.iter().for_each(|file| self.give_up(store, file, number));
                continue;
            }
            self.pause_until_ns = Instant::now().0.saturating_add(nanoseconds(PAUSE));
            let Some(walk) = self.walk.take() else { return Ok(false) };
            if let Some(error) = walk.unseen() {
                self.note(format!("a file cannot be looked at: {error}"));
            }
            let is_clean = store.met_all(&walk) && !std::mem::take(&mut self.met);
            self.clean = if is_clean { self.clean + 1 } else { 0 };
            if self.clean < CLEAN_LOOKS {
                return Ok(false);
            }
            self.trouble.clear();
            return store.give_up_lost_in_use(number).map(|()| true);
        }
        Ok(false)
    }

    fn give_up(&mut self, store: &StripedStore, file: &FileId, number: u32) {
        self.met = true;
        let why = match store.give_up_lost(file, number) {
            Ok(()) | Err(StoreError::Stale | StoreError::NotFound) => return,
            Err(StoreError::NotSupported) => "has stripes there, which nobody else has".to_owned(),
            Err(StoreError::Busy) => "has no other copy that is up to date and there".to_owned(),
            Err(error) => error.to_string(),
        };
        let inode = store.getattr(file).map_or(0, |attr| attr.file_id);
        self.note(format!("the file with inode {inode} {why}"));
    }

    fn note(&mut self, trouble: String) {
        if trouble != self.trouble {
            tracing::warn!("a directory that is lost cannot be replaced yet: {trouble}");
            self.trouble = trouble;
        }
    }
}
