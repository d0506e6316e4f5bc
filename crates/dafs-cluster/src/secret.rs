//! The secret of a cluster: 32 random bytes in a file on all its servers.
//!
//! MACs are keyed BLAKE2b (RFC 7693) over a purpose and parts, each with its length in front.
//!
//! Invariants
//! * A file holds one secret, or two while the cluster changes from one to the other. A data server
//!   proves itself by the first one, and a metadata server accepts a proof by any of them.

use blake2::Blake2bMac;
use blake2::digest::consts::U32;
use blake2::digest::{KeyInit, Mac};
use dafs_mem::RwLock;
use dafs_store::DataKeys;
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
    #[error(
        "{0} exists already; a new secret would shut out the servers that have this one: make it in another \
         file, and change to it in the steps of docs/striping.md"
    )]
    Exists(PathBuf),
    #[error(
        "{0} is not a secret of 32 bytes, nor two of them one behind the other; make one with: dafs cluster \
         init --secret FILE"
    )]
    Length(PathBuf),
    #[error(
        "{0} holds more than two secrets: end the last change first, with a file of the old and the new \
         one, then of the new one alone"
    )]
    More(PathBuf),
    #[error(
        "{0} holds the same secret twice: for a change it has the old one and the new one: cat OLD NEW >{0}"
    )]
    Twice(PathBuf),
    #[error("{0} can be read by other users, so it is no secret: chmod 600 it")]
    Open(PathBuf),
    #[error(transparent)]
    Owner(#[from] OwnError),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// One secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret([u8; 32]);

/// The secrets at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secrets {
    /// The one by which this end proves itself.
    pub(crate) own: Secret,
    /// Another one that peers may know instead.
    other: Option<Secret>,
}

impl Secrets {
    /// Returns the secrets that a peer may know.
    pub(crate) fn accepted(self) -> impl Iterator<Item = Secret> {
        std::iter::once(self.own).chain(self.other)
    }

    /// True if a peer may know this one.
    pub(crate) fn accepts(self, secret: Secret) -> bool {
        self.accepted().any(|other| other == secret)
    }

    /// True if each of them is accepted by the secrets in force.
    pub(crate) fn are_accepted_by(self, now: Self) -> bool {
        self.accepted().all(|secret| now.accepts(secret))
    }
}

/// The secret in force, or the two while it changes.
pub struct ClusterSecret(RwLock<Secrets>);

impl std::fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterSecret")
    }
}

impl ClusterSecret {
    /// A secret of these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(RwLock::new(Secrets { own: Secret(bytes), other: None }))
    }

    /// The same, with another one that peers may know instead.
    #[must_use]
    pub fn accepting(mut self, other: [u8; 32]) -> Self {
        self.0.get_mut().other = Some(Secret(other));
        self
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

    /// Reads one secret, or two.
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
        file.take(3 * 32).read_to_end(&mut bytes).map_err(failed)?;
        match bytes.as_chunks::<32>() {
            ([own], []) => Ok(Self::from_bytes(*own)),
            ([own, other], []) if own == other => Err(SecretError::Twice(path.to_owned())),
            ([own, other], []) => Ok(Self::from_bytes(*own).accepting(*other)),
            ([_, _, _], _) => Err(SecretError::More(path.to_owned())),
            _ => Err(SecretError::Length(path.to_owned())),
        }
    }

    /// Puts other secrets in force. True if they differ from those before.
    pub fn follow(&self, read: &Self) -> bool {
        let read = read.now();
        std::mem::replace(&mut *self.0.write(), read) != read
    }

    /// Returns the secrets in force.
    pub(crate) fn now(&self) -> Secrets {
        *self.0.read()
    }

    /// Returns the keys of what clients show to the data servers of a store.
    pub fn data_keys(&self, store: &[u8; 16]) -> DataKeys {
        let keys = DataKeys::new(*store, self.now().own.data_key(store));
        self.change_keys(&keys);
        keys
    }

    /// Puts the keys in force that belong to the secrets, after a change of these.
    pub fn change_keys(&self, keys: &DataKeys) {
        // Held meanwhile, so that no earlier secrets are put in force after later ones.
        let now = self.0.read();
        let key = |secret: Secret| secret.data_key(keys.store());
        keys.replace(key(now.own), now.other.map(key));
    }
}

