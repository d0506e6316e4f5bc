//! Logs of formats 1 and 2, which an earlier version of the server has left: they are rewritten.
//!
//! A head of any length comes first, and records follow it, each with its checksum. Format 2 says
//! that a copy of the file lies beside the log. All numbers are little-endian.
//!
//! Invariants
//! * The name stands for the earlier log until the new one is stable.
//! * Only the last record can be torn. A torn head shows that the file was not changed yet. A head
//!   that is as long as it says, or whose fields say another length, is damaged.

use super::UndoError;
use super::frames::{EARLIER_VERSIONS, Frames, MAGIC, sum};
use super::log::{self, Head, RECORD_BYTES_MAX, UNFINISHED_SUFFIX};
use dafs_store::own;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Magic, version and length of the head.
const PREFIX_BYTES: usize = 16;
/// Offset, length and checksum of a record.
const RECORD_HEAD_BYTES: usize = 16;
/// More than the length of any head.
const HEAD_BYTES_MAX: u64 = 8 << 10;

/// The result for a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// It has another format, and is unchanged.
    No,
    /// Its creation was not finished, so the file was not changed under its lock. It is removed.
    Unfinished,
    /// It has the format of this version now.
    Rewritten,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Rewrites a log of an earlier format, or removes an unfinished one.
///
/// # Errors
/// Those of the disk. `DamagedEarlier`, with the file unchanged.
pub(super) fn take_over(directory: &Path, number: u64) -> Result<Earlier, UndoError> {
    let path = log::path_of(directory, number);
    let old = own::open_to_read(&path)?;
    let total = old.metadata()?.len();
    let mut start = vec![0; HEAD_BYTES_MAX.min(total) as usize];
    old.read_exact_at(&mut start, 0)?;
    let version = word(&start, 8).filter(|_| start.starts_with(&MAGIC));
    let is_short = start.len() < PREFIX_BYTES;
    if !is_short && !version.is_some_and(|version| EARLIER_VERSIONS.contains(&version)) {
        return Ok(Earlier::No);
    }
    let damaged = |at: u64| UndoError::DamagedEarlier(path.clone(), at);
    let len = PREFIX_BYTES + word(&start, 12).map_or(0, |len| len as usize);
    let Some((body, end)) = read_head(&start, len) else {
        if !is_torn(&start, len) {
            return Err(damaged(0));
        }
        std::fs::remove_file(&path)?;
        return Ok(Earlier::Unfinished);
    };
    Head::decode(body).ok_or_else(|| damaged(0))?;
    let unfinished = path.with_extension(UNFINISHED_SUFFIX);
    let mut instance = [0; 16];
    getrandom::fill(&mut instance).map_err(io::Error::other)?;
    let mut new = Frames::create(own::create(&unfinished)?, instance, &[body])?;
    let mut at = end;
    while let Some((offset, data)) = read_record(&old, at, total)?.map_err(damaged)? {
        new.append(&[&offset, &data])?;
        at += (RECORD_HEAD_BYTES + data.len()) as u64;
    }
    new.confirm()?;
    std::fs::rename(&unfinished, &path)?;
    log::sync_parent(&path)?;
    Ok(Earlier::Rewritten)
}

/// Returns the content of the head, if it is whole, and its end. Its checksum is at `len`.
fn read_head(start: &[u8], len: usize) -> Option<(&[u8], u64)> {
    let (head, rest) = start.split_at_checked(len)?;
    let whole = *rest.first_chunk::<4>()? == sum(&[head]);
    whole.then_some((head.get(PREFIX_BYTES..)?, len as u64 + 4))
}

/// True if the file ends within its head, which has `len` bytes before its checksum.
fn is_torn(start: &[u8], len: usize) -> bool {
    // A damaged length may look like that of a head that is not complete yet.
    let body = start.get(PREFIX_BYTES..).unwrap_or_default();
    let is_other =
        Head::decode_first(body).is_some_and(|(_, rest)| start.len() - rest.len() != len);
    len as u64 <= HEAD_BYTES_MAX && start.len() < len + 4 && !is_other
}

/// Offset in the file and bytes, or the position where the log is damaged.
type Found = Result<Option<([u8; 8], Vec<u8>)>, u64>;

/// Returns the record at a position. `None` if it is torn, or the log ends there.
fn read_record(old: &File, at: u64, total: u64) -> io::Result<Found> {
    let left = total - at;
    if left < RECORD_HEAD_BYTES as u64 {
        return Ok(Ok(None));
    }
    let mut head = [0; RECORD_HEAD_BYTES];
    old.read_exact_at(&mut head, at)?;
    let (named, expected) = head.split_at(12);
    let mut offset = [0; 8];
    offset.copy_from_slice(&named[..8]);
    let len = word(named, 8).map_or(0, |len| len as usize);
    let bytes = (RECORD_HEAD_BYTES + len) as u64;
    let is_there = len > 0 && len <= RECORD_BYTES_MAX && bytes <= left;
    if is_there {
        let mut data = vec![0; len];
        old.read_exact_at(&mut data, at + RECORD_HEAD_BYTES as u64)?;
        if sum(&[named, &data]) == *expected {
            return Ok(Ok(Some((offset, data))));
        }
    }
    // Only the last one can be torn, and its length is at most that of a record.
    let is_last = left <= (RECORD_HEAD_BYTES + RECORD_BYTES_MAX) as u64;
    Ok(if !is_last || is_there && bytes < left { Err(at) } else { Ok(None) })
}

#[cfg(test)]
mod tests {
    use super::super::{Undo, index};
    use super::*;

