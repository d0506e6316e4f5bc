//! Detects changes of watched files by local processes.
//!
//! Decisions
//! * fanotify where the system permits it. It names objects by the same handles as our ids, names
//!   the process, so that the server's own work is ignored, and reports opens, too. Unprivileged
//!   users may use it since Linux 5.13; sandboxes often refuse it.
//! * Else inotify, which does not name the process. It watches for changes only, not for uses. A
//!   caller must end such a watch before the server itself changes the file.
//! * The group of marks is made with the first watch. Before that the store only tries if it can be
//!   made.
//! * Local processes may have opened a file for writing, or mapped it, before the watch. Then only
//!   later writes are seen; changes through a mapping are never seen.
//!
//! Invariants
//! * If the kernel's queue overflows and drops events, every watched file is reported.
//! * The lock is not held while the sink runs.

use super::PosixStore;
use super::export::{Export, descriptor_path};
use super::id::Ids;
use super::node::Node;
use super::sys::{self, HANDLE_BYTES_MAX, KernelHandle, Mark};
use crate::limits::{WATCH_BUFFER_BYTES, WATCH_READS_MAX, WATCHES_MAX};
use dafs_mem::Mutex;
use dafs_store::{FileId, Kind, LocalChanges, Result, StoreError, Watch};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

const CHANGES: u64 =
    libc::FAN_MODIFY | libc::FAN_ATTRIB | libc::FAN_DELETE_SELF | libc::FAN_MOVE_SELF;

const INOTIFY_CHANGES: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// The kernel interface that reports changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    Fanotify,
    Inotify,
    Nothing,
}

/// The watched files of an export.
pub(super) struct Watches {
    means: Means,
    group: OnceLock<OwnedFd>,
    /// The number of watched files, readable without the lock.
    watched: AtomicUsize,
    table: Mutex<FxHashMap<FileId, Watched>>,
}

struct Watched {
    watchers: usize,
    uses: bool,
    /// Inotify's id of the watch.
    number: i32,
    node: Arc<Node>,
}

/// The events that were read from a group.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    ids: FxHashSet<FileId>,
    numbers: FxHashSet<i32>,
    lost: bool,
}

impl Watches {
    /// Detects the interfaces that the system permits. `own_descriptors` is `/proc/self/fd`.
    pub(super) fn find_out(
        own_descriptors: BorrowedFd<'_>,
        root: BorrowedFd<'_>,
        has_handles: bool,
    ) -> Self {
        let fanotify = || {
            let group = sys::fanotify_init()?;
            let mark = Mark::Add(libc::FAN_ATTRIB | libc::FAN_ONDIR);
            sys::fanotify_mark(group.as_fd(), mark, own_descriptors, &DecInt::from_fd(root))
        };
        let inotify = || {
            let group = inotify::init(CreateFlags::CLOEXEC)?;
            inotify::add_watch(&group, descriptor_path(root), WatchFlags::ATTRIB)
        };
        let means = if has_handles && fanotify().is_ok() {
            Means::Fanotify
        } else if inotify().is_ok() {
            Means::Inotify
        } else {
            Means::Nothing
        };
        Self::new(means)
    }

    fn new(means: Means) -> Self {
        let (group, table) = (OnceLock::new(), Mutex::default());
        Self { means, group, watched: AtomicUsize::new(0), table }
    }

    pub(super) fn ability(&self) -> LocalChanges {
        match self.means {
            Means::Nothing => LocalChanges::Unseen,
            Means::Fanotify | Means::Inotify => LocalChanges::Reported,
        }
    }

    fn group(&self) -> Result<&OwnedFd> {
        if let Some(group) = self.group.get() {
            return Ok(group);
        }
        let made = match self.means {
            Means::Fanotify => sys::fanotify_init(),
            Means::Inotify => inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK),
            Means::Nothing => return Err(StoreError::NotSupported),
        };
        let made = made.map_err(refusal)?;
        Ok(self.group.get_or_init(|| made))
    }

    /// Reads the pending events, with a limit.
    fn read(&self, ids: &Ids) -> Seen {
        let mut seen = Seen::default();
        let Some(group) = self.group.get() else { return seen };
        let mut buffer = vec![0; WATCH_BUFFER_BYTES];
        for _ in 0..WATCH_READS_MAX {
            let Ok(len) = rustix::io::read(group, &mut buffer[..]) else { break };
            let Some(events) = buffer.get(..len).filter(|events| !events.is_empty()) else { break };
            match self.means {
                Means::Fanotify => seen.take_fanotify(events, ids, std::process::id()),
                Means::Inotify | Means::Nothing => seen.take_inotify(events),
            }
        }
        seen
    }
}

