//! The file that holds what one lock may have to undo.
//!
//! A head says whose lock it is on which file, and how long the file was. Where the file system can
//! share content, a copy of the whole file lies beside the log, and that is all. Else records follow,
//! each with bytes of the file as they were. A record is stable before its bytes are first overwritten, and
//! before the next one is written. So at most the last record can be torn, and that one is not needed.
//!
//! Invariants
//! * What a restart reads is what was written, or is refused with the file kept.
//! * A copy is stable before the log that speaks of it, and goes after it.

use super::UndoError;
use crate::handle::Handle;
use crc_fast::CrcAlgorithm;
use dafs_store::{FILE_ID_BYTES, FileId, FsId, OpenFile};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"dafsundo";
const VERSION: u32 = 1;
/// With a copy, which older servers do not know of.
const VERSION_COPIED: u32 = 2;
const PERSIST: u8 = 1;
const COPIED: u8 = 2;
/// Magic, version and length of the head.
const PREFIX_BYTES: usize = 16;
pub(super) const COPY_SUFFIX: &str = "copy";
/// Offset, length and checksum of a record.
const RECORD_HEAD_BYTES: u64 = 16;
/// Longer than any head, whose names are bounded elsewhere.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Bytes of a record's data at most.
pub(super) const RECORD_BYTES_MAX: usize = 1 << 20;

/// Who holds a lock, as it is known again after a restart of the server: an instance of a client, and
/// the owner's name in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: Vec<u8>,
    pub(crate) verifier: [u8; 8],
    pub(crate) mechanism: String,
    pub(crate) principal: Vec<u8>,
    pub(crate) owner: Vec<u8>,
}

/// What the head says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) key: Handle,
    /// Bytes of the file when it was locked.
    pub(super) size: u64,
    /// The lock outlives its holder's failure.
    pub(super) persist: bool,
    /// A copy of the file lies beside the log.
    pub(super) copied: bool,
    pub(super) holder: Holder,
}

/// Where a record's data lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// In the locked file.
    pub(super) offset: u64,
    pub(super) len: usize,
    /// In the log.
    at: u64,
}

pub(super) struct Log {
    file: File,
    path: PathBuf,
    len: u64,
    pub(super) records: Vec<Record>,
    pub(super) copied: bool,
}

fn checksum(parts: [&[u8]; 2]) -> u32 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.into_iter().for_each(|part| digest.update(part));
    // INVARIANT: this algorithm has 32 bits.
    digest.finalize() as u32
}

