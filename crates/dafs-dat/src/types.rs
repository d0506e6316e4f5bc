//! Names, addresses and events.

use crate::error::{ConnectError, DisconnectReason};
use bitflags::bitflags;
use dafs_mem::VolatileSlice;
use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

bitflags! {
    /// What a registration allows.
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

/// Where to listen or connect.
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

/// A registration, as its owner names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionId(pub u32);

/// A piece of a registered region of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSegment {
    /// The region.
    pub region: RegionId,
    /// Bytes from the region's start.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// A piece of a peer's registered memory, as it travels on the wire (DAFS 3.1: context, address,
/// length).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The key: R_Key, STag, DAFS context.
    pub key: u32,
    /// The address in the peer's terms.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// A peer's memory mapped into this process; the mapping lives as long as the window.
///
/// A window is for writing only if the peer granted that ([`RemoteWindow::is_writable`]), which it
/// did if [`map_remote`](crate::Adapter::map_remote) was asked for [`Access::REMOTE_WRITE`]. Memory
/// granted for reading alone is mapped read-only: a store through the view of such a window ends
/// the process by a signal, before anything has changed, and a system call that writes there fails
/// with `EFAULT`. A private writable mapping would be no better answer: whatever breaks its sharing
/// with the peer, such as direct I/O on older kernels or `mlockall`, would leave it with old data.
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
    /// The range must stay mapped and readable until `mapping` is dropped. It must be memory that
    /// cannot be written, or that may be, so that a stray store faults or does no harm.
    pub unsafe fn read_only(ptr: *mut u8, len: usize, mapping: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ptr, len, writable: false, _mapping: mapping }
    }

    /// Whether [`view`](RemoteWindow::view) may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The memory. It must not be written unless the window
    /// [is writable](RemoteWindow::is_writable).
    pub fn view(&self) -> VolatileSlice<'_> {
        // SAFETY: the constructor's promise, kept by `_mapping`. A window that is not writable is
        // only read; should a caller break that rule, the page tables turn the store into a signal
        // and no memory is changed.
        unsafe { VolatileSlice::new(self.ptr, self.len) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is nothing in it.
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

/// Private data of a connection, without what the transport added for itself.
pub type PrivateData = Vec<u8>;

/// Who is at the other end, as far as the transport can vouch for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerInfo {
    /// The peer's network address.
    pub address: Option<SocketAddr>,
    /// The peer process's user and group, told by the kernel of this host. Its process id, too, over
    /// shared memory; over TCP that is 0, and the group the user's main one.
    pub process: Option<PeerProcess>,
    /// The process's supplementary groups, told by the kernel over shared memory; over TCP it tells none.
    pub groups: Vec<u32>,
    /// Whether the peer is on this host. Without `process` it may be any user of this host then.
    pub is_local: bool,
    /// A number for the simulated network.
    pub sim_host: Option<u32>,
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

/// Which kind of work has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `post_receive`.
    Receive,
    /// `post_send` or `post_send_invalidate`.
    Send,
    /// `rdma_write`: the local memory may be reused. Says nothing about placement.
    RdmaWrite,
    /// `rdma_read`: the data is here.
    RdmaRead,
}

/// How work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkStatus {
    /// Done; the bytes received or moved.
    Ok(u32),
    /// The connection broke before it was done.
    Flushed,
}

/// One piece of posted work is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The connection.
    pub endpoint: EndpointId,
    /// The caller's tag.
    pub work: u64,
    /// What it was.
    pub operation: Operation,
    /// How it ended.
    pub status: WorkStatus,
    /// On a receive: the key of ours that the peer's message has invalidated, if it was one of
    /// [`Adapter::post_send_invalidate`](crate::Adapter::post_send_invalidate). `None` otherwise.
    pub invalidated: Option<u32>,
}

/// What `poll` reports.
#[derive(Debug)]
pub enum Event {
    /// Posted work is over.
    Completion(Completion),
    /// Somebody wants to connect.
    ConnectRequest {
        /// Where.
        listener: ListenerId,
        /// For `accept` or `reject`.
        request: RequestId,
        /// What the peer sent along.
        private_data: Box<PrivateData>,
        /// Who it is.
        peer: Box<PeerInfo>,
    },
    /// A connection is up, on either side; sends may be posted.
    Established {
        /// Which.
        endpoint: EndpointId,
        /// What the accepting side sent along; empty on that side itself.
        private_data: Box<PrivateData>,
    },
    /// A connection that this side started could not be made. The endpoint is gone.
    ConnectFailed {
        /// Which.
        endpoint: EndpointId,
        /// Why.
        error: Box<ConnectError>,
    },
    /// A connection is over; the last event of this endpoint.
    Disconnected {
        /// Which.
        endpoint: EndpointId,
        /// Why.
        reason: Box<DisconnectReason>,
    },
}
