//! The state of a server that outlives its run: its state directory and the key that signs file
//! handles.

use super::StartError;
use super::inventory::{HANDLE_KEY, Inventory};
use crate::config::Config;
use crate::http::TOKEN_FILE;
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
const FILES: [&str; 6] =
    [TOKEN_FILE, "clients.redb", "fences.redb", "handle-key", "inventory", "undo.index"];

/// Bytes of the key that signs file handles.
const HANDLE_KEY_BYTES: usize = 16;

/// The byte before a key whose handles can be short. Earlier versions wrote the key alone. Its
/// handles keep their form, because running clients know them.
const SHORT_HANDLES: u8 = 2;

/// The longest file with a key, in bytes.
const KEY_FILE_BYTES_MAX: usize = 1 + HANDLE_KEY_BYTES;

/// The use of the key as an identity.
const SERVER_IDENTITY: &[u8] = b"server identity";

/// Makes the state directory, or checks that no other user can change the files of the existing
/// one.
pub(super) fn open_directory(directory: &Path) -> Result<(), StartError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| StartError::State { path: directory.to_owned(), error })?;
    let check = || {
        own::check_directory(directory)?;
        for path in DIRECTORIES.map(|name| directory.join(name)) {
            if path.symlink_metadata().is_ok() {
                // Earlier versions left some open to all users.
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

/// Returns the key that signs file handles, made at the first start. If a key was used before and
/// this one differs, the server does not start.
pub(super) fn handle_secret(
    directory: &Path,
    inventory: &mut Inventory,
) -> Result<ExportSecret, StartError> {
    let known = inventory.known(HANDLE_KEY).is_some();
    match directory.join(HANDLE_KEY).symlink_metadata() {
        Ok(found)
            if found.is_file()
                && ![HANDLE_KEY_BYTES, KEY_FILE_BYTES_MAX].contains(&(found.len() as usize)) =>
        {
            Err(inventory.lost(HANDLE_KEY, "it is not as long as a key"))?;
        }
        Err(error) if known && error.kind() == io::ErrorKind::NotFound => {
            Err(inventory.lost(HANDLE_KEY, "it is missing"))?;
        }
        // The code that reads it reports other errors.
        _ => {}
    }
    let content = read_or_make_key(directory)?;
    if content.iter().all(|byte| *byte == 0) {
        Err(inventory.lost(HANDLE_KEY, "it was emptied: all its bytes are zero"))?;
    }
    let secret = secret_of(&content)
        .ok_or_else(|| inventory.lost(HANDLE_KEY, "it does not begin as a key does"))?;
    // A key with another form of handles is another one for clients.
    let use_of_it: &[u8] =
        if secret.has_short_ids() { b"server identity, short handles" } else { SERVER_IDENTITY };
    inventory.note_key(HANDLE_KEY, hash_of_key(secret.as_bytes(), use_of_it))?;
    Ok(secret)
}

/// Decodes the content of a file with a key.
fn secret_of(content: &[u8]) -> Option<ExportSecret> {
    match content.strip_prefix(&[SHORT_HANDLES]).map(<[u8; HANDLE_KEY_BYTES]>::try_from) {
        Some(Ok(key)) => Some(ExportSecret::from_bytes(key).with_short_ids()),
        _ => content.try_into().ok().map(ExportSecret::from_bytes),
    }
}

/// Returns the content of the file with the key, made if it is missing.
fn read_or_make_key(directory: &Path) -> Result<Vec<u8>, StartError> {
    let path = directory.join(HANDLE_KEY);
    let failed = |error| StartError::State { path: path.clone(), error };
    match own::read(&path, KEY_FILE_BYTES_MAX) {
        Ok(bytes) => return Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let secret =
        ExportSecret::generate().map_err(|error| failed(io::Error::other(error.to_string())))?;
    let content = [&[SHORT_HANDLES][..], secret.as_bytes()].concat();
    let save = || {
        // Written under another name and linked into place, so that two servers that start at once
        // agree and none sees a half-written key.
        let aside = directory.join(format!("handle-key.{}", std::process::id()));
        let whole = directory.join(format!("handle-key.{}.new", std::process::id()));
        own::replace(&aside, &whole, &content)?;
        let linked = std::fs::hard_link(&aside, &path);
        std::fs::remove_file(&aside)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => {
                // The name must be as stable as the content, or a power loss makes a new key.
                std::fs::File::open(directory)?.sync_all()?;
                own::read(&path, KEY_FILE_BYTES_MAX)
            }
        }
    };
    save().map_err(failed)
}

/// Makes the state directory of a configuration, or checks the existing one.
///
/// # Errors
/// Those of [`state_directory`] and [`open_directory`].
pub(crate) fn of_config(config: &Config) -> Result<PathBuf, StartError> {
    let directory = state_directory(config.state_directory.as_deref())?;
    open_directory(&directory)?;
    Ok(directory)
}

/// Returns the state directory of a configuration, or the default one.
///
/// # Errors
/// There is no default.
pub(super) fn state_directory(named: Option<&Path>) -> Result<PathBuf, StartError> {
    named.map(Path::to_owned).or_else(default_state_directory).ok_or_else(|| {
        let error =
            io::Error::new(io::ErrorKind::NotFound, "neither HOME nor XDG_STATE_HOME is set");
        StartError::State { path: PathBuf::from("the home directory"), error }
    })
}

/// Returns the unique identity of this server, the same in every run. It is a hash of its secret,
/// which it does not reveal.
pub(super) fn server_identity(secret: &ExportSecret) -> [u8; 16] {
    hash_of_key(secret.as_bytes(), SERVER_IDENTITY)
}

/// Returns a hash that identifies a key without revealing it.
pub(super) fn hash_of_key(key: &[u8; 16], use_of_it: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(use_of_it);
    let hash = hasher.finish128();
    (u128::from(hash.h1) << 64 | u128::from(hash.h2)).to_be_bytes()
}

/// Returns the identity as text.
pub(super) fn server_name(secret: &ExportSecret) -> String {
    server_identity(secret).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the default state directory: `/var/lib/dafs` for root, else below the home directory.
/// `None` when there is none.
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
        handle_secret(&state, &mut Inventory::open(&state).unwrap()).unwrap();
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
        let victim = dir.path().join("victim");
        for (name, is_file) in
            FILES.map(|name| (name, true)).into_iter().chain(DIRECTORIES.map(|name| (name, false)))
        {
            let (path, aside) = (state.join(name), dir.path().join("aside"));
            let was_there = std::fs::rename(&path, &aside).is_ok();
            match is_file {
                true => std::fs::write(&victim, [7; 16]).unwrap(),
                false => create_dir(&victim).unwrap(),
            }
            symlink(&victim, &path).unwrap();
            let error = open_directory(&state).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("symlink"), "{error}");
            if name == HANDLE_KEY {
                read_or_make_key(&state).unwrap_err();
            }
            match is_file {
                true => std::fs::remove_file(&victim).unwrap(),
                false => std::fs::remove_dir(&victim).unwrap(),
            }
            std::fs::remove_file(&path).unwrap();
            if was_there {
                std::fs::rename(&aside, &path).unwrap();
            }
        }
    }

    #[test]
    fn a_key_that_was_used_before_is_the_same_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HANDLE_KEY);
        let start = || {
            let mut inventory = Inventory::open(dir.path()).unwrap();
            let secret = handle_secret(dir.path(), &mut inventory)?;
            inventory.save()?;
            Ok::<_, StartError>(secret)
        };
        let secret = start().unwrap();
        assert!(secret.has_short_ids(), "no client knows other handles yet");
        assert!(start().unwrap() == secret);
        let key = std::fs::read(&path).unwrap();
        let refused = |content: &[u8], why: &str| {
            std::fs::write(&path, content).unwrap();
            let error = start().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("accept-loss handle-key"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), content, "it is left alone");
        };
        for at in 0..key.len() {
            let mut flipped = key.clone();
            flipped[at] ^= 1 << (at % 8);
            refused(&flipped, if at == 0 { "does not begin" } else { "another one" });
        }
        // The key of an earlier version, whose handles are longer.
        refused(&key[1..], "another one");
        refused(&key[..16], "another one");
        refused(&[0; 17], "zero");
        refused(&[0; 16], "zero");
        refused(b"", "not as long");
        refused(&key[..15], "not as long");
        std::fs::remove_file(&path).unwrap();
        let error = start().unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
        assert!(!path.exists());
        std::fs::write(&path, key).unwrap();
        assert!(start().unwrap() == secret);
    }

    #[test]
    fn a_key_of_an_earlier_version_keeps_the_form_of_its_handles() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(HANDLE_KEY), [SHORT_HANDLES; 16]).unwrap();
        let start = || {
            let mut inventory = Inventory::open(dir.path()).unwrap();
            let secret = handle_secret(dir.path(), &mut inventory).unwrap();
            inventory.save().unwrap();
            secret
        };
        for _ in 0..2 {
            assert!(start() == ExportSecret::from_bytes([SHORT_HANDLES; 16]));
        }
    }
}
