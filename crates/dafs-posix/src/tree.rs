//! Names: making, linking, removing and renaming them, and going up.
//!
//! Invariants
//! * Calls that change a name get the descriptor of the directory and one checked name, and none of
//!   them follows a symlink in that place.
//! * A new object that cannot get all of its attributes is removed again. Attributes that are never
//!   possible are rejected before the object is made. Only the made object is removed, not one that
//!   a local process has put under the name since.

use super::attr;
use super::export::{Export, stat_fd, stat_name};
use super::file::{PosixFile, data_flags, open_error};
use super::id::device;
use super::ident::Caller;
use super::node::Node;
use super::{sys, umask};
use crate::limits::CREATE_RETRIES_MAX;
use dafs_store::backend::{
    DIRECTORY_MODE_DEFAULT, FILE_MODE_DEFAULT, MODE_BITS, SPECIAL_MODE_DEFAULT, check_regular,
    verifier_seconds, with_verifier,
};
use dafs_store::{
    CreateHow, Created, Cred, DirChange, FileId, Kind, Made, NewObject, OpenMode, RemoveKind,
    Result, SetAttr, StoreError,
};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Statx, StatxFlags, Timespec, makedev,
};
use rustix::io::Errno;
use rustix::path::DecInt;
use rustix::time::ClockId;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Returns the attributes of a name's object.
fn named(dir: &Node, name: &[u8]) -> Option<Statx> {
    stat_name(dir.as_fd(), &CString::new(name).ok()?).ok()
}

fn removal_flags(stat: &Statx) -> AtFlags {
    match attr::kind(stat) {
        Ok(Kind::Directory) => AtFlags::REMOVEDIR,
        _ => AtFlags::empty(),
    }
}

