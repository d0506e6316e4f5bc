//! The secret of a cluster: 32 random bytes in a file on all its servers.
//!
//! MACs are keyed BLAKE2b (RFC 7693) over a purpose and parts, each with its length in front.

use blake2::Blake2bMac;
use blake2::digest::consts::U32;
use blake2::digest::{KeyInit, Mac};
use dafs_store::own::{self, OwnError};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why there is no secret.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SecretError {
    #[error("{0} exists already; a new secret would shut out the servers that have this one")]
    Exists(PathBuf),
    #[error("{0} is not a secret of 32 bytes; make one with: dafs cluster init --secret FILE")]
    Length(PathBuf),
    #[error("{0} can be read by other users, so it is no secret: chmod 600 it")]
    Open(PathBuf),
    #[error(transparent)]
    Owner(#[from] OwnError),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// The secret.
pub struct ClusterSecret([u8; 32]);

impl std::fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterSecret")
    }
}

impl ClusterSecret {
    /// A secret of these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Makes a new secret, in a file that only its owner can read.
    ///
    /// # Errors
    /// When the file exists, or cannot be made.
    pub fn make(path: &Path) -> Result<(), SecretError> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::AlreadyExists => SecretError::Exists(path.to_owned()),
            _ => SecretError::Io(path.to_owned(), error),
        };
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| failed(io::Error::other(error)))?;
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)
    }

    /// Reads a secret.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn load(path: &Path) -> Result<Self, SecretError> {
        let failed = |error| SecretError::Io(path.to_owned(), error);
        let file = own::open_named(path).map_err(|error| match error {
            OwnError::Io(_, error) => failed(error),
            error => error.into(),
        })?;
        let found = file.metadata().map_err(failed)?;
        if found.mode() & 0o077 != 0 {
            return Err(SecretError::Open(path.to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(33).read_to_end(&mut bytes).map_err(failed)?;
        let bytes = bytes.try_into().map_err(|_| SecretError::Length(path.to_owned()))?;
        Ok(Self(bytes))
    }

    /// The key of the handles by which clients name the components of a store. It reveals nothing
    /// about the secret.
    pub fn component_secret(&self, store: &[u8; 16]) -> [u8; 16] {
        let mac = self.mac(b"components", &[store]);
        std::array::from_fn(|at| mac[at])
    }

    fn hasher(&self, purpose: &[u8], parts: &[&[u8]]) -> Blake2bMac<U32> {
        // INVARIANT: a key may have up to 64 bytes.
        let mut hasher = Blake2bMac::<U32>::new_from_slice(&self.0).expect("a key of 32 bytes");
        for part in std::iter::once(&purpose).chain(parts) {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher
    }

    /// Returns the MAC of some parts for one purpose.
    pub(crate) fn mac(&self, purpose: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        self.hasher(purpose, parts).finalize().into_bytes().into()
    }

    /// True if a MAC, or the first bytes of one, are valid. Takes constant time.
    pub(crate) fn verify(&self, purpose: &[u8], parts: &[&[u8]], mac: &[u8]) -> bool {
        self.hasher(purpose, parts).verify_truncated_left(mac).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_made_once_and_read_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        ClusterSecret::make(&path).expect("a secret");
        let secret = ClusterSecret::load(&path).expect("the secret");
        assert_eq!(secret.0.as_slice(), std::fs::read(&path).expect("bytes"));
        assert!(matches!(ClusterSecret::make(&path), Err(SecretError::Exists(_))));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("mode");
        assert!(matches!(ClusterSecret::load(&path), Err(SecretError::Open(_))));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("mode");
        std::fs::write(&path, [1; 33]).expect("written");
        assert!(matches!(ClusterSecret::load(&path), Err(SecretError::Length(_))));
    }

    #[test]
    fn a_secret_is_not_named_by_a_symlink_of_another_user() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, link) = (dir.path().join("secret"), dir.path().join("link"));
        ClusterSecret::make(&path).expect("a secret");
        std::os::unix::fs::symlink(&path, &link).expect("a symlink");
        ClusterSecret::load(&link).expect("secrets of containers are so");
        assert!(matches!(ClusterSecret::make(&link), Err(SecretError::Exists(_))));
        if std::os::unix::fs::lchown(&link, Some(1), None).is_err() {
            return;
        }
        assert!(matches!(ClusterSecret::load(&link), Err(SecretError::Owner(_))));
    }

    #[test]
    fn macs_tell_purposes_parts_and_secrets_apart() {
        let secret = ClusterSecret([1; 32]);
        let mac = secret.mac(b"a", &[b"bc", b"d"]);
        assert!(secret.verify(b"a", &[b"bc", b"d"], &mac));
        assert!(secret.verify(b"a", &[b"bc", b"d"], &mac[..16]));
        assert!(!secret.verify(b"a", &[b"b", b"cd"], &mac));
        assert!(!secret.verify(b"ab", &[b"c", b"d"], &mac));
        assert!(!ClusterSecret([2; 32]).verify(b"a", &[b"bc", b"d"], &mac));
        assert!(!secret.verify(b"a", &[b"bc", b"d"], &[]));
    }

    /// Keyed BLAKE2b with 32 bytes of output over "abc", checked with another implementation.
    #[test]
    fn macs_are_blake2b() {
        let mut hasher = Blake2bMac::<U32>::new_from_slice(&[1; 32]).expect("a key");
        hasher.update(b"abc");
        let mac = hasher.finalize().into_bytes();
        let hex: String = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "8cc77af752046919e25cca7b87a17aaa67fb6aad75964f730a1c2178c986505c");
    }
}
