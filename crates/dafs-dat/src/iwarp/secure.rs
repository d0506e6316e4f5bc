//! The handshake of TLS below MPA, for connections of peers and for own ones, and certificates that
//! are judged again.
//!
//! Invariants
//! * The first byte of a peer's connection decides: a handshake record begins TLS, anything else is
//!   read as an MPA request. A connection that began TLS never returns to the clear.
//! * The arithmetic of a peer's handshake runs on another thread. Meanwhile its socket is outside
//!   the epoll set.
//! * A client whose certificate is in doubt is judged before its next records are opened, and a
//!   server before the next records for it are sealed. A turn judges a bounded number of
//!   certificates of clients that send nothing.

use super::adapter::{Entry, IwarpAdapter};
use super::connection::Stage;
use super::limits::{JUDGE_AGAIN_MS, JUDGE_INTERVAL_MS, JUDGED_COUNT_PER_TURN};
use super::poller::{JUDGE_TOKEN, RETURN_TOKEN};
use super::records::{Client, Records};
use super::sys;
use super::teardown::{End, TlsEnd};
use crate::confine::confined;
use crate::connections::Origin;
use crate::tls::{ServerTls, ShakeError, Shaking, Stepped, TlsPeer, Wait, now_seconds};
use crate::{ConnectError, PeerInfo};
use dafs_mem::Mutex;
use dafs_tls::{CLIENT_HELLO_FIRST_BYTE, Established, Facts, Peer, Protocol, Standing};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// TLS for the connections of peers.
#[derive(Debug)]
pub(super) struct Serving {
    host: Arc<ServerTls>,
    protocol: Protocol,
    returns: Arc<Returns>,
    /// Connections whose clients have been verified.
    verified: Vec<u64>,
    /// True while a timer will judge them again.
    is_judging: bool,
}

/// The handshakes that other threads give back.
#[derive(Debug)]
struct Returns {
    wake: OwnedFd,
    stepped: Mutex<Vec<(u64, Stepped)>>,
}

impl Returns {
    fn push(&self, id: u64, stepped: Stepped) {
        self.stepped.lock().push((id, stepped));
        // It can only fail when the counter is full, and then the poller wakes, too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<(u64, Stepped)> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut *self.stepped.lock())
    }
}

/// The protection of a peer's connection before `accept`.
#[derive(Debug)]
pub(super) enum Guard {
    /// Nothing has come.
    Unknown,
    /// The request comes in the clear.
    Clear,
    Shaking(Box<Shaking>),
    Sealed(Box<Records>),
}

impl Guard {
    /// The records, if there are any.
    pub(super) fn records(&mut self) -> Option<&mut Records> {
        match self {
            Self::Sealed(records) => Some(records),
            _ => None,
        }
    }

    pub(super) fn into_records(self) -> Option<Box<Records>> {
        match self {
            Self::Sealed(records) => Some(records),
            _ => None,
        }
    }
}