impl Secret {
    /// The key of the handles and tickets that clients show to the data servers of a store. It
    /// reveals nothing about the secret.
    fn data_key(&self, store: &[u8; 16]) -> [u8; 16] {
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
        assert_eq!(secret.now().own.0.as_slice(), std::fs::read(&path).expect("bytes"));
        assert!(matches!(ClusterSecret::make(&path), Err(SecretError::Exists(_))));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("mode");
        assert!(matches!(ClusterSecret::load(&path), Err(SecretError::Open(_))));
    }

    #[test]
    fn a_file_has_one_secret_or_two_that_differ() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        ClusterSecret::make(&path).expect("a secret");
        let load = |bytes: &[&[u8]]| {
            std::fs::write(&path, bytes.concat()).expect("written");
            ClusterSecret::load(&path).map(|read| read.now())
        };
        let (old, new) = (Secret([1; 32]), Secret([2; 32]));
        let one = load(&[&old.0]).expect("one");
        assert!(one == Secrets { own: old, other: None });
        let both = load(&[&new.0, &old.0]).expect("two");
        assert!(both == Secrets { own: new, other: Some(old) });
        let others: [&[&[u8]]; 4] = [&[], &[&[1; 31]], &[&[1; 33]], &[&old.0, &new.0, b"\n"]];
        for wrong in others {
            assert!(matches!(load(wrong), Err(SecretError::Length(_))), "{wrong:?}");
        }
        assert!(matches!(load(&[&old.0, &old.0]), Err(SecretError::Twice(_))));
        for more in [&[3; 32][..], &[3; 64]] {
            assert!(matches!(load(&[&old.0, &new.0, more]), Err(SecretError::More(_))));
        }
    }

    /// A handle that was sealed before a step is accepted after it, at ends that have taken it and
    /// at those that have not.
    #[test]
    fn keys_of_data_servers_change_with_the_secrets() {
        let steps = || {
            let (old, new) = ([1; 32], [2; 32]);
            let one = ClusterSecret::from_bytes;
            [one(old), one(old).accepting(new), one(new).accepting(old), one(new)]
        };
        let store = [9; 16];
        let keys = steps().map(|secret| secret.data_keys(&store));
        for (at, sealing) in keys.iter().enumerate() {
            for (to, accepting) in keys.iter().enumerate() {
                let accepts = accepting.accepted().any(|key| key == sealing.own());
                assert!(accepts || at.abs_diff(to) > 1, "{at} {to}");
            }
        }
        assert!(keys[3].accepted().all(|key| key != keys[0].own()));
        // In a running server.
        let (secret, [_, second, third, last]) = (ClusterSecret::from_bytes([1; 32]), steps());
        let followed = secret.data_keys(&store);
        for (read, wanted) in [second, third, last].iter().zip(&keys[1..]) {
            assert!(secret.follow(read) && !secret.follow(read));
            secret.change_keys(&followed);
            assert!(followed.accepted().eq(wanted.accepted()));
        }
        assert_ne!(followed.own(), secret.data_keys(&[8; 16]).own());
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
        let secret = Secret([1; 32]);
        let mac = secret.mac(b"a", &[b"bc", b"d"]);
        assert!(secret.verify(b"a", &[b"bc", b"d"], &mac));
        assert!(secret.verify(b"a", &[b"bc", b"d"], &mac[..16]));
        assert!(!secret.verify(b"a", &[b"b", b"cd"], &mac));
        assert!(!secret.verify(b"ab", &[b"c", b"d"], &mac));
        assert!(!Secret([2; 32]).verify(b"a", &[b"bc", b"d"], &mac));
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
