//! Callbacks of the server.

use super::world::{PROCEDURE, World, chunk};
use crate::peer::{self, Message, reply_chunk};
use dafs_rpc::client::{BackRequest, Options, Procedure, Request, RpcClient};
use dafs_rpc::{AcceptStatus, Rejection, Reply};
use dafs_wire::rpcrdma::{Body, Chunks, HeaderFault, Segment};
use std::sync::mpsc::{Receiver, channel};

fn call(xid: u32, args: &[u8]) -> Vec<u8> {
    peer::call(xid, Procedure { program: 0x4000_0000, version: 1, procedure: 2 }, args)
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

fn accepted(answer: &Message) -> (AcceptStatus, Vec<u8>) {
    assert_eq!(*answer.chunks(), Chunks::default());
    answer.reply()
}

/// Waits for the server's call and answers it.
fn serve(world: &mut World, requests: &Receiver<BackRequest>, answer: Result<Reply, Rejection>) {
    let mut request = None;
    world.until(|_| {
        request = requests.try_recv().ok();
        request.is_some()
    });
    request.unwrap().answer(answer);
}

#[test]
fn the_server_calls_while_calls_with_the_same_number_are_under_way() {
    let (mut world, client, requests) = world_with_handler();
    let pending = client.submit_request(&Request::new(PROCEDURE, &[], 10)).unwrap();
    let theirs = world.receive();
    let xid = theirs.header.xid;
    world.send_plain(xid, 1, &call(xid, b"args"));
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
        world.send_plain(xid, 1, &call(xid, b""));
        let answer = world.receive();
        assert_eq!(accepted(&answer).0, AcceptStatus::ProgramUnavailable);
    }
    drop(client);
    let (mut world, _client, requests) = world_with_handler();
    world.send_plain(5, 1, &call(5, b""));
    serve(&mut world, &requests, Err(Rejection::Accept(AcceptStatus::GarbageArgs)));
    let answer = world.receive();
    assert_eq!(accepted(&answer).0, AcceptStatus::GarbageArgs);
}

#[test]
fn chunks_and_long_answers_are_not_for_this_direction() {
    let (mut world, client, requests) = world_with_handler();
    let segment = Segment { handle: 1, length: 9, offset: 0 };
    world.send(5, 1, Body::Message(reply_chunk(chunk(segment, 9))), &call(5, b""));
    assert_eq!(world.receive().header.body, Body::Error(HeaderFault::Chunk));
    world.send_plain(6, 1, &call(6, b""));
    serve(&mut world, &requests, Ok(Reply::from_bytes(&[0; 2004])));
    let answer = world.receive();
    assert_eq!((answer.header.xid, answer.header.body), (6, Body::Error(HeaderFault::Chunk)));
    assert!(!client.is_broken());
}

#[test]
fn a_server_that_calls_more_than_it_may_loses_the_connection() {
    let (mut world, client, requests) = world_with_handler();
    for xid in 0..4 {
        world.send_plain(xid, 1, &call(xid, b""));
    }
    world.settle();
    assert!(!client.is_broken());
    let held: Vec<_> = requests.try_iter().collect();
    assert_eq!(held.len(), 4);
    world.send_plain(9, 1, &call(9, b""));
    world.until(|_| client.is_broken());
    // Answers after the end are discarded and do no harm.
    held.into_iter().for_each(|request| request.answer(Ok(Reply::new())));
}
