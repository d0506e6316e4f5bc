//! Creating and listing.

use super::{EXECUTE, Inode, InodeFs, Known, Listing, allows};
use crate::backend::{
    COOKIE_FIRST, DIRECTORY_MODE_DEFAULT, FILE_BYTES_MAX, FILE_MODE_DEFAULT, MODE_BITS,
    SPECIAL_MODE_DEFAULT, check_regular, check_symlink_text, verifier_seconds, with_verifier,
};
use crate::limits::CREATE_TRIES_MAX;
use crate::{
    Attr, CreateHow, Created, Cred, DirChange, DirEntry, FileId, Kind, Made, NewObject, OpenMode,
    Result, SetAttr, StoreError,
};

/// Returns the flags of open(2) for an open.
///
/// # Errors
/// [`StoreError::Invalid`] for an open that neither reads nor writes.
pub fn flags(mode: OpenMode) -> Result<i32> {
    match mode {
        OpenMode { read: true, write: true } => Ok(libc::O_RDWR),
        OpenMode { read: false, write: true } => Ok(libc::O_WRONLY),
        OpenMode { read: true, write: false } => Ok(libc::O_RDONLY),
        OpenMode { read: false, write: false } => Err(StoreError::Invalid),
    }
}

/// A directory in which names change.
pub(super) struct Directory<'a, F: InodeFs> {
    fs: &'a F,
    pub(super) inode: F::Inode,
    pub(super) attr: Attr,
}

impl<'a, F: InodeFs> Directory<'a, F> {
    /// Returns an existing directory.
    pub(super) fn find(fs: &'a F, id: &FileId) -> Result<Self> {
        let (_, inode, attr) = fs.find(id)?;
        if attr.kind != Kind::Directory {
            return Err(StoreError::NotDirectory);
        }
        Ok(Self { fs, inode: inode?, attr })
    }

    /// Returns the change of the directory since it was found.
    pub(super) fn changed(&self) -> Result<DirChange> {
        changed(&self.inode, &self.attr)
    }

