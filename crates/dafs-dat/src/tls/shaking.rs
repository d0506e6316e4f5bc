//! A handshake as a state of a connection whose socket does not block.
//!
//! Invariants
//! * This end reads one record at a time, and none behind the last of the handshake.
//! * The output of a step is in the socket before the next step begins.
//! * A step of a dead connection counts as a handshake until the thread has given it back.
//! * While a thread of the pool has the handshake, the connection neither reads nor writes.

use super::host::Ticket;
use dafs_tls::{Established, Handshake, HandshakeError, Progress};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use thiserror::Error;

/// The reason why a handshake ended.
#[derive(Debug, Error)]
pub enum ShakeError {
    /// The stream ended.
    #[error(
        "the peer ended the connection in the handshake of TLS: it has no TLS there, or too many \
         handshakes"
    )]
    Cut,
    /// There are too many of them.
    #[error("too many handshakes are under way, most of them for hosts like this one")]
    Crowded,
    /// One end refused the other.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A handshake under way.
#[derive(Debug)]
pub struct Shaking {
    /// None while a thread of the pool works on it.
    handshake: Option<Box<Handshake>>,
    output: Vec<u8>,
    /// Bytes of the output that have been sent.
    sent: usize,
    is_done: bool,
    began_ns: u64,
    ticket: Option<Arc<Ticket>>,
}

/// A step to make.
#[derive(Debug)]
pub struct Step {
    handshake: Box<Handshake>,
    ticket: Option<Arc<Ticket>>,
}

/// A handshake that has made a step.
#[derive(Debug)]
pub struct Stepped {
    handshake: Box<Handshake>,
    outcome: Result<Progress, HandshakeError>,
    output: Vec<u8>,
    _ticket: Option<Arc<Ticket>>,
}

impl Stepped {
    /// Does the arithmetic of one step.
    pub fn make(step: Step) -> Self {
        let Step { mut handshake, ticket } = step;
        let outcome = handshake.step();
        let output = handshake.take_output();
        Self { handshake, outcome, output, _ticket: ticket }
    }

    /// The user for whom the client acts, after the last step.
    pub(super) fn user(&self) -> Option<String> {
        self.handshake.user()
    }
}

/// The event that the handshake waits for.
#[derive(Debug)]
pub enum Wait {
    /// The peer, or room in the socket.
    Peer,
    /// A thread of the pool, which has it already.
    Pool,
    /// A thread of the pool is to do the next step.
    Step(Step),
    /// Nothing: the handshake is complete.
    Nothing,
}

impl Shaking {
    /// Begins. A server's handshake has a ticket.
    pub fn new(handshake: Handshake, ticket: Option<Ticket>, began_ns: u64) -> Self {
        Self {
            handshake: Some(Box::new(handshake)),
            output: Vec::new(),
            sent: 0,
            is_done: false,
            began_ns,
            ticket: ticket.map(Arc::new),
        }
    }

    /// The time at which the handshake began.
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// Takes a handshake back. After an error its last output has been sent, as far as the socket
    /// took it.
    ///
    /// # Errors
    /// One end refused the other.
    pub fn take(&mut self, stepped: Stepped, socket: BorrowedFd<'_>) -> Result<(), ShakeError> {
        self.output = stepped.output;
        self.sent = 0;
        match stepped.outcome {
            Ok(progress) => {
                self.is_done = progress == Progress::Done;
                self.handshake = Some(stepped.handshake);
                Ok(())
            }
            Err(error) => {
                // The peer learns the reason by the alert; if it does not, nothing is lost.
                let _ = self.flush(socket);
                Err(error.into())
            }
        }
    }

    /// Sends output and reads records until the handshake has to wait. Clears `readable` and
    /// `writable` when the socket has to become so.
    ///
    /// # Errors
    /// The stream ended, or the socket failed.
    pub fn advance(
        &mut self,
        socket: BorrowedFd<'_>,
        scratch: &mut [u8],
        (readable, writable): (&mut bool, &mut bool),
    ) -> Result<Wait, ShakeError> {
        loop {
            if self.handshake.is_none() {
                return Ok(Wait::Pool);
            }
            if !*writable && self.sent < self.output.len() {
                return Ok(Wait::Peer);
            }
            if !self.flush(socket)? {
                *writable = false;
                return Ok(Wait::Peer);
            }
            if self.is_done {
                return Ok(Wait::Nothing);
            }
            let Some(handshake) = self.handshake.as_mut().filter(|it| !it.is_due()) else {
                let step = |handshake| Step { handshake, ticket: self.ticket.clone() };
                return Ok(self.handshake.take().map_or(Wait::Pool, |it| Wait::Step(step(it))));
            };
            if !*readable {
                return Ok(Wait::Peer);
            }
            let wanted = handshake.needed_bytes().min(scratch.len());
            match rustix::io::read(socket, &mut scratch[..wanted]) {
                Ok(0) => return Err(ShakeError::Cut),
                Ok(read) => {
                    let taken = handshake.feed(&scratch[..read]);
                    debug_assert_eq!(taken, read, "no more was read than is needed");
                }
                Err(Errno::AGAIN) => *readable = false,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(ShakeError::Cut),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Sends output; returns true when all of it has been sent.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while self.sent < self.output.len() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(socket, &self.output[self.sent..], flags) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.output = Vec::new();
        self.sent = 0;
        Ok(true)
    }

    /// The results of a complete handshake.
    ///
    /// # Errors
    /// The handshake is not complete.
    pub fn finish(self) -> Result<Established, ShakeError> {
        let handshake = self.handshake.ok_or(HandshakeError::Unfinished)?;
        Ok(handshake.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::{ServerTls, now_seconds};
    use super::super::limits::HANDSHAKES_PER_HOST_MAX;
    use super::*;
    use crate::connections::Origin;
    use dafs_tls::pki::Folder;
    use dafs_tls::{Protocol, ReloadingServer, ServerFiles};
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn steps_of_dead_connections_count() {
        let (directory, now) = (tempfile::tempdir().unwrap(), now_seconds());
        let folder = Folder::create(&directory.path().join("pki"), "CA", now).unwrap();
        let made = folder.add_server(&["localhost".to_owned()], now).unwrap();
        let files =
            ServerFiles { certificate: made.certificate, key: made.key, ..Default::default() };
        let files = Arc::new(ReloadingServer::open(files, now).unwrap());
        let host = ServerTls::new(files, Box::new(|_, _| {}));
        let mut steps = Vec::new();
        for _ in 0..HANDSHAKES_PER_HOST_MAX {
            let (handshake, ticket) =
                host.begin(Origin::Unknown, &[Protocol::Dafs]).unwrap().unwrap();
            let mut shaking = Shaking::new(handshake, Some(ticket), 0);
            let (mut client, server) = UnixStream::pair().unwrap();
            client.write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0]).unwrap();
            let waits = shaking.advance(server.as_fd(), &mut [0; 64], (&mut true, &mut true));
            match waits.unwrap() {
                Wait::Step(step) => steps.push(step),
                other => panic!("{other:?}"),
            }
        }
        // The connections are gone, and the pool has not come to their steps.
        assert!(host.begin(Origin::Unknown, &[Protocol::Dafs]).is_none());
        // The look-up after a step counts, too.
        let stepped = Stepped::make(steps.pop().unwrap());
        assert!(host.begin(Origin::Unknown, &[Protocol::Dafs]).is_none());
        drop(stepped);
        assert!(host.begin(Origin::Unknown, &[Protocol::Dafs]).is_some());
    }
}
