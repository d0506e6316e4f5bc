//! Sessions: connection, authentication, bound channels, credentials, disconnection.

use super::back::{Address, Back, BackFront, Mail};
use super::batch::Queue;
use super::connection::{Channel, Phase, Proven, Session};
use super::convert;
use super::durable::journal_session;
use super::registry::{SessionEntry, host_of};
use super::request::{Call, Context, Done};
use super::work::{JobResult, Pending, PendingId, Rest, Work, submit};
use crate::auth::{Admission, NotProven, Proof};
use crate::limits::{
    BACK_CREDITS_DEFAULT, BACK_CREDITS_MAX, FIRST_MESSAGE_BYTES, INLINE_WRITE_HEADER_BYTES,
    MESSAGE_BYTES_MIN, PROOFS_MAX, SessionLimits,
};
use dafs_dat::DisconnectReason;
use dafs_service::durable::Settled;
use dafs_service::{Registered, ServiceError, SessionReplies, Subject, is_fence_id};
use dafs_store::Cred;
use dafs_wire::dafs::{
    AuthRequest, AuthResult, AuthType, ByteOrder, ChannelUse, ClientAuth, ClientAuthReply,
    ClientConnect, ClientConnectAuth, ClientConnectAuthReply, ClientConnectReply, ConnectBind,
    ConnectBindReply, CredHandle, CredHandleBody, Credential, Procedure, RegisterCred, Reply,
    Request, SecInfoEntry, SecInfoReply, Seq, ServerAuth, ServerAuthReply, SessionId,
    SessionOptions, Status,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Context<'_> {
    /// Handles the message that begins a connection.
    pub(super) fn first_request(&mut self, call: &Call, request: &Request<'_>) -> Done {
        match (self.connection.channel, request) {
            (Channel::Operation, Request::ClientConnect(args)) => self.client_connect(call, args),
            (Channel::Operation, Request::ClientConnectAuth(args)) => {
                self.client_connect_auth(call, args)
            }
            // A data server sends no calls.
            (Channel::BackControl, Request::ConnectBind(_)) if self.shared.data.is_some() => {
                Err(Status::NotSupp)
            }
            (Channel::BackControl, Request::ConnectBind(args)) => self.connect_bind(call, args),
            (_, Request::ConnectBind(_) | Request::ClientConnect(_))
            | (_, Request::ClientConnectAuth(_)) => Err(Status::IllegalState),
            _ => Err(Status::NotAuthenticated),
        }
    }

    fn client_connect(&mut self, call: &Call, args: &ClientConnect<'_>) -> Done {
        let name = args.client_id_string;
        let verifier = u64::from_be_bytes(args.client_verifier.0);
        let (session, credits) = self.new_session(&args.options, name, verifier, args.fence_id)?;
        let reply = ClientConnectReply {
            session_id: session.id,
            client_id: convert::client_id(session.client_key),
            options: session.options,
        };
        self.start_session(session, credits)?;
        self.reply(call, &Reply::ClientConnect(reply))
    }

    fn client_connect_auth(&mut self, call: &Call, args: &ClientConnectAuth<'_>) -> Done {
        let name = args.client_id_string;
        let verifier = u64::from_be_bytes(args.client_verifier.0);
        let (session, credits) = self.new_session(&args.options, name, verifier, args.fence_id)?;
        self.start_session(session, credits)?;
        let outcome = self.authenticate(call, &args.auth);
        if outcome.is_err() {
            self.begin_again();
        }
        outcome
    }

    /// Resets a connection after a failed message that connects and authenticates, because that is
    /// atomic. The next message is a first message again, and so may be as long as one.
    fn begin_again(&mut self) {
        self.connection.phase = Phase::New;
        if let Some(session) = self.connection.session.take()
            && let Some(proven) = &session.proven
        {
            self.shared.registry.remove_session(session.id);
            proven.client.session_ended();
        }
        self.connection.receives.retire_shorter(FIRST_MESSAGE_BYTES as usize);
    }

    /// Makes the session for a client's requested options (DAFS 4.4).
    fn new_session(
        &self,
        wish: &SessionOptions,
        name: &[u8],
        verifier: u64,
        fence_id: &[u8],
    ) -> Result<(Session, u16), Status> {
        if name.is_empty() || !is_fence_id(fence_id) {
            return Err(Status::Inval);
        }
        // DAFS O48. A session without an id may be made to lift fences.
        let subject = Subject::Session(fence_id);
        if !fence_id.is_empty() && self.shared.service.fences.is_fenced_everywhere(&subject) {
            return Err(Status::Fenced);
        }
        let (options, credits) = negotiate(wish, &self.shared.limits)?;
        let little_endian = self.connection.order == ByteOrder::Little;
        let session = Session {
            id: self.new_session_id(),
            options,
            client_name: name.to_vec(),
            client_verifier: verifier,
            client_key: self.shared.service.clients.key(name, verifier),
            fence_id: fence_id.to_vec(),
            proven: None,
            ticket: None,
            last_open: None,
            replies: options.use_response_cache.then(|| SessionReplies::new(little_endian)),
        };
        Ok((session, credits))
    }

    /// Returns an id of no session whose replies may still be requested.
    fn new_session_id(&self) -> SessionId {
        loop {
            let id = self.shared.registry.new_session_id();
            if !self.shared.registry.has_session(id) && !self.shared.service.replies.keeps(id.0) {
                return id;
            }
        }
    }

    /// Enters the session. The reply to the current request grants its credits.
    fn start_session(&mut self, session: Session, credits: u16) -> Result<(), Status> {
        // The first message's slot is shorter than a request of this session may be, so it is not
        // posted again.
        let bytes = session.options.max_request_size as usize;
        let connection = &mut *self.connection;
        connection.receives.retire_shorter(bytes);
        let missing = (usize::from(credits) + 1).saturating_sub(connection.receives.free_count());
        if missing > 0 {
            connection
                .receives
                .grow(&mut *self.link.adapter, self.link.domain, missing, bytes)
                .map_err(|_| Status::Resource)?;
        }
        connection.phase = Phase::Unproven;
        connection.session = Some(session);
        Ok(())
    }

    pub(super) fn client_auth(&mut self, call: &Call, args: &ClientAuth<'_>) -> Done {
        self.authenticate(call, &args.auth)
    }

    /// Checks a proof. Only one check runs at a time, because two successes would begin two
    /// sessions. Their number is limited, so that a connection is of no use for password guesses.
    fn authenticate(&mut self, call: &Call, auth: &AuthRequest<'_>) -> Done {
        if self.connection.proving {
            return Err(Status::IllegalState);
        }
        self.connection.proofs += 1;
        if self.connection.proofs > PROOFS_MAX {
            self.drop_session("too many proofs of identity have failed");
            return Ok(());
        }
        if let Some(role) = self.shared.data.clone() {
            let admission = self.admit_by_ticket(&role, auth);
            return self.admission_done(call, admission.ok_or_else(|| self.note_refusal()));
        }
        let proof = match *auth {
            AuthRequest::None | AuthRequest::Default => Proof::None,
            AuthRequest::Text { id, password } if self.shared.authenticator.has_passwords() => {
                Proof::Text { user: id.to_vec(), password: password.to_vec() }
            }
            AuthRequest::Text { .. } | AuthRequest::Gss { .. } => return Err(Status::NotSupp),
        };
        let peer = self.connection.peer.clone();
        if let Proof::None = proof {
            let admission = self.shared.authenticator.admit(&peer, &proof);
            return self.admission_done(call, admission.ok_or_else(|| self.note_refusal()));
        }
        let authenticator = self.shared.authenticator.clone();
        let (origin, now) = (self.connection.owner.origin, self.now);
        if !authenticator.may_check(origin, &proof, now) {
            return Err(Status::Delay);
        }
        self.connection.proving = true;
        let gone = self.connection.gone.clone();
        let id = self.defer(call, Work::Authenticate);
        submit((&*self.shared.proofs, self.place(0)), self.inbox, id, move || {
            // A client that has gone needs no answer, and others wait for their turn.
            let admission = match gone.load(Ordering::Relaxed) {
                true => Err(NotProven::TooMany),
                false => authenticator.prove((&peer, origin), &proof, now),
            };
            JobResult::Admission(admission)
        });
        Ok(())
    }

    fn note_refusal(&self) -> NotProven {
        tracing::warn!(peer = %self.connection.peer, "authentication failed");
        NotProven::Wrong
    }

    /// Handles the result of a check. `None` if it failed to run.
    pub(super) fn proof_checked(
        &mut self,
        call: &Call,
        result: Option<Result<Admission, NotProven>>,
    ) -> Done {
        self.connection.proving = false;
        let outcome = match result {
            Some(admission) => self.admission_done(call, admission),
            None => Err(Status::ServerFault),
        };
        if outcome.is_err() && call.procedure != Some(Procedure::ClientAuth) {
            self.begin_again();
        }
        outcome
    }

    /// Handles an accepted or refused proof.
    fn admission_done(&mut self, call: &Call, admission: Result<Admission, NotProven>) -> Done {
        let admission = admission.map_err(|why| match why {
            NotProven::Wrong => Status::NotAuthorized,
            NotProven::TooMany => Status::Delay,
        })?;
        if call.procedure == Some(Procedure::ConnectBind) {
            return self.bind_done(call, &admission);
        }
        let Some(session) = &self.connection.session else { return Err(Status::IllegalState) };
        if session.replies.is_none() || !self.shared.service.durable.has_journal() {
            return self.begin_session(call, admission);
        }
        // The client may ask for replies of the session as soon as it knows of it.
        let kept = journal_session(session, &self.connection.peer, &admission.identity);
        let (endpoint, work) = (self.connection.endpoint, Work::KeepSession(Box::new(admission)));
        let pending = self.pending.insert(Pending { endpoint, call: *call, work });
        self.connection.proving = true;
        match self.shared.service.durable.keep_session(&kept, self.notify(pending)) {
            Settled::Later => Ok(()),
            Settled::Now => self.session_known(pending),
        }
    }

    /// Goes on when the journal has the session, or takes no more. In the latter case its changes
    /// are refused.
    fn session_known(&mut self, id: PendingId) -> Done {
        let taken = self.pending.take(id);
        let Some(Pending { call, work: Work::KeepSession(admission), .. }) = taken else {
            return Ok(());
        };
        self.connection.proving = false;
        let Some(session) = self.connection.session.as_ref().map(|session| session.id.0) else {
            return Ok(());
        };
        if self.connection.phase == Phase::Closing {
            self.shared.service.durable.forget_session(&session);
            return Ok(());
        }
        let outcome = self.begin_session(&call, *admission);
        if outcome.is_err() {
            self.shared.service.durable.forget_session(&session);
        }
        outcome
    }

    /// Goes on some time after the request, when the journal has the session.
    pub(super) fn session_kept(&mut self, id: PendingId) {
        let Some(call) = self.pending.get_mut(id).map(|pending| pending.call) else { return };
        let outcome = self.session_known(id);
        if outcome.is_err() && call.procedure != Some(Procedure::ClientAuth) {
            self.begin_again();
        }
        self.finish(&call, outcome);
    }

    /// Registers the client. If an older instance of it has left state, this has to be removed from
    /// the disk first. A job on the pool waits for that.
    fn begin_session(&mut self, call: &Call, admission: Admission) -> Done {
        let Some(session) = &self.connection.session else { return Err(Status::IllegalState) };
        let (name, verifier) = (&session.client_name, session.client_verifier);
        let (service, identity) = (&self.shared.service, admission.identity.clone());
        let (host, now_ns) = (host_of(&self.connection.peer), self.now.0);
        let registered = service.register_client_at_once(name, verifier, identity, host, now_ns);
        if registered.as_ref().err() != Some(&ServiceError::WouldWait) {
            return self.client_registered(call, admission, registered);
        }
        let (service, name) = (service.clone(), name.clone());
        // No second proof until then, which might begin the session twice.
        self.connection.proving = true;
        let (endpoint, work) = (self.connection.endpoint, Work::Register);
        let id = self.pending.insert(Pending { endpoint, call: *call, work });
        submit((&*self.shared.pool, self.place(0)), self.inbox, id, move || {
            let identity = admission.identity.clone();
            let registered = service.register_client(&name, verifier, identity, host, now_ns);
            JobResult::Call(Rest(Box::new(move |context, call| {
                context.client_registered(call, admission, registered)
            })))
        });
        Ok(())
    }

    /// Goes on after the wait for the disk.
    pub(super) fn registered(&mut self, id: PendingId, result: JobResult) {
        let Some(Pending { call, .. }) = self.pending.take(id) else { return };
        self.connection.proving = false;
        let session = self.connection.session.as_ref().map(|session| session.id.0);
        let outcome = match (self.connection.phase, result) {
            // No session must begin now.
            (Phase::Closing, _) => Ok(()),
            (_, JobResult::Call(rest)) => (rest.0)(self, &call),
            // The job panicked.
            _ => Err(Status::ServerFault),
        };
        let begun = self.connection.phase == Phase::Ready;
        if let Some(session) = session.filter(|_| !begun) {
            self.shared.service.durable.forget_session(&session);
        }
        if outcome.is_err() && call.procedure != Some(Procedure::ClientAuth) {
            self.begin_again();
        }
        self.finish(&call, outcome);
    }

    fn client_registered(
        &mut self,
        call: &Call,
        admission: Admission,
        registered: dafs_service::Result<Registered>,
    ) -> Done {
        let registered = registered.map_err(convert::status)?;
        let Some(session) = &mut self.connection.session else { return Err(Status::IllegalState) };
        let (trusted, identity) = (admission.trusted, admission.identity.clone());
        let auth = auth_result(&admission);
        registered.client.session_started();
        session.proven = Some(Proven { client: registered.client.clone(), admission });
        let (id, key, options) = (session.id, session.client_key, session.options);
        let entry = SessionEntry {
            record: registered.client.clone(),
            client: key,
            identity,
            fence_id: session.fence_id.clone(),
            checksums: options.use_checksums,
            back: None,
            batch_gate: Arc::default(),
            address: Address::new(self.inbox, self.port, self.connection.endpoint),
        };
        self.shared.registry.add_session(id, entry);
        let front: Weak<BackFront> = Arc::downgrade(self.front);
        registered.client.set_front(front);
        self.connection.establish(Phase::Ready);
        tracing::debug!(peer = %self.connection.peer, trusted, "session ready");
        if call.procedure == Some(Procedure::ClientConnectAuth) {
            let client_id = convert::client_id(key);
            let reply =
                ClientConnectAuthReply { session_id: id, client_id, options, auth, trusted };
            self.reply(call, &Reply::ClientConnectAuth(reply))
        } else {
            self.reply(call, &Reply::ClientAuth(ClientAuthReply { auth, trusted }))
        }
    }

    /// Binds an optional channel to a session of the same principal (DAFS 4.2).
    fn connect_bind(&mut self, call: &Call, args: &ConnectBind<'_>) -> Done {
        if args.channel_use == ChannelUse::RdmaRead {
            // DAFS O22.
            return Err(Status::RdmaReadChannelUnusable);
        }
        let entry = self.shared.registry.session(args.session_id).ok_or(Status::UnknownSession)?;
        let limits = &self.shared.limits;
        let options = SessionOptions {
            use_checksums: false,
            use_response_cache: false,
            max_credentials: 0,
            max_request_size: size(args.max_request_size, limits.request_bytes_max)?,
            max_response_size: size(args.max_response_size, limits.response_bytes_max)?,
            // DAFS O27: the client states the number of calls that it accepts.
            max_requests: match args.max_requests {
                0 => BACK_CREDITS_DEFAULT.into(),
                offered => offered.min(BACK_CREDITS_MAX.into()),
            },
            inline_write_header_size: 0,
            use_back_control_channel: true,
            use_rdma_read_channel: false,
        };
        self.connection.session = Some(Session {
            id: args.session_id,
            options,
            client_name: Vec::new(),
            client_verifier: 0,
            client_key: entry.client,
            fence_id: entry.fence_id,
            proven: None,
            ticket: None,
            last_open: None,
            replies: None,
        });
        let outcome = self.authenticate(call, &args.auth);
        if outcome.is_err() {
            self.begin_again();
        }
        outcome
    }

    /// Binds a channel after the proof of its binding was accepted. The identity must be that of
    /// the session.
    fn bind_done(&mut self, call: &Call, admission: &Admission) -> Done {
        let bound = self.connection.session.as_ref().ok_or(Status::IllegalState)?;
        let entry = self.shared.registry.session(bound.id).ok_or(Status::UnknownSession)?;
        if admission.identity != entry.identity {
            return Err(Status::NotAuthorized);
        }
        // Work that the former channel has begun must not overtake requests that the client submits
        // again on this channel.
        if !self.shared.registry.stop_batches(bound.id) {
            return Err(Status::Delay);
        }
        let reply = ConnectBindReply {
            max_request_size: bound.options.max_request_size,
            max_response_size: bound.options.max_response_size,
            max_requests: bound.options.max_requests,
            auth: auth_result(admission),
            trusted: admission.trusted,
        };
        let (id, options) = (bound.id, bound.options);
        let bytes = options.max_request_size.max(options.max_response_size);
        self.connection.receives.retire_shorter(bytes as usize);
        self.connection.establish(Phase::Bound);
        self.reply(call, &Reply::ConnectBind(reply))?;
        let address = Address::new(self.inbox, self.port, self.connection.endpoint);
        let Ok((former, batches)) = self.shared.registry.bind_back(id, &address) else {
            self.drop_session("the session of the channel has just ended");
            return Ok(());
        };
        if let Some(former) = former {
            // The client knows best which of its connections works.
            former.post(Mail::Leave("another back-control channel has taken its place"));
        }
        let credits = u16::try_from(options.max_requests).unwrap_or(1);
        self.connection.batch = Some(Box::new(Queue::of_channel(batches)));
        self.start_back(Back::new(id, entry.record, address, entry.checksums, credits));
        Ok(())
    }

    pub(super) fn null(&mut self, call: &Call) -> Done {
        self.reply(call, &Reply::Null)
    }

    pub(super) fn disconnect(&mut self, call: &Call) -> Done {
        self.reply(call, &Reply::Disconnect)?;
        self.connection.phase = Phase::Closing;
        if let Some(session) = &mut self.connection.session {
            // A client that disconnects in order has all the replies it wants.
            if session.replies.take().is_some() {
                self.shared.service.durable.forget_session(&session.id.0);
            }
        }
        tracing::debug!(peer = %self.connection.peer, reason = %DisconnectReason::Local, "leaving");
        self.link.adapter.disconnect(self.connection.endpoint);
        Ok(())
    }

    pub(super) fn sec_info(&mut self, call: &Call) -> Done {
        let authenticator = &self.shared.authenticator;
        let mut entries = [SecInfoEntry::None; 2];
        let mut count = 0;
        if authenticator.allows_none(&self.connection.peer) {
            count += 1;
        }
        if authenticator.has_passwords() {
            entries[count] = SecInfoEntry::Text;
            count += 1;
        }
        let entries = Seq::new(&entries[..count]);
        self.reply(call, &Reply::SecInfo(SecInfoReply { entries }))
    }

    /// Returns the server's own proof: with TEXT, a name and a password that the client compares.
    pub(super) fn server_auth(&mut self, call: &Call, args: &ServerAuth) -> Done {
        let authenticator = self.shared.authenticator.clone();
        let (id, password): (&[u8], &[u8]) = match (args.auth_type, authenticator.own_identity()) {
            (AuthType::None | AuthType::Default, _) => (b"", b""),
            (AuthType::Text, Some(own)) => (own.id.as_bytes(), own.password.as_bytes()),
            (AuthType::Text, None) | (AuthType::Gss, _) => return Err(Status::NotSupp),
        };
        self.reply(call, &Reply::ServerAuth(ServerAuthReply { id, password }))
    }

    pub(super) fn register_cred(&mut self, call: &Call, args: &RegisterCred<'_>) -> Done {
        let proven = self.connection.session.as_ref().and_then(|s| s.proven.as_ref());
        let proven = proven.ok_or(Status::NotAuthenticated)?;
        if !proven.admission.trusted {
            return Err(Status::NotAuthorized);
        }
        let cred = match args.credential {
            Credential::Id { uid, gid, groups } => {
                Cred { uid, gid, groups: groups.iter().collect() }
            }
            Credential::Default => proven.admission.cred.clone(),
            Credential::Name(_) | Credential::Gss(_) => return Err(Status::NotSupp),
        };
        let max = self.shared.limits.credentials_max as usize;
        let number = proven.client.register_cred(cred, max).ok_or(Status::NoCreds)?;
        let body = CredHandleBody { cred_handle: CredHandle(number) };
        self.reply(call, &Reply::RegisterCred(body))
    }

    pub(super) fn release_cred(&mut self, call: &Call, args: &CredHandleBody) -> Done {
        let proven = self.connection.session.as_ref().and_then(|s| s.proven.as_ref());
        let proven = proven.ok_or(Status::NotAuthenticated)?;
        if !proven.admission.trusted {
            return Err(Status::NotAuthorized);
        }
        if !proven.client.release_cred(args.cred_handle.0) {
            return Err(Status::CrHandConflict);
        }
        self.reply(call, &Reply::ReleaseCred)
    }
}

