//! Memory that the application withdraws under an operation: unmapped, made read-only, or of a file
//! that is truncated. The operation ends with an error, and all others go on. These tests are alone in their
//! process, because a fault that is not caught ends it with all tests in it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod served;

use dafs_client::{Client, ConnectOptions, Error, File, IoBuffer, Stability};
use dafs_mem::{CheckedSlice, Site};
use served::{Served, TRANSPORTS, on_each_transport_with, open_file, pattern};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;

const BLOCKS: usize = 24;
/// The blocks whose memory is withdrawn.
const BAD: Range<usize> = 8..12;
const TIME: Option<Duration> = Some(Duration::from_secs(60));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// As good as unmapped, but the range cannot be reused by the test.
    Protected,
    ReadOnly,
    Cut,
}

/// Memory of a file, so that it can be truncated.
struct Memory {
    file: std::fs::File,
    at: *mut u8,
    block: usize,
}

impl Memory {
    fn new(block: usize) -> Self {
        // SAFETY: a new descriptor without another owner.
        let file = unsafe {
            let fd = libc::memfd_create(c"gone".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd)
        };
        file.set_len((BLOCKS * block) as u64).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let at = unsafe {
            let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
            libc::mmap(null, BLOCKS * block, access, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { file, at: at.cast(), block }
    }

    fn register(&self, client: &Client) -> IoBuffer {
        // SAFETY: no reference into the memory exists.
        unsafe { client.register(self.at, BLOCKS * self.block).unwrap() }
    }

    /// Withdraws the bad blocks; a truncated file loses all behind them, too.
    fn lose(&self, loss: Loss) -> Range<usize> {
        let bytes = BAD.len() * self.block;
        let at = self.at.wrapping_add(BAD.start * self.block).cast();
        let protection = match loss {
            Loss::Protected => libc::PROT_NONE,
            Loss::ReadOnly => libc::PROT_READ,
            Loss::Cut => {
                self.file.set_len((BAD.start * self.block) as u64).unwrap();
                return BAD.start..BLOCKS;
            }
        };
        // SAFETY: of this test's memory, into which no reference exists.
        assert_eq!(unsafe { libc::mprotect(at, bytes, protection) }, 0);
        BAD
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.at.cast(), BLOCKS * self.block) };
    }
}

/// All ways of transfers: inside messages and direct, with and without checksums.
fn everywhere(work: impl Fn(&Served, &Client, usize, Loss)) {
    for transport in TRANSPORTS {
        for (sums, losses) in [
            (false, &[Loss::Protected, Loss::ReadOnly, Loss::Cut][..]),
            (true, &[Loss::Protected][..]),
        ] {
            for block in [4096, 1 << 16] {
                for &loss in losses {
                    println!("{transport:?} sums {sums} {block} {loss:?}");
                    let served = Served::new();
                    let client = served.client_with(|options| {
                        options.transport = transport;
                        (options.checksums, options.crc) = (sums, sums);
                    });
                    work(&served, &client, block, loss);
                }
            }
        }
    }
}

/// Checks that the session still works.
fn check_session(client: &Client, file: &File, block: usize) {
    let memory = Memory::new(block);
    let buffer = memory.register(client);
    buffer.view().fill(0x5a);
    assert_eq!(file.write_from(&buffer, 0..block, 0, Stability::FileSync).unwrap(), block);
    assert_eq!(file.read_into(&buffer, block..2 * block, 0).unwrap(), block);
    assert!(buffer.slice(block, block).unwrap().to_vec(Site::Inspect) == vec![0x5a; block]);
}

#[test]
fn a_read_whose_memory_goes_is_an_error_and_the_others_go_on() {
    everywhere(|served, client, block, loss| {
        let content = served.with_file("file", BLOCKS * block);
        let (file, memory) = (open_file(client), Memory::new(block));
        let (buffer, group) = (memory.register(client), client.completion_group());
        for number in 0..BLOCKS {
            let at = number * block;
            group.read(number as u64, &file, &buffer, at..at + block, at as u64).unwrap();
        }
        let bad = memory.lose(loss);
        let mut completions = Vec::new();
        group.wait(&mut completions, usize::MAX, TIME).unwrap();
        assert_eq!(completions.len(), BLOCKS);
        let mut failed = 0;
        for done in completions {
            let number = done.user_data as usize;
            let at = number * block;
            match done.result {
                // It may have arrived before the loss.
                Ok(bytes) if bad.contains(&number) => assert_eq!(bytes, block),
                Err(Error::BadMemory) if bad.contains(&number) => failed += 1,
                result => {
                    assert_eq!(result.unwrap(), block, "{number}");
                    let found = buffer.slice(at, block).unwrap().to_vec(Site::Inspect);
                    assert!(found == content[at..at + block], "{number}");
                }
            }
        }
        assert!(failed > 0);
        drop(buffer);
        assert_eq!(client.stats().recoveries, 0, "a read costs no connection");
        check_session(client, &file, block);
    });
}

