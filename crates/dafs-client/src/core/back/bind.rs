//! Binding the channel to its session (CONNECT_BIND, DAFS 4.3).

use super::channel::{MESSAGE_BYTES, Phase};
use super::{Back, State};
use crate::core::auth::Proof;
use crate::core::failure::Failure;
use crate::core::link::Link;
use crate::core::opening::auth_request;
use crate::core::proofs::{Awaited, Prepared, ProofChannel, Run};
use crate::limits::{BACK_CREDITS, MESSAGE_BYTES_MIN};
use dafs_dat::Adapter;
use dafs_wire::dafs::{
    ChannelUse, ConnectBind, EncodeError, Outcome, PROTOCOL_VERSION, Procedure, Request,
    RequestHeader, ResponseHeader, Status, decode_response, encode_request,
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
        let message = connect_bind(link, (ChannelUse::BackControl, BACK_CREDITS), &proof)?;
        let Some(message) = message else { return Ok(false) };
        let Some(channel) = self.channel() else { return Ok(true) };
        for _ in 0..=BACK_CREDITS {
            channel.post_receive(adapter)?;
        }
        channel.phase = Phase::Binding;
        channel.asked_at = link.now;
        channel.send(adapter, &message).map(|()| true)
    }
}

/// Encodes CONNECT_BIND, for a channel with so many credits. `None` if the proof of identity is too
/// long for the message.
pub(in crate::core) fn connect_bind(
    link: &Link,
    (channel_use, credits): (ChannelUse, u16),
    proof: &Proof,
) -> Result<Option<Vec<u8>>, Failure> {
    let request = Request::ConnectBind(ConnectBind {
        session_id: link.info.session_id,
        channel_use,
        max_request_size: MESSAGE_BYTES_MIN,
        max_response_size: MESSAGE_BYTES_MIN,
        max_requests: credits.into(),
        auth: auth_request(proof)?,
    });
    let header = RequestHeader { seq_number: 1, ..RequestHeader::default() };
    let mut message = vec![0; MESSAGE_BYTES];
    match encode_request(&mut message, link.order, &header, &request) {
        Err(EncodeError::NoRoom { .. }) => Ok(None),
        bytes => {
            message.truncate(bytes.map_err(Failure::refused)?);
            Ok(Some(message))
        }
    }
}

/// Decodes the answer to it.
pub(in crate::core) fn bind_answer<'a>(
    link: &Link,
    message: &'a [u8],
) -> Result<Outcome<'a>, Failure> {
    let answer = decode_response(message, link.order, Procedure::ConnectBind);
    let (header, outcome) = answer.map_err(Failure::protocol)?;
    let ResponseHeader { stream_id, seq_number, protocol_version, .. } = header;
    let version = protocol_version == PROTOCOL_VERSION || header.status == Status::IllegalProt;
    if (stream_id, seq_number) != (0, 1) || !version {
        return Err(Failure::protocol("the reply to CONNECT_BIND carries another name"));
    }
    Ok(outcome)
}
