//! Changes with durable replies, for persistent sessions (RFC 8881 2.10.6.5).
//!
//! Before an operation changes an object, it logs its intent (`OpContext::log_intent`). It runs
//! again from its start when the journal has the intent. The result of a compound's last change is
//! logged with the whole reply, which is sent when the journal has it. The results of earlier
//! changes are logged by themselves. `compound/resume.rs` describes how a retry finds them.
//!
//! Sessions that are not persistent log no intent. Their changes are guarded against conflicting
//! logged changes in the same way, while the operation runs.
//!
//! Invariants
//! * This file imports neither operations nor their context.
//! * No function here blocks a thread: a compound that waits for the journal is parked at a
//!   [`Gate`].
//! * At most one change of a compound is under way in the journal, so two compounds never deadlock.
//! * A compound that is dropped behind a change leaves that change in doubt. One that is dropped before
//!   its change has not made it.
//! * The result of a change is in the journal before another operation that leaves a trace begins.
//!   If the log fails, the client gets the failure as that of the change, and no later operation
//!   was executed.
//! * A retry finds only the changes of its own principal: the journal keeps that with each change.
//! * The journal keeps the changes of one request for each slot. A newer request shows that the
//!   client has the reply to the one before.

use super::class::Class;
use super::session::Session;
use super::status::{OpError, OpResult};
use crate::args::Args;
use crate::limits::{DURABLE_OPERATIONS_MAX, DURABLE_REPLY_BYTES_MAX, DURABLE_RESULT_BYTES_MAX};
use crate::principal::Principal;
use crate::shared::NfsShared;
use dafs_mem::Mutex;
use dafs_rpc::{Mark, Reply};
use dafs_service::durable::{self, Effect, Intended, LoggedChange, Notify, Settled};
use dafs_service::{Client, Handle, Job, Owner, Place, RequestKey, Sender, Service};
use dafs_store::{FileId, FsId};
use dafs_wire::nfs4::{OpNum, SessionId, Status};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Distinguishes the sessions of this front end from others in the journal.
pub(crate) const MECHANISM: &str = "nfs4";

/// Returns the journal's key of a session: the first half of its id, which is unpredictable, too.
pub(crate) fn session_key(id: SessionId) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    [a, b, c, d, e, f, g, h]
}

/// Returns the journal's record of a new session.
pub(crate) fn session_record(id: SessionId, client: &Client, host: Vec<u8>) -> durable::Session {
    durable::Session {
        id: session_key(id),
        host,
        client: client.name().to_vec(),
        verifier: client.verifier(),
        mechanism: MECHANISM.to_owned(),
        principal: client.identity().principal.clone(),
    }
}

/// A request of a persistent session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered {
    pub(crate) session: SessionId,
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    /// Bytes of the operations behind SEQUENCE, which are at the end of the arguments.
    pub(crate) rest_bytes: usize,
}

impl Numbered {
    /// Returns a digest of the whole request, its number included. Unlike that of the slots it is
    /// the same in every build. `summed` is a part of the arguments whose digest is known already.
    pub(super) fn digest(
        &self,
        who: &Principal,
        minor: u32,
        op_count: u32,
        args: Args<'_>,
        summed: Option<(&[u8], u32)>,
    ) -> u32 {
        let identity = who.identity();
        let mut head = Vec::with_capacity(32);
        for number in [minor, op_count, self.sequence] {
            head.extend_from_slice(&number.to_be_bytes());
        }
        head.extend_from_slice(identity.mechanism.as_bytes());
        head.extend_from_slice(&identity.principal);
        let stream = args.stream();
        let rest = &stream[stream.len().saturating_sub(self.rest_bytes)..];
        let head = durable::digest(0, &head);
        let found = summed.and_then(|(part, sum)| Some((place_of(part, rest)?, sum)));
        let Some((part, sum)) = found else { return durable::digest(head, rest) };
        let before = durable::digest(head, &rest[..part.start]);
        let through = durable::digest_join(before, sum, part.len() as u64);
        durable::digest(through, &rest[part.end..])
    }

