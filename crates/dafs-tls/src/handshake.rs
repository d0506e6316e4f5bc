//! The handshake of TLS 1.3 (RFC 8446 4) without I/O, for either end.
//!
//! Invariants
//! * The caller gives the bytes of one record at a time. Bytes behind the last handshake record
//!   stay in the socket, where the kernel can take them over.
//! * Only [`Handshake::step`] does arithmetic. It may run on another thread.
//! * Bytes and records of a peer are bounded before the peer is known.
//! * There are no tickets, no resumption and no early data.

use crate::alert::{Alert, content};
use crate::config::{ClientSide, ServerSide};
use crate::exporter::Exporter;
use crate::keys::{Side, TrafficKeys};
use crate::limits::{
    BODY_BYTES_MAX, HANDSHAKE_BYTES_MAX, HANDSHAKE_RECORDS_MAX, HEADER_BYTES, LAST_MESSAGES_MAX,
};
use crate::peer::{Facts, Peer, Standing};
use crate::protocol::Protocol;
use crate::provider::{Now, VERSIONS, provider};
use crate::suite::Suite;
use crate::trust::Distrust;
use crate::witness::{ClientWitness, Seen, ServerWitness};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, Error, PeerIncompatible, ServerConfig};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The first byte of a ClientHello: the content type of a handshake record. No other protocol of
/// this server begins with it.
pub const CLIENT_HELLO_FIRST_BYTE: u8 = content::HANDSHAKE;

/// Why a handshake failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum HandshakeError {
    #[error("the peer's certificate is refused: {0}")]
    Certificate(Distrust),
    #[error("\"{0}\" is neither a host name nor an address")]
    Name(String),
    #[error("the client showed no certificate, and this server demands one (mtls)")]
    NoCertificate,
    #[error("the peer does not speak {0} on this connection")]
    NoProtocol(String),
    #[error("the peer sent what is no TLS")]
    NotTls,
    #[error("the peer does not offer TLS 1.3")]
    OldVersion,
    #[error("the peer ended the handshake with {0}")]
    PeerAlert(Alert),
    #[error("the handshake failed: {0}")]
    Protocol(String),
    #[error("the peer's handshake is longer than 128 KiB or 128 records")]
    TooLong,
    #[error("the handshake is not complete, or its last bytes have not been taken")]
    Unfinished,
}

/// The state after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The peer must send more.
    Reading,
    /// The handshake is complete. [`Handshake::finish`] gives the keys once all output is taken.
    Done,
}

/// A finished handshake.
#[derive(Debug)]
pub struct Established {
    /// Protocol, peer, suite.
    pub facts: Facts,
    /// The keys, for [`crate::Channel`] or the kernel.
    pub keys: TrafficKeys,
    /// Derives values that both ends share.
    pub exporter: Exporter,
}

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Connection {
    fn common(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The record that begins at `record_start` is not whole.
    Reading,
    /// A step is due.
    Due,
    Done,
    Failed(HandshakeError),
}

/// One end of a handshake.
pub struct Handshake {
    connection: Connection,
    seen: Arc<Seen>,
    protocols: Vec<Protocol>,
    generation: u64,
    phase: Phase,
    /// Records that rustls has not let go. A message may span several.
    input: Vec<u8>,
    /// Start of the record that is being read.
    record_start: usize,
    received_bytes: usize,
    records: u32,
    output: Vec<u8>,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handshake({:?}, {} records, {:?})", self.side(), self.records, self.phase)
    }
}

impl Handshake {
    /// Begins as server. `protocols` are those that the listener serves; the first one that the
    /// client offers is chosen. `now_seconds` since 1970 judges the client's certificate.
    ///
    /// # Errors
    /// [`HandshakeError::Protocol`]: the system gives no random numbers.
    pub fn server(
        side: &Arc<ServerSide>,
        protocols: &[Protocol],
        now_seconds: u64,
    ) -> Result<Self, HandshakeError> {
        let seen = Arc::new(Seen::default());
        let witness = Arc::new(ServerWitness {
            side: side.clone(),
            protocols: protocols.to_vec(),
            now_seconds,
            seen: seen.clone(),
        });
        let mut config = ServerConfig::builder_with_details(provider(), Arc::new(Now(now_seconds)))
            .with_protocol_versions(VERSIONS)
            .map_err(failed)?
            .with_client_cert_verifier(witness.clone())
            .with_cert_resolver(witness);
        config.alpn_protocols = names(protocols);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.enable_secret_extraction = true;
        config.key_log = seen.clone();
        let connection = UnbufferedServerConnection::new(Arc::new(config)).map_err(failed)?;
        let connection = Connection::Server(connection);
        Ok(Self::new(connection, seen, protocols, side.generation(), Phase::Reading))
    }

