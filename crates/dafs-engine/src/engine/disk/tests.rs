//! A ring that cannot take a read. The reads are of a pipe, so that they wait until the test writes.

use super::*;
use crate::engine::work::{Pending, PendingTable};
use crate::limits::PAGE_READ_BYTES_MAX;
use dafs_dat::EndpointId;
use dafs_mem::{Buffer, Site, VolatileSlice};
use dafs_service::{FileRange, PageReads as _};
use dafs_store::{Attr, FileId, OpenFile, PartOfFile, Result, Stability, StoreError, Wait};
use rustix::io::Errno;
use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A file that is read from a pipe.
struct Pipe(OwnedFd);

impl OpenFile for Pipe {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        FileId([0; dafs_store::FILE_ID_BYTES])
    }

    fn read_at(&self, _: &[VolatileSlice<'_>], _: u64, _: Wait) -> Result<usize> {
        Err(StoreError::Io)
    }

    fn read_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn write_at(&self, _: &[VolatileSlice<'_>], _: u64, _: Stability, _: Wait) -> Result<usize> {
        Err(StoreError::NotSupported)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn attr(&self) -> Result<Attr> {
        Err(StoreError::NotSupported)
    }
}

impl PartOfFile for Pipe {}

/// A ring, and reads of one byte each into one buffer.
struct World {
    ring: DiskRing<PendingId>,
    file: Arc<dyn OpenFile>,
    writer: OwnedFd,
    buffer: Arc<Buffer>,
    pending: PendingTable,
}

impl World {
    /// Returns `None`, and says so, where the kernel has no ring.
    fn new() -> Option<Self> {
        let ring = match ReadRing::new() {
            Ok(ring) => DiskRing::enable(ring, None).unwrap(),
            Err(error) => {
                println!("SKIPPED: no io_uring here: {error}");
                return None;
            }
        };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let buffer = Arc::new(Buffer::zeroed(2 * DISK_READS_MAX).unwrap());
        let (file, pending) = (Arc::new(Pipe(reader)), PendingTable::default());
        Some(Self { ring, file, writer, buffer, pending })
    }

    /// Makes a read of one byte. Each host has as many as it may have.
    fn reading(&mut self, at: usize) -> Reading<PendingId> {
        let origin = Origin::Sim((at / DISK_READS_PER_ORIGIN_MAX) as u32);
        let call = Call::without_request(0, Instant(0));
        let pending = self.pending.insert(Pending::new(EndpointId(1), &call, Work::Again));
        let memory = (ReadMemory::Buffer(self.buffer.clone()), at);
        let read = DiskRead::new((self.file.clone(), None), memory, (at as u64, 1));
        Reading { pending, origin, lane: 0, read }
    }

    /// Ends so many reads, and returns the numbers of those that are done, and of refused ones.
    fn end(&mut self, count: usize) -> (usize, usize) {
        rustix::io::write(&self.writer, &vec![7; count]).unwrap();
        let mut ended = Vec::new();
        while ended.len() < count {
            self.ring.flush(Instant(0), &mut ended);
            self.ring.reap(&mut ended);
            std::thread::yield_now();
        }
        let full = ReadEnd { count: 1, eof: false };
        let is_full =
            |ended: &&Ended<PendingId>| matches!(ended, Ended::Done(_, end) if *end == full);
        let is_refused = |ended: &&Ended<PendingId>| matches!(ended, Ended::Refused(_));
        (ended.iter().filter(is_full).count(), ended.iter().filter(is_refused).count())
    }
}

/// Returns the requests whose reads were refused. None is done.
fn refused(ended: &[Ended<PendingId>]) -> Vec<PendingId> {
    let pending = |ended: &Ended<PendingId>| match ended {
        Ended::Refused(reading) => reading.pending,
        Ended::Done(..) => panic!("nothing is done"),
    };
    ended.iter().map(pending).collect()
}

#[test]
fn a_full_ring_leaves_reads_to_the_pool() {
    let Some(mut world) = World::new() else { return };
    for at in 0..DISK_READS_MAX {
        let reading = world.reading(at);
        assert!(world.ring.begin(reading).is_none(), "{at}");
    }
    let reading = world.reading(DISK_READS_MAX);
    let pending = reading.pending;
    assert!(world.ring.begin(reading).is_some_and(|left| left.pending == pending));
    assert_eq!(world.end(DISK_READS_MAX), (DISK_READS_MAX, 0));
    assert!(world.ring.table.is_empty() && world.ring.origins.is_empty());
    let filled = world.buffer.slice(0, DISK_READS_MAX + 1).unwrap().to_vec(Site::Inspect);
    assert!(filled[..DISK_READS_MAX].iter().all(|byte| *byte == 7));
    assert_eq!(filled[DISK_READS_MAX], 0);
    // There is room again.
    let reading = world.reading(0);
    assert!(world.ring.begin(reading).is_none());
    assert_eq!(world.end(1), (1, 0));
}

#[test]
fn a_host_with_many_reads_leaves_room_in_the_ring() {
    let Some(mut world) = World::new() else { return };
    for at in 0..DISK_READS_PER_ORIGIN_MAX {
        let reading = world.reading(at);
        assert!(world.ring.begin(reading).is_none(), "{at}");
    }
    let reading = world.reading(0);
    assert!(world.ring.begin(reading).is_some(), "the pool has the others");
    let other = world.reading(DISK_READS_PER_ORIGIN_MAX);
    assert!(world.ring.begin(other).is_none());
    let all = DISK_READS_PER_ORIGIN_MAX + 1;
    assert_eq!(world.end(all), (all, 0));
    let reading = world.reading(0);
    assert!(world.ring.begin(reading).is_none());
    assert_eq!(world.end(1), (1, 0));
}

/// The kernel refuses a thread other than the one that has enabled the ring. Reads that it has begun
/// go on.
#[test]
fn a_ring_that_fails_gives_back_what_has_not_begun() {
    let Some(mut world) = World::new() else { return };
    let first = world.reading(0);
    assert!(world.ring.begin(first).is_none());
    let mut ended = Vec::new();
    world.ring.flush(Instant(0), &mut ended);
    let others: Vec<_> = (1..4).map(|at| world.reading(at)).collect();
    let expected: Vec<_> = others.iter().map(|reading| reading.pending).collect();
    others.into_iter().for_each(|reading| assert!(world.ring.begin(reading).is_none()));
    let ring = &mut world.ring;
    std::thread::scope(|scope| scope.spawn(|| ring.flush(Instant(0), &mut ended)).join().unwrap());
    assert_eq!(refused(&ended), expected);
    let late = world.reading(4);
    assert!(world.ring.begin(late).is_some(), "it takes no more");
    assert_eq!(world.end(1), (1, 0));
    assert!(world.ring.table.is_empty() && world.ring.origins.is_empty());
}

#[test]
fn reads_wait_in_the_ring_for_a_kernel_without_memory() {
    let Some(mut world) = World::new() else { return };
    for now in [5, 7].map(Instant) {
        let reading = world.reading(0);
        assert!(world.ring.begin(reading).is_none());
        let mut ended = Vec::new();
        world.ring.flush_by(now, &mut ended, without_memory);
        assert!(ended.is_empty());
        let retry_at = world.ring.stall.map(|stall| stall.retry_at);
        assert_eq!(retry_at, Some(now + DISK_RETRY_TIME));
        let other = world.reading(1);
        assert!(world.ring.begin(other).is_some(), "the pool has the others");
        assert_eq!(world.end(1), (1, 0));
        assert!(world.ring.stall.is_none() && world.ring.table.is_empty());
    }
}

#[test]
fn a_ring_that_begins_nothing_for_long_is_given_up() {
    let Some(mut world) = World::new() else { return };
    let first = world.reading(0);
    assert!(world.ring.begin(first).is_none());
    let mut ended = Vec::new();
    world.ring.flush(Instant(0), &mut ended);
    let others: Vec<_> = (1..4).map(|at| world.reading(at)).collect();
    let expected: Vec<_> = others.iter().map(|reading| reading.pending).collect();
    others.into_iter().for_each(|reading| assert!(world.ring.begin(reading).is_none()));
    let begin = Instant(7);
    for now in [begin, begin + DISK_STALL_TIME / 2] {
        world.ring.flush_by(now, &mut ended, without_memory);
        assert!(ended.is_empty());
    }
    world.ring.flush_by(begin + DISK_STALL_TIME, &mut ended, without_memory);
    assert_eq!(refused(&ended), expected);
    let late = world.reading(4);
    assert!(world.ring.begin(late).is_some(), "it takes no more");
    assert_eq!(world.end(1), (1, 0));
    assert!(world.ring.table.is_empty() && world.ring.origins.is_empty());
}

/// An open file may keep the records of its server locked, and the next server could not start.
#[test]
fn a_ring_that_ends_first_leaves_memory_and_no_file() {
    let Some(mut world) = World::new() else { return };
    let begun = world.reading(0);
    assert!(world.ring.begin(begun).is_none());
    world.ring.flush(Instant(0), &mut Vec::new());
    let queued = world.reading(1);
    assert!(world.ring.begin(queued).is_none());
    let World { ring, file, buffer, .. } = world;
    drop(ring);
    assert_eq!((Arc::strong_count(&file), Arc::strong_count(&buffer)), (1, 3));
}

fn without_memory(kernel: &mut Kernel) -> std::result::Result<(), Unbegun> {
    kernel.submit_by(|_| Err(Errno::NOMEM.into()))
}

/// Makes the ring of another front end, with a file and the end of the pipe that fills it.
fn pages() -> Option<(PageRing, Arc<dyn OpenFile>, OwnedFd)> {
    let ring = match ReadRing::new() {
        Ok(ring) => PageRing::new(ring).unwrap(),
        Err(error) => {
            println!("SKIPPED: no io_uring here: {error}");
            return None;
        }
    };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let file: Arc<dyn OpenFile> = Arc::new(Pipe(reader));
    Some((ring, file, writer))
}

fn range(file: &Arc<dyn OpenFile>, bytes: usize) -> FileRange {
    FileRange { file: file.clone(), offset: 0, bytes }
}

fn event() -> OwnedFd {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

#[test]
fn ranges_of_another_front_end_end_by_their_tokens() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some((mut pages, file, writer)) = pages() else { return };
    let (wakes, mut ended, origin) = (event(), Vec::new(), Origin::Sim(1));
    assert!(!pages.begin(1, origin, range(&file, 8)), "its thread is not known yet");
    pages.turn(0, wakes.as_fd(), &mut ended);
    for bytes in [0, PAGE_READ_BYTES_MAX + 1] {
        assert!(!pages.begin(2, origin, range(&file, bytes)), "{bytes}");
    }
    assert!(pages.begin(3, origin, range(&file, 8)));
    pages.turn(0, wakes.as_fd(), &mut ended);
    assert!(ended.is_empty());
    rustix::io::write(&writer, &[7; 8]).unwrap();
    let mut set = [PollFd::from_borrowed_fd(wakes.as_fd(), PollFlags::IN)];
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut set, Some(&minute)).unwrap(), 1);
    while ended.is_empty() {
        pages.turn(0, wakes.as_fd(), &mut ended);
        std::thread::yield_now();
    }
    assert_eq!(ended, [3]);
}

