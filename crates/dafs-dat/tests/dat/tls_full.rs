//! TLS below MPA where the socket of the sender is full: work is done when its last sealed byte has
//! left.

use crate::contract::{Link, Side, World, drain_completions, pattern};
use crate::tls::{link_to, pki, world_of};
use dafs_dat::iwarp::IwarpConfig;
use dafs_dat::{Access, Address, Event, Instant, WorkStatus};
use dafs_tls::TransportSecurity::Tls;
use std::net::TcpListener;

/// A connection to a server whose sockets take little output.
fn narrow_world() -> (World, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&listener).set_send_buffer_size(16 << 10).unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let mut server = pki().server(IwarpConfig::default());
    server.add_listener(listener).unwrap();
    let mut world = world_of(pki().client(Tls), server);
    let link = link_to(&mut world, &address);
    world.greet(link);
    (world, link)
}

/// Lets the server work while the client does not read, until nothing more happens.
fn work_alone(server: &mut Side) {
    let mut still = 0;
    while still < 100 {
        let mut events = Vec::new();
        server.adapter.poll(Instant::now(), &mut events);
        still = if events.is_empty() { still + 1 } else { 0 };
        server.events.extend(events);
    }
}

/// Takes the completions of messages, all of this length.
fn take_done(side: &mut Side, bytes: u32) -> usize {
    let is_done = |event: &Event| {
        let Event::Completion(done) = event else { return false };
        done.status == WorkStatus::Ok(bytes)
    };
    let before = side.events.len();
    side.events.retain(|event| !is_done(event));
    before - side.events.len()
}

#[test]
fn a_server_that_stops_when_its_work_is_done_has_delivered_it() {
    // Some of the messages are longer than the room in all sockets, by less than a block of sealed
    // records.
    for size in (1..=24).map(|part| part * (8 << 10)).chain([8 << 20]) {
        let (mut world, link) = narrow_world();
        let to = world.client.memory(size, Access::LOCAL_WRITE);
        let from = world.server.memory(size, Access::empty());
        from.fill(size as u64);
        world.client.adapter.post_receive(link.client, 1, to.region.local(0, size)).unwrap();
        world.server.adapter.post_send(link.server, 2, &[from.region.local(0, size)]).unwrap();
        work_alone(&mut world.server);
        if take_done(&mut world.server, size as u32) == 0 {
            assert_eq!(world.server_done(2), WorkStatus::Ok(size as u32));
        } else {
            assert!(size < 8 << 20, "nobody has read it");
        }
        world.server.adapter.disconnect(link.server);
        world.server.adapter.flush();
        world.server = Side::new(Box::new(pki().server(IwarpConfig::default())));
        assert_eq!(world.client_done(1), WorkStatus::Ok(size as u32));
        assert!(to.read(0, size) == pattern(size as u64, size));
        // If the socket was full, it had no room for the close_notify.
        world.client_gone(link.client);
    }
}

#[test]
fn work_is_done_when_its_last_record_has_left() {
    const SIZE: usize = 3000;
    const COUNT: usize = 2000;
    let (mut world, link) = narrow_world();
    let to = world.client.memory(SIZE, Access::LOCAL_WRITE);
    let from = world.server.memory(SIZE, Access::empty());
    for work in 0..COUNT as u64 {
        world.client.adapter.post_receive(link.client, work, to.region.local(0, SIZE)).unwrap();
        world.server.adapter.post_send(link.server, work, &[from.region.local(0, SIZE)]).unwrap();
    }
    work_alone(&mut world.server);
    let done = take_done(&mut world.server, SIZE as u32);
    assert!((1..COUNT).contains(&done), "{done}");
    // The process ends.
    world.server = Side::new(Box::new(pki().server(IwarpConfig::default())));
    world.until(|world| {
        let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
        world.client.events.iter().any(is_end).then_some(())
    });
    assert_eq!(take_done(&mut world.client, SIZE as u32), done);
}

#[test]
fn an_abort_flushes_what_has_not_left_in_order() {
    const SIZE: usize = 3000;
    const COUNT: u64 = 2000;
    let (mut world, link) = narrow_world();
    let from = world.server.memory(SIZE, Access::empty());
    for work in 0..COUNT {
        world.server.adapter.post_send(link.server, work, &[from.region.local(0, SIZE)]).unwrap();
    }
    work_alone(&mut world.server);
    world.server.adapter.abort(link.server);
    work_alone(&mut world.server);
    let (completions, over) = drain_completions(&mut world.server, link.server);
    assert!(over);
    let order: Vec<u64> = completions.iter().map(|done| done.work).collect();
    assert!(order.into_iter().eq(0..COUNT));
    let first = completions.iter().position(|done| done.status == WorkStatus::Flushed).unwrap();
    assert!(completions[first..].iter().all(|done| done.status == WorkStatus::Flushed));
}
