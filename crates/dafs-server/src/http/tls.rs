//! TLS of a peer on a blocking socket: the handshake, and records in user space.
//!
//! Invariants
//! * One record is read at a time, so what a peer sends is bounded by its timeout and by the limits of
//!   `dafs-tls`.
//! * Data ends with close_notify, so a peer can tell that nothing is missing.

use super::line::Timed;
use dafs_service::TransportSecurity;
use dafs_tls::{
    Alert, Channel, ClientSide, HEADER_BYTES, Handshake, Opened, Opener, Progress, Protocol,
    RECORD_BYTES_MAX, ServerSide, sealed_bytes,
};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of the answer that are sealed at once.
const SEAL_BYTES: usize = 64 << 10;

/// The records of one peer.
pub(crate) struct Secured(Channel);

impl Secured {
    /// Makes the handshake as server. Returns the protection of the connection, too.
    ///
    /// # Errors
    /// Those of the handshake, after the alert for the peer, and of the socket.
    pub(crate) fn accept(
        socket: &mut Timed<'_>,
        side: &Arc<ServerSide>,
    ) -> io::Result<(Self, TransportSecurity)> {
        let begun = Handshake::server(side, &[Protocol::Http], now_seconds());
        let mut handshake = begun.map_err(io::Error::other)?;
        let mut record = vec![0; RECORD_BYTES_MAX];
        loop {
            fill(&mut handshake, socket, &mut record)?;
            let stepped = handshake.step();
            socket.write_all(&handshake.take_output())?;
            if stepped.map_err(io::Error::other)? == Progress::Done {
                break;
            }
        }
        let established = handshake.finish().map_err(io::Error::other)?;
        Ok((Self(Channel::new(established.keys)), established.facts.level()))
    }

    /// Makes the handshake as client of the server `name`.
    ///
    /// # Errors
    /// Those of the handshake, and of the socket.
    pub(crate) fn connect(
        socket: &mut Timed<'_>,
        side: &Arc<ClientSide>,
        name: &str,
    ) -> io::Result<Self> {
        let begun = Handshake::client(side, name, Protocol::Http, now_seconds());
        let mut handshake = begun.map_err(io::Error::other)?;
        let mut record = vec![0; RECORD_BYTES_MAX];
        loop {
            let stepped = handshake.step();
            // The server learns the reason by the alert; the caller gets it even if that fails.
            let sent = socket.write_all(&handshake.take_output());
            let progress = stepped.map_err(io::Error::other)?;
            sent?;
            if progress == Progress::Done {
                break;
            }
            fill(&mut handshake, socket, &mut record)?;
        }
        let established = handshake.finish().map_err(io::Error::other)?;
        Ok(Self(Channel::new(established.keys)))
    }

    /// Reads the data of one record; none at the end.
    pub(crate) fn read(&mut self, socket: &mut Timed<'_>, into: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            let mut record = vec![0; HEADER_BYTES];
            socket.read_exact(&mut record)?;
            let bytes = Opener::record_bytes(&record).map_err(io::Error::other)?;
            record.resize(bytes.unwrap_or(HEADER_BYTES), 0);
            socket.read_exact(&mut record[HEADER_BYTES..])?;
            match self.0.opener.open(&mut record).map_err(io::Error::other)? {
                Opened::Data(plain) => {
                    into.extend_from_slice(plain);
                    return Ok(plain.len());
                }
                Opened::Nothing => {}
                Opened::Closed => return Ok(0),
            }
        }
    }

    /// Sends the last data, and close_notify.
    pub(crate) fn finish(&mut self, socket: &mut Timed<'_>, data: &[u8]) -> io::Result<()> {
        let mut records = Vec::new();
        for piece in data.chunks(SEAL_BYTES) {
            records.resize(sealed_bytes(piece.len()), 0);
            let made = self.0.sealer.seal(&[piece], &mut records).map_err(io::Error::other)?;
            socket.write_all(&records[..made])?;
        }
        let end = self.0.sealer.close(Alert::CLOSE_NOTIFY).map_err(io::Error::other)?;
        socket.write_all(&end)
    }
}

/// Reads until the handshake has its next message.
fn fill(handshake: &mut Handshake, socket: &mut Timed<'_>, record: &mut [u8]) -> io::Result<()> {
    while !handshake.is_due() {
        let wanted = handshake.needed_bytes().min(record.len());
        match socket.read(&mut record[..wanted])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => handshake.feed(&record[..read]),
        };
    }
    Ok(())
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}
