//! The undo log of one lock.
//!
//! A head holds the lock's holder, the file, and the length of the file. Where the file system can
//! share content between files, a copy of the whole file lies beside the log, and the log has no
//! records. Otherwise records follow, each with a pre-image of some bytes of the file. A record is
//! stable before its bytes are first overwritten, and before the next record is written. So only a
//! record that is not needed can be torn.
//!
//! Invariants
//! * A restart reads a log as it was written, or refuses it and keeps the file.
//! * A log gets its name when its head is stable, and is put on the list of logs after that.
//! * A log is marked as discarded before it is removed from the list: its name can reappear, and
//!   the list can be lost.
//! * A copy is stable before the log that refers to it, and is removed after it.

use super::SUFFIX;
use super::UndoError;
use super::frames::{
    self, EARLIER_VERSIONS, FrameError, Frames, MESSAGE_BYTES_MAX, Message, Standing,
};
use super::index::{Index, Listed};
use crate::handle::Handle;
use dafs_mem::sys::as_server;
use dafs_store::{FILE_ID_BYTES, FileId, FsId, OpenFile, own};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PERSIST: u8 = 1;
const COPIED: u8 = 2;
pub(super) const COPY_SUFFIX: &str = "copy";
/// Suffix of a log whose creation is not finished.
pub(super) const UNFINISHED_SUFFIX: &str = "new";
/// Before a record's data: its offset in the file.
const OFFSET_BYTES: usize = 8;
/// The most data of a record, in bytes.
pub(super) const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX - OFFSET_BYTES;

/// The holder of a lock, named so that it is recognised after a restart of the server: an instance
/// of a client, and the owner's name in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: Vec<u8>,
    pub(crate) verifier: [u8; 8],
    pub(crate) mechanism: String,
    pub(crate) principal: Vec<u8>,
    pub(crate) owner: Vec<u8>,
}

/// The content of the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) key: Handle,
    /// Length of the file when it was locked, in bytes.
    pub(super) size: u64,
    /// The lock outlives its holder's failure.
    pub(super) persist: bool,
    /// A copy of the file lies beside the log.
    pub(super) copied: bool,
    pub(super) holder: Holder,
}

/// The position of a record's data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// Offset in the locked file.
    pub(super) offset: u64,
    pub(super) len: usize,
    message: Message,
}

pub(super) struct Log {
    index: Arc<Index>,
    number: u64,
    frames: Frames,
    path: PathBuf,
    pub(super) records: Vec<Record>,
    pub(super) copied: bool,
}

impl Head {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.key.fs.0);
        body.extend(self.key.file.0);
        body.extend(self.size.to_le_bytes());
        body.push(if self.persist { PERSIST } else { 0 } | if self.copied { COPIED } else { 0 });
        body.extend(self.holder.verifier);
        let Holder { name, mechanism, principal, owner, .. } = &self.holder;
        for text in [name.as_slice(), mechanism.as_bytes(), principal, owner] {
            body.extend((text.len() as u32).to_le_bytes());
            body.extend(text);
        }
        body
    }

    /// Decodes a head. `None` if it makes no sense.
    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        Self::decode_first(body).map(|(head, _)| head)
    }

    /// Decodes a head, and returns the rest of `body`.
    pub(super) fn decode_first(body: &[u8]) -> Option<(Self, &[u8])> {
        let mut rest = body;
        let mut take = |len: usize| -> Option<&[u8]> {
            let (taken, left) = rest.split_at_checked(len)?;
            rest = left;
            Some(taken)
        };
        let fs = FsId(take(16)?.try_into().ok()?);
        let file = FileId(take(FILE_ID_BYTES)?.try_into().ok()?);
        let size = u64::from_le_bytes(take(8)?.try_into().ok()?);
        let flags = *take(1)?.first()?;
        let (persist, copied) = (flags & PERSIST != 0, flags & COPIED != 0);
        let verifier = take(8)?.try_into().ok()?;
        let mut text = || {
            let len = u32::from_le_bytes(take(4)?.try_into().ok()?);
            Some(take(len as usize)?.to_vec())
        };
        let name = text()?;
        let mechanism = String::from_utf8(text()?).ok()?;
        let (principal, owner) = (text()?, text()?);
        let holder = Holder { name, verifier, mechanism, principal, owner };
        Some((Self { key: Handle { fs, file }, size, persist, copied, holder }, rest))
    }
}

/// The path of a log.
pub(super) fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number}.{SUFFIX}"))
}

/// Returns the identity of the log with this number, and its state.
pub(super) fn standing(directory: &Path, number: u64) -> Result<(Listed, Standing), UndoError> {
    let path = path_of(directory, number);
    let read = frames::standing(&own::open_to_read(&path)?);
    let (instance, standing) = read.map_err(|error| undo_error(error, &path))?;
    Ok(((number, instance), standing))
}

