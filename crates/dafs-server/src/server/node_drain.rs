//! Drains nodes: moves files off the nodes that an administrator wants to remove, a piece at a
//! time.
//!
//! Notes
//! * Copies are not moved here: a file gets another copy, which the repair thread makes. A later
//!   pass finds that it is complete and drops the old one.
//!
//! Invariants
//! * A file with stripes is moved when no client has a layout of it, and no data server has a
//!   cached authorisation.
//! * A node counts as empty when two consecutive passes through all directories have found no data
//!   on it, and no file in use or pending removal has data there. The first of the passes may have
//!   missed a file that was being made when the drain began.

use crate::limits::{MOVE_PATIENCE, MOVE_TURN};
use dafs_dat::Instant;
use dafs_service::{Handle, Service};
use dafs_store::{FileId, Result, Store, StoreError};
use dafs_striped::{Leaving, Relocation, StripedStore, Walk};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The progress of a drain.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// The nodes to drain.
    leaving: Vec<u32>,
    /// The last pass through all directories, when all data is in its place.
    through: Option<Arc<Walk>>,
    pub(super) moved_files: u64,
    pub(super) moved_bytes: u64,
    /// The problem that blocks the drain.
    pub(super) trouble: String,
}

impl Progress {
    /// True if a node is empty.
    pub(super) fn is_empty(&self, store: &StripedStore, number: u32) -> bool {
        // A file in use may get its first name, so files in use are checked last.
        self.leaving.contains(&number)
            && store.is_idle(number).unwrap_or(false)
            && self.is_through(store)
    }

    /// True if the pass was complete, and no file has moved to another directory since.
    fn is_through(&self, store: &StripedStore) -> bool {
        self.through.as_ref().is_some_and(|walk| store.met_all(walk))
    }
}

/// A drain.
#[derive(Default)]
pub(super) struct NodeDrain {
    progress: Progress,
    walk: Option<Walk>,
    /// The pass has found data to move.
    met: bool,
    /// The number of consecutive passes that have found no data.
    clean: u32,
    due: VecDeque<FileId>,
    current: Option<Current>,
    /// The time until which it pauses.
    pause_until_ns: u64,
}

struct Current {
    relocation: Relocation,
    key: Handle,
    vacated: bool,
    /// The time of its last progress.
    since_ns: u64,
}

/// The time of the next step.
#[derive(PartialEq, Eq)]
enum Next {
    Now,
    Later,
}

/// The number of consecutive passes that must find no data.
const CLEAN_LOOKS: u32 = 2;

/// The pause after a pass through all directories.
const PAUSE: Duration = Duration::from_secs(1);

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl NodeDrain {
    /// Does a part of the work, for a bounded time.
    pub(super) fn turn(&mut self, store: &StripedStore, service: &Service) {
        let leaving = store.leaving();
        if leaving != self.progress.leaving {
            let Progress { moved_files, moved_bytes, .. } = self.progress;
            let progress = Progress { leaving, moved_files, moved_bytes, ..Progress::default() };
            *self = Self { progress, ..Self::default() };
        }
        if self.progress.leaving.is_empty() || self.progress.is_through(store) {
            return;
        }
        if self.progress.through.take().is_some() {
            self.clean = 0;
        }
        let end_ns = Instant::now().0.saturating_add(nanoseconds(MOVE_TURN));
        while Instant::now().0 < end_ns {
            match self.advance(store, service) {
                Ok(Next::Now) => {}
                Ok(Next::Later) => return,
                Err(error) => {
                    self.met = true;
                    let text = error.to_string();
                    if text != self.progress.trouble {
                        tracing::warn!(%error, "a file cannot be moved yet");
                        self.progress.trouble = text;
                    }
                    return;
                }
            }
        }
    }

    /// Returns the progress.
    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    fn advance(&mut self, store: &StripedStore, service: &Service) -> Result<Next> {
        let now_ns = Instant::now().0;
        if let Some(current) = self.current.take() {
            return self.go_on(current, service, now_ns);
        }
        if let Some(file) = self.due.pop_front() {
            self.met = true;
            match gone_is_fine(store.leave_nodes(&file))? {
                None | Some(Leaving::Waits) => return Ok(Next::Now),
                Some(Leaving::Left(bytes)) => {
                    self.progress.moved_files += 1;
                    self.progress.moved_bytes += bytes;
                    return Ok(Next::Now);
                }
                Some(Leaving::Nothing) => {}
            }
            if let Some(relocation) = gone_is_fine(store.begin_move(&file))?.flatten() {
                let key = Handle { fs: store.fs_id(), file };
                let (vacated, since_ns) = (false, now_ns);
                self.current = Some(Current { relocation, key, vacated, since_ns });
            }
            return Ok(Next::Now);
        }
        if now_ns < self.pause_until_ns {
            return Ok(Next::Later);
        }
        let walk = self.walk.get_or_insert_with(|| store.walk());
        match store.misplaced(walk).inspect_err(|_| self.walk = None)? {
            Some(files) => {
                self.met |= !files.is_empty();
                self.due.extend(files);
                Ok(Next::Now)
            }
            None => {
                let walk = self.walk.take();
                if let Some(error) = walk.as_ref().and_then(Walk::unseen) {
                    self.progress.trouble = format!("a file cannot be looked at: {error}");
                }
                let walk = walk.filter(|walk| store.met_all(walk));
                let clean = walk.is_some() && !std::mem::take(&mut self.met);
                self.clean = if clean { self.clean + 1 } else { 0 };
                self.pause_until_ns = now_ns.saturating_add(nanoseconds(PAUSE));
                if self.clean >= CLEAN_LOOKS {
                    self.progress.through = walk.map(Arc::new);
                    self.progress.trouble.clear();
                    tracing::info!(nodes = ?self.progress.leaving, "nothing lies there any more that has a name");
                }
                Ok(Next::Later)
            }
        }
    }

    /// Goes on with a file, or gives it up for now.
    fn go_on(&mut self, mut current: Current, service: &Service, now_ns: u64) -> Result<Next> {
        let patient = now_ns.saturating_sub(current.since_ns) < nanoseconds(MOVE_PATIENCE);
        if !current.vacated {
            if service.layouts.vacate(&current.key, now_ns).is_err() {
                // Clients have a lease's time to return their layouts.
                if patient {
                    self.current = Some(current);
                }
                return Ok(Next::Later);
            }
            current.vacated = true;
        }
        match current.relocation.step() {
            Ok(true) => {
                self.progress.moved_files += 1;
                self.progress.moved_bytes += current.relocation.copied_bytes();
                Ok(Next::Now)
            }
            Ok(false) => {
                current.since_ns = now_ns;
                self.current = Some(current);
                Ok(Next::Now)
            }
            Err(StoreError::Busy) if patient && !current.relocation.has_failed() => {
                self.current = Some(current);
                Ok(Next::Later)
            }
            Err(StoreError::Stale | StoreError::NotFound) => Ok(Next::Now),
            Err(error) => Err(error),
        }
    }
}

