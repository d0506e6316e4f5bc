//! Names, addresses and events.

use crate::GATHER_SEGMENTS_MAX;
use crate::error::{ConnectError, DisconnectReason, PostError};
use crate::tls::TlsPeer;
use bitflags::bitflags;
use dafs_mem::VolatileSlice;
use dafs_tls::TransportSecurity;
use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

bitflags! {
    /// The rights of a registration.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Access: u8 {
        /// The adapter may write here: receives and the sink of RDMA reads.
        const LOCAL_WRITE = 0x01;
        /// The peer may RDMA-read.
        const REMOTE_READ = 0x02;
        /// The peer may RDMA-write.
        const REMOTE_WRITE = 0x04;
    }
}

/// An address to listen on or to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// iWARP over TCP.
    Tcp(SocketAddr),
    /// Shared memory: the name of a UNIX socket in the abstract namespace, without the leading
    /// zero byte.
    Shm(String),
    /// The simulated network: a host number.
    Sim(u32),
    /// An RDMA device, by the IP address of its interface and a port of the connection manager.
    Verbs(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Shm(name) => write!(f, "shm:{name}"),
            Address::Sim(host) => write!(f, "sim:{host}"),
            Address::Verbs(address) => write!(f, "verbs:{address}"),
        }
    }
}

/// A connection of one adapter. Never reused while the adapter lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u64);

/// A listener of one adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u32);

/// A connection request that waits for `accept` or `reject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// A protection domain of one adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProtectionDomain(pub u32);

/// The identifier of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionId(pub u32);

/// A piece of a local registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSegment {
    /// The region.
    pub region: RegionId,
    /// Offset in the region, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// A piece of a peer's registered memory, as it travels on the wire (DAFS 3.1: context, address,
/// length).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The key. Its other names are R_Key, STag, DAFS context.
    pub key: u32,
    /// The address, as the peer defined it.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A peer's memory mapped into this process; the mapping lives as long as the window.
///
/// A window is writable only if the peer granted that ([`RemoteWindow::is_writable`]).
/// [`map_remote`](crate::Adapter::map_remote) for [`Access::REMOTE_WRITE`] implies it. Memory
/// granted for reading only is mapped read-only. A store through the view of such a window ends the
/// process by a signal, before any byte has changed, and a system call that writes there fails with
/// `EFAULT`. A private writable mapping would be no better: operations that break its sharing with
/// the peer, such as direct I/O on older kernels or `mlockall`, would leave it with stale data.
#[derive(Clone)]
pub struct RemoteWindow {
    ptr: *mut u8,
    len: usize,
    writable: bool,
    _mapping: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an address that `_mapping` keeps mapped; access goes through `VolatileSlice`.
unsafe impl Send for RemoteWindow {}
// SAFETY: as above.
unsafe impl Sync for RemoteWindow {}

impl RemoteWindow {
    /// A window of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The range must stay mapped, readable and writable until `mapping` is dropped.
    pub unsafe fn new(ptr: *mut u8, len: usize, mapping: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr, len, writable: true, _mapping: mapping }
    }

    /// A window of `len` bytes at `ptr` that is for reading only.
    ///
    /// # Safety
    /// The range must stay mapped and readable until `mapping` is dropped. It must either be
    /// protected against writing, or tolerate it, so that a stray store faults or does no harm.
    pub unsafe fn read_only(ptr: *mut u8, len: usize, mapping: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr, len, writable: false, _mapping: mapping }
    }

    /// True if [`view`](RemoteWindow::view) may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The memory. It must not be written unless the window
    /// [is writable](RemoteWindow::is_writable).
    pub fn view(&self) -> VolatileSlice<'_> {
        // SAFETY: the constructor's promise, kept by `_mapping`. A window that is not writable is
        // only read. If a caller breaks that rule, the page tables turn the store into a signal,
        // and no memory changes.
        unsafe { VolatileSlice::new(self.ptr, self.len) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the window is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for RemoteWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.writable { "" } else { ", read-only" };
        write!(f, "RemoteWindow({} bytes{kind})", self.len)
    }
}

/// Private data of a connection, without the transport's own additions.
pub type PrivateData = Vec<u8>;

/// The identity of the peer, as far as the transport can vouch for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerInfo {
    /// The peer's network address.
    pub address: Option<SocketAddr>,
    /// The user and group of the peer's process, as the kernel of this host reports them. Over
    /// shared memory the kernel also reports its process id. Over TCP the id is 0, and the group is
    /// the user's primary group.
    pub process: Option<PeerProcess>,
    /// The supplementary groups of the process. The kernel reports them over shared memory, and
    /// none over TCP.
    pub groups: Vec<u32>,
    /// True if the peer is on this host. Without `process` it may then belong to any user of this
    /// host.
    pub is_local: bool,
    /// The host number in the simulated network.
    pub sim_host: Option<u32>,
    /// The protection by TLS, if the connection has it.
    pub tls: Option<Arc<TlsPeer>>,
}

