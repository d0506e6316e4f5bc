//! The record that answers a call, with the protection of RPCSEC_GSS if the call had it.
//!
//! Invariants
//! * Only results of successful replies are protected. All other accepted replies have a verifier
//!   alone, denied ones not even that (RFC 2203 section 5.3.3.4).
//! * Results are protected once, and last: caches keep them unprotected, because a retry has
//!   another sequence number.

use crate::gss::{InitAnswer, Verified};
use crate::memory::Block;
use crate::reply::{Rejection, Reply};
use dafs_wire::rpc::gss::Service;
use dafs_wire::rpc::{AcceptStatus, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Encode, Encoder};
use smallvec::SmallVec;
use std::io;

/// The call that an answer is for.
#[derive(Debug)]
pub(crate) struct AnswerTo {
    pub(crate) xid: u32,
    pub(crate) protection: Protection,
}

/// The protection of a reply.
#[derive(Debug, Default)]
pub(crate) enum Protection {
    /// None.
    #[default]
    None,
    /// That of this call.
    Gss(Verified),
    /// The reply is a complete record already.
    Applied,
}

impl AnswerTo {
    /// The addressee of an answer without protection.
    pub(crate) fn plain(xid: u32) -> Self {
        Self { xid, protection: Protection::None }
    }

    /// Makes the complete record.
    #[inline]
    pub(crate) fn complete(self, answer: Result<Reply, Rejection>) -> Reply {
        match (self.protection, answer) {
            (Protection::None, Ok(mut reply)) => {
                reply.seal(self.xid);
                reply
            }
            (Protection::Applied, Ok(reply)) => reply,
            (Protection::Gss(verified), answer) => protected(self.xid, &verified, answer),
            (Protection::None | Protection::Applied, Err(rejection)) => {
                Reply::refusal(&rejection.header(self.xid))
            }
        }
    }
}

/// The complete record of an answer to a call of RPCSEC_GSS.
fn protected(xid: u32, verified: &Verified, answer: Result<Reply, Rejection>) -> Reply {
    let verifier = verified.verifier();
    let accepted = |status| header(xid, verifier.auth(), status);
    let refusal = |status| Reply::refusal(&accepted(status));
    match answer {
        Ok(reply) => {
            let front = accepted(AcceptStatus::Success);
            let sealed = match verified.service() {
                Service::None => Ok(with_front(reply, &front)),
                Service::Integrity => with_mic(reply, &front, verified),
                Service::Privacy => encrypted(reply, &front, verified),
            };
            sealed.unwrap_or_else(|error| {
                tracing::warn!(%error, "results cannot be protected");
                refusal(AcceptStatus::SystemError)
            })
        }
        Err(Rejection::Accept(status)) => refusal(status),
        Err(rejection @ Rejection::Reject(_)) => Reply::refusal(&rejection.header(xid)),
    }
}

/// The complete record of an answer to a request for a context.
pub(crate) fn of_init(xid: u32, answer: &InitAnswer) -> Reply {
    let mut reply = Reply::new();
    answer.encode(&mut reply.encoder());
    with_front(reply, &header(xid, answer.verifier(), AcceptStatus::Success))
}

fn header(xid: u32, verifier: OpaqueAuth<'_>, status: AcceptStatus) -> ReplyHeader<'_> {
    ReplyHeader { xid, status: ReplyStatus::Accepted { verifier, status } }
}

/// Bytes of a header in XDR, and more to follow.
type Front = SmallVec<[u8; 128]>;

fn front(header: &ReplyHeader<'_>) -> Front {
    let mut bytes = Vec::with_capacity(128);
    header.encode(&mut Encoder::new(&mut bytes));
    Front::from_vec(bytes)
}

fn with_front(mut reply: Reply, header: &ReplyHeader<'_>) -> Reply {
    reply.replace_front(&front(header));
    reply
}

fn with_mic(mut reply: Reply, header: &ReplyHeader<'_>, verified: &Verified) -> io::Result<Reply> {
    let mut before = front(header);
    before.extend_from_slice(&verified.integrity_prefix(reply.len()));
    let suffix = verified.integrity_suffix(&reply.results()?);
    reply.append(suffix.bytes());
    reply.replace_front(&before);
    Ok(reply)
}

fn encrypted(reply: Reply, header: &ReplyHeader<'_>, verified: &Verified) -> io::Result<Reply> {
    let len = verified.protected_bytes(reply.len());
    let mut block = Block::new(len)?;
    verified.seal(&reply.results()?, block.spare(len)).map_err(io::Error::other)?;
    block.fill(len);
    Ok(Reply::of_block(&front(header), block))
}
