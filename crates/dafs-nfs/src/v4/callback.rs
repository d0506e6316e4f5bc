//! Callbacks to a client, over the back channels of its sessions (RFC 8881 2.10.3.1, 20).
//!
//! Invariants
//! * A call holds one slot of one session's back channel until its reply is known. If the
//!   connection fails, the same bytes are sent over another connection of that session, with the
//!   same sequence id.
//! * A call that a dead session or channel cannot carry goes to another session of the client.
//! * The queue of waiting calls is bounded. A call that the client delays is retried a bounded
//!   number of times.
//! * No function here waits, and none calls the service while the lock on this state is held.
//!   Reports to the service are returned to the caller ([`CallbackReport`]).

use super::back_message::{self, BackAnswer, CallbackSlot};
use super::ops::offload::OffloadOutcome;
use super::session::{NfsClient, Session};
use crate::connection::Connection;
use crate::limits::{
    BACK_CONNECTIONS_MAX, BACK_RETRY_NS, BACK_SLOTS_MAX, BACK_TRIES_MAX, BACK_WAITING_MAX,
};
use dafs_mem::Mutex;
use dafs_mem::Shrinking as _;
use dafs_rpc::{CallbackError, CallbackRequest};
use dafs_service::{Handle, StateRef};
use dafs_store::{DeviceKey, LayoutForm};
use dafs_wire::nfs4::limits::{CALLBACK_VERSION, PROCEDURE_CB_COMPOUND};
use dafs_wire::nfs4::{ChannelAttributes, SessionId, Stateid, Status};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A callback to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Callback {
    /// CB_RECALL: recalls a delegation.
    Recall { handle: Handle, state: StateRef, truncate: bool },
    /// CB_LAYOUTRECALL: recalls the layout of a file.
    RecallLayout { handle: Handle, state: StateRef, form: LayoutForm },
    /// CB_LAYOUTRECALL: recalls all layouts of an object's file system, or of the client.
    RecallLayouts { of: Option<Handle>, form: LayoutForm },
    /// CB_NOTIFY_DEVICEID: a device has gone.
    DeviceGone { key: DeviceKey, form: LayoutForm },
    /// CB_GETATTR: asks the holder of a delegation for size and change attribute.
    Attributes { handle: Handle, query: u64 },
    /// CB_NOTIFY_LOCK: a lock has become available.
    LockAvailable { handle: Handle, client: u64, owner: Vec<u8> },
    /// CB_OFFLOAD: an asynchronous copy has ended.
    Offload { handle: Handle, stateid: Stateid, outcome: OffloadOutcome },
}

impl Callback {
    /// Returns the report to the service if the callback cannot be sent.
    fn failed(&self) -> Option<CallbackReport> {
        Some(match *self {
            Self::Attributes { query, .. } => CallbackReport::Attributes { query, answer: None },
            Self::Recall { state, .. } => CallbackReport::RecallFailed { state },
            Self::RecallLayout { state, .. } => CallbackReport::LayoutRecallFailed { state },
            Self::RecallLayouts { of, form } => CallbackReport::LayoutsRecallFailed { of, form },
            Self::DeviceGone { .. } | Self::LockAvailable { .. } | Self::Offload { .. } => {
                return None;
            }
        })
    }
}

/// A report to the service after a reply, or after a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallbackReport {
    /// The holder's attributes: change and size, if it answered.
    Attributes { query: u64, answer: Option<(u64, u64)> },
    /// A recall failed: the client refused it, or there was no usable reply.
    RecallFailed { state: StateRef },
    /// The recall of a layout failed: the client refused it, or there was no usable reply.
    LayoutRecallFailed { state: StateRef },
    /// The client does not have the layout any more.
    LayoutForgotten { state: StateRef },
    /// The recall of many layouts failed: the client refused it, or there was no usable reply.
    LayoutsRecallFailed { of: Option<Handle>, form: LayoutForm },
    /// The client has none of the layouts any more.
    LayoutsForgotten { of: Option<Handle>, form: LayoutForm },
}

/// The credential of the server in callbacks (csa_sec_parms, RFC 8881 18.36.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BackCredential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS: the body of the credential.
    Sys(Vec<u8>),
}

/// The parameters of a session's back channel.
#[derive(Debug, Clone)]
pub(crate) struct BackParameters {
    pub(crate) program: u32,
    pub(crate) minor: u32,
    pub(crate) attributes: ChannelAttributes,
    /// `None` when the client accepts no credential that this server can present.
    pub(crate) credential: Option<BackCredential>,
}