impl Export {
    /// Creates or opens a regular file.
    pub(super) fn create(
        self: &Arc<Self>,
        caller: &Caller,
        cred: &Cred,
        dir: &Node,
        name: &[u8],
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        let flags = data_flags(mode)? | OFlags::CREATE | OFlags::EXCL;
        let bits = wish.mode.map_or(FILE_MODE_DEFAULT, |mode| mode & MODE_BITS);
        let before = self.before_change(dir)?;
        let possible = self.check_wish(cred, dir, Kind::Regular, wish);
        for _ in 0..CREATE_RETRIES_MAX {
            let opened = match possible {
                Ok(()) => umask::without(Mode::from_raw_mode(bits), || {
                    self.open_beneath(dir, name, flags, Mode::from_raw_mode(bits))
                }),
                // An existing file does not get these attributes.
                Err(error) => match self.step(dir, name) {
                    Ok(_) => Err(Errno::EXIST),
                    Err(StoreError::NotFound) => return Err(error),
                    Err(other) => return Err(other),
                },
            };
            match opened {
                Ok(fd) => {
                    let fd = Arc::new(fd);
                    let (node, stat) = self.adopt_new(&fd).inspect_err(|_| {
                        let made = stat_fd(fd.as_fd());
                        made.into_iter().for_each(|made| Self::take_back(dir, name, &made));
                    })?;
                    let file = PosixFile::from_fd(self, cred, &node, mode, fd);
                    let finished =
                        self.finish_file(caller, cred, (dir, &node, &stat), how, wish, bits, &file);
                    let changed = self.or_remove(dir, name, &node, finished)?;
                    self.learn(&node, dir, name);
                    let stat = if changed { stat_fd(file.fd().as_fd())? } else { stat };
                    let attr = self.node_attr(&node, &stat)?;
                    let dir = self.changed(dir, before)?;
                    return Ok(Created { id: node.id, attr, dir, file, created: true });
                }
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => return Err(self.name_error(dir, Errno::NOENT)),
                Err(errno) => return Err(open_error(errno)),
            }
            if how == CreateHow::Guarded {
                return Err(StoreError::Exists);
            }
            match self.step(dir, name) {
                Ok((node, stat)) => {
                    match self.open_existing(caller, cred, dir, &node, &stat, how, wish, mode) {
                        // Another process has removed it before the open, so the name is free
                        // again.
                        Err(StoreError::Stale) => {}
                        other => return other,
                    }
                }
                Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Busy)
    }

    /// Creates and opens a regular file without a name.
    pub(super) fn create_unlinked(
        self: &Arc<Self>,
        caller: &Caller,
        cred: &Cred,
        dir: &Node,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        // The kernel makes such files only for writing. `PosixFile` enforces the mode of the open.
        let flags = data_flags(mode)? & !(OFlags::WRONLY | OFlags::RDWR);
        let flags = flags | OFlags::RDWR | OFlags::TMPFILE;
        let bits = wish.mode.map_or(FILE_MODE_DEFAULT, |mode| mode & MODE_BITS);
        self.check_wish(cred, dir, Kind::Regular, wish)?;
        let mode_bits = Mode::from_raw_mode(bits);
        let fd = umask::without(mode_bits, || self.open_beneath(dir, b".", flags, mode_bits));
        let fd = Arc::new(fd.map_err(|errno| match errno {
            // The errors of file systems that do not support such files.
            Errno::ISDIR | Errno::INVAL => StoreError::NotSupported,
            errno => self.name_error(dir, errno),
        })?);
        let (node, stat) = self.adopt_new(&fd)?;
        let file = PosixFile::from_fd(self, cred, &node, mode, fd);
        let how = CreateHow::Guarded;
        let finished = self.finish_file(caller, cred, (dir, &node, &stat), how, wish, bits, &file);
        if let Err(error) = finished {
            self.nodes.forget(&node.id);
            return Err(error);
        }
        let attr = self.node_attr(&node, &stat_fd(file.fd().as_fd())?)?;
        let at = self.node_attr(dir, &stat_fd(dir.as_fd())?)?;
        let (before, after) = (at.change, at.change);
        let dir = DirChange { before, after, atomic: false, attr: Some(at) };
        Ok(Created { id: node.id, attr, dir, file, created: true })
    }

    /// Returns the node of a file that was just made and opened for data. The node shares that
    /// descriptor, so it lives only as long as the open. If the id alone could not find the file
    /// again, it is opened once more with O_PATH, and the node is cached.
    fn adopt_new(&self, file: &Arc<OwnedFd>) -> Result<(Arc<Node>, Statx)> {
        if self.index.is_some() {
            let (own, name) = (&self.own_descriptors, DecInt::from_fd(file));
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let open = || rustix::fs::openat(own, name.as_c_str(), flags, Mode::empty());
            return self.adopt(self.with_room(open)?);
        }
        let stat = stat_fd(file.as_fd())?;
        let id = self.id_of(&stat, sys::name_to_handle(file.as_fd(), c"")?)?;
        Ok((Arc::new(Node::new(id, attr::kind(&stat)?, file.clone())), stat))
    }

    fn learn(&self, node: &Node, dir: &Node, name: &[u8]) {
        if let Some(index) = &self.index {
            index.learn(node.id, dir.id, name);
        }
    }

    fn finish_file(
        &self,
        caller: &Caller,
        cred: &Cred,
        (dir, node, stat): (&Node, &Node, &Statx),
        how: CreateHow,
        wish: &SetAttr,
        bits: u32,
        file: &PosixFile,
    ) -> Result<bool> {
        let mut wish = with_verifier(how, wish);
        let size = wish.size.take().filter(|&size| size > 0);
        if let Some(size) = size {
            rustix::fs::ftruncate(file.fd(), size)?;
        }
        let changed = self.finish(caller, cred, (node, stat), &wish, bits)?;
        if matches!(how, CreateHow::Exclusive(_)) {
            // The verifier must survive a crash, under this name.
            rustix::fs::fsync(file.fd())?;
            self.sync_directory(dir, file)?;
        }
        Ok(changed || size.is_some())
    }

    /// Makes the names of a directory stable. One of them leads to `file`.
    fn sync_directory(&self, dir: &Node, file: &PosixFile) -> Result<()> {
        let _server = self.identity.server()?;
        match self.reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(dir) => Ok(rustix::fs::fsync(dir)?),
            // A server that may not list the directory cannot sync it alone.
            Err(Errno::ACCESS) => Ok(rustix::fs::syncfs(file.fd())?),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the entries of a directory or the attributes of an object stable. The caller has the
    /// server's identity.
    pub(super) fn commit_node(&self, node: &Node) -> Result<()> {
        let flags = match node.kind {
            Kind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            Kind::Regular => OFlags::RDONLY | OFlags::NONBLOCK,
            // An object that cannot be opened for data cannot be synced alone.
            _ => return Ok(rustix::fs::syncfs(self.mount())?),
        };
        match self.reopen(node, flags) {
            Ok(fd) => Ok(rustix::fs::fsync(fd)?),
            Err(Errno::NOENT) => Ok(()),
            // A server without root's privileges may not open every object.
            Err(Errno::ACCESS) => Ok(rustix::fs::syncfs(self.mount())?),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives a new object the attributes that the call that made it could not set. True if there
    /// were any.
    fn finish(
        &self,
        caller: &Caller,
        cred: &Cred,
        (node, stat): (&Node, &Statx),
        wish: &SetAttr,
        bits: u32,
    ) -> Result<bool> {
        let special = bits & !0o777;
        let mut wish = *wish;
        // The call that made it set the permission bits, and a default ACL may have removed some. A
        // change to its present owner would clear the special bits.
        wish.mode = None;
        wish.uid = wish.uid.filter(|&uid| uid != stat.stx_uid);
        wish.gid = wish.gid.filter(|&gid| gid != stat.stx_gid);
        if wish != SetAttr::default() {
            self.change_attr(caller, cred, (node, stat), &wish, None)?;
        }
        if special != 0 {
            let have = u32::from(stat_fd(node.as_fd())?.stx_mode) & MODE_BITS;
            if have & special != special {
                self.set_mode(caller, node, have | special)?;
            }
        }
        Ok(special != 0 || wish != SetAttr::default())
    }

    /// Removes a new object again when it could not be finished.
    fn or_remove(&self, dir: &Node, name: &[u8], node: &Node, done: Result<bool>) -> Result<bool> {
        if done.is_err() {
            if let Ok(made) = stat_fd(node.as_fd()) {
                Self::take_back(dir, name, &made);
            }
            self.nodes.forget(&node.id);
        }
        done
    }

    /// Removes a name if it still leads to the made object. The kernel cannot compare and remove in
    /// one step: in a race, an object that another process puts there in between is removed, too.
    fn take_back(dir: &Node, name: &[u8], made: &Statx) {
        let Some(found) = named(dir, name) else { return };
        if found.stx_ino == made.stx_ino && device(&found) == device(made) {
            // If this fails as well, the caller still gets the first error.
            let _ = rustix::fs::unlinkat(dir, name, removal_flags(&found));
        }
    }

    /// Does the same as `take_back` for an object made since `earliest` that no descriptor holds.
    /// It must be of that kind, belong to the caller, be born since then, and have no second name.
    fn take_back_unseen(
        &self,
        dir: &Node,
        name: &[u8],
        cred: &Cred,
        kind: Kind,
        earliest: Timespec,
    ) {
        let Some(found) = named(dir, name) else { return };
        let owner =
            if self.identity.switches() { cred.uid } else { rustix::process::geteuid().as_raw() };
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = if has_birth { found.stx_btime } else { found.stx_ctime };
        let born = (born.tv_sec, i64::from(born.tv_nsec));
        let links_max = if kind == Kind::Directory { 2 } else { 1 };
        if attr::kind(&found) == Ok(kind)
            && found.stx_uid == owner
            && found.stx_nlink <= links_max
            && born >= (earliest.tv_sec, earliest.tv_nsec)
        {
            let _ = rustix::fs::unlinkat(dir, name, removal_flags(&found));
        }
    }

    fn open_existing(
        self: &Arc<Self>,
        caller: &Caller,
        cred: &Cred,
        dir: &Node,
        node: &Arc<Node>,
        stat: &Statx,
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        if let CreateHow::Exclusive(verifier) = how {
            let kept = (stat.stx_atime.tv_sec, stat.stx_mtime.tv_sec);
            if node.kind != Kind::Regular || kept != verifier_seconds(verifier) {
                return Err(StoreError::Exists);
            }
        }
        check_regular(node.kind)?;
        let file = PosixFile::open(self, caller, cred, node, mode)?;
        if how == CreateHow::Unchecked && wish.size == Some(0) {
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            let by_file = |size| Ok(rustix::fs::ftruncate(file.fd(), size)?);
            let by_file: Option<&dyn Fn(u64) -> Result<()>> =
                if mode.write { Some(&by_file) } else { None };
            self.change_attr(caller, cred, (node, stat), &cut, by_file)?;
            self.note_change(node, file.fd().as_fd())?;
        }
        let attr = self.node_attr(node, &stat_fd(file.fd().as_fd())?)?;
        let dir_attr = self.node_attr(dir, &stat_fd(dir.as_fd())?)?;
        let change = dir_attr.change;
        let attr_after = Some(dir_attr);
        let dir = DirChange { before: change, after: change, atomic: false, attr: attr_after };
        Ok(Created { id: node.id, attr, dir, file, created: false })
    }

    /// Makes a directory, symlink or special file.
    pub(super) fn make(
        &self,
        caller: &Caller,
        cred: &Cred,
        dir: &Node,
        name: &[u8],
        object: NewObject<'_>,
        wish: &SetAttr,
    ) -> Result<Made> {
        let before = self.before_change(dir)?;
        let bits = |default| wish.mode.map_or(default, |mode| mode & MODE_BITS);
        let special = |kind, device| {
            let mode = Mode::from_raw_mode(bits(SPECIAL_MODE_DEFAULT));
            rustix::fs::mknodat(dir, name, kind, mode, device)
        };
        let kind = object.kind();
        if let Err(error) = self.check_wish(cred, dir, kind, wish) {
            return Err(if named(dir, name).is_some() { StoreError::Exists } else { error });
        }
        // File systems take their times from this clock.
        let earliest = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        let made = umask::without(Mode::all(), || match object {
            NewObject::Directory => {
                let mode = Mode::from_raw_mode(bits(DIRECTORY_MODE_DEFAULT));
                rustix::fs::mkdirat(dir, name, mode)
            }
            NewObject::Symlink(text) => rustix::fs::symlinkat(text, dir, name),
            NewObject::BlockDevice { major, minor } => {
                special(FileType::BlockDevice, makedev(major, minor))
            }
            NewObject::CharDevice { major, minor } => {
                special(FileType::CharacterDevice, makedev(major, minor))
            }
            NewObject::Socket => special(FileType::Socket, 0),
            NewObject::Fifo => special(FileType::Fifo, 0),
        });
        made.map_err(|errno| self.name_error(dir, errno))?;
        let (node, stat) = self
            .step(dir, name)
            .inspect_err(|_| self.take_back_unseen(dir, name, cred, kind, earliest))?;
        if node.kind != kind {
            // Another process has put a different object there in between.
            return Err(StoreError::Busy);
        }
        let wished = wish.mode.filter(|_| kind != Kind::Symlink).unwrap_or(0) & MODE_BITS;
        let finished = self.finish(caller, cred, (&node, &stat), wish, wished);
        let changed = self.or_remove(dir, name, &node, finished)?;
        let stat = if changed { stat_fd(node.as_fd())? } else { stat };
        let attr = self.node_attr(&node, &stat)?;
        Ok(Made { id: node.id, attr, dir: self.changed(dir, before)? })
    }

    /// Makes another name for an object.
    pub(super) fn link(
        &self,
        _caller: &Caller,
        node: &Node,
        dir: &Node,
        name: &[u8],
    ) -> Result<DirChange> {
        if node.kind == Kind::Directory {
            return Err(StoreError::IsDirectory);
        }
        let before = self.before_change(dir)?;
        // By way of /proc, because AT_EMPTY_PATH needs a capability that callers do not have.
        let path = DecInt::from_fd(node);
        match rustix::fs::linkat(&self.own_descriptors, path, dir, name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => {}
            Err(Errno::NOENT) if stat_fd(node.as_fd())?.stx_nlink == 0 => {
                return Err(StoreError::Stale);
            }
            Err(errno) => return Err(self.name_error(dir, errno)),
        }
        self.learn(node, dir, name);
        self.note_change(node, node.as_fd())?;
        self.changed(dir, before)
    }

    /// Returns the id of a name's object. Returns its node as well if the index or the counts of
    /// changes need it.
    fn known_before(&self, dir: &Node, name: &[u8]) -> Option<(FileId, Option<Arc<Node>>)> {
        if self.index.is_some() || self.changes.need_notes() {
            let (node, _) = self.step(dir, name).ok()?;
            return Some((node.id, Some(node)));
        }
        let name = CString::new(name).ok()?;
        let id = self.peek_id(dir.as_fd(), &name).ok()??;
        Some((id, None))
    }

    /// Returns the id that the caller knows already, or that of `known_before`.
    fn hinted(
        &self,
        dir: &Node,
        name: &[u8],
        hint: Option<&FileId>,
    ) -> Option<(FileId, Option<Arc<Node>>)> {
        match hint {
            Some(id) if self.index.is_none() && !self.changes.need_notes() => Some((*id, None)),
            _ => self.known_before(dir, name),
        }
    }

    /// Removes a name of an object of this kind. `hint` is its id, if the caller knows it.
    pub(super) fn remove(
        &self,
        _caller: &Caller,
        dir: &Node,
        name: &[u8],
        hint: Option<&FileId>,
        kind: RemoveKind,
    ) -> Result<DirChange> {
        let before = self.before_change(dir)?;
        let known = self.hinted(dir, name, hint);
        let remove = |flags| rustix::fs::unlinkat(dir, name, flags);
        let removed = match kind {
            RemoveKind::NoDirectory => remove(AtFlags::empty()),
            RemoveKind::Directory => remove(AtFlags::REMOVEDIR),
            RemoveKind::Any => match remove(AtFlags::empty()) {
                // POSIX lets unlink of a directory fail with EPERM; Linux reports EISDIR.
                Err(Errno::ISDIR) => remove(AtFlags::REMOVEDIR),
                other => other,
            },
        };
        removed.map_err(|errno| match errno {
            Errno::EXIST => StoreError::NotEmpty,
            errno => self.name_error(dir, errno),
        })?;
        if let Some((id, held)) = known {
            self.unlinked(&id, held.as_deref(), dir, name);
        }
        self.changed(dir, before)
    }

    /// Renames, replacing a target of a fitting kind. `target` is its id, if the caller knows it.
    pub(super) fn rename(
        &self,
        _caller: &Caller,
        (from_dir, from): (&Node, &[u8]),
        (to_dir, to): (&Node, &[u8]),
        target: Option<Option<&FileId>>,
    ) -> Result<(DirChange, DirChange)> {
        let (from_before, to_before) = (self.before_change(from_dir)?, self.before_change(to_dir)?);
        let replaced = match target {
            Some(target) if self.index.is_none() && !self.changes.need_notes() => {
                target.map(|id| (*id, None))
            }
            _ => self.known_before(to_dir, to),
        };
        let moved = if self.changes.need_notes() { self.step(from_dir, from).ok() } else { None };
        let renamed = rustix::fs::renameat_with(from_dir, from, to_dir, to, RenameFlags::empty());
        match renamed {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(StoreError::NotEmpty),
            Err(errno @ Errno::NOENT) => {
                let error = self.name_error(from_dir, errno);
                return Err(if error == StoreError::Stale {
                    error
                } else {
                    self.name_error(to_dir, errno)
                });
            }
            Err(errno) => return Err(errno.into()),
        }
        if let Some((id, held)) = replaced {
            self.unlinked(&id, held.as_deref(), to_dir, to);
        }
        if let Some((node, _)) = moved {
            self.note_change(&node, node.as_fd())?;
        }
        if self.index.is_some() {
            // Adds the new name to the index.
            let _ = self.step(to_dir, to);
        }
        let from_change = self.changed(from_dir, from_before)?;
        if from_dir.id == to_dir.id {
            // The directory has changed once.
            return Ok((from_change, from_change));
        }
        Ok((from_change, self.changed(to_dir, to_before)?))
    }

    /// Returns the parent directory, which must be in the export.
    pub(super) fn parent(&self, _caller: &Caller, dir: &Node) -> Result<FileId> {
        if dir.id == self.root.id {
            return Err(StoreError::NotFound);
        }
        self.check_contained_now(dir)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let up = self
            .with_room(|| rustix::fs::openat(dir, c"..", flags, Mode::empty()))
            .map_err(|errno| self.name_error(dir, errno))?;
        let (parent, _) = match self.adopt(up) {
            Ok(found) => found,
            Err(StoreError::CrossDevice) => return Err(StoreError::Stale),
            Err(error) => return Err(error),
        };
        // In a race, the parent may have been moved out after the check of the child.
        if parent.id != self.root.id {
            self.check_contained_now(&parent)?;
        }
        Ok(parent.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PosixOptions, PosixStore};
    use dafs_store::ExportSecret;
    use std::fs;

    #[test]
    fn only_what_was_made_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let options = PosixOptions::new(ExportSecret::from_bytes([7; 16]));
        let store = PosixStore::open(dir.path(), options).unwrap();
        let (export, root) = (&store.export, &store.export.root);
        let path = |name: &str| dir.path().join(name);
        fs::write(path("f"), "").unwrap();
        let (node, made) = export.step(root, b"f").unwrap();
        fs::rename(path("f"), path("away")).unwrap();
        fs::write(path("f"), "somebody else's").unwrap();
        let failed = export.or_remove(root, b"f", &node, Err(StoreError::NoSpace));
        assert_eq!(failed, Err(StoreError::NoSpace));
        assert_eq!(fs::read(path("f")).unwrap(), b"somebody else's");
        Export::take_back(root, b"away", &made);
        assert!(!path("away").exists());
    }

    #[test]
    fn an_object_that_nothing_holds_is_taken_back_only_if_it_is_new_and_ours() {
        let dir = tempfile::tempdir().unwrap();
        let options = PosixOptions::new(ExportSecret::from_bytes([7; 16]));
        let store = PosixStore::open(dir.path(), options).unwrap();
        let (export, root) = (&store.export, &store.export.root);
        let path = dir.path().join("d");
        let long_ago = Timespec { tv_sec: 1, tv_nsec: 0 };
        let later = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
        let me = Cred::new(rustix::process::geteuid().as_raw(), 0);
        fs::create_dir(&path).unwrap();
        export.take_back_unseen(root, b"d", &me, Kind::Fifo, long_ago);
        export.take_back_unseen(root, b"d", &me, Kind::Directory, later);
        if export.identity.switches() {
            export.take_back_unseen(root, b"d", &Cred::new(1001, 0), Kind::Directory, long_ago);
        }
        assert!(path.exists());
        export.take_back_unseen(root, b"d", &me, Kind::Directory, long_ago);
        assert!(!path.exists());
    }
}
