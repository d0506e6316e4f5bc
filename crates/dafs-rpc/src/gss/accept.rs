//! The server's decision about one call with a credential of RPCSEC_GSS (RFC 2203 section 5.3.3).
//!
//! Invariants
//! * No call is served whose header was not verified with the keys of its context, and whose
//!   sequence number was not fresh. The window moves after both.
//! * An unknown context and a wrong verifier have one answer, so a stranger learns nothing about
//!   handles.

use super::contexts::{Contexts, count};
use super::establish::Establishing;
use super::verified::Verified;
use super::window::Freshness;
use dafs_dat::connections::Origin;
use dafs_wire::rpc::gss::{Credential, InitArgs, Protected};
use dafs_wire::rpc::{AuthFlavor, AuthStatus, CallHeader, OpaqueAuth};
use std::sync::Arc;

/// The procedure that every program has, and that control requests use.
const NULL_PROCEDURE: u32 = 0;

/// A call with a credential of flavor [`AuthFlavor::RPCSEC_GSS`].
#[derive(Debug, Clone, Copy)]
pub struct GssCall<'a> {
    /// The whole message, from the XID on.
    pub message: &'a [u8],
    /// Its header.
    pub header: &'a CallHeader<'a>,
    /// The bytes after the header.
    pub body: &'a [u8],
    /// The host of the caller, for limits.
    pub origin: Origin,
    /// The monotonic time, in nanoseconds.
    pub now_ns: u64,
}

/// The server's decision about a call.
#[derive(Debug)]
pub enum Accepted<'a> {
    /// Serve the call. [`Verified::body`] finds its arguments in the body.
    Serve(Verified),
    /// Pass the token to the mechanism on a thread of a pool, and send the
    /// [`super::InitAnswer`].
    Establish {
        /// The context.
        establishing: Establishing,
        /// The token of the initiator, a part of the message.
        token: &'a [u8],
    },
    /// The context was destroyed: answer SUCCESS without results, with [`Verified::verifier`]. The
    /// body of such a call means nothing, and its reply has none to protect.
    Destroy(Verified),
    /// Deny the call.
    Refuse(AuthStatus),
    /// Accept a request for a context with GARBAGE_ARGS and an empty verifier.
    Garbage,
    /// Too many requests for contexts wait for a thread, or the host begins too many in a second: accept the
    /// request with SYSTEM_ERR and an empty verifier.
    Busy,
    /// Close the connection without an answer. The call is a replay, or so late that the server
    /// cannot tell. An honest client connects again and sends the call with a new number, and a
    /// server of NFSv4 loses no request on a connection that stays (RFC 8881 section 2.9.2).
    CloseConnection,
}

/// Decides about a call. It asks `may_establish` before a request for a context takes anything of
/// the limits.
pub fn accept<'a>(
    contexts: &Arc<Contexts>,
    call: &GssCall<'a>,
    may_establish: impl FnOnce() -> bool,
) -> Accepted<'a> {
    let credential = match Credential::from_body(call.header.credential.body) {
        Ok(credential) => credential,
        Err(error) => return Accepted::Refuse(error.status()),
    };
    let is_control = !matches!(credential, Credential::Data(_));
    if is_control && call.header.procedure != NULL_PROCEDURE {
        return Accepted::Refuse(AuthStatus::BadCredential);
    }
    match credential {
        Credential::Init => establish(contexts, None, call, may_establish),
        Credential::ContinueInit { handle } => {
            establish(contexts, Some(handle), call, may_establish)
        }
        Credential::Data(fields) => match verify(contexts, &fields, call) {
            Ok(verified) => Accepted::Serve(verified),
            Err(denied) => denied,
        },
        Credential::Destroy(fields) => match verify(contexts, &fields, call) {
            Ok(verified) => {
                contexts.destroy(verified.context());
                Accepted::Destroy(verified)
            }
            Err(denied) => denied,
        },
    }
}

/// A request for a new context, or with a handle for the next step of one.
fn establish<'a>(
    contexts: &Arc<Contexts>,
    handle: Option<&[u8]>,
    call: &GssCall<'a>,
    may_establish: impl FnOnce() -> bool,
) -> Accepted<'a> {
    if call.header.verifier != OpaqueAuth::NONE {
        return Accepted::Refuse(AuthStatus::BadVerifier);
    }
    let Ok(InitArgs { token }) = InitArgs::from_args(call.body) else {
        return Accepted::Garbage;
    };
    if !may_establish() {
        return Accepted::Refuse(AuthStatus::TooWeak);
    }
    let establishing = match handle {
        None => contexts.begin(call.origin, token.len(), call.now_ns).ok_or(Accepted::Busy),
        Some(handle) => {
            let request = (call.origin, token.len());
            contexts.resume(handle, request, call.now_ns).ok_or_else(|| {
                count(&contexts.counters.unknown, 1);
                Accepted::Refuse(AuthStatus::GssCredentialProblem)
            })
        }
    };
    match establishing {
        Ok(establishing) => Accepted::Establish { establishing, token },
        Err(denied) => denied,
    }
}

/// Verifies the header of a call in an established context, and claims its sequence number.
fn verify<'a>(
    contexts: &Contexts,
    fields: &Protected<'_>,
    call: &GssCall<'a>,
) -> Result<Verified, Accepted<'a>> {
    let Some(context) = contexts.find(fields.handle, call.now_ns) else {
        count(&contexts.counters.unknown, 1);
        return Err(Accepted::Refuse(AuthStatus::GssCredentialProblem));
    };
    let verifier = call.header.verifier;
    let is_good = verifier.flavor == AuthFlavor::RPCSEC_GSS
        && call
            .message
            .get(..call.header.bytes_to_verifier())
            .is_some_and(|covered| context.keys().verify(&[covered], verifier.body).is_ok());
    if !is_good {
        count(&contexts.counters.unverified, 1);
        return Err(Accepted::Refuse(AuthStatus::GssCredentialProblem));
    }
    match context.window().claim(fields.sequence) {
        Freshness::Fresh => {
            contexts.use_now(&context, call.now_ns);
            Ok(Verified::new(context, fields.sequence, fields.service))
        }
        Freshness::Seen | Freshness::Below => {
            count(&contexts.counters.replayed, 1);
            Err(Accepted::CloseConnection)
        }
        Freshness::TooLarge => Err(Accepted::Refuse(AuthStatus::GssContextProblem)),
    }
}
