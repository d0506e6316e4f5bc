//! The parts of a compound that its operations see: handles, caller, session, reply, service.
//!
//! Invariants
//! * Nothing here runs an operation. This file imports no operation, neither the dispatch nor the
//!   engine.
//! * Operations use methods alone. The fields are open to the files of the engine only.

use crate::admission::{CallerIdentity, Origin};
use crate::args::Args;
use crate::connection::Connection;
use crate::disk::missed;
use crate::measure::Stages;
use crate::principal::Principal;
use crate::shared::NfsShared;
use crate::v4::journal::{self, Gate, Numbered, Progress, Results, Resume};
use crate::v4::protect;
use crate::v4::session::{HeldSlot, Session};
use crate::v4::stateid;
use crate::v4::status::{OpError, OpResult};
use dafs_rpc::Reply;
use dafs_service::durable::{self, Change};
use dafs_service::{
    Caller, Client, FileRange, Handle, Owner, Service, ServiceError, StateRef, Subject,
};
use dafs_store::{OpenFile, Stability, Wait};
use dafs_wire::nfs4::{OpNum, SessionId, Stateid, Status, Verifier};
use dafs_wire::xdr::{Encode, Encoder, Payload};
use std::net::SocketAddr;
use std::sync::Arc;

/// The caller, origin and time of a call.
#[derive(Debug, Clone)]
pub(crate) struct CallContext {
    /// The authenticated caller.
    pub(crate) who: CallerIdentity,
    /// The origin of the connection.
    pub(crate) origin: Origin,
    /// The owner of the call for the scheduler.
    pub(crate) owner: Owner,
    /// The connection of the call.
    pub(crate) connection: Arc<Connection>,
    /// The address of the peer.
    pub(crate) peer: SocketAddr,
    /// The user whom the certificate of the connection names. It may have other callers, who prove their names.
    pub(crate) user: Option<Arc<str>>,
    /// True for a connection over RDMA.
    pub(crate) is_rdma: bool,
    /// The time, in nanoseconds of the service's clock.
    pub(crate) now_ns: u64,
    /// Length of the whole RPC call, header included.
    pub(crate) call_bytes: usize,
    /// Bytes of a reply beside its results: the RPC header with its verifier, and the protection of
    /// the results (RFC 8881 18.36.3).
    pub(crate) reply_rpc_bytes: usize,
}

impl CallContext {
    /// Returns the subject that fences see for a calling client.
    pub(crate) fn subject<'a>(&self, client: &'a Client) -> Subject<'a> {
        self.origin.subject(Some(client.name()))
    }

    /// Returns the caller for the service.
    fn caller<'a>(&'a self, client: &'a Arc<Client>, wait: Wait) -> Caller<'a> {
        let subject = self.subject(client);
        Caller { client, cred: &self.who.cred, subject, wait, now_ns: self.now_ns }
    }
}

/// A compound under way.
pub(crate) struct OpContext<'a> {
    /// The state that all compounds share.
    pub(super) shared: &'a Arc<NfsShared>,
    /// `Allowed` if operations may wait.
    pub(super) wait: Wait,
    /// The call.
    pub(super) call: CallContext,
    /// The arguments.
    pub(super) args: Args<'a>,
    /// The minor version: 1 or 2.
    pub(super) minor: u32,
    /// The reply so far.
    pub(super) reply: Reply,
    /// The session, once SEQUENCE has succeeded.
    pub(super) session: Option<Arc<Session>>,
    pub(super) frame: Frame,
}

/// A COPY that is made before its reply, slice by slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    pub(crate) done: u64,
    pub(crate) wanted: u64,
    /// Its value before the first slice.
    pub(crate) verifier: Verifier,
}

