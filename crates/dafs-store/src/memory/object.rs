//! Objects of the memory store, their rights and their directories.

use super::content::{Content, Reserved};
use super::xattr::Xattrs;
use crate::limits::COOKIE_FIRST;
use crate::{Attr, Cred, FileId, Kind, Result, StoreError, TimeSpec};
use dafs_mem::{RwLock, Shrinking as _};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

pub(super) use crate::inode::{EXECUTE as X, READ as R, WRITE as W};

/// One inode.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) id: FileId,
    pub(super) ino: u64,
    pub(super) kind: Kind,
    /// For a named attribute or a directory of them: the object whose rights apply.
    pub(super) base: Option<Arc<Object>>,
    /// The number of open files that use it.
    pub(super) opens: AtomicU32,
    state: RwLock<State>,
}

/// The mutable state of an object.
#[derive(Debug)]
pub(super) struct State {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) links: u32,
    pub(super) raw_device: (u32, u32),
    pub(super) atime: TimeSpec,
    pub(super) mtime: TimeSpec,
    pub(super) ctime: TimeSpec,
    pub(super) btime: TimeSpec,
    pub(super) change: u64,
    /// The verifier of the exclusive create that made it.
    pub(super) verifier: Option<[u8; 8]>,
    /// True if it was made without a name and has none yet.
    pub(super) linkable: bool,
    /// The inode of its directory of named attributes, once there is one.
    pub(super) attr_dir: Option<u64>,
    pub(super) xattrs: Xattrs,
    pub(super) body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    File(Content),
    Directory(Directory),
    Symlink(Vec<u8>, Reserved),
    Special,
}

impl Object {
    pub(super) fn new(
        (id, ino): (FileId, u64),
        kind: Kind,
        base: Option<Arc<Object>>,
        state: State,
    ) -> Self {
        Self { id, ino, kind, base, opens: AtomicU32::new(0), state: RwLock::new(state) }
    }

    /// Locks the state shared.
    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Locks the state exclusively.
    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory | Kind::AttrDirectory)
    }

    pub(super) fn attr(&self) -> Attr {
        self.state().attr(self)
    }

    /// Fails with `Access` unless the caller has all of `want`.
    pub(super) fn check(&self, cred: &Cred, want: u32) -> Result<()> {
        // Listing and looking up named attributes needs the right to read.
        let (rights, want) = match &self.base {
            Some(base) => (base.as_ref(), if want & X != 0 { (want & !X) | R } else { want }),
            None => (self, want),
        };
        let state = rights.state();
        let given = cred.rights(rights.kind, state.mode, state.uid, state.gid);
        if given & want == want { Ok(()) } else { Err(StoreError::Access) }
    }

    /// Fails with `NotOwner` unless the caller owns the object.
    pub(super) fn check_owner(&self, cred: &Cred) -> Result<()> {
        let uid = self.base.as_deref().unwrap_or(self).state().uid;
        if cred.uid == 0 || cred.uid == uid { Ok(()) } else { Err(StoreError::NotOwner) }
    }
}

impl State {
    pub(super) fn attr(&self, object: &Object) -> Attr {
        let (size, space_used) = match &self.body {
            Body::File(content) => (content.size(), content.allocated_bytes()),
            Body::Directory(directory) => (directory.len() as u64, 0),
            Body::Symlink(text, _) => (text.len() as u64, 0),
            Body::Special => (0, 0),
        };
        Attr {
            kind: object.kind,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            size,
            space_used,
            file_id: object.ino,
            raw_device: self.raw_device,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: Some(self.btime),
            change: self.change,
        }
    }

    /// Records a change of attributes, and of content if `content`.
    pub(super) fn touch(&mut self, now: TimeSpec, change: u64, content: bool) {
        self.ctime = now;
        self.change = change;
        if content {
            self.mtime = now;
        }
    }

    /// A change of content by a caller other than root clears setuid and, on executables, setgid.
    pub(super) fn drop_privileges(&mut self, cred: &Cred) {
        if cred.uid != 0 {
            self.clear_set_ids();
        }
    }

    /// Clears setuid and, if the group may execute, setgid (otherwise that bit means mandatory
    /// locking).
    pub(super) fn clear_set_ids(&mut self) {
        self.mode &= !0o4000;
        if self.mode & 0o010 != 0 {
            self.mode &= !0o2000;
        }
    }

    pub(super) fn directory(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(StoreError::NotDirectory),
        }
    }

    pub(super) fn directory_mut(&mut self) -> Result<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(StoreError::NotDirectory),
        }
    }
}

/// The names of a directory. Cookies only grow, so that a continued listing neither misses nor
/// repeats an entry that stayed.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    pub(super) parent: u64,
    /// Clients choose the names, so the hashes are random.
    by_name: HashMap<Arc<[u8]>, Entry>,
    /// Names and inodes.
    by_cookie: BTreeMap<u64, (Arc<[u8]>, u64)>,
    next_cookie: u64,
}

/// The inode of a name, and the space that the name takes.
#[derive(Debug, Clone)]
struct Entry {
    cookie: u64,
    ino: u64,
    _room: Reserved,
}

impl Directory {
    pub(super) fn new(parent: u64) -> Self {
        let (by_name, by_cookie) = (HashMap::new(), BTreeMap::new());
        Self { parent, by_name, by_cookie, next_cookie: COOKIE_FIRST }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|entry| entry.ino)
    }

    /// Adds a name, or changes its inode. `room` is the space of the name.
    pub(super) fn insert(&mut self, name: &[u8], ino: u64, room: Reserved) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let name: Arc<[u8]> = name.into();
        let entry = Entry { cookie, ino, _room: room };
        if let Some(replaced) = self.by_name.insert(name.clone(), entry) {
            self.by_cookie.remove(&replaced.cookie);
        }
        self.by_cookie.insert(cookie, (name, ino));
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let entry = self.by_name.remove(name)?;
        self.by_name.shrink_if_sparse();
        self.by_cookie.remove(&entry.cookie);
        Some(entry.ino)
    }

    pub(super) fn inodes(&self) -> impl Iterator<Item = u64> {
        self.by_name.values().map(|entry| entry.ino)
    }

    /// Returns the entries after `cookie`: their cookies, names and inodes.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Arc<[u8]>, u64)> {
        let range = self.by_cookie.range((Bound::Excluded(cookie), Bound::Unbounded));
        range.map(|(&cookie, (name, ino))| (cookie, name, *ino))
    }
}