    pub(super) fn create(
        &self,
        cred: &Cred,
        name: &[u8],
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        // In a race, another client may remove the found or made file, or the directory.
        let mut why = StoreError::Busy;
        let bits = wish.mode.map_or(FILE_MODE_DEFAULT, |mode| mode & MODE_BITS);
        let bits = bits & F::FILE_MODE_BITS;
        for _ in 0..CREATE_TRIES_MAX {
            match self.inode.lookup(name, cred) {
                Ok(found) => match self.create_existing(cred, found, how, wish, mode) {
                    Err(StoreError::NotFound | StoreError::Stale) => continue,
                    done => return done,
                },
                Err(StoreError::NotFound) => {}
                Err(StoreError::Stale) => {
                    why = StoreError::Stale;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if wish.size.is_some_and(|size| size > FILE_BYTES_MAX) {
                return Err(StoreError::FileTooBig);
            }
            match self.inode.create(name, bits, flags(mode)?, cred) {
                Ok(made) => return self.finish_file(cred, name, how, wish, mode, bits, made),
                Err(StoreError::Exists | StoreError::NotFound) => {}
                Err(StoreError::Stale) => why = StoreError::Stale,
                Err(error) => return Err(error),
            }
        }
        Err(why)
    }

    fn create_existing(
        &self,
        cred: &Cred,
        found: Known<F::Inode>,
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        let (key, known) = (found.key, found.attr);
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
        let truncate = how == CreateHow::Unchecked && wish.size == Some(0);
        let file = self.fs.open_found(cred, found, truncate, mode)?;
        let (id, attr, dir) = (self.fs.ids().seal(key), file.attr()?, self.changed()?);
        Ok(Created { id, attr, dir, file, created: false })
    }

    fn finish_file(
        &self,
        cred: &Cred,
        name: &[u8],
        how: CreateHow,
        wish: &SetAttr,
        mode: OpenMode,
        bits: u32,
        (mut made, handle): (Known<F::Inode>, <F::Inode as Inode>::Handle),
    ) -> Result<Created> {
        self.finish_new(cred, name, &mut made, bits, &with_verifier(how, wish))?;
        if matches!(how, CreateHow::Exclusive(_)) {
            self.fs.sync_made(&self.inode, &made.inode, &handle)?;
        }
        let (id, attr) = (self.fs.ids().seal(made.key), made.attr);
        let file = self.fs.open_made(cred, made, mode, handle);
        Ok(Created { id, attr, dir: self.changed()?, file, created: true })
    }

    /// Gives a new object the attributes that the call that made it could not set. An object that
    /// cannot get all of them is removed again if it still has its name. An object that another
    /// client has removed meanwhile was made all the same.
    fn finish_new(
        &self,
        cred: &Cred,
        name: &[u8],
        made: &mut Known<F::Inode>,
        bits: u32,
        wish: &SetAttr,
    ) -> Result<()> {
        let error = match self.set_rest(cred, made, bits, wish) {
            Ok(attr) => {
                made.attr = attr;
                return Ok(());
            }
            Err(error) => error,
        };
        let is_lost = matches!(error, StoreError::NotFound | StoreError::Stale);
        match self.inode.lookup(name, cred) {
            Ok(found) if found.key == made.key => {
                let kind = Some(made.attr.kind);
                let removed = self.fs.remove_name(cred, &self.inode, name, kind);
                // A lost object that was there again: another attempt may succeed.
                Err(if is_lost && removed.is_ok() { StoreError::Busy } else { error })
            }
            found if is_lost && is_elsewhere(&found) && is_removed(made.inode.stat()) => Ok(()),
            _ => Err(error),
        }
    }

    fn set_rest(
        &self,
        cred: &Cred,
        made: &Known<F::Inode>,
        bits: u32,
        wish: &SetAttr,
    ) -> Result<Attr> {
        let Known { inode, attr, .. } = made;
        let mut rest = *wish;
        // The creator of a file with a size may write it with any mode.
        if let Some(size) = rest.size.take().filter(|&size| size > 0) {
            self.fs.resize(&Cred::new(0, 0), inode, attr, size)?;
        }
        rest.uid = rest.uid.filter(|&uid| uid != attr.uid);
        rest.gid = rest.gid.filter(|&gid| gid != attr.gid);
        let owners = rest.uid.is_some() || rest.gid.is_some();
        rest.mode = (attr.mode != bits || owners).then_some(bits);
        self.fs.set_attributes(cred, inode, &rest)?;
        inode.stat()
    }

    pub(super) fn make(
        &self,
        cred: &Cred,
        name: &[u8],
        object: NewObject<'_>,
        wish: &SetAttr,
    ) -> Result<Made> {
        let bits = |default| wish.mode.map_or(default, |mode| mode & MODE_BITS);
        let special = bits(SPECIAL_MODE_DEFAULT);
        let dir = &self.inode;
        let node = |kind, device| dir.mknod(name, kind | special, device, cred);
        let (bits, made) = match object {
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
        let mut made = made?;
        // The client cannot choose the mode of a symlink, and its size is that of its text.
        let is_link = matches!(object, NewObject::Symlink(_));
        let bits = if is_link { made.attr.mode } else { bits };
        let wish = SetAttr { size: None, ..*wish };
        self.finish_new(cred, name, &mut made, bits, &wish)?;
        Ok(Made { id: self.fs.ids().seal(made.key), attr: made.attr, dir: self.changed()? })
    }

    pub(super) fn list(
        &self,
        cred: &Cred,
        cookie: u64,
        with_attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        // A caller without search permission does not get ids and attributes.
        let with_attr = with_attr && allows(cred, &self.attr, EXECUTE);
        let from = if cookie == 0 { None } else { Some(position(cookie)?) };
        let mut listing = self.inode.open_dir(cred)?;
        from.map_or(Ok(()), |from| listing.seek(from))?;
        while let Some(entry) = listing.next(with_attr)? {
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let object = entry.object.map(|(key, attr)| (self.fs.ids().seal(key), attr));
            let (cookie, file_id) = (cookie_of(entry.next), entry.file_id);
            if !sink(DirEntry { name: &entry.name, cookie, file_id, object }) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// True if a name leads to another object or to none. `found` is the answer to a lookup that did
/// not find the expected object. A library that still knows a former object answers `Stale`.
fn is_elsewhere<T>(found: &Result<T>) -> bool {
    matches!(found, Ok(_) | Err(StoreError::NotFound | StoreError::Stale))
}

/// True if an object has no name any more. `attr` is the answer to a question for its attributes.
fn is_removed(attr: Result<Attr>) -> bool {
    match attr {
        Ok(attr) => attr.links == 0,
        Err(error) => matches!(error, StoreError::NotFound | StoreError::Stale),
    }
}

/// Returns the change of an object since its attributes `before`.
pub(super) fn changed(inode: &impl Inode, before: &Attr) -> Result<DirChange> {
    let after = inode.stat()?;
    let (before, after_change) = (before.change, after.change);
    Ok(DirChange { before, after: after_change, atomic: false, attr: Some(after) })
}

/// Converts a position to a cookie. Positions may be any numbers except the largest ones.
fn cookie_of(position: i64) -> u64 {
    (position as u64).wrapping_add(COOKIE_FIRST)
}

fn position(cookie: u64) -> Result<i64> {
    match cookie {
        0..COOKIE_FIRST => Err(StoreError::BadCookie),
        _ => Ok(cookie.wrapping_sub(COOKIE_FIRST) as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_link_or_attributes_is_removed() {
        let linked = |links| Ok(Attr { links, ..crate::backend::nameless(Kind::Regular) });
        assert!(is_removed(linked(0)) && !is_removed(linked(1)));
        assert!(is_removed(Err(StoreError::NotFound)) && is_removed(Err(StoreError::Stale)));
        assert!(!is_removed(Err(StoreError::Io)) && !is_removed(Err(StoreError::Access)));
    }

    #[test]
    fn a_name_that_others_make_and_remove_is_elsewhere() {
        assert!(is_elsewhere(&Ok(())) && is_elsewhere::<()>(&Err(StoreError::NotFound)));
        assert!(is_elsewhere::<()>(&Err(StoreError::Stale)));
        assert!(!is_elsewhere::<()>(&Err(StoreError::Io)));
    }

    #[test]
    fn cookies_lead_back_to_positions() {
        for at in [0, 1, 2, 77, i64::MAX - 3, i64::MIN, -4] {
            assert!(cookie_of(at) > 2);
            assert_eq!(position(cookie_of(at)), Ok(at));
        }
        assert_eq!(position(2), Err(StoreError::BadCookie));
    }
}
