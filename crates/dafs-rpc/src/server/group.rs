//! The shared state of the reactors of one server: listening sockets, limits, counters, the stop
//! flag.
//!
//! Invariants
//! * A connection is counted from its acceptance to its end, on whichever reactor it is served.
//! * No call touches this state, except for counters that only their reactor writes.

use super::config::Config;
use super::rdma::RdmaReactor;
use super::reactor::Reactor;
use crate::handler::Handler;
use crate::inbox::{Inbox, Injector};
use crate::limits::REACTORS_MAX;
use crate::memory::block_bytes;
use crate::tls::ServerTls;
use dafs_dat::Adapter;
use dafs_dat::connections::{Closed, ConnectionLimits, Connections};
use dafs_wire::rpcrdma::limits::{INLINE_BYTES_DEFAULT, INLINE_BYTES_MAX};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The reactors that share listening sockets.
#[derive(Debug)]
pub struct Group {
    shared: Arc<Shared>,
    next: AtomicUsize,
}

/// Counts since a group was made; sums over all reactors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Open connections.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because there were too many.
    pub refused: u64,
    /// Idle connections that were closed to make room for others.
    pub evicted: u64,
    /// Connections ended because the peer broke the protocol or exceeded a timeout.
    pub broken: u64,
    /// Calls received.
    pub calls: u64,
    /// Calls that were rejected or denied.
    pub rejected: u64,
    /// Replies received without a callback.
    pub unasked: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Open connections over RDMA, among the others.
    pub rdma_connections: u64,
    /// Calls received over RDMA, among the others.
    pub rdma_calls: u64,
    /// RDMA reads of parts of calls.
    pub rdma_reads: u64,
    /// Bytes of these reads.
    pub rdma_read_bytes: u64,
    /// RDMA writes of results.
    pub rdma_writes: u64,
    /// Bytes of these writes.
    pub rdma_written_bytes: u64,
    /// Messages over RDMA that were answered with RDMA_ERROR.
    pub rdma_errors: u64,
    /// Connections that have begun to use TLS.
    pub tls_connections: u64,
    /// Those whose records the kernel protects, among them.
    pub tls_kernel: u64,
    /// Those whose client has a certificate that was verified, among them.
    pub tls_mutual: u64,
    /// Connections that TLS has ended for an error, in the handshake or later.
    pub tls_failed: u64,
}

/// The counters of one reactor; only it writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) broken: AtomicU64,
    pub(super) calls: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) unasked: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) rdma_connections: AtomicU64,
    pub(super) rdma_calls: AtomicU64,
    pub(super) rdma_reads: AtomicU64,
    pub(super) rdma_read_bytes: AtomicU64,
    pub(super) rdma_writes: AtomicU64,
    pub(super) rdma_written_bytes: AtomicU64,
    pub(super) rdma_errors: AtomicU64,
    pub(super) tls_connections: AtomicU64,
    pub(super) tls_kernel: AtomicU64,
    pub(super) tls_mutual: AtomicU64,
    pub(super) tls_failed: AtomicU64,
}

impl Counters {
    /// Counts a connection that was closed after its admission.
    pub(super) fn count(&self, closed: Option<Closed>) {
        match closed {
            Some(Closed::Evicted) => add(&self.evicted, 1),
            Some(Closed::Refused) => add(&self.refused, 1),
            None => {}
        }
    }
}

/// Adds to a counter that no other thread writes.
#[inline]
pub(super) fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) members: Vec<Member>,
    stopping: AtomicBool,
    /// The connections of all front ends that share the limits.
    pub(super) connections: Arc<Connections>,
    /// TLS for TCP.
    pub(super) tls: Option<Arc<ServerTls>>,
    /// The number of this group's connections.
    own_connections: AtomicUsize,
}

/// One reactor as the others see it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) inbox: Arc<Inbox>,
    pub(super) counters: Counters,
    /// Connections that the reactor serves or will serve; `usize::MAX` while it does not run.
    load: AtomicUsize,
}

