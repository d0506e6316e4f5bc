//! Transports of a reactor: software ones on sockets that reactors share, and RDMA devices.

use super::StartError;
use super::listen::Listener;
use crate::config::Config;
use dafs_dat::connections::Connections;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::tls::ServerTls;
use dafs_dat::verbs::{DeviceKind, VerbsAdapter, VerbsConfig, locked_memory_limit};
use dafs_dat::{Adapter, Address};
use dafs_tls::Protocol;
use std::net::SocketAddr;
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

/// Opens the RDMA device that has `address`, and listens there.
///
/// # Errors
/// `Verbs` and `ListenVerbs` when it cannot be used, `Siw` when it must not be.
pub(super) fn device(
    config: &Config,
    protocol: Protocol,
    address: SocketAddr,
) -> Result<Box<dyn Adapter>, StartError> {
    let (protocol, instead) = match protocol {
        Protocol::Dafs => ("DAFS", "listen or --listen, which transport=iwarp reaches"),
        _ => ("NFS", "rdma_listen or --nfs-rdma, which siw clients can mount"),
    };
    let usual = VerbsConfig::at(address.ip());
    // Each credit of a connection is a posted receive.
    let receives = u32::from(config.limits.credits_per_session_max) + 1;
    let settings = VerbsConfig {
        connection_count_max: config.limits.connections_max,
        receive_count_max: usual.receive_count_max.max(receives),
        ..usual
    };
    let failed = |error| StartError::Verbs { address, protocol, error };
    let mut adapter = VerbsAdapter::open(settings).map_err(failed)?;
    // It also answers reads of any memory of the server, whatever its rights.
    let device = adapter.device();
    if device.kind == DeviceKind::SoftIwarp {
        let device = device.name.clone();
        return Err(StartError::Siw { address, device, instead });
    }
    if let Some(bytes) = locked_memory_limit() {
        tracing::warn!(
            %address, bytes,
            "the memory for RDMA devices is limited, and transfers wait when it is used up: \
             LimitMEMLOCK=infinity in a systemd unit, or ulimit -l unlimited, lifts the limit"
        );
    }
    let failed = |error| StartError::ListenVerbs { address, protocol, error };
    adapter.listen(&Address::Verbs(address)).map_err(failed)?;
    Ok(Box::new(adapter))
}