#[test]
fn a_write_whose_memory_goes_is_an_error_and_writes_nothing_else() {
    everywhere(|served, client, block, loss| {
        let (old, new) = (vec![0xee; BLOCKS * block], pattern(BLOCKS * block));
        std::fs::write(served.path().join("file"), &old).unwrap();
        let (file, memory) = (open_file(client), Memory::new(block));
        let (buffer, group) = (memory.register(client), client.completion_group());
        buffer.view().copy_from(&new, Site::Inspect);
        for number in 0..BLOCKS {
            let at = number * block;
            let range = at..at + block;
            let stable = Stability::Unstable;
            group.write(number as u64, &file, &buffer, range, at as u64, stable).unwrap();
        }
        let bad = memory.lose(loss);
        let mut completions = Vec::new();
        group.wait(&mut completions, usize::MAX, TIME).unwrap();
        assert_eq!(completions.len(), BLOCKS);
        let found = served.content("file");
        let mut failed = 0;
        for done in completions {
            let number = done.user_data as usize;
            let range = number * block..(number + 1) * block;
            match done.result {
                Err(Error::BadMemory) if bad.contains(&number) && loss != Loss::ReadOnly => {
                    failed += 1;
                    let of_either = |at: usize| found[at] == old[at] || found[at] == new[at];
                    assert!(range.into_iter().all(of_either), "{number}");
                }
                result => {
                    assert_eq!(result.unwrap(), block, "{number}");
                    assert!(found[range.clone()] == new[range], "{number}");
                }
            }
        }
        // A short transfer was copied into its message when it was submitted.
        assert!(failed > 0 || block == 4096 || loss == Loss::ReadOnly);
        drop(buffer);
        check_session(client, &file, block);
    });
}

#[test]
fn calls_bear_memory_that_is_not_there() {
    for cached in [false, true] {
        let cache = |options: &mut ConnectOptions| options.cache = cached.then(Default::default);
        for (served, client) in on_each_transport_with(cache) {
            let block = 1 << 16;
            let content = served.with_file("file", BLOCKS * block);
            let (file, memory) = (open_file(&client), Memory::new(block));
            memory.lose(Loss::Protected);
            // SAFETY: no reference into the memory exists.
            let part = |at, len| unsafe { CheckedSlice::callers(memory.at.wrapping_add(at), len) };
            let good = BAD.start * block;
            let bad = |result| matches!(result, Err(Error::BadMemory));
            for len in [100, block, 4 * block] {
                assert!(bad(file.read_checked(part(good - 1, len), 0)), "{len}");
                assert!(bad(file.write_checked(part(good - 1, len), 0, Stability::Unstable)));
                let appended = file.append_checked(part(good - 1, len), Stability::DataSync);
                assert!(matches!(appended, Err(Error::BadMemory)), "{appended:?}");
            }
            file.commit(0, 0).unwrap();
            assert!(served.content("file") == content);
            assert_eq!(file.read_checked(part(0, good), 0).unwrap(), good);
            assert!(part(0, good).to_vec(Site::Inspect).unwrap() == content[..good]);
            assert_eq!(file.write_checked(part(0, good), 5, Stability::Unstable).unwrap(), good);
            file.commit(0, 0).unwrap();
            let found = served.content("file");
            assert!(found[5..5 + good] == content[..good]);
        }
    }
}

#[test]
fn many_writes_out_of_memory_that_is_gone_do_not_cost_a_connection_each() {
    const COUNT: usize = 1000;
    let (served, block) = (Served::new(), 1 << 16);
    let client = served.client(TRANSPORTS[0]);
    let (file, memory) = (open_file(&client), Memory::new(block));
    let (buffer, group) = (memory.register(&client), client.completion_group());
    memory.lose(Loss::Protected);
    let is_good = |number: usize| number % 10 == 9;
    for number in 0..COUNT {
        let at = if is_good(number) { 0 } else { BAD.start * block };
        let (word, stable) = (number as u64, Stability::Unstable);
        group.write(word, &file, &buffer, at..at + block, word * 65536, stable).unwrap();
    }
    let mut completions = Vec::new();
    group.wait(&mut completions, usize::MAX, TIME).unwrap();
    assert_eq!(completions.len(), COUNT);
    for done in completions {
        match done.result {
            Ok(bytes) => assert!(is_good(done.user_data as usize) && bytes == block),
            Err(Error::BadMemory) => assert!(!is_good(done.user_data as usize)),
            result => panic!("{}: {result:?}", done.user_data),
        }
    }
    let recoveries = client.stats().recoveries;
    assert!((1..=2).contains(&recoveries), "{recoveries}");
}
