//! The report at the end of the program: calls served and not served.
//!
//! Invariants
//! * Refused calls are noted by name up to a bound; the others are counted.

use crate::config;
use crate::descriptor::kernel;
use crate::limits::{NAMED_BYTES_MAX, NAMED_KINDS_MAX};
use crate::next::with_signals_deferred;
use crate::table;
use dafs_client::{DafsUrl, Error, descriptors};
use dafs_mem::Mutex;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static SERVED: AtomicU64 = AtomicU64::new(0);
static PASSED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static BYPASSED: AtomicU64 = AtomicU64::new(0);
static STARTED: AtomicU64 = AtomicU64::new(0);
static READ_BYTES: AtomicU64 = AtomicU64::new(0);
static WRITTEN_BYTES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn served() {
    SERVED.fetch_add(1, Relaxed);
}

/// The original standard error: many programs close theirs before they end.
static STANDARD_ERROR: OnceLock<File> = OnceLock::new();

/// Saves the descriptor that the report needs.
pub(crate) fn prepare() {
    let wanted = config::get().and_then(|config| config.report.as_deref());
    if wanted.is_none_or(|target| target.as_os_str() != "-") {
        return;
    }
    let Ok(fd) = kernel::control(2, libc::F_DUPFD_CLOEXEC, 3) else { return };
    // SAFETY: a new descriptor without another owner.
    if let Ok(fd) = descriptors::kept(unsafe { OwnedFd::from_raw_fd(fd) }) {
        let _ = STANDARD_ERROR.set(fd.into());
    }
}

/// Protects the descriptor of the report from the program.
pub(crate) fn keep() {
    if let Some(file) = STANDARD_ERROR.get() {
        descriptors::note(file.as_raw_fd());
    }
}

/// Counts a path or descriptor that is not served.
pub(crate) fn passed() {
    PASSED.fetch_add(1, Relaxed);
}

/// The calls of one name that were not served.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    count: u64,
    /// The path of the first.
    path: Vec<u8>,
}

static REFUSALS: Mutex<Vec<Kind>> = Mutex::new(Vec::new());
static BYPASSES: Mutex<Vec<Kind>> = Mutex::new(Vec::new());
static STARTS: Mutex<Vec<Kind>> = Mutex::new(Vec::new());

/// Notes an operation that a served file does not support: the function's name, and the path or an
/// empty one.
pub(crate) fn refused(name: &'static str, path: &[u8]) {
    REFUSED.fetch_add(1, Relaxed);
    note(&REFUSALS, name, path);
}

/// Notes a path below a prefix that the user has excluded.
pub(crate) fn bypassed(path: &[u8]) {
    BYPASSED.fetch_add(1, Relaxed);
    note(&BYPASSES, "by --bypass", path);
}

/// Notes the start of a program that sees no prefix: the reason, and its path.
pub(crate) fn started(why: &'static str, path: &[u8]) {
    STARTED.fetch_add(1, Relaxed);
    note(&STARTS, why, path);
}

/// The prefixes whose servers were reported unreachable, a bit for each.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// The device and inode of the program's standard error, if it is not served. A file with the same
/// descriptor number later is the program's own.
static ERRORS: OnceLock<(u64, u64)> = OnceLock::new();

/// Call it when the program begins, before it has opened any file.
pub(crate) fn learn_errors() {
    if let Ok(inode) = kernel::inode(2)
        && !table::may_know(2)
    {
        let _ = ERRORS.set(inode);
    }
}

/// Reports an unreachable server, because the program itself can only report an input/output error.
/// It writes once for a prefix, to the original standard error, if that accepts the line at once.
pub(crate) fn unreachable(mount: usize, url: &DafsUrl, error: &Error) {
    let bit = 1 << (mount % 64);
    let is_known = || ERRORS.get().is_some_and(|known| kernel::inode(2) == Ok(*known));
    if TOLD.fetch_or(bit, Relaxed) & bit != 0 || !is_known() {
        return;
    }
    let mut poll = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one such structure.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    // A write to a closed pipe would end the program.
    if ready == 1 && poll.revents == libc::POLLOUT {
        let line = format!("dafs run: {url}: {error}\n");
        // SAFETY: reads the line.
        unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
    }
}

/// True if a report is wanted.
pub(crate) fn is_wanted() -> bool {
    config::get().is_some_and(|config| config.report.is_some())
}