    /// Returns the journal's key for the change of one operation. `None` for slots and operations
    /// that no persistent session has.
    pub(super) fn key(&self, who: &Principal, digest: u32, op_index: u32) -> Option<RequestKey> {
        // Earlier versions gave more slots.
        if self.slot > u32::from(u16::MAX) / DURABLE_OPERATIONS_MAX
            || op_index >= DURABLE_OPERATIONS_MAX
        {
            return None;
        }
        Some(RequestKey {
            session: session_key(self.session),
            stream: stream(self.slot, op_index),
            sequence: self.sequence as u16,
            procedure: digest,
            sender: Sender::of(&who.identity()),
        })
    }
}

/// Returns the range of `part` in `whole`, which it was taken from.
fn place_of(part: &[u8], whole: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let place = start..start.checked_add(part.len())?;
    (place.end <= whole.len()).then_some(place)
}

fn stream(slot: u32, op_index: u32) -> u16 {
    (slot * DURABLE_OPERATIONS_MAX + op_index) as u16
}

/// The journal's record of an executed change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LoggedResult {
    /// The reply to the compound.
    Whole(Vec<u8>),
    /// The result of the operation, without its number and status, and the current file handle that
    /// it leaves.
    Result { current: Option<Handle>, result: Vec<u8> },
}

impl LoggedResult {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Whole(reply) => [&[1], reply.as_slice()].concat(),
            Self::Result { current: None, result } => [&[2], result.as_slice()].concat(),
            Self::Result { current: Some(handle), result } => {
                [&[3], handle.fs.0.as_slice(), handle.file.0.as_slice(), result].concat()
            }
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        Some(match tag {
            1 => Self::Whole(rest.to_vec()),
            2 => Self::Result { current: None, result: rest.to_vec() },
            3 => {
                let (fs, rest) = rest.split_first_chunk()?;
                let (file, result) = rest.split_first_chunk()?;
                let current = Some(Handle { fs: FsId(*fs), file: FileId(*file) });
                Self::Result { current, result: result.to_vec() }
            }
            _ => return None,
        })
    }
}

/// The knowledge about one operation of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    /// Its result, and the current file handle that it has left.
    Result { current: Option<Handle>, result: Vec<u8> },
    /// Its effect.
    Happened(Effect),
    /// Its change could not be made stable, and was answered with an error.
    Failed,
}

/// The knowledge about a request.
#[derive(Debug)]
pub(crate) struct Resume {
    /// By index of the operation, in order.
    pub(super) known: SmallVec<[(u32, Known); 1]>,
}

/// Returns the session of an earlier run, if its replies are durable.
pub(crate) fn kept(shared: &NfsShared, id: SessionId) -> Option<durable::Session> {
    let session = shared.service.durable.kept_session(&session_key(id))?;
    (session.mechanism == MECHANISM).then_some(session)
}

/// True if a session is one of an earlier run with durable replies.
pub(crate) fn is_kept(shared: &NfsShared, id: SessionId) -> bool {
    kept(shared, id).is_some()
}

/// A gate at which a compound waits for the journal, or for names of owners.
pub(crate) struct Gate {
    shared: Arc<NfsShared>,
    state: Mutex<GateState>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

enum GateState {
    Shut,
    /// The job that goes on when the gate opens.
    Waited(Owner, Job),
    Open(dafs_service::Result<()>),
}

impl Gate {
    pub(crate) fn new(shared: &Arc<NfsShared>) -> Arc<Self> {
        Arc::new(Self { shared: shared.clone(), state: Mutex::new(GateState::Shut) })
    }

