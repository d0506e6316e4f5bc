//! Nodes whose directory is lost: the files' copies there are dropped, a piece at a time. Then an
//! empty directory can replace it, and repair does the rest.
//!
//! Invariants
//! * The data server is admitted with another directory after two consecutive passes through all
//!   directories without a file that relies on the lost data. No file in use may rely on it either.
//! * If the directory comes back before, it is the node's unchanged, and repair restores the
//!   dropped copies.

use super::OpenNode;
use crate::limits::MOVE_TURN;
use dafs_cluster::RemoteNode;
use dafs_dat::Instant;
use dafs_store::{FileId, Result, Store, StoreError};
use dafs_striped::{StripedStore, Walk};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of consecutive passes that must find no file.
const CLEAN_LOOKS: u32 = 2;

/// The pause after a pass through all directories.
const PAUSE: Duration = Duration::from_secs(1);

/// The replacements under way.
#[derive(Default)]
pub(super) struct NodeReplacement {
    looks: BTreeMap<u32, Look>,
}

/// The progress with one node.
#[derive(Default)]
struct Look {
    walk: Option<Walk>,
    /// The pass has found a file.
    met: bool,
    clean: u32,
    /// The problem that blocks it.
    trouble: String,
    pause_until_ns: u64,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl NodeReplacement {
    /// Does a part of the work, for a bounded time.
    pub(super) fn turn(&mut self, store: &StripedStore, nodes: &[OpenNode]) {
        let lost = store.lost();
        self.looks.retain(|number, _| lost.contains(number));
        for number in lost {
            let is_it = |open: &&OpenNode| open.node().number() == number;
            let Some(OpenNode::Remote(node)) = nodes.iter().find(is_it) else { continue };
            let look = self.looks.entry(number).or_default();
            if let Err(error) = look.turn(store, number, node) {
                look.note(error.to_string());
            }
        }
    }

    /// Returns the problem of each node, as text.
    pub(super) fn states(&self) -> BTreeMap<u32, String> {
        let states = |(number, look): (&u32, &Look)| {
            let text = "its directory is lost, and copies there are given up".to_owned();
            let trouble = if look.trouble.is_empty() { "" } else { ": " };
            (*number, text + trouble + &look.trouble)
        };
        self.looks.iter().map(states).collect()
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

    /// Goes on until `end_ns`. Returns true when no file relies on the lost data any more.
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
