//! Data servers: clients read and write an export's files there, bypassing the metadata server
//! (pNFS).
//!
//! Invariants
//! * To clients each is a server of its own: it shares no session, client or state with the other
//!   front ends, which authorise every use of a file.

use super::kerberos;
use super::nfs;
use super::rdma::RdmaListeners;
use super::{Random, StartError};
use crate::admin::{NodeReport, ScrubOrder, ScrubReport};
use crate::config::{Config, ExportConfig, ExportSource};
use crate::metrics::{Labels, Sample, Source, counter, gauge, samples};
use dafs_cluster::{ClusterSecret, NodeCounters};
use dafs_dat::Instant;
use dafs_dat::connections::Connections;
use dafs_engine::{Authenticator, Reactor, Registry, Shared, StartGate};
use dafs_nfs::{NfsHandler, NfsShared};
use dafs_rpc::server::{Group, Statistics};
use dafs_rpc::tls::ServerTls;
use dafs_service::{
    Admits, DataRole, Export, ExportOptions, ForeignStates, Namespace, NoRecords, Pool, Service,
    ServiceConfig, Squash, WriteVerifier,
};
use dafs_store::{DataFiles, DataStore, FileId};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

/// An open store whose files clients may access at data servers.
pub(super) trait DataServers: Send + Sync {
    /// Returns the front ends of its data servers, which ask `service` for authorisation. The
    /// second call returns none.
    fn take_parts(&self, service: &Arc<Service>) -> Vec<DataServerParts>;

    /// Sets the write verifier that changes when unstable data is lost.
    fn tell_of_lost_data(&self, _verifier: &Arc<WriteVerifier>) {}

    /// Sets the counters of a data server of this process.
    fn count_by(&self, _number: u32, _usage: NodeUsage) {}

    /// Does periodic work, for a bounded time.
    fn turn(&self, _service: &Service) {}

    /// Drains a node, or undoes that. The text of an error has the reason.
    fn set_leaving(&self, _number: u32, _leaves: bool) -> Result<(), String> {
        Err("files of this export cannot be moved".to_owned())
    }

    /// Lets an empty directory replace the lost one of a node. The text of an error has the reason.
    fn replace(&self, _number: u32) -> Result<(), String> {
        Err("files of this export have no copies that this server makes".to_owned())
    }

    /// Executes an order about the comparison of copies. The text of an error has the reason.
    fn scrub(&self, _order: &ScrubOrder) -> Result<ScrubReport, String> {
        Err("files of this export have no copies that this server makes".to_owned())
    }

    /// Makes all copies of a file like the one on a node. The text of an error has the reason.
    fn repair(&self, _file: &FileId, _node: u32) -> Result<(), String> {
        Err("files of this export have no copies that this server makes".to_owned())
    }

    /// Adapts to a change of the configuration. The text of an error says how to proceed.
    fn adapt(&self, _from: &ExportSource, _to: &ExportSource) -> Result<(), String> {
        Err("its data servers are opened when the server starts: restart it".to_owned())
    }

    /// Puts the secrets of the cluster in force that were read again. True if they have changed.
    fn follow_secret(&self, _read: &ClusterSecret, _service: &Service) -> bool {
        false
    }

    /// Returns the reports on its nodes for administrators.
    fn nodes(&self, _export: &str) -> Vec<NodeReport> {
        Vec::new()
    }
}

/// The parameters of a data server.
pub(super) struct DataServerParts {
    /// The name of its export, if that is known.
    pub(super) export: Option<String>,
    pub(super) listener: TcpListener,
    /// The sockets for RDMA.
    pub(super) rdma: RdmaListeners,
    /// The sockets for DAFS.
    pub(super) dafs: Option<RdmaListeners>,
    /// The number of its node.
    pub(super) number: u32,
    pub(super) files: Arc<dyn DataFiles>,
    /// The pool of its blocking calls, unless it is that of the server.
    pub(super) pool: Option<Arc<dyn Pool>>,
    pub(super) states: Arc<dyn ForeignStates>,
    pub(super) admits: Admits,
    /// Its identity for clients: the same in all runs, and unique.
    pub(super) identity: [u8; 16],
}

/// The counters of a data server.
#[derive(Clone)]
pub(super) struct DataCounters {
    export: Option<String>,
    number: u32,
    group: Arc<Group>,
    usage: NodeUsage,
}

/// The I/O counters of a data server, without its sockets.
#[derive(Clone)]
pub(super) struct NodeUsage {
    files: Arc<dyn DataFiles>,
    service: Arc<Service>,
}

