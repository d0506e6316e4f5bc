//! Requests that wait for a device, a check of a proof or RDMA.
//!
//! Invariants
//! * A waiting request holds its receive slot and stream until it is answered or its connection is
//!   gone.
//! * A job owns the objects that it uses (an open file, memory kept alive by `Arc`). A connection
//!   that ends stays known until the last of its jobs is over, apart from emptied ones, which own nothing.
//! * A job that is cancelled before a thread has it is dropped at once, with all that it owns. Its
//!   emptied place in the queue of the pool counts as a job of the connection until its turn.

use super::Link;
use super::back::Mail;
use super::flows::{Flow, Need};
use super::hints::Ride;
use super::memory::ReplySlot;
use super::request::{Call, Context, Done};
use crate::auth::{Admission, NotProven};
use crate::gss::GssStep;
use crate::inbox::Inbox;
use crate::ops::append::AppendTransfer;
use crate::ops::attr::FetchAttributes;
use crate::ops::batch::{Load, LoadIo, SyncBatch};
use crate::ops::read::ReadTransfer;
use crate::ops::write::WriteTransfer;
use dafs_dat::EndpointId;
use dafs_mem::Mutex;
use dafs_service::{Place, Pool, ServiceError};
use dafs_store::StoreError;
use dafs_wire::dafs::{Checksum, Stability, Status, Verifier};
use std::sync::Arc;

/// A waiting request, by number and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PendingId {
    index: u32,
    generation: u32,
}

/// The outcome of a read. A short one has reached the end of the file or has met an error, which
/// the next read reports. The two must not be confused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadEnd {
    /// Bytes read.
    pub count: usize,
    /// The end of the file was reached.
    pub eof: bool,
}

/// The reason why a job wrote no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwritten {
    /// Its authorisation had ended before it began.
    Refused(Status),
    /// The store has failed, or refused.
    Store(StoreError),
}

impl From<StoreError> for Unwritten {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The result of a job.
#[derive(Debug)]
pub enum JobResult {
    /// Bytes written.
    Count(Result<usize, Unwritten>),
    /// Bytes read.
    Read(Result<ReadEnd, StoreError>),
    /// The offset of an append.
    Offset(Result<u64, Unwritten>),
    /// Transfers of batches were executed.
    Load(Box<LoadIo>),
    /// The result of a job without a value.
    Unit(Result<(), StoreError>),
    /// The result of a change of a fence.
    Fence(Result<(), ServiceError>),
    /// The result of an authentication.
    Admission(Result<Admission, NotProven>),
    /// The result of a token of GSS.
    Gss(GssStep),
    /// The result of a write to the journal.
    Journal(dafs_service::Result<()>),
    /// A call of the service has ended.
    Call(Rest),
    /// The job was cancelled before it began.
    Canceled,
}

/// The continuation of a call with its result, back in the engine.
pub struct Rest(pub(super) RestFn);

pub(super) type RestFn = Box<dyn FnOnce(&mut Context<'_>, &Call) -> Done + Send>;

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rest")
    }
}

/// An item for a reactor.
#[derive(Debug)]
pub struct JobDone(pub(super) Arrival);

/// The content of an item in a reactor's inbox.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A job is over.
    Result { pending: PendingId, result: JobResult },
    /// Mail of another reactor, or of the service, for a connection.
    Mail { port: u32, endpoint: EndpointId, mail: Mail },
}

/// A request that has no reply yet.
pub(crate) struct Pending {
    pub(super) endpoint: EndpointId,
    pub(crate) call: Call,
    pub(crate) work: Work,
    /// Its last job on the pool, if that may be cancelled.
    pub(super) job: Option<Arc<QueuedJob>>,
}

impl Pending {
    pub(super) fn new(endpoint: EndpointId, call: &Call, work: Work) -> Self {
        Self { endpoint, call: *call, work, job: None }
    }
}

/// The content of a job.
type JobFn = Box<dyn FnOnce() -> JobResult + Send>;

/// A job that may be cancelled until a thread begins it.
pub(super) struct QueuedJob(Mutex<Option<JobFn>>);

impl QueuedJob {
    pub(super) fn new(job: impl FnOnce() -> JobResult + Send + 'static) -> Self {
        Self(Mutex::new(Some(Box::new(job))))
    }

