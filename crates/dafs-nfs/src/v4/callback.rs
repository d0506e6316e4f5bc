//! Calls to a client: the back channels of its sessions (RFC 8881 2.10.3.1, 20).
//!
//! Invariants
//! * A call holds one slot of one session's back channel until its answer is known; if the
//!   connection fails, the same bytes go over another one of that session under the same sequence.
//! * A call that a dead session or channel can not carry goes to another session of the client.
//! * What waits is bounded, and what a client puts off is repeated a bounded number of times.
//! * Nothing here waits, and nothing calls the service while the lock on this state is held: what
//!   the service has to know is handed to the caller ([`Told`]).

use super::back_message::{self, BackAnswer};
use super::session::{NfsClient, Session};
use crate::connection::Connection;
use crate::limits::{
    BACK_CONNECTIONS_MAX, BACK_RETRY_NS, BACK_SLOTS_MAX, BACK_TRIES_MAX, BACK_WAITING_MAX,
};
use dafs_rpc::{BackCall, BackError};
use dafs_service::{Handle, StateRef};
use dafs_store::{DeviceKey, LayoutForm};
use dafs_wire::nfs4::limits::{CALLBACK_VERSION, PROCEDURE_CB_COMPOUND};
use dafs_wire::nfs4::{ChannelAttributes, SessionId, Stateid, Status};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Something to say to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Callback {
    /// CB_RECALL: give the delegation back.
    Recall { handle: Handle, state: StateRef, truncate: bool },
    /// CB_LAYOUTRECALL: give the layout of a file back.
    RecallLayout { handle: Handle, state: StateRef, form: LayoutForm },
    /// CB_LAYOUTRECALL: give all layouts of the file system of an object back, or all there are.
    RecallLayouts { of: Option<Handle>, form: LayoutForm },
    /// CB_NOTIFY_DEVICEID: a device is no more.
    DeviceGone { key: DeviceKey, form: LayoutForm },
    /// CB_GETATTR: size and change attribute as the holder of the delegation has them.
    Attributes { handle: Handle, query: u64 },
    /// CB_NOTIFY_LOCK: a lock may now be had.
    LockAvailable { handle: Handle, client: u64, owner: Vec<u8> },
    /// CB_OFFLOAD: an asynchronous copy has ended.
    Offload { handle: Handle, stateid: Stateid, outcome: OffloadOutcome },
}

/// How an asynchronous copy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffloadOutcome {
    /// How it ended.
    pub(crate) status: Status,
    /// Bytes copied.
    pub(crate) copied: u64,
    /// Whether they are stable.
    pub(crate) committed: dafs_wire::nfs4::StableHow,
    /// The write verifier.
    pub(crate) verifier: [u8; 8],
}

impl Callback {
    /// What the service has to know when it cannot be said.
    fn failed(&self) -> Option<Told> {
        match self {
            Self::Attributes { query, .. } => {
                Some(Told::Attributes { query: *query, answer: None })
            }
            Self::Recall { state, .. } => Some(Told::RecallFailed { state: *state }),
            Self::RecallLayout { state, .. } => Some(Told::LayoutRecallFailed { state: *state }),
            Self::RecallLayouts { of, form } => {
                Some(Told::LayoutsRecallFailed { of: *of, form: *form })
            }
            Self::DeviceGone { .. } | Self::LockAvailable { .. } | Self::Offload { .. } => None,
        }
    }
}

/// What the service has to be told after an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// The holder's attributes: change and size, if it answered.
    Attributes { query: u64, answer: Option<(u64, u64)> },
    /// The client cannot make sense of a recall.
    RecallFailed { state: StateRef },
    /// The client cannot make sense of the recall of a layout.
    LayoutRecallFailed { state: StateRef },
    /// The client has no such layout any more.
    LayoutForgotten { state: StateRef },
    /// The client cannot make sense of the recall of many layouts.
    LayoutsRecallFailed { of: Option<Handle>, form: LayoutForm },
    /// The client has none of them any more.
    LayoutsForgotten { of: Option<Handle>, form: LayoutForm },
}

/// How the server says who it is in callbacks (csa_sec_parms, RFC 8881 18.36.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BackCredential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS: the body of the credential.
    Sys(Vec<u8>),
}

