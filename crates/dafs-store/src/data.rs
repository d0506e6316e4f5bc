//! What a data server serves: content of files, by the handles that layouts carry.
//!
//! Invariants
//! * A data server knows no names and no rights. Whoever shows a handle that was sealed for it may
//!   use what it names, if the metadata server says so each time.

use crate::{
    AccessMask, Acl, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry,
    FILE_ID_BYTES, FileId, FsId, FsStat, Kind, Made, NewObject, OpenFile, OpenMode, Result,
    SetAttr, SetXattr, Store, StoreError, TimeSpec,
};
use dafs_mem::VolatileSlice;
use std::sync::Arc;

/// The files of a data server.
pub trait DataFiles: Send + Sync {
    /// The file system that its handles are of, as the store of an export tells it.
    fn fs_id(&self) -> FsId;

    /// What a handle names.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for what the metadata server has not sealed for this data server.
    fn open(&self, id: &FileId) -> Result<Arc<dyn DataFile>>;

    /// What the metadata server shows with bytes that it stands behind
    /// ([`Layouts::word`](crate::Layouts::word)); `None` where no such word is taken.
    fn word(&self, _bytes: &[u8]) -> Option<[u8; 16]> {
        None
    }

    /// Bytes that clients asked for here although they lie elsewhere.
    fn indirect_bytes(&self) -> u64;

    /// Space for content.
    ///
    /// # Errors
    /// The node's.
    fn space(&self) -> Result<FsStat>;
}

/// A file, or the part of one that lies here, in use.
pub trait DataFile: OpenFile {
    /// A request begins, and is about to be judged: see [`DataUse`]. What is returned is for its end.
    fn use_begins(&self) -> u64;

    /// It is over.
    fn use_ends(&self, begun: u64);

    /// How many of `len` bytes from `offset` on can be read and written here at once.
    ///
    /// # Errors
    /// The node's.
    fn served_bytes(&self, offset: u64, len: usize) -> Result<usize>;

    /// How far the whole file reaches; `None` where only the metadata server can tell.
    ///
    /// # Errors
    /// The node's.
    fn file_size(&self) -> Result<Option<u64>>;
}

/// While it lives, a request may work on a file. To be made before the request is judged: whoever
/// takes leave back then waits for its end
/// ([`Layouts::forget`](crate::Layouts::forget)).
#[must_use]
pub struct DataUse<'a>(&'a dyn DataFile, u64);

impl<'a> DataUse<'a> {
    /// A request begins.
    pub fn begin(file: &'a dyn DataFile) -> Self {
        Self(file, file.use_begins())
    }
}

impl Drop for DataUse<'_> {
    fn drop(&mut self) {
        self.0.use_ends(self.1);
    }
}

/// What of a read was filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Bytes, with those of holes.
    pub count: usize,
    /// The whole file ends there.
    pub eof: bool,
}

