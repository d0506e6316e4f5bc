//! The store's calls, in terms of names, files and inodes.

use crate::attr::{attr, change};
use crate::limits::{LINKS_MAX, SYMLINK_BYTES_MAX, UNIT_BYTES_USUAL};
use crate::sys::{Inode, NO_SNAPSHOT, Perm};
use crate::{CephStore, Shared, object};
use dafs_store::backend::{
    FILE_BYTES_MAX, MODE_BITS, XATTR_LIST_BYTES_MAX, XATTR_PREFIX, check_name, check_xattr_name,
    mode_of_acl,
};
use dafs_store::{
    AccessMask, Acl, AclSupport, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry,
    FileId, FsId, FsStat, Kind, LayoutForm, Layouts, LocalChanges, Made, NAME_BYTES_MAX, NewObject,
    OpenFile, OpenMode, Result, SetAttr, SetXattr, Store, StoreError, Waits, XATTR_BYTES_MAX,
};
use std::sync::Arc;

const READ: u32 = 4;
const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

/// True if a mode gives a caller these rights.
pub(crate) fn allows(cred: &Cred, attr: &Attr, want: u32) -> bool {
    if cred.uid == 0 {
        // If no class may execute a file, root may not either.
        return want & EXECUTE == 0 || attr.kind == Kind::Directory || attr.mode & 0o111 != 0;
    }
    let in_group = cred.gid == attr.gid || cred.groups.contains(&attr.gid);
    let shift = match () {
        () if cred.uid == attr.uid => 6,
        () if in_group => 3,
        () => 0,
    };
    (attr.mode >> shift) & want == want
}

impl Shared {
    /// Returns an object that can have extended attributes, and its attributes.
    ///
    /// # Errors
    /// `none` for an object that cannot have any.
    fn with_xattrs(
        &self,
        cred: &Cred,
        id: &FileId,
        want: u32,
        none: StoreError,
    ) -> Result<(Inode, Attr)> {
        let (object, inode) = self.inode(id)?;
        let attr = attr(&self.stat(object, &inode)?)?;
        if !matches!(attr.kind, Kind::Regular | Kind::Directory) {
            return Err(none);
        }
        if !allows(cred, &attr, want) {
            return Err(StoreError::Access);
        }
        Ok((inode, attr))
    }
}

fn xattr_name(name: &[u8]) -> Result<Vec<u8>> {
    check_xattr_name(name)?;
    Ok([XATTR_PREFIX, name].concat())
}

impl Store for CephStore {
    fn fs_id(&self) -> FsId {
        self.shared.ids.fs_id()
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        self.shared.spread.as_ref().map(|_| self as &dyn Layouts)
    }

