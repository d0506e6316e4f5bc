//! Dispatches a received message to its operation.

use super::back::{self, BackFront, Mail};
use super::chain::ChainId;
use super::connection::{Connection, Phase};
use super::work::{JobDone, PendingTable};
use super::{Link, Shared};
use crate::pool::Inbox;
use dafs_dat::Instant;
use dafs_service::{Caller, Handle, OpenState, Service, ServiceError, StateId, Subject};
use dafs_store::{Cred, OpenFile, OpenMode, Wait};
use dafs_wire::dafs::{
    ChainFlags, Class, CredHandle, FileHandle, HEADER_BYTES, PROTOCOL_VERSION, Procedure, Request,
    RequestHeader, Status, peek_order, verify,
};
use std::sync::Arc;

/// A request in progress: the data for its reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) header: RequestHeader,
    /// `None` for a number without a procedure.
    pub(super) procedure: Option<Procedure>,
    /// The receive slot that holds the message.
    pub(super) slot: u32,
    /// The engine's port.
    pub(super) port: u32,
    /// The start of its execution.
    pub(super) began: Instant,
    /// The entry in its session's reply cache.
    pub(super) keep: Keep,
    /// The chain it is a member of.
    pub(super) chain: Option<ChainId>,
}

/// The entry of a request in its session's reply cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
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
    pub(super) fn unkept(self) -> Self {
        let keep = if self.keep == Keep::Reply { Keep::Answered } else { self.keep };
        Self { keep, ..self }
    }

    /// Makes a call for work without a request.
    pub(super) fn own(port: u32, now: Instant) -> Self {
        let (header, procedure) = (RequestHeader::default(), None);
        Self {
            header,
            procedure,
            slot: u32::MAX,
            port,
            began: now,
            keep: Keep::Nothing,
            chain: None,
        }
    }
}

/// The state that an operation may use while it works for one connection.
pub(super) struct Context<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) inbox: &'a Arc<Inbox<JobDone>>,
    pub(super) front: &'a Arc<BackFront>,
    pub(super) port: u32,
    pub(super) link: &'a mut Link,
    pub(super) pending: &'a mut PendingTable,
    pub(super) connection: &'a mut Connection,
    pub(super) now: Instant,
    /// Set when the current request waits and keeps its receive slot.
    pub(super) deferred: bool,
}

/// A file to read or write, and the open that allows it, if there is one.
pub(super) type FileAndOpen = (Arc<dyn OpenFile>, Option<Arc<OpenState>>);

/// The outcome of an operation: it has replied, or waits, or failed with a status.
pub(super) type Done = Result<(), Status>;

