//! The operations of the store by the calls of libcephfs.
//!
//! Invariants
//! * Directories are never open files, so all their inodes are those of the first mount.

use crate::attr::change;
use crate::file::CephFile;
use crate::id::Object;
use crate::limits::UNIT_BYTES_USUAL;
use crate::sys::{Handle, Inode, NO_SNAPSHOT};
use crate::{CephStore, Shared};
use dafs_store::backend::check_regular;
use dafs_store::inode::{Ids, Inode as _, InodeFs, Known, flags};
use dafs_store::{
    AclSupport, Attr, Capabilities, Cred, FileId, Kind, LayoutForm, Layouts, LocalChanges,
    OpenFile, OpenMode, Result, SetAttr, StoreError, Waits,
};
use std::sync::Arc;

impl Shared {
    fn open_inode(
        self: &Arc<Self>,
        cred: &Cred,
        object: Object,
        inode: Inode,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        let flags = flags(mode)?;
        check_regular(self.stat(object, &inode)?.kind)?;
        if mode.write && object.snap != NO_SNAPSHOT {
            return Err(StoreError::ReadOnly);
        }
        let handle = inode.open(flags, cred)?;
        Ok(Arc::new(CephFile::new(self, object, mode, inode, handle)))
    }
}

impl InodeFs for CephStore {
    type Inode = Inode;

    fn ids(&self) -> &Ids {
        &self.shared.ids
    }

    fn root_key(&self) -> Object {
        self.shared.root
    }

    fn features(&self) -> Capabilities {
        Capabilities {
            xattrs: true,
            acls: AclSupport::Mode,
            local_changes: LocalChanges::Unseen,
            waits: Waits::Always,
            layouts: self.shared.spread.as_ref().map(|_| LayoutForm::Stripes),
            layout_unit_bytes: self.shared.spread.as_ref().map_or(0, |_| UNIT_BYTES_USUAL),
            ..Capabilities::default()
        }
    }

    fn placements(&self) -> Option<&dyn Layouts> {
        self.shared.spread.as_ref().map(|_| self as &dyn Layouts)
    }

    fn find(&self, id: &FileId) -> Result<(Object, Result<Inode>, Attr)> {
        let (object, inode) = self.shared.inode(id)?;
        let attr = self.shared.stat(object, &inode)?;
        Ok((object, Ok(inode), attr))
    }

    fn above(&self, cred: &Cred, dir: &Inode) -> Result<Object> {
        dir.lookup(b"..", cred).map(|parent| parent.key)
    }

    /// The metadata server checks the rights.
    fn check_change(&self, _cred: &Cred, _known: &Attr, wish: &mut SetAttr) -> Result<()> {
        change(wish).map(drop)
    }

    fn set_attributes(&self, cred: &Cred, inode: &Inode, wish: &SetAttr) -> Result<()> {
        let (stat, mask) = change(wish)?;
        if mask != 0 { inode.set_stat(stat, mask, cred) } else { Ok(()) }
    }

    fn open_file(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let shared = &self.shared;
        let object = shared.ids.open(id)?;
        let inode = shared.mounts[shared.home_of_open(object)].inode(object.ino, object.snap)?;
        shared.open_inode(cred, object, inode, mode)
    }

    fn open_found(
        &self,
        cred: &Cred,
        found: Known<Inode>,
        truncate: bool,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        let (object, shared) = (found.key, &self.shared);
        let inode = shared.mounts[shared.home(object)].inode(object.ino, object.snap)?;
        if truncate {
            inode.truncate(0, cred)?;
        }
        shared.open_inode(cred, object, inode, mode)
    }

    fn sync_made(&self, dir: &Inode, inode: &Inode, _handle: &Handle) -> Result<()> {
        let _waiting = dir.mount().waits().begin();
        inode.sync()?;
        dir.sync()
    }

    fn open_made(
        &self,
        _cred: &Cred,
        made: Known<Inode>,
        mode: OpenMode,
        handle: Handle,
    ) -> Arc<dyn OpenFile> {
        Arc::new(CephFile::new(&self.shared, made.key, mode, made.inode, handle))
    }

    fn link_name(&self, cred: &Cred, id: &FileId, dir: &Inode, name: &[u8]) -> Result<()> {
        let (_, target) = self.shared.inode_on(dir.mount(), id)?;
        let attr = target.stat()?;
        if attr.kind == Kind::Directory {
            return Err(StoreError::IsDirectory);
        }
        if attr.links == 0 {
            return Err(StoreError::Stale);
        }
        dir.link(&target, name, cred)
    }

    fn remove_name(&self, cred: &Cred, dir: &Inode, name: &[u8], kind: Option<Kind>) -> Result<()> {
        let kind = match kind {
            Some(kind) => kind,
            None => dir.lookup(name, cred)?.attr.kind,
        };
        match kind {
            Kind::Directory => dir.rmdir(name, cred),
            _ => dir.unlink(name, cred),
        }
    }

    fn sync_names(&self, ids: &[FileId]) -> Result<()> {
        for id in ids {
            let object: Object = self.shared.ids.open(id)?;
            if object.snap != NO_SNAPSHOT {
                continue;
            }
            // Each mount syncs only its own changes.
            for mount in &self.shared.mounts {
                match mount.inode(object.ino, object.snap).and_then(|inode| inode.sync()) {
                    Ok(()) | Err(StoreError::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}
