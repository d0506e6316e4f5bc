//! The operations of a mount, which each version of NFS implements.

use super::attributes::{Attributes, DirEntry, FsStatus, SetAttributes, SpecialFile};
use super::error::Result;
use super::link::Link;
use super::open::{Committed, Direction, Flight, Open, Transfer};
use super::options::OpenOptions;
use super::pending::{Part, Parts};
use super::small::NewFile;
use super::url::NfsVersion;
use super::v4::{NewFlight, RemovalFlight, StartFlight};
use crate::files::Handle;
use dafs_wire::nfs4::SeekWhat;
use std::fmt::Debug;
use std::sync::Arc;

/// The object that CREATE, MKDIR, SYMLINK or MKNOD makes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum New<'a> {
    Directory,
    Symlink(&'a [u8]),
    Special(SpecialFile),
}

/// The start of a path's resolution.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) handle: Handle,
    /// The number of components of the path that the handle covers.
    pub(crate) components: usize,
}

/// A place in a listing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    pub(crate) cookie: u64,
    pub(crate) verifier: [u8; 8],
}

/// One page of a listing.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) entries: Vec<DirEntry>,
    /// The place at which the next page begins; `None` at the end.
    pub(crate) next: Option<Cursor>,
}

/// The longest transfers, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) read: u32,
    pub(crate) write: u32,
}

impl Sizes {
    /// The longest transfer of this direction, in bytes.
    pub(crate) fn of(self, direction: Direction) -> usize {
        match direction {
            Direction::Read => self.read as usize,
            Direction::Write(_) => self.write as usize,
        }
    }
}

/// The operations on names, attributes and opens.
pub(crate) trait Names {
    fn lookup(&self, dir: &Handle, name: &[u8]) -> Result<(Handle, Attributes)>;
    fn attributes(&self, object: &Handle) -> Result<Attributes>;
    /// A new size needs an open for writing, if the version has opens.
    fn set_attributes(
        &self,
        object: &Handle,
        open: Option<&Open>,
        new: &SetAttributes,
    ) -> Result<()>;
    fn make(
        &self,
        dir: &Handle,
        name: &[u8],
        what: New<'_>,
        attributes: &SetAttributes,
    ) -> Result<Handle>;
    fn remove(&self, dir: &Handle, name: &[u8], directory: bool) -> Result<()>;
    fn rename(&self, from: &Handle, old: &[u8], to: &Handle, new: &[u8]) -> Result<()>;
    fn link_to(&self, object: &Handle, dir: &Handle, name: &[u8]) -> Result<()>;
    fn readlink(&self, link: &Handle) -> Result<Vec<u8>>;
    fn read_directory(&self, dir: &Handle, from: Cursor) -> Result<Page>;
    fn fs_status(&self, object: &Handle) -> Result<FsStatus>;
    fn open(&self, dir: &Handle, name: &[u8], options: &OpenOptions) -> Result<Arc<Open>>;
    fn open_handle(&self, file: &Handle, options: &OpenOptions) -> Result<Arc<Open>>;
}

/// A version of NFS. Every method, of [`Names`] too, retries while the server is unreachable or
/// answers DELAY, for as long as the options of the mount say.
pub(crate) trait Protocol: Names + Send + Sync + Debug {
    fn version(&self) -> NfsVersion;
    fn link(&self) -> &Link;
    fn sizes(&self) -> Sizes;
    fn start(&self, path: &[&[u8]]) -> Result<Start>;
    fn close(&self, open: &Open) -> Result<()>;
    /// Sends a READ or WRITE that is no longer than [`Protocol::sizes`] says.
    fn submit(&self, transfer: Transfer) -> Result<Arc<dyn Flight>>;
    /// Sends READs or WRITEs for a transfer of any length.
    fn begin(&self, transfer: Transfer) -> Result<Parts>;
    /// Commits everything that was written to stable storage. The caller needs the verifier of the
    /// mounted server only if it wants a commit `at_server`.
    fn commit(&self, file: &Handle, at_server: bool) -> Result<Committed>;
    /// The start of data or of a hole at `offset` or behind it; `None` if there is none before the
    /// end of the file. NOTSUPP if the version has no SEEK.
    fn seek(&self, open: &Open, offset: u64, what: SeekWhat) -> Result<Option<u64>>;
    /// Ends the mount in order.
    fn unmount(&self);

    /// The longest content of a small file, in bytes.
    fn small_bytes_max(&self) -> usize {
        0
    }

    /// Small files and removals that can be under way at a time.
    fn small_under_way_max(&self) -> usize {
        0
    }

    /// Begins to make a small file; `None` if that needs more than one call, or too many are under way.
    fn begin_new_file(&self, _: &NewFile<'_>) -> Result<Option<NewFlight>> {
        Ok(None)
    }

    /// As that, to read the start of a file.
    fn begin_start(&self, _: &Handle, _: &[u8], _: usize) -> Result<Option<StartFlight>> {
        Ok(None)
    }

    /// As that, to remove a name.
    fn begin_remove(&self, _: &Handle, _: &[u8]) -> Result<Option<RemovalFlight>> {
        Ok(None)
    }
}

/// Sends a transfer of any length to the server itself.
pub(crate) fn submit_pieces(protocol: &dyn Protocol, transfer: &Transfer) -> Result<Parts> {
    let mut parts = Parts::new();
    for piece in transfer.pieces(protocol.sizes().of(transfer.direction)) {
        let (memory, offset) = (piece.memory.clone(), piece.offset);
        parts.push(Part { flight: protocol.submit(piece)?, memory, offset });
    }
    Ok(parts)
}
