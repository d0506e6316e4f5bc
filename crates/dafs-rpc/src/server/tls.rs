//! TLS of the connections of a reactor: from the probe to the last record.
//!
//! Invariants
//! * Output stays in its queue until the records that carry it have been sent completely, so that
//!   all limits of output hold.
//! * A turn opens a bounded number of records. Records that were read and must wait are kept, and
//!   the connection is listed for the next turn.
//! * A verified client whose certificate is in doubt is judged before its next call is served. A
//!   turn judges a bounded number of certificates of clients that make no calls, and a tick of
//!   strangers.
//! * A connection whose keys are spent takes no more calls, and ends when all are answered.
//! * A connection in its handshake takes no call and sends no reply.

use super::group::{Counters, add};
use super::peer::Peer;
use super::worker::Worker;
use crate::call::ConnectionId;
use crate::connection::{Ending, Progress, shielded};
use crate::handler::Handler;
use crate::inbox::{Command, Inbox};
use crate::limits::{TLS_KEPT_CHAIN_BYTES_MAX, TLS_RECEIVE_BYTES, TLS_SEND_BYTES};
use crate::output::{Chunks, Output};
use crate::tls::{
    Next, Offer, Receiving, Sending, Shaking, Stepped, TlsEnding, TransportSecurity, Wait,
    now_seconds, of_kernel,
};
use dafs_dat::tls::limits::HANDSHAKE_TIMEOUT;
use dafs_mem::{VolatileSlice, readv, sendmsg};
use dafs_tls::ktls::{self, InstallError, KernelTls, NoKernelTls, Received};
use dafs_tls::{Alert, Channel, End, Facts, Protocol, ServerSide, TrafficKeys};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Certificates that a turn judges. Those of verified clients take two or three checks of
/// signatures.
const JUDGED_PER_TURN: usize = 8;

/// The same of strangers, each of whom can cost a hundred checks of signatures, in a tick.
const STRANGERS_JUDGED_PER_TICK: usize = 2;

/// Nanoseconds until the next turn that judges, while more certificates wait.
const JUDGE_AGAIN_NS: u64 = 10_000_000;

/// TLS of one connection.
#[derive(Debug)]
pub(super) struct PeerTls {
    state: State,
    /// The client, if it has shown a certificate.
    client: Option<Box<dafs_tls::Peer>>,
    /// True while the certificate counts.
    is_trusted: bool,
    /// The generation of the configuration that has judged the client last.
    generation: u64,
    /// The second, since 1970, after which a trusted client is judged again.
    ends_seconds: u64,
}

#[derive(Debug)]
enum State {
    Handshake(Shaking),
    /// This process protects the records.
    User(Receiving, Sending),
    /// The kernel does.
    Kernel(KernelTls),
    /// Between two states, and after an error.
    Over,
}

/// The last record of a connection: close_notify, or the alert with the reason for the end.
#[derive(Debug)]
pub(super) enum Goodbye {
    /// Its bytes that have not been sent.
    Sealed(Vec<u8>),
    /// The kernel makes it.
    Alert(Alert),
}

impl PeerTls {
    fn of_handshake(shaking: Shaking) -> Box<Self> {
        let state = State::Handshake(shaking);
        Box::new(Self { state, client: None, is_trusted: false, generation: 0, ends_seconds: 0 })
    }

    /// The records, if the kernel protects them.
    pub(super) fn kernel(&mut self) -> Option<&mut KernelTls> {
        match &mut self.state {
            State::Kernel(kernel) => Some(kernel),
            _ => None,
        }
    }

    pub(super) fn is_kernel(&self) -> bool {
        matches!(self.state, State::Kernel(_))
    }

    /// True if this process opens the records.
    fn is_user(&self) -> bool {
        matches!(self.state, State::User(..))
    }

    /// True if records wait that have been read.
    pub(super) fn is_ready(&self) -> bool {
        matches!(&self.state, State::User(receiving, _) if receiving.is_ready())
    }

    /// Memory of records.
    pub(super) fn held_bytes(&self) -> usize {
        match &self.state {
            State::User(receiving, sending) => receiving.held_bytes() + sending.held_bytes(),
            _ => 0,
        }
    }

