//! TLS 1.3 below the control connection, and the messages inside.
//!
//! Both ends are anonymous to TLS. The hello (`hello.rs`) proves on both sides that the peer knows
//! the secret of the cluster, and its MACs cover the channel binding of this very connection (RFC
//! 9266). A man in the middle has two connections with different bindings, so both ends refuse it.
//!
//! Invariants
//! * No byte of a message is sent, or used, outside TLS.
//! * One record is read at a time until the handshake is complete.
//! * A message is its length in four bytes, then XDR. A length is checked before memory is reserved.

use crate::limits::{RECEIVE_RECORDS, SEND_RECORDS};
use dafs_tls::pki::PkiError;
use dafs_tls::{
    CLIENT_HELLO_FIRST_BYTE, Channel, ClientSide, Handshake, HandshakeError, OVERHEAD_BYTES,
    Opened, Opener, PLAIN_BYTES_MAX, Progress, Protocol, RECORD_BYTES_MAX, Sealer, ServerSide,
    sealed_bytes,
};
use dafs_wire::xdr::{Encode, Encoder};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Bytes in front of a message.
const LENGTH_BYTES: usize = 4;

/// Why there is no TLS on a connection.
#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error("no key for TLS: {0}")]
    Key(#[from] PkiError),
    #[error("TLS failed: {0}")]
    Handshake(#[from] HandshakeError),
    #[error(
        "the data server ended the connection before TLS was on. If it is of an earlier version of dafs, \
         which has no TLS here, give all servers of the cluster the same version"
    )]
    Refused,
    #[error(
        "the peer speaks without TLS, as the metadata server of an earlier version of dafs does: give \
         all servers of the cluster the same version"
    )]
    Clear,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The value that identifies one TLS connection (RFC 9266 4.2).
pub(crate) type Binding = [u8; dafs_tls::CHANNEL_BINDING_BYTES];

/// A connection after the handshake of TLS.
pub(crate) struct Secured {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) binding: Binding,
}

/// Encodes a message, with free bytes in front for its length.
pub(crate) fn framed(message: &impl Encode, data_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + 128 + data_bytes);
    bytes.resize(LENGTH_BYTES, 0);
    message.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// The data server's key for TLS, which is made anew at each start.
pub(crate) fn server_side() -> Result<Arc<ServerSide>, TlsError> {
    Ok(Arc::new(ServerSide::dangerous_anonymous()?))
}

/// Begins TLS with a metadata server that has connected.
pub(crate) fn accept(side: &Arc<ServerSide>, line: &mut Line<'_>) -> Result<Secured, TlsError> {
    let mut first = [0];
    line.read_exact(&mut first)?;
    if first[0] != CLIENT_HELLO_FIRST_BYTE {
        // An earlier version finds no challenge in an empty message, and its log names the version.
        line.write_all(&[0; LENGTH_BYTES])?;
        return Err(TlsError::Clear);
    }
    let mut handshake = Handshake::server(side, &[Protocol::Cluster], NO_TIME)?;
    handshake.feed(&first);
    shake(handshake, line)
}

/// Begins TLS with a data server.
pub(crate) fn connect(line: &mut Line<'_>) -> Result<Secured, TlsError> {
    let side = Arc::new(ClientSide::dangerous_anonymous());
    // An address, because a name would be sent in the clear.
    let name = line.stream.peer_addr()?.ip().to_string();
    let handshake = Handshake::client(&side, &name, Protocol::Cluster, NO_TIME)?;
    shake(handshake, line).map_err(|error| match error {
        TlsError::Io(error) if is_end(&error) => TlsError::Refused,
        error => error,
    })
}

/// No certificate is judged, so the time does not matter.
const NO_TIME: u64 = 0;

fn is_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn shake(mut handshake: Handshake, line: &mut Line<'_>) -> Result<Secured, TlsError> {
    let mut record = [0; 1024];
    loop {
        let stepped = handshake.step();
        let sent = line.write_all(&handshake.take_output());
        // The peer learns the reason by the alert; this end reports it even if that fails.
        let progress = stepped?;
        sent?;
        if progress == Progress::Done {
            break;
        }
        while !handshake.is_due() {
            let wanted = handshake.needed_bytes().min(record.len());
            match line.read(&mut record[..wanted])? {
                0 => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                count => handshake.feed(&record[..count]),
            };
        }
    }
    let established = handshake.finish()?;
    let binding = established.exporter.channel_binding();
    let Channel { sealer, opener } = Channel::new(established.keys);
    Ok(Secured { sender: Sender::new(sealer), receiver: Receiver::new(opener), binding })
}

