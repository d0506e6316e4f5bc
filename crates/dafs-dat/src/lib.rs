//! Direct access transports: endpoints, memory regions and completions, after DAT and RDMA verbs.
//!
//! One trait, [`Adapter`], is all that the protocols above see. It offers what every provider can
//! do and nothing more: reliable ordered connections that carry private data at set-up, posted
//! receives, sends that gather and may invalidate a key of the receiver, RDMA write and read
//! between registered memory, one queue of completions with a file descriptor to sleep on. There
//! is no immediate data, no atomic, one local segment on a read, and the side that connects speaks
//! first.
//!
//! Invariants
//! * A send consumes exactly one posted receive of the peer. A send that finds none breaks the
//!   connection: flow control (credits) belongs to the protocol above.
//! * An RDMA write posted before a send is placed before the peer sees that send's receive
//!   completion. An RDMA write and a later RDMA read of the same bytes are not ordered.
//! * Any error breaks the connection. Every piece of posted work completes exactly once, in error
//!   if the connection broke first ([`WorkStatus::Flushed`]), and only after that
//!   [`Event::Disconnected`] is reported; nothing is reported for that endpoint afterwards.
//! * Memory is reachable from a peer only through a key of the connection's own protection
//!   domain, inside its bounds and with the right access; anything else breaks the connection.
//! * A key is refused from its deregistration on, and from the moment a message of the peer has
//!   invalidated it. The registration itself stays with its owner.
//! * An adapter is driven by one thread at a time, never blocks and keeps no thread of its own. (The
//!   verbs adapters of a process share one, for calls the kernel does not take from every thread.)

pub mod confine;
pub mod connections;
pub mod descriptors;
mod error;
pub mod iwarp;
mod keys;
mod memory;
mod naming;
mod offers;
mod owner;
pub mod shm;
pub mod sim;
mod spin;
mod time;
mod types;
pub mod verbs;

pub use error::{ConnectError, DisconnectReason, PostError, RegisterError};
pub use memory::{MemoryRegion, RegionTable};
pub use naming::{shm_socket_candidates, shm_socket_name};
pub use offers::CpuOffers;
pub use owner::{is_of_this_host, tcp_peer};
pub use spin::{Spin, Wake};
pub use time::Instant;
pub use types::{
    Access, Address, Completion, EndpointId, Event, ListenerId, LocalSegment, Operation, PeerInfo,
    PeerProcess, PrivateData, ProtectionDomain, RegionId, RemoteBuffer, RemoteWindow, RequestId,
    WorkStatus,
};

use connections::Admitted;
use dafs_mem::Buffer;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The most private data that a protocol may hand to `connect` or `accept`, in bytes. InfiniBand's
/// connection manager carries 56; our providers keep 8 of the 52 we use for themselves.
pub const PRIVATE_DATA_BYTES_MAX: usize = 44;

/// The most local segments of one send or RDMA write.
pub const GATHER_SEGMENTS_MAX: usize = 16;

/// One transport provider as one thread sees it.
///
/// Work is posted by the functions below and reported by [`poll`](Adapter::poll). A provider may
/// hold posted work back until the next `poll`, [`flush`](Adapter::flush) or
/// [`arm`](Adapter::arm), so that much work costs few system calls.
///
/// `work` is the caller's tag and comes back in the [`Completion`]. Posting never blocks; what the
/// connection cannot take yet is queued inside the provider, whose queues are bounded by what the
/// caller has outstanding.
pub trait Adapter: Send {
    /// A short name for logs: "iwarp", "shm", "sim", "verbs".
    fn name(&self) -> &'static str;

    /// Allocates memory in the place this transport moves fastest. Shared memory allocates it where
    /// the peer can reach it without a copy; others return ordinary pages.
    ///
    /// # Errors
    /// `ENOMEM` and its kind.
    fn allocate(&mut self, bytes: usize) -> io::Result<Arc<Buffer>>;

    /// Makes a protection domain. A region and an endpoint work together only inside one.
    fn protection_domain(&mut self) -> ProtectionDomain;

    /// Registers all of `buffer`; the adapter keeps it alive until it is deregistered and no
    /// posted work uses it any more.
    ///
    /// # Errors
    /// The limit that was hit, with its remedy.
    fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError>;

    /// Ends a registration. Its key is refused at once; work already posted still completes.
    ///
    /// That is about new work. A peer that has mapped the memory ([`map_remote`](
    /// Adapter::map_remote)) may have begun work in it that goes on after this returns, such as a
    /// read of a file by one of its threads, and may so still read and write it until it has
    /// answered the request or noticed the end of the connection. Memory from [`allocate`](
    /// Adapter::allocate) that was registered for remote access must not be used before that for
    /// anything but buffers of the same trust: data that this peer may see and may spoil.
    fn deregister(&mut self, region: RegionId);

    /// Starts to listen. Requests arrive as [`Event::ConnectRequest`].
    ///
    /// # Errors
    /// The error of the socket calls, or `Unsupported` for an address of another provider.
    fn listen(&mut self, address: &Address) -> io::Result<ListenerId>;

