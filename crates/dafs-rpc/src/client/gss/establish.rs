//! The exchange that creates a context, and the one that ends it (RFC 2203 section 5.2, 5.4).
//!
//! Invariants
//! * A context is used only if the server has proven the keys: its verifier is the MIC of the
//!   window.
//! * The exchange is bounded in rounds and in bytes.

use super::context::Context;
use super::mechanism::{Established, Mechanism, PartialContext, Step};
use super::outgoing::{Head, Outgoing};
use super::protection::Protection;
use crate::client::core::Results;
use crate::client::error::CallError;
use crate::client::{Pending, Procedure, Request, RpcClient};
use crate::limits::{
    GSS_BUSY_PAUSE, GSS_BUSY_TRIES_MAX, GSS_FAREWELL_TIMEOUT, GSS_INIT_RESULTS_BYTES,
    GSS_ROUNDS_MAX,
};
use dafs_wire::rpc::gss::{Credential, HANDLE_BYTES_MAX, InitArgs, InitResults, TOKEN_BYTES_MAX};
use dafs_wire::rpc::{AcceptStatus, AuthFlavor, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Decoder, Encode};
use std::time::Instant;

/// The procedure that every program has, and that control requests use.
const NULL_PROCEDURE: u32 = 0;

/// Creates a context by calls to the program of `procedure`.
///
/// # Errors
/// [`CallError::Context`] when the mechanism or the server refuses; else those of a call.
pub(super) fn establish(
    rpc: &RpcClient,
    procedure: Procedure,
    mechanism: &dyn Mechanism,
    number: u64,
) -> Result<Context, CallError> {
    let mut partial = mechanism.begin();
    let (mut own, mut handle, mut token) = (None, None, Vec::new());
    for _ in 0..GSS_ROUNDS_MAX {
        let next = match &own {
            None => step(&mut *partial, &token, &mut own)?,
            Some(_) => return Err(context("the server asks for more tokens than there are")),
        };
        if next.len() > TOKEN_BYTES_MAX {
            return Err(context("the ticket is too large: it has more than 64 KiB"));
        }
        let reply = exchange(rpc, procedure, handle.as_deref(), &next)?;
        let (verifier, results) = accepted(&reply)?;
        let results = Decoder::new(results).value().map_err(|_| CallError::Malformed)?;
        match results {
            InitResults::Failed { major, minor } => return Err(refused(major, minor)),
            InitResults::Continue { handle: given, token: answer, .. } => {
                handle = Some(given.to_vec());
                token = answer.to_vec();
            }
            InitResults::Complete { handle, window, token, .. } => {
                if own.is_none() {
                    step(&mut *partial, token, &mut own)?;
                }
                let Some(established) = own else {
                    return Err(context("the server is content before it has proven itself"));
                };
                let now = Instant::now();
                return proven(Context::new(number, handle, window, established, now), verifier);
            }
        }
    }
    Err(context("the server asks for more and more tokens"))
}

/// The context, if the verifier is the MIC of its window.
fn proven(context: Context, verifier: OpaqueAuth<'_>) -> Result<Context, CallError> {
    let is_proven = verifier.flavor == AuthFlavor::RPCSEC_GSS
        && context.handle.len() <= HANDLE_BYTES_MAX
        && context.is_mic_of(context.window, verifier.body);
    if is_proven { Ok(context) } else { Err(CallError::Unverified) }
}

/// Passes a token to the mechanism; returns the next one.
fn step(
    partial: &mut dyn PartialContext,
    token: &[u8],
    own: &mut Option<Established>,
) -> Result<Vec<u8>, CallError> {
    match partial.step(token) {
        Step::Continue { token } => Ok(token),
        Step::Complete { token, established } => {
            *own = Some(established);
            Ok(token)
        }
        Step::Failed(text) => Err(CallError::Context(text)),
    }
}

/// Sends a token. While the server has too many others to establish contexts with, the client
/// retries a few times.
fn exchange(
    rpc: &RpcClient,
    procedure: Procedure,
    handle: Option<&[u8]>,
    token: &[u8],
) -> Result<Results, CallError> {
    let credential = match handle {
        None => Credential::Init.encoded(),
        Some(handle) => Credential::ContinueInit { handle }.encoded(),
    };
    let args = InitArgs { token }.encoded();
    let mut pause = GSS_BUSY_PAUSE;
    for _ in 1..GSS_BUSY_TRIES_MAX {
        let reply = control(rpc, procedure, Head::Control(&credential), &args)?.wait()?;
        if !matches!(accepted(&reply), Err(CallError::NotDone(AcceptStatus::SystemError))) {
            return Ok(reply);
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    control(rpc, procedure, Head::Control(&credential), &args)?.wait()
}

/// Calls NULL of a program. The outcome is the whole reply.
fn control(
    rpc: &RpcClient,
    procedure: Procedure,
    head: Head<'_>,
    args: &[u8],
) -> Result<Pending, CallError> {
    let args = [args];
    let procedure = Procedure { procedure: NULL_PROCEDURE, ..procedure };
    let request = Request::new(procedure, &args, GSS_INIT_RESULTS_BYTES);
    rpc.dispatch(&Outgoing { request: &request, head, has_data: false }, true)
}

/// Ends a context at the server.
pub(super) fn destroy(
    rpc: &RpcClient,
    procedure: Procedure,
    protection: &Protection,
) -> Result<(), CallError> {
    let call = control(rpc, procedure, Head::Protected(protection), &[])?;
    protection.results(call.within(GSS_FAREWELL_TIMEOUT).wait()?, &[], None).map(drop)
}

/// The verifier and the results of a reply to a request for a context.
fn accepted(reply: &Results) -> Result<(OpaqueAuth<'_>, &[u8]), CallError> {
    let mut decoder = Decoder::new(reply);
    let header = decoder.value::<ReplyHeader<'_>>().map_err(|_| CallError::Malformed)?;
    match header.status {
        ReplyStatus::Accepted { verifier, status: AcceptStatus::Success } => {
            Ok((verifier, decoder.rest()))
        }
        ReplyStatus::Accepted { status, .. } => Err(CallError::NotDone(status)),
        ReplyStatus::Denied(status) => Err(CallError::Context(format!(
            "the server does not take Kerberos from this host ({status:?}); see whether it is \
             configured for Kerberos, or leave sec out"
        ))),
    }
}

fn context(text: &str) -> CallError {
    CallError::Context(text.to_owned())
}

fn refused(major: u32, minor: u32) -> CallError {
    CallError::Context(format!(
        "the server does not accept the ticket (major {major:#x}, minor {}): look at its log, at \
         the keys in its keytab, and at the clocks of both hosts",
        minor.cast_signed()
    ))
}
