//! The export: the shared state of all operations, and their common steps.
//!
//! Invariants
//! * The kernel never gets a whole path. Every step is one checked name below a descriptor, taken
//!   with `openat2` and RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS and
//!   RESOLVE_NO_XDEV, or without `openat2` with O_NOFOLLOW. The only exception is `/proc/self/fd/N`
//!   of our own descriptor, which leads to exactly that object.
//! * A node is made only from an object on the export's own mount.

use super::PosixOptions;
use super::ability;
use super::attr;
use super::change::Changes;
use super::dir::Streams;
use super::hint::NameHints;
use super::id::{Form, Ids, Target, device, stable_fs_id};
use super::ident::{AsServer, Caller, Identity};
use super::index::Index;
use super::known::KnownIds;
use super::node::{Node, NodeTable};
use super::quota::Quotas;
use super::sys::{self, KernelHandle};
use super::watch::Watches;
use crate::limits::{
    DESCRIPTOR_RETRIES_MAX, HANDLE_RETRIES_MAX, HANDLE_RETRY_PAUSE, NODE_DESCRIPTOR_SHARE,
    NODES_MAX, NODES_MIN, SCAN_ENTRIES_MAX,
};
use dafs_mem::Mutex;
use dafs_store::backend::Leaving;
use dafs_store::{Capabilities, ExportSecret, FileId, FsId, Kind, Result, StoreError, Wait};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::{Errno, Result as SysResult};
use rustix::path::DecInt;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The directory of this process's open descriptors.
const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// The magic numbers of file systems that live in memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// The fields that all `statx` calls ask for.
const STAT_MASK: StatxFlags =
    StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

/// One exported directory.
pub(super) struct Export {
    pub(super) ids: Ids,
    pub(super) identity: Identity,
    pub(super) read_only: bool,
    pub(super) root: Arc<Node>,
    pub(super) nodes: NodeTable,
    pub(super) name_hints: NameHints,
    pub(super) streams: Streams,
    pub(super) known_ids: KnownIds,
    /// The index of names, if the kernel does not open objects by handle or if `subtree_check`
    /// needs names.
    pub(super) index: Option<Index>,
    /// True if the kernel opens objects by handle.
    pub(super) by_handle: bool,
    /// True if a file needs a name below the root ([`PosixOptions::subtree_check`]).
    pub(super) subtree_check: bool,
    /// The features of the file system.
    pub(super) abilities: Capabilities,
    pub(super) quotas: Quotas,
    pub(super) changes: Changes,
    pub(super) watches: Watches,
    /// Content that leaves the kernel's cache first.
    pub(super) leaving: Leaving<FileId>,
    /// True if content never leaves memory, so that no call waits for a device.
    pub(super) in_memory: bool,
    /// Set once the file system has refused RWF_NOWAIT for reads, and for writes.
    pub(super) no_nowait_read: AtomicBool,
    pub(super) no_nowait_write: AtomicBool,
    /// Set once the kernel has refused to change modes by descriptor.
    pub(super) no_fchmodat2: AtomicBool,
    /// Serialises changes of named attributes, which are read, changed and written back as a whole.
    pub(super) named_attr_lock: Mutex<()>,
    /// True if this mount shows the whole file system. Then a directory's path shows if it is in
    /// the export.
    pub(super) paths_tell: bool,
    /// The directory of this process's open descriptors, opened.
    pub(super) own_descriptors: OwnedFd,
    /// A readable descriptor of the root, as `open_by_handle_at` needs it.
    mount: OwnedFd,
    pub(super) mount_id: Option<u64>,
    device: u64,
    /// False on old kernels and in sandboxes that refuse it.
    pub(super) has_openat2: bool,
    pub(super) started: Instant,
}

