//! The nodes of a store, which may become more and fewer while it is in use.
//!
//! Invariants
//! * A node that is being emptied gets no new files, after a restart either: that is kept in a file.
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
    leaving: Mutex<BTreeSet<u32>>,
    /// Where it is kept which are leaving.
    memory: PathBuf,
}

impl Slots {
    pub(super) fn open(nodes: Vec<Arc<dyn Node>>, memory: &Path) -> Result<Self> {
        let slot = |node| Arc::new(Slot { node, verifier: Mutex::default() });
        let all: Vec<_> = nodes.into_iter().map(slot).collect();
        let known = |number: &u32| all.iter().any(|slot| slot.node.number() == *number);
        let mut leaving = read(memory)?;
        // Those that have gone since.
        leaving.retain(known);
        if leaving.len() == all.len() && !all.is_empty() {
            tracing::warn!(
                "all nodes were to be emptied: now none is, for files have to lie somewhere"
            );
            leaving.clear();
        }
        let (all, memory) = (RwLock::new(Arc::new(all)), memory.to_owned());
        Ok(Self { all, leaving: Mutex::new(leaving), memory })
    }

    pub(super) fn all(&self) -> Arc<Vec<Arc<Slot>>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn find(&self, number: u32) -> Option<Arc<Slot>> {
        self.all().iter().find(|slot| slot.node.number() == number).cloned()
    }

    /// Those that take new files.
    pub(super) fn staying(&self) -> Vec<Arc<Slot>> {
        let leaving = lock(&self.leaving);
        let stays = |slot: &&Arc<Slot>| !leaving.contains(&slot.node.number());
        self.all().iter().filter(stays).cloned().collect()
    }

    pub(super) fn leaving(&self) -> BTreeSet<u32> {
        lock(&self.leaving).clone()
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
        self.set_leaving(number, false, 1)
    }

    /// Says whether a node is being emptied, where so many at least have to take files.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] where too few were left; those of the file.
    pub(super) fn set_leaving(&self, number: u32, leaves: bool, least: usize) -> Result<()> {
        let mut leaving = lock(&self.leaving);
        let mut next = leaving.clone();
        let changed = if leaves { next.insert(number) } else { next.remove(&number) };
        let all = self.all();
        let staying = all.iter().filter(|slot| !next.contains(&slot.node.number()));
        if leaves && staying.count() < least.max(1) {
            return Err(StoreError::Invalid);
        }
        if changed {
            write(&self.memory, &next)?;
            *leaving = next;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<BTreeSet<u32>> {
    match fs::read_to_string(path) {
        Ok(text) => {
            let numbers: std::result::Result<_, _> = text.lines().map(str::parse).collect();
            numbers.map_err(|_| {
                tracing::error!(file = %path.display(), "the list of nodes to be emptied is damaged");
                StoreError::Io
            })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error.into()),
    }
}

fn write(path: &Path, numbers: &BTreeSet<u32>) -> Result<()> {
    let unfinished = path.with_extension("new");
    let mut file = File::create(&unfinished)?;
    numbers.iter().try_for_each(|number| writeln!(file, "{number}"))?;
    file.sync_all()?;
    fs::rename(unfinished, path)?;
    Ok(File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?)
}