impl Head {
    fn encode(&self) -> Vec<u8> {
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
        let mut bytes = MAGIC.to_vec();
        let version = if self.copied { VERSION_COPIED } else { VERSION };
        bytes.extend(version.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        let sum = checksum([&bytes, &[]]);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// The head of what `body` says; `None` for nonsense.
    fn decode(body: &[u8]) -> Option<Self> {
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
        Some(Self { key: Handle { fs, file }, size, persist, copied, holder })
    }
}

/// Store calls leave threads with the identity of their callers, who have no business where logs are.
fn as_server() -> io::Result<()> {
    dafs_store::posix::as_server().map_err(|_| io::ErrorKind::PermissionDenied.into())
}

/// Where the copy of a file lies that belongs to a log.
pub(super) fn copy_path(log: &Path) -> PathBuf {
    log.with_extension(COPY_SUFFIX)
}

/// Makes a copy of a file that shares its content, stable when it is returned, for the log of that
/// name. Tells its length; `None` where the two cannot share.
pub(super) fn copy(log: &Path, file: &dyn OpenFile) -> io::Result<Option<u64>> {
    as_server()?;
    let path = copy_path(log);
    let mut options = OpenOptions::new();
    let copy = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    let copied = file.clone_to(&copy).map_err(|_| io::ErrorKind::Unsupported.into());
    match copied.and_then(|()| as_server()).and_then(|()| copy.sync_all()) {
        Ok(()) => copy.metadata().map(|found| Some(found.len())),
        Err(_) => std::fs::remove_file(&path).map(|()| None),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

impl Log {
    /// A new log, stable when it is returned.
    pub(super) fn create(path: PathBuf, head: &Head) -> io::Result<Self> {
        as_server()?;
        let bytes = head.encode();
        debug_assert!(bytes.len() <= HEAD_BYTES_MAX, "names are bounded");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let (len, copied) = (bytes.len() as u64, head.copied);
        let log = Self { file, path, len, records: Vec::new(), copied };
        let written = log.file.write_all_at(&bytes, 0).and_then(|()| log.file.sync_all());
        match written.and_then(|()| sync_parent(&log.path)) {
            Ok(()) => Ok(log),
            Err(error) => {
                // An empty or torn one is removed at the next start.
                let _ = log.remove();
                Err(error)
            }
        }
    }

    /// Reads a log of an earlier run. `None` for one whose making was not finished: nothing was
    /// changed under its lock.
    ///
    /// # Errors
    /// Those of the disk; `Damaged` and `Version`, with the file as it was.
    pub(super) fn open(path: PathBuf) -> Result<Option<(Self, Head)>, UndoError> {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let total = file.metadata()?.len();
        let mut start = vec![0; (HEAD_BYTES_MAX as u64).min(total) as usize];
        file.read_exact_at(&mut start, 0)?;
        let Some((head, len)) = read_head(&path, &start)? else { return Ok(None) };
        let mut log = Self { file, path, len, records: Vec::new(), copied: head.copied };
        log.read_records(total)?;
        Ok(Some((log, head)))
    }

    fn read_records(&mut self, total: u64) -> Result<(), UndoError> {
        let damaged = |log: &Self| UndoError::Damaged { path: log.path.clone(), at: log.len };
        while self.len < total {
            let mut head = [0; RECORD_HEAD_BYTES as usize];
            if total - self.len < RECORD_HEAD_BYTES {
                break;
            }
            self.file.read_exact_at(&mut head, self.len)?;
            let (named, sum) = head.split_at(12);
            let (offset, len) = named.split_at(8);
            let offset = u64::from_le_bytes(offset.try_into().map_err(|_| damaged(self))?);
            let len = u32::from_le_bytes(len.try_into().map_err(|_| damaged(self))?) as usize;
            let at = self.len + RECORD_HEAD_BYTES;
            let end = at + len as u64;
            let mut data = vec![0; len.min(RECORD_BYTES_MAX)];
            let whole = len > 0 && len <= RECORD_BYTES_MAX && end <= total;
            if whole {
                self.file.read_exact_at(&mut data, at)?;
            }
            if whole && checksum([named, &data]).to_le_bytes() == *sum {
                self.records.push(Record { offset, len, at });
                self.len = end;
                continue;
            }
            // Only the last one can be torn, and its length is at most that of a record.
            if total - self.len > RECORD_HEAD_BYTES + RECORD_BYTES_MAX as u64
                || whole && end < total
            {
                return Err(damaged(self));
            }
            break;
        }
        // What comes next follows what is good.
        self.file.set_len(self.len)?;
        Ok(())
    }

    /// Adds a record; it is stable when this returns.
    pub(super) fn append(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        debug_assert!(!data.is_empty() && data.len() <= RECORD_BYTES_MAX);
        let mut bytes = Vec::with_capacity(RECORD_HEAD_BYTES as usize + data.len());
        bytes.extend(offset.to_le_bytes());
        bytes.extend((data.len() as u32).to_le_bytes());
        let sum = checksum([&bytes, data]);
        bytes.extend(sum.to_le_bytes());
        bytes.extend(data);
        self.file.write_all_at(&bytes, self.len)?;
        self.file.sync_data()?;
        let at = self.len + RECORD_HEAD_BYTES;
        self.records.push(Record { offset, len: data.len(), at });
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// The data of a record.
    pub(super) fn read(&self, record: Record) -> io::Result<Vec<u8>> {
        let mut data = vec![0; record.len];
        self.file.read_exact_at(&mut data, record.at)?;
        Ok(data)
    }

    /// Removes the file; that is stable when this returns.
    pub(super) fn remove(&self) -> io::Result<()> {
        as_server()?;
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            // Gone already: a removal that could not be made stable is tried again.
            _ => sync_parent(&self.path),
        }?;
        if self.copied {
            // One that stays goes at the next start.
            let _ = std::fs::remove_file(copy_path(&self.path));
        }
        Ok(())
    }

    /// Opens the copy of the file.
    pub(super) fn open_copy(&self) -> io::Result<File> {
        as_server()?;
        File::open(copy_path(&self.path))
    }
}

/// The head and its length, or nothing where its writing was not finished.
fn read_head(path: &Path, start: &[u8]) -> Result<Option<(Head, u64)>, UndoError> {
    let Some((prefix, rest)) = start.split_at_checked(PREFIX_BYTES) else { return Ok(None) };
    let damaged = || UndoError::Damaged { path: path.to_owned(), at: 0 };
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(prefix.get(at..at + 4)?.try_into().ok()?))
    };
    let (version, len) = (word(8).ok_or_else(damaged)?, word(12).ok_or_else(damaged)? as usize);
    if prefix[..8] == MAGIC && ![VERSION, VERSION_COPIED].contains(&version) {
        return Err(UndoError::Version { path: path.to_owned(), version });
    }
    let whole = PREFIX_BYTES + len + 4;
    let sum = rest.split_at_checked(len).and_then(|(body, sum)| Some((body, sum.get(..4)?)));
    let good = sum.filter(|(body, sum)| checksum([prefix, body]).to_le_bytes() == **sum);
    match good.and_then(|(body, _)| Head::decode(body)) {
        Some(head) if prefix[..8] == MAGIC => Ok(Some((head, whole as u64))),
        // A head is stable before anything follows it.
        _ if start.len() > whole.max(PREFIX_BYTES) => Err(damaged()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let key = Handle { fs: FsId([3; 16]), file: FileId([4; FILE_ID_BYTES]) };
        let holder = Holder {
            name: b"client".to_vec(),
            verifier: [5; 8],
            mechanism: "none".to_owned(),
            principal: Vec::new(),
            owner: b"owner".to_vec(),
        };
        Head { key, size: 12_345, persist: true, copied: false, holder }
    }

    fn made(dir: &Path) -> (PathBuf, Vec<u8>) {
        let path = dir.join("1.undo");
        let mut log = Log::create(path.clone(), &head()).unwrap();
        log.append(0, &[1; 5000]).unwrap();
        log.append(16_384, &[2; 100]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    }

    #[test]
    fn a_log_reads_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let (path, _) = made(dir.path());
        let (mut log, found) = Log::open(path.clone()).unwrap().unwrap();
        assert_eq!(found, head());
        log.append(32_768, b"more").unwrap();
        let (log, _) = Log::open(path.clone()).unwrap().unwrap();
        let read = |at: usize| (log.records[at].offset, log.read(log.records[at]).unwrap());
        assert_eq!(log.records.len(), 3);
        assert_eq!((read(0), read(1)), ((0, vec![1; 5000]), (16_384, vec![2; 100])));
        assert_eq!(read(2), (32_768, b"more".to_vec()));
        log.remove().unwrap();
        log.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_torn_end_is_cut_off_wherever_it_tears() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes) = made(dir.path());
        let last = bytes.len() - 116;
        for len in (0..40).chain(last - 5120..last - 5000).chain(last - 20..bytes.len()) {
            std::fs::write(&path, &bytes[..len]).unwrap();
            let found = Log::open(path.clone()).unwrap();
            let records = found.map(|(log, _)| log.records.len());
            let expected = match len {
                len if len >= last => Some(1),
                len if len >= last - 5016 => Some(0),
                _ => None,
            };
            assert_eq!(records, expected, "{len} bytes");
        }
        // The length is there, the data is not.
        let mut torn = bytes.clone();
        torn[last + 50..].fill(0);
        std::fs::write(&path, &torn).unwrap();
        assert_eq!(Log::open(path).unwrap().unwrap().0.records.len(), 1);
    }

    #[test]
    fn damage_before_the_end_is_told_and_the_file_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes) = made(dir.path());
        let last = bytes.len() - 116;
        for at in [20, 100, last - 4000, last - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            std::fs::write(&path, &flipped).unwrap();
            let error = Log::open(path.clone()).err();
            assert!(matches!(error, Some(UndoError::Damaged { .. })), "at {at}: {error:?}");
            assert_eq!(std::fs::read(&path).unwrap(), flipped);
        }
        let mut newer = bytes.clone();
        newer[8] = 3;
        std::fs::write(&path, &newer).unwrap();
        let error = Log::open(path.clone()).err();
        assert!(matches!(error, Some(UndoError::Version { version: 3, .. })));
        assert_eq!(std::fs::read(&path).unwrap(), newer);
    }
}
