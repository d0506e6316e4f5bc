//! A running server: listeners, reactors, exports.

mod adapters;
mod administration;
mod cephfs;
mod check;
mod data;
mod data_process;
mod descriptors;
mod device_mark;
mod ending;
mod engine_servers;
mod fences;
mod gauges;
mod gluster;
mod inventory;
mod journal;
mod kerberos;
mod layout;
mod listen;
mod local_metadata;
mod locks;
mod membership;
mod nfs;
mod nfs_peers;
mod node_drain;
mod node_probes;
mod random;
mod rdma;
mod reload;
mod rpcbind;
mod sessions;
mod sockets;
mod start_error;
mod state;
mod status;
mod stores;
mod striped;
mod tls;
mod users;

pub use administration::ReadConfig;
pub use check::check as check_config;
pub use data_process::{DataProcess, DataServerConfig};
#[cfg(test)]
pub(crate) use gauges::metric_sources;
pub use inventory::{StateError, accept_loss};
pub(crate) use sockets::Socket;
pub use sockets::Sockets;
pub use start_error::StartError;
pub use state::default_state_directory;
pub(crate) use state::of_config as open_state_directory;

use crate::admin::AdminSocket;
use crate::config::{Config, NFS_PORT};
use crate::hand_over::{Giving, Released, Successor};
use crate::http::AdminPort;
use crate::limits::{DEVICE_TRUST_TIME, PROOF_THREADS_MAX};
use crate::metrics::{MetricsPort, MetricsTls, ServerCollector, samples};
use crate::request_log::RequestLog;
use crate::rings;
use administration::{Administration, open_exports};
use dafs_dat::connections::Connections;
use dafs_engine::{
    AuthConfig, Authenticator, Clock, EngineCounts, ExposedMemory, Reactor, Registry, Shared,
    StartGate, ThreadPool,
};
use dafs_journal::Workers;
use dafs_mem::Mutex;
use dafs_service::{
    AddressRange, ClientRecords, Export, FileFences, FileRecords, FrontEnd, Namespace, NoRecords,
    Pool, Service, ServiceConfig, ServiceCounts, WriteVerifier,
};
use data::{DataServer, DataServers};
use device_mark::DeviceMark;
use inventory::{CLIENT_RECORDS, FENCES, Inventory};
use listen::Listener;
use nfs::{Identity, NfsServer};
use random::Random;
use rdma::RdmaListeners;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;
use tls::Tls;

/// Connections that wait for a reactor.
const BACKLOG: i32 = 1024;

/// The directory of undo logs of locks, in the state directory. Its list is beside it.
const UNDO: &str = "undo";

/// A server with its threads. They end when this is dropped.
pub struct Server {
    addresses: Vec<SocketAddr>,
    verbs_addresses: Vec<SocketAddr>,
    service: Arc<Service>,
    registry: Arc<Registry>,
    authenticator: Arc<Authenticator>,
    reactors: Vec<Reactor>,
    nfs: Option<NfsServer>,
    data: Vec<DataServer>,
    /// TLS of both.
    tls: Option<Tls>,
    metrics: Option<MetricsPort>,
    admin: Option<AdminSocket>,
    admin_port: Option<AdminPort>,
    administration: Option<Arc<Administration>>,
    /// The log of requests, if there is one.
    request_log: Option<RequestLog>,
    /// The connections of all front ends.
    connections: Arc<Connections>,
    clocks: Vec<Clock>,
    /// Pools for blocking calls.
    pools: Vec<Arc<ThreadPool>>,
    /// The pool for checks of passwords.
    proofs: Option<Arc<ThreadPool>>,
    /// Open when the start cannot fail any more. Until then clients wait in the queues of the sockets.
    gate: StartGate,
    /// The threads of the journal, if there is one.
    journal: Option<Workers>,
    /// Locks the state directory for this server.
    inventory: Option<Inventory>,
    /// The memory in which it shows files to clients of this host, if an export does so.
    exposed: Option<Arc<ExposedMemory>>,
    /// Set while devices may show files.
    device_mark: Option<DeviceMark>,
    /// Its listening sockets, for the next server.
    sockets: Arc<Sockets>,
    /// Passes them to a process that takes over.
    giving: Option<Arc<Giving>>,
    write_verifier: Arc<WriteVerifier>,
}