#[derive(Debug, Clone)]
struct Pending {
    callback: Callback,
    tries: u32,
    not_before_ns: u64,
}

#[derive(Debug)]
enum BackSlot {
    /// The sequence id that was used last.
    Free(u32),
    Busy {
        sequence: u32,
        pending: Pending,
        args: Vec<u8>,
        /// The call under way. `None` while no connection can carry it.
        sent: Option<(u64, u64)>,
        /// Another session has taken the callback over. Only the slot still waits for a reply.
        moved: bool,
    },
}

#[derive(Debug)]
struct BackSession {
    id: SessionId,
    session: Weak<Session>,
    parameters: BackParameters,
    connections: Vec<Arc<Connection>>,
    slots: Vec<BackSlot>,
    slots_max: usize,
}

/// The back channels of one client.
#[derive(Debug)]
pub(crate) struct Callbacks {
    sessions: Vec<BackSession>,
    waiting: VecDeque<Pending>,
    /// The client's last reply made no sense (SEQ4_STATUS_BACKCHANNEL_FAULT).
    fault: bool,
}

/// The clients whose replies are outstanding, by token.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    next: AtomicU64,
    owners: Mutex<FxHashMap<u64, Weak<NfsClient>>>,
}

impl Tokens {
    fn make(&self, owner: &Weak<NfsClient>) -> u64 {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let mut owners = self.owners.lock();
        owners.insert(token, owner.clone());
        token
    }

    /// Redeems a token, and returns its client.
    pub(crate) fn take(&self, token: u64) -> Option<Arc<NfsClient>> {
        let mut owners = self.owners.lock();
        owners.remove_and_shrink(&token)?.upgrade()
    }
}

/// The state of the callback path to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathState {
    /// At least one session has a back channel that works as far as is known.
    pub(crate) up: bool,
    /// The client's replies make no sense.
    pub(crate) fault: bool,
}

impl Callbacks {
    pub(crate) fn new() -> Self {
        Self { sessions: Vec::new(), waiting: VecDeque::new(), fault: false }
    }

    /// Returns the state of the callback path.
    pub(crate) fn path(&self) -> PathState {
        let up = self.sessions.iter().any(BackSession::is_usable);
        PathState { up, fault: self.fault }
    }

    pub(crate) fn add_session(&mut self, session: Weak<Session>, parameters: BackParameters) {
        let Some(strong) = session.upgrade() else { return };
        let wanted = parameters.attributes.requests_max.min(BACK_SLOTS_MAX);
        self.sessions.push(BackSession {
            id: strong.id(),
            session,
            parameters,
            connections: Vec::new(),
            slots: Vec::new(),
            slots_max: wanted as usize,
        });
    }

    /// Removes a session. Its unfinished calls go to the others.
    pub(crate) fn remove_session(&mut self, id: SessionId) {
        let Some(at) = self.sessions.iter().position(|session| session.id == id) else { return };
        let session = self.sessions.swap_remove(at);
        self.requeue(session.slots);
    }

    /// Lets a connection carry calls of a session. Returns false when it has no such session.
    ///
    /// Connections that are most likely dead are dropped, so that their calls go over this one. A
    /// client that has seen a call already recognises it by the sequence id.
    pub(crate) fn bind(
        &mut self,
        id: SessionId,
        connection: &Arc<Connection>,
        now_ns: u64,
    ) -> bool {
        let Some(session) = self.session(id) else { return false };
        let strong = session.session.upgrade();
        if strong.is_some_and(|strong| strong.is_back_silent(connection.id(), now_ns)) {
            let silent: Vec<_> = session.connections.iter().map(|known| known.id()).collect();
            silent.into_iter().for_each(|id| session.drop_connection(id));
        }
        session.connections.retain(|known| !known.is_closed() && known.id() != connection.id());
        if session.connections.len() >= BACK_CONNECTIONS_MAX {
            session.connections.remove(0);
        }
        session.connections.push(connection.clone());
        session.tell();
        self.fault = false;
        // Other sessions may have lost their connections when there was no path at all.
        self.move_over();
        true
    }

    /// Changes program and credential (BACKCHANNEL_CTL). Returns false without such a session.
    pub(crate) fn control(
        &mut self,
        id: SessionId,
        program: u32,
        credential: Option<BackCredential>,
    ) -> bool {
        let Some(session) = self.session(id) else { return false };
        session.parameters.program = program;
        session.parameters.credential = credential;
        session.tell();
        true
    }

