//! Extended attributes and access control lists of the memory store. Lists are equivalent to the
//! mode.

use super::content::Reserved;
use super::object::{Object, R, State, W};
use super::{Inner, MemoryStore};
use crate::acl::PosixAcls;
use crate::backend::mode_of_acl;
use crate::limits::{XATTR_BYTES_MAX, XATTR_LIST_BYTES_MAX};
use crate::names::{XATTR_PREFIX, check_xattr_name};
use crate::{Acl, Cred, DirChange, FileId, Kind, Result, SetAttr, SetXattr, Store, StoreError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The extended attributes of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Xattrs(BTreeMap<Vec<u8>, Xattr>);

#[derive(Debug, Clone)]
struct Xattr {
    value: Vec<u8>,
    _room: Reserved,
}

impl Xattrs {
    /// Returns the size of the list of names in the kernel.
    fn list_bytes(&self) -> usize {
        self.0.keys().map(|name| XATTR_PREFIX.len() + name.len() + 1).sum()
    }
}

impl Inner {
    fn xattr_object(&self, cred: &Cred, id: &FileId, want: u32) -> Result<Arc<Object>> {
        let object = self.object(id)?;
        object.check(cred, want)?;
        Ok(object)
    }

    fn change_xattrs(
        &self,
        cred: &Cred,
        id: &FileId,
        change: impl FnOnce(&mut Xattrs) -> Result<()>,
    ) -> Result<DirChange> {
        self.writable()?;
        let object = self.xattr_object(cred, id, W)?;
        if !matches!(object.kind, Kind::Regular | Kind::Directory) {
            return Err(StoreError::NotSupported);
        }
        let mut state = object.state_mut();
        let before = state.change;
        change(&mut state.xattrs)?;
        self.touch(&mut state, false);
        Ok(DirChange { before, after: state.change, atomic: true, attr: None })
    }

    pub(super) fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        check_xattr_name(name)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(StoreError::XattrTooBig);
        }
        self.change_xattrs(cred, id, |xattrs| {
            match (how, xattrs.0.contains_key(name)) {
                (SetXattr::Create, true) => return Err(StoreError::Exists),
                (SetXattr::Replace, false) => return Err(StoreError::NoXattr),
                (_, true) => {}
                (_, false) => {
                    let more = XATTR_PREFIX.len() + name.len() + 1;
                    if xattrs.list_bytes() + more > XATTR_LIST_BYTES_MAX {
                        return Err(StoreError::NoSpace);
                    }
                }
            }
            let room = Reserved::take(&self.space, name.len() + value.len())?;
            let xattr = Xattr { value: value.to_vec(), _room: room };
            xattrs.0.insert(name.to_vec(), xattr);
            Ok(())
        })
    }

    pub(super) fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        check_xattr_name(name)?;
        self.change_xattrs(cred, id, |xattrs| {
            xattrs.0.remove(name).map(drop).ok_or(StoreError::NoXattr)
        })
    }

    pub(super) fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let object = self.xattr_object(cred, id, R)?;
        let state = object.state();
        state.xattrs.0.get(name).map(|xattr| xattr.value.clone()).ok_or(StoreError::NoXattr)
    }

    pub(super) fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        let object = self.xattr_object(cred, id, R)?;
        let state = object.state();
        Ok(state.xattrs.0.keys().cloned().collect())
    }

    pub(super) fn acl(&self, id: &FileId) -> Result<Acl> {
        let object = self.object(id)?;
        let State { mode, .. } = *object.state();
        Ok(PosixAcls::from_mode(mode).to_acl(object.kind == Kind::Directory))
    }
}

impl MemoryStore {
    pub(super) fn set_mode_by_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        self.inner.writable()?;
        let object = self.inner.object(id)?;
        if object.kind == Kind::Symlink {
            return Err(StoreError::NotSupported);
        }
        let bits = mode_of_acl(acl, object.kind == Kind::Directory)?;
        let mode = object.state().mode & !0o777 | bits;
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.setattr(cred, id, &change, None).map(drop)
    }
}
