//! Reading certificates, keys and revocation lists from PEM files (RFC 7468).
//!
//! Invariants
//! * A key comes from a file that its owner alone can read. Any file belongs to this user or root.
//! * No more than 1 MiB of a file is read. The bytes of a key leave memory after they were read.

use crate::certificate::Certificate;
use crate::config::key::{NoKey, PrivateKey};
use crate::config::{ClientSide, ConfigError, Identity, ServerSide};
use crate::keys::Side;
use crate::limits::{DAY_SECONDS, FILE_BYTES_MAX};
use crate::protocol::TransportSecurity;
use crate::trust::{Trust, TrustError};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The occasion of reading files.
#[derive(Clone, Copy, Debug)]
pub struct Loading {
    /// The generation of the configuration; 1 at the start of the program.
    pub(crate) generation: u64,
    /// The time, since 1970.
    pub(crate) now_seconds: u64,
}

/// The files of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerFiles {
    /// The server's certificate, then those of its issuers.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// The authorities that vouch for clients.
    pub authorities: Option<PathBuf>,
    /// The revocation lists of these authorities. A list counts even after its own end, because old
    /// knowledge is better than none.
    pub revocations: Option<PathBuf>,
    /// The least that every connection has.
    pub policy: TransportSecurity,
}

/// The files of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authorities that vouch for servers.
    pub authorities: PathBuf,
    /// The revocation lists of these authorities.
    pub revocations: Option<PathBuf>,
    /// The client's certificate, then those of its issuers.
    pub certificate: Option<PathBuf>,
    /// The key of the certificate.
    pub key: Option<PathBuf>,
}

impl ServerFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(&self, now_seconds: u64) -> Result<ServerSide, ConfigError> {
        self.load_as(Loading { generation: 1, now_seconds })
    }

    pub(crate) fn load_as(&self, loading: Loading) -> Result<ServerSide, ConfigError> {
        let (policy, generation) = (self.policy, loading.generation);
        if policy == TransportSecurity::Mtls && self.authorities.is_none() {
            return Err(ConfigError::NoAuthorities);
        }
        let identity = read_identity(&self.certificate, &self.key, Side::Server, loading)?;
        let trust = read_trust(self.authorities.as_deref(), self.revocations.as_deref())?;
        let trust_generation = generation;
        let (identity, trust, rules) = (Arc::new(identity), Arc::new(trust), None);
        Ok(ServerSide { identity, trust, policy, generation, trust_generation, rules })
    }
}

impl ClientFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(&self, now_seconds: u64) -> Result<ClientSide, ConfigError> {
        self.load_as(Loading { generation: 1, now_seconds })
    }

    pub(crate) fn load_as(&self, loading: Loading) -> Result<ClientSide, ConfigError> {
        let generation = loading.generation;
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                Some(read_identity(certificate, key, Side::Client, loading)?)
            }
            (None, None) => None,
            _ => return Err(ConfigError::NamedAlone),
        };
        let trust = read_trust(Some(&self.authorities), self.revocations.as_deref())?;
        Ok(ClientSide { identity, trust, verifies_servers: true, generation })
    }
}

/// Reads the whole file, which no other user may change. A symlink is followed if its owner is
/// trusted, as secrets of containers have them.
fn read(path: &Path, is_secret: bool) -> Result<Zeroizing<Vec<u8>>, ConfigError> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => ConfigError::Missing(path.to_owned()),
        _ => ConfigError::Io(path.to_owned(), error),
    };
    check_owner(path, fs::symlink_metadata(path).map_err(failed)?.uid())?;
    // The open does not block on a pipe that stands in the place of a file.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(ConfigError::Folder(path.to_owned()));
    }
    if !found.is_file() {
        return Err(ConfigError::NoFile(path.to_owned()));
    }
    check_owner(path, found.uid())?;
    if is_secret && found.mode() & 0o077 != 0 {
        return Err(ConfigError::KeyOpen(path.to_owned()));
    }
    match found.mode() & 0o022 {
        0 => {}
        0o020 if is_own_group(&found) => {}
        _ => return Err(ConfigError::Writable(path.to_owned())),
    }
    // Growth would leave copies of a key in freed memory.
    let room = found.len().min(FILE_BYTES_MAX) as usize + 32;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 {
        0 => Err(ConfigError::Empty(path.to_owned())),
        1..=FILE_BYTES_MAX => Ok(bytes),
        _ => Err(ConfigError::TooLong(path.to_owned())),
    }
}

/// True if a file belongs to the ordinary user that runs this program, and to that user's group. With
/// the usual umask of 002 that group can write to all new files of the user.
fn is_own_group(found: &fs::Metadata) -> bool {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    !user.is_root() && found.uid() == user.as_raw() && found.gid() == group.as_raw()
}

/// Checks that the owner is trusted: this user or root.
fn check_owner(path: &Path, owner: u32) -> Result<(), ConfigError> {
    let to = rustix::process::geteuid().as_raw();
    match owner == 0 || owner == to {
        true => Ok(()),
        false => Err(ConfigError::Owner { path: path.to_owned(), owner, to }),
    }
}

