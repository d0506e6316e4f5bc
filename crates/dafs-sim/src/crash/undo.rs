//! Where a world's server keeps what is to be undone: a directory of this machine, for itself alone.
//!
//! What is in it counts as stable. Nothing of it, and not its name, shows in a world.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Kept in memory where there is such a place.
const MEMORY: &str = "/dev/shm";

/// Numbers the directories of this process.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The directory; it goes with this.
#[derive(Debug)]
pub(super) struct UndoDirectory(PathBuf);

impl UndoDirectory {
    pub(super) fn new() -> io::Result<Self> {
        let memory = Path::new(MEMORY);
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("dafs-sim-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for UndoDirectory {
    fn drop(&mut self) {
        // It is in a place for what nobody misses.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
