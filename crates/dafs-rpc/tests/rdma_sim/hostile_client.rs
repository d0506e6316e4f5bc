//! Clients that break the rules of RPC-over-RDMA, each in its own way. At most their connection goes;
//! what they had cost is free again, and others are served.

use crate::net::Net;
use crate::program::{data, procedures, sum};
use crate::raw::{Memory, Message, Raw, call, chunk, message, words};
use dafs_dat::sim::SimRng;
use dafs_dat::{Access, RemoteBuffer};
use dafs_rpc::AcceptStatus;
use dafs_wire::rpcrdma::{
    Body, Chunk, Chunks, Header, HeaderFault, PrivateData, ReadSegment, Segment,
};
use smallvec::smallvec;
use std::time::Duration;

const HOST: u32 = 7;
/// Bytes of an RPC call header with an empty credential.
const CALL_BYTES: u32 = 40;
/// Where the data of `SINK` belongs: behind the header, a number and the length.
const DATA_AT: u32 = CALL_BYTES + 8;

fn told(remote_invalidation: bool) -> [u8; PrivateData::BYTES] {
    PrivateData { remote_invalidation, send_bytes: 4096, receive_bytes: 4096 }.encode()
}

fn world() -> (Net, Raw) {
    let mut net = Net::calm(1);
    let raw = Raw::connect(&mut net, HOST, &told(false));
    (net, raw)
}

/// `SINK` with its data in these segments.
fn sink(raw: &mut Raw, xid: u32, procedure: u32, len: u32, reads: &[ReadSegment]) {
    let chunks = Chunks { reads: reads.iter().copied().collect(), ..Chunks::default() };
    raw.call(xid, procedure, chunks, &words(&[xid, len, 99]));
}

/// `SOURCE` with these write chunks.
fn source(raw: &mut Raw, xid: u32, len: u32, writes: &[Chunk]) {
    let chunks = Chunks { writes: writes.iter().cloned().collect(), ..Chunks::default() };
    raw.call(xid, procedures::SOURCE, chunks, &words(&[xid, len]));
}

/// A call that works; for the connection is as good as before.
fn still_works(net: &mut Net, raw: &mut Raw) {
    raw.call(4_000_000, procedures::NULL, Chunks::default(), &[]);
    net.settle(&mut [raw]);
    let answer = raw.heard();
    assert_eq!(answer.header.xid, 4_000_000);
    assert_eq!(answer.reply(), (AcceptStatus::Success, Vec::new()));
    assert!(raw.inbox.is_empty() && raw.is_up());
}

/// The peer is gone or goes now; nothing of it is left, and others are served.
fn nothing_is_left(net: &mut Net, mut raw: Raw) {
    raw.abort();
    net.settle(&mut [&mut raw]);
    assert!(raw.ending().is_some());
    let mut other = Raw::connect(net, HOST + 1, &told(false));
    still_works(net, &mut other);
    other.abort();
    net.settle(&mut [&mut other, &mut raw]);
    net.assert_idle(32);
}

/// A fault is told, and the connection lives.
fn refused(net: &mut Net, raw: &mut Raw, xid: u32, fault: HeaderFault) {
    net.settle(&mut [raw]);
    let answer = raw.heard();
    assert_eq!((answer.header.xid, answer.fault()), (xid, Some(fault)));
    still_works(net, raw);
}

