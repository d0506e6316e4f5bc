//! Changes whose replies outlive the server: announced before they are carried out, and settled before
//! the reply is sent (DAFS 12, O49).
//!
//! A request that is announced waits in its receive slot until the journal holds the announcement, and
//! is then worked on from the beginning. Its reply waits, encoded, until the journal holds it too.
//!
//! Invariants
//! * Only requests of sessions that keep replies are announced, once each. What other requests change
//!   is kept from meeting what was announced, in the same way.
//! * An announced change that will not be carried out, because its connection has ended before it
//!   began, is dropped and so known not to have happened.

use super::connection;
use super::convert::{self, Wish};
use super::memory::ReplySlot;
use super::name_ops::new_object;
use super::open_ops::open_how;
use super::registry::host_of;
use super::reply::is_ok;
use super::request::{Call, Context, Keep};
use super::work::{Arrival, JobDone, JobResult, Pending, PendingId, Work};
use dafs_dat::PeerInfo;
use dafs_service::durable::{Change, Effect, Intended, Notify, Op, Session, Settled, digest};
use dafs_service::{Handle, Identity, OpenHow, RequestKey};
use dafs_store::{AppendWitness, Kind, NewObject};
use dafs_wire::dafs::{
    AppendReply, ByteOrder, ChangeInfo, ChangeReply, CreateReply, Delegation, OpenClaim, OpenReply,
    OpenResultFlags, Procedure, RenameReply, Reply, Request, SetAttrReply, Stability, StateId,
    Status, Verifier, WriteReply,
};
use std::sync::Arc;

