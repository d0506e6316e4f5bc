//! Where a world's server keeps what is to be undone: a directory of this machine, for itself alone.
//!
//! What the server has written there is stable when it goes on. A loss of power leaves beside it what
//! may have been under way: a record or a log of which only some is there. Nothing of it, and not its
//! name, shows in a world.
//!
//! Now and then the logs rot, in a copy of the directory: no server may start on that.

use dafs_dat::sim::SimRng;
use dafs_service::{Export, ExportOptions, Namespace, Service, ServiceConfig};
use dafs_store::MemoryStore;
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a disk writes wholly or not at all, and what a log is made of.
const SECTOR_BYTES: u64 = 512;

/// Bytes that a record under way may take.
const RECORD_BYTES_MAX: u64 = 8 * SECTOR_BYTES;

/// How often the logs rot when a server starts, in a million.
const ROT_PPM: u32 = 200_000;

/// Kept in memory where there is such a place.
const MEMORY: &str = "/dev/shm";

/// Numbers the directories of this process.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The directory; it goes with this.
#[derive(Debug)]
pub(super) struct UndoDirectory {
    path: PathBuf,
    /// Logs that a loss of power has left torn, and how long; no server has been there since if they
    /// are as long now.
    torn: BTreeMap<PathBuf, u64>,
    rot: SimRng,
}

impl UndoDirectory {
    pub(super) fn new(seed: u64) -> io::Result<Self> {
        let memory = Path::new(MEMORY);
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("dafs-sim-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self { path, torn: BTreeMap::new(), rot: SimRng::new(!seed) })
    }

    /// The power fails. With `lies`, nothing that was said to be stable is.
    pub(super) fn cut_power(&mut self, rng: &mut SimRng, lies: bool) -> io::Result<()> {
        let logs = self.logs()?;
        for (_, path) in &logs {
            let mut log = std::fs::OpenOptions::new().append(true).open(path)?;
            if lies {
                log.set_len(0)?;
            } else if rng.chance(500_000) && self.torn.get(path) != Some(&log.metadata()?.len()) {
                // Its length is there, and nothing whole.
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

    /// The logs, by number.
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

    /// Now and then a log rots, in a copy of the directory. That must keep a server from starting.
    ///
    /// # Errors
    /// What was not told.
    pub(super) fn rot(&mut self) -> Result<(), String> {
        let logs = self.logs().map_err(|error| error.to_string())?;
        if logs.is_empty() || !self.rot.chance(ROT_PPM) {
            return Ok(());
        }
        let (_, path) = &logs[self.rot.below(logs.len() as u64) as usize];
        let mut bytes = std::fs::read(path).map_err(|error| error.to_string())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // Behind what is whole, zeros may be missing.
        let whole = if self.torn.contains_key(path) { 2 * SECTOR_BYTES } else { u64::MAX };
        let at = self.rot.below(whole.min(bytes.len() as u64)) as usize;
        let how = match self.rot.below(4) {
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
            _ => "away",
        };
        let rotten = Some(bytes).filter(|_| how != "away");
        let starts =
            |rotten| self.starts_on(&logs, path, rotten).map_err(|error| error.to_string());
        let whole = std::fs::read(path).map_err(|error| error.to_string())?;
        match (starts(Some(whole))?, starts(rotten)?) {
            (true, false) => Ok(()),
            (false, _) => Err("whole logs are refused".to_owned()),
            (true, true) => {
                Err(format!("{} is {how} at byte {at}, and nobody is told", path.display()))
            }
        }
    }

    /// Whether a server starts on a copy of the directory in which one log has this content.
    fn starts_on(
        &self,
        logs: &[(u64, PathBuf)],
        rotten: &Path,
        content: Option<Vec<u8>>,
    ) -> io::Result<bool> {
        let mut name = self.path.clone().into_os_string();
        name.push("-rotten");
        let (copy, list) = (PathBuf::from(name), self.path.with_extension("index"));
        std::fs::create_dir(&copy)?;
        std::fs::copy(list, copy.with_extension("index"))?;
        for (number, path) in logs {
            let place = copy.join(format!("{number}.undo"));
            match &content {
                Some(content) if path == rotten => std::fs::write(place, content)?,
                None if path == rotten => {}
                _ => drop(std::fs::copy(path, place)?),
            }
        }
        let store = Arc::new(MemoryStore::default());
        let export = Export::new("", store, ExportOptions::default());
        let namespace = Namespace::new(vec![export]).map_err(io::Error::other)?;
        let service = Service::new(ServiceConfig::new(crate::limits::LEASE, 1), namespace);
        let starts = service.keep_undo_in(&copy).is_ok();
        std::fs::remove_dir_all(&copy)?;
        std::fs::remove_file(copy.with_extension("index"))?;
        Ok(starts)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UndoDirectory {
    fn drop(&mut self) {
        // It is in a place for what nobody misses.
        let _ = std::fs::remove_dir_all(&self.path);
        let _ = std::fs::remove_file(self.path.with_extension("index"));
    }
}
