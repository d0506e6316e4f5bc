//! The header of a reply (RFC 5531 section 9).

use super::auth::OpaqueAuth;
use super::call::Direction;
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};

/// A range of supported versions, including both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRange {
    /// The lowest version.
    pub low: u32,
    /// The highest version.
    pub high: u32,
}

impl VersionRange {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
        Ok(Self { low: decoder.u32()?, high: decoder.u32()? })
    }

    fn encode(self, encoder: &mut Encoder<'_>) {
        encoder.u32(self.low);
        encoder.u32(self.high);
    }
}

/// The outcome of a call that the server accepted (RFC 5531 section 9, `accept_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptStatus {
    /// The server executed it; the results follow.
    Success,
    /// The server does not have the program.
    ProgramUnavailable,
    /// The server has other versions of the program.
    ProgramMismatch(VersionRange),
    /// The program does not have the procedure.
    ProcedureUnavailable,
    /// The arguments could not be decoded.
    GarbageArgs,
    /// The server failed, for lack of memory for example.
    SystemError,
}

/// The fault in a credential or verifier (RFC 5531 section 9, `auth_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthStatus {
    /// The credential is malformed.
    BadCredential,
    /// The credential is no longer valid; the client must begin a new session.
    RejectedCredential,
    /// The verifier is malformed.
    BadVerifier,
    /// The verifier has expired or was used before.
    RejectedVerifier,
    /// The flavor is not secure enough here.
    TooWeak,
    /// The verifier of the reply is wrong (clients report this to themselves).
    InvalidResponse,
    /// For reasons unknown.
    Failed,
    /// GSS: the context is unknown or has expired (RFC 2203 section 5.3.3.3).
    GssCredentialProblem,
    /// GSS: the context cannot be used (RFC 2203 section 5.3.3.3).
    GssContextProblem,
    /// Another number.
    Other(u32),
}

impl AuthStatus {
    /// The number on the wire.
    pub const fn to_u32(self) -> u32 {
        match self {
            Self::BadCredential => 1,
            Self::RejectedCredential => 2,
            Self::BadVerifier => 3,
            Self::RejectedVerifier => 4,
            Self::TooWeak => 5,
            Self::InvalidResponse => 6,
            Self::Failed => 7,
            Self::GssCredentialProblem => 13,
            Self::GssContextProblem => 14,
            Self::Other(number) => number,
        }
    }

    /// The meaning of a number on the wire.
    pub const fn from_u32(number: u32) -> Self {
        match number {
            1 => Self::BadCredential,
            2 => Self::RejectedCredential,
            3 => Self::BadVerifier,
            4 => Self::RejectedVerifier,
            5 => Self::TooWeak,
            6 => Self::InvalidResponse,
            7 => Self::Failed,
            13 => Self::GssCredentialProblem,
            14 => Self::GssContextProblem,
            other => Self::Other(other),
        }
    }
}

/// The reason why a server denied a call (RFC 5531 section 9, `reject_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectStatus {
    /// The server speaks other versions of RPC.
    RpcMismatch(VersionRange),
    /// Authentication failed.
    Auth(AuthStatus),
}

/// The status of a call in its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyStatus<'a> {
    /// The server accepted the call.
    Accepted {
        /// The server's verifier.
        verifier: OpaqueAuth<'a>,
        /// The outcome of the call.
        status: AcceptStatus,
    },
    /// The server denied the call.
    Denied(RejectStatus),
}

/// The header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader<'a> {
    /// The XID of the call.
    pub xid: u32,
    /// The status of the call.
    pub status: ReplyStatus<'a>,
}

impl ReplyHeader<'static> {
    /// The header of a reply to an accepted call, with an empty verifier.
    pub const fn accepted(xid: u32, status: AcceptStatus) -> Self {
        Self { xid, status: ReplyStatus::Accepted { verifier: OpaqueAuth::NONE, status } }
    }

    /// The header of a reply to a denied call.
    pub const fn denied(xid: u32, status: RejectStatus) -> Self {
        Self { xid, status: ReplyStatus::Denied(status) }
    }
}

impl<'a> Decode<'a> for AcceptStatus {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match decoder.u32()? {
            0 => Self::Success,
            1 => Self::ProgramUnavailable,
            2 => Self::ProgramMismatch(VersionRange::decode(decoder)?),
            3 => Self::ProcedureUnavailable,
            4 => Self::GarbageArgs,
            5 => Self::SystemError,
            value => return Err(XdrError::UnknownValue { what: "accept_stat", value }),
        })
    }
}

