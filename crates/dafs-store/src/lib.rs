//! Where files live: the [`Store`] trait, what its backends share, and the one in memory.
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
//!   [`OpenFile::commit`]. Changes of names and of attributes become stable by
//!   [`Store::commit_names`], or when the file system writes them by itself, and a crash of the
//!   machine before that undoes them; the one exception is an exclusive create, whose file and name
//!   are stable when it returns.

#![forbid(unsafe_code)]

mod acl;
mod append;
pub mod backend;
mod data;
mod error;
mod layouts;
mod limits;
pub mod memory;
mod names;
pub mod node;
pub mod own;
mod ranges;
mod secret;
mod tries;
mod types;
mod uses;
mod vectors;
pub mod vital;

pub use acl::{Ace, AceFlags, AceKind, AceMask, AceWho, Acl};
pub use append::{AppendFailure, AppendWitness, append_before};
pub use data::{DataFile, DataFiles, DataStore, DataUse, Filled, fill};
pub use error::StoreError;
pub use layouts::{
    COPIES_MAX, CopyState, DEVICE_SERVERS_MAX, Device, DeviceKey, DeviceTrouble, FileCopy,
    LayoutForm, Layouts, NfsAddresses, PATTERN_PLACES_MAX, Packing, Placement, Spread, Stripes,
};
pub use limits::{ACL_ENTRIES_MAX, XATTR_BYTES_MAX};
pub use memory::{MemoryContent, MemoryImage, MemoryOptions, MemoryStore};
pub use secret::ExportSecret;
pub use tries::{NoOutcome, Tries};
pub use types::{
    AccessMask, AclSupport, Attr, CacheAdvice, Capabilities, CreateHow, Created, Cred, DirChange,
    DirEntry, FILE_ID_BYTES, FileId, FsId, FsStat, Kind, LocalChanges, Made, NAME_BYTES_MAX,
    NewObject, OpenMode, SeekWhat, SetAttr, SetTime, SetXattr, Stability, TimeSpec, Wait, Waits,
    Watch,
};

