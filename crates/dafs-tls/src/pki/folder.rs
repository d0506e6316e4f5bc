//! The files of an authority and of the certificates that it has issued.

use crate::certificate::{Certificate, SubjectName};
use crate::pki::{Authority, Pair, PkiError, Use};
use crate::user::UserName;
use rustix::fs::{FlockOperation, flock};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The mode of files that anybody may read.
const PUBLIC: u32 = 0o644;

/// The mode of keys.
const SECRET: u32 = 0o600;

/// The folder of an authority.
///
/// | file | content | mode |
/// |---|---|---|
/// | `ca.pem` | the authority's certificate, for every server and client | 0644 |
/// | `ca-key.pem` | the authority's key | 0600 |
/// | `STEM.pem`, `STEM-key.pem` | a server's or a client's certificate and key | 0644, 0600 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// A certificate in the folder: its two files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The certificate.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

impl Folder {
    /// Makes a new folder with an authority of this name.
    ///
    /// # Errors
    /// [`PkiError::Exists`], [`PkiError::Io`], [`PkiError::Failed`].
    pub fn create(path: &Path, name: &str, now_seconds: u64) -> Result<Self, PkiError> {
        let authority = Authority::create(name, now_seconds)?;
        DirBuilder::new().mode(0o755).create(path).map_err(|error| failed(path, error))?;
        let folder = Self(path.to_owned());
        let files = folder.files("ca");
        write_new(&files.key, SECRET, authority.key())?;
        write_new(&files.certificate, PUBLIC, authority.certificate())?;
        Ok(folder)
    }

    /// Takes a folder that [`Self::create`] has made.
    pub fn open(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The files of the authority.
    pub fn authority_files(&self) -> Made {
        self.files("ca")
    }

    /// Issues `server.pem` for these host names and addresses.
    ///
    /// # Errors
    /// [`PkiError`]; existing files stay.
    pub fn add_server(&self, names: &[String], now_seconds: u64) -> Result<Made, PkiError> {
        self.issue(Use::Server, "server", names, None, now_seconds)
    }

    /// Issues `STEM.pem` for these names, and for this user.
    ///
    /// # Errors
    /// [`PkiError`]; existing files stay.
    pub fn issue(
        &self,
        purpose: Use,
        stem: &str,
        names: &[String],
        user: Option<&str>,
        now_seconds: u64,
    ) -> Result<Made, PkiError> {
        let stem = checked(stem)?;
        let pair = self.authority()?.issue(names, user, purpose, now_seconds)?;
        self.add(stem, &pair)
    }

    /// Replaces `STEM.pem` and its key by new ones with the same names.
    ///
    /// # Errors
    /// [`PkiError`]; before anything is replaced, except when the disk fails between the two files.
    pub fn renew(&self, purpose: Use, stem: &str, now_seconds: u64) -> Result<Made, PkiError> {
        let stem = checked(stem)?;
        // Of two renewals at a time, one would take the key and the other the certificate.
        let folder = File::open(&self.0).map_err(|error| failed(&self.0, error))?;
        let locked = flock(&folder, FlockOperation::LockExclusive);
        locked.map_err(|error| failed(&self.0, error.into()))?;
        let old = self.read(stem)?;
        let names: Vec<_> = old.names().iter().map(SubjectName::to_string).collect();
        let user = match old.user() {
            UserName::One(user) => Some(&**user),
            UserName::Absent => None,
            UserName::Unclear => return Err(PkiError::UnclearUser(self.files(stem).certificate)),
        };
        let pair = self.authority()?.issue(&names, user, purpose, now_seconds)?;
        self.replace(stem, &pair)
    }

    /// Issues `client.pem`.
    ///
    /// # Errors
    /// [`PkiError`]; existing files stay.
    pub fn add_client(&self, names: &[String], now_seconds: u64) -> Result<Made, PkiError> {
        self.issue(Use::Client, "client", names, None, now_seconds)
    }

    /// Replaces `server.pem` and its key by new ones with the same names.
    ///
    /// # Errors
    /// [`PkiError`]; before anything is replaced, except when the disk fails between the two files.
    pub fn renew_server(&self, now_seconds: u64) -> Result<Made, PkiError> {
        self.renew(Use::Server, "server", now_seconds)
    }

    /// Replaces `client.pem` and its key by new ones with the same names.
    ///
    /// # Errors
    /// As [`Self::renew_server`].
    pub fn renew_client(&self, now_seconds: u64) -> Result<Made, PkiError> {
        self.renew(Use::Client, "client", now_seconds)
    }

    fn authority(&self) -> Result<Authority, PkiError> {
        let files = self.files("ca");
        let read = |path: &Path| fs::read_to_string(path).map_err(|error| failed(path, error));
        let key = Zeroizing::new(read(&files.key)?);
        Authority::from_pem(&read(&files.certificate)?, &key)
    }

    fn files(&self, stem: &str) -> Made {
        let at = |name: String| self.0.join(name);
        Made { certificate: at(format!("{stem}.pem")), key: at(format!("{stem}-key.pem")) }
    }

    /// An issued certificate.
    fn read(&self, stem: &str) -> Result<Certificate, PkiError> {
        let path = self.files(stem).certificate;
        let bytes = fs::read(&path).map_err(|error| failed(&path, error))?;
        CertificateDer::from_pem_slice(&bytes)
            .ok()
            .and_then(|own| Certificate::read(&own).ok())
            .ok_or(PkiError::Unreadable(path))
    }

    fn add(&self, stem: &str, pair: &Pair) -> Result<Made, PkiError> {
        let files = self.files(stem);
        for path in [&files.certificate, &files.key] {
            if path.symlink_metadata().is_ok() {
                return Err(PkiError::Exists(path.clone()));
            }
        }
        write_new(&files.key, SECRET, &pair.key)?;
        write_new(&files.certificate, PUBLIC, &pair.certificate)?;
        Ok(files)
    }

    /// A server that reloads between the two renames keeps its old pair, and takes the new one
    /// later.
    fn replace(&self, stem: &str, pair: &Pair) -> Result<Made, PkiError> {
        let files = self.files(stem);
        let beside = |path: &Path| path.with_extension("pem.new");
        let both =
            [(&files.key, SECRET, &*pair.key), (&files.certificate, PUBLIC, &pair.certificate)];
        for (path, mode, text) in both {
            let aside = beside(path);
            // An interrupted renewal may have left it.
            match fs::remove_file(&aside) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed(&aside, error));
                }
                _ => write_new(&aside, mode, text)?,
            }
        }
        for (path, _, _) in both {
            fs::rename(beside(path), path).map_err(|error| failed(path, error))?;
        }
        Ok(files)
    }
}

/// A stem that leads to no other folder, and to no file of the authority.
fn checked(stem: &str) -> Result<&str, PkiError> {
    let is_plain = !stem.is_empty() && !stem.starts_with(['.', '-']) && !stem.contains(['/', '\0']);
    match is_plain && !matches!(stem, "ca" | "ca-key") {
        true => Ok(stem),
        false => Err(PkiError::Name(stem.to_owned())),
    }
}

fn failed(path: &Path, error: io::Error) -> PkiError {
    match error.kind() {
        ErrorKind::AlreadyExists => PkiError::Exists(path.to_owned()),
        _ => PkiError::Io(path.to_owned(), error),
    }
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), PkiError> {
    let put = || -> io::Result<()> {
        let mut file: File = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    put().map_err(|error| failed(path, error))
}
