//! The store's calls, in terms of names and inodes.

use super::names::{Directory, changed};
use super::{EXECUTE, Inode, InodeFs, Key, READ, WRITE, allows};
use crate::backend::{
    FILE_BYTES_MAX, MODE_BITS, XATTR_LIST_BYTES_MAX, check_name, kernel_xattr_name, mode_of_acl,
    user_xattr_names,
};
use crate::limits::{INODE_LINKS_MAX, SYMLINK_BYTES_MAX};
use crate::{
    AccessMask, Acl, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry, FileId,
    FsId, FsStat, Kind, Layouts, Made, NAME_BYTES_MAX, NewObject, OpenFile, OpenMode, Result,
    SetAttr, SetXattr, Store, StoreError, XATTR_BYTES_MAX,
};
use std::sync::Arc;

/// Returns an object that can have extended attributes, and its attributes.
///
/// # Errors
/// `none` for an object that cannot have any.
fn with_xattrs<F: InodeFs>(
    fs: &F,
    cred: &Cred,
    id: &FileId,
    want: u32,
    none: StoreError,
) -> Result<(F::Inode, Attr)> {
    let (_, inode, attr) = fs.find(id)?;
    if !matches!(attr.kind, Kind::Regular | Kind::Directory) {
        return Err(none);
    }
    if !allows(cred, &attr, want) {
        return Err(StoreError::Access);
    }
    Ok((inode?, attr))
}

impl<F: InodeFs> Store for F {
    fn fs_id(&self) -> FsId {
        self.ids().fs_id()
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        self.placements()
    }

