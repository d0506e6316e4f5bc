//! How to open a file.

use crate::attributes::SetAttributes;
use dafs_wire::dafs::ShareKey;
pub use dafs_wire::dafs::{AccessPattern, HintWord, Likelihood, ShareAccess, ShareDeny};

/// The rule for a file that is missing or exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Create {
    /// The file must exist.
    #[default]
    Never,
    /// Make it when it is missing.
    IfMissing,
    /// Make it; fail when it exists.
    New,
    /// Make it; fail when it exists unless this very call made it, even if the connection broke in
    /// between.
    Exclusive,
}

/// How to open a file. The default opens an existing file for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    pub(crate) access: ShareAccess,
    pub(crate) deny: ShareDeny,
    pub(crate) deny_delete: bool,
    pub(crate) share_key: ShareKey,
    pub(crate) create: Create,
    pub(crate) truncate: bool,
    pub(crate) attributes: SetAttributes,
    pub(crate) direct: bool,
    pub(crate) hint: HintWord,
    pub(crate) pattern: AccessPattern,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            access: ShareAccess::Read,
            deny: ShareDeny::None,
            deny_delete: false,
            share_key: ShareKey::None,
            create: Create::Never,
            truncate: false,
            attributes: SetAttributes::default(),
            direct: false,
            hint: HintWord::NONE,
            pattern: AccessPattern::Normal,
        }
    }
}

impl OpenOptions {
    /// For reading.
    pub fn read() -> Self {
        Self::default()
    }

    /// For writing.
    pub fn write() -> Self {
        Self { access: ShareAccess::Write, ..Self::default() }
    }

    /// For both.
    pub fn read_write() -> Self {
        Self { access: ShareAccess::Both, ..Self::default() }
    }

    /// Sets the rule for a missing or existing file.
    #[must_use]
    pub fn create(self, create: Create) -> Self {
        Self { create, ..self }
    }

    /// Permission bits of a new file.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.attributes.mode = Some(mode);
        self
    }

    /// Attributes of a new file.
    #[must_use]
    pub fn attributes(self, attributes: SetAttributes) -> Self {
        Self { attributes, ..self }
    }

    /// Truncates an existing file to zero.
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// Denies others accesses while the file is open (share reservation).
    #[must_use]
    pub fn deny(self, deny: ShareDeny) -> Self {
        Self { deny, ..self }
    }

    /// Keeps others from removing the file, or renaming another over it, while it is open. It may
    /// still be renamed itself.
    #[must_use]
    pub fn deny_delete(self, deny_delete: bool) -> Self {
        Self { deny_delete, ..self }
    }

    /// Bypasses the client's cache for this open, if there is one: reads and writes go to the
    /// server. For programs that cache data themselves.
    #[must_use]
    pub fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    /// Sets the prediction that rides on each read and write through this open, about the bytes that
    /// it moves. [`HintWord::CACHED`] suits files that the program, or this client's cache, keeps
    /// itself; [`HintWord::DONE`] suits files that are read once. See [`File::set_hint`].
    ///
    /// [`File::set_hint`]: crate::File::set_hint
    #[must_use]
    pub fn hint(self, hint: HintWord) -> Self {
        Self { hint, ..self }
    }

    /// Tells the server how the whole file will be used, by a request after the open. The open does
    /// not fail with it.
    #[must_use]
    pub fn pattern(self, pattern: AccessPattern) -> Self {
        Self { pattern, ..self }
    }

    /// Opens only together with opens of the same key: KEY_MISMATCH while the file is open under
    /// another key (DAFS 10.2). In an export with `shared_keys = "strict"` it is as
    /// [`strict_share_key`](Self::strict_share_key). Elsewhere opens without a key do not conflict.
    #[must_use]
    pub fn share_key(self, key: u64) -> Self {
        Self { share_key: ShareKey::Both(key), ..self }
    }

    /// As [`share_key`](Self::share_key), and excludes every caller without the key, of DAFS and
    /// NFS, until the file is closed: KEY_MISMATCH also while the file is open without a key, and
    /// later opens without it fail. Needs the right to write the file, also to open it for reading:
    /// else ACCES. An extension: INVAL from a server without it.
    #[must_use]
    pub fn strict_share_key(self, key: u64) -> Self {
        Self { share_key: ShareKey::XStrict(key), ..self }
    }
}
