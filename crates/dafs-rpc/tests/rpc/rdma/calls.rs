//! Calls and replies in one message each, credits, private data.

use super::common::*;
use crate::peer::reply_chunk;
use dafs_dat::{Access, DisconnectReason, Instant};
use dafs_rpc::server::Config;
use dafs_wire::rpcrdma::{Body, Chunks, HeaderFault, PrivateData};

#[test]
fn a_call_in_one_message_is_answered_in_one() {
    on_every_transport(4, |world, client| {
        for len in [0, 4, 900, 3900] {
            let args = pattern(len);
            assert_eq!(world.results(client, ECHO, &args, Chunks::default()), args);
        }
        assert_eq!(world.group.statistics().calls, 4);
    });
}

#[test]
fn the_server_tells_its_sizes() {
    let mut world = World::new(Kind::Sim);
    let client = world.client(Some(TOLD), 1);
    let want = PrivateData { remote_invalidation: false, send_bytes: 4096, receive_bytes: 4096 };
    assert_eq!(client.server_told, Some(want));
}

#[test]
fn a_peer_that_tells_nothing_gets_short_messages() {
    for kind in KINDS {
        let mut world = World::new(kind);
        let mut client = world.client(None, 4);
        let (header, rest) = world.call(&mut client, LONG, &words(&[900]), Chunks::default());
        assert!(matches!(header.body, Body::Message(_)));
        assert_eq!(results(&rest), pattern(900));
        // The reply would be longer than 1024 bytes, and the call has no reply chunk.
        let (header, _) = world.call(&mut client, LONG, &words(&[1000]), Chunks::default());
        assert_eq!(header.body, Body::Error(HeaderFault::Chunk));
        let chunks = reply_chunk(client.memory.chunk(0, 2000));
        let (header, rest) = world.call(&mut client, LONG, &words(&[1000]), chunks);
        let Body::NoMessage(chunks) = header.body else { panic!("{header:?}") };
        assert!(rest.is_empty());
        assert_eq!(lengths(&chunks.reply.unwrap()), [1024]);
        assert_eq!(results(&client.memory.get(0, 1024)), pattern(1000));
        assert_eq!(world.group.statistics().rdma_errors, 1);
    }
}

#[test]
fn credits_grow_with_use_and_all_of_them_can_be_used_at_once() {
    on_every_transport(64, |world, client| {
        let mut most = 0;
        for _ in 0..200 {
            client.ask(ECHO, b"args", Chunks::default());
            let (header, _) = world.message(client);
            assert!(header.credits >= most && header.credits > 0);
            most = header.credits;
        }
        assert_eq!(most, 32, "what the client asked for");
        for _ in 0..3 {
            let sent: Vec<u32> = (0..most)
                .map(|_| {
                    client.ask(ECHO, b"args", Chunks::default());
                    client.xid
                })
                .collect();
            let got: Vec<u32> = sent.iter().map(|_| world.message(client).0.xid).collect();
            assert_eq!(got, sent);
        }
    });
}

#[test]
fn calls_are_answered_later_and_never() {
    on_every_transport(8, |world, client| {
        let args = words(&[4, 0x6162_6364]);
        for _ in 0..20 {
            client.ask(DROP, &args, Chunks::default());
            assert_eq!(world.results(client, LATER, &args, Chunks::default()), args);
        }
    });
}

#[test]
fn a_reply_invalidates_a_key_for_who_wants_that() {
    for kind in [Kind::Sim, Kind::Iwarp, Kind::Shm] {
        let mut world = World::new(kind);
        let told = PrivateData { remote_invalidation: true, ..TOLD };
        let mut client = world.client(Some(told), 4);
        // A key of its own, because messages leave from the other memory.
        let own = Memory::new(&mut *client.adapter, client.domain, 8192, Access::all());
        let chunks = reply_chunk(own.chunk(0, 8192));
        world.call(&mut client, LONG, &words(&[6000]), chunks.clone());
        assert_eq!(client.invalidated, Some(own.region.key), "{kind:?}");
        assert_eq!(results(&own.get(0, 6024)), pattern(6000));
        // The key is invalid now; a client that uses it again is at fault.
        client.ask(LONG, &words(&[6000]), chunks);
        world.end(&mut client);
    }
}

