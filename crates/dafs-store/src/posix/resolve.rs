//! From an id to the object: the check that a directory still lies in the export, and the way
//! through the index where the kernel does not open handles.

use super::dir::entries;
use super::export::{Export, descriptor_path, stat_fd};
use super::id::device;
use super::index::Index;
use super::node::Node;
use crate::limits::{CONTAINED_CHECK_MS, DEPTH_MAX, SCAN_ENTRIES_MAX};
use crate::names::check_name;
use crate::{FileId, Kind, Result, StoreError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Export {
    /// Fails with `Stale` when a directory was moved out of the export behind our back. What was
    /// seen inside counts for [`CONTAINED_CHECK_MS`].
    pub(super) fn check_contained(&self, node: &Node) -> Result<()> {
        let now_ms = self.now_ms();
        let seen_ms = node.contained_at_ms.load(Ordering::Relaxed);
        if seen_ms != 0 && now_ms.saturating_sub(seen_ms) < CONTAINED_CHECK_MS {
            return Ok(());
        }
        self.check_contained_now(node)?;
        node.contained_at_ms.store(now_ms, Ordering::Relaxed);
        Ok(())
    }

    /// As `check_contained`, without trust in an earlier look.
    pub(super) fn check_contained_now(&self, node: &Node) -> Result<()> {
        if self.paths_tell && self.path_is_inside(node) {
            return Ok(());
        }
        let _server = self.identity.server()?;
        if self.climbs_to_root(node)? {
            return Ok(());
        }
        self.nodes.forget(&node.id);
        Err(StoreError::Stale)
    }

    fn path_is_inside(&self, node: &Node) -> bool {
        let path = |node: &Node| rustix::fs::readlink(descriptor_path(node.as_fd()), Vec::new());
        let (Ok(root), Ok(path)) = (path(&self.root), path(node)) else { return false };
        let (root, path) = (root.as_bytes(), path.as_bytes());
        root == b"/" || path.strip_prefix(root).is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// Goes up by ".." until the root or the end is reached.
    fn climbs_to_root(&self, node: &Node) -> Result<bool> {
        let root = stat_fd(self.root.as_fd())?;
        let is_root = |stat: &rustix::fs::Statx| {
            stat.stx_ino == root.stx_ino
                && device(stat) == device(&root)
                && stat.stx_mnt_id == root.stx_mnt_id
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut below = stat_fd(node.as_fd())?;
        let mut at = None;
        for _ in 0..DEPTH_MAX {
            let from = at.as_ref().map_or(node.as_fd(), AsFd::as_fd);
            let up = match self.with_room(|| rustix::fs::openat(from, c"..", flags, Mode::empty()))
            {
                Ok(up) => up,
                Err(Errno::NOENT) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            };
            let stat = stat_fd(up.as_fd())?;
            if is_root(&stat) {
                return Ok(true);
            }
            if stat.stx_ino == below.stx_ino && device(&stat) == device(&below) {
                return Ok(false);
            }
            below = stat;
            at = Some(up);
        }
        Ok(false)
    }

    /// Finds an object by the names that the index has, else by a scan.
    pub(super) fn find_by_index(&self, index: &Index, id: &FileId) -> Result<Arc<Node>> {
        if index.is_gone(id) {
            return Err(StoreError::Stale);
        }
        if let Some(node) = self.walk(index, id)? {
            return Ok(node);
        }
        let mut scan = index.start_scan()?;
        // Somebody else's scan may have found it while this one waited.
        if let Some(node) = self.walk(index, id)? {
            return Ok(node);
        }
        let began = Instant::now();
        let found = self.scan_for(index, id);
        scan.finished(began.elapsed());
        found?.ok_or(StoreError::Stale)
    }

    /// Walks down by the names that the index has. Every step is compared with the id that it
    /// should lead to; a wrong entry is dropped and ends the walk.
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

    /// Looks through the whole export, directory by directory, and teaches the index on the way.
    fn scan_for(&self, index: &Index, id: &FileId) -> Result<Option<Arc<Node>>> {
        let mut left = SCAN_ENTRIES_MAX;
        let mut directories = vec![self.root.id];
        while let Some(dir_id) = directories.pop() {
            let Ok(Some(dir)) = self.walk_or_root(index, &dir_id) else { continue };
            let Ok(fd) = self.reopen(&dir, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
            let mut buffer = Vec::new();
            while super::sys::read_directory(fd.as_fd(), &mut buffer).is_ok() && !buffer.is_empty()
            {
                for entry in entries(&buffer) {
                    let Some(rest) = left.checked_sub(1) else {
                        tracing::warn!("scan for a lost object gave up: the export is too large");
                        return Ok(None);
                    };
                    left = rest;
                    if check_name(entry.name).is_err() {
                        continue;
                    }
                    let Some((found, is_directory)) = self.look_at(&dir, entry.name) else {
                        continue;
                    };
                    index.learn(found, dir_id, entry.name);
                    if found == *id {
                        return self.walk(index, id);
                    }
                    if is_directory {
                        directories.push(found);
                    }
                }
            }
        }
        Ok(None)
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
