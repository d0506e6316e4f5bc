//! Pinning, and the CPU time of this and other processes.

use anyhow::{Result, bail};
use std::num::NonZero;
use std::sync::OnceLock;
use std::time::Duration;

/// Keeps the calling thread, and those it starts, on one CPU.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

/// Lets the calling thread run anywhere.
pub(crate) fn unpin() -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in 0..cpu_count() {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

/// CPUs of this process, counted by the first call. The call has to come before any pinning: a
/// pinned process seems to have one.
pub(crate) fn cpu_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

/// CPU time that a process has used, in user space and in the kernel.
pub(crate) fn process_time(pid: Option<u32>) -> Result<Duration> {
    let mut clock = libc::CLOCK_PROCESS_CPUTIME_ID;
    if let Some(pid) = pid {
        // SAFETY: the call writes the clock id it is given.
        let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
        if error != 0 {
            bail!("process {pid} has no clock: error {error}");
        }
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the struct it is given.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        bail!("the clock of process {pid:?} cannot be read");
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// CPU time of the children of another process that have ended and that it has waited for, to a
/// hundredth of a second or so.
pub(crate) fn ended_children_time(pid: u32) -> Result<Duration> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let Some(ticks) = children_ticks(&line) else { bail!("process {pid} has no times: {line}") };
    // SAFETY: the call has no memory of the caller's.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks_per_second = u32::try_from(ticks_per_second).unwrap_or(100).max(1);
    Ok(Duration::from_secs(ticks) / ticks_per_second)
}

/// The ticks of children in user space and in the kernel, from the line `stat` (proc_pid_stat(5)). The
/// name of the process in it may have blanks and parentheses.
fn children_ticks(line: &str) -> Option<u64> {
    let (_, behind_name) = line.rsplit_once(')')?;
    let mut ticks = behind_name.split_whitespace().skip(13);
    let user: u64 = ticks.next()?.parse().ok()?;
    user.checked_add(ticks.next()?.parse().ok()?)
}

/// CPU time of this process, and of the server if that is another process.
pub(crate) fn times(server: Option<u32>) -> Result<(Duration, Duration)> {
    let server = server.map(|pid| process_time(Some(pid))).transpose()?;
    Ok((process_time(None)?, server.unwrap_or_default()))
}

/// CPU time of this process's children that have ended and were waited for, with that of their own
/// such children.
pub(crate) fn children_time() -> Duration {
    // SAFETY: all zeros is a value of the struct, which the call writes.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        // It fails only for bad arguments.
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage), 0);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticks_of_children_stand_behind_any_name() {
        let line = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 340 5 20 0 1 0 99 4096 10";
        assert_eq!(children_ticks(line), Some(345));
        assert_eq!(children_ticks("7 (short) S 1 7"), None);
        assert_eq!(children_ticks(""), None);
    }

    #[test]
    fn children_that_have_ended_are_counted() {
        let none = ended_children_time(std::process::id()).expect("its own line");
        assert!(none <= children_time() + Duration::from_secs(1));
        assert!(ended_children_time(u32::MAX).is_err());
    }
}
