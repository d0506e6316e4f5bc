//! The mounts that clients have reported (RFC 1813 5.2.2). No decision depends on them.
//!
//! Invariants
//! * The list is bounded. The oldest entry of a host at its share makes room.

use crate::limits::MOUNTS_MAX;
use dafs_mem::Mutex;
use dafs_service::{FairQueue, Host};
use std::net::IpAddr;

/// The list that DUMP returns.
#[derive(Debug)]
pub(crate) struct Mounts {
    list: Mutex<FairQueue<Entry>>,
}

type Entry = (IpAddr, Box<[u8]>);

impl Default for Mounts {
    fn default() -> Self {
        Self { list: Mutex::new(FairQueue::new(MOUNTS_MAX)) }
    }
}

impl Mounts {
    /// Adds a mount of a host, charged to the share of `share`.
    pub(super) fn add(&self, share: Host, host: IpAddr, path: &[u8]) {
        let mut list = self.list.lock();
        if list.iter().any(|(_, entry)| entry.0 == host && *entry.1 == *path) {
            return;
        }
        list.push(share, (host, path.into()));
    }

    /// Removes a mount of a host.
    pub(super) fn remove(&self, host: IpAddr, path: &[u8]) {
        self.list.lock().retain(|_, entry| entry.0 != host || *entry.1 != *path);
    }

    /// Removes all mounts of a host.
    pub(super) fn remove_all(&self, host: IpAddr) {
        self.list.lock().retain(|_, entry| entry.0 != host);
    }

    /// Calls `see` for all mounts, oldest first.
    pub(super) fn each(&self, mut see: impl FnMut(IpAddr, &[u8])) {
        self.list.lock().iter().for_each(|(_, (host, path))| see(*host, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(mounts: &Mounts) -> Vec<(IpAddr, Vec<u8>)> {
        let mut all = Vec::new();
        mounts.each(|host, path| all.push((host, path.to_vec())));
        all
    }

    #[test]
    fn entries_come_and_go_by_host_and_path() {
        let mounts = Mounts::default();
        let [a, b]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        for (host, path) in [(a, "/x"), (a, "/y"), (b, "/x"), (a, "/x")] {
            mounts.add(Host::of(host), host, path.as_bytes());
        }
        mounts.remove(a, b"/");
        assert_eq!(list(&mounts).len(), 3);
        mounts.remove(a, b"/x");
        assert_eq!(list(&mounts), [(a, b"/y".to_vec()), (b, b"/x".to_vec())]);
        mounts.remove_all(a);
        assert_eq!(list(&mounts), [(b, b"/x".to_vec())]);
    }

    #[test]
    fn the_list_is_bounded() {
        let mounts = Mounts::default();
        let [honest, host] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        mounts.add(Host::of(honest), honest, b"/");
        (0..2 * MOUNTS_MAX)
            .for_each(|n| mounts.add(Host::of(host), host, n.to_string().as_bytes()));
        let left = list(&mounts);
        assert_eq!(left.len(), 1 + MOUNTS_MAX / 2);
        assert_eq!(left[0], (honest, b"/".to_vec()));
        assert_eq!(left[MOUNTS_MAX / 2].1, (2 * MOUNTS_MAX - 1).to_string().as_bytes());
    }
}
