//! The list of the undo logs, by which the server detects a lost log, and ignores a discarded one
//! that reappears.
//!
//! The file has a fixed size: a sector with its identity, and a slot for each log. A slot is
//! written in place, within a sector, which a disk writes wholly or not at all. All numbers are
//! little-endian.
//!
//! A slot also holds the least number of frames of its log, so that an older copy of the log is
//! detected. No caller waits for that number to become stable: it outlives the process.
//!
//! Invariants
//! * A log counts when it is on the list. It is on the list from before the first change under its
//!   lock until its changes are kept or undone. The list's functions return when these updates are
//!   stable.

use super::earlier::{self, Earlier};
use super::frames::{Standing, sum};
use super::log::{self, COPY_SUFFIX, UNFINISHED_SUFFIX};
use super::{SUFFIX, UndoError};
use crate::limits::UNDO_LOCKS_MAX;
use dafs_mem::Mutex;
use dafs_store::own;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"dafsundx";
const VERSION: u32 = 1;
const SECTOR_BYTES: usize = 512;
const SLOT_BYTES: usize = 32;
/// Twice as many as locks, because a log that could not be removed from the list stays on it.
const SLOTS: usize = 2 * UNDO_LOCKS_MAX as usize;
const LEN_BYTES: usize = SECTOR_BYTES + SLOTS * SLOT_BYTES;
const LIST_SUFFIX: &str = "index";

/// A log on the list: its number and its identity.
pub(super) type Listed = (u64, [u8; 16]);

/// The list.
pub(super) struct Index {
    file: File,
    instance: [u8; 16],
    /// Slots by number of the log.
    slots: Mutex<BTreeMap<u64, Slot>>,
}

/// The slot of a log.
#[derive(Clone, Copy)]
struct Slot {
    at: usize,
    /// The least number of frames of the log.
    frames: u32,
}

fn first_sector(instance: &[u8; 16]) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    sector[..8].copy_from_slice(&MAGIC);
    sector[8..12].copy_from_slice(&VERSION.to_le_bytes());
    sector[16..32].copy_from_slice(instance);
    let sum = sum(&[&sector[..SECTOR_BYTES - 4]]);
    sector[SECTOR_BYTES - 4..].copy_from_slice(&sum);
    sector
}

/// Encodes a slot with a log, or an empty one.
fn slot(instance: &[u8; 16], at: usize, listed: Option<(Listed, u32)>) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    if let Some(((number, log), frames)) = listed {
        slot[..8].copy_from_slice(&(number + 1).to_le_bytes());
        slot[8..24].copy_from_slice(&log);
        slot[24..28].copy_from_slice(&frames.to_le_bytes());
    }
    let sum = sum(&[instance, &(at as u64).to_le_bytes(), &slot[..SLOT_BYTES - 4]]);
    slot[SLOT_BYTES - 4..].copy_from_slice(&sum);
    slot
}

fn place(slot: usize) -> u64 {
    (SECTOR_BYTES + slot * SLOT_BYTES) as u64
}

/// The instance of a list, if its first sector is whole.
fn instance(bytes: &[u8]) -> Option<[u8; 16]> {
    let instance = bytes.get(16..32)?.try_into().ok()?;
    (bytes.get(..SECTOR_BYTES)? == first_sector(&instance)).then_some(instance)
}

/// Returns the identity of a list of logs. `None` if it is missing or damaged.
///
/// # Errors
/// Those of the disk.
pub fn undo_list_instance(path: &Path) -> io::Result<Option<[u8; 16]>> {
    let mut sector = [0; SECTOR_BYTES];
    let file = match own::open_to_read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match file.read_exact_at(&mut sector, 0) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(|()| instance(&sector)),
    }
}

/// The path of the list for a directory: beside the directory.
fn list_of(directory: &Path) -> PathBuf {
    directory.with_extension(LIST_SUFFIX)
}

