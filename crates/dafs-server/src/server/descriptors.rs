//! Shares the limit of open descriptors (`RLIMIT_NOFILE`) between connections and files that
//! clients have open. The rest is for the server's own files, sockets and threads.

use crate::limits::{CONNECTIONS_SHARE, FILES_SHARE};
use dafs_dat::connections::{ConnectionLimits, Connections};
use dafs_engine::SessionLimits;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::sync::Arc;

/// Returns the most opens, and delegations, that leave descriptors for all else.
pub(super) fn files_max() -> usize {
    limit().map_or(usize::MAX, |limit| limit / FILES_SHARE)
}

/// Raises the limit to its maximum, because each open file and connection takes a descriptor.
pub(super) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open descriptors cannot be raised");
    }
}

/// Returns the connections of a server, over all of its front ends.
pub(super) fn connections(configured: &SessionLimits) -> Arc<Connections> {
    let (wanted, limit) = (configured.connections(), limit());
    let limits = share(wanted, limit);
    if let Some(limit) = limit.filter(|_| limits != wanted) {
        tracing::warn!(
            descriptors = limit,
            connections = limits.total,
            connections_per_address = limits.per_address,
            open_files = limit / FILES_SHARE,
            "this process may open few descriptors, so fewer connections and open files are possible \
             than limits.connections says; raise the hard limit (ulimit -Hn, or LimitNOFILE= of \
             systemd) to {} or more",
            wanted.total.saturating_mul(CONNECTIONS_SHARE)
        );
    }
    Connections::new(limits)
}

/// Returns the part of the configured limits that descriptors allow. When they are short no address
/// gets all.
fn share(wanted: ConnectionLimits, descriptors: Option<usize>) -> ConnectionLimits {
    let most = descriptors.map_or(usize::MAX, |limit| (limit / CONNECTIONS_SHARE).max(2));
    if wanted.total <= most {
        return wanted;
    }
    ConnectionLimits { total: most, per_address: wanted.per_address.min(most / 2) }
}

fn limit() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile).current?;
    Some(usize::try_from(limit).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_mean_few_connections_and_no_address_gets_all() {
        let wanted = ConnectionLimits { total: 4096, per_address: 1024 };
        assert_eq!(share(wanted, None), wanted);
        assert_eq!(share(wanted, Some(1 << 20)), wanted);
        let few = ConnectionLimits { total: 256, per_address: 128 };
        assert_eq!(share(wanted, Some(1024)), few);
        let one = ConnectionLimits { total: 40, per_address: 40 };
        assert_eq!(share(one, Some(1024)), one);
        // Connections, opens and delegations together leave a rest.
        let taken = 1024 / CONNECTIONS_SHARE + 4 * (1024 / FILES_SHARE);
        assert!(taken < 1024 * 15 / 16, "{taken}");
    }
}
