//! The records of files in the table, found by device and inode, and made at the first use of a file in
//! any process.
//!
//! Invariants
//! * No lock and no allocation: the processes share the table by atomic changes of its words.
//! * A process that is killed while it fills a record keeps nobody waiting.

use crate::descriptor::kernel;
use dafs_client::watch::{
    BELOW_AT, CLAIMED, Count, FILE_WORDS, FILES_MAX, FREE, MAGIC, PATH_BYTES_MAX, READY, SEEN_AT,
    SEEN_WORDS, TABLE_BYTES, Total, record_at, word_of,
};
use libc::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) type Table = &'static [AtomicU64];

/// Attempts to see a record that another process is filling.
const FILLED_TRIES_MAX: u32 = 1000;

/// Directories of the system, whose files stay on this machine.
const SYSTEM: [&[u8]; 10] =
    [b"/bin", b"/dev", b"/etc", b"/lib", b"/lib64", b"/proc", b"/run", b"/sbin", b"/sys", b"/usr"];

/// Maps the file of a table; `None` if it is none.
pub(super) fn map(file: &File) -> Option<*mut AtomicU64> {
    if file.metadata().ok()?.len() != TABLE_BYTES as u64 {
        return None;
    }
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let (nowhere, fd) = (std::ptr::null_mut::<libc::c_void>(), file.as_raw_fd());
    // SAFETY: new memory, at a place that the kernel chooses.
    let at = unsafe {
        libc::syscall(libc::SYS_mmap, nowhere, TABLE_BYTES, both, libc::MAP_SHARED, fd, 0_i64)
    };
    if at == -1 {
        return None;
    }
    let words = at as *mut AtomicU64;
    // SAFETY: the memory begins at a page and has that many words, and stays mapped if it is a table.
    let magic = unsafe { &*words }.load(Ordering::Relaxed);
    if magic != MAGIC {
        // SAFETY: the memory is ours, and not published.
        unsafe { libc::syscall(libc::SYS_munmap, words, TABLE_BYTES) };
        return None;
    }
    Some(words)
}

/// True if the file of an absolute path counts.
pub(super) fn is_wanted(table: Table, path: &[u8]) -> bool {
    let is_below = |dir: &[u8]| path.starts_with(dir) && path.get(dir.len()) == Some(&b'/');
    let count = table[Total::BelowBytes as usize].load(Ordering::Relaxed) as usize;
    if count == 0 {
        return is_below(b"/dev/shm") || !SYSTEM.iter().any(|dir| is_below(dir));
    }
    let mut below = [0_u8; PATH_BYTES_MAX];
    for (word, bytes) in table[BELOW_AT..].iter().zip(below.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    match &below[..count.min(PATH_BYTES_MAX)] {
        b"/" => true,
        below => is_below(below) || path == below,
    }
}

/// A bijection in which each bit depends on all others.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The record with that number.
pub(super) fn record(table: Table, number: usize) -> Option<Table> {
    table.get(record_at(number)..)?.get(..FILE_WORDS)
}

/// The record of an open file, `Some(None)` for anything that does not count, and `None` for a
/// number that is no descriptor.
pub(super) fn find(table: Table, fd: c_int) -> Option<Option<usize>> {
    if kernel::kind(fd).ok()? != libc::S_IFREG {
        return Some(None);
    }
    let inode = kernel::inode(fd).ok()?;
    let (path, bytes) = link(fd)?;
    let path = &path[..bytes.min(PATH_BYTES_MAX)];
    Some(if is_wanted(table, path) { claim(table, inode, path) } else { None })
}

/// The path of a descriptor's file, as the kernel shows it, and its length.
fn link(fd: c_int) -> Option<([u8; PATH_BYTES_MAX], usize)> {
    let mut name = [0_u8; 32];
    // The rest is zeros, which end the name.
    write!(&mut name[..], "/proc/self/fd/{fd}").ok()?;
    let mut path = [0_u8; PATH_BYTES_MAX];
    // SAFETY: a name that ends with a zero byte; the kernel writes no more than the room.
    let bytes = unsafe {
        let (name, path) = (name.as_ptr(), path.as_mut_ptr());
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, name, path, PATH_BYTES_MAX)
    };
    Some((path, usize::try_from(bytes).ok()?))
}

