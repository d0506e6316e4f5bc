//! Dispatch of a record that is a call to the handler, for every transport.
//!
//! Invariants
//! * The handler sees only calls with a valid header and credential, whatever the record holds.
//! * Of a call of RPCSEC_GSS it sees verified and decrypted arguments alone. No peer can change
//!   them after that: on every transport, messages and the chunks that were joined with them lie in
//!   private memory. Data in a chunk of its own is not covered by a MIC (RFC 8166 section 8.2.2).

use crate::answer::{AnswerTo, Protection};
use crate::auth::authenticate;
use crate::call::{
    Call, CallState, CallerProcess, ConnectionId, ConnectionRef, Credential, Responder,
};
use crate::call_chunks::CallChunks;
use crate::connection::{TurnContext, shielded};
use crate::gss::{self, Accepted, Acceptor, Body, GssCall, InitAnswer, Verified};
use crate::handler::{Handled, Handler};
use crate::memory::Block;
use crate::reply::{Rejection, Reply};
use crate::tls::TransportSecurity;
use dafs_dat::connections::Admitted;
use dafs_wire::rpc::{AcceptStatus, AuthFlavor, CallError, CallHeader, RejectStatus};
use dafs_wire::xdr::{Decoder, XdrError};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// A record that is a call, with its context.
pub(crate) struct Incoming<'a> {
    pub(crate) record: &'a [u8],
    /// The block that holds the record, if it has one of its own.
    pub(crate) block: Option<&'a Arc<Block>>,
    /// The chunks of a call over RDMA.
    pub(crate) call_chunks: Option<&'a Arc<CallChunks>>,
    /// Memory that the record takes while the handler keeps it.
    pub(crate) held_bytes: usize,
    pub(crate) connection_id: ConnectionId,
    pub(crate) peer: SocketAddr,
    pub(crate) process: CallerProcess,
    pub(crate) is_rdma: bool,
    pub(crate) security: TransportSecurity,
    pub(crate) user: Option<&'a Arc<str>>,
    pub(crate) admitted: Option<&'a Arc<Admitted>>,
}

/// The outcome of a call.
pub(crate) enum Outcome {
    /// Answer now.
    Answer(AnswerTo, Result<Reply, Rejection>),
    /// The answer is deferred. The call holds so many bytes meanwhile.
    Kept(usize),
    /// There will be no answer.
    Dropped,
    /// The connection must end: the call is a replay.
    Replayed,
}

/// Serves a call. Sets `known` once the handler knows the connection.
///
/// # Errors
/// When the record is not a call.
pub(crate) fn dispatch<H: Handler>(
    incoming: &Incoming<'_>,
    known: &mut bool,
    turn: &mut TurnContext<'_, H>,
) -> Result<Outcome, XdrError> {
    turn.tally.calls += 1;
    let record = incoming.record;
    let mut decoder = Decoder::new(record);
    let header = match CallHeader::decode(&mut decoder) {
        Ok(header) => header,
        Err(CallError::Rejected { xid, status }) => {
            turn.tally.rejected += 1;
            let to = AnswerTo::plain(xid);
            return Ok(Outcome::Answer(to, Err(Rejection::Reject(status))));
        }
        Err(CallError::Malformed(error)) => return Err(error),
        Err(_) => return Err(XdrError::Trailing(record.len())),
    };
    let body = decoder.rest();
    if header.credential.flavor == AuthFlavor::RPCSEC_GSS
        && let Some(acceptor) = turn.handler.gss()
    {
        let acceptor = acceptor.clone();
        return Ok(dispatch_gss(incoming, &header, body, known, turn, &acceptor));
    }
    let credential = match authenticate(header.credential) {
        Ok(credential) => credential,
        Err(status) => {
            turn.tally.rejected += 1;
            let rejection = Rejection::Reject(RejectStatus::Auth(status));
            return Ok(Outcome::Answer(AnswerTo::plain(header.xid), Err(rejection)));
        }
    };
    Ok(hand_over(incoming, &header, known, turn, Arguments::plain(credential, body)))
}

/// The caller and the arguments of a call, after the checks of its flavor.
struct Arguments<'a> {
    credential: Credential<'a>,
    args: &'a [u8],
    /// The block of decrypted arguments.
    opened: Option<&'a Arc<Block>>,
    protection: Protection,
}

impl<'a> Arguments<'a> {
    fn plain(credential: Credential<'a>, args: &'a [u8]) -> Self {
        Self { credential, args, opened: None, protection: Protection::None }
    }
}

