//! The exporter of TLS 1.3 (RFC 8446 7.5), which rustls' unbuffered connections lack.
//!
//! Invariants
//! * The secret leaves memory with the exporter.
//! * Both ends of one connection get the same value for the same label and context, and nobody else
//!   does.

use crate::suite::Suite;
use rustls::crypto::tls13::{HkdfExpander, OkmBlock};
use std::fmt;
use thiserror::Error;

/// The label of the channel binding `tls-exporter` (RFC 9266 4.2).
pub const CHANNEL_BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// Bytes of the channel binding `tls-exporter` (RFC 9266 4.2).
pub const CHANNEL_BINDING_BYTES: usize = 32;

/// The label of HKDF-Expand-Label has one byte for its length (RFC 8446 7.1).
const LABEL_BYTES_MAX: usize = 255 - 6;

/// A label is too long, or too many bytes are wanted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the label is longer than 249 bytes, or more than 8160 bytes are wanted")]
pub struct ExportError;

/// Derives values that both ends of a connection share.
pub struct Exporter {
    secret: OkmBlock,
    suite: Suite,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exporter({})", self.suite)
    }
}

impl Exporter {
    pub(crate) fn new(secret: OkmBlock, suite: Suite) -> Self {
        Self { secret, suite }
    }

    /// Fills `out` with the value for a label and a context (RFC 8446 7.5).
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn export(&self, label: &[u8], context: &[u8], out: &mut [u8]) -> Result<(), ExportError> {
        let functions = self.suite.functions();
        let hash = functions.common.hash_provider;
        let master = functions.hkdf_provider.expander_for_okm(&self.secret);
        let mut secret = [0; OkmBlock::MAX_LEN];
        let secret = &mut secret[..master.hash_len()];
        expand_label(master.as_ref(), label, hash.hash(&[]).as_ref(), secret)?;
        let block = OkmBlock::new(secret);
        zeroize::Zeroize::zeroize(secret);
        let expander = functions.hkdf_provider.expander_for_okm(&block);
        expand_label(expander.as_ref(), b"exporter", hash.hash(context).as_ref(), out)
    }

    /// The channel binding `tls-exporter` (RFC 9266).
    pub fn channel_binding(&self) -> [u8; CHANNEL_BINDING_BYTES] {
        let mut value = [0; CHANNEL_BINDING_BYTES];
        // INVARIANT: the label and the length are within the bounds.
        self.export(CHANNEL_BINDING_LABEL, &[], &mut value)
            .expect("a short label and a short value");
        value
    }
}

/// HKDF-Expand-Label (RFC 8446 7.1).
fn expand_label(
    expander: &dyn HkdfExpander,
    label: &[u8],
    context: &[u8],
    out: &mut [u8],
) -> Result<(), ExportError> {
    const PREFIX: &[u8] = b"tls13 ";
    let out_bytes = u16::try_from(out.len()).map_err(|_| ExportError)?.to_be_bytes();
    if label.len() > LABEL_BYTES_MAX || context.len() > OkmBlock::MAX_LEN {
        return Err(ExportError);
    }
    // Both fit a byte: 249 + 6 and 64 at most.
    let label_bytes = [(PREFIX.len() + label.len()) as u8];
    let context_bytes = [context.len() as u8];
    let info = [&out_bytes[..], &label_bytes, PREFIX, label, &context_bytes, context];
    expander.expand_slice(&info, out).map_err(|_| ExportError)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8448 3: the server's handshake secret gives its key and IV.
    #[test]
    fn expand_label_gives_the_values_of_rfc_8448() {
        let secret = [
            0xb6, 0x7b, 0x7d, 0x69, 0x0c, 0xc1, 0x6c, 0x4e, 0x75, 0xe5, 0x42, 0x13, 0xcb, 0x2d,
            0x37, 0xb4, 0xe9, 0xc9, 0x12, 0xbc, 0xde, 0xd9, 0x10, 0x5d, 0x42, 0xbe, 0xfd, 0x59,
            0xd3, 0x91, 0xad, 0x38,
        ];
        let key = [
            0x3f, 0xce, 0x51, 0x60, 0x09, 0xc2, 0x17, 0x27, 0xd0, 0xf2, 0xe4, 0xe8, 0x6e, 0xe4,
            0x03, 0xbc,
        ];
        let iv = [0x5d, 0x31, 0x3e, 0xb2, 0x67, 0x12, 0x76, 0xee, 0x13, 0x00, 0x0b, 0x30];
        let hkdf = Suite::Aes128.functions().hkdf_provider;
        let expander = hkdf.expander_for_okm(&OkmBlock::new(&secret));
        let mut found = [0; 16];
        expand_label(expander.as_ref(), b"key", &[], &mut found).unwrap();
        assert_eq!(found, key);
        let mut found = [0; 12];
        expand_label(expander.as_ref(), b"iv", &[], &mut found).unwrap();
        assert_eq!(found, iv);
    }

    #[test]
    fn lengths_are_bounded_and_debug_shows_no_secret() {
        let exporter = Exporter::new(OkmBlock::new(&[7; 32]), Suite::Aes128);
        let mut out = vec![0; 255 * 32];
        assert_eq!(exporter.export(&[b'x'; 249], b"c", &mut out), Ok(()));
        assert_eq!(exporter.export(&[b'x'; 250], b"c", &mut out), Err(ExportError));
        assert_eq!(exporter.export(b"x", b"c", &mut vec![0; 255 * 32 + 1]), Err(ExportError));
        assert_eq!(exporter.export(b"x", b"c", &mut vec![0; 70_000]), Err(ExportError));
        assert_eq!(format!("{exporter:?}"), "Exporter(AES-128-GCM)");
        assert_ne!(exporter.channel_binding(), [0; 32]);
    }
}
