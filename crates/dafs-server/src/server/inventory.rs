//! The inventory of a state directory: which files of state there are, so that one that is lost, damaged
//! or of another server is told, and no new one is made in its place.
//!
//! It is a text of lines, one for each file: its name, its instance, and how often it was opened. The last
//! line is a checksum of the others. An administrator takes a file off the list who goes on without it.
//!
//! Invariants
//! * One server at a time uses a state directory.
//! * A file is on the list when it was used once, until an administrator takes it off.
//! * A list on the disk is an earlier one or a later one, also after a crash.

use dafs_service::{RecordsError, StateFile, StateFileId, bears_seal, undo_list_instance};
use rustix::fs::FlockOperation;
use siphasher::sip::SipHasher24;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The file itself, in the state directory.
const INVENTORY: &str = "inventory";
const TITLE: &str = "dafs state 1";
const CHECK: &str = "check";
/// More than any list is long.
const INVENTORY_BYTES_MAX: u64 = 64 << 10;

/// The key that signs file handles.
pub(super) const HANDLE_KEY: &str = "handle-key";
/// The records of clients and locks.
pub(super) const CLIENT_RECORDS: &str = "clients.redb";
/// The fences.
pub(super) const FENCES: &str = "fences.redb";
/// The directory of the journal.
pub(super) const JOURNAL: &str = "journal";
/// The list of what locks may have to undo.
pub(super) const UNDO_LIST: &str = "undo.index";

/// What is lost with each.
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

/// Why the files of a state directory cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// Another server is running.
    #[error("another server uses {0}; give each its own with --state-directory")]
    Busy(PathBuf),
    /// The inventory itself is damaged, or gone.
    #[error(
        "{path} {what}, so it is not known whether all files of state are there. Bring it back from a \
         backup, together with the other files; or go on with those that are there, after `dafs \
         accept-loss inventory --state-directory {directory}`",
        path = .directory.join(INVENTORY).display(), directory = .directory.display()
    )]
    Inventory {
        /// Of the state.
        directory: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// A file of state is not the one that was there.
    #[error(
        "{path}: {what}. Put a good copy in its place. Or go on with what is there, or with nothing once \
         that is moved away, after `dafs accept-loss {name} --state-directory {directory}`; what is lost \
         then: {}",
        loss(.name), path = .directory.join(.name).display(), directory = .directory.display()
    )]
    Lost {
        /// Of the state.
        directory: PathBuf,
        /// Which file.
        name: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A database of state.
    #[error(transparent)]
    Records(RecordsError),
    /// A name that is on no list.
    #[error("{name:?} is not in the inventory of {directory}; there are: {known}",
        directory = .directory.display())]
    Unknown {
        /// Of the state.
        directory: PathBuf,
        /// As it was given.
        name: String,
        /// What could have been given.
        known: String,
    },
    /// The disk.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// What could not be read or written.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

fn loss(name: &str) -> &'static str {
    LOSSES.iter().find(|(known, _)| *known == name).map_or("what it holds", |(_, loss)| loss)
}

/// Which files of state there are.
pub(super) struct Inventory {
    directory: PathBuf,
    files: BTreeMap<String, StateFileId>,
    /// As it is on the disk.
    saved: String,
    /// The directory, locked.
    lock: File,
}

impl Inventory {
    /// Opens the inventory of a state directory. Makes both if they are not there; files of state that
    /// an earlier version has left are taken over then.
    pub(super) fn open(directory: &Path) -> Result<Self, StateError> {
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
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let lock = File::open(directory).map_err(failed)?;
        // Where directories cannot be locked, the databases in it still are.
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            == Err(rustix::io::Errno::WOULDBLOCK)
        {
            return Err(StateError::Busy(directory.to_owned()));
        }
        let (files, saved) = (BTreeMap::new(), String::new());
        Ok(Self { directory: directory.to_owned(), files, saved, lock })
    }

