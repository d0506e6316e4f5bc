//! Clients with wrong chunks: foreign, missing, too long, at the wrong position. At most their
//! connection ends; its resources are free again, and the server serves others.

use super::net::Net;
use super::program::{data, procedures, sum};
use super::raw::{Raw, call};
use super::scene::*;
use crate::peer::{self, chunk, reply_chunk, words};
use dafs_dat::sim::SimRng;
use dafs_dat::{Access, RemoteBuffer};
use dafs_rpc::AcceptStatus;
use dafs_wire::rpcrdma::{Body, Chunks, HeaderFault, ReadSegment, Segment};
use smallvec::smallvec;

#[test]
fn well_formed_calls_of_all_kinds_are_served() {
    let (mut net, mut raw) = world();
    let memory = raw.memory(256 << 10);
    memory.put(0, &data(3, 100_001));
    for (xid, procedure) in [(1, procedures::SINK), (2, procedures::SINK_APART)] {
        // One chunk of three segments, the middle one empty.
        let reads = [(0, 70_000), (70_000, 0), (70_000, 30_001)];
        let reads = reads.map(|(at, len)| memory.read(DATA_AT, at, len));
        sink(&mut raw, xid, procedure, 100_001, &reads);
        let (status, results) = heard(&mut net, &mut raw).reply();
        assert_eq!(status, AcceptStatus::Success);
        assert_eq!(results, words(&[xid, 100_001, sum(&data(3, 100_001)), 99]));
    }
    // A write chunk of two segments, then a long reply.
    let place = chunk(&[memory.segment(500, 10_000), memory.segment(20_000, 100_000)]);
    source(&mut raw, 3, 60_001, &[place.clone(), place]);
    let answer = heard(&mut net, &mut raw);
    let lens: Vec<Vec<u32>> = answer
        .chunks()
        .writes
        .iter()
        .map(|chunk| chunk.segments.iter().map(|segment| segment.length).collect())
        .collect();
    assert_eq!(lens, [[10_000, 50_001], [0, 0]]);
    assert_eq!(answer.reply().1, words(&[3, 60_001, 3]));
    let mut placed = memory.get(500, 10_000);
    placed.extend(memory.get(20_000, 50_001));
    assert_eq!(placed, data(3, 60_001));

    let chunks = reply_chunk(memory.chunk(0, 50_000));
    raw.call(4, procedures::WORDS, chunks, &words(&[4, 9_999]));
    let answer = heard(&mut net, &mut raw);
    assert!(matches!(answer.header.body, Body::NoMessage(_)) && answer.body.is_empty());
    let reply = answer.chunks().reply.as_ref().unwrap();
    assert_eq!(reply.len(), 24 + 40_000);
    let (_, results) = peer::reply(4, &memory.get(0, reply.len() as usize));
    assert_eq!(results, words(&[4; 10_000]));

    // A long call.
    let record = call(5, procedures::SINK, &words(&[5, 8, 1, 2, 77]));
    memory.put(0, &record);
    let reads = smallvec![memory.read(0, 0, 30), memory.read(0, 30, record.len() - 30)];
    raw.send_header(5, 1, Body::NoMessage(Chunks { reads, ..Chunks::default() }));
    assert_eq!(heard(&mut net, &mut raw).reply().1, words(&[5, 8, sum(&words(&[1, 2])), 77]));
    nothing_is_left(&mut net, raw);
}

