//! Clients that break RPC-over-RDMA by the content, the time and the number of their messages. At
//! most their connection ends; its resources are free again, and the server serves others.

use super::net::Net;
use super::program::{data, procedures};
use super::raw::{Raw, call};
use super::scene::*;
use crate::peer::{Memory, Message, chunk, message, reply_chunk, words};
use dafs_dat::sim::{SimFaults, SimNetwork, SimRng};
use dafs_rpc::server::Config;
use dafs_wire::rpcrdma::{Body, Chunks, Header, HeaderFault, ReadSegment};
use std::time::Duration;

#[test]
fn headers_that_are_none_are_refused() {
    let (mut net, mut raw) = world();
    let cases: [(&[u32], HeaderFault); 8] = [
        (&[9, 2, 1, 0, 0, 0, 0], HeaderFault::Version { low: 1, high: 1 }),
        (&[9, 0], HeaderFault::Version { low: 1, high: 1 }),
        // RDMA_MSGP and unknown procedures.
        (&[9, 1, 1, 2, 0, 0, 0, 0, 0], HeaderFault::Chunk),
        (&[9, 1, 1, 5], HeaderFault::Chunk),
        // Lists that do not end, invalid flags, impossible counts.
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
fn obsolete_and_unasked_messages_take_nothing() {
    let (mut net, mut raw) = world();
    for _ in 0..200 {
        raw.send_header(1, 1, Body::Done);
        net.settle(&mut [&mut raw]);
        assert!(raw.inbox.is_empty());
    }
    still_works(&mut net, &mut raw);
    nothing_is_left(&mut net, raw);
    // Errors and replies without a callback may cost the connection.
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
            let granted = heard(&mut net, &mut raw).header.credits;
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
        granted = heard(&mut net, &mut raw).header.credits;
    }
    assert_eq!(granted, net.credits_max());
    net.pass(Duration::from_secs(300));
    // These use receives and get no answer.
    for _ in 0..granted {
        raw.send_header(1, 1, Body::Done);
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
    // The server defers these calls, so no credit returns.
    while raw.is_up() {
        xid += 1;
        assert!(xid <= 2 * net.credits_max() + 2, "calls without end are taken in");
        raw.call(xid, procedures::SOURCE_LATER, Chunks::default(), &words(&[xid, 4]));
        net.settle(&mut [&mut raw]);
    }
    let held = net.program.account().held.len();
    assert!(held >= 1);
    // Late answers have no connection to go to.
    (0..held).for_each(|_| net.program.release(0));
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
    assert_eq!(heard(&mut net, &mut raw).reply().1, words(&[2; 201]));
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
fn a_first_call_may_wait_for_memory_of_the_server() {
    let config =
        Config { pending_bytes_max: 40 << 10, waiting_bytes_max: 80 << 10, ..Config::default() };
    let mut net = Net::new(SimNetwork::new(1, SimFaults::none()), config);
    let mut raws = Vec::new();
    // The last one finds no memory left.
    while net.program.account().held.len() == raws.len() {
        assert!(raws.len() < 10, "there is memory without end");
        let mut raw = Raw::connect(&mut net, HOST + raws.len() as u32, &told(false));
        let memory = raw.memory(30_000);
        let reads = [memory.read(DATA_AT, 0, 30_000)];
        sink(&mut raw, 1, procedures::SINK_LATER, 30_000, &reads);
        net.settle(&mut [&mut raw]);
        raws.push((raw, memory));
    }
    net.pass(Duration::from_secs(20));
    assert_eq!(net.connections(), raws.len() as u64);
    for _ in 0..raws.len() {
        net.program.release(0);
        let mut all: Vec<_> = raws.iter_mut().map(|(raw, _)| raw).collect();
        net.settle(&mut all);
    }
    assert!(raws.iter_mut().all(|(raw, _)| raw.heard().header.xid == 1));
}

#[test]
fn peers_that_leave_at_any_moment_leave_nothing() {
    let begin = |raw: &mut Raw, memory: &Memory| {
        let reads = [memory.read(DATA_AT, 0, 100_000)];
        sink(raw, 1, procedures::SINK, 100_000, &reads);
        sink(raw, 2, procedures::SINK_APART, 100_000, &reads);
        sink(raw, 3, procedures::SINK_LATER, 100_000, &reads);
        source(raw, 4, 100_000, &[memory.chunk(0, 100_000)]);
        let chunks = reply_chunk(memory.chunk(0, 50_000));
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
fn noise_is_survived() {
    for seed in noise_seeds() {
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

/// A valid message but for a few words.
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
