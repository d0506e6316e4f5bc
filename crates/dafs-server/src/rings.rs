//! The rings by which DAFS reactors leave reads from disks to the kernel (io_uring), where it offers
//! them.
//!
//! Invariants
//! * They are made before the sandbox, which lets no process make one.
//! * Each reactor has one, or none has. The log says which, and why.

use crate::config::Config;
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

/// Returns the rings of a server that starts, one for each reactor, or none.
pub(crate) fn take(config: &Config) -> Vec<ReadRing> {
    let prepared = PREPARED.lock().take();
    prepared.unwrap_or_else(|| match in_force() {
        Some(report) if report.calls.is_in_force() => Vec::new(),
        _ => make(config),
    })
}

fn make(config: &Config) -> Vec<ReadRing> {
    if !config.read_rings {
        return Vec::new();
    }
    let rings = (0..config.threads.max(1)).map(|_| ReadRing::new());
    match rings.collect::<Result<Vec<_>, _>>() {
        Ok(rings) => {
            tracing::info!(reactors = rings.len(), "DAFS reads from disks by io_uring");
            rings
        }
        Err(error) => {
            tracing::info!(
                %error,
                "DAFS reads from disks by a pool of threads, because io_uring is not to be had: it \
                 needs Linux 6.1, kernel.io_uring_disabled = 0, and a container that allows it"
            );
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reactor_has_a_ring_or_none_has() {
        let mut config = Config::for_directory("/nowhere".into());
        config.threads = 3;
        assert_eq!(make(&config).len(), if ReadRing::new().is_ok() { 3 } else { 0 });
        config.read_rings = false;
        assert!(make(&config).is_empty());
    }
}
