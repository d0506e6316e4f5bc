//! The headers of requests and of replies (DAFS 5.2, 5.3).
//!
//! Invariants
//! * The length in a header is that of the message (DAFS O15).

use super::checksum::Checksum;
use super::ids::{Analyzer, ChainFlags, CredHandle, SpecCond};
use super::limits::PROTOCOL_VERSION;
use super::procedure::Procedure;
use super::status::Status;

/// The header of a request (DAFS 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The same on every message of a session (DAFS O1).
    pub protocol_version: u32,
    /// Credits the requester would like; 0 is no wish (DAFS O25).
    pub desired_nreq: u16,
    /// How the request depends on its neighbours.
    pub chain_flags: ChainFlags,
    /// The slot it uses.
    pub stream_id: u16,
    /// Its number in the slot.
    pub seq_number: u16,
    /// Echoed.
    pub analyzer: Analyzer,
    /// The checksum as received; encoders store zero, [`seal`](super::seal) fills it.
    pub message_checksum: Checksum,
    /// The credential to use.
    pub cred_handle: CredHandle,
    /// The number of the procedure, known or not; encoders store that of the request.
    pub procedure: u32,
    /// Length of the whole message in bytes; encoders store the true one.
    pub request_len: u32,
}

impl Default for RequestHeader {
    fn default() -> Self {
        Self {
            protocol_version: PROTOCOL_VERSION,
            desired_nreq: 0,
            chain_flags: ChainFlags::empty(),
            stream_id: 0,
            seq_number: 0,
            analyzer: Analyzer::ZERO,
            message_checksum: Checksum::ZERO,
            cred_handle: CredHandle::SESSION,
            procedure: Procedure::Null as u32,
            request_len: 0,
        }
    }
}

impl RequestHeader {
    /// The procedure; `None` when there is none of that number.
    pub fn known_procedure(&self) -> Option<Procedure> {
        Procedure::from_u32(self.procedure)
    }
}

/// The header of a reply (DAFS 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The version spoken, or on a mismatch the next lower one supported, or 0 (DAFS O1).
    pub protocol_version: u32,
    /// Credits the responder aims at (DAFS 7).
    pub target_nreq: u16,
    /// News about the server.
    pub spec_cond: SpecCond,
    /// Echo.
    pub stream_id: u16,
    /// Echo.
    pub seq_number: u16,
    /// Echo.
    pub analyzer: Analyzer,
    /// The checksum as received; encoders store zero, [`seal`](super::seal) fills it.
    pub message_checksum: Checksum,
    /// The outcome.
    pub status: Status,
    /// Length of the whole message in bytes; encoders store the true one.
    pub response_len: u32,
}

impl Default for ResponseHeader {
    fn default() -> Self {
        Self::answering(&RequestHeader::default(), 0)
    }
}

impl ResponseHeader {
    /// The header of a successful reply to a request.
    pub fn answering(request: &RequestHeader, target_nreq: u16) -> Self {
        Self {
            protocol_version: PROTOCOL_VERSION,
            target_nreq,
            spec_cond: SpecCond::empty(),
            stream_id: request.stream_id,
            seq_number: request.seq_number,
            analyzer: request.analyzer,
            message_checksum: Checksum::ZERO,
            status: Status::Ok,
            response_len: 0,
        }
    }

    /// The same header with another status.
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }
}
