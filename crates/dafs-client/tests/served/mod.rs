//! Clients of a real server in this process.

#![allow(dead_code, unused_imports, reason = "each test program uses its part")]
#![allow(unreachable_pub, reason = "the module is compiled into several tests")]

pub use dafs_testkit::pattern;

use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, Error, File, OpenOptions, Status, TransportChoice,
    WaitPolicy,
};
use dafs_testkit::Setup;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

/// With `DAFS_TEST_VERBS` in the environment an RDMA device takes the place of both.
pub const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Iwarp, TransportChoice::Shm];

/// A server, with a client over TCP.
pub fn connected() -> (Served, Client) {
    let served = Served::new();
    let client = served.client(TransportChoice::Iwarp);
    (served, client)
}

/// A server for each transport, with a client over it.
pub fn on_each_transport() -> impl Iterator<Item = (Served, Client)> {
    on_each_transport_with(|_| {})
}

pub fn on_each_transport_with(
    change: impl Fn(&mut ConnectOptions),
) -> impl Iterator<Item = (Served, Client)> {
    TRANSPORTS.into_iter().map(move |transport| {
        let served = Served::new();
        let client = served.client_with(|options| {
            options.transport = transport;
            change(options);
        });
        (served, client)
    })
}

/// Opens "/file" for reading and writing; makes it if it does not exist.
pub fn open_file(client: &Client) -> File {
    let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o640);
    client.open(b"/file", &options).unwrap()
}

/// The status that the server has answered.
pub fn status<T>(result: Result<T, Error>) -> Status {
    match result {
        Err(error) => error.status().unwrap_or_else(|| panic!("{error}")),
        Ok(_) => Status::Ok,
    }
}

/// Does the work in so many threads, each with its number.
pub fn in_threads(count: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..count {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
}

/// Requests answered while `what` runs.
pub fn requests(client: &Client, what: impl FnOnce()) -> u64 {
    let before = client.stats();
    what();
    let after = client.stats();
    after.answered - before.answered - (after.nulls - before.nulls)
}

/// Reads a file in pieces up to its end.
pub fn read_all(file: &File, piece_bytes: usize, want: &[u8]) {
    let mut found = vec![0; want.len() + piece_bytes];
    let mut at = 0;
    loop {
        let bytes = file.read_at(&mut found[at..at + piece_bytes], at as u64).unwrap();
        at += bytes;
        if bytes < piece_bytes {
            break;
        }
    }
    assert!(&found[..at] == want);
}

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

    /// Makes a file of so many bytes, and returns them.
    pub fn with_file(&self, name: &str, bytes: usize) -> Vec<u8> {
        let content = pattern(bytes);
        std::fs::write(self.path().join(name), &content).unwrap();
        content
    }

    pub fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }

    pub fn client(&self, transport: TransportChoice) -> Client {
        self.client_with(|options| options.transport = transport)
    }

    pub fn client_with(&self, change: impl FnOnce(&mut ConnectOptions)) -> Client {
        let wait = WaitPolicy::Adaptive { spin: 50 };
        let mut options = ConnectOptions { wait, ..ConnectOptions::default() };
        change(&mut options);
        if dafs_testkit::device().is_some() && TRANSPORTS.contains(&options.transport) {
            options.transport = TransportChoice::Verbs;
        }
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
