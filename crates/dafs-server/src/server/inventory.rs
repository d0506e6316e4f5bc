//! The inventory of a state directory: the list of its state files. A state file that is lost,
//! damaged or of another server is reported, and no new one is made in its place.
//!
//! It is a text with one line for each file: its name, its instance, and the number of its
//! openings. The last line is a checksum of the others. An administrator who goes on without a file
//! takes it off the list.
//!
//! Invariants
//! * Only one server at a time uses a state directory.
//! * A file is on the list from its first use, until an administrator takes it off.
//! * The list on disk is always a complete one, earlier or later, also after a crash.

use dafs_service::{RecordsError, StateFile, StateFileId, bears_seal, undo_list_instance};
use dafs_store::own::{self, OwnError};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use siphasher::sip::SipHasher24;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, Metadata};
use std::hash::Hasher;
use std::io::{self, ErrorKind, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, fchown};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The name of the list, in the state directory.
const INVENTORY: &str = "inventory";
/// The name of the next list, until it is complete.
const ASIDE: &str = "inventory.new";
const TITLE: &str = "dafs state 1";
const CHECK: &str = "check";
/// A bound above the length of any list.
const INVENTORY_BYTES_MAX: u64 = 64 << 10;

/// The key that signs file handles.
pub(super) const HANDLE_KEY: &str = "handle-key";
/// The records of clients and locks.
pub(super) const CLIENT_RECORDS: &str = "clients.redb";
/// The fences.
pub(super) const FENCES: &str = "fences.redb";
/// The directory of the journal.
pub(super) const JOURNAL: &str = "journal";
/// The undo list of locks.
pub(super) const UNDO_LIST: &str = "undo.index";

/// The loss with each file.
const LOSSES: [(&str, &str); 5] = [
    (
        HANDLE_KEY,
        "all file handles of clients, and where a striped export has the content of files",
    ),
    (CLIENT_RECORDS, "persistent locks, and which clients may reclaim what they held"),
    (FENCES, "all fences; set them again before clients come"),
    (JOURNAL, "what became of requests that were not answered; their clients are told so"),
    (UNDO_LIST, "what locks with recovery had to undo; half changed files stay as they are"),
];

/// The reason why the files of a state directory cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// Another server is running.
    #[error("another server uses {0}; give each its own with --state-directory")]
    Busy(PathBuf),
    /// The inventory itself is damaged, or missing.
    #[error(
        "{path} {what}, so it is not known whether all files of state are there. Bring it back from a \
         backup, together with the other files; or go on with those that are there, after `dafs \
         accept-loss inventory --state-directory {directory}`",
        path = .directory.join(INVENTORY).display(), directory = .directory.display()
    )]
    Inventory {
        /// The state directory.
        directory: PathBuf,
        /// The error.
        what: &'static str,
    },
    /// A state file is not the expected one.
    #[error(
        "{path}: {what}. Put a good copy in its place. Or go on with what is there, or with nothing once \
         that is moved away, after `dafs accept-loss {name} --state-directory {directory}`; what is lost \
         then: {}",
        loss(.name), path = .directory.join(.name).display(), directory = .directory.display()
    )]
    Lost {
        /// The state directory.
        directory: PathBuf,
        /// The name of the file.
        name: &'static str,
        /// The error.
        what: String,
    },
    /// An error of a state database.
    #[error(transparent)]
    Records(RecordsError),
    /// A name that is not on the list.
    #[error("{name:?} is not in the inventory of {directory}; there are: {known}",
        directory = .directory.display())]
    Unknown {
        /// The state directory.
        directory: PathBuf,
        /// The given name.
        name: String,
        /// The possible names.
        known: String,
    },
    /// There is no such directory.
    #[error("there is no state directory {0}; name that of the server with --state-directory")]
    NoDirectory(PathBuf),
    /// Other users could change the files.
    #[error(transparent)]
    Own(OwnError),
    /// An I/O error.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// The path of the failed read or write.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

fn loss(name: &str) -> &'static str {
    LOSSES.iter().find(|(known, _)| *known == name).map_or("what it holds", |(_, loss)| loss)
}

/// The list of state files.
pub(super) struct Inventory {
    directory: PathBuf,
    files: BTreeMap<String, StateFileId>,
    /// The text of the list on disk.
    saved: String,
    /// The directory, locked.
    lock: File,
}