    /// Handles the end of a connection.
    pub(crate) fn unbind(&mut self, connection: u64) {
        for session in &mut self.sessions {
            session.drop_connection(connection);
        }
        self.move_over();
    }

    /// Moves calls of sessions without a connection to other sessions. Their slots stay taken,
    /// because the client may have seen the calls.
    fn move_over(&mut self) {
        if !self.path().up {
            return;
        }
        let lost = self.sessions.iter_mut().filter(|session| !session.is_usable());
        for slot in lost.flat_map(|session| &mut session.slots) {
            if let BackSlot::Busy { pending, moved: moved @ false, .. } = slot {
                *moved = true;
                self.waiting.push_front(pending.clone());
            }
        }
    }

    /// Queues a callback for the next possible moment. When the queue is full, the oldest call is
    /// dropped, and its report is returned.
    pub(crate) fn submit(&mut self, callback: Callback) -> Option<CallbackReport> {
        let full = self.waiting.len() >= BACK_WAITING_MAX;
        let oldest = if full { self.waiting.pop_front() } else { None };
        self.waiting.push_back(Pending { callback, tries: 0, not_before_ns: 0 });
        oldest?.callback.failed()
    }

    /// Drops waiting calls, because there is no path, and returns their reports. The service
    /// repeats these calls when there is a path again. Calls that only the client waits for stay.
    pub(crate) fn give_up_waiting(&mut self) -> Vec<CallbackReport> {
        let asked = |pending: &Pending| !matches!(pending.callback, Callback::Offload { .. });
        let (given_up, kept): (VecDeque<_>, _) = self.waiting.drain(..).partition(asked);
        self.waiting = kept;
        given_up.iter().filter_map(|pending| pending.callback.failed()).collect()
    }

