//! Shares the limited number of persistent sessions among hosts.
//!
//! Invariants
//! * A host gets another one only while it has fewer than are free, so every other host can get
//!   some. One host alone gets half of them, and two get a third each.
//! * A share is released exactly once, when its session has ended.

use crate::limits::{DURABLE_SESSIONS_MAX, DURABLE_SESSIONS_PER_CLIENT_MAX};
use dafs_mem::Mutex;
use dafs_service::ClientKey;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The host of a client, by [`dafs_service::Host::to_bytes`].
pub(crate) type Host = Vec<u8>;

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    by_host: FxHashMap<Host, usize>,
    by_client: FxHashMap<ClientKey, usize>,
}

/// The shares of all hosts.
#[derive(Debug, Default)]
pub(crate) struct PersistentShares(Mutex<Taken>);

/// The share of one session.
#[derive(Debug)]
pub(crate) struct PersistentShare {
    shares: Arc<PersistentShares>,
    host: Host,
    client: ClientKey,
}

impl PersistentShares {
    /// Takes a share for a session of this client. `None` when the host or the client has its
    /// share.
    pub(crate) fn take(
        self: &Arc<Self>,
        host: &Host,
        client: ClientKey,
    ) -> Option<PersistentShare> {
        let mut taken = self.0.lock();
        let of_host = taken.by_host.get(host).copied().unwrap_or(0);
        let of_client = taken.by_client.get(&client).copied().unwrap_or(0);
        let left = DURABLE_SESSIONS_MAX - taken.count;
        if of_host >= left || of_client >= DURABLE_SESSIONS_PER_CLIENT_MAX {
            return None;
        }
        taken.count += 1;
        taken.by_host.insert(host.clone(), of_host + 1);
        taken.by_client.insert(client, of_client + 1);
        Some(PersistentShare { shares: self.clone(), host: host.clone(), client })
    }
}

impl Drop for PersistentShare {
    fn drop(&mut self) {
        let mut taken = self.shares.0.lock();
        taken.count -= 1;
        if let Some(count) = taken.by_host.get_mut(&self.host) {
            *count -= 1;
        }
        if let Some(count) = taken.by_client.get_mut(&self.client) {
            *count -= 1;
        }
        taken.by_host.retain(|_, count| *count > 0);
        taken.by_client.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_host_takes_all_shares() {
        let shares = Arc::new(PersistentShares::default());
        let take_all = |host: u8, first: u64| -> Vec<PersistentShare> {
            let each = DURABLE_SESSIONS_PER_CLIENT_MAX as u64;
            let take = |n: u64| shares.take(&vec![host], ClientKey(first + n / each));
            (0..1000).map_while(take).collect()
        };
        let one_client: Vec<_> =
            (0..1000).map_while(|_| shares.take(&vec![1], ClientKey(1))).collect();
        assert_eq!(one_client.len(), DURABLE_SESSIONS_PER_CLIENT_MAX);
        drop(one_client);
        let first = take_all(1, 100);
        assert_eq!(first.len(), DURABLE_SESSIONS_MAX / 2);
        let second = take_all(2, 1000);
        assert_eq!(second.len(), DURABLE_SESSIONS_MAX / 4);
        assert!(shares.take(&vec![3], ClientKey(7)).is_some());
        drop(first);
        assert!(shares.take(&vec![2], ClientKey(8)).is_some());
        drop(second);
        let taken = shares.0.lock();
        assert_eq!((taken.count, taken.by_host.len(), taken.by_client.len()), (0, 0, 0));
    }
}
