//! Sessions with a real server that outlive their connections.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod served;

use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, OpenOptions, SetAttributes, Stability, TransportChoice,
};
use served::{Served, TRANSPORTS};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_restart_of_the_server_is_only_waited_for() {
    for transport in TRANSPORTS {
        let mut served = Served::new();
        let client = served.client(transport);
        let root = client.root();
        std::fs::write(served.path().join("file"), b"content").unwrap();
        let handle = client.lookup(&root, b"file").unwrap();
        for _ in 0..3 {
            served.stop();
            let waiting = std::thread::spawn({
                let client = client.clone();
                move || client.attributes(&handle).unwrap().size
            });
            served.start();
            assert_eq!(waiting.join().unwrap(), 7);
        }
        assert_eq!(client.stats().recoveries, 3);
        client.disconnect().unwrap();
    }
}

/// A wire between a client and a server that is cut when so many bytes have gone over it.
struct Wire {
    address: SocketAddr,
    cuts: Arc<AtomicU64>,
}

impl Wire {
    /// `lengths` yields how many bytes the next connection lasts, in both directions together.
    fn new(server: SocketAddr, mut lengths: impl FnMut() -> Option<u64> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicU64::new(0));
        let counted = cuts.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { return };
                let left = lengths().map(|bytes| Arc::new(AtomicU64::new(bytes)));
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (left, counted) = (left.clone(), counted.clone());
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
        Self { address, cuts }
    }

    fn client(&self) -> Client {
        let url = DafsUrl::parse(&format!("dafs://{}/", self.address)).unwrap();
        let options =
            ConnectOptions { transport: TransportChoice::Iwarp, ..ConnectOptions::default() };
        Client::connect(&url, &options).unwrap()
    }
}

#[test]
fn no_change_is_made_twice_over_a_wire_that_breaks() {
    let served = Served::new();
    let server = format!("127.0.0.1:{}", served.url.port()).parse().unwrap();
    let mut total = 0;
    for seed in 0..20u64 {
        // Enough to open a session and do some of the work; the last wire lasts.
        let mut number = 0;
        let wire = Wire::new(server, move || {
            number += 1;
            (number < 8).then_some(3_000 + (seed * 7_919 + number * 1_543) % 6_007)
        });
        let client = wire.client();
        let root = client.root();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (client, root) = (client.clone(), root);
                scope.spawn(move || {
                    for step in 0..12 {
                        let old = format!("{seed}-{thread}-{step}");
                        let new = format!("{old}-moved");
                        // Each of these fails when it is done a second time.
                        client.mkdir(&root, old.as_bytes(), &SetAttributes::mode(0o755)).unwrap();
                        client.rename(&root, old.as_bytes(), &root, new.as_bytes()).unwrap();
                        if step % 2 == 0 {
                            client.remove(&root, new.as_bytes()).unwrap();
                        }
                    }
                });
            }
        });
        // A recovery that is broken off goes on and counts once.
        assert!((1..=7).contains(&client.stats().recoveries), "seed {seed}");
        total += wire.cuts.load(Ordering::SeqCst);
        client.disconnect().unwrap();
        let left = std::fs::read_dir(served.path()).unwrap().count();
        assert_eq!(left as u64, (seed + 1) * 4 * 6);
    }
    assert!(total >= 20 * 6, "{total} cuts");
}

#[test]
fn an_open_file_goes_on_over_a_wire_that_breaks() {
    let served = Served::new();
    let server = format!("127.0.0.1:{}", served.url.port()).parse().unwrap();
    let mut number = 0;
    let wire = Wire::new(server, move || {
        number += 1;
        (number < 10).then_some(400_000 + number * 12_347)
    });
    let client = wire.client();
    let content = served::pattern(3 << 20);
    let options = OpenOptions::read_write().create(Create::New);
    let file = client.open(b"file", &options).unwrap();
    file.write_at(&content, 0, Stability::Unstable).unwrap();
    file.commit(0, 0).unwrap();
    let mut back = vec![0; content.len()];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), content.len());
    assert!(back == content);
    file.close().unwrap();
    assert!(client.stats().recoveries >= 5);
    assert!(std::fs::read(served.path().join("file")).unwrap() == content);
}