/// The state of a compound that its operations see by methods only.
#[derive(Debug, Default)]
pub(super) struct Frame {
    pub(super) current: Option<CurrentHandle>,
    pub(super) saved: Option<CurrentHandle>,
    pub(super) held: Option<HeldSlot>,
    /// The client asked to cache the reply for a retry.
    pub(super) cache: bool,
    /// The reply to send instead of the one under construction.
    pub(super) replay: Option<Arc<[u8]>>,
    /// A retry of a request whose reply was not cached: the next operation reports that.
    pub(super) uncached: bool,
    /// The limit of the reply, without the RPC header.
    pub(super) reply_bytes_max: usize,
    pub(super) op_count: u32,
    pub(super) op_index: u32,
    /// The operation that runs.
    pub(super) running: Option<OpNum>,
    /// The client's machine sends that operation for its users.
    pub(super) by_machine: bool,
    /// The part of a COPY that was made in earlier turns.
    pub(super) copied: Option<Copied>,
    /// The state of changes with durable replies.
    pub(super) journal: Progress,
    /// The gate of names that are being looked up.
    pub(super) names: Option<Arc<Gate>>,
    /// A retry of a request that an earlier run of the server has worked on.
    pub(super) resume: Option<Box<Resume>>,
    pub(super) stages: Stages,
    /// The range that the last operation wanted to read, and that is not in memory.
    pub(super) missed: Option<FileRange>,
}

impl<'a> OpContext<'a> {
    /// Returns the current file handle.
    ///
    /// # Errors
    /// `NoFileHandle`. `Access` or `WrongSec` if its export does not admit the caller.
    pub(crate) fn current(&self) -> Result<Handle, OpError> {
        self.unfenced(self.allowed(self.frame.current)?)
    }

    /// Returns the current file handle for SECINFO, which a caller with the wrong flavour may use.
    ///
    /// # Errors
    /// `NoFileHandle`, `Access`.
    pub(crate) fn current_for_secinfo(&self) -> Result<Handle, OpError> {
        match self.frame.current {
            Some(CurrentHandle { handle, refused: Some(Status::WrongSec), .. }) => Ok(handle),
            current => self.allowed(current),
        }
    }

    /// True if the export of the current file handle demands another flavour.
    pub(crate) fn is_wrong_flavour(&self) -> bool {
        self.frame.current.is_some_and(|current| current.refused == Some(Status::WrongSec))
    }

    /// Returns the saved file handle.
    ///
    /// # Errors
    /// Those of [`current`](Self::current).
    pub(crate) fn saved(&self) -> Result<Handle, OpError> {
        self.unfenced(self.allowed(self.frame.saved)?)
    }

    /// Sets the current file handle, and clears the current state-id (RFC 8881 16.2.3.1.2). An
    /// operation that uses the handle gets the error if its export does not admit the caller.
    pub(crate) fn set_current(&mut self, handle: Handle) {
        let known = self.frame.current.filter(|current| current.handle.fs == handle.fs);
        let (origin, flavour) = (&self.call.origin, self.call.who.flavour);
        let refuses = || self.shared.admits(&handle, origin, flavour).err();
        let refused = known.map_or_else(refuses, |current| current.refused);
        self.frame.current =
            Some(CurrentHandle { handle, stateid: None, refused, gave_up_state: false });
    }

    /// Clears the current file handle (SECINFO consumes it).
    pub(crate) fn clear_current(&mut self) {
        self.frame.current = None;
    }

    /// Saves the current file handle and state-id, whatever its export admits.
    ///
    /// # Errors
    /// `NoFileHandle`, and `Access` for a fenced client.
    pub(crate) fn save(&mut self) -> OpResult {
        let current = self.frame.current.ok_or(Status::NoFileHandle)?;
        self.unfenced(current.handle)?;
        self.frame.saved = Some(current);
        Ok(())
    }