impl IwarpAdapter {
    /// Serves TLS on all listeners, to peers that begin it, with this application protocol. Others
    /// are served in the clear.
    ///
    /// # Errors
    /// There is no file descriptor.
    pub fn serve_tls(&mut self, host: Arc<ServerTls>, protocol: Protocol) -> io::Result<()> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.core.epoll.add(&wake, sys::READABLE, RETURN_TOKEN)?;
        let returns = Arc::new(Returns { wake, stepped: Mutex::default() });
        let (verified, is_judging) = (Vec::new(), false);
        self.tls = Some(Serving { host, protocol, returns, verified, is_judging });
        Ok(())
    }

    /// Goes on with the protection of a peer's connection. Returns true when its MPA request may be
    /// read.
    pub(super) fn secure_request(&mut self, id: u64) -> Result<bool, ShakeError> {
        loop {
            let Some(Entry::Request(request)) = self.slots.get_mut(id) else { return Ok(false) };
            let Some(tls) = &self.tls else { return Ok(true) };
            let origin = Origin::of_peer(&request.peer);
            match &mut request.guard {
                Guard::Clear | Guard::Sealed(_) => return Ok(true),
                Guard::Unknown => {
                    let mut first = [0];
                    match request.stream.peek(&mut first) {
                        Ok(1) if first[0] == CLIENT_HELLO_FIRST_BYTE => {
                            let begun = tls.host.begin(origin, &[tls.protocol]);
                            let (handshake, ticket) = begun.ok_or(ShakeError::Crowded)??;
                            let shaking = Box::new(Shaking::new(handshake, Some(ticket), 0));
                            request.guard = Guard::Shaking(shaking);
                        }
                        Ok(_) => request.guard = Guard::Clear,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            return Ok(false);
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Guard::Shaking(shaking) => {
                    let (mut readable, mut writable) = (true, true);
                    let (socket, scratch) = (request.stream.as_fd(), &mut self.core.staging[..]);
                    match shaking.advance(socket, scratch, (&mut readable, &mut writable))? {
                        Wait::Peer => {
                            let events = if writable { sys::READABLE } else { sys::WRITABLE };
                            self.core.epoll.change(&*request.stream, events, id)?;
                            return Ok(false);
                        }
                        Wait::Pool => return Ok(false),
                        Wait::Step(step) => {
                            self.core.epoll.remove(&*request.stream)?;
                            let returns = tls.returns.clone();
                            tls.host.run(origin, step, move |stepped| returns.push(id, stepped));
                            return Ok(false);
                        }
                        Wait::Nothing => self.establish_request(id)?,
                    }
                }
            }
        }
    }

    /// Begins to use the keys of a peer's complete handshake.
    fn establish_request(&mut self, id: u64) -> Result<(), ShakeError> {
        let Some(Entry::Request(request)) = self.slots.get_mut(id) else { return Ok(()) };
        let guard = std::mem::replace(&mut request.guard, Guard::Clear);
        let Guard::Shaking(shaking) = guard else { return Ok(()) };
        let Established { facts, keys, exporter } = shaking.finish()?;
        let mut records = Box::new(Records::new(keys));
        tell(&request.peer, &facts);
        request.peer.tls = Some(Arc::new(TlsPeer::new(&facts, &exporter)));
        let client = facts.peer.filter(Peer::is_verified);
        records.client = client
            .zip(self.tls.as_ref())
            .map(|(client, tls)| Box::new(Client::new(client, tls.host.clone(), facts.generation)));
        request.guard = Guard::Sealed(records);
        Ok(self.core.epoll.change(&*request.stream, sys::READABLE, id)?)
    }

    /// Takes handshakes back from other threads.
    pub(super) fn take_returns(&mut self) {
        let returns = self.tls.as_ref().map(|tls| tls.returns.take());
        for (id, stepped) in returns.into_iter().flatten() {
            self.confine(id, |adapter| adapter.shaken(id, stepped));
        }
    }

    fn shaken(&mut self, id: u64, stepped: Stepped) {
        // The request may have timed out meanwhile.
        let Some(Entry::Request(request)) = self.slots.get_mut(id) else { return };
        let Guard::Shaking(shaking) = &mut request.guard else { return };
        let taken = shaking
            .take(stepped, request.stream.as_fd())
            .and_then(|()| Ok(self.core.epoll.add(&*request.stream, sys::READABLE, id)?));
        match taken {
            Ok(()) => self.request_ready(id),
            Err(error) => self.refuse_handshake(id, &error),
        }
    }

    /// Drops a connection whose handshake has failed.
    pub(super) fn refuse_handshake(&mut self, id: u64, error: &ShakeError) {
        if let Some(Entry::Request(request)) = self.slots.get(id) {
            tracing::info!(peer = %request.peer, "connection refused: TLS: {error}");
        }
        self.drop_request(id);
    }

    /// Goes on with the handshake of an own connection. Returns true when it is complete and the MPA
    /// request may be sent.
    pub(super) fn secure_connection(&mut self, id: u64) -> Result<bool, ConnectError> {
        let Some(Entry::Connection(connection)) = self.slots.get_mut(id) else { return Ok(false) };
        let Stage::Securing { shaking, .. } = &mut connection.stage else { return Ok(false) };
        let socket = connection.stream.as_fd();
        loop {
            let (mut readable, mut writable) = (true, true);
            let scratch = &mut self.core.staging[..];
            match shaking.advance(socket, scratch, (&mut readable, &mut writable))? {
                Wait::Peer => {
                    let events = if writable { sys::READABLE } else { sys::WRITABLE };
                    self.core.epoll.change(&*connection.stream, events, id)?;
                    return Ok(false);
                }
                Wait::Step(step) => shaking.take(Stepped::make(step), socket)?,
                Wait::Pool => return Ok(false),
                Wait::Nothing => break,
            }
        }
        let unmade = Stage::Connecting { request: Vec::new() };
        let stage = std::mem::replace(&mut connection.stage, unmade);
        let Stage::Securing { shaking, request } = stage else { return Ok(false) };
        let Established { facts, keys, exporter } = shaking.finish()?;
        let mut records = Records::new(keys);
        connection.peer.tls = Some(Arc::new(TlsPeer::new(&facts, &exporter)));
        if let Some(demand) = &self.core.config.tls {
            let server = demand.check(facts);
            let server = server.map_err(|reason| ConnectError::Tls(reason.to_owned()))?;
            records.server = server.map(Box::new);
        }
        let frame = records.seal_short(&request).map_err(io::Error::other)?;
        connection.tls = Some(Box::new(records));
        connection.stage = Stage::Sending { frame, sent: 0 };
        self.core.epoll.change(&*connection.stream, sys::READABLE | sys::WRITABLE, id)?;
        Ok(true)
    }

    /// Notes an accepted connection whose client must stay trusted.
    pub(super) fn watch_client(&mut self, id: u64) {
        let Some(Entry::Connection(connection)) = self.slots.get(id) else { return };
        let has_client = connection.tls.as_ref().is_some_and(|tls| tls.client.is_some());
        let Some(tls) = self.tls.as_mut().filter(|_| has_client) else { return };
        tls.verified.push(id);
        if !std::mem::replace(&mut tls.is_judging, true) {
            self.start_timer(JUDGE_TOKEN, Duration::from_millis(JUDGE_INTERVAL_MS));
        }
    }

    /// Judges some certificates again, and ends the connections that have lost their trust.
    pub(super) fn judge_some(&mut self) {
        let Some(tls) = &mut self.tls else { return };
        let (side, now_seconds) = (tls.host.side(), now_seconds());
        let (mut left, mut ends) = (JUDGED_COUNT_PER_TURN, Vec::new());
        tls.verified.retain(|id| {
            let Some(Entry::Connection(connection)) = self.slots.get_mut(*id) else {
                return false;
            };
            let records = connection.tls.as_mut();
            let Some(client) = records.and_then(|tls| tls.client.as_mut()) else { return false };
            if left > 0 && client.is_in_doubt(&side, now_seconds) {
                left -= 1;
                match confined(|| client.judge(&side, now_seconds)) {
                    Some(Ok(())) => {}
                    Some(Err(distrust)) => ends.push((*id, TlsEnd::Distrusted(distrust).into())),
                    None => ends.push((*id, End::Fault)),
                }
            }
            true
        });
        tls.is_judging = !tls.verified.is_empty();
        if tls.is_judging {
            let ms = if left == 0 { JUDGE_AGAIN_MS } else { JUDGE_INTERVAL_MS };
            self.start_timer(JUDGE_TOKEN, Duration::from_millis(ms));
        }
        for (id, end) in ends {
            self.end(id, end);
        }
    }
}

impl From<ShakeError> for ConnectError {
    fn from(error: ShakeError) -> Self {
        match error {
            ShakeError::Io(error) => ConnectError::Io(error),
            ShakeError::Cut => ConnectError::TlsCut(error.to_string()),
            error => ConnectError::Tls(error.to_string()),
        }
    }
}

/// Tells the log which protection a connection got.
fn tell(peer: &PeerInfo, facts: &Facts) {
    let client = facts.peer.as_ref().map_or("none", |client| client.certificate().subject());
    let (level, suite) = (facts.level(), facts.suite);
    match facts.peer.as_ref().map(Peer::standing) {
        Some(Standing::Unverified(reason)) => tracing::info!(
            %peer, %level, client, %reason,
            "TLS is on, and the client's certificate does not count"
        ),
        _ => tracing::info!(%peer, %level, client, %suite, "TLS is on"),
    }
}
