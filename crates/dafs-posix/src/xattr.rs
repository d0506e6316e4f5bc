//! Extended attributes: those of Linux whose names begin with "user."; clients do not see the
//! prefix.
//!
//! They are the same attributes as the named attributes of `named_attr`, with another interface.

use super::PosixStore;
use super::export::descriptor_path;
use super::ident::Caller;
use super::node::Node;
use dafs_store::backend::{XATTR_LIST_BYTES_MAX, kernel_xattr_name, user_xattr_names};
use dafs_store::{
    AccessMask, Cred, DirChange, FileId, Kind, Result, SetXattr, StoreError, XATTR_BYTES_MAX,
};
use rustix::fs::XattrFlags;
use rustix::io::{Errno, Result as SysResult};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Most values fit; a longer one costs a second call.
const FIRST_TRY_BYTES: usize = 1024;

fn error(errno: Errno) -> StoreError {
    match errno {
        Errno::NODATA => StoreError::NoXattr,
        Errno::TOOBIG => StoreError::XattrTooBig,
        // The value grew between two calls.
        Errno::RANGE => StoreError::Busy,
        // Objects that cannot have such attributes, and immutable objects.
        Errno::PERM => StoreError::Access,
        other => other.into(),
    }
}

/// Calls with a small buffer, and again with the largest one if that is too small.
pub(super) fn read_all(
    bytes_max: usize,
    mut call: impl FnMut(&mut [u8]) -> SysResult<usize>,
) -> SysResult<Vec<u8>> {
    let mut bytes = vec![0; FIRST_TRY_BYTES];
    let len = match call(&mut bytes) {
        Err(Errno::RANGE) => {
            bytes.resize(bytes_max, 0);
            call(&mut bytes)
        }
        first => first,
    };
    bytes.truncate(len?);
    Ok(bytes)
}

fn has_xattrs(node: &Node) -> bool {
    matches!(node.kind, Kind::Regular | Kind::Directory)
}

impl PosixStore {
    /// Returns an object that may have extended attributes of its own. Named attributes have none.
    fn xattr_node(&self, id: &FileId) -> Result<Arc<Node>> {
        let node = self.export.node(id)?;
        self.export.stat_live(&node)?;
        Ok(node)
    }

    fn change_xattrs(
        &self,
        cred: &Cred,
        id: &FileId,
        change: impl FnOnce(&Caller, &Node) -> Result<()>,
    ) -> Result<DirChange> {
        self.export.writable()?;
        let node = self.xattr_node(id)?;
        if !has_xattrs(&node) {
            return Err(StoreError::NotSupported);
        }
        let caller = self.export.identity.caller(cred)?;
        let before = self.export.before_change(&node)?;
        change(&caller, &node)?;
        self.export.changed(&node, before)
    }

    pub(super) fn read_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        let name = kernel_xattr_name(name)?;
        let node = self.xattr_node(id)?;
        if !has_xattrs(&node) {
            return Err(StoreError::NoXattr);
        }
        let _caller = self.export.identity.caller(cred)?;
        let path = descriptor_path(node.as_fd());
        read_all(XATTR_BYTES_MAX, |room| rustix::fs::getxattr(&path, &name, room)).map_err(error)
    }

    pub(super) fn write_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        let name = kernel_xattr_name(name)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(StoreError::XattrTooBig);
        }
        let flags = match how {
            SetXattr::Either => XattrFlags::empty(),
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
        };
        self.change_xattrs(cred, id, |_, node| {
            rustix::fs::setxattr(descriptor_path(node.as_fd()), &name, value, flags).map_err(error)
        })
    }

    pub(super) fn drop_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        let name = kernel_xattr_name(name)?;
        self.change_xattrs(cred, id, |_, node| {
            rustix::fs::removexattr(descriptor_path(node.as_fd()), &name).map_err(error)
        })
    }

    pub(super) fn xattr_names(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        let node = self.export.node(id)?;
        let stat = self.export.stat_live(&node)?;
        if !has_xattrs(&node) {
            return Ok(Vec::new());
        }
        let caller = self.export.identity.caller(cred)?;
        // The kernel lists names for all callers; RFC 8276 8.4.3 requires the right to read.
        let read = AccessMask::READ;
        if self.export.allowed(&caller, cred, (&node, &stat), read)? != read {
            return Err(StoreError::Access);
        }
        let path = descriptor_path(node.as_fd());
        let list = read_all(XATTR_LIST_BYTES_MAX, |room| rustix::fs::listxattr(&path, room));
        Ok(user_xattr_names(&list.map_err(error)?))
    }
}
