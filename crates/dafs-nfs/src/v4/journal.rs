//! Changes whose replies outlive the server, for sessions that persist (RFC 8881 2.10.6.5).
//!
//! An operation that is about to change something announces it ([`Compound::announce`]) and is run
//! again from its start when the journal holds the announcement. What comes of the last change of a
//! compound is noted with the whole reply, which is sent when the journal holds that; what comes of
//! those before, with their own results. How that is found again is told in [`super::resume`].
//!
//! Invariants
//! * Nothing here blocks a thread: a compound that waits for the journal is parked at a [`Gate`].
//! * At most one change of a compound is under way in the journal, so two compounds never wait for
//!   each other.
//! * Of a slot the journal keeps the changes of one request: a newer one shows that the reply to the
//!   one before has arrived.

use super::compound::{Compound, OpError, OpResult};
use crate::args::Args;
use crate::limits::{DURABLE_OPERATIONS_MAX, DURABLE_REPLY_BYTES_MAX, DURABLE_SLOTS_MAX};
use crate::principal::Principal;
use crate::shared::{Job, NfsShared};
use crate::wire_handle;
use dafs_rpc::Mark;
use dafs_service::durable::{self, Change, Intended, Notify, Op, Settled};
use dafs_service::{Client, Handle, RequestKey};
use dafs_wire::nfs4::{OpNum, SessionId, Status};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tells the sessions of this front door from others in the journal.
pub(crate) const MECHANISM: &str = "nfs4";

/// A session as the journal knows it: by the first half of its id, which nobody can guess either.
pub(crate) fn session_key(id: SessionId) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    [a, b, c, d, e, f, g, h]
}

/// What the journal notes of a new session.
pub(crate) fn session_record(id: SessionId, client: &Client) -> durable::Session {
    durable::Session {
        id: session_key(id),
        client: client.name().to_vec(),
        verifier: client.verifier(),
        mechanism: MECHANISM.to_owned(),
        principal: client.identity().principal.clone(),
    }
}

/// A request of a session that persists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered {
    pub(crate) session: SessionId,
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    /// Bytes of the operations behind SEQUENCE, which are the last ones of the arguments.
    pub(crate) rest_bytes: usize,
}

impl Numbered {
    /// A short stand-in for the whole request, its number included. Unlike that of the slots it is
    /// the same in every build.
    pub(super) fn digest(&self, who: &Principal, minor: u32, op_count: u32, args: Args<'_>) -> u32 {
        let identity = who.identity();
        let mut head = Vec::with_capacity(32);
        for number in [minor, op_count, self.sequence] {
            head.extend_from_slice(&number.to_be_bytes());
        }
        head.extend_from_slice(identity.mechanism.as_bytes());
        head.extend_from_slice(&identity.principal);
        let stream = args.stream();
        let rest = &stream[stream.len().saturating_sub(self.rest_bytes)..];
        durable::digest(durable::digest(0, &head), rest)
    }

    /// What the journal calls the change of one operation; `None` for slots and operations that no
    /// session has that persists.
    pub(super) fn key(&self, digest: u32, op_index: u32) -> Option<RequestKey> {
        if self.slot >= DURABLE_SLOTS_MAX || op_index >= DURABLE_OPERATIONS_MAX {
            return None;
        }
        Some(RequestKey {
            session: session_key(self.session),
            stream: stream(self.slot, op_index),
            sequence: self.sequence as u16,
            procedure: digest,
        })
    }
}

fn stream(slot: u32, op_index: u32) -> u16 {
    (slot * DURABLE_OPERATIONS_MAX + op_index) as u16
}

/// What the journal keeps of a change that was carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// The reply to the compound.
    Whole(Vec<u8>),
    /// The result of the operation, without its number and status, and the current file handle that
    /// it has left.
    Result { current: Option<Handle>, result: Vec<u8> },
}

impl Noted {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Whole(reply) => [&[1], reply.as_slice()].concat(),
            Self::Result { current: None, result } => [&[2], result.as_slice()].concat(),
            Self::Result { current: Some(handle), result } => {
                [&[3], wire_handle::encode(handle).as_slice(), result].concat()
            }
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        Some(match tag {
            1 => Self::Whole(rest.to_vec()),
            2 => Self::Result { current: None, result: rest.to_vec() },
            3 => {
                let (handle, result) = rest.split_at_checked(Handle::BYTES)?;
                let current = Some(wire_handle::decode(handle)?);
                Self::Result { current, result: result.to_vec() }
            }
            _ => return None,
        })
    }
}

