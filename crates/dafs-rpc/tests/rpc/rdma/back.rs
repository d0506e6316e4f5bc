//! Callbacks from the server to its client.

use super::common::*;
use crate::peer::{message, success};
use dafs_wire::rpc::CallHeader;
use dafs_wire::rpcrdma::{Body, Chunks, Header};
use dafs_wire::xdr::Decoder;

/// Takes a callback; returns its XID and arguments.
fn taken(world: &mut World, client: &mut Client) -> (u32, Vec<u8>) {
    let (header, message) = world.message(client);
    assert!(matches!(header.body, Body::Message(_)));
    let mut decoder = Decoder::new(&message);
    let call = CallHeader::decode(&mut decoder).unwrap();
    assert_eq!((call.xid, call.program, call.procedure), (header.xid, 77, 2));
    (call.xid, decoder.rest().to_vec())
}

fn answer(client: &mut Client, xid: u32, credits: u32, text: &[u8]) {
    let header = Header { xid, credits, body: Body::Message(Chunks::default()) };
    client.send_bytes(&message(&header, &success(xid, text)));
}

#[test]
fn the_server_calls_its_client_as_often_as_that_allows() {
    on_every_transport(16, |world, client| {
        for text in [b"one.", b"two."] {
            client.ask(CALL_BACK, text, Chunks::default());
        }
        let (xid, args) = taken(world, client);
        assert_eq!(args, b"one.");
        // The second waits until the first is answered: one credit was granted.
        assert_eq!(world.results(client, ECHO, b"....", Chunks::default()), b"....");
        answer(client, xid, 2, b"ein.");
        let mut got = [world.message(client), world.message(client)];
        got.sort_by_key(|(header, _)| header.xid);
        // Callbacks have small XIDs.
        let second = got[0].0.xid;
        assert_eq!(results(&got[1].1), b"ein.");
        answer(client, second, 2, b"zwei");
        assert_eq!(results(&world.message(client).1), b"zwei");
    });
}

#[test]
fn a_call_back_that_does_not_fit_is_not_sent() {
    let mut world = World::new(Kind::Sim);
    let mut client = world.client(None, 16);
    let args = pattern(960);
    let got = world.results(&mut client, CALL_BACK, &args, Chunks::default());
    assert_eq!(got, b"TooLong");
}

#[test]
fn answers_that_nobody_asked_for_are_ignored() {
    on_every_transport(16, |world, client| {
        for xid in 0..100 {
            answer(client, xid, 9, b"what");
            assert_eq!(world.results(client, ECHO, b"....", Chunks::default()), b"....");
        }
        assert_eq!(world.group.statistics().unasked, 100);
    });
}
