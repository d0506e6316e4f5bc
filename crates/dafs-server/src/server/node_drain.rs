//! Drains nodes: moves files off the nodes that an administrator wants to remove, a piece at a
//! time.
//!
//! Notes
//! * The first pass through all directories counts what is to be moved, so that an administrator can
//!   see how much is left. Files that are changed or removed meanwhile make that count inexact.
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
    /// Files and bytes that are still to be moved, after they were counted.
    pub(super) left: Option<(u64, u64)>,
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

impl Progress {
    /// Counts a moved file.
    fn note_moved(&mut self, bytes: u64) {
        self.moved_files += 1;
        self.note_bytes(bytes);
        self.left = self.left.map(|(files, bytes)| (files.saturating_sub(1), bytes));
    }

    /// Counts moved bytes.
    fn note_bytes(&mut self, moved: u64) {
        self.moved_bytes += moved;
        self.left = self.left.map(|(files, bytes)| (files, bytes.saturating_sub(moved)));
    }
}

/// A pass through all directories that counts what is to be moved.
struct Census {
    walk: Walk,
    files: u64,
    bytes: u64,
}

/// A drain.
#[derive(Default)]
pub(super) struct NodeDrain {
    progress: Progress,
    census: Option<Census>,
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

    /// Returns the progress, with the bytes of the file that is being moved.
    pub(super) fn progress(&self) -> Progress {
        let mut progress = self.progress.clone();
        if let Some(current) = &self.current {
            progress.note_bytes(current.relocation.copied_bytes());
        }
        progress
    }

    /// Counts what is to be moved, some files at a time.
    fn count(&mut self, store: &StripedStore) -> Result<Next> {
        let new = || Census { walk: store.walk(), files: 0, bytes: 0 };
        let mut census = self.census.take().unwrap_or_else(new);
        match store.misplaced(&mut census.walk)? {
            Some(files) => {
                for bytes in files.iter().filter_map(|file| store.misplaced_bytes(file).ok()) {
                    census.files += 1;
                    census.bytes = census.bytes.saturating_add(bytes);
                }
                self.census = Some(census);
            }
            None => self.progress.left = Some((census.files, census.bytes)),
        }
        Ok(Next::Now)
    }

    fn advance(&mut self, store: &StripedStore, service: &Service) -> Result<Next> {
        if self.progress.left.is_none() {
            return self.count(store);
        }
        let now_ns = Instant::now().0;
        if let Some(current) = self.current.take() {
            return self.go_on(current, service, now_ns);
        }
        if let Some(file) = self.due.pop_front() {
            self.met = true;
            match gone_is_fine(store.leave_nodes(&file))? {
                None | Some(Leaving::Waits) => return Ok(Next::Now),
                Some(Leaving::Left(bytes)) => {
                    self.progress.note_moved(bytes);
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
                    self.progress.left = Some((0, 0));
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
                self.progress.note_moved(current.relocation.copied_bytes());
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
    use dafs_store::{CreateHow, Cred, ExportSecret, OpenMode};
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
        assert_eq!(drain.progress().left, Some((0, 0)), "no name leads to a file there");
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

    #[test]
    fn what_is_left_is_counted_before_the_first_move() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Arc::new(store(dir.path()));
        let export = Export::new("", store.clone(), ExportOptions::default());
        let namespace = Namespace::new(vec![export]).expect("one export");
        let service = Service::new(ServiceConfig::new(Duration::from_secs(9), 1), namespace);
        let (cred, root, none) = (Cred::new(0, 0), Store::root(&*store), SetAttr::default());
        let mode = OpenMode { read: true, write: true };
        for name in [b"a", b"b"] {
            let how = CreateHow::Guarded;
            let made = store.create(&cred, &root, name, how, &none, mode).expect("a file");
            let mut bytes = [7; 12 * 4096];
            let view = [dafs_mem::VolatileSlice::from_mut(&mut bytes)];
            let written = made.file.write_at(&view, 0, Stability::Data, Wait::Allowed);
            assert_eq!(written, Ok(12 * 4096));
        }
        store.set_leaving(3, true).expect("another one is left");
        let mut drain = NodeDrain::default();
        assert_eq!(drain.progress().left, None);
        drain.progress.leaving = store.leaving();
        while drain.progress().left.is_none() {
            assert!(drain.count(&store).is_ok());
        }
        assert_eq!(drain.progress().left, Some((2, 2 * 4 * 4096)));
        while !drain.progress.is_through(&store) {
            drain.turn(&store, &service);
            std::thread::sleep(Duration::from_millis(20));
        }
        let Progress { moved_files, moved_bytes, left, .. } = drain.progress();
        assert_eq!((moved_files, moved_bytes, left), (2, 2 * 4 * 4096, Some((0, 0))));
    }
}
