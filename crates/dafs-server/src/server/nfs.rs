//! The NFS part of a running server: its sockets, its reactors.

use super::kerberos;
use super::nfs_peers::{ClientHosts, Monitor};
use super::rdma::RdmaListeners;
use super::rpcbind::{Addresses, Registration};
use super::sockets::Sockets;
use super::{StartError, listen};
use crate::config::Config;
use crate::limits::NFS_THREADS_MAX;
use dafs_dat::connections::Connections;
use dafs_engine::{PageRing, ReadRing, Shared, StartGate};
use dafs_nfs::{Admission, NfsHandler, NfsOptions, NfsShared};
use dafs_rpc::Injector;
use dafs_rpc::server::{Config as RpcConfig, Group};
use dafs_rpc::tls::ServerTls;
use dafs_service::{Identities, PageReads};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Reactors for NFS clients, with their threads. They end when this is dropped.
pub(super) struct NfsServer {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) rdma_addresses: Vec<SocketAddr>,
    pub(super) verbs_addresses: Vec<SocketAddr>,
    pub(super) shared: Arc<NfsShared>,
    group: Arc<Group>,
    threads: Vec<JoinHandle<()>>,
    /// Shut at the latest when this is dropped.
    gate: StartGate,
    /// Dropped before the threads end, so that no further clients are sent here.
    registration: Option<Registration>,
    /// Takes notifications of NFSv3 clients by datagrams.
    monitor: Option<Monitor>,
}

/// Numbers of one run, and of one server.
pub(super) struct Identity {
    /// The server's id: the same in all its runs, and unique.
    pub(super) server: [u8; 16],
    /// Random.
    pub(super) secret: [u8; 16],
}

impl NfsServer {
    /// Starts the threads, which serve when `gate` opens.
    pub(super) fn start(
        config: &Config,
        (connections, tls): (&Arc<Connections>, Option<Arc<ServerTls>>),
        (shared, users): (&Arc<Shared>, Option<Arc<Identities>>),
        sockets: &mut Sockets,
        (identity, gate): (&Identity, &StartGate),
        mut rings: Vec<ReadRing>,
    ) -> Result<Option<Self>, StartError> {
        let rdma = RdmaListeners::open(config, sockets)?;
        if config.nfs.listen.is_empty() && rdma.is_empty() {
            return Ok(None);
        }
        let listeners = config.nfs.listen.iter().map(|&address| listen::tcp(address, sockets));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners.iter().map(std::net::TcpListener::local_addr);
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let options = options(&identity.server, identity.secret);
        let (pool, verifier) = (shared.pool.clone(), shared.write_verifier.clone());
        let domain = config.nfs.domain.as_deref();
        let gss = config.kerberos.as_ref();
        let gss = gss.map(|config| kerberos::open(config, domain, pool.clone()));
        let nfs = NfsShared::new(shared.service.clone(), pool, verifier, admission(), options);
        if let Some(gss) = gss.transpose()? {
            nfs.accept_gss(gss);
        }
        if let Some(users) = users {
            nfs.accept_users(users);
        }
        if config.nfs.rpcbind {
            nfs.accept_peers(Arc::new(ClientHosts::new()));
        }
        let threads = config.threads.clamp(1, NFS_THREADS_MAX);
        let tcp_threads = if listeners.is_empty() { 0 } else { threads };
        let rdma_threads = if rdma.is_empty() { 0 } else { threads };
        let (connections, count) = (connections.clone(), tcp_threads + rdma_threads);
        let rpc = rpc_config(config);
        let group = Group::with_tls(tls.clone(), connections.clone(), listeners, count, rpc)?;
        let mut server = Self {
            addresses,
            rdma_addresses: rdma.soft(),
            verbs_addresses: rdma.verbs().to_vec(),
            shared: nfs,
            group: Arc::new(group),
            threads: Vec::new(),
            gate: gate.clone(),
            registration: None,
            monitor: None,
        };
        for index in 0..tcp_threads {
            let nfs = server.shared.clone();
            let pages = pages(rings.pop())?;
            let reactor = server.group.reactor(|injector| handler(nfs, pages, injector))?;
            let name = format!("dafs-nfs-{index}");
            server.threads.push(gate.spawn(name, || reactor.run())?);
        }
        for index in 0..rdma_threads {
            let nfs = server.shared.clone();
            let adapters =
                rdma.adapters(config, (&connections, tls.as_ref()), index, rdma_threads)?;
            let pages = pages(rings.pop())?;
            let make = |injector| handler(nfs, pages, injector);
            let reactor = server.group.rdma_reactor(adapters, make)?;
            let name = format!("dafs-rdma-{index}");
            server.threads.push(gate.spawn(name, || reactor.run())?);
        }
        Ok(Some(server))
    }

    /// Lets NFSv3 clients find the server by rpcbind, with its locks.
    pub(super) fn register(&mut self) {
        if let Some(&address) = self.addresses.first() {
            match Monitor::start(address, self.shared.clone()) {
                Ok(monitor) => self.monitor = Some(monitor),
                Err(error) => tracing::warn!(
                    %address, %error,
                    "the locks of an NFSv3 client that restarts stay until it locks again: \
                     datagrams with its notification do not arrive"
                ),
            }
        }
        let rdma = [self.rdma_addresses.as_slice(), &self.verbs_addresses].concat();
        let monitor = self.monitor.as_ref().map(|monitor| monitor.port);
        let addresses = Addresses { tcp: &self.addresses, rdma: &rdma, monitor };
        self.registration = Registration::make(&addresses);
    }

    /// Leaves its entries in rpcbind to the next server, which replaces them.
    pub(super) fn stay_registered(&mut self) {
        if let Some(registration) = self.registration.take() {
            registration.leave();
        }
    }

    /// Returns the counters, for an owner that outlives this.
    pub(super) fn group(&self) -> Arc<Group> {
        self.group.clone()
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        self.registration = None;
        self.monitor = None;
        self.gate.shut();
        self.group.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an NFS reactor had failed");
            }
        }
    }
}

/// Wraps the ring of a reactor, where there are rings.
fn pages(ring: Option<ReadRing>) -> io::Result<Option<Box<dyn PageReads>>> {
    let Some(ring) = ring else { return Ok(None) };
    Ok(Some(Box::new(PageRing::new(ring)?)))
}

/// Makes the handler of a reactor.
fn handler(
    shared: Arc<NfsShared>,
    pages: Option<Box<dyn PageReads>>,
    injector: Injector<()>,
) -> NfsHandler {
    let handler = NfsHandler::new(shared);
    match pages {
        Some(pages) => handler.reading_by(pages, injector),
        None => handler,
    }
}

/// Returns the identity of a server for clients. `secret` is random.
pub(super) fn options(server: &[u8], secret: [u8; 16]) -> NfsOptions {
    NfsOptions {
        server_owner: hex(server),
        server_scope: hex(server),
        implementation_domain: "dafs.invalid".to_owned(),
        implementation_name: format!("dafs {}", env!("CARGO_PKG_VERSION")),
        secret,
        clock_start_ns: 0,
        clock: || dafs_dat::Instant::now().0,
    }
}

pub(super) fn admission() -> Admission {
    Admission { own_uid: rustix::process::geteuid().as_raw() }
}

pub(super) fn rpc_config(config: &Config) -> RpcConfig {
    RpcConfig {
        wake: config.wake,
        first_call_timeout: Duration::from_secs(config.limits.handshake_seconds),
        ..RpcConfig::default()
    }
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}
