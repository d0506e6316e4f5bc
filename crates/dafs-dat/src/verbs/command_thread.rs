//! A thread whose credentials never change.
//!
//! The kernel accepts a command for an RDMA device by a write to a descriptor, but only from a
//! thread with exactly the credentials that opened it (`ib_safe_file_access`). All commands of the
//! connection manager are written, and so is the doorbell of rxe and siw. A server thread that
//! takes on the identity of a caller has other credentials from then on, forever: switching back
//! makes new ones. So one thread of the process opens all devices, does no other work, and makes
//! such calls for the threads that may not.
//!
//! Invariants
//! * A thread that hands over a call waits for it, so the data that the call borrows outlives it.
//! * Threads with the right credentials, which are all threads of most programs, call directly.

use super::error::VerbsError;
use dafs_mem::Mutex;
use std::any::Any;
use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel, sync_channel};

type Call = Box<dyn FnOnce() + Send>;

static COMMAND_THREAD: OnceLock<Mutex<Sender<Call>>> = OnceLock::new();

thread_local! {
    /// The kernel refused this thread once, which is permanent.
    static DIFFERS: Cell<bool> = const { Cell::new(false) };
    /// True on the thread that makes calls for others. It cannot hand calls over to itself.
    static IS_COMMAND_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Starts the thread unless it runs.
///
/// # Errors
/// When no thread can be created.
pub(super) fn start() -> Result<(), VerbsError> {
    if COMMAND_THREAD.get().is_some() {
        return Ok(());
    }
    let (sender, receiver) = channel::<Call>();
    std::thread::Builder::new()
        .name("dafs-verbs".to_owned())
        .spawn(move || {
            IS_COMMAND_THREAD.set(true);
            receiver.into_iter().for_each(|call| call());
        })
        .map_err(|error| VerbsError::Io { what: "start a thread for RDMA devices", error })?;
    // If another thread was faster, its command thread stays, and this one ends with its channel.
    COMMAND_THREAD.get_or_init(|| Mutex::new(sender));
    Ok(())
}

/// Makes the call on the thread of [`start`], and waits.
pub(super) fn run<R: Send>(call: impl FnOnce() -> R + Send) -> R {
    let command_thread = match COMMAND_THREAD.get() {
        Some(command_thread) if !IS_COMMAND_THREAD.get() => command_thread,
        _ => return call(),
    };
    let (sender, receiver) = sync_channel::<Result<R, Box<dyn Any + Send>>>(1);
    let job = move || {
        let result = catch_unwind(AssertUnwindSafe(call));
        // The other side waits for it.
        let _ = sender.send(result);
    };
    let job: Box<dyn FnOnce() + Send + '_> = Box::new(job);
    // SAFETY: only the lifetime changes. This function returns only after the call has sent its
    // result, which is its last use of borrowed data, or after the call was dropped.
    let job: Call = unsafe { std::mem::transmute(job) };
    let sent = command_thread.lock().send(job);
    debug_assert!(sent.is_ok(), "the thread never ends");
    match receiver.recv() {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        // INVARIANT: the thread catches every panic and ends with the process.
        Err(_) => unreachable!("the thread for RDMA devices has ended"),
    }
}

/// Makes a call that may write to `descriptor`: on this thread if it may, else on the command thread.
pub(super) fn with_opener_credentials<R: Send>(
    descriptor: RawFd,
    call: impl FnOnce() -> R + Send,
) -> R {
    if may_write(descriptor) { call() } else { run(call) }
}

/// True if the credentials are still those that opened the device.
fn may_write(descriptor: RawFd) -> bool {
    if IS_COMMAND_THREAD.get() {
        return true;
    }
    if DIFFERS.get() {
        return false;
    }
    // The write is too short for a command, but the kernel checks the credentials first.
    let nothing = 0u8;
    // SAFETY: reads one local byte.
    let returned = unsafe { libc::write(descriptor, (&raw const nothing).cast(), 1) };
    let refused = returned < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES);
    DIFFERS.set(refused);
    !refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_call_borrows_from_the_one_that_waits() {
        start().unwrap();
        let mut numbers = vec![1, 2, 3];
        let (sum, name) = run(|| {
            numbers.push(4);
            (numbers.iter().sum::<i32>(), thread::current().name().map(str::to_owned))
        });
        assert_eq!((sum, name.as_deref()), (10, Some("dafs-verbs")));
        assert_eq!(numbers.len(), 4);
    }

    #[test]
    fn a_panic_comes_back_and_the_thread_goes_on() {
        start().unwrap();
        let panic = catch_unwind(|| run(|| panic!("on purpose"))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
        // A call on the command thread may hand over another.
        assert_eq!(run(|| run(|| 5)), 5);
    }

    #[test]
    fn a_descriptor_that_refuses_is_handed_over() {
        start().unwrap();
        let here = thread::current().id();
        // Any result but a refusal means that this thread may write.
        assert_eq!(with_opener_credentials(-1, || thread::current().id()), here);
    }
}
