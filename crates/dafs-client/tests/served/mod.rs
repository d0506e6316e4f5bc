//! Clients of a real server in this process.

#![allow(dead_code, unused_imports, reason = "each test program uses its part")]
#![allow(unreachable_pub, reason = "the module is compiled into several tests")]

pub use dafs_testkit::pattern;

use dafs_client::{Client, ConnectOptions, DafsUrl, TransportChoice, WaitPolicy};
use dafs_testkit::Setup;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

pub const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Iwarp, TransportChoice::Shm];

/// A server.
pub struct Served {
    server: dafs_testkit::Served,
    pub url: DafsUrl,
}

impl Served {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let server = dafs_testkit::Served::with(change);
        let url = DafsUrl::parse(&server.url()).unwrap();
        Self { server, url }
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
}

impl Deref for Served {
    type Target = dafs_testkit::Served;

    fn deref(&self) -> &Self::Target {
        &self.server
    }
}

impl DerefMut for Served {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.server
    }
}

/// A wire between a client and a server that breaks.
pub struct Wire(dafs_testkit::Wire);

impl Deref for Wire {
    type Target = dafs_testkit::Wire;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Wire {
    pub fn new(server: SocketAddr, lengths: impl FnMut() -> Option<u64> + Send + 'static) -> Self {
        Self(dafs_testkit::Wire::new(server, lengths))
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