/// Fills a view with what is to be answered of it, by what a component has and how far the whole file
/// reaches. Where the component ends before the file does, there is a hole: zeros are answered.
///
/// The size covers only what is on the node already. So what it covers and the component did not have
/// before the size was asked for is looked for once more, and is a hole only if it is not there then.
///
/// # Errors
/// Those of `read` and of `size`, which is asked when the component comes short.
pub fn fill(
    view: VolatileSlice<'_>,
    offset: u64,
    read: impl Fn(VolatileSlice<'_>, u64) -> Result<usize>,
    size: impl FnOnce() -> Result<u64>,
) -> Result<Filled> {
    let wanted = view.len();
    let got = read(view, offset)?;
    if got == wanted && wanted > 0 {
        return Ok(Filled { count: got, eof: false });
    }
    let size = size()?;
    let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let count = left.min(wanted).max(got);
    if let Some(gap) = view.slice(got, count - got).filter(|gap| !gap.is_empty()) {
        let more = read(gap, offset + got as u64)?;
        if let Some(hole) = gap.slice(more, gap.len() - more) {
            hole.fill(0);
        }
    }
    let eof = offset.saturating_add(count as u64) >= size;
    Ok(Filled { count, eof })
}

/// The files of a data server as a store without names.
pub struct DataStore {
    files: Arc<dyn DataFiles>,
}

impl DataStore {
    /// A store over them.
    pub fn new(files: Arc<dyn DataFiles>) -> Self {
        Self { files }
    }
}

/// The attributes of what has none: those that a data server does not know.
pub fn nameless(kind: Kind) -> Attr {
    Attr {
        kind,
        mode: 0,
        links: 1,
        uid: 0,
        gid: 0,
        size: 0,
        space_used: 0,
        file_id: 1,
        raw_device: (0, 0),
        atime: TimeSpec::default(),
        mtime: TimeSpec::default(),
        ctime: TimeSpec::default(),
        btime: None,
        change: 0,
    }
}

/// The id of the root, which a store has to have.
const ROOT: FileId = FileId([0; FILE_ID_BYTES]);

impl Store for DataStore {
    fn fs_id(&self) -> FsId {
        self.files.fs_id()
    }

    fn root(&self) -> FileId {
        ROOT
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        if *id == ROOT { Ok(nameless(Kind::Directory)) } else { self.files.open(id)?.attr() }
    }

    fn setattr(
        &self,
        _cred: &Cred,
        _id: &FileId,
        _change: &SetAttr,
        _file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        Err(StoreError::NotSupported)
    }

    fn access(&self, _cred: &Cred, _id: &FileId, _wanted: AccessMask) -> Result<AccessMask> {
        Ok(AccessMask::empty())
    }

    fn lookup(&self, _cred: &Cred, _dir: &FileId, _name: &[u8]) -> Result<(FileId, Attr)> {
        Err(StoreError::NotFound)
    }

    fn parent(&self, _cred: &Cred, _dir: &FileId) -> Result<FileId> {
        Err(StoreError::NotFound)
    }

    /// Whoever has a handle may use the file: what the file's rights say has been asked where the
    /// state-id was judged.
    fn open(&self, _cred: &Cred, id: &FileId, _mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        if *id == ROOT {
            return Err(StoreError::IsDirectory);
        }
        Ok(self.files.open(id)?)
    }

    fn create(
        &self,
        _cred: &Cred,
        _dir: &FileId,
        _name: &[u8],
        _how: CreateHow,
        _attr: &SetAttr,
        _mode: OpenMode,
    ) -> Result<Created> {
        Err(StoreError::NotSupported)
    }

    fn make(
        &self,
        _cred: &Cred,
        _dir: &FileId,
        _name: &[u8],
        _object: NewObject<'_>,
        _attr: &SetAttr,
    ) -> Result<Made> {
        Err(StoreError::NotSupported)
    }

    fn link(&self, _cred: &Cred, _id: &FileId, _dir: &FileId, _name: &[u8]) -> Result<DirChange> {
        Err(StoreError::NotSupported)
    }

    fn remove(&self, _cred: &Cred, _dir: &FileId, _name: &[u8]) -> Result<DirChange> {
        Err(StoreError::NotSupported)
    }

    fn rename(
        &self,
        _cred: &Cred,
        _from_dir: &FileId,
        _from: &[u8],
        _to_dir: &FileId,
        _to: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        Err(StoreError::NotSupported)
    }

    fn readdir(
        &self,
        _cred: &Cred,
        _dir: &FileId,
        _cookie: u64,
        _attr: bool,
        _sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        Err(StoreError::NotSupported)
    }

    fn readlink(&self, _cred: &Cred, _id: &FileId) -> Result<Vec<u8>> {
        Err(StoreError::Invalid)
    }

    fn attr_dir(&self, _cred: &Cred, _id: &FileId) -> Result<FileId> {
        Err(StoreError::NotSupported)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn xattr(&self, _cred: &Cred, _id: &FileId, _name: &[u8]) -> Result<Vec<u8>> {
        Err(StoreError::NotSupported)
    }

    fn set_xattr(
        &self,
        _cred: &Cred,
        _id: &FileId,
        _name: &[u8],
        _value: &[u8],
        _how: SetXattr,
    ) -> Result<DirChange> {
        Err(StoreError::NotSupported)
    }

    fn list_xattrs(&self, _cred: &Cred, _id: &FileId) -> Result<Vec<Vec<u8>>> {
        Err(StoreError::NotSupported)
    }

    fn remove_xattr(&self, _cred: &Cred, _id: &FileId, _name: &[u8]) -> Result<DirChange> {
        Err(StoreError::NotSupported)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        self.getattr(id).map(|attr| Acl::from_mode(attr.mode, attr.kind == Kind::Directory))
    }

    fn set_acl(&self, _cred: &Cred, _id: &FileId, _acl: &Acl) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn commit_names(&self, _ids: &[FileId]) -> Result<()> {
        Ok(())
    }

    fn fs_stat(&self, _cred: &Cred, _id: &FileId) -> Result<FsStat> {
        self.files.space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Site;
    use std::cell::RefCell;

    /// Reads ten bytes of a component that is extended while the size is asked for.
    fn read_while_written(before: &[u8], after: &[u8], size: u64) -> (Filled, Vec<u8>) {
        let component = RefCell::new(before.to_vec());
        let read = |view: VolatileSlice<'_>, at: u64| {
            Ok(component
                .borrow()
                .get(at as usize..)
                .map_or(0, |rest| view.copy_from(rest, Site::Sim)))
        };
        let size = || {
            *component.borrow_mut() = after.to_vec();
            Ok(size)
        };
        let mut bytes = vec![0xee; 10];
        let filled = fill(VolatileSlice::from_mut(&mut bytes), 0, read, size).expect("read");
        bytes.truncate(filled.count);
        (filled, bytes)
    }

    #[test]
    fn what_comes_before_the_size_is_known_is_no_hole() {
        let (filled, bytes) = read_while_written(b"abc", b"abcdef", 8);
        assert_eq!(filled, Filled { count: 8, eof: true });
        assert_eq!(bytes, b"abcdef\0\0");
        let (filled, bytes) = read_while_written(b"abc", b"abcdef", 3);
        assert_eq!((filled.count, filled.eof, &*bytes), (3, true, &b"abc"[..]));
        let (filled, bytes) = read_while_written(b"", b"0123456789abc", 13);
        assert_eq!((filled.count, filled.eof, &*bytes), (10, false, &b"0123456789"[..]));
    }
}
