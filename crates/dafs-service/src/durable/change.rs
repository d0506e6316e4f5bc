//! The change that a request is about to make, independent of the protocol.

use super::change_locks::{ChangeLock, Hold, LockList};
use crate::handle::Handle;
use dafs_store::{Acl, Kind, NAME_BYTES_MAX, SetAttr, SetXattr, Stability};

/// Some bits of a mode (RFC 8881 5.12, mode_set_masked).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskedMode {
    /// The values of the bits.
    pub value: u32,
    /// The bits to set.
    pub mask: u32,
}

/// A change that is about to be executed.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// An open that makes the file if it does not exist.
    Create {
        /// The directory.
        dir: &'a Handle,
        /// The name in it.
        name: &'a [u8],
        /// The attributes of a new file. Size 0 empties an old one.
        attr: &'a SetAttr,
    },
    /// A new directory, symlink or special file.
    Make {
        /// The directory.
        dir: &'a Handle,
        /// The name in it.
        name: &'a [u8],
        /// The kind of the object.
        kind: Kind,
        /// Its attributes.
        attr: &'a SetAttr,
    },
    /// The removal of a name.
    Remove {
        /// The directory.
        dir: &'a Handle,
        /// The name in it.
        name: &'a [u8],
    },
    /// The replacement of one name by another.
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
    /// Another name for a file, which may have none.
    Link {
        /// The file.
        source: &'a Handle,
        /// The directory of the new name.
        dir: &'a Handle,
        /// The new name.
        name: &'a [u8],
    },
    /// A change of attributes.
    SetAttr {
        /// The object.
        file: &'a Handle,
        /// The attributes to set.
        change: &'a SetAttr,
        /// Bits of the mode to set over those of the object. Then `change` sets no mode.
        masked: Option<MaskedMode>,
        /// The access control list, which is set after the rest.
        acl: Option<&'a Acl>,
    },
    /// A change of an extended attribute: a new value, or its removal.
    SetXattr {
        /// The object.
        file: &'a Handle,
        /// The name of the attribute.
        name: &'a [u8],
        /// The [`digest`](super::digest) of the new value. `None` removes the attribute.
        value: Option<u32>,
        /// The condition on its existence. A removal counts as a replacement.
        how: SetXattr,
    },
    /// A write at an offset. An unstable one has no record.
    Write {
        /// The file.
        file: &'a Handle,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The stability that is required before the reply.
        stability: Stability,
        /// The [`digest`](super::digest) of the data, where it is known before the write.
        digest: Option<u32>,
    },
    /// A write at the end of a file. [`LoggedChange::witness`](super::Op::witness) must see its execution,
    /// and records it when its offset is known.
    Append {
        /// The file.
        file: &'a Handle,
        /// Length in bytes.
        len: u64,
        /// The [`digest`](super::digest) of the data.
        digest: u32,
    },
}

impl<'a> Change<'a> {
    /// True if it empties the file of its name.
    pub(super) fn empties(&self) -> bool {
        matches!(self, Self::Create { attr, .. } if attr.size == Some(0))
    }

    /// True if a store might execute it. No object has a name beyond the length limit.
    pub(super) fn is_possible(&self) -> bool {
        let fits = |name: &[u8]| name.len() <= NAME_BYTES_MAX;
        match self {
            Self::Create { name, .. }
            | Self::Make { name, .. }
            | Self::Remove { name, .. }
            | Self::Link { name, .. }
            | Self::SetXattr { name, .. } => fits(name),
            Self::Rename { from, to, .. } => fits(from) && fits(to),
            Self::SetAttr { .. } | Self::Write { .. } | Self::Append { .. } => true,
        }
    }

    /// An object in its export.
    pub(super) fn place(&self) -> &'a Handle {
        match self {
            Self::Create { dir, .. }
            | Self::Make { dir, .. }
            | Self::Remove { dir, .. }
            | Self::Link { dir, .. } => dir,
            Self::Rename { to_dir, .. } => to_dir,
            Self::SetAttr { file, .. }
            | Self::SetXattr { file, .. }
            | Self::Write { file, .. }
            | Self::Append { file, .. } => file,
        }
    }
}

