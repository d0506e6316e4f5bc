//! Creating, opening and listing.

use crate::attr::{attr, change};
use crate::file::GlusterFile;
use crate::limits::{
    ACCESS_PAUSE, ACCESS_TRIES_MAX, CREATE_RETRIES_MAX, MOVED_BIT, PRIVILEGE_BITS,
};
use crate::store::{EXECUTE, READ, WRITE, allows};
use crate::sys::{Gfid, Object, Stat};
use crate::{Shared, server};
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

/// Returns the rights of the mode that an open needs.
fn rights(mode: OpenMode) -> u32 {
    let right = |wanted: bool, right| if wanted { right } else { 0 };
    right(mode.read, READ) | right(mode.write, WRITE)
}

/// Retries a request that a brick refuses although the mode allows it. In a race, a brick may just
/// have got to know the object, because another thread makes it or looks it up. Until the brick has
/// read its owner, it treats the object as owned by root and closed to all others.
fn patiently<T>(
    cred: &Cred,
    known: &Attr,
    want: u32,
    mut ask: impl FnMut() -> Result<T>,
) -> Result<T> {
    for _ in 1..ACCESS_TRIES_MAX {
        match ask() {
            Err(StoreError::Access) if allows(cred, known, want) => {
                std::thread::sleep(ACCESS_PAUSE);
            }
            done => return done,
        }
    }
    ask()
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

/// True if the file has setuid or setgid, which a write must clear.
fn is_privileged(attr: &Attr) -> bool {
    attr.mode & PRIVILEGE_BITS != 0
}

impl Shared {
    /// Returns an existing directory and its attributes.
    pub(crate) fn directory(&self, id: &FileId) -> Result<(Object, Attr)> {
        let (_, dir, attr) = self.object(id)?;
        if attr.kind != Kind::Directory {
            return Err(StoreError::NotDirectory);
        }
        Ok((dir?, attr))
    }

    /// Returns the change of a directory since its attributes `before`.
    pub(crate) fn changed(&self, dir: &Object, before: &Attr) -> Result<DirChange> {
        let after = attr(&dir.stat()?)?;
        let (before, after_change) = (before.change, after.change);
        Ok(DirChange { before, after: after_change, atomic: false, attr: Some(after) })
    }

    pub(crate) fn open_file(
        self: &Arc<Self>,
        cred: &Cred,
        id: &FileId,
        mode: OpenMode,
    ) -> Result<Arc<GlusterFile>> {
        let flags = flags(mode)?;
        let (gfid, object, attr) = self.object(id)?;
        check_regular(attr.kind)?;
        let handle = match object {
            Ok(object) => {
                Arc::new(patiently(cred, &attr, rights(mode), || object.open(flags, cred))?)
            }
            // The file has no name any more, and no brick finds it; but it may be open here.
            Err(error) => {
                if !allows(cred, &attr, rights(mode)) {
                    return Err(StoreError::Access);
                }
                let known = self.opens().get(&gfid).and_then(|opens| opens.handle(mode));
                known.ok_or(error)?
            }
        };
        let privileged = is_privileged(&attr);
        Ok(Arc::new(GlusterFile::new(self, gfid, mode, handle, cred, privileged)))
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
        // In a race, another client may remove the found or made file, or the directory.
        let mut why = StoreError::Busy;
        for _ in 0..CREATE_RETRIES_MAX {
            match dir.lookup(name, cred) {
                Ok((object, stat)) => {
                    let there = (object, stat);
                    match self.create_existing(cred, (&dir, &before), there, how, wish, mode) {
                        Err(StoreError::NotFound | StoreError::Stale) => continue,
                        done => return done,
                    }
                }
                Err(StoreError::NotFound) => {}
                Err(StoreError::Stale) => {
                    why = StoreError::Stale;
                    continue;
                }
                Err(error) => return Err(error),
            }
            match self.create_new(cred, (&dir, &before), name, how, wish, mode) {
                Err(StoreError::Exists) => {}
                Err(StoreError::Stale) => why = StoreError::Stale,
                done => return done,
            }
        }
        Err(why)
    }

    fn create_existing(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, before): (&Object, &Attr),
        (object, stat): (Object, Stat),
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        let known = attr(&stat)?;
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
        if how == CreateHow::Unchecked && wish.size == Some(0) {
            patiently(cred, &known, WRITE, || object.truncate(0, cred))?;
        }
        let flags = flags(mode)?;
        let handle = patiently(cred, &known, rights(mode), || object.open(flags, cred))?;
        let handle = Arc::new(handle);
        let (gfid, privileged) = (object.gfid()?, is_privileged(&known));
        let file = Arc::new(GlusterFile::new(self, gfid, mode, handle, cred, privileged));
        let attr = dafs_store::OpenFile::attr(&*file)?;
        let dir = self.changed(dir, before)?;
        Ok(Created { id: self.ids.seal(&gfid), attr, dir, file, created: false })
    }

    fn create_new(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, before): (&Object, &Attr),
        name: &[u8],
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        if wish.size.is_some_and(|size| size > FILE_BYTES_MAX) {
            return Err(StoreError::FileTooBig);
        }
        let bits = wish.mode.map_or(FILE_MODE_DEFAULT, |mode| mode & MODE_BITS) & !MOVED_BIT;
        let (object, handle, stat) = dir.create(name, bits, flags(mode)?, cred)?;
        let mut wish = *wish;
        if let CreateHow::Exclusive(verifier) = how {
            let (atime, mtime) = verifier_seconds(verifier);
            let at = |seconds| Some(SetTime::To(TimeSpec { seconds, nanoseconds: 0 }));
            (wish.atime, wish.mtime) = (at(atime), at(mtime));
        }
        let attr = self.finish_new(cred, &object, &stat, bits, &wish).inspect_err(|error| {
            // A file that cannot get all its attributes is removed again. If it is gone already,
            // another object may have its name.
            if *error != StoreError::Stale {
                let _ = dir.remove(name, cred);
            }
        })?;
        if matches!(how, CreateHow::Exclusive(_)) {
            // On the file systems of bricks, the sync of a new file makes its name stable, too.
            handle.sync()?;
        }
        let (gfid, handle) = (object.gfid()?, Arc::new(handle));
        // The creator of a file with setuid or setgid may write it without clearing these bits.
        let file = Arc::new(GlusterFile::new(self, gfid, mode, handle, cred, false));
        let dir = self.changed(dir, before)?;
        Ok(Created { id: self.ids.seal(&gfid), attr, dir, file, created: true })
    }

    /// Gives a new object the attributes that the call that made it could not set.
    fn finish_new(
        &self,
        cred: &Cred,
        object: &Object,
        stat: &Stat,
        bits: u32,
        wish: &SetAttr,
    ) -> Result<Attr> {
        let made = attr(stat)?;
        let mut rest = *wish;
        // The creator of a file with a size may write it with any mode.
        if let Some(size) = rest.size.take().filter(|&size| size > 0) {
            object.truncate(size, &server())?;
        }
        rest.uid = rest.uid.filter(|&uid| uid != made.uid);
        rest.gid = rest.gid.filter(|&gid| gid != made.gid);
        let owners = rest.uid.is_some() || rest.gid.is_some();
        rest.mode = (made.mode != bits || owners).then_some(bits);
        self.set_attributes(cred, object, &rest)?;
        attr(&object.stat()?)
    }

    /// Sets attributes other than the size. The mode comes after a new owner, which clears some of
    /// its bits.
    pub(crate) fn set_attributes(
        &self,
        cred: &Cred,
        object: &Object,
        wish: &SetAttr,
    ) -> Result<()> {
        let SetAttr { mode, uid, gid, atime, mtime, size: _ } = *wish;
        let none = SetAttr::default();
        for part in [
            SetAttr { uid, gid, ..none },
            SetAttr { mode, ..none },
            SetAttr { atime, mtime, ..none },
        ] {
            let (stat, mask) = change(&part)?;
            if mask != 0 {
                object.set_stat(stat, mask, cred)?;
            }
        }
        Ok(())
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
        let bits = |default| wish.mode.map_or(default, |mode| mode & MODE_BITS);
        let special = bits(SPECIAL_MODE_DEFAULT);
        let node = |kind: u32, device| dir.mknod(name, kind | special, device, cred);
        let (bits, made) = match object_wish {
            NewObject::Directory => {
                let bits = bits(DIRECTORY_MODE_DEFAULT);
                (bits, dir.mkdir(name, bits, cred))
            }
            NewObject::Symlink(text) => {
                check_symlink_text(text)?;
                (0, dir.symlink(name, text, cred))
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
        let (object, stat) = made?;
        // The client cannot choose the mode of a symlink, and its size is that of its text.
        let is_link = matches!(object_wish, NewObject::Symlink(_));
        let bits = if is_link { attr(&stat)?.mode } else { bits };
        let wish = SetAttr { size: None, ..*wish };
        let attr = self.finish_new(cred, &object, &stat, bits, &wish).inspect_err(|_| {
            let _ = dir.remove(name, cred);
        })?;
        let dir = self.changed(&dir, &before)?;
        Ok(Made { id: self.ids.seal(&object.gfid()?), attr, dir })
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
        let mut stream = dir.open_dir(cred)?;
        if cookie != 0 {
            stream.seek(position(cookie)?);
        }
        while let Some(entry) = stream.next(with_attr)? {
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let known = entry.object.as_ref().and_then(|(gfid, stat): &(Gfid, Stat)| {
                let attr = attr(stat).ok()?;
                Some((self.ids.seal(gfid), attr))
            });
            let cookie = cookie_of(entry.next);
            let entry = DirEntry { name: &entry.name, cookie, file_id: entry.ino, object: known };
            if !sink(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Converts a position to a cookie. Positions may be any numbers except the largest ones, and
/// cookies begin at 3.
fn cookie_of(position: i64) -> u64 {
    (position as u64).wrapping_add(3)
}

fn position(cookie: u64) -> Result<i64> {
    match cookie {
        0..3 => Err(StoreError::BadCookie),
        _ => Ok(cookie.wrapping_sub(3) as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_lead_back_to_positions() {
        for at in [0, 1, 2, 77, i64::MAX - 3, i64::MIN, -4] {
            assert!(cookie_of(at) > 2);
            assert_eq!(position(cookie_of(at)), Ok(at));
        }
        assert_eq!(position(2), Err(StoreError::BadCookie));
    }

    #[test]
    fn only_what_the_mode_allows_is_asked_for_again() {
        let known =
            |mode| Attr { uid: 7, gid: 7, mode, ..dafs_store::backend::nameless(Kind::Regular) };
        let mut asked = 0;
        let mut refused = |times: usize, mode| {
            asked = 0;
            let got = patiently(&Cred::new(7, 7), &known(mode), READ | WRITE, || {
                asked += 1;
                if asked <= times { Err(StoreError::Access) } else { Ok(()) }
            });
            (got, asked)
        };
        assert_eq!(refused(0, 0o600), (Ok(()), 1));
        assert_eq!(refused(2, 0o600), (Ok(()), 3));
        assert_eq!(refused(99, 0o600), (Err(StoreError::Access), ACCESS_TRIES_MAX));
        assert_eq!(refused(2, 0o400), (Err(StoreError::Access), 1));
    }
}
