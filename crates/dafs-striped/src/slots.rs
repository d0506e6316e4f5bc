//! The nodes of a store. Administrators add and remove them while the store is in use.
//!
//! Invariants
//! * A node that is being emptied gets no new files, also after a restart. A file keeps these
//!   marks, and the marks of nodes that have lost their data. Its last line is a MAC keyed with the
//!   store's secret, so that the server accepts only marks that it wrote itself.
//! * At least one node takes new files.

use crate::limits::NODE_MARKS_BYTES_MAX;
use dafs_mem::{Mutex, RwLock};
use dafs_store::node::Node;
use dafs_store::{DEVICE_SERVERS_MAX, Result, StoreError, own};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A node, and its last known write verifier.
pub(super) struct Slot {
    pub(super) node: Arc<dyn Node>,
    /// Zero while it is unknown.
    pub(super) verifier: Mutex<u64>,
}

/// All nodes of a store.
pub(super) struct Slots {
    all: RwLock<Arc<Vec<Arc<Slot>>>>,
    marked: Mutex<Marked>,
    /// The path of the file with the marks.
    memory: PathBuf,
    key: [u8; 16],
}

/// The marks that administrators have set, by the numbers of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Marked {
    /// Nodes to be emptied.
    leaving: BTreeSet<u32>,
    /// Nodes that have lost all their data, and whose copies are to be given up.
    lost: BTreeSet<u32>,
}

/// The prefix of the lines of lost nodes.
const LOST: &str = "lost ";

/// The prefix of the last line.
const CODE: &str = "code ";

/// The extension of the file's name. Earlier versions wrote a file without a MAC and without this
/// extension.
const CODED: &str = "coded";

impl Slots {
    /// Opens the nodes with their marks. `key` is the server's secret.
    pub(super) fn open(nodes: Vec<Arc<dyn Node>>, memory: &Path, key: [u8; 16]) -> Result<Self> {
        let slot = |node| Arc::new(Slot { node, verifier: Mutex::default() });
        let all: Vec<_> = nodes.into_iter().map(slot).collect();
        let known = |number: &u32| all.iter().any(|slot| slot.node.number() == *number);
        let mut marked = read(memory, &key)?;
        // Drops the marks of nodes that were removed.
        marked.leaving.retain(known);
        marked.lost.retain(known);
        if marked.leaving.len() == all.len() && !all.is_empty() {
            tracing::warn!(
                "all nodes were to be emptied: now none is, for files have to lie somewhere"
            );
            marked.leaving.clear();
        }
        let (all, memory) = (RwLock::new(Arc::new(all)), memory.to_owned());
        Ok(Self { all, marked: Mutex::new(marked), memory, key })
    }

    pub(super) fn all(&self) -> Arc<Vec<Arc<Slot>>> {
        self.all.read().clone()
    }

    pub(super) fn find(&self, number: u32) -> Option<Arc<Slot>> {
        self.all().iter().find(|slot| slot.node.number() == number).cloned()
    }

    /// Returns the nodes that take new files.
    pub(super) fn staying(&self) -> Vec<Arc<Slot>> {
        let marked = self.marked.lock();
        let stays = |slot: &&Arc<Slot>| !marked.leaving.contains(&slot.node.number());
        self.all().iter().filter(stays).cloned().collect()
    }

    pub(super) fn leaving(&self) -> BTreeSet<u32> {
        self.marked.lock().leaving.clone()
    }

    /// Returns the numbers of nodes that have lost all their data.
    pub(super) fn lost(&self) -> BTreeSet<u32> {
        self.marked.lock().lost.clone()
    }

    pub(super) fn add(&self, node: Arc<dyn Node>) -> Result<()> {
        let mut all = self.all.write();
        let known = all.iter().any(|slot| slot.node.number() == node.number());
        if known || all.len() >= DEVICE_SERVERS_MAX {
            return Err(StoreError::Invalid);
        }
        let slot = Arc::new(Slot { node, verifier: Mutex::default() });
        *all = Arc::new(all.iter().cloned().chain([slot]).collect());
        Ok(())
    }

    pub(super) fn remove(&self, number: u32) -> Result<()> {
        let mut all = self.all.write();
        *all = Arc::new(all.iter().filter(|slot| slot.node.number() != number).cloned().collect());
        drop(all);
        self.mark(|marked| {
            marked.leaving.remove(&number);
            marked.lost.remove(&number);
            Ok(())
        })
    }

    /// Marks a node as being emptied, or withdraws the mark. At least `least` nodes must take new
    /// files.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if too few would be left; those of the file.
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

