//! A ring of io_uring(7), which one thread shares with the kernel. All unsafe code for it is here.
//!
//! Invariants
//! * A ring reads from descriptors and does nothing else. The kernel refuses other operations and
//!   changes of the ring, from before its first operation on and for good. So a sandbox may leave it
//!   to a process.
//! * Only the thread that has enabled a ring can use it: the kernel refuses others.
//! * The caller has at most [`DISK_READS_MAX`] reads under way. So neither of the two queues is ever
//!   too short.
//! * A read that the kernel cannot begin now stays in the queue, and begins later. A ring that was
//!   given up begins none any more, also not those in its queue.

use crate::limits::DISK_READS_MAX;
use dafs_mem::VolatileSlice;
use io_uring::opcode::Read;
use io_uring::register::Restriction;
use io_uring::types::Fd;
use io_uring::{Builder, EnterFlags, IoUring, Probe};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Longest single operation, in bytes. The kernel shortens longer ones itself.
const OPERATION_BYTES_MAX: usize = 1 << 30;

/// The most system calls that prepare completions for one turn. Older kernels prepare all in one, newer
/// ones about 20 in each.
const ROUNDS_MAX: usize = DISK_READS_MAX / 16;

/// The one change of a ring that stays allowed, which tells about the kernel: IORING_REGISTER_PROBE.
const PROBE: u8 = 8;

/// A ring for reads that no thread uses yet.
pub struct ReadRing(IoUring);

