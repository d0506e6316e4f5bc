//! Servers that break the protocol, and connections that break.

use super::world::{Arrived, PROCEDURE, World, chunk, message, success};
use dafs_mem::Site;
use dafs_rpc::client::{CallError, Memory, Options, Pending, Request, RpcClient};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, HeaderFault, ReadSegment, Segment};

/// A call with a sink and a reply chunk, at the server.
struct Scene {
    world: World,
    client: RpcClient,
    memory: Memory,
    pending: Pending,
    call: Arrived,
}

fn scene_on(mut world: World) -> Scene {
    let client = world.connect(Options::default(), None);
    let memory = client.allocate(1000).unwrap();
    let sinks = [memory.whole()];
    let request = Request { sinks: &sinks, ..Request::new(PROCEDURE, &[], 9000) };
    let pending = client.submit_request(&request).unwrap();
    let call = world.receive();
    Scene { world, client, memory, pending, call }
}

fn scene() -> Scene {
    scene_on(World::new(Some(4096)))
}

/// The server's message ends the connection, and so the call.
fn is_the_end(send: impl FnOnce(&mut World, u32, Segment, Segment), why: &str) {
    let Scene { mut world, client, pending, call, memory } = scene();
    let (write, reply) = {
        let chunks = call.chunks();
        (chunks.writes[0].segments[0], chunks.reply.as_ref().unwrap().segments[0])
    };
    send(&mut world, call.header.xid, write, reply);
    world.until(|_| pending.is_answered());
    let error = pending.wait().unwrap_err();
    assert!(matches!(&error, CallError::Disconnected(reason) if reason.contains(why)), "{error}");
    assert!(client.is_broken());
    world.until(|world| world.is_disconnected);
    // This server does not map the memory.
    assert!(!memory.is_spoiled());
}

fn with(writes: &[Chunk], reply: Option<Chunk>) -> Chunks {
    Chunks { writes: writes.iter().cloned().collect(), reply, ..Chunks::default() }
}

#[test]
fn the_client_checks_the_placements_of_a_server() {
    is_the_end(
        |world, xid, write, _| {
            let chunks = with(&[chunk(write, 1001)], None);
            world.send(xid, 1, message(chunks), &success(xid, &[]));
        },
        "1001 bytes",
    );
    is_the_end(
        |world, xid, write, _| {
            let chunks = with(&[chunk(write, 10), chunk(write, 10)], None);
            world.send(xid, 1, message(chunks), &success(xid, &[]));
        },
        "more write chunks",
    );
    is_the_end(
        |world, xid, write, _| {
            let parts = [write; 3].map(|segment| Segment { length: 10, ..segment });
            let cut = Chunk { segments: parts.into_iter().collect() };
            world.send(xid, 1, message(with(&[cut], None)), &success(xid, &[]));
        },
        "in 3",
    );
    is_the_end(
        |world, xid, _, reply| {
            let chunks = with(&[], Some(chunk(reply, reply.length as usize + 1)));
            world.send(xid, 1, Body::NoMessage(chunks), &[]);
        },
        "came back",
    );
    is_the_end(
        |world, xid, _, _| world.send(xid, 1, Body::NoMessage(Chunks::default()), &[]),
        "no reply chunk",
    );
    is_the_end(
        |world, xid, write, _| {
            let read = ReadSegment { position: 4, segment: write };
            let chunks = Chunks { reads: [read].into_iter().collect(), ..Chunks::default() };
            world.send(xid, 1, message(chunks), &success(xid, &[]));
        },
        "names memory",
    );
}

