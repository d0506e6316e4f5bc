//! Reads of data that is not in memory: the kernel fills its page cache, or the pool reads.

use super::helper::*;
use crate::common::{Answer, World, with_sequence};
use dafs_nfs::NfsHandler;
use dafs_rpc::{Handled, Handler as _};
use dafs_service::{FileRange, Origin, PageReads};
use dafs_store::{MemoryOptions, MemoryStore, OpenFile, Result, StoreError, Wait};
use dafs_testkit::stores::layer::{FileLayer, Layer, Layered, LayeredFile, Transfer, Verdict};
use dafs_wire::nfs4::*;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A kernel that reads when the test says so.
#[derive(Clone)]
pub(crate) struct Kernel {
    /// No data is in memory.
    is_cold: Arc<AtomicBool>,
    state: Arc<Mutex<State>>,
    /// The descriptor that local files lend.
    lent: Option<Arc<File>>,
}

impl Default for Kernel {
    fn default() -> Self {
        let lent = Arc::new(File::open("/dev/null").unwrap());
        Self { is_cold: Arc::default(), state: Arc::default(), lent: Some(lent) }
    }
}

#[derive(Default)]
struct State {
    refuses: bool,
    /// Tokens, offsets and lengths.
    begun: Vec<(u64, u64, usize)>,
    ended: Vec<u64>,
}

impl Kernel {
    /// Makes a server whose store is as cold as this says, and which has this read.
    pub(crate) fn serve(&self) -> World {
        let names = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let mut world = World::over(Arc::new(Layered::new(names, self.clone())));
        let (pages, injector) = (Box::new(self.clone()), world.reactor.injector());
        world.handler = NfsHandler::new(world.shared.clone()).reading_by(pages, injector);
        world
    }

    pub(crate) fn cool(&self) {
        self.is_cold.store(true, Ordering::Relaxed);
    }

    /// Takes the only read that it has begun, and returns its offset and length.
    pub(crate) fn end(&self) -> (u64, usize) {
        let mut state = self.state.lock().unwrap();
        let [(token, offset, bytes)] = state.begun[..] else { panic!("{:?}", state.begun) };
        state.begun.clear();
        state.ended.push(token);
        (offset, bytes)
    }

    /// Does the same, and has the data in memory from then on.
    pub(crate) fn warm(&self) -> (u64, usize) {
        self.is_cold.store(false, Ordering::Relaxed);
        self.end()
    }

    fn refuse(&self) {
        self.state.lock().unwrap().refuses = true;
    }
}

impl PageReads for Kernel {
    fn begin(&mut self, token: u64, _: Origin, range: FileRange) -> bool {
        let mut state = self.state.lock().unwrap();
        if !state.refuses {
            state.begun.push((token, range.offset, range.bytes));
        }
        !state.refuses
    }

    fn turn(&mut self, _: u64, _: BorrowedFd<'_>, ended: &mut Vec<u64>) -> Option<u64> {
        ended.append(&mut self.state.lock().unwrap().ended);
        None
    }
}

impl Layer for Kernel {
    fn wrap(&self, file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        LayeredFile::over(file, self.clone())
    }
}

impl FileLayer for Kernel {
    fn judge(&self, transfer: Transfer) -> Result<Verdict> {
        let is_missing = !transfer.writes && self.is_cold.load(Ordering::Relaxed);
        if is_missing && transfer.wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        Ok(Verdict::Pass(transfer.bytes))
    }

    fn read_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.lent.as_ref().map(AsFd::as_fd)
    }
}

/// Makes a client with an open file of five bytes.
fn client(kernel: &Kernel, minor: u32) -> (Client, Vec<u8>, Stateid) {
    let mut client = Client::of(kernel.serve(), minor);
    let (fh, open) = client.file(b"f");
    assert_eq!(client.send(&[putfh(&fh), write(open, 0, b"hello")]).status(), Status::Ok);
    kernel.cool();
    (client, fh, open)
}