    /// Begins as client of the server `name`, a host name or an address, with one protocol. The
    /// first step makes the first message.
    ///
    /// # Errors
    /// [`HandshakeError::Name`]; [`HandshakeError::Protocol`]: the system gives no random numbers.
    pub fn client(
        side: &Arc<ClientSide>,
        name: &str,
        protocol: Protocol,
        now_seconds: u64,
    ) -> Result<Self, HandshakeError> {
        let wanted = ServerName::try_from(name.to_owned())
            .map_err(|_| HandshakeError::Name(name.to_owned()))?;
        let seen = Arc::new(Seen::default());
        let witness =
            Arc::new(ClientWitness { side: side.clone(), now_seconds, seen: seen.clone() });
        let mut config = ClientConfig::builder_with_details(provider(), Arc::new(Now(now_seconds)))
            .with_protocol_versions(VERSIONS)
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(witness.clone())
            .with_client_cert_resolver(witness);
        config.alpn_protocols = names(&[protocol]);
        config.resumption = Resumption::disabled();
        config.enable_secret_extraction = true;
        config.key_log = seen.clone();
        let connection =
            UnbufferedClientConnection::new(Arc::new(config), wanted).map_err(failed)?;
        let connection = Connection::Client(connection);
        Ok(Self::new(connection, seen, &[protocol], side.generation(), Phase::Due))
    }

    fn new(
        connection: Connection,
        seen: Arc<Seen>,
        protocols: &[Protocol],
        generation: u64,
        phase: Phase,
    ) -> Self {
        Self {
            connection,
            seen,
            protocols: protocols.to_vec(),
            generation,
            phase,
            input: Vec::new(),
            record_start: 0,
            received_bytes: 0,
            records: 0,
            output: Vec::new(),
        }
    }

    /// This end.
    pub fn side(&self) -> Side {
        match self.connection {
            Connection::Client(_) => Side::Client,
            Connection::Server(_) => Side::Server,
        }
    }

    /// The bytes that the caller may read from the socket now: at most the rest of one record. Zero
    /// when a step is due, and when the handshake has ended.
    pub fn needed_bytes(&self) -> usize {
        if self.phase != Phase::Reading {
            return 0;
        }
        let record = &self.input[self.record_start..];
        record_bytes(record).map_or(0, |bytes| bytes - record.len())
    }

    /// True if [`Self::step`] has something to do.
    pub fn is_due(&self) -> bool {
        self.phase == Phase::Due
    }

