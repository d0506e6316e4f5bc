//! TLS below MPA: the contract of the trait, the choice by the first byte, and attacks.

use crate::contract::{Link, Side, World, pattern};
use crate::pki::Pki;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{Access, Address, ConnectError, DisconnectReason, Event, Instant, WorkStatus};
use dafs_mem::Buffer;
use dafs_tls::Protocol;
use dafs_tls::TransportSecurity::{self, Mtls, Tls};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The authority of all tests that change nothing.
pub(crate) fn pki() -> &'static Pki {
    static PKI: OnceLock<Pki> = OnceLock::new();
    PKI.get_or_init(Pki::new)
}

pub(crate) fn world_of(client: IwarpAdapter, server: IwarpAdapter) -> World {
    World {
        client: Side::new(Box::new(client)),
        server: Side::new(Box::new(server)),
        listen: Address::Tcp("127.0.0.1:0".parse().unwrap()),
        clock: Box::new(Instant::now),
        tells_whose_mistake: true,
    }
}

fn secure_world(least: TransportSecurity) -> World {
    world_of(pki().client(least), pki().server(IwarpConfig::default()))
}

/// Large FPDUs, each in a record.
mod own {
    use super::*;

    fn world() -> World {
        secure_world(Tls)
    }

    all_contract_tests!(world);
}

/// A peer that does not announce this implementation.
mod foreign {
    use super::*;

    fn world() -> World {
        world_of(
            pki().client(Mtls),
            pki().server(IwarpConfig { announce: false, ..IwarpConfig::default() }),
        )
    }

    all_contract_tests!(world);
}

#[test]
fn the_first_byte_decides_and_both_ends_have_one_binding() {
    let mut bindings = Vec::new();
    for least in [Some(Tls), Some(Mtls), None] {
        let client = match least {
            Some(least) => pki().client(least),
            None => IwarpAdapter::new(IwarpConfig { crc: true, ..IwarpConfig::default() }).unwrap(),
        };
        let mut world = world_of(client, pki().server(IwarpConfig::default()));
        let link = world.connect();
        world.greet(link);
        let (client, server) = (
            world.client.adapter.peer(link.client).unwrap(),
            world.server.adapter.peer(link.server).unwrap(),
        );
        let tls = server.tls.as_ref();
        assert_eq!(tls.map(|tls| tls.level), least);
        let subject = tls.and_then(|tls| tls.subject.as_deref());
        assert_eq!(subject.is_some_and(|subject| subject.contains("host7")), least == Some(Mtls));
        assert_eq!((client.binding(), client.tls.is_some()), (server.binding(), least.is_some()));
        bindings.extend(server.binding().map(<[u8]>::to_vec));
    }
    assert_ne!(bindings[0], bindings[1], "another connection has another one");
}

/// Changes bytes that pass a relay. Returns false if the stream ends behind them.
type Change = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

/// A relay that records all bytes, and may change or cut those of the client.
struct Relay {
    address: Address,
    seen: Arc<Mutex<Vec<u8>>>,
    _done: Receiver<()>,
}

impl Relay {
    fn to(target: &Address, change: Change) -> Self {
        let Address::Tcp(target) = *target else { panic!() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (ours, (done, _done)) = (seen.clone(), channel());
        std::thread::spawn(move || {
            let client = listener.accept().unwrap().0;
            let server = TcpStream::connect(target).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap(), ours.clone());
            std::thread::spawn(move || pass(back.0, back.1, &back.2, unchanged()));
            pass(client, server, &ours, change);
            drop(done);
        });
        Self { address, seen, _done }
    }

    fn has_seen(&self, marker: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(marker.len()).any(|bytes| bytes == marker)
    }
}

fn unchanged() -> Change {
    Box::new(|_| true)
}

fn pass(mut from: TcpStream, mut to: TcpStream, seen: &Mutex<Vec<u8>>, mut change: Change) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen.lock().unwrap().extend_from_slice(&buffer[..count]);
        let mut bytes = buffer[..count].to_vec();
        let goes_on = change(&mut bytes);
        if to.write_all(&bytes).is_err() || !goes_on {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Write), from.shutdown(Shutdown::Read));
}

