//! A server on a loopback port, with two reactors and a pool of two threads.

use crate::common::{nfs_options, unsquashed};
use dafs_dat::Wake;
use dafs_nfs::{Admission, NfsHandler, NfsOptions, NfsShared};
use dafs_nfs_client::{Connection, Identity, Options, Session, connect};
use dafs_rpc::Injector;
use dafs_rpc::server::{Config, Group};
use dafs_service::{
    Admits, DataRole, Export, ExportOptions, Job, Namespace, Pool, Service, ServiceConfig,
    WriteVerifier,
};
use dafs_store::{DataStore, MemoryOptions, MemoryStore, Store};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than any working operation takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Runs jobs on threads of its own.
struct Threads(Mutex<Option<Sender<Job>>>);

impl Pool for Threads {
    fn submit(&self, job: Job) {
        if let Some(jobs) = &*self.0.lock().unwrap() {
            jobs.send(job).unwrap();
        }
    }
}

fn service(config: ServiceConfig, store: Arc<dyn Store>) -> Arc<Service> {
    let admits = Admits { unprivileged_ports: true, ..Admits::default() };
    let options = ExportOptions { admits, ..unsquashed() };
    let namespace = Namespace::new(vec![Export::new("", store, options)]).unwrap();
    Arc::new(Service::new(config, namespace))
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<NfsShared>,
    group: Arc<Group>,
    pool: Arc<Threads>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let mut config = ServiceConfig::new(Duration::from_secs(60), 7);
        config.grace_time = Duration::ZERO;
        Self::start_with(config)
    }

    pub(crate) fn start_with(config: ServiceConfig) -> Self {
        Self::start_over(config, Arc::new(MemoryStore::new(MemoryOptions::default())))
    }

    /// Starts a server of one export.
    pub(crate) fn start_over(config: ServiceConfig, store: Arc<dyn Store>) -> Self {
        let service = service(config, store);
        Self::run(b"server", |pool, verifier, admission, options| {
            NfsShared::new(service, pool, verifier, admission, options)
        })
    }

    /// Starts a data server.
    pub(crate) fn start_data_server(role: DataRole) -> Self {
        let config = ServiceConfig::new(Duration::from_secs(60), 7);
        let service = service(config, Arc::new(DataStore::new(role.files.clone())));
        Self::run(b"data server", |pool, verifier, admission, options| {
            NfsShared::new_data_server(service, pool, verifier, admission, options, role)
        })
    }

    fn run(
        owner: &[u8],
        shared: impl FnOnce(Arc<dyn Pool>, Arc<WriteVerifier>, Admission, NfsOptions) -> Arc<NfsShared>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (jobs, work) = channel::<Job>();
        let pool = Arc::new(Threads(Mutex::new(Some(jobs))));
        let shared = shared(
            pool.clone(),
            Arc::new(WriteVerifier::new(1)),
            Admission { own_uid: std::fs::metadata("/proc/self").unwrap().uid() },
            NfsOptions { server_owner: owner.to_vec(), ..nfs_options(9) },
        );
        let rpc = Config { wake: Wake::Sleep, ..Config::default() };
        let group = Arc::new(Group::new(vec![listener], 2, rpc).unwrap());
        let mut threads = Vec::new();
        for _ in 0..2 {
            let shared = shared.clone();
            let reactor = group.reactor(|_: Injector<()>| NfsHandler::new(shared)).unwrap();
            threads.push(std::thread::spawn(move || reactor.run()));
        }
        let work = Arc::new(Mutex::new(work));
        for _ in 0..2 {
            let work = work.clone();
            threads.push(std::thread::spawn(move || {
                loop {
                    let job = work.lock().unwrap().recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            }));
        }
        Self { address, shared, group, pool, threads }
    }

    /// Opens a connection as root.
    pub(crate) fn connection(&self) -> Connection {
        Connection::open(self.address, Identity::sys("test", 0, 0, &[])).unwrap()
    }

    /// Opens a session of a client of this name.
    pub(crate) fn session(&self, owner: &[u8]) -> Session {
        connect(self.address, &Options::new(owner)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.group.stop();
        self.pool.0.lock().unwrap().take();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a thread of the server panicked");
        }
    }
}