impl Context<'_> {
    /// Announces what a request is about to change, if its reply is to be durable; true when the
    /// request waits for that. What is wrong with a request comes out when it is carried out.
    pub(super) fn announce(&mut self, call: &Call, request: &Request<'_>) -> Result<bool, Status> {
        let announced = self.connection.ops.contains_key(&call.header.stream_id);
        if !announced && self.outlive(call) {
            return Ok(true);
        }
        if announced || !self.shared.service.has_journal() {
            return Ok(false);
        }
        let kept = call.keep == Keep::Reply;
        match request {
            Request::Create(args) => {
                let (Ok(object), Ok(attr)) =
                    (new_object(&args.object), convert::set_attr(&args.attributes))
                else {
                    return Ok(false);
                };
                let (dir, kind) = (convert::handle(&args.dir), kind(&object));
                self.intend(call, &Change::Make { dir: &dir, name: args.name, kind, attr: &attr })
            }
            Request::Open(args) => {
                let (Ok(OpenHow::Create(_, attr)), OpenClaim::Null { dir, path }) =
                    (open_how(&args.create), args.claim)
                else {
                    return Ok(false);
                };
                let dir = convert::handle(&dir);
                let Some(parents) = path.len().checked_sub(1) else { return Ok(false) };
                let reached = self.call_service_raw(call, |service, caller| {
                    service.lookup(caller, &dir, path.iter().take(parents))
                })?;
                let (Ok(reached), Some(name)) = (reached, path.iter().nth(parents)) else {
                    return Ok(false);
                };
                self.intend(call, &Change::Create { dir: &reached.handle, name, attr: &attr })
            }
            Request::Remove(args) => {
                let dir = convert::handle(&args.dir);
                self.intend(call, &Change::Remove { dir: &dir, name: args.name })
            }
            Request::Rename(args) => {
                let from_dir = convert::handle(&args.source_dir);
                let to_dir = convert::handle(&args.target_dir);
                let (from, to) = (args.old_name, args.new_name);
                let (from_dir, to_dir) = (&from_dir, &to_dir);
                self.intend(call, &Change::Rename { from_dir, from, to_dir, to })
            }
            Request::Link(args) => {
                let source = convert::handle(&args.source);
                let dir = convert::handle(&args.target_dir);
                self.intend(call, &Change::Link { source: &source, dir: &dir, name: args.name })
            }
            Request::SetAttrInline(args) => {
                let Ok(wish) = Wish::of(&args.attributes) else { return Ok(false) };
                self.intend(call, &wish.change(&convert::handle(&args.fh)))
            }
            Request::WriteInline(args) if kept && args.stable != Stability::Unstable => {
                let file = convert::handle(&args.fh);
                let change = Change::Write {
                    file: &file,
                    offset: args.offset,
                    len: args.data.len() as u64,
                    stability: convert::stability(args.stable),
                    digest: Some(digest(0, args.data)),
                };
                self.intend(call, &change)
            }
            Request::AppendInline(args) if kept => {
                let file = convert::handle(&args.fh);
                let (len, digest) = (args.data.len() as u64, digest(0, args.data));
                self.intend(call, &Change::Append { file: &file, len, digest })
            }
            // What is to be fetched is announced when it is here.
            _ => Ok(false),
        }
    }

    /// Has the durable reply to an earlier request of the stream forgotten before it could be taken for
    /// that of a later one; true when the request waits for that.
    fn outlive(&mut self, call: &Call) -> bool {
        let (stream, seq) = (call.header.stream_id, call.header.seq_number);
        if !self.connection.streams.outlives(stream, seq) {
            return false;
        }
        let Some(session) = self.connection.session.as_ref().map(|session| session.id.0) else {
            return false;
        };
        let pending = self.defer(call, Work::Again);
        match self.shared.service.outlived(&session, stream, self.notify(pending)) {
            Settled::Later => true,
            Settled::Now => {
                self.pending.take(pending);
                self.deferred = false;
                false
            }
        }
    }

    fn intend(&mut self, call: &Call, change: &Change<'_>) -> Result<bool, Status> {
        let Some(key) = self.request_key(call) else { return Ok(false) };
        let pending = self.defer(call, Work::Intended);
        let intended = self.intend_for(pending, call, &key, change);
        let op = match intended {
            Ok(Intended::Waiting(op)) => {
                self.keep_op(&key, op);
                return Ok(true);
            }
            Ok(Intended::Ready(op)) => Ok(Some(op)),
            Ok(Intended::Unneeded) => Ok(None),
            Err(status) => Err(status),
        };
        self.pending.take(pending);
        self.deferred = false;
        if let Some(op) = op? {
            self.keep_op(&key, op);
        }
        Ok(false)
    }

    /// Announces a change, or guards it when no reply is kept; `pending` is told.
    fn intend_for(
        &mut self,
        pending: PendingId,
        call: &Call,
        key: &RequestKey,
        change: &Change<'_>,
    ) -> Result<Intended, Status> {
        let (kept, ready) = (call.keep == Keep::Reply, self.notify(pending));
        self.call_service(call, |service, caller| match kept {
            true => service.intend(caller, key, change, ready),
            false => service.guard(caller, change, || ready),
        })
    }

    fn keep_op(&mut self, key: &RequestKey, op: Op) {
        if !op.is_guard() {
            self.connection.streams.keep_durable(key.stream, key.sequence);
        }
        self.connection.ops.insert(key.stream, op);
    }

    /// Announces a change whose data was fetched; true when it waits for that, in its entry of the
    /// table.
    pub(super) fn announce_fetched(
        &mut self,
        id: PendingId,
        call: &Call,
        change: &Change<'_>,
    ) -> Result<bool, Status> {
        if !self.shared.service.has_journal() {
            return Ok(false);
        }
        let Some(key) = self.request_key(call) else { return Ok(false) };
        let (op, waits) = match self.intend_for(id, call, &key, change)? {
            Intended::Waiting(op) => (op, true),
            Intended::Ready(op) => (op, false),
            Intended::Unneeded => return Ok(false),
        };
        self.keep_op(&key, op);
        Ok(waits)
    }

    /// Where the change of a request was announced, if it was.
    pub(super) fn announced_at(&self, call: &Call) -> Option<Handle> {
        Some(*self.connection.ops.get(&call.header.stream_id)?.place())
    }

    /// Before whose eyes the append of a request is carried out, if it is announced.
    pub(super) fn witness(&self, call: &Call) -> Option<Arc<dyn AppendWitness>> {
        self.connection.ops.get(&call.header.stream_id)?.witness()
    }

    /// The change of a request was made, whatever is answered.
    pub(super) fn carried_out(&mut self, call: &Call) {
        if let Some(op) = self.connection.ops.get_mut(&call.header.stream_id) {
            op.carried_out();
        }
    }

    fn request_key(&self, call: &Call) -> Option<RequestKey> {
        let session = self.connection.session.as_ref()?;
        Some(RequestKey {
            session: session.id.0,
            stream: call.header.stream_id,
            sequence: call.header.seq_number,
            procedure: call.header.procedure,
        })
    }

    pub(super) fn notify(&self, pending: PendingId) -> Notify {
        let inbox = self.inbox.clone();
        Box::new(move |result| {
            let result = JobResult::Journal(result);
            inbox.push(JobDone(Arrival::Result { pending, result }));
        })
    }

    /// The announcement of a change is in the journal, or could not be made.
    pub(super) fn intended(&mut self, id: PendingId, result: JobResult) {
        let Some(pending) = self.pending.get_mut(id) else { return };
        let call = pending.call;
        match result {
            JobResult::Journal(Ok(())) => {
                // The message stays in its slot.
                self.pending.take(id);
                self.again(&call);
            }
            result => {
                self.connection.ops.remove(&call.header.stream_id);
                self.abandon(id);
                self.fail(&call, journal_status(result));
            }
        }
    }

    /// Hands an encoded reply to the journal if it answers an announced change; true when it waits
    /// for that.
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
        // It has no receive slot any more, or that is given back as soon as this returns.
        let (endpoint, work) = (self.connection.endpoint, Work::Settle { slot, len });
        let pending = self.pending.insert(Pending { endpoint, call: *call, work });
        let ready = self.notify(pending);
        let message = &self.link.replies.bytes_mut(slot)[..len];
        let little_endian = self.connection.order == ByteOrder::Little;
        match self.shared.service.settle(op, message, little_endian, ready) {
            Settled::Later => true,
            Settled::Now => {
                self.pending.take(pending);
                false
            }
        }
    }

    /// The journal holds a reply, or could not take it.
    pub(super) fn settled(&mut self, id: PendingId, result: JobResult) {
        let Some(Pending { call, work: Work::Settle { slot, len }, .. }) = self.pending.take(id)
        else {
            return;
        };
        match result {
            JobResult::Journal(Ok(())) => self.send_settled(&call, slot, len),
            result => {
                // What was changed may be lost with the next crash, so it must not be called done.
                self.link.replies.give_back(slot);
                self.fail(&call, journal_status(result));
            }
        }
    }

    /// Answers with what a change of an earlier run has done. What was open then is to be reclaimed
    /// in any case, so an open has no state-id.
    pub(super) fn reply_effect(
        &self,
        procedure: Procedure,
        effect: &Effect,
    ) -> Result<Reply<'static>, Status> {
        let change = |dir: &Handle, before| {
            let after = self.shared.service.getattr(dir).map_or(before, |attr| attr.change);
            ChangeInfo { before, after, atomic: false }
        };
        let verifier = Verifier(self.shared.write_verifier.current());
        let committed = Stability::FileSync;
        Ok(match (procedure, *effect) {
            (Procedure::Create, Effect::Made { dir, object, dir_before, .. }) => {
                let fh = convert::file_handle(&object);
                Reply::Create(CreateReply { fh, change: change(&dir, dir_before) })
            }
            (Procedure::Open, Effect::Made { dir, object, dir_before, .. }) => {
                Reply::Open(OpenReply {
                    fh: convert::file_handle(&object),
                    state_id: StateId::ZERO,
                    change: change(&dir, dir_before),
                    component_count: 0,
                    result_flags: OpenResultFlags::empty(),
                    delegation: Delegation::None,
                })
            }
            (Procedure::Remove, Effect::Removed { dir, dir_before }) => {
                Reply::Remove(ChangeReply { change: change(&dir, dir_before) })
            }
            (Procedure::Link, Effect::Linked { dir, dir_before, .. }) => {
                Reply::Link(ChangeReply { change: change(&dir, dir_before) })
            }
            (Procedure::Rename, Effect::Renamed { from_dir, from_before, to_dir, to_before }) => {
                Reply::Rename(RenameReply {
                    source: change(&from_dir, from_before),
                    target: change(&to_dir, to_before),
                })
            }
            // All that can be set, among them what was asked for.
            (Procedure::SetAttrInline, Effect::AttrSet { .. }) => {
                Reply::SetAttrInline(SetAttrReply { attributes: convert::SETTABLE })
            }
            (Procedure::SetAttrDirect, Effect::AttrSet { .. }) => {
                Reply::SetAttrDirect(SetAttrReply { attributes: convert::SETTABLE })
            }
            (Procedure::WriteInline, Effect::Written { len, .. }) => {
                Reply::WriteInline(WriteReply { count: len as u32, committed, verifier })
            }
            (Procedure::AppendInline, Effect::Appended { offset, .. }) => {
                Reply::AppendInline(AppendReply { offset, verifier, committed })
            }
            (Procedure::AppendDirect, Effect::Appended { offset, .. }) => {
                Reply::AppendDirect(AppendReply { offset, verifier, committed })
            }
            _ => return Err(Status::ServerFault),
        })
    }
}

/// A session of a client as the journal keeps it.
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

pub(super) fn journal_status(result: JobResult) -> Status {
    match result {
        JobResult::Journal(Err(error)) => convert::status(error),
        _ => Status::ServerFault,
    }
}

/// Whether a refusal of it means that nothing was changed.
fn changes_all_or_nothing(procedure: Option<Procedure>) -> bool {
    use Procedure::{Create, Link, Remove, Rename, SetAttrDirect, SetAttrInline};
    matches!(procedure, Some(Create | Link | Remove | Rename | SetAttrInline | SetAttrDirect))
}

fn kind(object: &NewObject<'_>) -> Kind {
    match object {
        NewObject::Directory => Kind::Directory,
        NewObject::Symlink(_) => Kind::Symlink,
        NewObject::Fifo => Kind::Fifo,
        NewObject::Socket => Kind::Socket,
        NewObject::BlockDevice { .. } => Kind::BlockDevice,
        NewObject::CharDevice { .. } => Kind::CharDevice,
    }
}
