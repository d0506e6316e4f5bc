//! Logs the reason why a host is refused, for the administrator.
//!
//! Invariants
//! * For any number of refused calls, a host is logged at most once a minute for each reason. The
//!   memory for hosts is bounded.

use crate::admission::{Origin, Refusal};
use dafs_mem::Mutex;
use dafs_service::Export;
use rustc_hash::FxHashMap;
use std::net::IpAddr;

/// The interval after which a host is logged again, in nanoseconds.
const SILENCE_NS: u64 = 60_000_000_000;

/// The number of logged hosts that are remembered.
const HOSTS_MAX: usize = 256;

/// Logged hosts, with the time of the log entry.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<FxHashMap<(IpAddr, Refusal), u64>>);

impl Refusals {
    /// Logs why calls from `origin` may not use an export.
    pub(crate) fn note(&self, origin: &Origin, export: &Export, refusal: Refusal, now_ns: u64) {
        if !self.is_news(origin.address(), refusal, now_ns) {
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
            Refusal::Rights => tracing::warn!(
                %host, export,
                "a user of this host was refused because this server does not run as root and would \
                 lend its own rights; only root and the user that it runs as may mount here"
            ),
        }
    }

    fn is_news(&self, host: IpAddr, refusal: Refusal, now_ns: u64) -> bool {
        let mut named = self.0.lock();
        let key = (host, refusal);
        let lately = |at: &u64| now_ns.saturating_sub(*at) < SILENCE_NS;
        if named.get(&key).is_some_and(lately) {
            return false;
        }
        if named.len() >= HOSTS_MAX {
            named.retain(|_, at| lately(at));
        }
        if named.len() >= HOSTS_MAX {
            return false;
        }
        named.insert(key, now_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_once_a_minute_and_only_so_many_are() {
        let refusals = Refusals::default();
        let host = |last: u32| IpAddr::from(last.to_be_bytes());
        assert!(refusals.is_news(host(0), Refusal::Port, 0));
        assert!(!refusals.is_news(host(0), Refusal::Port, SILENCE_NS - 1));
        assert!(refusals.is_news(host(0), Refusal::Network, 1));
        assert!(refusals.is_news(host(0), Refusal::Port, SILENCE_NS));
        let news =
            (1..1000).filter(|&last| refusals.is_news(host(last), Refusal::Port, SILENCE_NS));
        assert_eq!(news.count(), HOSTS_MAX - 2);
        let later = 2 * SILENCE_NS;
        assert!(refusals.is_news(host(5000), Refusal::Port, later));
        assert_eq!(refusals.0.lock().len(), 1);
    }
}