    fn head(copied: bool) -> Head {
        Head { size: 4, copied, ..Head::sample() }
    }

    /// Builds a log as the earlier version wrote it.
    fn written(version: u32, records: &[(u64, &[u8])]) -> Vec<u8> {
        let body = head(version == 2).encode();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        bytes.extend(sum(&[&bytes]));
        for (offset, data) in records {
            let mut named = offset.to_le_bytes().to_vec();
            named.extend((data.len() as u32).to_le_bytes());
            bytes.extend(&named);
            bytes.extend(sum(&[&named, data]));
            bytes.extend(*data);
        }
        bytes
    }

    /// Puts a log in place, without a list.
    fn put(dir: &Path, bytes: &[u8]) {
        let _ = std::fs::remove_file(dir.with_extension("index"));
        std::fs::write(log::path_of(dir, 1), bytes).unwrap();
    }

    fn start(dir: &Path, bytes: &[u8]) -> Result<Vec<(u64, Vec<u8>)>, UndoError> {
        put(dir, bytes);
        let (mut logs, _) = index::find_logs(dir)?;
        let (index, listed) = index::open_list(dir, &mut logs)?;
        let mut found = Vec::new();
        for (number, _) in listed {
            let (log, found_head) = log::Log::open(index.clone(), dir, number)?;
            assert_eq!(found_head, head(found_head.copied));
            let read = |record: &log::Record| (record.offset, log.read(*record).unwrap());
            found.extend(log.records.iter().map(read));
        }
        Ok(found)
    }

    const ONE: (u64, &[u8]) = (0, &[1; 5000]);
    const TWO: (u64, &[u8]) = (16_384, &[2; 100]);

    #[test]
    fn an_upgrade_finds_what_is_to_be_undone() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("undo");
        std::fs::create_dir(&dir).unwrap();
        let found = start(&dir, &written(1, &[ONE, TWO])).unwrap();
        assert_eq!(found, [ONE, TWO].map(|(offset, data)| (offset, data.to_vec())));
        // A log with a copy.
        std::fs::write(log::copy_path(&log::path_of(&dir, 1)), b"copy").unwrap();
        assert!(start(&dir, &written(2, &[])).unwrap().is_empty());
        assert!(log::path_of(&dir, 1).exists());
        assert_eq!(Undo::default().open(&dir).unwrap(), [head(true).key]);
    }

    /// The earlier version does not know the list.
    #[test]
    fn one_of_a_time_without_the_list_is_told_with_what_to_do() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("undo");
        Undo::default().open(&dir).unwrap();
        for bytes in [written(1, &[ONE, TWO]), written(2, &[]), written(1, &[])] {
            std::fs::write(log::path_of(&dir, 1), &bytes).unwrap();
            let error = Undo::default().open(&dir).unwrap_err().to_string();
            assert!(error.contains("undo.index away") && error.contains("keep the log"), "{error}");
            assert_eq!(std::fs::read(log::path_of(&dir, 1)).unwrap(), bytes);
        }
        std::fs::remove_file(dir.with_extension("index")).unwrap();
        assert_eq!(Undo::default().open(&dir).unwrap(), [head(false).key]);
    }

    #[test]
    fn a_torn_record_is_dropped_as_before() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("undo");
        std::fs::create_dir(&dir).unwrap();
        let (bytes, bare) = (written(1, &[ONE, TWO]), written(1, &[]).len());
        for len in (0..bare).step_by(7).chain([bare - 1]) {
            put(&dir, &bytes[..len]);
            assert!(Undo::default().open(&dir).unwrap().is_empty(), "{len} bytes");
            assert!(!log::path_of(&dir, 1).exists(), "{len} bytes");
            // The same after a power failure, as soon as there is a list.
            assert!(start(&dir, &bytes[..len]).unwrap().is_empty(), "{len} bytes");
            Undo::default().open(&dir).unwrap();
        }
        for (len, records) in [(bare, 0), (bare + 5000, 0), (bare + 5016, 1), (bytes.len() - 1, 1)]
        {
            assert_eq!(start(&dir, &bytes[..len]).unwrap().len(), records, "{len} bytes");
        }
    }

    #[test]
    fn a_damaged_one_stops_the_start_and_stays() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("undo");
        std::fs::create_dir(&dir).unwrap();
        let bytes = written(1, &[ONE, TWO]);
        let bare = written(2, &[]);
        let flip = |bytes: &[u8], at: usize, bit: u8| {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= bit;
            flipped
        };
        let mut all: Vec<_> = [20, 100, bytes.len() - 4000, bytes.len() - 117]
            .map(|at| flip(&bytes, at, 0x10))
            .into();
        // Every bit of the head's length. Behind the head are many bytes, few, or only those of a
        // copy.
        let few = written(1, &[(0, &[1; 3])]);
        for bit in 0..32 {
            let (at, bit) = (12 + bit / 8, 1 << (bit % 8));
            all.extend([&bytes, &few, &bare].map(|bytes| flip(bytes, at, bit)));
        }
        all.extend((16..bare.len()).map(|at| flip(&bare, at, 0x10)));
        for flipped in all {
            let at = flipped.iter().zip(&bytes).position(|(one, other)| one != other);
            let error = start(&dir, &flipped).unwrap_err();
            assert!(matches!(error, UndoError::DamagedEarlier(..)), "at {at:?}: {error}");
            assert!(!error.to_string().contains("accept-loss"), "{error}");
            assert_eq!(std::fs::read(log::path_of(&dir, 1)).unwrap(), flipped);
        }
    }
}
