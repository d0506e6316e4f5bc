//! A fork that uses its parent's objects, while threads that it lacks hold every lock.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::served::{Served, TRANSPORTS, open_file};
use crate::{CacheOptions, Client, CompletionGroup, File, LockRange, OpenOptions, Stability};

/// Runs `work` in a fork, which counts as failed after a timeout.
fn in_fork(work: impl FnOnce() -> Option<&'static str>) {
    // SAFETY: the child runs only code that takes no lock of another thread, which is what the
    // tests are about, and exits without running destructors of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the alarm ends the child if it hangs.
        unsafe { libc::alarm(20) };
        let wrong = work();
        if let Some(what) = wrong {
            eprintln!("a fork was not told so by {what}");
        }
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(wrong.is_some())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child hung or was not told");
}

macro_rules! forked {
    ($($call:expr),* $(,)?) => {
        [$((stringify!($call), matches!($call, Err(Error::Forked)))),*]
    };
}

/// Every call and drop that an application may do in a fork.
fn touch(
    client: Client,
    file: File,
    doomed: File,
    buffer: crate::IoBuffer,
    group: CompletionGroup,
) -> Option<&'static str> {
    let unstable = Stability::Unstable;
    let mut bytes = [0; 8];
    let root = client.root();
    let mut batch = client.batch();
    batch.read(&file, &[(0, 8)], &[(&buffer, 0..8)]).ok()?;
    let told = forked![
        client.ping(),
        client.flush(),
        client.disconnect(),
        client.buffer(10),
        client.open(b"/file", &OpenOptions::read()),
        client.attributes(&root),
        client.remove(&root, b"file"),
        client.read_file(b"/file", 10),
        client.lookup_attributes(&root, b"file"),
        batch.run(),
        client.batch().write(&file, &[(0, 8)], &[(&buffer, 0..8)]),
        file.read_at(&mut bytes, 0),
        file.write_at(&bytes, 0, unstable),
        file.read_into(&buffer, 0..8, 0),
        file.write_from(&buffer, 0..8, 0, unstable),
        file.submit_read(&buffer, 0..8, 0),
        file.read_then(buffer.clone(), 0..8, 0, |_, _| ()),
        file.submit_write(&buffer, 0..8, 0, unstable),
        group.read(1, &file, &buffer, 0..8, 0),
        group.write(1, &file, &buffer, 0..8, 0, unstable),
        group.commit(1, &file, 0, 0),
        group.wait(&mut Vec::new(), 1, None),
        group.descriptor(),
        group.expedite(crate::OperationId::from_u64(0)),
        file.append(&bytes, Stability::FileSync),
        file.attributes(),
        file.set_size(1),
        file.commit(0, 0),
        file.check_writes(),
        file.try_lock(&LockRange::exclusive()).map_err(|error| match error {
            crate::LockError::Other(error) => error,
            _ => Error::TooMany,
        }),
        doomed.close(),
    ];
    let wrong = told.into_iter().find(|(_, told)| !told).map(|(call, _)| call);
    let quiet = !client.is_connected() && group.poll(&mut Vec::new()) == 0;
    drop((file, buffer, group, client));
    wrong.or((!quiet).then_some("a look at the session"))
}

#[test]
fn a_fork_waits_for_no_lock_of_its_parents() {
    for transport in TRANSPORTS {
        let caches =
            [None, Some(CacheOptions::default()), Some(CacheOptions::for_readers(8 << 20))];
        for cache in caches {
            let served = Served::new();
            let client = served.client_with(|options| {
                options.transport = transport;
                options.cache = cache;
            });
            client.ping().unwrap();
            let (file, doomed) = (open_file(&client), open_file(&client));
            file.write_at(b"not stable", 0, Stability::Unstable).unwrap();
            file.read_at(&mut [0; 4], 0).unwrap();
            let buffer = client.buffer(100).unwrap();
            let group = client.completion_group();
            group.read(1, &file, &buffer, 0..8, 0).unwrap();
            // The locks outlive the parent's handles on them, which the child drops.
            let (shared, kept, memory) =
                (client.shared().clone(), client.cache().cloned(), buffer.memory().clone());
            let file = ManuallyDrop::new(file);
            let held = (
                kept.as_ref().map(|cache| cache.hold()),
                file.hold(),
                memory.hold(),
                group.hold(),
                shared.hold_mover(),
                shared.staging.lock().unwrap(),
                shared.lock().unwrap(),
            );
            in_fork(|| {
                // SAFETY: the child's copy, which it uses once; the parent has its own.
                let [file, doomed] = [&*file, &doomed].map(|file| unsafe { std::ptr::read(file) });
                touch(client.clone(), file, doomed, buffer.clone(), group.clone())
            });
            drop(held);
            // The child has changed nothing in the parent.
            let mut found = [0; 10];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), 10);
            assert_eq!(&found, b"not stable");
            file.commit(0, 0).unwrap();
            doomed.close().unwrap();
            ManuallyDrop::into_inner(file).close().unwrap();
            client.disconnect().unwrap();
        }
    }
}

/// An object of another thread of the parent, which would be dropped half changed.
#[test]
fn a_fork_drops_nothing_that_a_lock_protects() {
    struct Loud(std::sync::Arc<AtomicU32>);
    impl Drop for Loud {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = std::sync::Arc::new(AtomicU32::new(0));
    let mutex = ForkMutex::new(Loud(drops.clone()));
    let lock = ForkRwLock::new(Loud(drops.clone()));
    assert!(lock.try_read().is_some());
    in_fork(|| {
        let is_read = lock.try_read().is_some();
        // SAFETY: the child's copies, which it uses once; the parent has its own.
        drop(unsafe { (std::ptr::read(&mutex), std::ptr::read(&lock)) });
        let is_wrong = is_read || drops.load(Ordering::Relaxed) != 0;
        is_wrong.then_some("a lock of its parent")
    });
    drop((mutex, lock));
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

#[test]
fn forks_of_forks_differ_however_they_are_made() {
    let here = count();
    assert_eq!(here, count());
    in_fork(|| {
        let mutex = ForkMutex::new(());
        let own = count() != here && mutex.lock().is_ok();
        // SAFETY: as in `in_fork`; this way round no handler of the C library runs.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let right = mutex.lock().is_err() && count() != here;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        unsafe { libc::waitpid(child as libc::pid_t, &mut status, 0) };
        (!own || status != 0).then_some("the number of a process")
    });
    assert_eq!(here, count());
}
