//! What is known of one connection over RDMA.
//!
//! Invariants
//! * Memory that it holds is counted from the time it is taken to the time it is given back.
//! * Once it closes it takes no call and sends nothing; it is gone only when the transport has given
//!   back all work.

use super::credits::Credits;
use super::memory::Receives;
use crate::back::Back;
use crate::call::{CallerProcess, ConnectionId};
use crate::limits::{RDMA_BACK_CREDITS, RDMA_CREDITS_INITIAL};
use dafs_dat::connections::{Admitted, Closed, Origin};
use dafs_dat::{ConnectError, DisconnectReason, EndpointId, PeerInfo, PostError, RegisterError};
use dafs_wire::rpcrdma::{HeaderError, PrivateData, limits::INLINE_BYTES_DEFAULT};
use dafs_wire::xdr::XdrError;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use thiserror::Error;

/// Why a connection ends.
#[derive(Debug, Error)]
pub(super) enum Ending {
    #[error("it was closed on request")]
    Asked,
    #[error("it could not be set up: {0}")]
    Connect(Box<ConnectError>),
    #[error("{0}")]
    Counted(Closed),
    #[error("the peer made no call in time")]
    Silent,
    #[error("this server failed at what the peer sent; please report it")]
    Fault,
    #[error("the peer sent no RPC-over-RDMA: {0}")]
    Header(#[from] HeaderError),
    #[error("no memory can be had: {0}")]
    Memory(#[from] RegisterError),
    #[error("the peer sent no RPC message: {0}")]
    NotRpc(#[from] XdrError),
    #[error("work cannot be posted: {0}")]
    Post(#[from] PostError),
    #[error("the peer did not let its chunks be read in time")]
    Stalled,
    #[error("{0}")]
    Transport(Box<DisconnectReason>),
    #[error("the peer did not take its replies")]
    Unread,
}

impl Ending {
    /// True when nothing went wrong.
    pub(super) fn is_ordinary(&self) -> bool {
        match self {
            Self::Asked | Self::Counted(_) => true,
            Self::Transport(reason) => {
                matches!(**reason, DisconnectReason::Local | DisconnectReason::Peer)
            }
            _ => false,
        }
    }
}

/// A message that waits in its receive slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) slot: u32,
    pub(super) len: usize,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// Its adapter, by number.
    pub(super) port: usize,
    pub(super) endpoint: EndpointId,
    pub(super) peer: SocketAddr,
    pub(super) host: Origin,
    pub(super) process: CallerProcess,
    pub(super) receives: Receives,
    pub(super) credits: Credits,
    /// The longest message that may be sent.
    pub(super) send_bytes_max: usize,
    /// The peer wants one of its keys invalidated with each reply.
    pub(super) invalidates: bool,
    /// Calls that wait until more can be taken.
    pub(super) queue: VecDeque<Arrived>,
    /// It waits in the list of those that go on when memory is free again.
    pub(super) starved: bool,
    /// Calls that were put off and not answered.
    pub(super) pending: usize,
    /// Memory in fetched calls, calls that were put off and replies on their way.
    pub(super) held_bytes: usize,
    /// Messages on their way that the transport has not reported as sent, and since when.
    pub(super) sends: u32,
    pub(super) sends_since_ns: u64,
    /// Calls of which parts are being fetched; since when nothing has come, and since when no call
    /// has become whole.
    pub(super) fetches: u32,
    pub(super) fetches_since_ns: u64,
    pub(super) fetched_since_ns: u64,
    pub(super) back: Option<Box<BackChannel>>,
    /// True once the handler has heard of it.
    pub(super) known: bool,
    pub(super) begun_ns: u64,
    /// How it is counted.
    pub(super) admitted: Option<Arc<Admitted>>,
    /// Why it is closing.
    pub(super) ending: Option<Ending>,
}

/// Calls to the peer (RFC 8167).
#[derive(Debug)]
pub(super) struct BackChannel {
    pub(super) calls: Back,
    /// Calls that wait for a credit: their numbers and the messages.
    pub(super) queue: VecDeque<(u32, Vec<u8>)>,
    /// Calls that were sent and use a credit each, whether or not anybody still waits for them.
    pub(super) flying: SmallVec<[u32; RDMA_BACK_CREDITS as usize]>,
    /// How many the peer takes at a time.
    pub(super) credits: u32,
}

impl Default for BackChannel {
    fn default() -> Self {
        let (calls, queue, flying) = (Back::default(), VecDeque::new(), SmallVec::new());
        // Before its first answer a peer takes one (RFC 8167 section 4.2).
        Self { calls, queue, flying, credits: 1 }
    }
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        (port, endpoint): (usize, EndpointId),
        peer: SocketAddr,
        process: CallerProcess,
        now_ns: u64,
    ) -> Self {
        Self {
            id,
            port,
            endpoint,
            peer,
            host: process.host(peer.ip()),
            process,
            receives: Receives::default(),
            credits: Credits::new(RDMA_CREDITS_INITIAL),
            send_bytes_max: INLINE_BYTES_DEFAULT,
            invalidates: false,
            queue: VecDeque::new(),
            starved: false,
            pending: 0,
            held_bytes: 0,
            sends: 0,
            sends_since_ns: now_ns,
            fetches: 0,
            fetches_since_ns: now_ns,
            fetched_since_ns: now_ns,
            back: None,
            known: false,
            begun_ns: now_ns,
            admitted: None,
            ending: None,
        }
    }

    /// Takes note of what the peer said when it connected.
    pub(super) fn learn(&mut self, private_data: &[u8], inline_bytes: usize) {
        let Some(told) = PrivateData::find(private_data) else { return };
        self.send_bytes_max = inline_bytes.min(told.receive_bytes as usize);
        self.invalidates = told.remote_invalidation;
    }

    /// Why it was closed, if it is counted no more.
    pub(super) fn closed(&self) -> Option<Closed> {
        self.admitted.as_ref()?.closed()
    }

    /// True when every call has been answered and every answer sent.
    pub(super) fn is_answered(&self) -> bool {
        self.credits.in_hand() == 0 && self.sends == 0
    }

    pub(super) fn is_closing(&self) -> bool {
        self.ending.is_some()
    }
}

/// The address that a peer goes by. A process on this host that came over shared memory has none; it
/// gets a privileged port if it may do whatever this process may.
pub(super) fn address(info: &PeerInfo) -> SocketAddr {
    if let Some(address) = info.address {
        return address;
    }
    if let Some(process) = info.process {
        let own = process.uid == 0 || process.uid == rustix::process::geteuid().as_raw();
        return SocketAddr::from((Ipv4Addr::LOCALHOST, if own { 1 } else { u16::MAX }));
    }
    let [_, high, middle, low] = info.sim_host.unwrap_or_default().to_be_bytes();
    SocketAddr::from((IpAddr::from([10, high, middle, low]), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_this_host_get_ports_by_their_user() {
        let port = |uid| {
            let process = Some(dafs_dat::PeerProcess { pid: 1, uid, gid: 1 });
            address(&PeerInfo { process, ..PeerInfo::default() }).port()
        };
        let own = rustix::process::geteuid().as_raw();
        assert_eq!((port(0), port(own), port(own ^ 0x7fff)), (1, 1, u16::MAX));
    }

    #[test]
    fn a_peer_that_tells_nothing_gets_short_messages() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let place = (0, EndpointId(1));
        let (id, process) = (ConnectionId::new(0, 0, 1), CallerProcess::Elsewhere);
        let mut connection = Connection::new(id, place, address, process, 0);
        connection.learn(b"something else", 4096);
        assert_eq!((connection.send_bytes_max, connection.invalidates), (1024, false));
        let told = PrivateData { remote_invalidation: true, send_bytes: 1024, receive_bytes: 8192 };
        connection.learn(&told.encode(), 4096);
        assert_eq!((connection.send_bytes_max, connection.invalidates), (4096, true));
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Connection>() <= 512, "{}", size_of::<Connection>());
    }
}
