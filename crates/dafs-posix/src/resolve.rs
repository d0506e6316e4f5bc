//! Resolves ids to objects: the check that a directory is still in the export, and the search
//! through the index where the kernel does not open handles.

use super::dir::entries;
use super::export::{Export, descriptor_path, stat_fd};
use super::id::device;
use super::index::{Index, Listing, Scan};
use super::node::Node;
use crate::limits::{
    CONTAINED_CHECK_MS, CONTAINED_FILE_CHECK_MS, DEPTH_MAX, SCAN_SLICE_ENTRIES_MAX,
    SCAN_SLICE_ENTRIES_MIN, SCAN_SLICE_MS,
};
use dafs_store::backend::check_name;
use dafs_store::{FileId, Kind, Result, StoreError, Wait};
use rustix::fs::{Mode, OFlags, Statx};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The part of a scan that one call does.
struct Slice {
    began: Instant,
    entries: usize,
}

impl Slice {
    fn new() -> Self {
        Self { began: Instant::now(), entries: 0 }
    }

    fn has_more(&self) -> bool {
        self.entries < SCAN_SLICE_ENTRIES_MIN
            || (self.entries < SCAN_SLICE_ENTRIES_MAX
                && self.began.elapsed() < Duration::from_millis(SCAN_SLICE_MS))
    }
}

/// The outcome of a slice of a scan.
enum Step {
    Found,
    Ended,
    SliceUsedUp,
}

impl Export {
    /// Fails with `Stale` when a local process has moved a directory out of the export. A check is
    /// valid for [`CONTAINED_CHECK_MS`].
    pub(super) fn check_contained(&self, node: &Node) -> Result<()> {
        let now_ms = self.now_ms();
        let seen_ms = node.contained_at_ms.load(Ordering::Relaxed);
        if seen_ms != 0 && now_ms.saturating_sub(seen_ms) < CONTAINED_CHECK_MS {
            return Ok(());
        }
        let seen_ms = self.seen_inside(node, now_ms.saturating_sub(CONTAINED_CHECK_MS) + 1)?;
        node.contained_at_ms.store(seen_ms, Ordering::Relaxed);
        Ok(())
    }

    /// Does the same as `check_contained`, but ignores earlier checks.
    pub(super) fn check_contained_now(&self, node: &Node) -> Result<()> {
        self.seen_inside(node, u64::MAX).map(drop)
    }

    /// Returns the time when a directory was last seen inside: now, unless an ancestor was seen
    /// inside at `since_ms` or later.
    fn seen_inside(&self, node: &Node, since_ms: u64) -> Result<u64> {
        if self.paths_tell && self.path_is_inside(node) {
            return Ok(self.now_ms());
        }
        let _server = self.identity.server()?;
        if let Some(seen_ms) = self.climb(node, since_ms)? {
            return Ok(seen_ms);
        }
        self.nodes.forget(&node.id);
        Err(StoreError::Stale)
    }

    fn path_is_inside(&self, node: &Node) -> bool {
        let path = |node: &Node| rustix::fs::readlink(descriptor_path(node.as_fd()), Vec::new());
        let (Ok(root), Ok(path)) = (path(&self.root), path(node)) else { return false };
        let (root, path) = (root.as_bytes(), path.as_bytes());
        // The path of a removed name says nothing of the file's other names.
        !(node.kind != Kind::Directory && path.ends_with(b" (deleted)"))
            && (root == b"/" || path.strip_prefix(root).is_some_and(|rest| rest.starts_with(b"/")))
    }

