//! The journal's part of the disk.

use super::{Off, Plug};
use dafs_dat::sim::SimRng;
use dafs_journal::Disk;
use dafs_journal::sim::SimDisk;
use std::io;
use std::sync::Arc;

/// Chance in a million that an unsynced sector survives.
const LASTS_PPM: u32 = 500_000;

/// The disk that holds the segments. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct JournalDisk {
    disk: Arc<SimDisk>,
    /// Danger: reports a sync that it has not done. This proves that the checks notice.
    lies: bool,
}

/// The segments as one server sees them.
struct PluggedDisk {
    disk: JournalDisk,
    plug: Plug,
}

impl JournalDisk {
    /// An empty disk, perhaps a lying one.
    pub(crate) fn new(lies: bool) -> Self {
        Self { disk: Arc::default(), lies }
    }

    /// The disk, for the server that holds `plug`.
    pub(crate) fn plugged(&self, plug: Plug) -> Arc<dyn Disk> {
        Arc::new(PluggedDisk { disk: self.clone(), plug })
    }

    /// Applies a power failure.
    pub(crate) fn cut_power(&self, rng: &mut SimRng) {
        self.disk.cut_power(&mut || rng.chance(LASTS_PPM));
    }
}

fn off(_: Off) -> io::Error {
    io::Error::other("the server has ended")
}

impl Disk for PluggedDisk {
    fn key(&self) -> [u8; 16] {
        self.disk.disk.key()
    }

    fn list(&self) -> io::Result<Vec<u64>> {
        self.plug.look().map_err(off)?;
        self.disk.disk.list()
    }

    fn read(&self, segment: u64) -> io::Result<Vec<u8>> {
        self.plug.look().map_err(off)?;
        self.disk.disk.read(segment)
    }

    fn make(&self, segment: u64, len_bytes: u64) -> io::Result<()> {
        self.plug.effect().map_err(off)?;
        self.disk.disk.make(segment, len_bytes)
    }

    fn write(&self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.plug.effect().map_err(off)?;
        self.disk.disk.write(segment, offset, bytes)
    }

    fn sync(&self, segment: u64) -> io::Result<()> {
        self.plug.effect().map_err(off)?;
        if self.disk.lies { Ok(()) } else { self.disk.disk.sync(segment) }
    }

    fn remove(&self, segment: u64) -> io::Result<()> {
        self.plug.effect().map_err(off)?;
        self.disk.disk.remove(segment)
    }

    fn name(&self, segment: u64) -> String {
        self.disk.disk.name(segment)
    }
}
