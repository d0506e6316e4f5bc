//! One transmission of a call in a context: the header and the arguments that the client sends, and
//! the reply that it gets (RFC 2203 section 5.3).
//!
//! Invariants
//! * Results are found only after the server's verifier, the protection of the results and the
//!   sequence number inside were found good.
//! * Only a successful reply has protected results. A verifier covers the sequence number alone
//!   (RFC 2203 section 5.3.3.2), so the status of any other accepted reply is a hint, as a denial
//!   is. Such a call may have been carried out.
//! * Each byte of the arguments is read once under privacy. Under integrity it is read once more
//!   when it is sent; a caller that changes it meanwhile spoils its own call.

use super::context::Context;
use super::mechanism::Established;
use super::outgoing::{Head, Outgoing, header};
use super::placing::{Opened, Placing};
use crate::client::Procedure;
use crate::client::core::Results;
use crate::client::error::CallError;
use crate::client::memory::MemorySlice;
use crate::client::request::{Locate, Request, SendData, gather};
use crate::limits::GSS_MIC_BYTES_MAX;
use crate::memory::{Block, source};
use crate::output::Parts;
use dafs_wire::rpc::gss::{Credential, PrivacyBody, Protected, ProtectedData, Service};
use dafs_wire::rpc::{AcceptStatus, AuthFlavor, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Decoder, Encode, Encoder, MovedItem, UNIT_BYTES, padded};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes before the arguments or results under integrity: a length and a sequence number.
const INTEGRITY_PREFIX_BYTES: usize = UNIT_BYTES + ProtectedData::PREFIX_BYTES;

const PADDING: [u8; UNIT_BYTES] = [0; UNIT_BYTES];

/// One transmission of a call in a context.
#[derive(Debug)]
pub struct Protection {
    context: Arc<Context>,
    sequence: u32,
    service: Service,
    /// True for the end of the context (RPCSEC_GSS_DESTROY).
    is_destroy: bool,
    has_left: AtomicBool,
}

impl Drop for Protection {
    fn drop(&mut self) {
        self.leaves();
    }
}

impl Protection {
    /// Takes a sequence number, and waits for it; `None` when the context is used up.
    ///
    /// # Errors
    /// [`CallError::TimedOut`].
    pub(super) fn of_call(
        context: &Arc<Context>,
        service: Service,
        until: Instant,
    ) -> Result<Option<Self>, CallError> {
        let sequence = context.take_sequence(until)?;
        Ok(sequence.map(|sequence| Self::new(context.clone(), sequence, service)))
    }

    fn new(context: Arc<Context>, sequence: u32, service: Service) -> Self {
        Self { context, sequence, service, is_destroy: false, has_left: AtomicBool::new(false) }
    }

    /// The end of the context, if it has a number at once.
    pub(super) fn of_destroy(context: &Arc<Context>) -> Option<Self> {
        let mut protection = Self::of_call(context, Service::None, Instant::now()).ok()??;
        protection.is_destroy = true;
        Some(protection)
    }

    /// The first call in a context without a server, for tests that make its replies: its sequence
    /// number is 1.
    pub fn alone(established: Established, service: Service) -> Self {
        let context = Arc::new(Context::new(1, &[], 1, established, Instant::now()));
        Self::new(context, 1, service)
    }

    /// The protection of the bodies.
    pub fn service(&self) -> Service {
        self.service
    }

    pub(super) fn context_number(&self) -> u64 {
        self.context.number
    }

    /// Notes that no call with a later number can leave before this one on its connection, or that
    /// it will not leave.
    pub(super) fn leaves(&self) {
        if !self.has_left.swap(true, Ordering::Relaxed) {
            self.context.has_left(self.sequence);
        }
    }
}

