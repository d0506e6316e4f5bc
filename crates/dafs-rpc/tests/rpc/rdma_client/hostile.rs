//! Servers that break the protocol, and connections that break.

use super::world::{PROCEDURE, World, chunk};
use crate::peer::{self, Message, reads, reply_chunk, success, words, writes};
use dafs_mem::Site;
use dafs_rpc::client::{CallError, Memory, Options, Pending, Request, RpcClient};
use dafs_wire::rpcrdma::{Body, Chunks, HeaderFault, ReadSegment, Segment};

/// A call with a sink and a reply chunk, at the server.
struct Scene {
    world: World,
    client: RpcClient,
    memory: Memory,
    pending: Pending,
    call: Message,
}

fn scene() -> Scene {
    let mut world = World::new(Some(4096));
    let client = world.connect(Options::default(), None);
    let memory = client.allocate(1000).unwrap();
    let sinks = [memory.whole()];
    let request = Request { sinks: &sinks, ..Request::new(PROCEDURE, &[], 9000) };
    let pending = client.submit_request(&request).unwrap();
    let call = world.receive();
    Scene { world, client, memory, pending, call }
}

/// The server's message ends the connection, and so the call.
fn is_the_end(why: &str, send: impl FnOnce(&mut World, u32, Segment, Segment)) {
    let Scene { mut world, client, pending, call, memory } = scene();
    let chunks = call.chunks();
    let (write, reply) = (&chunks.writes[0], chunks.reply.as_ref().unwrap());
    send(&mut world, call.header.xid, write.segments[0], reply.segments[0]);
    world.until(|_| pending.is_answered());
    let error = pending.wait().unwrap_err();
    assert!(matches!(&error, CallError::Disconnected(reason) if reason.contains(why)), "{error}");
    assert!(client.is_broken());
    world.until(|world| world.is_disconnected);
    // This server does not map the memory.
    assert!(!memory.is_spoiled());
}

#[test]
fn the_client_checks_the_placements_of_a_server() {
    is_the_end("1001 bytes", |world, xid, write, _| {
        let chunks = writes(&[chunk(write, 1001)]);
        world.send(xid, 1, Body::Message(chunks), &success(xid, &[]));
    });
    is_the_end("more write chunks", |world, xid, write, _| {
        let chunks = writes(&[chunk(write, 10), chunk(write, 10)]);
        world.send(xid, 1, Body::Message(chunks), &success(xid, &[]));
    });
    is_the_end("in 3", |world, xid, write, _| {
        let cut = peer::chunk(&[Segment { length: 10, ..write }; 3]);
        world.send(xid, 1, Body::Message(writes(&[cut])), &success(xid, &[]));
    });
    is_the_end("came back", |world, xid, _, reply| {
        let chunks = reply_chunk(chunk(reply, reply.length as usize + 1));
        world.send(xid, 1, Body::NoMessage(chunks), &[]);
    });
    is_the_end("no reply chunk", |world, xid, _, _| {
        world.send(xid, 1, Body::NoMessage(Chunks::default()), &[]);
    });
    is_the_end("names memory", |world, xid, write, _| {
        let chunks = reads(&[ReadSegment { position: 4, segment: write }]);
        world.send(xid, 1, Body::Message(chunks), &success(xid, &[]));
    });
}

#[test]
fn messages_that_are_none_end_the_connection() {
    is_the_end("ends inside", |world, _, _, _| world.send_bytes(&[1, 2, 3]));
    is_the_end("ends inside", |world, xid, _, _| world.send_plain(xid, 1, &[0; 4]));
    is_the_end("two transaction numbers", |world, xid, _, _| {
        world.send_plain(xid, 1, &success(xid + 1, &[]));
    });
    is_the_end("versions 2 to 3", |world, xid, _, _| {
        world.send(xid, 1, Body::Error(HeaderFault::Version { low: 2, high: 3 }), &[]);
    });
    is_the_end("version 7", |world, xid, _, _| {
        world.send_bytes(&[words(&[xid, 7, 1, 0, 0, 0, 0]), success(xid, &[])].concat());
    });
}

#[test]
fn a_malformed_reply_costs_its_call() {
    let Scene { mut world, client, pending, call, .. } = scene();
    let xid = call.header.xid;
    world.send_plain(xid, 1, &[&success(xid, &[])[..8], &[9; 8]].concat());
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
            world.send_plain(other, 9, &success(other, &[]));
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
