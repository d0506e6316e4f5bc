//! What files mean, once, for every protocol: exports, handles, clients and their leases, opens
//! with share reservations, and every operation on them.
//!
//! Nothing here knows a wire format or a socket. Time is passed in as nanoseconds since an
//! arbitrary start.
//!
//! Invariants
//! * One state: a share reservation or an open taken through one front door holds at all others,
//!   because there is one [`Service`] and it is the only way to a store.
//! * An operation names its export through the handle; the caller's credential is mapped by that
//!   export's rules (root squash) before the store sees it.
//! * A removed file stays usable through the opens that hold it, and only through them.
//! * Everything a client holds is found from its record, and goes when its lease ends or when it
//!   comes back as a new instance.
//! * Tables are bounded by [`limits`].

pub mod limits;

mod client;
mod error;
mod export;
mod files;
mod handle;
mod metrics;
mod names;
mod network;
mod open;
mod pseudo;
mod write_verifier;

pub use client::{Client, ClientKey, Identity, Registered};
pub use error::ServiceError;
pub use export::{Export, ExportOptions, Namespace, NamespaceError, Squash};
pub use files::{FsLimits, Resolved, Unresolved};
pub use handle::Handle;
pub use metrics::{
    BUCKETS, Done, Door, Histogram, Metrics, OPERATIONS_MAX, OperationMetrics, Usage,
};
pub use names::{EntrySink, RemoveKind};
pub use network::{AddressRange, Admits, Flavour};
pub use open::{OpenHow, OpenRequest, OpenState, Opened, RemoveMode, Share, StateId};
pub use write_verifier::WriteVerifier;

use client::ClientTable;
use dafs_store::Cred;
use open::OpenTable;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Shorthand for service results.
pub type Result<T> = std::result::Result<T, ServiceError>;

/// Times and sizes of one service.
#[derive(Debug, Clone, Copy)]
pub struct ServiceConfig {
    /// How long a silent client keeps its state.
    pub lease_time: Duration,
    /// Differs between two runs of the server, so that ids of the last run are told apart.
    pub instance: u32,
}

/// Who asks, at what time.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The client whose lease and opens are concerned.
    pub client: &'a Arc<Client>,
    /// The credential the request runs under, before squashing.
    pub cred: &'a Cred,
}

/// The one shared state of a server.
pub struct Service {
    config: ServiceConfig,
    namespace: Namespace,
    clients: Mutex<ClientTable>,
    opens: Mutex<OpenTable>,
    /// Held while a name is removed or replaced. Opens and I/O do not wait for it.
    names: Mutex<()>,
    metrics: Metrics,
    /// When the stores were last told to let go of what they do not need.
    swept_ns: AtomicU64,
}

/// What the service holds, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceCounts {
    /// Known clients.
    pub clients: usize,
    /// Opens of all clients.
    pub opens: usize,
    /// Files that are open.
    pub open_files: usize,
}

impl Service {
    /// A service over `namespace`.
    pub fn new(config: ServiceConfig, namespace: Namespace) -> Self {
        Self {
            config,
            namespace,
            clients: Mutex::new(ClientTable::new(config.instance)),
            opens: Mutex::new(OpenTable::new(config.instance)),
            names: Mutex::new(()),
            metrics: Metrics::default(),
            swept_ns: AtomicU64::new(0),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &ServiceConfig {
        &self.config
    }

    /// The counters of all operations.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The exports.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// What is held now.
    pub fn counts(&self) -> ServiceCounts {
        let clients = self.lock_clients().len();
        let opens = self.lock_opens();
        ServiceCounts { clients, opens: opens.len(), open_files: opens.file_count() }
    }

    /// Lets the stores let go of what they do not need any more, if that is due.
    pub fn sweep(&self, now_ns: u64) {
        let swept_ns = self.swept_ns.load(Ordering::Relaxed);
        let due = now_ns.saturating_sub(swept_ns) >= limits::SWEEP_EVERY_NS;
        let claim = |now_ns| {
            let order = Ordering::Relaxed;
            self.swept_ns.compare_exchange(swept_ns, now_ns, order, order).is_ok()
        };
        if due && claim(now_ns) {
            self.namespace.exports().for_each(|export| export.store().sweep());
        }
    }

    fn lock_clients(&self) -> MutexGuard<'_, ClientTable> {
        // A panic while the lock was held left the table as the last complete statement made it;
        // refusing all service for that would be worse than going on.
        self.clients.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn lock_names(&self) -> MutexGuard<'_, ()> {
        self.names.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn lock_opens(&self) -> MutexGuard<'_, OpenTable> {
        self.opens.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