/// Serves a call of RPCSEC_GSS.
fn dispatch_gss<H: Handler>(
    incoming: &Incoming<'_>,
    header: &CallHeader<'_>,
    body: &[u8],
    known: &mut bool,
    turn: &mut TurnContext<'_, H>,
    acceptor: &Arc<dyn Acceptor>,
) -> Outcome {
    let xid = header.xid;
    let origin = incoming.process.host(incoming.peer.ip());
    let call = GssCall { message: incoming.record, header, body, origin, now_ns: turn.now_ns };
    let refused = |turn: &mut TurnContext<'_, H>, protection, rejection| {
        turn.tally.rejected += 1;
        Outcome::Answer(AnswerTo { xid, protection }, Err(rejection))
    };
    let contexts = acceptor.contexts();
    let may_establish = || turn.handler.may_establish(incoming.peer, incoming.process);
    match gss::accept(contexts, &call, may_establish) {
        Accepted::Serve(verified) => serve_gss(incoming, header, body, known, turn, verified),
        Accepted::Establish { establishing, token } => {
            let (token, now_ns) = (token.to_vec(), turn.now_ns);
            let held_bytes = token.len();
            let admitted = incoming.admitted.cloned();
            let connection =
                ConnectionRef::of(incoming.connection_id, turn.inbox.clone(), admitted);
            let call_chunks = incoming.call_chunks.cloned();
            let responder = Responder::new(connection, xid, held_bytes, call_chunks);
            let (own, peer) = (acceptor.clone(), incoming.peer);
            acceptor.run(
                origin,
                Box::new(move || {
                    let answer = establishing.step(&token, now_ns, || own.begin());
                    if let InitAnswer::Failed(failure) = &answer
                        && own.contexts().is_refusal_news(origin, now_ns)
                    {
                        tracing::info!(
                            %peer, reason = failure.text,
                            "a context is refused; further refusals of this host are not logged for \
                             a minute"
                        );
                    }
                    responder.respond_init(&answer);
                }),
            );
            Outcome::Kept(held_bytes)
        }
        Accepted::Destroy(verified) => {
            // The reply has no results to protect, only a verifier.
            let protection = Protection::Gss(verified.with_header_alone());
            Outcome::Answer(AnswerTo { xid, protection }, Ok(Reply::new()))
        }
        Accepted::Refuse(status) => {
            let rejection = Rejection::Reject(RejectStatus::Auth(status));
            refused(turn, Protection::None, rejection)
        }
        Accepted::Garbage => {
            refused(turn, Protection::None, Rejection::Accept(AcceptStatus::GarbageArgs))
        }
        Accepted::Busy => {
            refused(turn, Protection::None, Rejection::Accept(AcceptStatus::SystemError))
        }
        Accepted::CloseConnection => Outcome::Replayed,
    }
}

/// Serves a call of an established context.
fn serve_gss<H: Handler>(
    incoming: &Incoming<'_>,
    header: &CallHeader<'_>,
    body: &[u8],
    known: &mut bool,
    turn: &mut TurnContext<'_, H>,
    verified: Verified,
) -> Outcome {
    let opened;
    let (args, opened) = match verified.body(body) {
        Ok(Body::Plain(args)) => (Ok(args), None),
        Ok(Body::Sealed(token)) => {
            opened = open(&verified, token);
            match &opened {
                Ok((block, place)) => (Ok(&block.bytes()[place.clone()]), Some(block)),
                Err(status) => (Err(*status), None),
            }
        }
        Err(gss::Garbage) => (Err(AcceptStatus::GarbageArgs), None),
    };
    let args = match args {
        Ok(args) => args,
        Err(status) => {
            turn.tally.rejected += 1;
            let to = AnswerTo { xid: header.xid, protection: Protection::Gss(verified) };
            return Outcome::Answer(to, Err(Rejection::Accept(status)));
        }
    };
    let (context, service) = (verified.context().clone(), verified.service());
    let arguments = Arguments {
        credential: Credential::Gss { context: &context, service },
        args,
        opened,
        protection: Protection::Gss(verified),
    };
    hand_over(incoming, header, known, turn, arguments)
}

/// Decrypts arguments. Returns their block, and their place in it.
fn open(verified: &Verified, token: &[u8]) -> Result<(Arc<Block>, Range<usize>), AcceptStatus> {
    let mut block = Block::new(token.len()).map_err(|_| AcceptStatus::SystemError)?;
    let place = verified.open(token, block.spare(token.len()));
    let place = place.map_err(|gss::Garbage| AcceptStatus::GarbageArgs)?;
    block.fill(place.end);
    Ok((Arc::new(block), place))
}

/// Hands a call over to the handler.
fn hand_over<H: Handler>(
    incoming: &Incoming<'_>,
    header: &CallHeader<'_>,
    known: &mut bool,
    turn: &mut TurnContext<'_, H>,
    arguments: Arguments<'_>,
) -> Outcome {
    let xid = header.xid;
    if !std::mem::replace(known, true)
        && let Some(admitted) = incoming.admitted
    {
        admitted.hear();
    }
    let Arguments { credential, args, opened, protection } = arguments;
    let is_reducible = protection.is_reducible();
    let reply_bytes_beside_results = protection.reply_bytes_beside_results();
    let state = CallState::new(protection);
    let held_bytes = opened.map_or(incoming.held_bytes, |block| block.capacity());
    let call = Call {
        xid,
        program: header.program,
        version: header.version,
        procedure: header.procedure,
        credential,
        args,
        peer: incoming.peer,
        process: incoming.process,
        is_rdma: incoming.is_rdma,
        security: incoming.security,
        user: incoming.user,
        admitted: incoming.admitted,
        connection_id: incoming.connection_id,
        now_ns: turn.now_ns,
        inbox: turn.inbox,
        block: opened.or(incoming.block),
        call_chunks: incoming.call_chunks,
        is_reducible,
        message_bytes: incoming.record.len(),
        reply_bytes_beside_results,
        held_bytes,
        state: &state,
    };
    // The caller learns no details; the panic has been reported where it happened.
    let handled = shielded(|| turn.handler.call(call));
    let handled = handled.unwrap_or_else(|| AcceptStatus::SystemError.into());
    let to = AnswerTo { xid, protection: state.take_protection() };
    match handled {
        // A responder exists, whatever the handler returned; the responder completes the call.
        _ if state.is_deferred() => Outcome::Kept(held_bytes),
        Handled::Reply(reply) => Outcome::Answer(to, Ok(reply)),
        Handled::Reject(rejection) => {
            turn.tally.rejected += 1;
            Outcome::Answer(to, Err(rejection))
        }
        Handled::Later | Handled::Drop => Outcome::Dropped,
    }
}