/// Connects to this address, which is the server's or leads there.
pub(crate) fn link_to(world: &mut World, address: &Address) -> Link {
    let client = world.client.adapter.connect(world.client.domain, address, b"").unwrap();
    let (request, _) = world.server_request();
    let server = world.server.adapter.accept(request, world.server.domain, b"").unwrap();
    world.client_event(|event| match event {
        Event::Established { endpoint, .. } if *endpoint == client => Some(()),
        _ => None,
    });
    Link { client, server }
}

/// Connects through a relay and sends a message of 100,000 bytes with a marker; returns how it
/// ended at the server.
fn sent_through(
    world: &mut World,
    change: Change,
) -> (Relay, Result<WorkStatus, DisconnectReason>) {
    const SIZE: usize = 100_000;
    let (_, address) = world.start_listening();
    let relay = Relay::to(&address, change);
    let Link { client, server } = link_to(world, &relay.address);
    let (to, from) = (
        world.server.memory(SIZE, Access::LOCAL_WRITE),
        world.client.memory(SIZE, Access::empty()),
    );
    from.fill(7);
    from.write(40_000, MARKER);
    world.server.adapter.post_receive(server, 1, to.region.local(0, SIZE)).unwrap();
    world.client.adapter.post_send(client, 2, &[from.region.local(0, SIZE)]).unwrap();
    let end = world.server_event(|event| match event {
        Event::Completion(done) if done.work == 1 => Some(done.status),
        _ => None,
    });
    if end == WorkStatus::Flushed {
        return (relay, Err(world.server_gone(server)));
    }
    assert!(to.read(0, SIZE) == from.read(0, SIZE));
    (relay, Ok(end))
}

const MARKER: &[u8] = b"a marker that no one on the way may read";

#[test]
fn the_wire_shows_the_data_only_without_tls() {
    let (relay, sent) = sent_through(&mut secure_world(Tls), unchanged());
    assert_eq!((sent, relay.has_seen(MARKER)), (Ok(WorkStatus::Ok(100_000)), false));
    let plain = || IwarpAdapter::new(IwarpConfig::default()).unwrap();
    let (relay, sent) = sent_through(&mut world_of(plain(), plain()), unchanged());
    assert_eq!((sent, relay.has_seen(MARKER)), (Ok(WorkStatus::Ok(100_000)), true));
}

#[test]
fn a_changed_record_ends_the_connection() {
    // The reads of the handshake and of the set-up are short.
    let damaged: Change = Box::new(|bytes| {
        if bytes.len() > 8000 {
            bytes[5000] ^= 1;
        }
        true
    });
    let (_, end) = sent_through(&mut secure_world(Tls), damaged);
    let text = end.unwrap_err().to_string();
    assert!(
        text.contains("a record was changed") || text.contains("no protected record"),
        "{text}"
    );
}

/// Ends the stream this many bytes behind its first long record.
fn cut_behind(extra: usize) -> Change {
    let mut stream = Vec::new();
    Box::new(move |bytes| {
        let before = stream.len();
        stream.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(&[_, _, _, high, low]) = stream.get(at..at + 5) {
            let body = usize::from(u16::from_be_bytes([high, low]));
            at += 5 + body;
            if body > 8000 {
                let is_cut = stream.len() >= at + extra;
                if is_cut {
                    bytes.truncate(at + extra - before);
                }
                return !is_cut;
            }
        }
        true
    })
}

#[test]
fn a_stream_that_is_cut_ends_the_connection_and_nothing_half_is_delivered() {
    for (extra, told) in [
        (0, "without close_notify"),
        (3, "inside a record of TLS"),
        (5, "inside a record of TLS"),
        (4000, "inside a record of TLS"),
    ] {
        let mut world = secure_world(Tls);
        let (_, end) = sent_through(&mut world, cut_behind(extra));
        let text = end.unwrap_err().to_string();
        assert!(text.contains(told), "{extra}: {text}");
        let is_done = |event: &Event| matches!(event, Event::Completion(_));
        assert!(!world.server.events.iter().any(is_done), "{extra}: {:?}", world.server.events);
    }
}

/// The error of a connection that is not made.
fn refused(client: IwarpAdapter, server: IwarpAdapter) -> ConnectError {
    let mut world = world_of(client, server);
    let (_, address) = world.start_listening();
    let client = world.client.adapter.connect(world.client.domain, &address, b"").unwrap();
    let error = world.client_event(|event| match event {
        Event::ConnectFailed { endpoint, error } if *endpoint == client => Some(error.to_string()),
        Event::Established { .. } => panic!("it is established"),
        _ => None,
    });
    assert!(world.server.events.is_empty(), "the consumer of the server hears nothing");
    ConnectError::Tls(error)
}

