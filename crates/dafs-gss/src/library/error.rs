//! Errors of setting up credentials, worded for administrators.

use crate::mechanism::Failure;
use dafs_mem::Unavailable;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The reason why Kerberos cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// The keytab cannot be used.
    #[error("the keytab {}: {problem}", path.display())]
    Keytab {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: KeytabProblem,
    },
    /// The library refuses the credentials.
    #[error("Kerberos has no credentials for {of}: {failure}")]
    Credentials {
        /// The service or the principal.
        of: String,
        /// The reason, in the words of the library.
        failure: Failure,
    },
    /// A path or a name has a zero byte, which the library cannot take.
    #[error("{0:?} has a zero byte")]
    ZeroByte(String),
    /// The library cannot be loaded.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// The reason why a keytab cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeytabProblem {
    /// The file holds no keys.
    #[error("holds no keys; write them: kadmin ktadd -k KEYTAB SERVICE/HOST")]
    Empty,
    /// The file is not there.
    #[error("does not exist; write it: kadmin ktadd -k KEYTAB SERVICE/HOST")]
    Missing,
    /// The file is something else.
    #[error("is no keytab; name the file that kadmin ktadd has written")]
    NoKeytab,
    /// The file cannot be read.
    #[error("cannot be read ({0}); it must be readable for the user that this program runs as")]
    Unreadable(io::Error),
}

/// The bytes before the first key: the mark of a keytab and its version, 1 or 2.
const MARK_BYTES: usize = 2;

/// Looks at a keytab before the library does, whose texts do not say what is wrong with it.
pub(super) fn check_keytab(path: &Path) -> Result<(), LibraryError> {
    let check = || -> Result<(), KeytabProblem> {
        let mut file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => KeytabProblem::Missing,
            _ => KeytabProblem::Unreadable(error),
        })?;
        let about = file.metadata().map_err(KeytabProblem::Unreadable)?;
        if !about.is_file() {
            return Err(KeytabProblem::NoKeytab);
        }
        if about.len() <= MARK_BYTES as u64 {
            return Err(KeytabProblem::Empty);
        }
        let mut mark = [0; MARK_BYTES];
        file.read_exact(&mut mark).map_err(KeytabProblem::Unreadable)?;
        if matches!(mark, [5, 1 | 2]) { Ok(()) } else { Err(KeytabProblem::NoKeytab) }
    };
    check().map_err(|problem| LibraryError::Keytab { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_keytabs_are_told_apart() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("keytab");
        let text = || check_keytab(&path).unwrap_err().to_string();
        assert!(text().contains("keytab: does not exist; write it: kadmin ktadd"), "{}", text());
        for (content, want) in [
            (&b""[..], "holds no keys"),
            (b"\x05\x02", "holds no keys"),
            (b"hello", "is no keytab"),
            (b"\x05\x03more", "is no keytab"),
        ] {
            std::fs::write(&path, content).unwrap();
            assert!(text().contains(want), "{}", text());
        }
        std::fs::write(&path, b"\x05\x02more").unwrap();
        check_keytab(&path).unwrap();
        let folder = check_keytab(dir.path()).unwrap_err().to_string();
        assert!(folder.contains("is no keytab"), "{folder}");
    }
}