    fn root(&self) -> FileId {
        self.shared.ids.seal(self.shared.root)
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        let (object, inode) = self.shared.inode(id)?;
        attr(&self.shared.stat(object, &inode)?)
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        wish: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        let (object, inode) = self.shared.inode(id)?;
        let known = attr(&self.shared.stat(object, &inode)?)?;
        let mut rest = *wish;
        if let Some(size) = rest.size {
            match known.kind {
                Kind::Regular => {}
                Kind::Directory => return Err(StoreError::IsDirectory),
                _ => return Err(StoreError::Invalid),
            }
            if size > FILE_BYTES_MAX {
                return Err(StoreError::FileTooBig);
            }
            if let Some(file) = file {
                if file.id() != *id {
                    return Err(StoreError::Invalid);
                }
                file.set_size(size)?;
                rest.size = None;
            }
        }
        if known.kind == Kind::Symlink {
            rest.mode = None;
        }
        let perm = Perm::new(inode.mount(), cred)?;
        let (stat, mask) = change(&SetAttr { size: None, ..rest })?;
        // A change of the size also sets the times, so the wanted times are set afterwards.
        if let Some(size) = rest.size {
            let (stat, mask) = change(&SetAttr { size: Some(size), ..SetAttr::default() })?;
            inode.set_stat(stat, mask, &perm)?;
        }
        if mask != 0 {
            inode.set_stat(stat, mask, &perm)?;
        }
        attr(&self.shared.stat(object, &inode)?)
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        let attr = self.getattr(id)?;
        let directory = attr.kind == Kind::Directory;
        let rights = [
            (AccessMask::READ, Some(READ)),
            (AccessMask::LOOKUP, directory.then_some(EXECUTE)),
            (AccessMask::MODIFY, Some(WRITE)),
            (AccessMask::EXTEND, Some(WRITE)),
            (AccessMask::DELETE, directory.then_some(WRITE)),
            (AccessMask::EXECUTE, (!directory).then_some(EXECUTE)),
        ];
        let granted = rights.into_iter().filter(|&(right, want)| {
            wanted.contains(right) && want.is_some_and(|want| allows(cred, &attr, want))
        });
        Ok(granted.fold(AccessMask::empty(), |all, (right, _)| all | right))
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        check_name(name)?;
        let (dir, _) = self.shared.directory(dir)?;
        let (_, stat) = dir.lookup(name, &Perm::new(dir.mount(), cred)?)?;
        Ok((self.shared.ids.seal(object(&stat)), attr(&stat)?))
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        let (inode, _) = self.shared.directory(dir)?;
        if self.shared.ids.open(dir)? == self.shared.root {
            return Err(StoreError::NotFound);
        }
        let (_, stat) = inode.lookup(b"..", &Perm::new(inode.mount(), cred)?)?;
        Ok(self.shared.ids.seal(object(&stat)))
    }

    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        Ok(self.shared.open_file(cred, id, mode)?)
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
        self.shared.create_file(cred, dir, name, how, attr, mode)
    }

    fn make(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        self.shared.make_object(cred, dir, name, object, attr)
    }

    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        check_name(name)?;
        let (dir, before) = self.shared.directory(dir)?;
        let (_, target) = self.shared.inode_on(dir.mount(), id)?;
        let perm = Perm::new(dir.mount(), cred)?;
        let stat = target.stat(&perm)?;
        if attr(&stat)?.kind == Kind::Directory {
            return Err(StoreError::IsDirectory);
        }
        if stat.nlink == 0 {
            return Err(StoreError::Stale);
        }
        dir.link(&target, name, &perm)?;
        self.shared.changed(&dir, &before)
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        check_name(name)?;
        let (dir, before) = self.shared.directory(dir)?;
        let perm = Perm::new(dir.mount(), cred)?;
        let (_, stat) = dir.lookup(name, &perm)?;
        match attr(&stat)?.kind {
            Kind::Directory => dir.rmdir(name, &perm)?,
            _ => dir.unlink(name, &perm)?,
        }
        self.shared.changed(&dir, &before)
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
        let (source, source_before) = self.shared.directory(from_dir)?;
        self.shared.directory(to_dir)?;
        let (to_object, target) = self.shared.inode_on(source.mount(), to_dir)?;
        let target_before = attr(&self.shared.stat(to_object, &target)?)?;
        let perm = Perm::new(source.mount(), cred)?;
        let (_, moved) = source.lookup(from, &perm)?;
        match target.lookup(to, &perm) {
            // A rename to another name of the same object has no effect. libcephfs would drop the
            // name from its cache.
            Ok((_, there)) if object(&there) == object(&moved) => {}
            Ok((_, there)) => {
                let is_directory = |stat| attr(stat).map(|attr| attr.kind == Kind::Directory);
                match (is_directory(&moved)?, is_directory(&there)?) {
                    (false, true) => return Err(StoreError::IsDirectory),
                    (true, false) => return Err(StoreError::NotDirectory),
                    _ => source.rename(from, &target, to, &perm)?,
                }
            }
            Err(_) => source.rename(from, &target, to, &perm)?,
        }
        let left = self.shared.changed(&source, &source_before)?;
        Ok((left, self.shared.changed(&target, &target_before)?))
    }

    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.shared.list(cred, dir, cookie, attr, sink)
    }

    fn readlink(&self, cred: &Cred, id: &FileId) -> Result<Vec<u8>> {
        let (object, inode) = self.shared.inode(id)?;
        if attr(&self.shared.stat(object, &inode)?)?.kind != Kind::Symlink {
            return Err(StoreError::Invalid);
        }
        let mut text = vec![0; SYMLINK_BYTES_MAX + 1];
        let len = inode.readlink(&mut text, &Perm::new(inode.mount(), cred)?)?;
        text.truncate(len);
        Ok(text)
    }

    fn attr_dir(&self, _cred: &Cred, id: &FileId) -> Result<FileId> {
        self.getattr(id)?;
        Err(StoreError::NotSupported)
    }

    fn capabilities(&self) -> Capabilities {
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

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        let name = xattr_name(name)?;
        let (inode, _) = self.shared.with_xattrs(cred, id, READ, StoreError::NoXattr)?;
        let mut value = vec![0; XATTR_BYTES_MAX];
        let len = inode.xattr(&name, &mut value, &Perm::new(inode.mount(), cred)?)?;
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
        let name = xattr_name(name)?;
        let (inode, before) = self.shared.with_xattrs(cred, id, WRITE, StoreError::NotSupported)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(StoreError::XattrTooBig);
        }
        let flags = match how {
            SetXattr::Either => 0,
            SetXattr::Create => libc::XATTR_CREATE,
            SetXattr::Replace => libc::XATTR_REPLACE,
        };
        inode.set_xattr(&name, value, flags, &Perm::new(inode.mount(), cred)?)?;
        self.shared.changed(&inode, &before)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        let (inode, _) = match self.shared.with_xattrs(cred, id, READ, StoreError::NoXattr) {
            Err(StoreError::NoXattr) => return Ok(Vec::new()),
            found => found?,
        };
        let mut list = vec![0; XATTR_LIST_BYTES_MAX];
        let len = inode.list_xattrs(&mut list, &Perm::new(inode.mount(), cred)?)?;
        let names = list[..len].split(|&byte| byte == 0);
        let mut names: Vec<_> =
            names.filter_map(|name| name.strip_prefix(XATTR_PREFIX)).map(<[u8]>::to_vec).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        let name = xattr_name(name)?;
        let (inode, before) = self.shared.with_xattrs(cred, id, WRITE, StoreError::NoXattr)?;
        inode.remove_xattr(&name, &Perm::new(inode.mount(), cred)?)?;
        self.shared.changed(&inode, &before)
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
        for id in ids {
            let object = self.shared.ids.open(id)?;
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

    fn fs_stat(&self, _cred: &Cred, id: &FileId) -> Result<FsStat> {
        let (object, inode) = self.shared.inode(id)?;
        self.shared.stat(object, &inode)?;
        let stat = inode.statfs()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(FsStat {
            space_total: bytes(stat.f_blocks),
            space_free: bytes(stat.f_bfree),
            space_available: bytes(stat.f_bavail),
            files_total: stat.f_files,
            files_free: stat.f_ffree,
            files_available: stat.f_favail,
            name_bytes_max: NAME_BYTES_MAX as u32,
            links_max: LINKS_MAX,
            file_bytes_max: FILE_BYTES_MAX,
            read_only: false,
        })
    }
}