#[test]
fn a_wrong_name_protocol_or_server_is_refused() {
    let server = || pki().server(IwarpConfig::default());
    let client = |tls| {
        let tls = Some(tls);
        IwarpAdapter::new(IwarpConfig { tls, ..IwarpConfig::default() }).unwrap()
    };
    let error = refused(client(pki().demand(Tls, "other.example", Protocol::Dafs)), server());
    assert!(error.to_string().contains("other.example"), "{error}");
    let error = refused(client(pki().demand(Tls, "localhost", Protocol::RpcRdma)), server());
    assert!(error.to_string().contains("no_application_protocol"), "{error}");
    let plain = IwarpAdapter::new(IwarpConfig::default()).unwrap();
    let error = refused(pki().client(Tls), plain);
    assert!(error.to_string().contains("ended the connection in the handshake"), "{error}");
    let stranger = Pki::new();
    let error = refused(stranger.client(Tls), server());
    assert!(error.to_string().contains("certificate is refused"), "{error}");
    // Such a client is let in, and its certificate does not count.
    let mut world = world_of(stranger_to(&stranger), server());
    let link = world.connect();
    let peer = world.server.adapter.peer(link.server).unwrap();
    assert_eq!(peer.tls.map(|tls| (tls.level, tls.subject.clone())), Some((Tls, None)));
}

/// A client that trusts the server, and shows a certificate of another authority.
fn stranger_to(stranger: &Pki) -> IwarpAdapter {
    use dafs_dat::tls::{ClientTls, now_seconds};
    use dafs_tls::{ClientFiles, ReloadingClient};
    let files = ClientFiles {
        authorities: pki().folder.authority_files().certificate,
        revocations: None,
        certificate: Some(stranger.client.certificate.clone()),
        key: Some(stranger.client.key.clone()),
    };
    let files = Arc::new(ReloadingClient::open(files, now_seconds()).unwrap());
    let tls = Some(ClientTls::new(files, "localhost", Mtls, Protocol::Dafs));
    IwarpAdapter::new(IwarpConfig { tls, ..IwarpConfig::default() }).unwrap()
}

/// True when the other end has closed the connection.
fn is_closed(stream: &mut TcpStream, mut work: impl FnMut()) -> bool {
    stream.set_nonblocking(true).unwrap();
    for _ in 0..60_000 {
        work();
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return true,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    false
}

#[test]
fn half_handshakes_are_bounded_and_end_by_their_timer() {
    let authority = Pki::new();
    let mut side = Side::new(Box::new(authority.server(IwarpConfig::default())));
    let listen = Address::Tcp("127.0.0.1:0".parse().unwrap());
    let listener = side.adapter.listen(&listen).unwrap();
    let Some(Address::Tcp(address)) = side.adapter.listener_address(listener) else { panic!() };
    let now = Mutex::new(Instant(1));
    let mut events = Vec::new();
    let mut poll = || {
        side.adapter.poll(*now.lock().unwrap(), &mut events);
        assert!(events.is_empty(), "{events:?}");
    };
    // The header of a handshake record, and never its body.
    let mut half: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[0x16, 3, 1, 0, 200, 1]).unwrap();
            poll();
            stream
        })
        .collect();
    (0..100).for_each(|_| poll());
    let mut one_more = TcpStream::connect(address).unwrap();
    one_more.write_all(&[0x16, 3, 1, 0, 200, 1]).unwrap();
    assert!(is_closed(&mut one_more, &mut poll), "one host has 64 handshakes");
    // Other first bytes need no handshake.
    let mut junk = TcpStream::connect(address).unwrap();
    junk.write_all(b"GET / HTTP/1.1\r\n\r\n    ").unwrap();
    assert!(is_closed(&mut junk, &mut poll));
    *now.lock().unwrap() = Instant(1) + Duration::from_secs(11);
    assert!(half.iter_mut().all(|stream| is_closed(stream, &mut poll)));
    // There is room again.
    let mut last = TcpStream::connect(address).unwrap();
    last.write_all(&[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0]).unwrap();
    let mut alert = [0; 7];
    last.set_nonblocking(true).unwrap();
    let got = (0..5000).any(|_| {
        poll();
        std::thread::sleep(Duration::from_millis(1));
        last.read(&mut alert).is_ok_and(|count| count == 7)
    });
    assert!(got && alert[0] == 21, "an alert answers what is no ClientHello: {alert:?}");
}

