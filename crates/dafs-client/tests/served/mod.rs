//! A real server in this process, on a directory of its own, and clients of it.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "the module is compiled into several tests")]

use dafs_client::{Client, ConnectOptions, DafsUrl, TransportChoice, WaitPolicy};
use dafs_server::{Config, Server};
use std::path::Path;
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

/// Bytes that differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}
