//! Any local directory as a store.
//!
//! Three properties depend on the privileges of the process:
//!
//! | | root (with CAP_SETUID and CAP_SETGID, else refused) | without privileges |
//! |---|---|---|
//! | rights | the kernel checks the caller's ids and groups | all operations run as the server's user |
//! | objects by id | opened by the kernel's file handle | found by a bounded index of names, else by a scan of the export |
//! | ids | the same in both cases, if the file system has file handles | |
//!
//! Notes
//! * Another file system mounted below the export is not shown: its mount point is listed without
//!   attributes, and a lookup of it fails with
//!   [`CrossDevice`](dafs_store::StoreError::CrossDevice).
//! * A directory that a local process moves out of the export is stale within a tenth of a second.
//!   Any other object stays usable by its id, like an open file. With
//!   [`PosixOptions::subtree_check`] every use of it fails within a second.
//! * A server that may not open objects by handle keeps a bounded index of names, which is empty
//!   after a restart. It finds other objects only in directories that it may list; elsewhere their
//!   ids are stale. In a large export that takes several calls, which answer
//!   [`Busy`](dafs_store::StoreError::Busy) until the scan is done. An object that was not found
//!   counts as gone for three seconds.
//! * Descriptors hold cached objects. If a local process removes one, it keeps its space until its
//!   next use or until [`PosixStore::sweep`] finds it.
//! * The store notices changes by local processes while a file is watched, if fanotify or inotify
//!   may be used. Changes through a mapping, and by descriptors from before the watch, show only in
//!   part (`watch`).
//! * Access control lists are kept as POSIX lists, or as a mode where the file system has no lists
//!   (`acl`). Extended attributes are those of Linux that begin with "user."; named attributes are
//!   the same attributes shown as files.
//! * The change attribute is the ctime, with a count where the ctime does not advance (`change`).
//! * The kernel does not show if a local process changed a directory at the same moment, so changes
//!   of directories are never reported as atomic.
//! * Exclusive creates keep their verifier in the seconds of atime and mtime, as other file servers
//!   do, so a client that uses them sets the times afterwards. After a read or write of the file, a
//!   retry of the create may not be recognised any more.
//! * `/proc` must be mounted; Linux 5.8 or later is needed for
//!   [`Store::access`](dafs_store::Store).
//!
//! Invariants
//! * An id that was not made with the export's secret is refused before any object is opened.
//! * Operations that take a [`Cred`](dafs_store::Cred) run with the caller's identity from its
//!   guard's creation to its drop (`ident`).

mod ability;
mod acl;
mod attr;
mod cache;
mod change;
mod dir;
mod export;
mod file;
mod hint;
mod id;
mod ident;
mod index;
mod known;
mod limits;
mod named_attr;
mod node;
mod quota;
mod ranges;
mod resolve;
mod store;
mod sys;
mod tree;
mod umask;
mod watch;
mod xattr;

use dafs_store::backend::LEAVING_BYTES_MAX;
use dafs_store::{ExportSecret, FsId, Result};
use export::Export;
use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

/// The options of a [`PosixStore`].
#[derive(Debug, Clone, Copy)]
pub struct PosixOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// The key of the export's ids, the same after every restart.
    pub secret: ExportSecret,
    /// The identity to use instead of the one derived from the file system. It is needed where the
    /// system identifies a file system by a device number that changes from boot to boot.
    pub fs_id: Option<FsId>,
    /// The most descriptors for cached objects. `None` means a quarter of the process's limit.
    pub nodes_max: Option<usize>,
    /// Require a name below the root for every use of a file, also of an open one. A file that a
    /// local process moved out of the export is then [`MovedOut`](dafs_store::StoreError::MovedOut)
    /// within a second. Where the kernel does not know the path of a file, the store scans the
    /// export for it and answers [`Busy`](dafs_store::StoreError::Busy) meanwhile.
    pub subtree_check: bool,
    /// The most bytes of content that clients do not expect to need again and that stay in the
    /// kernel's cache nevertheless. Beyond it the oldest leave.
    pub leaving_bytes_max: u64,
}