    /// Takes the job: for the thread that runs it, or for the connection that drops it. The second
    /// of them gets none.
    pub(super) fn take(&self) -> Option<JobFn> {
        self.0.lock().take()
    }
}

/// How far a transfer has come, for those that would cancel it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It waits for chunks, and nothing has been moved.
    Waiting,
    /// It waits for the pool, and nothing has been read or written.
    Queued,
    /// It has begun, or is no transfer.
    Begun,
}

/// The reason for which a request waits.
pub(crate) enum Work {
    /// A check of a password or a token.
    Authenticate,
    /// A call of the service that waits.
    Call,
    /// A commit.
    Commit,
    /// A write of data that came inline or lies in the client's mapped memory.
    Write { stable: Stability, verifier: Verifier, done: usize, ride: Option<Box<Ride>> },
    /// A read into a reply.
    ReadInline { slot: ReplySlot, done: usize, ride: Option<Box<Ride>> },
    /// A read into the client's mapped memory.
    ReadMapped {
        done: usize,
        sum: Box<dyn FnOnce(usize) -> Checksum + Send>,
        ride: Option<Box<Ride>>,
    },
    /// A read that passes through staging.
    Read(Box<ReadTransfer>),
    /// A write that passes through staging.
    Stage(Box<WriteTransfer>),
    /// An append, whose data may be on its way by RDMA.
    Append(Box<AppendTransfer>),
    /// For the journal, before it may be executed. Only from its message.
    Intended,
    /// For the journal, before its reply may be sent. It holds no receive slot any more.
    Settle { slot: ReplySlot, len: usize },
    /// For the journal, before its session begins. It holds no receive slot any more.
    KeepSession(Box<Admission>),
    /// For the disk, before its session begins. It holds no receive slot any more.
    Register,
    /// For a step after which it is executed from the start. Only from its message.
    Again,
    /// A change of a fence, and the drain of the sessions that it excludes.
    Fence,
    /// A synchronous batch.
    Batch(Box<SyncBatch>),
    /// Transfers of batches.
    Load(Box<Load>),
    /// Attributes to set that come by RDMA.
    FetchAttributes(FetchAttributes),
    /// A cancelled request, which is answered, and whose emptied job is still in the queue.
    Canceled,
}

impl Work {
    /// True while a job may be using its content.
    pub(super) fn has_job(&self) -> bool {
        match self {
            Work::Authenticate
            | Work::Intended
            | Work::Settle { .. }
            | Work::KeepSession(_)
            | Work::Register
            | Work::Call
            | Work::Commit
            | Work::Fence
            | Work::Write { .. }
            | Work::ReadInline { .. }
            | Work::ReadMapped { .. }
            | Work::Canceled => true,
            Work::Read(transfer) => transfer.has_job(),
            Work::Stage(transfer) => transfer.has_job(),
            Work::Append(transfer) => transfer.has_job(),
            Work::Load(load) => load.has_job(),
            Work::FetchAttributes(fetch) => fetch.has_job(),
            Work::Batch(_) | Work::Again => false,
        }
    }

    /// True for those whose jobs may be cancelled.
    pub(super) fn may_be_canceled(&self) -> bool {
        matches!(
            self,
            Work::Write { .. }
                | Work::ReadInline { .. }
                | Work::ReadMapped { .. }
                | Work::Read(_)
                | Work::Stage(_)
                | Work::Append(_)
        )
    }

    /// Returns how far a transfer has come.
    pub(super) fn progress(&self) -> Progress {
        match self {
            Work::Write { done: 0, .. }
            | Work::ReadInline { done: 0, .. }
            | Work::ReadMapped { done: 0, .. } => Progress::Queued,
            Work::Read(transfer) => transfer.progress(),
            Work::Stage(transfer) => transfer.progress(),
            Work::Append(transfer) => transfer.progress(),
            _ => Progress::Begun,
        }
    }

    /// Returns the staging chunks that it needs to go on.
    pub(super) fn need(&self) -> Need {
        match self {
            Work::Stage(transfer) => transfer.need(),
            Work::Append(transfer) => transfer.need(),
            Work::Load(load) => load.need(),
            _ => Need { chunks: 1, flow: Flow::Out },
        }
    }