    /// With `subtree_check`: fails with `MovedOut` when no name below the root leads to a file any
    /// more; the file may come back. Fails with `Busy` while that takes a scan. A removed file that
    /// is open stays usable. A check is valid for [`CONTAINED_FILE_CHECK_MS`].
    pub(super) fn check_file_contained(&self, node: &Node, wait: Wait) -> Result<()> {
        let Some(index) = self.index.as_ref().filter(|_| self.subtree_check) else { return Ok(()) };
        let now_ms = self.now_ms();
        let seen_ms = node.contained_at_ms.load(Ordering::Relaxed);
        if seen_ms != 0 && now_ms.saturating_sub(seen_ms) < CONTAINED_FILE_CHECK_MS {
            return Ok(());
        }
        let path_tells = self.paths_tell && self.path_is_inside(node);
        if !path_tells && stat_fd(node.as_fd())?.stx_nlink != 0 {
            if wait == Wait::Never {
                return Err(StoreError::WouldBlock);
            }
            let _server = self.identity.server()?;
            self.find_by_index(index, &node.id).map_err(|error| match error {
                StoreError::Stale => StoreError::MovedOut,
                error => error,
            })?;
        }
        node.contained_at_ms.store(now_ms, Ordering::Relaxed);
        Ok(())
    }