/// The call.
impl Protection {
    /// Appends the header: the verifier is the MIC of all before it (RFC 2203 section 5.3.1).
    pub(crate) fn encode_header(&self, xid: u32, procedure: Procedure, bytes: &mut Vec<u8>) {
        let fields = Protected {
            handle: &self.context.handle,
            sequence: self.sequence,
            service: self.service,
        };
        let credential = match self.is_destroy {
            false => Credential::Data(fields),
            true => Credential::Destroy(fields),
        };
        let body = credential.encoded();
        let credential = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &body };
        let header = header(xid, procedure, credential);
        let start = bytes.len();
        header.encode(&mut Encoder::new(bytes));
        bytes.truncate(start + header.bytes_to_verifier());
        let mic = self.context.mic(&[source(&bytes[start..])]);
        OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: mic.bytes() }
            .encode(&mut Encoder::new(bytes));
    }

    /// Passes the request, with protected arguments, to `send`.
    pub(super) fn protect<T>(
        &self,
        request: &Request<'_>,
        send: impl FnOnce(&Outgoing<'_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let (head, has_data) = (Head::Protected(self), request.data.is_some());
        let results_bytes_max = self.reply_bytes_max(request);
        let request = Request { results_bytes_max, ..request.clone() };
        match self.service {
            Service::None => send(&Outgoing { request: &request, head, has_data }),
            Service::Integrity => {
                let (prefix, suffix) = self.integrity(&request)?;
                let mut args: SmallVec<[&[u8]; 8]> = SmallVec::new();
                args.push(&prefix);
                args.extend_from_slice(request.args);
                args.push(&suffix);
                let moved = |data: &SendData| SendData {
                    position: data.position + INTEGRITY_PREFIX_BYTES,
                    memory: data.memory.clone(),
                };
                let data = request.data.as_ref().map(moved);
                let request = Request { args: &args, data, ..request };
                send(&Outgoing { request: &request, head, has_data })
            }
            Service::Privacy => {
                let sealed = self.seal(&request)?;
                let args = [sealed.bytes()];
                let request =
                    Request { args: &args, data: None, sinks: &[], locate: None, ..request };
                send(&Outgoing { request: &request, head, has_data })
            }
        }
    }

    /// The bytes before and after arguments whose integrity is protected.
    fn integrity(
        &self,
        request: &Request<'_>,
    ) -> Result<([u8; INTEGRITY_PREFIX_BYTES], SmallVec<[u8; 64]>), CallError> {
        let sequence = self.sequence.to_be_bytes();
        let mut parts = Parts::new();
        parts.push(source(&sequence));
        let args_bytes = gather(request, &mut parts)?;
        let mic = self.context.mic(&parts);
        let covered = u32::try_from(ProtectedData::PREFIX_BYTES + args_bytes);
        let covered = covered.map_err(|_| CallError::TooLong(args_bytes))?;
        let mut prefix = [0; INTEGRITY_PREFIX_BYTES];
        let (len, number) = prefix.split_at_mut(UNIT_BYTES);
        len.copy_from_slice(&covered.to_be_bytes());
        number.copy_from_slice(&sequence);
        let mut suffix = SmallVec::new();
        suffix.extend_from_slice(&(mic.bytes().len() as u32).to_be_bytes());
        suffix.extend_from_slice(mic.bytes());
        suffix.resize(UNIT_BYTES + padded(mic.bytes().len()), 0);
        Ok((prefix, suffix))
    }

    /// The sealed arguments.
    fn seal(&self, request: &Request<'_>) -> Result<Block, CallError> {
        let sequence = self.sequence.to_be_bytes();
        let mut parts = Parts::new();
        parts.push(source(&sequence));
        let args_bytes = gather(request, &mut parts)?;
        let token_bytes = self.context.keys.sealed_bytes(ProtectedData::PREFIX_BYTES + args_bytes);
        let len = u32::try_from(token_bytes).map_err(|_| CallError::TooLong(args_bytes))?;
        let bytes = UNIT_BYTES + padded(token_bytes);
        let mut block = Block::new(bytes).map_err(no_memory)?;
        let (start, rest) = block.spare(bytes).split_at_mut(UNIT_BYTES);
        start.copy_from_slice(&len.to_be_bytes());
        let (token, padding) = rest.split_at_mut(token_bytes);
        self.context.keys.seal(&parts, token);
        padding.fill(0);
        block.fill(bytes);
        Ok(block)
    }
}

/// The reply.
impl Protection {
    /// Bytes of a successful reply's body before the results, if these can be found before they
    /// are verified.
    pub(crate) fn results_offset(&self) -> usize {
        match self.service {
            Service::None | Service::Privacy => 0,
            Service::Integrity => INTEGRITY_PREFIX_BYTES,
        }
    }

    /// The most bytes of the reply after the usual header of a successful one: the verifier, and
    /// the results with their protection. Protected results hold all data.
    fn reply_bytes_max(&self, request: &Request<'_>) -> usize {
        let mic_bytes = padded(self.context.mic_bytes());
        let data = request.sinks.iter().map(|sink| padded(sink.len()));
        let whole = request.results_bytes_max.saturating_add(data.sum());
        let results = match self.service {
            Service::None => request.results_bytes_max,
            Service::Integrity => {
                whole.saturating_add(INTEGRITY_PREFIX_BYTES + UNIT_BYTES + mic_bytes)
            }
            Service::Privacy => {
                let plain = whole.saturating_add(ProtectedData::PREFIX_BYTES);
                let token = self.context.keys.sealed_bytes(plain.min(u32::MAX as usize));
                UNIT_BYTES + padded(token)
            }
        };
        results.saturating_add(mic_bytes)
    }

    /// Finds the results of a reply that came as these bytes.
    ///
    /// # Errors
    /// [`CallError::Unverified`] when the reply is not protected with the keys of the context, for
    /// this call; [`CallError::NotDone`], [`CallError::Denied`], [`CallError::Malformed`].
    pub fn read(&self, reply: &[u8]) -> Result<Results, CallError> {
        self.results(Results::copied(reply)?, &[], None)
    }