impl PosixOptions {
    /// Returns the options of a writable export with this secret.
    pub fn new(secret: ExportSecret) -> Self {
        Self {
            read_only: false,
            secret,
            fs_id: None,
            nodes_max: None,
            subtree_check: false,
            leaving_bytes_max: LEAVING_BYTES_MAX,
        }
    }
}

/// An exported local directory.
pub struct PosixStore {
    export: Arc<Export>,
}

impl PosixStore {
    /// Opens a directory. The umask of the process does not change: threads that make objects for
    /// callers have their own.
    ///
    /// # Errors
    /// * That of the first system call that fails, such as
    ///   [`NotFound`](dafs_store::StoreError::NotFound) and
    ///   [`NotDirectory`](dafs_store::StoreError::NotDirectory) for a wrong path.
    /// * [`Access`](dafs_store::StoreError::Access) also when the server is root but cannot take on
    ///   its callers' identities; the log says which privilege is missing.
    pub fn open(path: impl AsRef<Path>, options: PosixOptions) -> Result<Self> {
        Ok(Self { export: Arc::new(Export::open(path.as_ref(), options)?) })
    }

    /// True if operations run with their callers' rights, false if all run as the server's user.
    pub fn checks_callers(&self) -> bool {
        self.export.identity.switches()
    }

    /// Gives this thread the server's own identity until the guard is dropped. It may already hold
    /// another one.
    ///
    /// # Errors
    /// [`Access`](dafs_store::StoreError::Access) when the kernel refuses.
    pub fn as_server(&self) -> Result<ServerGuard> {
        self.export.identity.server().map(ServerGuard)
    }

    /// Makes all changes so far stable, of names and content. Waits for the device.
    ///
    /// # Errors
    /// The device's.
    pub fn sync_file_system(&self) -> Result<()> {
        let _server = self.as_server()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&self.export.root, c".", flags, Mode::empty())?;
        Ok(rustix::fs::syncfs(root)?)
    }

    /// Drops cached objects that local processes have removed, so that their space is freed, and
    /// listings that no client continues. Call it regularly, about every ten seconds. It checks
    /// some thousand objects each time, with a system call for each.
    pub fn sweep(&self) {
        self.export.streams.sweep();
        for node in self.export.nodes.next_to_sweep() {
            let removed = export::stat_fd(node.as_fd()).is_ok_and(|stat| stat.stx_nlink == 0);
            if removed {
                self.export.nodes.forget(&node.id);
            }
        }
    }
}

/// The thread works as the server itself while this guard lives.
#[must_use]
pub struct ServerGuard(#[expect(dead_code, reason = "dropped to go back")] ident::AsServer);

impl fmt::Debug for PosixStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PosixStore")
            .field("fs_id", &self.export.ids.fs_id())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{CreateHow, Cred, Kind, NewObject, OpenMode, SetAttr, Store, StoreError};

    #[test]
    fn without_openat2_symlinks_still_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let options = PosixOptions::new(ExportSecret::generate().unwrap());
        let mut store = PosixStore::open(dir.path(), options).unwrap();
        Arc::get_mut(&mut store.export).unwrap().has_openat2 = false;
        let cred =
            Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (root, none) = (store.root(), SetAttr::default());
        let link = NewObject::Symlink(b"/etc");
        let link = store.make(&cred, &root, b"l", link, &none).unwrap().id;
        let sub = store.make(&cred, &root, b"d", NewObject::Directory, &none).unwrap().id;
        let both = OpenMode { read: true, write: true };
        let how = CreateHow::Unchecked;
        let file = store.create(&cred, &sub, b"f", how, &none, both).unwrap();
        store.export.nodes.evict_some();
        assert_eq!(store.lookup(&cred, &sub, b"f").unwrap().0, file.id);
        let (found, attr) = store.lookup(&cred, &root, b"l").unwrap();
        assert_eq!((found, attr.kind), (link, Kind::Symlink));
        assert_eq!(store.lookup(&cred, &link, b"passwd"), Err(StoreError::NotDirectory));
        let through = store.create(&cred, &root, b"l", how, &none, both);
        assert_eq!(through.err(), Some(StoreError::Symlink));
    }
}
