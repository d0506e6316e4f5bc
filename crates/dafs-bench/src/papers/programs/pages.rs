//! Reads of a file's pages at random, by a program on our library, with the client's own cache and without
//! one, and by the same program on a mount.
//!
//! Invariants
//! * Each page that is read is compared with the expected one.
//! * Each trial is a process of its own, whose cache is empty at first.

use super::berkeley::Task;
use super::trials::{Door, Trial};
use crate::child::announce;
use crate::papers::join::mix;
use anyhow::{Result, bail, ensure};
use dafs_client::{CacheOptions, Client, ConnectOptions, DafsUrl, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file: as large as the table of Berkeley DB that the paper reads from cold caches.
const FILE: &str = "pages";
const FILE_BYTES: u64 = 191 << 20;
const FILE_BYTES_MIN: u64 = 4 << 20;

/// The page of a database.
const PAGE_BYTES: usize = 16 << 10;

/// The fewest reads of a trial.
const READS_MIN: u64 = 10;

/// The file of the trials.
pub(super) struct Pages {
    pub(super) bytes: u64,
    scale: u64,
}

impl Pages {
    /// Makes the file in `files`.
    pub(super) fn make(files: &Path, scale: u64) -> Result<Self> {
        let this = Self::of_scale(scale);
        let content: Vec<u8> = (0..this.bytes / 8).flat_map(u64::to_le_bytes).collect();
        std::fs::write(files.join(FILE), content)?;
        Ok(this)
    }

    fn of_scale(scale: u64) -> Self {
        let page = PAGE_BYTES as u64;
        let bytes = (FILE_BYTES * scale / 100).max(FILE_BYTES_MIN) / page * page;
        Self { bytes, scale }
    }

    /// The task of a trial. The library has the file from the server `url`; the kernel has it in `root`.
    pub(super) fn task(&self, trial: &Trial, url: &str, root: &Path) -> Task {
        let place = match trial.door {
            Door::Mount => root.join(FILE).display().to_string(),
            _ => url.to_owned(),
        };
        // There is room for all of the file.
        let cache_bytes = if trial.door == Door::Cached { self.bytes / 4 * 5 } else { 0 };
        let count = (trial.step * self.scale / 100).max(READS_MIN);
        let numbers = [self.bytes / PAGE_BYTES as u64, count, cache_bytes];
        let mut words = vec!["papers-pages".to_owned(), place];
        words.extend(numbers.map(|number| number.to_string()));
        Task { words, operations: count, bytes: count * PAGE_BYTES as u64 }
    }
}

/// The program: a child of the benchmark.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Reads {
    /// The address of a server, or a file of the kernel's
    place: String,
    /// Pages of the file
    pages: u64,
    /// Pages to read
    count: u64,
    /// The memory of the client's cache, in bytes; 0 for none
    cache_bytes: usize,
}

/// The file as the program reads it.
enum Source {
    Kernel(std::fs::File),
    Library { file: dafs_client::File, _client: Client },
}

impl Reads {
    /// Tells how far it is, and waits for a line each time.
    pub(crate) fn run(&self) -> Result<()> {
        let source = self.open()?;
        let mut page = vec![0; PAGE_BYTES];
        meet("ready")?;
        for number in 0..self.count {
            let offset = mix(number) % self.pages * PAGE_BYTES as u64;
            let read = match &source {
                Source::Kernel(file) => file.read_at(&mut page, offset)?,
                Source::Library { file, .. } => file.read_at(&mut page, offset)?,
            };
            ensure!(read == PAGE_BYTES, "a short read");
            check(&page, offset)?;
        }
        meet("done")
    }

    fn open(&self) -> Result<Source> {
        if !self.place.starts_with("dafs:") {
            return Ok(Source::Kernel(std::fs::File::open(&self.place)?));
        }
        // Read-ahead brings nothing to reads at random.
        let cache = CacheOptions { read_ahead_bytes: 0, ..CacheOptions::new(self.cache_bytes) };
        let cache = (self.cache_bytes > 0).then_some(cache);
        let options = ConnectOptions { cache, ..ConnectOptions::default() };
        let client = Client::connect(&DafsUrl::parse(&self.place)?, &options)?;
        let file = client.open(format!("/{FILE}").as_bytes(), &OpenOptions::read())?;
        Ok(Source::Library { file, _client: client })
    }
}

/// The file has the numbers of its words.
fn check(page: &[u8], offset: u64) -> Result<()> {
    let word = |at: usize| page.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let last = PAGE_BYTES - 8;
    let are_right = [0, last].map(|at| word(at) == Some((offset + at as u64) / 8));
    ensure!(are_right == [true, true], "another page was read at {offset}");
    Ok(())
}

/// Says a word with the number of this process, and waits for a line.
fn meet(word: &str) -> Result<()> {
    announce(&format!("{word} {}", std::process::id()))?;
    if std::io::stdin().read_line(&mut String::new())? == 0 {
        bail!("the benchmark has ended");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::trials::Work;
    use super::*;
    use crate::papers::cells::Network;

    fn task(door: Door, step: u64, scale: u64) -> Task {
        let trial = Trial { work: Work::Pages, step, network: Network::Link, door };
        Pages::of_scale(scale).task(&trial, "dafs://host:1/", Path::new("/mount"))
    }

    #[test]
    fn each_door_has_its_place_and_one_its_cache() {
        let words = |door| task(door, 10_000, 100).words.join(" ");
        assert_eq!(words(Door::Mount), "papers-pages /mount/pages 12224 10000 0");
        assert_eq!(words(Door::Library), "papers-pages dafs://host:1/ 12224 10000 0");
        assert_eq!(words(Door::Cached), "papers-pages dafs://host:1/ 12224 10000 250347520");
        let small = task(Door::Library, 1000, 1);
        assert_eq!(small.words.join(" "), "papers-pages dafs://host:1/ 256 10 0");
        assert_eq!((small.operations, small.bytes), (10, 163_840));
    }

    #[test]
    fn a_page_from_another_place_is_found() {
        let page: Vec<u8> = (0..PAGE_BYTES as u64 / 8).flat_map(u64::to_le_bytes).collect();
        assert!(check(&page, 0).is_ok());
        assert!(check(&page, PAGE_BYTES as u64).is_err());
        assert!(check(&page[..8], 0).is_err());
    }

    #[test]
    fn pages_of_a_file_of_the_kernel_are_read_and_compared() {
        let folder = tempfile::tempdir().expect("a folder");
        let pages = Pages::make(folder.path(), 1).expect("made");
        assert_eq!(pages.bytes, FILE_BYTES_MIN);
        let file = std::fs::File::open(folder.path().join(FILE)).expect("open");
        let mut page = vec![0; PAGE_BYTES];
        let last = pages.bytes - PAGE_BYTES as u64;
        file.read_exact_at(&mut page, last).expect("read");
        check(&page, last).expect("the page");
    }
}
