//! The probe: a call of NULL with the flavour AUTH_TLS, whose answer says that TLS may begin (RFC
//! 9289 4.1).
//!
//! Invariants
//! * A probe has an empty credential, an AUTH_NONE verifier and no arguments. Anything else with
//!   this flavour goes the usual way, where AUTH_TLS is refused with AUTH_BADCRED.

use crate::reply::Reply;
use dafs_wire::rpc::{AcceptStatus, AuthFlavor, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::Decoder;

/// The verifier of the answer.
pub(crate) const STARTTLS: &[u8; 8] = b"STARTTLS";

/// Offset of the credential's flavour in a call (RFC 5531 9): six numbers precede it.
const FLAVOR_AT: usize = 6 * 4;

/// TLS as a connection in the clear has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// None: this server has no TLS, or the connection is inside TLS already.
    None,
    /// The peer may ask for it.
    Open,
    /// The peer has asked, by a call with this XID. Calls in flight are answered first.
    Asked(u32),
    /// The answer is queued, or the handshake is under way.
    Begun,
}

impl Offer {
    /// True from the probe to the end of the handshake, when no call is taken.
    pub(crate) fn is_taken(self) -> bool {
        matches!(self, Self::Asked(_) | Self::Begun)
    }
}

/// The XID of a record that is a probe.
#[inline]
pub(crate) fn find(record: &[u8]) -> Option<u32> {
    let flavor = record.get(FLAVOR_AT..FLAVOR_AT + 4)?;
    if flavor == AuthFlavor::TLS.0.to_be_bytes() { find_slowly(record) } else { None }
}

#[cold]
fn find_slowly(record: &[u8]) -> Option<u32> {
    let mut decoder = Decoder::new(record);
    let header = CallHeader::decode(&mut decoder).ok()?;
    let is_probe = header.credential.flavor == AuthFlavor::TLS
        && header.credential.body.is_empty()
        && header.verifier == OpaqueAuth::NONE
        && header.procedure == 0
        && decoder.rest().is_empty();
    is_probe.then_some(header.xid)
}

/// The answer that lets the peer begin.
pub(crate) fn answer(xid: u32) -> Reply {
    let verifier = OpaqueAuth { flavor: AuthFlavor::NONE, body: STARTTLS };
    let status = ReplyStatus::Accepted { verifier, status: AcceptStatus::Success };
    Reply::refusal(&ReplyHeader { xid, status })
}

/// A probe of this program.
pub(crate) fn request(xid: u32, program: u32, version: u32) -> CallHeader<'static> {
    let credential = OpaqueAuth { flavor: AuthFlavor::TLS, body: &[] };
    CallHeader { xid, program, version, procedure: 0, credential, verifier: OpaqueAuth::NONE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::xdr::Encode;

    #[test]
    fn only_a_bare_null_call_is_a_probe() {
        let probe = request(7, 100_003, 4);
        assert_eq!(find(&probe.encoded()), Some(7));
        let body = |flavor, body| OpaqueAuth { flavor, body };
        for wrong in [
            CallHeader { procedure: 1, ..probe },
            CallHeader { credential: body(AuthFlavor::TLS, &[0; 4]), ..probe },
            CallHeader { credential: OpaqueAuth::NONE, ..probe },
            CallHeader { verifier: body(AuthFlavor::NONE, &[0; 4]), ..probe },
            CallHeader { verifier: body(AuthFlavor::SYS, &[]), ..probe },
        ] {
            assert_eq!(find(&wrong.encoded()), None, "{wrong:?}");
        }
        let longer = [&probe.encoded()[..], &[0; 4]].concat();
        assert_eq!(find(&longer), None);
        let whole = probe.encoded();
        assert!((0..whole.len()).all(|len| find(&whole[..len]).is_none()));
    }
}
