//! Counts calls on files of this machine for `dafs advise`, in the table of `dafs_client::watch`.
//!
//! Invariants
//! * A watched call reaches the C library once, with unchanged arguments. Its result and its `errno`
//!   reach the program.
//! * Counting takes no lock and allocates nothing: the caller may be a signal handler, or a child of a
//!   process with threads.
//! * The table is memory shared with its file, so the counts outlive the end of a process by a signal,
//!   `_exit` or `exec`.
//! * A process that cannot map the table runs on unwatched.

use crate::descriptor::kernel;
use crate::failure::Errno;
use crate::limits::DESCRIPTORS_MAX;
use crate::next::is_serving;
use dafs_client::watch::{
    BELOW_AT, CLAIMED, Count, FILE_WORDS, FILES_MAX, FREE, MAGIC, PATH_BYTES_MAX, READY, SEEN_AT,
    SEEN_WORDS, TABLE_BYTES, TABLE_VARIABLE, TABLE_WORDS, Total, bucket, record_at, word_of,
};
use libc::{FILE, c_int, ssize_t};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

type Table = &'static [AtomicU64];

static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// The variables that make child programs watched.
static ENVIRONMENT: OnceLock<Vec<(&'static str, Vec<u8>)>> = OnceLock::new();

/// The meaning of each descriptor: [`UNKNOWN`], [`NO_FILE`], or [`FIRST`] and the number of a record.
static FILES: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(UNKNOWN) }; DESCRIPTORS_MAX];
const UNKNOWN: u32 = 0;
const NO_FILE: u32 = 1;
const FIRST: u32 = 2;

/// Added for a descriptor that belongs to a stream of the C library, whose calls are not seen.
const IS_STREAM: u32 = 1 << 31;

/// The offset of each descriptor, as followed from call to call.
static OFFSETS: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];

/// The ends of the last read and of the last write through each descriptor.
static READ_ENDS: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];
static WRITE_ENDS: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];

/// Attempts to see a record that another process is filling.
const FILLED_TRIES_MAX: u32 = 1000;

/// The size of the memory of a stream, in which the C library reads and writes.
const STREAM_BYTES: u64 = 4096;

const PAGE_BYTES: usize = 4096;

/// Directories of the system, whose files stay on this machine.
const SYSTEM: [&[u8]; 10] =
    [b"/bin", b"/dev", b"/etc", b"/lib", b"/lib64", b"/proc", b"/run", b"/sbin", b"/sys", b"/usr"];

/// Maps the table, if there is one.
pub(crate) fn begin() {
    let Some(path) = std::env::var_os(TABLE_VARIABLE) else { return };
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    let Some(words) = opened.ok().and_then(|file| map(&file)) else { return };
    let preload = std::env::var_os(PRELOAD_VARIABLE).map(OsStringExt::into_vec);
    let mut environment = vec![(TABLE_VARIABLE, path.into_vec())];
    environment.extend(preload.map(|value| (PRELOAD_VARIABLE, value)));
    let _ = ENVIRONMENT.set(environment);
    TABLE.store(words, Ordering::Release);
    total(Total::Processes, 1);
}

fn map(file: &File) -> Option<*mut AtomicU64> {
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

/// True if this process is watched.
pub(crate) fn is_on() -> bool {
    !TABLE.load(Ordering::Relaxed).is_null()
}

/// The variables that make child programs watched; none in a process that is not.
pub(crate) fn environment() -> &'static [(&'static str, Vec<u8>)] {
    ENVIRONMENT.get().map_or(&[], Vec::as_slice)
}

/// The table, in a watched process.
fn table() -> Option<Table> {
    let words = TABLE.load(Ordering::Acquire);
    if words.is_null() {
        return None;
    }
    // SAFETY: `begin` has mapped as many words for good, which are changed atomically only.
    Some(unsafe { std::slice::from_raw_parts(words, TABLE_WORDS) })
}

/// The table, for a call of the program itself.
fn of_program() -> Option<Table> {
    table().filter(|_| !is_serving())
}

fn add(to: &AtomicU64, count: u64) -> u64 {
    to.fetch_add(count, Ordering::Relaxed)
}

