//! The bytes of one peer on a blocking socket, in the clear or inside TLS.

use super::tls::Secured;
use rustix::net::Shutdown;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A blocking socket whose calls together end at a deadline.
pub(crate) struct Timed<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
}

impl<'s> Timed<'s> {
    /// Gives all calls together this time.
    pub(crate) fn within(stream: &'s TcpStream, time: Duration) -> Self {
        Self { stream, deadline: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The bytes of a peer, in the clear or inside TLS.
pub(crate) enum Line {
    Clear,
    Secured(Box<Secured>),
}

impl Line {
    /// Reads some bytes; none at the end.
    pub(crate) fn read(&mut self, socket: &mut Timed<'_>, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Clear => {
                let mut some = [0; 1024];
                let read = socket.read(&mut some)?;
                into.extend_from_slice(&some[..read]);
                Ok(read)
            }
            Self::Secured(secured) => secured.read(socket, into),
        }
    }

    /// Sends the last bytes.
    pub(crate) fn finish(&mut self, socket: &mut Timed<'_>, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Clear => socket.write_all(bytes),
            Self::Secured(secured) => secured.finish(socket, bytes),
        }
    }
}

/// Sends an answer, and ends the connection so that the answer arrives although the peer sends on: ends this
/// direction, and discards input until the peer ends the other one (RFC 9112 9.6). The peer has `time`.
pub(crate) fn finish(
    stream: &TcpStream,
    line: &mut Line,
    time: Duration,
    answer: &[u8],
) -> io::Result<()> {
    let mut socket = Timed::within(stream, time);
    line.finish(&mut socket, answer)?;
    rustix::net::shutdown(stream, Shutdown::Write)?;
    while socket.read(&mut [0; 1024])? > 0 {}
    Ok(())
}