#[test]
fn replies_arrive_although_the_server_stops_and_the_client_sends_on() {
    const BULK_BYTES: usize = 500_000;
    let stop_timeout = std::time::Duration::from_secs(50);
    let mut world = World::with(Kind::Iwarp, Config { stop_timeout, ..Config::default() });
    let mut client = world.client(Some(TOLD), 4);
    // The client does not read, so most of the data waits in the server's socket.
    let chunks = writes(&[client.memory.chunk(0, BULK_BYTES)]);
    client.ask(BULK, &words(&[BULK_BYTES as u32, 3]), chunks);
    client.adapter.flush();
    while world.group.statistics().calls == 0 {
        world.step();
    }
    let World { group, server, .. } = world;
    group.stop();
    let server = std::thread::spawn(|| server.run());
    while group.statistics().connections > 0 {
        std::thread::yield_now();
    }
    client.ask(ECHO, b"args", Chunks::default());
    client.adapter.flush();
    while client.ended.is_none() {
        client.poll(Instant::now());
    }
    assert_eq!(client.ended, Some(DisconnectReason::Peer.to_string()));
    assert_eq!(client.received.len(), 1);
    assert!(client.memory.get(0, BULK_BYTES) == [3; BULK_BYTES]);
    drop(client);
    server.join().unwrap();
}

#[test]
fn a_connection_that_ends_is_told_and_its_memory_freed() {
    for kind in KINDS {
        let mut world = World::new(kind);
        for round in 1..4 {
            let mut client = world.client(Some(TOLD), 4);
            world.results(&mut client, ECHO, b"args", Chunks::default());
            client.ask(KEEP, b"args", Chunks::default());
            world.results(&mut client, ECHO, b"args", Chunks::default());
            client.adapter.disconnect(client.endpoint);
            world.end(&mut client);
            while world.disconnected.lock().unwrap().len() < round {
                world.step();
            }
            assert_eq!(world.group.statistics().connections, 0);
        }
        let broken = world.group.statistics().broken;
        assert_eq!(broken, 0);
    }
}

#[test]
fn an_idle_connection_gives_memory_back() {
    let mut world = World::new(Kind::Sim);
    let mut client = world.client(Some(TOLD), 40);
    for _ in 0..200 {
        world.results(&mut client, ECHO, b"args", Chunks::default());
    }
    assert_eq!(client.credits, 32);
    let network = world.network.clone().unwrap();
    let busy = network.region_count(1);
    for second in 0..200 {
        world.idle_ns += 1_000_000_000;
        world.step();
        if second % 2 == 0 {
            world.results(&mut client, ECHO, b"args", Chunks::default());
        }
    }
    assert_eq!(client.credits, 4);
    assert!(network.region_count(1) < busy);
    // The grant grows again when the client uses it.
    for _ in 0..200 {
        world.results(&mut client, ECHO, b"args", Chunks::default());
    }
    assert_eq!(client.credits, 32);
}

#[test]
fn a_connection_of_no_use_yet_makes_room_for_another_and_others_do_not() {
    for kind in KINDS {
        let config = Config { connections_max: 2, ..Config::default() };
        let mut world = World::with(kind, config);
        let mut idle = world.client(Some(TOLD), 4);
        let mut busy = world.client(Some(TOLD), 4);
        for client in [&mut idle, &mut busy] {
            world.results(client, ECHO, b"args", Chunks::default());
        }
        busy.ask(KEEP, b"args", Chunks::default());
        world.results(&mut busy, ECHO, b"args", Chunks::default());
        let mut late = world.client(Some(TOLD), 4);
        late.ask(KEEP, b"args", Chunks::default());
        world.results(&mut late, ECHO, b"args", Chunks::default());
        world.idle_ns += 2_000_000_000;
        world.end(&mut idle);
        let mut later = world.begin_client(Some(TOLD), 4);
        let why = world.end(&mut later);
        assert!(why.contains("rejected"), "{kind:?}: {why}");
        world.results(&mut busy, ECHO, b"args", Chunks::default());
        let statistics = world.group.statistics();
        assert_eq!((statistics.connections, statistics.refused, statistics.evicted), (2, 1, 1));
        assert_eq!(statistics.broken, 0);
    }
}

#[test]
fn a_peer_without_a_call_in_time_is_disconnected() {
    for kind in KINDS {
        let mut world = World::with(kind, Config::default());
        let mut silent = world.client(Some(TOLD), 4);
        let mut known = world.client(Some(TOLD), 4);
        world.results(&mut known, ECHO, b"args", Chunks::default());
        world.idle_ns += 11_000_000_000;
        world.end(&mut silent);
        world.results(&mut known, ECHO, b"args", Chunks::default());
    }
}
