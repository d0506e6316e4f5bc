//! Software transports on sockets that reactors share.

use super::StartError;
use super::listen::Listener;
use crate::config::Config;
use dafs_dat::Adapter;
use dafs_dat::connections::Connections;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::tls::ServerTls;
use dafs_tls::Protocol;
use std::sync::Arc;

/// Makes adapters for iWARP and shared memory on the same listeners. iWARP is inside TLS where the
/// client begins that.
pub(super) fn adapters(
    config: &Config,
    (connections, tls): (&Arc<Connections>, Option<&Arc<ServerTls>>),
    protocol: Protocol,
    listeners: &[Listener],
) -> Result<Vec<Box<dyn Adapter>>, StartError> {
    // They count together with those of all front ends.
    let mut iwarp = IwarpAdapter::new(IwarpConfig {
        crc: config.crc,
        connection_count_max: usize::MAX,
        handshake_count_max: usize::MAX,
        ..IwarpConfig::default()
    })?;
    iwarp.count_in(connections.clone());
    if let Some(tls) = tls {
        iwarp.serve_tls(tls.clone(), protocol)?;
    }
    let mut shm = ShmAdapter::new(ShmConfig {
        connections_max: usize::MAX,
        pending_max: usize::MAX,
        shareable_buffers_max: 0,
        ..ShmConfig::default()
    })?;
    shm.count_in(connections.clone());
    for listener in listeners {
        iwarp.add_listener(listener.tcp.try_clone()?)?;
        if let Some(socket) = &listener.shm {
            shm.add_listener(socket.try_clone()?)?;
        }
    }
    Ok(vec![Box::new(iwarp), Box::new(shm)])
}
