//! Servers that break RPC-over-RDMA. The client checks all input: a call gets its own answer or
//! fails, memory that was not offered stays untouched, and the resources of a dead connection are
//! free again.

use super::net::{Net, SERVER_HOST};
use super::raw::Raw;
use super::scene::noise_seeds;
use crate::peer::{
    self, Message, call, chunk, reads, remote, reply, reply_chunk, success, words, writes,
};
use dafs_dat::sim::SimRng;
use dafs_dat::{Address, Instant, RemoteBuffer};
use dafs_mem::Site;
use dafs_rpc::client::{
    CallError, Options, Pending, Port, Procedure, Request, RpcClient, SendData,
};
use dafs_wire::rpc::AcceptStatus;
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, HeaderFault, Segment};
use dafs_wire::xdr::XdrError;

const HOST: u32 = 9;
const PROCEDURE: Procedure =
    Procedure { program: super::program::PROGRAM, version: 1, procedure: 3 };

/// The product's client with a server that the test plays.
struct Pair {
    net: Net,
    port: Port,
    client: RpcClient,
    server: Raw,
    /// Registrations of the client before it connected.
    regions: usize,
}

impl Pair {
    fn new() -> Self {
        Self::with(Options { credits: 8, ..Options::default() })
    }

    fn with(options: Options) -> Self {
        let net = Net::without_server();
        let mut server = Raw::new(&net, SERVER_HOST);
        server.listen();
        let port = Port::new(Box::new(net.network.adapter(HOST))).unwrap();
        // Staging memory stays with the port.
        let regions = net.network.region_count(HOST);
        let client = RpcClient::begin_rdma(&port, &Address::Sim(SERVER_HOST), options, None, 100);
        let client = client.unwrap();
        let mut pair = Self { net, port, client, server, regions };
        pair.settle();
        assert!(pair.client.is_connected() && pair.server.is_up());
        pair
    }

    fn settle(&mut self) {
        self.net.settle_with(&mut [&mut self.server], |now: Instant| self.port.poll(now));
    }

    fn call(&mut self, request: &Request<'_>) -> Pending {
        let pending = self.client.submit_request(request).unwrap();
        self.settle();
        pending
    }

    /// A call without data that has arrived.
    fn plain(&mut self) -> (Pending, u32) {
        let pending = self.call(&Request::new(PROCEDURE, &[&[0, 0, 0, 7]], 100));
        let xid = self.server.heard().header.xid;
        (pending, xid)
    }

    fn answer(&mut self, xid: u32, credits: u32, chunks: Chunks, rpc: &[u8]) {
        let header = Header { xid, credits, body: Body::Message(chunks) };
        self.server.send_message(&header, rpc);
        self.settle();
    }

    /// Checks that the connection has ended, and so has the call.
    fn ended(mut self, pending: Pending) {
        self.settle();
        assert!(self.client.is_broken(), "the connection lives");
        assert!(pending.is_answered());
        let outcome = pending.wait();
        assert!(matches!(outcome, Err(CallError::Disconnected(_))), "{outcome:?}");
        self.nothing_is_left();
    }

    /// Checks that the connection still works.
    fn still_works(&mut self) {
        let (pending, xid) = self.plain();
        self.answer(xid, 8, Chunks::default(), &success(xid, &[1, 2, 3, 4]));
        assert_eq!(pending.wait().unwrap()[..], [1, 2, 3, 4]);
        assert!(self.client.is_connected());
    }

    fn nothing_is_left(self) {
        let Self { mut net, port, client, mut server, regions } = self;
        drop(client);
        net.settle_with(&mut [&mut server], |now| port.poll(now));
        assert!(server.ending().is_some());
        let left = net.network.region_count(HOST) - regions;
        assert!(left <= STAGING_KEPT, "{left} registrations are left");
    }
}

/// Pieces of staging memory that a port keeps after the few calls of a test: some of each size, for
/// a call and for its reply.
const STAGING_KEPT: usize = 4;

#[test]
fn answers_to_nothing_are_ignored() {
    let mut pair = Pair::new();
    let (pending, xid) = pair.plain();
    for other in [xid + 1, xid.wrapping_sub(1), 0] {
        pair.answer(other, 8, Chunks::default(), &success(other, &[9; 4]));
        assert!(!pending.is_answered());
    }
    pair.answer(xid, 8, Chunks::default(), &success(xid, &[5; 8]));
    // A second, different answer.
    pair.answer(xid, 8, Chunks::default(), &success(xid, &[6; 8]));
    assert_eq!(pending.wait().unwrap()[..], [5; 8]);
    for _ in 0..300 {
        pair.server.send_header(xid, 1, Body::Done);
        pair.answer(xid, 8, Chunks::default(), &success(xid, &[6; 8]));
        pair.server.send_header(xid, 1, Body::Error(HeaderFault::Chunk));
        pair.settle();
    }
    pair.still_works();
    pair.nothing_is_left();
}

