//! The state of one connection over RDMA.
//!
//! Invariants
//! * The memory that the connection holds is counted from allocation to release.
//! * A closing connection takes no call and sends no message. It is removed only when the transport
//!   has returned all posted work.

use super::credits::Credits;
use crate::back::Back;
use crate::call::{CallerProcess, ConnectionId};
use crate::limits::{RDMA_BACK_CREDITS, RDMA_CREDITS_INITIAL};
use crate::tls::TransportSecurity;
use dafs_dat::connections::{Admitted, Closed, Origin};
use dafs_dat::slots::Receives;
use dafs_dat::{ConnectError, DisconnectReason, EndpointId, PeerInfo, PostError, RegisterError};
use dafs_wire::rpcrdma::{HeaderError, PrivateData, limits::INLINE_BYTES_DEFAULT};
use dafs_wire::xdr::XdrError;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use thiserror::Error;

/// The reason why a connection ends.
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
    #[error("the peer sent a call again with the same sequence number, or far too late")]
    Replayed,
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
    /// True when the connection ended without an error.
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

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// The number of its adapter.
    pub(super) port: usize,
    pub(super) endpoint: EndpointId,
    pub(super) peer: SocketAddr,
    pub(super) host: Origin,
    pub(super) process: CallerProcess,
    pub(super) receives: Receives,
    pub(super) credits: Credits,
    /// The longest message that may be sent.
    pub(super) send_bytes_max: usize,
    /// True if the peer wants a key invalidated with each reply (RFC 8797).
    pub(super) invalidates: bool,
    /// Calls that wait until the connection may take more.
    pub(super) queue: VecDeque<Arrived>,
    /// True while it is in the list of connections that wait for memory.
    pub(super) starved: bool,
    /// Deferred calls without an answer.
    pub(super) pending: usize,
    /// Memory in fetched calls, deferred calls and replies in flight.
    pub(super) held_bytes: usize,
    /// Messages that the transport has not reported as sent, and the time of the last progress.
    pub(super) sends: u32,
    pub(super) sends_since_ns: u64,
    /// Calls with reads in progress; the time since nothing has arrived, and the time since no call
    /// has become complete.
    pub(super) fetches: u32,
    pub(super) fetches_since_ns: u64,
    pub(super) fetched_since_ns: u64,
    pub(super) back: Option<Box<BackChannel>>,
    /// True once the handler knows the connection.
    pub(super) known: bool,
    /// The time since when the peer could have made its first call.
    pub(super) begun_ns: u64,
    /// The protection of the connection.
    pub(super) security: TransportSecurity,
    /// The user that the peer's certificate names.
    pub(super) user: Option<Arc<str>>,
    /// Its entry in the connection counts.
    pub(super) admitted: Option<Arc<Admitted>>,
    /// The reason why it is closing.
    pub(super) ending: Option<Ending>,
}

/// Callbacks to the peer (RFC 8167).
#[derive(Debug)]
pub(super) struct BackChannel {
    pub(super) calls: Back,
    /// Callbacks that wait for a credit: their XIDs and messages.
    pub(super) queue: VecDeque<(u32, Vec<u8>)>,
    /// Callbacks that were sent and use a credit each, even after their timeout.
    pub(super) flying: SmallVec<[u32; RDMA_BACK_CREDITS as usize]>,
    /// Credits that the peer has granted.
    pub(super) credits: u32,
}

impl Default for BackChannel {
    fn default() -> Self {
        let (calls, queue, flying) = (Back::default(), VecDeque::new(), SmallVec::new());
        // Before its first answer a peer grants one credit (RFC 8167 section 4.2).
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
            security: TransportSecurity::None,
            user: None,
            admitted: None,
            ending: None,
        }
    }

    /// Takes the peer's private data from the connection set-up (RFC 8797).
    pub(super) fn learn(&mut self, private_data: &[u8], inline_bytes: usize) {
        let Some(told) = PrivateData::find(private_data) else { return };
        self.send_bytes_max = inline_bytes.min(told.receive_bytes as usize);
        self.invalidates = told.remote_invalidation;
    }

    /// The reason why the connection limits closed it, if they did.
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

/// The address that identifies a peer. A process that connects over shared memory has none. It gets
/// a privileged port if it has the superuser's or this process's rights.
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