impl Inventory {
    /// Opens the inventory of a state directory. Makes both if they do not exist, and then enters
    /// state files of an earlier version.
    pub(super) fn open(directory: &Path) -> Result<Self, StateError> {
        let failed = |error| StateError::Io { path: directory.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let mut inventory = Self::lock(directory)?;
        match inventory.read()? {
            Some(text) => inventory.parse(text)?,
            None if inventory.is_missed()? => return Err(inventory.broken("is missing")),
            None => inventory.save()?,
        }
        Ok(inventory)
    }

    fn lock(directory: &Path) -> Result<Self, StateError> {
        let failed = |error| StateError::Io { path: directory.to_owned(), error };
        let lock = File::open(directory).map_err(failed)?;
        // Where directories cannot be locked, the databases in it still are.
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
        {
            return Err(StateError::Busy(directory.to_owned()));
        }
        let (files, saved) = (BTreeMap::new(), String::new());
        Ok(Self { directory: directory.to_owned(), files, saved, lock })
    }

    /// Checks that the locked directory is the one that was checked, and that other users cannot
    /// write to it.
    fn check_locked(&self, looked_at: &Metadata) -> Result<(), StateError> {
        let failed = |error| StateError::Io { path: self.directory.clone(), error };
        let found = self.lock.metadata().map_err(failed)?;
        let identity = |found: &Metadata| (found.dev(), found.ino(), found.uid());
        if identity(&found) != identity(looked_at) {
            return Err(StateError::Own(OwnError::NoDirectory(self.directory.clone())));
        }
        match found.mode() & 0o022 {
            0 => Ok(()),
            _ => Err(StateError::Own(OwnError::Writable(self.directory.clone()))),
        }
    }

    fn read(&self) -> Result<Option<String>, StateError> {
        let path = self.directory.join(INVENTORY);
        let mut text = Vec::new();
        let read = self
            .open_list(&path)
            .and_then(|file| file.take(INVENTORY_BYTES_MAX).read_to_end(&mut text));
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StateError::Io { path, error }),
            // A file that is no text has another checksum.
            Ok(_) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        }
    }

    /// Opens the list in the locked directory, because another directory may have its path by now.
    fn open_list(&self, path: &Path) -> io::Result<File> {
        let no_file = || OwnError::NoFile(path.to_owned());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.lock, INVENTORY, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Err(no_file().into()),
            opened => File::from(opened?),
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(no_file().into());
        }
        // Root acts for the owner of the directory.
        if found.uid() != self.lock.metadata()?.uid() {
            own::check_owner(path, found.uid())?;
        }
        Ok(file)
    }

    /// True if the inventory must have existed, or have had more files: earlier versions put no
    /// seals on files, and made the key first.
    fn is_missed(&self) -> Result<bool, StateError> {
        let there = |name: &str| self.directory.join(name).try_exists();
        let look = || -> io::Result<bool> {
            let sealed = bears_seal(&self.directory.join(CLIENT_RECORDS))?
                || bears_seal(&self.directory.join(FENCES))?;
            Ok(sealed || there(CLIENT_RECORDS)? && !there(HANDLE_KEY)?)
        };
        look().map_err(|error| StateError::Io { path: self.directory.clone(), error })
    }

    fn parse(&mut self, text: String) -> Result<(), StateError> {
        let files = parse(&text).ok_or_else(|| self.broken("is damaged"))?;
        (self.files, self.saved) = (files, text);
        Ok(())
    }

    fn broken(&self, what: &'static str) -> StateError {
        StateError::Inventory { directory: self.directory.clone(), what }
    }

    /// Returns the entry of a file.
    pub(super) fn known(&self, name: &str) -> Option<StateFileId> {
        self.files.get(name).copied()
    }

    /// Returns the file that is expected under a name.
    pub(super) fn expected(&self, name: &str) -> io::Result<StateFile> {
        if let Some(known) = self.known(name) {
            return Ok(StateFile::Known(known));
        }
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(io::Error::other)?;
        Ok(StateFile::New(instance))
    }

    /// Enters a file that is used from now on.
    pub(super) fn note(&mut self, name: &str, id: StateFileId) {
        self.files.insert(name.to_owned(), id);
    }

    /// Enters a key in use, by its hash.
    pub(super) fn note_key(
        &mut self,
        name: &'static str,
        hash: [u8; 16],
    ) -> Result<(), StateError> {
        match self.known(name) {
            Some(known) if known.instance != hash => {
                let inventory = self.directory.join(INVENTORY);
                let what = "it is another one than the server has used before, by what";
                Err(self.lost(name, format!("{what} {} says", inventory.display())))
            }
            _ => {
                self.note(name, StateFileId { instance: hash, openings: 0 });
                Ok(())
            }
        }
    }

    /// Opens a state database.
    pub(super) fn records<T>(
        &self,
        name: &'static str,
        open: fn(&Path, StateFile) -> Result<T, RecordsError>,
    ) -> Result<T, StateError> {
        let path = self.directory.join(name);
        let failed = |error| StateError::Io { path: path.clone(), error };
        let expected = self.expected(name).map_err(failed)?;
        open(&path, expected).map_err(|error| match error.is_lost() {
            true => self.lost(name, error),
            false => StateError::Records(error),
        })
    }

    /// Checks that the undo list is the known one, if there is one.
    pub(super) fn check_undo_list(&self) -> Result<(), StateError> {
        let path = self.directory.join(UNDO_LIST);
        let found = undo_list_instance(&path).map_err(|error| StateError::Io { path, error })?;
        match (self.known(UNDO_LIST), found) {
            (None, _) => Ok(()),
            (Some(known), Some(found)) if known.instance == found => Ok(()),
            (_, Some(_)) => {
                Err(self.lost(UNDO_LIST, "it is another one than the server has used before"))
            }
            (_, None) => Err(self.lost(UNDO_LIST, "it is missing or damaged")),
        }
    }

    /// Enters the undo list, which is used from now on.
    pub(super) fn note_undo_list(&mut self) -> Result<(), StateError> {
        let path = self.directory.join(UNDO_LIST);
        let found = undo_list_instance(&path).map_err(|error| StateError::Io { path, error })?;
        found.map_or(Ok(()), |instance| self.note_key(UNDO_LIST, instance))
    }

    /// Makes the error for a state file that has changed.
    pub(super) fn lost(&self, name: &'static str, what: impl ToString) -> StateError {
        StateError::Lost { directory: self.directory.clone(), name, what: what.to_string() }
    }

    /// Makes the list stable, if it has changed.
    pub(super) fn save(&mut self) -> Result<(), StateError> {
        let text = text(&self.files);
        if text == self.saved {
            return Ok(());
        }
        let written = self.write(&text);
        self.settle(text, written)
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let found = self.lock.metadata()?;
        // Root does this for the user that runs the server. Meanwhile that user may replace the
        // directory.
        let root = rustix::process::geteuid().is_root();
        let remove = || rustix::fs::unlinkat(&self.lock, ASIDE, AtFlags::empty());
        match remove() {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.lock, ASIDE, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        let mut put = || -> io::Result<()> {
            if root && found.uid() != 0 {
                fchown(&file, Some(found.uid()), Some(found.gid()))?;
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            Ok(rustix::fs::renameat(&self.lock, ASIDE, &self.lock, INVENTORY)?)
        };
        put().inspect_err(|_| {
            // On a full file system, the files of failed attempts would accumulate.
            let _ = remove();
        })?;
        self.lock.sync_all()
    }

    /// Handles the result of a write of the list. A server starts on a full disk as long as the old
    /// list is valid, because clients must be able to delete files.
    fn settle(&mut self, text: String, written: io::Result<()>) -> Result<(), StateError> {
        match written {
            Ok(()) => self.saved = text,
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
                    && self.is_still_listed() =>
            {
                tracing::warn!(
                    "{}: {error}; until there is space, older copies of the databases may not be \
                    detected",
                    self.directory.join(INVENTORY).display()
                );
            }
            Err(error) => {
                return Err(StateError::Io { path: self.directory.join(INVENTORY), error });
            }
        }
        Ok(())
    }

    /// True if the list on disk names the same files, in their present or an earlier state: a file
    /// may be newer than its list.
    fn is_still_listed(&self) -> bool {
        let Some(saved) = parse(&self.saved) else { return false };
        let is_same =
            |((old_name, old), (name, new)): ((&String, &StateFileId), (&String, &StateFileId))| {
                old_name == name && old.instance == new.instance && old.openings <= new.openings
            };
        saved.len() == self.files.len() && saved.iter().zip(&self.files).all(is_same)
    }
}

/// Checks that an administrator may change the files in a state directory: no other user can write
/// to it, except the owner for whom root acts. The owner's symbolic links are not followed. Returns
/// the metadata of the directory.
fn check_directory(directory: &Path) -> Result<Metadata, StateError> {
    let look = || -> Result<Metadata, OwnError> {
        let failed = |error| OwnError::Io(directory.to_owned(), error);
        let mut found = std::fs::symlink_metadata(directory).map_err(failed)?;
        if found.is_symlink() {
            own::check_owner(directory, found.uid())
                .map_err(|_| OwnError::NoDirectory(directory.to_owned()))?;
            found = std::fs::metadata(directory).map_err(failed)?;
        }
        match own::check_directory(directory) {
            // The mode is checked when the directory is locked.
            Err(OwnError::Owner { .. }) if rustix::process::geteuid().is_root() => Ok(found),
            checked => checked.map(|()| found),
        }
    };
    match look() {
        Ok(found) => Ok(found),
        Err(OwnError::Io(path, error)) if error.kind() == ErrorKind::NotFound => {
            Err(StateError::NoDirectory(path))
        }
        Err(error) => Err(StateError::Own(error)),
    }
}

/// Takes a file off the inventory of a state directory that no server uses. The next start uses the
/// present file of that name, or makes a new one. `inventory` takes all off. Returns false if a
/// state file was not on it.
///
/// # Errors
/// The problem, and the possible names.
pub fn accept_loss(directory: &Path, name: &str) -> Result<bool, StateError> {
    let looked_at = check_directory(directory)?;
    let mut inventory = Inventory::lock(directory)?;
    inventory.check_locked(&looked_at)?;
    if name != INVENTORY {
        match inventory.read()? {
            Some(text) => inventory.parse(text)?,
            None => return Err(inventory.broken("is missing")),
        }
        if inventory.files.remove(name).is_none() {
            if LOSSES.iter().any(|(known, _)| *known == name) {
                return Ok(false);
            }
            let mut known: Vec<_> = inventory.files.into_keys().collect();
            known.push(INVENTORY.to_owned());
            let (directory, name) = (directory.to_owned(), name.to_owned());
            return Err(StateError::Unknown { directory, name, known: known.join(", ") });
        }
    }
    inventory.save()?;
    Ok(true)
}

fn check(text: &str) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

fn text(files: &BTreeMap<String, StateFileId>) -> String {
    let mut text = format!("{TITLE}\n");
    for (name, StateFileId { instance, openings }) in files {
        let instance = u128::from_be_bytes(*instance);
        // INVARIANT: writing to a string does not fail.
        let _ = writeln!(text, "{name} {instance:032x} {openings}");
    }
    let check = check(&text);
    let _ = writeln!(text, "{CHECK} {check:016x}");
    text
}

/// Parses a list. Returns `None` if it is damaged.
fn parse(whole: &str) -> Option<BTreeMap<String, StateFileId>> {
    let mut files = BTreeMap::new();
    let mut lines = whole.lines();
    if lines.next()? != TITLE {
        return None;
    }
    for line in lines {
        let mut words = line.split(' ');
        let (name, number) = (words.next()?, words.next()?);
        if name == CHECK {
            break;
        }
        let instance = u128::from_str_radix(number, 16).ok()?.to_be_bytes();
        let openings = words.next()?.parse().ok()?;
        files.insert(name.to_owned(), StateFileId { instance, openings });
    }
    (text(&files) == whole).then_some(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn id(number: u8) -> StateFileId {
        StateFileId { instance: [number; 16], openings: number.into() }
    }

    #[test]
    fn a_list_is_kept_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut inventory = Inventory::open(dir.path()).unwrap();
        assert_eq!(inventory.known(FENCES), None);
        inventory.note(FENCES, id(1));
        inventory.note(CLIENT_RECORDS, id(2));
        inventory.note(FENCES, id(3));
        inventory.save().unwrap();
        assert!(matches!(Inventory::open(dir.path()), Err(StateError::Busy(_))));
        drop(inventory);
        let inventory = Inventory::open(dir.path()).unwrap();
        assert_eq!(inventory.known(FENCES), Some(id(3)));
        assert_eq!(inventory.known(CLIENT_RECORDS), Some(id(2)));
    }

    #[test]
    fn every_change_of_it_is_told() {
        let files = [("a", id(1)), ("b", id(2))].map(|(name, id)| (name.to_owned(), id));
        let whole = text(&BTreeMap::from(files.clone()));
        assert_eq!(parse(&whole), Some(BTreeMap::from(files)));
        for at in 0..whole.len() {
            assert_eq!(parse(&whole[..at]), None, "cut to {at}");
            for bit in 0..8 {
                let mut flipped = whole.clone().into_bytes();
                flipped[at] ^= 1 << bit;
                assert_eq!(parse(&String::from_utf8_lossy(&flipped)), None, "{at}, bit {bit}");
            }
        }
        let dir = tempfile::tempdir().unwrap();
        for wrong in ["", "something else", &whole[1..], &format!("{whole}a")] {
            std::fs::write(dir.path().join(INVENTORY), wrong).unwrap();
            let Err(error) = Inventory::open(dir.path()) else { panic!("{wrong:?} was taken") };
            assert!(error.to_string().contains("accept-loss inventory"), "{error}");
        }
    }

    #[test]
    fn a_loss_is_accepted_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut inventory = Inventory::open(dir.path()).unwrap();
        inventory.note(FENCES, id(1));
        inventory.note(CLIENT_RECORDS, id(2));
        inventory.save().unwrap();
        assert!(matches!(accept_loss(dir.path(), FENCES), Err(StateError::Busy(_))));
        drop(inventory);
        let error = accept_loss(dir.path(), "fence").unwrap_err().to_string();
        assert!(error.contains("clients.redb, fences.redb, inventory"), "{error}");
        assert!(accept_loss(dir.path(), FENCES).unwrap());
        assert!(!accept_loss(dir.path(), FENCES).unwrap(), "it is on the list no more");
        let inventory = Inventory::open(dir.path()).unwrap();
        assert_eq!(inventory.known(FENCES), None);
        assert_eq!(inventory.known(CLIENT_RECORDS), Some(id(2)));
        drop(inventory);
        std::fs::write(dir.path().join(INVENTORY), b"").unwrap();
        accept_loss(dir.path(), INVENTORY).unwrap();
        assert_eq!(Inventory::open(dir.path()).unwrap().known(CLIENT_RECORDS), None);
    }

    #[test]
    fn a_loss_is_accepted_only_in_a_directory_that_others_cannot_change() {
        let dir = tempfile::tempdir().unwrap();
        drop(Inventory::open(dir.path()).unwrap());
        let absent = dir.path().join("absent");
        let error = accept_loss(&absent, INVENTORY).unwrap_err().to_string();
        assert!(error.contains("--state-directory") && !absent.exists(), "{error}");
        let set_mode = |mode| {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o777);
        let error = accept_loss(dir.path(), INVENTORY).unwrap_err().to_string();
        assert!(error.contains("chmod go-w"), "{error}");
        set_mode(0o755);
        // No write follows a symbolic link.
        let victim = tempfile::NamedTempFile::new().unwrap();
        symlink(victim.path(), dir.path().join("inventory.new")).unwrap();
        std::fs::write(dir.path().join(INVENTORY), b"").unwrap();
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), Some(1), Some(2)).unwrap();
            set_mode(0o777);
            accept_loss(dir.path(), INVENTORY).unwrap_err();
            set_mode(0o755);
        }
        accept_loss(dir.path(), INVENTORY).unwrap();
        assert_eq!(victim.as_file().metadata().unwrap().len(), 0);
        let owner = |path: &Path| {
            let found = std::fs::symlink_metadata(path).unwrap();
            (found.uid(), found.gid())
        };
        if rustix::process::geteuid().is_root() {
            assert_eq!(owner(&dir.path().join(INVENTORY)), (1, 2));
        }
    }

    /// The owner of the state may own the directory above, too.
    #[test]
    fn a_replaced_state_directory_is_not_used() {
        let outer = tempfile::tempdir().unwrap();
        let path = |name: &str| outer.path().join(name);
        std::fs::create_dir(path("victim")).unwrap();
        let mut inventory = Inventory::open(&path("state")).unwrap();
        std::fs::rename(path("state"), path("moved")).unwrap();
        symlink(path("victim"), path("state")).unwrap();
        inventory.note(FENCES, id(1));
        inventory.save().unwrap();
        assert_eq!(std::fs::read_dir(path("victim")).unwrap().count(), 0);
        std::fs::write(path("victim").join(INVENTORY), "another").unwrap();
        assert_eq!(inventory.read().unwrap(), Some(inventory.saved.clone()), "nor read");
        let looked_at = check_directory(&path("victim")).unwrap();
        let error = inventory.check_locked(&looked_at).unwrap_err().to_string();
        assert!(error.contains("does not follow it"), "{error}");
        drop(inventory);
        assert_eq!(Inventory::open(&path("moved")).unwrap().known(FENCES), Some(id(1)));
        // The server's user and root may put a symbolic link there.
        std::fs::remove_file(path("state")).unwrap();
        symlink(path("moved"), path("state")).unwrap();
        assert!(accept_loss(&path("state"), FENCES).unwrap());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(path("state"), Some(1), Some(1)).unwrap();
            let error = accept_loss(&path("state"), INVENTORY).unwrap_err().to_string();
            assert!(error.contains("does not follow it"), "{error}");
        }
    }

    #[test]
    fn an_inventory_is_not_read_through_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join(INVENTORY), dir.path().join("victim"));
        let mut inventory = Inventory::open(dir.path()).unwrap();
        inventory.note(FENCES, id(1));
        inventory.save().unwrap();
        drop(inventory);
        std::fs::rename(&path, &victim).unwrap();
        symlink(&victim, &path).unwrap();
        let before = std::fs::read(&victim).unwrap();
        for error in [
            Inventory::open(dir.path()).err().unwrap().to_string(),
            accept_loss(dir.path(), FENCES).unwrap_err().to_string(),
        ] {
            assert!(error.contains("inventory is a symlink"), "{error}");
        }
        assert_eq!(std::fs::read(&victim).unwrap(), before);
        // Root acts for the user that owns the directory.
        if rustix::process::geteuid().is_root() {
            std::fs::rename(&victim, &path).unwrap();
            chown(dir.path(), Some(1), Some(1)).unwrap();
            chown(&path, Some(1), Some(1)).unwrap();
            assert!(accept_loss(dir.path(), FENCES).unwrap());
            chown(&path, Some(2), Some(2)).unwrap();
            let error = accept_loss(dir.path(), FENCES).unwrap_err().to_string();
            assert!(error.contains("chown root"), "{error}");
        }
    }

    #[test]
    fn a_full_disk_stops_no_start_while_the_old_list_does() {
        let full = |errno| Err(io::Error::from_raw_os_error(errno));
        let dir = tempfile::tempdir().unwrap();
        let mut inventory = Inventory::open(dir.path()).unwrap();
        let newer = |openings| StateFileId { openings, ..id(1) };
        inventory.note(FENCES, newer(1));
        inventory.settle(text(&inventory.files), full(libc::ENOSPC)).unwrap_err();
        inventory.save().unwrap();
        inventory.note(FENCES, newer(2));
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            inventory.settle(text(&inventory.files), full(errno)).unwrap();
        }
        inventory.settle(text(&inventory.files), full(libc::EIO)).unwrap_err();
        inventory.note(FENCES, StateFileId { openings: 2, ..id(2) });
        inventory.settle(text(&inventory.files), full(libc::ENOSPC)).unwrap_err();
        inventory.note(FENCES, newer(2));
        inventory.note(CLIENT_RECORDS, id(1));
        inventory.settle(text(&inventory.files), full(libc::ENOSPC)).unwrap_err();
        drop(inventory);
        let mut inventory = Inventory::open(dir.path()).unwrap();
        assert_eq!(inventory.known(FENCES), Some(newer(1)));
        // The failed entry is written with the next list.
        inventory.note(FENCES, newer(2));
        inventory.settle(text(&inventory.files), full(libc::ENOSPC)).unwrap();
        inventory.save().unwrap();
        drop(inventory);
        assert_eq!(Inventory::open(dir.path()).unwrap().known(FENCES), Some(newer(2)));
    }
}