#[test]
fn messages_that_are_none_end_the_connection() {
    is_the_end(|world, _, _, _| world.send_bytes(&[1, 2, 3]), "ends inside");
    is_the_end(
        |world, xid, _, _| world.send(xid, 1, message(Chunks::default()), &[0; 4]),
        "ends inside",
    );
    is_the_end(
        |world, xid, _, _| {
            world.send(xid, 1, message(Chunks::default()), &success(xid + 1, &[]));
        },
        "two transaction numbers",
    );
    is_the_end(
        |world, xid, _, _| {
            world.send(xid, 1, Body::Error(HeaderFault::Version { low: 2, high: 3 }), &[]);
        },
        "versions 2 to 3",
    );
    is_the_end(
        |world, xid, _, _| {
            let mut bytes = [xid, 7, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
            bytes.extend(success(xid, &[]));
            world.send_bytes(&bytes);
        },
        "version 7",
    );
}

#[test]
fn a_malformed_reply_costs_its_call() {
    let Scene { mut world, client, pending, call, .. } = scene();
    let xid = call.header.xid;
    world.send(xid, 1, message(Chunks::default()), &[&success(xid, &[])[..8], &[9; 8]].concat());
    world.until(|_| pending.is_answered());
    assert_eq!(pending.wait().unwrap_err(), CallError::Malformed);
    assert!(!client.is_broken());
}

#[test]
fn answers_that_nobody_waits_for_are_ignored() {
    let Scene { mut world, client, pending, call, .. } = scene();
    let xid = call.header.xid;
    for other in [xid + 1, xid.wrapping_sub(1)] {
        for _ in 0..20 {
            world.send(other, 9, message(Chunks::default()), &success(other, &[]));
            world.send(other, 9, Body::Error(HeaderFault::Chunk), &[]);
            world.send(other, 9, Body::NoMessage(Chunks::default()), &[]);
            world.send(other, 9, Body::Done, &[]);
            world.settle();
        }
    }
    assert!(!pending.is_answered());
    // These replies grant no credits either.
    let _next = client.submit_request(&Request::new(PROCEDURE, &[], 10)).unwrap();
    world.settle();
    assert_eq!(world.arrived(), 0);
    world.answer(&call, 1, b"");
    world.until(|_| pending.is_answered());
    assert!(pending.wait().unwrap().is_empty());
    world.answer(&call, 1, b"again");
    world.settle();
    assert_eq!(world.arrived(), 1);
    assert!(!client.is_broken());
}

#[test]
fn a_call_that_is_given_up_ends_the_connection_if_its_memory_is_exposed() {
    let Scene { mut world, client, memory, pending, call } = scene();
    let write = call.chunks().writes[0].segments[0];
    memory.view().fill(1);
    drop(pending);
    assert!(client.is_broken());
    // From here on the memory belongs to the caller.
    world.write(write, &[2; 1000]);
    world.until(|world| world.is_disconnected);
    assert_eq!(memory.view().to_vec(Site::Inspect), [1; 1000]);
}

#[test]
fn a_call_without_exposed_memory_is_given_up_for_itself() {
    let mut world = World::new(Some(1024));
    let client = world.connect(Options::default(), None);
    let call = |len: usize| {
        let args = vec![0; len];
        client.submit_request(&Request::new(PROCEDURE, &[&args], 9000)).unwrap()
    };
    // The first is at the server, with staging memory; the other waits for a credit.
    let given_up = (call(3000), call(3000));
    let first = world.receive();
    let kept = call(8);
    drop(given_up);
    world.settle();
    assert_eq!(world.arrived(), 0);
    world.answer(&first, 1, b"late");
    let second = world.receive();
    assert!(matches!(second.header.body, Body::Message(_)));
    world.answer(&second, 1, b"done");
    world.until(|_| kept.is_answered());
    assert_eq!(kept.wait().unwrap()[..], *b"done");
    assert!(!client.is_broken());
}

#[test]
fn time_runs_out() {
    let mut world = World::new(Some(4096));
    let options =
        Options { call_timeout: std::time::Duration::from_millis(1), ..Options::default() };
    let client = world.connect(options, None);
    let pending = client.submit_request(&Request::new(PROCEDURE, &[], 10)).unwrap();
    let call = world.receive();
    assert_eq!(pending.wait().unwrap_err(), CallError::TimedOut);
    assert!(!client.is_broken());
    world.answer(&call, 1, b"");
    let memory = client.allocate(10).unwrap();
    let sinks = [memory.whole()];
    let request = Request { sinks: &sinks, ..Request::new(PROCEDURE, &[], 10) };
    let pending = client.submit_request(&request).unwrap();
    world.receive();
    assert_eq!(pending.wait().unwrap_err(), CallError::TimedOut);
    assert!(client.is_broken());
}

#[test]
fn all_calls_end_with_the_connection() {
    let Scene { mut world, client, pending, .. } = scene();
    let waiting = client.submit_request(&Request::new(PROCEDURE, &[], 10)).unwrap();
    world.net.lose(world.endpoint.unwrap());
    for pending in [pending, waiting] {
        world.until(|_| pending.is_answered());
        let error = pending.wait().unwrap_err();
        assert!(matches!(error, CallError::Disconnected(_)), "{error}");
    }
}

#[test]
fn memory_is_freed_with_the_connection() {
    let mut world = World::new(Some(4096));
    let before = world.regions_of_client();
    for _ in 0..3 {
        let client = world.connect(Options::default(), None);
        let pending = client.submit_request(&Request::new(PROCEDURE, &[], 10)).unwrap();
        let call = world.receive();
        world.answer(&call, 1, b"");
        world.until(|_| pending.is_answered());
        pending.wait().unwrap();
        drop(client);
        world.until(|world| world.is_disconnected);
        world.settle();
        assert_eq!(world.regions_of_client(), before);
    }
}