fn note(kinds: &Mutex<Vec<Kind>>, name: &'static str, path: &[u8]) {
    if !is_wanted() {
        return;
    }
    with_signals_deferred(|| {
        // The holder of the lock is noting a name, or was a thread of the parent at the time of the
        // fork. The call is counted all the same.
        let Some(mut kinds) = kinds.try_lock() else { return };
        if let Some(kind) = kinds.iter_mut().find(|kind| kind.name == name) {
            kind.count += 1;
        } else if kinds.len() < NAMED_KINDS_MAX {
            let path = path[..path.len().min(NAMED_BYTES_MAX)].to_vec();
            kinds.push(Kind { name, count: 1, path });
        }
    });
}

/// The noted names, and how many of all calls have none. Clears the notes.
fn names(kinds: &Mutex<Vec<Kind>>, all: u64) -> String {
    let kinds = kinds.try_lock().map_or(Vec::new(), |mut kinds| std::mem::take(&mut *kinds));
    let mut text = String::new();
    let mut left = all;
    for Kind { name, count, path } in kinds {
        left = left.saturating_sub(count);
        text.push_str(if text.is_empty() { "" } else { ", " });
        let _ = write!(text, "{count} {name}");
        if !path.is_empty() {
            let _ = write!(text, " {}", String::from_utf8_lossy(&path).escape_debug());
        }
    }
    if left > 0 && !text.is_empty() {
        let _ = write!(text, ", {left} others");
    }
    text
}

pub(crate) fn read(bytes: usize) {
    READ_BYTES.fetch_add(bytes as u64, Relaxed);
}

pub(crate) fn written(bytes: usize) {
    WRITTEN_BYTES.fetch_add(bytes as u64, Relaxed);
}

/// Resets the counts in a forked child.
pub(crate) fn clear() {
    for count in [&SERVED, &PASSED, &REFUSED, &BYPASSED, &STARTED, &READ_BYTES, &WRITTEN_BYTES] {
        count.store(0, Relaxed);
    }
    for kinds in [&REFUSALS, &BYPASSES, &STARTS] {
        drop(names(kinds, 0));
    }
}

/// Writes the report to its target: a line per process. Once.
pub(crate) fn tell() {
    let Some(target) = config::get().and_then(|config| config.report.as_deref()) else { return };
    let take = |count: &AtomicU64| count.swap(0, Relaxed);
    let (served, passed, refused) = (take(&SERVED), take(&PASSED), take(&REFUSED));
    let (read, written) = (take(&READ_BYTES), take(&WRITTEN_BYTES));
    let started = take(&STARTED);
    if served == 0 && passed == 0 && started == 0 {
        return;
    }
    let in_brackets = |names: String| match names.is_empty() {
        true => names,
        false => format!(" ({names})"),
    };
    let refusals = in_brackets(names(&REFUSALS, refused));
    let bypasses = in_brackets(names(&BYPASSES, take(&BYPASSED)));
    let starts = match started {
        0 => String::new(),
        _ => format!(
            "; {started} programs started that see no prefix{}",
            in_brackets(names(&STARTS, started))
        ),
    };
    let program = std::env::args_os().next().unwrap_or_default();
    let line = format!(
        "dafs run: {}[{}]: served {served} calls, {read} bytes read, {written} bytes written, \
         {refused} refused{refusals}; {passed} calls passed by{bypasses}{starts}\n",
        program.display(),
        std::process::id(),
    );
    // The program is not disturbed by a report that cannot be written.
    let _ = match target.as_os_str().as_encoded_bytes() {
        b"-" => match STANDARD_ERROR.get() {
            Some(mut file) => file.write_all(line.as_bytes()),
            None => Ok(()),
        },
        _ => OpenOptions::new()
            .append(true)
            .create(true)
            .open(target)
            .and_then(|mut file| file.write_all(line.as_bytes())),
    };
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_once_with_their_first_path() {
        let kind = |name, count, path: &[u8]| Kind { name, count, path: path.to_vec() };
        let kinds = Mutex::new(vec![kind("mmap", 2, b"/data/a\nb"), kind("ioctl", 1, b"")]);
        assert_eq!(names(&kinds, 5), "2 mmap /data/a\\nb, 1 ioctl, 2 others");
        assert_eq!(names(&kinds, 0), "");
    }
}
