//! The undo logs of a world's server: a directory of this machine, private to the world.
//!
//! A completed write of the server there is stable. A power failure adds the traces of operations
//! under way: an incomplete record, log or list, and names of removed logs. The directory and its
//! name do not show in a world.
//!
//! Now and then a log or the list is corrupted, or replaced by an older copy of itself, in a copy
//! of the directory: no server may start on that. Recovery from a lost list uses the logs that were
//! on it, and no other.

use dafs_dat::sim::SimRng;
use dafs_service::{Export, ExportOptions, Namespace, Service, ServiceConfig, undo_list_instance};
use dafs_store::MemoryStore;
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a disk writes atomically; a log consists of such sectors.
const SECTOR_BYTES: u64 = 512;

/// Most bytes of an incomplete record.
const RECORD_BYTES_MAX: u64 = 8 * SECTOR_BYTES;

/// Chance in a million of a corruption at a server's start.
const ROT_PPM: u32 = 200_000;

/// The place of the confirmed length in a log.
const CONFIRMED: std::ops::Range<usize> = 32..40;

/// A directory in memory, used where it exists.
const MEMORY: &str = "/dev/shm";

/// Numbers the directories of this process.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The directory, removed on drop.
#[derive(Debug)]
pub(super) struct UndoDirectory {
    path: PathBuf,
    /// Logs torn by a power failure, with their length then. A log of the same length has had no
    /// server since.
    torn: BTreeMap<PathBuf, u64>,
    rot: SimRng,
    /// An earlier server's content of each file.
    older: BTreeMap<PathBuf, Vec<u8>>,
}

/// The confirmed length of a log, in its own unit.
fn confirmed(log: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(log.get(CONFIRMED)?.try_into().ok()?))
}

/// True if a log is marked as discarded.
fn is_thrown_away(log: &[u8]) -> bool {
    confirmed(log) == Some(u64::MAX)
}

impl UndoDirectory {
    pub(super) fn new(seed: u64) -> io::Result<Self> {
        let memory = Path::new(MEMORY);
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("dafs-sim-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)?;
        let (torn, older) = (BTreeMap::new(), BTreeMap::new());
        let directory = Self { path, torn, rot: SimRng::new(!seed), older };
        std::fs::create_dir(directory.beside("-links"))?;
        Ok(directory)
    }

    fn list(&self) -> PathBuf {
        self.path.with_extension("index")
    }

    /// A directory beside this one.
    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    }

    /// Brings back the names of some logs removed since the last power failure.
    fn come_back(&mut self) -> io::Result<()> {
        for found in std::fs::read_dir(self.beside("-links"))? {
            let found = found?;
            let place = self.path.join(found.file_name());
            if !place.exists() && self.rot.chance(500_000) {
                std::fs::rename(found.path(), place)?;
            } else {
                std::fs::remove_file(found.path())?;
            }
        }
        for (number, path) in self.logs()? {
            std::fs::hard_link(path, self.beside("-links").join(format!("{number}.undo")))?;
        }
        if self.list().exists() && self.rot.chance(300_000) {
            let list = std::fs::read(self.list())?;
            let some = self.rot.below(list.len() as u64) as usize;
            std::fs::write(self.path.with_extension("index-new"), &list[..some])?;
        }
        Ok(())
    }

    /// Applies a power failure. With `lies`, the content of all logs is lost, although it was
    /// reported stable.
    pub(super) fn cut_power(&mut self, rng: &mut SimRng, lies: bool) -> io::Result<()> {
        if !lies {
            self.come_back()?;
        }
        let logs = self.logs()?;
        for (_, path) in &logs {
            let mut log = std::fs::OpenOptions::new().append(true).open(path)?;
            if lies {
                log.set_len(0)?;
            } else if rng.chance(500_000) && self.torn.get(path) != Some(&log.metadata()?.len()) {
                // The length has grown, but the record is not whole.
                let len = rng.between(1, RECORD_BYTES_MAX) as usize;
                let mut record = vec![0; len];
                let part = len - len % SECTOR_BYTES as usize;
                record[part..].fill(rng.below(256) as u8);
                log.write_all(&record)?;
                self.torn.insert(path.clone(), log.metadata()?.len());
            }
        }
        if let Some((last, path)) = logs.last()
            && rng.chance(300_000)
        {
            let bytes = std::fs::read(path)?;
            let some = bytes.len().min(rng.below(2 * SECTOR_BYTES) as usize);
            std::fs::write(self.path.join(format!("{}.new", last + 1)), &bytes[..some])?;
        }
        Ok(())
    }

    fn logs(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut logs = Vec::new();
        for found in std::fs::read_dir(&self.path)? {
            let path = found?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            let is_log = path.extension().is_some_and(|suffix| suffix == "undo");
            logs.extend(number.filter(|_| is_log).map(|number| (number, path)));
        }
        logs.sort_unstable();
        Ok(logs)
    }

    /// Now and then corrupts a log or the list, in a copy of the directory. A server must not start
    /// on that. With `misses_none`, the server does not check that its list is there.
    ///
    /// # Errors
    /// Damage that was not reported.
    pub(super) fn rot(&mut self, misses_none: bool) -> Result<(), String> {
        self.try_rot(misses_none).map_err(|error| error.to_string())?
    }