impl Export {
    pub(super) fn open(path: &Path, options: PosixOptions) -> Result<Self> {
        let identity = Identity::detect()?;
        let _server = identity.server()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let mount = reopen(fd.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let stat = stat_fd(fd.as_fd())?;
        let handle = sys::name_to_handle(fd.as_fd(), c"")?;
        let kind = rustix::fs::fstatfs(&fd)?.f_type as u64;
        let fs_id = identify(&fd, &stat, kind, handle, &options)?;
        let ids = Ids::new(fs_id, options.secret, device(&stat));
        let mount_id = handle.map(|(_, mount)| mount).or_else(|| mount_of(&stat));
        let by_handle =
            handle.is_some_and(|(handle, _)| sys::open_by_handle(mount.as_fd(), &handle).is_ok());
        let id = id_from(&ids, handle, &stat);
        let root = Node::new(id, Kind::Directory, Arc::new(fd));
        let resolve = ResolveFlags::BENEATH;
        let has_openat2 =
            rustix::fs::openat2(&root, c".", OFlags::PATH, Mode::empty(), resolve).is_ok();
        // With handles the kernel shows if an object exists, so a scan for its name is never in
        // vain.
        let scan_entries_max = if by_handle { usize::MAX } else { SCAN_ENTRIES_MAX };
        let own_descriptors = rustix::fs::open(OWN_DESCRIPTORS, flags, Mode::empty())?;
        let watches = Watches::find_out(own_descriptors.as_fd(), root.as_fd(), handle.is_some());
        let quotas = Quotas::find_out(mount.as_fd(), identity);
        let abilities = Capabilities {
            local_changes: watches.ability(),
            quotas: quotas.can_be_read(),
            ..ability::find(root.as_fd())?
        };
        Ok(Self {
            ids,
            identity,
            read_only: options.read_only,
            nodes: NodeTable::new(options.nodes_max.unwrap_or_else(nodes_max_default)),
            name_hints: NameHints::new(),
            streams: Streams::new(),
            known_ids: KnownIds::new(kind, device(&stat)),
            index: (!by_handle || options.subtree_check).then(|| Index::new(scan_entries_max)),
            by_handle,
            subtree_check: options.subtree_check,
            changes: Changes::find_out(root.as_fd(), options.read_only),
            abilities,
            quotas,
            watches,
            leaving: Leaving::new(options.leaving_bytes_max),
            in_memory: kind == TMPFS_MAGIC || kind == RAMFS_MAGIC,
            no_nowait_read: AtomicBool::new(false),
            no_nowait_write: AtomicBool::new(false),
            no_fchmodat2: AtomicBool::new(false),
            named_attr_lock: Mutex::new(()),
            paths_tell: mount_id.is_some_and(shows_whole_file_system),
            own_descriptors,
            mount,
            mount_id,
            device: device(&stat),
            has_openat2,
            root: Arc::new(root),
            started: Instant::now(),
        })
    }

    /// Returns a descriptor of the file system for `syncfs` and quotas.
    pub(super) fn mount(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    pub(super) fn writable(&self) -> Result<()> {
        if self.read_only { Err(StoreError::ReadOnly) } else { Ok(()) }
    }

    /// Runs a call that needs a descriptor. Frees some when there are none left.
    pub(super) fn with_room<T>(&self, mut call: impl FnMut() -> SysResult<T>) -> SysResult<T> {
        for _ in 0..DESCRIPTOR_RETRIES_MAX {
            match call() {
                Err(Errno::MFILE | Errno::NFILE) => {
                    self.streams.clear();
                    self.nodes.evict_some();
                }
                other => return other,
            }
        }
        call()
    }

    /// Opens one name below a directory, never the target of a symlink, never another mount.
    pub(super) fn open_beneath(
        &self,
        dir: &Node,
        name: &[u8],
        flags: OFlags,
        mode: Mode,
    ) -> SysResult<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.with_room(|| {
            if self.has_openat2 {
                let resolve = ResolveFlags::BENEATH
                    | ResolveFlags::NO_SYMLINKS
                    | ResolveFlags::NO_MAGICLINKS
                    | ResolveFlags::NO_XDEV;
                rustix::fs::openat2(dir, name, flags, mode, resolve)
            } else {
                rustix::fs::openat(dir, name, flags, mode)
            }
        })
    }

    /// Reopens a held object for data, with the rights of the thread's identity.
    pub(super) fn reopen(&self, node: &Node, flags: OFlags) -> SysResult<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let (own, name) = (&self.own_descriptors, DecInt::from_fd(node));
        self.with_room(|| rustix::fs::openat(own, name.as_c_str(), flags, Mode::empty()))
    }

