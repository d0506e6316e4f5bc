//! A file system of inodes behind the calls of a library, as a store.
//!
//! An engine implements [`InodeFs`] by the calls of its library. This module makes a [`Store`] of
//! it: checks of names and kinds, the cases of a create, the attributes of new objects, cookies,
//! extended attributes and access control lists.
//!
//! Invariants
//! * The engine checks a caller's rights in each call that takes a [`Cred`].
//! * No call reaches the engine with a name that is not one component.
//!
//! [`Store`]: crate::Store

mod id;
mod names;
mod rights;
mod store;

pub use id::Ids;
pub use names::{check_regular, flags};
pub use rights::{EXECUTE, READ, WRITE, allows};

use crate::backend::MODE_BITS;
use crate::{Attr, Capabilities, Cred, FileId, Kind, Layouts, OpenFile, OpenMode, Result, SetAttr};
use std::sync::Arc;

/// An object that a call has found or made.
pub struct Known<F: InodeFs + ?Sized> {
    /// Its key.
    pub key: F::Key,
    /// The reference to it.
    pub inode: F::Inode,
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

/// The operations of an engine on its inodes.
pub trait InodeFs: Send + Sync + 'static {
    /// The permanent identity of an object.
    type Key: Copy + Eq + From<[u8; 16]> + Into<[u8; 16]>;
    /// A reference to an object.
    type Inode;
    /// An open file of the library.
    type Handle;
    /// An open directory of the library.
    type Listing;

    /// The bits of the mode that a new regular file may have.
    const FILE_MODE_BITS: u32 = MODE_BITS;

    /// Returns the ids of the file system.
    fn ids(&self) -> &Ids;

    /// Returns the key of the exported directory.
    fn root_key(&self) -> Self::Key;

    /// Returns the optional features of the store.
    fn features(&self) -> Capabilities;

    /// Returns the layouts, if there are data servers.
    fn placements(&self) -> Option<&dyn Layouts>;

    /// Returns an existing object and its attributes. An open file without a name has attributes,
    /// but maybe no inode any more.
    fn find(&self, id: &FileId) -> Result<(Self::Key, Result<Self::Inode>, Attr)>;

    /// Returns the present attributes.
    fn stat(&self, inode: &Self::Inode) -> Result<Attr>;

    /// Looks up one component below a directory. Follows no link.
    fn find_name(&self, cred: &Cred, dir: &Self::Inode, name: &[u8]) -> Result<Known<Self>>;

    /// Returns the parent of a directory that is not the root.
    fn above(&self, cred: &Cred, dir: &Self::Inode) -> Result<Self::Key>;

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

    /// Changes the size of a regular file.
    fn resize(&self, cred: &Cred, inode: &Self::Inode, known: &Attr, size: u64) -> Result<()>;

    /// Sets attributes other than the size.
    fn set_attributes(&self, cred: &Cred, inode: &Self::Inode, wish: &SetAttr) -> Result<()>;

    /// Opens a regular file. Objects of other kinds are refused as by [`check_regular`].
    fn open_file(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>>;

    /// Opens a regular file that a create has found. `truncate` first sets its size to 0.
    fn open_found(
        &self,
        cred: &Cred,
        found: Known<Self>,
        truncate: bool,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>>;

    /// Makes and opens a regular file that does not exist.
    fn make_file(
        &self,
        cred: &Cred,
        dir: &Self::Inode,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Known<Self>, Self::Handle)>;

    /// Makes a new file and its name stable.
    fn sync_made(
        &self,
        dir: &Self::Inode,
        inode: &Self::Inode,
        handle: &Self::Handle,
    ) -> Result<()>;

    /// Takes over the open file of a create.
    fn open_made(
        &self,
        cred: &Cred,
        made: Known<Self>,
        mode: OpenMode,
        handle: Self::Handle,
    ) -> Arc<dyn OpenFile>;

    /// Makes a directory.
    fn make_directory(
        &self,
        cred: &Cred,
        dir: &Self::Inode,
        name: &[u8],
        mode: u32,
    ) -> Result<Known<Self>>;

    /// Makes a symlink.
    fn make_symlink(
        &self,
        cred: &Cred,
        dir: &Self::Inode,
        name: &[u8],
        text: &[u8],
    ) -> Result<Known<Self>>;

    /// Makes a special file; the mode holds its kind.
    fn make_special(
        &self,
        cred: &Cred,
        dir: &Self::Inode,
        name: &[u8],
        mode: u32,
        device: u64,
    ) -> Result<Known<Self>>;

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

    /// Renames, replacing a target of the same kind.
    fn rename_name(
        &self,
        cred: &Cred,
        from_dir: &Self::Inode,
        from: &[u8],
        to_dir: &Self::Inode,
        to: &[u8],
    ) -> Result<()>;

    /// Reads the text of a symlink into `buffer`, and returns its length.
    fn read_text(&self, cred: &Cred, inode: &Self::Inode, buffer: &mut [u8]) -> Result<usize>;

    /// Opens a directory for listing, from a position on.
    fn open_listing(
        &self,
        cred: &Cred,
        dir: &Self::Inode,
        from: Option<i64>,
    ) -> Result<Self::Listing>;

    /// Returns the next entry, including "." and "..".
    fn next_entry(
        &self,
        listing: &mut Self::Listing,
        with_object: bool,
    ) -> Result<Option<Listed<Self::Key>>>;

    /// Reads an extended attribute, whose name includes the prefix, and returns its length.
    fn read_xattr(
        &self,
        cred: &Cred,
        inode: &Self::Inode,
        name: &[u8],
        buffer: &mut [u8],
    ) -> Result<usize>;

    /// Sets an extended attribute, with the flags of setxattr(2).
    fn write_xattr(
        &self,
        cred: &Cred,
        inode: &Self::Inode,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()>;

    /// Lists the names of extended attributes, each with a final zero, and returns the length of
    /// the list.
    fn xattr_names(&self, cred: &Cred, inode: &Self::Inode, buffer: &mut [u8]) -> Result<usize>;

    /// Removes an extended attribute.
    fn drop_xattr(&self, cred: &Cred, inode: &Self::Inode, name: &[u8]) -> Result<()>;

    /// Updates the change attribute after a change of an extended attribute, where the engine does
    /// not do it.
    fn note_xattr(&self, _inode: &Self::Inode, _before: &Attr) -> Result<()> {
        Ok(())
    }

    /// Makes the names in the directories and the attributes of the other objects stable.
    fn sync_names(&self, ids: &[FileId]) -> Result<()>;

    /// Returns the space of the file system of an object.
    fn statvfs(&self, inode: &Result<Self::Inode>) -> Result<libc::statvfs>;
}