/// Sends a compound that has to wait.
fn start(client: &mut Client, ops: &[Op<'_>]) {
    client.session.sequence += 1;
    let ops = with_sequence(client.session.sequence_args(), ops);
    let args = client.world.encode(&ops);
    assert!(matches!(client.world.start(1, 0, &args), Handled::Later));
}

/// Returns the answer that has come, if there is one.
fn answer(world: &mut World) -> Option<Answer> {
    let answers = world.collect();
    answers.into_iter().next().map(|answer| Answer(answer.unwrap().to_bytes()))
}

/// The reads of the kernel, and of the pool.
fn counted(world: &World) -> (u64, u64) {
    let counts = world.shared.counts();
    (counts.ring_reads, counts.pool_reads)
}

fn data(answer: &Answer) -> (Vec<u8>, bool) {
    let ResultBody::Read(result) = answer.body(2) else { panic!("{:?}", answer.results()) };
    (result.data.here().unwrap().to_vec(), result.eof)
}

#[test]
fn the_kernel_reads_what_is_not_in_memory() {
    let kernel = Kernel::default();
    let (mut client, fh, open) = client(&kernel, 1);
    start(&mut client, &[putfh(&fh), read(open, 1, 100), getfh()]);
    let world = &mut client.world;
    assert_eq!(world.handler.turn_over(0), None, "nothing has come yet");
    assert_eq!(world.pool.run(), 0);
    assert_eq!(kernel.warm(), (1, 4), "the range ends with the file");
    assert_eq!(world.handler.turn_over(0), Some(0));
    let answer = answer(world).unwrap();
    assert_eq!(data(&answer), (b"ello".to_vec(), true));
    assert_eq!(handle(&answer, 3), fh);
    assert_eq!((world.pool.run(), counted(world)), (0, (1, 0)));
}

#[test]
fn both_kinds_of_reads_wait_for_the_kernel() {
    let kernel = Kernel::default();
    let (mut client, fh, open) = client(&kernel, 2);
    let plus = Op::ReadPlus(ReadPlusArgs { stateid: open, offset: 0, count: 3 });
    start(&mut client, &[putfh(&fh), plus]);
    assert_eq!(kernel.warm(), (0, 3));
    assert_eq!(client.world.handler.turn_over(0), Some(0));
    let plus = answer(&mut client.world).unwrap();
    let ResultBody::ReadPlus(_) = plus.body(2) else { panic!("{:?}", plus.results()) };
    kernel.cool();
    start(&mut client, &[putfh(&fh), read(open, 2, 9)]);
    assert_eq!(kernel.warm(), (2, 3));
    assert_eq!(client.world.handler.turn_over(0), Some(0));
    assert_eq!(data(&answer(&mut client.world).unwrap()), (b"llo".to_vec(), true));
    assert_eq!(counted(&client.world), (2, 0));
}

#[test]
fn the_pool_reads_what_the_kernel_refuses() {
    let kernel = Kernel::default();
    let (mut client, fh, open) = client(&kernel, 1);
    kernel.refuse();
    start(&mut client, &[putfh(&fh), read(open, 0, 4)]);
    let world = &mut client.world;
    assert_eq!(world.handler.turn_over(0), None);
    assert!(answer(world).is_none());
    assert_eq!(world.pool.run(), 1);
    assert_eq!(data(&answer(world).unwrap()), (b"hell".to_vec(), false));
    assert_eq!(counted(world), (0, 1));
}

#[test]
fn data_that_is_missing_again_is_read_on_the_pool() {
    let kernel = Kernel::default();
    let (mut client, fh, open) = client(&kernel, 1);
    start(&mut client, &[putfh(&fh), read(open, 0, 4)]);
    kernel.end();
    let world = &mut client.world;
    assert_eq!(world.handler.turn_over(0), Some(0));
    assert!(answer(world).is_none());
    assert_eq!(world.pool.run(), 1);
    assert_eq!(data(&answer(world).unwrap()), (b"hell".to_vec(), false));
    assert_eq!(counted(world), (1, 1));
}

/// The size of another file may be known by other machines alone.
#[test]
fn a_file_that_lends_no_descriptor_is_not_asked_for_its_size() {
    let kernel = Kernel { lent: None, ..Kernel::default() };
    let (mut client, fh, open) = client(&kernel, 1);
    start(&mut client, &[putfh(&fh), read(open, 1, 100)]);
    assert_eq!(kernel.end(), (1, 100));
}

/// The request is checked again when its data is there.
#[test]
fn a_file_that_is_closed_meanwhile_is_not_read() {
    let kernel = Kernel::default();
    let (mut client, fh, open) = client(&kernel, 1);
    start(&mut client, &[putfh(&fh), read(open, 0, 4)]);
    let other = SequenceArgs {
        sequence_id: 1,
        slot_id: 1,
        highest_slot_id: 1,
        ..client.session.sequence_args()
    };
    let closed = client.world.send(1, 0, &with_sequence(other, &[putfh(&fh), close(open)]));
    assert_eq!(closed.status(), Status::Ok);
    kernel.warm();
    assert_eq!(client.world.handler.turn_over(0), Some(0));
    assert_eq!(answer(&mut client.world).unwrap().status(), Status::BadStateId);
}