#[test]
fn a_client_that_is_no_longer_trusted_loses_its_connection() {
    let authority = Pki::new();
    let mut world = world_of(authority.client(Mtls), authority.server(IwarpConfig::default()));
    let start = Instant::now();
    let later = Arc::new(Mutex::new(start));
    let clock = later.clone();
    world.clock = Box::new(move || *clock.lock().unwrap());
    let link = world.connect();
    world.greet(link);
    let other = world.connect();
    // Another authority takes the place of the first.
    let stranger = Pki::new();
    let file = authority.folder.authority_files().certificate;
    std::fs::copy(stranger.folder.authority_files().certificate, file).unwrap();
    authority.files.reload(dafs_dat::tls::now_seconds()).unwrap();
    world.poll();
    *later.lock().unwrap() = start + Duration::from_secs(3);
    let reason = world.server_gone(link.server).to_string();
    assert!(reason.contains("not trusted any more"), "{reason}");
    assert_eq!(world.client_gone(link.client), DisconnectReason::Peer);
    world.server_gone(other.server);
}

#[test]
fn a_client_that_has_lost_its_trust_sends_no_further_message() {
    let authority = Pki::new();
    let mut world = world_of(authority.client(Mtls), authority.server(IwarpConfig::default()));
    // No timer runs out.
    let now = Instant::now();
    world.clock = Box::new(move || now);
    let link = world.connect();
    world.greet(link);
    let stranger = Pki::new();
    let file = authority.folder.authority_files().certificate;
    std::fs::copy(stranger.folder.authority_files().certificate, file).unwrap();
    authority.files.reload(dafs_dat::tls::now_seconds()).unwrap();
    (0..10).for_each(|_| world.poll());
    assert!(world.server.events.is_empty(), "{:?}", world.server.events);
    let to = world.server.memory(8, Access::LOCAL_WRITE);
    let from = world.client.memory(8, Access::empty());
    world.server.adapter.post_receive(link.server, 1, to.region.local(0, 8)).unwrap();
    world.client.adapter.post_send(link.client, 2, &[from.region.local(0, 8)]).unwrap();
    assert_eq!(world.server_done(1), WorkStatus::Flushed);
    let reason = world.server_gone(link.server).to_string();
    assert!(reason.contains("not trusted any more"), "{reason}");
}

#[test]
fn a_server_that_has_lost_its_trust_gets_no_further_message() {
    let authority = Pki::new();
    let mut world = world_of(authority.client(Tls), authority.server(IwarpConfig::default()));
    let link = world.connect();
    world.greet(link);
    let stranger = Pki::new();
    std::fs::copy(stranger.folder.authority_files().certificate, &authority.trusted).unwrap();
    let to = world.server.memory(8, Access::LOCAL_WRITE);
    let from = world.client.memory(8, Access::empty());
    world.server.adapter.post_receive(link.server, 1, to.region.local(0, 8)).unwrap();
    // A client looks at its files once a second.
    std::thread::sleep(Duration::from_millis(1100));
    world.client.adapter.post_send(link.client, 2, &[from.region.local(0, 8)]).unwrap();
    assert_eq!(world.server_done(1), WorkStatus::Flushed);
    let reason = world.client_gone(link.client).to_string();
    assert!(reason.contains("server's certificate is not trusted any more"), "{reason}");
    assert_eq!(world.server_gone(link.server), DisconnectReason::Peer);
}

#[test]
fn reads_of_all_sizes_arrive() {
    let mut world = secure_world(Tls);
    let link = world.connect();
    world.greet(link);
    for size in [1, 4095, 16_364, 16_365, 1 << 20, 3_000_001] {
        let source = world.client.memory(size, Access::REMOTE_READ);
        let target = world.server.memory(size, Access::LOCAL_WRITE);
        source.fill(size as u64);
        let (all, remote) = (target.region.local(0, size), source.remote(0, size as u32));
        world.server.adapter.rdma_read(link.server, 4, all, remote).unwrap();
        assert_eq!(world.server_done(4), WorkStatus::Ok(size as u32));
        assert!(target.read(0, size) == pattern(size as u64, size));
    }
}

const RECORDS: u64 = 24;

