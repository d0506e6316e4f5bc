//! From a record that is a call to what the handler makes of it, for every transport.
//!
//! Invariants
//! * Whatever the record holds, the handler sees only calls whose header and credential are good.

use crate::auth::authenticate;
use crate::call::{Call, CallerProcess, ConnectionId};
use crate::connection::{Turn, shielded};
use crate::exchange::Exchange;
use crate::handler::{Handled, Handler};
use crate::memory::Block;
use crate::reply::{Rejection, Reply};
use dafs_dat::connections::Admitted;
use dafs_wire::rpc::{AcceptStatus, CallError, CallHeader, RejectStatus};
use dafs_wire::xdr::{Decoder, XdrError};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;

/// A record that is a call, and what is known about it.
pub(crate) struct Incoming<'a> {
    pub(crate) record: &'a [u8],
    /// The block that holds the record, if it has one of its own.
    pub(crate) block: Option<&'a Arc<Block>>,
    /// What came besides it.
    pub(crate) exchange: Option<&'a Arc<Exchange>>,
    /// Memory that the record takes while it is kept.
    pub(crate) held_bytes: usize,
    pub(crate) connection_id: ConnectionId,
    pub(crate) peer: SocketAddr,
    pub(crate) process: CallerProcess,
    pub(crate) is_rdma: bool,
    pub(crate) admitted: Option<&'a Arc<Admitted>>,
}

/// What became of a call.
pub(crate) enum Outcome {
    /// It is answered now.
    Answer(u32, Result<Reply, Rejection>),
    /// Somebody keeps it, to answer it from elsewhere.
    Kept,
    /// Nobody answers it.
    Dropped,
}

/// Has a call served. Sets `known` once the handler has heard of the connection.
///
/// # Errors
/// When the record is no call.
pub(crate) fn dispatch<H: Handler>(
    incoming: &Incoming<'_>,
    known: &mut bool,
    turn: &mut Turn<'_, H>,
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
    let put_off = Cell::new(false);
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
        exchange: incoming.exchange,
        held_bytes: incoming.held_bytes,
        put_off: &put_off,
    };
    // The caller learns no more than that; the panic has been reported where it happened.
    let handled = shielded(|| turn.handler.call(call));
    let handled = handled.unwrap_or_else(|| AcceptStatus::SystemError.into());
    Ok(match handled {
        // A responder exists, whatever else was said; what it does or does not do settles the call.
        _ if put_off.get() => Outcome::Kept,
        Handled::Reply(reply) => Outcome::Answer(xid, Ok(reply)),
        Handled::Reject(rejection) => {
            turn.tally.rejected += 1;
            Outcome::Answer(xid, Err(rejection))
        }
        Handled::Later | Handled::Drop => Outcome::Dropped,
    })
}
