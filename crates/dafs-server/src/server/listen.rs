//! Listening sockets.

use super::inherited::Inherited;
use super::{BACKLOG, StartError};
use dafs_dat::{shm, shm_socket_name};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

/// A TCP socket that listens: one that was passed to this process, or a new one.
pub(super) fn tcp(
    address: SocketAddr,
    inherited: &mut Inherited,
) -> Result<TcpListener, StartError> {
    if let Some(listener) = inherited.find(address) {
        tracing::info!(%address, "going on with a socket that was passed");
        return Ok(listener);
    }
    fresh(address)
}

/// A new TCP socket that listens.
pub(super) fn fresh(address: SocketAddr) -> Result<TcpListener, StartError> {
    let domain = socket2::Domain::for_address(address);
    let bind = || {
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(TcpListener::from(socket))
    };
    bind().map_err(|error| StartError::Listen { address, error })
}

/// The sockets of one address: TCP for iWARP, and the abstract UNIX socket for shared memory.
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    pub(super) tcp: TcpListener,
    pub(super) shm: OwnedFd,
}

impl Listener {
    pub(super) fn bind(address: SocketAddr, inherited: &mut Inherited) -> Result<Self, StartError> {
        Self::beside(tcp(address, inherited)?, address)
    }

    pub(super) fn fresh(address: SocketAddr) -> Result<Self, StartError> {
        Self::beside(fresh(address)?, address)
    }

    fn beside(tcp: TcpListener, address: SocketAddr) -> Result<Self, StartError> {
        let failed = |error| StartError::Listen { address, error };
        let address = tcp.local_addr().map_err(failed)?;
        let shm = shm::bind_listener(&shm_socket_name(address)).map_err(failed)?;
        Ok(Self { address, tcp, shm })
    }
}
