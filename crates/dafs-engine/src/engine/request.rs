//! Dispatches a received message to its operation.

use super::back::{self, BackFront, Mail};
use super::chain::ChainId;
use super::connection::{Connection, Phase};
use super::disk::Disk;
use super::memory::SlotPart;
use super::work::{JobDone, PendingTable};
use super::{Link, Shared, credentials, data_door, gss, session_ops};
use crate::inbox::Inbox;
use crate::ops::{self, batch, fence, security, transport};
use dafs_dat::Instant;
use dafs_service::{
    Caller, Client, Handle, OpenState, Service, ServiceError, SessionProof, StateId, Subject,
    TransportSecurity,
};
use dafs_store::{Cred, OpenFile, OpenMode, Wait};
use dafs_wire::dafs::{
    ChainFlags, Class, CredHandle, FileHandle, HEADER_BYTES, PROTOCOL_VERSION, Procedure, Request,
    RequestHeader, Status, peek_order, verify,
};
use std::sync::Arc;

/// A request in progress: the data for its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) header: RequestHeader,
    /// `None` for a number without a procedure.
    pub(crate) procedure: Option<Procedure>,
    /// The receive slot that holds the message.
    pub(crate) slot: u32,
    /// The engine's port.
    pub(super) port: u32,
    /// The start of its execution.
    pub(super) began: Instant,
    /// The entry in its session's reply cache.
    pub(crate) keep: Keep,
    /// The chain it is a member of.
    pub(crate) chain: Option<ChainId>,
}

/// The entry of a request in its session's reply cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// None: its header is not trusted, or the session has no reply cache.
    Nothing,
    /// The fact that it was answered.
    Answered,
    /// The reply.
    Reply,
}

impl Keep {
    /// Returns the entry by class of procedure (DAFS 8).
    fn of(header: &RequestHeader, procedure: Option<Procedure>) -> Self {
        match procedure.map(Procedure::class) {
            Some(Class::FsModifying | Class::LockModifying) => Self::Reply,
            Some(Class::Simple) if header.chain_flags.contains(ChainFlags::SAVE) => Self::Reply,
            _ => Self::Answered,
        }
    }
}

impl Call {
    /// Returns the same call, whose reply is not to be cached.
    pub(crate) fn unkept(self) -> Self {
        let keep = if self.keep == Keep::Reply { Keep::Answered } else { self.keep };
        Self { keep, ..self }
    }

    /// Makes a call for work without a request.
    pub(super) fn without_request(port: u32, began: Instant) -> Self {
        let (header, procedure, chain) = (RequestHeader::default(), None, None);
        Self { header, procedure, slot: NO_SLOT, port, began, keep: Keep::Nothing, chain }
    }

    /// Returns the stream of its request. Work without a request has none.
    pub(super) fn stream(&self) -> Option<u16> {
        (self.slot != NO_SLOT).then_some(self.header.stream_id)
    }
}

/// The receive slot of work without a request.
const NO_SLOT: u32 = u32::MAX;

/// The state that an operation may use while it works for one connection.
pub(crate) struct Context<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) inbox: &'a Arc<Inbox<JobDone>>,
    pub(super) front: &'a Arc<BackFront>,
    pub(super) port: u32,
    pub(super) link: &'a mut Link,
    pub(super) pending: &'a mut PendingTable,
    pub(super) disk: &'a mut Disk,
    pub(super) connection: &'a mut Connection,
    pub(crate) now: Instant,
    /// Set when the current request waits and keeps its receive slot.
    pub(super) deferred: bool,
}

/// A file to read or write, and the open that allows it, if there is one.
pub(crate) type FileAndOpen = (Arc<dyn OpenFile>, Option<Arc<OpenState>>);

/// The outcome of an operation: it has replied, or waits, or failed with a status.
pub(crate) type Done = Result<(), Status>;

