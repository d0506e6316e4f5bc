//! Storage: the [`Store`] trait, the parts that its backends share, and the backend in memory.
//!
//! A store finds objects by persistent ids, checks the caller's rights, and moves file data between
//! its files and memory of its caller. It knows no protocol, no client and no lock.
//!
//! Invariants
//! * A [`FileId`] outlives the process: it works after a restart and after a rename, or fails with
//!   [`StoreError::Stale`]. An id that this store did not make fails with
//!   [`StoreError::BadHandle`]; it never reaches an object outside the export.
//! * No name, symlink, mount or id leads out of the export.
//! * Every operation that takes a [`Cred`] is checked against that caller's rights, by the kernel
//!   where there is one.
//! * Data that a reply calls stable is stable. This holds for file data: writes that ask for
//!   stability, and [`OpenFile::commit`]. Changes of names and of attributes become stable by
//!   [`Store::commit_names`], or when the file system writes them by itself. A crash of the machine
//!   before that undoes them. The only exception is an exclusive create: its file and name are
//!   stable when it returns.

#![forbid(unsafe_code)]

mod acl;
mod advice;
mod append;
pub mod backend;
mod data;
mod error;
pub mod inode;
mod keys;
mod layouts;
mod leaving;
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

pub use acl::{
    Ace, AceFlags, AceKind, AceMask, AceWho, Acl, PosixAcl, PosixAcls, PosixEntry, PosixTag,
};
pub use append::{AppendFailure, AppendWitness, append_before};
pub use data::{DataFile, DataFiles, DataStore, DataUse, Filled, fill};
pub use error::StoreError;
pub use keys::DataKeys;
pub use layouts::{
    COPIES_MAX, CopyState, DEVICE_SERVERS_MAX, Device, DeviceKey, DeviceTrouble, FileCopy,
    LayoutForm, Layouts, NfsAddresses, PATTERN_PLACES_MAX, Packing, Placement, Spread, Stripes,
};
pub use limits::{ACL_ENTRIES_MAX, WILL_NEED_BYTES_MAX, XATTR_BYTES_MAX};
pub use memory::{MemoryContent, MemoryImage, MemoryOptions, MemoryStore};
pub use ranges::CopyRange;
pub use secret::ExportSecret;
pub use tries::{NoOutcome, Tries};
pub use types::{
    AccessMask, AclSupport, Advised, Attr, CacheAdvice, Capabilities, CreateHow, Created, Cred,
    DirChange, DirEntry, FILE_ID_BYTES, FileId, FsId, FsStat, Kind, LocalChanges, Made,
    NAME_BYTES_MAX, NewObject, OpenMode, Quota, RemoveKind, SeekWhat, SetAttr, SetTime, SetXattr,
    Stability, TimeSpec, Wait, Waits, Watch,
};