/// The connection has ended, and nothing was said.
fn ended(net: &mut Net, mut raw: Raw) {
    net.settle(&mut [&mut raw]);
    assert!(raw.ending().is_some(), "the connection lives: {:?}", raw.inbox);
    assert!(raw.inbox.is_empty(), "{:?}", raw.inbox);
    nothing_is_left(net, raw);
}

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
        net.settle(&mut [&mut raw]);
        let (status, results) = raw.heard().reply();
        assert_eq!(status, AcceptStatus::Success);
        assert_eq!(results, words(&[xid, 100_001, sum(&data(3, 100_001)), 99]));
    }
    // A write chunk of two segments, then a long reply.
    let place = chunk(&[memory.segment(500, 10_000), memory.segment(20_000, 100_000)]);
    source(&mut raw, 3, 60_001, &[place.clone(), place]);
    net.settle(&mut [&mut raw]);
    let answer = raw.heard();
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

    let chunks = Chunks { reply: Some(memory.chunk(0, 50_000)), ..Chunks::default() };
    raw.call(4, procedures::WORDS, chunks, &words(&[4, 9_999]));
    net.settle(&mut [&mut raw]);
    let answer = raw.heard();
    assert!(matches!(answer.header.body, Body::NoMessage(_)) && answer.body.is_empty());
    let reply = answer.chunks().reply.as_ref().unwrap();
    assert_eq!(reply.len(), 24 + 40_000);
    let (_, results) = crate::raw::reply(4, &memory.get(0, reply.len() as usize));
    assert_eq!(results, words(&[4; 10_000]));

    // A long call.
    let record = call(5, procedures::SINK, &words(&[5, 8, 1, 2, 77]));
    memory.put(0, &record);
    let reads = smallvec![memory.read(0, 0, 30), memory.read(0, 30, record.len() - 30)];
    let body = Body::NoMessage(Chunks { reads, ..Chunks::default() });
    raw.send_message(&Header { xid: 5, credits: 1, body }, &[]);
    net.settle(&mut [&mut raw]);
    assert_eq!(raw.heard().reply().1, words(&[5, 8, sum(&words(&[1, 2])), 77]));
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
        let chunks = Chunks { reply: Some(chunk(&[segment])), ..Chunks::default() };
        // The reply fills the chunk.
        raw.call(1, procedures::WORDS, chunks, &words(&[1, (segment.length - 24) / 4 - 1]));
        ended(&mut net, raw);
    }
    // Memory that may be read only is no place for results.
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
    // Two items into one place: the later one is there in the end.
    let place = memory.chunk(0, 8192);
    let chunks = Chunks { writes: smallvec![place.clone(), place], ..Chunks::default() };
    raw.call(2, procedures::SOURCE_TWICE, chunks, &words(&[2, 5000, 4000]));
    net.settle(&mut [&mut raw]);
    assert_eq!(raw.heard().header.xid, 2);
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
    let header = Header { xid: 2, credits: 1, body: Body::NoMessage(chunks) };
    raw.send_message(&header, &[]);
    refused(&mut net, &mut raw, 2, HeaderFault::Chunk);
    // A place for results may be as large as it likes; what is not there is not touched.
    let place = chunk(&[Segment { length: u32::MAX, ..memory.segment(0, 1) }; 50]);
    source(&mut raw, 3, 4096, &[place]);
    net.settle(&mut [&mut raw]);
    assert_eq!(raw.heard().reply().1, words(&[3, 4096, 3]));
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
    // The message inline and in a chunk, or in neither.
    sink(&mut raw, 2, procedures::SINK, 16, &[memory.read(0, 0, 16)]);
    refused(&mut net, &mut raw, 2, HeaderFault::Chunk);
    let header = Header { xid: 3, credits: 1, body: Body::NoMessage(Chunks::default()) };
    raw.send_message(&header, &[]);
    refused(&mut net, &mut raw, 3, HeaderFault::Chunk);
    // Where items are, but other ones than the chunk's.
    let (whole, apart) = (procedures::SINK, procedures::SINK_APART);
    for (position, len, procedures) in [
        (DATA_AT, 12, &[whole, apart][..]),
        (DATA_AT, 20, &[whole, apart]),
        (CALL_BYTES, 16, &[whole, apart]),
        // Put together, this one makes sense.
        (DATA_AT + 4, 16, &[apart]),
    ] {
        for &procedure in procedures {
            sink(&mut raw, 4, procedure, 16, &[memory.read(position, 0, len)]);
            net.settle(&mut [&mut raw]);
            let (status, _) = raw.heard().reply();
            assert_eq!(status, AcceptStatus::GarbageArgs, "{position} {len}");
            still_works(&mut net, &mut raw);
        }
    }
    assert_eq!(net.program.done(4), 0);
    nothing_is_left(&mut net, raw);
}

