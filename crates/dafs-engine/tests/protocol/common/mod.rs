//! A world of one server engine and clients that speak raw DAFS over the simulated network, in one
//! thread. Clients are numbers. `World` runs all of them until no event is left.

#![allow(unreachable_pub, reason = "the module is part of one test program")]

mod disguise;
mod ending;
mod records;
mod requests;
mod store;

pub use dafs_testkit::raw::{Answer, Client, Memory, SERVER};
pub use dafs_testkit::requests::*;
pub use disguise::{Disguise, Mask};
pub use records::Recorded;
pub use requests::*;
pub use store::{Disk, OnDisk};

use dafs_dat::sim::{SimFaults, SimNetwork};
use dafs_dat::{Adapter, Address, Instant, PeerInfo};
use dafs_engine::{
    AuthConfig, Authenticator, Engine, EngineCounts, ExposedMemory, GssAuth, Inbox, OwnIdentity,
    ReadRing, Registry, SessionLimits, Shared, Ticker, password_line,
};
use dafs_journal::sim::SimDisk;
use dafs_service::durable::JournalConfig;
use dafs_service::{
    Export, ExportOptions, Identities, Job, Namespace, Owner, Place, Pool, Service, ServiceConfig,
    WriteVerifier,
};
use dafs_store::{FsId, MemoryOptions, MemoryStore, Store, Waits};
use dafs_wire::dafs::{self, ByteOrder, FileHandle, Request, Status, Verifier};
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const LEASE: Duration = Duration::from_secs(30);
pub const WRITE_VERIFIER: Verifier = Verifier(*b"verifier");

/// The parameters of a world.
pub struct Setup {
    pub limits: SessionLimits,
    /// Names and rules. Every export is a store in memory of its own.
    pub exports: Vec<(&'static str, ExportOptions)>,
    /// Users and passwords.
    pub users: Vec<(&'static str, &'static str)>,
    pub own_identity: Option<OwnIdentity>,
    pub gss: Option<GssAuth>,
    /// The users whom certificates name.
    pub certificates: Option<Arc<Identities>>,
    pub mask: Mask,
    pub seed: u64,
    /// The server maps the memory of its clients.
    pub maps: bool,
    /// The server listens on a second network too.
    pub second_network: bool,
    /// The waits that new stores declare.
    pub waits: Waits,
    /// The stores of an earlier run.
    pub stores: Vec<Arc<dyn Store>>,
    /// The disk of the journal for durable replies.
    pub journal: Option<Arc<SimDisk>>,
    /// Distinguishes runs of the server.
    pub run: u32,
    /// Clients are recorded before they get any state.
    pub records: bool,
    /// Their records, which a later run loads.
    pub recorded: Recorded,
    /// Clients read exposed memory by RDMA.
    pub exposes: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: SessionLimits::default(),
            exports: vec![("", ExportOptions::default())],
            users: Vec::new(),
            own_identity: None,
            gss: None,
            certificates: None,
            mask: |host| PeerInfo { sim_host: Some(host), ..PeerInfo::default() },
            seed: 1,
            maps: false,
            second_network: false,
            waits: Waits::Never,
            stores: Vec::new(),
            journal: None,
            run: 7,
            records: false,
            recorded: Recorded::default(),
            exposes: false,
        }
    }
}

thread_local! {
    /// True while code runs outside a reactor.
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
    /// True while a job runs that blocks jobs of all other stores.
    static AMONG_OTHERS: Cell<bool> = const { Cell::new(false) };
}

/// Fails when a reactor waits for the disk.
pub fn assert_may_wait() {
    assert!(MAY_WAIT.get(), "a reactor waits for the disk");
}

/// Fails when a wait for other machines blocks jobs that wait for the disk.
pub fn assert_may_wait_for_others() {
    assert_may_wait();
    assert!(!AMONG_OTHERS.get(), "a job among those of all stores waits for other machines");
}

fn elsewhere<T>(act: impl FnOnce() -> T) -> T {
    MAY_WAIT.set(true);
    let done = act();
    MAY_WAIT.set(false);
    done
}

fn run((lane, job): (u64, Job)) {
    AMONG_OTHERS.set(lane == 0);
    elsewhere(job);
    AMONG_OTHERS.set(false);
}

/// The pool of the server: jobs wait here until the world runs them.
#[derive(Clone, Default)]
pub struct HeldPool {
    jobs: Arc<Mutex<VecDeque<(u64, Job)>>>,
}

impl Pool for HeldPool {
    fn submit(&self, job: Job) {
        self.submit_to(Place { lane: 0, owner: Owner::SERVER }, job);
    }

    fn submit_to(&self, place: Place, job: Job) {
        self.jobs.lock().unwrap().push_back((place.lane, job));
    }
}