use dafs_mem::VolatileSlice;
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The result of a store's operations.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A file system that can be exported.
///
/// Calls may block on a disk unless they say otherwise. Any thread may call all of them.
///
/// No call of this trait makes its change of names or attributes stable, except an exclusive
/// [`create`](Self::create). They become stable when the file system writes them, or by
/// [`commit_names`](Self::commit_names). Data becomes stable by [`OpenFile::write_at`] with a
/// [`Stability`] above unstable, and by [`OpenFile::commit`].
pub trait Store: Send + Sync + 'static {
    /// Returns the identity of the file system, the same after every restart (DAFS fshandle).
    fn fs_id(&self) -> FsId;

    /// Returns the root directory of the export.
    fn root(&self) -> FileId;

    /// Returns the attributes of an object. The caller needs no rights beyond having its id.
    fn getattr(&self, id: &FileId) -> Result<Attr>;

    /// Changes attributes, all or nothing as far as the file system can. A change of the size needs
    /// write permission or `file`, an open of the caller with write access. `file` gives no rights
    /// for other changes.
    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        change: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr>;

    /// Returns those of the rights in `wanted` that the caller has.
    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask>;

    /// Looks up one component below a directory. "." and ".." are not names; symlinks are not
    /// followed.
    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)>;

    /// Returns id and kind of one component below a directory, for example before a removal. This
    /// is cheaper than [`lookup`](Self::lookup). In a race with its replacement, the kind may be
    /// that of the one object and the id that of the other.
    fn peek(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Kind)> {
        self.lookup(cred, dir, name).map(|(id, attr)| (id, attr.kind))
    }

    /// Returns the id of one component below a directory, for callers that need its kind only to
    /// remove it. Fails with the errors of [`RemoveKind::check`]; where the store does not learn the
    /// kind on the way, [`remove_known`](Self::remove_known) does.
    fn peek_of_kind(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        kind: RemoveKind,
    ) -> Result<FileId> {
        let (id, found) = self.peek(cred, dir, name)?;
        kind.check(found).map(|()| id)
    }

    /// Returns the parent directory; for the root it fails with [`StoreError::NotFound`].
    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId>;

    /// Opens a regular file or named attribute.
    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>>;

    /// Opens a regular file by name, making it as `how` says. `attr` applies only to a new file,
    /// except that an unchecked create with size 0 truncates an existing one. After an exclusive
    /// create, the file and its name are stable when the call returns.
    fn create(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        how: CreateHow,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created>;

    /// Makes and opens a regular file without a name, in the file system of a directory, and with
    /// the same rights and rules as for a new file in it. The first [`link`](Self::link) names it.
    /// Without one it is removed with its last open, or when this process ends. `dir` in the result
    /// shows that the directory did not change. [`StoreError::NotSupported`] where the file system
    /// cannot do that, and in directories of named attributes.
    fn create_unlinked(
        &self,
        _cred: &Cred,
        _dir: &FileId,
        _attr: &SetAttr,
        _mode: OpenMode,
    ) -> Result<Created> {
        Err(StoreError::NotSupported)
    }

    /// Returns the owner of new objects of a caller.
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

    /// Removes a name like [`remove`](Self::remove), for a caller that has just looked it up with
    /// [`peek_of_kind`](Self::peek_of_kind) for the same kind. The id can save another lookup. In a
    /// race, the call may remove the name of another object.
    fn remove_known(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        _id: &FileId,
        _kind: RemoveKind,
    ) -> Result<DirChange> {
        self.remove(cred, dir, name)
    }

    /// Renames, replacing a target of a compatible kind. Returns the change of the source and of
    /// the target directory.
    fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileId,
        from: &[u8],
        to_dir: &FileId,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)>;

    /// Renames like [`rename`](Self::rename), for a caller that has just looked up the new name.
    /// `_target` is the id of the object that has it, if any. This can save another lookup. In a race,
    /// the call may replace another object.
    fn rename_known(
        &self,
        cred: &Cred,
        from: (&FileId, &[u8]),
        to: (&FileId, &[u8]),
        _target: Option<&FileId>,
    ) -> Result<(DirChange, DirChange)> {
        self.rename(cred, from.0, from.1, to.0, to.1)
    }

    /// Passes the entries after `cookie` (0: from the start) to `sink` until that returns false.
    /// The caller continues after the cookie of the last entry that it kept: that one or the one
    /// before. The sink may call the store. "." and ".." are left out; cookies are above 2 and stay
    /// valid while the entry exists. With `attr` each entry carries its attributes and id, or
    /// `None` if they are unavailable. Returns true when the end was reached.
    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool>;

    /// Returns the text of a symlink.
    fn readlink(&self, cred: &Cred, id: &FileId) -> Result<Vec<u8>>;

    /// Returns the directory of an object's named attributes, whose entries behave as files.
    fn attr_dir(&self, cred: &Cred, id: &FileId) -> Result<FileId>;

    /// Returns the optional features of the store, which do not change while it is open.
    fn capabilities(&self) -> Capabilities;

    /// Returns the value of an extended attribute. Names are those that users give, without the
    /// "user." of Linux (RFC 8276 5). [`StoreError::NoXattr`] when there is none of this name,
    /// [`StoreError::NotSupported`] where no object has any.
    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute and returns the change of the object's change attribute.
    /// [`StoreError::XattrTooBig`] when the file system does not accept that size.
    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange>;

    /// Returns the names of all extended attributes that the caller may see, in order, so that a
    /// listing in parts can continue by position.
    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute and returns the change of the object's change attribute.
    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange>;

    /// Returns the access control list, derived from the mode where there is no other. The caller
    /// needs no rights beyond having the id, as with [`getattr`](Self::getattr).
    fn acl(&self, id: &FileId) -> Result<Acl>;

    /// Sets the access control list, and the mode with it. [`StoreError::NotSupported`] for a list
    /// that the store cannot keep, [`StoreError::Invalid`] for a malformed one, for example with
    /// inheritance for a file.
    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()>;

    /// Returns the access control lists as POSIX has them, with their masks, made from the mode where
    /// there are no others. The caller needs no rights beyond having the id.
    fn posix_acls(&self, id: &FileId) -> Result<PosixAcls> {
        self.getattr(id).map(|attr| PosixAcls::from_mode(attr.mode))
    }

    /// Sets the access control lists, and the mode with them. The errors are those of
    /// [`set_acl`](Self::set_acl).
    fn set_posix_acls(&self, cred: &Cred, id: &FileId, lists: &PosixAcls) -> Result<()> {
        let is_directory = self.getattr(id)?.kind == Kind::Directory;
        self.set_acl(cred, id, &lists.to_acl(is_directory))
    }

    /// Begins to report changes of a regular file that do not come through this store, until
    /// [`unwatch`](Self::unwatch). A file may be watched several times; each needs its own
    /// `unwatch`, and the last ends the watch. Only changes after the call are reported, so the
    /// caller reads the file's attributes afterwards. [`StoreError::NotSupported`] when the store
    /// cannot notice such changes, [`StoreError::Busy`] when it watches as many files as it can.
    ///
    /// Where the system does not name the process of a change, changes by this store may be
    /// reported, too.
    fn watch(&self, _id: &FileId, _what: Watch) -> Result<()> {
        match self.capabilities().local_changes {
            LocalChanges::Impossible => Ok(()),
            LocalChanges::Unseen | LocalChanges::Reported => Err(StoreError::NotSupported),
        }
    }

    /// Ends one [`watch`](Self::watch). Ids that are not watched are ignored.
    fn unwatch(&self, _id: &FileId) {}

    /// Passes every watched file that others opened, changed, renamed or removed since the last
    /// call to `sink`, each at most once. Does not wait, and is cheap without such events.
    fn take_local_changes(&self, _sink: &mut dyn FnMut(FileId)) {}

    /// Returns a descriptor that becomes readable when
    /// [`take_local_changes`](Self::take_local_changes) may have files to report, for callers that
    /// wait for several descriptors at once.
    fn local_changes_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Releases unused resources, such as descriptors of objects that local users have removed. The
    /// server calls it every few seconds.
    fn sweep(&self) {}

    /// Makes the names in the directories and the attributes of the other objects in `ids` stable,
    /// each object once for all its changes. Removed objects are skipped. Content of files is not
    /// included. Waits for the device.
    ///
    /// # Errors
    /// The device's. Then any part may be stable.
    fn commit_names(&self, ids: &[FileId]) -> Result<()>;

    /// Returns the layouts, if the store spreads files over data servers that clients may reach. It
    /// is constant from the start: clients may have written there before, even if data servers are
    /// unreachable now.
    fn layouts(&self) -> Option<&dyn Layouts> {
        None
    }

    /// Returns space and limits.
    fn fs_stat(&self, cred: &Cred, id: &FileId) -> Result<FsStat>;

    /// Returns the quota that limits the caller, of several the one with the fewest bytes left. The
    /// file system enforces quotas by itself, with [`StoreError::Quota`].
    ///
    /// # Errors
    /// `NotSupported` without [`Capabilities::quotas`].
    fn quota(&self, _cred: &Cred) -> Result<Quota> {
        Err(StoreError::NotSupported)
    }
}

