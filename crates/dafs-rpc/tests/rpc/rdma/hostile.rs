//! Peers that break the protocol.

use super::common::*;
use crate::peer::{chunk, reply_chunk};
use dafs_rpc::server::Config;
use dafs_wire::rpcrdma::{Body, Chunks, HeaderFault, ReadSegment, Segment};
use std::time::Duration;

fn error(world: &mut World, client: &mut Client, body: Body, rest: &[u8]) -> Body {
    client.send(body, rest);
    let (header, rest) = world.message(client);
    assert_eq!((header.xid, rest.len()), (client.xid, 0));
    assert!(header.credits > 0);
    header.body
}

#[test]
fn headers_that_make_no_sense_are_answered_with_errors() {
    on_every_transport(8, |world, client| {
        let chunk_error = Body::Error(HeaderFault::Chunk);
        for _ in 0..10 {
            let message = client.call_message(ECHO, b"args");
            let xid = client.xid;
            client.send_bytes(&[words(&[xid, 2, 1, 0]), vec![0; 20]].concat());
            let (header, _) = world.message(client);
            assert_eq!(header.body, Body::Error(HeaderFault::Version { low: 1, high: 1 }));
            for procedure in [2, 5, 99] {
                client.send_bytes(&words(&[xid, 1, 1, procedure, 0, 0, 0]));
                assert_eq!(world.message(client).0.body, chunk_error);
            }
            // A long call without a chunk, chunks outside of the message, and a call that is too
            // long.
            let none = Body::NoMessage(Chunks::default());
            assert_eq!(error(world, client, none, b""), chunk_error);
            let bad = [(2, 4), (400, 4), (44, 2 << 20), (0, 8), (8, 8)];
            for (position, length) in bad {
                let segment = Segment { handle: 1, length, offset: 0 };
                let chunks = reads(&[ReadSegment { position, segment }]);
                let message = client.call_message(ECHO_APART, b"args");
                let body = Body::Message(chunks);
                assert_eq!(error(world, client, body, &message), chunk_error, "{position}");
            }
            // The header's XID differs from that of the message.
            client.xid += 1;
            let body = Body::Message(Chunks::default());
            assert_eq!(error(world, client, body, &message), chunk_error);
            // The server ignores obsolete messages.
            client.send(Body::Done, b"");
            client.send(Body::Error(HeaderFault::Chunk), b"");
            assert_eq!(world.results(client, ECHO, b"good", Chunks::default()), b"good");
        }
        assert_eq!(world.group.statistics().broken, 0);
    });
}

#[test]
fn a_malformed_message_ends_its_connection_only() {
    for kind in KINDS {
        let mut world = World::new(kind);
        let mut good = world.client(Some(TOLD), 8);
        let bad: [&[u8]; 4] =
            [b"", b"abc", &words(&[1, 1, 1, 0, 0, 0, 0]), &words(&[1, 1, 1, 0, 0, 0, 0, 1, 7])];
        for bytes in bad {
            let mut client = world.client(Some(TOLD), 8);
            client.send_bytes(bytes);
            world.end(&mut client);
            assert_eq!(world.results(&mut good, ECHO, b"good", Chunks::default()), b"good");
        }
        while world.group.statistics().connections > 1 {
            world.step();
        }
        assert_eq!(world.group.statistics().broken, 4, "{kind:?}");
    }
}

#[test]
fn keys_that_are_none_end_their_connection() {
    for kind in KINDS {
        let mut world = World::new(kind);
        let segment = Segment { handle: 0x1234_5678, length: 4000, offset: 4096 };
        for write in [false, true] {
            let mut client = world.client(Some(TOLD), 8);
            let mut chunks = Chunks::default();
            let (procedure, args) =
                if write { (BULK, words(&[4000, 1])) } else { (ECHO, vec![0; 8]) };
            let message = client.call_message(procedure, &args);
            if write {
                chunks.writes.push(chunk(&[segment]));
            } else {
                chunks.reads.push(ReadSegment { position: 44, segment });
            }
            client.send(Body::Message(chunks), &message);
            world.end(&mut client);
        }
        while world.group.statistics().connections > 0 {
            world.step();
        }
    }
}

#[test]
fn a_client_that_breaks_its_credits_breaks_its_connection() {
    on_every_transport(64, |world, client| {
        for _ in 0..60 {
            client.ask(KEEP, b"args", Chunks::default());
        }
        world.end(client);
        while world.group.statistics().connections > 0 {
            world.step();
        }
        assert!(world.group.statistics().calls <= 8);
    });
}

#[test]
fn a_client_whose_memory_cannot_be_read_in_time_is_let_go() {
    let config = Config { rdma_fetch_timeout: Duration::from_secs(3), ..Config::default() };
    let mut world = World::with(Kind::Sim, config);
    let mut client = world.client(Some(TOLD), 8);
    let message = client.call_message(ECHO, &[0; 8]);
    let chunks = reads(&[client.memory.read(44, 0, 4000)]);
    client.send(Body::Message(chunks), &message);
    client.adapter.flush();
    let network = world.network.clone().unwrap();
    while world.group.statistics().rdma_reads == 0 {
        world.step();
    }
    network.partition(1, 3, true);
    world.idle_ns += 4_000_000_000;
    world.step();
    world.step();
    assert_eq!(world.group.statistics().broken, 1);
}