#[test]
fn memory_that_is_not_the_clients_to_name_ends_its_connection_only() {
    let reach = |name: &str, raw: &mut Raw| -> Segment {
        let own = raw.memory(8192);
        let segment = own.segment(0, 8192);
        match name {
            "foreign" => raw.foreign_memory(8192).segment(0, 8192),
            "unknown" => Segment { handle: segment.handle ^ 0x5555, ..segment },
            "gone" => {
                raw.deregister(&own);
                segment
            }
            "beyond" => Segment { length: 8196, ..segment },
            "before" => Segment { offset: segment.offset - 1, ..segment },
            "overflow" => Segment { offset: u64::MAX - 10, ..segment },
            "no rights" => raw.memory_with(8192, Access::LOCAL_WRITE).segment(0, 8192),
            _ => panic!("{name}"),
        }
    };
    for name in ["foreign", "unknown", "gone", "beyond", "before", "overflow", "no rights"] {
        for procedure in [procedures::SINK, procedures::SINK_APART] {
            let (mut net, mut raw) = world();
            let segment = reach(name, &mut raw);
            let reads = [ReadSegment { position: DATA_AT, segment }];
            sink(&mut raw, 1, procedure, segment.length, &reads);
            ended(&mut net, raw);
        }
        let (mut net, mut raw) = world();
        let segment = reach(name, &mut raw);
        source(&mut raw, 1, segment.length, &[chunk(&[segment])]);
        ended(&mut net, raw);
        let (mut net, mut raw) = world();
        let segment = reach(name, &mut raw);
        let chunks = reply_chunk(chunk(&[segment]));
        // The reply fills the chunk.
        raw.call(1, procedures::WORDS, chunks, &words(&[1, (segment.length - 24) / 4 - 1]));
        ended(&mut net, raw);
    }
    // Read-only memory cannot take results.
    let (mut net, mut raw) = world();
    let segment = raw.memory_with(8192, Access::REMOTE_READ).segment(0, 8192);
    source(&mut raw, 1, 8192, &[chunk(&[segment])]);
    ended(&mut net, raw);
}

#[test]
fn chunks_that_overlap_do_as_they_say() {
    let (mut net, mut raw) = world();
    let memory = raw.memory(8192);
    memory.put(0, &data(1, 8192));
    let reads = [memory.read(DATA_AT, 0, 6000), memory.read(DATA_AT, 1000, 6000)];
    sink(&mut raw, 1, procedures::SINK, 12_000, &reads);
    net.settle(&mut [&mut raw]);
    let bytes = [memory.get(0, 6000), memory.get(1000, 6000)].concat();
    assert_eq!(raw.heard().reply().1, words(&[1, 12_000, sum(&bytes), 99]));
    // Two items into the same memory: the later one remains.
    let place = memory.chunk(0, 8192);
    let chunks = Chunks { writes: smallvec![place.clone(), place], ..Chunks::default() };
    raw.call(2, procedures::SOURCE_TWICE, chunks, &words(&[2, 5000, 4000]));
    assert_eq!(heard(&mut net, &mut raw).header.xid, 2);
    let expected = [data(3, 4000), data(2, 5000)[4000..].to_vec()].concat();
    assert_eq!(memory.get(0, 5000), expected);
    nothing_is_left(&mut net, raw);
}

#[test]
fn chunks_that_promise_more_than_is_accepted_cost_nothing() {
    let (mut net, mut raw) = world();
    let memory = raw.memory(4096);
    let huge = ReadSegment {
        position: DATA_AT,
        segment: Segment { length: u32::MAX, ..memory.segment(0, 1) },
    };
    for procedure in [procedures::SINK, procedures::SINK_APART] {
        for count in [1, 2, 100] {
            sink(&mut raw, 1, procedure, u32::MAX, &vec![huge; count]);
            refused(&mut net, &mut raw, 1, HeaderFault::Chunk);
        }
    }
    let zero = ReadSegment { position: 0, ..huge };
    let chunks = Chunks { reads: smallvec![zero; 100], ..Chunks::default() };
    raw.send_header(2, 1, Body::NoMessage(chunks));
    refused(&mut net, &mut raw, 2, HeaderFault::Chunk);
    // A write chunk may claim any length; the server does not touch memory that does not exist.
    let place = chunk(&[Segment { length: u32::MAX, ..memory.segment(0, 1) }; 50]);
    source(&mut raw, 3, 4096, &[place]);
    assert_eq!(heard(&mut net, &mut raw).reply().1, words(&[3, 4096, 3]));
    assert_eq!(memory.get(0, 4096), data(3, 4096));
    assert_eq!(net.program.done(1), 0, "nothing was carried out");
    nothing_is_left(&mut net, raw);
}