/// Adds to a total.
fn total(total: Total, count: u64) {
    if let Some(table) = table() {
        add(&table[total as usize], count);
    }
}

/// Counts the start of a program: one that should be watched, or the reason why it is not.
pub(crate) fn started(kind: Total) {
    total(kind, 1);
}

/// Counts a call with a path.
pub(crate) fn named(path: &[u8]) {
    if let Some(table) = of_program()
        && path.first().is_some_and(|first| *first != b'/' || is_wanted(table, path))
    {
        add(&table[Total::Names as usize], 1);
    }
}

/// True if the file of an absolute path counts.
fn is_wanted(table: Table, path: &[u8]) -> bool {
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

/// A descriptor of a file that counts.
struct Known {
    /// The descriptor, as an index.
    at: usize,
    number: usize,
    record: Table,
}

impl Known {
    fn add(&self, count: Count, more: u64) -> u64 {
        add(&self.record[count as usize], more)
    }
}

fn index(fd: c_int) -> Option<usize> {
    usize::try_from(fd).ok().filter(|at| *at < DESCRIPTORS_MAX)
}

/// The record of a descriptor's file, found at the first use of the descriptor.
fn known(table: Table, fd: c_int) -> Option<Known> {
    let at = index(fd)?;
    let kind = match FILES[at].load(Ordering::Relaxed) {
        UNKNOWN => learn(table, fd, at),
        kind => kind,
    };
    let number = (kind & !IS_STREAM).checked_sub(FIRST)? as usize;
    let record = record(table, number)?;
    Some(Known { at, number, record })
}

fn record(table: Table, number: usize) -> Option<Table> {
    table.get(record_at(number)..)?.get(..FILE_WORDS)
}

fn learn(table: Table, fd: c_int, at: usize) -> u32 {
    let before = Errno::last();
    let found = find(table, fd);
    let offset = kernel::seek(fd, 0, libc::SEEK_CUR).map_or(0, i64::unsigned_abs);
    before.set();
    let Some(number) = found else { return UNKNOWN };
    let kind = number.map_or(NO_FILE, |number| number as u32 + FIRST);
    for place in [&OFFSETS, &READ_ENDS, &WRITE_ENDS] {
        place[at].store(offset, Ordering::Relaxed);
    }
    FILES[at].store(kind, Ordering::Relaxed);
    kind
}

/// The record of an open file, `Some(None)` for anything that does not count, and `None` for a
/// number that is no descriptor.
fn find(table: Table, fd: c_int) -> Option<Option<usize>> {
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
    add(&table[Total::FilesLeftOut as usize], 1);
    None
}

/// True if a read of the file has begun at that offset before. Other places with the same hash are
/// taken for it: few, unless there are millions.
fn has_begun_there(table: Table, number: usize, offset: u64) -> bool {
    let bit = mixed(mixed(number as u64 + 1) ^ offset) % (SEEN_WORDS as u64 * 64);
    let mask = 1 << (bit % 64);
    let word = &table[SEEN_AT + (bit / 64) as usize];
    word.fetch_or(mask, Ordering::Relaxed) & mask != 0
}

/// The time of the monotonic clock in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The counts of one direction.
struct Way {
    calls: Count,
    bytes: Count,
    in_order: Count,
    aligned: Count,
    nanoseconds: Count,
    sizes: Count,
    others: Total,
    other_bytes: Total,
    ends: &'static [AtomicU64],
}

static READ: Way = Way {
    calls: Count::Reads,
    bytes: Count::ReadBytes,
    in_order: Count::ReadsInOrder,
    aligned: Count::ReadsAligned,
    nanoseconds: Count::ReadNanoseconds,
    sizes: Count::ReadSizes,
    others: Total::OtherReads,
    other_bytes: Total::OtherReadBytes,
    ends: &READ_ENDS,
};

static WRITE: Way = Way {
    calls: Count::Writes,
    bytes: Count::WrittenBytes,
    in_order: Count::WritesInOrder,
    aligned: Count::WritesAligned,
    nanoseconds: Count::WriteNanoseconds,
    sizes: Count::WriteSizes,
    others: Total::OtherWrites,
    other_bytes: Total::OtherWrittenBytes,
    ends: &WRITE_ENDS,
};

/// Counts a call by which a descriptor reads, at an offset or at its own. `memory` is the address that
/// it fills, looked at after a success only.
pub(crate) fn read(
    fd: c_int,
    offset: Option<i64>,
    memory: impl FnOnce() -> usize,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    moved(&READ, fd, offset, memory, call)
}

/// As [`read`], for writes.
pub(crate) fn write(
    fd: c_int,
    offset: Option<i64>,
    memory: impl FnOnce() -> usize,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    moved(&WRITE, fd, offset, memory, call)
}

fn moved(
    way: &Way,
    fd: c_int,
    offset: Option<i64>,
    memory: impl FnOnce() -> usize,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(table) = of_program() else { return call() };
    let Some(known) = known(table, fd) else {
        let done = call();
        if done > 0 {
            add(&table[way.others as usize], 1);
            add(&table[way.other_bytes as usize], done.unsigned_abs() as u64);
        }
        return done;
    };
    let (done, nanoseconds) = timed(table, &known, call);
    if done <= 0 {
        return done;
    }
    let bytes = done.unsigned_abs() as u64;
    let own = &OFFSETS[known.at];
    let begin = offset.map_or_else(|| own.load(Ordering::Relaxed), i64::unsigned_abs);
    let end = begin.wrapping_add(bytes);
    if offset.is_none() {
        own.store(end, Ordering::Relaxed);
    }
    known.add(way.calls, 1);
    known.add(way.bytes, bytes);
    known.add(way.nanoseconds, nanoseconds);
    add(&known.record[way.sizes as usize + bucket(bytes)], 1);
    if way.ends[known.at].swap(end, Ordering::Relaxed) == begin {
        known.add(way.in_order, 1);
    }
    if memory().is_multiple_of(PAGE_BYTES) {
        known.add(way.aligned, 1);
    }
    if way.calls == Count::Reads && has_begun_there(table, known.number, begin) {
        known.add(Count::ReadsAgain, 1);
    }
    known.record[Count::End as usize].fetch_max(end, Ordering::Relaxed);
    done
}

/// Makes a call on a file: its result and its nanoseconds. `errno` is that of the call.
fn timed<T>(table: Table, known: &Known, call: impl FnOnce() -> T) -> (T, u64) {
    let (all, own) = (&table[Total::Now as usize], &known.record[Count::Now as usize]);
    add(&table[Total::AtOnceSum as usize], add(all, 1).wrapping_add(1));
    add(&table[Total::Calls as usize], 1);
    let at_once = add(own, 1).wrapping_add(1);
    known.record[Count::MostAtOnce as usize].fetch_max(at_once, Ordering::Relaxed);
    let begin = now();
    let done = call();
    let errno = Errno::last();
    let nanoseconds = now().saturating_sub(begin);
    errno.set();
    own.fetch_sub(1, Ordering::Relaxed);
    all.fetch_sub(1, Ordering::Relaxed);
    (done, nanoseconds)
}

/// Counts a read or write that the program has submitted, to run beside it.
pub(crate) fn submitted(fd: c_int, is_read: bool, offset: i64, memory: usize, bytes: usize) {
    let count = ssize_t::try_from(bytes).unwrap_or(ssize_t::MAX);
    let way = if is_read { &READ } else { &WRITE };
    let before = Errno::last();
    moved(way, fd, Some(offset), || memory, || count);
    if let Some(known) = of_program().and_then(|table| known(table, fd)) {
        known.add(Count::Asynchronous, 1);
    }
    before.set();
}

/// Counts a call that copies from one descriptor to another in the kernel.
pub(crate) fn copy(from: c_int, to: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    // No memory of the program takes part.
    let done = moved(&READ, from, None, || 0, call);
    if done > 0 {
        moved(&WRITE, to, None, || 0, || done);
    }
    done
}

/// Counts a call that makes data stable.
pub(crate) fn sync(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let Some(table) = of_program() else { return call() };
    let Some(known) = known(table, fd) else { return call() };
    let (done, nanoseconds) = timed(table, &known, call);
    known.add(Count::Syncs, 1);
    known.add(Count::SyncNanoseconds, nanoseconds);
    done
}

/// Counts a map of a file.
pub(crate) fn mapped(fd: c_int, bytes: usize) {
    if let Some(known) = of_program().and_then(|table| known(table, fd)) {
        known.add(Count::MappedBytes, bytes as u64);
    }
}

/// Follows a call that sets the offset of a descriptor and returns it.
pub(crate) fn seek(fd: c_int, call: impl FnOnce() -> i64) -> i64 {
    let offset = call();
    if let (Some(at), Ok(offset)) = (index(fd), u64::try_from(offset))
        && is_on()
    {
        OFFSETS[at].store(offset, Ordering::Relaxed);
    }
    offset
}

/// Counts a call that opens a file and returns its descriptor.
pub(crate) fn open(call: impl FnOnce() -> c_int) -> c_int {
    let fd = call();
    opened(fd, 0);
    fd
}

fn opened(fd: c_int, stream: u32) {
    let (Some(table), Some(at)) = (of_program(), index(fd)) else { return };
    FILES[at].store(UNKNOWN, Ordering::Relaxed);
    if let Some(known) = known(table, fd) {
        known.add(Count::Opens, 1);
        FILES[at].fetch_or(stream, Ordering::Relaxed);
    }
}

/// Forgets a descriptor that is about to be closed, or to get another meaning.
pub(crate) fn forget(fd: c_int) {
    if let Some(at) = index(fd).filter(|_| is_on()) {
        FILES[at].store(UNKNOWN, Ordering::Relaxed);
    }
}

/// Forgets the descriptors from `first` on.
pub(crate) fn forget_from(first: c_int) {
    if is_on() {
        let first = usize::try_from(first).unwrap_or(0).min(DESCRIPTORS_MAX);
        FILES[first..].iter().for_each(|file| file.store(UNKNOWN, Ordering::Relaxed));
    }
}

/// Counts a call that opens a file as a stream of the C library.
pub(crate) fn open_stream(call: impl FnOnce() -> *mut FILE) -> *mut FILE {
    let stream = call();
    if !stream.is_null() && is_on() {
        // SAFETY: an open stream.
        opened(unsafe { libc::fileno(stream) }, IS_STREAM);
    }
    stream
}

/// Counts, by its place in the file, what the C library has read or written for a stream that is about
/// to be closed. The calls themselves are within the C library, where none is seen.
///
/// # Safety
/// An open stream.
pub(crate) unsafe fn close_stream(stream: *mut FILE) {
    let Some(table) = of_program() else { return };
    let before = Errno::last();
    // SAFETY: the caller's promise.
    let fd = unsafe { libc::fileno(stream) };
    let is_stream = |at: &usize| FILES[*at].load(Ordering::Relaxed) & IS_STREAM != 0;
    if let Some(at) = index(fd).filter(is_stream)
        && let Some(known) = known(table, fd)
        && let Ok(access) = kernel::control(fd, libc::F_GETFL, 0)
    {
        // SAFETY: the caller's promise.
        let end = unsafe { libc::ftell(stream) };
        let begin = OFFSETS[at].load(Ordering::Relaxed);
        let bytes = u64::try_from(end).map_or(0, |end| end.saturating_sub(begin));
        let way = match access & libc::O_ACCMODE {
            libc::O_RDONLY => Some(&READ),
            libc::O_WRONLY => Some(&WRITE),
            // Its place does not tell the directions apart.
            _ => None,
        };
        if let Some(way) = way.filter(|_| bytes > 0) {
            let calls = bytes.div_ceil(STREAM_BYTES);
            known.add(way.calls, calls);
            known.add(way.in_order, calls);
            known.add(way.bytes, bytes);
            known.add(Count::StreamBytes, bytes);
            add(&known.record[way.sizes as usize + bucket(STREAM_BYTES.min(bytes))], calls);
            let end = begin.saturating_add(bytes);
            known.record[Count::End as usize].fetch_max(end, Ordering::Relaxed);
        }
    }
    forget(fd);
    before.set();
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use dafs_client::watch::{Watched, head};
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
