//! The parts of a mechanism that a client needs (GSS-API, RFC 2743).

use crate::gss::BadToken;
use dafs_mem::VolatileSlice;
use std::fmt::Debug;
use std::time::Duration;

/// A mechanism with the credentials of a user, for one service.
pub trait Mechanism: Send + Sync + Debug {
    /// Begins a new context. The call does not block.
    fn begin(&self) -> Box<dyn PartialContext>;
}

/// A context that is being established: the state of the initiator between two tokens of the
/// acceptor (`GSS_Init_sec_context`, RFC 2743 section 2.2.1).
pub trait PartialContext: Send {
    /// Takes a token of the acceptor, which is empty at first. The call may block: a mechanism reads
    /// files, and asks a KDC.
    fn step(&mut self, token: &[u8]) -> Step;
}

/// The outcome of a step of a mechanism.
#[derive(Debug)]
pub enum Step {
    /// The acceptor must answer.
    Continue {
        /// The token for the acceptor, at most 64 KiB.
        token: Vec<u8>,
    },
    /// The context is established.
    Complete {
        /// The last token for the acceptor; empty if it needs none.
        token: Vec<u8>,
        /// The context.
        established: Established,
    },
    /// There will be no context. The text says why, and the remedy.
    Failed(String),
}

/// The results of a mechanism that has established a context.
#[derive(Debug)]
pub struct Established {
    /// The name of the user, for people, such as `anna@EXAMPLE.ORG`.
    pub principal: String,
    /// The time until the user's ticket ends.
    pub remaining: Duration,
    /// The keys of the initiator's side.
    pub keys: Box<dyn InitiatorKeys>,
}

/// The keys of the initiator's side of an established context, and its per-message tokens (RFC 2743
/// section 2.3; RFC 4121 for Kerberos V5).
///
/// Several threads use the keys of one context at the same time. Implementations refuse tokens of
/// their own side. They detect no replays and no gaps, because RPCSEC_GSS does (RFC 2203 section
/// 5.2.2). The parts of a message may lie in memory that other threads change, so an implementation
/// reads each byte once.
pub trait InitiatorKeys: Send + Sync + Debug {
    /// The length of every MIC of [`InitiatorKeys::mic`], in bytes: at most
    /// [`MIC_BYTES_MAX`](crate::gss::MIC_BYTES_MAX).
    fn mic_bytes(&self) -> usize;

    /// Writes the MIC of the concatenated `parts` to `mic`, which is [`InitiatorKeys::mic_bytes`]
    /// long (`GSS_GetMIC`).
    fn mic(&self, parts: &[VolatileSlice<'_>], mic: &mut [u8]);

    /// Verifies the acceptor's MIC of the concatenated `parts` (`GSS_VerifyMIC`).
    ///
    /// # Errors
    /// When `mic` is not the MIC of these bytes. It may have any length and content.
    fn verify(&self, parts: &[VolatileSlice<'_>], mic: &[u8]) -> Result<(), BadToken>;

    /// The length of the token of [`InitiatorKeys::seal`] for `plain_bytes` bytes.
    fn sealed_bytes(&self, plain_bytes: usize) -> usize;

    /// Encrypts the concatenated `parts` into `token`, which is as long as
    /// [`InitiatorKeys::sealed_bytes`] says (`GSS_Wrap` with confidentiality).
    fn seal(&self, parts: &[VolatileSlice<'_>], token: &mut [u8]);

    /// Decrypts a token of the acceptor, and passes the plain bytes to `write`, in order, in pieces of
    /// any length (`GSS_Unwrap`). There are no more of them than the token has bytes.
    ///
    /// # Errors
    /// When `token` is not an encrypted token of this context; one with integrity alone is none.
    /// It may have any length and content. The bytes passed to `write` mean nothing then.
    fn open(&self, token: &[u8], write: &mut dyn FnMut(&[u8])) -> Result<(), BadToken>;
}
