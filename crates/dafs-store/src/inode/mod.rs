//! A file system of inodes behind the calls of a library, as a store.
//!
//! An engine implements [`Inode`] by the calls of its library, and [`InodeFs`] by all else in which it
//! differs from others. This module makes a [`Store`] of
//! it: checks of names and kinds, the cases of a create, the attributes of new objects, cookies,
//! extended attributes and access control lists.
//!
//! Invariants
//! * The engine checks a caller's rights in each call that takes a [`Cred`].
//! * No call reaches the engine with a name that is not one component.
//!
//! [`Store`]: crate::Store

mod attr;
mod id;
mod names;
mod placed;
mod rights;
mod store;

pub use attr::{device_of, kind_of, time_to_set};
pub use id::Ids;
pub use names::flags;
pub use placed::Placed;
pub use rights::{EXECUTE, READ, WRITE, allows};

use crate::backend::MODE_BITS;
use crate::{Attr, Capabilities, Cred, FileId, Kind, Layouts, OpenFile, OpenMode, Result, SetAttr};
use std::sync::Arc;

/// An object that a call has found or made.
pub struct Known<I: Inode> {
    /// Its key.
    pub key: I::Key,
    /// The reference to it.
    pub inode: I,
    /// Its attributes.
    pub attr: Attr,
}

/// An entry of a directory.
pub struct Listed<K> {
    /// The name.
    pub name: Vec<u8>,
    /// The number of the object.
    pub file_id: u64,
    /// The position of the next entry.
    pub next: i64,
    /// Key and attributes, if the caller has asked for them and they are available.
    pub object: Option<(K, Attr)>,
}

/// An open directory.
pub trait Listing<K> {
    /// Continues at the `next` of an entry.
    fn seek(&mut self, position: i64) -> Result<()>;

    /// Returns the next entry, including "." and "..".
    fn next(&mut self, with_object: bool) -> Result<Option<Listed<K>>>;
}

/// A reference to an object, with the calls of the library that take it. Those that take names are
/// for directories.
pub trait Inode: Sized {
    /// The permanent identity of an object.
    type Key: Copy + Eq + From<[u8; 16]> + Into<[u8; 16]>;
    /// An open file.
    type Handle;
    /// An open directory.
    type Listing: Listing<Self::Key>;

    /// Returns the present attributes.
    fn stat(&self) -> Result<Attr>;

    /// Changes the size of a regular file.
    fn truncate(&self, size: u64, cred: &Cred) -> Result<()>;

    /// Looks up one component. Follows no link.
    fn lookup(&self, name: &[u8], cred: &Cred) -> Result<Known<Self>>;

