//! Callbacks over a client's connection (RFC 8167): short messages, limited by credits.

use super::super::base::Base;
use super::Connection;
use super::call::Writer;
use crate::client::core::{Event, server_call};
use crate::limits::{BACK_ANSWERS_MAX, BACK_CREDITS};
use crate::output::Parts;
use crate::reply::{Rejection, Reply};
use dafs_mem::Site;
use dafs_wire::rpc::AcceptStatus;
use dafs_wire::rpc::limits::FRAGMENT_MARK_BYTES;
use dafs_wire::rpcrdma::limits::HEADER_BYTES_MIN;
use dafs_wire::rpcrdma::{Body, Chunks, Header, HeaderFault};
use dafs_wire::xdr::{Encode, Encoder};

impl Connection {
    /// Takes a callback from the server.
    ///
    /// # Errors
    /// When the server exceeds its credits, or the message is not RPC.
    pub(super) fn take_call(
        &mut self,
        base: &mut Base,
        xid: u32,
        rpc: &[u8],
        chunks: &Chunks,
    ) -> Result<(), String> {
        if *chunks != Chunks::default() {
            return self.refuse_call(base, xid);
        }
        if self.back_unanswered >= BACK_CREDITS {
            return Err(format!("the server makes more than {BACK_CREDITS} calls at a time"));
        }
        self.back_unanswered += 1;
        match server_call(rpc).map_err(|error| error.to_string())? {
            Event::Call(call) if self.back.is_some() => self.back_calls.push_back(call),
            Event::Call(call) => {
                let refusal = Rejection::Accept(AcceptStatus::ProgramUnavailable);
                self.answer(base, xid, &Reply::refusal(&refusal.header(call.xid)));
            }
            Event::Refuse(header) => self.answer(base, xid, &Reply::refusal(&header)),
            Event::Answered(_) | Event::Ignored => {}
        }
        Ok(())
    }

    /// Refuses a callback that uses chunks; no callback needs them (RFC 8167 section 5.1).
    pub(super) fn refuse_call(&mut self, base: &mut Base, xid: u32) -> Result<(), String> {
        self.send(base, xid, Body::Error(HeaderFault::Chunk), &Parts::new())
    }

    /// Sends the answer to a callback: a whole record without its record mark.
    pub(in super::super) fn answer(&mut self, base: &mut Base, xid: u32, record: &Reply) {
        if self.stage != super::Stage::Up {
            return;
        }
        self.back_unanswered = self.back_unanswered.saturating_sub(1);
        let mut parts = Parts::new();
        record.gather(FRAGMENT_MARK_BYTES, &mut parts);
        let mut body = Body::Message(Chunks::default());
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if HEADER_BYTES_MIN + bytes > self.send_bytes {
            body = Body::Error(HeaderFault::Chunk);
            parts.clear();
        }
        if let Err(reason) = self.send(base, xid, body, &parts) {
            self.break_off(base, reason);
        }
    }

    fn send(
        &mut self,
        base: &mut Base,
        xid: u32,
        body: Body,
        parts: &Parts<'_>,
    ) -> Result<(), String> {
        if self.sending >= 2 * self.credits_wanted + BACK_ANSWERS_MAX {
            return Err("the server calls and does not take the answers".to_owned());
        }
        self.scratch.clear();
        let header = Header { xid, credits: BACK_CREDITS, body };
        header.encode(&mut Encoder::new(&mut self.scratch));
        let slot = self.sends.take(&mut *base.adapter).map_err(|error| error.to_string())?;
        let mut writer = Writer::new(self.sends.view(slot), Site::RpcRdmaInline);
        writer.put(&self.scratch);
        parts.iter().for_each(|part| writer.put_volatile(*part));
        let len = writer.at;
        self.post_send(base, slot, len)
    }
}
