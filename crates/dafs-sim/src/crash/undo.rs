//! Where a world's server keeps what is to be undone: a directory of this machine, for itself alone.
//!
//! What the server has written there is stable when it goes on. A loss of power leaves beside it what
//! may have been under way: a record or a log of which only the beginning is there. Nothing of it, and
//! not its name, shows in a world.

use dafs_dat::sim::SimRng;
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes before the data of a record of a log: where it belongs, its length and its checksum.
const RECORD_HEAD_BYTES: usize = 16;

/// Bytes of data that a record under way is of.
const RECORD_BYTES: usize = 512;

/// Bytes that a log begins with before it says for what it is.
const PREFIX_BYTES: u64 = 16;

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
}

impl UndoDirectory {
    pub(super) fn new() -> io::Result<Self> {
        let memory = Path::new(MEMORY);
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("dafs-sim-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self { path, torn: BTreeMap::new() })
    }

    /// The power fails. With `lies`, nothing that was said to be stable is.
    pub(super) fn cut_power(&mut self, rng: &mut SimRng, lies: bool) -> io::Result<()> {
        let mut logs: Vec<(u64, PathBuf)> = Vec::new();
        for found in std::fs::read_dir(&self.path)? {
            let path = found?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            let is_log = path.extension().is_some_and(|suffix| suffix == "undo");
            logs.extend(number.filter(|_| is_log).map(|number| (number, path)));
        }
        logs.sort_unstable();
        for (_, path) in &logs {
            let mut log = std::fs::OpenOptions::new().append(true).open(path)?;
            if lies {
                log.set_len(0)?;
            } else if rng.chance(500_000) && self.torn.get(path) != Some(&log.metadata()?.len()) {
                let whole = RECORD_HEAD_BYTES + RECORD_BYTES;
                let mut record = vec![rng.below(256) as u8; whole];
                record[..8].fill(0);
                record[8..12].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
                log.write_all(&record[..rng.between(1, whole as u64) as usize])?;
                self.torn.insert(path.clone(), log.metadata()?.len());
            }
        }
        if let Some((last, path)) = logs.last()
            && rng.chance(300_000)
        {
            let bytes = std::fs::read(path)?;
            let some = bytes.len().min(rng.below(PREFIX_BYTES) as usize);
            let begun = self.path.join(format!("{}.undo", last + 1));
            std::fs::write(&begun, &bytes[..some])?;
            self.torn.insert(begun, some as u64);
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UndoDirectory {
    fn drop(&mut self) {
        // It is in a place for what nobody misses.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
