//! Waking a thread that waits in the kernel.

use rustix::thread::Pid;

/// Sends a signal to one thread of this process; no effect if it has ended.
pub(crate) fn wake(thread: Pid, signal: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: the call takes numbers alone. It reaches no other process than this one, even if the
    // thread's number has been reused.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
}
