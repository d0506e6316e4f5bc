//! Creating, opening and listing.

use crate::attr::{attr, change};
use crate::file::CephFile;
use crate::id::Object;
use crate::limits::CREATE_RETRIES_MAX;
use crate::store::{EXECUTE, allows};
use crate::sys::{Inode, NO_SNAPSHOT, Perm, StatX};
use crate::{Shared, object, server};
use dafs_store::backend::{
    DIRECTORY_MODE_DEFAULT, FILE_BYTES_MAX, FILE_MODE_DEFAULT, MODE_BITS, SPECIAL_MODE_DEFAULT,
    check_name, check_symlink_text,
};
use dafs_store::{
    Attr, CreateHow, Created, Cred, DirChange, DirEntry, FileId, Kind, Made, NewObject, OpenMode,
    Result, SetAttr, SetTime, StoreError, TimeSpec,
};
use std::sync::Arc;

/// Returns the seconds of atime and mtime in which an exclusive create keeps its verifier, as in
/// other file servers. They are below 2^31, so that no reader takes them for negative.
fn verifier_seconds(verifier: [u8; 8]) -> (i64, i64) {
    let bits = u64::from_be_bytes(verifier);
    let low = |bits: u64| i64::from((bits & 0x7fff_ffff) as u32);
    (low(bits >> 32), low(bits))
}

/// Returns the flags of open(2) for an open.
fn flags(mode: OpenMode) -> Result<i32> {
    match mode {
        OpenMode { read: true, write: true } => Ok(libc::O_RDWR),
        OpenMode { read: false, write: true } => Ok(libc::O_WRONLY),
        OpenMode { read: true, write: false } => Ok(libc::O_RDONLY),
        OpenMode { read: false, write: false } => Err(StoreError::Invalid),
    }
}

/// Returns the error of an open of an object that is not a regular file.
fn check_regular(kind: Kind) -> Result<()> {
    match kind {
        Kind::Regular => Ok(()),
        Kind::Directory => Err(StoreError::IsDirectory),
        Kind::Symlink => Err(StoreError::Symlink),
        _ => Err(StoreError::BadType),
    }
}

impl Shared {
    /// Returns an existing directory and its attributes.
    pub(crate) fn directory(&self, id: &FileId) -> Result<(Inode, Attr)> {
        let (object, inode) = self.inode(id)?;
        let attr = attr(&self.stat(object, &inode)?)?;
        if attr.kind != Kind::Directory {
            return Err(StoreError::NotDirectory);
        }
        Ok((inode, attr))
    }

    /// Returns the change of a directory since its attributes `before`.
    pub(crate) fn changed(&self, dir: &Inode, before: &Attr) -> Result<DirChange> {
        let after = attr(&dir.stat(&Perm::new(dir.mount(), &server())?)?)?;
        let (before, after_change) = (before.change, after.change);
        Ok(DirChange { before, after: after_change, atomic: false, attr: Some(after) })
    }

    pub(crate) fn open_file(
        self: &Arc<Self>,
        cred: &Cred,
        id: &FileId,
        mode: OpenMode,
    ) -> Result<Arc<CephFile>> {
        let object = self.ids.open(id)?;
        let inode = self.mounts[self.home_of_open(object)].inode(object.ino, object.snap)?;
        self.open_inode(cred, object, inode, mode)
    }

    fn open_inode(
        self: &Arc<Self>,
        cred: &Cred,
        object: Object,
        inode: Inode,
        mode: OpenMode,
    ) -> Result<Arc<CephFile>> {
        let flags = flags(mode)?;
        check_regular(attr(&self.stat(object, &inode)?)?.kind)?;
        if mode.write && object.snap != NO_SNAPSHOT {
            return Err(StoreError::ReadOnly);
        }
        let handle = inode.open(flags, &Perm::new(inode.mount(), cred)?)?;
        Ok(Arc::new(CephFile::new(self, object, mode, inode, handle)))
    }