impl Index {
    /// Reads the list, with its logs. `None` if there is no list.
    ///
    /// # Errors
    /// Those of the disk. `InvalidData` when it is damaged.
    pub(super) fn open(path: &Path) -> io::Result<Option<(Self, Vec<Listed>)>> {
        let file = match own::open(path, false) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let damaged = || io::Error::from(ErrorKind::InvalidData);
        if file.metadata()?.len() != LEN_BYTES as u64 {
            return Err(damaged());
        }
        let mut bytes = vec![0; LEN_BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        let instance = instance(&bytes).ok_or_else(damaged)?;
        let (mut slots, mut listed) = (BTreeMap::new(), Vec::new());
        for (at, found) in bytes[SECTOR_BYTES..].chunks_exact(SLOT_BYTES).enumerate() {
            let (number, rest) = found.split_first_chunk::<8>().ok_or_else(damaged)?;
            let (log, rest) = rest.split_first_chunk::<16>().ok_or_else(damaged)?;
            let frames = u32::from_le_bytes(*rest.first_chunk().ok_or_else(damaged)?);
            let entry = u64::from_le_bytes(*number).checked_sub(1).map(|number| (number, *log));
            if *found != slot(&instance, at, entry.map(|entry| (entry, frames))) {
                return Err(damaged());
            }
            if let Some((number, log)) = entry {
                slots.insert(number, Slot { at, frames });
                listed.push((number, log));
            }
        }
        Ok(Some((Self { file, instance, slots: Mutex::new(slots) }, listed)))
    }

    /// Makes a list of these logs. It is stable on return.
    pub(super) fn make(path: &Path, listed: &[Listed]) -> io::Result<Self> {
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(io::Error::other)?;
        let mut bytes = first_sector(&instance).to_vec();
        for at in 0..SLOTS.max(listed.len()) {
            bytes.extend(slot(&instance, at, listed.get(at).map(|listed| (*listed, 0))));
        }
        let unfinished = path.with_extension("index-new");
        let file = own::create(&unfinished)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        std::fs::rename(unfinished, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        let slots = listed.iter().enumerate();
        let slots = slots.map(|(at, (number, _))| (*number, Slot { at, frames: 0 })).collect();
        Ok(Self { file, instance, slots: Mutex::new(slots) })
    }

    /// Returns the least number of frames of a log.
    pub(super) fn frames(&self, number: u64) -> u64 {
        self.slots.lock().get(&number).map_or(0, |slot| slot.frames.into())
    }

    /// Puts a log on the list. This is stable on return.
    pub(super) fn add(&self, (number, log): Listed) -> io::Result<()> {
        let mut slots = self.slots.lock();
        let taken: BTreeSet<_> = slots.values().map(|slot| slot.at).collect();
        let free = (0..SLOTS).find(|at| !taken.contains(at)).ok_or(ErrorKind::StorageFull)?;
        slots.insert(number, Slot { at: free, frames: 0 });
        drop(slots);
        self.write(free, Some((number, log))).inspect_err(|_| {
            // The content of the slot is not known. If it stays, the next start reports the log as
            // missing.
            let _ = self.remove(number);
        })
    }

    /// Removes a log from the list, if it is there. This is stable on return.
    pub(super) fn remove(&self, number: u64) -> io::Result<()> {
        let Some(Slot { at, .. }) = self.slots.lock().get(&number).copied() else { return Ok(()) };
        self.write(at, None)?;
        self.slots.lock().remove(&number);
        Ok(())
    }

    /// Records the number of frames of a log on the list.
    pub(super) fn note(&self, listed: Listed, frames: u64) -> io::Result<()> {
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        let mut slots = self.slots.lock();
        let Some(found) = slots.get_mut(&listed.0) else { return Ok(()) };
        found.frames = frames;
        let at = found.at;
        drop(slots);
        self.file.write_all_at(&slot(&self.instance, at, Some((listed, frames))), place(at))
    }

    fn write(&self, at: usize, listed: Option<Listed>) -> io::Result<()> {
        let listed = listed.map(|listed| (listed, 0));
        self.file.write_all_at(&slot(&self.instance, at, listed), place(at))?;
        self.file.sync_data()
    }
}

/// Returns the numbers of the logs in a directory, in order, and of the copies. Removes unfinished
/// files.
pub(super) fn find_logs(directory: &Path) -> Result<(Vec<u64>, Vec<u64>), UndoError> {
    let (mut logs, mut copies) = (Vec::new(), Vec::new());
    for found in std::fs::read_dir(directory)? {
        let path = found?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        let number = number
            .filter(|number| log::path_of(directory, *number).file_stem() == path.file_stem());
        match path.extension().and_then(|suffix| suffix.to_str()) {
            Some(SUFFIX) => logs.extend(number),
            Some(COPY_SUFFIX) => copies.extend(number),
            Some(UNFINISHED_SUFFIX) => std::fs::remove_file(&path)?,
            _ => {}
        }
    }
    logs.sort_unstable();
    Ok((logs, copies))
}

/// Returns the list, with its logs, the latest first. If there is no list, all logs in the
/// directory are on the new one, except discarded ones. Unfinished ones are removed, from `found`
/// too.
pub(super) fn open_list(
    directory: &Path,
    found: &mut Vec<u64>,
) -> Result<(Arc<Index>, Vec<Listed>), UndoError> {
    let path = list_of(directory);
    let opened = Index::open(&path).map_err(|error| match error.kind() {
        ErrorKind::InvalidData => UndoError::List(path.clone()),
        _ => UndoError::Io(error),
    });
    let (index, mut listed) = match opened? {
        Some((list, listed)) => {
            let listed = settle(directory, found, (&path, &list), listed)?;
            (list, listed)
        }
        None => {
            let mut listed = Vec::new();
            for number in std::mem::take(found) {
                // Logs of earlier formats had no list.
                if earlier::take_over(directory, number)? == Earlier::Unfinished {
                    continue;
                }
                found.push(number);
                let (log, standing) = log::standing(directory, number)?;
                if standing != Standing::Discarded {
                    listed.push(log);
                }
            }
            // The removals must be stable: with a list, a removed log that reappears would stop the
            // start.
            File::open(directory)?.sync_all()?;
            (Index::make(&path, &listed)?, listed)
        }
    };
    listed.sort_unstable_by(|one, two| two.cmp(one));
    Ok((Arc::new(index), listed))
}

/// Removes from the list the logs that are marked as discarded. A log that is not on the list must
/// be discarded, or not used yet.
fn settle(
    directory: &Path,
    found: &[u64],
    (path, list): (&Path, &Index),
    listed: Vec<Listed>,
) -> Result<Vec<Listed>, UndoError> {
    let mut kept = listed.clone();
    for &number in found {
        let (log, standing) = log::standing(directory, number)?;
        let is_listed = listed.iter().any(|(listed, _)| *listed == number);
        match standing {
            Standing::Used if !is_listed => {
                let (list, log) = (path.to_owned(), log::path_of(directory, number));
                return Err(UndoError::OlderList { list, log });
            }
            Standing::Discarded if listed.contains(&log) => {
                list.remove(number)?;
                kept.retain(|kept| *kept != log);
            }
            _ => {}
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    fn read(path: &Path) -> io::Result<Vec<Listed>> {
        Index::open(path).map(|found| found.map_or(Vec::new(), |(_, listed)| listed))
    }

    #[test]
    fn logs_are_on_the_list_until_they_are_taken_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo.index");
        assert!(Index::open(&path).unwrap().is_none());
        let index = Index::make(&path, &[(7, [7; 16])]).unwrap();
        assert_eq!(undo_list_instance(&path).unwrap(), Some(index.instance));
        for number in 0..3 {
            index.add((number, [number as u8; 16])).unwrap();
        }
        index.remove(1).unwrap();
        index.remove(1).unwrap();
        let listed = |number: u64| (number, [number as u8; 16]);
        assert_eq!(read(&path).unwrap(), [7, 0, 2].map(listed));
        let (index, _) = Index::open(&path).unwrap().unwrap();
        index.add(listed(9)).unwrap();
        assert_eq!(read(&path).unwrap(), [7, 0, 9, 2].map(listed));
    }

    #[test]
    fn every_flipped_bit_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo.index");
        drop(Index::make(&path, &[(7, [7; 16])]).unwrap());
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        for at in (0..LEN_BYTES as u64).filter(|at| *at < 700 || at % 37 == 0) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), ErrorKind::InvalidData, "byte {at}");
            file.write_all_at(&byte, at).unwrap();
        }
        assert_eq!(read(&path).unwrap().len(), 1);
        for len in [0, 100, LEN_BYTES as u64 - SLOT_BYTES as u64, LEN_BYTES as u64 + 1] {
            file.set_len(len).unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), ErrorKind::InvalidData, "{len} bytes");
        }
    }
}