/// An open file. Rights were checked when it was opened; it stays usable after its last name is
/// gone.
pub trait OpenFile: WholeFile + Send + Sync + 'static {
    /// Returns this file for a downcast, by which a store recognises its own files. A wrapper
    /// returns the result of the wrapped file.
    fn as_any(&self) -> &dyn Any;

    /// Returns the id of the file.
    fn id(&self) -> FileId;

    /// Reads up to the sum of `views` from `offset`. A short count means the end of the file, or,
    /// with [`Wait::Never`], the end of the data in memory. With `Wait::Never` the call does not
    /// wait for a device: [`StoreError::WouldBlock`] when no data is in memory.
    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize>;

    /// Lends the descriptor of a local file for one read that begins at once, where `pread(2)` does
    /// all that [`read_at`](Self::read_at) with [`Wait::Allowed`] does, and the kernel can wait for
    /// the device without a thread (io_uring). A wrapper whose reads check or change something lends
    /// none. Does not wait for a device.
    fn read_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Writes all of `views` at `offset`, or as much as possible before an error. An error without
    /// any written byte is returned. With `Wait::Never`, [`StoreError::WouldBlock`] when it might
    /// wait for a device. Returns only when the data has the wanted stability.
    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize>;

    /// Writes all of `views` at the end of the file, or none, and returns the offset. If not all
    /// can be written or made stable, the file is truncated to its old size. The caller prevents
    /// other changes of the size. May wait for a device.
    fn append(&self, views: &[VolatileSlice<'_>], stability: Stability) -> Result<u64> {
        append::append(self, views, stability)
    }

    /// Appends like `append`, and logs intent and outcome to a witness. Until the outcome is
    /// logged, no other writer can change the file. Only for files that serialise all their
    /// writers: others are [`StoreError::NotSupported`].
    fn append_witnessed(
        &self,
        _views: &[VolatileSlice<'_>],
        _stability: Stability,
        _witness: &dyn AppendWitness,
    ) -> Result<u64> {
        Err(StoreError::NotSupported)
    }

    /// Makes `len` bytes from `offset` stable (0: to the end of the file), with the metadata that
    /// is needed to read them back through this file. The file's name is not part of that. Stores
    /// that can only sync everything do that.
    fn commit(&self, _offset: u64, _len: u64) -> Result<()> {
        self.sync()
    }

    /// Makes all data and attributes of the file stable.
    fn sync(&self) -> Result<()>;

    /// Fails if the system has lost data of this file when it wrote the data back. Writes nothing back,
    /// and waits for no device. Stores whose data is elsewhere know of none.
    ///
    /// # Errors
    /// The device's, once for each failure.
    fn check_written_back(&self) -> Result<()> {
        Ok(())
    }

    /// Makes `copy`, an empty file beside the store, share all content of this one: a write to
    /// either changes only that one. [`StoreError::NotSupported`] where the two cannot share. Needs
    /// an open with read access; may wait for a device.
    fn clone_to(&self, copy: &std::fs::File) -> Result<()> {
        let _ = copy;
        Err(StoreError::NotSupported)
    }

    /// Gives this file the content and size of `copy`, which [`clone_to`](Self::clone_to) has made.
    /// A failure may leave a part of the change. Needs an open with write access; may wait for a
    /// device.
    fn clone_back(&self, copy: &std::fs::File) -> Result<()> {
        let _ = copy;
        Err(StoreError::NotSupported)
    }

    /// Returns the current attributes, also after removal.
    fn attr(&self) -> Result<Attr>;
}

/// Operations that need a whole file: its size, its holes, its space, and copies of its content. None has a
/// default, so that the compiler reports a type that wraps a file and lacks one. A type has all of them, or says
/// that it is a [`PartOfFile`].
pub trait WholeFile {
    /// Gives advice about the future use of `len` bytes from `offset` (0: to the end of the file).
    /// Advice about a pattern is for this open as a whole. A read ahead has at most
    /// [`WILL_NEED_BYTES_MAX`] bytes. May wait for a device; [`StoreError::Invalid`] for a range that
    /// no file can have.
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised>;

    /// Changes the size; needs an open with write access. A longer file reads as zeros at its end.
    fn set_size(&self, size: u64) -> Result<()>;

    /// Returns the first data or hole at or after `offset`. `None` when there is none up to the end
    /// of the file, which is possible for data only; [`StoreError::PastEnd`] for an offset at or
    /// behind the end. Where holes are not distinguished, all is data.
    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>>;

    /// Allocates space, so that writes to the range will find some. A file that ends before the
    /// range's end is extended (RFC 7862 15.1). Needs an open with write access and `len` above 0.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;

    /// Deallocates the space of the range, which then reads as zeros; the size does not change (RFC
    /// 7862 15.4). Needs an open with write access and `len` above 0.
    fn deallocate(&self, offset: u64, len: u64) -> Result<()>;

    /// Copies a range of `source` to this file, or its beginning, in the kernel where that is
    /// possible. Returns the number of copied bytes, which may be less; 0 only when `source` ends
    /// where the range begins. The copied data is as stable as an unstable write. Ranges of one file
    /// that overlap are [`StoreError::Invalid`]. May wait for a device, and may take long when the
    /// range is.
    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64>;

    /// Makes a range of this file share the content of `source`, all or nothing. A length of 0 means up
    /// to the end of `source`. [`StoreError::NotSupported`] where the file system cannot do that,
    /// [`StoreError::Invalid`] for ranges that it cannot share.
    fn clone_range_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<()>;
}

/// A file that a data server has a part of, and only reads and writes. The operations of [`WholeFile`] are
/// refused, but for advice.
pub trait PartOfFile: OpenFile {
    /// Gives advice about a range, of which the part on this data server counts, as
    /// [`WholeFile::advise`] does.
    ///
    /// # Errors
    /// The node's.
    fn advise_part(&self, _offset: u64, _len: u64, _advice: CacheAdvice) -> Result<Advised> {
        Ok(Advised::Ignored)
    }
}

impl<T: PartOfFile> WholeFile for T {
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        self.advise_part(offset, len, advice)
    }

    fn set_size(&self, _: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn seek(&self, _: u64, _: SeekWhat) -> Result<Option<u64>> {
        Err(StoreError::NotSupported)
    }

    fn allocate(&self, _: u64, _: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn deallocate(&self, _: u64, _: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn copy_from(&self, _: &dyn OpenFile, _: CopyRange) -> Result<u64> {
        Err(StoreError::NotSupported)
    }

    fn clone_range_from(&self, _: &dyn OpenFile, _: CopyRange) -> Result<()> {
        Err(StoreError::NotSupported)
    }
}
