//! What a program does with its calls.

use crate::call::{Call, ConnectionId};
use crate::reply::{Rejection, Reply};
use dafs_wire::rpc::{AcceptStatus, RejectStatus};
use thiserror::Error;

/// The outcome of [`Handler::call`].
#[derive(Debug)]
pub enum Handled {
    /// These are the results.
    Reply(Reply),
    /// There are none, for this reason.
    Reject(Rejection),
    /// The answer comes from the [`crate::Responder`] that [`Call::later`] gave.
    Later,
    /// There will be no answer. For requests that the caller must send again.
    Drop,
}

impl From<Reply> for Handled {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

impl From<AcceptStatus> for Handled {
    fn from(status: AcceptStatus) -> Self {
        Self::Reject(Rejection::Accept(status))
    }
}

impl From<RejectStatus> for Handled {
    fn from(status: RejectStatus) -> Self {
        Self::Reject(Rejection::Reject(status))
    }
}

/// Why a call to a peer has no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BackError {
    /// The connection has ended, perhaps before the call could be sent.
    #[error("the connection has ended")]
    Disconnected,
    /// The peer did not answer in time; a late answer is ignored.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer let the call in and did not carry it out.
    #[error("the peer did not carry the call out: {0:?}")]
    NotDone(AcceptStatus),
    /// The peer did not let the call in.
    #[error("the peer refused the call: {0:?}")]
    Denied(RejectStatus),
    /// The answer is not a reply that can be understood.
    #[error("the peer's answer is malformed")]
    Malformed,
    /// The call is longer than the peer can receive.
    #[error("the call is longer than the peer can receive")]
    TooLong,
    /// Too many calls to this peer are unanswered.
    #[error("too many calls to the peer are unanswered")]
    TooMany,
}

/// Serves programs on one reactor: one value for each, called on its thread only. No method may
/// wait for long, because everything else on the reactor waits with it.
pub trait Handler {
    /// What other threads send with [`crate::Injector`].
    type Message: Send;

    /// Serves a call of any program.
    fn call(&mut self, call: Call<'_>) -> Handled;

    /// Whether this call is read with [`Call::decoder`] and takes data that a transport has moved by
    /// itself from [`Call::data`], so that it need not be put together with the rest. Asked only
    /// when there is such data.
    fn takes_apart(&self, program: u32, version: u32, procedure: u32) -> bool {
        let _ = (program, version, procedure);
        false
    }

    /// Takes the answer to a call that was sent with [`crate::ConnectionRef::call_back`]: the
    /// results in XDR, or why there are none. Exactly one for each, unless the reactor ends first.
    fn back_reply(
        &mut self,
        connection: ConnectionId,
        token: u64,
        result: Result<&[u8], BackError>,
    ) {
        let _ = (connection, token, result);
    }

    /// Learns that a connection over which it was called has ended, after the `back_reply` of all
    /// calls to that peer.
    fn disconnected(&mut self, connection: ConnectionId) {
        let _ = connection;
    }

    /// Takes a message.
    fn message(&mut self, message: Self::Message) {
        let _ = message;
    }

    /// Is called about once a second, and never more than a few times.
    fn tick(&mut self, now_ns: u64) {
        let _ = now_ns;
    }
}
