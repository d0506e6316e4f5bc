//! Direct access transports: endpoints, memory regions and completions, after DAT and RDMA verbs.
//!
//! The protocols above see one trait, [`Adapter`]. It offers the features that every provider has
//! and no more. Connections are reliable and ordered and carry private data at set-up. Receives are
//! posted. Sends gather segments and may invalidate a key of the receiver. RDMA writes and reads
//! move data between registered memory. One queue of completions has a file descriptor to sleep on.
//! There is no immediate data and no atomic operation, a read has one local segment, and the side
//! that connects sends first.
//!
//! Invariants
//! * A send consumes exactly one posted receive of the peer. A send without a receive breaks the
//!   connection: flow control (credits) belongs to the protocol above.
//! * An RDMA write posted before a send is placed before the peer sees that send's receive
//!   completion. An RDMA write and a later RDMA read of the same bytes are not ordered.
//! * Any error breaks the connection. All posted work completes exactly once, in error if the
//!   connection broke first ([`WorkStatus::Flushed`]). [`Event::Disconnected`] follows after that,
//!   as the last event of the endpoint.
//! * A peer reaches memory only through a key of the connection's own protection domain, within
//!   bounds and with the required right. Any other access breaks the connection.
//! * A key is refused from its deregistration on, and from the moment when a message of the peer
//!   has invalidated it. The registration itself stays with its owner.
//! * One thread at a time drives an adapter, which never blocks and has no thread of its own. (The
//!   verbs adapters of a process share one, for calls that the kernel accepts from certain threads
//!   only.)

pub mod confine;
pub mod connections;
pub mod descriptors;
mod error;
pub mod iwarp;
mod keys;
mod memory;
mod naming;
mod owner;
mod poll_budget;
pub mod shm;
pub mod sim;
pub mod slots;
mod spin;
mod time;
pub mod tls;
mod types;
pub mod verbs;
mod wait;
mod yield_cost;

pub use error::{ConnectError, DisconnectReason, PostError, RegisterError};
pub use memory::{MemoryRegion, RegionTable};
pub use naming::{is_local, shm_socket_candidates, shm_socket_name};
pub use owner::{is_of_this_host, tcp_peer};
pub use poll_budget::PollBudget;
pub use spin::{Spin, Wake};
pub use time::Instant;
pub use types::{
    Access, Address, Completion, EndpointId, Event, ListenerId, LocalSegment, Operation, PeerInfo,
    PeerProcess, PrivateData, ProtectionDomain, RegionId, RemoteBuffer, RemoteWindow, RequestId,
    Transfer, WorkStatus,
};
pub use wait::{SPIN_POLLS, WaitPolicy};
pub use yield_cost::YieldCost;

use connections::Admitted;
use dafs_mem::Buffer;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The most private data that a protocol may hand to `connect` or `accept`, in bytes. InfiniBand's
/// connection manager carries 56. This crate uses 52 of them, and its providers keep 8 for
/// themselves.
pub const PRIVATE_DATA_BYTES_MAX: usize = 44;

/// The most local segments of one send or RDMA write.
pub const GATHER_SEGMENTS_MAX: usize = 16;

/// One transport provider, used by one thread.
///
/// The functions below post work, and [`poll`](Adapter::poll) reports its completion. A provider
/// may hold posted work back until the next `poll`, [`flush`](Adapter::flush) or
/// [`arm`](Adapter::arm), so that a batch costs few system calls.
///
/// `work` is the caller's tag and returns in the [`Completion`]. Posting never blocks. The provider
/// queues work that the connection cannot take yet; the caller's outstanding work bounds the
/// queues.
pub trait Adapter: Send {
    /// A short name for logs: "iwarp", "shm", "sim", "verbs".
    fn name(&self) -> &'static str;

    /// Allocates memory where this transport moves data fastest. Shared memory allocates it where
    /// the peer can reach it without a copy; other providers return ordinary pages.
    ///
    /// # Errors
    /// `ENOMEM` and similar errors.
    fn allocate(&mut self, bytes: usize) -> io::Result<Arc<Buffer>> {
        Buffer::zeroed(bytes).map(Arc::new)
    }

    /// Makes a protection domain. A region and an endpoint work together only inside one domain.
    fn protection_domain(&mut self) -> ProtectionDomain;

    /// Registers all of `buffer`. The adapter keeps it alive until it is deregistered and no posted
    /// work uses it.
    ///
    /// # Errors
    /// The exceeded limit, with its remedy.
    fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError>;

    /// Ends a registration. Its key is refused at once; work that was posted before still
    /// completes.
    ///
    /// This applies to new work. A peer that has mapped the memory
    /// ([`map_remote`](Adapter::map_remote)) may have work in progress, such as a file read by one
    /// of its threads. It may read and write the memory until it has answered the request or
    /// noticed the end of the connection. Until then, memory from [`allocate`](Adapter::allocate)
    /// that was registered for remote access may only serve as buffers of the same trust: for data
    /// that this peer may see and corrupt.
    fn deregister(&mut self, region: RegionId);

