//! Outstanding callbacks: calls that the server sends to a peer over the peer's own connection, for
//! every transport.
//!
//! Invariants
//! * Every callback completes exactly once, at the latest when the connection ends.

use crate::call::ConnectionId;
use crate::connection::TurnContext;
use crate::handler::{CallbackError, Handler};
use crate::inbox::CallbackRequest;
use dafs_wire::rpc::{AcceptStatus, AuthFlavor, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Decoder, Encoder};
use rustc_hash::FxHashMap;
use std::time::Duration;

/// The outstanding callbacks to one peer.
#[derive(Debug, Default)]
pub(crate) struct Back {
    next_xid: u32,
    calls: FxHashMap<u32, Pending>,
}

#[derive(Debug)]
struct Pending {
    token: u64,
    deadline_ns: u64,
}

impl Back {
    /// Outstanding callbacks.
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// True when no callback is outstanding.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Records a callback that is about to be sent and returns its XID.
    pub(crate) fn begin(&mut self, token: u64, now_ns: u64, timeout: Duration) -> u32 {
        // XIDs wrap around, and a long-lived callback may still hold this one.
        while self.calls.contains_key(&self.next_xid) {
            self.next_xid = self.next_xid.wrapping_add(1);
        }
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = now_ns.saturating_add(timeout_ns);
        self.calls.insert(xid, Pending { token, deadline_ns });
        xid
    }

    /// True while the callback with this XID is outstanding.
    pub(crate) fn awaits(&self, xid: u32) -> bool {
        self.calls.contains_key(&xid)
    }

    /// Hands a reply to the handler that made the callback. A reply without a callback is counted
    /// as unasked.
    pub(crate) fn take_reply<H: Handler>(
        &mut self,
        id: ConnectionId,
        record: &[u8],
        turn: &mut TurnContext<'_, H>,
    ) {
        let xid = Decoder::new(record).u32().unwrap_or_default();
        let mut decoder = Decoder::new(record);
        let result = match decoder.value().map(|header: ReplyHeader<'_>| header.status) {
            Ok(ReplyStatus::Accepted { status: AcceptStatus::Success, .. }) => Ok(decoder.rest()),
            Ok(ReplyStatus::Accepted { status, .. }) => Err(CallbackError::NotDone(status)),
            Ok(ReplyStatus::Denied(status)) => Err(CallbackError::Denied(status)),
            Err(_) => Err(CallbackError::Malformed),
        };
        self.complete(id, xid, result, turn);
    }

    /// Completes one callback.
    pub(crate) fn complete<H: Handler>(
        &mut self,
        id: ConnectionId,
        xid: u32,
        result: Result<&[u8], CallbackError>,
        turn: &mut TurnContext<'_, H>,
    ) {
        match self.calls.remove(&xid) {
            Some(pending) => turn.back_reply(id, pending.token, result),
            None => turn.tally.unasked += 1,
        }
    }

    /// Completes the callbacks whose timeout has expired.
    pub(crate) fn tick<H: Handler>(&mut self, id: ConnectionId, turn: &mut TurnContext<'_, H>) {
        let now_ns = turn.now_ns;
        let late = |pending: &Pending| now_ns >= pending.deadline_ns;
        for (_, pending) in self.calls.extract_if(|_, pending| late(pending)) {
            turn.back_reply(id, pending.token, Err(CallbackError::TimedOut));
        }
        if self.calls.is_empty() {
            self.calls.shrink_to_fit();
        }
    }

    /// Completes all callbacks with an error, because the connection has ended.
    pub(crate) fn end<H: Handler>(self, id: ConnectionId, turn: &mut TurnContext<'_, H>) {
        for pending in self.calls.into_values() {
            turn.back_reply(id, pending.token, Err(CallbackError::Disconnected));
        }
    }
}

/// Encodes the callback with this XID.
pub(crate) fn encode(xid: u32, call: &CallbackRequest, encoder: &mut Encoder<'_>) {
    let credential = match &call.auth_sys {
        Some(body) => OpaqueAuth { flavor: AuthFlavor::SYS, body },
        None => OpaqueAuth::NONE,
    };
    encoder.value(&CallHeader {
        xid,
        program: call.program,
        version: call.version,
        procedure: call.procedure,
        credential,
        verifier: OpaqueAuth::NONE,
    });
    encoder.raw(&call.args);
}