/// A waiting change, with owned names.
#[derive(Debug)]
pub(super) enum Owned {
    Create { dir: Handle, name: Vec<u8>, attr: SetAttr },
    Make { dir: Handle, name: Vec<u8>, kind: Kind, attr: SetAttr },
    Remove { dir: Handle, name: Vec<u8> },
    Rename { from_dir: Handle, from: Vec<u8>, to_dir: Handle, to: Vec<u8> },
    Link { source: Handle, dir: Handle, name: Vec<u8> },
    SetAttr { file: Handle, change: SetAttr, masked: Option<MaskedMode>, acl: Option<Acl> },
    SetXattr { file: Handle, name: Vec<u8>, value: Option<u32>, how: SetXattr },
    Write { file: Handle, offset: u64, len: u64, stability: Stability, digest: Option<u32> },
    Append { file: Handle, len: u64, digest: u32 },
}

impl Change<'_> {
    pub(super) fn owned(self) -> Owned {
        match self {
            Change::Create { dir, name, attr } => {
                Owned::Create { dir: *dir, name: name.to_vec(), attr: *attr }
            }
            Change::Make { dir, name, kind, attr } => {
                Owned::Make { dir: *dir, name: name.to_vec(), kind, attr: *attr }
            }
            Change::Remove { dir, name } => Owned::Remove { dir: *dir, name: name.to_vec() },
            Change::Rename { from_dir, from, to_dir, to } => {
                let (from, to) = (from.to_vec(), to.to_vec());
                Owned::Rename { from_dir: *from_dir, from, to_dir: *to_dir, to }
            }
            Change::Link { source, dir, name } => {
                Owned::Link { source: *source, dir: *dir, name: name.to_vec() }
            }
            Change::SetAttr { file, change, masked, acl } => {
                Owned::SetAttr { file: *file, change: *change, masked, acl: acl.cloned() }
            }
            Change::SetXattr { file, name, value, how } => {
                Owned::SetXattr { file: *file, name: name.to_vec(), value, how }
            }
            Change::Write { file, offset, len, stability, digest } => {
                Owned::Write { file: *file, offset, len, stability, digest }
            }
            Change::Append { file, len, digest } => Owned::Append { file: *file, len, digest },
        }
    }

    /// True if the change needs a record. To repeat a write does no harm, so a write whose data is
    /// not known has no record, and neither has one that may be lost.
    pub(super) fn is_kept(&self) -> bool {
        !matches!(
            self,
            Self::Write { stability: Stability::Unstable, .. } | Self::Write { digest: None, .. }
        )
    }

    /// True if the change needs a guard when it has no record: recovery judges changes of names and
    /// attributes by their present state.
    pub(super) fn is_guarded(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Append { .. })
    }

    /// Returns the change locks that it takes. `key` returns the key of an object that all exports
    /// share.
    pub(super) fn locks(&self, key: impl Fn(&Handle) -> Handle) -> LockList {
        let name = |dir: &Handle, name: &[u8]| ChangeLock::name(&key(dir), name);
        match self {
            Self::Create { dir, name: at, .. }
            | Self::Make { dir, name: at, .. }
            | Self::Remove { dir, name: at }
            | Self::Link { dir, name: at, .. } => [name(dir, at)].into_iter().collect(),
            Self::Rename { from_dir, from, to_dir, to } => {
                [name(from_dir, from), name(to_dir, to)].into_iter().collect()
            }
            Self::Write { file, .. } => {
                [ChangeLock::file(&key(file), Hold::Write)].into_iter().collect()
            }
            Self::SetAttr { file, .. }
            | Self::SetXattr { file, .. }
            | Self::Append { file, .. } => {
                [ChangeLock::file(&key(file), Hold::Alone)].into_iter().collect()
            }
        }
    }
}

impl Owned {
    pub(super) fn borrow(&self) -> Change<'_> {
        match self {
            Self::Create { dir, name, attr } => Change::Create { dir, name, attr },
            Self::Make { dir, name, kind, attr } => Change::Make { dir, name, kind: *kind, attr },
            Self::Remove { dir, name } => Change::Remove { dir, name },
            Self::Rename { from_dir, from, to_dir, to } => {
                Change::Rename { from_dir, from, to_dir, to }
            }
            Self::Link { source, dir, name } => Change::Link { source, dir, name },
            Self::SetAttr { file, change, masked, acl } => {
                Change::SetAttr { file, change, masked: *masked, acl: acl.as_ref() }
            }
            &Self::SetXattr { ref file, ref name, value, how } => {
                Change::SetXattr { file, name, value, how }
            }
            &Self::Write { ref file, offset, len, stability, digest } => {
                Change::Write { file, offset, len, stability, digest }
            }
            &Self::Append { ref file, len, digest } => Change::Append { file, len, digest },
        }
    }
}
