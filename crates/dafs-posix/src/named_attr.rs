//! Named attributes: the `user.*` extended attributes of regular files and directories, as files.
//!
//! Decisions
//! * Attribute "x" is the extended attribute "user.x". Others are not shown.
//! * The required rights are those of the kernel: reading the object for reading, writing it for
//!   writing. Symlinks and special files have no such attributes.
//! * The kernel reads and writes whole values. So a change reads the value, changes it and writes
//!   it back under the export's lock. Two servers on one directory are not protected from each
//!   other.
//! * An attribute has the owner, group, times and mode of its object. A create may ask for a mode,
//!   which has no effect. It fails if it asks for another of these.
//! * Renaming, links, and creating with a verifier are not supported.
//! * The cookie of an entry comes from the keyed hash of its name, which is also its inode number.

use super::export::{Export, descriptor_path, stat_fd};
use super::ident::Caller;
use super::node::Node;
use dafs_mem::{Site, VolatileSlice};
use dafs_store::backend::{
    COOKIE_FIRST, XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_PREFIX, check_advice,
    check_name, check_ranges, copy_piece, seek_dense, user_xattr_names,
};
use dafs_store::{
    AccessMask, Advised, Attr, CacheAdvice, CopyRange, CreateHow, Created, Cred, DirChange,
    DirEntry, FileId, Kind, OpenFile, OpenMode, Result, SeekWhat, SetAttr, Stability, StoreError,
    Wait, WholeFile, XATTR_BYTES_MAX,
};
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use std::any::Any;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Returns the kernel's name of a named attribute.
fn kernel_name(name: &[u8]) -> Result<Vec<u8>> {
    check_name(name)?;
    if name.len() > XATTR_NAME_BYTES_MAX {
        return Err(StoreError::NameTooLong);
    }
    Ok([XATTR_PREFIX, name].concat())
}

fn error(errno: Errno) -> StoreError {
    match errno {
        Errno::NODATA => StoreError::NotFound,
        Errno::TOOBIG => StoreError::FileTooBig,
        Errno::RANGE => StoreError::Busy,
        // Objects that cannot have such attributes at all.
        Errno::PERM => StoreError::Access,
        other => other.into(),
    }
}

