//! The store's calls, in terms of names, files and objects.

use crate::attr::{attr, change};
use crate::limits::{
    LINKS_MAX, MOVED_BIT, PARENT_TRIES_MAX, PATH_BYTES_MAX, PRIVILEGE_BITS, SYMLINK_BYTES_MAX,
    UNIT_BYTES,
};
use crate::sys::Object;
use crate::{GlusterStore, Shared, server};
use dafs_store::backend::{
    FILE_BYTES_MAX, MODE_BITS, XATTR_LIST_BYTES_MAX, XATTR_PREFIX, check_name, check_xattr_name,
    mode_of_acl,
};
use dafs_store::{
    AccessMask, Acl, AclSupport, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry,
    FileId, FsId, FsStat, Kind, LayoutForm, Layouts, LocalChanges, Made, NAME_BYTES_MAX, NewObject,
    OpenFile, OpenMode, Result, SetAttr, SetTime, SetXattr, Store, StoreError, Waits,
    XATTR_BYTES_MAX,
};
use std::sync::Arc;

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

/// The attribute by which a brick returns the path of a directory from the root of the volume.
const PATH: &[u8] = b"glusterfs.ancestry.path";

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

/// Rejects a change of attributes before any part of it is made. The bricks check each part again.
fn check_change(cred: &Cred, known: &Attr, wish: &SetAttr) -> Result<()> {
    if cred.uid == 0 || cred.uid == known.uid {
        return Ok(());
    }
    let times = [wish.atime, wish.mtime];
    let owners = wish.mode.is_some() || wish.uid.is_some() || wish.gid.is_some();
    if owners || times.iter().any(|time| matches!(time, Some(SetTime::To(_)))) {
        return Err(StoreError::NotOwner);
    }
    let now = times.iter().any(Option::is_some);
    if now && !allows(cred, known, WRITE) { Err(StoreError::Access) } else { Ok(()) }
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
    ) -> Result<(Object, Attr)> {
        let (_, object, attr) = self.object(id)?;
        if !matches!(attr.kind, Kind::Regular | Kind::Directory) {
            return Err(none);
        }
        if !allows(cred, &attr, want) {
            return Err(StoreError::Access);
        }
        Ok((object?, attr))
    }

    /// Returns the change of an object after a change of an extended attribute. GlusterFS does not
    /// update the ctime then, so the atime is set to its present value, which does.
    fn changed_xattr(&self, object: &Object, before: &Attr) -> Result<DirChange> {
        let atime = Some(SetTime::To(before.atime));
        let (stat, mask) = change(&SetAttr { atime, ..SetAttr::default() })?;
        object.set_stat(stat, mask, &server())?;
        self.changed(object, before)
    }

    /// Changes the size as a caller, which clears setuid and setgid.
    fn set_size(&self, cred: &Cred, object: &Object, known: &Attr, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(StoreError::FileTooBig);
        }
        object.truncate(size, cred)?;
        if cred.uid != 0 && known.mode & PRIVILEGE_BITS != 0 {
            crate::layouts::end_privilege(object, known.mode)?;
        }
        Ok(())
    }

    /// Returns the parent of a directory. The library only knows the parents of objects that it has
    /// looked up by name, so a brick must return the path.
    fn above(&self, cred: &Cred, dir: &Object) -> Result<FileId> {
        let gfid = dir.gfid()?;
        for _ in 0..PARENT_TRIES_MAX {
            let mut path = vec![0; PATH_BYTES_MAX];
            let len = dir.xattr(PATH, &mut path, &server())?;
            path.truncate(len);
            let names: Vec<_> = path
                .split(|&byte| byte == b'/' || byte == 0)
                .filter(|name| !name.is_empty())
                .collect();
            let Some((own, above)) = names.split_last() else {
                return Err(StoreError::NotFound);
            };
            let mut at = self.mount.top()?;
            let mut found = Ok(());
            for name in above {
                match at.lookup(name, &server()) {
                    Ok((next, _)) => at = next,
                    Err(error) => found = Err(error),
                }
            }
            // In a race, another client may have moved it.
            let is_above = match at.lookup(own, &server()) {
                Ok((same, _)) => found.is_ok() && same.gfid()? == gfid,
                Err(_) => false,
            };
            if is_above {
                let known = attr(&at.stat()?)?;
                return match allows(cred, &known, EXECUTE) {
                    true => Ok(self.ids.seal(&at.gfid()?)),
                    false => Err(StoreError::Access),
                };
            }
        }
        Err(StoreError::Busy)
    }
}