impl NodeUsage {
    pub(super) fn now(&self) -> NodeCounters {
        let namespace = self.service.namespace();
        let indirect_bytes = self.files.indirect_bytes();
        let mut counters = NodeCounters { read_bytes: 0, written_bytes: 0, indirect_bytes };
        for counts in namespace.exports().map(|export| export.usage().now()) {
            counters.read_bytes += counts.read_bytes;
            counters.written_bytes += counts.written_bytes;
        }
        counters
    }
}

impl DataCounters {
    /// Returns the I/O counters only.
    pub(super) fn usage(&self) -> NodeUsage {
        self.usage.clone()
    }

    /// Lets in the clients that the present exports admit. The metadata server judges each use of a
    /// component by the same rules. A data server whose export is gone lets in none.
    pub(super) fn follow(&self, exports: &[ExportConfig]) {
        let own = exports.iter().find(|config| Some(&config.name) == self.export.as_ref());
        let nobody = || Admits { networks: Vec::new(), ..Admits::default() };
        let admits = own.map_or_else(nobody, |config| config.options.admits.clone());
        let service = &self.usage.service;
        let change = |export: &Arc<Export>| {
            let options = ExportOptions { admits: admits.clone(), ..export.options().clone() };
            export.with_options(options)
        };
        match Namespace::new(service.namespace().exports().map(change).collect()) {
            Ok(namespace) => service.replace_namespace(namespace),
            Err(error) => tracing::error!(%error, "a data server keeps its old rules"),
        }
    }

    fn labels(&self) -> Labels {
        let export = self.export.iter().map(|name| ("export", format!("/{name}")));
        export.chain([("node", self.number.to_string())]).collect()
    }
}

/// Returns the counters of each data server of a server, for Prometheus.
pub(super) fn by_node(data: &[DataCounters]) -> Vec<(Labels, NodeCounters)> {
    data.iter().map(|data| (data.labels(), data.usage.now())).collect()
}

/// The state of all data servers of this process.
pub(super) struct DataNow {
    servers: u64,
    rpc: Vec<Statistics>,
    indirect_bytes: u64,
}

impl DataNow {
    fn rpc(&self, of: fn(&Statistics) -> u64) -> u64 {
        self.rpc.iter().map(of).sum()
    }
}

pub(super) const DATA: &[Source<DataNow>] = &[
    gauge("dafs_data_servers", "Data servers in this process", |now: &DataNow| now.servers),
    gauge("dafs_data_connections", "NFS connections to data servers", |now: &DataNow| {
        now.rpc(|rpc| rpc.connections)
    }),
    counter(
        "dafs_data_received_bytes_total",
        "Bytes that data servers have received over NFS",
        |now: &DataNow| now.rpc(|rpc| rpc.received_bytes),
    ),
    counter(
        "dafs_data_sent_bytes_total",
        "Bytes that data servers have sent over NFS",
        |now: &DataNow| now.rpc(|rpc| rpc.sent_bytes),
    ),
    counter(
        "dafs_data_tls_connections_total",
        "Connections to data servers that began TLS",
        |now: &DataNow| now.rpc(|rpc| rpc.tls_connections),
    ),
    counter(
        "dafs_data_rdma_calls_total",
        "NFS calls to data servers over RDMA",
        |now: &DataNow| now.rpc(|rpc| rpc.rdma_calls),
    ),
    counter(
        "dafs_data_rdma_read_bytes_total",
        "Bytes that data servers have fetched by RDMA",
        |now: &DataNow| now.rpc(|rpc| rpc.rdma_read_bytes),
    ),
    counter(
        "dafs_data_rdma_written_bytes_total",
        "Bytes that data servers have placed by RDMA",
        |now: &DataNow| now.rpc(|rpc| rpc.rdma_written_bytes),
    ),
    counter(
        "dafs_data_indirect_bytes_total",
        "Bytes requested that another data server has",
        |now: &DataNow| now.indirect_bytes,
    ),
];

/// Returns the sums over all data servers of this process, if there are any.
pub(super) fn of_data_servers(data: &[DataCounters]) -> Vec<Sample> {
    if data.is_empty() {
        return Vec::new();
    }
    let now = DataNow {
        servers: data.len() as u64,
        rpc: data.iter().map(|data| data.group.statistics()).collect(),
        indirect_bytes: data.iter().map(|data| data.usage.files.indirect_bytes()).sum(),
    };
    samples(DATA, &now)
}