pub struct World {
    pub network: SimNetwork,
    /// The server's transports lose work, and its connections.
    pub loses: Arc<AtomicBool>,
    second: Option<SimNetwork>,
    pub engine: Engine,
    pub service: Arc<Service>,
    pub verifier: Arc<WriteVerifier>,
    ticker: Ticker,
    pub clients: Vec<Client>,
    pub disk: Disk,
    pub stores: Vec<Arc<dyn Store>>,
    pub authenticator: Arc<Authenticator>,
    pool: HeldPool,
    pub exposed: Option<Arc<ExposedMemory>>,
    /// Jobs are not run while this is set.
    pub hold_jobs: bool,
    now: Instant,
}

fn authenticator(setup: &Setup) -> Authenticator {
    let dir = tempfile::tempdir().unwrap();
    let own_identity = setup.own_identity.clone();
    let (gss, certificates) = (setup.gss.clone(), setup.certificates.clone());
    // The clients of these tests may have addresses of other hosts.
    let clear_passwords = true;
    let mut config =
        AuthConfig { own_identity, gss, certificates, clear_passwords, ..AuthConfig::default() };
    if !setup.users.is_empty() {
        let line = |(index, (name, password)): (usize, &(&str, &str))| {
            let id = 1000 + index as u32;
            password_line(name, id, id, &[], password.as_bytes()) + "\n"
        };
        let path = dir.path().join("users");
        let lines: String = setup.users.iter().enumerate().map(line).collect();
        std::fs::write(&path, lines).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        config.password_file = Some(path);
    }
    Authenticator::new(&config).unwrap()
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let network = SimNetwork::new(setup.seed, SimFaults::none());
        network.map_memory(setup.maps);
        network.grant_reads(setup.exposes);
        let disk = Disk::new();
        let mut exports = Vec::new();
        let mut stores = setup.stores.clone();
        for (index, (name, options)) in setup.exports.iter().enumerate() {
            let mut fs_id = *b"protocol test 00";
            fs_id[15] += index as u8;
            let memory =
                MemoryOptions { fs_id: FsId(fs_id), root_mode: 0o777, ..MemoryOptions::default() };
            if stores.len() == index {
                let inner = MemoryStore::new(memory);
                stores.push(Arc::new(OnDisk::over(inner, disk.of_store(index), setup.waits)));
            }
            exports.push(Export::new(name, stores[index].clone(), options.clone()));
        }
        let namespace = Namespace::new(exports).unwrap();
        let config = ServiceConfig::new(LEASE, setup.run);
        let service = match setup.records {
            true => {
                let recorded = Box::new(setup.recorded.clone());
                Service::with_records(config, namespace, recorded, 0).unwrap()
            }
            false => Service::new(config, namespace),
        };
        let service = Arc::new(service);
        let pool = HeldPool::default();
        if let Some(disk) = setup.journal.clone() {
            let pool = pool.clone();
            let spawn = Arc::new(move |job| pool.submit(job));
            let journal = JournalConfig { disk, boot: [1; 16], segment_bytes: 64 << 10, spawn };
            service.durable.start_journal(journal, 0).unwrap();
        }
        let verifier = Arc::new(WriteVerifier::new(u64::from_be_bytes(WRITE_VERIFIER.0)));
        service.durable.tell_of_lost_data(verifier.clone());
        let authenticator = Arc::new(authenticator(&setup));
        let exposed = setup.exposes.then(|| {
            let memory = Arc::new(ExposedMemory::start(8 << 20).unwrap());
            service.start_exposure(memory.clone());
            memory
        });
        let shared = Shared {
            service: service.clone(),
            authenticator: authenticator.clone(),
            registry: Arc::new(Registry::new([1, 2])),
            pool: Arc::new(pool.clone()),
            limits: setup.limits,
            write_verifier: verifier.clone(),
            clock: Instant::default,
            proofs: Arc::new(pool.clone()),
            exposed: exposed.clone(),
            data: None,
        };
        let loses = Arc::new(AtomicBool::new(false));
        // The same seed: endpoints have the same numbers on both.
        let second = setup.second_network.then(|| SimNetwork::new(setup.seed, SimFaults::none()));
        let adapters = std::iter::once(&network).chain(&second).map(|network| {
            let adapter = Disguise::new(network.adapter(SERVER), setup.mask, loses.clone());
            Box::new(adapter) as Box<dyn Adapter>
        });
        let adapters: Vec<_> = adapters.collect();
        let count = adapters.len();
        let mut engine = Engine::new(Arc::new(shared), adapters, Arc::new(Inbox::unwatched()));
        for index in 0..count {
            engine.listen(index, &Address::Sim(SERVER)).unwrap();
        }
        Self {
            network,
            loses,
            second,
            engine,
            service,
            verifier,
            ticker: Ticker::default(),
            clients: Vec::new(),
            disk,
            stores,
            authenticator,
            pool,
            exposed,
            hold_jobs: false,
            now: Instant(0),
        }
    }

    /// Makes a world with a session of a client.
    pub fn with_session(setup: Setup) -> (Self, usize) {
        let mut world = Self::new(setup);
        let client = world.session(2, "a");
        (world, client)
    }

    /// Makes a world with a session that has the file "f" open.
    pub fn with_file(setup: Setup) -> (Self, usize, File) {
        let (mut world, client) = Self::with_session(setup);
        let file = world.open(client, b"f");
        (world, client, file)
    }

    /// Makes a world with sessions of two clients.
    pub fn with_two(setup: Setup) -> (Self, usize, usize) {
        let (mut world, one) = Self::with_session(setup);
        let two = world.session(3, "b");
        (world, one, two)
    }

    /// Lets the kernel carry out reads, and files lend it this descriptor. Returns false, and says so,
    /// where the kernel does not.
    pub fn use_ring(&mut self, lent: OwnedFd) -> bool {
        match ReadRing::new() {
            Ok(ring) => self.engine.use_ring(ring).unwrap(),
            Err(error) => {
                println!("SKIPPED: no io_uring here: {error}");
                return false;
            }
        }
        self.disk.lend(lent);
        true
    }

    /// From now on every transfer waits for the disk, and no job runs.
    pub fn stall(&mut self) {
        self.disk.set_slow(true);
        self.hold_jobs = true;
    }

    /// Runs all jobs again.
    pub fn release(&mut self) {
        self.hold_jobs = false;
        self.settle();
    }

    /// Returns the networks, the first one first.
    pub fn networks(&self) -> impl Iterator<Item = &SimNetwork> {
        std::iter::once(&self.network).chain(&self.second)
    }

    /// Returns the simulated time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the number of waiting jobs.
    pub fn jobs(&self) -> usize {
        self.pool.jobs.lock().unwrap().len()
    }

    /// Runs the oldest job. Returns false when there is none.
    pub fn run_job(&mut self) -> bool {
        let job = self.pool.jobs.lock().unwrap().pop_front();
        job.map(run).is_some()
    }

    /// Runs the newest job. Returns false when there is none.
    pub fn run_last_job(&mut self) -> bool {
        let job = self.pool.jobs.lock().unwrap().pop_back();
        job.map(run).is_some()
    }

    /// Makes one small step. Returns false when there was no work.
    pub fn step(&mut self) -> bool {
        let mut busy = false;
        // A later event is a timer, and timers expire only by `pass`.
        let soon = self.now + Duration::from_secs(1);
        let next = self.networks().filter_map(SimNetwork::next_event).min();
        if let Some(at) = next.filter(|at| *at < soon) {
            self.now = self.now.max(at);
            self.networks().for_each(|network| network.advance_to(self.now));
            busy = true;
        }
        while !self.hold_jobs && self.run_job() {
            busy = true;
        }
        busy |= self.engine.turn(self.now);
        elsewhere(|| self.ticker.turn(&self.service, self.now));
        for client in &mut self.clients {
            busy |= client.poll(self.now);
        }
        busy
    }

    /// Runs until no event is left.
    pub fn settle(&mut self) {
        for _ in 0..2_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the world does not come to rest: {:?}", self.engine.counts());
    }

    /// Runs until `done`, or fails when the world has come to rest before.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&World) -> bool) {
        for _ in 0..2_000_000 {
            if done(self) {
                return;
            }
            if !self.step() {
                assert!(done(self), "at rest before: {what}");
                return;
            }
        }
        panic!("never: {what}");
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        self.settle();
        self.now = self.now + time;
        self.networks().for_each(|network| network.advance_to(self.now));
        self.engine.turn(self.now);
        elsewhere(|| self.ticker.turn(&self.service, self.now));
        self.settle();
    }

    /// Opens a silent connection of a new process on `host`.
    pub fn connect(&mut self, host: u32) -> usize {
        self.connect_as(host, 1, ByteOrder::Little)
    }

    pub fn connect_as(&mut self, host: u32, channel: u32, order: ByteOrder) -> usize {
        let client = Client::connect(self.network.adapter(host), channel, order);
        self.enter(client)
    }

    /// Opens a further connection of a client's process, which shares its memory.
    pub fn connect_beside(&mut self, client: usize, channel: u32, order: ByteOrder) -> usize {
        let client = self.clients[client].beside(channel, order);
        self.enter(client)
    }

    /// Makes a session over one of the networks.
    pub fn session_on(&mut self, network: usize, host: u32, name: &str) -> usize {
        let adapter = self.networks().nth(network).unwrap().adapter(host);
        let client = self.enter(Client::connect(adapter, 1, ByteOrder::Little));
        let options = dafs::SessionOptions::default();
        assert_eq!(self.status(client, &connect_auth(name, 1, options)), Status::Ok);
        client
    }

    fn enter(&mut self, client: Client) -> usize {
        self.clients.push(client);
        let index = self.clients.len() - 1;
        self.run_until("connection", |world| {
            let client = &world.clients[index];
            client.established || client.closed.is_some()
        });
        index
    }

    /// Makes a session without proof for a client of this name.
    pub fn session(&mut self, host: u32, name: &str) -> usize {
        self.session_with(host, name, 1, dafs::SessionOptions::default())
    }

    pub fn session_with(
        &mut self,
        host: u32,
        name: &str,
        verifier: u64,
        options: dafs::SessionOptions,
    ) -> usize {
        let client = self.connect(host);
        let answer = self.call(client, &connect_auth(name, verifier, options));
        assert_eq!(answer.status(), Status::Ok);
        self.clients[client].checksums = options.use_checksums;
        client
    }

    /// Sends a request and waits for its reply.
    pub fn call(&mut self, client: usize, request: &Request<'_>) -> Answer {
        let procedure = request.procedure();
        self.try_call(client, request).unwrap_or_else(|| {
            let why = self.clients[client].closed.as_deref();
            panic!("{}: no answer: {why:?}", procedure.name())
        })
    }

    /// Returns the status of a request.
    pub fn status(&mut self, client: usize, request: &Request<'_>) -> Status {
        self.call(client, request).status()
    }

    /// Does the same as `call`. Returns `None` when the connection ends instead.
    pub fn try_call(&mut self, client: usize, request: &Request<'_>) -> Option<Answer> {
        let stream = self.clients[client].post(request);
        self.wait(client, stream)
    }

    /// Waits for the reply on a stream.
    pub fn wait(&mut self, client: usize, stream: u16) -> Option<Answer> {
        self.run_until("answer", |world| {
            let client = &world.clients[client];
            client.closed.is_some() || client.has_answer(stream)
        });
        self.clients[client].take_answer(stream)
    }

    pub fn counts(&self) -> EngineCounts {
        self.engine.counts()
    }

    /// Returns the server's root.
    pub fn root(&self) -> FileHandle {
        let root = self.service.root();
        FileHandle { fs: root.fs.0, file: root.file.0 }
    }

    /// Ends all clients at once and checks that the server holds no state afterwards.
    pub fn end(mut self) {
        self.hold_jobs = false;
        self.clients.clear();
        self.settle();
        self.pass(Duration::from_secs(60));
        self.assert_idle();
        assert_eq!(self.service.counts().opens, 0, "leases have ended");
        assert_eq!(self.service.counts().clients, 0);
    }

    /// Checks that the engine holds no state of any connection.
    pub fn assert_idle(&self) {
        assert_eq!(self.counts(), EngineCounts::default());
        assert_eq!(self.jobs(), 0);
    }
}

