//! Servers that go away, are unreachable, or refuse.

use crate::served::{Served, TRANSPORTS, in_threads, on_each_transport_with};
use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, Error, OpenOptions, Stability, TransportChoice,
    WaitPolicy,
};
use dafs_testkit::Setup;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

#[test]
fn a_lost_server_fails_what_waits_and_what_comes() {
    for (mut served, client) in on_each_transport_with(|options| options.recovery = None) {
        let file = client.open(b"file", &OpenOptions::read_write().create(Create::New)).unwrap();
        file.write_at(&[1; 100_000], 0, Stability::Unstable).unwrap();
        let buffer = client.buffer(4096).unwrap();
        let (reading, started) = std::sync::mpsc::channel();
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (client, reading) = (client.clone(), reading.clone());
                std::thread::spawn(move || {
                    let file = client.open(b"file", &OpenOptions::read()).unwrap();
                    reading.send(()).unwrap();
                    loop {
                        if let Err(error) = file.read_at(&mut [0; 4096], 0) {
                            return error;
                        }
                    }
                })
            })
            .collect();
        (0..3).for_each(|_| started.recv().unwrap());
        served.stop();
        for reader in readers {
            let error = reader.join().unwrap();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
            assert!(error.to_string().contains("retry or reconnect"), "{error}");
            assert_eq!(error.to_errno(), 104, "ECONNRESET");
        }
        assert!(matches!(file.read_into(&buffer, 0..10, 0), Err(Error::Lost { .. })));
        assert!(matches!(file.submit_read(&buffer, 0..10, 0), Err(Error::Lost { .. })));
        assert!(matches!(client.ping(), Err(Error::Lost { .. })));
        assert!(client.disconnect().is_err());
    }
}

#[test]
fn operations_of_a_group_are_reported_when_the_server_goes() {
    const BYTES: usize = 256 << 10;
    for transport in TRANSPORTS {
        // Too slow for all writes to be over before the server goes.
        let slow = |setup: &mut Setup| setup.disk_bytes_per_second = Some(20_000_000);
        let mut served = Served::with(slow);
        let client = served.client_with(|options| {
            options.transport = transport;
            options.recovery = None;
        });
        let file = client.open(b"file", &OpenOptions::read_write().create(Create::New)).unwrap();
        let buffer = client.buffer(BYTES).unwrap();
        let group = client.completion_group();
        for tag in 0..500 {
            group.write(tag, &file, &buffer, 0..BYTES, 0, Stability::FileSync).unwrap();
        }
        served.stop();
        let mut completions = Vec::new();
        let time = Some(Duration::from_secs(60));
        group.wait(&mut completions, 500, time).unwrap();
        let mut tags: Vec<u64> = completions.iter().map(|done| done.user_data).collect();
        tags.sort_unstable();
        assert!(tags.into_iter().eq(0..500));
        assert!(matches!(completions.last().unwrap().result, Err(Error::Lost { .. })));
    }
}

#[test]
fn disconnecting_ends_the_session_in_order() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let client = served.client(transport);
        client.disconnect().unwrap();
        let error = client.ping().unwrap_err();
        assert!(error.to_string().contains("closed by this side"), "{error}");
        drop(client);
        while served.counts().sessions > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let client = served.client(transport);
        let clone = client.clone();
        drop(client);
        clone.ping().unwrap();
        drop(clone);
        while served.counts().sessions > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn refusal(url: &str, change: impl FnOnce(&mut ConnectOptions)) -> String {
    let mut options = ConnectOptions::default();
    change(&mut options);
    let error = Client::connect(&DafsUrl::parse(url).unwrap(), &options).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_server_that_is_not_there_is_named_with_a_remedy() {
    // This end of a connection has no listener, and its port is not reused.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let free = held.local_addr().unwrap();
    let url = format!("dafs://{free}/");
    let error = refusal(&url, |_| {});
    assert!(error.contains(&free.to_string()) && error.contains("check that the server runs"));
    let error = refusal(&url, |options| options.transport = TransportChoice::Shm);
    assert!(error.contains("offers shared memory"), "{error}");
    let error = refusal("dafs://no-such-host.invalid/", |_| {});
    assert!(error.contains("check the host name"), "{error}");
}

#[test]
fn a_peer_that_says_nothing_or_nonsense_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("dafs://{}/", listener.local_addr().unwrap());
    let error = refusal(&url, |options| {
        options.transport = TransportChoice::Iwarp;
        options.connect_timeout = Duration::from_millis(200);
    });
    assert!(error.contains("no answer"), "{error}");
    let thread = std::thread::spawn(move || {
        // The connection that was given up above, and the next one.
        for _ in 0..2 {
            let (mut socket, _) = listener.accept().unwrap();
            let _ = socket.read(&mut [0; 4096]);
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\nwhat do you want from me?");
            let _ = socket.read(&mut [0; 4096]);
        }
    });
    let error = refusal(&url, |options| options.transport = TransportChoice::Iwarp);
    assert!(error.contains("does not speak"), "{error}");
    thread.join().unwrap();
}

#[test]
fn every_wait_policy_works() {
    for transport in TRANSPORTS {
        let served = Served::new();
        for wait in [WaitPolicy::Poll, WaitPolicy::Sleep, WaitPolicy::Adaptive { spin: 3 }] {
            let client = served.client_with(|options| {
                options.wait = wait;
                options.transport = transport;
            });
            in_threads(3, |_| {
                for _ in 0..50 {
                    client.ping().unwrap();
                }
            });
        }
    }
}

/// The end of the session is no completion of an operation. A waiter that only looks at completions
/// sleeps over it until the lease is over and then times out.
#[test]
fn leaving_is_not_slept_over() {
    for transport in TRANSPORTS {
        let served = Served::with(|setup| setup.lease_time = Duration::from_secs(2));
        for wait in [WaitPolicy::Sleep, WaitPolicy::Adaptive { spin: 1 }, WaitPolicy::default()] {
            for _ in 0..5 {
                let client = served.client_with(|options| {
                    options.transport = transport;
                    options.wait = wait;
                });
                client.ping().unwrap();
                client.disconnect().unwrap();
            }
        }
    }
}