fn undo_error(error: FrameError, path: &Path) -> UndoError {
    match error {
        FrameError::Io(error) => UndoError::Io(error),
        FrameError::Damaged { at } => UndoError::Damaged { path: path.to_owned(), at },
        FrameError::Version(version) if EARLIER_VERSIONS.contains(&version) => {
            UndoError::Earlier(path.to_owned())
        }
        FrameError::Version(version) => UndoError::Version { path: path.to_owned(), version },
    }
}

/// The path of the file's copy for a log.
pub(super) fn copy_path(log: &Path) -> PathBuf {
    log.with_extension(COPY_SUFFIX)
}

/// Makes a copy of a file that shares its content, for the log at this path. It is stable on
/// return. Returns its length, or `None` where the two files cannot share content.
pub(super) fn copy(log: &Path, file: &dyn OpenFile) -> io::Result<Option<u64>> {
    as_server()?;
    let path = copy_path(log);
    let copy = own::create(&path)?;
    let copied = file.clone_to(&copy).map_err(|_| io::ErrorKind::Unsupported.into());
    match copied.and_then(|()| as_server()).and_then(|()| copy.sync_all()) {
        Ok(()) => copy.metadata().map(|found| Some(found.len())),
        Err(_) => std::fs::remove_file(&path).map(|()| None),
    }
}

pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

impl Log {
    /// Makes a log in a directory. It is stable on return.
    pub(super) fn create(
        index: Arc<Index>,
        directory: &Path,
        number: u64,
        head: &Head,
    ) -> io::Result<Self> {
        as_server()?;
        let path = path_of(directory, number);
        let unfinished = path.with_extension(UNFINISHED_SUFFIX);
        let file = own::create(&unfinished)?;
        let mut instance = [0; 16];
        let made = getrandom::fill(&mut instance).map_err(io::Error::other);
        let made = made.and_then(|()| Frames::create(file, instance, &[&head.encode()]));
        let named = made.and_then(|frames| std::fs::rename(&unfinished, &path).map(|()| frames));
        let frames = named.inspect_err(|_| {
            // The next start removes it.
            let _ = std::fs::remove_file(&unfinished);
        })?;
        let records = Vec::new();
        let log = Self { index, number, frames, path, records, copied: head.copied };
        let listed = sync_parent(&log.path).and_then(|()| log.index.add(log.listed()));
        match listed.and_then(|()| log.frames.confirm()) {
            Ok(()) => Ok(log),
            Err(error) => {
                let _ = log.remove();
                Err(error)
            }
        }
    }

    /// The log's entry on the list.
    pub(super) fn listed(&self) -> Listed {
        (self.number, self.frames.instance())
    }

    /// Opens a log of an earlier run.
    ///
    /// # Errors
    /// Those of the disk. `Damaged`, `Copy` and `Version`, with the file unchanged.
    pub(super) fn open(
        index: Arc<Index>,
        directory: &Path,
        number: u64,
    ) -> Result<(Self, Head), UndoError> {
        let path = path_of(directory, number);
        let file = own::open(&path, false)?;
        let (mut head, mut records) = (None, Vec::new());
        let opened = Frames::open(file, &mut |message, bytes| {
            if head.is_none() {
                head = Some(Head::decode(bytes)?);
                return Some(());
            }
            let (offset, data) = bytes.split_first_chunk::<OFFSET_BYTES>()?;
            let (offset, len) = (u64::from_le_bytes(*offset), data.len());
            records.push(Record { offset, len, message });
            Some(())
        });
        let frames = opened.map_err(|error| undo_error(error, &path))?;
        let head = head.ok_or_else(|| UndoError::Damaged { path: path.clone(), at: 0 })?;
        let log = Self { index, number, frames, path, records, copied: head.copied };
        if head.copied && !log.has_whole_copy(head.size)? {
            return Err(UndoError::Copy { copy: copy_path(&log.path), log: log.path });
        }
        Ok((log, head))
    }

    /// True if it has fewer records than the list knows.
    pub(super) fn is_older(&self) -> bool {
        self.frames.count() < self.index.frames(self.number)
    }

