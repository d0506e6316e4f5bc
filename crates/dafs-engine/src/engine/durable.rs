//! Changes with durable replies: the intent is logged before the execution, and the reply before it
//! is sent (DAFS 12, O49).
//!
//! An operation logs the intent of its change before the change. Its request waits in its receive
//! slot until the journal has the intent, and is then executed from the start. Its encoded reply
//! waits until the journal has it, too.
//!
//! Invariants
//! * Only requests of sessions that cache replies are logged, once each. Changes of other requests
//!   are guarded against conflicting logged changes in the same way.
//! * If its connection ends before a logged change begins, the change is dropped, so the log has
//!   its end without execution.
//! * A job on the pool owns the change that it executes, too. So the log has the end of that change
//!   after the job, also when the engine ends first.

use super::Engine;
use super::connection;
use super::convert;
use super::memory::ReplySlot;
use super::registry::host_of;
use super::reply::is_ok;
use super::request::{Call, Context, Keep};
use super::work::{Arrival, JobDone, JobResult, Pending, PendingId, Work};
use dafs_dat::PeerInfo;
use dafs_service::durable::{Change, Execution, Intended, LoggedChange, Notify, Session, Settled};
use dafs_service::{Handle, Identity, RequestKey, Sender};
use dafs_store::AppendWitness;
use dafs_wire::dafs::{ByteOrder, Procedure, Status};
use std::sync::Arc;

impl Engine {
    /// True while a change with a durable reply is under way. One that is dropped with the engine may be in
    /// doubt.
    pub fn has_logged_changes(&self) -> bool {
        let is_logged = |op: &LoggedChange| !op.is_guard();
        let mut connections = self.ports.iter().flat_map(|port| port.connections.values());
        connections.any(|connection| connection.ops.values().any(is_logged))
    }
}