/// Where a compound waits for the journal.
pub(crate) struct Gate {
    shared: Arc<NfsShared>,
    state: Mutex<GateState>,
}

enum GateState {
    Shut,
    /// This goes on when it opens.
    Waited(Job),
    Open(dafs_service::Result<()>),
}

impl Gate {
    fn new(shared: &Arc<NfsShared>) -> Arc<Self> {
        Arc::new(Self { shared: shared.clone(), state: Mutex::new(GateState::Shut) })
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(self: &Arc<Self>) -> Notify {
        let gate = self.clone();
        Box::new(move |result| {
            let before = std::mem::replace(&mut *gate.lock(), GateState::Open(result));
            if let GateState::Waited(job) = before {
                gate.shared.run_elsewhere(job);
            }
        })
    }

    /// Runs `job` where waiting is allowed, once the journal has answered.
    pub(crate) fn then(&self, job: Job) {
        let mut state = self.lock();
        match *state {
            GateState::Shut | GateState::Waited(_) => *state = GateState::Waited(job),
            GateState::Open(_) => {
                drop(state);
                self.shared.run_elsewhere(job);
            }
        }
    }

    fn result(&self) -> Option<dafs_service::Result<()>> {
        match *self.lock() {
            GateState::Open(result) => Some(result),
            GateState::Shut | GateState::Waited(_) => None,
        }
    }
}

/// How far the change of an operation has come.
#[derive(Default)]
enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// Its announcement waits at the gate.
    Announcing(Op),
    /// It may be carried out, or was.
    Announced(Op),
    /// What came of it waits at the gate.
    Settling,
}

/// An operation that has run under an announcement.
struct Changed {
    op_index: u32,
    number: u32,
    /// Where its result begins.
    mark: Mark,
    /// Its result in the reply, number and status included.
    bytes: Range<usize>,
}

/// What a compound has to do with the journal.
#[derive(Default)]
pub(crate) struct Progress {
    /// The request, if replies to it are to be kept.
    request: Option<Numbered>,
    phase: Phase,
    /// The operation that the phase is about.
    op_index: u32,
    gate: Option<Arc<Gate>>,
    changed: Option<Changed>,
    /// Something was announced.
    begun: bool,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Progress {
    /// Replies to changes of this request are to be kept.
    pub(super) fn begin(&mut self, request: Numbered) {
        self.request = Some(request);
    }

    /// What the compound waits for, if it is the journal.
    pub(super) fn gate(&self) -> Option<Arc<Gate>> {
        self.gate.clone()
    }

    fn answer(&mut self) -> OpResult {
        // INVARIANT: a compound goes on when its gate has opened.
        let result = self.gate.take().and_then(|gate| gate.result());
        Ok(result.ok_or(Status::ServerFault)??)
    }

    /// An operation has run; `bytes` are its result in the reply.
    pub(super) fn ran(&mut self, op: (u32, u32), mark: Mark, bytes: Range<usize>, failed: bool) {
        let (op_index, number) = op;
        let Phase::Announced(announced) = &mut self.phase else { return };
        if self.op_index != op_index {
            return;
        }
        if failed && changes_all_or_nothing(number) {
            announced.nothing_changed();
        }
        self.changed = Some(Changed { op_index, number, mark, bytes });
    }
}

/// Whether a refusal of it means that nothing was changed.
fn changes_all_or_nothing(number: u32) -> bool {
    let op = OpNum::from_u32(number);
    matches!(
        op,
        Some(
            OpNum::Create
                | OpNum::Link
                | OpNum::Remove
                | OpNum::Rename
                | OpNum::Setxattr
                | OpNum::Removexattr
        )
    )
}

impl Compound<'_> {
    /// Whether replies to changes of this request are to outlive the server.
    pub(crate) fn keeps_replies(&mut self) -> bool {
        self.progress().request.is_some()
    }