    /// True if the copy exists with its whole length. The file system protects its content, as it
    /// does that of the file with which it shares it.
    fn has_whole_copy(&self, size: u64) -> io::Result<bool> {
        match own::open_to_read(&copy_path(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => Ok(found?.metadata()?.len() == size),
        }
    }

    /// Adds a record. It is stable on return.
    pub(super) fn append(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        debug_assert!(!data.is_empty() && data.len() <= RECORD_BYTES_MAX);
        let message = self.frames.append(&[&offset.to_le_bytes(), data])?;
        self.index.note(self.listed(), self.frames.count())?;
        self.records.push(Record { offset, len: data.len(), message });
        Ok(())
    }

    /// Reads the data of a record.
    ///
    /// # Errors
    /// Those of the disk. `InvalidData` when it has changed since.
    pub(super) fn read(&self, record: Record) -> io::Result<Vec<u8>> {
        let mut data = self.frames.read(record.message)?;
        data.drain(..OFFSET_BYTES);
        Ok(data)
    }

    /// Discards the log. This is stable on return.
    ///
    /// # Errors
    /// Those of the disk. Then the log may be marked as discarded, until it is [taken
    /// back](Self::take_back).
    pub(super) fn remove(&self) -> io::Result<()> {
        as_server()?;
        self.frames.discard()?;
        if let Err(error) = self.index.remove(self.number) {
            tracing::warn!(%error, "a log that is needed no more stays on the list for now");
            return Ok(());
        }
        // The next start removes the files that are left.
        let _ = std::fs::remove_file(&self.path);
        if self.copied {
            let _ = std::fs::remove_file(copy_path(&self.path));
        }
        Ok(())
    }

    /// Marks the log as used again, as well as the disk allows.
    pub(super) fn take_back(&self) {
        if let Err(error) = self.frames.take_back() {
            tracing::warn!(%error, "a log may count as discarded, although it is not");
        }
    }

    /// Opens the copy of the file.
    pub(super) fn open_copy(&self) -> io::Result<File> {
        as_server()?;
        own::open_to_read(&copy_path(&self.path))
    }
}

#[cfg(test)]
impl Head {
    /// Makes a head for tests.
    pub(super) fn sample() -> Self {
        let key = Handle { fs: FsId([3; 16]), file: FileId([4; FILE_ID_BYTES]) };
        let holder = Holder {
            name: b"client".to_vec(),
            verifier: [5; 8],
            mechanism: "none".to_owned(),
            principal: Vec::new(),
            owner: b"owner".to_vec(),
        };
        Self { key, size: 12_345, persist: true, copied: false, holder }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::{FRAME_BYTES, first_sector};
    use super::*;

    fn create(directory: &Path, number: u64, head: &Head) -> Log {
        let index = Index::make(&directory.join("index"), &[]).unwrap();
        Log::create(Arc::new(index), directory, number, head).unwrap()
    }

    fn open(directory: &Path, number: u64) -> Result<(Log, Head), UndoError> {
        let (index, _) = Index::open(&directory.join("index")).unwrap().unwrap();
        Log::open(Arc::new(index), directory, number)
    }

    /// The position of the last record in the log.
    const LAST: usize = (1 + 1 + 10) * FRAME_BYTES;

    /// Simulates a power failure: the number of a log's frames is not on the list.
    fn forget_counts(dir: &Path) {
        let (_, listed) = Index::open(&dir.join("index")).unwrap().unwrap();
        Index::make(&dir.join("index"), &listed).unwrap();
    }

    /// A head in one frame, a record in ten, and one in one.
    fn made(dir: &Path) -> (PathBuf, Vec<u8>) {
        let path = path_of(dir, 1);
        let mut log = create(dir, 1, &Head::sample());
        log.append(0, &[1; 5000]).unwrap();
        log.append(16_384, &[2; 100]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), LAST + FRAME_BYTES);
        forget_counts(dir);
        (path, bytes)
    }

    /// Makes such a log without the confirmation of the last record, as after a power failure.
    fn unconfirmed(dir: &Path) -> (PathBuf, Vec<u8>) {
        let path = path_of(dir, 2);
        let mut log = create(dir, 2, &Head::sample());
        log.append(0, &[1; 5000]).unwrap();
        let mut first = std::fs::read(&path).unwrap();
        log.append(16_384, &[2; 100]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        first.truncate(FRAME_BYTES);
        first.extend(&bytes[FRAME_BYTES..]);
        forget_counts(dir);
        (path, first)
    }

    /// Replaces the file. It is not overwritten, because file systems would wait for that.
    fn put(path: &Path, bytes: &[u8]) {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// The number of records found.
    fn records(path: &Path) -> Result<usize, UndoError> {
        let number = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        open(path.parent().unwrap(), number).map(|(log, _)| log.records.len())
    }

    #[test]
    fn a_log_reads_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = made(dir.path());
        let (mut log, found) = open(dir.path(), 1).unwrap();
        assert_eq!(found, Head::sample());
        log.append(32_768, b"more").unwrap();
        let (log, _) = open(dir.path(), 1).unwrap();
        let read = |at: usize| (log.records[at].offset, log.read(log.records[at]).unwrap());
        assert_eq!(log.records.len(), 3);
        assert_eq!((read(0), read(1)), ((0, vec![1; 5000]), (16_384, vec![2; 100])));
        assert_eq!(read(2), (32_768, b"more".to_vec()));
        log.remove().unwrap();
        log.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn one_that_could_not_be_thrown_away_for_sure_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path());
        let (log, _) = open(dir.path(), 1).unwrap();
        log.frames.discard().unwrap();
        let standing = || standing(dir.path(), 1).unwrap();
        assert_eq!(standing(), (log.listed(), Standing::Discarded));
        log.take_back();
        assert_eq!(standing(), (log.listed(), Standing::Used));
        assert_eq!(records(&log.path).unwrap(), 2);
    }