    fn read(&self) -> Result<Option<String>, StateError> {
        let path = self.directory.join(INVENTORY);
        let mut text = Vec::new();
        let read = File::open(&path)
            .and_then(|file| file.take(INVENTORY_BYTES_MAX).read_to_end(&mut text));
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StateError::Io { path, error }),
            // What is no text has another checksum.
            Ok(_) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        }
    }

    /// Whether there must have been an inventory, or more than is there now: earlier versions put no
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

    /// What is known of a file.
    pub(super) fn known(&self, name: &str) -> Option<StateFileId> {
        self.files.get(name).copied()
    }

    /// Which file is expected under a name.
    pub(super) fn expected(&self, name: &str) -> io::Result<StateFile> {
        if let Some(known) = self.known(name) {
            return Ok(StateFile::Known(known));
        }
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(io::Error::other)?;
        Ok(StateFile::New(instance))
    }

    /// A file is used from now on.
    pub(super) fn note(&mut self, name: &str, id: StateFileId) {
        self.files.insert(name.to_owned(), id);
    }

    /// A key is used, of which this is a hash.
    pub(super) fn note_key(
        &mut self,
        name: &'static str,
        hash: [u8; 16],
    ) -> Result<(), StateError> {
        match self.known(name) {
            Some(known) if known.instance != hash => {
                Err(self.lost(name, "it is another one than the server has used before"))
            }
            _ => {
                self.note(name, StateFileId { instance: hash, openings: 0 });
                Ok(())
            }
        }
    }

    /// Opens a database of state.
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

    /// Sees to it that the list of what is to be undone is the one that is known, or none.
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

    /// That list is used from now on.
    pub(super) fn note_undo_list(&mut self) -> Result<(), StateError> {
        let path = self.directory.join(UNDO_LIST);
        let found = undo_list_instance(&path).map_err(|error| StateError::Io { path, error })?;
        found.map_or(Ok(()), |instance| self.note_key(UNDO_LIST, instance))
    }

    /// A file of state is not as it was.
    pub(super) fn lost(&self, name: &'static str, what: impl ToString) -> StateError {
        StateError::Lost { directory: self.directory.clone(), name, what: what.to_string() }
    }

    /// Makes the list stable, if it has changed.
    pub(super) fn save(&mut self) -> Result<(), StateError> {
        let (path, text) = (self.directory.join(INVENTORY), text(&self.files));
        if text == self.saved {
            return Ok(());
        }
        let write = || {
            let unfinished = path.with_extension("new");
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&unfinished)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(unfinished, &path)?;
            self.lock.sync_all()
        };
        write().map_err(|error| StateError::Io { path: path.clone(), error })?;
        self.saved = text;
        Ok(())
    }
}

/// Takes a file off the inventory of a state directory that no server uses: the next start goes on
/// with what is there under that name, or makes a new one. `inventory` takes all off.
///
/// # Errors
/// What stands in the way, and what could be meant.
pub fn accept_loss(directory: &Path, name: &str) -> Result<(), StateError> {
    let mut inventory = Inventory::lock(directory)?;
    if name != INVENTORY {
        match inventory.read()? {
            Some(text) => inventory.parse(text)?,
            None => return Err(inventory.broken("is missing")),
        }
        if inventory.files.remove(name).is_none() {
            let mut known: Vec<_> = inventory.files.into_keys().collect();
            known.push(INVENTORY.to_owned());
            let (directory, name) = (directory.to_owned(), name.to_owned());
            return Err(StateError::Unknown { directory, name, known: known.join(", ") });
        }
    }
    inventory.save()
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

/// What a text says; `None` if it is not one that was written here.
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
        accept_loss(dir.path(), FENCES).unwrap();
        let inventory = Inventory::open(dir.path()).unwrap();
        assert_eq!(inventory.known(FENCES), None);
        assert_eq!(inventory.known(CLIENT_RECORDS), Some(id(2)));
        drop(inventory);
        std::fs::write(dir.path().join(INVENTORY), b"").unwrap();
        accept_loss(dir.path(), INVENTORY).unwrap();
        assert_eq!(Inventory::open(dir.path()).unwrap().known(CLIENT_RECORDS), None);
    }
}
