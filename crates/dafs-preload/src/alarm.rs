//! An alarm that ends the process in time. While it is set, it replaces the program's own.
//!
//! Invariants
//! * The program's handler never sees our alarm, and ours never the program's.
//! * The program's timer goes on undisturbed: the elapsed time is subtracted from it.

use crate::next::internal;
use libc::{c_int, itimerval, sigset_t, time_t, timeval};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The program's alarm settings, which [`restore`](Self::restore) puts back.
#[must_use = "the process ends unless it is restored"]
pub(crate) struct Alarm {
    action: libc::sigaction,
    mask: sigset_t,
    timer: itimerval,
    /// The program had blocked `SIGALRM`, and one was pending.
    was_pending: bool,
    since: Instant,
}

static STATUS: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_alarm(_signal: c_int) {
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, STATUS.load(Ordering::Relaxed)) };
}

fn only_alarm() -> sigset_t {
    // SAFETY: a plain structure, for which all zero is a valid value.
    unsafe {
        let mut only: sigset_t = zeroed();
        libc::sigaddset(&mut only, libc::SIGALRM);
        only
    }
}

/// Consumes a pending alarm, which this thread has blocked. Returns true if there was one.
fn take_pending() -> bool {
    // SAFETY: all zero is no time at all; the information about the signal is not requested.
    unsafe { libc::sigtimedwait(&only_alarm(), null_mut(), &zeroed()) == libc::SIGALRM }
}

/// Sets the timer, and returns the former one.
fn set_timer(timer: &itimerval) -> itimerval {
    // SAFETY: plain structures; by a system call, as `_exit` must not take the C library's locks.
    unsafe {
        let mut before: itimerval = zeroed();
        libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, timer, &raw mut before);
        before
    }
}

fn change_mask(how: c_int) -> sigset_t {
    // SAFETY: plain structures.
    unsafe {
        let mut before: sigset_t = zeroed();
        libc::pthread_sigmask(how, &only_alarm(), &mut before);
        before
    }
}

/// The rest of `timer` after `time`: at least a moment if it is set.
fn left(timer: itimerval, time: Duration) -> itimerval {
    let of = |value: timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    let all = of(timer.it_value);
    if all.is_zero() {
        return timer;
    }
    let left = all.saturating_sub(time).max(Duration::from_micros(1));
    let it_value =
        timeval { tv_sec: left.as_secs() as time_t, tv_usec: left.subsec_micros().into() };
    itimerval { it_value, ..timer }
}

impl Alarm {
    /// Ends the process with that status after `time`, unless the alarm is restored before.
    pub(crate) fn set(time: Duration, status: c_int) -> Self {
        STATUS.store(status, Ordering::Relaxed);
        let since = Instant::now();
        // SAFETY: plain structures, for which all zero is a valid value; the handler does one system
        // call.
        unsafe {
            let timer = set_timer(&zeroed());
            let mask = change_mask(libc::SIG_BLOCK);
            let was_pending = take_pending();
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = on_alarm as *const () as usize;
            let mut before: libc::sigaction = zeroed();
            internal(|| libc::sigaction(libc::SIGALRM, &action, &mut before));
            change_mask(libc::SIG_UNBLOCK);
            let tv_sec = time.as_secs() as time_t;
            let it_value = timeval { tv_sec, tv_usec: time.subsec_micros().into() };
            set_timer(&itimerval { it_value, ..zeroed() });
            Self { action: before, mask, timer, was_pending, since }
        }
    }

    pub(crate) fn restore(self) {
        // SAFETY: plain structures that the system has filled.
        unsafe {
            set_timer(&zeroed());
            change_mask(libc::SIG_BLOCK);
            take_pending();
            internal(|| libc::sigaction(libc::SIGALRM, &self.action, null_mut()));
            if self.was_pending {
                libc::kill(libc::getpid(), libc::SIGALRM);
            }
            set_timer(&left(self.timer, self.since.elapsed()));
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `check` in a process with one thread, which surely receives each signal.
    fn alone(check: fn() -> bool) {
        // SAFETY: the child does nothing but system calls, and ends.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(if check() { 0 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
    }

    static HEARD: AtomicI32 = AtomicI32::new(0);

    extern "C" fn hears(_signal: c_int) {
        HEARD.fetch_add(1, Ordering::Relaxed);
    }

    fn handle() {
        // SAFETY: the handler counts.
        unsafe { libc::signal(libc::SIGALRM, hears as *const () as usize) };
    }

    #[test]
    fn an_alarm_of_ours_that_waits_is_not_the_programs() {
        alone(|| {
            handle();
            let alarm = Alarm::set(Duration::from_secs(100), 9);
            change_mask(libc::SIG_BLOCK);
            // SAFETY: takes no memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGALRM) };
            alarm.restore();
            HEARD.load(Ordering::Relaxed) == 0
        });
    }

    #[test]
    fn an_alarm_of_the_programs_that_waits_is_heard_when_it_lets_it() {
        alone(|| {
            handle();
            change_mask(libc::SIG_BLOCK);
            // SAFETY: takes no memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGALRM) };
            Alarm::set(Duration::from_secs(100), 9).restore();
            let before = HEARD.load(Ordering::Relaxed);
            change_mask(libc::SIG_UNBLOCK);
            before == 0 && HEARD.load(Ordering::Relaxed) == 1
        });
    }

    #[test]
    fn the_time_is_over_and_the_status_is_that() {
        // SAFETY: as in `alone`.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let _alarm = Alarm::set(Duration::from_millis(1), 9);
                loop {
                    libc::pause();
                }
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 9);
        }
    }

    #[test]
    fn a_timer_of_the_programs_has_gone_on() {
        alone(|| {
            handle();
            let it_value = timeval { tv_sec: 0, tv_usec: 1 };
            // SAFETY: a plain structure.
            set_timer(&itimerval {
                it_value: timeval { tv_sec: 50, tv_usec: 0 },
                ..unsafe { zeroed() }
            });
            let mut alarm = Alarm::set(Duration::from_secs(100), 9);
            alarm.since -= Duration::from_secs(40);
            alarm.restore();
            // SAFETY: as above.
            let none = unsafe { zeroed() };
            let timer = set_timer(&none);
            let is_less = timer.it_value.tv_sec <= 10;
            // An expired timer fires at once.
            // SAFETY: as above.
            let over = left(itimerval { it_value, ..unsafe { zeroed() } }, Duration::from_secs(1));
            is_less && over.it_value.tv_usec == 1
        });
    }
}
