//! The record that answers a call, with the protection of RPCSEC_GSS if the call had it.
//!
//! Invariants
//! * Only results of successful replies are protected. All other accepted replies have a verifier
//!   alone, denied ones not even that (RFC 2203 section 5.3.3.4).
//! * Results are protected once, and last: caches keep them unprotected, because a retry has
//!   another sequence number.
//! * Results do not move when a header is written before them. Encryption reads them once and
//!   writes them once.

use crate::gss::{InitAnswer, Verified};
use crate::limits::FRONT_BYTES_MAX;
use crate::memory::Block;
use crate::reply::{Rejection, Reply};
use dafs_wire::rpc::gss::Service;
use dafs_wire::rpc::limits::SUCCESS_HEADER_BYTES;
use dafs_wire::rpc::{AcceptStatus, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{UNIT_BYTES, padded};
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

impl Protection {
    /// True if data of the arguments and the results may have chunks of its own. Under integrity and
    /// privacy a token covers all of them (RFC 8166 section 8.2.2).
    pub(crate) fn is_reducible(&self) -> bool {
        match self {
            Self::Gss(verified) => verified.service() == Service::None,
            Self::None | Self::Applied => true,
        }
    }

    /// Bytes of a successful reply beside its results.
    pub(crate) fn reply_bytes_beside_results(&self) -> usize {
        match self {
            Self::Gss(verified) => verified.reply_bytes_beside_results(),
            Self::None | Self::Applied => SUCCESS_HEADER_BYTES,
        }
    }
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
    let refusal = |status| {
        let status = ReplyStatus::Accepted { verifier: verifier.auth(), status };
        Reply::refusal(&ReplyHeader { xid, status })
    };
    match answer {
        Ok(reply) => {
            let front = Front::of_success(xid, verifier.auth());
            let sealed = match verified.service() {
                Service::None => Ok(with_front(reply, &front)),
                Service::Integrity => with_mic(reply, front, verified),
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
    with_front(reply, &Front::of_success(xid, answer.verifier()))
}

/// The part of a record before its results, without the record mark.
struct Front {
    bytes: [u8; FRONT_BYTES_MAX],
    len: usize,
}

impl Front {
    /// The header of a successful reply (RFC 5531 section 9).
    fn of_success(xid: u32, verifier: OpaqueAuth<'_>) -> Self {
        let mut front = Self { bytes: [0; FRONT_BYTES_MAX], len: 0 };
        // REPLY, accepted, and the verifier.
        let verifier_bytes = verifier.body.len() as u32;
        for word in [xid, 1, 0, verifier.flavor.0, verifier_bytes] {
            front.push(&word.to_be_bytes());
        }
        front.push(verifier.body);
        // SUCCESS behind the padding: all zero.
        front.len = padded(front.len) + UNIT_BYTES;
        front
    }

    /// Appends bytes, of which there are fewer than there is room.
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn with_front(mut reply: Reply, front: &Front) -> Reply {
    reply.set_front(front.bytes());
    reply
}

fn with_mic(mut reply: Reply, mut front: Front, verified: &Verified) -> io::Result<Reply> {
    front.push(&verified.integrity_prefix(reply.len()));
    let suffix = verified.integrity_suffix(&reply.results()?);
    reply.append(suffix.bytes());
    Ok(with_front(reply, &front))
}

fn encrypted(reply: Reply, front: &Front, verified: &Verified) -> io::Result<Reply> {
    let len = verified.protected_bytes(reply.len());
    let mut block = Block::new(len)?;
    verified.seal(&reply.results()?, block.spare(len)).map_err(io::Error::other)?;
    block.fill(len);
    Ok(Reply::of_block(front.bytes(), block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gss::contexts_tests::context;
    use crate::limits::GSS_MIC_BYTES_MAX;
    use crate::reply::Part;
    use dafs_mem::Site;
    use dafs_wire::rpc::AuthFlavor;
    use dafs_wire::xdr::Encode;

    #[test]
    fn fronts_are_headers_of_successful_replies() {
        let mic = [7; GSS_MIC_BYTES_MAX];
        for len in 0..=mic.len() {
            let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &mic[..len] };
            let status = ReplyStatus::Accepted { verifier, status: AcceptStatus::Success };
            let want = ReplyHeader { xid: 0x0102_0304, status }.encoded();
            assert_eq!(Front::of_success(0x0102_0304, verifier).bytes(), want);
        }
    }

    #[test]
    fn results_stay_where_the_handler_wrote_them() {
        for service in [Service::None, Service::Integrity] {
            let mut reply = Reply::new();
            let mut bulk = reply.bulk(2000).unwrap();
            bulk.view().copy_from(&[7; 2000], Site::Inspect);
            bulk.finish(2000);
            let place = reply.results().unwrap()[0].as_ptr();
            let verified = Verified::new(context(), 1, service);
            let front_bytes = verified.success_header_bytes()
                + if service == Service::None { 0 } else { Verified::INTEGRITY_PREFIX_BYTES };
            let to = AnswerTo { xid: 77, protection: Protection::Gss(verified) };
            let reply = to.complete(Ok(reply));
            let mut first = None;
            reply.message(false, |part| {
                if let Part::Head(bytes) = part {
                    first.get_or_insert(bytes);
                }
            });
            let results = &first.unwrap()[front_bytes..];
            assert_eq!((results.as_ptr(), &results[..4]), (place, &[7; 4][..]));
        }
    }

    #[test]
    fn the_longest_front_fits_its_room() {
        let body = &[7; GSS_MIC_BYTES_MAX];
        let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body };
        let mut front = Front::of_success(1, verifier);
        front.push(&[0; Verified::INTEGRITY_PREFIX_BYTES]);
        assert_eq!(front.len, FRONT_BYTES_MAX);
    }
}
