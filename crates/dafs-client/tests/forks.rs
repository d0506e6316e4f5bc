//! Forks of a process with sessions, and other programs. They are alone in their process and take turns. A
//! child holds the sockets of all its parent's tests: servers there would find their ports taken, and clients
//! no end of a connection. Descriptors of other tests would be taken for the client's.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod served;

use dafs_client::{CacheOptions, Error, Stability, TransportChoice, WaitPolicy};
use dafs_mem::Mutex;
use served::{Served, TRANSPORTS, open_file};
use std::os::fd::RawFd;
use std::sync::MutexGuard;

/// Holds up the other tests until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Another thread may hold the lock at the moment of the fork, and then it is held for ever in the
/// child.
#[test]
fn a_fork_does_not_wait_for_threads_that_it_has_not() {
    let _alone = alone();
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
    let _alone = alone();
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

/// Descriptors of this process.
fn descriptors() -> Vec<RawFd> {
    let list = std::fs::read_dir("/proc/self/fd").unwrap();
    list.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect()
}

#[test]
fn nothing_of_a_client_is_inherited_by_another_program() {
    let _alone = alone();
    let before = descriptors();
    for transport in TRANSPORTS {
        let served = Served::new();
        let client = served.client_with(|options| {
            options.transport = transport;
            options.cache = Some(CacheOptions::default());
        });
        let file = open_file(&client);
        file.write_at(b"data", 0, Stability::FileSync).unwrap();
        let _buffer = client.buffer(1 << 20).unwrap();
        let mut seen = 0;
        for descriptor in descriptors().into_iter().filter(|fd| !before.contains(fd)) {
            // SAFETY: the call takes no memory.
            let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
            // A descriptor that was closed meanwhile is skipped.
            if flags >= 0 {
                assert!(flags & libc::FD_CLOEXEC != 0, "descriptor {descriptor}, {transport:?}");
                seen += 1;
            }
        }
        assert!(seen >= 3, "{seen} descriptors");
    }
}
