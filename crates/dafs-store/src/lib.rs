//! Where files live: the [`Store`] trait and its backends.
//!
//! A store knows objects by persistent ids, checks the caller's rights, and moves file data between
//! its files and memory that it is handed. It knows no protocol, no client and no lock.
//!
//! Invariants
//! * A [`FileId`] outlives the process: it works after a restart and after a rename, or fails with
//!   [`StoreError::Stale`]. An id that this store did not make fails with
//!   [`StoreError::BadHandle`]; it never reaches an object outside the export.
//! * No name, symlink, mount or id leads out of the export.
//! * Every operation that takes a [`Cred`] is checked against that caller's rights, by the kernel
//!   where there is one.
//! * A reply that says stable is stable. This is about file data: writes that ask for stability, and
//!   [`OpenFile::commit`]. Changes of names and of attributes become stable when the file system
//!   writes them by itself, and a crash of the machine before that undoes them; the one exception is
//!   an exclusive create, whose file and name are stable when it returns.

mod error;
mod limits;
pub mod memory;
mod names;
pub mod posix;
mod types;

pub use error::StoreError;
pub use memory::{MemoryOptions, MemoryStore};
pub use posix::{ExportSecret, PosixOptions, PosixStore};
pub use types::{
    AccessMask, Attr, CacheAdvice, CreateHow, Created, Cred, DirChange, DirEntry, FILE_ID_BYTES,
    FileId, FsId, FsStat, Kind, Made, NAME_BYTES_MAX, NewObject, OpenMode, SetAttr, SetTime,
    Stability, TimeSpec, Wait,
};

use dafs_mem::VolatileSlice;
use std::sync::Arc;

/// Shorthand for store results.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A file system that can be exported.
///
/// Calls may block on a disk unless they say otherwise. All are safe to call from many threads.
///
/// No call of this trait makes its change of names or attributes stable, except an exclusive
/// [`create`](Self::create); they become stable when the file system writes them. Data becomes
/// stable by [`OpenFile::write_at`] with a [`Stability`] above unstable, and by
/// [`OpenFile::commit`].
pub trait Store: Send + Sync + 'static {
    /// Identity of the file system, the same after every restart (DAFS fshandle).
    fn fs_id(&self) -> FsId;

    /// The directory at the top of the export.
    fn root(&self) -> FileId;

    /// Attributes of an object. No rights needed beyond having its id.
    fn getattr(&self, id: &FileId) -> Result<Attr>;

    /// Changes attributes; all or nothing as far as the file system can. Changing the size needs
    /// write permission or `file`, an open of the caller's with write access; `file` proves nothing
    /// for other changes.
    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        change: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr>;

    /// Which of the rights in `wanted` the caller has.
    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask>;

    /// One component below a directory. "." and ".." are not names; symlinks are not followed.
    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)>;

    /// The directory above; the root's is [`StoreError::NotFound`].
    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId>;

    /// Opens a regular file or named attribute.
    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>>;

    /// Opens a regular file by name, making it as `how` says. `attr` is applied only to a new file,
    /// except that an unchecked create with size 0 truncates an old one. What an exclusive create
    /// made is stable, with its name, when the call returns.
    fn create(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        how: CreateHow,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created>;

    /// Makes a directory, symlink or special file.
    fn make(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made>;

    /// Makes another name for an object that is not a directory.
    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange>;

    /// Removes a name; directories must be empty.
    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange>;

    /// Renames, replacing a target of a fitting kind. Returns the change of the source and of the
    /// target directory.
    fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileId,
        from: &[u8],
        to_dir: &FileId,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)>;

    /// Feeds the entries after `cookie` (0: from the start) to `sink` until that returns false. The
    /// caller goes on after the cookie of the last entry that it kept, be it that one or the one
    /// before. The sink may call the store.
    /// "." and ".." are left out; cookies are above 2 and stay valid while the entry exists.
    /// With `attr` each entry carries its attributes and id, or `None` where they cannot be had.
    /// Returns true when the end was reached.
    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool>;

    /// The text of a symlink.
    fn readlink(&self, cred: &Cred, id: &FileId) -> Result<Vec<u8>>;

    /// The directory of an object's named attributes, whose entries behave as files.
    fn attr_dir(&self, cred: &Cred, id: &FileId) -> Result<FileId>;

    /// Lets go of what is not needed any more, such as descriptors of objects that local users have
    /// removed. To be called every few seconds.
    fn sweep(&self) {}

    /// Space and limits.
    fn fs_stat(&self, cred: &Cred, id: &FileId) -> Result<FsStat>;
}

/// An open file. Rights were checked when it was opened; it stays usable after its last name is
/// gone.
pub trait OpenFile: Send + Sync {
    /// Which file this is.
    fn id(&self) -> FileId;

    /// Reads up to the sum of `views` from `offset`; fewer bytes mean the end of the file, or, with
    /// [`Wait::Never`], the end of what is in memory. With `Wait::Never` the call does not wait for
    /// a device: [`StoreError::WouldBlock`] when nothing is in memory.
    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize>;

    /// Writes all of `views` at `offset`, or as much as could be written before an error (an error
    /// with nothing written is an error). With `Wait::Never`, [`StoreError::WouldBlock`] when it
    /// might wait for a device. Returns only when the data has the asked stability.
    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize>;

    /// Makes `len` bytes from `offset` stable (0: to the end of the file), with what is needed to
    /// read them back through this file. The file's name is not part of that.
    fn commit(&self, offset: u64, len: u64) -> Result<()>;

    /// Advice about future use.
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<()>;

    /// Changes the size; needs an open with write access. A longer file reads as zeros at its end.
    fn set_size(&self, size: u64) -> Result<()>;

    /// Current attributes; works after removal.
    fn attr(&self) -> Result<Attr>;
}