    /// Climbs by ".." to the root, or to a directory that was seen inside at `since_ms` or later.
    /// Returns that time, which then holds for all directories on the way, or `None` if the climb
    /// ends elsewhere.
    fn climb(&self, node: &Node, since_ms: u64) -> Result<Option<u64>> {
        let root = stat_fd(self.root.as_fd())?;
        let is_root = |stat: &Statx| {
            stat.stx_ino == root.stx_ino
                && device(stat) == device(&root)
                && stat.stx_mnt_id == root.stx_mnt_id
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut below = stat_fd(node.as_fd())?;
        let (mut at, mut passed) = (None, Vec::<Weak<Node>>::new());
        let arrived = |seen_ms: u64, passed: Vec<Weak<Node>>| {
            // A long climb counts from its end, or it would expire at once.
            let seen_ms = seen_ms.min(self.now_ms());
            // The cache may have evicted some, to free their descriptors.
            for node in passed.iter().filter_map(Weak::upgrade) {
                node.contained_at_ms.fetch_max(seen_ms, Ordering::Relaxed);
            }
            Ok(Some(seen_ms))
        };
        for _ in 0..DEPTH_MAX {
            let from = at.as_ref().map_or(node.as_fd(), AsFd::as_fd);
            let up = match self.with_room(|| rustix::fs::openat(from, c"..", flags, Mode::empty()))
            {
                Ok(up) => up,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            };
            let stat = stat_fd(up.as_fd())?;
            if is_root(&stat) {
                return arrived(u64::MAX, passed);
            }
            if stat.stx_ino == below.stx_ino && device(&stat) == device(&below) {
                return Ok(None);
            }
            let held = self.held(&up, &stat);
            let seen_ms = held.as_ref().map_or(0, |n| n.contained_at_ms.load(Ordering::Relaxed));
            if seen_ms >= since_ms {
                return arrived(seen_ms, passed);
            }
            passed.extend(held.as_ref().map(Arc::downgrade));
            below = stat;
            at = Some(up);
        }
        Ok(None)
    }

    /// Returns the node of a directory, if it is held.
    fn held(&self, fd: &OwnedFd, stat: &Statx) -> Option<Arc<Node>> {
        let handle = super::sys::name_to_handle(fd.as_fd(), c"").ok()?;
        self.nodes.get(&self.id_of(stat, handle).ok()?)
    }

    /// Finds an object by the names in the index, else by a scan, which may take several calls:
    /// `Busy` until it is done.
    pub(super) fn find_by_index(&self, index: &Index, id: &FileId) -> Result<Arc<Node>> {
        if index.is_gone(id) {
            return Err(StoreError::Stale);
        }
        if let Some(node) = self.walk(index, id)? {
            return Ok(node);
        }
        // Checked after the walk, because a directory above it may have come back.
        if index.is_missing(id) {
            return Err(StoreError::Stale);
        }
        let mut scan = index.try_scan()?;
        // Another thread's scan may just have found it, or not.
        if let Some(node) = self.walk(index, id)? {
            return Ok(node);
        }
        if index.is_missing(id) {
            return Err(StoreError::Stale);
        }
        scan.want(id, &self.root.id)?;
        let mut slice = Slice::new();
        // First the rest of an earlier scan, then at most one whole scan for this object.
        for _ in 0..2 {
            match self.scan_on(index, &mut scan, &mut slice, id) {
                Step::Found => return self.walk(index, id)?.ok_or(StoreError::Busy),
                Step::Ended => index.scan_ended(&mut scan),
                Step::SliceUsedUp => {
                    scan.rest(slice.began.elapsed());
                    return Err(StoreError::Busy);
                }
            }
            if index.is_missing(id) {
                return Err(StoreError::Stale);
            }
            scan.want(id, &self.root.id)?;
        }
        Err(StoreError::Busy)
    }

    /// Walks down by the names in the index. Every step is compared with the expected id; a wrong
    /// entry is dropped and ends the walk.
    fn walk(&self, index: &Index, id: &FileId) -> Result<Option<Arc<Node>>> {
        let mut steps = Vec::new();
        let mut want = *id;
        let mut at = loop {
            if want == self.root.id {
                break self.root.clone();
            }
            if !steps.is_empty()
                && let Some(node) = self.nodes.get(&want)
                && node.kind == Kind::Directory
            {
                self.check_contained(&node)?;
                break node;
            }
            let Some((parent, name)) = index.place(&want) else { return Ok(None) };
            steps.push((want, name));
            if steps.len() > DEPTH_MAX {
                return Ok(None);
            }
            want = parent;
        };
        while let Some((want, name)) = steps.pop() {
            let found = self
                .open_beneath(&at, &name, OFlags::PATH, Mode::empty())
                .map_err(StoreError::from)
                .and_then(|fd| self.adopt(fd));
            match found {
                Ok((node, _)) if node.id == want => at = node,
                Err(error @ (StoreError::Busy | StoreError::Io)) => return Err(error),
                _ => {
                    index.misled(&want);
                    return Ok(None);
                }
            }
        }
        Ok(Some(at))
    }

    /// Continues a scan, directory by directory, and updates the index.
    fn scan_on(&self, index: &Index, scan: &mut Scan, slice: &mut Slice, id: &FileId) -> Step {
        while slice.has_more() {
            let Some(listing) = &mut scan.listing else {
                let Some(next) = scan.directories.pop() else { return Step::Ended };
                slice.entries += 1;
                scan.listing = self.list_for_scan(index, &next, &mut scan.hindered);
                continue;
            };
            let Some(name) = listing.names.pop() else {
                let mut buffer = Vec::new();
                let read = super::sys::read_directory(listing.fd.as_fd(), &mut buffer);
                let names = entries(&buffer).map(|entry| entry.name.into());
                listing.names = names.collect();
                if read.is_err() || buffer.is_empty() {
                    scan.listing = None;
                }
                continue;
            };
            slice.entries += 1;
            let (dir, dir_id) = (listing.dir.clone(), listing.dir.id);
            if !scan.count_entry() {
                tracing::warn!("scan for a lost object gave up: the export is too large");
                return Step::Ended;
            }
            if check_name(&name).is_err() {
                continue;
            }
            let Some((found, is_directory)) = self.look_at(&dir, &name) else { continue };
            index.learn(found, dir_id, &name);
            if scan.saw(&found) {
                // A use keeps it in the index until the client retries.
                index.place(&found);
            }
            if is_directory {
                scan.directories.push(found);
            }
            if found == *id {
                return Step::Found;
            }
        }
        Step::SliceUsedUp
    }

    /// Opens the next directory of a scan. Skips one that is gone or may not be listed.
    fn list_for_scan(&self, index: &Index, id: &FileId, hindered: &mut bool) -> Option<Listing> {
        let opened = self.walk_or_root(index, id).and_then(|dir| {
            let Some(dir) = dir else { return Ok(None) };
            let fd = self.reopen(&dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(Some(Listing { dir, fd, names: Vec::new() }))
        });
        *hindered |= opened.as_ref().is_err_and(|error| *error == StoreError::Busy);
        opened.ok().flatten()
    }

    fn walk_or_root(&self, index: &Index, id: &FileId) -> Result<Option<Arc<Node>>> {
        match self.nodes.get(id) {
            Some(node) => Ok(Some(node)),
            None => self.walk(index, id),
        }
    }

    fn look_at(&self, dir: &Node, name: &[u8]) -> Option<(FileId, bool)> {
        let name = CString::new(name).ok()?;
        let stat = super::export::stat_name(dir.as_fd(), &name).ok()?;
        let handle = super::sys::name_to_handle(dir.as_fd(), &name).ok()?;
        let id = self.id_of(&stat, handle).ok()?;
        Some((id, super::attr::kind(&stat).ok()? == Kind::Directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SCAN_ENTRIES_MAX;
    use crate::{PosixOptions, PosixStore};
    use dafs_store::{Cred, ExportSecret, Store};

    fn without_handles(path: &std::path::Path) -> PosixStore {
        let options = PosixOptions::new(ExportSecret::from_bytes([7; 16]));
        let mut store = PosixStore::open(path, options).unwrap();
        let export = Arc::get_mut(&mut store.export).unwrap();
        (export.index, export.by_handle) = (Some(Index::new(SCAN_ENTRIES_MAX)), false);
        store
    }

    /// Retries while the answer is `Busy`, as clients do. Returns the number of such answers, too.
    fn patiently(store: &PosixStore, id: &FileId) -> (Result<u64>, u32) {
        let mut busy = 0;
        loop {
            match store.getattr(id) {
                Err(StoreError::Busy) => busy += 1,
                other => return (other.map(|attr| attr.file_id), busy),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_lost_object_of_a_large_export_is_found_in_slices_and_a_gone_one_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        for sub in 0..4 {
            let sub = dir.path().join(format!("d{sub}"));
            std::fs::create_dir(&sub).unwrap();
            for i in 0..SCAN_SLICE_ENTRIES_MAX / 2 {
                std::fs::write(sub.join(i.to_string()), "").unwrap();
            }
        }
        let cred =
            Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let first = without_handles(dir.path());
        let ids: Vec<_> = (0..4)
            .map(|sub| {
                let sub = format!("d{sub}");
                let (sub, _) = first.lookup(&cred, &first.root(), sub.as_bytes()).unwrap();
                first.lookup(&cred, &sub, b"5").unwrap()
            })
            .collect();
        std::fs::remove_file(dir.path().join("d1/5")).unwrap();
        let store = without_handles(dir.path());
        let (answer, busy) = patiently(&store, &ids[1].0);
        assert_eq!(answer, Err(StoreError::Stale));
        assert!(busy > 0, "no single call looks at the whole export");
        for at in [0, 2, 3] {
            let (answer, busy) = patiently(&store, &ids[at].0);
            assert_eq!((answer, busy), (Ok(ids[at].1.file_id), 0), "the scan taught the index");
        }
        let index = store.export.index.as_ref().unwrap();
        let scanning = index.try_scan().unwrap();
        assert_eq!(store.getattr(&ids[1].0), Err(StoreError::Stale), "known without a scan");
        drop(scanning);
    }

    #[test]
    fn a_request_does_not_wait_for_the_scan_of_another() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "").unwrap();
        let cred =
            Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let first = without_handles(dir.path());
        let (id, attr) = first.lookup(&cred, &first.root(), b"f").unwrap();
        let store = without_handles(dir.path());
        let index = store.export.index.as_ref().unwrap();
        let scanning = index.try_scan().unwrap();
        assert_eq!(store.getattr(&id), Err(StoreError::Busy));
        drop(scanning);
        assert_eq!(store.getattr(&id).map(|attr| attr.file_id), Ok(attr.file_id));
    }
}
