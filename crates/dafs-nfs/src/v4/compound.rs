//! The compound engine: executes operations one after the other. Each appends its result.
//!
//! Invariants
//! * No operation waits while `wait` is `Never`. One that must wait is undone by truncating its
//!   output, and the compound goes on from it on a pool thread ([`Parked`]). There it waits for the
//!   machines of one store only. An operation on another store moves to another thread.
//! * The reply never exceeds the session's limit. A modifying operation starts only if its result
//!   will fit.
//! * The slot that SEQUENCE took is released when the compound ends, in whatever way.
//! * The rules on the positions of operations (RFC 8881 18.46.3) are checked before any operation
//!   runs.

mod end;
mod lanes;

pub(crate) use end::Parked;
use end::{conclude, lost, refuse, take_back};

use super::dispatch;
use super::journal::{Numbered, Progress};
use super::ops::copy::Copied;
use super::resume::{self, Resume};
use super::session::{HeldSlot, Session};
use super::status::{OpError, OpResult};
use crate::admission::{Origin, Who};
use crate::args::Args;
use crate::connection::Connection;
use crate::limits::{
    MINOR_VERSION_MAX, MINOR_VERSION_MIN, RESPONSE_BYTES_MAX, RPC_REPLY_HEADER_BYTES,
};
use crate::measure::Stages;
use crate::shared::NfsShared;
use dafs_rpc::{Mark, Reply};
use dafs_service::{Caller, Client, Door, Handle, Owner, Service, Subject};
use dafs_store::Wait;
use dafs_wire::nfs4::{CompoundArgs, OP_ILLEGAL, Op, OpNum, SessionId, Stateid, Status};
use dafs_wire::xdr::{Decode, Decoder, Encoder};
use std::net::SocketAddr;
use std::sync::Arc;

/// The caller, origin and time of a call.
#[derive(Debug, Clone)]
pub(crate) struct CallContext {
    /// The authenticated caller.
    pub(crate) who: Who,
    /// The origin of the connection.
    pub(crate) origin: Origin,
    /// The owner of the call for the scheduler.
    pub(crate) owner: Owner,
    /// The connection of the call.
    pub(crate) connection: Arc<Connection>,
    /// The address of the peer.
    pub(crate) peer: SocketAddr,
    /// True for a connection over RDMA.
    pub(crate) is_rdma: bool,
    /// The time, in nanoseconds of the service's clock.
    pub(crate) now_ns: u64,
    /// Length of the whole RPC call, header included.
    pub(crate) call_bytes: usize,
}

impl CallContext {
    /// Returns the subject that fences see for a calling client.
    pub(crate) fn subject<'a>(&self, client: &'a Client) -> Subject<'a> {
        self.origin.subject(Some(client.name()))
    }
}

/// A compound under way.
pub(crate) struct Compound<'a> {
    /// The state that all compounds share.
    pub(crate) shared: &'a Arc<NfsShared>,
    /// `Allowed` if operations may wait.
    pub(crate) wait: Wait,
    /// The lane whose machines may be waited for. `None` for any.
    lane: Option<u64>,
    /// The call.
    pub(crate) call: CallContext,
    /// The arguments.
    pub(crate) args: Args<'a>,
    /// The minor version: 1 or 2.
    pub(crate) minor: u32,
    /// The reply so far.
    pub(crate) reply: Reply,
    /// The session, once SEQUENCE has succeeded.
    pub(crate) session: Option<Arc<Session>>,
    frame: Frame,
}

