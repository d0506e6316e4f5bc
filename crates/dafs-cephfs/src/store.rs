//! The operations of the store by the calls of libcephfs.
//!
//! Invariants
//! * Directories are never open files, so all their inodes are those of the first mount.

use crate::attr::{attr, change};
use crate::file::CephFile;
use crate::id::Object;
use crate::limits::UNIT_BYTES_USUAL;
use crate::sys::{DirStream, Handle, Inode, NO_SNAPSHOT, Perm, StatX};
use crate::{CephStore, Shared, object, server};
use dafs_store::inode::{Ids, InodeFs, Known, Listed, check_regular, flags};
use dafs_store::{
    AclSupport, Attr, Capabilities, Cred, FileId, Kind, LayoutForm, Layouts, LocalChanges,
    OpenFile, OpenMode, Result, SetAttr, StoreError, Waits,
};
use std::sync::Arc;

/// Returns a caller in the form of the library.
fn perm<'a>(inode: &'a Inode, cred: &Cred) -> Result<Perm<'a>> {
    Perm::new(inode.mount(), cred)
}

fn known((inode, stat): (Inode, StatX)) -> Result<Known<CephStore>> {
    Ok(Known { key: object(&stat), inode, attr: attr(&stat)? })
}

impl Shared {
    fn open_inode(
        self: &Arc<Self>,
        cred: &Cred,
        object: Object,
        inode: Inode,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        let flags = flags(mode)?;
        check_regular(attr(&self.stat(object, &inode)?)?.kind)?;
        if mode.write && object.snap != NO_SNAPSHOT {
            return Err(StoreError::ReadOnly);
        }
        let handle = inode.open(flags, &perm(&inode, cred)?)?;
        Ok(Arc::new(CephFile::new(self, object, mode, inode, handle)))
    }
}