use dafs_mem::VolatileSlice;
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Shorthand for store results.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A file system that can be exported.
///
/// Calls may block on a disk unless they say otherwise. All are safe to call from many threads.
///
/// No call of this trait makes its change of names or attributes stable, except an exclusive
/// [`create`](Self::create); they become stable when the file system writes them, or by
/// [`commit_names`](Self::commit_names). Data becomes
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

    /// What one component below a directory is: for those who need no more, as before a removal, and
    /// cheaper than [`lookup`](Self::lookup). When somebody else replaces it in this moment, the kind
    /// may be that of the one and the id that of the other.
    fn peek(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Kind)> {
        self.lookup(cred, dir, name).map(|(id, attr)| (id, attr.kind))
    }

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

    /// Makes and opens a regular file without a name, in the file system of a directory and as if in
    /// it: its rights, its rules for new files. The first [`link`](Self::link) names it; without one
    /// it is gone with its last open, and with this process. `dir` in the answer tells that nothing
    /// happened to the directory. [`StoreError::NotSupported`] where the file system cannot, and in
    /// directories of named attributes.
    fn create_unlinked(
        &self,
        _cred: &Cred,
        _dir: &FileId,
        _attr: &SetAttr,
        _mode: OpenMode,
    ) -> Result<Created> {
        Err(StoreError::NotSupported)
    }

    /// Whom new objects of a caller's belong to.
    fn owner_of_new(&self, cred: &Cred) -> u32 {
        cred.uid
    }

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

    /// As [`remove`](Self::remove) by a caller who has just looked up what the name leads to, which
    /// can save another look. What is removed is what the name leads to, whatever the id says.
    fn remove_known(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        _id: &FileId,
    ) -> Result<DirChange> {
        self.remove(cred, dir, name)
    }

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

    /// What the store can do besides the ordinary; the same for as long as it is open.
    fn capabilities(&self) -> Capabilities;

    /// The value of an extended attribute. Names are those that users give, without the "user."
    /// of Linux (RFC 8276 5). [`StoreError::NoXattr`] when there is none of this name,
    /// [`StoreError::NotSupported`] where nothing has any.
    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute and tells how the object's change attribute moved.
    /// [`StoreError::XattrTooBig`] when the file system does not take that much.
    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange>;

    /// The names of all extended attributes that the caller may see, in order, so that a listing in
    /// parts can go on by position.
    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute and tells how the object's change attribute moved.
    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange>;

    /// The access control list, derived from the mode where there is no other. No rights needed
    /// beyond having the id, as with [`getattr`](Self::getattr).
    fn acl(&self, id: &FileId) -> Result<Acl>;

    /// Sets the access control list, and the mode with it. [`StoreError::NotSupported`] for one
    /// that says what the store cannot keep, [`StoreError::Invalid`] for one that says nonsense,
    /// such as inheritance for a file.
    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()>;

    /// Asks for what others than this store do to a regular file to be reported, until
    /// [`unwatch`](Self::unwatch). A file may be watched several times; each needs its own
    /// `unwatch`, and the last ends all of it. Only what happens after the call is reported, so look
    /// at the file afterwards. [`StoreError::NotSupported`] when the store cannot notice such
    /// things, [`StoreError::Busy`] when it watches as many files as it can.
    ///
    /// Where the system does not tell who did it, changes by this store may be reported too.
    fn watch(&self, _id: &FileId, _what: Watch) -> Result<()> {
        match self.capabilities().local_changes {
            LocalChanges::Impossible => Ok(()),
            LocalChanges::Unseen | LocalChanges::Reported => Err(StoreError::NotSupported),
        }
    }

    /// Ends one [`watch`](Self::watch). Ids that are not watched are ignored.
    fn unwatch(&self, _id: &FileId) {}

    /// Hands every watched file that others opened, changed, renamed or removed since the last call
    /// to `sink`, each at most once. Does not wait; cheap when nothing happened.
    fn take_local_changes(&self, _sink: &mut dyn FnMut(FileId)) {}

    /// A descriptor that becomes readable when [`take_local_changes`](Self::take_local_changes)
    /// may have something to tell, for those who wait for several things at once.
    fn local_changes_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Lets go of what is not needed any more, such as descriptors of objects that local users have
    /// removed. To be called every few seconds.
    fn sweep(&self) {}

    /// Makes the names in the directories and the attributes of the other objects that `ids` names
    /// stable, each object once, however many changes there were. What has been removed meanwhile
    /// is passed over. Content of files is not part of it. Waits for the device.
    ///
    /// # Errors
    /// What the device says; nothing is known then about what is stable.
    fn commit_names(&self, ids: &[FileId]) -> Result<()>;

    /// Where files lie, if the store spreads them over data servers that clients may reach. Whether it
    /// does is known from the start: clients may have written there before, whoever is away now.
    fn layouts(&self) -> Option<&dyn Layouts> {
        None
    }

    /// Space and limits.
    fn fs_stat(&self, cred: &Cred, id: &FileId) -> Result<FsStat>;
}

