//! File handles as all protocols carry them.

use dafs_store::{FileId, FsId};

/// A file handle: which file system, and which object in it. The layout is that of the DAFS
/// filehandle (16 + 48 bytes); other protocols carry the same 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The export's file system id.
    pub fs: FsId,
    /// The object.
    pub file: FileId,
}

impl Handle {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 64;
}