/// Connections whose keys are soon spent.
fn short_world() -> World {
    let config = || IwarpConfig { records_max: RECORDS, ..IwarpConfig::default() };
    let tls = Some(pki().demand(Tls, "localhost", Protocol::Dafs));
    let client = IwarpAdapter::new(IwarpConfig { tls, ..config() }).unwrap();
    world_of(client, pki().server(config()))
}

#[test]
fn a_connection_whose_keys_are_spent_ends_behind_a_reply() {
    let mut world = short_world();
    let link = world.connect();
    let server = world.server.memory(64, Access::LOCAL_WRITE);
    let client = world.client.memory(64, Access::LOCAL_WRITE);
    let mut answered = 0;
    let reason = loop {
        world.server.adapter.post_receive(link.server, 1, server.region.local(0, 32)).unwrap();
        world.client.adapter.post_receive(link.client, 2, client.region.local(0, 32)).unwrap();
        world.client.adapter.post_send(link.client, 3, &[client.region.local(32, 32)]).unwrap();
        assert_eq!(world.client_done(3), WorkStatus::Ok(32));
        assert_eq!(world.server_done(1), WorkStatus::Ok(32));
        // The server takes its time.
        (0..100).for_each(|_| world.poll());
        let events = [&world.client.events, &world.server.events];
        assert!(
            events.iter().all(|events| events.is_empty()),
            "a request is unanswered: {events:?}"
        );
        world.server.adapter.post_send(link.server, 4, &[server.region.local(32, 32)]).unwrap();
        assert_eq!(world.server_done(4), WorkStatus::Ok(32));
        assert_eq!(world.client_done(2), WorkStatus::Ok(32));
        answered += 1;
        world.poll();
        if !world.server.events.is_empty() {
            break world.server_gone(link.server);
        }
    };
    assert!(reason.to_string().contains("as many records as they may"), "{reason}");
    assert_eq!(world.client_gone(link.client), DisconnectReason::Peer);
    // A frame of the set-up is a record, too.
    assert_eq!(answered, RECORDS - 1);
}

#[test]
fn keys_have_a_limit_although_no_reply_comes() {
    let mut world = short_world();
    let link = world.connect();
    let server = world.server.memory(32, Access::LOCAL_WRITE);
    let client = world.client.memory(32, Access::empty());
    for message in 2.. {
        world.server.adapter.post_receive(link.server, 1, server.region.local(0, 32)).unwrap();
        world.client.adapter.post_send(link.client, 3, &[client.region.local(0, 32)]).unwrap();
        assert_eq!(world.client_done(3), WorkStatus::Ok(32));
        assert_eq!(world.server_done(1), WorkStatus::Ok(32));
        if message == RECORDS + RECORDS / 2 {
            break;
        }
        (0..10).for_each(|_| world.poll());
        assert!(world.client.events.is_empty() && world.server.events.is_empty());
    }
    let reasons = [world.server_gone(link.server), world.client_gone(link.client)];
    let is_told = |reason: &DisconnectReason| reason.to_string().contains("records as they may");
    assert!(reasons.iter().any(is_told), "{reasons:?}");
}

#[test]
fn a_message_before_one_without_memory_arrives() {
    let mut world = secure_world(Tls);
    let link = world.connect();
    world.greet(link);
    let to = world.server.memory(64, Access::LOCAL_WRITE);
    let from = world.client.memory(32, Access::empty());
    // SAFETY: no program has its second page mapped.
    let missing = unsafe { Buffer::borrowed(std::ptr::without_provenance_mut(4096), 32) };
    let domain = world.client.domain;
    let missing =
        world.client.adapter.register(domain, Arc::new(missing), Access::empty()).unwrap();
    for (work, offset) in [(1, 0), (2, 32)] {
        world.server.adapter.post_receive(link.server, work, to.region.local(offset, 32)).unwrap();
    }
    world.client.adapter.post_send(link.client, 3, &[from.region.local(0, 32)]).unwrap();
    world.client.adapter.post_send(link.client, 4, &[missing.local(0, 32)]).unwrap();
    assert_eq!(world.client_done(3), WorkStatus::Ok(32));
    assert_eq!(world.client_done(4), WorkStatus::Flushed);
    let reason = world.client_gone(link.client).to_string();
    assert!(reason.contains("memory"), "{reason}");
    assert_eq!(world.server_done(1), WorkStatus::Ok(32));
    assert_eq!(world.server_done(2), WorkStatus::Flushed);
}
