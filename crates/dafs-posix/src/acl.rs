//! Access control lists. The kernel keeps them as POSIX lists, or as a mode where the file system
//! has no lists. It keeps list and mode consistent.

use super::PosixStore;
use super::export::{Export, descriptor_path};
use super::node::Node;
use super::xattr::read_all;
use dafs_store::backend::MODE_BITS;
use dafs_store::{
    Acl, AclSupport, Cred, FileId, Kind, PosixAcl, PosixAcls, Result, SetAttr, StoreError,
    XATTR_BYTES_MAX,
};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

const ACCESS: &std::ffi::CStr = c"system.posix_acl_access";
const DEFAULT: &std::ffi::CStr = c"system.posix_acl_default";

/// Returns the kind of lists that the file system of this object keeps.
pub(super) fn support(fd: BorrowedFd<'_>) -> AclSupport {
    match read(fd, ACCESS) {
        Ok(_) => AclSupport::Posix,
        Err(_) => AclSupport::Mode,
    }
}

/// Reads one list of an object; `None` if it has none.
fn read(fd: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<Option<PosixAcl>> {
    let path = descriptor_path(fd);
    match read_all(XATTR_BYTES_MAX, |room| rustix::fs::getxattr(&path, name, room)) {
        Ok(bytes) => PosixAcl::decode(&bytes).map(Some).ok_or(StoreError::Io),
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

impl Export {
    fn read_acls(&self, node: &Node) -> Result<PosixAcls> {
        let stat = self.stat_live(node)?;
        let mut lists = PosixAcls::from_mode(u32::from(stat.stx_mode));
        if self.abilities.acls == AclSupport::Posix && node.kind != Kind::Symlink {
            if let Some(access) = read(node.as_fd(), ACCESS)? {
                lists.access = access;
            }
            if node.kind == Kind::Directory {
                lists.default = read(node.as_fd(), DEFAULT)?;
            }
        }
        Ok(lists)
    }

    fn write_acls(&self, node: &Node, lists: &PosixAcls) -> Result<()> {
        let path = descriptor_path(node.as_fd());
        let set = |name, list: &PosixAcl| {
            rustix::fs::setxattr(&path, name, &list.encode(), XattrFlags::empty())
        };
        // The default list first, because it can fail for more reasons.
        if let Some(default) = &lists.default {
            set(DEFAULT, default)?;
        } else if node.kind == Kind::Directory {
            match rustix::fs::removexattr(&path, DEFAULT) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(set(ACCESS, &lists.access)?)
    }
}

impl PosixStore {
    pub(super) fn read_acl(&self, id: &FileId) -> Result<Acl> {
        let node = self.export.node(id)?;
        Ok(self.export.read_acls(&node)?.to_acl(node.kind == Kind::Directory))
    }

    pub(super) fn read_posix_acls(&self, id: &FileId) -> Result<PosixAcls> {
        let node = self.export.node(id)?;
        self.export.read_acls(&node)
    }

    pub(super) fn write_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        self.change_acls(cred, id, |is_directory| PosixAcls::from_acl(acl, is_directory))
    }

    pub(super) fn write_posix_acls(
        &self,
        cred: &Cred,
        id: &FileId,
        lists: &PosixAcls,
    ) -> Result<()> {
        self.change_acls(cred, id, |is_directory| match lists.default {
            Some(_) if !is_directory => Err(StoreError::Invalid),
            _ => Ok(lists.clone()),
        })
    }

    /// Sets the lists that `wish` returns for a directory or another object.
    fn change_acls(
        &self,
        cred: &Cred,
        id: &FileId,
        wish: impl FnOnce(bool) -> Result<PosixAcls>,
    ) -> Result<()> {
        self.export.writable()?;
        let node = self.export.node(id)?;
        let stat = self.export.stat_live(&node)?;
        if node.kind == Kind::Symlink {
            return Err(StoreError::NotSupported);
        }
        let lists = wish(node.kind == Kind::Directory)?;
        let caller = self.export.identity.caller(cred)?;
        let before = self.export.before_change(&node)?;
        match (self.export.abilities.acls, lists.as_mode()) {
            (AclSupport::Posix, _) => self.export.write_acls(&node, &lists)?,
            (AclSupport::Mode, Some(bits)) => {
                let mode = u32::from(stat.stx_mode) & MODE_BITS & !0o777 | bits;
                let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.export.change_attr(&caller, cred, (&node, &stat), &change, None)?;
            }
            (AclSupport::Mode, None) => return Err(StoreError::NotSupported),
        }
        self.export.changed(&node, before).map(drop)
    }
}