    /// Opens the object behind a kernel handle, as the server.
    pub(super) fn open_by_handle(&self, _: &AsServer, handle: &KernelHandle) -> SysResult<OwnedFd> {
        let call = || sys::open_by_handle(self.mount.as_fd(), handle);
        // While another thread makes a new object with the inode number of a removed one, Linux
        // reports ENOMEM for the removed one's handle; a moment later it reports ESTALE.
        for attempt in 0..HANDLE_RETRIES_MAX {
            match self.with_room(call) {
                Err(Errno::NOMEM) if attempt < HANDLE_RETRIES_MAX / 2 => std::thread::yield_now(),
                // The other thread is blocked itself.
                Err(Errno::NOMEM) => std::thread::sleep(HANDLE_RETRY_PAUSE),
                other => return other,
            }
        }
        self.with_room(call)
    }

    /// Returns the id of a name in a directory without opening it, if the kernel has handles.
    /// `None` also for another mount.
    pub(super) fn peek_id(&self, dir: BorrowedFd<'_>, name: &CStr) -> SysResult<Option<FileId>> {
        let handle = sys::name_to_handle(dir, name)?;
        let here = handle.filter(|&(_, mount)| Some(mount) == self.mount_id);
        Ok(here.map(|(handle, _)| self.ids.of_handle(&handle)))
    }

    /// Returns the id of an object by its `statx` and handle; `CrossDevice` for another mount.
    pub(super) fn id_of(
        &self,
        stat: &Statx,
        handle: Option<(KernelHandle, u64)>,
    ) -> Result<FileId> {
        let mount = handle.map(|(_, mount)| mount).or_else(|| mount_of(stat));
        let elsewhere = match (mount, self.mount_id) {
            (Some(mount), Some(ours)) => mount != ours,
            _ => device(stat) != self.device,
        };
        if elsewhere {
            return Err(StoreError::CrossDevice);
        }
        Ok(id_from(&self.ids, handle, stat))
    }

    /// Returns the node of an object just opened with `O_PATH`, and its attributes.
    pub(super) fn adopt(&self, fd: OwnedFd) -> Result<(Arc<Node>, Statx)> {
        let stat = stat_fd(fd.as_fd())?;
        let handle = sys::name_to_handle(fd.as_fd(), c"")?;
        let id = self.id_of(&stat, handle)?;
        if id == self.root.id {
            return Ok((self.root.clone(), stat));
        }
        // All users share one node, so that the last reported change attribute is known.
        if let Some(node) = self.nodes.open_node(&id) {
            return Ok((node, stat));
        }
        let kind = attr::kind(&stat)?;
        Ok((self.nodes.keep(Node::new(id, kind, Arc::new(fd))), stat))
    }

    /// Looks up one name below a directory with the rights of the thread's identity. Updates the
    /// index.
    pub(super) fn step(&self, dir: &Node, name: &[u8]) -> Result<(Arc<Node>, Statx)> {
        let c_name = CString::new(name).map_err(|_| StoreError::Invalid)?;
        let known = if self.name_hints.knows(&dir.id, name) {
            let id = self.peek_id(dir.as_fd(), &c_name);
            let id = id.map_err(|errno| self.name_error(dir, errno))?;
            id.and_then(|id| self.nodes.get(&id).or_else(|| self.nodes.open_node(&id)))
        } else {
            None
        };
        let found = if let Some(node) = known {
            let stat = stat_fd(node.as_fd())?;
            (node, stat)
        } else {
            let fd = self
                .open_beneath(dir, name, OFlags::PATH, Mode::empty())
                .map_err(|errno| self.name_error(dir, errno))?;
            self.name_hints.remember(&dir.id, name);
            self.adopt(fd)?
        };
        self.tell(&found.0, &found.1);
        if found.0.kind == Kind::Directory {
            // The child was inside when the parent was last seen inside. The root is always inside.
            let seen_ms = if dir.id == self.root.id {
                self.now_ms()
            } else {
                dir.contained_at_ms.load(Ordering::Relaxed)
            };
            found.0.contained_at_ms.fetch_max(seen_ms, Ordering::Relaxed);
        }
        if let Some(index) = &self.index {
            index.learn(found.0.id, dir.id, name);
        }
        Ok(found)
    }

