//! Data outside of the message: read chunks, write chunks, reply chunks.

use super::common::*;
use crate::peer::{chunk, reply_chunk};
use dafs_wire::rpcrdma::{Body, Chunks, Header, HeaderFault};

/// The arguments of `ECHO_APART` for one item before, the data, and one after: reduced and whole.
fn args(data: &[u8]) -> (Vec<u8>, u32, Vec<u8>) {
    let head = [&words(&[4])[..], b"abcd"].concat();
    let mut reduced = head.clone();
    reduced.extend(words(&[data.len() as u32]));
    let position = CALL_BYTES + reduced.len() as u32;
    let mut whole = reduced.clone();
    whole.extend_from_slice(data);
    whole.resize(whole.len().next_multiple_of(4), 0);
    let tail = [&words(&[8])[..], b"efghijkl"].concat();
    reduced.extend_from_slice(&tail);
    whole.extend_from_slice(&tail);
    (reduced, position, whole)
}

/// The place of reply chunks in the client's memory.
const REPLY_AT: usize = 200_000;

/// The results wherever they lie.
fn found(client: &Client, header: &Header, rest: &[u8]) -> Vec<u8> {
    match &header.body {
        Body::Message(_) => results(rest),
        Body::NoMessage(chunks) => {
            let len: u32 = lengths(chunks.reply.as_ref().unwrap()).iter().sum();
            results(&client.memory.get(REPLY_AT, len as usize))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn arguments_are_read_from_the_client() {
    on_every_transport(4, |world, client| {
        for procedure in [ECHO, ECHO_APART, LATER] {
            for len in [1, 5, 4096, 100_001] {
                let data = pattern(len);
                client.memory.put(0, &data);
                let (reduced, position, whole) = args(&data);
                // In one piece, in several, and with the padding.
                let cuts = [vec![len], vec![len / 2, len - len / 2], vec![len.next_multiple_of(4)]];
                for cut in cuts {
                    let mut at = 0;
                    let mut chunks = reply_chunk(client.memory.chunk(REPLY_AT, 150_000));
                    for piece in cut {
                        chunks.reads.push(client.memory.read(position, at, piece));
                        at += piece;
                    }
                    let (header, rest) = world.call(client, procedure, &reduced, chunks);
                    let got = found(client, &header, &rest);
                    assert!(got == whole, "{procedure} {len}");
                }
            }
        }
    });
}

#[test]
fn a_long_call_is_read_from_the_client() {
    on_every_transport(4, |world, client| {
        let args = pattern(60_000);
        let message = client.call_message(ECHO, &args);
        client.memory.put(0, &message);
        let mut chunks = reply_chunk(client.memory.chunk(REPLY_AT, 150_000));
        chunks.reads.push(client.memory.read(0, 0, 1000));
        chunks.reads.push(client.memory.read(0, 1000, message.len() - 1000));
        client.send(Body::NoMessage(chunks), b"");
        let (header, rest) = world.message(client);
        assert!(found(client, &header, &rest) == args);
        let statistics = world.group.statistics();
        assert_eq!((statistics.rdma_reads, statistics.rdma_read_bytes), (2, 60_040));
        assert_eq!(statistics.rdma_written_bytes, 60_024);
    });
}

/// RFC 8166 section 4.2.1: the header and the message have one XID.
#[test]
fn a_long_call_with_an_xid_other_than_its_header_is_refused() {
    on_every_transport(4, |world, client| {
        let message = client.call_message(ECHO, &pattern(60_000));
        client.memory.put(0, &message);
        // The reply would fit.
        let mut chunks = reply_chunk(client.memory.chunk(REPLY_AT, 150_000));
        chunks.reads.push(client.memory.read(0, 0, message.len()));
        client.xid += 1;
        client.send(Body::NoMessage(chunks), b"");
        assert_eq!(world.message(client).0.body, Body::Error(HeaderFault::Chunk));
    });
}

#[test]
fn a_long_call_may_have_data_apart_from_itself() {
    let mut world = World::new(Kind::Sim);
    let mut client = world.client(Some(TOLD), 4);
    let data = pattern(7001);
    let (reduced, position, whole) = args(&data);
    let message = client.call_message(ECHO_APART, &reduced);
    client.memory.put(0, &message);
    client.memory.put(10_000, &data);
    let mut chunks = reply_chunk(client.memory.chunk(REPLY_AT, 150_000));
    chunks.reads.push(client.memory.read(position, 10_000, 7001));
    chunks.reads.push(client.memory.read(0, 0, message.len()));
    client.send(Body::NoMessage(chunks), b"");
    let (header, rest) = world.message(&mut client);
    assert!(found(&client, &header, &rest) == whole);
}

#[test]
fn bulk_results_are_written_to_the_client() {
    on_every_transport(4, |world, client| {
        for len in [1usize, 3, 4096, 70_001] {
            client.memory.put(0, &vec![0; 300_000]);
            let first = client.memory.chunk(0, len);
            // A chunk with spare room, and one in pieces.
            let second = chunk(&[
                client.memory.segment(100_000, 1),
                client.memory.segment(200_000, len + 50),
            ]);
            let chunks = writes(&[first, second, client.memory.chunk(280_000, 9)]);
            let args = words(&[len as u32, 3]);
            let (header, rest) = world.call(client, BULK_TWICE, &args, chunks);
            let Body::Message(chunks) = header.body else { panic!("{header:?}") };
            assert_eq!(results(&rest), words(&[len as u32, len as u32 + 1, 7]));
            let written: Vec<_> = chunks.writes.iter().map(lengths).collect();
            assert_eq!(written, [vec![len as u32], vec![1, len as u32], vec![0]]);
            assert!(client.memory.get(0, len + 1) == [vec![3; len], vec![0]].concat());
            assert_eq!(client.memory.get(100_000, 2), [4, 0]);
            assert!(client.memory.get(200_000, len + 1) == [vec![4; len], vec![0]].concat());
        }
    });
}

#[test]
fn bulk_results_without_a_place_go_with_the_others() {
    on_every_transport(4, |world, client| {
        for (procedure, len, room, fits) in [
            (BULK, 100, 0, true),
            (BULK, 100, 99, true),
            (BULK_KEPT, 100, 200, true),
            (BULK, 5000, 0, false),
            (BULK, 5000, 4999, false),
            (BULK_KEPT, 5001, 6000, false),
        ] {
            let mut chunks = reply_chunk(client.memory.chunk(REPLY_AT, 150_000));
            if room > 0 {
                chunks.writes.push(client.memory.chunk(0, room));
            }
            let (header, rest) = world.call(client, procedure, &words(&[len, 9]), chunks);
            let mut want = words(&[len]);
            want.resize(4 + (len as usize).next_multiple_of(4), 0);
            want[4..4 + len as usize].fill(9);
            want.extend(words(&[7]));
            assert!(found(client, &header, &rest) == want, "{len} {room}");
            assert_eq!(matches!(header.body, Body::Message(_)), fits);
            let (Body::Message(chunks) | Body::NoMessage(chunks)) = header.body else { panic!() };
            assert!(chunks.writes.iter().all(|chunk| lengths(chunk) == [0]));
        }
    });
}

#[test]
fn placed_results_and_a_long_reply_go_together() {
    on_every_transport(4, |world, client| {
        // The first item has a write chunk. The second has none and is too long for the message.
        let mut chunks = writes(&[client.memory.chunk(0, 5000)]);
        let reply = [client.memory.segment(200_000, 33), client.memory.segment(300_000, 9000)];
        chunks.reply = Some(chunk(&reply));
        let (header, _) = world.call(client, BULK_TWICE, &words(&[5000, 1]), chunks);
        let Body::NoMessage(chunks) = header.body else { panic!("{header:?}") };
        assert_eq!(lengths(&chunks.writes[0]), [5000]);
        let stream_bytes = 24 + 4 + 4 + 5004 + 4;
        assert_eq!(lengths(&chunks.reply.unwrap()), [33, stream_bytes - 33]);
        assert!(client.memory.get(0, 5000) == [1; 5000]);
        let mut stream = client.memory.get(200_000, 33);
        stream.extend(client.memory.get(300_000, stream_bytes as usize - 33));
        let mut want = words(&[5000, 5001]);
        want.extend([2; 5001]);
        want.extend([0; 3]);
        want.extend(words(&[7]));
        assert!(results(&stream) == want);
    });
}

#[test]
fn a_reply_that_fits_nowhere_is_an_error_and_the_connection_lives() {
    on_every_transport(4, |world, client| {
        let chunks = reply_chunk(client.memory.chunk(0, 5000));
        let (header, _) = world.call(client, LONG, &words(&[5000]), chunks);
        assert_eq!(header.body, Body::Error(HeaderFault::Chunk));
        assert_eq!(world.results(client, ECHO, b"args", Chunks::default()), b"args");
    });
}