fn xattr_name(name: &[u8]) -> Result<Vec<u8>> {
    check_xattr_name(name)?;
    Ok([XATTR_PREFIX, name].concat())
}

impl Store for GlusterStore {
    fn fs_id(&self) -> FsId {
        self.shared.ids.fs_id()
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        self.shared.spread.as_ref().map(|_| self as &dyn Layouts)
    }

    fn root(&self) -> FileId {
        self.shared.ids.seal(&self.shared.root)
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        self.shared.object(id).map(|(_, _, attr)| attr)
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        wish: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        let (gfid, object, known) = self.shared.object(id)?;
        let mut rest = *wish;
        if rest.size.is_some() {
            match known.kind {
                Kind::Regular => {}
                Kind::Directory => return Err(StoreError::IsDirectory),
                _ => return Err(StoreError::Invalid),
            }
        }
        if known.kind == Kind::Symlink {
            rest.mode = None;
        }
        if known.kind == Kind::Regular {
            rest.mode = rest.mode.map(|mode| mode & !MOVED_BIT);
        }
        check_change(cred, &known, &rest)?;
        // Bricks refuse the file's present group, too, to an owner who is not a member. A change of
        // the owner to the present one has the same effect.
        let foreign = cred.uid != 0 && cred.gid != known.gid && !cred.groups.contains(&known.gid);
        if foreign && rest.gid == Some(known.gid) {
            rest.gid = None;
            rest.uid = rest.uid.or(Some(known.uid));
        }
        change(&rest)?;
        let object = match rest.size.take() {
            None => object?,
            Some(size) => match file {
                None => {
                    let object = object?;
                    self.shared.set_size(cred, &object, &known, size)?;
                    object
                }
                Some(file) if file.id() != *id => return Err(StoreError::Invalid),
                Some(file) => {
                    file.set_size(size)?;
                    let Ok(object) = object else { return file.attr() };
                    object
                }
            },
        };
        self.shared.set_attributes(cred, &object, &rest)?;
        if rest.mode.is_some_and(|mode| mode & PRIVILEGE_BITS != 0)
            && let Some(opens) = self.shared.opens().get(&gfid)
        {
            opens.note_privileged();
        }
        attr(&object.stat()?)
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        let (_, object, attr) = self.shared.object(id)?;
        let directory = attr.kind == Kind::Directory;
        // The bricks evaluate access control lists. One question is enough for a caller with all
        // rights.
        let may = |want: u32| match &object {
            Ok(object) if cred.uid != 0 => object.allows(want as i32, cred),
            _ => Ok(allows(cred, &attr, want)),
        };
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
        let mut held = 0;
        if all != 0 && may(all)? {
            held = all;
        } else {
            for want in [READ, WRITE, EXECUTE] {
                if all & want != 0 && all != want && may(want)? {
                    held |= want;
                }
            }
        }
        let granted = rights.iter().filter(|(_, want)| held & want != 0);
        Ok(granted.fold(AccessMask::empty(), |all, &(right, _)| all | right))
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        check_name(name)?;
        let (dir, _) = self.shared.directory(dir)?;
        let (object, stat) = dir.lookup(name, cred)?;
        Ok((self.shared.ids.seal(&object.gfid()?), attr(&stat)?))
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        let (object, _) = self.shared.directory(dir)?;
        if self.shared.ids.open(dir)? == self.shared.root {
            return Err(StoreError::NotFound);
        }
        self.shared.above(cred, &object)
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
        let (_, target, attr) = self.shared.object(id)?;
        if attr.kind == Kind::Directory {
            return Err(StoreError::IsDirectory);
        }
        let target = target?;
        match dir.lookup(name, cred) {
            Ok(_) => return Err(StoreError::Exists),
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(error),
        }
        dir.link(&target, name, cred)?;
        self.shared.changed(&dir, &before)
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        check_name(name)?;
        let (dir, before) = self.shared.directory(dir)?;
        dir.remove(name, cred)?;
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
        let (target, target_before) = self.shared.directory(to_dir)?;
        let (moved, moved_stat) = source.lookup(from, cred)?;
        let is_same = match target.lookup(to, cred) {
            // A rename between two names of one object has no effect.
            Ok((there, _)) if there.gfid()? == moved.gfid()? => true,
            Ok((_, there)) => {
                let is_directory = |stat| attr(stat).map(|attr| attr.kind == Kind::Directory);
                match (is_directory(&moved_stat)?, is_directory(&there)?) {
                    (false, true) => return Err(StoreError::IsDirectory),
                    (true, false) => return Err(StoreError::NotDirectory),
                    _ => false,
                }
            }
            Err(_) => false,
        };
        if !is_same {
            source.rename(from, &target, to, cred)?;
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
        let (_, object, attr) = self.shared.object(id)?;
        if attr.kind != Kind::Symlink {
            return Err(StoreError::Invalid);
        }
        let mut text = vec![0; SYMLINK_BYTES_MAX + 1];
        let len = object?.readlink(&mut text, cred)?;
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
            allocate: true,
            deallocate: true,
            holes: true,
            local_changes: LocalChanges::Unseen,
            waits: Waits::Always,
            layouts: self.shared.spread.as_ref().map(|_| LayoutForm::Stripes),
            layout_unit_bytes: self.shared.spread.as_ref().map_or(0, |_| UNIT_BYTES.get()),
            ..Capabilities::default()
        }
    }

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        let name = xattr_name(name)?;
        let (object, _) = self.shared.with_xattrs(cred, id, READ, StoreError::NoXattr)?;
        let mut value = vec![0; XATTR_BYTES_MAX];
        let len = object.xattr(&name, &mut value, cred)?;
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
        let (object, before) =
            self.shared.with_xattrs(cred, id, WRITE, StoreError::NotSupported)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(StoreError::XattrTooBig);
        }
        let flags = match how {
            SetXattr::Either => 0,
            SetXattr::Create => libc::XATTR_CREATE,
            SetXattr::Replace => libc::XATTR_REPLACE,
        };
        object.set_xattr(&name, value, flags, cred)?;
        self.shared.changed_xattr(&object, &before)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        let (object, _) = match self.shared.with_xattrs(cred, id, READ, StoreError::NoXattr) {
            Err(StoreError::NoXattr) => return Ok(Vec::new()),
            found => found?,
        };
        let mut list = vec![0; XATTR_LIST_BYTES_MAX];
        let len = object.list_xattrs(&mut list, cred)?;
        let names = list[..len].split(|&byte| byte == 0);
        let mut names: Vec<_> =
            names.filter_map(|name| name.strip_prefix(XATTR_PREFIX)).map(<[u8]>::to_vec).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        let name = xattr_name(name)?;
        let (object, before) = self.shared.with_xattrs(cred, id, WRITE, StoreError::NoXattr)?;
        object.remove_xattr(&name, cred)?;
        self.shared.changed_xattr(&object, &before)
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

    /// Makes regular files stable. GlusterFS has no call that makes the names in a directory
    /// stable. They become stable when the file systems of the bricks write them, or with the sync
    /// of a file that was made later.
    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        for id in ids {
            let (_, object, attr) = match self.shared.object(id) {
                Err(StoreError::Stale) => continue,
                found => found?,
            };
            if attr.kind == Kind::Regular {
                object?.open(libc::O_RDONLY, &server())?.sync()?;
            }
        }
        Ok(())
    }

    fn fs_stat(&self, _cred: &Cred, id: &FileId) -> Result<FsStat> {
        let (_, object, _) = self.shared.object(id)?;
        let stat = match object {
            Ok(object) => object.statfs()?,
            Err(_) => self.shared.mount.top()?.statfs()?,
        };
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
