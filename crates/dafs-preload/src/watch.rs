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

mod records;

use crate::descriptor::kernel;
use crate::failure::Errno;
use crate::limits::{DESCRIPTORS_MAX, PAGE_BYTES};
use crate::next::is_serving;
use dafs_client::watch::{Count, TABLE_VARIABLE, TABLE_WORDS, Total, bucket};
use libc::{FILE, c_int, ssize_t};
use records::{Table, find, has_begun_there, is_wanted, map, record};
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

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

/// The size of the memory of a stream, in which the C library reads and writes.
const STREAM_BYTES: u64 = 4096;

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

/// Counts a call about an open file that is a question to a server, such as a lock.
pub(crate) fn asked(fd: c_int) {
    if let Some(table) = of_program()
        && known(table, fd).is_some()
    {
        add(&table[Total::Names as usize], 1);
    }
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

/// Counts the close of a descriptor, if it has been used.
pub(crate) fn close(fd: c_int) {
    let is_known = |at: usize| FILES[at].load(Ordering::Relaxed) & !IS_STREAM >= FIRST;
    if is_on() && index(fd).is_some_and(is_known) {
        asked(fd);
    }
    forget(fd);
}

/// Forgets a descriptor that is about to get another meaning.
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
    close(fd);
    before.set();
}