impl Context<'_> {
    /// Drops the durable reply to an earlier request of the stream before its number can match a
    /// later one. Returns true when the request waits for that.
    pub(super) fn outlive(&mut self, call: &Call) -> bool {
        let (stream, seq) = (call.header.stream_id, call.header.seq_number);
        let logged = self.connection.ops.contains_key(&stream);
        if logged || !self.connection.streams.outlives(stream, seq) {
            return false;
        }
        let Some(session) = self.connection.session.as_ref().map(|session| session.id.0) else {
            return false;
        };
        let pending = self.defer(call, Work::Again);
        match self.shared.service.durable.outlived(&session, stream, self.notify(pending)) {
            Settled::Later => true,
            Settled::Now => {
                self.pending.take(pending);
                self.deferred = false;
                false
            }
        }
    }

    /// True if a change of the request needs an intent that is not logged.
    pub(crate) fn needs_intent(&self, call: &Call) -> bool {
        self.shared.service.durable.has_journal()
            && !self.connection.ops.contains_key(&call.header.stream_id)
    }

    /// Logs the intent of a change, if the reply of its request is durable. Must come before the
    /// change. Returns true when the request waits for that: it runs again from its start.
    pub(crate) fn log_intent(&mut self, call: &Call, change: &Change<'_>) -> Result<bool, Status> {
        if !self.needs_intent(call) {
            return Ok(false);
        }
        let pending = self.defer(call, Work::Intended);
        let waits = self.log_fetched_intent(pending, change);
        if waits != Ok(true) {
            self.pending.take(pending);
            self.deferred = false;
        }
        waits
    }

    /// Logs the intent of a change whose data was fetched, or guards it when its reply is not
    /// durable. Returns true when it waits for that, in its entry of the table.
    pub(crate) fn log_fetched_intent(
        &mut self,
        id: PendingId,
        change: &Change<'_>,
    ) -> Result<bool, Status> {
        if !self.shared.service.durable.has_journal() {
            return Ok(false);
        }
        let Some(call) = self.call_of(id) else { return Ok(false) };
        let Some(session) = &self.connection.session else { return Ok(false) };
        let key = RequestKey {
            session: session.id.0,
            stream: call.header.stream_id,
            sequence: call.header.seq_number,
            procedure: call.header.procedure,
            sender: Sender::OF_SESSION,
        };
        let (kept, ready) = (call.keep == Keep::Reply, self.notify(id));
        let intended = self.call_service(&call, |service, caller| match kept {
            true => service.durable.intend(caller, &key, change, ready),
            false => service.durable.guard(caller, change, || ready),
        });
        let (op, waits) = match intended? {
            Intended::Waiting(op) => (op, true),
            Intended::Ready(op) => (op, false),
            Intended::Unneeded => return Ok(false),
        };
        if !op.is_guard() {
            self.connection.streams.keep_durable(key.stream, key.sequence);
        }
        self.connection.ops.insert(key.stream, op);
        Ok(waits)
    }

    /// Returns the directory or file of a request's logged change, if there is one.
    pub(crate) fn logged_at(&self, call: &Call) -> Option<Handle> {
        Some(*self.connection.ops.get(&call.header.stream_id)?.place())
    }

    /// Returns the witness for the append of a request, if its intent is logged.
    pub(crate) fn witness(&self, call: &Call) -> Option<Arc<dyn AppendWitness>> {
        self.connection.ops.get(&call.header.stream_id)?.witness()
    }

    /// Returns the handle by which the next job of a waiting request executes its logged change, if there
    /// is one.
    pub(super) fn execution(&mut self, id: PendingId) -> Option<Execution> {
        let pending = self.pending.get_mut(id)?;
        // Its job only prepares for the change.
        if matches!(pending.work, Work::Again) {
            return None;
        }
        let stream = pending.call.stream()?;
        Some(self.connection.ops.get(&stream)?.execution())
    }

    /// Notes that the processing of this connection has failed. A change whose request does not wait
    /// may have been executed.
    pub(super) fn doubt_changes(&mut self) {
        let waiting = self.pending.of(self.port, self.connection.endpoint);
        let streams: Vec<_> =
            waiting.into_iter().filter_map(|id| self.call_of(id)?.stream()).collect();
        for (stream, op) in &mut self.connection.ops {
            if !streams.contains(stream) {
                op.executed();
            }
        }
    }

    /// Notes that the change of a request was executed, whatever the answer is.
    pub(super) fn executed(&mut self, call: &Call) {
        if let Some(op) = self.connection.ops.get_mut(&call.header.stream_id) {
            op.executed();
        }
    }

    pub(super) fn notify(&self, pending: PendingId) -> Notify {
        let inbox = self.inbox.clone();
        Box::new(move |result| {
            let result = JobResult::Journal(result);
            inbox.push(JobDone(Arrival::Result { pending, result }));
        })
    }

    /// Goes on with a request whose intent is in the journal, or could not be logged.
    pub(super) fn intended(&mut self, id: PendingId, result: JobResult) {
        let Some(call) = self.call_of(id) else { return };
        match result {
            JobResult::Journal(Ok(())) => {
                // The message stays in its slot.
                self.pending.take(id);
                self.again(&call);
            }
            result => self.intent_failed(id, result),
        }
    }

    /// Fails a request whose intent could not be logged.
    pub(crate) fn intent_failed(&mut self, id: PendingId, result: JobResult) {
        let Some(call) = self.call_of(id) else { return };
        self.abandon(id);
        self.fail(&call, journal_status(result));
    }

    /// Logs an encoded reply if it answers a logged change. Returns true when it waits for that.
    pub(super) fn settle(&mut self, call: &Call, slot: ReplySlot, len: usize) -> bool {
        if self.connection.ops.is_empty() {
            return false;
        }
        let Some(mut op) = self.connection.ops.remove(&call.header.stream_id) else { return false };
        if op.is_guard() {
            return false;
        }
        let message = &self.link.replies.bytes_mut(slot)[..len];
        if !is_ok(message) && changes_all_or_nothing(call.procedure) {
            op.nothing_changed();
        }
        // It has no receive slot any more, or the slot is released as soon as this returns.
        let (endpoint, work) = (self.connection.endpoint, Work::Settle { slot, len });
        let pending = self.pending.insert(Pending::new(endpoint, call, work));
        let ready = self.notify(pending);
        let message = &self.link.replies.bytes_mut(slot)[..len];
        let little_endian = self.connection.order == ByteOrder::Little;
        match self.shared.service.durable.settle(op, message, little_endian, ready) {
            Settled::Later => true,
            Settled::Now => {
                self.pending.take(pending);
                false
            }
        }
    }

    /// Goes on with a reply that the journal has, or could not take.
    pub(super) fn settled(&mut self, id: PendingId, result: JobResult) {
        let Some(Pending { call, work: Work::Settle { slot, len }, .. }) = self.pending.take(id)
        else {
            return;
        };
        match result {
            JobResult::Journal(Ok(())) => self.send_settled(&call, slot, len),
            result => {
                // The change may be lost with the next crash, so it must not be reported as done.
                self.link.replies.give_back(slot);
                self.fail(&call, journal_status(result));
            }
        }
    }
}

/// Returns the journal's record of a client's session.
pub(super) fn journal_session(
    session: &connection::Session,
    peer: &PeerInfo,
    identity: &Identity,
) -> Session {
    Session {
        id: session.id.0,
        host: host_of(peer).to_bytes(),
        client: session.client_name.clone(),
        verifier: session.client_verifier.to_be_bytes(),
        mechanism: identity.mechanism.to_owned(),
        principal: identity.principal.clone(),
    }
}

fn journal_status(result: JobResult) -> Status {
    match result {
        JobResult::Journal(Err(error)) => convert::status(error),
        _ => Status::ServerFault,
    }
}

/// True if a refusal of the operation means that it has changed no object.
fn changes_all_or_nothing(procedure: Option<Procedure>) -> bool {
    use Procedure::{Create, Link, Remove, Rename, SetAttrDirect, SetAttrInline};
    matches!(procedure, Some(Create | Link | Remove | Rename | SetAttrInline | SetAttrDirect))
}