impl Encode for AcceptStatus {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(match self {
            Self::Success => 0,
            Self::ProgramUnavailable => 1,
            Self::ProgramMismatch(_) => 2,
            Self::ProcedureUnavailable => 3,
            Self::GarbageArgs => 4,
            Self::SystemError => 5,
        });
        if let Self::ProgramMismatch(range) = self {
            range.encode(encoder);
        }
    }
}

impl<'a> Decode<'a> for RejectStatus {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match decoder.u32()? {
            0 => Ok(Self::RpcMismatch(VersionRange::decode(decoder)?)),
            1 => Ok(Self::Auth(AuthStatus::from_u32(decoder.u32()?))),
            value => Err(XdrError::UnknownValue { what: "reject_stat", value }),
        }
    }
}

impl Encode for RejectStatus {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        match self {
            Self::RpcMismatch(range) => {
                encoder.u32(0);
                range.encode(encoder);
            }
            Self::Auth(status) => {
                encoder.u32(1);
                encoder.u32(status.to_u32());
            }
        }
    }
}

impl<'a> Decode<'a> for ReplyHeader<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let xid = decoder.u32()?;
        let direction = decoder.u32()?;
        if direction != Direction::Reply.to_u32() {
            return Err(XdrError::UnknownValue { what: "msg_type of a reply", value: direction });
        }
        let status = match decoder.u32()? {
            0 => {
                let verifier = decoder.value()?;
                ReplyStatus::Accepted { verifier, status: decoder.value()? }
            }
            1 => ReplyStatus::Denied(decoder.value()?),
            value => return Err(XdrError::UnknownValue { what: "reply_stat", value }),
        };
        Ok(Self { xid, status })
    }
}

impl Encode for ReplyHeader<'_> {
    #[inline]
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(self.xid);
        encoder.u32(Direction::Reply.to_u32());
        match &self.status {
            ReplyStatus::Accepted { verifier, status } => {
                encoder.u32(0);
                verifier.encode(encoder);
                status.encode(encoder);
            }
            ReplyStatus::Denied(status) => {
                encoder.u32(1);
                status.encode(encoder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::SUCCESS_HEADER_BYTES;
    use super::*;
    use crate::rpc::AuthFlavor;

    fn check(header: ReplyHeader<'_>, words: &[u32]) {
        let bytes = header.encoded();
        let want: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(bytes, want);
        let mut decoder = Decoder::new(&bytes);
        assert_eq!(decoder.value(), Ok(header));
        assert_eq!(decoder.finish(), Ok(()));
        for end in 0..bytes.len() {
            assert!(ReplyHeader::decode(&mut Decoder::new(&bytes[..end])).is_err());
        }
    }

    #[test]
    fn every_status_has_its_layout() {
        let range = VersionRange { low: 3, high: 4 };
        let accepted = |status| ReplyHeader::accepted(9, status);
        check(accepted(AcceptStatus::Success), &[9, 1, 0, 0, 0, 0]);
        check(accepted(AcceptStatus::ProgramUnavailable), &[9, 1, 0, 0, 0, 1]);
        check(accepted(AcceptStatus::ProgramMismatch(range)), &[9, 1, 0, 0, 0, 2, 3, 4]);
        check(accepted(AcceptStatus::ProcedureUnavailable), &[9, 1, 0, 0, 0, 3]);
        check(accepted(AcceptStatus::GarbageArgs), &[9, 1, 0, 0, 0, 4]);
        check(accepted(AcceptStatus::SystemError), &[9, 1, 0, 0, 0, 5]);
        check(ReplyHeader::denied(9, RejectStatus::RpcMismatch(range)), &[9, 1, 1, 0, 3, 4]);
        for number in 0..20 {
            let status = AuthStatus::from_u32(number);
            check(ReplyHeader::denied(9, RejectStatus::Auth(status)), &[9, 1, 1, 1, number]);
        }
    }

    #[test]
    fn verifiers_are_kept() {
        let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &[0, 0, 0, 7] };
        let status = ReplyStatus::Accepted { verifier, status: AcceptStatus::Success };
        check(ReplyHeader { xid: 1, status }, &[1, 1, 0, 6, 4, 7, 0]);
        assert_eq!(SUCCESS_HEADER_BYTES, 6 * 4);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let decode = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            ReplyHeader::decode(&mut Decoder::new(&bytes)).is_err()
        };
        assert!(decode(&[9, 0, 0, 0, 0, 0]));
        assert!(decode(&[9, 1, 2, 0, 0, 0]));
        assert!(decode(&[9, 1, 0, 0, 0, 6]));
        assert!(decode(&[9, 1, 1, 2, 0, 0]));
    }
}