    /// Releases its resources, because its connection is gone or its request has failed.
    pub(super) fn abandon(self, link: &mut Link) {
        match self {
            Work::Authenticate
            | Work::Intended
            | Work::KeepSession(_)
            | Work::Register
            | Work::Call
            | Work::Commit
            | Work::Fence
            | Work::Write { .. }
            | Work::ReadMapped { .. }
            | Work::Again
            | Work::Canceled => {}
            Work::ReadInline { slot, .. } | Work::Settle { slot, .. } => {
                link.replies.give_back(slot);
            }
            Work::Read(transfer) => transfer.abandon(&mut link.staging),
            Work::Stage(transfer) => transfer.abandon(&mut link.staging),
            Work::Append(transfer) => transfer.abandon(&mut link.staging),
            Work::Load(load) => load.abandon(&mut link.staging),
            Work::Batch(_) => {}
            Work::FetchAttributes(fetch) => fetch.abandon(&mut link.staging),
        }
    }
}

#[derive(Default)]
pub(super) struct PendingTable {
    entries: Vec<(u32, Option<Pending>)>,
    free: Vec<u32>,
}

impl PendingTable {
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, pending: Pending) -> PendingId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            (self.entries.len() - 1) as u32
        });
        let (generation, entry) = &mut self.entries[index as usize];
        debug_assert!(entry.is_none());
        *entry = Some(pending);
        PendingId { index, generation: *generation }
    }

    pub(super) fn get_mut(&mut self, id: PendingId) -> Option<&mut Pending> {
        let (generation, entry) = self.entries.get_mut(id.index as usize)?;
        if *generation == id.generation { entry.as_mut() } else { None }
    }

    /// Returns the staging chunks that a request needs to go on: none if it is gone.
    pub(super) fn need(&self, id: PendingId) -> Need {
        let entry = self.entries.get(id.index as usize);
        let entry = entry.filter(|(generation, _)| *generation == id.generation);
        let entry = entry.and_then(|(_, entry)| entry.as_ref());
        entry.map_or(Need { chunks: 0, flow: Flow::Out }, |entry| entry.work.need())
    }

    pub(super) fn take(&mut self, id: PendingId) -> Option<Pending> {
        let (generation, entry) = self.entries.get_mut(id.index as usize)?;
        if *generation != id.generation {
            return None;
        }
        let pending = entry.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(id.index);
        Some(pending)
    }

    /// Returns the entry of a table index, for completions that carry only that.
    pub(super) fn id_at(&self, index: u32) -> Option<PendingId> {
        let (generation, entry) = self.entries.get(index as usize)?;
        entry.as_ref().map(|_| PendingId { index, generation: *generation })
    }

    /// Returns the waiting requests of one connection. Endpoints are unique only within a port.
    pub(super) fn of(&self, port: u32, endpoint: EndpointId) -> Vec<PendingId> {
        let entries = self.entries.iter().enumerate();
        let own = entries.filter_map(|(index, (generation, entry))| {
            let own = |pending: &&Pending| pending.call.port == port;
            entry.as_ref().filter(own).filter(|pending| pending.endpoint == endpoint)?;
            Some(PendingId { index: index as u32, generation: *generation })
        });
        own.collect()
    }
}

impl PendingId {
    pub(super) fn index(self) -> u32 {
        self.index
    }
}

/// Reports a failure if the job unwinds before it reported a result.
pub(crate) struct Report {
    inbox: Arc<Inbox<JobDone>>,
    pending: PendingId,
    reported: bool,
}

impl Report {
    pub(super) fn new(inbox: &Arc<Inbox<JobDone>>, pending: PendingId) -> Self {
        Self { inbox: inbox.clone(), pending, reported: false }
    }

    /// Reports the result of a job, from any thread.
    pub(crate) fn tell(mut self, result: JobResult) {
        self.reported = true;
        let pending = self.pending;
        self.inbox.push(JobDone(Arrival::Result { pending, result }));
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.reported {
            let result = JobResult::Unit(Err(StoreError::Io));
            let pending = self.pending;
            self.inbox.push(JobDone(Arrival::Result { pending, result }));
        }
    }
}

/// Runs `work` on a pool. Its result comes to `inbox`.
pub(super) fn submit(
    (pool, place): (&dyn Pool, Place),
    inbox: &Arc<Inbox<JobDone>>,
    pending: PendingId,
    work: impl FnOnce() -> JobResult + Send + 'static,
) {
    let report = Report::new(inbox, pending);
    pool.submit_to(
        place,
        Box::new(move || {
            let result = work();
            report.tell(result);
        }),
    );
}
