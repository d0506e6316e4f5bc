//! The scripted server behind a real transport, for the layers above the session core.

use super::{Answer, FakeServer};
use dafs_client::{Client, ConnectOptions, DafsUrl, TransportChoice};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{Adapter, Address, Instant};
use dafs_wire::dafs::{Request, RequestHeader};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A scripted server on a thread of its own, which ends when this is dropped.
pub struct Live {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Over TCP. `script` runs on the server's thread.
    pub fn scripted(
        script: impl FnMut(&RequestHeader, &Request<'_>) -> Answer + Send + 'static,
    ) -> Self {
        Self::start(|server| server.script = Box::new(script))
    }

    /// `prepare` runs on the server's thread.
    pub fn start(prepare: impl FnOnce(&mut FakeServer) + Send + 'static) -> Self {
        Self::with_ticks(prepare, |_| {})
    }

    /// `tick` runs on the server's thread again and again.
    pub fn with_ticks(
        prepare: impl FnOnce(&mut FakeServer) + Send + 'static,
        mut tick: impl FnMut(&mut FakeServer) + Send + 'static,
    ) -> Self {
        let mut adapter = IwarpAdapter::new(IwarpConfig::default()).unwrap();
        let listener = adapter.listen(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let Some(Address::Tcp(address)) = adapter.listener_address(listener) else {
            panic!("a listener has an address");
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut server = FakeServer::new(Box::new(adapter));
            prepare(&mut server);
            while !stopped.load(Ordering::Relaxed) {
                server.poll(Instant::now());
                tick(&mut server);
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    pub fn client(&self, change: impl FnOnce(&mut ConnectOptions)) -> Client {
        let mut options =
            ConnectOptions { transport: TransportChoice::Iwarp, ..ConnectOptions::default() };
        change(&mut options);
        let url = DafsUrl::parse(&format!("dafs://{}/", self.address)).unwrap();
        Client::connect(&url, &options).unwrap()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let result = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            result.unwrap();
        }
    }
}