#[test]
fn headers_that_are_none_are_refused() {
    let (mut net, mut raw) = world();
    let cases: [(&[u32], HeaderFault); 8] = [
        (&[9, 2, 1, 0, 0, 0, 0], HeaderFault::Version { low: 1, high: 1 }),
        (&[9, 0], HeaderFault::Version { low: 1, high: 1 }),
        // RDMA_MSGP and procedures that nobody knows.
        (&[9, 1, 1, 2, 0, 0, 0, 0, 0], HeaderFault::Chunk),
        (&[9, 1, 1, 5], HeaderFault::Chunk),
        // Lists that do not end, flags that are none, counts that cannot be.
        (&[9, 1, 1, 0, 1, 48, 7, 7, 7, 7, 1], HeaderFault::Chunk),
        (&[9, 1, 1, 0, 0, 1, u32::MAX, 7, 7, 7, 7, 0, 0], HeaderFault::Chunk),
        (&[9, 1, 1, 0, 0, 0, 1, 0x1000_0000], HeaderFault::Chunk),
        (&[9, 1, 1, 0, 2, 0, 0], HeaderFault::Chunk),
    ];
    for _ in 0..20 {
        for (header, fault) in &cases {
            raw.send(&words(header));
            refused(&mut net, &mut raw, 9, *fault);
        }
    }
    nothing_is_left(&mut net, raw);
}

#[test]
fn a_list_as_long_as_a_message_is_served() {
    let (mut net, mut raw) = world();
    let memory = raw.memory(4096);
    memory.put(0, &data(1, 160));
    let reads: Vec<_> = (0..160).map(|at| memory.read(DATA_AT, at, 1)).collect();
    sink(&mut raw, 1, procedures::SINK, 160, &reads);
    net.settle(&mut [&mut raw]);
    assert_eq!(raw.heard().reply().1, words(&[1, 160, sum(&data(1, 160)), 99]));
    nothing_is_left(&mut net, raw);
}

#[test]
fn obsolete_and_unasked_messages_take_nothing() {
    let (mut net, mut raw) = world();
    for _ in 0..200 {
        let body = Body::Done;
        raw.send_message(&Header { xid: 1, credits: 1, body }, &[]);
        net.settle(&mut [&mut raw]);
        assert!(raw.inbox.is_empty());
    }
    still_works(&mut net, &mut raw);
    nothing_is_left(&mut net, raw);
    // Errors and replies that answer nothing may cost the connection.
    for body in [Body::Error(HeaderFault::Chunk), Body::Message(Chunks::default())] {
        let (mut net, mut raw) = world();
        for _ in 0..200 {
            if !raw.is_up() {
                break;
            }
            let header = Header { xid: 1, credits: 1, body: body.clone() };
            raw.send_message(&header, &words(&[1, 1, 0, 0, 0, 0]));
            net.settle(&mut [&mut raw]);
            assert!(raw.inbox.is_empty());
        }
        if raw.is_up() {
            still_works(&mut net, &mut raw);
        }
        nothing_is_left(&mut net, raw);
    }
}

#[test]
fn wishes_for_credits_are_bounded() {
    for wanted in [0, 1, u32::MAX] {
        let (mut net, mut raw) = world();
        for xid in 0..600 {
            let header = Header { xid, credits: wanted, body: Body::Message(Chunks::default()) };
            raw.send_message(&header, &call(xid, procedures::NULL, &[]));
            net.settle(&mut [&mut raw]);
            let granted = raw.heard().header.credits;
            assert!(granted >= 1 && granted <= net.credits_max(), "{granted} for {wanted}");
            assert!(net.posted_receives() >= granted as usize, "more granted than posted");
        }
        nothing_is_left(&mut net, raw);
    }
}