/// A blocking socket whose calls all end at one time. A peer that has not authenticated cannot extend
/// it with a byte now and then.
pub(crate) struct Line<'s> {
    pub(crate) stream: &'s TcpStream,
    pub(crate) end: Instant,
}

impl Line<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Line<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends messages.
pub(crate) struct Sender {
    sealer: Sealer,
    sealed: Vec<u8>,
}

impl Sender {
    fn new(sealer: Sealer) -> Self {
        Self { sealer, sealed: vec![0; sealed_bytes(SEND_RECORDS * PLAIN_BYTES_MAX)] }
    }

    /// Sends a message of the hello.
    pub(crate) fn greet(&mut self, message: &impl Encode, to: &mut impl Write) -> io::Result<()> {
        self.send(framed(message, 0), to)
    }

    /// Sends a [framed] message.
    pub(crate) fn send(&mut self, mut message: Vec<u8>, to: &mut impl Write) -> io::Result<()> {
        let len = message.len().checked_sub(LENGTH_BYTES).and_then(|len| u32::try_from(len).ok());
        let len = len.ok_or(ErrorKind::InvalidInput)?;
        message[..LENGTH_BYTES].copy_from_slice(&len.to_be_bytes());
        for piece in message.chunks(SEND_RECORDS * PLAIN_BYTES_MAX) {
            let sealed = self.sealer.seal(&[piece], &mut self.sealed).map_err(io::Error::other)?;
            to.write_all(&self.sealed[..sealed])?;
        }
        Ok(())
    }

    /// Records under the key of this direction.
    pub(crate) fn records(&self) -> u64 {
        self.sealer.records()
    }
}

/// A message that has come.
#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn body(&self) -> &[u8] {
        &self.0[LENGTH_BYTES..]
    }
}

/// Receives messages.
pub(crate) struct Receiver {
    opener: Opener,
    /// Bytes of records: those from `start` to `filled` are not opened yet.
    sealed: Vec<u8>,
    start: usize,
    filled: usize,
    /// The start of the next message.
    plain: Vec<u8>,
}

impl Receiver {
    fn new(opener: Opener) -> Self {
        let sealed = vec![0; RECEIVE_RECORDS * RECORD_BYTES_MAX];
        Self { opener, sealed, start: 0, filled: 0, plain: Vec::new() }
    }

    /// Waits for the next message, of at most `bytes_max` bytes.
    pub(crate) fn receive(
        &mut self,
        bytes_max: usize,
        from: &mut impl Read,
    ) -> io::Result<Message> {
        loop {
            if let Some((len, _)) = self.plain.split_first_chunk() {
                let len = u32::from_be_bytes(*len) as usize;
                if len > bytes_max {
                    let text = "a message that is too long";
                    return Err(io::Error::new(ErrorKind::InvalidData, text));
                }
                let whole = LENGTH_BYTES + len;
                if self.plain.len() >= whole {
                    let behind = self.plain.split_off(whole);
                    return Ok(Message(std::mem::replace(&mut self.plain, behind)));
                }
                // With room for the last record, whose content type and padding are cut off later.
                self.plain.reserve(whole + OVERHEAD_BYTES - self.plain.len());
            }
            self.open(from)?;
        }
    }

    /// Waits for the next record, and opens it.
    fn open(&mut self, from: &mut impl Read) -> io::Result<()> {
        let record = loop {
            let received = &self.sealed[self.start..self.filled];
            match Opener::record_bytes(received).map_err(io::Error::other)? {
                Some(bytes) if bytes <= received.len() => break self.start..self.start + bytes,
                _ => {}
            }
            if self.start > 0 {
                self.sealed.copy_within(self.start..self.filled, 0);
                (self.start, self.filled) = (0, self.filled - self.start);
            }
            match from.read(&mut self.sealed[self.filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        self.start = record.end;
        let at = self.plain.len();
        // The content type is opened with the data.
        self.plain.resize(at + record.len() - OVERHEAD_BYTES + 1, 0);
        let out = &mut self.plain[at..];
        let opened = self.opener.open_apart(&self.sealed[record], out).map_err(io::Error::other)?;
        let count = match opened {
            Opened::Data(data) => data.len(),
            Opened::Nothing => 0,
            Opened::Closed => return Err(ErrorKind::UnexpectedEof.into()),
        };
        self.plain.truncate(at + count);
        Ok(())
    }

    /// Records under the key of this direction.
    pub(crate) fn records(&self) -> u64 {
        self.opener.records()
    }
}

#[cfg(test)]
pub(crate) mod tests;
