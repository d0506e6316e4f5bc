//! What a server keeps between two runs: its state directory and the key that signs file handles.

use super::StartError;
use dafs_store::ExportSecret;
use dafs_store::own::{self, OwnError};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fs::DirBuilder;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Directories in the state directory.
const DIRECTORIES: [&str; 6] = ["journal", "moved", "mends", "nodes", "removed", "undo"];

/// Files in it.
const FILES: [&str; 4] = ["clients.redb", "fences.redb", "handle-key", "inventory"];

/// Makes the state directory, or looks whether nobody else can change what is in the one that is there.
pub(super) fn open_directory(directory: &Path) -> Result<(), StartError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| StartError::State { path: directory.to_owned(), error })?;
    let check = || {
        own::check_directory(directory)?;
        for path in DIRECTORIES.map(|name| directory.join(name)) {
            if path.symlink_metadata().is_ok() {
                // Earlier versions left some open to all.
                own::make_directory(&path)?;
            }
        }
        FILES.iter().try_for_each(|name| own::check_file(&directory.join(name)))
    };
    match check() {
        Err(OwnError::Io(path, error)) => Err(StartError::State { path, error }),
        checked => Ok(checked?),
    }
}

/// The key that signs file handles, made at the first start.
pub(super) fn handle_secret(directory: &Path) -> Result<ExportSecret, StartError> {
    let path = directory.join("handle-key");
    let failed = |error| StartError::State { path: path.clone(), error };
    match std::fs::read(&path) {
        Ok(bytes) => match <[u8; 16]>::try_from(bytes.as_slice()) {
            Ok(bytes) => return Ok(ExportSecret::from_bytes(bytes)),
            Err(_) => {
                let text = "the file is not 16 bytes long; remove it (old handles become invalid)";
                return Err(failed(io::Error::new(io::ErrorKind::InvalidData, text)));
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let secret =
        ExportSecret::generate().map_err(|error| failed(io::Error::other(error.to_string())))?;
    let save = || {
        // Written aside and linked into place, so that two servers that start at once agree and no
        // half-written key is ever seen.
        let aside = directory.join(format!("handle-key.{}", std::process::id()));
        let whole = directory.join(format!("handle-key.{}.new", std::process::id()));
        own::replace(&aside, &whole, secret.as_bytes())?;
        let linked = std::fs::hard_link(&aside, &path);
        std::fs::remove_file(&aside)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => {
                // The name must be as stable as the content, or a power loss makes a new key.
                std::fs::File::open(directory)?.sync_all()?;
                std::fs::read(&path)
            }
        }
    };
    let bytes = save().map_err(failed)?;
    let bytes = <[u8; 16]>::try_from(bytes.as_slice())
        .map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
    Ok(ExportSecret::from_bytes(bytes))
}

/// The state directory of a configuration, or the default one.
///
/// # Errors
/// When there is no default.
pub(super) fn state_directory(named: Option<&Path>) -> Result<PathBuf, StartError> {
    named.map(Path::to_owned).or_else(default_state_directory).ok_or_else(|| {
        let error =
            io::Error::new(io::ErrorKind::NotFound, "neither HOME nor XDG_STATE_HOME is set");
        StartError::State { path: PathBuf::from("the home directory"), error }
    })
}

/// What tells this server from all others, in every run: made from its secret, and telling nothing
/// about it.
pub(super) fn server_identity(secret: &ExportSecret) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(secret.as_bytes());
    hasher.write(b"server identity");
    let hash = hasher.finish128();
    (u128::from(hash.h1) << 64 | u128::from(hash.h2)).to_be_bytes()
}

/// The same as text.
pub(super) fn server_name(secret: &ExportSecret) -> String {
    server_identity(secret).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where a server keeps its state when nothing is said: `/var/lib/dafs` for root, else below the
/// home directory; `None` when there is none.
pub fn default_state_directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/dafs"));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    Some(absolute("XDG_STATE_HOME").or_else(home)?.join("dafs"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, metadata, set_permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_state_directory_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("new/state");
        let mode = |path: &Path| metadata(path).unwrap().permissions().mode() & 0o777;
        open_directory(&state).unwrap();
        assert_eq!(mode(&state), 0o700);
        handle_secret(&state).unwrap();
        assert_eq!(mode(&state.join("handle-key")), 0o600);
        for open in [0o755, 0o700] {
            set_permissions(&state, Permissions::from_mode(open)).unwrap();
            open_directory(&state).unwrap();
        }
        set_permissions(&state, Permissions::from_mode(0o757)).unwrap();
        let error = open_directory(&state).unwrap_err().to_string();
        assert!(error.contains(&format!("chmod go-w {}", state.display())), "{error}");
        set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
        // As earlier versions left it.
        create_dir(state.join("nodes")).unwrap();
        set_permissions(state.join("nodes"), Permissions::from_mode(0o777)).unwrap();
        open_directory(&state).unwrap();
        assert_eq!(mode(&state.join("nodes")), 0o700);
        for name in ["journal", "clients.redb"] {
            symlink("/etc", state.join(name)).unwrap();
            let error = open_directory(&state).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("symlink"), "{error}");
            std::fs::remove_file(state.join(name)).unwrap();
        }
    }
}