/// How a session's back channel was agreed upon.
#[derive(Debug, Clone)]
pub(crate) struct BackParameters {
    pub(crate) program: u32,
    pub(crate) minor: u32,
    pub(crate) attributes: ChannelAttributes,
    /// `None` when the client accepts nothing that this server can prove.
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
    /// The sequence that was used last.
    Free(u32),
    Busy {
        sequence: u32,
        pending: Pending,
        args: Vec<u8>,
        /// The call under way; `None` while no connection can carry it.
        sent: Option<(u64, u64)>,
        /// Another session has taken the matter over; only the slot waits for an answer.
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

/// Back channels of one client.
#[derive(Debug)]
pub(crate) struct Callbacks {
    sessions: Vec<BackSession>,
    waiting: VecDeque<Pending>,
    /// The client's last answer made no sense (SEQ4_STATUS_BACKCHANNEL_FAULT).
    fault: bool,
}

/// Who waits for the answer of a call.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    next: AtomicU64,
    owners: Mutex<FxHashMap<u64, Weak<NfsClient>>>,
}

impl Tokens {
    fn make(&self, owner: &Weak<NfsClient>) -> u64 {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.insert(token, owner.clone());
        token
    }

    /// Takes a token back, and gives its owner.
    pub(crate) fn take(&self, token: u64) -> Option<Arc<NfsClient>> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.remove(&token)?.upgrade()
    }
}

/// Whether a client can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathState {
    /// At least one session has a back channel that works as far as is known.
    pub(crate) up: bool,
    /// The client answers nonsense.
    pub(crate) fault: bool,
}

impl Callbacks {
    pub(crate) fn new() -> Self {
        Self { sessions: Vec::new(), waiting: VecDeque::new(), fault: false }
    }

    /// Whether the client can be called.
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

    /// Takes a session away; what it had not done yet is left to the others.
    pub(crate) fn remove_session(&mut self, id: SessionId) {
        let Some(at) = self.sessions.iter().position(|session| session.id == id) else { return };
        let session = self.sessions.swap_remove(at);
        self.requeue(session.slots);
    }

