//! The secret of an export: the key that protects its ids from forgery.

use crate::{Result, StoreError};
use std::fmt;

/// The key of an export's ids. A client that knows it can name any inode of the file system, so it
/// is kept as carefully as a password. If it is lost, every id of the export fails.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExportSecret {
    bytes: [u8; 16],
    short_ids: bool,
}

impl ExportSecret {
    /// Takes a secret that was stored before.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self { bytes, short_ids: false }
    }

    /// Lets stores make ids that protocols can shorten ([`FileId::SHORT`](crate::FileId::SHORT)). It
    /// belongs to the secret for good, because clients know an object by one handle alone.
    #[must_use]
    pub fn with_short_ids(self) -> Self {
        Self { short_ids: true, ..self }
    }

    /// True if stores make such ids.
    pub fn has_short_ids(&self) -> bool {
        self.short_ids
    }

    /// Generates a secret from the system's random numbers.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the system has none.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| StoreError::Io)?;
        Ok(Self::from_bytes(bytes))
    }

    /// Returns the bytes to store.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.bytes
    }
}

impl fmt::Debug for ExportSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportSecret(..)")
    }
}
