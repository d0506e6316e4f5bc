//! CLIENT_AUTH, CLIENT_CONNECT_AUTH and CONNECT_BIND by GSS: which tokens are taken, the rounds of a context,
//! and proofs that end (DAFS 4.3, 4.5, O6, O13).
//!
//! Invariants
//! * A connection has at most one context on the way. A token that begins another one ends it.
//! * All tokens are taken on the pool, in a lane of their own, because that reads files and asks the database of
//!   users.
//! * The identity of a session never changes: another proof must be of the same principal.

use super::connection::Phase;
use super::convert;
use super::request::{Call, Context, Done};
use super::session_ops::{admission_done, auth_result, authenticate, begin_again};
use super::work::{JobResult, Work, submit};
use crate::auth::Admission;
use crate::gss::{GssStep, PartialContext};
use crate::limits::GSS_LANE;
use dafs_gss::limits::TOKEN_BYTES_MAX;
use dafs_wire::dafs::{
    AuthRequest, AuthResult, ClientAuth, ClientAuthReply, ClientConnectAuthReply, ErrorBody,
    GssProcedure, GssService, Procedure, Reply, SessionId, SessionOptions, Status,
};
use std::sync::atomic::Ordering;

/// GSS_S_CONTINUE_NEEDED (RFC 2744 3.9.1).
const CONTINUE_NEEDED: u32 = 1;

/// GSS_S_FAILURE (RFC 2744 3.9.1).
const FAILURE: u32 = 13 << 16;

/// True for a token that is not the first of its context, and so no attempt of its own.
pub(super) fn goes_on(auth: &AuthRequest<'_>) -> bool {
    matches!(auth, AuthRequest::Gss { procedure: GssProcedure::ContinueInit, .. })
}

/// Has a token taken on the pool.
pub(super) fn take_token(
    cx: &mut Context<'_>,
    call: &Call,
    (procedure, service): (GssProcedure, GssService),
    token: &[u8],
) -> Done {
    let gss = cx.shared.authenticator.gss_for(&cx.connection.peer).cloned();
    let gss = gss.ok_or(Status::NotSupp)?;
    if service != GssService::Auth && !cx.connection.is_private() {
        // Nothing protects the messages there.
        return Err(Status::NotSupp);
    }
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return Err(Status::Inval);
    }
    let context = match procedure {
        GssProcedure::Init => None,
        GssProcedure::ContinueInit => {
            Some(cx.connection.context.take().ok_or(Status::IllegalState)?)
        }
    };
    cx.connection.proving = true;
    let (peer, now, gone) = (cx.connection.peer.clone(), cx.now, cx.connection.gone.clone());
    let token = token.to_vec();
    let id = cx.defer(call, Work::Authenticate);
    submit((&*cx.shared.pool, cx.place(GSS_LANE)), cx.inbox, id, move || {
        // A client that has gone needs no answer, and others wait for their turn.
        JobResult::Gss(match gone.load(Ordering::Relaxed) {
            true => GssStep::Unknown,
            false => gss.take(context, &token, (&peer, now)),
        })
    });
    Ok(())
}

/// Goes on with the result of a token.
pub(super) fn token_taken(cx: &mut Context<'_>, call: &Call, step: GssStep) -> Done {
    cx.connection.proving = false;
    let outcome = match step {
        GssStep::Continue { context, token } => return ask_for_more(cx, call, context, &token),
        GssStep::Failed { major, minor } => {
            refuse(cx, call, (major, minor));
            return Ok(());
        }
        GssStep::Done(admission) => admission_done(cx, call, Ok(*admission)),
        GssStep::Unknown => Err(Status::Delay),
    };
    if outcome.is_err() {
        fall_back(cx, call);
    }
    outcome
}

/// A message that connects and authenticates is atomic.
fn fall_back(cx: &mut Context<'_>, call: &Call) {
    if call.procedure != Some(Procedure::ClientAuth) {
        begin_again(cx);
    }
}

/// Answers that the client must send another token.
fn ask_for_more(cx: &mut Context<'_>, call: &Call, context: PartialContext, token: &[u8]) -> Done {
    let auth = AuthResult::Gss { major: CONTINUE_NEEDED, minor: 0, token };
    let session = cx.connection.session.as_ref();
    let body = match (call.procedure, session) {
        (Some(Procedure::ClientAuth), _) => {
            ErrorBody::ClientAuth(ClientAuthReply { auth, trusted: false })
        }
        (Some(Procedure::ClientConnectAuth), Some(session)) => {
            ErrorBody::ClientConnectAuth(ClientConnectAuthReply {
                session_id: session.id,
                client_id: convert::client_id(session.client_key),
                options: session.options,
                auth,
                trusted: false,
            })
        }
        // CONNECT_BIND has no further rounds.
        _ => {
            tracing::info!(peer = %cx.connection.peer, "a channel was not bound: GSS takes two rounds");
            fall_back(cx, call);
            return Err(Status::NotAuthorized);
        }
    };
    cx.connection.context = Some(context);
    cx.fail_with(call, Status::GssContinueInit, &body);
    Ok(())
}

/// Answers that a proof was refused, with the reason in numbers.
fn refuse(cx: &mut Context<'_>, call: &Call, (major, minor): (u32, u32)) {
    fall_back(cx, call);
    let auth = AuthResult::Gss { major, minor, token: b"" };
    let body = match call.procedure {
        Some(Procedure::ClientAuth) => {
            ErrorBody::ClientAuth(ClientAuthReply { auth, trusted: false })
        }
        Some(Procedure::ClientConnectAuth) => {
            ErrorBody::ClientConnectAuth(ClientConnectAuthReply {
                session_id: SessionId::ZERO,
                client_id: dafs_wire::dafs::ClientId::ZERO,
                options: SessionOptions::default(),
                auth,
                trusted: false,
            })
        }
        _ => ErrorBody::None,
    };
    cx.fail_with(call, Status::NotAuthorized, &body);
}

/// CLIENT_AUTH in a session in use: the client renews its proof before the end, or after it.
pub(super) fn prove_again(cx: &mut Context<'_>, call: &Call, args: &ClientAuth<'_>) -> Done {
    if cx.shared.data.is_some() {
        return Err(Status::NotSupp);
    }
    let proven = cx.connection.proven().ok_or(Status::NotAuthenticated)?;
    if proven.admission.gss.is_none() {
        // Other proofs do not end.
        return Err(Status::IllegalState);
    }
    if !matches!(args.auth, AuthRequest::Gss { .. }) {
        return Err(Status::NotAuthorized);
    }
    authenticate(cx, call, &args.auth)
}

/// Takes another proof in a session in use.
pub(super) fn proven_again(cx: &mut Context<'_>, call: &Call, admission: Admission) -> Done {
    debug_assert_eq!(cx.connection.phase, Phase::Ready);
    let peer = cx.connection.peer.clone();
    let proven = cx.connection.session.as_mut().and_then(|session| session.proven.as_mut());
    let proven = proven.ok_or(Status::IllegalState)?;
    if proven.admission.identity != admission.identity {
        tracing::warn!(%peer, "the session of one principal was to become that of another");
        refuse(cx, call, (FAILURE, 0));
        return Ok(());
    }
    let trusted = admission.trusted;
    proven.admission = admission.without_token();
    if !trusted {
        // It may read no more than its user may.
        cx.shared.service.end_small_grants(&proven.client);
    }
    proven.client.renew(cx.now.0);
    cx.connection.proofs = 0;
    let auth = auth_result(&admission);
    cx.reply(call, &Reply::ClientAuth(ClientAuthReply { auth, trusted }))
}
