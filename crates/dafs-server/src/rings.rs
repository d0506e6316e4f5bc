//! The rings by which reactors leave reads from disks to the kernel (io_uring), where it offers them.
//!
//! Invariants
//! * They are made before the sandbox, which lets no process make one.
//! * Each reactor has one, or none has. The log says which, and why. Those of data servers have none.

use crate::config::Config;
use crate::limits::NFS_THREADS_MAX;
use dafs_engine::ReadRing;
use dafs_mem::Mutex;
use dafs_sandbox::in_force;

/// The rings that this process has made before its sandbox.
static PREPARED: Mutex<Option<Vec<ReadRing>>> = Mutex::new(None);

/// Makes the rings of a server that starts in this process next. Returns true if it has some.
pub(crate) fn prepare(config: &Config) -> bool {
    let rings = make(config);
    let has_some = !rings.is_empty();
    *PREPARED.lock() = Some(rings);
    has_some
}

/// Returns the rings of a server that starts, one for each DAFS and NFS reactor, or none.
pub(crate) fn take(config: &Config) -> Vec<ReadRing> {
    let prepared = PREPARED.lock().take();
    prepared.unwrap_or_else(|| match in_force() {
        Some(report) if report.calls.is_in_force() => {
            if config.read_rings {
                tracing::info!(
                    "reads from disks go by a pool of threads until the process is restarted: its \
                     sandbox allows no other io_uring than that of its first start"
                );
            }
            Vec::new()
        }
        _ => make(config),
    })
}

fn make(config: &Config) -> Vec<ReadRing> {
    if !config.read_rings {
        return Vec::new();
    }
    let reactors = config.threads.max(1) + nfs_reactors(config);
    let rings = (0..reactors).map(|_| ReadRing::new());
    match rings.collect::<Result<Vec<_>, _>>() {
        Ok(rings) => {
            tracing::info!(reactors = rings.len(), "reads from disks go by io_uring");
            rings
        }
        Err(error) => {
            tracing::info!(
                %error,
                "reads from disks go by a pool of threads, because io_uring is not to be had: it \
                 needs Linux 6.1, kernel.io_uring_disabled = 0, and a container that allows it"
            );
            Vec::new()
        }
    }
}

/// Returns the most reactors that NFS clients can have: those for TCP, and those for RDMA.
fn nfs_reactors(config: &Config) -> usize {
    let nfs = &config.nfs;
    let has_rdma = !nfs.rdma().is_empty() || !nfs.rdma_verbs_listen.is_empty();
    let kinds = usize::from(!nfs.listen.is_empty()) + usize::from(has_rdma);
    kinds * config.threads.clamp(1, NFS_THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reactor_has_a_ring_or_none_has() {
        let mut config = Config::for_directory("/nowhere".into());
        config.threads = 3;
        assert_eq!(make(&config).len(), if ReadRing::new().is_ok() { 3 } else { 0 });
        config.nfs.listen = vec![([127, 0, 0, 1], 0).into()];
        assert_eq!(make(&config).len(), if ReadRing::new().is_ok() { 6 } else { 0 });
        config.read_rings = false;
        assert!(make(&config).is_empty());
    }
}