/// A file that is gone needs no move.
fn gone_is_fine<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::Stale | StoreError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_posix::{PosixOptions, PosixStore};
    use dafs_service::{Export, ExportOptions, Namespace, ServiceConfig};
    use dafs_store::node::DirectoryNode;
    use dafs_store::{Cred, ExportSecret, OpenMode};
    use dafs_store::{SetAttr, Stability, Wait};
    use dafs_striped::StripedOptions;
    use std::path::Path;

    fn node(base: &Path, number: u32) -> Arc<dyn dafs_store::node::Node> {
        let path = base.join(format!("node{number}"));
        std::fs::create_dir_all(&path).expect("a directory");
        DirectoryNode::make(&path, &[1; 16], number).expect("a new node");
        Arc::new(DirectoryNode::open(&path, &[1; 16], number, Vec::new()).expect("a node"))
    }

    fn store(base: &Path) -> StripedStore {
        let names = base.join("names");
        std::fs::create_dir(&names).expect("a directory");
        let options = PosixOptions::new(ExportSecret::from_bytes([5; 16]));
        let unit_bytes = std::num::NonZeroU32::new(4096).expect("a unit");
        let options_of_spread = StripedOptions::new(base, [2; 16], unit_bytes);
        let nodes = (1..=3).map(|number| node(base, number)).collect();
        let names = PosixStore::open(names, options).expect("names");
        StripedStore::open(names, nodes, options_of_spread).expect("a store")
    }

    #[test]
    fn a_file_that_gets_its_first_name_after_the_looks_is_moved_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Arc::new(store(dir.path()));
        let export = Export::new("", store.clone(), ExportOptions::default());
        let namespace = Namespace::new(vec![export]).expect("one export");
        let service = Service::new(ServiceConfig::new(Duration::from_secs(9), 1), namespace);
        let cred = Cred::new(0, 0);
        let (root, none) = (Store::root(&*store), SetAttr::default());
        let mode = OpenMode { read: true, write: true };
        let made = store.create_unlinked(&cred, &root, &none, mode).expect("a file");
        let mut bytes = [7; 20_000];
        let view = [dafs_mem::VolatileSlice::from_mut(&mut bytes)];
        let written = made.file.write_at(&view, 0, Stability::Data, Wait::Allowed);
        assert_eq!(written, Ok(20_000));
        store.set_leaving(3, true).expect("another one is left");
        let mut drain = NodeDrain::default();
        while !drain.progress.is_through(&store) {
            drain.turn(&store, &service);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!drain.progress().is_empty(&store, 3), "it is in use");
        store.link(&cred, &made.id, &root, b"f").expect("a name");
        drop(made);
        assert!(!drain.progress().is_empty(&store, 3), "it lies there");
        while !drain.progress().is_empty(&store, 3) {
            drain.turn(&store, &service);
            store.sweep();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(drain.progress().moved_files, 1);
    }
}
