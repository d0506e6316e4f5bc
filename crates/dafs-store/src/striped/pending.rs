//! Files for which nodes have something to do yet: a directory with a small file for each, which
//! outlives the process. There are two such lists: of removed files, whose components are to be removed,
//! and of files of which a copy is to be mended.
//!
//! Invariants
//! * A file's components are listed for removal after its last name is gone. That may be undone by a
//!   crash of the machine, so nothing is removed before the removal of the name is stable, and nothing of
//!   a file that is there.
//! * A file is listed for mending before its record says that a copy is out of date.
//! * An entry is there whole or not at all. One that cannot be worked off now keeps no other waiting.

use super::node::ComponentId;
use crate::limits::REMOVALS_PER_SWEEP;
use crate::{FILE_ID_BYTES, FileId, Result, StoreError};
use rustc_hash::FxHashMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What the names of entries that are being written end with.
const UNFINISHED: &str = ".new";

/// The list.
pub(super) struct Pending {
    directory: PathBuf,
    /// The last one that was looked at.
    reached: Mutex<Option<ComponentId>>,
}

/// A file, and nodes that have to do something for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) component: ComponentId,
    /// What the file was called in the store of the metadata.
    pub(super) file: FileId,
    /// The numbers of the nodes.
    pub(super) nodes: Vec<u32>,
}

impl Pending {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.ends_with(UNFINISHED)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Self { directory: directory.to_owned(), reached: Mutex::default() })
    }

    /// Enters a file.
    pub(super) fn enter(&self, entry: &Entry) -> Result<()> {
        let mut bytes = entry.file.0.to_vec();
        bytes.extend(entry.nodes.iter().flat_map(|node| node.to_le_bytes()));
        let path = self.directory.join(entry.component.to_string());
        let unfinished = path.with_extension(&UNFINISHED[1..]);
        let mut file = File::create(&unfinished)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        Ok(fs::rename(unfinished, path)?)
    }

    /// The entry of a component, if there is one.
    pub(super) fn find(&self, component: &ComponentId) -> Result<Option<Entry>> {
        self.read(*component)
    }

    /// Whether anything of a node waits.
    pub(super) fn names(&self, number: u32) -> Result<bool> {
        for entry in fs::read_dir(&self.directory)? {
            let component = entry?.file_name().to_str().and_then(ComponentId::parse);
            let entry = component.map(|component| self.read(component)).transpose()?.flatten();
            if entry.is_some_and(|entry| entry.nodes.contains(&number)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a component is listed.
    pub(super) fn has(&self, component: &ComponentId) -> bool {
        self.directory.join(component.to_string()).exists()
    }

    /// The next entries, and those before them at the next call.
    pub(super) fn some(&self) -> Result<Vec<Entry>> {
        self.due()
    }

    /// How many entries name each node that any names.
    pub(super) fn count(&self) -> Result<FxHashMap<u32, u64>> {
        let mut counts = FxHashMap::default();
        for entry in fs::read_dir(&self.directory)? {
            let Some(id) = entry?.file_name().to_str().and_then(ComponentId::parse) else {
                continue;
            };
            let nodes = self.read(id)?.map(|entry| entry.nodes).unwrap_or_default();
            nodes.into_iter().for_each(|node| *counts.entry(node).or_default() += 1);
        }
        Ok(counts)
    }

    /// Hands some entries to `remove`, and strikes off those for which that succeeds. `settle` is called
    /// before, if there are any, and makes stable what has been removed so far. The list is touched while
    /// what `guard` gives is held, and only then.
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

    /// The next ones, in the order of their names, and from the start after the last.
    fn due(&self) -> Result<Vec<Entry>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            names.extend(entry?.file_name().to_str().and_then(ComponentId::parse));
        }
        names.sort_unstable();
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let from = reached.map_or(0, |last| names.partition_point(|name| *name <= last));
        names.rotate_left(from);
        names.truncate(REMOVALS_PER_SWEEP);
        *reached = names.last().copied();
        drop(reached);
        let read = |component| {
            self.read(component).unwrap_or_else(|error| {
                tracing::error!(%component, %error, "an entry of a list of files cannot be read");
                None
            })
        };
        Ok(names.into_iter().filter_map(read).collect())
    }

    fn read(&self, component: ComponentId) -> Result<Option<Entry>> {
        let bytes = match fs::read(self.directory.join(component.to_string())) {
            Ok(bytes) => bytes,
            // Another thread was quicker.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some((file, nodes)) = bytes.split_first_chunk::<FILE_ID_BYTES>() else {
            tracing::error!(%component, "an entry of a list of files is damaged");
            return Ok(None);
        };
        let nodes = nodes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect();
        Ok(Some(Entry { component, file: FileId(*file), nodes }))
    }

    pub(super) fn strike_off(&self, component: &ComponentId) -> Result<()> {
        match fs::remove_file(self.directory.join(component.to_string())) {
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

    fn entry(number: u8) -> Entry {
        let component = ComponentId([number; 16]);
        Entry { component, file: FileId([9; FILE_ID_BYTES]), nodes: vec![1, 2] }
    }

    #[test]
    fn one_that_cannot_be_worked_off_keeps_no_other_waiting() {
        let dir = tempfile::tempdir().expect("a directory");
        let removed = Pending::open(dir.path()).expect("a list");
        removed.work_off(free, || panic!("there is nothing"), |_| Ok(())).expect("nothing to do");
        (0..4).for_each(|number| removed.enter(&entry(number)).expect("entered"));
        // Nor does one that cannot be read.
        let unreadable = dir.path().join(ComponentId([0xff; 16]).to_string());
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
        let removed = Pending::open(dir.path()).expect("a list");
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
        fs::remove_dir(unreadable).expect("it is left alone");
        assert_eq!(fs::read_dir(dir.path()).expect("the list").count(), 0);
    }

    #[test]
    fn nothing_is_removed_before_the_removal_of_its_name_is_stable() {
        let dir = tempfile::tempdir().expect("a directory");
        let removed = Pending::open(dir.path()).expect("a list");
        removed.enter(&entry(1)).expect("entered");
        // What a crash left of another.
        fs::write(dir.path().join("half.new"), b"x").expect("written");
        let removed = Pending::open(dir.path()).expect("a list");
        let failed = removed.work_off(free, || Err(StoreError::Io), |_| panic!("it is not stable"));
        assert_eq!(failed, Err(StoreError::Io));
        assert_eq!(fs::read_dir(dir.path()).expect("the list").count(), 1);
    }
}
