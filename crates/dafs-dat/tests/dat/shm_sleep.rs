//! Sleep, wake-up and death: the shared-memory provider between threads and processes.

use crate::pair::{self, Memory, Pair, pattern, status};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{
    Access, Adapter, Address, DisconnectReason, EndpointId, Event, Instant, MemoryRegion,
    Operation, RemoteBuffer, WorkStatus,
};
use dafs_mem::Site;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

/// Timeout of a sleeper. A lost wake-up hangs forever, so the timeout only has to be long.
const GIVE_UP: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Waits for events: polls `spins` times, then sleeps.
fn wait(adapter: &mut ShmAdapter, spins: u32) -> Vec<Event> {
    let mut events = Vec::new();
    let mut polls = 0;
    while adapter.poll(Instant::now(), &mut events) == 0 {
        polls += 1;
        if polls > spins && adapter.arm().unwrap() {
            sleep(adapter);
        }
    }
    events
}

fn sleep(adapter: &ShmAdapter) {
    let descriptor = adapter.descriptor().unwrap();
    let mut wait = [PollFd::new(&descriptor, PollFlags::IN)];
    assert_eq!(poll(&mut wait, Some(&GIVE_UP)).unwrap(), 1, "a wake-up was lost");
}

/// One side of an exchange: sends and receives `count` messages of `len` bytes, with at most
/// `window` sends beyond the received ones. It sleeps whenever it has no work.
fn exchange(
    adapter: &mut ShmAdapter,
    endpoint: EndpointId,
    memory: MemoryRegion,
    count: u32,
    len: usize,
    window: u32,
    mut random: u32,
) {
    let (mut sent, mut completed, mut received) = (0, 0, 0);
    for work in 0..2 * window {
        adapter.post_receive(endpoint, u64::from(work), memory.local(len, len)).unwrap();
    }
    while received < count || completed < count {
        while sent < count && sent < received + window {
            adapter.post_send(endpoint, 0, &[memory.local(0, len)]).unwrap();
            sent += 1;
        }
        // A random spin time varies the races between the two sides' ways to sleep.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        for event in wait(adapter, random >> 25) {
            match event {
                Event::Completion(done) if done.operation == Operation::Receive => {
                    assert_eq!(done.status, WorkStatus::Ok(len as u32));
                    received += 1;
                    adapter.post_receive(endpoint, 0, memory.local(len, len)).unwrap();
                }
                Event::Completion(done) => {
                    assert_eq!(done.status, WorkStatus::Ok(len as u32));
                    completed += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    adapter.flush();
}

fn check_exchange(count: u32, len: usize, window: u32) {
    let mut pair = Pair::new(ShmConfig { ring_bytes: 4096, ..ShmConfig::default() });
    let at_left = pair.left_memory(2 * len, Access::all(), true).region;
    let at_right = pair.right_memory(2 * len, Access::all(), true).region;
    let Pair { mut left, mut right, at_left: left_end, at_right: right_end, .. } = pair;
    let other = std::thread::spawn(move || {
        exchange(&mut right, right_end, at_right, count, len, window, 1);
        right
    });
    exchange(&mut left, left_end, at_left, count, len, window, 2);
    other.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_in_a_ping_pong() {
    check_exchange(30_000, 64, 1);
}

#[test]
fn no_wake_up_is_lost_while_rings_fill_up() {
    check_exchange(10_000, 700, 32);
}

#[test]
fn no_wake_up_is_lost_when_a_message_exceeds_the_ring() {
    check_exchange(1_500, 20_000, 2);
}

/// Only one side sends, so only new room in the ring can wake it.
#[test]
fn no_wake_up_is_lost_when_room_is_made() {
    const COUNT: u32 = 20_000;
    const LEN: usize = 1000;
    let mut pair = Pair::new(ShmConfig { ring_bytes: 4096, ..ShmConfig::default() });
    let from = pair.left_memory(LEN, Access::all(), true).region;
    let to = pair.right_memory(LEN, Access::all(), true).region;
    let Pair { mut left, mut right, at_left, at_right, .. } = pair;
    for _ in 0..COUNT {
        right.post_receive(at_right, 0, to.local(0, LEN)).unwrap();
    }
    let reader = std::thread::spawn(move || {
        let (mut received, mut random) = (0, 1u32);
        while received < COUNT {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            received += wait(&mut right, random >> 25).len() as u32;
        }
        right.flush();
        right
    });
    let (mut sent, mut completed, mut random) = (0, 0, 2u32);
    while completed < COUNT {
        while sent < COUNT && sent < completed + 8 {
            left.post_send(at_left, 0, &[from.local(0, LEN)]).unwrap();
            sent += 1;
        }
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        completed += wait(&mut left, random >> 25).len() as u32;
    }
    left.flush();
    reader.join().unwrap();
}

#[test]
fn a_sleeper_wakes_for_a_request_a_message_and_the_end() {
    let (mut client, mut server, address) = pair::adapters(ShmConfig::default());
    let (domain, at_server) = (client.protection_domain(), server.protection_domain());
    let inbox = Memory::new(&mut server, at_server, 64, Access::all(), true);
    let waiter = std::thread::spawn(move || {
        let endpoint = match wait(&mut server, 0).as_slice() {
            [Event::ConnectRequest { request, .. }] => {
                server.accept(*request, at_server, &[]).unwrap()
            }
            other => panic!("{other:?}"),
        };
        server.post_receive(endpoint, 5, inbox.region.local(0, 64)).unwrap();
        let mut events = Vec::new();
        while events.len() < 3 {
            events.extend(wait(&mut server, 0));
        }
        events
    });
    let memory = Memory::new(&mut client, domain, 64, Access::all(), true);
    let endpoint = client.connect(domain, &address, &[]).unwrap();
    assert!(matches!(wait(&mut client, 0).as_slice(), [Event::Established { .. }]));
    client.post_send(endpoint, 1, &[memory.region.local(0, 64)]).unwrap();
    assert_eq!(status(&wait(&mut client, 0)[0]), (Operation::Send, 1, WorkStatus::Ok(64)));
    client.disconnect(endpoint);
    assert_eq!(pair::reason(&wait(&mut client, 0)), DisconnectReason::Local);
    let events = waiter.join().unwrap();
    assert_eq!(status(&events[1]), (Operation::Receive, 5, WorkStatus::Ok(64)));
    assert_eq!(pair::reason(&events), DisconnectReason::Peer);
}

/// Connections that were idle for long are no longer scanned, and still wake the adapter.
#[test]
fn idle_connections_come_back_to_life() {
    const COUNT: usize = 40;
    let (mut client, mut server, address) = pair::adapters(ShmConfig::default());
    let (domain, at_server) = (client.protection_domain(), server.protection_domain());
    let outbox = Memory::new(&mut client, domain, 64, Access::all(), true);
    let inbox = Memory::new(&mut server, at_server, 64, Access::all(), true);
    let mut ends = Vec::new();
    for _ in 0..COUNT {
        let end = client.connect(domain, &address, &[]).unwrap();
        let request = pair::wait_request(&mut server);
        let peer = server.accept(request, at_server, &[]).unwrap();
        server.post_receive(peer, 0, inbox.region.local(0, 64)).unwrap();
        pair::wait(&mut server, |events| events.len() == 1);
        ends.push((end, peer));
    }
    pair::wait(&mut client, |events| events.len() == COUNT);
    let mut events = Vec::new();
    for round in 0..3 {
        for _ in 0..6000 {
            client.poll(Instant::now(), &mut events);
            server.poll(Instant::now(), &mut events);
        }
        assert!(events.is_empty());
        for (end, peer) in &ends {
            assert!(round == 0 || server.arm().unwrap());
            client.post_send(*end, 0, &[outbox.region.local(0, 64)]).unwrap();
            client.flush();
            if round > 0 {
                sleep(&server);
            }
            let received = pair::wait(&mut server, |events| events.len() == 1);
            let Event::Completion(done) = &received[0] else { panic!("{received:?}") };
            assert_eq!(done.endpoint, *peer);
            server.post_receive(*peer, 0, inbox.region.local(0, 64)).unwrap();
            pair::wait(&mut client, |events| events.len() == 1);
        }
    }
}

const CHILD: &str = "DAFS_TEST_SHM_CHILD";
const SHOWN: usize = 300_000;

/// The child process: it shares memory with the parent and waits to be killed.
fn act_as_child(name: &str) -> ! {
    let mut adapter = ShmAdapter::new(ShmConfig::default()).unwrap();
    let domain = adapter.protection_domain();
    let shown = Memory::new(&mut adapter, domain, SHOWN, Access::all(), true);
    let ordinary = Memory::new(&mut adapter, domain, SHOWN, Access::all(), false);
    shown.fill(1);
    ordinary.fill(2);
    let endpoint = adapter.connect(domain, &Address::Shm(name.to_owned()), &[]).unwrap();
    wait(&mut adapter, 0);
    let message = Memory::new(&mut adapter, domain, 24, Access::all(), true);
    let mut bytes = Vec::new();
    for region in [shown.region, ordinary.region] {
        bytes.extend_from_slice(&region.address.to_ne_bytes());
        bytes.extend_from_slice(&region.key.to_ne_bytes());
    }
    message.buffer.view().copy_from(&bytes, Site::Inspect);
    adapter.post_send(endpoint, 0, &[message.region.local(0, 24)]).unwrap();
    loop {
        wait(&mut adapter, 0);
    }
}

/// A real second process: the test accesses its memory, notices its death by `kill -9`, and can use
/// the memory until it is released.
#[test]
fn a_killed_peer_is_noticed_and_its_memory_stays() {
    if let Ok(name) = std::env::var(CHILD) {
        act_as_child(&name);
    }
    let mut adapter = ShmAdapter::new(ShmConfig::default()).unwrap();
    let listener = adapter.listen(&Address::Shm(String::new())).unwrap();
    let Some(Address::Shm(name)) = adapter.listener_address(listener) else { panic!() };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shm_sleep::a_killed_peer_is_noticed_and_its_memory_stays"])
        .env(CHILD, name)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let domain = adapter.protection_domain();
    let inbox = Memory::new(&mut adapter, domain, 24, Access::all(), true);
    let local = Memory::new(&mut adapter, domain, SHOWN, Access::all(), true);
    let endpoint = match wait(&mut adapter, 0).as_slice() {
        [Event::ConnectRequest { request, peer, .. }] => {
            assert_eq!(peer.process.unwrap().pid as u32, child.id());
            adapter.accept(*request, domain, &[]).unwrap()
        }
        other => panic!("{other:?}"),
    };
    adapter.post_receive(endpoint, 1, inbox.region.local(0, 24)).unwrap();
    adapter.post_receive(endpoint, 2, inbox.region.local(0, 24)).unwrap();
    // The establishment and the message; one poll may report both.
    let mut seen = 0;
    while seen < 2 {
        seen += wait(&mut adapter, 0).len();
    }
    let remote = |at: usize| RemoteBuffer {
        address: u64::from_ne_bytes(inbox.bytes(at, 8).try_into().unwrap()),
        key: u32::from_ne_bytes(inbox.bytes(at + 8, 4).try_into().unwrap()),
        len: SHOWN as u32,
    };
    for (at, seed) in [(0, 1), (12, 2)] {
        let sink = local.region.local(0, SHOWN);
        adapter.rdma_read(endpoint, 7, sink, remote(at)).unwrap();
        wait(&mut adapter, 0);
        assert!(local.bytes(0, SHOWN) == pattern(seed, SHOWN));
    }
    let window = adapter.map_remote(endpoint, remote(0), Access::REMOTE_WRITE).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let events = wait(&mut adapter, 0);
    assert_eq!(status(&events[0]), (Operation::Receive, 2, WorkStatus::Flushed));
    assert!(matches!(pair::reason(&events), DisconnectReason::Lost(_)), "{events:?}");
    window.view().slice(0, 3).unwrap().copy_from(b"yes", Site::Inspect);
    assert_eq!(window.view().slice(0, 3).unwrap().to_vec(Site::Inspect), b"yes");
    let far = window.view().slice(3, SHOWN - 3).unwrap().to_vec(Site::Inspect);
    assert!(far == pattern(1, SHOWN)[3..]);
}

/// The descriptor is not readable while there is no event.
#[test]
fn an_armed_adapter_sleeps() {
    let mut pair = Pair::new(ShmConfig::default());
    pair.run();
    assert!(pair.left.arm().unwrap());
    let descriptor = pair.left.descriptor().unwrap();
    let mut wait = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut wait, Some(&zero)).unwrap(), 0);
}