    /// Restores the saved file handle and state-id. `rest` are the operations that follow.
    ///
    /// # Errors
    /// `NoFileHandle`, `WrongSec`, and `Access` for a fenced client.
    pub(crate) fn restore(&mut self, rest: &[u8]) -> OpResult {
        let saved = self.frame.saved.ok_or(Status::NoFileHandle)?;
        self.unfenced(saved.handle)?;
        self.frame.current = Some(saved);
        self.check_put(rest)
    }

    /// Sets the current state-id, which belongs to the current file handle.
    pub(crate) fn set_current_stateid(&mut self, stateid: Stateid) {
        if let Some(current) = &mut self.frame.current {
            current.stateid = Some(stateid);
        }
    }

    /// Resolves a state-id argument. The special state-id for the current one is replaced by it.
    ///
    /// # Errors
    /// `BadStateId` when there is no current state-id, or for one that is never assigned.
    pub(crate) fn state(&self, argument: &Stateid) -> Result<StateRef, OpError> {
        resolve(argument, self.frame.current)
    }

    /// Resolves a state-id argument for the saved file handle (COPY, CLONE).
    ///
    /// # Errors
    /// Those of [`state`](Self::state).
    pub(crate) fn saved_state(&self, argument: &Stateid) -> Result<StateRef, OpError> {
        resolve(argument, self.frame.saved)
    }

