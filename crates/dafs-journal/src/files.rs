//! Segments as files of a directory.
//!
//! Invariants
//! * One process at a time uses a directory.
//! * A file has its whole size, written once, before it becomes a segment. So the file system needs
//!   no metadata for writes in place.

use crate::disk::Disk;
use crate::limits::PATIENCE_MAX;
use dafs_mem::Mutex;
use dafs_store::own;
use rustix::fs::FlockOperation;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PREFIX: &str = "segment-";
/// A removed segment, to be reused for the next one.
const SPARE: &str = "spare";
/// The key of the records' checksums.
const KEY: &str = "key";
/// A segment that is not complete yet.
const UNFINISHED: &str = "unfinished";

/// A directory of segments.
pub struct FileDisk {
    path: PathBuf,
    directory: File,
    files: Mutex<BTreeMap<u64, Arc<File>>>,
    identify: fn(),
    key: [u8; 16],
    /// The duration of the latest sync.
    sync_ns: AtomicU64,
    _lock: File,
}

impl FileDisk {
    /// Opens the directory, and makes it if it is missing. `identify` is called before files are
    /// opened, made or renamed: a process whose threads change their identity restores its own
    /// there.
    ///
    /// # Errors
    /// The system's. `ResourceBusy` when another process uses the directory.
    pub fn open(path: &Path, identify: fn()) -> io::Result<Self> {
        identify();
        own::make_directory(path)?;
        let directory = File::open(path)?;
        let lock = own::open(&path.join("lock"), true)?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let text = "another server uses this journal; give each its own state_directory";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        let files = Mutex::new(BTreeMap::new());
        let (path, key) = (path.to_owned(), [0; 16]);
        let sync_ns = AtomicU64::new(0);
        let mut disk = Self { path, directory, files, identify, key, sync_ns, _lock: lock };
        disk.key = disk.find_key()?;
        Ok(disk)
    }

    /// Reads the key in the directory of the segments. Makes a new one if there are no segments.
    fn find_key(&self) -> io::Result<[u8; 16]> {
        let path = self.path.join(KEY);
        let wrong = |what: &str| {
            let text = format!(
                "{} {what}; bring back a copy, or move the journal's directory to another place \
                 and say `dafs accept-loss journal` to start without it",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        match own::read(&path, self.key.len()) {
            Ok(key) => return key.try_into().map_err(|_| wrong("is damaged")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(wrong("is damaged"));
            }
            Err(error) => return Err(error),
        }
        if !self.list()?.is_empty() {
            return Err(wrong("is missing"));
        }
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        own::replace(&path, &self.path.join(UNFINISHED), &key)?;
        self.directory.sync_all()?;
        Ok(key)
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.path.join(format!("{PREFIX}{segment:016x}"))
    }

    fn files(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<File>>> {
        self.files.lock()
    }

    fn file(&self, segment: u64) -> io::Result<Arc<File>> {
        if let Some(file) = self.files().get(&segment) {
            return Ok(file.clone());
        }
        (self.identify)();
        let file = Arc::new(own::open(&self.path(segment), false)?);
        self.files().insert(segment, file.clone());
        Ok(file)
    }

    /// Makes a file of zeros.
    fn fill(&self, path: &Path, len_bytes: u64) -> io::Result<()> {
        const PIECE: usize = 1 << 20;
        let mut file = own::create(path)?;
        let zeros = vec![0; PIECE];
        let mut left = len_bytes;
        while left > 0 {
            let piece = left.min(PIECE as u64);
            file.write_all(&zeros[..piece as usize])?;
            left -= piece;
        }
        file.sync_all()
    }
}

impl Disk for FileDisk {
    fn key(&self) -> [u8; 16] {
        self.key
    }

    fn list(&self) -> io::Result<Vec<u64>> {
        (self.identify)();
        let mut segments = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let number = number.filter(|digits| digits.len() == 16);
            segments.extend(number.and_then(|digits| u64::from_str_radix(digits, 16).ok()));
        }
        Ok(segments)
    }

    fn read(&self, segment: u64) -> io::Result<Vec<u8>> {
        (self.identify)();
        let mut bytes = Vec::new();
        own::open_to_read(&self.path(segment))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn make(&self, segment: u64, len_bytes: u64) -> io::Result<()> {
        (self.identify)();
        let (spare, path) = (self.path.join(SPARE), self.path(segment));
        let fits = spare.symlink_metadata();
        let fits = fits.is_ok_and(|spare| spare.is_file() && spare.len() == len_bytes);
        let from = if fits {
            spare
        } else {
            let unfinished = self.path.join(UNFINISHED);
            self.fill(&unfinished, len_bytes)?;
            unfinished
        };
        self.files().remove(&segment);
        std::fs::rename(from, path)?;
        self.directory.sync_all()
    }

    fn write(&self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(segment)?.write_all_at(bytes, offset)
    }

    fn sync(&self, segment: u64) -> io::Result<()> {
        let (file, began) = (self.file(segment)?, Instant::now());
        let synced = file.sync_data();
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.sync_ns.store(took, Ordering::Relaxed);
        synced
    }

    /// As long as a sync takes, which is the cost of one more.
    fn patience(&self) -> Duration {
        Duration::from_nanos(self.sync_ns.load(Ordering::Relaxed)).min(PATIENCE_MAX)
    }

    fn remove(&self, segment: u64) -> io::Result<()> {
        (self.identify)();
        self.files().remove(&segment);
        std::fs::rename(self.path(segment), self.path.join(SPARE))
    }

    fn name(&self, segment: u64) -> String {
        self.path(segment).display().to_string()
    }
}
