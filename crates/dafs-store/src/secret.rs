//! The secret of an export, by which its ids are told from forged ones.

use crate::{Result, StoreError};
use std::fmt;

/// The key of an export's ids. Whoever knows it can name any inode of the file system, so it is
/// kept as carefully as a password. Losing it makes every id of the export fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExportSecret([u8; 16]);

impl ExportSecret {
    /// A secret that was stored before.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// A new one from the system's random numbers.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the system has none.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| StoreError::Io)?;
        Ok(Self(bytes))
    }

    /// The bytes to store.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for ExportSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportSecret(..)")
    }
}