    /// Returns the subject that fences see for the caller.
    fn subject(&self) -> Subject<'_> {
        self.call.origin.subject(self.session.as_ref().map(|session| session.client().name()))
    }

    /// Returns a handle, if the client is not fenced from it. Fences may change, so each use is
    /// checked.
    fn unfenced(&self, handle: Handle) -> Result<Handle, OpError> {
        self.shared.service.fences.check(&self.subject(), &handle)?;
        Ok(handle)
    }

    /// Returns the service.
    pub(crate) fn service(&self) -> &'a Service {
        &self.shared.service
    }

    /// Returns the state that all compounds share, for operations on sessions and copies.
    pub(crate) fn shared(&self) -> &'a Arc<NfsShared> {
        self.shared
    }

    /// Returns the present write verifier.
    pub(crate) fn write_verifier(&self) -> Verifier {
        Verifier(self.shared.write_verifier.current())
    }

    /// Returns the call.
    pub(crate) fn call(&self) -> &CallContext {
        &self.call
    }

    /// Returns the arguments.
    pub(crate) fn args(&self) -> Args<'a> {
        self.args
    }

    /// Returns the minor version: 1 or 2.
    pub(crate) fn minor(&self) -> u32 {
        self.minor
    }

    /// Returns `Allowed` if this operation may wait.
    pub(crate) fn wait(&self) -> Wait {
        self.wait
    }

    /// Returns the session, or `OpNotInSession` before SEQUENCE has succeeded.
    pub(crate) fn session(&self) -> Result<&Arc<Session>, OpError> {
        self.session.as_ref().ok_or(OpError::Status(Status::OpNotInSession))
    }

    /// Returns the client of the session, or `OpNotInSession` without one.
    pub(crate) fn client(&self) -> Result<&Arc<Client>, OpError> {
        Ok(self.session()?.client())
    }

    /// Returns the present time of the service. The call may have waited.
    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.clock_ns().max(self.call.now_ns)
    }

    /// Returns the caller for the service, or `OpNotInSession` without a session.
    pub(crate) fn caller(&self) -> Result<Caller<'_>, OpError> {
        Ok(self.call.caller(self.client()?, self.wait))
    }

    /// Returns the service, its caller, the minor version, and the reply to write to meanwhile, or
    /// `OpNotInSession` without a session.
    pub(crate) fn split(&mut self) -> Result<(&Service, Caller<'_>, u32, &mut Reply), OpError> {
        let session = self.session.as_ref().ok_or(OpError::Status(Status::OpNotInSession))?;
        let caller = self.call.caller(session.client(), self.wait);
        Ok((&self.shared.service, caller, self.minor, &mut self.reply))
    }

    /// Returns the reply so far, for results with file data.
    pub(crate) fn reply(&mut self) -> &mut Reply {
        &mut self.reply
    }

    /// Returns an encoder for results.
    pub(crate) fn encoder(&mut self) -> Encoder<'_> {
        self.reply.encoder()
    }

    /// Writes the result of this operation.
    pub(crate) fn answer(&mut self, result: &impl Encode) -> OpResult {
        self.encoder().value(result);
        Ok(())
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

    /// Returns the number of operations of the compound.
    pub(crate) fn op_count(&self) -> u32 {
        self.frame.op_count
    }

    /// Resumes a request that an earlier run of the server has worked on, for an absent client.
    pub(crate) fn resume(&mut self, session: Arc<Session>, resume: Resume) {
        self.session = Some(session);
        self.frame.resume = Some(Box::new(resume));
    }

    /// Makes replies to changes of this request durable.
    pub(crate) fn keep_replies(&mut self, request: Numbered) {
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
        self.frame.reply_bytes_max = (max as usize).saturating_sub(self.call.reply_rpc_bytes);
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

    /// Finds a live session.
    ///
    /// # Errors
    /// `DeadSession` for one of an earlier run of the server with durable replies, else
    /// `BadSession`.
    pub(crate) fn find_session(&self, id: SessionId) -> Result<Arc<Session>, OpError> {
        let connection = &self.call.connection;
        if let Some(session) = connection.recent_session().filter(|recent| recent.id() == id) {
            self.check_user(session.client())?;
            return Ok(session);
        }
        let Some(session) = self.shared.sessions.find(id) else {
            let dead = journal::is_kept(self.shared, id);
            return Err(if dead { Status::DeadSession } else { Status::BadSession }.into());
        };
        self.check_user(session.client())?;
        // A connection with a session is not closed to make room for others.
        connection.establish();
        connection.set_recent_session(&session);
        // Only its client knows the session id.
        session.client().add_address(self.call.origin.client_address());
        Ok(session)
    }

    /// Checks that a session of this client may come on this connection. A client that has claimed its user, and now
    /// comes with the certificate of one, ends at once with all its state: only the client knows the session id. So the
    /// name is free for its next EXCHANGE_ID, and no layout of it is good any more.
    ///
    /// # Errors
    /// `BadSession`, as for a session that does not exist. `Wait`. `Delay` when the disk fails.
    fn check_user(&self, client: &Client) -> OpResult {
        if protect::may_come(client, self.call.user.as_deref()) {
            return Ok(());
        }
        let is_claimed = client.identity().certificate_user().is_none();
        if is_claimed && client.calls_from(&self.call.origin.client_address()) {
            // Its durable record is removed first.
            self.may_wait()?;
            match self.service().clients.revoke(client.key()) {
                Ok(()) => tracing::info!(
                    peer = %self.call.peer,
                    "the state of a client has ended: it had claimed its user, and comes with a certificate now"
                ),
                Err(ServiceError::StaleClientId) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Status::BadSession.into())
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

    /// Passes on the outcome of a read. Notes its range, from an offset so many bytes, if the read has to
    /// wait for the disk.
    pub(crate) fn or_missed<T>(
        &mut self,
        read: Result<T, OpError>,
        file: &Arc<dyn OpenFile>,
        (offset, bytes): (u64, usize),
    ) -> Result<T, OpError> {
        if matches!(read, Err(OpError::Wait)) {
            self.frame.missed = Some(missed(file, offset, bytes));
        }
        read
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

    /// Logs the intent of this operation, if its reply is durable. Must come before the first
    /// change, each time the operation runs.
    ///
    /// # Errors
    /// `Wait` and `Later` while the operation has to wait. Those of the journal.
    pub(crate) fn log_intent(&mut self, change: &Change<'_>) -> OpResult {
        if self.is_logged()? { Ok(()) } else { self.intend(change, None) }
    }

    /// Logs the intent of a write of `data`. The digest of the data is computed only when it is
    /// needed.
    ///
    /// # Errors
    /// As for [`Self::log_intent`]. `BadXdr` when the data is missing.
    pub(crate) fn log_write_intent(
        &mut self,
        file: &Handle,
        offset: u64,
        data: Payload<'_>,
        stability: Stability,
    ) -> OpResult {
        let kept = self.frame.journal.request().is_some() && stability != Stability::Unstable;
        if !kept || self.is_logged()? {
            return Ok(());
        }
        let mut digest = 0;
        let view = self.args.view(data).ok_or(Status::BadXdr)?;
        view.scan(|bytes| digest = durable::digest(digest, bytes));
        let summed = match data {
            Payload::Here(bytes) => Some((bytes, digest)),
            Payload::Moved(_) => None,
        };
        let (len, digest) = (data.len() as u64, Some(digest));
        self.intend(&Change::Write { file, offset, len, stability, digest }, summed)
    }

    /// True if the change of this operation has a logged intent, or needs none.
    fn is_logged(&mut self) -> Result<bool, OpError> {
        if self.frame.journal.request().is_some() {
            self.may_wait()?;
        }
        self.frame.journal.is_logged(self.frame.op_index)
    }

    /// Logs the intent. `summed` is data of the request whose digest is known already.
    fn intend(&mut self, change: &Change<'_>, summed: Option<(&[u8], u32)>) -> OpResult {
        let Frame { journal, op_index, op_count, .. } = &mut self.frame;
        let Some(request) = journal.request() else { return self.guard(change) };
        let who = Principal::of(&self.call.who);
        let digest =
            journal.digest(|| request.digest(&who, self.minor, *op_count, self.args, summed));
        let Some(key) = request.key(&who, digest, *op_index) else { return self.guard(change) };
        let session = self.session.as_ref().ok_or(Status::ServerFault)?;
        journal.forget_earlier(session, &self.shared.service);
        let gate = Gate::new(self.shared);
        let service = &self.shared.service;
        let intended = service.durable.intend(self.caller()?, &key, change, gate.notify())?;
        self.frame.journal.intended(intended, Some(gate))
    }

    /// Guards a change without a record against logged changes of other clients.
    fn guard(&mut self, change: &Change<'_>) -> OpResult {
        let (shared, mut gate) = (self.shared, None);
        let guarded = shared.service.durable.guard(self.caller()?, change, || {
            let gate: &Arc<Gate> = gate.insert(Gate::new(shared));
            gate.notify()
        })?;
        self.frame.journal.intended(guarded, gate)
    }

    /// Returns the changes in the journal, and the results so far.
    pub(super) fn journal(&mut self) -> (&mut Progress, Results<'_>) {
        let current = self.frame.current.as_ref().map(|current| &current.handle);
        let results = Results { shared: self.shared, reply: &self.reply, current };
        (&mut self.frame.journal, results)
    }

    /// Returns the status for a reply that has become too big.
    pub(super) fn too_big(&self) -> Status {
        if self.frame.cache { Status::RepTooBigToCache } else { Status::RepTooBig }
    }
}

/// A file handle with its state-id and admission.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentHandle {
    pub(super) handle: Handle,
    stateid: Option<Stateid>,
    /// The reason why the export does not admit the caller.
    pub(super) refused: Option<Status>,
    /// The client's machine has given up state of this object in this compound.
    pub(super) gave_up_state: bool,
}

fn resolve(argument: &Stateid, current: Option<CurrentHandle>) -> Result<StateRef, OpError> {
    if *argument != Stateid::CURRENT {
        return Ok(stateid::reference(argument)?);
    }
    let stateid = current.and_then(|current| current.stateid).ok_or(Status::BadStateId)?;
    Ok(stateid::reference(&stateid)?)
}

/// The longest result of an operation that did not run: number, status, and the mask of SETATTR.
pub(crate) const RESULT_HEAD_BYTES: usize = 12;