    /// Starts to listen. Requests arrive as [`Event::ConnectRequest`].
    ///
    /// # Errors
    /// The error of the socket calls, or `Unsupported` for an address of another provider.
    fn listen(&mut self, address: &Address) -> io::Result<ListenerId>;

    /// The address of a listener, with the port that the kernel chose for port 0.
    fn listener_address(&self, listener: ListenerId) -> Option<Address>;

    /// Starts a connection; [`Event::Established`] or [`Event::ConnectFailed`] will follow.
    ///
    /// # Errors
    /// Errors that are known at once: no such address, no file descriptors left.
    fn connect(
        &mut self,
        domain: ProtectionDomain,
        address: &Address,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError>;

    /// Accepts a request. The endpoint may post receives at once; [`Event::Established`] follows.
    ///
    /// # Errors
    /// When the request no longer exists because the peer has left.
    fn accept(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError>;

    /// Accepts a request as [`accept`](Adapter::accept) does, of a peer that is to read what this side
    /// [grants](Adapter::grant) to it alone. Work of this side uses memory of `domain`. The peer may be
    /// kept from memory that is registered there, so it should not be given keys of it.
    ///
    /// An RDMA device without memory windows makes a domain of its own for the connection, and registers
    /// the memory of each work anew. So such a connection is for few messages.
    ///
    /// # Errors
    /// As `accept`, and no protection domain left.
    fn accept_isolated(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        self.accept(request, domain, private_data)
    }

    /// Rejects a request; the peer gets [`ConnectError::Rejected`] with the private data.
    fn reject(&mut self, request: RequestId, private_data: &[u8]);

    /// The request's entry in the server's connection limits, if this adapter counts connections.
    fn admitted(&self, request: RequestId) -> Option<Arc<Admitted>> {
        let _ = request;
        None
    }

    /// The identity of the peer.
    fn peer(&self, endpoint: EndpointId) -> Option<PeerInfo>;

    /// Posts a receive for one message. A message larger than the segment breaks the connection.
    ///
    /// # Errors
    /// A dead endpoint, a segment outside its region, a region without local write access.
    fn post_receive(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
    ) -> Result<(), PostError>;

    /// Posts a send, an RDMA write or an RDMA read. The four functions below are this one with the
    /// variants of [`Transfer`], and say what each promises.
    ///
    /// # Errors
    /// Those of the four.
    fn post(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        transfer: Transfer<'_>,
    ) -> Result<(), PostError>;

    /// Sends one message gathered from `segments`.
    ///
    /// # Errors
    /// A dead endpoint, a segment outside its region, too many segments.
    fn post_send(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segments: &[LocalSegment],
    ) -> Result<(), PostError> {
        self.post(endpoint, work, Transfer::Send { segments, invalidate: None })
    }

    /// Sends one message as [`post_send`](Adapter::post_send) does and invalidates `key`, a key of
    /// the peer (Send with Invalidate, RFC 5040 5.3). When the peer's receive completes, with the
    /// key in [`Completion::invalidated`], the key is refused on every connection, for remote reads
    /// and writes alike. So the peer gets its memory back without a further message. It still
    /// deregisters the region and may use the memory locally until then, but the key stays invalid.
    ///
    /// The key must belong to the connection's domain and have been registered for remote access;
    /// otherwise the peer ends the connection. Writes with the key that were posted before are
    /// placed before it becomes invalid. A read with the key must have completed before this is
    /// posted. A read in progress may be refused in its middle, which ends the connection too.
    /// Windows from [`map_remote`](Adapter::map_remote) must not be used any more.
    ///
    /// # Errors
    /// As `post_send`.
    fn post_send_invalidate(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segments: &[LocalSegment],
        key: u32,
    ) -> Result<(), PostError> {
        self.post(endpoint, work, Transfer::Send { segments, invalidate: Some(key) })
    }

    /// Writes `segments` into the peer's memory, which must be at least as long as their sum.
    ///
    /// # Errors
    /// As `post_send`, and a remote buffer that is too short.
    fn rdma_write(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segments: &[LocalSegment],
        remote: RemoteBuffer,
    ) -> Result<(), PostError> {
        self.post(endpoint, work, Transfer::Write { segments, remote })
    }

    /// Reads the peer's memory into one local segment of the same length.
    ///
    /// # Errors
    /// As `post_send`, and a different length.
    fn rdma_read(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
        remote: RemoteBuffer,
    ) -> Result<(), PostError> {
        self.post(endpoint, work, Transfer::Read { segment, remote })
    }

    /// The peer's memory itself, where this process can map it (shared memory). The caller may then
    /// let the kernel read or write it directly, without RDMA. `need` is the right that the peer
    /// must have granted. With `None` the caller uses `rdma_write` or `rdma_read`, which also
    /// report a bad key. Memory that the peer granted for reading only is mapped read-only; see
    /// [`RemoteWindow`] for the effect of a write to it.
    ///
    /// The window outlives both the peer's `deregister` and the connection. A caller that hands it
    /// to a thread must expect that the peer reuses the memory before the thread writes it. It must
    /// end such work early when the connection ends.
    fn map_remote(
        &mut self,
        endpoint: EndpointId,
        remote: RemoteBuffer,
        need: Access,
    ) -> Option<RemoteWindow> {
        let _ = (endpoint, remote, need);
        None
    }

    /// Lets the peer of one connection read a buffer of [`shm::exposed_buffer`]. It maps the buffer
    /// ([`map_remote`](Adapter::map_remote)) where the adapter [can grant](Adapter::can_grant) that,
    /// and uses RDMA reads where it [grants reads](Adapter::can_grant_reads). No other connection
    /// can use the key, in whatever domain. `None` where neither is possible, while the connection
    /// is not established, or when it has no room for one more region. RDMA devices may need a
    /// connection that was [isolated](Adapter::accept_isolated), and locked memory. They may wait for
    /// the device as a registration does.
    ///
    /// [`revoke`](Adapter::revoke) ends it. The peer may keep its mapping; [`shm::discard`] takes the
    /// content away, unless the adapter [keeps its pages](Adapter::keeps_granted_pages).
    fn grant(&mut self, endpoint: EndpointId, buffer: &Arc<Buffer>) -> Option<MemoryRegion> {
        let _ = (endpoint, buffer);
        None
    }

    /// True where peers can map memory that is [granted](Adapter::grant) to them.
    fn can_grant(&self) -> bool {
        false
    }

    /// True where peers read memory that is [granted](Adapter::grant) to them by
    /// [`rdma_read`](Adapter::rdma_read).
    ///
    /// The adapter answers such reads in their order. It reads the memory for one of them when all
    /// bytes of the earlier ones have left that memory. So a short read behind others tells if their
    /// memory was still valid. RDMA devices may read memory for several answers at once, and again for
    /// an answer that was lost. There the conclusion holds if memory is not reused for some seconds after
    /// it became invalid.
    fn can_grant_reads(&self) -> bool {
        false
    }

    /// True where a device holds the pages of [granted](Adapter::grant) memory until the grant ends, and
    /// answers reads also while this process does not run. [`shm::discard`] takes pages from all
    /// mappings and not from the device, so the owner overwrites first what must not be read any more.
    fn keeps_granted_pages(&self) -> bool {
        false
    }

    /// The number of RDMA reads that peers of connections with [grants](Adapter::grant) have
    /// requested so far; 0 where a device answers them.
    fn granted_reads(&self) -> u64 {
        0
    }

    /// Ends a [`grant`](Adapter::grant), also after the end of the connection. When this returns, the key
    /// is refused. An RDMA read with it then ends the connection, also one that is half answered.
    fn revoke(&mut self, endpoint: EndpointId, region: RegionId) {
        let _ = (endpoint, region);
    }

    /// True when a peer may map memory of such a buffer ([`map_remote`](Adapter::map_remote)), and
    /// so reach it after the end of its registration and of the connection.
    fn is_mappable(&self, _buffer: &Buffer) -> bool {
        false
    }

    /// Announces how many bytes the peer may still RDMA-write here for outstanding requests, so
    /// that a byte-stream provider can receive them straight into place. This is a hint.
    fn expect_remote_writes(&mut self, endpoint: EndpointId, bytes: u64) {
        let _ = (endpoint, bytes);
    }

    /// Makes progress without blocking and appends events to `events`. Returns the number of events
    /// added.
    ///
    /// `now` drives set-up and tear-down timeouts.
    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> usize;

    /// True if a poll asks the kernel, so that a vain one costs as much as yielding the CPU does.
    fn polls_by_system_call(&self) -> bool {
        false
    }

    /// Passes held-back work to the transport.
    fn flush(&mut self);

    /// Prepares to sleep: after `true` the descriptor becomes readable when there is an event to
    /// poll. `false` means that there may be one already.
    ///
    /// # Errors
    /// The error of the system call that could not arm the descriptor.
    fn arm(&mut self) -> io::Result<bool>;

    /// False once a descriptor of this adapter was found closed by other code, which may have
    /// opened another file under its number. From then on the adapter uses none of them, and a
    /// caller cannot wait for it. Only providers with `guarded` in their settings check this.
    fn is_intact(&self) -> bool {
        true
    }

    /// The descriptor to wait on after [`arm`](Adapter::arm). The simulated provider has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Takes no further connections. Those that wait in the queue of a listening socket stay there,
    /// for another owner of a copy of it.
    fn stop_listening(&mut self) {}

    /// The time at which `poll` must be called even without a readable descriptor.
    fn next_timeout(&self) -> Option<Instant>;

    /// True while peers could lose what ended connections have sent to them, if the adapter were
    /// dropped now. The caller goes on to poll, without an event to wait for, up to a timeout of its
    /// own.
    fn is_lingering(&self) -> bool {
        false
    }

    /// Ends a connection after the sends posted so far have been passed to the transport, or the peer
    /// has closed it; [`Event::Disconnected`] follows. Posted receives are flushed.
    fn disconnect(&mut self, endpoint: EndpointId);

    /// Ends a connection at once and drops its queue.
    fn abort(&mut self, endpoint: EndpointId);
}