impl Server {
    /// Opens the exports of a configuration and serves them.
    ///
    /// # Errors
    /// The problem, and its solution.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_on(config, Sockets::inherited(), Released::default())
    }

    /// Does the same on sockets that listen already, where the configuration names their addresses, and
    /// with what holds after a former server.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start_on(
        config: &Config,
        sockets: Sockets,
        former: Released,
    ) -> Result<Self, StartError> {
        config.check_exposure()?;
        config.check_named_files()?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        descriptors::raise_limit();
        let directory = state::of_config(config)?;
        let mut inventory = Inventory::open(&directory)?;
        if DeviceMark::wait_for_former(&directory, DEVICE_TRUST_TIME)? {
            tracing::info!("the last server was killed while RDMA devices showed its files");
        }
        let secret = state::handle_secret(&directory, &mut inventory)?;
        let (exports, stores) = open_exports(&config.exports, secret, &directory, &[])?;
        let records = inventory.records(CLIENT_RECORDS, FileRecords::open)?;
        inventory.note(CLIENT_RECORDS, records.id());
        let random = Random::draw_after(&former)?;
        let service = new_service(config, exports, Box::new(records), &random)?;
        service.clients.expect_states(former.states);
        let fences = inventory.records(FENCES, FileFences::open)?;
        inventory.note(FENCES, fences.id());
        service.fences.load(Box::new(fences)).map_err(StartError::Fences)?;
        inventory.check_undo_list()?;
        service.locks.keep_undo_in(&directory.join(UNDO))?;
        inventory.note_undo_list()?;
        let service = Arc::new(service);
        // Before any client can change objects of the last run's journal.
        let journal =
            journal::is_wanted(&config.exports) || journal::is_left(&directory, &inventory);
        let journal =
            journal.then(|| journal::start(&directory, &mut inventory, &service)).transpose()?;
        // Before any client relies on their content.
        inventory.save()?;
        let identity = Identity { server: state::server_identity(&secret), secret: random.secret };
        let data_servers: Vec<_> =
            stores.iter().filter_map(administration::Known::data_servers).collect();
        let auth = kerberos::with_dafs(config, &directory)?;
        let shows = !config.verbs_listen.is_empty() && shows_files(&service);
        let device_mark = shows.then(|| DeviceMark::set(&directory)).transpose()?;
        let (parts, random) = ((&*data_servers, auth, sockets), &random);
        let mut server = Self::serve(config, service.clone(), random, &identity, parts)?;
        server.device_mark = device_mark;
        let administration = Administration::start(administration::Parts {
            service,
            registry: server.registry.clone(),
            authenticator: server.authenticator.clone(),
            secret,
            state: directory.clone(),
            stores: Arc::new(Mutex::new(stores)),
            data: server.data.iter().map(DataServer::counters).collect(),
            certificates: server.tls.as_ref().and_then(Tls::users),
            nfs: server.nfs.as_ref().map(|nfs| nfs.shared.clone()),
            connections: server.connections.clone(),
            addresses: server.addresses.clone(),
            shows_files: server.exposed.is_some(),
            reopen_log: server.request_log.as_ref().map(RequestLog::reopen),
            in_force: Mutex::new(config.document.clone()),
        })?;
        server.admit_administrators(config, &directory, administration)?;
        server.journal = journal;
        server.inventory = Some(inventory);
        server.admit_clients(config);
        Ok(server)
    }

    /// Serves open exports. It ignores the exports of the configuration, keeps no state for the
    /// next run, has no interface for administrators, and takes no Kerberos from DAFS clients.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start_with(config: &Config, exports: Vec<Export>) -> Result<Self, StartError> {
        let random = Random::draw()?;
        let service = new_service(config, exports, Box::new(NoRecords), &random)?;
        let identity = Identity { server: random.secret, secret: random.secret };
        let parts = (&[][..], config.auth.clone(), Sockets::inherited());
        let mut server = Self::serve(config, Arc::new(service), &random, &identity, parts)?;
        server.admit_clients(config);
        Ok(server)
    }

    /// Begins to serve clients.
    fn admit_clients(&mut self, config: &Config) {
        self.gate.open();
        if let Some(nfs) = self.nfs.as_mut().filter(|_| config.nfs.rpcbind) {
            nfs.register();
        }
    }

    /// Starts all parts but the administration. Clients wait until `admit_clients`.
    fn serve(
        config: &Config,
        service: Arc<Service>,
        random: &Random,
        identity: &Identity,
        (data_servers, auth, mut sockets): (&[Arc<dyn DataServers>], AuthConfig, Sockets),
    ) -> Result<Self, StartError> {
        let request_log = RequestLog::start(config)?;
        if let Some(log) = &request_log {
            service.metrics().log_to(log.sink());
        }
        let listeners = config.listen.iter().map(|&address| Listener::bind(address, &mut sockets));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let listeners = RdmaListeners::of_dafs(listeners, config.verbs_listen.clone());
        let connections = descriptors::connections(&config.limits);
        let users = tls::identities(config);
        let auth = AuthConfig { certificates: users.clone(), ..auth };
        let pool = Arc::new(ThreadPool::new());
        let proofs = Arc::new(ThreadPool::with_threads(PROOF_THREADS_MAX));
        let exposed = exposed_memory(config, &service)?;
        let authenticator = Arc::new(Authenticator::new(&auth)?);
        let shared = Arc::new(Shared {
            service: service.clone(),
            authenticator: authenticator.clone(),
            registry: Arc::new(Registry::counting_in(random.registry_key, connections.clone())),
            pool: pool.clone(),
            limits: config.limits,
            write_verifier: Arc::new(WriteVerifier::new(random.write_verifier)),
            clock: dafs_dat::Instant::now,
            proofs: proofs.clone(),
            exposed: exposed.clone(),
            data: None,
        });
        service.durable.tell_of_lost_data(shared.write_verifier.clone());
        let pools = vec![pool.clone()];
        service.locks.undo_elsewhere(Arc::new(move |job| pool.submit(job)));
        let mut server = Self {
            addresses: listeners.soft(),
            verbs_addresses: listeners.verbs().to_vec(),
            service,
            registry: shared.registry.clone(),
            authenticator,
            reactors: Vec::new(),
            nfs: None,
            data: Vec::new(),
            tls: None,
            metrics: None,
            admin: None,
            admin_port: None,
            administration: None,
            request_log,
            connections: connections.clone(),
            clocks: Vec::new(),
            pools,
            proofs: Some(proofs),
            gate: StartGate::default(),
            journal: None,
            inventory: None,
            exposed,
            device_mark: None,
            sockets: Arc::default(),
            giving: None,
            write_verifier: shared.write_verifier.clone(),
        };
        server.clocks.push(Clock::start(server.service.clone())?);
        server.clocks.push(Clock::start_fencing(server.service.clone())?);
        server.clocks.push(Clock::start_sweeping(server.service.clone())?);
        if config.has_passwords_for_this_host_only() {
            tracing::warn!(
                "passwords are accepted from this host alone, because others would send them in \
                 clear text; write [tls] with certificate and key, or \
                 danger_allow_dafs_passwords_in_clear"
            );
        }
        if let Some(files) = &config.tls {
            server.tls = Some(Tls::start(files, users.clone(), shared.pool.clone())?);
        }
        let tls = server.tls.as_ref().map(Tls::shared);
        let (threads, mut rings) = (config.threads.max(1), rings::take(config));
        for index in 0..threads {
            let name = format!("dafs-reactor-{index}");
            let front = (&connections, tls.as_ref());
            let adapters = listeners.adapters(config, front, index, threads)?;
            let ring = rings.pop();
            let (shared, wake, gate) = (shared.clone(), config.wake, &server.gate);
            let reactor = Reactor::start(name, shared, adapters, wake, ring, gate)?;
            server.reactors.push(reactor);
        }
        for store in data_servers {
            let verifier = &shared.write_verifier;
            store.tell_of_lost_data(verifier);
            for parts in store.take_parts(&shared.service) {
                let (pool, number) = (Arc::new(ThreadPool::new()), parts.number);
                server.pools.push(pool.clone());
                let front = (&connections, tls.as_ref());
                let own = (verifier.clone(), server.gate.clone());
                let data = DataServer::start(config, front, pool, own, parts)?;
                store.count_by(number, data.counters().usage());
                if let Some(log) = &server.request_log {
                    data.service().metrics().log_to(log.sink());
                }
                server.data.push(data);
            }
        }
        let (front, shared) = ((&connections, tls), (&shared, users));
        let own = (identity, &server.gate);
        server.nfs = NfsServer::start(config, front, shared, &mut sockets, own, rings)?;
        sockets.close_others();
        server.sockets = Arc::new(sockets);
        if let Some(address) = config.metrics_listen {
            let (listener, collector) = (MetricsPort::listen(address)?, server.collector());
            let tls = MetricsTls::demanded(config, server.tls.as_ref().map(Tls::shared))?;
            server.metrics = Some(MetricsPort::start(listener, collector, tls)?);
        }
        Ok(server)
    }

    /// Sets the function that reloads the configuration, for [`reload`](Self::reload) and for
    /// administrators.
    pub fn set_read_config(&self, read: ReadConfig) {
        if let Some(administration) = &self.administration {
            let _ = administration.read_config.set(read);
        }
    }

    /// Reloads the configuration and serves its present exports. Returns a line for each changed key, and one
    /// for the exports.
    ///
    /// # Errors
    /// A text that says how to correct the configuration. Then no export has changed.
    pub fn reload(&self) -> Result<String, String> {
        let administration = self.administration.as_ref();
        let administration =
            administration.ok_or("this server was started without a configuration")?;
        Ok(administration.reload()?.to_string())
    }

    /// Sets the function that ends the server for a process that takes over. Until then it refuses
    /// such processes.
    pub fn set_give_way(&self, give_way: impl Fn(Successor) + Send + Sync + 'static) {
        if let Some(giving) = &self.giving {
            giving.begin(Box::new(give_way));
        }
    }

    /// Returns its listening sockets, to start again on them if a process that takes over fails.
    pub fn sockets(&self) -> Arc<Sockets> {
        self.sockets.clone()
    }

    /// Returns the addresses for DAFS, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the addresses for DAFS by RDMA devices of this host.
    pub fn verbs_addresses(&self) -> &[SocketAddr] {
        &self.verbs_addresses
    }

    /// Returns the addresses for NFS clients.
    pub fn nfs_addresses(&self) -> &[SocketAddr] {
        self.nfs.as_ref().map_or(&[], |nfs| &nfs.addresses)
    }

    /// Returns the addresses for NFS clients over RDMA in software: iWARP over TCP.
    pub fn nfs_rdma_addresses(&self) -> &[SocketAddr] {
        self.nfs.as_ref().map_or(&[], |nfs| &nfs.rdma_addresses)
    }

    /// Returns the addresses for NFS clients over RDMA by devices of this host.
    pub fn nfs_verbs_addresses(&self) -> &[SocketAddr] {
        self.nfs.as_ref().map_or(&[], |nfs| &nfs.verbs_addresses)
    }

    /// Returns the lines with which NFS clients mount each export, with `host` as the name of this
    /// server: over TCP, and over RDMA. A comment marks exports that other hosts may not mount.
    pub fn mount_lines(&self, host: &str) -> Vec<String> {
        let mut options = Vec::new();
        if let Some(address) = self.nfs_addresses().first() {
            let port = address.port();
            let option = if port == NFS_PORT { String::new() } else { format!(",port={port}") };
            options.push(option);
        }
        let rdma = [self.nfs_rdma_addresses(), self.nfs_verbs_addresses()].concat();
        if let Some(address) = rdma.first() {
            options.push(format!(",proto=rdma,port={}", address.port()));
        }
        let mut addresses = self.nfs_addresses().iter().chain(&rdma);
        let is_reachable = addresses.any(|address| !address.ip().is_loopback());
        let loopback = AddressRange::loopback();
        let exports = |export: &Arc<Export>| {
            let networks = &export.options().admits.networks;
            let is_closed = is_reachable && networks.iter().all(|range| loopback.contains(range));
            (export.name().to_owned(), if is_closed { "  # from this host alone" } else { "" })
        };
        let namespace = self.service.namespace();
        let mut exports: Vec<_> = namespace.exports().map(exports).collect();
        exports.sort();
        let line = |option: &String, (name, remark): &(String, &str)| {
            format!("mount -t nfs -o vers=4.2{option} {host}:/{name} /mnt{remark}")
        };
        options.iter().flat_map(|option| exports.iter().map(move |e| line(option, e))).collect()
    }

    /// Returns the URL of the first address.
    pub fn url(&self) -> String {
        match self.addresses.first() {
            Some(address) if address.ip().is_unspecified() => {
                let name = rustix::system::uname();
                format!("dafs://{}:{}/", name.nodename().to_string_lossy(), address.port())
            }
            Some(address) if address.ip().is_ipv4() => format!("dafs://{address}/"),
            Some(address) => {
                // A zone is escaped in a URL.
                let text = address.to_string();
                let host = text.strip_prefix('[').and_then(|text| text.split_once(']'));
                let host = host.map_or(text.as_str(), |(host, _)| host);
                format!("dafs://{}:{}/", dafs_wire::host::in_url(host), address.port())
            }
            None => String::new(),
        }
    }

    /// Returns the latest counts of the reactors.
    pub fn counts(&self) -> EngineCounts {
        self.reactors.iter().map(|reactor| reactor.gauge().counts()).sum()
    }

    /// Returns the address for Prometheus.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|port| port.address)
    }

    /// Returns the URL for Prometheus.
    pub fn metrics_url(&self) -> Option<String> {
        self.metrics.as_ref().map(MetricsPort::url)
    }

    /// Returns the URL for administrators of other machines.
    pub fn admin_url(&self) -> Option<String> {
        self.admin_port.as_ref().map(AdminPort::url)
    }

    fn collector(&self) -> ServerCollector {
        let reactors: Vec<_> = self.reactors.iter().map(Reactor::gauge).collect();
        let service = self.service.clone();
        let connections = self.connections.clone();
        let nfs = self.nfs.as_ref().map(|nfs| (nfs.group(), nfs.shared.clone()));
        let data: Vec<_> = self.data.iter().map(DataServer::counters).collect();
        let by_node = data.clone();
        let nodes = Box::new(move || data::by_node(&by_node));
        let exposed = self.exposed.clone();
        let read = move || {
            let mut all = gauges::of_server(&service, connections.counts());
            all.extend(gauges::of_engines(&reactors));
            if let Some(memory) = &exposed {
                all.extend(gauges::of_exposed(service.exposure_counts(), memory));
            }
            if let Some(journal) = service.durable.journal_statistics() {
                all.extend(samples(gauges::JOURNAL, &journal));
            }
            all.extend(data::of_data_servers(&data));
            all.extend(crate::sandbox::in_numbers());
            if let Some((group, shared)) = &nfs {
                let rpc = group.statistics();
                all.extend(samples(gauges::NFS, &rpc));
                all.extend(samples(gauges::NFS_SESSIONS, &shared.counts()));
                all.extend(kerberos::of_contexts(shared));
                all.extend(samples(tls::TLS, &rpc));
            }
            all
        };
        let (service, started) = (self.service.clone(), SystemTime::now());
        ServerCollector { service, name: operation_name, samples: Box::new(read), nodes, started }
    }

    /// Returns the counts of the service.
    pub fn service_counts(&self) -> ServiceCounts {
        self.service.counts()
    }
}

