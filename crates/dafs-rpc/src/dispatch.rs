//! Dispatch of a record that is a call to the handler, for every transport.
//!
//! Invariants
//! * The handler sees only calls with a valid header and credential, whatever the record holds.

use crate::auth::authenticate;
use crate::call::{Call, CallerProcess, ConnectionId};
use crate::call_chunks::CallChunks;
use crate::connection::{TurnContext, shielded};
use crate::handler::{Handled, Handler};
use crate::memory::Block;
use crate::reply::{Rejection, Reply};
use dafs_dat::connections::Admitted;
use dafs_wire::rpc::{AcceptStatus, CallError, CallHeader, RejectStatus};
use dafs_wire::xdr::{Decoder, XdrError};
use std::cell::Cell;
use std::net::SocketAddr;
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
    pub(crate) admitted: Option<&'a Arc<Admitted>>,
}

/// The outcome of a call.
pub(crate) enum Outcome {
    /// Answer now.
    Answer(u32, Result<Reply, Rejection>),
    /// The answer is deferred.
    Kept,
    /// There will be no answer.
    Dropped,
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
            return Ok(Outcome::Answer(xid, Err(Rejection::Reject(status))));
        }
        Err(CallError::Malformed(error)) => return Err(error),
        Err(_) => return Err(XdrError::Trailing(record.len())),
    };
    let xid = header.xid;
    let credential = match authenticate(header.credential) {
        Ok(credential) => credential,
        Err(status) => {
            turn.tally.rejected += 1;
            let rejection = Rejection::Reject(RejectStatus::Auth(status));
            return Ok(Outcome::Answer(xid, Err(rejection)));
        }
    };
    if !std::mem::replace(known, true)
        && let Some(admitted) = incoming.admitted
    {
        admitted.hear();
    }
    let deferred = Cell::new(false);
    let call = Call {
        xid,
        program: header.program,
        version: header.version,
        procedure: header.procedure,
        credential,
        args: decoder.rest(),
        peer: incoming.peer,
        process: incoming.process,
        is_rdma: incoming.is_rdma,
        admitted: incoming.admitted,
        connection_id: incoming.connection_id,
        now_ns: turn.now_ns,
        inbox: turn.inbox,
        block: incoming.block,
        call_chunks: incoming.call_chunks,
        held_bytes: incoming.held_bytes,
        deferred: &deferred,
    };
    // The caller learns no details; the panic has been reported where it happened.
    let handled = shielded(|| turn.handler.call(call));
    let handled = handled.unwrap_or_else(|| AcceptStatus::SystemError.into());
    Ok(match handled {
        // A responder exists, whatever the handler returned; the responder completes the call.
        _ if deferred.get() => Outcome::Kept,
        Handled::Reply(reply) => Outcome::Answer(xid, Ok(reply)),
        Handled::Reject(rejection) => {
            turn.tally.rejected += 1;
            Outcome::Answer(xid, Err(rejection))
        }
        Handled::Later | Handled::Drop => Outcome::Dropped,
    })
}