    /// Makes and opens a regular file that does not exist, with the flags of open(2).
    fn create(
        &self,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Result<(Known<Self>, Self::Handle)>;

    /// Makes a directory.
    fn mkdir(&self, name: &[u8], mode: u32, cred: &Cred) -> Result<Known<Self>>;

    /// Makes a special file; the mode holds its kind.
    fn mknod(&self, name: &[u8], mode: u32, device: u64, cred: &Cred) -> Result<Known<Self>>;

    /// Makes a symlink.
    fn symlink(&self, name: &[u8], text: &[u8], cred: &Cred) -> Result<Known<Self>>;

    /// Renames from this directory to another one, replacing a target of the same kind.
    fn rename(&self, from: &[u8], to_dir: &Self, to: &[u8], cred: &Cred) -> Result<()>;

    /// Reads the text of a symlink into `buffer`, and returns its length.
    fn readlink(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize>;

    /// Opens a directory for listing.
    fn open_dir(&self, cred: &Cred) -> Result<Self::Listing>;

    /// Returns space and files of the file system.
    fn statfs(&self) -> Result<libc::statvfs>;

    /// Reads the value of an extended attribute, whose name includes the prefix, into `buffer`, and
    /// returns its length.
    fn xattr(&self, name: &[u8], buffer: &mut [u8], cred: &Cred) -> Result<usize>;

    /// Sets an extended attribute, with the flags of setxattr(2).
    fn set_xattr(&self, name: &[u8], value: &[u8], flags: i32, cred: &Cred) -> Result<()>;

    /// Lists the names of extended attributes, each with a final zero, and returns the length of
    /// the list.
    fn list_xattrs(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, name: &[u8], cred: &Cred) -> Result<()>;
}

/// The key of an object of a file system.
pub type Key<F> = <<F as InodeFs>::Inode as Inode>::Key;

/// An open file of the library of a file system.
pub type Handle<F> = <<F as InodeFs>::Inode as Inode>::Handle;

/// An engine: the state of its store, and the operations in which engines differ.
pub trait InodeFs: Send + Sync + 'static {
    /// A reference to an object.
    type Inode: Inode;

    /// The bits of the mode that a new regular file may have.
    const FILE_MODE_BITS: u32 = MODE_BITS;

    /// Returns the ids of the file system.
    fn ids(&self) -> &Ids;

    /// Returns the key of the exported directory.
    fn root_key(&self) -> Key<Self>;

    /// Returns the optional features of the store.
    fn features(&self) -> Capabilities;

    /// Returns the layouts, if there are data servers.
    fn placements(&self) -> Option<&dyn Layouts>;

    /// Returns an existing object and its attributes. An open file without a name has attributes,
    /// but maybe no inode any more.
    fn find(&self, id: &FileId) -> Result<(Key<Self>, Result<Self::Inode>, Attr)>;

    /// Returns the parent of a directory that is not the root.
    fn above(&self, cred: &Cred, dir: &Self::Inode) -> Result<Key<Self>>;

    /// Returns those of the rights in `wanted` (of [`READ`], [`WRITE`] and [`EXECUTE`]) that the
    /// caller has.
    fn rights(
        &self,
        cred: &Cred,
        _inode: &Result<Self::Inode>,
        attr: &Attr,
        wanted: u32,
    ) -> Result<u32> {
        let held = [READ, WRITE, EXECUTE].into_iter().filter(|&right| allows(cred, attr, right));
        Ok(wanted & held.sum::<u32>())
    }

    /// Rejects a change of attributes other than the size before any part of it is made, as far as
    /// that is known. May replace a change by an equivalent one.
    fn check_change(&self, cred: &Cred, known: &Attr, wish: &mut SetAttr) -> Result<()>;

    /// Changes the size of a regular file, with all that this has to do to its mode.
    fn resize(&self, cred: &Cred, inode: &Self::Inode, _known: &Attr, size: u64) -> Result<()> {
        inode.truncate(size, cred)
    }

    /// Sets attributes other than the size.
    fn set_attributes(&self, cred: &Cred, inode: &Self::Inode, wish: &SetAttr) -> Result<()>;

    /// Opens a regular file. Objects of other kinds are refused as by
    /// [`check_regular`](crate::backend::check_regular).
    fn open_file(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>>;

    /// Opens a regular file that a create has found. `truncate` first sets its size to 0.
    fn open_found(
        &self,
        cred: &Cred,
        found: Known<Self::Inode>,
        truncate: bool,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>>;

    /// Makes a new file and its name stable.
    fn sync_made(
        &self,
        dir: &Self::Inode,
        inode: &Self::Inode,
        handle: &Handle<Self>,
    ) -> Result<()>;

    /// Takes over the open file of a create.
    fn open_made(
        &self,
        cred: &Cred,
        made: Known<Self::Inode>,
        mode: OpenMode,
        handle: Handle<Self>,
    ) -> Arc<dyn OpenFile>;

    /// Makes another name for an object that is not a directory.
    fn link_name(&self, cred: &Cred, id: &FileId, dir: &Self::Inode, name: &[u8]) -> Result<()>;

    /// Removes a name. `kind` is that of its object, if the caller knows it.
    fn remove_name(
        &self,
        cred: &Cred,
        dir: &Self::Inode,
        name: &[u8],
        kind: Option<Kind>,
    ) -> Result<()>;

    /// Updates the change attribute after a change of an extended attribute, where the engine does
    /// not do it.
    fn note_xattr(&self, _inode: &Self::Inode, _before: &Attr) -> Result<()> {
        Ok(())
    }

    /// Makes the names in the directories and the attributes of the other objects stable.
    fn sync_names(&self, ids: &[FileId]) -> Result<()>;

    /// Returns the space of the file system of an object.
    fn space(&self, inode: Result<Self::Inode>) -> Result<libc::statvfs> {
        inode?.statfs()
    }
}
