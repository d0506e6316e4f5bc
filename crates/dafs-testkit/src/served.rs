//! A DAFS server in this process, on its own directory: engine, service and store, with the state
//! that outlives a restart.
//!
//! With `DAFS_TEST_VERBS=ADDRESS` in the environment servers listen at that address of this host, and at the
//! RDMA device that has it, too.

use crate::stores::layer::Layered;
use crate::stores::slow::SlowDisk;
use dafs_dat::connections::Connections;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{self, ShmAdapter, ShmConfig};
use dafs_dat::verbs::{VerbsAdapter, VerbsConfig};
use dafs_dat::{Adapter, Address, Instant, Wake, shm_socket_name};
use dafs_engine::{
    AuthConfig, Authenticator, Clock, EngineCounts, ExposedMemory, Reactor, Registry,
    SessionLimits, Shared, StartGate, ThreadPool,
};
use dafs_posix::{PosixOptions, PosixStore};
use dafs_service::{
    Export, ExportOptions, ExposureCounts, FileFences, FileRecords, Metrics, Namespace,
    OptimisticReads, Pool, Service, ServiceConfig, Squash, StateFile, WriteVerifier,
};
use dafs_store::{Cred, ExportSecret, Store};
use rustix::process::{Resource, getegid, geteuid, getrlimit, setrlimit};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// The longest wait for blocking calls when a server stops.
const STOP_TIME: Duration = Duration::from_secs(5);

/// Returns the address of the RDMA device that `DAFS_TEST_VERBS` names. The device then takes the place of the
/// transports that tests choose for their clients.
pub fn device() -> Option<IpAddr> {
    let text = std::env::var("DAFS_TEST_VERBS").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("DAFS_TEST_VERBS={text} is no address")))
}

/// The options of a server.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The means of authentication.
    pub auth: AuthConfig,
    /// The lease time: a silent client keeps its opens that long.
    pub lease_time: Duration,
    /// The grace period after a restart, in which clients may reclaim; `None` means the lease time.
    pub grace_time: Option<Duration>,
    /// Files are shown to clients of this host.
    pub optimistic: bool,
    /// They are shown to clients of other hosts, too.
    pub optimistic_remotely: bool,
    /// The memory in which they are, in bytes.
    pub optimistic_bytes: usize,
    /// The rate of writes; `None` means that of the disk.
    pub disk_bytes_per_second: Option<u64>,
}

/// A server that listens on a loopback port, for iWARP and shared memory. With a [`device`] it listens at its
/// address, for all three.
pub struct Served {
    running: Option<Running>,
    /// The address of its listener, the same after a restart.
    pub address: SocketAddr,
    dir: TempDir,
    state: TempDir,
    secret: ExportSecret,
    setup: Setup,
}

impl Served {
    /// Starts a server with default options.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts a server with changed options.
    pub fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let lease_time = Duration::from_secs(30);
        let (auth, grace_time) = (AuthConfig::default(), None);
        let mut setup = Setup {
            auth,
            lease_time,
            grace_time,
            optimistic: false,
            optimistic_remotely: false,
            optimistic_bytes: 64 << 20,
            disk_bytes_per_second: None,
        };
        change(&mut setup);
        // No kernel vouches for the user of a client that comes by a device.
        setup.auth.allow_unauthenticated_remote_clients |= device().is_some();
        let mut served = Self {
            running: None,
            address: (device().unwrap_or(Ipv4Addr::LOCALHOST.into()), 0).into(),
            dir: TempDir::new().unwrap(),
            state: TempDir::new().unwrap(),
            secret: ExportSecret::generate().unwrap(),
            setup,
        };
        served.start();
        served
    }

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("dafs://{}/", self.address)
    }

    /// Returns the directory that it serves.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the numbers of files that it shows to clients, and of their blocks.
    pub fn exposure_counts(&self) -> ExposureCounts {
        self.running.as_ref().unwrap().service.exposure_counts()
    }

    /// Returns the metrics of its operations.
    pub fn metrics(&self) -> &Metrics {
        self.running.as_ref().unwrap().service.metrics()
    }

    /// Returns the recent counts of its engine.
    pub fn counts(&self) -> EngineCounts {
        let running = self.running.as_ref().unwrap();
        running.reactors.iter().map(|reactor| reactor.gauge().counts()).sum()
    }

    /// Stops the server and its connections. Its files stay.
    pub fn stop(&mut self) {
        self.running = None;
    }

    /// Starts it again at the same address.
    pub fn start(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        self.address = listener.local_addr().unwrap();
        self.running = Some(Running::start(self, listener));
    }

    fn service(&self) -> Service {
        let options = PosixOptions::new(self.secret);
        let store: Arc<dyn Store> = Arc::new(PosixStore::open(self.path(), options).unwrap());
        let store: Arc<dyn Store> = match self.setup.disk_bytes_per_second {
            Some(rate) => Arc::new(Layered::new(store, SlowDisk::new(rate))),
            None => store,
        };
        // The tests may run as root, and are not about root squashing.
        let optimistic = match (self.setup.optimistic, self.setup.optimistic_remotely) {
            (_, true) => OptimisticReads::Remote,
            (true, false) => OptimisticReads::Local,
            (false, false) => OptimisticReads::Off,
        };
        let options =
            ExportOptions { squash: Squash::None, optimistic, ..ExportOptions::default() };
        let options = match device() {
            Some(_) => {
                let own = Cred::new(geteuid().as_raw(), getegid().as_raw());
                ExportOptions { squash: Squash::All, anonymous: own, ..options }
            }
            None => options,
        };
        let namespace = Namespace::new(vec![Export::new("", store, options)]).unwrap();
        let config = ServiceConfig {
            grace_time: self.setup.grace_time.unwrap_or(self.setup.lease_time),
            secret: [random(), random()],
            ..ServiceConfig::new(self.setup.lease_time, (random() as u32).max(1))
        };
        let state = self.state.path();
        let file = StateFile::New([1; 16]);
        let records = FileRecords::open(&state.join("clients"), file).unwrap();
        let fences = FileFences::open(&state.join("fences"), file).unwrap();
        let now_ns = Instant::now().0;
        let service = Service::with_records(config, namespace, Box::new(records), now_ns).unwrap();
        service.fences.load(Box::new(fences)).unwrap();
        service.locks.keep_undo_in(&state.join("undo")).unwrap();
        service
    }
}

