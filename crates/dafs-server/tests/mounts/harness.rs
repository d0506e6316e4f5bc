//! A server on a directory of its own, reached through a relay that can cut connections.

use dafs_mem::Site;
use dafs_nfs_client::mount::{Memory, Mount, MountOptions, NfsUrl, NfsVersion};
use dafs_server::{Config, Server};
use dafs_service::Squash;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Every version.
pub(crate) const VERSIONS: [NfsVersion; 3] = [NfsVersion::V3, NfsVersion::V41, NfsVersion::V42];

pub(crate) struct Served {
    server: Option<Server>,
    config: Config,
    relay: Relay,
    directory: TempDir,
    _state: TempDir,
}

impl Served {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (directory, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let mut config = Config::for_directory(directory.path().to_owned());
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.nfs.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.nfs.grace_time = Some(Duration::ZERO);
        config.state_directory = Some(state.path().to_owned());
        config.threads = 1;
        config.exports[0].options.squash = Squash::None;
        config.exports[0].options.admits.unprivileged_ports = true;
        change(&mut config);
        let server = Server::start(&config).unwrap();
        let relay = Relay::new(server.nfs_addresses()[0]);
        Self { server: Some(server), config, relay, directory, _state: state }
    }

    /// The exported directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn relay(&self) -> &Relay {
        &self.relay
    }

    pub(crate) fn url(&self, query: &str) -> NfsUrl {
        NfsUrl::parse(&format!("nfs://{}/{query}", self.relay.address)).unwrap()
    }

    pub(crate) fn mount(&self, version: NfsVersion) -> Mount {
        self.mount_with(&format!("?vers={version}"))
    }

    pub(crate) fn mount_with(&self, query: &str) -> Mount {
        let options = MountOptions { retry_timeout: PATIENCE, ..MountOptions::default() };
        Mount::connect(&self.url(query), &options).unwrap()
    }

    /// Stops the server, with all connections.
    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        self.relay.cut();
    }

    /// Starts it again with what it has kept.
    pub(crate) fn start(&mut self) {
        let server = Server::start(&self.config).unwrap();
        *self.relay.shared.target.lock().unwrap() = server.nfs_addresses()[0];
        self.server = Some(server);
    }

    pub(crate) fn config(&mut self) -> &mut Config {
        &mut self.config
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Passes connections on to a server.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<RelayShared>,
}

struct RelayShared {
    target: Mutex<SocketAddr>,
    connections: Mutex<Vec<TcpStream>>,
    made: AtomicUsize,
    /// Whether answers are dropped, and the connection with them.
    swallow: AtomicBool,
    over: AtomicBool,
}

impl Relay {
    fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(RelayShared {
            target: Mutex::new(target),
            connections: Mutex::default(),
            made: AtomicUsize::new(0),
            swallow: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.over.load(Ordering::SeqCst) {
                    return;
                }
                let target = *accepting.target.lock().unwrap();
                // Without a server the client is cut off.
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(target)) else {
                    continue;
                };
                accepting.made.fetch_add(1, Ordering::SeqCst);
                let mut all = accepting.connections.lock().unwrap();
                all.push(client.try_clone().unwrap());
                all.push(server.try_clone().unwrap());
                let (from_client, to_server) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                let shared = accepting.clone();
                std::thread::spawn(move || pass(from_client, to_server, || true));
                std::thread::spawn(move || {
                    pass(server, client, || !shared.swallow.swap(false, Ordering::SeqCst));
                });
            }
        });
        Self { address, shared }
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            // It may have ended by itself.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Drops the next answer on any connection, and that connection.
    pub(crate) fn swallow_next_answer(&self) {
        self.shared.swallow.store(true, Ordering::SeqCst);
    }

    /// True while that has not happened.
    pub(crate) fn will_swallow(&self) -> bool {
        self.shared.swallow.load(Ordering::SeqCst)
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.shared.made.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, may_pass: impl Fn() -> bool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !may_pass() || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either may have ended already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Bytes in which every place can be told.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

/// Memory of a mount with these bytes in it.
pub(crate) fn filled(mount: &Mount, bytes: &[u8]) -> Memory {
    let memory = mount.allocate(bytes.len()).unwrap();
    memory.view().copy_from(bytes, Site::Inspect);
    memory
}

/// The first bytes of memory.
pub(crate) fn bytes_of(memory: &Memory, len: usize) -> Vec<u8> {
    memory.view().slice(0, len).unwrap().to_vec(Site::Inspect)
}
