//! The cryptography that this crate needs from a mechanism.

use crate::limits::GSS_MIC_BYTES_MAX;
use thiserror::Error;

/// A token that its context does not accept. The reason is not told: it would help an attacker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the token is not one of this context")]
pub struct BadToken;

/// The keys of the acceptor's side of an established context, and its per-message tokens (RFC 2743
/// section 2.3; RFC 4121 for Kerberos V5).
///
/// Several threads use the keys of one context at the same time. Implementations check the
/// direction of a token, so that a token of the acceptor is not accepted from the initiator. They
/// detect no replays and no gaps, because RPCSEC_GSS does (RFC 2203 section 5.2.2).
pub trait MessageKeys: Send + Sync + std::fmt::Debug {
    /// The length of every MIC of [`MessageKeys::mic`], in bytes: at most
    /// [`MIC_BYTES_MAX`](super::MIC_BYTES_MAX).
    fn mic_bytes(&self) -> usize;

    /// Writes the MIC of the concatenated `parts` to `mic`, which is [`MessageKeys::mic_bytes`]
    /// long (`GSS_GetMIC`).
    fn mic(&self, parts: &[&[u8]], mic: &mut [u8]);

    /// Verifies the initiator's MIC of the concatenated `parts` (`GSS_VerifyMIC`).
    ///
    /// # Errors
    /// When `mic` is not the MIC of these bytes. It may have any length and content.
    fn verify(&self, parts: &[&[u8]], mic: &[u8]) -> Result<(), BadToken>;

    /// The length of the token of [`MessageKeys::seal`] for `plain_bytes` bytes.
    fn sealed_bytes(&self, plain_bytes: usize) -> usize;

    /// Encrypts the concatenated `parts` into `token`, which is as long as
    /// [`MessageKeys::sealed_bytes`] says (`GSS_Wrap` with confidentiality). It reads each byte
    /// once.
    fn seal(&self, parts: &[&[u8]], token: &mut [u8]);

    /// Decrypts a token of the initiator to the front of `plain`, which is at least as long as
    /// `token` (`GSS_Unwrap`). Returns the number of plain bytes.
    ///
    /// # Errors
    /// When `token` is not an encrypted token of this context; one with integrity alone is none.
    /// It may have any length and content. The bytes in `plain` are arbitrary then.
    fn open(&self, token: &[u8], plain: &mut [u8]) -> Result<usize, BadToken>;
}

/// The MIC of a reply's verifier.
#[derive(Clone, Copy)]
pub(super) struct Mic {
    bytes: [u8; GSS_MIC_BYTES_MAX],
    len: usize,
}

impl Mic {
    /// The MIC of the concatenated parts.
    pub(super) fn of(keys: &dyn MessageKeys, parts: &[&[u8]]) -> Self {
        let mut mic = Self { bytes: [0; GSS_MIC_BYTES_MAX], len: keys.mic_bytes() };
        debug_assert!(mic.len <= GSS_MIC_BYTES_MAX, "a mechanism with longer MICs");
        mic.len = mic.len.min(GSS_MIC_BYTES_MAX);
        keys.mic(parts, &mut mic.bytes[..mic.len]);
        mic
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