/// Returns an IP address in place of the simulated host.
pub fn stranger(host: u32) -> PeerInfo {
    let address = std::net::SocketAddr::from(([192, 0, 2, host as u8], 700));
    PeerInfo { address: Some(address), ..PeerInfo::default() }
}

impl World {
    /// Opens a file of the root, and makes it if needed.
    pub fn open(&mut self, client: usize, name: &[u8]) -> File {
        let path = [name];
        let request = open_request(self.root(), &path, b"owner");
        self.open_with(client, &request).unwrap()
    }

    pub fn open_with(&mut self, client: usize, request: &dafs::Open<'_>) -> Result<File, Status> {
        let answer = self.call(client, &Request::Open(*request));
        match answer.reply() {
            Ok(dafs::Reply::Open(reply)) => Ok(File { fh: reply.fh, id: reply.state_id }),
            Ok(other) => panic!("{other:?}"),
            Err(status) => Err(status),
        }
    }

    /// Writes inline, in as many requests as it takes.
    pub fn write(&mut self, client: usize, file: File, offset: u64, data: &[u8]) {
        for (index, part) in data.chunks(8192).enumerate() {
            let request = write_inline(file, offset + 8192 * index as u64, part);
            let answer = self.call(client, &request);
            let Ok(dafs::Reply::WriteInline(reply)) = answer.reply() else {
                panic!("{:?}", answer.status())
            };
            assert_eq!(reply.count as usize, part.len());
        }
    }

    /// Reads inline to the end of the file.
    pub fn read(&mut self, client: usize, file: File) -> Vec<u8> {
        let mut data = Vec::new();
        loop {
            let answer = self.call(client, &read_inline(file, data.len() as u64, 8192));
            let Ok(dafs::Reply::ReadInline(reply)) = answer.reply() else {
                panic!("{:?}", answer.status())
            };
            data.extend_from_slice(reply.data);
            if reply.eof || reply.data.is_empty() {
                return data;
            }
        }
    }
}

/// Returns bytes that depend on their position.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ seed).collect()
}
