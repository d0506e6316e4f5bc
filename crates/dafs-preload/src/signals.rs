//! Keeps the program's signal handlers, and the cancelling of threads, out of what this library does:
//! a handler that needs a served file would wait for locks that its own thread holds.
//!
//! Invariants
//! * A program without handlers pays nothing.
//! * What the program has blocked itself is the same before and after.
//! * Faults of the machine (`SIGSEGV` and the like) are kept waiting by nothing but [`with_no_fault`]: one that the
//!   machine itself finds there ends the process. Those of memory that is not there are not, where the memory may
//!   be the program's.

use libc::{c_int, c_long};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The signals that the program has handlers for, a bit each, the lowest for signal 1.
static HANDLED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What the program has blocked, while we have blocked more.
    static BEFORE: Cell<Option<u64>> = const { Cell::new(None) };
    /// How deep this thread is in `quietly`.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`
const NOT_CANCELLED: c_int = 1;

/// The signals of these numbers, a bit each.
const fn set_of<const N: usize>(signals: [c_int; N]) -> u64 {
    let (mut set, mut at) = (0, 0);
    while at < N {
        set |= 1 << (signals[at] - 1);
        at += 1;
    }
    set
}

/// Those by which the machine, and who checks it, tells of a fault.
const FAULTS: u64 = set_of([
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
]);

/// Those of memory that is not there.
const MEMORY: u64 = set_of([libc::SIGSEGV, libc::SIGBUS]);

/// Those by which people end programs.
const ENDINGS: u64 = set_of([libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]);

/// The C library's own.
const INTERNAL: u64 = set_of([32, 33]);

fn bit(signal: c_int) -> u64 {
    match signal {
        1..=64 => 1 << (signal - 1) & !FAULTS & !INTERNAL,
        _ => 0,
    }
}

/// The program gives a signal a handler, or takes it away: then nobody has to wait for it.
pub(crate) fn set_handled(signal: c_int, is_handled: bool) {
    match is_handled {
        true => HANDLED.fetch_or(bit(signal), Ordering::Relaxed),
        false => HANDLED.fetch_and(!bit(signal), Ordering::Relaxed),
    };
}

fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel's own set of signals has eight bytes. The C library's call would leave out
    // what the kernel lets nobody block, which makes no difference here.
    let _: c_long = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            8,
        )
    };
    before
}

fn mask() -> u64 {
    let mut now = 0_u64;
    let nothing = std::ptr::null::<u64>();
    // SAFETY: as above.
    let _: c_long = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, nothing, &raw mut now, 8)
    };
    now
}

/// Runs `work`, which unwinds no further, without handlers of the program's in between.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    if depth != 0 {
        let done = work();
        DEPTH.set(depth);
        return done;
    }
    let mut cancelled = 0;
    // SAFETY: of this thread alone; fills the variable.
    unsafe { pthread_setcancelstate(NOT_CANCELLED, &mut cancelled) };
    let handled = HANDLED.load(Ordering::Relaxed);
    if handled != 0 {
        let before = mask();
        set_mask(before | handled);
        BEFORE.set(Some(before));
    }
    let done = work();
    DEPTH.set(0);
    if let Some(before) = BEFORE.take() {
        // What has waited is handled now, before this call returns.
        set_mask(before);
    }
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(cancelled, std::ptr::null_mut()) };
    done
}

/// The signals that wait because we have blocked them.
fn waiting() -> u64 {
    let Some(before) = BEFORE.get() else { return 0 };
    let mut waiting = 0_u64;
    // SAFETY: the kernel fills the set, which has eight bytes.
    let _: c_long = unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut waiting, 8) };
    waiting & !before
}

/// Whether a signal waits to be handled: then whoever waits for a lock gives up, with `EINTR`.
pub(crate) fn is_waiting() -> bool {
    waiting() & HANDLED.load(Ordering::Relaxed) != 0
}

/// Whether one waits that is to end the program.
pub(crate) fn is_ending() -> bool {
    waiting() & ENDINGS != 0
}

/// Whether such a one would have to wait.
pub(crate) fn handles_endings() -> bool {
    HANDLED.load(Ordering::Relaxed) & ENDINGS != 0
}

/// What a work touches, which says which signals may be kept waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touches {
    /// No memory of the program's.
    Own,
    /// That of reads and writes of any thread, as whoever drives a client does: what is not there must find
    /// the copy that it happens in.
    Programs,
}

/// Runs `work` with faults kept waiting.
pub(crate) fn with_no_fault<T>(touches: Touches, work: impl FnOnce() -> T) -> T {
    let before = mask();
    let faults = match touches {
        Touches::Own => FAULTS,
        Touches::Programs => FAULTS & !MEMORY,
    };
    set_mask(before | faults);
    let done = work();
    set_mask(before);
    done
}

/// All signals but those that the C library sends itself: it waits until each thread has changed its
/// user, for one; and those of memory that is not there, which must find the copy that they happen in.
const ALL_OF_PROGRAMS: u64 = !INTERNAL & !MEMORY;

/// All signals of programs blocked in this thread, until [`end`](Self::end).
#[derive(Debug)]
#[must_use = "they are blocked until its end"]
pub(crate) struct Blocked(u64);

impl Blocked {
    pub(crate) fn all() -> Self {
        Self(set_mask(mask() | ALL_OF_PROGRAMS))
    }

    pub(crate) fn end(self) {
        set_mask(self.0);
    }
}

/// All signals blocked while threads are started, which inherit that: signals are for the program's
/// own threads.
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    let blocked = Blocked::all();
    let done = work();
    blocked.end();
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_c_library_sends_itself_is_not_kept_back() {
        let inside = without(mask);
        let outside = mask();
        // The kernel leaves two signals out of all masks.
        let never = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        let faults = set_of([libc::SIGSEGV, libc::SIGBUS]);
        assert_eq!(inside | never | 0b11 << 31 | faults, u64::MAX);
        assert_eq!(inside & faults, outside & faults);
        assert_eq!(inside & 0b11 << 31, outside & 0b11 << 31);
    }

    #[test]
    fn memory_that_is_not_there_finds_the_copy_of_it() {
        let outside = mask();
        assert_eq!(with_no_fault(Touches::Own, mask), outside | FAULTS);
        assert_eq!(with_no_fault(Touches::Programs, mask) & MEMORY, outside & MEMORY);
        assert_eq!(mask(), outside);
    }

    #[test]
    fn handled_signals_wait_and_others_do_not() {
        set_handled(libc::SIGUSR1, true);
        set_handled(libc::SIGSEGV, true);
        let outside = mask();
        let inside = quietly(|| quietly(mask));
        assert_eq!(inside & !outside, 1 << (libc::SIGUSR1 - 1));
        assert_eq!(mask(), outside);
        set_handled(libc::SIGUSR1, false);
        assert_eq!(quietly(mask), outside);
    }
}