impl Context<'_> {
    pub(super) fn receive(&mut self, slot: u32, len: usize) {
        self.connection.credits.posted -= 1;
        self.connection.credits.in_hand += 1;
        if self.connection.phase == Phase::Closing {
            return;
        }
        // SAFETY: the slot is posted again only after it was given back, after the last use below.
        let message = unsafe { self.connection.receives.message(slot, len) };
        self.deferred = false;
        let bytes = message.bytes();
        let outcome =
            if self.connection.back.is_some() && back::is_reply(bytes, self.connection.order) {
                self.connection.credits.in_hand -= 1;
                self.back_reply(bytes)
            } else {
                self.message(slot, bytes)
            };
        if let Err(reason) = outcome {
            return self.drop_session(&reason);
        }
        drop(message);
        if !self.deferred {
            self.connection.receives.give_back(slot);
        }
    }

    /// Handles mail of another reactor, or of the service.
    pub(super) fn mail(&mut self, mail: Mail) {
        match mail {
            Mail::Call(callback) => self.call_client(callback),
            Mail::Batch(submission) => batch::submitted(self, *submission),
            // Checked after the mail has been taken.
            Mail::Settled => {}
            Mail::Start(id) => batch::start_now(self, id),
            Mail::Canceled => batch::drop_canceled(self),
            Mail::Survey(answer) => {
                self.connection.weigh(&self.shared.service.importance);
                let share = self.connection.share(&self.shared.limits, self.link.shares.level);
                let facts = self.connection.facts(self.link.adapter.name(), share, self.now);
                // The receiver may be gone.
                if let Some(facts) = facts {
                    let _ = answer.send(facts);
                }
            }
            Mail::Show(showing) => self.show_by_mail(*showing),
            Mail::Leave(_) if self.connection.phase == Phase::Closing => {}
            Mail::Leave(reason) => self.drop_session(reason),
        }
    }

    /// Ends the connection because the client violated a rule.
    pub(crate) fn drop_session(&mut self, reason: &str) {
        self.connection.abort(&mut *self.link.adapter, reason);
    }

    fn message(&mut self, slot: u32, bytes: &[u8]) -> Result<(), String> {
        if self.connection.phase == Phase::New {
            self.connection.order =
                peek_order(bytes).ok_or("the first message is not one of DAFS")?;
        }
        let order = self.connection.order;
        let header = RequestHeader::decode(bytes, order).map_err(|error| error.to_string())?;
        let procedure = header.known_procedure();
        let (began, keep) = ((self.shared.clock)(), Keep::Nothing);
        let chain = None;
        let mut call = Call { header, procedure, slot, port: self.port, began, keep, chain };
        // DAFS O20, O21: the messages that begin a connection carry no checksum.
        if self.connection.checksums() && self.connection.phase != Phase::New && !verify(bytes) {
            if !self.connection.streams.is_free(header.stream_id) {
                return Err("a message has a wrong checksum".to_owned());
            }
            // The sequence number is not trusted, so the stream does not move on.
            self.connection.chains.arrive_damaged();
            self.fail(&call, Status::ChkSum);
            return Ok(());
        }
        self.connection.streams.begin(&header)?;
        let nreq = self.connection.credits.nreq;
        if let Some(replies) = self.connection.kept_replies() {
            replies.request(header.stream_id, nreq);
            call.keep = Keep::of(&header, procedure);
        }
        if header.desired_nreq != 0 {
            self.connection.credits.desired = header.desired_nreq;
        }
        // A client whose proof has ended keeps its state for a lease, and no longer.
        if let Some(client) = self.connection.client()
            && !self.connection.has_proof_ended(self.now)
        {
            client.renew(self.now.0);
        }
        match self.connection.chains.arrive(&header, procedure) {
            Ok(None) => {
                // The client repeats it, and then the next server may be there.
                let is_late = self.link.is_closing && self.connection.phase == Phase::Ready;
                let outcome = match is_late && procedure.is_some_and(is_change) {
                    true => Err(Status::Grace),
                    false => self.dispatch(&call, bytes),
                };
                self.finish(&call, outcome);
            }
            Ok(Some(chain)) => {
                call.chain = Some(chain);
                self.member(chain, &call, bytes);
            }
            Err(status) => self.fail(&call, status),
        }
        Ok(())
    }

    /// Executes a request again whose message is still in its slot.
    pub(super) fn again(&mut self, call: &Call) {
        if self.connection.phase == Phase::Closing {
            self.connection.drop_change(call);
            return self.connection.receives.give_back(call.slot);
        }
        let len = call.header.request_len as usize;
        // SAFETY: as in `receive`.
        let message = unsafe { self.connection.receives.message(call.slot, len) };
        self.execute(call, |context| context.dispatch(call, message.bytes()));
    }

    /// Executes a request whose message is in its slot. The slot is free afterwards, unless the
    /// request waits.
    pub(crate) fn execute(&mut self, call: &Call, act: impl FnOnce(&mut Self) -> Done) {
        self.deferred = false;
        let outcome = act(self);
        self.finish(call, outcome);
        if !self.deferred {
            self.connection.receives.give_back(call.slot);
        }
    }

    pub(super) fn dispatch(&mut self, call: &Call, bytes: &[u8]) -> Done {
        if call.header.protocol_version != PROTOCOL_VERSION {
            return Err(Status::IllegalProt);
        }
        let Some(procedure) = call.procedure else { return Err(Status::NotSupp) };
        let padding = self.connection.session.as_ref();
        let padding = padding.map_or(0, |session| session.options.inline_write_header_size);
        let request = Request::decode(procedure, bytes, self.connection.order, padding);
        let request = request.map_err(|error| {
            tracing::debug!(peer = %self.connection.peer, procedure = procedure.name(), %error);
            error.status()
        })?;
        let request = match call.chain {
            Some(chain) => {
                self.connection.chains.inherit(chain, call.header.chain_flags, request)?
            }
            None => request,
        };
        match self.connection.phase {
            Phase::New => session_ops::first_request(self, call, &request),
            Phase::Unproven => match request {
                Request::ClientAuth(args) => session_ops::client_auth(self, call, &args),
                Request::SecInfo => credentials::sec_info(self, call),
                Request::ClientConnect(_)
                | Request::ClientConnectAuth(_)
                | Request::ConnectBind(_) => Err(Status::IllegalState),
                _ => Err(Status::NotAuthenticated),
            },
            Phase::Ready => match request {
                Request::ClientAuth(args) => gss::prove_again(self, call, &args),
                Request::SecInfo | Request::Disconnect => self.request(call, &request),
                _ if self.connection.has_proof_ended(self.now) => Err(Status::NotAuthenticated),
                _ => self.request(call, &request),
            },
            // The server is the requester there, and the client must send no request.
            Phase::Bound | Phase::Closing => Err(Status::IllegalState),
        }
    }

    fn request(&mut self, call: &Call, request: &Request<'_>) -> Done {
        self.note_export(call, request);
        transport::check_transport(self, request)?;
        if self.shared.data.is_some() {
            return data_door::data_request(self, call, request);
        }
        fence::check_fences(self, request)?;
        security::check_exports(self, request)?;
        if self.outlive(call) {
            return Ok(());
        }
        ops::dispatch(self, call, request)
    }

    /// Runs `act` with the service and the caller of this request.
    pub(crate) fn call_service<T>(
        &self,
        call: &Call,
        act: impl FnOnce(&Service, Caller<'_>) -> dafs_service::Result<T>,
    ) -> Result<T, Status> {
        self.call_service_raw(call, |service, caller| {
            act(service, caller).map_err(super::convert::status)
        })?
    }

    /// Does the same as `call_service`, for an operation with an error type of its own.
    pub(crate) fn call_service_raw<T>(
        &self,
        call: &Call,
        act: impl FnOnce(&Service, Caller<'_>) -> T,
    ) -> Result<T, Status> {
        let proven = self.connection.proven().ok_or(Status::NotAuthenticated)?;
        let subject = Subject::Session(self.connection.fence_id());
        if proven.client.is_gone() {
            // A newer instance of this client has connected, or its lease ended without a session.
            return Err(Status::StaleClientId);
        }
        let registered: Arc<Cred>;
        let cred = match call.header.cred_handle {
            CredHandle::SESSION => &proven.admission.cred,
            CredHandle(_) if !proven.admission.trusted => return Err(Status::CrHandConflict),
            CredHandle(number) => {
                registered = proven.client.cred(number).ok_or(Status::CrHandConflict)?;
                &*registered
            }
        };
        Ok(act(
            &self.shared.service,
            Caller { client: &proven.client, cred, subject, wait: Wait::Never, now_ns: self.now.0 },
        ))
    }

    /// Returns the file of a read or write, with its open, if it has one.
    pub(crate) fn io_file(
        &mut self,
        call: &Call,
        fh: &FileHandle,
        id: dafs_wire::dafs::StateId,
        need: OpenMode,
        (offset, bytes): (u64, u64),
    ) -> Result<FileAndOpen, Status> {
        if let Some(role) = &self.shared.data {
            return data_door::judged_file(self, role, fh, id, need);
        }
        let (handle, id) = (super::convert::handle(fh), super::convert::state_id(id));
        check_span(&self.shared.service, &handle, id == StateId::ANONYMOUS, (offset, bytes))?;
        if id == StateId::ANONYMOUS {
            let file = self.call_service(call, |service, caller| {
                service.opens.io_file(caller, &handle, id, need)
            })?;
            return Ok((file, None));
        }
        let last = self.connection.session.as_ref().and_then(|s| s.last_open.as_ref());
        let state = match last {
            Some((last, state)) if *last == id && *state.handle() == handle => {
                let state = state.clone();
                if call.header.cred_handle != CredHandle::SESSION {
                    // The lookup is saved, but not the check of the credential.
                    self.call_service_raw(call, |_, _| ())?;
                }
                state
            }
            _ => {
                let state = self.call_service(call, |service, caller| {
                    service.state.open_state(caller, &handle, id)
                })?;
                self.remember_open(&state);
                state
            }
        };
        let file = state.file(need).map_err(super::convert::status)?;
        Ok((file, Some(state)))
    }

    pub(crate) fn remember_open(&mut self, state: &Arc<OpenState>) {
        if let Some(session) = &mut self.connection.session {
            session.last_open = Some((state.id(), state.clone()));
        }
    }

    pub(crate) fn forget_open(&mut self) {
        if let Some(session) = &mut self.connection.session {
            session.last_open = None;
        }
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.shared.service
    }

    pub(crate) fn client(&self) -> Option<&Arc<Client>> {
        self.connection.client()
    }

    pub(crate) fn fence_id(&self) -> &[u8] {
        self.connection.fence_id()
    }

    /// The protection of this connection, as exports count it.
    pub(crate) fn security(&self) -> TransportSecurity {
        self.connection.peer.transport_security()
    }

    /// Logs once for each connection that an export demands more protection.
    pub(crate) fn note_clear(&mut self, least: TransportSecurity) {
        if !std::mem::replace(&mut self.connection.has_noted_clear, true) {
            tracing::warn!(
                peer = %self.connection.peer,
                has = %self.security(),
                "a DAFS client was refused because an export demands transport_security = \"{least}\"; \
                 let the client use dafss://HOST/, for mtls with cert=FILE&key=FILE"
            );
        }
    }

    /// True if the client may choose users itself.
    pub(crate) fn is_trusted(&self) -> bool {
        self.connection.proven().is_some_and(|proven| proven.admission.trusted)
    }

    /// Returns what the session has proven, for the rules of exports.
    pub(crate) fn session_proof(&self) -> SessionProof {
        self.connection.session_proof()
    }

    /// True if some export admits proven sessions alone.
    pub(crate) fn exports_demand_proof(&mut self) -> bool {
        let version = self.shared.service.namespace_version();
        let known = self.connection.demands.filter(|(of, _)| *of == version);
        let (_, demands) =
            known.unwrap_or_else(|| (version, self.shared.service.namespace().demands_proof()));
        self.connection.demands = Some((version, demands));
        demands
    }

    /// Returns the cost of listings in this turn.
    pub(crate) fn listed(&mut self) -> &mut usize {
        &mut self.link.listed
    }

    /// Returns the bytes of `data`, which lie in the message of a request, from `skip` on, for a
    /// job.
    pub(crate) fn message_part(&self, call: &Call, data: &[u8], skip: usize) -> SlotPart {
        SlotPart::new(self.connection.receives.buffer(call.slot), data, skip)
    }
}

/// Refuses a range that a broken lock covers (DAFS 9.3).
pub(crate) fn check_span(
    service: &Service,
    handle: &Handle,
    anonymous: bool,
    (offset, bytes): (u64, u64),
) -> Result<(), Status> {
    service.locks.check_span(handle, offset, bytes).map_err(|error| match error {
        // A client with an open has to find out the state of the lock.
        ServiceError::LockBroken if !anonymous => Status::StaleStateId,
        error => super::convert::status(error),
    })
}

const _: () = assert!(HEADER_BYTES == 40);

/// True for requests that a client cannot simply repeat when it has got no answer, and that it waits
/// for. An append may be one of several under way, whose GRACE a program would see, so it is begun.
fn is_change(procedure: Procedure) -> bool {
    use Procedure as P;
    matches!(
        procedure,
        P::Create
            | P::Link
            | P::Lock
            | P::Open
            | P::Remove
            | P::Rename
            | P::SetAttrDirect
            | P::SetAttrInline
    )
}
