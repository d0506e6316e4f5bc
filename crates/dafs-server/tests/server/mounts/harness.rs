//! A server on a directory of its own, behind a relay that can cut connections.

use crate::common::Running;
use dafs_mem::Site;
use dafs_nfs_client::mount::{Memory, Mount, MountOptions, NfsUrl, NfsVersion};
use dafs_server::Config;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than any working operation takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The version and transport of a mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) version: NfsVersion,
    pub(crate) transport: &'static str,
}

const fn way(version: NfsVersion, transport: &'static str) -> Way {
    Way { version, transport }
}

/// NFSv4.2 over TCP.
pub(crate) const PLAIN: Way = way(NfsVersion::V42, "tcp");

/// Every version over TCP, and both families of versions over the other transport that can be cut.
pub(crate) const WAYS: [Way; 5] = [
    way(NfsVersion::V3, "tcp"),
    way(NfsVersion::V41, "tcp"),
    PLAIN,
    way(NfsVersion::V3, "iwarp"),
    way(NfsVersion::V42, "iwarp"),
];

/// Shared memory, which only the end of a server cuts.
pub(crate) const SHARED: [Way; 2] = [way(NfsVersion::V3, "shm"), way(NfsVersion::V41, "shm")];

pub(crate) struct Served {
    running: Running,
    relay: Relay,
    rdma_relay: Relay,
}

impl Served {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut running = Running::new(change);
        let relay = Relay::new(running.server().nfs_addresses()[0]);
        let rdma = running.server().nfs_rdma_addresses()[0];
        // The name of shared memory contains this address, so it must stay the same.
        running.config.nfs.rdma_listen = Some(vec![rdma]);
        Self { running, relay, rdma_relay: Relay::new(rdma) }
    }

    /// Returns the exported directory.
    pub(crate) fn path(&self) -> &Path {
        self.running.path()
    }

    /// Returns the relay between a client and the server.
    pub(crate) fn relay(&self, way: Way) -> &Relay {
        match way.transport {
            "tcp" => &self.relay,
            "iwarp" => &self.rdma_relay,
            other => panic!("{other} cannot be relayed"),
        }
    }

    /// Returns the URL. `more` are further options, with an ampersand before each.
    pub(crate) fn url(&self, way: Way, more: &str) -> NfsUrl {
        let Way { version, transport } = way;
        let text = match transport {
            "tcp" => format!("nfs://{}/?vers={version}{more}", self.relay.address),
            _ => {
                let address = match transport {
                    "iwarp" => self.rdma_relay.address,
                    _ => *self.rdma_relay.shared.target.lock().unwrap(),
                };
                format!("nfs+rdma://{address}/?vers={version}&transport={transport}{more}")
            }
        };
        NfsUrl::parse(&text).unwrap()
    }

    pub(crate) fn mount(&self, way: Way) -> Mount {
        self.mount_with(way, "")
    }

    pub(crate) fn mount_with(&self, way: Way, more: &str) -> Mount {
        mount(&self.url(way, more))
    }

    /// Stops the server, with all connections.
    pub(crate) fn stop(&mut self) {
        self.running.stop();
        self.relay.cut();
        self.rdma_relay.cut();
    }

    /// Starts it again with its durable state.
    pub(crate) fn start(&mut self) {
        let server = self.running.start();
        *self.relay.shared.target.lock().unwrap() = server.nfs_addresses()[0];
        *self.rdma_relay.shared.target.lock().unwrap() = server.nfs_rdma_addresses()[0];
    }
}

pub(crate) fn mount(url: &NfsUrl) -> Mount {
    let options = MountOptions { retry_timeout: PATIENCE, ..MountOptions::default() };
    Mount::connect(url, &options).unwrap()
}

/// Relays connections to a server.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<RelayShared>,
}

struct RelayShared {
    target: Mutex<SocketAddr>,
    connections: Mutex<Vec<TcpStream>>,
    made: AtomicUsize,
    /// Drops answers, and the connection with them.
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
                // Without a server the client's connection is closed.
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(target)) else {
                    continue;
                };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
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

    /// Returns the address that it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
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

    /// True until that happens.
    pub(crate) fn will_swallow(&self) -> bool {
        self.shared.swallow.load(Ordering::SeqCst)
    }

    /// Returns the number of connections so far.
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

/// Returns the first bytes of memory.
pub(crate) fn bytes_of(memory: &Memory, len: usize) -> Vec<u8> {
    memory.view().slice(0, len).unwrap().to_vec(Site::Inspect)
}
