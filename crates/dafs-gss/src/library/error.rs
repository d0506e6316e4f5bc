//! Errors of setting up credentials, worded for administrators.

use crate::mechanism::Failure;
use dafs_mem::Unavailable;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
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
    /// Other users can read or change the keys.
    #[error("can be read or changed by other users (mode {0:o}); run: chmod 600 KEYTAB")]
    Open(u32),
    /// Another user owns the file, or the symlink to it.
    #[error(
        "belongs to user {owner}, who could put other keys into it; run: chown {to} KEYTAB, with -h for a symlink"
    )]
    Owner {
        /// The owner.
        owner: u32,
        /// The user of this process.
        to: u32,
    },
    /// The file cannot be read.
    #[error("cannot be read ({0}); it must be readable for the user that this program runs as")]
    Unreadable(io::Error),
}

/// The bytes before the first key: the mark of a keytab and its version, 1 or 2.
const MARK_BYTES: usize = 2;

/// The permissions of the group and of other users.
const OTHERS: u32 = 0o077;

/// Looks at a keytab before the library does, whose texts do not say what is wrong with it.
pub(super) fn check_keytab(path: &Path) -> Result<(), LibraryError> {
    let missing = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => KeytabProblem::Missing,
        _ => KeytabProblem::Unreadable(error),
    };
    let check = || -> Result<(), KeytabProblem> {
        // A pipe would block the thread that opens it.
        if !std::fs::metadata(path).map_err(missing)?.is_file() {
            return Err(KeytabProblem::NoKeytab);
        }
        let mut file = File::open(path).map_err(missing)?;
        let about = file.metadata().map_err(KeytabProblem::Unreadable)?;
        let named = std::fs::symlink_metadata(path).map_err(missing)?;
        check_owners([named.uid(), about.uid()], rustix::process::geteuid().as_raw())?;
        if !about.is_file() {
            return Err(KeytabProblem::NoKeytab);
        }
        if about.len() <= MARK_BYTES as u64 {
            return Err(KeytabProblem::Empty);
        }
        let mut mark = [0; MARK_BYTES];
        file.read_exact(&mut mark).map_err(KeytabProblem::Unreadable)?;
        if !matches!(mark, [5, 1 | 2]) {
            return Err(KeytabProblem::NoKeytab);
        }
        match about.mode() & OTHERS {
            0 => Ok(()),
            _ => Err(KeytabProblem::Open(about.mode() & 0o7777)),
        }
    };
    check().map_err(|problem| LibraryError::Keytab { path: path.to_owned(), problem })
}

/// Checks that the owners of a symlink and its file are trusted: the user of this process or root.
fn check_owners(owners: [u32; 2], own: u32) -> Result<(), KeytabProblem> {
    match owners.into_iter().find(|owner| *owner != 0 && *owner != own) {
        Some(owner) => Err(KeytabProblem::Owner { owner, to: own }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn keytabs_of_other_users_are_refused() {
        for (owners, own, is_taken) in [
            ([0, 0], 7, true),
            ([7, 0], 7, true),
            ([7, 7], 7, true),
            ([0, 7], 0, false),
            ([7, 0], 0, false),
            ([7, 8], 7, false),
        ] {
            assert_eq!(check_owners(owners, own).is_ok(), is_taken, "{owners:?} {own}");
        }
        let error = check_owners([7, 8], 7).unwrap_err().to_string();
        assert!(error.contains("belongs to user 8") && error.contains("chown 7 KEYTAB"), "{error}");
    }

    #[test]
    fn bad_keytabs_are_told_apart() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("keytab");
        let text = || check_keytab(&path).unwrap_err().to_string();
        assert!(text().contains("keytab: does not exist; write it: kadmin ktadd"), "{}", text());
        std::fs::write(&path, b"\x05\x02more").unwrap();
        for mode in [0o644, 0o640, 0o620, 0o604, 0o602, 0o660] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(text().contains(&format!("(mode {mode:o}); run: chmod 600")), "{}", text());
        }
        for mode in [0o600, 0o400, 0o700] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            check_keytab(&path).unwrap();
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
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
        // Opened, a pipe that nobody writes to would block for ever.
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let piped = check_keytab(&pipe).unwrap_err().to_string();
        assert!(piped.contains("is no keytab"), "{piped}");
        let folder = check_keytab(dir.path()).unwrap_err().to_string();
        assert!(folder.contains("is no keytab"), "{folder}");
    }
}
