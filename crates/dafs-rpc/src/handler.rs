//! The interface of a program that serves calls.

use crate::call::{Call, CallerProcess, ConnectionId};
use crate::gss::Acceptor;
use crate::reply::{Rejection, Reply};
use dafs_wire::rpc::{AcceptStatus, RejectStatus};
use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;

/// The outcome of [`Handler::call`].
#[derive(Debug)]
pub enum Handled {
    /// The results.
    Reply(Reply),
    /// The reason why there are none.
    Reject(Rejection),
    /// The answer follows from the [`crate::Responder`] that [`Call::later`] returned.
    Later,
    /// There will be no answer. For requests that the caller must retry.
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

/// The reason why a callback has no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallbackError {
    /// The connection has ended, perhaps before the callback was sent.
    #[error("the connection has ended")]
    Disconnected,
    /// The peer did not answer before the timeout; a late answer is ignored.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer accepted the callback but did not execute it.
    #[error("the peer did not carry the call out: {0:?}")]
    NotDone(AcceptStatus),
    /// The peer denied the callback.
    #[error("the peer refused the call: {0:?}")]
    Denied(RejectStatus),
    /// The answer cannot be decoded.
    #[error("the peer's answer is malformed")]
    Malformed,
    /// The callback is longer than the peer can receive.
    #[error("the call is longer than the peer can receive")]
    TooLong,
    /// Too many callbacks to this peer are outstanding.
    #[error("too many calls to the peer are unanswered")]
    TooMany,
}

/// Serves programs on one reactor: one handler per reactor, called on its thread only. No method
/// may block for long, because it blocks all connections of the reactor.
pub trait Handler {
    /// The messages that other threads send with [`crate::Injector`].
    type Message: Send;

    /// Serves a call of any program.
    fn call(&mut self, call: Call<'_>) -> Handled;

    /// The acceptor of RPCSEC_GSS contexts. Without one, the server refuses that flavor.
    fn gss(&self) -> Option<&Arc<dyn Acceptor>> {
        None
    }

    /// True if this peer may establish contexts. The reactor asks for each request for one.
    fn may_establish(&mut self, peer: SocketAddr, process: CallerProcess) -> bool {
        let _ = (peer, process);
        true
    }

    /// True when the program reads this call with [`Call::decoder`] and takes DDP-eligible data
    /// from [`Call::data`]. Then the transport does not join the data with the rest of the
    /// arguments. The reactor asks only when there is such data.
    fn takes_moved_data(&self, program: u32, version: u32, procedure: u32) -> bool {
        let _ = (program, version, procedure);
        false
    }

    /// Takes the result of a callback that was sent with [`crate::ConnectionRef::send_callback`]: the
    /// results in XDR, or an error. Called exactly once for each, unless the reactor ends first.
    fn back_reply(
        &mut self,
        connection: ConnectionId,
        token: u64,
        result: Result<&[u8], CallbackError>,
    ) {
        let _ = (connection, token, result);
    }

    /// Called when a connection with calls has ended, after the `back_reply` of all its callbacks.
    fn disconnected(&mut self, connection: ConnectionId) {
        let _ = connection;
    }

    /// Takes a message.
    fn message(&mut self, message: Self::Message) {
        let _ = message;
    }

    /// Called at the end of each turn of the reactor, before it sleeps. Returns the time of the next
    /// turn that it needs, on the clock of `now_ns`: `now_ns` for one at once. Others come before if
    /// something happens. Work that the kernel finishes wakes the reactor by
    /// [`crate::Injector::descriptor`].
    fn turn_over(&mut self, now_ns: u64) -> Option<u64> {
        let _ = now_ns;
        None
    }

    /// Called about once a second, and at most a few times a second.
    fn tick(&mut self, now_ns: u64) {
        let _ = now_ns;
    }
}