impl InodeFs for CephStore {
    type Key = Object;
    type Inode = Inode;
    type Handle = Handle;
    type Listing = DirStream;

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
        let attr = attr(&self.shared.stat(object, &inode)?)?;
        Ok((object, Ok(inode), attr))
    }

    fn stat(&self, inode: &Inode) -> Result<Attr> {
        attr(&inode.stat(&perm(inode, &server())?)?)
    }

    fn find_name(&self, cred: &Cred, dir: &Inode, name: &[u8]) -> Result<Known<Self>> {
        known(dir.lookup(name, &perm(dir, cred)?)?)
    }

    fn above(&self, cred: &Cred, dir: &Inode) -> Result<Object> {
        let (_, stat) = dir.lookup(b"..", &perm(dir, cred)?)?;
        Ok(object(&stat))
    }

    /// The metadata server checks the rights.
    fn check_change(&self, _cred: &Cred, _known: &Attr, wish: &mut SetAttr) -> Result<()> {
        change(wish).map(drop)
    }

    fn resize(&self, cred: &Cred, inode: &Inode, _known: &Attr, size: u64) -> Result<()> {
        let size = Some(size);
        self.set_attributes(cred, inode, &SetAttr { size, ..SetAttr::default() })
    }

    fn set_attributes(&self, cred: &Cred, inode: &Inode, wish: &SetAttr) -> Result<()> {
        let (stat, mask) = change(wish)?;
        if mask != 0 { inode.set_stat(stat, mask, &perm(inode, cred)?) } else { Ok(()) }
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
        found: Known<Self>,
        truncate: bool,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        let (object, shared) = (found.key, &self.shared);
        let inode = shared.mounts[shared.home(object)].inode(object.ino, object.snap)?;
        if truncate {
            self.resize(cred, &inode, &found.attr, 0)?;
        }
        shared.open_inode(cred, object, inode, mode)
    }

    fn make_file(
        &self,
        cred: &Cred,
        dir: &Inode,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Known<Self>, Handle)> {
        let (inode, handle, stat) = dir.create(name, mode, flags, &perm(dir, cred)?)?;
        Ok((known((inode, stat))?, handle))
    }

    fn sync_made(&self, dir: &Inode, inode: &Inode, _handle: &Handle) -> Result<()> {
        inode.sync()?;
        dir.sync()
    }

    fn open_made(
        &self,
        _cred: &Cred,
        made: Known<Self>,
        mode: OpenMode,
        handle: Handle,
    ) -> Arc<dyn OpenFile> {
        Arc::new(CephFile::new(&self.shared, made.key, mode, made.inode, handle))
    }

    fn make_directory(
        &self,
        cred: &Cred,
        dir: &Inode,
        name: &[u8],
        mode: u32,
    ) -> Result<Known<Self>> {
        known(dir.mkdir(name, mode, &perm(dir, cred)?)?)
    }

    fn make_symlink(
        &self,
        cred: &Cred,
        dir: &Inode,
        name: &[u8],
        text: &[u8],
    ) -> Result<Known<Self>> {
        known(dir.symlink(name, text, &perm(dir, cred)?)?)
    }

    fn make_special(
        &self,
        cred: &Cred,
        dir: &Inode,
        name: &[u8],
        mode: u32,
        device: u64,
    ) -> Result<Known<Self>> {
        known(dir.mknod(name, mode, device, &perm(dir, cred)?)?)
    }

    fn link_name(&self, cred: &Cred, id: &FileId, dir: &Inode, name: &[u8]) -> Result<()> {
        let (_, target) = self.shared.inode_on(dir.mount(), id)?;
        let perm = perm(dir, cred)?;
        let stat = target.stat(&perm)?;
        if attr(&stat)?.kind == Kind::Directory {
            return Err(StoreError::IsDirectory);
        }
        if stat.nlink == 0 {
            return Err(StoreError::Stale);
        }
        dir.link(&target, name, &perm)
    }

    fn remove_name(&self, cred: &Cred, dir: &Inode, name: &[u8], kind: Option<Kind>) -> Result<()> {
        let perm = perm(dir, cred)?;
        let kind = match kind {
            Some(kind) => kind,
            None => attr(&dir.lookup(name, &perm)?.1)?.kind,
        };
        match kind {
            Kind::Directory => dir.rmdir(name, &perm),
            _ => dir.unlink(name, &perm),
        }
    }

    fn rename_name(
        &self,
        cred: &Cred,
        from_dir: &Inode,
        from: &[u8],
        to_dir: &Inode,
        to: &[u8],
    ) -> Result<()> {
        from_dir.rename(from, to_dir, to, &perm(from_dir, cred)?)
    }

    fn read_text(&self, cred: &Cred, inode: &Inode, buffer: &mut [u8]) -> Result<usize> {
        inode.readlink(buffer, &perm(inode, cred)?)
    }

    fn open_listing(&self, cred: &Cred, dir: &Inode, from: Option<i64>) -> Result<DirStream> {
        let mut stream = dir.open_dir(&perm(dir, cred)?)?;
        match from {
            Some(from) if from < 0 => return Err(StoreError::BadCookie),
            Some(from) => stream.seek(from),
            None => {}
        }
        Ok(stream)
    }

    fn next_entry(
        &self,
        stream: &mut DirStream,
        with_object: bool,
    ) -> Result<Option<Listed<Object>>> {
        let Some(entry) = stream.next(with_object)? else { return Ok(None) };
        let known = entry.stat.as_ref().and_then(|stat| Some((object(stat), attr(stat).ok()?)));
        let (name, file_id, next) = (entry.name, entry.ino, entry.next);
        Ok(Some(Listed { name, file_id, next, object: known }))
    }

    fn read_xattr(
        &self,
        cred: &Cred,
        inode: &Inode,
        name: &[u8],
        buffer: &mut [u8],
    ) -> Result<usize> {
        inode.xattr(name, buffer, &perm(inode, cred)?)
    }

    fn write_xattr(
        &self,
        cred: &Cred,
        inode: &Inode,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        inode.set_xattr(name, value, flags, &perm(inode, cred)?)
    }

    fn xattr_names(&self, cred: &Cred, inode: &Inode, buffer: &mut [u8]) -> Result<usize> {
        inode.list_xattrs(buffer, &perm(inode, cred)?)
    }

    fn drop_xattr(&self, cred: &Cred, inode: &Inode, name: &[u8]) -> Result<()> {
        inode.remove_xattr(name, &perm(inode, cred)?)
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

    fn statvfs(&self, inode: &Result<Inode>) -> Result<libc::statvfs> {
        inode.as_ref().map_err(|error| *error)?.statfs()
    }
}
