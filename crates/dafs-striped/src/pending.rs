//! Lists of files for which nodes have pending work: a directory with a small file for each, which
//! outlives the process. There are three such lists ([`List`]).
//!
//! | bytes of an entry | what |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..56 | the id of the file in the metadata store |
//! | 56..n-16 | the numbers of the nodes, four bytes each |
//! | n-16..n | a MAC of the list, the component and all before, keyed with the store's secret |
//!
//! Invariants
//! * A file's components are listed for removal after its last name is gone. A crash of the machine
//!   may undo that. So a component is removed only after the removal of the name is stable, and
//!   never while its file has a name.
//! * A file is listed for repair before its record marks a copy as stale.
//! * An entry is written atomically. An entry that cannot be worked off now does not delay others.
//! * The server acts only on entries that it wrote itself. A damaged or forged entry stops the
//!   start. Entries of earlier versions had no MAC; they are taken over once.

use crate::limits::{LIST_ENTRY_BYTES_MAX, REMOVALS_PER_SWEEP};
use dafs_mem::Mutex;
use dafs_store::node::ComponentId;
use dafs_store::{FILE_ID_BYTES, FileId, Result, StoreError, own};
use rustc_hash::FxHashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The suffix of entries that are being written.
const UNFINISHED: &str = ".new";

/// The suffix of a file beside the list. It exists if all entries have MACs.
const CODED: &str = "coded";

/// The first bytes of an entry.
const MAGIC: &[u8; 8] = b"dafslst2";

const MAC_BYTES: usize = 16;

/// The kinds of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    /// Removed files, whose components are to be removed.
    Removed,
    /// Moved files, whose components are to be removed from their old nodes.
    Left,
    /// Files with copies to be repaired.
    Repairs,
}

impl List {
    fn name(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Left => "left",
            Self::Repairs => "mends",
        }
    }

    /// The consequence of a lost entry.
    fn without(self) -> &'static str {
        match self {
            Self::Removed => "the content of one removed file then keeps its space on the nodes",
            Self::Left => "one moved file then keeps space on nodes that it has left, too",
            Self::Repairs => "its file is entered again when it is read, so read all files once",
        }
    }
}

/// A list.
pub(super) struct Pending {
    directory: PathBuf,
    list: List,
    key: [u8; 16],
    /// The last component that was worked on.
    reached: Mutex<Option<ComponentId>>,
    /// Makes the names of unfinished entries unique.
    writing: AtomicU64,
}

/// A file, and the nodes with pending work for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) component: ComponentId,
    /// The id of the file in the metadata store.
    pub(super) file: FileId,
    /// The numbers of the nodes.
    pub(super) nodes: Vec<u32>,
}

impl Entry {
    fn encode(&self, list: List, key: &[u8; 16]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.file.0);
        bytes.extend(self.nodes.iter().flat_map(|node| node.to_le_bytes()));
        bytes.extend(mac(&self.component, list, key, &bytes));
        bytes
    }

    fn decode(component: ComponentId, bytes: &[u8], list: List, key: &[u8; 16]) -> Option<Self> {
        let (body, told) = bytes.split_last_chunk::<MAC_BYTES>()?;
        let plain = body.strip_prefix(MAGIC)?;
        (mac(&component, list, key, body) == *told).then_some(())?;
        Self::decode_plain(component, plain)
    }

    /// Decodes an entry of an earlier version, which has no MAC.
    fn decode_plain(component: ComponentId, bytes: &[u8]) -> Option<Self> {
        let (file, nodes) = bytes.split_first_chunk::<FILE_ID_BYTES>()?;
        let (nodes, rest) = nodes.as_chunks();
        let nodes = nodes.iter().map(|four| u32::from_le_bytes(*four)).collect();
        rest.is_empty().then_some(Self { component, file: FileId(*file), nodes })
    }
}

fn mac(component: &ComponentId, list: List, key: &[u8; 16], bytes: &[u8]) -> [u8; MAC_BYTES] {
    own::mac(key, &[list.name().as_bytes(), &component.0, bytes])
}