    /// Seals and sends output, as much as the socket takes. Returns the bytes sent.
    pub(super) fn flush(
        &mut self,
        socket: &OwnedFd,
        output: &mut Output,
        writable: &mut bool,
    ) -> Result<u64, Ending> {
        let State::User(_, sending) = &mut self.state else { return Ok(0) };
        let mut sent_bytes = 0;
        while *writable && !output.is_empty() {
            if !sending.is_pending() {
                let mut chunks = Chunks::new();
                let bytes = output.chunks(TLS_SEND_BYTES, &mut chunks).ok_or(Ending::Fault)?;
                sending.seal(&chunks, bytes)?;
            }
            let Some(rest) = sending.rest() else { break };
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            match sendmsg(socket.as_fd(), &[rest], flags) {
                Ok(sent) => {
                    sent_bytes += sent as u64;
                    if let Some(plain_bytes) = sending.sent(sent) {
                        output.sent(plain_bytes);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => *writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent_bytes)
    }

    /// Makes the last record, unless another one has left in part.
    pub(super) fn goodbye(&mut self, ending: &Ending) -> Option<Goodbye> {
        let alert = match ending {
            Ending::Tls(ending) => ending.alert()?,
            Ending::Io(_) => return None,
            _ => Alert::CLOSE_NOTIFY,
        };
        match &mut self.state {
            State::User(_, sending) => Some(Goodbye::Sealed(sending.close(alert)?.to_vec())),
            State::Kernel(_) => Some(Goodbye::Alert(alert)),
            State::Handshake(_) | State::Over => None,
        }
    }

    /// Returns the means to read on, if the kernel protects the records.
    pub(super) fn into_kernel(self) -> Option<KernelTls> {
        match self.state {
            State::Kernel(kernel) => Some(kernel),
            _ => None,
        }
    }

    /// True if the client's certificate must be judged again, because of the files or the time.
    fn is_in_doubt(&self, side: &ServerSide, now_seconds: u64) -> bool {
        let has_ended = self.is_trusted && now_seconds > self.ends_seconds;
        self.client.is_some() && (has_ended || self.generation < side.trust_generation())
    }

    /// Judges the client again.
    fn judge(&mut self, side: &ServerSide, now_seconds: u64) -> Result<(), TlsEnding> {
        let Some(client) = &self.client else { return Ok(()) };
        let judged = side.still_trusts(client, now_seconds);
        self.generation = side.generation();
        self.ends_seconds = client.ends_seconds(now_seconds);
        match judged {
            Err(distrust) if self.is_trusted => return Err(TlsEnding::Distrusted(distrust)),
            // The client has proven that it has the key.
            judged => self.is_trusted = judged.is_ok(),
        }
        Ok(())
    }

    /// Records in the direction that has more of them, as this process knows them.
    fn records(&self) -> u64 {
        match &self.state {
            State::User(receiving, sending) => receiving.records().max(sending.records()),
            _ => 0,
        }
    }

    /// The same, as the kernel knows them.
    fn kernel_records(&self, socket: &OwnedFd) -> u64 {
        let State::Kernel(kernel) = &self.state else { return 0 };
        kernel.records(socket.as_fd()).map_or(0, |records| records.sent.max(records.received))
    }
}

/// Reads data that the kernel has decrypted; none when there is none now.
pub(super) fn read(
    tls: &mut KernelTls,
    socket: &OwnedFd,
    views: &[VolatileSlice<'_>],
    readable: &mut bool,
) -> Result<Option<usize>, Ending> {
    // The kernel returns short reads at the end of a record, so only EAGAIN says that all is read.
    match tls.receive(socket.as_fd(), views) {
        Ok(Received::Data(read)) => Ok(Some(read)),
        Ok(Received::Nothing) => Ok(None),
        Ok(Received::Closed) => Err(TlsEnding::Closed.into()),
        Ok(Received::Cut) => Err(TlsEnding::Cut.into()),
        Err(error) => match of_kernel(error) {
            Ok(ending) => Err(ending.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                *readable = false;
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error.into()),
        },
    }
}

impl<H: Handler> Worker<H> {
    /// Goes on from a probe to the end of the handshake.
    pub(super) fn advance_tls(&mut self, peer: &mut Peer) -> Result<(), Ending> {
        if let Offer::Asked(xid) = peer.connection.offer()
            && peer.connection.is_answered()
        {
            peer.connection.begin_tls(xid);
            self.flush(peer)?;
        }
        let begins = peer.connection.offer() == Offer::Begun && peer.tls.is_none();
        if begins && peer.connection.is_answered() {
            let Some(host) = &self.shared.tls else { return Err(Ending::Fault) };
            let begun =
                host.begin(peer.connection.host(), &[Protocol::Rpc]).ok_or(TlsEnding::Crowded)?;
            let (handshake, ticket) = begun.map_err(TlsEnding::from)?;
            let shaking = Shaking::new(handshake, Some(ticket), self.now_ns);
            peer.tls = Some(PeerTls::of_handshake(shaking));
        }
        self.shake(peer)
    }

    fn shake(&mut self, peer: &mut Peer) -> Result<(), Ending> {
        let Peer { socket, tls, readable, writable, connection, .. } = peer;
        let Some(PeerTls { state: State::Handshake(shaking), .. }) = tls.as_deref_mut() else {
            return Ok(());
        };
        let scratch = self.receive_space(TLS_RECEIVE_BYTES);
        match shaking.advance(socket.as_fd(), scratch, (readable, writable))? {
            Wait::Peer | Wait::Pool => Ok(()),
            Wait::Step(step) => {
                let Some(host) = &self.shared.tls else { return Err(Ending::Fault) };
                let (inbox, id): (Arc<Inbox>, _) = (self.inbox.clone(), connection.id);
                host.run(connection.host(), step, move |stepped| {
                    let stepped = Box::new(stepped);
                    inbox.push(Command::Shaken { connection: id, stepped });
                });
                Ok(())
            }
            Wait::Nothing => self.establish(peer),
        }
    }

    /// Begins to use the keys of a complete handshake.
    fn establish(&mut self, peer: &mut Peer) -> Result<(), Ending> {
        let Some(tls) = peer.tls.as_deref_mut() else { return Ok(()) };
        let State::Handshake(shaking) = std::mem::replace(&mut tls.state, State::Over) else {
            return Ok(());
        };
        let established = shaking.finish()?;
        let (facts, keys) = (established.facts, established.keys);
        let uses_kernel = self.shared.tls.as_ref().is_some_and(|host| host.kernel().is_ok());
        let (state, refusal) = protect(&peer.socket, keys, uses_kernel)?;
        tls.state = state;
        let (level, is_kernel) = (facts.level(), tls.is_kernel());
        self.count_tls(level, is_kernel);
        tell(peer.connection.peer, &facts, (level, is_kernel), refusal);
        tls.generation = facts.generation;
        tls.is_trusted = level == TransportSecurity::Mtls;
        let ends_seconds = |client: &dafs_tls::Peer| client.ends_seconds(now_seconds());
        tls.ends_seconds = facts.peer.as_ref().map_or(0, ends_seconds);
        let is_kept = |client: &dafs_tls::Peer| {
            client.is_verified() || client.chain_bytes() <= TLS_KEPT_CHAIN_BYTES_MAX
        };
        let user = facts.peer.as_ref().and_then(dafs_tls::Peer::user).map(Arc::from);
        tls.client = facts.peer.filter(is_kept).map(Box::new);
        peer.connection.secured(level, user, self.now_ns);
        Ok(())
    }

    fn count_tls(&self, level: TransportSecurity, is_kernel: bool) {
        let counters: &Counters = self.counters();
        add(&counters.tls_connections, 1);
        add(&counters.tls_kernel, u64::from(is_kernel));
        add(&counters.tls_mutual, u64::from(level == TransportSecurity::Mtls));
    }

    /// Checks what changes with time: the handshake's timeout, and the number of records.
    pub(super) fn tick_tls(&self, peer: &mut Peer) -> Result<(), Ending> {
        let Some(tls) = peer.tls.as_deref() else { return Ok(()) };
        if let State::Handshake(shaking) = &tls.state {
            let late_ns = HANDSHAKE_TIMEOUT.as_nanos() as u64;
            let is_late = self.now_ns >= shaking.began_ns().saturating_add(late_ns);
            return if is_late { Err(TlsEnding::Slow.into()) } else { Ok(()) };
        }
        if tls.kernel_records(&peer.socket) >= self.shared.config.tls_records_max {
            peer.connection.drain();
        }
        self.check_spent(peer)
    }

    /// Judges a verified client again if there is doubt.
    pub(super) fn check_trust(&self, peer: &mut Peer) -> Result<(), Ending> {
        let trusted = peer.tls.as_deref_mut().filter(|tls| tls.is_trusted);
        let (Some(tls), Some(host)) = (trusted, &self.shared.tls) else { return Ok(()) };
        let (side, now_seconds) = (host.side(), now_seconds());
        if tls.is_in_doubt(&side, now_seconds) {
            tls.judge(&side, now_seconds)?;
        }
        Ok(())
    }

    /// Judges some certificates again, those of strangers in a tick only. Returns the connections
    /// that have lost their trust.
    pub(super) fn judge_some(
        &mut self,
        slots: &mut [Option<Box<Peer>>],
        is_tick: bool,
    ) -> Vec<(ConnectionId, Ending)> {
        self.judge_at_ns = u64::MAX;
        let mut broken = Vec::new();
        let Some(host) = self.shared.tls.clone() else { return broken };
        let (side, now_seconds) = (host.side(), now_seconds());
        let mut left = JUDGED_PER_TURN;
        for is_trusted in if is_tick { &[true, false][..] } else { &[true] }.iter().copied() {
            let is_due = |slot: usize| {
                let tls = slots[slot].as_ref().and_then(|peer| peer.tls.as_deref());
                tls.is_some_and(|tls| {
                    tls.is_trusted == is_trusted && tls.is_in_doubt(&side, now_seconds)
                })
            };
            let most = if is_trusted { left } else { left.min(STRANGERS_JUDGED_PER_TICK) };
            let from = &mut self.judged_to[usize::from(is_trusted)];
            let due = next_due(slots.len(), from, most, is_due);
            left -= due.len();
            if left == 0 {
                self.judge_at_ns = self.now_ns.saturating_add(JUDGE_AGAIN_NS);
            }
            for slot in due {
                let Some(Peer { tls: Some(tls), connection, .. }) = slots[slot].as_deref_mut()
                else {
                    continue;
                };
                match shielded(|| tls.judge(&side, now_seconds)) {
                    Some(Ok(())) if tls.is_trusted => {
                        connection.set_security(TransportSecurity::Mtls);
                    }
                    Some(Ok(())) => {}
                    Some(Err(ending)) => broken.push((connection.id, ending.into())),
                    None => broken.push((connection.id, Ending::Fault)),
                }
            }
        }
        broken
    }

    /// Takes a handshake back from the pool.
    pub(super) fn shaken(&mut self, peer: &mut Peer, stepped: Stepped) -> Result<(), Ending> {
        match peer.tls.as_deref_mut() {
            Some(PeerTls { state: State::Handshake(shaking), .. }) => {
                Ok(shaking.take(stepped, peer.socket.as_fd())?)
            }
            _ => Ok(()),
        }
    }

    /// Takes no more calls of a connection whose keys are spent, and ends it when all are answered.
    pub(super) fn check_spent(&self, peer: &mut Peer) -> Result<(), Ending> {
        let Some(tls) = peer.tls.as_deref() else { return Ok(()) };
        if tls.records() >= self.shared.config.tls_records_max {
            peer.connection.drain();
        }
        let is_over = peer.connection.is_draining() && peer.connection.is_answered();
        if is_over { Err(TlsEnding::Spent.into()) } else { Ok(()) }
    }

    /// True if this process opens the records of a connection.
    pub(super) fn opens_records(peer: &Peer) -> bool {
        peer.tls.as_deref().is_some_and(PeerTls::is_user)
    }

    /// Reads once, unless records wait; then opens and serves whole records.
    pub(super) fn open_and_process(&mut self, peer: &mut Peer) -> Result<(), Ending> {
        let now_ns = self.now_ns;
        let (receive, mut turn) = self.split();
        let stream = receive.spare(TLS_RECEIVE_BYTES);
        let Peer { socket, connection, tls, readable, .. } = peer;
        let Some(PeerTls { state: State::User(receiving, _), .. }) = tls.as_deref_mut() else {
            return Ok(());
        };
        let mut read = 0;
        if !receiving.is_ready() {
            let behind = &mut stream[receiving.kept_bytes()..];
            read = match readv(socket.as_fd(), &[VolatileSlice::from_mut(behind)]) {
                Ok(0) => return Err(cut(receiving.end()).into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    *readable = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            connection.received(0, now_ns);
        }
        let filled = receiving.put_kept(stream) + read;
        let (mut at, mut progress) = (0, Progress::Drained);
        while progress == Progress::Drained {
            let next = receiving.next(&mut stream[at..filled], connection.reader());
            match next.map_err(TlsEnding::from)? {
                Next::More => break,
                Next::Nothing(bytes) => at += bytes,
                Next::Closed => return Err(TlsEnding::Closed.into()),
                Next::Data(mut input, bytes) => {
                    progress = connection.process(&mut input, &mut turn)?;
                    connection.defer_input(input)?;
                    at += bytes;
                }
            }
        }
        receiving.keep(&stream[at..filled])?;
        connection.set_inside_tls(receiving.part_bytes(), turn.budget, now_ns);
        add(&self.counters().received_bytes, read as u64);
        Ok(())
    }
}

/// The next slots that are due, at most `most`, around from `from`, which moves behind them.
fn next_due(
    slots: usize,
    from: &mut usize,
    most: usize,
    is_due: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let start = *from;
    let around = (0..slots).map(|at| (start + at) % slots);
    let due: Vec<usize> = around.filter(|slot| is_due(*slot)).take(most).collect();
    *from = due.last().map_or(start, |last| last + 1);
    due
}

fn cut(end: End) -> TlsEnding {
    match end {
        End::Closed => TlsEnding::Closed,
        End::Cut => TlsEnding::Cut,
        End::CutInRecord => TlsEnding::CutInRecord,
    }
}

/// Gives the keys to the kernel, or to this process. Returns the reason of a kernel that has TLS and did not
/// take them.
fn protect(
    socket: &OwnedFd,
    keys: TrafficKeys,
    uses_kernel: bool,
) -> Result<(State, Option<NoKernelTls>), TlsEnding> {
    let (keys, refusal) = if uses_kernel {
        match ktls::install(socket.as_fd(), keys) {
            Ok(kernel) => return Ok((State::Kernel(kernel), None)),
            Err(InstallError::Unavailable { reason, keys }) => (*keys, Some(reason)),
            Err(error) => return Err(error.into()),
        }
    } else {
        (keys, None)
    };
    let Channel { sealer, opener } = Channel::new(keys);
    Ok((State::User(Receiving::new(opener), Sending::new(sealer)), refusal))
}

/// Tells the log which protection a connection got, and why the kernel does not give it.
fn tell(
    peer: std::net::SocketAddr,
    facts: &Facts,
    (level, is_kernel): (TransportSecurity, bool),
    refusal: Option<NoKernelTls>,
) {
    let by = if is_kernel { "kernel" } else { "user space" };
    let refusal = refusal.map(tracing::field::display);
    let client = facts.peer.as_ref().map(|client| client.certificate().subject().to_owned());
    let client = client.as_deref().unwrap_or("none");
    let user = facts.peer.as_ref().and_then(dafs_tls::Peer::user);
    let doubt = facts.peer.as_ref().and_then(|client| match client.standing() {
        dafs_tls::Standing::Verified => None,
        dafs_tls::Standing::Unverified(distrust) => Some(distrust.to_string()),
    });
    match doubt {
        None => {
            tracing::info!(%peer, %level, by, refusal, client, user, suite = %facts.suite, "TLS is on");
        }
        Some(reason) => tracing::info!(
            %peer, %level, by, refusal, client, reason,
            "TLS is on, and the client's certificate does not count"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::next_due;
    use crate::call::{CallerProcess, ConnectionId};
    use crate::connection::Connection;
    use crate::record::Budget;
    use crate::server::Config;

    #[test]
    fn parts_of_records_are_memory_of_the_budget() {
        let mut budget = Budget::new(32 << 10);
        let peer = ("192.0.2.1:9".parse().unwrap(), CallerProcess::Elsewhere);
        let id = ConnectionId::new(0, 0, 1);
        let mut connection = Connection::new(id, peer, &Config::default(), 5);
        let host = connection.host();
        connection.set_inside_tls(Some(16 << 10), &mut budget, 7);
        assert_eq!((budget.largest_holder(), budget.is_spent()), (Some(host), false));
        assert_eq!(connection.holds_for(host), Some(7));
        connection.set_inside_tls(Some(68 << 10), &mut budget, 8);
        assert!(budget.is_spent());
        connection.set_inside_tls(None, &mut budget, 9);
        assert_eq!((budget.largest_holder(), connection.holds_for(host)), (None, None));
        connection.set_inside_tls(Some(68 << 10), &mut budget, 10);
        connection.release(&mut budget);
        assert_eq!((budget.largest_holder(), budget.is_spent()), (None, false));
    }

    #[test]
    fn every_slot_has_its_turn() {
        // All stay due, as after one change of the files after the other.
        let mut from = 0;
        let mut turn = || next_due(10, &mut from, 4, |slot| slot % 2 == 1);
        assert_eq!(turn(), [1, 3, 5, 7]);
        assert_eq!(turn(), [9, 1, 3, 5]);
        assert_eq!(turn(), [7, 9, 1, 3]);
        assert_eq!(next_due(3, &mut from, 4, |_| true), [1, 2, 0]);
        assert_eq!(next_due(3, &mut from, 0, |_| true), [0; 0]);
        assert_eq!(next_due(0, &mut from, 4, |_| true), [0; 0]);
    }
}
