//! A real server in this process, on a directory of its own, and clients of it.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "the module is compiled into several tests")]

use dafs_client::{Client, ConnectOptions, DafsUrl, TransportChoice, WaitPolicy};
use dafs_server::{Config, Server};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

pub const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Iwarp, TransportChoice::Shm];

pub struct Served {
    pub server: Option<Server>,
    pub url: DafsUrl,
    pub dir: TempDir,
    _state: TempDir,
    config: Config,
}

impl Served {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (dir, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let mut config = Config::for_directory(dir.path().to_owned());
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.state_directory = Some(state.path().to_owned());
        config.threads = 1;
        // Root squashing is the server's business; these tests may run as root.
        config.exports[0].options.squash = dafs_service::Squash::None;
        change(&mut config);
        let server = Server::start(&config).unwrap();
        let url = DafsUrl::parse(&server.url()).unwrap();
        // A restarted server has the address of the one before.
        config.listen = vec![format!("127.0.0.1:{}", url.port()).parse().unwrap()];
        Self { server: Some(server), url, dir, _state: state, config }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn client(&self, transport: TransportChoice) -> Client {
        self.client_with(|options| options.transport = transport)
    }

    pub fn client_with(&self, change: impl FnOnce(&mut ConnectOptions)) -> Client {
        let wait = WaitPolicy::Adaptive { spin: 50 };
        let mut options = ConnectOptions { wait, ..ConnectOptions::default() };
        change(&mut options);
        Client::connect(&self.url, &options).unwrap()
    }

    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    pub fn start(&mut self) {
        self.server = Some(Server::start(&self.config).unwrap());
    }
}

/// A wire between a client and a server that is cut when so many bytes have gone over it.
pub struct Wire {
    pub address: SocketAddr,
    pub cuts: Arc<AtomicU64>,
    /// Nothing goes over it while this is locked.
    pub held: Arc<Mutex<()>>,
}

impl Wire {
    /// `lengths` yields how many bytes the next connection lasts, in both directions together.
    pub fn new(
        server: SocketAddr,
        mut lengths: impl FnMut() -> Option<u64> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicU64::new(0));
        let counted = cuts.clone();
        let held = Arc::new(Mutex::new(()));
        let holds = held.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { return };
                let left = lengths().map(|bytes| Arc::new(AtomicU64::new(bytes)));
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (left, counted) = (left.clone(), counted.clone());
                    let holds = holds.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            let mut pass = count;
                            if let Some(left) = &left {
                                let spend = |left: u64| Some(left.saturating_sub(count as u64));
                                let before = left
                                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend)
                                    .unwrap();
                                pass = pass.min(before as usize);
                            }
                            drop(holds.lock());
                            if to.write_all(&bytes[..pass]).is_err() {
                                break;
                            }
                            if pass < count {
                                counted.fetch_add(1, Ordering::SeqCst);
                                break;
                            }
                        }
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address, cuts, held }
    }

    pub fn client(&self) -> Client {
        self.try_client().unwrap()
    }

    /// `None` if the wire breaks before the session is open.
    pub fn try_client(&self) -> Option<Client> {
        self.client_with(|_| {})
    }

    pub fn client_with(&self, change: impl FnOnce(&mut ConnectOptions)) -> Option<Client> {
        let url = DafsUrl::parse(&format!("dafs://{}/", self.address)).unwrap();
        let mut options =
            ConnectOptions { transport: TransportChoice::Iwarp, ..ConnectOptions::default() };
        change(&mut options);
        Client::connect(&url, &options).ok()
    }
}

/// Bytes that differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}
