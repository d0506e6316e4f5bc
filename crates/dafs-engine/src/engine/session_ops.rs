//! Sessions: connection, authentication, bound channels, disconnection.

use super::back::{Address, BackFront};
use super::binding::{bind_done, connect_bind};
use super::certificate;
use super::connection::{Channel, Phase, Session};
use super::convert;
use super::data_door::admit_by_ticket;
use super::durable::journal_session;
use super::gss;
use super::options::negotiate;
use super::registry::{SessionEntry, host_of};
use super::request::{Call, Context, Done};
use super::work::{Arrival, JobDone, JobResult, Pending, PendingId, Rest, Work, submit};
use crate::auth::{Admission, NotProven, Proof};
use crate::limits::{FIRST_MESSAGE_BYTES, PROOFS_MAX};
use dafs_dat::DisconnectReason;
use dafs_service::durable::Settled;
use dafs_service::{
    Client, Newcomer, Registered, ServiceError, SessionReplies, Subject, is_fence_id,
};
use dafs_store::Wait;
use dafs_wire::dafs::{
    AuthRequest, AuthResult, ByteOrder, ClientAuth, ClientAuthReply, ClientConnect,
    ClientConnectAuth, ClientConnectAuthReply, ClientConnectReply, Procedure, Reply, Request,
    SessionId, SessionOptions, Status,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Handles the message that begins a connection.
pub(super) fn first_request(cx: &mut Context<'_>, call: &Call, request: &Request<'_>) -> Done {
    match (cx.connection.channel, request) {
        (Channel::Operation, Request::ClientConnect(args)) => client_connect(cx, call, args),
        (Channel::Operation, Request::ClientConnectAuth(args)) => {
            client_connect_auth(cx, call, args)
        }
        // A data server sends no calls, and shows no memory.
        (Channel::BackControl | Channel::Optimistic, Request::ConnectBind(_))
            if cx.shared.data.is_some() =>
        {
            Err(Status::NotSupp)
        }
        (Channel::BackControl | Channel::Optimistic, Request::ConnectBind(args)) => {
            connect_bind(cx, call, args)
        }
        (_, Request::ConnectBind(_) | Request::ClientConnect(_))
        | (_, Request::ClientConnectAuth(_)) => Err(Status::IllegalState),
        _ => Err(Status::NotAuthenticated),
    }
}

fn client_connect(cx: &mut Context<'_>, call: &Call, args: &ClientConnect<'_>) -> Done {
    let name = args.client_id_string;
    let verifier = u64::from_be_bytes(args.client_verifier.0);
    let (session, credits) = new_session(cx, &args.options, name, verifier, args.fence_id)?;
    let reply = ClientConnectReply {
        session_id: session.id,
        client_id: convert::client_id(session.client_key),
        options: session.options,
    };
    start_session(cx, session, credits)?;
    cx.reply(call, &Reply::ClientConnect(reply))
}

fn client_connect_auth(cx: &mut Context<'_>, call: &Call, args: &ClientConnectAuth<'_>) -> Done {
    let name = args.client_id_string;
    let verifier = u64::from_be_bytes(args.client_verifier.0);
    let (session, credits) = new_session(cx, &args.options, name, verifier, args.fence_id)?;
    start_session(cx, session, credits)?;
    let outcome = authenticate(cx, call, &args.auth);
    if outcome.is_err() {
        begin_again(cx);
    }
    outcome
}

/// Resets a connection after a failed message that connects and authenticates, because that is
/// atomic. The next message is a first message again, and so may be as long as one.
pub(super) fn begin_again(cx: &mut Context<'_>) {
    cx.connection.phase = Phase::New;
    cx.connection.context = None;
    if let Some(session) = cx.connection.session.take()
        && let Some(proven) = &session.proven
    {
        cx.shared.registry.remove_session(session.id);
        proven.client.session_ended();
    }
    cx.connection.receives.retire_shorter(FIRST_MESSAGE_BYTES as usize);
}

/// Makes the session for a client's requested options (DAFS 4.4).
fn new_session(
    cx: &Context<'_>,
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
    if !fence_id.is_empty() && cx.shared.service.fences.is_fenced_everywhere(&subject) {
        return Err(Status::Fenced);
    }
    let (options, credits) = negotiate(wish, &cx.shared.limits)?;
    let little_endian = cx.connection.order == ByteOrder::Little;
    let session = Session {
        id: new_session_id(cx),
        options,
        client_name: name.to_vec(),
        client_verifier: verifier,
        client_key: cx.shared.service.clients.key(name, verifier),
        arrival: cx.shared.service.clients.arrival(),
        fence_id: fence_id.to_vec(),
        proven: None,
        ticket: None,
        last_open: None,
        replies: options.use_response_cache.then(|| SessionReplies::new(little_endian)),
    };
    Ok((session, credits))
}

/// Returns an id of no session whose replies may still be requested.
fn new_session_id(cx: &Context<'_>) -> SessionId {
    loop {
        let id = cx.shared.registry.new_session_id();
        if !cx.shared.registry.has_session(id) && !cx.shared.service.replies.keeps(id.0) {
            return id;
        }
    }
}

/// Enters the session. The reply to the current request grants its credits.
fn start_session(cx: &mut Context<'_>, session: Session, credits: u16) -> Result<(), Status> {
    // The first message's slot is shorter than a request of this session may be, so it is not
    // posted again.
    let bytes = session.options.max_request_size as usize;
    let connection = &mut *cx.connection;
    connection.receives.retire_shorter(bytes);
    let missing = (usize::from(credits) + 1).saturating_sub(connection.receives.free_count());
    if missing > 0 {
        connection
            .receives
            .grow(&mut *cx.link.adapter, cx.link.domain, missing, bytes)
            .map_err(|_| Status::Resource)?;
    }
    connection.phase = Phase::Unproven;
    connection.session = Some(session);
    Ok(())
}

pub(super) fn client_auth(cx: &mut Context<'_>, call: &Call, args: &ClientAuth<'_>) -> Done {
    authenticate(cx, call, &args.auth)
}

/// Checks a proof. Only one check runs at a time, because two successes would begin two
/// sessions. Their number is limited, so that a connection is of no use for password guesses.
pub(super) fn authenticate(cx: &mut Context<'_>, call: &Call, auth: &AuthRequest<'_>) -> Done {
    if cx.connection.proving {
        return Err(Status::IllegalState);
    }
    if !gss::goes_on(auth) {
        cx.connection.context = None;
        cx.connection.proofs += 1;
    }
    if cx.connection.proofs > PROOFS_MAX {
        cx.drop_session("too many proofs of identity have failed");
        return Ok(());
    }
    if let Some(role) = cx.shared.data.clone() {
        let admission = admit_by_ticket(cx, &role, auth);
        return admission_done(cx, call, admission.ok_or_else(|| note_refusal(cx)));
    }
    let proof = match *auth {
        AuthRequest::None | AuthRequest::Default => Proof::None,
        AuthRequest::Text { id, password } => {
            if !cx.shared.authenticator.takes_password(&cx.connection.peer) {
                return Err(Status::NotSupp);
            }
            Proof::Text { user: id.to_vec(), password: password.to_vec() }
        }
        AuthRequest::Gss { procedure, service, token } => {
            return gss::take_token(cx, call, (procedure, service), token);
        }
    };
    let peer = cx.connection.peer.clone();
    if let Proof::None = proof {
        if let Some(user) = cx.shared.authenticator.certificate(&peer) {
            return certificate::take(cx, call, user);
        }
        let admission = cx.shared.authenticator.admit(&peer, &proof);
        return admission_done(cx, call, admission.ok_or_else(|| note_refusal(cx)));
    }
    let authenticator = cx.shared.authenticator.clone();
    let (origin, now) = (cx.connection.owner.origin, cx.now);
    if !authenticator.may_check(origin, &proof, now) {
        return Err(Status::Delay);
    }
    cx.connection.proving = true;
    let gone = cx.connection.gone.clone();
    let id = cx.defer(call, Work::Authenticate);
    submit((&*cx.shared.proofs, cx.place(0)), cx.inbox, id, move || {
        // A client that has gone needs no answer, and others wait for their turn.
        let admission = match gone.load(Ordering::Relaxed) {
            true => Err(NotProven::TooMany),
            false => authenticator.prove((&peer, origin), &proof, now),
        };
        JobResult::Admission(admission)
    });
    Ok(())
}

fn note_refusal(cx: &Context<'_>) -> NotProven {
    tracing::warn!(peer = %cx.connection.peer, "authentication failed");
    NotProven::Wrong
}

/// Handles the result of a check. `None` if it failed to run.
pub(super) fn proof_checked(
    cx: &mut Context<'_>,
    call: &Call,
    result: Option<Result<Admission, NotProven>>,
) -> Done {
    cx.connection.proving = false;
    let outcome = match result {
        Some(admission) => admission_done(cx, call, admission),
        None => Err(Status::ServerFault),
    };
    if outcome.is_err() && call.procedure != Some(Procedure::ClientAuth) {
        begin_again(cx);
    }
    outcome
}

/// Handles an accepted or refused proof.
pub(super) fn admission_done(
    cx: &mut Context<'_>,
    call: &Call,
    admission: Result<Admission, NotProven>,
) -> Done {
    let admission = admission.map_err(|why| match why {
        NotProven::Wrong => Status::NotAuthorized,
        NotProven::TooMany => Status::Delay,
    })?;
    if call.procedure == Some(Procedure::ConnectBind) {
        return bind_done(cx, call, &admission);
    }
    if cx.connection.phase == Phase::Ready {
        return gss::proven_again(cx, call, admission);
    }
    let Some(session) = &cx.connection.session else { return Err(Status::IllegalState) };
    if session.replies.is_none() || !cx.shared.service.durable.has_journal() {
        return begin_session(cx, call, admission);
    }
    // The client may ask for replies of the session as soon as it knows of it.
    let kept = journal_session(session, &cx.connection.peer, &admission.identity);
    let (endpoint, work) = (cx.connection.endpoint, Work::KeepSession(Box::new(admission)));
    let pending = cx.pending.insert(Pending::new(endpoint, call, work));
    cx.connection.proving = true;
    match cx.shared.service.durable.keep_session(&kept, cx.notify(pending)) {
        Settled::Later => Ok(()),
        Settled::Now => session_known(cx, pending),
    }
}

/// Goes on when the journal has the session, or takes no more. In the latter case its changes
/// are refused.
fn session_known(cx: &mut Context<'_>, id: PendingId) -> Done {
    let taken = cx.pending.take(id);
    let Some(Pending { call, work: Work::KeepSession(admission), .. }) = taken else {
        return Ok(());
    };
    cx.connection.proving = false;
    let Some(session) = cx.connection.session.as_ref().map(|session| session.id.0) else {
        return Ok(());
    };
    if cx.connection.phase == Phase::Closing {
        cx.shared.service.durable.forget_session(&session);
        return Ok(());
    }
    let outcome = begin_session(cx, &call, *admission);
    if outcome.is_err() {
        cx.shared.service.durable.forget_session(&session);
    }
    outcome
}

/// Goes on some time after the request, when the journal has the session.
pub(super) fn session_kept(cx: &mut Context<'_>, id: PendingId) {
    let Some(call) = cx.pending.get_mut(id).map(|pending| pending.call) else { return };
    let outcome = session_known(cx, id);
    if outcome.is_err() && call.procedure != Some(Procedure::ClientAuth) {
        begin_again(cx);
    }
    cx.finish(&call, outcome);
}

/// Registers the client. If an older instance of it has left state, this has to be removed from
/// the disk first. A job on the pool waits for that.
fn begin_session(cx: &mut Context<'_>, call: &Call, admission: Admission) -> Done {
    let Some(session) = &cx.connection.session else { return Err(Status::IllegalState) };
    let (name, host) = (&session.client_name, host_of(&cx.connection.peer));
    let (verifier, arrival) = (session.client_verifier, session.arrival);
    let (service, now_ns) = (&cx.shared.service, cx.now.0);
    let identity = admission.identity.clone();
    let newcomer = Newcomer { name, verifier, identity, host, arrival };
    let registered = service.register_newcomer(newcomer, now_ns, Wait::Never);
    if registered.as_ref().err() != Some(&ServiceError::WouldWait) {
        return client_registered(cx, call, admission, registered);
    }
    let (service, name) = (service.clone(), name.clone());
    // No second proof until then, which might begin the session twice.
    cx.connection.proving = true;
    let (endpoint, work) = (cx.connection.endpoint, Work::Register);
    let id = cx.pending.insert(Pending::new(endpoint, call, work));
    submit((&*cx.shared.pool, cx.place(0)), cx.inbox, id, move || {
        let identity = admission.identity.clone();
        let newcomer = Newcomer { name: &name, verifier, identity, host, arrival };
        let registered = service.register_newcomer(newcomer, now_ns, Wait::Allowed);
        JobResult::Call(Rest(Box::new(move |cx, call| {
            client_registered(cx, call, admission, registered)
        })))
    });
    Ok(())
}

/// Goes on after the wait for the disk.
pub(super) fn registered(cx: &mut Context<'_>, id: PendingId, result: JobResult) {
    let Some(Pending { call, .. }) = cx.pending.take(id) else { return };
    cx.connection.proving = false;
    let session = cx.connection.session.as_ref().map(|session| session.id.0);
    let outcome = match (cx.connection.phase, result) {
        // No session must begin now.
        (Phase::Closing, _) => Ok(()),
        (_, JobResult::Call(rest)) => (rest.0)(cx, &call),
        // The job panicked.
        _ => Err(Status::ServerFault),
    };
    let begun = cx.connection.phase == Phase::Ready;
    if let Some(session) = session.filter(|_| !begun) {
        cx.shared.service.durable.forget_session(&session);
    }
    if outcome.is_err() && call.procedure != Some(Procedure::ClientAuth) {
        begin_again(cx);
    }
    cx.finish(&call, outcome);
}

fn client_registered(
    cx: &mut Context<'_>,
    call: &Call,
    admission: Admission,
    registered: dafs_service::Result<Registered>,
) -> Done {
    let registered = registered.map_err(convert::status)?;
    if !cx.shared.authenticator.still_admits(&admission) {
        // The user was removed during the check of the password. Clients that are registered by now are
        // found and ended by the removal.
        return Err(Status::NotAuthorized);
    }
    let Some(session) = &mut cx.connection.session else { return Err(Status::IllegalState) };
    let (trusted, identity) = (admission.trusted, admission.identity.clone());
    registered.client.session_started();
    let kept = admission.without_token();
    session.proven = Some(super::proven::Proven::new(registered.client.clone(), kept));
    let (id, key, options) = (session.id, session.client_key, session.options);
    let entry = SessionEntry {
        record: registered.client.clone(),
        client: key,
        identity,
        fence_id: session.fence_id.clone(),
        checksums: options.use_checksums,
        back: None,
        optimistic: None,
        security: cx.connection.peer.transport_security(),
        batch_gate: Arc::default(),
        address: Address::new(cx.inbox, cx.port, cx.connection.endpoint),
    };
    cx.shared.registry.add_session(id, entry);
    registered.client.set_front(Arc::<BackFront>::downgrade(cx.front));
    let address = cx.connection.peer.address.map(|address| address.to_string());
    registered.client.set_peer(address.unwrap_or_default());
    cx.connection.establish(Phase::Ready);
    cx.connection.proofs = 0;
    cx.begin_share();
    let auth = auth_result(&admission);
    tracing::debug!(peer = %cx.connection.peer, trusted, "session ready");
    if call.procedure == Some(Procedure::ClientConnectAuth) {
        let client_id = convert::client_id(key);
        let reply = ClientConnectAuthReply { session_id: id, client_id, options, auth, trusted };
        cx.reply(call, &Reply::ClientConnectAuth(reply))
    } else {
        cx.reply(call, &Reply::ClientAuth(ClientAuthReply { auth, trusted }))
    }
}

/// Ends a session of this client that is still in use. Returns true when the request waits for
/// that.
pub(crate) fn await_end(
    cx: &mut Context<'_>,
    call: &Call,
    id: SessionId,
    client: &Client,
) -> Result<bool, Status> {
    if cx.connection.session.as_ref().is_some_and(|own| own.id == id) {
        // It would wait for its own end.
        return Err(Status::Inval);
    }
    if !cx.shared.registry.is_live(id, client) {
        return Ok(false);
    }
    let pending = cx.defer(call, Work::Again);
    let inbox = cx.inbox.clone();
    let over = move || {
        let result = JobResult::Unit(Ok(()));
        inbox.push(JobDone(Arrival::Result { pending, result }));
    };
    cx.shared.registry.end_session(id, client, Box::new(over));
    Ok(true)
}

pub(crate) fn disconnect(cx: &mut Context<'_>, call: &Call) -> Done {
    cx.reply(call, &Reply::Disconnect)?;
    cx.connection.phase = Phase::Closing;
    if let Some(session) = &mut cx.connection.session {
        // A client that disconnects in order has all the replies it wants.
        if session.replies.take().is_some() {
            cx.shared.service.durable.forget_session(&session.id.0);
        }
    }
    tracing::debug!(peer = %cx.connection.peer, reason = %DisconnectReason::Local, "leaving");
    cx.link.adapter.disconnect(cx.connection.endpoint);
    Ok(())
}

/// Returns what a client is told of its proof.
pub(super) fn auth_result(admission: &Admission) -> AuthResult<'_> {
    match (&admission.gss, admission.identity.mechanism) {
        (Some(proof), _) => AuthResult::Gss { major: 0, minor: 0, token: &proof.token },
        (None, "text") => AuthResult::Text,
        _ => AuthResult::None,
    }
}
