//! Back-control channels: the server calls, the client answers.

use crate::common::*;
use dafs_wire::dafs::{
    self, AuthRequest, ByteOrder, ChannelUse, ConnectBind, Reply, Request, SessionId,
    SessionOptions, Status,
};
use std::time::Duration;

/// Makes a session, and a bound channel whose BC_NULL has not been answered.
fn bound(world: &mut World, options: SessionOptions, requests: u32) -> (usize, usize) {
    let client = world.connect(2);
    let answer = world.call(client, &connect_auth("a", 1, options));
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!() };
    let session = reply.session_id;
    world.clients[client].checksums = options.use_checksums;
    let channel = bind(world, session, ByteOrder::Little, requests);
    world.clients[channel].checksums = options.use_checksums;
    (client, channel)
}

fn bind(world: &mut World, session_id: SessionId, order: ByteOrder, max_requests: u32) -> usize {
    let channel = world.connect_as(2, 2, order);
    let request = ConnectBind {
        session_id,
        channel_use: ChannelUse::BackControl,
        max_request_size: 0,
        max_response_size: 0,
        max_requests,
        auth: AuthRequest::None,
    };
    let answer = world.call(channel, &Request::ConnectBind(request));
    let Ok(Reply::ConnectBind(reply)) = answer.reply() else { panic!("{:?}", answer.status()) };
    assert!(reply.max_requests <= 16);
    channel
}

fn session_of(world: &mut World, name: &str, order: ByteOrder) -> (usize, SessionId) {
    let client = world.connect_as(2, 1, order);
    let answer = world.call(client, &connect_auth(name, 1, SessionOptions::default()));
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!() };
    (client, reply.session_id)
}

#[test]
fn a_bound_channel_is_called_in_the_clients_order() {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        let mut world = World::new(Setup::default());
        let (client, session) = session_of(&mut world, "a", order);
        let channel = bind(&mut world, session, order, 1000);
        world.settle();
        let call = world.clients[channel].calls.pop().expect("BC_NULL");
        assert_eq!(call.request(), Request::BcNull);
        let header = call.header();
        assert_eq!((header.stream_id, header.seq_number), (0, 1));
        world.clients[channel].answer(&call, 4, &Reply::BcNull);
        world.settle();
        assert!(world.clients[channel].closed.is_none());
        // A client must send no request there.
        assert_eq!(world.status(channel, &Request::Null), Status::IllegalState);
        assert_eq!(world.status(client, &Request::Null), Status::Ok);
        world.end();
    }
}

#[test]
fn calls_and_answers_carry_checksums_where_the_session_does() {
    let mut world = World::new(Setup::default());
    let (client, channel) = bound(&mut world, CHECKED, 4);
    // The test client verifies received messages from here on.
    world.settle();
    let call = world.clients[channel].calls.pop().expect("BC_NULL");
    world.clients[channel].checksums = false;
    world.clients[channel].answer(&call, 4, &Reply::BcNull);
    world.settle();
    assert!(world.clients[channel].closed.is_some(), "an answer without checksum was taken");
    assert_eq!(world.status(client, &Request::Null), Status::Ok);
    world.end();
}

#[test]
fn answers_that_nobody_waits_for_end_the_channel_alone() {
    for (stream, sequence) in [(0, 2), (1, 1), (u16::MAX, 1)] {
        let mut world = World::new(Setup::default());
        let (client, channel) = bound(&mut world, SessionOptions::default(), 4);
        world.settle();
        let mut call = world.clients[channel].calls.pop().unwrap();
        let header =
            dafs::RequestHeader { stream_id: stream, seq_number: sequence, ..call.header() };
        call.bytes = world.clients[channel].encode(&header, &Request::BcNull);
        world.clients[channel].answer(&call, 4, &Reply::BcNull);
        world.settle();
        assert!(world.clients[channel].closed.is_some(), "stream {stream}, number {sequence}");
        assert_eq!(world.status(client, &Request::Null), Status::Ok);
        world.end();
    }
}

#[test]
fn a_refused_call_leaves_the_channel_alone() {
    let mut world = World::new(Setup::default());
    let (client, channel) = bound(&mut world, SessionOptions::default(), 4);
    world.settle();
    let call = world.clients[channel].calls.pop().unwrap();
    world.clients[channel].refuse(&call, Status::NotSupp);
    world.pass(Duration::from_secs(60));
    assert!(world.clients[channel].closed.is_none());
    assert_eq!(world.status(client, &Request::Null), Status::Ok);
    world.end();
}

#[test]
fn a_channel_that_does_not_answer_is_given_up() {
    let mut world = World::new(Setup::default());
    let (client, channel) = bound(&mut world, SessionOptions::default(), 4);
    world.pass(Duration::from_secs(10));
    assert!(world.clients[channel].closed.is_none());
    world.pass(Duration::from_secs(10));
    assert!(world.clients[channel].closed.is_some());
    assert_eq!(world.status(client, &Request::Null), Status::Ok);
    world.end();
}

#[test]
fn the_newest_channel_of_a_session_counts_and_goes_with_it() {
    let mut world = World::new(Setup::default());
    let (client, session) = session_of(&mut world, "a", ByteOrder::Little);
    let first = bind(&mut world, session, ByteOrder::Little, 4);
    let second = bind(&mut world, session, ByteOrder::Little, 4);
    world.settle();
    assert!(world.clients[first].closed.is_some());
    assert!(world.clients[second].closed.is_none());
    assert_eq!(world.status(client, &Request::Disconnect), Status::Ok);
    world.settle();
    assert!(world.clients[second].closed.is_some());
    world.end();
}