/// An open file. Rights were checked when it was opened; it stays usable after its last name is
/// gone.
pub trait OpenFile: WholeFile + Send + Sync + 'static {
    /// The file behind this one, by which a store knows its own when it is handed two. What wraps a
    /// file hands on the wrapped one's answer.
    fn as_any(&self) -> &dyn Any;

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

    /// Writes all of `views` at the end of the file, or nothing, and tells where they went. The file
    /// is cut back to its size when not all can be written or made stable. That nobody else changes
    /// the size meanwhile is the caller's care. May wait for a device.
    fn append(&self, views: &[VolatileSlice<'_>], stability: Stability) -> Result<u64> {
        append::append(self, views, stability)
    }

    /// As `append`, before the eyes of a witness, and while nobody else can change the file, until
    /// the witness has noted what came of it. Only for files that know of all who write to them:
    /// others are [`StoreError::NotSupported`].
    fn append_witnessed(
        &self,
        _views: &[VolatileSlice<'_>],
        _stability: Stability,
        _witness: &dyn AppendWitness,
    ) -> Result<u64> {
        Err(StoreError::NotSupported)
    }

    /// Makes `len` bytes from `offset` stable (0: to the end of the file), with what is needed to
    /// read them back through this file. The file's name is not part of that.
    fn commit(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes all data stable, and the attributes of the file with it.
    fn sync(&self) -> Result<()>;

    /// Makes `copy`, an empty file beside the store, share all content of this one: a write to either
    /// changes that one alone. [`StoreError::NotSupported`] where the two cannot share. Needs an open
    /// with read access; may wait for a device.
    fn clone_to(&self, copy: &std::fs::File) -> Result<()> {
        let _ = copy;
        Err(StoreError::NotSupported)
    }

    /// Gives this file the content and size of `copy`, which [`clone_to`](Self::clone_to) has made.
    /// When it fails, it may have been done in part. Needs an open with write access; may wait for a
    /// device.
    fn clone_back(&self, copy: &std::fs::File) -> Result<()> {
        let _ = copy;
        Err(StoreError::NotSupported)
    }

    /// Current attributes; works after removal.
    fn attr(&self) -> Result<Attr>;
}

/// What only a whole file has: a size, holes, space, and content for others to copy. An operation has no default
/// here, so that none can be forgotten where a file is wrapped: each type of files has all of them, or says that
/// it is a [`PartOfFile`].
pub trait WholeFile {
    /// Advice about future use.
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<()>;

    /// Changes the size; needs an open with write access. A longer file reads as zeros at its end.
    fn set_size(&self, size: u64) -> Result<()>;

    /// The first data or hole at or after `offset`. `None` when there is no such thing up to the end
    /// of the file, which is possible for data only; [`StoreError::PastEnd`] for an offset at or
    /// behind the end. Where holes are not kept apart, all is data.
    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>>;

    /// Makes sure that writes to the range will find space; a file that ends before the range's end
    /// becomes longer (RFC 7862 15.1). Needs an open with write access and `len` above 0.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;

    /// Gives back the space of the range, which then reads as zeros; the size stays (RFC 7862 15.4).
    /// Needs an open with write access and `len` above 0.
    fn deallocate(&self, offset: u64, len: u64) -> Result<()>;

    /// Copies up to `len` bytes of `source` to `offset` of this file, in the kernel where that is
    /// possible. Tells how much was copied, which may be less than asked; 0 only when `source`
    /// ends at `source_offset`. What was copied is as stable as an unstable write. Ranges of one file that
    /// overlap are [`StoreError::Invalid`]. May wait for a device; may take long when `len` is
    /// large.
    fn copy_from(
        &self,
        source: &dyn OpenFile,
        source_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<u64>;

    /// Makes a range of this file share the content of `source`, all or nothing. `len` 0 means up to
    /// the end of `source`. [`StoreError::NotSupported`] where the file system cannot,
    /// [`StoreError::Invalid`] for ranges that it cannot share.
    fn clone_range_from(
        &self,
        source: &dyn OpenFile,
        source_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<()>;
}

/// A file that a data server has a part of. It is read and written there, and can do nothing else.
pub trait PartOfFile: OpenFile {}

impl<T: PartOfFile> WholeFile for T {
    fn advise(&self, _: u64, _: u64, _: CacheAdvice) -> Result<()> {
        Ok(())
    }

    fn set_size(&self, _: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        ranges::seek_dense(self.attr()?.size, offset, what)
    }

    fn allocate(&self, _: u64, _: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn deallocate(&self, _: u64, _: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn copy_from(&self, _: &dyn OpenFile, _: u64, _: u64, _: u64) -> Result<u64> {
        Err(StoreError::NotSupported)
    }

    fn clone_range_from(&self, _: &dyn OpenFile, _: u64, _: u64, _: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }
}
