//! The part of a local file that is in the kernel's cache.

use dafs_mem::cached_pages;
use rustix::fs::Advice;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

/// Bytes of a page of the kernel's cache.
pub const PAGE_BYTES: usize = 4096;

/// A local file, seen in the kernel's cache.
#[derive(Debug)]
pub struct Cached(File);

impl Cached {
    /// Returns an existing file.
    pub fn of(path: &Path) -> Self {
        Self(File::open(path).unwrap())
    }

    /// Writes a file and drops it from the cache. `None`, which is told, where content never leaves
    /// memory, or where the kernel does not tell what is there.
    pub fn cold(path: &Path, content: &[u8]) -> Option<Self> {
        std::fs::write(path, content).unwrap();
        let file = Self::of(path);
        file.drop_all();
        if matches!(cached_pages(file.0.as_fd(), 0..i64::MAX as u64), Ok(0)) {
            return Some(file);
        }
        println!(
            "SKIPPED: the file system keeps everything in memory, or the kernel does not tell"
        );
        None
    }

    /// Drops the whole file from the cache.
    pub fn drop_all(&self) {
        self.0.sync_all().unwrap();
        rustix::fs::fadvise(&self.0, 0, None, Advice::DontNeed).unwrap();
    }

    /// Returns the number of bytes that are in the cache.
    pub fn bytes(&self) -> usize {
        self.bytes_in(0..i64::MAX as u64)
    }

    /// Returns the number of bytes of a range that are in the cache.
    pub fn bytes_in(&self, range: Range<u64>) -> usize {
        cached_pages(self.0.as_fd(), range).unwrap() as usize * PAGE_BYTES
    }
}
