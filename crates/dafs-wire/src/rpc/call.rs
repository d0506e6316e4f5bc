//! The header of a call (RFC 5531 section 9).

use super::auth::OpaqueAuth;
use super::limits::{AUTH_BODY_BYTES_MAX, RPC_VERSION};
use super::reply::{AuthStatus, RejectStatus, VersionRange};
use crate::xdr::{Decoder, Encode, Encoder, UNIT_BYTES, XdrError, padded};
use thiserror::Error;

/// The direction of a message (RFC 5531 section 9, `msg_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A call.
    Call,
    /// A reply.
    Reply,
}

impl Direction {
    /// The number on the wire.
    pub const fn to_u32(self) -> u32 {
        match self {
            Self::Call => 0,
            Self::Reply => 1,
        }
    }
}

/// Decodes the XID and the direction at the start of a message.
///
/// # Errors
/// When the message is shorter or has an undefined direction.
#[inline]
pub fn peek(message: &[u8]) -> Result<(u32, Direction), XdrError> {
    let mut decoder = Decoder::new(message);
    let xid = decoder.u32()?;
    match decoder.u32()? {
        0 => Ok((xid, Direction::Call)),
        1 => Ok((xid, Direction::Reply)),
        value => Err(XdrError::UnknownValue { what: "msg_type", value }),
    }
}

/// The header of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallHeader<'a> {
    /// The XID that the caller chose; the reply repeats it.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure of the program.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: OpaqueAuth<'a>,
    /// The verifier of the credential.
    pub verifier: OpaqueAuth<'a>,
}

/// The reason why a message is not a call that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// It is not even the start of a call. No reply is possible, and the stream is broken.
    #[error("the message is not an RPC call: {0}")]
    Malformed(#[from] XdrError),
    /// A call of another RPC version, or with a credential that exceeds the limits.
    #[error("the call must be rejected: {status:?}")]
    Rejected {
        /// The XID of the call.
        xid: u32,
        /// The status to answer.
        status: RejectStatus,
    },
}

impl<'a> CallHeader<'a> {
    /// Reads the header of a call; the arguments follow.
    ///
    /// # Errors
    /// See [`CallError`].
    #[inline]
    pub fn decode(decoder: &mut Decoder<'a>) -> Result<Self, CallError> {
        let xid = decoder.u32()?;
        let direction = decoder.u32()?;
        if direction != Direction::Call.to_u32() {
            let error = XdrError::UnknownValue { what: "msg_type of a call", value: direction };
            return Err(error.into());
        }
        if decoder.u32()? != RPC_VERSION {
            let supported = VersionRange { low: RPC_VERSION, high: RPC_VERSION };
            return Err(CallError::Rejected { xid, status: RejectStatus::RpcMismatch(supported) });
        }
        let program = decoder.u32()?;
        let version = decoder.u32()?;
        let procedure = decoder.u32()?;
        let credential = auth(decoder, xid, AuthStatus::BadCredential)?;
        let verifier = auth(decoder, xid, AuthStatus::BadVerifier)?;
        Ok(Self { xid, program, version, procedure, credential, verifier })
    }
}

impl CallHeader<'_> {
    /// The bytes of the header from the XID to the end of the credential. The verifier of
    /// RPCSEC_GSS covers them (RFC 2203 section 5.3.1).
    #[inline]
    pub const fn bytes_to_verifier(&self) -> usize {
        // XID, direction, RPC version, program, version, procedure, flavor and length.
        8 * UNIT_BYTES + padded(self.credential.body.len())
    }
}

/// Decodes a credential or verifier; one that is too long has a rejection of its own.
#[inline]
fn auth<'a>(
    decoder: &mut Decoder<'a>,
    xid: u32,
    too_long: AuthStatus,
) -> Result<OpaqueAuth<'a>, CallError> {
    decoder.value().map_err(|error| match error {
        XdrError::TooLong { max: AUTH_BODY_BYTES_MAX, .. } => {
            CallError::Rejected { xid, status: RejectStatus::Auth(too_long) }
        }
        other => other.into(),
    })
}

