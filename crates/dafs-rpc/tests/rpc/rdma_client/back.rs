//! Callbacks of the server.

use super::world::{Arrived, PROCEDURE, World, chunk, message};
use dafs_rpc::client::{BackRequest, Options, Request, RpcClient};
use dafs_rpc::{AcceptStatus, Rejection, Reply};
use dafs_wire::rpc::{CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::rpcrdma::{Body, Chunks, HeaderFault, Segment};
use dafs_wire::xdr::{Decoder, Encode, Encoder};
use std::sync::mpsc::{Receiver, channel};

fn call(xid: u32, args: &[u8]) -> Vec<u8> {
    let none = OpaqueAuth::NONE;
    let header = CallHeader {
        xid,
        program: 0x4000_0000,
        version: 1,
        procedure: 2,
        credential: none,
        verifier: none,
    };
    let mut bytes = Vec::new();
    header.encode(&mut Encoder::new(&mut bytes));
    bytes.extend_from_slice(args);
    bytes
}

/// The side that connects sends first.
fn greet(world: &mut World, client: &RpcClient) {
    let pending = client.submit_request(&Request::new(PROCEDURE, &[], 10)).unwrap();
    let call = world.receive();
    world.answer(&call, 1, b"");
    world.until(|_| pending.is_answered());
    pending.wait().unwrap();
}

fn world_with_handler() -> (World, RpcClient, Receiver<BackRequest>) {
    let mut world = World::new(Some(1024));
    let (sender, requests) = channel();
    let back = Box::new(move |request| sender.send(request).unwrap());
    let client = world.connect(Options::default(), Some(back));
    greet(&mut world, &client);
    (world, client, requests)
}

fn accepted(answer: &Arrived) -> (AcceptStatus, Vec<u8>) {
    assert_eq!(answer.header.body, message(Chunks::default()));
    let mut decoder = Decoder::new(&answer.rpc);
    let header = decoder.value::<ReplyHeader<'_>>().unwrap();
    assert_eq!(header.xid, answer.header.xid);
    match header.status {
        ReplyStatus::Accepted { status, .. } => (status, decoder.rest().to_vec()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_server_calls_while_calls_with_the_same_number_are_under_way() {
    let (mut world, client, requests) = world_with_handler();
    let pending = client.submit_request(&Request::new(PROCEDURE, &[], 10)).unwrap();
    let theirs = world.receive();
    let xid = theirs.header.xid;
    world.send(xid, 1, message(Chunks::default()), &call(xid, b"args"));
    let mut request = None;
    world.until(|_| {
        request = requests.try_recv().ok();
        request.is_some()
    });
    let request = request.unwrap();
    assert_eq!((request.procedure.procedure, &request.args[..]), (2, &b"args"[..]));
    assert!(!pending.is_answered());
    let mut reply = Reply::new();
    reply.encoder().opaque(b"answer");
    request.answer(Ok(reply));
    let answer = world.receive();
    assert!(answer.header.credits > 0);
    assert_eq!(accepted(&answer), (AcceptStatus::Success, b"\0\0\0\x06answer\0\0".to_vec()));
    world.answer(&theirs, 1, b"");
    world.until(|_| pending.is_answered());
    pending.wait().unwrap();
}

#[test]
fn calls_are_refused_without_a_handler_and_as_the_handler_says() {
    let mut world = World::new(Some(1024));
    let client = world.connect(Options::default(), None);
    greet(&mut world, &client);
    for xid in 0..20 {
        world.send(xid, 1, message(Chunks::default()), &call(xid, b""));
        let answer = world.receive();
        assert_eq!(accepted(&answer).0, AcceptStatus::ProgramUnavailable);
    }
    drop(client);
    let (mut world, _client, requests) = world_with_handler();
    world.send(5, 1, message(Chunks::default()), &call(5, b""));
    world.until(|_| {
        let request = requests.try_recv();
        let is_there = request.is_ok();
        if let Ok(request) = request {
            request.answer(Err(Rejection::Accept(AcceptStatus::GarbageArgs)));
        }
        is_there
    });
    let answer = world.receive();
    assert_eq!(accepted(&answer).0, AcceptStatus::GarbageArgs);
}

#[test]
fn chunks_and_long_answers_are_not_for_this_direction() {
    let (mut world, client, requests) = world_with_handler();
    let segment = Segment { handle: 1, length: 9, offset: 0 };
    let chunks = Chunks { reply: Some(chunk(segment, 9)), ..Chunks::default() };
    world.send(5, 1, message(chunks), &call(5, b""));
    assert_eq!(world.receive().header.body, Body::Error(HeaderFault::Chunk));
    world.send(6, 1, message(Chunks::default()), &call(6, b""));
    world.until(|_| {
        let request = requests.try_recv();
        let is_there = request.is_ok();
        if let Ok(request) = request {
            let mut reply = Reply::new();
            reply.encoder().opaque(&[0; 2000]);
            request.answer(Ok(reply));
        }
        is_there
    });
    let answer = world.receive();
    assert_eq!((answer.header.xid, answer.header.body), (6, Body::Error(HeaderFault::Chunk)));
    assert!(!client.is_broken());
}

#[test]
fn a_server_that_calls_more_than_it_may_loses_the_connection() {
    let (mut world, client, requests) = world_with_handler();
    for xid in 0..4 {
        world.send(xid, 1, message(Chunks::default()), &call(xid, b""));
    }
    world.settle();
    assert!(!client.is_broken());
    let held: Vec<_> = requests.try_iter().collect();
    assert_eq!(held.len(), 4);
    world.send(9, 1, message(Chunks::default()), &call(9, b""));
    world.until(|_| client.is_broken());
    // Answers after the end are discarded and do no harm.
    held.into_iter().for_each(|request| request.answer(Ok(Reply::new())));
}