/// The private state of the engine.
#[derive(Debug, Default)]
struct Frame {
    current: Option<Place>,
    saved: Option<Place>,
    held: Option<HeldSlot>,
    /// The client asked to cache the reply for a retry.
    cache: bool,
    /// The reply to send instead of the one under construction.
    replay: Option<Arc<[u8]>>,
    /// A retry of a request whose reply was not cached: the next operation reports that.
    uncached: bool,
    /// The limit of the reply, without the RPC header.
    reply_bytes_max: usize,
    op_count: u32,
    op_index: u32,
    /// The start of the running operation in the arguments.
    op_start: usize,
    /// The part of a COPY that was made in earlier turns.
    copied: Option<Copied>,
    /// The state of changes with durable replies.
    journal: Progress,
    /// A retry of a request that an earlier run of the server has worked on.
    resume: Option<Box<Resume>>,
    /// Too little is known to answer such a retry.
    lost: bool,
    /// The start of the results.
    begin: Option<Mark>,
    /// The final status of a compound whose reply waits for the journal.
    end: Option<Status>,
    /// The position of status and number of results in the reply.
    status_at: usize,
    count_at: usize,
    stages: Stages,
    /// The last operation other than those on sessions and handles. It names the request in the
    /// log.
    name: Option<OpNum>,
}

impl<'a> Compound<'a> {
    /// Returns the current file handle.
    ///
    /// # Errors
    /// `NoFileHandle`. `Access` or `WrongSec` if its export does not admit the caller.
    pub(crate) fn current(&self) -> Result<Handle, OpError> {
        self.unfenced(allowed(self.frame.current)?)
    }

    /// Returns the current file handle for SECINFO, which a caller with the wrong flavour may use.
    ///
    /// # Errors
    /// `NoFileHandle`, `Access`.
    pub(crate) fn current_for_secinfo(&self) -> Result<Handle, OpError> {
        match self.frame.current {
            Some(Place { handle, refused: Some(Status::WrongSec), .. }) => Ok(handle),
            place => allowed(place),
        }
    }

    /// Returns the saved file handle.
    ///
    /// # Errors
    /// Those of [`current`](Self::current).
    pub(crate) fn saved(&self) -> Result<Handle, OpError> {
        self.unfenced(allowed(self.frame.saved)?)
    }

    /// Sets the current file handle, and clears the current state-id (RFC 8881 16.2.3.1.2). An
    /// operation that uses the handle gets the error if its export does not admit the caller.
    pub(crate) fn set_current(&mut self, handle: Handle) {
        let known = self.frame.current.filter(|place| place.handle.fs == handle.fs);
        let refused = known.map_or_else(|| self.refuses(&handle), |place| place.refused);
        self.frame.current = Some(Place { handle, stateid: None, refused });
    }

    /// Clears the current file handle (SECINFO consumes it).
    pub(crate) fn clear_current(&mut self) {
        self.frame.current = None;
    }

    /// Saves the current file handle and state-id.
    ///
    /// # Errors
    /// Those of [`current`](Self::current).
    pub(crate) fn save(&mut self) -> OpResult {
        self.current()?;
        self.frame.saved = self.frame.current;
        Ok(())
    }

    /// Restores the saved file handle and state-id.
    ///
    /// # Errors
    /// Those of [`saved`](Self::saved).
    pub(crate) fn restore(&mut self) -> OpResult {
        self.saved()?;
        self.frame.current = self.frame.saved;
        Ok(())
    }

    /// Sets the current state-id, which belongs to the current file handle.
    pub(crate) fn set_current_stateid(&mut self, stateid: Stateid) {
        if let Some(place) = &mut self.frame.current {
            place.stateid = Some(stateid);
        }
    }

    /// Resolves a state-id argument. The special state-id for the current one is replaced by it.
    ///
    /// # Errors
    /// `BadStateId` when there is no current state-id.
    pub(crate) fn stateid(&self, argument: &Stateid) -> Result<Stateid, OpError> {
        resolve(argument, self.frame.current)
    }

    /// Resolves a state-id argument for the saved file handle (COPY, CLONE).
    ///
    /// # Errors
    /// `BadStateId` when there is no saved state-id.
    pub(crate) fn saved_stateid(&self, argument: &Stateid) -> Result<Stateid, OpError> {
        resolve(argument, self.frame.saved)
    }

