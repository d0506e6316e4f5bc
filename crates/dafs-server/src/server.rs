//! A running server: listeners, reactors, exports.

use crate::auth::{Authenticator, PasswordFileError};
use crate::config::{Config, ConfigError, ExportConfig, ExportSource};
use crate::engine::{Engine, EngineCounts, Registry, Shared, WriteVerifier};
use crate::limits::PROOF_THREADS_MAX;
use crate::pool::{Inbox, ThreadPool};
use crate::reactor::{self, Control};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{self, ShmAdapter, ShmConfig};
use dafs_dat::{Adapter, shm_socket_name};
use dafs_service::{Export, Namespace, NamespaceError, Service, ServiceConfig, ServiceCounts};
use dafs_store::{
    ExportSecret, MemoryOptions, MemoryStore, PosixOptions, PosixStore, Store, StoreError,
};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use thiserror::Error;

/// Connections that wait for a reactor.
const BACKLOG: i32 = 1024;

/// Why a server could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The password file.
    #[error(transparent)]
    Passwords(#[from] PasswordFileError),
    /// The names of the exports.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A directory.
    #[error("cannot export {path}: {error}", path = .path.display())]
    Export {
        /// Which.
        path: PathBuf,
        /// Why.
        error: StoreError,
    },
    /// The key of file handles.
    #[error(
        "cannot keep the key that signs file handles in {path}: {error}; name a writable directory \
         with state_directory or --state-directory",
        path = .path.display()
    )]
    State {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// An address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// Threads, descriptors, randomness.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// A server with its threads. Dropping it stops it.
pub struct Server {
    addresses: Vec<SocketAddr>,
    nfs_addresses: Vec<SocketAddr>,
    service: Arc<Service>,
    reactors: Vec<Reactor>,
}

struct Reactor {
    control: Arc<Control>,
    wake: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Opens the exports of a configuration and serves them.
    ///
    /// # Errors
    /// What stands in the way, and what to do about it.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        config.check_exposure()?;
        raise_descriptor_limit();
        let secret = handle_secret(config.state_directory.as_deref())?;
        let open = |export: &ExportConfig| {
            Ok(Export::new(&export.name, open_store(export, secret)?, export.options.clone()))
        };
        let exports = config.exports.iter().map(open).collect::<Result<_, StartError>>()?;
        Self::start_with(config, exports)
    }

    /// Serves exports that are open already; those of the configuration are not looked at.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_with(config: &Config, exports: Vec<Export>) -> Result<Self, StartError> {
        let namespace = Namespace::new(exports)?;
        let random = Random::draw()?;
        let service_config =
            ServiceConfig { lease_time: config.lease_time, instance: random.instance };
        let service = Arc::new(Service::new(service_config, namespace));
        let listeners = config.listen.iter().map(|&address| Listener::bind(address));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let ports = listeners.iter().map(|listener| listener.address.port()).collect();
        let shared = Arc::new(Shared {
            service: service.clone(),
            authenticator: Arc::new(Authenticator::new(config)?.with_ports(ports)),
            registry: Arc::new(Registry::new(random.registry_key)),
            pool: Arc::new(ThreadPool::new()),
            limits: config.limits,
            write_verifier: WriteVerifier::new(random.write_verifier),
            clock: dafs_dat::Instant::now,
            proofs: Arc::new(ThreadPool::with_threads(PROOF_THREADS_MAX)),
        });
        let mut server = Self {
            addresses: listeners.iter().map(|listener| listener.address).collect(),
            nfs_addresses: Vec::new(),
            service,
            reactors: Vec::new(),
        };
        for index in 0..config.threads.max(1) {
            let reactor = start_reactor(index, config, &shared, &listeners)?;
            server.reactors.push(reactor);
        }
        Ok(server)
    }

    /// Where it listens, with the ports that the system picked.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where NFS clients connect.
    pub fn nfs_addresses(&self) -> &[SocketAddr] {
        &self.nfs_addresses
    }

    /// The URL of the first address.
    pub fn url(&self) -> String {
        match self.addresses.first() {
            Some(address) if address.ip().is_unspecified() => {
                let name = rustix::system::uname();
                format!("dafs://{}:{}/", name.nodename().to_string_lossy(), address.port())
            }
            Some(address) => format!("dafs://{address}/"),
            None => String::new(),
        }
    }

    /// What the reactors held when they last said.
    pub fn counts(&self) -> EngineCounts {
        let mut sum = EngineCounts::default();
        for reactor in &self.reactors {
            let counts = reactor.control.counts();
            (reactor.wake)();
            sum.connections += counts.connections;
            sum.sessions += counts.sessions;
            sum.pending += counts.pending;
            sum.replies += counts.replies;
            sum.chunks += counts.chunks;
            sum.credits += counts.credits;
        }
        sum
    }

    /// What the service holds.
    pub fn service_counts(&self) -> ServiceCounts {
        self.service.counts()
    }

    /// Ends connections in order and waits for the threads.
    pub fn stop(mut self) {
        self.stop_threads();
    }

    fn stop_threads(&mut self) {
        for reactor in &self.reactors {
            reactor.control.stop.store(true, Ordering::Relaxed);
            (reactor.wake)();
        }
        for thread in self.reactors.iter_mut().filter_map(|reactor| reactor.thread.take()) {
            if thread.join().is_err() {
                tracing::error!("a reactor had failed");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

fn open_store(export: &ExportConfig, secret: ExportSecret) -> Result<Arc<dyn Store>, StartError> {
    let read_only = export.options.read_only;
    match &export.source {
        ExportSource::Directory(path) => {
            let options = PosixOptions { read_only, ..PosixOptions::new(secret) };
            let failed = |error| StartError::Export { path: path.clone(), error };
            Ok(Arc::new(PosixStore::open(path, options).map_err(failed)?))
        }
        // Everybody may make files at the top, as in /tmp, because there is nobody to prepare it.
        ExportSource::Memory { bytes_max } => Ok(Arc::new(MemoryStore::new(MemoryOptions {
            bytes_max: *bytes_max,
            read_only,
            root_mode: 0o1777,
            ..MemoryOptions::default()
        }))),
    }
}

/// The sockets of one address: TCP for iWARP, and the abstract UNIX socket for shared memory.
struct Listener {
    address: SocketAddr,
    tcp: TcpListener,
    shm: OwnedFd,
}

impl Listener {
    fn bind(address: SocketAddr) -> Result<Self, StartError> {
        let failed = |error| StartError::Listen { address, error };
        let domain = socket2::Domain::for_address(address);
        let bind = || {
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            Ok(TcpListener::from(socket))
        };
        let tcp = bind().map_err(failed)?;
        let address = tcp.local_addr().map_err(failed)?;
        let shm = shm::bind_listener(&shm_socket_name(address)).map_err(failed)?;
        Ok(Self { address, tcp, shm })
    }
}

fn start_reactor(
    index: usize,
    config: &Config,
    shared: &Arc<Shared>,
    listeners: &[Listener],
) -> Result<Reactor, StartError> {
    let mut iwarp = IwarpAdapter::new(IwarpConfig {
        crc: config.crc,
        connection_count_max: config.limits.connections_max,
        ..IwarpConfig::default()
    })?;
    let mut shm = ShmAdapter::new(ShmConfig {
        connections_max: config.limits.connections_max,
        shareable_buffers_max: 0,
        ..ShmConfig::default()
    })?;
    for listener in listeners {
        iwarp.add_listener(listener.tcp.try_clone()?)?;
        shm.add_listener(listener.shm.as_fd().try_clone_to_owned()?)?;
    }
    let adapters: Vec<Box<dyn Adapter>> = vec![Box::new(iwarp), Box::new(shm)];
    let inbox = Arc::new(Inbox::watched()?);
    let engine = Engine::new(shared.clone(), adapters, inbox.clone());
    let control = Arc::new(Control::default());
    let (own, wake) = (control.clone(), config.wake);
    let thread = std::thread::Builder::new()
        .name(format!("dafs-reactor-{index}"))
        .spawn(move || reactor::run(engine, wake, &own))?;
    Ok(Reactor { control, wake: Box::new(move || inbox.wake()), thread: Some(thread) })
}

/// The numbers that make one run of the server different from another.
struct Random {
    instance: u32,
    registry_key: [u64; 2],
    write_verifier: u64,
}

impl Random {
    fn draw() -> io::Result<Self> {
        let mut bytes = [0; 28];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        Ok(Self {
            // Zero is left out, because state-ids below 2^32 would look like small numbers.
            instance: (word(20) as u32).max(1),
            registry_key: [word(0), word(8)],
            write_verifier: word(16),
        })
    }
}

/// Each open file and connection takes a descriptor, so all that may be had are taken.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open descriptors cannot be raised");
    }
}

/// The key that signs file handles, made at the first start.
fn handle_secret(directory: Option<&Path>) -> Result<ExportSecret, StartError> {
    let directory = directory.map(Path::to_owned).or_else(default_state_directory);
    let directory = directory.ok_or_else(|| {
        let error =
            io::Error::new(io::ErrorKind::NotFound, "neither HOME nor XDG_STATE_HOME is set");
        StartError::State { path: PathBuf::from("the home directory"), error }
    })?;
    let path = directory.join("handle-key");
    let failed = |error| StartError::State { path: path.clone(), error };
    match std::fs::read(&path) {
        Ok(bytes) => match <[u8; 16]>::try_from(bytes.as_slice()) {
            Ok(bytes) => return Ok(ExportSecret::from_bytes(bytes)),
            Err(_) => {
                let text = "the file is not 16 bytes long; remove it (old handles become invalid)";
                return Err(failed(io::Error::new(io::ErrorKind::InvalidData, text)));
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let secret =
        ExportSecret::generate().map_err(|error| failed(io::Error::other(error.to_string())))?;
    let save = || {
        std::fs::create_dir_all(&directory)?;
        // Written aside and linked into place, so that two servers that start at once agree and no
        // half-written key is ever seen.
        let aside = directory.join(format!("handle-key.{}", std::process::id()));
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)?;
        file.write_all(secret.as_bytes())?;
        file.sync_all()?;
        let linked = std::fs::hard_link(&aside, &path);
        std::fs::remove_file(&aside)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => {
                // The name must be as stable as the content, or a power loss makes a new key.
                std::fs::File::open(&directory)?.sync_all()?;
                std::fs::read(&path)
            }
        }
    };
    let bytes = save().map_err(failed)?;
    let bytes = <[u8; 16]>::try_from(bytes.as_slice())
        .map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
    Ok(ExportSecret::from_bytes(bytes))
}

/// Where a server keeps its state when nothing is said: `/var/lib/dafs` for root, else below the
/// home directory; `None` when there is none.
pub fn default_state_directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/dafs"));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    Some(absolute("XDG_STATE_HOME").or_else(home)?.join("dafs"))
}
