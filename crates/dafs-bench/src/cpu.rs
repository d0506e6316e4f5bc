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
