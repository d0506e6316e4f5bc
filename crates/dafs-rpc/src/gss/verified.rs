//! A verified call: its arguments, and the protection of its reply (RFC 2203 section 5.3.2,
//! 5.3.3.2).
//!
//! Invariants
//! * Arguments are found only after their MIC or token was accepted and the sequence number inside
//!   was that of the credential.
//! * Only results of successful replies are protected. All other accepted replies have the
//!   verifier alone.

use super::context::{Context, Principal};
use super::establish::Verifier;
use super::keys::Mic;
use crate::limits::GSS_MIC_BYTES_MAX;
use dafs_wire::rpc::gss::{IntegrityBody, PrivacyBody, ProtectedData, Service};
use dafs_wire::rpc::limits::SUCCESS_HEADER_BYTES;
use dafs_wire::xdr::{UNIT_BYTES, padded};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use thiserror::Error;

/// The arguments are not those that the caller protected. The server answers `GARBAGE_ARGS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the arguments are not as the caller protected them")]
pub struct Garbage;

/// The arguments in the body of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// The arguments themselves, a part of the body.
    Plain(&'a [u8]),
    /// The token for [`Verified::open`].
    Sealed(&'a [u8]),
}

/// Slices of bytes that a token covers together.
type Covered<'a> = SmallVec<[&'a [u8]; 8]>;

/// A call whose header was verified. It is kept until the call is answered.
#[derive(Debug)]
pub struct Verified {
    context: Arc<Context>,
    sequence: u32,
    service: Service,
}

impl Verified {
    pub(crate) fn new(context: Arc<Context>, sequence: u32, service: Service) -> Self {
        Self { context, sequence, service }
    }

    /// The context of the call.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The same call, for a reply with a verifier and no results to protect.
    pub(crate) fn with_header_alone(self) -> Self {
        Self { service: Service::None, ..self }
    }

    /// The caller.
    pub fn principal(&self) -> &Principal {
        self.context.principal()
    }

    /// The protection of the arguments, and of the results.
    pub fn service(&self) -> Service {
        self.service
    }

    /// The sequence number.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }
}

/// The arguments.
impl Verified {
    /// Finds the arguments in the body of the call: all bytes after its header. Verifies their MIC
    /// if they have one, which reads them once.
    ///
    /// # Errors
    /// [`Garbage`].
    pub fn body<'a>(&self, body: &'a [u8]) -> Result<Body<'a>, Garbage> {
        match self.service {
            Service::None => Ok(Body::Plain(body)),
            Service::Integrity => {
                let body = IntegrityBody::from_bytes(body).map_err(|_| Garbage)?;
                let verified = self.context.keys().verify(&[body.covered()], body.mic());
                verified.map_err(|_| Garbage)?;
                self.belonging(body.content()).map(Body::Plain)
            }
            Service::Privacy => {
                let body = PrivacyBody::from_bytes(body).map_err(|_| Garbage)?;
                Ok(Body::Sealed(body.token))
            }
        }
    }

    /// Decrypts the arguments into `plain`, which must be at least as long as `token`. Returns
    /// their place there.
    ///
    /// # Errors
    /// [`Garbage`]. The bytes in `plain` are arbitrary then.
    pub fn open(&self, token: &[u8], plain: &mut [u8]) -> Result<Range<usize>, Garbage> {
        debug_assert!(plain.len() >= token.len(), "a token has no room");
        if plain.len() < token.len() || self.service != Service::Privacy {
            return Err(Garbage);
        }
        let len = self.context.keys().open(token, plain).map_err(|_| Garbage)?;
        let opened = plain.get(..len).ok_or(Garbage)?;
        let content = ProtectedData::from_bytes(opened).map_err(|_| Garbage)?;
        self.belonging(content)?;
        Ok(ProtectedData::PREFIX_BYTES..len)
    }

    /// The data, if it was protected for this call.
    fn belonging<'a>(&self, content: ProtectedData<'a>) -> Result<&'a [u8], Garbage> {
        if content.sequence == self.sequence { Ok(content.data) } else { Err(Garbage) }
    }
}

/// The reply.
impl Verified {
    /// The verifier of an accepted reply with any status.
    pub fn verifier(&self) -> Verifier {
        Verifier(Mic::of(self.context.keys(), &[&self.sequence.to_be_bytes()]))
    }

    /// The length of the header of a successful reply, in bytes.
    pub fn success_header_bytes(&self) -> usize {
        SUCCESS_HEADER_BYTES + padded(self.context.keys().mic_bytes())
    }

