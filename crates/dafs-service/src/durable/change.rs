//! What a request is about to change, in terms of no protocol.

use crate::handle::Handle;
use dafs_store::{Kind, SetAttr, Stability};

/// A change that is about to be carried out.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// An open that makes the file if it is not there.
    Create {
        /// The directory.
        dir: &'a Handle,
        /// The name in it.
        name: &'a [u8],
        /// The attributes of a new file; size 0 empties an old one.
        attr: &'a SetAttr,
    },
    /// A new directory, symlink or special file.
    Make {
        /// The directory.
        dir: &'a Handle,
        /// The name in it.
        name: &'a [u8],
        /// What is made.
        kind: Kind,
        /// Its attributes.
        attr: &'a SetAttr,
    },
    /// The end of a name.
    Remove {
        /// The directory.
        dir: &'a Handle,
        /// The name in it.
        name: &'a [u8],
    },
    /// Another name instead of one.
    Rename {
        /// The directory of the old name.
        from_dir: &'a Handle,
        /// The old name.
        from: &'a [u8],
        /// The directory of the new name.
        to_dir: &'a Handle,
        /// The new name.
        to: &'a [u8],
    },
    /// Another name beside those that a file has, which may be none.
    Link {
        /// The file.
        source: &'a Handle,
        /// The directory of the new name.
        dir: &'a Handle,
        /// The new name.
        name: &'a [u8],
    },
    /// Other attributes.
    SetAttr {
        /// The object.
        file: &'a Handle,
        /// What changes.
        change: &'a SetAttr,
    },
    /// A write at an offset. One that is not stable is not kept.
    Write {
        /// The file.
        file: &'a Handle,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
        /// What must be stable before the reply.
        stability: Stability,
        /// The [`digest`](super::digest) of the data, where it is known before the write.
        digest: Option<u32>,
    },
    /// A write at the end of a file.
    Append {
        /// The file.
        file: &'a Handle,
        /// How much, in bytes.
        len: u64,
        /// The [`digest`](super::digest) of the data, where it is known before the write.
        digest: Option<u32>,
    },
}

impl<'a> Change<'a> {
    /// An object in the export that it happens in.
    pub(super) fn place(&self) -> &'a Handle {
        match self {
            Self::Create { dir, .. }
            | Self::Make { dir, .. }
            | Self::Remove { dir, .. }
            | Self::Link { dir, .. } => dir,
            Self::Rename { to_dir, .. } => to_dir,
            Self::SetAttr { file, .. } | Self::Write { file, .. } | Self::Append { file, .. } => {
                file
            }
        }
    }
}