/// All objects of one kind in a PEM file.
fn objects<T: PemObject>(path: &Path, bytes: &[u8]) -> Result<Vec<T>, ConfigError> {
    let found: Result<Vec<T>, pem::Error> = T::pem_slice_iter(bytes).collect();
    found.map_err(|error| ConfigError::Pem { path: path.to_owned(), reason: pem_words(&error) })
}

/// rustls prints the bytes of a line as numbers.
fn pem_words(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "an END line is missing".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is damaged".to_owned(),
        pem::Error::Base64Decode(_) => "there are other characters than base64 in it".to_owned(),
        other => other.to_string(),
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let bytes = read(path, false)?;
    let certificates: Vec<CertificateDer<'static>> = objects(path, &bytes)?;
    match certificates.is_empty() {
        true => Err(ConfigError::NoCertificate(path.to_owned())),
        false => Ok(certificates),
    }
}

fn read_key(path: &Path) -> Result<PrivateKey, ConfigError> {
    let bytes = read(path, true)?;
    let is_encrypted = [&b"BEGIN ENCRYPTED PRIVATE KEY"[..], b"Proc-Type: 4,ENCRYPTED"]
        .iter()
        .any(|mark| bytes.windows(mark.len()).any(|window| window == *mark));
    if is_encrypted {
        return Err(ConfigError::EncryptedKey(path.to_owned()));
    }
    PrivateKey::from_pem(&bytes).map_err(|no_key| match no_key {
        NoKey::Missing => ConfigError::NoKey(path.to_owned()),
        NoKey::Damaged(reason) => ConfigError::Pem { path: path.to_owned(), reason: reason.into() },
    })
}

fn read_identity(
    path: &Path,
    key_path: &Path,
    side: Side,
    loading: Loading,
) -> Result<Identity, ConfigError> {
    let chain = read_certificates(path)?;
    let certificate =
        Certificate::read(&chain[0]).map_err(|_| ConfigError::Certificate(path.to_owned()))?;
    let key = read_key(key_path)?;
    let unusable = || ConfigError::KeyUnusable(key_path.to_owned());
    let key = CertifiedKey::new(chain, any_supported_type(&key.der()).map_err(|_| unusable())?);
    key.keys_match().or_else(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::Unknown) => Ok(()),
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            Err(ConfigError::Mismatch { certificate: path.to_owned(), key: key_path.to_owned() })
        }
        Error::InvalidCertificate(_) => Err(ConfigError::Certificate(path.to_owned())),
        _ => Err(unusable()),
    })?;
    check_use(path, &certificate, side, loading)?;
    Ok(Identity { key: Arc::new(key), certificate })
}

/// Finds now what every peer would find later.
fn check_use(
    path: &Path,
    certificate: &Certificate,
    side: Side,
    Loading { generation, now_seconds }: Loading,
) -> Result<(), ConfigError> {
    let (starts, ends) = (certificate.not_before_seconds(), certificate.not_after_seconds());
    // A certificate that has ended since must not keep a new revocation list out.
    if now_seconds > ends && generation == 1 {
        let days = (now_seconds - ends) / DAY_SECONDS;
        return Err(ConfigError::Expired { path: path.to_owned(), days });
    }
    if now_seconds < starts {
        let seconds = starts - now_seconds;
        return Err(ConfigError::NotYetValid { path: path.to_owned(), seconds });
    }
    let purposes = certificate.purposes();
    let (is_allowed, words, missing) = match side {
        Side::Server => (purposes.is_none_or(|found| found.server), "server", "serverAuth"),
        Side::Client => (purposes.is_none_or(|found| found.client), "client", "clientAuth"),
    };
    match is_allowed {
        true => Ok(()),
        false => Err(ConfigError::Purpose { path: path.to_owned(), side: words, missing }),
    }
}

fn read_trust(
    authorities: Option<&Path>,
    revocations: Option<&Path>,
) -> Result<Trust, ConfigError> {
    let Some(path) = authorities else {
        return match revocations {
            Some(_) => Err(ConfigError::NoUseForRevocations),
            None => Ok(Trust::nobody()),
        };
    };
    let certificates = read_certificates(path)?;
    let lists = match revocations {
        Some(path) => read_revocations(path)?,
        None => Vec::new(),
    };
    Trust::new(certificates, lists).map_err(|error| match error {
        TrustError::Authority(number) => ConfigError::Authority { path: path.to_owned(), number },
        TrustError::Revocations(reason) => {
            ConfigError::Revocations { path: revocations.unwrap_or(path).to_owned(), reason }
        }
    })
}

fn read_revocations(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, ConfigError> {
    let bytes = read(path, false)?;
    let lists: Vec<CertificateRevocationListDer<'static>> = objects(path, &bytes)?;
    match lists.is_empty() {
        true => Err(ConfigError::NoRevocations(path.to_owned())),
        false => Ok(lists),
    }
}

#[cfg(test)]
mod tests;