#[test]
fn a_call_that_has_not_left_cannot_be_answered() {
    let mut pair = Pair::new();
    // Before the first answer there is one credit.
    let (first, xid) = pair.plain();
    let second = pair.call(&Request::new(PROCEDURE, &[&[0, 0, 0, 8]], 100));
    assert!(pair.server.inbox.is_empty(), "one call at a time until more are granted");
    pair.answer(xid + 1, 8, Chunks::default(), &success(xid + 1, &[6; 8]));
    assert!(!second.is_answered());
    // Zero credits would be a deadlock, so they count as one.
    pair.answer(xid, 0, Chunks::default(), &success(xid, &[5; 8]));
    assert_eq!(first.wait().unwrap()[..], [5; 8]);
    assert_eq!(pair.server.heard().header.xid, xid + 1);
    pair.answer(xid + 1, u32::MAX, Chunks::default(), &success(xid + 1, &[7; 8]));
    assert_eq!(second.wait().unwrap()[..], [7; 8]);
    // As many credits as the client requested, and no more.
    let calls: Vec<_> = (0..20).map(|_| pair.call(&Request::new(PROCEDURE, &[], 100))).collect();
    assert_eq!(pair.server.inbox.len(), 8);
    drop(calls);
    pair.nothing_is_left();
}

#[test]
fn two_numbers_in_one_message_end_the_connection() {
    let mut pair = Pair::new();
    let (pending, xid) = pair.plain();
    pair.answer(xid, 8, Chunks::default(), &success(xid + 1, &[5; 8]));
    pair.ended(pending);
}

/// A call with two sinks, and the server's view of it.
fn with_sinks(pair: &mut Pair, results_bytes_max: usize) -> (Pending, Message) {
    let memory = pair.client.allocate(10_000).unwrap();
    memory.view().fill(0xee);
    let sinks = [memory.slice(0..1000).unwrap(), memory.slice(2000..4000).unwrap()];
    let args: &[&[u8]] = &[&[0, 0, 0, 7]];
    let request = Request { sinks: &sinks, ..Request::new(PROCEDURE, args, results_bytes_max) };
    let pending = pair.call(&request);
    let message = pair.server.heard();
    let lens: Vec<_> = message.chunks().writes.iter().map(Chunk::len).collect();
    assert_eq!(lens, [1000, 2000]);
    (pending, message)
}

fn returned(message: &Message, lens: &[u32]) -> Chunks {
    let mut chunks = Chunks::default();
    for (index, &length) in lens.iter().enumerate() {
        let offered = message.chunks().writes.get(index);
        let segment =
            offered.map_or(Segment { handle: 1, length: 0, offset: 1 }, |chunk| chunk.segments[0]);
        chunks.writes.push(chunk(&[Segment { length, ..segment }]));
    }
    chunks
}

#[test]
fn more_than_was_offered_cannot_have_been_placed() {
    let whole: &[u32] = &[1000, 2000];
    assert!(!whole.is_empty());
    for lens in [&[1001][..], &[1000, 2001], &[u32::MAX], &[0, 0, 0], &[4, 4, 4]] {
        let mut pair = Pair::new();
        let (pending, message) = with_sinks(&mut pair, 100);
        let xid = message.header.xid;
        pair.answer(xid, 8, returned(&message, lens), &success(xid, &[0; 8]));
        pair.ended(pending);
    }
    // The lengths add up to those offered, but in other segments.
    let mut pair = Pair::new();
    let (pending, message) = with_sinks(&mut pair, 100);
    let xid = message.header.xid;
    let segment = Segment { length: u32::MAX, ..message.chunks().writes[0].segments[0] };
    pair.answer(xid, 8, writes(&[chunk(&[segment; 3])]), &success(xid, &[0; 8]));
    pair.ended(pending);
}