/// Begins a call that the server cannot read from the client.
fn stall(world: &mut World, host: u32) -> Client {
    let mut client = world.client(Some(TOLD), 8);
    let network = world.network.clone().unwrap();
    let before = world.group.statistics().rdma_reads;
    let message = client.call_message(ECHO, &[0; 8]);
    let chunks = reads(&[client.memory.read(44, 0, 200_000)]);
    client.send(Body::Message(chunks), &message);
    client.adapter.flush();
    while world.group.statistics().rdma_reads == before {
        world.step();
    }
    network.partition(1, host, true);
    client
}

#[test]
fn clients_that_stall_with_all_memory_shut_nobody_out_and_are_let_go_soon() {
    let config = Config { waiting_bytes_max: 500_000, ..Config::default() };
    let timeout_ns = config.rdma_fetch_timeout.as_nanos() as u64;
    let mut world = World::with(Kind::Sim, config);
    let mut good = world.client(Some(TOLD), 8);
    let _bad = [stall(&mut world, 4), stall(&mut world, 5)];
    let asked_ns = world.now().0;
    assert_eq!(world.results(&mut good, ECHO, b"good", Chunks::default()), b"good");
    let waited_ns = world.now().0 - asked_ns;
    assert!(waited_ns < 100_000_000, "a call that needs no memory waits for others");
    world.idle_ns += timeout_ns / 7;
    world.step();
    world.step();
    assert_eq!(world.group.statistics().broken, 2);
    let data = pattern(3000);
    good.memory.put(0, &data);
    let chunks = reads(&[good.memory.read(44, 0, 3000)]);
    assert_eq!(world.results(&mut good, TAKE, &words(&[3000]), chunks), words(&[3000]));
}

#[test]
fn connections_of_one_host_do_not_take_all_memory() {
    let config =
        Config { pending_bytes_max: 300_000, waiting_bytes_max: 1_200_000, ..Config::default() };
    let mut world = World::with(Kind::Sim, config);
    let mut good = world.client(Some(TOLD), 8);
    let mut bad: Vec<_> = (0..5)
        .map(|_| {
            world.next_host = 3;
            world.client(Some(TOLD), 8)
        })
        .collect();
    let mut sent = world.group.statistics().received_bytes;
    for client in &mut bad {
        let message = client.call_message(ECHO, &[0; 8]);
        // A header with one read chunk.
        sent += message.len() as u64 + 52;
        let chunks = reads(&[client.memory.read(44, 0, 200_000)]);
        client.send(Body::Message(chunks), &message);
        client.adapter.flush();
    }
    while world.group.statistics().received_bytes < sent {
        world.step();
    }
    world.network.clone().unwrap().partition(1, 4, true);
    let asked_ns = world.now().0;
    good.memory.put(0, &pattern(200_000));
    let chunks = reads(&[good.memory.read(44, 0, 200_000)]);
    assert_eq!(world.results(&mut good, TAKE, &words(&[200_000]), chunks), words(&[200_000]));
    let waited_ns = world.now().0 - asked_ns;
    assert!(waited_ns < 100_000_000, "a call waits for those of another host");
    // Calls that wait for memory of this host get it after the short timeout of the holders.
    world.idle_ns += 1_500_000_000;
    world.step();
    world.step();
    assert!(world.group.statistics().broken > 0);
}

#[test]
fn memory_for_calls_is_bounded_and_who_waits_goes_on() {
    for kind in KINDS {
        // Room for little more than one call at a time.
        let config =
            Config { pending_bytes_max: 300_000, waiting_bytes_max: 500_000, ..Config::default() };
        let mut world = World::with(kind, config);
        let mut clients: Vec<_> = (0..3).map(|_| world.client(Some(TOLD), 8)).collect();
        let data = pattern(200_000);
        for client in &mut clients {
            client.memory.put(0, &data);
            for _ in 0..4 {
                let message = client.call_message(ECHO, &words(&[200_000]));
                let mut chunks = reply_chunk(client.memory.chunk(200_000, 210_000));
                chunks.reads.push(client.memory.read(44, 0, 200_000));
                client.send(Body::Message(chunks), &message);
                client.adapter.flush();
            }
        }
        for client in &mut clients {
            for _ in 0..4 {
                let (header, _) = world.message(client);
                assert!(matches!(header.body, Body::NoMessage(_)));
            }
        }
    }
}

#[test]
fn a_client_that_takes_no_replies_is_let_go() {
    for kind in [Kind::Iwarp, Kind::Shm] {
        let mut world = World::new(kind);
        let mut client = world.client(Some(TOLD), 64);
        let message = client.call_message(LONG, &words(&[3900]));
        let mut sent = 0;
        while world.group.statistics().broken == 0 {
            // The client never polls, so it takes no reply; its own messages still leave.
            client.send(Body::Message(Chunks::default()), &message);
            client.adapter.flush();
            world.step();
            sent += 1;
            assert!(sent < 200_000, "{kind:?}: the server goes on and on");
        }
        // The calls that a socket or ring takes, and a bounded number that wait behind it.
        assert!(world.group.statistics().calls < 5000, "{kind:?}");
    }
}
