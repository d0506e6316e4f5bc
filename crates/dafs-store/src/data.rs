//! The interface of data servers: the content of files, by the handles in layouts.
//!
//! Invariants
//! * A data server knows no names and no rights. A client with a handle that was sealed for the
//!   data server may use the file, if the metadata server authorises each use.

use crate::limits::FILE_BYTES_MAX;
use crate::{
    AccessMask, Acl, Attr, Capabilities, CreateHow, Created, Cred, DirChange, DirEntry,
    FILE_ID_BYTES, FileId, FsId, FsStat, Kind, Made, NAME_BYTES_MAX, NewObject, OpenFile, OpenMode,
    Result, SetAttr, SetXattr, Store, StoreError, TimeSpec,
};
use dafs_mem::VolatileSlice;
use std::sync::Arc;

/// The files of a data server.
pub trait DataFiles: Send + Sync {
    /// Returns the file system of its handles, like the store of an export.
    fn fs_id(&self) -> FsId;

    /// Opens the file of a handle.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for a handle that the metadata server has not sealed for this data
    /// server.
    fn open(&self, id: &FileId) -> Result<Arc<dyn DataFile>>;

    /// Returns the valid MACs of some bytes, each of which the metadata server may have made
    /// ([`Layouts::mac`](crate::Layouts::mac)): two while its keys change, none where MACs are not
    /// verified.
    fn macs(&self, _bytes: &[u8]) -> Vec<[u8; 16]> {
        Vec::new()
    }

    /// Returns the number of bytes that clients asked for here although another node has them.
    fn indirect_bytes(&self) -> u64;

    /// Returns the space for content; zeros where the file system alone knows it.
    ///
    /// # Errors
    /// The node's.
    fn space(&self) -> Result<FsStat> {
        Ok(FsStat {
            name_bytes_max: NAME_BYTES_MAX as u32,
            file_bytes_max: FILE_BYTES_MAX,
            ..FsStat::default()
        })
    }
}

/// An open file, or the part of one on this data server.
pub trait DataFile: OpenFile {
    /// Begins a request, before its authorisation: see [`DataUse`]. Returns the value for its end.
    fn use_begins(&self) -> u64;

    /// Ends a request.
    fn use_ends(&self, begun: u64);

    /// Returns how many of `len` bytes from `offset` on one request can read or write here: all,
    /// where a data server reaches the bytes of others, too.
    ///
    /// # Errors
    /// The node's.
    fn served_bytes(&self, _offset: u64, len: usize) -> Result<usize> {
        Ok(len)
    }

    /// Returns the size of the whole file; `None` where only the metadata server knows it.
    ///
    /// # Errors
    /// The node's.
    fn file_size(&self) -> Result<Option<u64>> {
        self.attr().map(|attr| Some(attr.size))
    }
}

/// A request may work on a file while this guard lives. It is made before the request is
/// authorised, so that [`Layouts::drop_grants`](crate::Layouts::drop_grants) can wait for its end.
#[must_use]
pub struct DataUse<'a>(&'a dyn DataFile, u64);

impl<'a> DataUse<'a> {
    /// Begins a request.
    pub fn begin(file: &'a dyn DataFile) -> Self {
        Self(file, file.use_begins())
    }
}

impl Drop for DataUse<'_> {
    fn drop(&mut self) {
        self.0.use_ends(self.1);
    }
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// The number of bytes, which includes holes.
    pub count: usize,
    /// True if the whole file ends there.
    pub eof: bool,
}

/// Fills a view for the reply to a read, from the data of a component and the size of the whole
/// file. Where the component ends before the file does, there is a hole, which reads as zeros.
///
/// The size covers only data that is on the node already. In a race with a writer, the component
/// may have got that data between the read and the question for the size. So the gap is read once
/// more, and only bytes that are still missing are a hole.
///
/// # Errors
/// Those of `read` and of `size`, which is called when the read is short.
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
    /// Makes a store of these files.
    pub fn new(files: Arc<dyn DataFiles>) -> Self {
        Self { files }
    }
}

/// Returns the attributes of an object without known attributes: a data server does not know them.
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

/// The id of the root, which the trait requires.
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

    /// A handle suffices to open a file. The check of the state-id has covered the rights.
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

    /// Reads ten bytes of a component that a writer extends while the size is asked for.
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
    fn data_that_arrives_before_the_size_is_known_is_no_hole() {
        let (filled, bytes) = read_while_written(b"abc", b"abcdef", 8);
        assert_eq!(filled, Filled { count: 8, eof: true });
        assert_eq!(bytes, b"abcdef\0\0");
        let (filled, bytes) = read_while_written(b"abc", b"abcdef", 3);
        assert_eq!((filled.count, filled.eof, &*bytes), (3, true, &b"abc"[..]));
        let (filled, bytes) = read_while_written(b"", b"0123456789abc", 13);
        assert_eq!((filled.count, filled.eof, &*bytes), (10, false, &b"0123456789"[..]));
    }
}