/// The kernel refuses a thread other than the one of the first turn.
#[test]
fn ranges_that_the_kernel_refuses_end_too() {
    let Some((mut pages, file, _writer)) = pages() else { return };
    let (wakes, mut ended, origin) = (event(), Vec::new(), Origin::Sim(1));
    pages.turn(0, wakes.as_fd(), &mut ended);
    assert!(pages.begin(1, origin, range(&file, 8)));
    assert!(pages.begin(2, origin, range(&file, 8)));
    std::thread::scope(|scope| {
        scope.spawn(|| pages.turn(0, wakes.as_fd(), &mut ended)).join().unwrap();
    });
    assert_eq!(ended, [1, 2]);
    assert!(!pages.begin(3, origin, range(&file, 8)), "it takes no more");
}

#[test]
fn ranges_that_cannot_begin_are_tried_again_soon() {
    let Some((mut pages, file, writer)) = pages() else { return };
    let (wakes, mut ended, origin) = (event(), Vec::new(), Origin::Sim(1));
    assert_eq!(pages.turn(0, wakes.as_fd(), &mut ended), None);
    assert!(pages.begin(1, origin, range(&file, 8)));
    let retry_at = Instant(5) + DISK_RETRY_TIME;
    assert_eq!(pages.turn_by(5, &mut ended, without_memory), Some(retry_at.0));
    assert!(!pages.begin(2, origin, range(&file, 8)), "the pool has the others");
    assert_eq!(pages.turn(retry_at.0, wakes.as_fd(), &mut ended), None, "it has begun");
    assert!(ended.is_empty());
    rustix::io::write(&writer, &[7; 8]).unwrap();
    while ended.is_empty() {
        pages.turn(retry_at.0, wakes.as_fd(), &mut ended);
        std::thread::yield_now();
    }
    assert_eq!(ended, [1]);
}