impl ReadRing {
    /// Asks the kernel for a ring, which takes about 24 KiB. Any thread may do so for another one.
    ///
    /// # Errors
    /// The kernel has no io_uring, or one without the needed features (Linux 6.1 has them), or it is
    /// forbidden to this process: by `kernel.io_uring_disabled`, or by the filter of system calls of
    /// a container.
    pub fn new() -> io::Result<Self> {
        let mut builder: Builder = IoUring::builder();
        // Completions are prepared when the thread asks for them, and a flag in memory tells it when to
        // ask.
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        // Until it is enabled, the ring may be restricted.
        builder.setup_r_disabled();
        let ring = builder.build(DISK_READS_MAX as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(Read::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // Each kind of restriction is in force only where it is named.
        let mut allowed = [Restriction::sqe_op(Read::CODE), Restriction::register_op(PROBE)];
        ring.submitter().register_restrictions(&mut allowed)?;
        Ok(Self(ring))
    }

    /// Gives the ring to this thread. A completion makes the event descriptor `wakes` readable.
    pub(super) fn enable(self, wakes: Option<BorrowedFd<'_>>) -> io::Result<Kernel> {
        let Self(ring) = self;
        if let Some(wakes) = wakes {
            ring.submitter().register_eventfd(wakes.as_raw_fd())?;
        }
        ring.submitter().register_enable_rings()?;
        Ok(Kernel { ring, is_broken: false })
    }
}

/// A ring in use.
pub(super) struct Kernel {
    ring: IoUring,
    /// It was given up: the reads that are left in its queue never begin.
    is_broken: bool,
}

/// The reason why the last reads of the queue have not begun.
#[derive(Debug)]
pub(super) enum Unbegun {
    /// The kernel may begin them in a later call. It has no memory, for instance.
    Later(io::Error),
    /// They never begin, for the ring is given up.
    Never(io::Error),
}

impl Kernel {
    /// Queues a read of a file into a view. Returns false if the queue is full, or the ring was given
    /// up.
    ///
    /// # Safety
    /// The memory of the view stays mapped and writable until the completion with this tag was
    /// taken, or for ever. The descriptor stays open until then, or until the last call of `submit`. Both
    /// may go earlier for a read that is in the queue of a ring that was given up.
    pub(super) unsafe fn push(
        &mut self,
        tag: u64,
        (file, offset): (BorrowedFd<'_>, u64),
        view: VolatileSlice<'_>,
    ) -> bool {
        if self.is_broken {
            return false;
        }
        let len = view.len().min(OPERATION_BYTES_MAX) as u32;
        let read = Read::new(Fd(file.as_raw_fd()), view.as_ptr(), len).offset(offset);
        let entry = read.build().user_data(tag);
        // SAFETY: the caller keeps the memory and the descriptor, and has no reference into the
        // memory, for that is what a view stands for.
        unsafe { self.ring.submission().push(&entry) }.is_ok()
    }

    /// Begins all queued reads.
    ///
    /// # Errors
    /// [`unsubmitted`](Self::unsubmitted) of the last ones have not begun.
    pub(super) fn submit(&mut self) -> Result<(), Unbegun> {
        self.submit_by(|ring| ring.submit())
    }

    /// Does the same by `enter`, which makes one call of the kernel.
    pub(super) fn submit_by(
        &mut self,
        mut enter: impl FnMut(&IoUring) -> io::Result<usize>,
    ) -> Result<(), Unbegun> {
        if self.is_broken {
            return Err(Unbegun::Never(io::ErrorKind::BrokenPipe.into()));
        }
        let mut left = self.unsubmitted();
        while left > 0 {
            let entered = enter(&self.ring);
            let before = std::mem::replace(&mut left, self.unsubmitted());
            match entered {
                // It stops behind an operation with an error, which has a completion of its own.
                Ok(_) if left < before => {}
                Ok(_) => return Err(Unbegun::Later(Errno::AGAIN.into())),
                Err(error) if passes(&error) => return Err(Unbegun::Later(error)),
                Err(error) => {
                    self.give_up();
                    return Err(Unbegun::Never(error));
                }
            }
        }
        Ok(())
    }

    /// Lets no read begin any more, also none of the queue.
    pub(super) fn give_up(&mut self) {
        self.is_broken = true;
    }

    /// Returns the number of queued reads.
    pub(super) fn unsubmitted(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Takes the completions: tags with the results of `pread(2)`, errors as negative numbers. Data that
    /// has come for a part of a read is copied, too: what a turn leaves behind need not wake a sleeper.
    pub(super) fn take(&mut self, completions: &mut Vec<(u64, i32)>) {
        for _ in 0..ROUNDS_MAX {
            if !self.ring.submission().taskrun() {
                break;
            }
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: the call begins no operation and passes no memory.
            let prepared = unsafe { self.ring.submitter().enter::<()>(0, 0, flags, None) };
            if let Err(error) = prepared {
                tracing::debug!(%error, "completions of io_uring have to wait for the next turn");
                break;
            }
        }
        completions.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
    }
}

/// True for an error that says nothing about later calls: the kernel has no memory or no time, or a
/// signal has come.
fn passes(error: &io::Error) -> bool {
    let error = Errno::from_io_error(error);
    matches!(error, Some(Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::{Buffer, Site};
    use io_uring::opcode::Nop;
    use std::os::fd::AsFd;

    /// Returns a ring, or says why there is none.
    fn ring(wakes: Option<BorrowedFd<'_>>) -> Option<Kernel> {
        match ReadRing::new() {
            Ok(ring) => Some(ring.enable(wakes).unwrap()),
            Err(error) => {
                println!("SKIPPED: no io_uring here: {error}");
                None
            }
        }
    }

    /// Queues a read from the beginning of a file into memory that is never freed.
    fn push(ring: &mut Kernel, tag: u64, file: BorrowedFd<'_>, buffer: &'static Buffer) -> bool {
        // SAFETY: the memory stays, and the kernel holds a file that it reads.
        unsafe { ring.push(tag, (file, 0), buffer.view()) }
    }

    fn leaked(len: usize) -> &'static Buffer {
        Box::leak(Box::new(Buffer::zeroed(len).unwrap()))
    }

    /// Waits for so many completions, and returns them in the order of their tags.
    fn wait(ring: &mut Kernel, count: usize) -> Vec<(u64, i32)> {
        let mut completions = Vec::new();
        while completions.len() < count {
            ring.take(&mut completions);
            std::thread::yield_now();
        }
        completions.sort_unstable();
        completions
    }

    #[test]
    fn a_read_that_waits_wakes_the_sleeper() {
        use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
        let wakes = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let Some(mut ring) = ring(Some(wakes.as_fd())) else { return };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let buffer = leaked(8);
        assert!(push(&mut ring, 7, reader.as_fd(), buffer));
        assert_eq!(ring.unsubmitted(), 1);
        ring.submit().unwrap();
        let mut completions = Vec::new();
        ring.take(&mut completions);
        assert_eq!((completions, ring.unsubmitted()), (Vec::new(), 0));
        rustix::io::write(&writer, b"hello").unwrap();
        let mut set = [PollFd::from_borrowed_fd(wakes.as_fd(), PollFlags::IN)];
        let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut set, Some(&minute)).unwrap(), 1);
        assert_eq!(wait(&mut ring, 1), [(7, 5)]);
        assert_eq!(buffer.view().to_vec(Site::Inspect), *b"hello\0\0\0");
    }

    #[test]
    fn a_ring_reads_and_does_nothing_else() {
        let Some(mut ring) = ring(None) else { return };
        let entry = Nop::new().build().user_data(1);
        // SAFETY: the operation has no memory.
        unsafe { ring.ring.submission().push(&entry) }.unwrap();
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert!(push(&mut ring, 2, zero.as_fd(), leaked(8)));
        ring.submit().unwrap();
        let denied = Errno::ACCESS.raw_os_error();
        assert_eq!(wait(&mut ring, 2), [(1, -denied), (2, 8)]);
        let changed = ring.ring.submitter().register_eventfd(zero.as_raw_fd()).unwrap_err();
        assert_eq!(changed.raw_os_error(), Some(denied));
    }

    #[test]
    fn the_queue_holds_all_reads_that_may_be_under_way() {
        let Some(mut ring) = ring(None) else { return };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let buffer = leaked(1);
        let count = DISK_READS_MAX as u64;
        for tag in 0..count {
            assert!(push(&mut ring, tag, reader.as_fd(), buffer), "{tag}");
        }
        assert!(!push(&mut ring, count, reader.as_fd(), buffer));
        ring.submit().unwrap();
        drop(writer);
        let expected: Vec<_> = (0..count).map(|tag| (tag, 0)).collect();
        assert_eq!(wait(&mut ring, DISK_READS_MAX), expected);
    }

    /// Each read of this descriptor takes one of the events that a write adds, before the write ends.
    #[test]
    fn all_that_has_come_is_taken_at_once() {
        use rustix::event::{EventfdFlags, eventfd};
        let Some(mut ring) = ring(None) else { return };
        let events = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC).unwrap();
        let (buffer, count) = (leaked(8), DISK_READS_MAX as u64);
        for tag in 0..count {
            assert!(push(&mut ring, tag, events.as_fd(), buffer), "{tag}");
        }
        ring.submit().unwrap();
        rustix::io::write(&events, &count.to_ne_bytes()).unwrap();
        let mut completions = Vec::new();
        ring.take(&mut completions);
        completions.sort_unstable();
        let expected: Vec<_> = (0..count).map(|tag| (tag, 8)).collect();
        assert_eq!(completions, expected);
    }

    #[test]
    fn another_thread_is_refused() {
        let Some(mut ring) = ring(None) else { return };
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert!(push(&mut ring, 1, zero.as_fd(), leaked(8)));
        let refused = std::thread::scope(|scope| {
            let other = scope.spawn(|| (ring.submit().is_err(), ring.unsubmitted()));
            other.join().unwrap()
        });
        assert_eq!(refused, (true, 1), "it tells how many have not begun");
        // This thread could begin the read, whose memory may be gone by now.
        assert!(!push(&mut ring, 2, zero.as_fd(), leaked(8)));
        assert!(ring.submit().is_err());
        assert_eq!(ring.unsubmitted(), 1);
    }

    #[test]
    fn a_read_that_has_not_begun_begins_in_the_next_call() {
        let Some(mut ring) = ring(None) else { return };
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let buffer = leaked(8);
        assert!((1..=3).all(|tag| push(&mut ring, tag, zero.as_fd(), buffer)));
        let mut calls = 0;
        let unbegun = ring.submit_by(|ring| {
            calls += 1;
            if calls == 2 {
                return Err(Errno::NOMEM.into());
            }
            // SAFETY: the call passes no memory.
            unsafe { ring.submitter().enter::<()>(1, 0, 0, None) }
        });
        assert!(matches!(unbegun, Err(Unbegun::Later(_))), "{unbegun:?}");
        assert_eq!(ring.unsubmitted(), 2);
        assert_eq!(wait(&mut ring, 1), [(1, 8)]);
        assert!(push(&mut ring, 4, zero.as_fd(), buffer));
        ring.submit().unwrap();
        assert_eq!(wait(&mut ring, 3), [(2, 8), (3, 8), (4, 8)]);
    }

    #[test]
    fn a_lack_of_memory_passes_and_other_errors_last() {
        let Some(mut ring) = ring(None) else { return };
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert!(push(&mut ring, 1, zero.as_fd(), leaked(8)));
        for error in [Errno::AGAIN, Errno::BUSY, Errno::INTR, Errno::NOMEM] {
            let unbegun = ring.submit_by(|_| Err(error.into()));
            assert!(matches!(unbegun, Err(Unbegun::Later(_))), "{unbegun:?}");
        }
        // The kernel begins nothing, and has no error either.
        assert!(matches!(ring.submit_by(|_| Ok(0)), Err(Unbegun::Later(_))));
        for error in [Errno::BADFD, Errno::AGAIN] {
            let unbegun = ring.submit_by(|_| Err(error.into()));
            assert!(matches!(unbegun, Err(Unbegun::Never(_))), "{unbegun:?}");
        }
        assert!(!push(&mut ring, 2, zero.as_fd(), leaked(8)));
    }
}
