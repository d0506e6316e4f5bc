//! Forks of a process with sessions. They are alone in their process, because a child holds the sockets of
//! all its parent's tests: servers there would find their ports taken, and clients no end of a connection.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod served;

use dafs_client::{Error, TransportChoice, WaitPolicy};
use served::Served;

/// Another thread may hold the lock at the moment of the fork, and then it is held for ever in the
/// child.
#[test]
fn a_fork_does_not_wait_for_threads_that_it_has_not() {
    let served = Served::new();
    let client = served.client_with(|options| options.wait = WaitPolicy::Poll);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                client.ping().unwrap();
            }
        });
        for _ in 0..50 {
            // SAFETY: the child calls only code that takes no lock of another thread, and exits
            // without running destructors.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the alarm ends the child if it hangs.
                unsafe { libc::alarm(20) };
                let right = !client.is_connected() && client.stats().answered == 0;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if right { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: waits for the child that was just made.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_fork_of_the_process_is_told_so() {
    let served = Served::new();
    let client = served.client(TransportChoice::Shm);
    client.ping().unwrap();
    // SAFETY: the child calls only code that takes no lock of another thread: the check comes
    // first, and then it exits without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = matches!(client.ping(), Err(Error::Forked));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if told { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    client.ping().unwrap();
}
