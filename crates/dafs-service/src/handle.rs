//! File handles as all protocols carry them.

use dafs_store::{FileId, FsId};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// A file handle: the file system, and the object in it. The format is that of the DAFS filehandle
/// (16 + 48 bytes). NFS carries the same 64 bytes, or leaves out zeros of short ids.
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

    /// Returns the index of the name lock that this directory uses. It depends on the object alone,
    /// because two exports may lead to it.
    pub(crate) fn shard(&self) -> usize {
        let mut hasher = FxHasher::default();
        self.file.hash(&mut hasher);
        hasher.finish() as usize % crate::NAME_LOCKS
    }
}