impl Group {
    /// A group of `reactors` (1 to 256) on sockets that listen already.
    ///
    /// # Errors
    /// When no file descriptor is left, or the number of reactors is out of range.
    pub fn new(listeners: Vec<TcpListener>, reactors: usize, config: Config) -> io::Result<Self> {
        let connections = Connections::new(ConnectionLimits {
            total: config.connections_max,
            per_address: config.connections_per_address_max,
        });
        Self::counting_in(connections, listeners, reactors, config)
    }

    /// The same, with connections that are counted and limited together with those of other front
    /// ends.
    ///
    /// # Errors
    /// As `new`.
    pub fn counting_in(
        connections: Arc<Connections>,
        listeners: Vec<TcpListener>,
        reactors: usize,
        config: Config,
    ) -> io::Result<Self> {
        Self::with_tls(None, connections, listeners, reactors, config)
    }

    /// The same, with TLS for peers over TCP that ask for it (RFC 9289).
    ///
    /// # Errors
    /// As `new`.
    pub fn with_tls(
        tls: Option<Arc<ServerTls>>,
        connections: Arc<Connections>,
        listeners: Vec<TcpListener>,
        reactors: usize,
        mut config: Config,
    ) -> io::Result<Self> {
        if !(1..=REACTORS_MAX).contains(&reactors) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{reactors} RPC reactors were asked for; 1 to {REACTORS_MAX} are possible"),
            ));
        }
        let inline_bytes_max = INLINE_BYTES_MAX / INLINE_BYTES_DEFAULT * INLINE_BYTES_DEFAULT;
        config.rdma_inline_bytes =
            (config.rdma_inline_bytes / 1024 * 1024).clamp(INLINE_BYTES_DEFAULT, inline_bytes_max);
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        // Every acceptable record must be able to complete.
        let assembly_bytes_min = block_bytes(config.record_bytes_max).saturating_mul(2);
        config.assembly_bytes_max = config.assembly_bytes_max.max(assembly_bytes_min);
        let member = || {
            Ok(Member {
                inbox: Arc::new(Inbox::new()?),
                counters: Counters::default(),
                load: AtomicUsize::new(usize::MAX),
            })
        };
        let members = (0..reactors).map(|_| member()).collect::<io::Result<_>>()?;
        let shared = Shared {
            config,
            listeners,
            members,
            stopping: AtomicBool::new(false),
            connections,
            tls,
            own_connections: AtomicUsize::new(0),
        };
        Ok(Self { shared: Arc::new(shared), next: AtomicUsize::new(0) })
    }

    /// Makes the next reactor, which runs on a thread of its own. `make` gets the inbox for
    /// messages from other threads and returns the reactor's handler.
    ///
    /// # Errors
    /// When there is no file descriptor or memory, or all reactors of the group have been made.
    pub fn reactor<H: Handler>(
        &self,
        make: impl FnOnce(Injector<H::Message>) -> H,
    ) -> io::Result<Reactor<H>> {
        let number = self.next_number()?;
        let injector = Injector::new(self.shared.members[number].inbox.clone());
        let handler = make(injector.clone());
        Reactor::new(self.shared.clone(), number, injector, handler)
    }

    /// Makes the next reactor for peers over direct access transports. Its adapters listen already
    /// and belong to it; otherwise as [`Group::reactor`].
    ///
    /// # Errors
    /// When all reactors of the group have been made.
    pub fn rdma_reactor<H: Handler>(
        &self,
        adapters: Vec<Box<dyn Adapter>>,
        make: impl FnOnce(Injector<H::Message>) -> H,
    ) -> io::Result<RdmaReactor<H>> {
        let number = self.next_number()?;
        let injector = Injector::new(self.shared.members[number].inbox.clone());
        let handler = make(injector.clone());
        Ok(RdmaReactor::new(self.shared.clone(), number, adapters, injector, handler))
    }

    fn next_number(&self) -> io::Result<usize> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.shared.members.len() {
            return Err(io::Error::other("all reactors of the group have been made"));
        }
        Ok(number)
    }

    /// Makes every reactor send what it can and return.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.members.iter().for_each(|member| member.inbox.notify());
    }

    /// The counts so far.
    pub fn statistics(&self) -> Statistics {
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            let members = self.shared.members.iter();
            members.map(|member| counter(&member.counters).load(Ordering::Relaxed)).sum()
        };
        Statistics {
            connections: self.shared.own_connections.load(Ordering::Relaxed) as u64,
            accepted: sum(|counters| &counters.accepted),
            refused: sum(|counters| &counters.refused),
            evicted: sum(|counters| &counters.evicted),
            broken: sum(|counters| &counters.broken),
            calls: sum(|counters| &counters.calls),
            rejected: sum(|counters| &counters.rejected),
            unasked: sum(|counters| &counters.unasked),
            received_bytes: sum(|counters| &counters.received_bytes),
            sent_bytes: sum(|counters| &counters.sent_bytes),
            rdma_connections: sum(|counters| &counters.rdma_connections),
            rdma_calls: sum(|counters| &counters.rdma_calls),
            rdma_reads: sum(|counters| &counters.rdma_reads),
            rdma_read_bytes: sum(|counters| &counters.rdma_read_bytes),
            rdma_writes: sum(|counters| &counters.rdma_writes),
            rdma_written_bytes: sum(|counters| &counters.rdma_written_bytes),
            rdma_errors: sum(|counters| &counters.rdma_errors),
            tls_connections: sum(|counters| &counters.tls_connections),
            tls_kernel: sum(|counters| &counters.tls_kernel),
            tls_mutual: sum(|counters| &counters.tls_mutual),
            tls_failed: sum(|counters| &counters.tls_failed),
        }
    }
}