impl Encode for CallHeader<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.u32(self.xid);
        encoder.u32(Direction::Call.to_u32());
        encoder.u32(RPC_VERSION);
        encoder.u32(self.program);
        encoder.u32(self.version);
        encoder.u32(self.procedure);
        self.credential.encode(encoder);
        self.verifier.encode(encoder);
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::CALL_HEADER_BYTES_MIN;
    use super::*;
    use crate::rpc::AuthFlavor;
    use proptest::prelude::*;

    fn header() -> CallHeader<'static> {
        let none = OpaqueAuth::NONE;
        CallHeader {
            xid: 0x0102_0304,
            program: 100_003,
            version: 3,
            procedure: 1,
            credential: none,
            verifier: none,
        }
    }

    #[test]
    fn the_layout_is_that_of_the_rfc() {
        let bytes = header().encoded();
        let want = [
            [1, 2, 3, 4], // xid
            [0; 4],       // CALL
            [0, 0, 0, 2], // rpcvers
            [0, 1, 0x86, 0xa3],
            [0, 0, 0, 3],
            [0, 0, 0, 1],
            [0; 4], // AUTH_NONE
            [0; 4],
            [0; 4], // AUTH_NONE
            [0; 4],
        ];
        assert_eq!(bytes, want.concat());
        assert_eq!(bytes.len(), CALL_HEADER_BYTES_MIN);
        assert_eq!(peek(&bytes), Ok((0x0102_0304, Direction::Call)));
        assert_eq!(CallHeader::decode(&mut Decoder::new(&bytes)), Ok(header()));
    }

    #[test]
    fn the_fault_decides_the_answer() {
        let good = header().encoded();
        let decode = |at: usize, value: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
            CallHeader::decode(&mut Decoder::new(&bytes)).unwrap_err()
        };
        let rejected = |status| CallError::Rejected { xid: 0x0102_0304, status };
        assert!(matches!(decode(4, 1), CallError::Malformed(_)));
        let range = VersionRange { low: 2, high: 2 };
        assert_eq!(decode(8, 3), rejected(RejectStatus::RpcMismatch(range)));
        assert_eq!(decode(28, 401), rejected(RejectStatus::Auth(AuthStatus::BadCredential)));
        assert_eq!(decode(36, 401), rejected(RejectStatus::Auth(AuthStatus::BadVerifier)));
        assert!(matches!(decode(36, 400), CallError::Malformed(_)));
    }

    #[test]
    fn a_message_goes_one_of_two_ways() {
        assert_eq!(peek(&[0, 0, 0, 9, 0, 0, 0, 1]), Ok((9, Direction::Reply)));
        assert!(peek(&[0, 0, 0, 9, 0, 0, 0, 2]).is_err());
        assert!(peek(&[0, 0, 0, 9, 0, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn any_header_survives_and_no_piece_of_it_is_one(
            numbers in any::<(u32, u32, u32, u32)>(),
            flavors in any::<(u32, u32)>(),
            credential in proptest::collection::vec(any::<u8>(), 0..=AUTH_BODY_BYTES_MAX),
            verifier in proptest::collection::vec(any::<u8>(), 0..=AUTH_BODY_BYTES_MAX),
        ) {
            let header = CallHeader {
                xid: numbers.0,
                program: numbers.1,
                version: numbers.2,
                procedure: numbers.3,
                credential: OpaqueAuth { flavor: AuthFlavor(flavors.0), body: &credential },
                verifier: OpaqueAuth { flavor: AuthFlavor(flavors.1), body: &verifier },
            };
            let bytes = header.encoded();
            prop_assert_eq!(CallHeader::decode(&mut Decoder::new(&bytes)), Ok(header));
            let verifier_bytes = header.verifier.encoded().len();
            prop_assert_eq!(header.bytes_to_verifier() + verifier_bytes, bytes.len());
            for end in 0..bytes.len() {
                let piece = CallHeader::decode(&mut Decoder::new(&bytes[..end]));
                prop_assert!(matches!(piece, Err(CallError::Malformed(_))));
            }
        }
    }
}