    /// Handles the reply to a call, or the failure of the connection to bring one.
    pub(crate) fn answer(
        &mut self,
        token: u64,
        answer: Result<&[u8], CallbackError>,
        now_ns: u64,
    ) -> Option<CallbackReport> {
        let (at, slot) = self.find(token)?;
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(error) => {
                self.fail(at, slot, error, now_ns);
                return None;
            }
        };
        let session = &mut self.sessions[at];
        let free = BackSlot::Free(0);
        let BackSlot::Busy { sequence, pending, moved, .. } =
            std::mem::replace(&mut session.slots[slot], free)
        else {
            return None;
        };
        let (used, verdict) = match back_message::decode(bytes) {
            // The reply to CREATE_SESSION may still be on its way to the client. If it is not, the
            // session is dead on the client's side.
            BackAnswer::Sequence(Status::BadSession | Status::DeadSession) => {
                if pending.tries >= BACK_TRIES_MAX {
                    session.connections.clear();
                    session.tell();
                }
                (sequence.wrapping_sub(1), Verdict::Again)
            }
            // The call came over a connection that failed before the reply was sent.
            BackAnswer::Sequence(Status::RetryUncachedRep)
            | BackAnswer::Operation(Status::RetryUncachedRep, _) => (sequence, Verdict::Done(None)),
            // The client counts differently, most likely from the start.
            BackAnswer::Sequence(Status::SeqMisordered) if sequence != 1 => (0, Verdict::Again),
            BackAnswer::Sequence(Status::BadSlot | Status::BadHighSlot) => {
                session.slots_max = slot.max(1);
                (sequence.wrapping_sub(1), Verdict::Again)
            }
            BackAnswer::Sequence(Status::Delay) => (sequence.wrapping_sub(1), Verdict::Again),
            BackAnswer::Sequence(_) => (sequence.wrapping_sub(1), Verdict::Fault),
            BackAnswer::Garbage => (sequence, Verdict::Fault),
            BackAnswer::Operation(Status::Ok, attributes) => (sequence, Verdict::Done(attributes)),
            // The reply of a client without any matching layout. Such a client may also reply OK
            // and return the layout.
            BackAnswer::Operation(Status::NoMatchingLayout, _) => (sequence, Verdict::Forgotten),
            // The client has seen this recall, or a later one.
            BackAnswer::Operation(Status::OldStateId, _)
                if matches!(pending.callback, Callback::RecallLayout { .. }) =>
            {
                (sequence, Verdict::Done(None))
            }
            // A race: the client may not have seen the object yet, because the reply that names it
            // is still on its way.
            BackAnswer::Operation(Status::Delay | Status::BadHandle | Status::BadStateId, _) => {
                (sequence, Verdict::Again)
            }
            BackAnswer::Operation(..) => (sequence, Verdict::Refused),
        };
        session.slots[slot] = BackSlot::Free(used);
        if moved { None } else { self.conclude(pending, verdict, now_ns) }
    }

    /// Handles a call without a reply. The same call goes over another connection, or over one that
    /// is bound later.
    fn fail(&mut self, at: usize, slot: usize, error: CallbackError, now_ns: u64) {
        let session = &mut self.sessions[at];
        let BackSlot::Busy { sent, pending, .. } = &mut session.slots[slot] else { return };
        let Some((_, connection)) = sent.take() else { return };
        match error {
            // The call was never sent. The client may be slow to read, so the retry comes later.
            CallbackError::TooMany => pending.not_before_ns = now_ns.saturating_add(BACK_RETRY_NS),
            CallbackError::Disconnected | CallbackError::TimedOut => {
                session.drop_connection(connection)
            }
            // The client listens, but does not know this program, or cannot decode calls.
            _ => {
                session.drop_connection(connection);
                self.fault = true;
            }
        }
        self.move_over();
    }

    /// Sends all calls that can be sent now.
    pub(crate) fn pump(&mut self, owner: &Weak<NfsClient>, tokens: &Tokens, now_ns: u64) {
        for session in &mut self.sessions {
            session.resend(owner, tokens, now_ns);
        }
        let mut later = VecDeque::new();
        while let Some(pending) = self.waiting.pop_front() {
            if pending.not_before_ns > now_ns {
                later.push_back(pending);
                continue;
            }
            let free = self.sessions.iter_mut().find_map(|session| {
                let slot = session.free_slot()?;
                Some((session, slot))
            });
            let Some((session, slot)) = free else {
                later.push_back(pending);
                break;
            };
            session.send(slot, pending, owner, tokens, now_ns);
        }
        later.append(&mut self.waiting);
        self.waiting = later;
    }

    fn conclude(
        &mut self,
        mut pending: Pending,
        verdict: Verdict,
        now_ns: u64,
    ) -> Option<CallbackReport> {
        match verdict {
            Verdict::Done(attributes) => {
                self.fault = false;
                let Callback::Attributes { query, .. } = pending.callback else { return None };
                Some(CallbackReport::Attributes { query, answer: attributes })
            }
            Verdict::Forgotten => {
                self.fault = false;
                Some(match pending.callback {
                    Callback::RecallLayout { state, .. } => {
                        CallbackReport::LayoutForgotten { state }
                    }
                    Callback::RecallLayouts { of, form } => {
                        CallbackReport::LayoutsForgotten { of, form }
                    }
                    callback => return callback.failed(),
                })
            }
            Verdict::Again if pending.tries < BACK_TRIES_MAX => {
                pending.tries += 1;
                pending.not_before_ns = now_ns.saturating_add(BACK_RETRY_NS);
                self.waiting.push_back(pending);
                None
            }
            verdict => {
                self.fault = matches!(verdict, Verdict::Fault);
                pending.callback.failed()
            }
        }
    }

    fn session(&mut self, id: SessionId) -> Option<&mut BackSession> {
        self.sessions.iter_mut().find(|session| session.id == id)
    }

    fn find(&self, token: u64) -> Option<(usize, usize)> {
        self.sessions.iter().enumerate().find_map(|(at, session)| {
            let is_it = |slot: &BackSlot| {
                matches!(slot, BackSlot::Busy { sent: Some((sent, _)), .. } if *sent == token)
            };
            Some((at, session.slots.iter().position(is_it)?))
        })
    }

    fn requeue(&mut self, slots: Vec<BackSlot>) {
        for slot in slots {
            if let BackSlot::Busy { pending, moved: false, .. } = slot {
                self.waiting.push_front(pending);
            }
        }
    }
}

/// The consequence of a reply for the call.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Done(Option<(u64, u64)>),
    Again,
    Forgotten,
    Refused,
    Fault,
}

impl BackSession {
    fn is_usable(&self) -> bool {
        self.slots_max > 0
            && self.parameters.credential.is_some()
            && self.connections.iter().any(|connection| !connection.is_closed())
    }

    /// Updates the state that SEQUENCE reports.
    fn tell(&self) {
        if let Some(session) = self.session.upgrade() {
            let open = self.connections.iter().filter(|connection| !connection.is_closed());
            session.set_back(!self.is_usable(), open.map(|connection| connection.id()).collect());
        }
    }