    /// Returns the subject that fences see for the caller.
    fn subject(&self) -> Subject<'_> {
        match &self.session {
            Some(session) => self.call.subject(session.client()),
            None => self.call.origin.subject(None),
        }
    }

    /// Returns a handle, if the client is not fenced from it. Fences may change, so each use is
    /// checked.
    fn unfenced(&self, handle: Handle) -> Result<Handle, OpError> {
        self.shared.service.check_fence(&self.subject(), &handle)?;
        Ok(handle)
    }

    /// Returns the reason why the export of a handle does not admit the caller, if there is one.
    fn refuses(&self, handle: &Handle) -> Option<Status> {
        self.shared.admits(handle, &self.call.origin, self.call.who.flavour).err()
    }

    /// Returns the client of the session.
    ///
    /// # Errors
    /// `OpNotInSession` without a session.
    pub(crate) fn client(&self) -> Result<&Arc<Client>, OpError> {
        let session = self.session.as_ref();
        Ok(session.ok_or(OpError::Status(Status::OpNotInSession))?.client())
    }

    /// Returns the present time of the service. The call may have waited.
    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.clock_ns().max(self.call.now_ns)
    }

    /// Returns the caller for the service.
    ///
    /// # Errors
    /// `OpNotInSession` without a session.
    pub(crate) fn caller(&self) -> Result<Caller<'_>, OpError> {
        Ok(Caller {
            client: self.client()?,
            cred: &self.call.who.cred,
            subject: self.subject(),
            wait: self.wait,
            now_ns: self.call.now_ns,
        })
    }

    /// Returns the service, its caller, the minor version, and the reply to write to meanwhile.
    ///
    /// # Errors
    /// `OpNotInSession` without a session.
    pub(crate) fn split(&mut self) -> Result<(&Service, Caller<'_>, u32, &mut Reply), OpError> {
        let session = self.session.as_ref().ok_or(OpError::Status(Status::OpNotInSession))?;
        let caller = Caller {
            client: session.client(),
            cred: &self.call.who.cred,
            subject: self.call.subject(session.client()),
            wait: self.wait,
            now_ns: self.call.now_ns,
        };
        Ok((&self.shared.service, caller, self.minor, &mut self.reply))
    }

    /// Returns an encoder for results.
    pub(crate) fn encoder(&mut self) -> Encoder<'_> {
        self.reply.encoder()
    }

    /// Returns the bytes that the result of this operation may still take, for results that can be
    /// shortened. Room for one more status is reserved.
    pub(crate) fn room(&self) -> usize {
        self.frame.reply_bytes_max.saturating_sub(self.reply.len() + RESULT_HEAD_BYTES)
    }

    /// True for the last operation.
    pub(crate) fn is_last(&self) -> bool {
        self.frame.op_index + 1 == self.frame.op_count
    }

    /// True for the only operation.
    pub(crate) fn is_only(&self) -> bool {
        self.frame.op_count == 1
    }

    /// Returns the index of the running operation.
    pub(crate) fn op_index(&self) -> u32 {
        self.frame.op_index
    }

    /// Returns the number of operations of the compound.
    pub(crate) fn op_count(&self) -> u32 {
        self.frame.op_count
    }

    /// Returns the state of durable replies.
    pub(super) fn progress(&mut self) -> &mut Progress {
        &mut self.frame.journal
    }

    /// Returns the current file handle, even if its export does not admit the caller.
    pub(super) fn current_place(&self) -> Option<Handle> {
        self.frame.current.map(|place| place.handle)
    }

    /// Returns the known results of this request, if an earlier run of the server has worked on it.
    pub(super) fn resumed(&self) -> Option<&Resume> {
        self.frame.resume.as_deref()
    }

    /// Resumes a request that an earlier run of the server has worked on, for an absent client.
    pub(super) fn resume(&mut self, session: Arc<Session>, resume: Resume) {
        self.session = Some(session);
        self.frame.resume = Some(Box::new(resume));
    }

    /// Reports that the retry of an executed request cannot be answered.
    ///
    /// # Errors
    /// `DeadSession`, which becomes the answer to the whole compound.
    pub(super) fn lose(&mut self) -> OpResult {
        self.frame.lost = true;
        Err(Status::DeadSession.into())
    }

    /// Makes replies to changes of this request durable.
    pub(super) fn keep_replies(&mut self, request: Numbered) {
        self.frame.journal.begin(request);
    }

    /// Enters a session: from here on its limits apply and its slot is taken.
    pub(crate) fn enter(&mut self, session: Arc<Session>, held: HeldSlot, cache: bool) {
        let fore = session.fore();
        let max = if cache {
            fore.response_bytes_max_cached.min(fore.response_bytes_max)
        } else {
            fore.response_bytes_max
        };
        self.frame.reply_bytes_max = (max as usize).saturating_sub(RPC_REPLY_HEADER_BYTES);
        self.frame.cache = cache;
        self.frame.held = Some(held);
        self.session = Some(session);
    }

    /// Answers with the cached reply, whatever has been written so far.
    pub(crate) fn replay(&mut self, reply: Arc<[u8]>) {
        self.frame.replay = Some(reply);
    }

    /// Makes the next operation report that the reply to this retry was not cached.
    pub(crate) fn refuse_retry(&mut self, session: Arc<Session>) {
        self.frame.uncached = true;
        self.session = Some(session);
    }

    /// Returns the bytes of the reply so far, without the RPC header.
    pub(crate) fn reply_len(&self) -> usize {
        self.reply.len()
    }

    /// Finds a live session.
    ///
    /// # Errors
    /// `DeadSession` for one of an earlier run of the server with durable replies, else
    /// `BadSession`.
    pub(crate) fn find_session(&self, id: SessionId) -> Result<Arc<Session>, OpError> {
        let connection = &self.call.connection;
        if let Some(session) = connection.recent_session().filter(|recent| recent.id() == id) {
            return Ok(session);
        }
        let Some(session) = self.shared.sessions.find(id) else {
            let dead = resume::is_kept(self.shared, id);
            return Err(if dead { Status::DeadSession } else { Status::BadSession }.into());
        };
        // A connection with a session is not closed to make room for others.
        connection.establish();
        connection.set_recent_session(&session);
        // Only its client knows the session id.
        session.client().add_address(self.call.origin.client_address());
        Ok(session)
    }

    /// Takes the part of the running COPY that was made in earlier turns.
    pub(crate) fn take_copied(&mut self) -> Option<Copied> {
        self.frame.copied.take()
    }

    /// Yields to other jobs before the running COPY goes on from here.
    pub(crate) fn go_on_from(&mut self, copied: Copied) -> OpResult {
        self.frame.copied = Some(copied);
        Err(OpError::NextTurn)
    }

    /// Counts file data that was read and written.
    pub(crate) fn count_bytes(&mut self, read_bytes: usize, written_bytes: usize) {
        self.frame.stages.read_bytes += read_bytes as u64;
        self.frame.stages.written_bytes += written_bytes as u64;
    }

    /// Moves an operation that blocks to a thread that may wait.
    ///
    /// # Errors
    /// `Wait` where waiting is not allowed.
    pub(crate) fn may_wait(&self) -> OpResult {
        match self.wait {
            Wait::Never => Err(OpError::Wait),
            Wait::Allowed => Ok(()),
        }
    }

    /// Returns the status for a reply that has become too big.
    fn too_big(&self) -> Status {
        if self.frame.cache { Status::RepTooBigToCache } else { Status::RepTooBig }
    }
}

