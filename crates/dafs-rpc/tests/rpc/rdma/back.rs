//! Callbacks from the server to its client.

use super::common::*;
use dafs_wire::rpc::{AcceptStatus, CallHeader, ReplyHeader};
use dafs_wire::rpcrdma::{Body, Chunks, Header};
use dafs_wire::xdr::{Decoder, Encode, Encoder};

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
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes);
    Header { xid, credits, body: Body::Message(Chunks::default()) }.encode(&mut encoder);
    ReplyHeader::accepted(xid, AcceptStatus::Success).encode(&mut encoder);
    bytes.extend_from_slice(text);
    client.send_bytes(&bytes);
}

#[test]
fn the_server_calls_its_client_as_often_as_that_allows() {
    for kind in KINDS {
        let mut world = World::new(kind);
        let mut client = world.client(Some(TOLD), 16);
        for text in [b"one.", b"two."] {
            let message = client.call_message(CALL_BACK, text);
            client.send(Body::Message(Chunks::default()), &message);
        }
        let (xid, args) = taken(&mut world, &mut client);
        assert_eq!(args, b"one.");
        // The second waits until the first is answered: one credit was granted.
        assert_eq!(
            world.results(&mut client, ECHO, b"....", Chunks::default()),
            b"....",
            "{kind:?}"
        );
        answer(&mut client, xid, 2, b"ein.");
        let mut got = [world.message(&mut client), world.message(&mut client)];
        got.sort_by_key(|(header, _)| header.xid);
        // Callbacks have small XIDs.
        let second = got[0].0.xid;
        assert_eq!(results(&got[1].1), b"ein.");
        answer(&mut client, second, 2, b"zwei");
        assert_eq!(results(&world.message(&mut client).1), b"zwei");
    }
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
    for kind in KINDS {
        let mut world = World::new(kind);
        let mut client = world.client(Some(TOLD), 16);
        for xid in 0..100 {
            answer(&mut client, xid, 9, b"what");
            assert_eq!(world.results(&mut client, ECHO, b"....", Chunks::default()), b"....");
        }
        assert_eq!(world.group.statistics().unasked, 100);
    }
}