#[test]
fn credits_that_are_taken_back_stay_usable_until_the_client_knows() {
    let (mut net, mut raw) = world();
    let null = |raw: &mut Raw, xid| {
        let header = Header { xid, credits: u32::MAX, body: Body::Message(Chunks::default()) };
        raw.send_message(&header, &call(xid, procedures::NULL, &[]));
    };
    let mut granted = 0;
    for xid in 0..600 {
        null(&mut raw, xid);
        net.settle(&mut [&mut raw]);
        granted = raw.heard().header.credits;
    }
    assert_eq!(granted, net.credits_max());
    net.pass(Duration::from_secs(300));
    // These use receives and are not answered.
    for _ in 0..granted {
        raw.send_message(&Header { xid: 1, credits: 1, body: Body::Done }, &[]);
        net.settle(&mut [&mut raw]);
    }
    (0..granted).for_each(|xid| null(&mut raw, xid));
    net.settle(&mut [&mut raw]);
    assert!(raw.is_up(), "{:?}", raw.ending());
    assert_eq!(raw.inbox.len(), granted as usize);
    let least = raw.inbox.drain(..).map(|answer| answer.header.credits).min();
    assert!(least < Some(granted), "nothing was taken back");
    nothing_is_left(&mut net, raw);
}

#[test]
fn more_calls_than_were_granted_end_the_connection() {
    let (mut net, mut raw) = world();
    let mut xid = 0;
    // Nothing answers these, so no credit comes back.
    while raw.is_up() {
        xid += 1;
        assert!(xid <= 2 * net.credits_max() + 2, "calls without end are taken in");
        raw.call(xid, procedures::SOURCE_LATER, Chunks::default(), &words(&[xid, 4]));
        net.settle(&mut [&mut raw]);
    }
    let held = net.program.account().held.len();
    assert!(held >= 1);
    // Late answers find nobody.
    (0..held).for_each(|_| net.program.release(0));
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
    // Data that does not fit its place goes with the rest, or nowhere.
    let small = memory.chunk(0, 100);
    source(&mut raw, 2, 1000, std::slice::from_ref(&small));
    net.settle(&mut [&mut raw]);
    let answer = raw.heard();
    assert!(answer.chunks().writes[0].is_empty());
    assert_eq!(answer.reply().1, [words(&[2, 1000]), data(2, 1000), words(&[2])].concat());
    source(&mut raw, 3, 9000, &[small]);
    refused(&mut net, &mut raw, 3, HeaderFault::Chunk);
    nothing_is_left(&mut net, raw);
}

#[test]
fn a_message_over_the_threshold_ends_the_connection() {
    let (mut net, mut raw) = world();
    let args = [words(&[1, 4096]), data(1, 4096), words(&[99])].concat();
    raw.call(1, procedures::SINK, Chunks::default(), &args);
    ended(&mut net, raw);
}

#[test]
fn peers_that_tell_nothing_get_short_messages() {
    let mut net = Net::calm(2);
    let mut raw = Raw::connect(&mut net, HOST, &[]);
    raw.call(1, procedures::WORDS, Chunks::default(), &words(&[1, 300]));
    refused(&mut net, &mut raw, 1, HeaderFault::Chunk);
    raw.call(2, procedures::WORDS, Chunks::default(), &words(&[2, 200]));
    net.settle(&mut [&mut raw]);
    assert_eq!(raw.heard().reply().1, words(&[2; 201]));
    nothing_is_left(&mut net, raw);
}

#[test]
fn a_peer_that_never_completes_a_read_is_given_up() {
    let (mut net, mut raw) = world();
    let memory = raw.memory(1 << 20);
    let reads = [memory.read(DATA_AT, 0, 1 << 20)];
    sink(&mut raw, 1, procedures::SINK, 1 << 20, &reads);
    raw.flush();
    net.stop_when_read(HOST);
    assert_eq!(net.connections(), 1);
    net.pass(Duration::from_secs(20));
    assert_eq!(net.connections(), 1, "there is time yet");
    net.pass(Duration::from_secs(40));
    assert_eq!(net.connections(), 0, "nobody waits for ever");
    assert_eq!(net.program.done(1), 0);
    net.resume(HOST);
    nothing_is_left(&mut net, raw);
}