    fn try_rot(&mut self, misses_none: bool) -> io::Result<Result<(), String>> {
        let mut files = BTreeMap::new();
        if !self.list().exists() {
            return Ok(Ok(()));
        }
        for (_, path) in self.logs()? {
            let log = std::fs::read(&path)?;
            if log.is_empty() {
                return Ok(Ok(()));
            }
            if !is_thrown_away(&log) {
                files.insert(path, log);
            }
        }
        files.insert(self.list(), std::fs::read(self.list())?);
        let older = match self.rot.chance(500_000) {
            true => std::mem::replace(&mut self.older, files.clone()),
            false => self.older.clone(),
        };
        if !self.rot.chance(ROT_PPM) {
            return Ok(Ok(()));
        }
        let at = match self.rot.chance(300_000) {
            true => files.len() - 1,
            false => self.rot.below(files.len() as u64) as usize,
        };
        let Some((path, whole)) = files.iter().nth(at) else { return Ok(Ok(())) };
        let Some((how, rotten)) = self.damage(path, whole, older.get(path)) else {
            return Ok(Ok(()));
        };
        let known = undo_list_instance(&self.list())?;
        let used = self.starts_on(path, Some(whole), known)?;
        let kept = self.starts_on(path, rotten.as_deref(), known.filter(|_| !misses_none))?;
        let remedied = self.starts_on(&self.list(), None, None)?;
        // An older list may name the same logs.
        let is_harmless = how == "older" && *path == self.list() && kept == used;
        Ok(match (used, kept) {
            (None, _) => Err("whole logs are refused".to_owned()),
            (_, Some(_)) if !is_harmless => {
                // The same seed has the same words; the directory has another name each time.
                let name = path.strip_prefix(&self.path).unwrap_or(Path::new("the list"));
                Err(format!("{} is {how}, and nobody is told", name.display()))
            }
            _ if remedied != used => {
                Err(format!("without the list {remedied:?} logs are used in place of {used:?}"))
            }
            _ => Ok(()),
        })
    }

    /// Draws a damage of a file. Returns its kind and the damaged content; `None` if it would be
    /// harmless.
    fn damage(
        &mut self,
        path: &Path,
        whole: &[u8],
        older: Option<&Vec<u8>>,
    ) -> Option<(&'static str, Option<Vec<u8>>)> {
        // Behind the intact part of a torn log, missing zeros are harmless.
        let len = if self.torn.contains_key(path) { 2 * SECTOR_BYTES } else { u64::MAX };
        let at = self.rot.below(len.min(whole.len() as u64)) as usize;
        let mut bytes = whole.to_vec();
        let how = match self.rot.below(5) {
            0 => {
                bytes.truncate(at);
                "cut"
            }
            1 => {
                let from = at - at % SECTOR_BYTES as usize;
                bytes[from..from + SECTOR_BYTES as usize].fill(0);
                "zeroed"
            }
            2 => {
                bytes[at] ^= 1 << self.rot.below(8);
                "flipped"
            }
            3 => return Some(("away", None)),
            _ => {
                let older = older.filter(|older| older.get(..32) == whole.get(..32))?;
                // An older log has fewer confirmed records.
                if path != self.list() && confirmed(older) >= confirmed(whole) {
                    return None;
                }
                bytes.clone_from(older);
                "older"
            }
        };
        Some((how, Some(bytes)))
    }

    /// Starts a server on a copy of the directory in which one file has this content, with the
    /// known list. Returns the number of logs that it uses, or `None` if it does not start.
    fn starts_on(
        &self,
        rotten: &Path,
        content: Option<&[u8]>,
        known: Option<[u8; 16]>,
    ) -> io::Result<Option<usize>> {
        let copy = self.beside("-rotten");
        let list = copy.with_extension("index");
        std::fs::create_dir(&copy)?;
        let mut places = vec![(self.list(), list.clone())];
        for (number, path) in self.logs()? {
            places.push((path, copy.join(format!("{number}.undo"))));
        }
        for (path, place) in places {
            match content {
                Some(content) if path == rotten => std::fs::write(place, content)?,
                None if path == rotten => {}
                _ => drop(std::fs::copy(path, place)?),
            }
        }
        let store = Arc::new(MemoryStore::default());
        let export = Export::new("", store, ExportOptions::default());
        let namespace = Namespace::new(vec![export]).map_err(io::Error::other)?;
        let service = Service::new(ServiceConfig::new(crate::limits::LEASE, 1), namespace);
        let starts = (known.is_none() || undo_list_instance(&list)? == known)
            && service.locks.keep_undo_in(&copy).is_ok();
        std::fs::remove_dir_all(&copy)?;
        match std::fs::remove_file(list) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(starts.then(|| service.counts().undo_files)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UndoDirectory {
    fn drop(&mut self) {
        // A failure is ignored: the directory is a temporary one.
        let _ = std::fs::remove_dir_all(&self.path);
        let _ = std::fs::remove_dir_all(self.beside("-links"));
        let _ = std::fs::remove_file(self.list());
        let _ = std::fs::remove_file(self.path.with_extension("index-new"));
    }
}
