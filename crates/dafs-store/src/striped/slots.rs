//! The nodes of a store, which may become more and fewer while it is in use.
//!
//! Invariants
//! * A node that is being emptied gets no new files, after a restart either: that is kept in a file, and
//!   so is which nodes have lost all that they had.
//! * One node at least takes new files.

use super::lock;
use super::node::Node;
use crate::layouts::DEVICE_SERVERS_MAX;
use crate::{Result, StoreError};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A node, and what was last heard of it.
pub(super) struct Slot {
    pub(super) node: Arc<dyn Node>,
    /// Zero before it has told one.
    pub(super) verifier: Mutex<u64>,
}

/// All of them.
pub(super) struct Slots {
    all: RwLock<Arc<Vec<Arc<Slot>>>>,
    marked: Mutex<Marked>,
    /// Where these are kept.
    memory: PathBuf,
}

/// What administrators have said of nodes, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Marked {
    /// They are to be emptied.
    leaving: BTreeSet<u32>,
    /// All that they had is lost, and their copies are to be given up.
    lost: BTreeSet<u32>,
}

/// What the lines of lost nodes begin with.
const LOST: &str = "lost ";

impl Slots {
    pub(super) fn open(nodes: Vec<Arc<dyn Node>>, memory: &Path) -> Result<Self> {
        let slot = |node| Arc::new(Slot { node, verifier: Mutex::default() });
        let all: Vec<_> = nodes.into_iter().map(slot).collect();
        let known = |number: &u32| all.iter().any(|slot| slot.node.number() == *number);
        let mut marked = read(memory)?;
        // Those that have gone since.
        marked.leaving.retain(known);
        marked.lost.retain(known);
        if marked.leaving.len() == all.len() && !all.is_empty() {
            tracing::warn!(
                "all nodes were to be emptied: now none is, for files have to lie somewhere"
            );
            marked.leaving.clear();
        }
        let (all, memory) = (RwLock::new(Arc::new(all)), memory.to_owned());
        Ok(Self { all, marked: Mutex::new(marked), memory })
    }

    pub(super) fn all(&self) -> Arc<Vec<Arc<Slot>>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn find(&self, number: u32) -> Option<Arc<Slot>> {
        self.all().iter().find(|slot| slot.node.number() == number).cloned()
    }

    /// Those that take new files.
    pub(super) fn staying(&self) -> Vec<Arc<Slot>> {
        let marked = lock(&self.marked);
        let stays = |slot: &&Arc<Slot>| !marked.leaving.contains(&slot.node.number());
        self.all().iter().filter(stays).cloned().collect()
    }

    pub(super) fn leaving(&self) -> BTreeSet<u32> {
        lock(&self.marked).leaving.clone()
    }

    /// Those that have lost all that they had.
    pub(super) fn lost(&self) -> BTreeSet<u32> {
        lock(&self.marked).lost.clone()
    }

    pub(super) fn add(&self, node: Arc<dyn Node>) -> Result<()> {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().any(|slot| slot.node.number() == node.number());
        if known || all.len() >= DEVICE_SERVERS_MAX {
            return Err(StoreError::Invalid);
        }
        let slot = Arc::new(Slot { node, verifier: Mutex::default() });
        *all = Arc::new(all.iter().cloned().chain([slot]).collect());
        Ok(())
    }

    pub(super) fn remove(&self, number: u32) -> Result<()> {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        *all = Arc::new(all.iter().filter(|slot| slot.node.number() != number).cloned().collect());
        drop(all);
        self.mark(|marked| {
            marked.leaving.remove(&number);
            marked.lost.remove(&number);
            Ok(())
        })
    }

    /// Says whether a node is being emptied, where so many at least have to take files.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] where too few were left; those of the file.
    pub(super) fn set_leaving(&self, number: u32, leaves: bool, least: usize) -> Result<()> {
        let all = self.all();
        self.mark(|marked| {
            match leaves {
                true => marked.leaving.insert(number),
                false => marked.leaving.remove(&number),
            };
            let stays = |slot: &&Arc<Slot>| !marked.leaving.contains(&slot.node.number());
            match all.iter().filter(stays).count() < least.max(1) {
                true if leaves => Err(StoreError::Invalid),
                _ => Ok(()),
            }
        })
    }

    /// Says whether a node has lost all that it had.
    pub(super) fn set_lost(&self, number: u32, lost: bool) -> Result<()> {
        self.mark(|marked| {
            match lost {
                true => marked.lost.insert(number),
                false => marked.lost.remove(&number),
            };
            Ok(())
        })
    }

    /// Changes what is known of nodes, stably.
    fn mark(&self, change: impl FnOnce(&mut Marked) -> Result<()>) -> Result<()> {
        let mut marked = lock(&self.marked);
        let mut next = marked.clone();
        change(&mut next)?;
        if next != *marked {
            write(&self.memory, &next)?;
            *marked = next;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Marked> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text).ok_or_else(|| {
            tracing::error!(file = %path.display(), "the list of nodes to be emptied is damaged");
            StoreError::Io
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Marked::default()),
        Err(error) => Err(error.into()),
    }
}

fn parse(text: &str) -> Option<Marked> {
    let mut marked = Marked::default();
    for line in text.lines() {
        match line.strip_prefix(LOST) {
            Some(number) => marked.lost.insert(number.parse().ok()?),
            None => marked.leaving.insert(line.parse().ok()?),
        };
    }
    Some(marked)
}

fn write(path: &Path, marked: &Marked) -> Result<()> {
    let unfinished = path.with_extension("new");
    let mut file = File::create(&unfinished)?;
    marked.leaving.iter().try_for_each(|number| writeln!(file, "{number}"))?;
    marked.lost.iter().try_for_each(|number| writeln!(file, "{LOST}{number}"))?;
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    Ok(File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_nodes_is_read_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("marked");
        assert_eq!(read(&path), Ok(Marked::default()));
        let marked = Marked { leaving: [3, 40].into(), lost: [3, 7].into() };
        write(&path, &marked).expect("written");
        assert_eq!(read(&path), Ok(marked));
        for wrong in ["x", "3 4", "lost", "lost x", "-1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        // As it was before nodes could be lost.
        let before = Marked { leaving: [1, 2].into(), ..Marked::default() };
        assert_eq!(parse("1\n2\n"), Some(before));
    }
}