    /// Returns the id of one name below a directory, without opening it where the kernel has
    /// handles. Returns the kind as well, if the store knows it.
    pub(super) fn peek(
        &self,
        _caller: &Caller,
        dir: &Node,
        name: &CStr,
    ) -> Result<(FileId, Option<Kind>)> {
        let peeked = self.peek_id(dir.as_fd(), name);
        let id = match peeked.map_err(|errno| self.name_error(dir, errno))? {
            Some(id) if self.index.is_none() => id,
            _ => {
                let (node, _) = self.step(dir, name.to_bytes())?;
                return Ok((node.id, Some(node.kind)));
            }
        };
        let known = self.nodes.get(&id).or_else(|| self.nodes.open_node(&id));
        Ok((id, known.map(|node| node.kind)))
    }

    /// Does the same as `peek`, and asks for an unknown kind.
    pub(super) fn peek_kind(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &CStr,
    ) -> Result<(FileId, Kind)> {
        let (id, known) = self.peek(caller, dir, name)?;
        if let Some(kind) = known {
            return Ok((id, kind));
        }
        let stat = stat_name(dir.as_fd(), name);
        let stat = stat.map_err(|errno| self.name_error(dir, errno))?;
        Ok((id, attr::kind(&stat)?))
    }

    /// Maps the error of a call on a name: in a removed directory it is `Stale`.
    pub(super) fn name_error(&self, dir: &Node, errno: Errno) -> StoreError {
        if errno == Errno::NOENT && stat_fd(dir.as_fd()).is_ok_and(|stat| stat.stx_nlink == 0) {
            self.nodes.forget(&dir.id);
            return StoreError::Stale;
        }
        errno.into()
    }

    /// Decodes an id.
    pub(super) fn target(&self, id: &FileId) -> Result<Target> {
        self.ids.parse(id)
    }

    /// Returns the node of an object of the export.
    pub(super) fn node(&self, id: &FileId) -> Result<Arc<Node>> {
        if *id == self.root.id {
            return Ok(self.root.clone());
        }
        let node = match self.nodes.get(id) {
            Some(node) => node,
            None => match self.target(id)? {
                Target::Object(form) => self.find(id, form)?,
                Target::AttrDir(_) | Target::NamedAttr(..) => return Err(StoreError::NotSupported),
            },
        };
        if node.kind == Kind::Directory {
            self.check_contained(&node)?;
        } else {
            self.check_file_contained(&node, Wait::Allowed)?;
        }
        Ok(node)
    }

    fn find(&self, id: &FileId, form: Form) -> Result<Arc<Node>> {
        if let Some(node) = self.nodes.open_node(id) {
            return Ok(node);
        }
        let server = self.identity.server()?;
        match (form, &self.index) {
            (Form::Handle(handle), _) if self.by_handle => {
                let fd = self.open_by_handle(&server, &handle)?;
                let stat = stat_fd(fd.as_fd())?;
                if stat.stx_nlink == 0 {
                    return Err(StoreError::Stale);
                }
                // One object has one handle, and the id contains this one.
                Ok(self.nodes.keep(Node::new(*id, attr::kind(&stat)?, Arc::new(fd))))
            }
            (_, Some(index)) => self.find_by_index(index, id),
            // An id without a handle cannot come from a file system that has handles.
            (_, None) => Err(StoreError::Stale),
        }
    }

    /// Returns the `statx` of a node; `Stale` if it has neither a name nor an open.
    pub(super) fn stat_live(&self, node: &Node) -> Result<Statx> {
        let stat = stat_fd(node.as_fd())?;
        if stat.stx_nlink == 0 && self.nodes.open_node(&node.id).is_none() {
            self.nodes.forget(&node.id);
            return Err(StoreError::Stale);
        }
        self.tell(node, &stat);
        Ok(stat)
    }

