//! Protected arguments and results (RFC 2203 section 5.3.2).
//!
//! Invariants
//! * The data of a protected body is found only together with the sequence number that was
//!   protected with it.

use super::MIC_BYTES_MAX;
use crate::xdr::{Decoder, Encode, Encoder, XdrError};

/// A sequence number and the arguments or results that it belongs to (`rpc_gss_data_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtectedData<'a> {
    /// The sequence number; the caller compares it with that of the credential.
    pub sequence: u32,
    /// The arguments or results, in XDR.
    pub data: &'a [u8],
}

impl<'a> ProtectedData<'a> {
    /// Bytes before the data.
    pub const PREFIX_BYTES: usize = 4;

    /// Reads the plain bytes of a protected body.
    ///
    /// # Errors
    /// [`XdrError::Truncated`] when they do not hold a sequence number.
    #[inline]
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, XdrError> {
        let mut decoder = Decoder::new(bytes);
        Ok(Self { sequence: decoder.u32()?, data: decoder.rest() })
    }
}

/// The arguments or results under [`super::Service::Integrity`] (`rpc_gss_integ_data`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegrityBody<'a> {
    /// The bytes that the MIC covers.
    covered: &'a [u8],
    content: ProtectedData<'a>,
    mic: &'a [u8],
}

impl<'a> IntegrityBody<'a> {
    /// Decodes all arguments of a call, or all results of a reply.
    ///
    /// # Errors
    /// When they are malformed. The server answers `GARBAGE_ARGS`.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, XdrError> {
        let mut decoder = Decoder::new(bytes);
        let covered = decoder.opaque(usize::MAX)?;
        let mic = decoder.opaque(MIC_BYTES_MAX)?;
        decoder.finish()?;
        Ok(Self { covered, content: ProtectedData::from_bytes(covered)?, mic })
    }

    /// The bytes that the MIC covers: the sequence number and the data.
    pub const fn covered(&self) -> &'a [u8] {
        self.covered
    }

    /// The MIC, at most [`MIC_BYTES_MAX`] bytes.
    pub const fn mic(&self) -> &'a [u8] {
        self.mic
    }

    /// The sequence number and the data, which prove nothing before the MIC was verified.
    pub const fn content(&self) -> ProtectedData<'a> {
        self.content
    }
}

impl Encode for IntegrityBody<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self.covered);
        encoder.opaque(self.mic);
    }
}

/// The arguments or results under [`super::Service::Privacy`] (`rpc_gss_priv_data`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivacyBody<'a> {
    /// The token that holds the bytes of a [`ProtectedData`].
    pub token: &'a [u8],
}

impl<'a> PrivacyBody<'a> {
    /// Decodes all arguments of a call, or all results of a reply.
    ///
    /// # Errors
    /// When they are malformed. The server answers `GARBAGE_ARGS`.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, XdrError> {
        let mut decoder = Decoder::new(bytes);
        let token = decoder.opaque(usize::MAX)?;
        decoder.finish()?;
        Ok(Self { token })
    }
}

impl Encode for PrivacyBody<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_integrity_body_is_data_and_its_mic() {
        let bytes = [
            [0, 0, 0, 8], // databody_integ
            [0, 0, 0, 7], // seq_num
            *b"args",
            [0, 0, 0, 5], // checksum
            *b"abcd",
            *b"e\0\0\0",
        ]
        .concat();
        let body = IntegrityBody::from_bytes(&bytes).unwrap();
        assert_eq!(body.covered(), b"\0\0\0\x07args");
        assert_eq!(body.content(), ProtectedData { sequence: 7, data: b"args" });
        assert_eq!(body.mic(), b"abcde");
        assert_eq!(body.encoded(), bytes);
    }

    #[test]
    fn a_body_has_a_sequence_number_and_no_end_but_its_own() {
        let body = |covered: &[u8], rest: &[u8]| {
            let mut bytes = Vec::new();
            let mut encoder = Encoder::new(&mut bytes);
            encoder.opaque(covered);
            encoder.opaque(b"mic.");
            bytes.extend_from_slice(rest);
            bytes
        };
        let decode = |bytes: &[u8]| IntegrityBody::from_bytes(bytes).map(|_| ());
        assert_eq!(decode(&body(&[0; 4], &[])), Ok(()));
        assert_eq!(decode(&body(&[0; 3], &[])), Err(XdrError::Truncated { wanted: 4, left: 3 }));
        assert_eq!(decode(&body(&[0; 4], &[0; 4])), Err(XdrError::Trailing(4)));
        let mut long = Vec::new();
        let mut encoder = Encoder::new(&mut long);
        encoder.opaque(&[0; 4]);
        encoder.opaque(&[0; MIC_BYTES_MAX + 1]);
        assert!(matches!(decode(&long), Err(XdrError::TooLong { .. })));
        assert_eq!(PrivacyBody::from_bytes(b"\0\0\0\0").unwrap().token, b"");
        assert_eq!(PrivacyBody::from_bytes(&[0; 8]), Err(XdrError::Trailing(4)));
    }

    proptest! {
        #[test]
        fn any_body_survives_and_no_piece_of_it_is_one(
            data in proptest::collection::vec(any::<u8>(), 4..100),
            mic in proptest::collection::vec(any::<u8>(), 0..=64),
        ) {
            let content = ProtectedData::from_bytes(&data).unwrap();
            let body = IntegrityBody { covered: &data, content, mic: &mic };
            let bytes = body.encoded();
            prop_assert_eq!(IntegrityBody::from_bytes(&bytes), Ok(body));
            for end in 0..bytes.len() {
                prop_assert!(IntegrityBody::from_bytes(&bytes[..end]).is_err());
            }
            let body = PrivacyBody { token: &data };
            let bytes = body.encoded();
            prop_assert_eq!(PrivacyBody::from_bytes(&bytes), Ok(body));
            for end in 0..bytes.len() {
                prop_assert!(PrivacyBody::from_bytes(&bytes[..end]).is_err());
            }
        }
    }
}