impl Pending {
    /// Opens a list. `key` is the server's secret.
    ///
    /// # Errors
    /// If an entry is not the server's own, as the log says; the system's.
    pub(super) fn open(directory: &Path, list: List, key: [u8; 16]) -> Result<Self> {
        own::make_directory(directory).map_err(|error| {
            tracing::error!("{error}");
            StoreError::from(io::Error::from(error))
        })?;
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.ends_with(UNFINISHED)) {
                fs::remove_file(entry.path())?;
            }
        }
        let (reached, writing) = Default::default();
        let opened = Self { directory: directory.to_owned(), list, key, reached, writing };
        opened.take_over()?;
        for component in opened.components()? {
            opened.read(component)?;
        }
        Ok(opened)
    }

    /// Adds MACs to the entries of an earlier version, once.
    fn take_over(&self) -> Result<()> {
        let coded = self.directory.with_extension(CODED);
        if coded.try_exists()? {
            return Ok(());
        }
        let mut taken = 0;
        for component in self.components()? {
            let path = self.path(&component);
            let bytes = own::read(&path, LIST_ENTRY_BYTES_MAX)
                .map_err(|error| self.unread(&path, error))?;
            // An earlier start may have been interrupted after this entry.
            if Entry::decode(component, &bytes, self.list, &self.key).is_none() {
                let entry = Entry::decode_plain(component, &bytes);
                self.enter(&entry.ok_or_else(|| self.refused(&path, &"its length is wrong"))?)?;
                taken += 1;
            }
        }
        if taken > 0 {
            tracing::warn!(
                list = %self.directory.display(),
                entries = taken,
                "entries of an earlier version were taken over, which other users of this host could write"
            );
        }
        File::open(&self.directory)?.sync_all()?;
        own::replace(&coded, &self.directory.with_extension(&UNFINISHED[1..]), b"2\n")?;
        Ok(File::open(coded.parent().unwrap_or(Path::new(".")))?.sync_all()?)
    }

    /// Logs the fault of an entry, and how to repair it.
    fn refused(&self, path: &Path, why: &dyn std::fmt::Display) -> StoreError {
        tracing::error!(
            "{path}: an entry of a list of files is damaged, or this server did not write it ({why}), so \
             it is not carried out; bring it back from a backup, or remove it: {without}",
            path = path.display(),
            without = self.list.without()
        );
        StoreError::Io
    }

    /// Logs why an entry could not be read. The system's errors do not mean that the entry is bad.
    fn unread(&self, path: &Path, error: io::Error) -> StoreError {
        let is_of_file =
            matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidData);
        if is_of_file && error.raw_os_error().is_none() {
            return self.refused(path, &error);
        }
        tracing::error!(
            %error,
            "{path}: an entry of a list of files cannot be read now, so it waits",
            path = path.display()
        );
        error.into()
    }

    fn path(&self, component: &ComponentId) -> PathBuf {
        self.directory.join(component.to_string())
    }

    /// Returns the listed components.
    fn components(&self) -> Result<Vec<ComponentId>> {
        let mut components = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            components.extend(entry?.file_name().to_str().and_then(ComponentId::parse));
        }
        Ok(components)
    }

    /// Adds an entry.
    pub(super) fn enter(&self, entry: &Entry) -> Result<()> {
        let path = self.path(&entry.component);
        let turn = self.writing.fetch_add(1, Ordering::Relaxed);
        let unfinished = path.with_extension(format!("{turn}{UNFINISHED}"));
        Ok(own::replace(&path, &unfinished, &entry.encode(self.list, &self.key))?)
    }

    /// True if an entry names a node.
    pub(super) fn names(&self, number: u32) -> Result<bool> {
        for component in self.components()? {
            if self.read(component)?.is_some_and(|entry| entry.nodes.contains(&number)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if a component is listed.
    pub(super) fn has(&self, component: &ComponentId) -> bool {
        self.path(component).exists()
    }

    /// Returns the number of entries that name each node. Omits nodes without any.
    pub(super) fn count(&self) -> Result<FxHashMap<u32, u64>> {
        let mut counts = FxHashMap::default();
        for component in self.components()? {
            let nodes = self.read(component)?.map(|entry| entry.nodes).unwrap_or_default();
            nodes.into_iter().for_each(|node| *counts.entry(node).or_default() += 1);
        }
        Ok(counts)
    }

    /// Passes some entries to `remove`, and strikes off those for which it succeeds. `settle` is
    /// called before, if there are any, and makes all removals so far stable. The list is accessed
    /// while the guard of `guard` is held, and only then.
    ///
    /// # Errors
    /// That of the list or of `settle`; else the last one of `remove` that is not `Busy`.
    pub(super) fn work_off<G>(
        &self,
        guard: impl Fn() -> Result<G>,
        settle: impl FnOnce() -> Result<()>,
        mut remove: impl FnMut(&Entry) -> Result<()>,
    ) -> Result<()> {
        let held = guard()?;
        let due = self.due()?;
        drop(held);
        if due.is_empty() {
            return Ok(());
        }
        settle()?;
        let mut trouble = Ok(());
        for entry in due {
            match remove(&entry) {
                Ok(()) => {
                    let _held = guard()?;
                    self.strike_off(&entry.component)?;
                }
                Err(StoreError::Busy) => {}
                Err(error) => trouble = Err(error),
            }
        }
        trouble
    }

    /// Returns the next entries in the order of their names, and begins again after the last.
    pub(super) fn due(&self) -> Result<Vec<Entry>> {
        let mut names = self.components()?;
        names.sort_unstable();
        let mut reached = self.reached.lock();
        let from = reached.map_or(0, |last| names.partition_point(|name| *name <= last));
        names.rotate_left(from);
        names.truncate(REMOVALS_PER_SWEEP);
        *reached = names.last().copied();
        drop(reached);
        // Unreadable entries are logged by `read`.
        Ok(names.into_iter().filter_map(|component| self.read(component).ok().flatten()).collect())
    }

    /// Returns the entry of a component, if there is one.
    pub(super) fn read(&self, component: ComponentId) -> Result<Option<Entry>> {
        let path = self.path(&component);
        let bytes = match own::read(&path, LIST_ENTRY_BYTES_MAX) {
            Ok(bytes) => bytes,
            // Another thread has struck it off.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.unread(&path, error)),
        };
        let entry = Entry::decode(component, &bytes, self.list, &self.key);
        entry.ok_or_else(|| self.refused(&path, &"its MAC is wrong")).map(Some)
    }

    pub(super) fn strike_off(&self, component: &ComponentId) -> Result<()> {
        match fs::remove_file(self.path(component)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn free() -> Result<()> {
        Ok(())
    }

    const KEY: [u8; 16] = [5; 16];

    fn open(dir: &tempfile::TempDir) -> Result<Pending> {
        Pending::open(&dir.path().join("list"), List::Removed, KEY)
    }

    fn path(dir: &tempfile::TempDir, number: u8) -> PathBuf {
        dir.path().join("list").join(ComponentId([number; 16]).to_string())
    }

    /// Returns the names of entries, finished or not.
    fn names(dir: &tempfile::TempDir) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("a name")
        };
        fs::read_dir(dir.path().join("list")).expect("the list").map(name).collect()
    }

    fn entry(number: u8) -> Entry {
        let component = ComponentId([number; 16]);
        Entry { component, file: FileId([9; FILE_ID_BYTES]), nodes: vec![1, 2] }
    }

    #[test]
    fn one_that_cannot_be_worked_off_keeps_no_other_waiting() {
        let dir = tempfile::tempdir().expect("a directory");
        let removed = open(&dir).expect("a list");
        removed.work_off(free, || panic!("there is nothing"), |_| Ok(())).expect("nothing to do");
        (0..4).for_each(|number| removed.enter(&entry(number)).expect("entered"));
        // An unreadable entry does not delay others either.
        let unreadable = path(&dir, 0xff);
        fs::create_dir(&unreadable).expect("a directory in its place");
        let settled = Cell::new(0);
        let settle = || {
            settled.set(settled.get() + 1);
            Ok(())
        };
        let mut seen = Vec::new();
        let worked = removed.work_off(free, settle, |found| {
            seen.push(found.clone());
            match found.component.0[0] {
                0 => Err(StoreError::Busy),
                1 => Err(StoreError::Io),
                _ => Ok(()),
            }
        });
        assert_eq!(worked, Err(StoreError::Io));
        assert_eq!(seen, (0..4).map(entry).collect::<Vec<_>>());
        assert_eq!(settled.get(), 1);
        let mut left = Vec::new();
        assert_eq!(open(&dir).err(), Some(StoreError::Io), "but at the start it is told");
        fs::remove_dir(unreadable).expect("it is left alone");
        let removed = open(&dir).expect("a list");
        removed
            .work_off(
                free,
                || Ok(()),
                |found| {
                    left.push(found.component.0[0]);
                    Ok(())
                },
            )
            .expect("all are removed");
        assert_eq!(left, [0, 1]);
        assert_eq!(names(&dir), [""; 0]);
    }

    #[test]
    fn components_are_removed_after_the_removal_of_the_name_is_stable() {
        let dir = tempfile::tempdir().expect("a directory");
        let removed = open(&dir).expect("a list");
        removed.enter(&entry(1)).expect("entered");
        // The remains of an entry that a crash has interrupted.
        fs::write(dir.path().join("list/half.new"), b"x").expect("written");
        let removed = open(&dir).expect("a list");
        let failed = removed.work_off(free, || Err(StoreError::Io), |_| panic!("it is not stable"));
        assert_eq!(failed, Err(StoreError::Io));
        assert_eq!(names(&dir).len(), 1);
    }

    #[test]
    fn entries_of_others_are_not_executed() {
        let dir = tempfile::tempdir().expect("a directory");
        let list = open(&dir).expect("a list");
        list.enter(&entry(1)).expect("entered");
        let good = fs::read(path(&dir, 1)).expect("an entry");
        let plain = entry(2).encode(List::Removed, &KEY)[8..64].to_vec();
        let mut wrong = vec![
            // In the form of earlier versions, after the list was taken over.
            plain,
            // Of another list, of another server, of another component.
            entry(2).encode(List::Repairs, &KEY),
            entry(2).encode(List::Removed, &[6; 16]),
            good.clone(),
            vec![],
            vec![0; LIST_ENTRY_BYTES_MAX + 1],
        ];
        let own = entry(2).encode(List::Removed, &KEY);
        wrong.extend((0..own.len()).map(|len| own[..len].to_vec()));
        wrong.extend((0..own.len()).map(|at| {
            let mut flipped = own.clone();
            flipped[at] ^= 1;
            flipped
        }));
        for bytes in wrong {
            fs::write(path(&dir, 2), &bytes).expect("planted");
            let carried_out = |found: &Entry| {
                assert_eq!(found, &entry(1), "{bytes:?}");
                Err(StoreError::Busy)
            };
            list.work_off(free, free, carried_out).expect("the others are tried");
            assert_eq!(list.names(2), Err(StoreError::Io));
            assert_eq!(open(&dir).err(), Some(StoreError::Io));
        }
        fs::write(path(&dir, 2), own).expect("brought back");
        assert_eq!(list.read(ComponentId([2; 16])), Ok(Some(entry(2))));
        fs::remove_file(path(&dir, 2)).expect("removed");
        std::os::unix::fs::symlink(path(&dir, 1), path(&dir, 2)).expect("a symlink");
        assert_eq!(open(&dir).err(), Some(StoreError::Io));
        fs::remove_file(path(&dir, 2)).expect("removed");
        open(&dir).expect("as before");
    }

    #[test]
    fn an_error_that_passes_says_nothing_about_an_entry() {
        let dir = tempfile::tempdir().expect("a directory");
        let list = open(&dir).expect("a list");
        let unread = |errno| list.unread(&path(&dir, 1), io::Error::from_raw_os_error(errno));
        assert_eq!(unread(libc::EMFILE), StoreError::Busy);
        assert_eq!(unread(libc::ENOMEM), StoreError::Busy);
        assert_eq!(unread(libc::EIO), StoreError::Io);
    }

    #[test]
    fn a_list_of_an_earlier_version_is_taken_over_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let plain = |number| entry(number).encode(List::Removed, &KEY)[8..64].to_vec();
        fs::create_dir(dir.path().join("list")).expect("a directory");
        fs::write(path(&dir, 1), plain(1)).expect("written");
        // As left by a crash while the list was taken over.
        fs::write(path(&dir, 2), entry(2).encode(List::Removed, &KEY)).expect("written");
        let list = open(&dir).expect("taken over");
        for number in [1, 2] {
            let found = list.read(ComponentId([number; 16]));
            assert_eq!(found, Ok(Some(entry(number))));
        }
        fs::write(path(&dir, 3), plain(3)).expect("planted");
        assert_eq!(open(&dir).err(), Some(StoreError::Io));
    }
}
