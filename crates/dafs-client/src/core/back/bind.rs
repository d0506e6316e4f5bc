//! Binding the channel to its session (CONNECT_BIND, DAFS 4.3).

use super::channel::{MESSAGE_BYTES, Phase};
use super::{Back, State};
use crate::core::failure::Failure;
use crate::core::link::Link;
use crate::core::opening::auth_request;
use crate::core::proofs::{Awaited, Prepared, ProofChannel, Run};
use crate::limits::{BACK_CREDITS, MESSAGE_BYTES_MIN};
use dafs_dat::Adapter;
use dafs_wire::dafs::{
    ChannelUse, ConnectBind, EncodeError, Request, RequestHeader, encode_request,
};

impl Back {
    /// The protection of proofs on the channel.
    pub(in crate::core) fn proof_channel(&self) -> ProofChannel {
        match &self.state {
            State::Open(channel) => channel.protection.clone(),
            _ => ProofChannel::default(),
        }
    }

    /// Posts the receives, then offers the credits (DAFS O27).
    /// Returns false if the proof of identity is too long for the message.
    pub(in crate::core) fn bind(
        &mut self,
        link: &Link,
        adapter: &mut dyn Adapter,
        prepared: Prepared,
    ) -> Result<bool, Failure> {
        self.proof = Awaited::Over;
        if self.channel().is_none() {
            return Ok(true);
        }
        // Where proofs come from may be out of reach for a while.
        let (exchange, proof) =
            prepared.checked(&self.proof_channel(), &link.config).map_err(Failure::lost)?;
        self.run = Some(Run(exchange));
        let request = Request::ConnectBind(ConnectBind {
            session_id: link.info.session_id,
            channel_use: ChannelUse::BackControl,
            max_request_size: MESSAGE_BYTES_MIN,
            max_response_size: MESSAGE_BYTES_MIN,
            max_requests: BACK_CREDITS.into(),
            auth: auth_request(&proof)?,
        });
        let header = RequestHeader { seq_number: 1, ..RequestHeader::default() };
        let mut message = vec![0; MESSAGE_BYTES];
        let bytes = encode_request(&mut message, link.order, &header, &request);
        let bytes = match bytes {
            Err(EncodeError::NoRoom { .. }) => return Ok(false),
            bytes => bytes.map_err(Failure::refused)?,
        };
        let Some(channel) = self.channel() else { return Ok(true) };
        for _ in 0..=BACK_CREDITS {
            channel.post_receive(adapter)?;
        }
        channel.phase = Phase::Binding;
        channel.asked_at = link.now;
        channel.send(adapter, &message[..bytes]).map(|()| true)
    }
}