    pub(crate) fn notify(self: &Arc<Self>) -> Notify {
        let gate = self.clone();
        Box::new(move |result| {
            let before = std::mem::replace(&mut *gate.state.lock(), GateState::Open(result));
            if let GateState::Waited(owner, job) = before {
                gate.shared.run_in(Place { lane: 0, owner }, job);
            }
        })
    }

    /// Runs `job` where waiting is allowed, once the journal has answered.
    pub(crate) fn then(&self, owner: Owner, job: Job) {
        let mut state = self.state.lock();
        match *state {
            GateState::Shut | GateState::Waited(..) => *state = GateState::Waited(owner, job),
            GateState::Open(_) => {
                drop(state);
                self.shared.run_in(Place { lane: 0, owner }, job);
            }
        }
    }

    /// Returns the journal's answer.
    pub(crate) fn result(&self) -> Option<dafs_service::Result<()>> {
        match *self.state.lock() {
            GateState::Open(result) => Some(result),
            GateState::Shut | GateState::Waited(..) => None,
        }
    }
}

/// The progress of an operation's change.
#[derive(Default)]
enum Phase {
    /// There is no change.
    #[default]
    Idle,
    /// Its intent waits at the gate.
    Logging(LoggedChange),
    /// It may be executed, or was.
    Logged(LoggedChange),
    /// Its result waits at the gate.
    Settling,
}

/// An operation that has run under an intent.
struct Changed {
    op_index: u32,
    number: u32,
    /// The start of its result.
    mark: Mark,
    /// Its result in the reply, number and status included.
    bytes: Range<usize>,
}

/// An executed change that may be lost with the next crash, so it must not be reported as done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unlogged {
    pub(super) op_index: u32,
    pub(super) number: u32,
    /// The start of its result.
    pub(super) mark: Mark,
    /// The status to report instead.
    pub(super) status: Status,
}

/// The results of a compound so far, and the current file handle that they leave.
#[derive(Clone, Copy)]
pub(super) struct Results<'a> {
    pub(super) shared: &'a Arc<NfsShared>,
    pub(super) reply: &'a Reply,
    pub(super) current: Option<&'a Handle>,
}

