//! Logs the reason why a host is refused, for the administrator.
//!
//! Invariants
//! * For any number of refused calls, a host is logged at most once a minute for each reason. The
//!   memory for hosts is bounded.

use crate::admission::{Origin, Refusal};
use dafs_rpc::News;
use dafs_service::Export;
use std::net::IpAddr;

/// Logged hosts.
#[derive(Debug, Default)]
pub(crate) struct Refusals(News<(IpAddr, Refusal)>);

impl Refusals {
    /// Logs why calls from `origin` may not use an export.
    pub(crate) fn note(&self, origin: &Origin, export: &Export, refusal: Refusal, now_ns: u64) {
        if !self.0.is_news((origin.address(), refusal), now_ns) {
            return;
        }
        let (host, export) = (origin.address(), export.name());
        match refusal {
            Refusal::Network => tracing::warn!(
                %host, export,
                "a client was refused because its address is in none of the export's networks; to let \
                 it in, add the address to networks, or give --nfs-network"
            ),
            Refusal::Port => tracing::warn!(
                %host, export,
                "a client was refused because it calls from a port that any user of its host may \
                 have, as NFS over RDMA always does, and other clients with noresvport; to let it in, \
                 set unprivileged_ports = true for the export, or give --nfs-unprivileged-ports"
            ),
            Refusal::Owner => tracing::warn!(
                %host, export,
                "a client on this host was refused because the kernel does not tell whose process it \
                 is, as with RDMA devices, sockets bound to a device, and connections from another \
                 network name space by an address of this host; mount over TCP by localhost"
            ),
            Refusal::Transport(least) => tracing::warn!(
                %host, export,
                "a client was refused because the export demands transport_security = \"{least}\" and \
                 its connection has less; to let it in, mount with xprtsec={least}, and with mtls use a \
                 client certificate of an authority that this server knows ([tls] authorities)"
            ),
            Refusal::Rights => tracing::warn!(
                %host, export,
                "a user of this host was refused because this server does not run as root and would \
                 lend its own rights; only root and the user that it runs as may mount here"
            ),
        }
    }
}