/// A file handle with its state-id and admission.
#[derive(Debug, Clone, Copy)]
struct Place {
    handle: Handle,
    stateid: Option<Stateid>,
    /// The reason why the export does not admit the caller.
    refused: Option<Status>,
}

fn allowed(place: Option<Place>) -> Result<Handle, OpError> {
    match place {
        None => Err(OpError::Status(Status::NoFileHandle)),
        Some(Place { refused: Some(status), .. }) => Err(OpError::Status(status)),
        Some(Place { handle, .. }) => Ok(handle),
    }
}

fn resolve(argument: &Stateid, place: Option<Place>) -> Result<Stateid, OpError> {
    if *argument != Stateid::CURRENT {
        return Ok(*argument);
    }
    place.and_then(|place| place.stateid).ok_or(OpError::Status(Status::BadStateId))
}

/// The longest result of an operation that did not run: number, status, and the mask of SETATTR.
pub(crate) const RESULT_HEAD_BYTES: usize = 12;

/// The outcome of a compound.
pub(crate) enum Answer {
    /// The whole reply.
    Reply(Reply),
    /// The rest has to run where waiting is allowed.
    Parked(Box<Parked>),
    /// The frame around the operations is not XDR.
    Garbage,
}

/// Runs the COMPOUND in `args`. With `Wait::Never` it waits for no other machine and no fsync. It
/// may read names and attributes of local file systems.
pub(crate) fn compound(
    shared: &Arc<NfsShared>,
    call: CallContext,
    args: Args<'_>,
    wait: Wait,
) -> Answer {
    let mut decoder = args.decoder();
    let Ok(head) = CompoundArgs::decode(&mut decoder) else { return Answer::Garbage };
    let CompoundArgs { tag, minor_version: minor, op_count } = head;
    let frame = Frame {
        reply_bytes_max: RESPONSE_BYTES_MAX as usize - RPC_REPLY_HEADER_BYTES,
        op_count,
        stages: Stages::begin(call.now_ns),
        ..Frame::default()
    };
    let reply = args.reply();
    let lane = None;
    let mut cx = Compound { shared, wait, lane, call, args, minor, reply, session: None, frame };
    let mut e = cx.encoder();
    let status_at = e.position();
    e.u32(Status::Ok.code());
    e.opaque(tag);
    let count_at = e.position();
    e.u32(0);
    cx.frame.status_at = status_at;
    cx.frame.count_at = count_at;
    let refused = if !(MINOR_VERSION_MIN..=MINOR_VERSION_MAX).contains(&minor) {
        Some(Status::MinorVersMismatch)
    } else if std::str::from_utf8(tag).is_err() {
        Some(Status::Inval)
    } else {
        None
    };
    let end = match refused {
        Some(status) => Some(status),
        None => run(&mut cx, &mut decoder),
    };
    match conclude(cx, end) {
        Ok(reply) => Answer::Reply(reply),
        Err(parked) => Answer::Parked(parked),
    }
}