/// The state of a compound's changes in the journal.
#[derive(Default)]
pub(crate) struct Progress {
    /// The request, if its replies are durable.
    request: Option<Numbered>,
    phase: Phase,
    /// The operation of the phase.
    op_index: u32,
    gate: Option<Arc<Gate>>,
    changed: Option<Changed>,
    /// A change before the last one whose result the journal did not take.
    unlogged: Option<Unlogged>,
    /// The digest of the request, once it was needed.
    digest: Option<u32>,
    /// An intent was logged.
    begun: bool,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Progress {
    /// Makes replies to changes of this request durable.
    pub(super) fn begin(&mut self, request: Numbered) {
        self.request = Some(request);
    }

    /// Returns the gate that the compound waits at, if it waits for the journal.
    pub(super) fn gate(&self) -> Option<Arc<Gate>> {
        self.gate.clone()
    }

    /// Takes the change whose result the journal did not take. The operation behind it was not
    /// begun.
    pub(super) fn take_unlogged(&mut self) -> Option<Unlogged> {
        self.unlogged.take()
    }

    fn answer(&mut self) -> OpResult {
        // INVARIANT: a compound goes on when its gate has opened.
        let result = self.gate.take().and_then(|gate| gate.result());
        Ok(result.ok_or(Status::ServerFault)??)
    }

    /// Returns the request, if its replies are durable.
    pub(super) fn request(&self) -> Option<Numbered> {
        self.request
    }

    /// Returns the digest of the request, which is computed once.
    pub(super) fn digest(&mut self, compute: impl FnOnce() -> u32) -> u32 {
        *self.digest.get_or_insert_with(compute)
    }

    /// True if the change of an operation has a logged intent.
    pub(super) fn is_logged(&mut self, op_index: u32) -> Result<bool, OpError> {
        match std::mem::take(&mut self.phase) {
            Phase::Idle => {
                self.op_index = op_index;
                return Ok(false);
            }
            Phase::Logged(op) if self.op_index == op_index => self.phase = Phase::Logged(op),
            // If it could not be logged, the change ends with `op`.
            Phase::Logging(op) => {
                self.answer()?;
                self.phase = Phase::Logged(op);
            }
            // INVARIANT: the change before was settled when this operation was begun.
            Phase::Logged(_) | Phase::Settling => return Err(Status::ServerFault.into()),
        }
        Ok(true)
    }

    /// Notes the answer to an intent, or to a guard. Its change may begin, or has to wait.
    pub(super) fn intended(&mut self, intended: Intended, gate: Option<Arc<Gate>>) -> OpResult {
        match intended {
            Intended::Unneeded => Ok(()),
            Intended::Ready(op) => {
                self.phase = Phase::Logged(op);
                Ok(())
            }
            Intended::Waiting(op) => {
                (self.phase, self.gate) = (Phase::Logging(op), gate);
                Err(OpError::Later)
            }
        }
    }

    /// Lets the journal drop the request that had the slot before, with this one's first change.
    pub(super) fn forget_earlier(&mut self, session: &Session, service: &Service) {
        let Some(request) = self.request else { return };
        let first = !std::mem::replace(&mut self.begun, true);
        let earlier = session.slots().note(request.slot, self.op_index, first);
        if earlier != 0 {
            let known = (0..DURABLE_OPERATIONS_MAX).filter(|index| earlier >> index & 1 != 0);
            let streams = known.map(|index| stream(request.slot, index));
            service.durable.forget_answers(&session_key(request.session), streams);
        }
    }

    /// Makes sure that the journal has the result of the change before this operation, if this one
    /// leaves a trace of its own. `results` are those in the reply.
    ///
    /// # Errors
    /// `Later` while it has to wait. The error of the journal.
    #[inline]
    pub(super) fn settle_earlier(&mut self, op: (u32, OpNum), results: Results<'_>) -> OpResult {
        let (op_index, number) = op;
        if Class::of(number).leaves_no_trace() {
            return Ok(());
        }
        match std::mem::take(&mut self.phase) {
            Phase::Logged(op) if self.op_index != op_index => self.settle_result(op, results),
            Phase::Settling => self.settled().map_err(|unlogged| {
                self.unlogged = Some(unlogged);
                OpError::Status(unlogged.status)
            }),
            phase => {
                self.phase = phase;
                Ok(())
            }
        }
    }

    /// Logs the result of a change that is not the last one.
    fn settle_result(&mut self, op: LoggedChange, results: Results<'_>) -> OpResult {
        let Some(changed) = &self.changed else { return Ok(()) };
        let bytes = changed.bytes.clone();
        // Without number and status.
        let result = results.reply.to_bytes()[bytes.start + 8..bytes.end].to_vec();
        self.hand_over(
            op,
            results.shared,
            &LoggedResult::Result { current: results.current.copied(), result },
        )
    }

    /// Logs the result of the compound's last change, with the reply as it will be sent.
    ///
    /// # Errors
    /// `Later` when the reply has to wait.
    pub(super) fn settle_reply(&mut self, results: Results<'_>) -> OpResult {
        match std::mem::take(&mut self.phase) {
            Phase::Logged(op) if results.reply.len() <= DURABLE_REPLY_BYTES_MAX => {
                self.hand_over(op, results.shared, &LoggedResult::Whole(results.reply.to_bytes()))
            }
            // A retry executes the operations behind the change again.
            Phase::Logged(op) => self.settle_result(op, results),
            // An operation that waited for its intent has run again, so this is its refusal.
            Phase::Idle | Phase::Logging(_) | Phase::Settling => Ok(()),
        }
    }

    fn hand_over(
        &mut self,
        op: LoggedChange,
        shared: &Arc<NfsShared>,
        logged: &LoggedResult,
    ) -> OpResult {
        let gate = Gate::new(shared);
        let logged = logged.encode();
        let bytes_max = DURABLE_REPLY_BYTES_MAX.max(DURABLE_RESULT_BYTES_MAX);
        debug_assert!(logged.len() <= bytes_max + 1, "{}", logged.len());
        match shared.service.durable.settle(op, &logged, false, gate.notify()) {
            Settled::Now => Ok(()),
            Settled::Later => {
                (self.phase, self.gate) = (Phase::Settling, Some(gate));
                Err(OpError::Later)
            }
        }
    }

    /// Checks that the journal has the result of the last change.
    pub(super) fn settled(&mut self) -> Result<(), Unlogged> {
        self.phase = Phase::Idle;
        let changed = self.changed.take();
        let Err(error) = self.answer() else { return Ok(()) };
        let status = if let OpError::Status(status) = error { status } else { Status::Io };
        match changed {
            Some(Changed { op_index, number, mark, .. }) => {
                Err(Unlogged { op_index, number, mark, status })
            }
            None => Ok(()),
        }
    }

    /// Notes that an operation has run. `bytes` are its result in the reply.
    pub(super) fn ran(&mut self, op: (u32, u32), mark: Mark, bytes: Range<usize>, failed: bool) {
        let (op_index, number) = op;
        let Phase::Logged(logged) = &mut self.phase else { return };
        if self.op_index != op_index {
            return;
        }
        if logged.is_guard() {
            self.phase = Phase::Idle;
            return;
        }
        let class = OpNum::from_u32(number).map(Class::of);
        if failed && matches!(class, Some(Class::Atomic(_))) {
            logged.nothing_changed();
        } else {
            // The compound may wait for something else, and end there.
            logged.executed();
        }
        self.changed = Some(Changed { op_index, number, mark, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of a request is short and not keyed, so a user can find another request with the
    /// same one.
    #[test]
    fn requests_of_two_users_are_two_even_with_one_digest() {
        let request = Numbered { session: SessionId([1; 16]), slot: 2, sequence: 3, rest_bytes: 0 };
        let [anna, bert] = [&b"anna"[..], b"bert"].map(|name| Principal::Gss(name.into()));
        let key = |who: &Principal| request.key(who, 7, 1).unwrap();
        assert_eq!(key(&anna), key(&anna.clone()));
        assert_ne!(key(&anna), key(&bert));
        assert_ne!(key(&Principal::User(0)), key(&Principal::Nobody));
    }

    /// The digest of written data is computed for the intent, and not once more for the request.
    #[test]
    fn a_request_is_told_by_a_sum_that_is_known_of_its_data() {
        let whole = [&[1; 40][..], &[7; 5000], &[0, 0, 3, 9]].concat();
        let blank = [&[1; 40][..], &[0; 5000], &[0, 0, 3, 9]].concat();
        let numbered =
            |rest_bytes| Numbered { session: SessionId([1; 16]), slot: 2, sequence: 3, rest_bytes };
        for rest_bytes in [whole.len(), whole.len() - 20, 5004] {
            let digest = |bytes: &[u8], summed: Option<(&[u8], u32)>| {
                let args = Args::plain(bytes);
                numbered(rest_bytes).digest(&Principal::User(5), 2, 4, args, summed)
            };
            let plain = digest(&whole, None);
            assert_ne!(plain, digest(&blank, None));
            let sum = durable::digest(0, &[7; 5000]);
            assert_eq!(digest(&blank, Some((&blank[40..5040], sum))), plain);
            // Data that is not part of the request is not taken for a part of it.
            assert_eq!(digest(&whole, Some((&blank[40..5040], sum))), plain);
            let known = digest(&whole, Some((&whole[..40], 17)));
            assert_eq!(known == plain, rest_bytes < whole.len());
        }
    }
}
