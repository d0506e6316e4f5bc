//! The secret of an export: the key that protects its ids from forgery.

use crate::{Result, StoreError};
use std::fmt;

/// The key of an export's ids. A client that knows it can name any inode of the file system, so it
/// is kept as carefully as a password. If it is lost, every id of the export fails.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExportSecret([u8; 16]);

impl ExportSecret {
    /// Takes a secret that was stored before.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Generates a secret from the system's random numbers.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the system has none.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| StoreError::Io)?;
        Ok(Self(bytes))
    }

    /// Returns the bytes to store.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for ExportSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportSecret(..)")
    }
}