impl Default for Served {
    fn default() -> Self {
        Self::new()
    }
}

/// The threads of a server. They end when this is dropped.
struct Running {
    service: Arc<Service>,
    reactors: [Reactor; 1],
    clocks: Vec<Clock>,
    pools: [Arc<ThreadPool>; 2],
}

impl Running {
    fn start(served: &Served, listener: TcpListener) -> Self {
        // Each file and connection of a test takes a descriptor.
        let mut descriptors = getrlimit(Resource::Nofile);
        descriptors.current = descriptors.maximum;
        setrlimit(Resource::Nofile, descriptors).unwrap();
        let service = Arc::new(served.service());
        let limits = SessionLimits::default();
        let connections = Connections::new(limits.connections());
        let [pool, proofs] = [ThreadPool::new(), ThreadPool::with_threads(1)].map(Arc::new);
        let shows = served.setup.optimistic || served.setup.optimistic_remotely;
        let exposed = shows.then(|| {
            let memory = Arc::new(ExposedMemory::start(served.setup.optimistic_bytes).unwrap());
            service.start_exposure(memory.clone());
            memory
        });
        let shared = Shared {
            service: service.clone(),
            authenticator: Arc::new(Authenticator::new(&served.setup.auth).unwrap()),
            registry: Arc::new(Registry::counting_in([random(), random()], connections.clone())),
            pool: pool.clone(),
            limits,
            write_verifier: Arc::new(WriteVerifier::new(random())),
            clock: Instant::now,
            proofs: proofs.clone(),
            exposed,
            data: None,
        };
        service.durable.tell_of_lost_data(shared.write_verifier.clone());
        let undo = pool.clone();
        service.locks.undo_elsewhere(Arc::new(move |job| undo.submit(job)));
        let clocks = [Clock::start, Clock::start_fencing, Clock::start_sweeping];
        let clocks = clocks.iter().map(|start| start(service.clone()).unwrap()).collect();
        let adapters = adapters(&connections, listener);
        let name = "dafs-reactor".to_owned();
        let (wake, gate) = (Wake::Adaptive, StartGate::opened());
        let reactor = Reactor::start(name, Arc::new(shared), adapters, wake, None, &gate).unwrap();
        Self { service, reactors: [reactor], clocks, pools: [pool, proofs] }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        Reactor::stop(&mut self.reactors);
        self.clocks.clear();
        self.service.stop_exposure();
        // Running calls keep the records open, and the next server would find them locked.
        self.pools.iter().all(|pool| pool.finish(STOP_TIME));
        self.service.clients.settle_records();
    }
}

/// Returns the adapters: iWARP at a listener, shared memory, and the device if there is one.
fn adapters(connections: &Arc<Connections>, listener: TcpListener) -> Vec<Box<dyn Adapter>> {
    let address = listener.local_addr().unwrap();
    let name = shm_socket_name(address);
    let mut iwarp = IwarpAdapter::new(IwarpConfig::default()).unwrap();
    iwarp.count_in(connections.clone());
    iwarp.add_listener(listener).unwrap();
    let config = ShmConfig { shareable_buffers_max: 0, ..ShmConfig::default() };
    let mut shm = ShmAdapter::new(config).unwrap();
    shm.count_in(connections.clone());
    shm.add_listener(shm::bind_listener(&name).unwrap()).unwrap();
    let mut adapters: Vec<Box<dyn Adapter>> = vec![Box::new(iwarp), Box::new(shm)];
    if let Some(device) = device() {
        let mut verbs = VerbsAdapter::open(VerbsConfig::at(device)).unwrap();
        verbs.listen(&Address::Verbs(address)).unwrap();
        adapters.push(Box::new(verbs));
    }
    adapters
}

/// Returns a number that differs in each run.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