/// Runs operations until the end, the first failure (its status), or one that must wait (`None`).
fn run<'a>(cx: &mut Compound<'a>, decoder: &mut Decoder<'a>) -> Option<Status> {
    let service = &cx.shared.service;
    // A client that sets a fence against this one waits for this work to end.
    let entry = service.begin_work(cx.call.origin.address());
    let mut is_known = false;
    while cx.frame.op_index < cx.frame.op_count {
        if let Some(session) = cx.session.as_ref().filter(|_| !is_known) {
            entry.is_of(session.client());
            is_known = true;
        }
        cx.frame.op_start = decoder.position();
        let (mark, at, len) = (cx.reply.mark(), cx.encoder().position(), cx.reply.len());
        cx.frame.begin.get_or_insert(mark);
        let (number, result) = step(cx, decoder);
        if cx.frame.lost {
            return Some(lost(cx));
        }
        if cx.frame.replay.is_some() {
            return Some(Status::Ok);
        }
        let waits = result == Err(OpError::Wait) && cx.wait == Wait::Never;
        if waits || matches!(result, Err(OpError::Later | OpError::Elsewhere | OpError::NextTurn)) {
            cx.reply.truncate_to(mark);
            return None;
        }
        if let Some(unsettled) = cx.frame.journal.take_unsettled() {
            return Some(take_back(cx, unsettled));
        }
        let status = settle(cx, (mark, at), number, result);
        cx.frame.stages.lap(cx.shared, Door::Nfs4, number, status != Status::Ok);
        let bytes = len..cx.reply.len();
        let op = (cx.frame.op_index, number);
        cx.frame.journal.ran(op, mark, bytes, status != Status::Ok);
        cx.frame.op_index += 1;
        if status != Status::Ok {
            return Some(status);
        }
    }
    Some(Status::Ok)
}