    /// Announces what this operation is about to change, if the reply is to outlive the server. To be
    /// called when nothing has been changed yet, each time the operation is run.
    ///
    /// # Errors
    /// `Wait` and `Later` while the operation has to wait; what is wrong with the journal.
    pub(crate) fn announce(&mut self, change: &Change<'_>) -> OpResult {
        let Some(request) = self.progress().request else { return Ok(()) };
        self.may_wait()?;
        let op_index = self.op_index();
        loop {
            let progress = self.progress();
            match std::mem::take(&mut progress.phase) {
                Phase::Announced(op) if progress.op_index == op_index => {
                    progress.phase = Phase::Announced(op);
                    return Ok(());
                }
                Phase::Announced(op) => self.settle_result(op)?,
                Phase::Settling => progress.answer()?,
                // If it could not be made, the change goes with `op`.
                Phase::Announcing(op) => {
                    progress.answer()?;
                    progress.phase = Phase::Announced(op);
                    return Ok(());
                }
                Phase::Idle => return self.intend(&request, op_index, change),
            }
        }
    }

    fn intend(&mut self, request: &Numbered, op_index: u32, change: &Change<'_>) -> OpResult {
        let who = Principal::of(&self.call.who);
        let digest = request.digest(&who, self.minor, self.op_count(), self.args);
        let Some(key) = request.key(digest, op_index) else { return Ok(()) };
        self.forget_earlier(request, op_index)?;
        let gate = Gate::new(self.shared);
        let service = &self.shared.service;
        let intended = service.intend(self.caller()?, &key, change, gate.notify())?;
        let progress = self.progress();
        progress.op_index = op_index;
        match intended {
            Intended::Unneeded => Ok(()),
            Intended::Ready(op) => {
                progress.phase = Phase::Announced(op);
                Ok(())
            }
            Intended::Waiting(op) => {
                (progress.phase, progress.gate) = (Phase::Announcing(op), Some(gate));
                Err(OpError::Later)
            }
        }
    }

    /// Lets the journal forget the request that had the slot before, with the first change of this one.
    fn forget_earlier(&mut self, request: &Numbered, op_index: u32) -> OpResult {
        let session = self.session.clone().ok_or(Status::ServerFault)?;
        let first = !std::mem::replace(&mut self.progress().begun, true);
        let earlier = session.slots().note(request.slot, op_index, first);
        if earlier != 0 {
            let known = (0..DURABLE_OPERATIONS_MAX).filter(|index| earlier >> index & 1 != 0);
            let streams = known.map(|index| stream(request.slot, index));
            self.shared.service.forget_answers(&session_key(request.session), streams);
        }
        Ok(())
    }

    /// Hands over what came of a change that is not the last one.
    fn settle_result(&mut self, op: Op) -> OpResult {
        let current = self.current_place();
        let Some(changed) = &self.progress().changed else { return Ok(()) };
        let bytes = changed.bytes.clone();
        // Without number and status.
        let result = self.reply.to_bytes()[bytes.start + 8..bytes.end].to_vec();
        self.hand_over(op, &Noted::Result { current, result })
    }

    /// Hands over what came of the compound's last change, with the reply as it will be sent.
    ///
    /// # Errors
    /// `Later` when the reply has to wait.
    pub(super) fn settle_reply(&mut self) -> OpResult {
        match std::mem::take(&mut self.progress().phase) {
            Phase::Announced(op) if self.reply.len() <= DURABLE_REPLY_BYTES_MAX => {
                let reply = self.reply.to_bytes();
                self.hand_over(op, &Noted::Whole(reply))
            }
            // What follows the change is asked for again if it is wanted again.
            Phase::Announced(op) => self.settle_result(op),
            // An operation that waited for its announcement is run again, so this is its refusal.
            Phase::Idle | Phase::Announcing(_) | Phase::Settling => Ok(()),
        }
    }

    fn hand_over(&mut self, op: Op, noted: &Noted) -> OpResult {
        let gate = Gate::new(self.shared);
        match self.shared.service.settle(op, &noted.encode(), false, gate.notify()) {
            Settled::Now => Ok(()),
            Settled::Later => {
                let progress = self.progress();
                (progress.phase, progress.gate) = (Phase::Settling, Some(gate));
                Err(OpError::Later)
            }
        }
    }

    /// Whether the journal has what came of the last change. If it has not, the change may be lost with
    /// the next crash, so it must not be called done; gives where its result begins, the operation,
    /// and what to say instead.
    pub(super) fn settled(&mut self) -> Result<(), (Mark, (u32, u32), Status)> {
        let progress = self.progress();
        progress.phase = Phase::Idle;
        let Err(error) = progress.answer() else { return Ok(()) };
        let status = if let OpError::Status(status) = error { status } else { Status::Io };
        match progress.changed.take() {
            Some(changed) => Err((changed.mark, (changed.op_index, changed.number), status)),
            None => Ok(()),
        }
    }
}