    /// Takes bytes that came from the peer, up to [`Self::needed_bytes`], and returns how many.
    /// This is cheap: the arithmetic is in `step`.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let count = self.needed_bytes().min(bytes.len() - taken);
            if count == 0 {
                break;
            }
            self.input.extend_from_slice(&bytes[taken..taken + count]);
            taken += count;
            // A wrong header goes to rustls as it is, so that the peer gets the alert.
            let record = &self.input[self.record_start..];
            if record_bytes(record).is_none_or(|whole| whole == record.len()) {
                self.phase = Phase::Due;
                self.records += 1;
            }
        }
        self.received_bytes += taken;
        taken
    }

    /// Works on what has come: 0.1 to 1 ms of arithmetic. Output may follow, also after an error:
    /// the alert for the peer.
    ///
    /// # Errors
    /// [`HandshakeError`]; each later step returns the same.
    pub fn step(&mut self) -> Result<Progress, HandshakeError> {
        match &self.phase {
            Phase::Reading => return Ok(Progress::Reading),
            Phase::Done => return Ok(Progress::Done),
            Phase::Failed(error) => return Err(error.clone()),
            Phase::Due => {}
        }
        let outcome = match self.is_within_bounds() {
            true => self.drive(),
            false => Err(HandshakeError::TooLong),
        };
        match &outcome {
            Ok(Progress::Reading) => self.phase = Phase::Reading,
            Ok(Progress::Done) => self.phase = Phase::Done,
            Err(error) => {
                self.input = Vec::new();
                self.record_start = 0;
                self.phase = Phase::Failed(error.clone());
            }
        }
        outcome
    }

    /// Takes the bytes to send to the peer.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The user for whom the client acts, when the handshake is [`Progress::Done`].
    pub fn user(&self) -> Option<String> {
        if self.phase != Phase::Done {
            return None;
        }
        let seen = self.seen.lock();
        let own = self.connection.common().peer_certificates()?.get(..1)?;
        let peer = Peer::new(own, seen.standing.clone()?, seen.rules)?;
        peer.user().map(str::to_owned)
    }

    /// Ends the handshake after [`Progress::Done`], when all output has been taken. The output must
    /// be in the socket before the kernel gets the keys.
    ///
    /// # Errors
    /// [`HandshakeError::Unfinished`].
    pub fn finish(self) -> Result<Established, HandshakeError> {
        if self.phase != Phase::Done || !self.output.is_empty() {
            return Err(HandshakeError::Unfinished);
        }
        let side = self.side();
        let common = self.connection.common();
        let suite = common.negotiated_cipher_suite().and_then(Suite::from_rustls);
        let suite = suite.ok_or(HandshakeError::Unfinished)?;
        let protocol = common.alpn_protocol().and_then(Protocol::from_alpn);
        let mut seen = self.seen.lock();
        let exporter = seen.exporter.take().ok_or(HandshakeError::Unfinished)?;
        let has_shown_certificate = seen.has_shown_certificate;
        let peer = match (common.peer_certificates(), seen.standing.take()) {
            (Some(chain), Some(standing)) => Peer::new(chain, standing, seen.rules),
            _ => None,
        };
        let generation = self.generation;
        let secrets = match self.connection {
            Connection::Client(client) => {
                client.dangerous_into_kernel_connection().map(|(secrets, _)| secrets)
            }
            Connection::Server(server) => {
                server.dangerous_into_kernel_connection().map(|(secrets, _)| secrets)
            }
        };
        let keys = TrafficKeys::new(side, secrets.map_err(failed)?);
        let keys = keys.ok_or(HandshakeError::Unfinished)?;
        let facts = Facts { protocol, peer, has_shown_certificate, suite, generation };
        Ok(Established { facts, keys, exporter: Exporter::new(exporter, suite) })
    }

    fn is_within_bounds(&self) -> bool {
        self.received_bytes <= HANDSHAKE_BYTES_MAX && self.records <= HANDSHAKE_RECORDS_MAX
    }

    /// Lets rustls work until it wants more or is done.
    fn drive(&mut self) -> Result<Progress, HandshakeError> {
        let was_bad = self.records > 0 && record_bytes(&self.input[self.record_start..]).is_none();
        let outcome = loop {
            match self.turn() {
                Turn::Again => {}
                Turn::Blocked if was_bad => break Err(HandshakeError::NotTls),
                Turn::Blocked => break Ok(Progress::Reading),
                Turn::Done => break self.judge_end(),
                Turn::Failed(error) => break Err(self.reason(error)),
            }
        };
        self.record_start = self.input.len();
        if outcome.is_err() {
            // rustls gives the alert at the next calls. When it has no more to send, it would look
            // into the wrong input again.
            for _ in 0..LAST_MESSAGES_MAX {
                if self.connection.common().wants_write() {
                    let _ = self.turn();
                }
            }
        }
        outcome
    }

    /// One answer of rustls.
    fn turn(&mut self) -> Turn {
        let (discard, turn) = match &mut self.connection {
            Connection::Client(client) => {
                take(client.process_tls_records(&mut self.input), &mut self.output)
            }
            Connection::Server(server) => {
                take(server.process_tls_records(&mut self.input), &mut self.output)
            }
        };
        self.input.drain(..discard.min(self.input.len()));
        turn
    }

    /// Checks what rustls leaves to its caller.
    fn judge_end(&self) -> Result<Progress, HandshakeError> {
        let common = self.connection.common();
        let chosen = common.alpn_protocol().and_then(Protocol::from_alpn);
        let is_missing = chosen.is_none() && self.protocols.iter().all(|known| known.is_required());
        if is_missing && !self.protocols.is_empty() {
            return Err(self.no_protocol());
        }
        if !self.input.is_empty() {
            return Err(HandshakeError::NotTls);
        }
        Ok(Progress::Done)
    }

    fn no_protocol(&self) -> HandshakeError {
        let names: Vec<String> = self.protocols.iter().map(Protocol::to_string).collect();
        HandshakeError::NoProtocol(names.join(" or "))
    }

    /// The reason in the words of this crate.
    fn reason(&self, error: Error) -> HandshakeError {
        let seen = self.seen.lock();
        if seen.lacks_protocol {
            return self.no_protocol();
        }
        match (error, &seen.standing) {
            (Error::InvalidCertificate(_), Some(Standing::Unverified(distrust))) => {
                HandshakeError::Certificate(distrust.clone())
            }
            (Error::NoCertificatesPresented, _) => HandshakeError::NoCertificate,
            (Error::NoApplicationProtocol, _) => self.no_protocol(),
            (Error::AlertReceived(alert), _) => HandshakeError::PeerAlert(Alert(u8::from(alert))),
            (Error::InvalidMessage(_) | Error::InappropriateMessage { .. }, _)
                if self.records <= 1 =>
            {
                HandshakeError::NotTls
            }
            (
                Error::PeerIncompatible(
                    PeerIncompatible::SupportedVersionsExtensionRequired
                    | PeerIncompatible::ServerDoesNotSupportTls12Or13
                    | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                    | PeerIncompatible::Tls12NotOffered
                    | PeerIncompatible::Tls12NotOfferedOrEnabled,
                ),
                _,
            ) => HandshakeError::OldVersion,
            (error, _) => failed(error),
        }
    }
}

