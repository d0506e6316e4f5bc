//! Operations with a continuation and without a waiter: the thread that polls calls the
//! continuation.
//!
//! Invariants
//! * A continuation is called once, without the driver's lock, also when the session ends.
//! * While there is such an operation, some thread leads. A thread that starts one without a leader
//!   leads until none is left; a leader that stops before that hands over to a follower, or to the
//!   mover thread.

use super::waiter::Waiter;
use super::{Driver, Leader, Shared, coarse_now};
use crate::core::{Done, Refused};
use crate::error::{Error, Result};
use crate::limit::Limit;
use crate::operations::Continuation;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Continuations to be called when the lock is free, at the latest when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Followed(Vec<(Continuation, Done)>);

impl Followed {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn append(&mut self, others: &mut Vec<(Continuation, Done)>) {
        self.0.append(others);
    }

    pub(super) fn extend(&mut self, others: impl IntoIterator<Item = (Continuation, Done)>) {
        self.0.extend(others);
    }

    pub(super) fn call(&mut self) {
        self.0.drain(..).for_each(|(then, done)| then.call(done));
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.call();
    }
}

impl Shared {
    /// Starts an operation with the continuation `then`. Without a leader it leads until no such
    /// operation is left.
    pub(crate) fn start_followed(
        self: &Arc<Self>,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
        then: Continuation,
    ) -> Result<()> {
        // A fork has no thread that would release the lock of the mover.
        self.check_process()?;
        // The current leader may stop.
        self.start_mover()?;
        let mut driver = self.lock()?;
        let slot = driver.operations.open().ok_or(Error::TooMany)?;
        if let Err(refused) = start(&mut driver, slot.tag()) {
            driver.operations.forget(slot);
            return Err(self.refused(refused));
        }
        driver.operations.follow(slot, then);
        self.tell(&mut driver);
        if driver.leader != Leader::Nobody {
            self.hurry(&mut driver);
            return Ok(());
        }
        let time = Limit::current().map(|limit| limit.at.since(coarse_now()));
        // The wait ends early when this thread's limit is over, and then the mover goes on. It also
        // does after a panic, which this caller must not see: the continuation of its operation
        // will be called.
        let waiter = Waiter::new(self, time, None);
        let lead = || waiter.run(driver, |driver| (!driver.is_followed()).then_some(()));
        let _ = catch_unwind(AssertUnwindSafe(lead));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::{Served, TRANSPORTS, Wire, connected, in_threads};
    use crate::{File, IoBuffer, OpenOptions, ReadPart};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    /// A timeout that is reached only by a deadlock.
    const STUCK: Duration = Duration::from_secs(20);

    const LEN: usize = 4096;

    type Said = (u64, Vec<u8>, Result<ReadPart>);

    fn read(file: &File, offset: u64, said: &Sender<Said>) {
        let (said, buffer) = (said.clone(), file.client().buffer(LEN).unwrap());
        let then = move |buffer: IoBuffer, part| {
            let found = buffer.slice(0, LEN).unwrap().to_vec(dafs_mem::Site::Inspect);
            let _ = said.send((offset, found, part));
        };
        file.read_then(buffer, 0..LEN, offset, then).unwrap();
    }

    #[test]
    fn each_is_called_once_with_what_was_read_whoever_drives() {
        const THREADS: usize = 4;
        const READS: usize = 200;
        let served = Served::new();
        let content = served.with_file("file", LEN * 16 + 100);
        for transport in TRANSPORTS {
            let client = served.client(transport);
            let file = client.open(b"file", &OpenOptions::read()).unwrap();
            let (said, hears) = channel();
            in_threads(THREADS, |thread| {
                for number in 0..READS {
                    // Other threads wait for ordinary requests meanwhile.
                    if number % 3 == 0 {
                        file.client().ping().unwrap();
                    }
                    read(&file, ((thread + number) % 17 * LEN) as u64, &said);
                }
            });
            for _ in 0..THREADS * READS {
                let (offset, found, part) = hears.recv_timeout(STUCK).unwrap();
                let wanted = &content[offset as usize..content.len().min(offset as usize + LEN)];
                let part = part.unwrap();
                assert_eq!(&found[..part.bytes], wanted);
                assert!(part.is_end || part.bytes == LEN);
            }
            assert!(hears.try_recv().is_err());
            assert!(!client.shared().lock_regardless().is_followed());
        }
    }

    #[test]
    fn a_panic_of_a_continuation_ends_nothing_else() {
        let (served, client) = connected();
        served.with_file("file", LEN);
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        let buffer = client.buffer(LEN).unwrap();
        file.read_then(buffer, 0..LEN, 0, |_, _| panic!("as planned")).unwrap();
        let (said, hears) = channel();
        read(&file, 0, &said);
        assert!(hears.recv_timeout(STUCK).unwrap().2.is_ok());
        client.ping().unwrap();
    }

    #[test]
    fn a_leader_that_stops_leaves_the_work_to_the_mover() {
        let served = Served::new();
        served.with_file("file", LEN);
        let wire = Wire::new(served.address, || None);
        let client = wire.client();
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        // The helper would lead sooner or later.
        client.shared().helper.stop();
        let (said, hears) = channel();
        // The thread that begins it has no time to wait for it.
        let held = wire.held.lock().unwrap();
        crate::within(Duration::from_millis(10), || read(&file, 0, &said));
        assert!(hears.try_recv().is_err());
        drop(held);
        assert!(hears.recv_timeout(STUCK).unwrap().2.is_ok());
        // Another thread leads when it begins, and stops.
        let shared = client.shared();
        shared.lock_regardless().leader = Leader::Polling;
        let held = wire.held.lock().unwrap();
        read(&file, 0, &said);
        let mut driver = shared.lock_regardless();
        driver.leader = Leader::Nobody;
        let time = Some(Duration::from_millis(1));
        let left = Waiter::new(shared, time, None).run(driver, |_| -> Option<()> { None });
        assert!(matches!(left, Err(Error::TimedOut(_))));
        drop(held);
        assert!(hears.recv_timeout(STUCK).unwrap().2.is_ok());
    }

    #[test]
    fn the_end_of_the_session_is_told() {
        let served = Served::new();
        served.with_file("file", LEN);
        let wire = Wire::new(served.address, || None);
        let client = wire.client();
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        client.shared().helper.stop();
        let (said, hears) = channel();
        client.shared().lock_regardless().leader = Leader::Polling;
        let _held = wire.held.lock().unwrap();
        read(&file, 0, &said);
        client.shared().lock_regardless().leader = Leader::Nobody;
        drop((file, client));
        assert!(hears.recv_timeout(STUCK).unwrap().2.is_err());
    }
}