    /// Lets a connection carry calls of a session. False when it has no such session.
    ///
    /// Connections that are most likely dead are given up, so that what was sent over them goes over
    /// this one; a client that has seen it already can tell by the sequence.
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
        // Others may have lost their connections when there was no path at all.
        self.move_over();
        true
    }

    /// Changes program and credential (BACKCHANNEL_CTL). False when there is no such session.
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

    /// A connection is gone.
    pub(crate) fn unbind(&mut self, connection: u64) {
        for session in &mut self.sessions {
            session.drop_connection(connection);
        }
        self.move_over();
    }

    /// Leaves to other sessions what those cannot say that have lost their connections. Their slots
    /// stay taken, because the client may have seen the calls.
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

    /// Says something to the client as soon as that is possible. When too much waits, the oldest
    /// makes room, and whoever wants that said is told.
    pub(crate) fn submit(&mut self, callback: Callback) -> Option<Told> {
        let full = self.waiting.len() >= BACK_WAITING_MAX;
        let oldest = if full { self.waiting.pop_front() } else { None };
        self.waiting.push_back(Pending { callback, tries: 0, not_before_ns: 0 });
        oldest?.callback.failed()
    }

    /// Gives up what waits, because there is no path. Whoever wants it said is told, and asks again
    /// when there is one.
    /// What the client alone waits for stays.
    pub(crate) fn give_up_waiting(&mut self) -> Vec<Told> {
        let asked = |pending: &Pending| !matches!(pending.callback, Callback::Offload { .. });
        let (given_up, kept): (VecDeque<_>, _) = self.waiting.drain(..).partition(asked);
        self.waiting = kept;
        given_up.iter().filter_map(|pending| pending.callback.failed()).collect()
    }

    /// Takes the answer to a call, or the failure of the connection to bring one.
    pub(crate) fn answer(
        &mut self,
        token: u64,
        answer: Result<&[u8], BackError>,
        now_ns: u64,
    ) -> Option<Told> {
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
            // session is dead on that side.
            BackAnswer::Sequence(Status::BadSession | Status::DeadSession) => {
                if pending.tries >= BACK_TRIES_MAX {
                    session.connections.clear();
                    session.tell();
                }
                (sequence.wrapping_sub(1), Verdict::Again)
            }
            // It came over a connection that failed before the answer did.
            BackAnswer::Sequence(Status::RetryUncachedRep)
            | BackAnswer::Operation(Status::RetryUncachedRep, _) => (sequence, Verdict::Done(None)),
            // The client counts otherwise, most likely from the start.
            BackAnswer::Sequence(Status::SeqMisordered) if sequence != 1 => (0, Verdict::Again),
            BackAnswer::Sequence(Status::BadSlot | Status::BadHighSlot) => {
                session.slots_max = slot.max(1);
                (sequence.wrapping_sub(1), Verdict::Again)
            }
            BackAnswer::Sequence(Status::Delay) => (sequence.wrapping_sub(1), Verdict::Again),
            BackAnswer::Sequence(_) => (sequence.wrapping_sub(1), Verdict::Fault),
            BackAnswer::Garbage => (sequence, Verdict::Fault),
            BackAnswer::Operation(Status::Ok, attributes) => (sequence, Verdict::Done(attributes)),
            // What a client without any matching layout says; it may say OK as well and return it.
            BackAnswer::Operation(Status::NoMatchingLayout, _) => (sequence, Verdict::Forgotten),
            // It has heard of this recall, or of a later one.
            BackAnswer::Operation(Status::OldStateId, _)
                if matches!(pending.callback, Callback::RecallLayout { .. }) =>
            {
                (sequence, Verdict::Done(None))
            }
            // The client may not have seen yet what it is called about, because the reply that
            // tells it is still on its way.
            BackAnswer::Operation(Status::Delay | Status::BadHandle | Status::BadStateId, _) => {
                (sequence, Verdict::Again)
            }
            BackAnswer::Operation(..) => (sequence, Verdict::Refused),
        };
        session.slots[slot] = BackSlot::Free(used);
        if moved { None } else { self.conclude(pending, verdict, now_ns) }
    }

    /// A call has no answer: the same call goes over another connection, or over one that is bound
    /// later.
    fn fail(&mut self, at: usize, slot: usize, error: BackError, now_ns: u64) {
        let session = &mut self.sessions[at];
        let BackSlot::Busy { sent, pending, .. } = &mut session.slots[slot] else { return };
        let Some((_, connection)) = sent.take() else { return };
        match error {
            // It was never sent. The client may be slow to read, so it is not tried at once.
            BackError::TooMany => pending.not_before_ns = now_ns.saturating_add(BACK_RETRY_NS),
            BackError::Disconnected | BackError::TimedOut => session.drop_connection(connection),
            // The client listens, but not to this program, or it cannot read calls.
            _ => {
                session.drop_connection(connection);
                self.fault = true;
            }
        }
        self.move_over();
    }

    /// Sends what can be sent.
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

    fn conclude(&mut self, mut pending: Pending, verdict: Verdict, now_ns: u64) -> Option<Told> {
        match verdict {
            Verdict::Done(attributes) => {
                self.fault = false;
                match pending.callback {
                    Callback::Attributes { query, .. } => {
                        Some(Told::Attributes { query, answer: attributes })
                    }
                    _ => None,
                }
            }
            Verdict::Forgotten => {
                self.fault = false;
                match pending.callback {
                    Callback::RecallLayout { state, .. } => Some(Told::LayoutForgotten { state }),
                    Callback::RecallLayouts { of, form } => {
                        Some(Told::LayoutsForgotten { of, form })
                    }
                    callback => callback.failed(),
                }
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
                matches!(slot,
                BackSlot::Busy { sent: Some((sent, _)), .. } if *sent == token)
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

/// What an answer means for the call.
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

    /// Lets SEQUENCE know.
    fn tell(&self) {
        if let Some(session) = self.session.upgrade() {
            let open = self.connections.iter().filter(|connection| !connection.is_closed());
            session.set_back(!self.is_usable(), open.map(|connection| connection.id()).collect());
        }
    }

    /// The connection to use: the one bound last, because the client had a reason to bind it.
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
        let place = back_message::Place { session: self.id, sequence, slot: slot_id, highest };
        let args = back_message::encode(&pending.callback, place, self.parameters.minor);
        self.slots[slot] = BackSlot::Busy { sequence, pending, args, sent: None, moved: false };
        self.resend(owner, tokens, now_ns);
    }

    /// Sends the calls that no connection carries and that are due.
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
                connection.call_back(BackCall {
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
        assert_eq!(callbacks.give_up_waiting(), [Told::RecallFailed { state }]);
        assert_eq!(callbacks.waiting.len(), 1);
        assert_eq!(callbacks.waiting[0].callback, offload);
        for number in 0..BACK_WAITING_MAX as u64 {
            let state = StateRef { id: StateId(number), seqid: 1 };
            callbacks.submit(Callback::Recall { handle, state, truncate: false });
        }
        let oldest = StateRef { id: StateId(0), seqid: 1 };
        let told = callbacks.submit(Callback::Recall { handle, state, truncate: false });
        assert_eq!(told, Some(Told::RecallFailed { state: oldest }));
        assert_eq!(callbacks.waiting.len(), BACK_WAITING_MAX);
    }
}