/// Reads the whole value of an attribute.
fn value(node: &Node, name: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = vec![0; XATTR_BYTES_MAX];
    let len = rustix::fs::getxattr(descriptor_path(node.as_fd()), kernel_name(name)?, &mut bytes)
        .map_err(error)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn set_value(node: &Node, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
    if value.len() > XATTR_BYTES_MAX {
        return Err(StoreError::FileTooBig);
    }
    rustix::fs::setxattr(descriptor_path(node.as_fd()), kernel_name(name)?, value, flags)
        .map_err(error)
}

/// Returns the names of all visible attributes.
fn names(node: &Node) -> Result<Vec<Vec<u8>>> {
    let mut list = vec![0; XATTR_LIST_BYTES_MAX];
    let len = rustix::fs::listxattr(descriptor_path(node.as_fd()), &mut list).map_err(error)?;
    let mut names = user_xattr_names(&list[..len]);
    names.retain(|name| check_name(name).is_ok());
    Ok(names)
}

impl Export {
    fn named_attr_kind(node: &Node) -> Result<()> {
        match node.kind {
            Kind::Regular | Kind::Directory => Ok(()),
            _ => Err(StoreError::NotSupported),
        }
    }

    /// Returns the directory of an object's named attributes.
    pub(super) fn attr_dir(&self, _caller: &Caller, node: &Node) -> Result<FileId> {
        Self::named_attr_kind(node)?;
        // Fails if the file system has no such attributes.
        names(node)?;
        self.ids.attr_dir(&node.id)
    }

    /// Returns the attributes of the directory of named attributes.
    pub(super) fn attr_dir_attr(&self, node: &Node) -> Result<Attr> {
        let base = self.node_attr(node, &self.stat_live(node)?)?;
        // A caller that may read the object may list and look up its attributes.
        let mode = (base.mode & 0o666) | ((base.mode & 0o444) >> 2);
        Ok(Attr { kind: Kind::AttrDirectory, mode, links: 2, size: 0, space_used: 0, ..base })
    }

    fn one_attr(&self, node: &Node, name: &[u8], size: u64) -> Result<Attr> {
        let base = self.node_attr(node, &stat_fd(node.as_fd())?)?;
        Ok(Attr {
            kind: Kind::NamedAttr,
            mode: base.mode & 0o666,
            links: 1,
            size,
            space_used: size,
            file_id: self.ids.name_hash(name),
            ..base
        })
    }

    /// Returns the name behind a hash.
    fn attr_name(&self, node: &Node, hash: u64) -> Result<Vec<u8>> {
        Self::named_attr_kind(node)?;
        let names = names(node)?;
        names.into_iter().find(|n| self.ids.name_hash(n) == hash).ok_or(StoreError::Stale)
    }

    pub(super) fn named_attr_attr(&self, node: &Node, hash: u64) -> Result<Attr> {
        let name = self.attr_name(node, hash)?;
        let size = value(node, &name)?.len() as u64;
        self.one_attr(node, &name, size)
    }

    pub(super) fn lookup_attr(
        &self,
        _caller: &Caller,
        node: &Node,
        name: &[u8],
    ) -> Result<(FileId, Attr)> {
        let size = value(node, name)?.len() as u64;
        let id = self.ids.named_attr(&node.id, self.ids.name_hash(name))?;
        Ok((id, self.one_attr(node, name, size)?))
    }

    /// Returns the rights on a named attribute or the directory of them.
    pub(super) fn attr_access(
        &self,
        caller: &Caller,
        cred: &Cred,
        node: &Node,
        wanted: AccessMask,
        directory: bool,
    ) -> Result<AccessMask> {
        let change = AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE;
        let asked = AccessMask::READ | AccessMask::MODIFY;
        let stat = stat_fd(node.as_fd())?;
        let base = self.allowed(caller, cred, (node, &stat), asked)?;
        let mut granted = AccessMask::empty();
        if base.contains(AccessMask::READ) {
            granted |= AccessMask::READ | AccessMask::LOOKUP;
        }
        if base.contains(AccessMask::MODIFY) {
            granted |= change;
        }
        if !directory {
            granted -= AccessMask::LOOKUP | AccessMask::DELETE;
        }
        Ok(granted & wanted)
    }

    pub(super) fn open_attr(
        self: &Arc<Self>,
        caller: &Caller,
        cred: &Cred,
        node: &Arc<Node>,
        hash: u64,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        self.check_attr_open(caller, cred, node, mode)?;
        let name = self.attr_name(node, hash)?;
        self.attr_file(cred, node, name, mode)
    }

    /// Rejects an open of a named attribute that the rights on its object do not allow.
    fn check_attr_open(
        &self,
        caller: &Caller,
        cred: &Cred,
        node: &Node,
        mode: OpenMode,
    ) -> Result<()> {
        if !mode.read && !mode.write {
            return Err(StoreError::Invalid);
        }
        if mode.write {
            self.writable()?;
        }
        let mut needed = AccessMask::empty();
        needed.set(AccessMask::READ, mode.read);
        needed.set(AccessMask::MODIFY, mode.write);
        if self.attr_access(caller, cred, node, needed, false)? == needed {
            Ok(())
        } else {
            Err(StoreError::Access)
        }
    }

    fn attr_file(
        self: &Arc<Self>,
        cred: &Cred,
        node: &Arc<Node>,
        name: Vec<u8>,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        let id = self.ids.named_attr(&node.id, self.ids.name_hash(&name))?;
        let (export, node, cred) = (self.clone(), node.clone(), cred.clone());
        Ok(Arc::new(NamedAttrFile { export, node, name, id, mode, cred }))
    }

    pub(super) fn create_attr(
        self: &Arc<Self>,
        caller: &Caller,
        cred: &Cred,
        node: &Arc<Node>,
        name: &[u8],
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        let exclusive = matches!(how, CreateHow::Exclusive(_));
        if exclusive || (SetAttr { size: None, mode: None, ..*wish }) != SetAttr::default() {
            return Err(StoreError::NotSupported);
        }
        // All checks that can fail the open come before the creation.
        kernel_name(name)?;
        self.check_attr_open(caller, cred, node, mode)?;
        let file = self.attr_file(cred, node, name.to_vec(), mode)?;
        let mut first = Vec::new();
        resize(&mut first, wish.size.unwrap_or(0))?;
        let before = self.before_change(node)?;
        let created = {
            let _lock = self.named_attr_lock.lock();
            match set_value(node, name, &first, XattrFlags::CREATE) {
                Ok(()) => true,
                Err(StoreError::Exists) if how == CreateHow::Unchecked => {
                    if wish.size == Some(0) {
                        set_value(node, name, &[], XattrFlags::REPLACE)?;
                    }
                    false
                }
                Err(error) => return Err(error),
            }
        };
        let dir = self.changed(node, before)?;
        Ok(Created { id: file.id(), attr: file.attr()?, dir, file, created })
    }

    pub(super) fn remove_attr(
        &self,
        _caller: &Caller,
        node: &Node,
        name: &[u8],
    ) -> Result<DirChange> {
        let before = self.before_change(node)?;
        rustix::fs::removexattr(descriptor_path(node.as_fd()), kernel_name(name)?)
            .map_err(error)?;
        self.changed(node, before)
    }

    pub(super) fn list_attrs(
        &self,
        _caller: &Caller,
        node: &Node,
        cookie: u64,
        with_attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        if (1..COOKIE_FIRST).contains(&cookie) {
            return Err(StoreError::BadCookie);
        }
        let mut entries: Vec<_> =
            names(node)?.into_iter().map(|name| (self.ids.name_hash(&name), name)).collect();
        entries.sort_unstable();
        for (hash, name) in entries {
            // The cookie is below 2^64-3 nearly always; the few hashes above share the last cookie.
            let this = hash.saturating_add(COOKIE_FIRST);
            if this <= cookie {
                continue;
            }
            let object = || {
                let size = value(node, &name).ok()?.len() as u64;
                let id = self.ids.named_attr(&node.id, hash).ok()?;
                Some((id, self.one_attr(node, &name, size).ok()?))
            };
            let object = if with_attr { object() } else { None };
            if !sink(DirEntry { name: &name, cookie: this, file_id: hash, object }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn change_value<T>(
        &self,
        node: &Node,
        name: &[u8],
        change: impl FnOnce(&mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        let _lock = self.named_attr_lock.lock();
        let gone = |error| if error == StoreError::NotFound { StoreError::Stale } else { error };
        let mut bytes = value(node, name).map_err(gone)?;
        let result = change(&mut bytes)?;
        set_value(node, name, &bytes, XattrFlags::REPLACE).map_err(gone)?;
        self.note_change(node, node.as_fd())?;
        Ok(result)
    }

    /// Changes the size of a named attribute as the caller.
    pub(super) fn cut_attr(
        &self,
        _caller: &Caller,
        node: &Node,
        hash: u64,
        size: u64,
    ) -> Result<()> {
        let name = self.attr_name(node, hash)?;
        self.change_value(node, &name, |bytes| resize(bytes, size))
    }
}

fn resize(bytes: &mut Vec<u8>, size: u64) -> Result<()> {
    let size = usize::try_from(size).map_err(|_| StoreError::FileTooBig)?;
    if size > XATTR_BYTES_MAX {
        return Err(StoreError::FileTooBig);
    }
    bytes.resize(size, 0);
    Ok(())
}

/// An open named attribute.
struct NamedAttrFile {
    export: Arc<Export>,
    node: Arc<Node>,
    name: Vec<u8>,
    id: FileId,
    mode: OpenMode,
    cred: Cred,
}

impl NamedAttrFile {
    fn check_wait(&self, wait: Wait) -> Result<()> {
        let may_wait = wait == Wait::Allowed || self.export.in_memory;
        if may_wait { Ok(()) } else { Err(StoreError::WouldBlock) }
    }
}

impl OpenFile for NamedAttrFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.id
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        if !self.mode.read {
            return Err(StoreError::Access);
        }
        self.check_wait(wait)?;
        let _caller = self.export.identity.caller(&self.cred)?;
        let bytes = value(&self.node, &self.name)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut rest = bytes.get(start..).unwrap_or(&[]);
        let mut done = 0;
        for view in views {
            let copied = view.copy_from(rest, Site::NamedAttr);
            rest = &rest[copied..];
            done += copied;
        }
        Ok(done)
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        if !self.mode.write {
            return Err(StoreError::Access);
        }
        self.check_wait(wait)?;
        let _caller = self.export.identity.caller(&self.cred)?;
        let len: usize = views.iter().map(VolatileSlice::len).sum();
        let start = usize::try_from(offset).map_err(|_| StoreError::FileTooBig)?;
        let end = start.checked_add(len).ok_or(StoreError::FileTooBig)?;
        if len == 0 {
            return Ok(0);
        }
        self.export.change_value(&self.node, &self.name, |bytes| {
            resize(bytes, bytes.len().max(end) as u64)?;
            let mut at = start;
            for view in views {
                at += view.copy_to(&mut bytes[at..end], Site::NamedAttr);
            }
            Ok(())
        })?;
        if stability != Stability::Unstable {
            self.sync()?;
        }
        Ok(len)
    }

    fn sync(&self) -> Result<()> {
        let _server = self.export.identity.server()?;
        let fd = self.export.reopen(&self.node, OFlags::RDONLY)?;
        Ok(rustix::fs::fsync(&fd)?)
    }

    fn attr(&self) -> Result<Attr> {
        let _server = self.export.identity.server()?;
        let size = value(&self.node, &self.name)?.len() as u64;
        self.export.one_attr(&self.node, &self.name, size)
    }
}

impl WholeFile for NamedAttrFile {
    fn advise(&self, offset: u64, len: u64, _advice: CacheAdvice) -> Result<Advised> {
        check_advice(offset, len)?;
        Ok(Advised::Ignored)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        if !self.mode.write {
            return Err(StoreError::Access);
        }
        let _caller = self.export.identity.caller(&self.cred)?;
        self.export.change_value(&self.node, &self.name, |bytes| resize(bytes, size))
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        seek_dense(self.attr()?.size, offset, what)
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn deallocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        check_ranges(source.id() == self.id, range)?;
        copy_piece(self, source, range)
    }

    fn clone_range_from(&self, _source: &dyn OpenFile, _range: CopyRange) -> Result<()> {
        Err(StoreError::NotSupported)
    }
}