#[test]
fn data_that_is_not_what_the_results_say_is_found_out() {
    let mut pair = Pair::new();
    for (placed, said) in [(8, 16), (16, 8), (0, 8), (1000, 996)] {
        let (pending, message) = with_sinks(&mut pair, 100);
        let xid = message.header.xid;
        let chunks = returned(&message, &[placed]);
        pair.answer(xid, 8, chunks, &success(xid, &words(&[said])));
        let results = pending.wait().unwrap();
        let read = results.decoder().payload(5000);
        let expected = [XdrError::MovedLength { len: said as usize, moved: placed as usize }];
        match read {
            Err(XdrError::Truncated { .. }) => assert_eq!(placed, 0),
            Err(error) => assert_eq!([error], expected),
            Ok(payload) => panic!("{payload:?}"),
        }
    }
    pair.still_works();
    pair.nothing_is_left();
}

#[test]
fn memory_that_was_not_offered_is_not_touched() {
    for (offset, len) in [(0i64, 1001), (-1, 1), (1000, 1), (1999, 10), (0, 10_000)] {
        let mut pair = Pair::new();
        let memory = pair.client.allocate(10_000).unwrap();
        memory.view().fill(0xee);
        let sinks = [memory.slice(1000..2000).unwrap()];
        let request = Request { sinks: &sinks, ..Request::new(PROCEDURE, &[], 100) };
        let pending = pair.call(&request);
        let offered = pair.server.heard().chunks().writes[0].segments[0];
        let own = pair.server.memory(10_000);
        own.put(0, &[0x55; 10_000]);
        let address = offered.offset.wrapping_add_signed(offset);
        pair.server.write(&own, RemoteBuffer { key: offered.handle, address, len });
        pair.settle();
        // One key covers a whole memory, as its owner has chosen; the server can reach no byte
        // beyond it.
        if pair.client.is_broken() {
            pair.ended(pending);
            assert!(memory.view().to_vec(Site::Inspect).iter().all(|byte| *byte == 0xee));
        } else {
            drop(pending);
            pair.nothing_is_left();
        }
    }
}

#[test]
fn long_replies_that_were_not_placed_end_the_connection() {
    for case in 0..5 {
        let mut pair = Pair::new();
        let pending = pair.call(&Request::new(PROCEDURE, &[], 20_000));
        let message = pair.server.heard();
        let xid = message.header.xid;
        let offered = message.chunks().reply.clone().unwrap();
        let segment = offered.segments[0];
        let reply = match case {
            0 => None,
            1 => Some(chunk(&[])),
            2 => Some(chunk(&[Segment { length: 0, ..segment }])),
            3 => Some(chunk(&[Segment { length: segment.length + 1, ..segment }])),
            _ => Some(chunk(&[segment, segment])),
        };
        pair.server.send_header(xid, 1, Body::NoMessage(Chunks { reply, ..Chunks::default() }));
        pair.ended(pending);
    }
    // The data in the reply chunk is not a reply, or replies to another call.
    for rpc in [vec![0x55; 100], success(1, &[0; 76]), Vec::new()] {
        let mut pair = Pair::new();
        let pending = pair.call(&Request::new(PROCEDURE, &[], 20_000));
        let message = pair.server.heard();
        let xid = message.header.xid;
        let segment = message.chunks().reply.as_ref().unwrap().segments[0];
        let own = pair.server.memory(100);
        own.put(0, &rpc);
        pair.server.write(&own, remote(Segment { length: 100, ..segment }));
        let reply = Some(chunk(&[Segment { length: 100, ..segment }]));
        pair.server.send_header(xid, 1, Body::NoMessage(Chunks { reply, ..Chunks::default() }));
        pair.settle();
        assert!(pending.is_answered());
        pending.wait().unwrap_err();
        pair.nothing_is_left();
    }
}

#[test]
fn refusals_reach_their_calls() {
    let mut pair = Pair::new();
    let (pending, xid) = pair.plain();
    pair.server.send_header(xid, 3, Body::Error(HeaderFault::Chunk));
    pair.settle();
    assert_eq!(pending.wait().unwrap_err(), CallError::Chunks);
    pair.still_works();
    let (pending, xid) = pair.plain();
    pair.server.send_header(xid, 3, Body::Error(HeaderFault::Version { low: 2, high: 3 }));
    pair.ended(pending);
}

