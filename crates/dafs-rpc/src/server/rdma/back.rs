//! Callbacks to the peer over its own connection (RFC 8167).
//!
//! Invariants
//! * A callback fits one message, and the callbacks in flight never exceed the credits that the
//!   peer has granted.
//! * The server posts a receive for the answer before it sends the callback.
//! * Only a callback that was sent can be answered.

use super::link::Context;
use crate::back::{self, Back};
use crate::connection::TurnContext;
use crate::handler::{CallbackError, Handler};
use crate::inbox::CallbackRequest;
use crate::limits::RDMA_BACK_CREDITS;
use dafs_wire::rpcrdma::limits::HEADER_BYTES_MIN;
use dafs_wire::rpcrdma::{Body, Chunks, Header};
use dafs_wire::xdr::Encoder;

impl<H: Handler> Context<'_, H> {
    /// Sends a callback, or queues it until there is a credit.
    pub(super) fn send_callback(&mut self, call: &CallbackRequest) {
        self.connection.known = true;
        let config = &self.core.shared.config;
        let (calls_max, timeout) = (config.back_calls_max, config.back_timeout);
        let id = self.connection.id;
        let channel = self.connection.back.get_or_insert_default();
        if self.connection.ending.is_some() {
            let result = Err(CallbackError::Disconnected);
            return self.core.turn().back_reply(id, call.token, result);
        }
        if channel.calls.len() >= calls_max {
            return self.core.turn().back_reply(id, call.token, Err(CallbackError::TooMany));
        }
        let xid = channel.calls.begin(call.token, self.core.now_ns, timeout);
        let mut message = Vec::new();
        back::encode(xid, call, &mut Encoder::new(&mut message));
        if HEADER_BYTES_MIN + message.len() > self.connection.send_bytes_max {
            let result = Err(CallbackError::TooLong);
            return channel.calls.complete(id, xid, result, &mut self.core.turn());
        }
        channel.queue.push_back((xid, message));
        self.send_back_calls();
    }

    /// Sends queued callbacks, as far as credits allow.
    pub(super) fn send_back_calls(&mut self) {
        while !self.connection.is_closing() {
            let Some(channel) = &mut self.connection.back else { return };
            if channel.flying.len() >= channel.credits as usize {
                return;
            }
            let Some((xid, message)) = channel.queue.pop_front() else { return };
            if !channel.calls.awaits(xid) {
                continue;
            }
            channel.flying.push(xid);
            self.connection.credits.begin_back();
            self.post_receives();
            let body = Body::Message(Chunks::default());
            let header = Header { xid, credits: RDMA_BACK_CREDITS, body };
            let sent = self.begin_message().and_then(|out| {
                self.send(out, &header, None, |space| space.extend_from_slice(&message))
            });
            if let Err(ending) = sent {
                self.fail(ending);
            }
        }
    }

    /// Records an answer before its content is used. Returns the outstanding callbacks if one of
    /// them was sent under this XID.
    pub(super) fn back_landed(
        &mut self,
        xid: u32,
        credits: u32,
    ) -> Option<(&mut Back, TurnContext<'_, H>)> {
        let channel = self.connection.back.as_deref_mut()?;
        let at = channel.flying.iter().position(|flying| *flying == xid)?;
        channel.flying.swap_remove(at);
        channel.credits = credits.clamp(1, RDMA_BACK_CREDITS);
        self.connection.credits.end_back();
        Some((&mut channel.calls, self.core.turn()))
    }
}
