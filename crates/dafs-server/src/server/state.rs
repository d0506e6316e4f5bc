//! What a server keeps between two runs: its state directory and the key that signs file handles.

use super::StartError;
use dafs_store::ExportSecret;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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
        std::fs::create_dir_all(directory)?;
        // Written aside and linked into place, so that two servers that start at once agree and no
        // half-written key is ever seen.
        let aside = directory.join(format!("handle-key.{}", std::process::id()));
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)?;
        file.write_all(secret.as_bytes())?;
        file.sync_all()?;
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