    fn root(&self) -> FileId {
        self.ids().seal(self.root_key())
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        self.find(id).map(|(_, _, attr)| attr)
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        wish: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        let (_, inode, known) = self.find(id)?;
        let mut rest = *wish;
        let size = rest.size.take();
        if let Some(size) = size {
            match known.kind {
                Kind::Regular => {}
                Kind::Directory => return Err(StoreError::IsDirectory),
                _ => return Err(StoreError::Invalid),
            }
            if size > FILE_BYTES_MAX {
                return Err(StoreError::FileTooBig);
            }
        }
        match known.kind {
            Kind::Symlink => rest.mode = None,
            Kind::Regular => rest.mode = rest.mode.map(|mode| mode & F::FILE_MODE_BITS),
            _ => {}
        }
        self.check_change(cred, &known, &mut rest)?;
        // A change of the size also sets the times, so the wanted times are set afterwards.
        let inode = match (size, file) {
            (None, _) => inode?,
            (Some(size), None) => {
                let inode = inode?;
                self.resize(cred, &inode, &known, size)?;
                inode
            }
            (Some(_), Some(file)) if file.id() != *id => return Err(StoreError::Invalid),
            (Some(size), Some(file)) => {
                file.set_size(size)?;
                let Ok(inode) = inode else { return file.attr() };
                inode
            }
        };
        self.set_attributes(cred, &inode, &rest)?;
        inode.stat()
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        let (_, inode, attr) = self.find(id)?;
        let directory = attr.kind == Kind::Directory;
        let rights = [
            (AccessMask::READ, Some(READ)),
            (AccessMask::LOOKUP, directory.then_some(EXECUTE)),
            (AccessMask::MODIFY, Some(WRITE)),
            (AccessMask::EXTEND, Some(WRITE)),
            (AccessMask::DELETE, directory.then_some(WRITE)),
            (AccessMask::EXECUTE, (!directory).then_some(EXECUTE)),
        ];
        let rights = rights.into_iter().filter(|&(right, _)| wanted.contains(right));
        let rights: Vec<_> =
            rights.filter_map(|(right, want)| want.map(|want| (right, want))).collect();
        let all = rights.iter().fold(0, |all, (_, want)| all | want);
        let held = self.rights(cred, &inode, &attr, all)?;
        let granted = rights.iter().filter(|(_, want)| held & want != 0);
        Ok(granted.fold(AccessMask::empty(), |all, &(right, _)| all | right))
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        check_name(name)?;
        let dir = Directory::find(self, dir)?;
        let found = dir.inode.lookup(name, cred)?;
        Ok((self.ids().seal(found.key), found.attr))
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        let found = Directory::find(self, dir)?;
        if self.ids().open::<Key<F>>(dir)? == self.root_key() {
            return Err(StoreError::NotFound);
        }
        Ok(self.ids().seal(self.above(cred, &found.inode)?))
    }

    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        self.open_file(cred, id, mode)
    }

    fn create(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        how: CreateHow,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        check_name(name)?;
        Directory::find(self, dir)?.create(cred, name, how, attr, mode)
    }

    fn make(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        check_name(name)?;
        Directory::find(self, dir)?.make(cred, name, object, attr)
    }

    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        check_name(name)?;
        let dir = Directory::find(self, dir)?;
        self.link_name(cred, id, &dir.inode, name)?;
        dir.changed()
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        check_name(name)?;
        let dir = Directory::find(self, dir)?;
        self.remove_name(cred, &dir.inode, name, None)?;
        dir.changed()
    }

    fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileId,
        from: &[u8],
        to_dir: &FileId,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        check_name(from)?;
        check_name(to)?;
        let source = Directory::find(self, from_dir)?;
        let target = Directory::find(self, to_dir)?;
        let moved = source.inode.lookup(from, cred)?;
        let is_same = match target.inode.lookup(to, cred) {
            // A rename between two names of one object has no effect.
            Ok(there) if there.key == moved.key => true,
            Ok(there) => {
                let is_directory = |attr: &Attr| attr.kind == Kind::Directory;
                match (is_directory(&moved.attr), is_directory(&there.attr)) {
                    (false, true) => return Err(StoreError::IsDirectory),
                    (true, false) => return Err(StoreError::NotDirectory),
                    _ => false,
                }
            }
            Err(_) => false,
        };
        if !is_same {
            source.inode.rename(from, &target.inode, to, cred)?;
        }
        Ok((source.changed()?, target.changed()?))
    }

    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        Directory::find(self, dir)?.list(cred, cookie, attr, sink)
    }

    fn readlink(&self, cred: &Cred, id: &FileId) -> Result<Vec<u8>> {
        let (_, inode, attr) = self.find(id)?;
        if attr.kind != Kind::Symlink {
            return Err(StoreError::Invalid);
        }
        let mut text = vec![0; SYMLINK_BYTES_MAX + 1];
        let len = inode?.readlink(&mut text, cred)?;
        text.truncate(len);
        Ok(text)
    }

    fn attr_dir(&self, _cred: &Cred, id: &FileId) -> Result<FileId> {
        self.getattr(id)?;
        Err(StoreError::NotSupported)
    }

    fn capabilities(&self) -> Capabilities {
        self.features()
    }

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        let name = kernel_xattr_name(name)?;
        let (inode, _) = with_xattrs(self, cred, id, READ, StoreError::NoXattr)?;
        let mut value = vec![0; XATTR_BYTES_MAX];
        let len = inode.xattr(&name, &mut value, cred)?;
        value.truncate(len);
        Ok(value)
    }

    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        let name = kernel_xattr_name(name)?;
        let (inode, before) = with_xattrs(self, cred, id, WRITE, StoreError::NotSupported)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(StoreError::XattrTooBig);
        }
        let flags = match how {
            SetXattr::Either => 0,
            SetXattr::Create => libc::XATTR_CREATE,
            SetXattr::Replace => libc::XATTR_REPLACE,
        };
        inode.set_xattr(&name, value, flags, cred)?;
        self.note_xattr(&inode, &before)?;
        changed(&inode, &before)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        let (inode, _) = match with_xattrs(self, cred, id, READ, StoreError::NoXattr) {
            Err(StoreError::NoXattr) => return Ok(Vec::new()),
            found => found?,
        };
        let mut list = vec![0; XATTR_LIST_BYTES_MAX];
        let len = inode.list_xattrs(&mut list, cred)?;
        Ok(user_xattr_names(&list[..len]))
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        let name = kernel_xattr_name(name)?;
        let (inode, before) = with_xattrs(self, cred, id, WRITE, StoreError::NoXattr)?;
        inode.remove_xattr(&name, cred)?;
        self.note_xattr(&inode, &before)?;
        changed(&inode, &before)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        let attr = self.getattr(id)?;
        Ok(Acl::from_mode(attr.mode, attr.kind == Kind::Directory))
    }

    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        let attr = self.getattr(id)?;
        if attr.kind == Kind::Symlink {
            return Err(StoreError::NotSupported);
        }
        let bits = mode_of_acl(acl, attr.kind == Kind::Directory)?;
        let mode = attr.mode & MODE_BITS & !0o777 | bits;
        self.setattr(cred, id, &SetAttr { mode: Some(mode), ..SetAttr::default() }, None).map(drop)
    }

    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        self.sync_names(ids)
    }

    fn fs_stat(&self, _cred: &Cred, id: &FileId) -> Result<FsStat> {
        let (_, inode, _) = self.find(id)?;
        let stat = self.space(inode)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(FsStat {
            space_total: bytes(stat.f_blocks),
            space_free: bytes(stat.f_bfree),
            space_available: bytes(stat.f_bavail),
            files_total: stat.f_files,
            files_free: stat.f_ffree,
            files_available: stat.f_favail,
            name_bytes_max: NAME_BYTES_MAX as u32,
            links_max: INODE_LINKS_MAX,
            file_bytes_max: FILE_BYTES_MAX,
            read_only: false,
        })
    }
}