/// A data server with its threads. They end when this is dropped.
pub(super) struct DataServer {
    counters: DataCounters,
    threads: Vec<JoinHandle<()>>,
    /// At most one.
    reactors: Vec<Reactor>,
    /// Shut at the latest when this is dropped.
    gate: StartGate,
}

impl DataServer {
    /// Starts a data server, which serves when `gate` opens. It also changes `write_verifier` when it finds that
    /// data is lost.
    pub(super) fn start(
        config: &Config,
        front: (&Arc<Connections>, Option<&Arc<ServerTls>>),
        pool: Arc<dyn Pool>,
        (write_verifier, gate): (Arc<WriteVerifier>, StartGate),
        parts: DataServerParts,
    ) -> Result<Self, StartError> {
        let (connections, tls) = front;
        let DataServerParts { export, listener, rdma, dafs, number, files, .. } = parts;
        let DataServerParts { pool: own, states, admits, identity, .. } = parts;
        let pool = own.unwrap_or(pool);
        let options = ExportOptions { admits, squash: Squash::None, ..ExportOptions::default() };
        let store = Arc::new(DataStore::new(files.clone()));
        let namespace = Namespace::new(vec![Export::new("", store, options)])?;
        let random = Random::draw()?;
        let service = ServiceConfig {
            secret: random.client_key,
            ..ServiceConfig::new(config.lease_time, random.instance)
        };
        let now_ns = Instant::now().0;
        let service = Service::with_records(service, namespace, Box::new(NoRecords), now_ns)?;
        let service = Arc::new(service);
        let (verifier, role) = (write_verifier.clone(), DataRole { files: files.clone(), states });
        let nfs = NfsShared::new_data_server(
            service.clone(),
            pool.clone(),
            write_verifier,
            nfs::admission(),
            nfs::options(&identity, random.secret),
            role.clone(),
        );
        if let Some(kerberos) = &config.kerberos {
            nfs.accept_gss(kerberos::open(kerberos, None, pool.clone())?);
        }
        let (reactors, rpc) = (if rdma.is_empty() { 1 } else { 2 }, nfs::rpc_config(config));
        let (shares, tcp) = (connections.clone(), vec![listener]);
        let group = Arc::new(Group::with_tls(tls.cloned(), shares, tcp, reactors, rpc)?);
        let usage = NodeUsage { files, service };
        let counters = DataCounters { export, number, group, usage };
        let mut server = Self { counters, threads: Vec::new(), reactors: Vec::new(), gate };
        let shared = nfs.clone();
        let reactor = server.counters.group.reactor(|_| NfsHandler::new(shared))?;
        let name = format!("dafs-data-{number}");
        server.threads.push(server.gate.spawn(name, || reactor.run())?);
        if !rdma.is_empty() {
            let adapters = rdma.adapters(config, front, 0, 1)?;
            let reactor = server.counters.group.rdma_reactor(adapters, |_| NfsHandler::new(nfs))?;
            let name = format!("dafs-drdma-{number}");
            server.threads.push(server.gate.spawn(name, || reactor.run())?);
        }
        if let Some(dafs) = dafs {
            let shared = Shared {
                service: server.service(),
                authenticator: Arc::new(Authenticator::new(&config.auth)?),
                registry: Arc::new(Registry::counting_in(random.registry_key, connections.clone())),
                pool: pool.clone(),
                limits: config.limits,
                write_verifier: verifier,
                clock: Instant::now,
                proofs: pool,
                exposed: None,
                data: Some(role),
            };
            let (name, shared) = (format!("dafs-ddafs-{number}"), Arc::new(shared));
            let (adapters, wake) = (dafs.adapters(config, front, 0, 1)?, config.wake);
            let reactor = Reactor::start(name, shared, adapters, wake, None, &server.gate)?;
            server.reactors.push(reactor);
        }
        Ok(server)
    }

    /// Returns the counters, for an owner that outlives this.
    pub(super) fn counters(&self) -> DataCounters {
        self.counters.clone()
    }
}

impl DataServer {
    /// Returns the service that counts its requests.
    pub(super) fn service(&self) -> Arc<Service> {
        self.counters.usage.service.clone()
    }

    /// Begins to end its connections. A drop waits for the threads.
    pub(super) fn begin_stop(&self) {
        self.gate.shut();
        self.counters.group.stop();
        self.reactors.iter().for_each(Reactor::begin_stop);
    }
}

impl Drop for DataServer {
    fn drop(&mut self) {
        self.begin_stop();
        Reactor::stop(&mut self.reactors);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a reactor of a data server has failed");
            }
        }
    }
}