    /// Marks a node as having lost all its data, or withdraws the mark.
    pub(super) fn set_lost(&self, number: u32, lost: bool) -> Result<()> {
        self.mark(|marked| {
            match lost {
                true => marked.lost.insert(number),
                false => marked.lost.remove(&number),
            };
            Ok(())
        })
    }

    /// Changes the marks, stably.
    fn mark(&self, change: impl FnOnce(&mut Marked) -> Result<()>) -> Result<()> {
        let mut marked = self.marked.lock();
        let mut next = marked.clone();
        change(&mut next)?;
        if next != *marked {
            write(&self.memory, &next, &self.key)?;
            *marked = next;
        }
        Ok(())
    }
}

fn read(path: &Path, key: &[u8; 16]) -> Result<Marked> {
    let coded = path.with_extension(CODED);
    let text = |path| own::read(path, NODE_MARKS_BYTES_MAX);
    match text(&coded) {
        Ok(text) => return check(&text, key).ok_or_else(|| damaged(&coded)),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(unreadable(&error)),
    }
    match text(path) {
        Ok(text) => {
            let text = String::from_utf8(text).ok();
            let marked = text.and_then(|text| parse(&text)).ok_or_else(|| damaged(path))?;
            write(path, &marked, key)?;
            fs::remove_file(path)?;
            Ok(marked)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Marked::default()),
        Err(error) => Err(unreadable(&error)),
    }
}

fn unreadable(error: &std::io::Error) -> StoreError {
    tracing::error!("the list of nodes to be emptied cannot be read: {error}");
    StoreError::Io
}

fn damaged(path: &Path) -> StoreError {
    tracing::error!(
        "{}: the list of nodes to be emptied is damaged, or this server did not write it; bring it back \
         from a backup, or remove it, and say again which nodes are to be emptied or replaced: dafs \
         cluster drain, dafs cluster replace",
        path.display()
    );
    StoreError::Io
}

fn check(text: &[u8], key: &[u8; 16]) -> Option<Marked> {
    let text = std::str::from_utf8(text).ok()?;
    let body = text.strip_suffix('\n')?.rsplit_once('\n').map_or("", |(body, _)| body);
    let marked = parse(body)?;
    (coded_text(&marked, key) == text).then_some(marked)
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

fn coded_text(marked: &Marked, key: &[u8; 16]) -> String {
    let leaving = marked.leaving.iter().map(|number| format!("{number}\n"));
    let lost = marked.lost.iter().map(|number| format!("{LOST}{number}\n"));
    let mut text: String = leaving.chain(lost).collect();
    let mac = own::mac(key, &[b"nodes", text.as_bytes()]);
    let _ = writeln!(text, "{CODE}{:032x}", u128::from_be_bytes(mac));
    text
}

fn write(path: &Path, marked: &Marked, key: &[u8; 16]) -> Result<()> {
    let text = coded_text(marked, key);
    own::replace(&path.with_extension(CODED), &path.with_extension("new"), text.as_bytes())?;
    Ok(File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 16] = [5; 16];

    #[test]
    fn marks_of_nodes_are_read_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("marked");
        assert_eq!(read(&path, &KEY), Ok(Marked::default()));
        for marked in [
            Marked { leaving: [3, 40].into(), lost: [3, 7].into() },
            Marked::default(),
            Marked { lost: [7].into(), ..Marked::default() },
        ] {
            write(&path, &marked, &KEY).expect("written");
            assert_eq!(read(&path, &KEY), Ok(marked));
            assert_eq!(read(&path, &[6; 16]), Err(StoreError::Io), "another server's");
        }
        for wrong in ["x", "3 4", "lost", "lost x", "-1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn marks_of_an_earlier_version_are_taken_over_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("marked");
        fs::write(&path, "1\n2\n").expect("written");
        let marked = Marked { leaving: [1, 2].into(), ..Marked::default() };
        assert_eq!(read(&path, &KEY), Ok(marked.clone()));
        assert!(!path.exists());
        fs::write(&path, "3\n").expect("planted");
        assert_eq!(read(&path, &KEY), Ok(marked));
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("marked");
        let marked = Marked { leaving: [3, 40].into(), lost: [7].into() };
        let text = coded_text(&marked, &KEY).into_bytes();
        let cut = (0..text.len()).map(|len| text[..len].to_vec());
        let flipped = (0..text.len()).map(|at| {
            let mut flipped = text.clone();
            flipped[at] ^= 1;
            flipped
        });
        for wrong in cut.chain(flipped) {
            fs::write(path.with_extension(CODED), &wrong).expect("written");
            assert_eq!(read(&path, &KEY), Err(StoreError::Io), "{wrong:?}");
        }
        fs::write(path.with_extension(CODED), text).expect("brought back");
        assert_eq!(read(&path, &KEY), Ok(marked));
    }
}