    /// Finds the results of a reply. Data may have been placed in the first of the sinks; data that
    /// was sealed is found with `locate`, and placed there.
    pub(super) fn results(
        &self,
        raw: Results,
        sinks: &[MemorySlice],
        locate: Option<Locate>,
    ) -> Result<Results, CallError> {
        let mut decoder = Decoder::new(&raw);
        let header = decoder.value::<ReplyHeader<'_>>().map_err(|_| CallError::Malformed)?;
        let header_bytes = decoder.position();
        match header.status {
            ReplyStatus::Denied(status) => return Err(CallError::Denied(status)),
            ReplyStatus::Accepted { verifier, status } => {
                let is_proven = verifier.flavor == AuthFlavor::RPCSEC_GSS
                    && self.context.is_mic_of(self.sequence, verifier.body);
                if !is_proven {
                    return Err(CallError::Unverified);
                }
                if status != AcceptStatus::Success {
                    return Err(CallError::NotDone(status));
                }
            }
        }
        match self.service {
            Service::None => Ok(raw.behind(header_bytes)),
            Service::Integrity => self.checked(raw, header_bytes, sinks),
            Service::Privacy => self.opened(&raw, header_bytes, sinks.first().zip(locate)),
        }
    }

    /// Verifies the MIC of results, which begin `at` bytes behind the start of the reply.
    fn checked(
        &self,
        raw: Results,
        at: usize,
        sinks: &[MemorySlice],
    ) -> Result<Results, CallError> {
        let start = at + UNIT_BYTES;
        let placed = raw.placed();
        let moved_bytes = placed.map_or(0, |(_, len)| padded(len));
        let body = raw.get(at..).unwrap_or_default();
        let covered_bytes = Decoder::new(body).u32().map_err(|_| CallError::Unverified)? as usize;
        let here_bytes = covered_bytes.checked_sub(moved_bytes).ok_or(CallError::Unverified)?;
        let split = raw.get(start..).and_then(|rest| rest.split_at_checked(here_bytes));
        let (covered, rest) = split.ok_or(CallError::Unverified)?;
        let mic = mic_behind(rest, padded(covered_bytes) - covered_bytes)?;
        let mut parts = Parts::new();
        match placed {
            None => parts.push(source(covered)),
            Some((position, len)) => {
                let cut = position.checked_sub(start).and_then(|cut| covered.split_at_checked(cut));
                let data = sinks.first().and_then(|sink| sink.view().slice(0, len));
                let ((before, after), data) = cut.zip(data).ok_or(CallError::Unverified)?;
                parts.push(source(before));
                parts.push(data);
                parts.push(source(&PADDING[..moved_bytes - len]));
                parts.push(source(after));
            }
        }
        self.context.keys.verify(&parts, mic).map_err(|_| CallError::Unverified)?;
        drop(parts);
        let content = ProtectedData::from_bytes(covered).map_err(|_| CallError::Unverified)?;
        if content.sequence != self.sequence {
            return Err(CallError::Unverified);
        }
        let (start, end) = (start + ProtectedData::PREFIX_BYTES, start + here_bytes);
        Ok(raw.until(end).behind(start))
    }

    /// Decrypts results, which begin `at` bytes behind the start of the reply.
    fn opened(
        &self,
        raw: &Results,
        at: usize,
        sink: Option<(&MemorySlice, Locate)>,
    ) -> Result<Results, CallError> {
        let body = raw.get(at..).unwrap_or_default();
        let PrivacyBody { token } =
            PrivacyBody::from_bytes(body).map_err(|_| CallError::Unverified)?;
        let mut placing = Placing::new(token.len(), sink);
        let opened = self.context.keys.open(token, &mut |bytes| placing.write(bytes));
        opened.map_err(|_| CallError::Unverified)?;
        let Opened { block, placed } =
            placing.end().map_err(no_memory)?.ok_or(CallError::Malformed)?;
        let content =
            ProtectedData::from_bytes(block.bytes()).map_err(|_| CallError::Unverified)?;
        if content.sequence != self.sequence {
            return Err(CallError::Unverified);
        }
        let mut results = Results::in_block(block);
        if let Some((at, len)) = placed {
            results.place(smallvec![MovedItem { at: Some(at), len }]);
        }
        Ok(results.behind(ProtectedData::PREFIX_BYTES))
    }
}

/// The MIC behind padding, with nothing after it.
fn mic_behind(bytes: &[u8], padding: usize) -> Result<&[u8], CallError> {
    let mut decoder = Decoder::new(bytes);
    let mic = decoder.take(padding).and_then(|_| decoder.opaque(GSS_MIC_BYTES_MAX));
    let mic = mic.map_err(|_| CallError::Unverified)?;
    decoder.finish().map_err(|_| CallError::Unverified)?;
    Ok(mic)
}

fn no_memory(error: std::io::Error) -> CallError {
    CallError::NoMemory(error.kind())
}