fn auth_result(admission: &Admission) -> AuthResult<'static> {
    match admission.identity.mechanism {
        "text" => AuthResult::Text,
        _ => AuthResult::None,
    }
}

/// Returns the size of messages for a client's request. 0 means no preference.
fn size(wish: u32, max: u32) -> Result<u32, Status> {
    match wish {
        0 => Ok(max),
        wish if wish < MESSAGE_BYTES_MIN => Err(Status::Inval),
        // Receive slots are adjacent, so their size keeps messages aligned.
        wish => Ok(wish.min(max) & !7),
    }
}

/// Returns the server's final answer to a client's requested options (DAFS 4.4), with the initial
/// credits.
fn negotiate(
    wish: &SessionOptions,
    limits: &SessionLimits,
) -> Result<(SessionOptions, u16), Status> {
    let max_request_size = size(wish.max_request_size, limits.request_bytes_max)?;
    let max_response_size = size(wish.max_response_size, limits.response_bytes_max)?;
    let initial = u32::from(limits.credits_initial);
    let credits = match wish.max_requests {
        0 => initial,
        wish => wish.min(initial),
    };
    let credits = u16::try_from(credits.max(1)).unwrap_or(limits.credits_initial);
    // DAFS O23: a multiple of 8, at least 136. A client without a wish gets ours.
    let padding = match wish.inline_write_header_size {
        0 => INLINE_WRITE_HEADER_BYTES,
        wish if dafs_wire::dafs::is_valid_inline_write_header_size(wish)
            && wish < max_request_size =>
        {
            wish
        }
        _ => INLINE_WRITE_HEADER_BYTES,
    };
    let credentials = match wish.max_credentials {
        0 => limits.credentials_max,
        wish => wish.min(limits.credentials_max),
    };
    let options = SessionOptions {
        use_checksums: wish.use_checksums,
        use_response_cache: wish.use_response_cache,
        max_credentials: credentials,
        max_request_size,
        max_response_size,
        max_requests: u32::from(credits),
        inline_write_header_size: padding,
        use_back_control_channel: wish.use_back_control_channel,
        use_rdma_read_channel: false,
    };
    Ok((options, credits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> SessionOptions {
        SessionOptions {
            use_checksums: true,
            use_response_cache: true,
            max_credentials: 0,
            max_request_size: 0,
            max_response_size: 5000,
            max_requests: 0,
            inline_write_header_size: 0,
            use_back_control_channel: true,
            use_rdma_read_channel: true,
        }
    }

    #[test]
    fn zero_means_the_servers_default() {
        let limits = SessionLimits::default();
        let (options, credits) = negotiate(&wish(), &limits).unwrap();
        assert_eq!(options.max_request_size, limits.request_bytes_max);
        assert_eq!(options.max_response_size, 5000);
        assert_eq!(credits, limits.credits_initial);
        assert!(options.use_checksums);
        assert!(!options.use_rdma_read_channel);
    }

    #[test]
    fn impossible_wishes_are_refused_or_replaced() {
        let limits = SessionLimits::default();
        let tiny = SessionOptions { max_response_size: 100, ..wish() };
        assert_eq!(negotiate(&tiny, &limits).unwrap_err(), Status::Inval);
        let odd = SessionOptions { inline_write_header_size: 137, ..wish() };
        let (options, _) = negotiate(&odd, &limits).unwrap();
        assert_eq!(options.inline_write_header_size, INLINE_WRITE_HEADER_BYTES);
        let many = SessionOptions { max_requests: 65_535, ..wish() };
        assert_eq!(negotiate(&many, &limits).unwrap().1, limits.credits_initial);
    }
}
