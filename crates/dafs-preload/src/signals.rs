//! Defers the program's signal handlers, and the cancelling of threads, while this library works: a
//! handler that uses a served file would deadlock on locks that its own thread holds.
//!
//! Invariants
//! * A program without handlers pays nothing.
//! * The program's own signal mask is the same before and after.
//! * Only [`with_no_fault`] blocks hardware faults (`SIGSEGV` and the like): a real fault there
//!   ends the process. Faults of bad memory stay unblocked where the memory may be the program's.

use libc::{c_int, c_long};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The signals for which the program has handlers, a bit each, the lowest for signal 1.
static HANDLED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The program's own mask, while this library blocks more.
    static BEFORE: Cell<Option<u64>> = const { Cell::new(None) };
    /// Depth of nested `with_signals_deferred` in this thread.
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

/// Signals by which the hardware and debugging tools report a fault.
const FAULTS: u64 = set_of([
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
]);

/// Faults of bad memory.
const MEMORY: u64 = set_of([libc::SIGSEGV, libc::SIGBUS]);

/// Signals by which users terminate programs.
const ENDINGS: u64 = set_of([libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]);

/// Internal signals of the C library.
const INTERNAL: u64 = set_of([32, 33]);

fn bit(signal: c_int) -> u64 {
    match signal {
        1..=64 => 1 << (signal - 1) & !FAULTS & !INTERNAL,
        _ => 0,
    }
}

/// Notes that the program installs a handler, or removes it.
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

/// Runs `work`, which does not unwind, without signal handlers of the program in between.
pub(crate) fn with_signals_deferred<T>(work: impl FnOnce() -> T) -> T {
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
        // Deferred signals are handled now, before this call returns.
        set_mask(before);
    }
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(cancelled, std::ptr::null_mut()) };
    done
}

/// The pending signals that this library has blocked.
fn waiting() -> u64 {
    let Some(before) = BEFORE.get() else { return 0 };
    let mut waiting = 0_u64;
    // SAFETY: the kernel fills the set, which has eight bytes.
    let _: c_long = unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut waiting, 8) };
    waiting & !before
}

/// True if a handled signal is pending: a thread that waits for a lock then gives up, with `EINTR`.
pub(crate) fn is_waiting() -> bool {
    waiting() & HANDLED.load(Ordering::Relaxed) != 0
}

/// True if a termination signal is pending.
pub(crate) fn is_ending() -> bool {
    waiting() & ENDINGS != 0
}

/// True if the program handles a termination signal.
pub(crate) fn handles_endings() -> bool {
    HANDLED.load(Ordering::Relaxed) & ENDINGS != 0
}

/// The memory that a piece of work touches, which decides which signals may be blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touches {
    /// No memory of the program.
    Own,
    /// The buffers of any thread's reads and writes, as a thread that drives a client does. A fault
    /// of bad memory must be handled in the copy in which it happens.
    Programs,
}

/// Runs `work` with faults blocked.
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

/// All signals but two groups. The C library sends its internal ones and waits for each thread, for
/// example to change the user. Faults of bad memory must be handled in the copy in which they
/// happen.
const ALL_OF_PROGRAMS: u64 = !INTERNAL & !MEMORY;

/// All signals of programs, blocked in this thread until [`end`](Self::end).
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

/// Runs `work` with all signals blocked. Threads started by it inherit that: signals are for the
/// program's own threads.
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
    fn a_signal_of_the_c_library_is_not_deferred() {
        let inside = without(mask);
        let outside = mask();
        // The kernel never blocks two signals.
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
        let inside = with_signals_deferred(|| with_signals_deferred(mask));
        assert_eq!(inside & !outside, 1 << (libc::SIGUSR1 - 1));
        assert_eq!(mask(), outside);
        set_handled(libc::SIGUSR1, false);
        assert_eq!(with_signals_deferred(mask), outside);
    }
}