#[test]
fn a_message_that_is_no_reply_ends_the_connection() {
    for case in 0..8 {
        let mut pair = Pair::new();
        let (pending, xid) = pair.plain();
        let memory = pair.server.memory(100);
        let good = Header { xid, credits: 1, body: Body::Message(Chunks::default()) };
        match case {
            0 => pair.server.send(&[]),
            1 => pair.server.send(&words(&[xid])),
            2 => pair.server.send(&words(&[xid, 2, 1, 0, 0, 0, 0])),
            3 => pair.server.send(&words(&[xid, 1, 1, 2, 0, 0, 0, 0, 0])),
            // A reply with a read chunk.
            4 => {
                let body = Body::Message(reads(&[memory.read(40, 0, 100)]));
                let header = Header { xid, credits: 1, body };
                pair.server.send_message(&header, &success(xid, &[]));
            }
            5 => pair.server.send_message(&good, &[]),
            6 => pair.server.send_message(&good, &words(&[xid, 7])),
            // Longer than a message may be.
            _ => pair.server.send_message(&good, &success(xid, &[0; 5000])),
        }
        pair.ended(pending);
    }
}

#[test]
fn a_key_that_dies_unasked_ends_the_connection() {
    let mut pair = Pair::new();
    let (pending, message) = with_sinks(&mut pair, 100);
    let xid = message.header.xid;
    let header = Header { xid, credits: 1, body: Body::Message(returned(&message, &[0])) };
    let key = message.chunks().writes[0].segments[0].handle;
    let bytes = peer::message(&header, &success(xid, &[0; 8]));
    pair.server.send_invalidate(&bytes, key);
    pair.ended(pending);
}

#[test]
fn calls_that_were_not_asked_for_are_bounded() {
    let procedure = Procedure { program: 1, version: 1, procedure: 0 };
    let mut pair = Pair::new();
    // The server must not send first.
    pair.still_works();
    for xid in 0..300 {
        pair.answer(xid, 1, Chunks::default(), &call(xid, procedure, &[]));
        let refused = pair.server.heard();
        assert_eq!(refused.header.xid, xid);
        let status = reply(xid, &refused.body).0;
        assert_eq!(status, AcceptStatus::ProgramUnavailable);
        // With chunks, or in one.
        let memory = pair.server.memory(64);
        let chunks = reply_chunk(memory.chunk(0, 64));
        pair.answer(xid, 1, chunks, &call(xid, procedure, &[]));
        assert_eq!(pair.server.heard().fault(), Some(HeaderFault::Chunk));
        pair.server.deregister(&memory);
    }
    pair.still_works();
    pair.nothing_is_left();
}

#[test]
fn noise_is_survived() {
    for seed in noise_seeds() {
        let mut rng = SimRng::new(seed);
        let mut pair = Pair::new();
        for _ in 0..30 {
            if pair.client.is_broken() {
                break;
            }
            noise(&mut rng, &mut pair);
        }
        pair.nothing_is_left();
    }
}

/// A call with memory of all kinds, and a valid answer but for a few bytes.
fn noise(rng: &mut SimRng, pair: &mut Pair) {
    let memory = pair.client.allocate(8192).unwrap();
    let sinks = [memory.slice(0..1000).unwrap()];
    let args: &[&[u8]] = &[&[0, 0, 16, 0], &[1, 2, 3, 4]];
    let mut request = Request::new(PROCEDURE, args, rng.below(9000) as usize);
    if rng.chance(500_000) {
        let memory = memory.slice(4096..8192).unwrap();
        request.data = Some(SendData { position: 4, memory });
    }
    if rng.chance(500_000) {
        request.sinks = &sinks;
    }
    let pending = pair.call(&request);
    let Some(message) = pair.server.inbox.pop_front() else { return };
    let xid = message.header.xid;
    let mut chunks = message.chunks().clone();
    chunks.reads.clear();
    for segment in chunks.writes.iter_mut().chain(&mut chunks.reply).flat_map(|c| &mut c.segments) {
        segment.length = rng.below(u64::from(segment.length) + 2) as u32;
    }
    let body = match rng.below(6) {
        0 => Body::NoMessage(chunks),
        1 => Body::Error(HeaderFault::Chunk),
        _ => Body::Message(chunks),
    };
    let header = Header { xid, credits: rng.bits() as u32, body };
    let mut bytes = peer::message(&header, &success(xid, &[0; 64]));
    for _ in 0..rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = rng.bits() as u8;
    }
    pair.server.send(&bytes);
    pair.settle();
    assert!(pending.is_answered() || !pair.client.is_broken());
    if pending.is_answered()
        && let Ok(results) = pending.wait()
    {
        let _ = results.decoder().payload(5000);
    }
}