impl PeerInfo {
    /// True if no other host reads or changes the bytes of the connection: it is inside TLS, or does
    /// not leave this host.
    pub fn is_protected(&self) -> bool {
        self.tls.is_some() || self.is_local || self.process.is_some() || self.sim_host.is_some()
    }

    /// The protection of the connection, as exports count it: memory that two processes share is
    /// private to them, and the kernel vouches for both.
    pub fn transport_security(&self) -> TransportSecurity {
        match &self.tls {
            Some(tls) => tls.level,
            None if self.is_local && self.address.is_none() => TransportSecurity::Mtls,
            None => TransportSecurity::None,
        }
    }

    /// The channel binding of the connection (RFC 9266), if it is inside TLS.
    pub fn binding(&self) -> Option<&[u8]> {
        self.tls.as_ref().map(|tls| &tls.binding[..])
    }
}

/// Credentials of a process on this host (`SO_PEERCRED`, or the owner of its socket).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerProcess {
    /// Process id.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.process, self.sim_host) {
            (Some(address), _, _) => write!(f, "{address}"),
            (_, Some(process), _) => write!(f, "process {} uid {}", process.pid, process.uid),
            (_, _, Some(host)) => write!(f, "sim host {host}"),
            _ => write!(f, "unknown peer"),
        }
    }
}

/// Work of an endpoint that moves data, by the function of [`Adapter`](crate::Adapter) that posts
/// it.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the functions explain their arguments")]
pub enum Transfer<'a> {
    /// `post_send`; with a key `post_send_invalidate`.
    Send { segments: &'a [LocalSegment], invalidate: Option<u32> },
    /// `rdma_write`.
    Write { segments: &'a [LocalSegment], remote: RemoteBuffer },
    /// `rdma_read`.
    Read { segment: LocalSegment, remote: RemoteBuffer },
}

impl Transfer<'_> {
    /// Checks the local length against that of the remote buffer.
    pub(crate) fn check_len(&self) -> Result<(), PostError> {
        let fits = match self {
            Self::Send { .. } => true,
            Self::Write { segments, remote } => total_len(segments)? <= remote.len,
            Self::Read { segment, remote } => segment.len == remote.len as usize,
        };
        if fits { Ok(()) } else { Err(PostError::Length) }
    }
}

/// The sum of the lengths, if the sum and the number of segments are within limits.
pub(crate) fn total_len(segments: &[LocalSegment]) -> Result<u32, PostError> {
    if segments.len() > GATHER_SEGMENTS_MAX {
        return Err(PostError::Length);
    }
    let mut total = 0usize;
    for segment in segments {
        total = total.checked_add(segment.len).ok_or(PostError::Length)?;
    }
    u32::try_from(total).map_err(|_| PostError::Length)
}

/// The kind of completed work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `post_receive`.
    Receive,
    /// `post_send` or `post_send_invalidate`.
    Send,
    /// `rdma_write`: the local memory may be reused. It does not imply placement at the peer.
    RdmaWrite,
    /// `rdma_read`: the data has arrived.
    RdmaRead,
}

/// The outcome of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkStatus {
    /// Success, with the bytes received or moved.
    Ok(u32),
    /// The connection broke before the work was done.
    Flushed,
}

/// The completion of one posted work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The connection.
    pub endpoint: EndpointId,
    /// The caller's work tag.
    pub work: u64,
    /// The kind of the work.
    pub operation: Operation,
    /// The outcome.
    pub status: WorkStatus,
    /// On a receive: the local key that the peer's message has invalidated, if it was one of
    /// [`Adapter::post_send_invalidate`](crate::Adapter::post_send_invalidate). `None` otherwise.
    pub invalidated: Option<u32>,
}

/// An event that `poll` reports.
#[derive(Debug)]
pub enum Event {
    /// Posted work is complete.
    Completion(Completion),
    /// A peer requests a connection.
    ConnectRequest {
        /// The listener that received the request.
        listener: ListenerId,
        /// The request, for `accept` or `reject`.
        request: RequestId,
        /// The private data of the peer.
        private_data: Box<PrivateData>,
        /// The identity of the peer.
        peer: Box<PeerInfo>,
    },
    /// A connection is established, on either side; sends may be posted.
    Established {
        /// The connection.
        endpoint: EndpointId,
        /// The private data of the accepting side; empty on that side itself.
        private_data: Box<PrivateData>,
    },
    /// A connection that this side started could not be established. The endpoint does not exist
    /// any more.
    ConnectFailed {
        /// The connection.
        endpoint: EndpointId,
        /// The reason.
        error: Box<ConnectError>,
    },
    /// A connection has ended; the last event of this endpoint.
    Disconnected {
        /// The connection.
        endpoint: EndpointId,
        /// The reason.
        reason: Box<DisconnectReason>,
    },
}
