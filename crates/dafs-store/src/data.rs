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

    /// How many of `len` bytes from `offset` on can be read and written here.
    ///
    /// # Errors
    /// [`StoreError::NoDevice`] if not even the first one can.
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