#[test]
fn chunks_where_no_item_can_be_are_refused() {
    let (mut net, mut raw) = world();
    let memory = raw.memory(4096);
    for position in [1, 42, DATA_AT + 8, 4000, u32::MAX - 3, u32::MAX] {
        sink(&mut raw, 1, procedures::SINK, 16, &[memory.read(position, 0, 16)]);
        refused(&mut net, &mut raw, 1, HeaderFault::Chunk);
    }
    // The message both inline and in a chunk, or in neither.
    sink(&mut raw, 2, procedures::SINK, 16, &[memory.read(0, 0, 16)]);
    refused(&mut net, &mut raw, 2, HeaderFault::Chunk);
    raw.send_header(3, 1, Body::NoMessage(Chunks::default()));
    refused(&mut net, &mut raw, 3, HeaderFault::Chunk);
    // Positions of items, but not of the one in the chunk.
    let (whole, apart) = (procedures::SINK, procedures::SINK_APART);
    for (position, len, procedures) in [
        (DATA_AT, 12, &[whole, apart][..]),
        (DATA_AT, 20, &[whole, apart]),
        (CALL_BYTES, 16, &[whole, apart]),
        // Joined, this call is valid.
        (DATA_AT + 4, 16, &[apart]),
    ] {
        for &procedure in procedures {
            sink(&mut raw, 4, procedure, 16, &[memory.read(position, 0, len)]);
            let (status, _) = heard(&mut net, &mut raw).reply();
            assert_eq!(status, AcceptStatus::GarbageArgs, "{position} {len}");
            still_works(&mut net, &mut raw);
        }
    }
    assert_eq!(net.program.done(4), 0);
    nothing_is_left(&mut net, raw);
}

#[test]
fn a_list_as_long_as_a_message_is_served() {
    let (mut net, mut raw) = world();
    let memory = raw.memory(4096);
    memory.put(0, &data(1, 160));
    let reads: Vec<_> = (0..160).map(|at| memory.read(DATA_AT, at, 1)).collect();
    sink(&mut raw, 1, procedures::SINK, 160, &reads);
    assert_eq!(heard(&mut net, &mut raw).reply().1, words(&[1, 160, sum(&data(1, 160)), 99]));
    nothing_is_left(&mut net, raw);
}

#[test]
fn a_reply_that_fits_nowhere_is_told() {
    let (mut net, mut raw) = world();
    let memory = raw.memory(64 << 10);
    for place in [None, Some(memory.chunk(0, 5000)), Some(chunk(&[]))] {
        let chunks = Chunks { reply: place, ..Chunks::default() };
        raw.call(1, procedures::WORDS, chunks, &words(&[1, 5000]));
        refused(&mut net, &mut raw, 1, HeaderFault::Chunk);
    }
    // Data that does not fit its write chunk goes with the rest, or nowhere.
    let small = memory.chunk(0, 100);
    source(&mut raw, 2, 1000, std::slice::from_ref(&small));
    let answer = heard(&mut net, &mut raw);
    assert!(answer.chunks().writes[0].is_empty());
    assert_eq!(answer.reply().1, [words(&[2, 1000]), data(2, 1000), words(&[2])].concat());
    source(&mut raw, 3, 9000, &[small]);
    refused(&mut net, &mut raw, 3, HeaderFault::Chunk);
    nothing_is_left(&mut net, raw);
}

#[test]
fn keys_are_invalidated_only_for_those_who_said_so() {
    for wanted in [false, true] {
        let mut net = Net::calm(3);
        let mut raw = Raw::connect(&mut net, HOST, &told(wanted));
        let mut keys = Vec::new();
        for xid in 0..10 {
            let memory = raw.memory(8192);
            keys.push(memory.region.key);
            source(&mut raw, xid, 8192, &[memory.chunk(0, 8192)]);
            assert_eq!(heard(&mut net, &mut raw).reply().1, words(&[xid, 8192, xid]));
            assert_eq!(memory.get(0, 8192), data(xid, 8192));
        }
        let expected = if wanted { keys } else { Vec::new() };
        assert_eq!(raw.invalidated, expected);
        nothing_is_left(&mut net, raw);
    }
}

#[test]
fn writes_into_the_servers_memory_find_none() {
    // The server announces no key of its own memory, so a client can only guess.
    let mut rng = SimRng::new(5);
    for _ in 0..50 {
        let (mut net, mut raw) = world();
        let memory = raw.memory(64);
        let remote = RemoteBuffer { key: rng.bits() as u32, address: rng.bits(), len: 64 };
        raw.write(&memory, remote);
        ended(&mut net, raw);
    }
}