/// Maps the error of a refused watch.
fn refusal(errno: Errno) -> StoreError {
    match errno {
        Errno::NOSPC | Errno::NOMEM | Errno::MFILE | Errno::NFILE => StoreError::Busy,
        _ => StoreError::NotSupported,
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

impl Seen {
    /// Records fanotify events of other processes.
    fn take_fanotify(&mut self, mut events: &[u8], ids: &Ids, own_process: u32) {
        const HEADER_BYTES: usize = 24;
        while let Some(len) = number(events, 0).map(u32::from_ne_bytes)
            && let Some(event) = events.get(..len as usize)
            && event.len() >= HEADER_BYTES
        {
            events = &events[event.len()..];
            let mask = number(event, 8).map_or(0, u64::from_ne_bytes);
            let process = number(event, 20).map_or(0, u32::from_ne_bytes);
            let header_bytes = number(event, 6).map_or(0, u16::from_ne_bytes);
            if mask & libc::FAN_Q_OVERFLOW != 0 {
                self.lost = true;
            } else if process != own_process {
                let id = event.get(usize::from(header_bytes)..).and_then(handle_of);
                self.ids.extend(id.map(|handle| ids.of_handle(&handle)));
            }
        }
    }

    /// Records inotify events.
    fn take_inotify(&mut self, mut events: &[u8]) {
        const HEADER_BYTES: usize = 16;
        while let Some(watch) = number(events, 0).map(i32::from_ne_bytes)
            && let Some(mask) = number(events, 4).map(u32::from_ne_bytes)
            && let Some(name_bytes) = number(events, 12).map(u32::from_ne_bytes)
            && let Some(rest) = events.get(HEADER_BYTES + name_bytes as usize..)
        {
            events = rest;
            self.lost |= mask & libc::IN_Q_OVERFLOW != 0;
            if mask & libc::IN_IGNORED == 0 {
                self.numbers.insert(watch);
            }
        }
    }
}

/// Returns the file handle in the records behind an event's header.
fn handle_of(mut records: &[u8]) -> Option<KernelHandle> {
    const FSID_BYTES: usize = 8;
    const RECORD_HEADER_BYTES: usize = 4;
    loop {
        let len = usize::from(u16::from_ne_bytes(number(records, 2)?));
        let record = records.get(..len).filter(|record| record.len() > RECORD_HEADER_BYTES)?;
        if record[0] != libc::FAN_EVENT_INFO_TYPE_FID {
            records = &records[len..];
            continue;
        }
        let handle = record.get(RECORD_HEADER_BYTES + FSID_BYTES..)?;
        let len = u32::from_ne_bytes(number(handle, 0)?);
        let kind = i32::from_ne_bytes(number(handle, 4)?);
        let from = handle.get(8..)?.get(..len as usize)?;
        let mut bytes = [0; HANDLE_BYTES_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        return Some(KernelHandle {
            kind: u8::try_from(kind).ok()?,
            len: u8::try_from(len).ok()?,
            bytes,
        });
    }
}

impl Export {
    /// Marks a file, with the thread's identity or else as the server.
    fn mark(&self, node: &Node, what: Watch) -> Result<i32> {
        let group = self.watches.group()?;
        let mark = || match self.watches.means {
            Means::Fanotify => {
                let opens = if what == Watch::Uses { libc::FAN_OPEN } else { 0 };
                let (own, name) = (self.own_descriptors.as_fd(), DecInt::from_fd(node));
                sys::fanotify_mark(group.as_fd(), Mark::Add(CHANGES | opens), own, &name)
                    .map(|()| 0)
            }
            Means::Inotify | Means::Nothing => {
                inotify::add_watch(group, descriptor_path(node.as_fd()), INOTIFY_CHANGES)
            }
        };
        match mark() {
            Err(Errno::ACCESS | Errno::PERM) => {
                let _server = self.identity.server()?;
                mark().map_err(refusal)
            }
            other => other.map_err(refusal),
        }
    }

    fn unmark(&self, watched: &Watched) {
        let Some(group) = self.watches.group.get() else { return };
        // The kernel removes a mark together with its file, so a missing mark is no failure.
        let _ = match self.watches.means {
            Means::Fanotify => {
                let all = Mark::Remove(CHANGES | libc::FAN_OPEN);
                let (own, name) = (self.own_descriptors.as_fd(), DecInt::from_fd(&watched.node));
                sys::fanotify_mark(group.as_fd(), all, own, &name)
            }
            Means::Inotify | Means::Nothing => inotify::remove_watch(group, watched.number),
        };
    }
}

impl PosixStore {
    pub(super) fn start_watch(&self, id: &FileId, what: Watch) -> Result<()> {
        let export = &self.export;
        let watches = &export.watches;
        let can = match watches.means {
            Means::Fanotify => true,
            Means::Inotify => what == Watch::Changes,
            Means::Nothing => false,
        };
        let node = export.node(id)?;
        export.stat_live(&node)?;
        if !can || node.kind != Kind::Regular {
            return Err(StoreError::NotSupported);
        }
        let mut table = watches.table.lock();
        if let Some(watched) = table.get_mut(id) {
            if what == Watch::Uses && !watched.uses {
                export.mark(&watched.node, what)?;
                watched.uses = true;
            }
            watched.watchers += 1;
            return Ok(());
        }
        if table.len() >= WATCHES_MAX {
            return Err(StoreError::Busy);
        }
        let number = export.mark(&node, what)?;
        table.insert(*id, Watched { watchers: 1, uses: what == Watch::Uses, number, node });
        watches.watched.store(table.len(), Ordering::Release);
        Ok(())
    }

    pub(super) fn end_watch(&self, id: &FileId) {
        let mut table = self.export.watches.table.lock();
        let Some(watched) = table.get_mut(id) else { return };
        watched.watchers -= 1;
        if watched.watchers > 0 {
            return;
        }
        let ended = table.remove(id);
        self.export.watches.watched.store(table.len(), Ordering::Release);
        // Under the lock, so that a new watch of this file does not lose its mark to the old one.
        ended.iter().for_each(|watched| self.export.unmark(watched));
    }

    pub(super) fn report_changes(&self, sink: &mut dyn FnMut(FileId)) {
        let watches = &self.export.watches;
        if watches.watched.load(Ordering::Acquire) == 0 {
            return;
        }
        let seen = watches.read(&self.export.ids);
        if seen == Seen::default() {
            return;
        }
        let changed: Vec<FileId> = {
            let table = watches.table.lock();
            let is_meant = |id: &FileId, watched: &Watched| {
                let by_number = watches.means == Means::Inotify;
                seen.lost
                    || seen.ids.contains(id)
                    || (by_number && seen.numbers.contains(&watched.number))
            };
            let meant = table.iter().filter(|(id, watched)| is_meant(id, watched));
            meant.map(|(id, _)| *id).collect()
        };
        changed.into_iter().for_each(sink);
    }

    pub(super) fn changes_fd(&self) -> Option<BorrowedFd<'_>> {
        self.export.watches.group().ok().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PosixOptions;
    use dafs_store::{CreateHow, Cred, ExportSecret, OpenMode, SetAttr, Store};

    fn changed(store: &PosixStore) -> Vec<FileId> {
        let mut ids = Vec::new();
        store.take_local_changes(&mut |id| ids.push(id));
        ids
    }

    #[test]
    fn inotify_serves_where_there_is_nothing_better() {
        let dir = tempfile::tempdir().unwrap();
        let options = PosixOptions::new(ExportSecret::from_bytes([7; 16]));
        let mut store = PosixStore::open(dir.path(), options).unwrap();
        Arc::get_mut(&mut store.export).unwrap().watches = Watches::new(Means::Inotify);
        let cred =
            Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let both = OpenMode { read: true, write: true };
        let (how, none) = (CreateHow::Guarded, SetAttr::default());
        let id = store.create(&cred, &store.root(), b"f", how, &none, both).unwrap().id;
        assert_eq!(store.watch(&id, Watch::Uses), Err(StoreError::NotSupported));
        store.watch(&id, Watch::Changes).unwrap();
        assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"");
        assert_eq!(changed(&store), []);
        std::fs::write(dir.path().join("f"), "x").unwrap();
        assert_eq!(changed(&store), [id]);
        assert_eq!(changed(&store), []);
        store.unwatch(&id);
        std::fs::write(dir.path().join("f"), "y").unwrap();
        assert_eq!(changed(&store), []);
        Arc::get_mut(&mut store.export).unwrap().watches = Watches::new(Means::Nothing);
        assert_eq!(store.watch(&id, Watch::Changes), Err(StoreError::NotSupported));
    }

    #[test]
    fn cut_events_are_passed_over() {
        let ids = Ids::new(dafs_store::FsId([1; 16]), ExportSecret::from_bytes([7; 16]), 0);
        let mut event = Vec::new();
        event.extend(52u32.to_ne_bytes());
        event.extend([3, 0]);
        event.extend(24u16.to_ne_bytes());
        event.extend(libc::FAN_MODIFY.to_ne_bytes());
        event.extend((-1i32).to_ne_bytes());
        event.extend(77u32.to_ne_bytes());
        event.extend([libc::FAN_EVENT_INFO_TYPE_FID, 0]);
        event.extend(28u16.to_ne_bytes());
        event.extend([9; 8]);
        event.extend(8u32.to_ne_bytes());
        event.extend(1i32.to_ne_bytes());
        event.extend([5; 8]);
        let take = |events: &[u8], own| {
            let mut seen = Seen::default();
            seen.take_fanotify(events, &ids, own);
            seen
        };
        assert_eq!(take(&event, 1).ids.len(), 1);
        assert_eq!(take(&event, 77), Seen::default(), "own work");
        for len in 0..event.len() {
            assert_eq!(take(&event[..len], 1), Seen::default(), "{len}");
        }
        for at in 0..event.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut odd = event.clone();
                odd[at] = value;
                take(&odd, 1);
            }
        }
        let lost = libc::FAN_Q_OVERFLOW.to_ne_bytes();
        event[8..16].copy_from_slice(&lost);
        assert!(take(&event, 1).lost);
    }
}