fn failed(error: Error) -> HandshakeError {
    HandshakeError::Protocol(error.to_string())
}

fn names(protocols: &[Protocol]) -> Vec<Vec<u8>> {
    protocols.iter().map(|protocol| protocol.alpn().to_vec()).collect()
}

/// The bytes of the record that begins here, as far as can be told: first its header, then all of
/// it. None if the header is wrong.
fn record_bytes(record: &[u8]) -> Option<usize> {
    let kinds = content::CHANGE_CIPHER_SPEC..=content::APPLICATION_DATA;
    let [kind, major, _, high, low, ..] = record else { return Some(HEADER_BYTES) };
    let body_bytes = usize::from(*high) << 8 | usize::from(*low);
    let is_record = kinds.contains(kind) && *major == 3 && body_bytes <= BODY_BYTES_MAX;
    is_record.then_some(HEADER_BYTES + body_bytes)
}

/// The meaning of one answer of rustls.
enum Turn {
    /// It has more to say.
    Again,
    Blocked,
    Done,
    Failed(Error),
}

/// Takes one answer of rustls: the bytes of input to drop, and what to do.
fn take<Data>(status: UnbufferedStatus<'_, '_, Data>, output: &mut Vec<u8>) -> (usize, Turn) {
    let UnbufferedStatus { discard, state } = status;
    let turn = match state {
        Ok(ConnectionState::EncodeTlsData(mut message)) => {
            // The message says its length when it does not fit.
            let start = output.len();
            let bytes = match message.encode(&mut []) {
                Err(EncodeError::InsufficientSize(wanted)) => wanted.required_size,
                _ => 0,
            };
            output.resize(start + bytes, 0);
            match message.encode(&mut output[start..]) {
                Ok(_) => Turn::Again,
                Err(error) => Turn::Failed(Error::General(error.to_string())),
            }
        }
        Ok(ConnectionState::TransmitTlsData(message)) => {
            message.done();
            Turn::Again
        }
        Ok(ConnectionState::BlockedHandshake) => Turn::Blocked,
        Ok(ConnectionState::WriteTraffic(_)) => Turn::Done,
        // Data and close_notify cannot come before the end, and early data is not offered.
        Ok(_) => Turn::Failed(Error::General("data in the handshake".to_owned())),
        Err(error) => Turn::Failed(error),
    };
    (discard, turn)
}