/// Returns the name of an operation by its number in the protocol.
fn operation_name(front_end: FrontEnd, number: u32) -> Option<&'static str> {
    match front_end {
        FrontEnd::Dafs => dafs_wire::dafs::Procedure::from_u32(number).map(|p| p.name()),
        FrontEnd::Nfs4 => dafs_wire::nfs4::OpNum::from_u32(number).map(|op| op.name()),
        FrontEnd::Nfs3 => dafs_wire::nfs3::Procedure::from_number(number).map(|p| p.name()),
        FrontEnd::NfsAcl => dafs_wire::nfs_acl3::Procedure::from_number(number).map(|p| p.name()),
        FrontEnd::Nlm => dafs_wire::nlm4::Procedure::from_number(number).map(|p| p.name()),
        FrontEnd::Mount => None,
    }
}

/// True if an export shows files to clients.
fn shows_files(service: &Service) -> bool {
    service.namespace().exports().any(|export| export.options().optimistic.is_on())
}

/// Makes the memory for optimistic reads, if an export wants it.
fn exposed_memory(
    config: &Config,
    service: &Service,
) -> Result<Option<Arc<ExposedMemory>>, StartError> {
    if !shows_files(service) {
        return Ok(None);
    }
    let memory = Arc::new(ExposedMemory::start(config.optimistic_memory_bytes)?);
    service.start_exposure(memory.clone());
    Ok(Some(memory))
}

fn new_service(
    config: &Config,
    exports: Vec<Export>,
    records: Box<dyn ClientRecords>,
    random: &Random,
) -> Result<Service, StartError> {
    let namespace = Namespace::new(exports)?;
    let service_config = ServiceConfig {
        grace_time: config.nfs.grace_time.unwrap_or(config.lease_time),
        delegations: !config.nfs.no_delegations,
        files_max: descriptors::files_max(),
        secret: random.client_key,
        ..ServiceConfig::new(config.lease_time, random.instance)
    };
    let now_ns = dafs_dat::Instant::now().0;
    let service = Service::with_records(service_config, namespace, records, now_ns)?;
    service.importance.replace_rules(config.importance.clone());
    Ok(service)
}
