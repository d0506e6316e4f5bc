//! The options with which a session is opened, and the parameters that were negotiated.

use super::auth::{Authenticator, Proven};
use crate::limits::{
    CREDITS_MAX, CREDITS_PROPOSED, INLINE_BYTES_DEFAULT, INLINE_WRITE_HEADER_BYTES, LEASE_ASSUMED,
    REQUEST_BYTES_PROPOSED, RESPONSE_BYTES_PROPOSED, TRANSFER_BYTES_MAX,
};
use dafs_wire::dafs::{ByteOrder, ClientId, FileHandle, SessionId, Verifier};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Ids that a trusted client acts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CredentialIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Options of a session.
#[derive(Clone)]
pub struct SessionConfig {
    /// The name of the client across its sessions (DAFS 4.1).
    pub client_id_string: Vec<u8>,
    /// The verifier of one run of the client (DAFS 4.1).
    pub client_verifier: Verifier,
    /// Distinguishes clients on one port (DAFS 3.2).
    pub client_differentiator: [u8; 4],
    /// Distinguishes sessions of one client (DAFS 3.2).
    pub session_differentiator: [u8; 4],
    /// The identity for fencing.
    pub fence_id: Option<Vec<u8>>,
    /// The source of proofs of identity.
    pub authenticator: Arc<dyn Authenticator>,
    /// The ids to register when the server trusts this client; `None` uses the session's default.
    pub credential: Option<CredentialIds>,
    /// The byte order of the session.
    pub byte_order: ByteOrder,
    /// DAFS checksums.
    pub checksums: bool,
    /// Message size to propose for requests, in bytes; 0 leaves it to the server.
    pub request_bytes: u32,
    /// Message size to propose for responses, in bytes; 0 leaves it to the server.
    pub response_bytes: u32,
    /// Credits to propose.
    pub requests: u16,
    /// The most requests outstanding, whatever is granted.
    pub requests_max: u16,
    /// The offset of padded inline write data to propose, in bytes; 0 leaves it to the server.
    pub inline_write_header_bytes: u32,
    /// Pads the data of inline writes and appends to the offset that was negotiated (DAFS 13.1), where
    /// the message has room. It pays for servers that gain by aligned data; otherwise the padding is
    /// only sent along.
    pub pad_writes: bool,
    /// Reads and writes up to this many bytes go inline.
    pub inline_bytes: u32,
    /// The time for replacing a lost connection, from its loss to the first answer to the
    /// application; `None` ends the session with its connection.
    pub recovery: Option<Duration>,
    /// True when the transport maps memory, so that inline data brings no gain.
    pub always_direct: bool,
    /// The other end is a data server, which only moves data: it has no root, and ignores
    /// credentials.
    pub is_data_server: bool,
    /// Passwords, and tickets of data servers, may travel in clear text over the network.
    pub clear_passwords: bool,
    /// Another process may have a session of the same client. Then no server is told that all is
    /// reclaimed (X_RECLAIM_COMPLETE, an extension): this process does not know about the other.
    pub shares_identity: bool,
    /// Reads blocks of files by RDMA, without a request, from memory that the server shows. For
    /// transports that map no memory.
    pub optimistic: bool,
    /// A device of the server answers reads by RDMA, also while the server is held up. Then a read does
    /// without a request only for a second after the sending time of a request that was answered.
    pub device_answers_reads: bool,
}

impl fmt::Debug for SessionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionConfig")
            .field("client_id_string", &String::from_utf8_lossy(&self.client_id_string))
            .field("byte_order", &self.byte_order)
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

impl SessionConfig {
    /// The defaults, for a client with these identities and no authentication.
    pub fn new(client_id_string: Vec<u8>, client_verifier: Verifier) -> Self {
        Self {
            client_id_string,
            client_verifier,
            client_differentiator: [0; 4],
            session_differentiator: [0; 4],
            fence_id: None,
            authenticator: Arc::new(super::auth::Fixed::new(super::Proof::None)),
            credential: None,
            byte_order: ByteOrder::NATIVE,
            checksums: false,
            request_bytes: REQUEST_BYTES_PROPOSED,
            response_bytes: RESPONSE_BYTES_PROPOSED,
            requests: CREDITS_PROPOSED,
            requests_max: CREDITS_MAX,
            inline_write_header_bytes: INLINE_WRITE_HEADER_BYTES,
            pad_writes: false,
            inline_bytes: INLINE_BYTES_DEFAULT,
            recovery: None,
            always_direct: false,
            is_data_server: false,
            clear_passwords: false,
            shares_identity: false,
            optimistic: false,
            device_answers_reads: false,
        }
    }
}

/// The parameters that the server agreed to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's id at the server.
    pub session_id: SessionId,
    /// The client's id at the server.
    pub client_id: ClientId,
    /// The identity that the client has proven. Its time is not kept here.
    pub proven: Proven,
    /// True when the server lets this client act for its users.
    pub trusted: bool,
    /// True when messages and data carry checksums.
    pub checksums: bool,
    /// Longest request, in bytes.
    pub request_bytes: u32,
    /// Longest response, in bytes.
    pub response_bytes: u32,
    /// Requests outstanding that the server agreed to; [`SessionStats::credits`] is what it
    /// grants now.
    ///
    /// [`SessionStats::credits`]: super::SessionStats::credits
    pub requests: u16,
    /// The offset of padded inline write data; 0 when the server does not pad.
    pub inline_write_header_bytes: u32,
    /// The root directory of the server.
    pub root: FileHandle,
    /// The lease period.
    pub lease: Duration,
    /// Longest read, in bytes.
    pub read_bytes_max: u64,
    /// Longest write, in bytes.
    pub write_bytes_max: u64,
    /// True when the server takes out what it has not begun (X_CANCEL, an extension).
    pub cancels: bool,
    /// True when the server can be told that all is reclaimed (X_RECLAIM_COMPLETE, an extension).
    pub completes: bool,
}

impl Default for SessionInfo {
    fn default() -> Self {
        Self {
            session_id: SessionId::ZERO,
            client_id: ClientId::ZERO,
            proven: Proven::default(),
            trusted: false,
            checksums: false,
            request_bytes: 0,
            response_bytes: 0,
            requests: 0,
            inline_write_header_bytes: 0,
            root: FileHandle::ZERO,
            lease: LEASE_ASSUMED,
            read_bytes_max: TRANSFER_BYTES_MAX,
            write_bytes_max: TRANSFER_BYTES_MAX,
            cancels: false,
            completes: false,
        }
    }
}