    /// Updates the state after a name of an object was removed. `held` is its node from before, if
    /// known.
    pub(super) fn unlinked(&self, id: &FileId, held: Option<&Node>, dir: &Node, name: &[u8]) {
        let stat = held.and_then(|node| Some((node, stat_fd(node.as_fd()).ok()?)));
        if let Some((node, stat)) = &stat {
            self.note(node, stat);
        }
        let links = stat.map(|(_, stat)| stat.stx_nlink);
        if links.is_none_or(|links| links == 0) {
            self.nodes.forget(id);
        }
        if let Some(index) = &self.index {
            index.unlearn(id, dir.id, name);
            if links == Some(0) && self.nodes.open_node(id).is_none() {
                index.bury(id);
            }
        }
    }

    /// Milliseconds since the export was opened, plus one.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }
}

fn nodes_max_default() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.map_or(NODES_MAX, |limit| {
        usize::try_from(limit / NODE_DESCRIPTOR_SHARE).unwrap_or(NODES_MAX)
    });
    share.clamp(NODES_MIN, NODES_MAX)
}

fn id_from(ids: &Ids, handle: Option<(KernelHandle, u64)>, stat: &Statx) -> FileId {
    match handle {
        Some((handle, _)) => ids.of_handle(&handle),
        None => ids.of_inode(stat),
    }
}

/// Returns the identity of the file system, whose magic number is `kind`.
fn identify(
    fd: &OwnedFd,
    stat: &Statx,
    kind: u64,
    handle: Option<(KernelHandle, u64)>,
    options: &PosixOptions,
) -> Result<FsId> {
    if let Some(fs_id) = options.fs_id {
        return Ok(fs_id);
    }
    let fsid = rustix::fs::fstatvfs(fd)?.f_fsid;
    let file_system = if fsid == 0 { device(stat) } else { fsid };
    // The root's id under a fixed key names it here.
    let plain = Ids::new(FsId([0; 16]), ExportSecret::from_bytes([0; 16]), device(stat));
    let root = id_from(&plain, handle, stat);
    Ok(stable_fs_id(file_system, kind, &root))
}

/// Returns the path that leads to exactly the object of a descriptor.
pub(super) fn descriptor_path(fd: BorrowedFd<'_>) -> String {
    format!("{OWN_DESCRIPTORS}/{}", fd.as_raw_fd())
}

fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> SysResult<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat(CWD, descriptor_path(fd), flags, Mode::empty())
}

pub(super) fn stat_fd(fd: BorrowedFd<'_>) -> SysResult<Statx> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, STAT_MASK)
}

/// Returns the `statx` of a name itself. Follows no symlink and triggers no mount.
pub(super) fn stat_name(dir: BorrowedFd<'_>, name: &CStr) -> SysResult<Statx> {
    rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, STAT_MASK)
}

pub(super) fn mount_of(stat: &Statx) -> Option<u64> {
    (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
}

/// True if a mount shows its file system from the top. From another one (a bind mount) a directory
/// can be moved out, and its path then shows nothing.
fn shows_whole_file_system(mount_id: u64) -> bool {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return false };
    table.split(|&byte| byte == b'\n').any(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        fields.next() == Some(mount_id.to_string().as_bytes()) && fields.nth(2) == Some(b"/")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PosixStore;

    #[test]
    fn a_directory_is_no_surer_to_lie_inside_than_the_one_above_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let options = PosixOptions::new(ExportSecret::from_bytes([7; 16]));
        let store = PosixStore::open(dir.path(), options).unwrap();
        let export = &store.export;
        let (a, _) = export.step(&export.root, b"a").unwrap();
        assert!(a.contained_at_ms.load(Ordering::Relaxed) > 0);
        a.contained_at_ms.store(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(3));
        let (b, _) = export.step(&a, b"b").unwrap();
        assert_eq!(b.contained_at_ms.load(Ordering::Relaxed), 1);
    }
}