    pub(crate) fn create_file(
        self: &Arc<Self>,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        check_name(name)?;
        let (dir, before) = self.directory(dir)?;
        let perm = Perm::new(dir.mount(), cred)?;
        for _ in 0..CREATE_RETRIES_MAX {
            match dir.lookup(name, &perm) {
                Ok((_, stat)) => {
                    match self.create_existing(cred, &dir, &before, &stat, how, wish, mode) {
                        Err(StoreError::NotFound | StoreError::Stale) => continue,
                        done => return done,
                    }
                }
                Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
            match self.create_new(&perm, &dir, &before, name, how, wish, mode) {
                Err(StoreError::Exists) => {}
                done => return done,
            }
        }
        Err(StoreError::Busy)
    }

    fn create_existing(
        self: &Arc<Self>,
        cred: &Cred,
        dir: &Inode,
        before: &Attr,
        stat: &StatX,
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        let known = attr(stat)?;
        match how {
            CreateHow::Guarded => return Err(StoreError::Exists),
            CreateHow::Exclusive(verifier) => {
                let kept = (known.atime.seconds, known.mtime.seconds);
                if known.kind != Kind::Regular || kept != verifier_seconds(verifier) {
                    return Err(StoreError::Exists);
                }
            }
            CreateHow::Unchecked => {}
        }
        check_regular(known.kind)?;
        let object = object(stat);
        let inode = self.mounts[self.home(object)].inode(object.ino, object.snap)?;
        let perm = Perm::new(inode.mount(), cred)?;
        if how == CreateHow::Unchecked && wish.size == Some(0) {
            let (stat, mask) = change(&SetAttr { size: Some(0), ..SetAttr::default() })?;
            inode.set_stat(stat, mask, &perm)?;
        }
        drop(perm);
        let file = self.open_inode(cred, object, inode, mode)?;
        let attr = dafs_store::OpenFile::attr(&*file)?;
        let dir = self.changed(dir, before)?;
        Ok(Created { id: self.ids.seal(object), attr, dir, file, created: false })
    }

    fn create_new(
        self: &Arc<Self>,
        perm: &Perm<'_>,
        dir: &Inode,
        before: &Attr,
        name: &[u8],
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        if wish.size.is_some_and(|size| size > FILE_BYTES_MAX) {
            return Err(StoreError::FileTooBig);
        }
        let bits = wish.mode.map_or(FILE_MODE_DEFAULT, |mode| mode & MODE_BITS);
        let (inode, handle, stat) = dir.create(name, bits, flags(mode)?, perm)?;
        let mut wish = *wish;
        if let CreateHow::Exclusive(verifier) = how {
            let (atime, mtime) = verifier_seconds(verifier);
            let at = |seconds| Some(SetTime::To(TimeSpec { seconds, nanoseconds: 0 }));
            (wish.atime, wish.mtime) = (at(atime), at(mtime));
        }
        let stat = self.finish_new(perm, &inode, stat, bits, &wish).inspect_err(|_| {
            // A file that cannot get all its attributes is removed again.
            let _ = dir.unlink(name, perm);
        })?;
        if matches!(how, CreateHow::Exclusive(_)) {
            inode.sync()?;
            dir.sync()?;
        }
        let object = object(&stat);
        let file = Arc::new(CephFile::new(self, object, mode, inode, handle));
        let dir = self.changed(dir, before)?;
        Ok(Created { id: self.ids.seal(object), attr: attr(&stat)?, dir, file, created: true })
    }

    /// Gives a new object the attributes that the call that made it could not set.
    fn finish_new(
        &self,
        perm: &Perm<'_>,
        inode: &Inode,
        stat: StatX,
        bits: u32,
        wish: &SetAttr,
    ) -> Result<StatX> {
        let mut rest = *wish;
        // The creator of a file with a size may write it with any mode.
        if let Some(size) = rest.size.take().filter(|&size| size > 0) {
            let server = Perm::new(inode.mount(), &server())?;
            let (stat, mask) = change(&SetAttr { size: Some(size), ..SetAttr::default() })?;
            inode.set_stat(stat, mask, &server)?;
        }
        let got = u32::from(stat.mode) & MODE_BITS;
        rest.uid = rest.uid.filter(|&uid| uid != stat.uid);
        rest.gid = rest.gid.filter(|&gid| gid != stat.gid);
        rest.mode = (got != bits || rest.uid.is_some() || rest.gid.is_some()).then_some(bits);
        let (stat, mask) = change(&rest)?;
        if mask != 0 {
            inode.set_stat(stat, mask, perm)?;
        }
        inode.stat(perm)
    }

    pub(crate) fn make_object(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object_wish: NewObject<'_>,
        wish: &SetAttr,
    ) -> Result<Made> {
        check_name(name)?;
        let (dir, before) = self.directory(dir)?;
        let perm = Perm::new(dir.mount(), cred)?;
        let bits = |default| wish.mode.map_or(default, |mode| mode & MODE_BITS);
        let special = bits(SPECIAL_MODE_DEFAULT);
        let node = |kind: u32, device| dir.mknod(name, kind | special, device, &perm);
        let (bits, made) = match object_wish {
            NewObject::Directory => {
                let bits = bits(DIRECTORY_MODE_DEFAULT);
                (bits, dir.mkdir(name, bits, &perm))
            }
            NewObject::Symlink(text) => {
                check_symlink_text(text)?;
                (0, dir.symlink(name, text, &perm))
            }
            NewObject::BlockDevice { major, minor } => {
                (special, node(libc::S_IFBLK, libc::makedev(major, minor)))
            }
            NewObject::CharDevice { major, minor } => {
                (special, node(libc::S_IFCHR, libc::makedev(major, minor)))
            }
            NewObject::Socket => (special, node(libc::S_IFSOCK, 0)),
            NewObject::Fifo => (special, node(libc::S_IFIFO, 0)),
        };
        let (inode, stat) = made?;
        // The client cannot choose the mode of a symlink, and its size is that of its text.
        let is_link = matches!(object_wish, NewObject::Symlink(_));
        let bits = if is_link { u32::from(stat.mode) & MODE_BITS } else { bits };
        let wish = SetAttr { size: None, ..*wish };
        let stat = self.finish_new(&perm, &inode, stat, bits, &wish).inspect_err(|_| {
            let _ = match object_wish {
                NewObject::Directory => dir.rmdir(name, &perm),
                _ => dir.unlink(name, &perm),
            };
        })?;
        let dir = self.changed(&dir, &before)?;
        Ok(Made { id: self.ids.seal(object(&stat)), attr: attr(&stat)?, dir })
    }

    pub(crate) fn list(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        with_attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let (dir, attr_of_dir) = self.directory(dir)?;
        // A caller without search permission does not get ids and attributes.
        let with_attr = with_attr && allows(cred, &attr_of_dir, EXECUTE);
        if cookie == 1 || cookie == 2 {
            return Err(StoreError::BadCookie);
        }
        let mut stream = dir.open_dir(&Perm::new(dir.mount(), cred)?)?;
        if cookie != 0 {
            stream.seek(i64::try_from(cookie).map_err(|_| StoreError::BadCookie)?);
        }
        while let Some(entry) = stream.next(with_attr)? {
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let known = entry.stat.as_ref().and_then(|stat| {
                let attr = attr(stat).ok()?;
                Some((self.ids.seal(object(stat)), attr))
            });
            let cookie = u64::try_from(entry.next).map_err(|_| StoreError::Io)?;
            debug_assert!(cookie > 2, "positions of entries come after those of the dots");
            let entry = DirEntry { name: &entry.name, cookie, file_id: entry.ino, object: known };
            if !sink(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