    /// The length of protected results, in bytes. `results_bytes` is their plain length in XDR.
    pub fn protected_bytes(&self, results_bytes: usize) -> usize {
        match self.service {
            Service::None => results_bytes,
            Service::Integrity => {
                Self::INTEGRITY_PREFIX_BYTES + results_bytes + self.integrity_suffix_bytes()
            }
            Service::Privacy => UNIT_BYTES + padded(self.sealed_bytes(results_bytes)),
        }
    }

    /// Bytes that a successful reply has beside its results: its header, and the protection of
    /// results of any length in XDR.
    pub fn reply_bytes_beside_results(&self) -> usize {
        self.success_header_bytes() + self.protected_bytes(0)
    }

    /// Bytes before results under [`Service::Integrity`].
    pub const INTEGRITY_PREFIX_BYTES: usize = UNIT_BYTES + ProtectedData::PREFIX_BYTES;

    /// The bytes before results under [`Service::Integrity`].
    pub fn integrity_prefix(&self, results_bytes: usize) -> [u8; Self::INTEGRITY_PREFIX_BYTES] {
        let mut prefix = [0; Self::INTEGRITY_PREFIX_BYTES];
        let (len, sequence) = prefix.split_at_mut(UNIT_BYTES);
        len.copy_from_slice(&word(ProtectedData::PREFIX_BYTES + results_bytes));
        sequence.copy_from_slice(&self.sequence.to_be_bytes());
        prefix
    }

    /// The bytes that follow results under [`Service::Integrity`]. `results` are the parts of the
    /// results in XDR, in order; this reads them once.
    pub fn integrity_suffix(&self, results: &[&[u8]]) -> IntegritySuffix {
        let sequence = self.sequence.to_be_bytes();
        let mic = Mic::of(self.context.keys(), &covered(&sequence, results));
        let mut suffix =
            IntegritySuffix { bytes: [0; IntegritySuffix::BYTES_MAX], len: UNIT_BYTES };
        suffix.bytes[..UNIT_BYTES].copy_from_slice(&word(mic.bytes().len()));
        suffix.bytes[UNIT_BYTES..][..mic.bytes().len()].copy_from_slice(mic.bytes());
        suffix.len += padded(mic.bytes().len());
        suffix
    }

    fn integrity_suffix_bytes(&self) -> usize {
        UNIT_BYTES + padded(self.context.keys().mic_bytes())
    }

    fn sealed_bytes(&self, results_bytes: usize) -> usize {
        self.context.keys().sealed_bytes(ProtectedData::PREFIX_BYTES + results_bytes)
    }

    /// Writes results under [`Service::Privacy`] to `protected`, which is as long as
    /// [`Verified::protected_bytes`] says. `results` are the parts of the results in XDR, in order;
    /// this reads them once and writes each byte once.
    ///
    /// # Errors
    /// [`WrongLength`]. Nothing is written then.
    pub fn seal(&self, results: &[&[u8]], protected: &mut [u8]) -> Result<(), WrongLength> {
        let results_bytes = results.iter().map(|part| part.len()).sum();
        let token_bytes = self.sealed_bytes(results_bytes);
        let is_fitting = protected.len() == UNIT_BYTES + padded(token_bytes);
        debug_assert!(is_fitting, "room of another length");
        if !is_fitting {
            return Err(WrongLength);
        }
        let (len, rest) = protected.split_at_mut(UNIT_BYTES);
        len.copy_from_slice(&word(token_bytes));
        let (token, padding) = rest.split_at_mut(token_bytes);
        self.context.keys().seal(&covered(&self.sequence.to_be_bytes(), results), token);
        padding.fill(0);
        Ok(())
    }
}

/// The length of a MIC, the MIC and its padding.
#[derive(Debug, Clone, Copy)]
pub struct IntegritySuffix {
    bytes: [u8; Self::BYTES_MAX],
    len: usize,
}

impl IntegritySuffix {
    const BYTES_MAX: usize = UNIT_BYTES + padded(GSS_MIC_BYTES_MAX);

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The memory for protected results has not their length. This is a fault of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the memory for sealed results has another length than they")]
pub struct WrongLength;

/// The sequence number and the results, which a token covers together.
fn covered<'a>(sequence: &'a [u8], results: &[&'a [u8]]) -> Covered<'a> {
    let mut parts = Covered::new();
    parts.push(sequence);
    parts.extend_from_slice(results);
    parts
}

/// A length in XDR. Records are far below 4 GiB.
fn word(len: usize) -> [u8; UNIT_BYTES] {
    u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes()
}