#[test]
fn peers_that_leave_at_any_moment_leave_nothing() {
    let begin = |raw: &mut Raw, memory: &Memory| {
        let reads = [memory.read(DATA_AT, 0, 100_000)];
        sink(raw, 1, procedures::SINK, 100_000, &reads);
        sink(raw, 2, procedures::SINK_APART, 100_000, &reads);
        sink(raw, 3, procedures::SINK_LATER, 100_000, &reads);
        source(raw, 4, 100_000, &[memory.chunk(0, 100_000)]);
        let chunks = Chunks { reply: Some(memory.chunk(0, 50_000)), ..Chunks::default() };
        raw.call(5, procedures::WORDS, chunks, &words(&[5, 9_999]));
    };
    let (mut net, mut raw) = world();
    let memory = raw.memory(100_000);
    begin(&mut raw, &memory);
    let steps = net.steps(&mut raw, usize::MAX);
    assert!(steps > 20, "{steps}");
    for step in 0..steps {
        let (mut net, mut raw) = world();
        let memory = raw.memory(100_000);
        begin(&mut raw, &memory);
        net.steps(&mut raw, step);
        raw.abort();
        net.settle(&mut [&mut raw]);
        while !net.program.account().held.is_empty() {
            net.program.release(0);
        }
        for number in 1..=5 {
            assert!(net.program.done(number) <= 1);
        }
        nothing_is_left(&mut net, raw);
    }
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
            net.settle(&mut [&mut raw]);
            assert_eq!(raw.heard().reply().1, words(&[xid, 8192, xid]));
            assert_eq!(memory.get(0, 8192), data(xid, 8192));
        }
        let expected = if wanted { keys } else { Vec::new() };
        assert_eq!(raw.invalidated, expected);
        nothing_is_left(&mut net, raw);
    }
}

#[test]
fn writes_into_the_servers_memory_find_none() {
    // Whatever the server has registered, no peer was told a key, so guessing is all that is left.
    let mut rng = SimRng::new(5);
    for _ in 0..50 {
        let (mut net, mut raw) = world();
        let memory = raw.memory(64);
        let remote = RemoteBuffer { key: rng.bits() as u32, address: rng.bits(), len: 64 };
        raw.write(&memory, remote);
        ended(&mut net, raw);
    }
}

#[test]
fn noise_is_survived() {
    let seeds = match std::env::var("DAFS_RDMA_NOISE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..300,
    };
    for seed in seeds {
        let mut rng = SimRng::new(seed);
        let (mut net, mut raw) = world();
        let memory = raw.memory(64 << 10);
        let mut xid = 0;
        for _ in 0..40 {
            if !raw.is_up() {
                break;
            }
            xid += 1;
            let bytes = noise(&mut rng, &memory, xid);
            raw.send(&bytes);
            if rng.chance(500_000) {
                net.settle(&mut [&mut raw]);
            }
        }
        net.settle(&mut [&mut raw]);
        for Message { header, .. } in &raw.inbox {
            assert!(header.credits >= 1, "seed {seed}");
        }
        while !net.program.account().held.is_empty() {
            net.program.release(0);
        }
        net.settle(&mut [&mut raw]);
        nothing_is_left(&mut net, raw);
    }
}

/// A message that is good but for a few words.
fn noise(rng: &mut SimRng, memory: &Memory, xid: u32) -> Vec<u8> {
    let mut segment = || {
        let at = rng.below(60 << 10) as usize;
        memory.segment(at, rng.below(4096) as usize)
    };
    let segments = [segment(), segment(), segment(), segment()];
    let mut chunks = Chunks::default();
    for segment in segments {
        match rng.below(4) {
            0 => {
                let position = [DATA_AT, 0, 44, 52][rng.below(4) as usize];
                chunks.reads.push(ReadSegment { position, segment });
            }
            1 => chunks.writes.push(chunk(&[segment, segment])),
            2 => chunks.reply = Some(chunk(&[segment])),
            _ => {}
        }
    }
    let procedure = rng.below(10) as u32;
    let len = match rng.below(3) {
        0 => 0,
        1 => chunks.reads.iter().map(|read| read.segment.length).sum(),
        _ => rng.below(5000) as u32,
    };
    let body = match rng.below(8) {
        0 => Body::NoMessage(chunks),
        1 => Body::Done,
        _ => Body::Message(chunks),
    };
    let header = Header { xid, credits: rng.log_below(1 << 32) as u32, body };
    let mut bytes = message(&header, &call(xid, procedure, &words(&[xid, len, 99])));
    for _ in 0..rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = rng.bits() as u8;
    }
    if rng.chance(100_000) {
        bytes.truncate(rng.below(bytes.len() as u64) as usize);
    }
    bytes
}