impl Context<'_> {
    /// Handles the arrival of a message.
    pub(super) fn receive(&mut self, slot: u32, len: usize) {
        self.connection.credits.posted -= 1;
        self.connection.credits.in_hand += 1;
        if self.connection.phase == Phase::Closing {
            return;
        }
        let message = self.connection.receives.message(slot, len);
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
            Mail::Batch(submission) => self.batch_submitted(*submission),
            // Checked after the mail has been taken.
            Mail::Settled => {}
            Mail::Hurry(id) => self.batch_hurry(id),
            Mail::Survey(answer) => self.survey(&answer),
            Mail::Leave(_) if self.connection.phase == Phase::Closing => {}
            Mail::Leave(reason) => self.drop_session(reason),
        }
    }

    /// Ends the connection because the client violated a rule.
    pub(super) fn drop_session(&mut self, reason: &str) {
        if self.connection.ended {
            return;
        }
        tracing::warn!(peer = %self.connection.peer, "session dropped: {reason}");
        self.connection.phase = Phase::Closing;
        self.link.adapter.abort(self.connection.endpoint);
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
        if let Some(client) = self.connection.client() {
            client.renew(self.now.0);
        }
        match self.connection.chains.arrive(&header, procedure) {
            Ok(None) => {
                let outcome = self.dispatch(&call, bytes);
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
            // Its logged change is not executed. Others may wait for its change locks.
            self.connection.ops.remove(&call.header.stream_id);
            return self.connection.receives.give_back(call.slot);
        }
        let message = self.connection.receives.message(call.slot, call.header.request_len as usize);
        self.deferred = false;
        let outcome = self.dispatch(call, message.bytes());
        self.finish(call, outcome);
        drop(message);
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
            Some(chain) => self.inherit(chain, call.header.chain_flags, request)?,
            None => request,
        };
        match self.connection.phase {
            Phase::New => self.first_request(call, &request),
            Phase::Unproven => match request {
                Request::ClientAuth(args) => self.client_auth(call, &args),
                Request::SecInfo => self.sec_info(call),
                Request::ClientConnect(_)
                | Request::ClientConnectAuth(_)
                | Request::ConnectBind(_) => Err(Status::IllegalState),
                _ => Err(Status::NotAuthenticated),
            },
            Phase::Ready => self.request(call, &request),
            // The server is the requester there, and the client must send no request.
            Phase::Bound | Phase::Closing => Err(Status::IllegalState),
        }
    }

    fn request(&mut self, call: &Call, request: &Request<'_>) -> Done {
        if self.shared.data.is_some() {
            return self.data_request(call, request);
        }
        self.check_fences(request)?;
        if self.outlive(call) {
            return Ok(());
        }
        match request {
            Request::ReadInline(args) => self.read_inline(call, args),
            Request::ReadDirect(args) => self.read_direct(call, args),
            Request::WriteInline(args) => self.write_inline(call, args),
            Request::WriteDirect(args) => self.write_direct(call, args),
            Request::GetAttrInline(args) => self.getattr_inline(call, args),
            Request::GetAttrDirect(args) => self.getattr_direct(call, args),
            Request::SetAttrInline(args) => self.setattr_inline(call, args),
            Request::SetAttrDirect(args) => self.setattr_direct(call, args),
            Request::Verify(args) => self.verify(call, args, true),
            Request::NVerify(args) => self.verify(call, args, false),
            Request::GetFsAttr(args) => self.get_fs_attr(call, args),
            Request::GetRootHandle => self.get_root_handle(call),
            Request::Lookup(args) => self.lookup(call, args),
            Request::LookupP(args) => self.lookup_parent(call, args),
            Request::Access(args) => self.access(call, args),
            Request::Create(args) => self.create(call, args),
            Request::Link(args) => self.link(call, args),
            Request::Remove(args) => self.remove(call, args),
            Request::Rename(args) => self.rename(call, args),
            Request::ReadLinkInline(args) => self.readlink_inline(call, args),
            Request::ReadLinkDirect(args) => self.readlink_direct(call, args),
            Request::OpenAttr(args) => self.open_attr(call, args),
            Request::ReadDirInline(args) => self.readdir_inline(call, args),
            Request::ReadDirDirect(args) => self.readdir_direct(call, args),
            Request::Open(args) => self.open(call, args),
            Request::Close(args) => self.close(call, args),
            Request::OpenDowngrade(args) => self.open_downgrade(call, args),
            Request::Lock(args) => self.lock(call, args),
            Request::LockT(args) => self.lock_test(call, args),
            Request::LockU(args) => self.unlock(call, args),
            Request::AppendInline(args) => self.append_inline(call, args),
            Request::AppendDirect(args) => self.append_direct(call, args),
            Request::BatchSubmit(args) => self.batch_submit(call, args),
            Request::HurryUp(args) => self.hurry_up(call, args),
            Request::XLayoutGet(args) => self.layout_get(call, args),
            Request::XLayoutCommit(args) => self.layout_commit(call, args),
            Request::XLayoutReturn(args) => self.layout_return(call, args),
            Request::XNodeInfo(args) => self.node_info(call, args),
            Request::XGetXattr(args) => self.get_xattr(call, args),
            Request::DelegReturn(args) => self.return_delegation(call, args),
            // The server keeps no delegations across a client's restart, so there are none to
            // purge.
            Request::DelegPurge => Err(Status::NotSupp),
            Request::Commit(args) => self.commit(call, args),
            Request::CacheHint(args) => self.cache_hint(call, args),
            Request::XSeek(args) => self.seek(call, args),
            Request::Null => self.null(call),
            Request::GetFencingList(args) => self.get_fencing_list(call, args),
            Request::SetFencingList(args) => self.set_fencing_list(call, args),
            Request::Disconnect => self.disconnect(call),
            Request::RegisterCred(args) => self.register_cred(call, args),
            Request::ReleaseCred(args) => self.release_cred(call, args),
            Request::CheckResponse(args) => self.check_response(call, args),
            Request::FetchResponse(args) => self.fetch_response(call, args),
            Request::DiscardResponses(args) => self.discard_responses(call, args),
            Request::SecInfo => self.sec_info(call),
            Request::ServerAuth(args) => self.server_auth(call, args),
            Request::ClientAuth(_)
            | Request::ClientConnect(_)
            | Request::ClientConnectAuth(_)
            | Request::ConnectBind(_) => Err(Status::IllegalState),
            // Callbacks are requests of the server.
            Request::BcGetAttr(_)
            | Request::BcNull
            | Request::BcRecall(_)
            | Request::BcBatchCompletion(_)
            | Request::XBcLayoutRecall(_) => Err(Status::IllegalState),
        }
    }

    /// Runs `act` with the service and the caller of this request.
    pub(super) fn call_service<T>(
        &self,
        call: &Call,
        act: impl FnOnce(&Service, Caller<'_>) -> dafs_service::Result<T>,
    ) -> Result<T, Status> {
        self.call_service_raw(call, |service, caller| {
            act(service, caller).map_err(super::convert::status)
        })?
    }

    /// Does the same as `call_service`, for an operation with an error type of its own.
    pub(super) fn call_service_raw<T>(
        &self,
        call: &Call,
        act: impl FnOnce(&Service, Caller<'_>) -> T,
    ) -> Result<T, Status> {
        let session = self.connection.session.as_ref().ok_or(Status::NotAuthenticated)?;
        let proven = session.proven.as_ref().ok_or(Status::NotAuthenticated)?;
        let subject = Subject::Session(&session.fence_id);
        if proven.client.is_gone() {
            // A newer instance of this client has connected, or its lease ended without a session.
            return Err(Status::StaleClientId);
        }
        let registered: Cred;
        let cred = match call.header.cred_handle {
            CredHandle::SESSION => &proven.admission.cred,
            CredHandle(_) if !proven.admission.trusted => return Err(Status::CrHandConflict),
            CredHandle(number) => {
                registered = proven.client.cred(number).ok_or(Status::CrHandConflict)?;
                &registered
            }
        };
        Ok(act(
            &self.shared.service,
            Caller { client: &proven.client, cred, subject, wait: Wait::Never, now_ns: self.now.0 },
        ))
    }

    /// Returns the file of a read or write, with its open, if it has one.
    pub(super) fn io_file(
        &mut self,
        call: &Call,
        fh: &FileHandle,
        id: dafs_wire::dafs::StateId,
        need: OpenMode,
        (offset, bytes): (u64, u64),
    ) -> Result<FileAndOpen, Status> {
        if let Some(role) = &self.shared.data {
            return self.judged_file(role, fh, id, need);
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

    pub(super) fn remember_open(&mut self, state: &Arc<OpenState>) {
        if let Some(session) = &mut self.connection.session {
            session.last_open = Some((state.id(), state.clone()));
        }
    }
}

/// Refuses a range that a broken lock covers (DAFS 9.3).
pub(super) fn check_span(
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