impl Shared {
    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Marks a reactor as serving connections.
    pub(super) fn started(&self, number: usize) {
        self.members[number].load.store(0, Ordering::Relaxed);
    }

    /// Marks a reactor as serving no connections any more.
    pub(super) fn ended(&self, number: usize) {
        self.members[number].load.store(usize::MAX, Ordering::Relaxed);
    }

    /// Counts an admitted connection.
    pub(super) fn enter(&self) {
        self.own_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a connection from the count.
    pub(super) fn leave(&self) {
        self.own_connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Chooses the reactor with the fewest connections, `own` in a tie, and counts a connection of
    /// it.
    pub(super) fn choose(&self, own: usize) -> usize {
        let load = |number: usize| self.members[number].load.load(Ordering::Relaxed);
        let mut best = own;
        for number in 0..self.members.len() {
            if load(number) < load(best) {
                best = number;
            }
        }
        self.members[best].load.fetch_add(1, Ordering::Relaxed);
        best
    }

    /// Removes a connection from a reactor's count.
    pub(super) fn unload(&self, number: usize) {
        self.members[number].load.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(reactors: usize, config: Config) -> Group {
        Group::new(Vec::new(), reactors, config).unwrap()
    }

    #[test]
    fn connections_spread_over_reactors_that_run() {
        let shared = group(3, Config::default()).shared;
        shared.started(0);
        assert_eq!([0, 0].map(|own| shared.choose(own)), [0, 0]);
        shared.started(2);
        assert_eq!([0, 0, 0, 2].map(|own| shared.choose(own)), [2, 2, 0, 2]);
        shared.unload(0);
        assert_eq!(shared.choose(2), 0);
    }

    #[test]
    fn a_group_has_so_many_reactors() {
        assert!(Group::new(Vec::new(), 0, Config::default()).is_err());
        assert!(Group::new(Vec::new(), 257, Config::default()).is_err());
    }
}
