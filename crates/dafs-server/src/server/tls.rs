//! TLS for the NFS front ends: certificates that follow their files, and handshakes on the pool.
//!
//! Invariants
//! * Handshakes run in a lane of the pool of their own, with a share of it for each host.
//! * A file that cannot be used never replaces one that works, and the log says why, once.

use super::StartError;
use crate::limits::TLS_LOOK_INTERVAL;
use dafs_rpc::server::Statistics;
use dafs_rpc::tls::{Job, ServerTls};
use dafs_service::{Owner, Place, Pool};
use dafs_store::vital;
use dafs_tls::{Reload, ReloadingServer, ServerFiles};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// The lane of the pool for the arithmetic of handshakes. The next one is that of Kerberos.
const LANE: u64 = u64::MAX - 1;

/// Days before the end of the certificate from which on the log warns.
const WARNING_DAYS: i64 = 30;

/// TLS of a server, and the thread that looks at its files.
pub(super) struct Tls {
    shared: Arc<ServerTls>,
    /// The thread ends when this is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tls {
    /// Reads the files, and follows them from now on.
    ///
    /// # Errors
    /// The file, with the remedy.
    pub(super) fn start(files: &ServerFiles, pool: Arc<dyn Pool>) -> Result<Self, StartError> {
        let files = Arc::new(ReloadingServer::open(files.clone(), now_seconds())?);
        let run = move |origin, job: Job| {
            let owner = Owner { origin: super::kerberos::turns(origin), number: 0 };
            pool.submit_to(Place { lane: LANE, owner }, job);
        };
        let shared = ServerTls::new(files.clone(), Box::new(run));
        if let Err(reason) = shared.kernel() {
            tracing::info!(%reason, "this process protects the records of TLS");
        }
        warn_of_end(&files);
        let (stop, stopped) = channel();
        let thread = vital::spawn("dafs-tls-files".to_owned(), move || {
            while stopped.recv_timeout(TLS_LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                look(&files);
            }
        })?;
        Ok(Self { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// TLS for a group of reactors.
    pub(super) fn shared(&self) -> Arc<ServerTls> {
        self.shared.clone()
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.stop = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that follows the files of TLS had failed");
        }
    }
}

/// Returns the counts of connections with TLS, for Prometheus.
pub(super) fn gauges(rpc: &Statistics) -> [(&'static str, &'static str, u64); 4] {
    [
        ("nfs_tls_connections", "NFS connections that began TLS", rpc.tls_connections),
        ("nfs_tls_kernel", "Those whose records the kernel protects", rpc.tls_kernel),
        ("nfs_tls_mutual", "Those with a verified client", rpc.tls_mutual),
        ("nfs_tls_failed", "Connections that TLS ended for an error", rpc.tls_failed),
    ]
}

/// Takes changed files.
fn look(files: &ReloadingServer) {
    match files.follow(now_seconds()) {
        Ok(Reload::Unchanged) => {}
        Ok(Reload::Changed { generation }) => {
            let subject = files.current().identity().certificate().subject().to_owned();
            tracing::info!(generation, subject, "changed files of TLS are in use");
            warn_of_end(files);
        }
        Err(error) => {
            tracing::error!(%error, "changed files of TLS are not used, and the old ones stay");
        }
    }
}

fn warn_of_end(files: &ReloadingServer) {
    let days = files.current().identity().days_left(now_seconds());
    if days < WARNING_DAYS {
        tracing::warn!(days, "the certificate of this server ends soon, or has ended: renew it");
    }
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}
