//! The NFS server on the simulated network. The world decides when the jobs of its pool run.

use crate::server::{QueuePool, nfs_options};
use dafs_dat::sim::SimNetwork;
use dafs_dat::{Adapter, Address, Instant};
use dafs_nfs::{Admission, NfsHandler, NfsShared};
use dafs_rpc::server::{Config, Group, RdmaReactor};
use dafs_service::{
    Admits, Export, ExportOptions, Namespace, Service, ServiceConfig, Squash, WriteVerifier,
};
use dafs_store::{MemoryOptions, MemoryStore};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SERVER_HOST: u32 = 1;
/// Longer than any world lasts.
const LEASE: Duration = Duration::from_secs(10_000);

pub(crate) struct Server {
    group: Group,
    reactor: RdmaReactor<NfsHandler>,
    pool: Arc<QueuePool>,
}

impl Server {
    pub(crate) fn new(network: &SimNetwork, config: Config) -> Self {
        let options = MemoryOptions { bytes_max: 8 << 20, files_max: 1000, ..Default::default() };
        let store = Arc::new(MemoryStore::new(options));
        // The network of simulated hosts.
        let networks = vec!["10.0.0.0/8".parse().unwrap()];
        let admits = Admits { networks, ..Admits::default() };
        let options = ExportOptions { squash: Squash::None, admits, ..ExportOptions::default() };
        let namespace = Namespace::new(vec![Export::new("", store, options)]).unwrap();
        let service = Service::new(ServiceConfig::new(LEASE, 1), namespace);
        let pool = Arc::new(QueuePool::default());
        let options = nfs_options(7);
        let admission = Admission { own_uid: 0 };
        let verifier = Arc::new(WriteVerifier::new(1));
        let shared = NfsShared::new(Arc::new(service), pool.clone(), verifier, admission, options);
        let group = Group::new(Vec::new(), 1, config).unwrap();
        let mut adapter = network.adapter(SERVER_HOST);
        adapter.listen(&Address::Sim(SERVER_HOST)).unwrap();
        let handler = NfsHandler::new(shared);
        let reactor = group.rdma_reactor(vec![Box::new(adapter)], |_| handler).unwrap();
        Self { group, reactor, pool }
    }

    /// Handles pending work.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        self.reactor.turn(now.0)
    }

    /// Returns the number of waiting jobs.
    pub(crate) fn jobs(&self) -> usize {
        self.pool.waiting()
    }

    pub(crate) fn run_job(&mut self, at: usize) {
        self.pool.run(at);
    }

    pub(crate) fn connections(&self) -> u64 {
        self.group.statistics().connections
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.pool.clear();
    }
}