/// Decodes and runs one operation. Returns the operation number of its result, and the outcome.
fn step<'a>(cx: &mut Compound<'a>, decoder: &mut Decoder<'a>) -> (u32, OpResult) {
    let Ok(number) = { *decoder }.u32() else {
        return (OP_ILLEGAL, Err(Status::BadXdr.into()));
    };
    let known = OpNum::from_u32(number).filter(|op| op.minor_version_min() <= cx.minor);
    let Some(op_number) = known else {
        return (OP_ILLEGAL, Err(Status::OpIllegal.into()));
    };
    if cx.frame.uncached {
        return (number, Err(Status::RetryUncachedRep.into()));
    }
    if let Err(status) = check_place(cx, op_number) {
        return (number, Err(status.into()));
    }
    let Ok(op) = Op::decode(decoder, cx.minor) else {
        return (number, Err(Status::BadXdr.into()));
    };
    if decoder.check_apart().is_err() {
        return (number, Err(Status::BadXdr.into()));
    }
    let change_bytes = dispatch::change_result_bytes(op_number);
    // Number and status of this operation are not written yet, and one more status has to fit.
    if change_bytes > 0 && cx.room() < change_bytes + RESULT_HEAD_BYTES {
        return (number, Err(cx.too_big().into()));
    }
    if !matches!(op_number, OpNum::Sequence | OpNum::Putfh | OpNum::Getattr | OpNum::Getfh) {
        cx.frame.name = Some(op_number);
    }
    if cx.wait == Wait::Never && cx.waits_for_store(op_number) {
        return (number, Err(OpError::Wait));
    }
    if cx.is_elsewhere(op_number) {
        return (number, Err(OpError::Elsewhere));
    }
    let mut e = cx.encoder();
    e.u32(number);
    e.u32(Status::Ok.code());
    let result = match &cx.frame.resume {
        None => match cx.settle_earlier(op_number) {
            Ok(()) => dispatch::run(cx, &op, decoder.rest()),
            waits => waits,
        },
        Some(_) => resume::run(cx, op_number, &op, decoder.rest()),
    };
    (number, result)
}

/// Checks the position of an operation (RFC 8881 2.6.3.1, 18.46.3, and the operations' own
/// sections).
fn check_place(cx: &Compound<'_>, number: OpNum) -> Result<(), Status> {
    let first = cx.frame.op_index == 0;
    match number {
        OpNum::Sequence if first => Ok(()),
        OpNum::Sequence => Err(Status::SequencePos),
        OpNum::BindConnToSession if !first => Err(Status::NotOnlyOp),
        OpNum::ExchangeId
        | OpNum::CreateSession
        | OpNum::BindConnToSession
        | OpNum::DestroySession
        | OpNum::DestroyClientid
            if first =>
        {
            if cx.is_only() {
                Ok(())
            } else {
                Err(Status::NotOnlyOp)
            }
        }
        _ if first => Err(Status::OpNotInSession),
        _ => Ok(()),
    }
}

/// Brings the result in the reply into its final form, and returns its final status.
fn settle(cx: &mut Compound<'_>, begin: (Mark, usize), number: u32, result: OpResult) -> Status {
    let (mark, at) = begin;
    let (status, body) = match result {
        Ok(()) => (Status::Ok, true),
        Err(OpError::WithBody(status)) => (status, true),
        Err(OpError::Status(status)) => (status, false),
        // An operation that asks to wait although it may wait is delayed.
        Err(OpError::Wait | OpError::Later | OpError::Elsewhere | OpError::NextTurn) => {
            (Status::Delay, false)
        }
    };
    let rest = if cx.is_last() { 0 } else { RESULT_HEAD_BYTES };
    let fits = cx.reply.len() + rest <= cx.frame.reply_bytes_max;
    if body && fits {
        if status != Status::Ok {
            cx.encoder().patch_u32(at + 4, status.code());
        }
        return status;
    }
    let status = if body { cx.too_big() } else { status };
    cx.reply.truncate_to(mark);
    refuse(cx, number, status);
    status
}