    /// Returns the connection to use: the one bound last, because the client had a reason to bind
    /// it.
    fn connection(&self) -> Option<&Arc<Connection>> {
        self.connections.iter().rev().find(|connection| !connection.is_closed())
    }

    fn drop_connection(&mut self, id: u64) {
        self.connections.retain(|connection| connection.id() != id);
        for slot in &mut self.slots {
            if let BackSlot::Busy { sent, .. } = slot
                && sent.is_some_and(|(_, connection)| connection == id)
            {
                *sent = None;
            }
        }
        self.tell();
    }

    fn free_slot(&mut self) -> Option<usize> {
        if !self.is_usable() {
            return None;
        }
        let usable = &self.slots[..self.slots.len().min(self.slots_max)];
        let free = usable.iter().position(|slot| matches!(slot, BackSlot::Free(_)));
        if free.is_none() && self.slots.len() < self.slots_max {
            self.slots.push(BackSlot::Free(0));
            return Some(self.slots.len() - 1);
        }
        free
    }

    fn send(
        &mut self,
        slot: usize,
        pending: Pending,
        owner: &Weak<NfsClient>,
        tokens: &Tokens,
        now_ns: u64,
    ) {
        let BackSlot::Free(last) = self.slots[slot] else { return };
        let sequence = last.wrapping_add(1);
        let busy = |slot: &BackSlot| matches!(slot, BackSlot::Busy { .. });
        let highest = self.slots.iter().rposition(busy).unwrap_or(0).max(slot);
        let (slot_id, highest) = (slot as u32, highest as u32);
        let on = CallbackSlot { session: self.id, sequence, slot: slot_id, highest };
        let args = back_message::encode(&pending.callback, on, self.parameters.minor);
        self.slots[slot] = BackSlot::Busy { sequence, pending, args, sent: None, moved: false };
        self.resend(owner, tokens, now_ns);
    }

    /// Sends the due calls that no connection carries.
    fn resend(&mut self, owner: &Weak<NfsClient>, tokens: &Tokens, now_ns: u64) {
        let Some(connection) = self.connection().cloned() else { return };
        let Some(credential) = self.parameters.credential.clone() else { return };
        for slot in &mut self.slots {
            if let BackSlot::Busy { args, pending, sent: sent @ None, .. } = slot
                && pending.not_before_ns <= now_ns
            {
                let token = tokens.make(owner);
                *sent = Some((token, connection.id()));
                let auth_sys = match &credential {
                    BackCredential::None => None,
                    BackCredential::Sys(body) => Some(body.clone()),
                };
                connection.send_callback(CallbackRequest {
                    program: self.parameters.program,
                    version: CALLBACK_VERSION,
                    procedure: PROCEDURE_CB_COMPOUND,
                    auth_sys,
                    args: args.clone(),
                    token,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::StateId;
    use dafs_store::{FileId, FsId};

    #[test]
    fn the_end_of_a_copy_waits_for_a_path_and_recalls_do_not() {
        let handle = Handle { fs: FsId([1; 16]), file: FileId([2; 48]) };
        let state = StateRef { id: StateId(3), seqid: 1 };
        let outcome = OffloadOutcome {
            status: Status::Ok,
            copied: 5,
            committed: dafs_wire::nfs4::StableHow::Unstable,
            verifier: [0; 8],
        };
        let offload = Callback::Offload { handle, stateid: Stateid::ANONYMOUS, outcome };
        let mut callbacks = Callbacks::new();
        assert_eq!(callbacks.submit(Callback::Recall { handle, state, truncate: false }), None);
        assert_eq!(callbacks.submit(offload.clone()), None);
        assert_eq!(callbacks.give_up_waiting(), [CallbackReport::RecallFailed { state }]);
        assert_eq!(callbacks.waiting.len(), 1);
        assert_eq!(callbacks.waiting[0].callback, offload);
        for number in 0..BACK_WAITING_MAX as u64 {
            let state = StateRef { id: StateId(number), seqid: 1 };
            callbacks.submit(Callback::Recall { handle, state, truncate: false });
        }
        let oldest = StateRef { id: StateId(0), seqid: 1 };
        let report = callbacks.submit(Callback::Recall { handle, state, truncate: false });
        assert_eq!(report, Some(CallbackReport::RecallFailed { state: oldest }));
        assert_eq!(callbacks.waiting.len(), BACK_WAITING_MAX);
    }
}
