//! The sockets of clients over RDMA, by DAFS and NFS: for iWARP in software, with shared memory for
//! this host beside it, and for devices of the system.
//!
//! Invariants
//! * All reactors share the sockets of the software transports. A device's listener belongs to one
//!   reactor, because the connection manager does not allow to share it.
//! * The libraries of devices are loaded only when a device is configured.

use super::StartError;
use super::adapters::{adapters, device};
use super::listen::Listener;
use super::sockets::Sockets;
use crate::config::{Config, DataRdma};
use dafs_dat::Adapter;
use dafs_dat::connections::Connections;
use dafs_dat::tls::ServerTls;
use dafs_tls::Protocol;
use std::net::SocketAddr;
use std::sync::Arc;

/// Listening sockets, and the addresses to listen on at devices.
pub(super) struct RdmaListeners {
    protocol: Protocol,
    soft: Vec<Listener>,
    verbs: Vec<SocketAddr>,
}

impl RdmaListeners {
    /// The sockets for DAFS. They are open, but for those of devices.
    pub(super) fn of_dafs(soft: Vec<Listener>, verbs: Vec<SocketAddr>) -> Self {
        Self { protocol: Protocol::Dafs, soft, verbs }
    }

    /// Opens the configured sockets for NFS, and the default ones if they are available.
    ///
    /// # Errors
    /// `ListenRdma` for a configured address.
    pub(super) fn open(config: &Config, sockets: &mut Sockets) -> Result<Self, StartError> {
        let is_named = config.nfs.rdma_listen.is_some();
        let mut soft = Vec::new();
        for address in config.nfs.rdma() {
            match Listener::bind(address, sockets) {
                Ok(listener) => soft.push(listener),
                Err(StartError::Listen { address, error }) if is_named => {
                    return Err(StartError::ListenRdma { address, error });
                }
                Err(StartError::Listen { address, error }) => tracing::warn!(
                    %address, %error,
                    "not listening for NFS over RDMA; set nfs.rdma_listen to another address, or to \
                     [] for none"
                ),
                Err(other) => return Err(other),
            }
        }
        let verbs = config.nfs.rdma_verbs_listen.clone();
        Ok(Self { protocol: Protocol::RpcRdma, soft, verbs })
    }

    /// Opens those of a data server for NFS.
    ///
    /// # Errors
    /// `ListenRdma` when the address for software is not available.
    pub(super) fn of_data_server(rdma: &DataRdma) -> Result<Self, StartError> {
        let soft = rdma.soft.map(|address| match Listener::fresh(address) {
            Err(StartError::Listen { address, error }) => {
                Err(StartError::ListenRdma { address, error })
            }
            opened => opened,
        });
        let soft = soft.transpose()?.into_iter().collect();
        let verbs = rdma.verbs.into_iter().collect();
        Ok(Self { protocol: Protocol::RpcRdma, soft, verbs })
    }

    /// Returns all addresses, those of devices before those of software.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        [self.verbs.clone(), self.soft()].concat()
    }

    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.soft.is_empty() && self.verbs.is_empty()
    }

    /// Returns the addresses of the software transports, with the ports that the system chose.
    pub(super) fn soft(&self) -> Vec<SocketAddr> {
        self.soft.iter().map(|listener| listener.address).collect()
    }

    /// Returns the addresses of devices.
    pub(super) fn verbs(&self) -> &[SocketAddr] {
        &self.verbs
    }

    /// Returns the adapters of the reactor `index` of `count`.
    ///
    /// # Errors
    /// Descriptors or memory are not available. `Verbs` when a device cannot be used.
    pub(super) fn adapters(
        &self,
        config: &Config,
        front: (&Arc<Connections>, Option<&Arc<ServerTls>>),
        index: usize,
        count: usize,
    ) -> Result<Vec<Box<dyn Adapter>>, StartError> {
        let mut adapters = match self.soft.as_slice() {
            [] => Vec::new(),
            soft => adapters(config, front, self.protocol, soft)?,
        };
        for &address in self.verbs.iter().skip(index).step_by(count) {
            adapters.push(device(config, self.protocol, address)?);
        }
        Ok(adapters)
    }
}