/// The record of a file, made at its first use in any process.
fn claim(table: Table, (device, inode): (u64, u64), path: &[u8]) -> Option<usize> {
    let first = (mixed(device.wrapping_mul(31) ^ inode) % FILES_MAX as u64) as usize;
    for number in (first..FILES_MAX).chain(0..first) {
        let record = record(table, number)?;
        let is = |count: Count, value| record[count as usize].load(Ordering::Relaxed) == value;
        let state = &record[Count::State as usize];
        match state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                let put = |word: usize, value| record[word].store(value, Ordering::Relaxed);
                put(Count::Device as usize, device);
                put(Count::Inode as usize, inode);
                put(Count::PathBytes as usize, path.len() as u64);
                for (at, bytes) in path.chunks(8).enumerate() {
                    put(Count::Path as usize + at, word_of(bytes));
                }
                state.store(READY, Ordering::Release);
                return Some(number);
            }
            Err(CLAIMED) => {
                // Filling takes moments, unless its process has been killed.
                let is_filled = || state.load(Ordering::Acquire) == READY;
                let mut tries = (0..FILLED_TRIES_MAX).inspect(|_| std::hint::spin_loop());
                if !tries.any(|_| is_filled()) {
                    continue;
                }
            }
            Err(_) => {}
        }
        if is(Count::Device, device) && is(Count::Inode, inode) {
            return Some(number);
        }
    }
    table[Total::FilesLeftOut as usize].fetch_add(1, Ordering::Relaxed);
    None
}

/// True if a read of the file has begun at that offset before. Other places with the same hash are
/// taken for it: few, unless there are millions.
pub(super) fn has_begun_there(table: Table, number: usize, offset: u64) -> bool {
    let bit = mixed(mixed(number as u64 + 1) ^ offset) % (SEEN_WORDS as u64 * 64);
    let mask = 1 << (bit % 64);
    let word = &table[SEEN_AT + (bit / 64) as usize];
    word.fetch_or(mask, Ordering::Relaxed) & mask != 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use dafs_client::watch::{TABLE_WORDS, Watched, head};
    use std::fs::OpenOptions;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    /// A table of its own that lives as long as the process, and its file.
    fn made(below: &Path, name: &str) -> (Table, std::path::PathBuf) {
        let path = std::env::temp_dir().join(format!("dafs-watch-{name}-{}", std::process::id()));
        let head = head(below.as_os_str().as_bytes()).unwrap();
        std::fs::write(&path, head).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert!(map(&file).is_none());
        file.set_len(TABLE_BYTES as u64).unwrap();
        let words = map(&file).unwrap();
        // SAFETY: as in `table`.
        (unsafe { std::slice::from_raw_parts(words, TABLE_WORDS) }, path)
    }

    #[test]
    fn a_file_has_one_record_with_its_path_and_others_have_none() {
        let dir = std::env::temp_dir().canonicalize().unwrap();
        let (table, path) = made(&dir, "record");
        let file = File::open(&path).unwrap();
        let number = find(table, file.as_raw_fd()).unwrap().unwrap();
        let again = File::open(&path).unwrap();
        assert_eq!(find(table, again.as_raw_fd()), Some(Some(number)));
        let null = File::open("/dev/null").unwrap();
        assert_eq!(find(table, null.as_raw_fd()), Some(None));
        let system = File::open("/proc/self/maps").unwrap();
        assert_eq!(find(table, system.as_raw_fd()), Some(None));
        assert_eq!(find(table, -1), None);
        let watched = Watched::read(&std::fs::read(&path).unwrap()).unwrap();
        let paths: Vec<_> = watched.files().map(|file| file.path()).collect();
        let wanted = path.canonicalize().unwrap();
        assert_eq!(paths, [wanted.as_os_str().as_bytes()]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_table_and_records_that_are_never_filled_leave_files_out() {
        let (table, path) = made(Path::new(""), "full");
        for number in 0..FILES_MAX {
            let state = if number % 2 == 0 { CLAIMED } else { READY };
            record(table, number).unwrap()[0].store(state, Ordering::Relaxed);
        }
        assert_eq!(claim(table, (1, 2), b"/a"), None);
        assert_eq!(table[Total::FilesLeftOut as usize].load(Ordering::Relaxed), 1);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn files_of_the_system_do_not_count_unless_they_are_named() {
        let (table, path) = made(Path::new(""), "system");
        for (text, wanted) in
            [("/usr/lib/x", false), ("/usrlocal", true), ("/dev/shm/x", true), ("/data/x", true)]
        {
            assert_eq!(is_wanted(table, text.as_bytes()), wanted, "{text}");
        }
        std::fs::remove_file(path).unwrap();
        let (table, path) = made(Path::new("/usr/share"), "below");
        for (text, wanted) in
            [("/usr/share/x", true), ("/usr/share", true), ("/usr/shared", false), ("/a", false)]
        {
            assert_eq!(is_wanted(table, text.as_bytes()), wanted, "{text}");
        }
        std::fs::remove_file(path).unwrap();
        let (table, path) = made(Path::new("/"), "all");
        assert!(is_wanted(table, b"/proc/x"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_place_is_known_after_its_first_read() {
        let (table, path) = made(Path::new(""), "seen");
        let again = (0..1000).filter(|at| has_begun_there(table, 3, at * 4096)).count();
        assert!(again <= 1, "{again}");
        assert!((0..1000).all(|at| has_begun_there(table, 3, at * 4096)));
        assert!((0..100).filter(|at| has_begun_there(table, 4, at * 4096)).count() <= 1);
        std::fs::remove_file(path).unwrap();
    }
}