    #[test]
    fn a_torn_end_is_cut_off_wherever_it_tears() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes) = unconfirmed(dir.path());
        for len in LAST..=bytes.len() {
            put(&path, &bytes[..len]);
            let whole = len == bytes.len();
            assert_eq!(records(&path).unwrap(), 1 + usize::from(whole), "{len} bytes");
            assert_eq!(records(&path).unwrap(), 1 + usize::from(whole), "again");
        }
        // The length is there, but the data is missing.
        let mut torn = bytes.clone();
        torn[LAST..].fill(0);
        put(&path, &torn);
        assert_eq!(records(&path).unwrap(), 1);
    }

    #[test]
    fn of_a_long_record_any_frames_may_be_missing_but_none_may_be_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes) = made(dir.path());
        let head = first_sector(bytes[16..32].try_into().unwrap(), 1);
        for missing in 1u32..1 << 10 {
            let mut torn = bytes[..LAST].to_vec();
            torn[..FRAME_BYTES].copy_from_slice(&head);
            let frames = torn.chunks_exact_mut(FRAME_BYTES).skip(2).enumerate();
            frames.filter(|(at, _)| missing & 1 << at != 0).for_each(|(_, frame)| frame.fill(0));
            put(&path, &torn);
            assert_eq!(records(&path).unwrap(), 0);
            let there = (0..10).find(|at| missing & 1 << at == 0);
            let Some(there) = there.filter(|_| missing.is_multiple_of(7)) else { continue };
            torn[(2 + there) * FRAME_BYTES + 100] ^= 4;
            put(&path, &torn);
            assert!(matches!(records(&path), Err(UndoError::Damaged { .. })), "{missing:b}");
        }
    }

    #[test]
    fn every_flipped_bit_is_told_and_the_file_kept() {
        let dir = tempfile::tempdir().unwrap();
        for (path, bytes) in [made(dir.path()), unconfirmed(dir.path())] {
            for at in 0..bytes.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                put(&path, &flipped);
                let error = records(&path);
                assert!(
                    matches!(error, Err(UndoError::Damaged { .. } | UndoError::Version { .. })),
                    "at {at}"
                );
                assert_eq!(std::fs::read(&path).unwrap(), flipped);
            }
        }
    }

    #[test]
    fn one_that_was_cut_or_zeroed_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes) = made(dir.path());
        for len in 0..bytes.len() {
            put(&path, &bytes[..len]);
            assert!(matches!(records(&path), Err(UndoError::Damaged { .. })), "{len} bytes");
        }
        for from in [0, FRAME_BYTES, LAST] {
            let mut zeroed = bytes.clone();
            zeroed[from..].fill(0);
            put(&path, &zeroed);
            assert!(matches!(records(&path), Err(UndoError::Damaged { .. })), "from {from}");
        }
    }

    #[test]
    fn frames_of_another_log_are_damage() {
        let dir = tempfile::tempdir().unwrap();
        let ((path, mut bytes), (_, other)) = (made(dir.path()), unconfirmed(dir.path()));
        bytes[LAST..].copy_from_slice(&other[LAST..]);
        put(&path, &bytes);
        assert!(matches!(records(&path), Err(UndoError::Damaged { .. })));
    }

    #[test]
    fn one_of_an_earlier_version_is_told_whatever_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mut bytes) = made(dir.path());
        bytes[12] = 200;
        for (version, len) in [(1, bytes.len()), (2, bytes.len()), (2, 300), (1, 16)] {
            bytes[8] = version;
            put(&path, &bytes[..len]);
            let error = records(&path).unwrap_err();
            assert!(matches!(error, UndoError::Earlier(_)), "version {version}: {error}");
        }
        bytes[8] = 4;
        put(&path, &bytes);
        assert!(matches!(records(&path), Err(UndoError::Version { version: 4, .. })));
    }

    #[test]
    fn a_copy_that_is_missing_or_cut_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_of(dir.path(), 1);
        drop(create(dir.path(), 1, &Head { copied: true, ..Head::sample() }));
        let refused = || matches!(open(dir.path(), 1), Err(UndoError::Copy { .. }));
        assert!(refused());
        std::fs::write(copy_path(&path), vec![0; 12_344]).unwrap();
        assert!(refused());
        std::fs::write(copy_path(&path), vec![0; 12_345]).unwrap();
        assert!(!refused());
    }
}