    /// The address a listener is bound to, with the port that the system picked for port 0.
    fn listener_address(&self, listener: ListenerId) -> Option<Address>;

    /// Starts a connection; [`Event::Established`] or [`Event::ConnectFailed`] will follow.
    ///
    /// # Errors
    /// What can be told at once: no such address, no descriptors left.
    fn connect(
        &mut self,
        domain: ProtectionDomain,
        address: &Address,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError>;

    /// Accepts a request. The endpoint may post receives at once; [`Event::Established`] follows.
    ///
    /// # Errors
    /// When the request is gone because the peer has left.
    fn accept(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError>;

    /// Refuses a request; the peer sees [`ConnectError::Rejected`] with the private data.
    fn reject(&mut self, request: RequestId, private_data: &[u8]);

    /// How a request is counted among the connections of its server, if this adapter counts them.
    fn admitted(&self, request: RequestId) -> Option<Arc<Admitted>> {
        let _ = request;
        None
    }

    /// Who is at the other end.
    fn peer(&self, endpoint: EndpointId) -> Option<PeerInfo>;

    /// Gives the connection a place for one message. Messages larger than the segment break it.
    ///
    /// # Errors
    /// A dead endpoint, a segment outside its region, a region without local write access.
    fn post_receive(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
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
    ) -> Result<(), PostError>;

    /// Sends one message as [`post_send`](Adapter::post_send) does that takes `key`, a key of the
    /// peer, out of use (Send with Invalidate, RFC 5040 5.3): when the peer's receive completes,
    /// with the key in [`Completion::invalidated`], the key is refused on every connection, for
    /// remote reads and writes alike. The peer need not tell anybody that the memory is its own
    /// again; it still deregisters the region, for which it may use the memory as before, but the
    /// key does not come back to life.
    ///
    /// The key must be of the connection's domain and have been registered for remote access, or
    /// the peer ends the connection. Writes posted before with the key are placed before it dies.
    /// A read with the key must have completed before this is posted: one that is under way may
    /// be refused in its middle, which ends the connection too, and what had been mapped by
    /// [`map_remote`](Adapter::map_remote) must not be used any more.
    ///
    /// # Errors
    /// As `post_send`.
    fn post_send_invalidate(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segments: &[LocalSegment],
        key: u32,
    ) -> Result<(), PostError>;

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
    ) -> Result<(), PostError>;

    /// Reads the peer's memory into one local segment of the same length.
    ///
    /// # Errors
    /// As `post_send`, and a length that differs.
    fn rdma_read(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
        remote: RemoteBuffer,
    ) -> Result<(), PostError>;

    /// The peer's memory itself, where this process can reach it (shared memory): the caller may
    /// then let the kernel read or write it directly and needs no RDMA. `need` is the right that
    /// the peer must have granted. `None` means: use `rdma_write` or `rdma_read`; they also report
    /// a bad key. Memory that the peer granted for reading only is mapped so; what that means for
    /// whoever writes to it is told at [`RemoteWindow`].
    ///
    /// The window outlives both the peer's `deregister` and the connection. Whoever hands it to a
    /// thread must expect that the peer has put the memory to other use by the time it is written,
    /// and end such work early when the connection ends.
    fn map_remote(
        &mut self,
        endpoint: EndpointId,
        remote: RemoteBuffer,
        need: Access,
    ) -> Option<RemoteWindow>;

    /// True when a peer may map memory of such a buffer ([`map_remote`](Adapter::map_remote)), and so
    /// reach it after its registration and the connection have ended.
    fn is_mappable(&self, _buffer: &Buffer) -> bool {
        false
    }

    /// Tells how many bytes the peer may still RDMA-write here for requests now outstanding, so
    /// that a byte-stream provider can receive them straight into place. A hint.
    fn expect_remote_writes(&mut self, endpoint: EndpointId, bytes: u64);

    /// Moves things along without blocking and appends what has happened to `events`. Returns the
    /// number of events added.
    ///
    /// `now` drives set-up and tear-down timeouts.
    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> usize;

    /// Hands held-back work to the transport.
    fn flush(&mut self);

    /// Prepares to sleep: after `true` the descriptor becomes readable when there is something to
    /// poll for. `false` means that there is already.
    ///
    /// # Errors
    /// The error of the system call that could not arm the descriptor.
    fn arm(&mut self) -> io::Result<bool>;

    /// False once a descriptor of this adapter was found to have been closed by others, who may have
    /// opened something else by its number. Nothing of it is used any more from then on, and nothing
    /// can be waited for. Looked at by providers that were told to (`guarded` in their settings).
    fn is_intact(&self) -> bool {
        true
    }

    /// The descriptor to wait on after [`arm`](Adapter::arm). The simulated provider has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// When `poll` must be called even if the descriptor stays quiet.
    fn next_timeout(&self) -> Option<Instant>;

    /// Ends a connection after the sends already posted have been handed over;
    /// [`Event::Disconnected`] follows. Posted receives are flushed.
    fn disconnect(&mut self, endpoint: EndpointId);

    /// Ends a connection at once, dropping what is queued.
    fn abort(&mut self, endpoint: EndpointId);
}
