//! Calls that succeed.

use super::world::{FIRST_XID, PROCEDURE, World, args, chunk};
use crate::peer::{Message, reply_chunk, success, writes};
use dafs_mem::{Site, VolatileSlice};
use dafs_rpc::client::{CallError, Memory, Options, Pending, Request, RpcClient, SendData};
use dafs_wire::rpc::{AcceptStatus, ReplyHeader};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, HeaderFault, PrivateData};
use dafs_wire::xdr::{Encode, Encoder, MovedData, Payload};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 / 3) as u8).collect()
}

fn fill(view: VolatileSlice<'_>, bytes: &[u8]) {
    assert_eq!(view.copy_from(bytes, Site::Inspect), bytes.len());
}

fn submit(client: &RpcClient, args: &[u8]) -> Pending {
    client.submit_request(&Request::new(PROCEDURE, &[args], 100)).unwrap()
}

fn outcome(world: &mut World, pending: Pending) -> Result<Vec<u8>, CallError> {
    world.until(|_| pending.is_answered());
    pending.wait().map(|results| results.to_vec())
}

fn is_plain(call: &Message) -> bool {
    call.header.body == Body::Message(Chunks::default())
}

#[test]
fn a_short_call_is_one_message_each_way() {
    let mut world = World::new(Some(4096));
    let client = world.connect(Options::default(), None);
    let told = PrivateData::find(&world.private_data).unwrap();
    assert_eq!((told.send_bytes, told.receive_bytes), (4096, 4096));
    assert!(!told.remote_invalidation);
    let pending = submit(&client, b"argument");
    let call = world.receive();
    assert!(is_plain(&call));
    assert_eq!((call.header.xid, call.header.credits), (FIRST_XID, 64));
    assert_eq!(args(&call.body), (FIRST_XID, b"argument".to_vec()));
    assert!(!pending.is_answered());
    world.answer(&call, 5, b"results!");
    assert_eq!(outcome(&mut world, pending), Ok(b"results!".to_vec()));
}

#[test]
fn refusals_are_told() {
    let mut world = World::new(Some(4096));
    let client = world.connect(Options::default(), None);
    let pending = submit(&client, b"");
    let call = world.receive();
    let xid = call.header.xid;
    let header = ReplyHeader::accepted(xid, AcceptStatus::ProgramUnavailable);
    world.send_plain(xid, 1, &header.encoded());
    let refused = CallError::NotDone(AcceptStatus::ProgramUnavailable);
    assert_eq!(outcome(&mut world, pending), Err(refused));
    let pending = submit(&client, b"");
    let call = world.receive();
    world.send(call.header.xid, 1, Body::Error(HeaderFault::Chunk), &[]);
    assert_eq!(outcome(&mut world, pending), Err(CallError::Chunks));
    // The connection continues.
    let pending = submit(&client, b"more");
    let call = world.receive();
    world.answer(&call, 1, b"");
    assert_eq!(outcome(&mut world, pending), Ok(Vec::new()));
}

#[test]
fn calls_wait_for_credits_and_keep_their_order() {
    let mut world = World::new(Some(4096));
    let client = world.connect(Options { credits: 8, ..Options::default() }, None);
    let pending: Vec<_> = (0..40u32).map(|i| submit(&client, &i.to_be_bytes())).collect();
    world.settle();
    // One credit before the first reply.
    assert_eq!(world.arrived(), 1);
    let mut next = 0;
    // The client uses no more credits than it requested; zero counts as one.
    for (granted, at_server) in [(3, 3), (0, 1), (1, 1), (100, 8), (8, 8)] {
        let calls: Vec<_> = (0..world.arrived()).map(|_| world.receive()).collect();
        for call in calls {
            assert_eq!(args(&call.body).1, u32::to_be_bytes(next));
            next += 1;
            world.answer(&call, granted, b"done");
        }
        world.settle();
        assert_eq!(world.arrived(), at_server);
        // Each reply, and each callback, will find a receive.
        assert!(world.posted_by_client() > at_server);
    }
    while world.arrived() > 0 {
        let call = world.receive();
        world.answer(&call, 8, b"done");
        world.settle();
    }
    for pending in pending {
        assert_eq!(outcome(&mut world, pending), Ok(b"done".to_vec()));
    }
}

#[test]
fn many_calls_take_little_memory_again_and_again() {
    let mut world = World::new(Some(4096));
    let client = world.connect(Options::default(), None);
    let mut regions = 0;
    for round in 0..30 {
        let pending: Vec<_> = (0..30u32).map(|i| submit(&client, &i.to_be_bytes())).collect();
        for _ in 0..30 {
            let call = world.receive();
            world.answer(&call, 64, b"done");
        }
        for pending in pending {
            outcome(&mut world, pending).unwrap();
        }
        if round == 1 {
            regions = world.regions_of_client();
        }
    }
    assert_eq!(world.regions_of_client(), regions);
}

#[test]
fn a_server_that_says_nothing_gets_messages_of_a_kibibyte() {
    let mut world = World::new(None);
    let client = world.connect(Options::default(), None);
    let args_of = |len: usize| vec![7; len];
    // 28 bytes of header, 40 of the call.
    let pending = submit(&client, &args_of(1024 - 68));
    let call = world.receive();
    assert!(is_plain(&call) && call.body.len() == 1024 - 28);
    world.answer(&call, 1, b"");
    outcome(&mut world, pending).unwrap();
    let pending = submit(&client, &args_of(1024 - 64));
    let call = world.receive();
    let Body::NoMessage(chunks) = &call.header.body else { panic!("{call:?}") };
    assert!(call.body.is_empty() && chunks.reads.len() == 1 && chunks.reads[0].position == 0);
    let rpc = world.read(chunks.reads[0].segment);
    assert_eq!(args(&rpc), (call.header.xid, args_of(1024 - 64)));
    world.answer(&call, 1, b"");
    outcome(&mut world, pending).unwrap();
}

#[test]
fn data_goes_inside_the_message_or_is_offered() {
    let mut world = World::new(Some(2048));
    let client = world.connect(Options::default(), None);
    let memory = client.allocate(1 << 20).unwrap();
    for len in [0, 3, 1500, 1964, 1965, 100_001, 1 << 20] {
        let data = memory.slice(0..len).unwrap();
        fill(data.view(), &pattern(len));
        let data = Some(SendData { position: 12, memory: data });
        let head = [&[9; 8][..], &(len as u32).to_be_bytes()].concat();
        let args_pieces = [&head[..5], &head[5..], b"tail"];
        let request = Request { data, ..Request::new(PROCEDURE, &args_pieces, 100) };
        let pending = client.submit_request(&request).unwrap();
        let call = world.receive();
        let (_, sent) = args(&call.body);
        let chunks = call.chunks();
        if len <= 1964 {
            assert!(is_plain(&call), "{len}");
            let padding = &[0; 4][..len.next_multiple_of(4) - len];
            assert!(sent == [&head[..], &pattern(len), padding, b"tail"].concat());
        } else {
            assert_eq!(sent, [&head[..], b"tail"].concat());
            let [read] = chunks.reads[..] else { panic!("{chunks:?}") };
            assert_eq!(read.position, 40 + 12);
            assert!(world.read(read.segment) == pattern(len));
        }
        world.answer(&call, 1, b"");
        outcome(&mut world, pending).unwrap();
    }
}

#[test]
fn long_arguments_and_data_are_offered_apart_from_each_other() {
    let mut world = World::new(Some(1024));
    let client = world.connect(Options::default(), None);
    let memory = client.allocate(5000).unwrap();
    fill(memory.view(), &pattern(5000));
    let long = vec![3; 3000];
    let count = 5000u32.to_be_bytes();
    let pieces = [&long[..], &count, b"tail"];
    let data = Some(SendData { position: 3004, memory: memory.whole() });
    let request = Request { data, ..Request::new(PROCEDURE, &pieces, 100) };
    let pending = client.submit_request(&request).unwrap();
    let call = world.receive();
    let Body::NoMessage(chunks) = call.header.body.clone() else { panic!("{call:?}") };
    assert_eq!(chunks.reads.iter().map(|read| read.position).collect::<Vec<_>>(), [0, 3044]);
    let rpc = world.read(chunks.reads[0].segment);
    assert_eq!(args(&rpc).1, pieces.concat());
    assert!(world.read(chunks.reads[1].segment) == pattern(5000));
    world.answer(&call, 1, b"");
    outcome(&mut world, pending).unwrap();
}

/// A call with sinks that has arrived at the server.
fn reading(
    world: &mut World,
    client: &RpcClient,
    memory: &Memory,
    sinks: &[(usize, usize)],
) -> (Pending, Message) {
    let sinks: Vec<_> =
        sinks.iter().map(|&(at, len)| memory.slice(at..at + len).unwrap()).collect();
    let request = Request { sinks: &sinks, ..Request::new(PROCEDURE, &[b"read"], 100) };
    let pending = client.submit_request(&request).unwrap();
    (pending, world.receive())
}

#[test]
fn results_are_placed_where_the_call_wants_them() {
    let mut world = World::new(Some(4096));
    let client = world.connect(Options::default(), None);
    let memory = client.allocate(1 << 20).unwrap();
    let places = [(4096, 100_000), (8, 50), (300_000, 700_000)];
    let (pending, call) = reading(&mut world, &client, &memory, &places);
    let offered = call.chunks().clone();
    assert_eq!(offered.writes.len(), 3);
    assert!(offered.reply.is_none() && offered.reads.is_empty());
    let segments: Vec<_> = offered.writes.iter().map(|chunk| chunk.segments[0]).collect();
    assert_eq!(segments.iter().map(|s| s.length).collect::<Vec<_>>(), [100_000, 50, 700_000]);
    world.write(segments[0], &pattern(99_999));
    world.write(segments[2], &pattern(5));
    let mut results = Vec::new();
    let mut encoder = Encoder::new(&mut results);
    encoder.payload(Payload::Moved(MovedData { index: 0, len: 99_999 }));
    encoder.opaque(b"a short one");
    encoder.payload(Payload::Moved(MovedData { index: 2, len: 5 }));
    // The server may have written the padding too.
    let lens = [99_999, 0, 8];
    let chunks: Vec<_> =
        segments.iter().zip(lens).map(|(&segment, len)| chunk(segment, len)).collect();
    let chunks = writes(&chunks);
    world.send(call.header.xid, 1, Body::Message(chunks), &success(call.header.xid, &results));
    world.until(|_| pending.is_answered());
    let results = pending.wait().unwrap();
    let mut decoder = results.decoder();
    let first = decoder.payload(1 << 20).unwrap();
    assert_eq!(first, Payload::Moved(MovedData { index: 0, len: 99_999 }));
    let second = decoder.payload(50).unwrap();
    assert_eq!(second, Payload::Here(b"a short one"));
    assert_eq!(decoder.payload(9), Ok(Payload::Moved(MovedData { index: 2, len: 5 })));
    assert_eq!(decoder.finish(), Ok(()));
    assert_eq!(memory.slice(0..100_000).unwrap().take(first), 99_999);
    let at = |at, len| memory.view().slice(at, len).unwrap().to_vec(Site::Inspect);
    assert!(at(4096, 99_999) == pattern(99_999));
    assert_eq!(at(300_000, 5), pattern(5));
    assert_eq!(memory.slice(8..58).unwrap().take(second), 11);
    assert_eq!(at(8, 11), b"a short one");
}

#[test]
fn results_that_may_be_long_have_a_reply_chunk() {
    let mut world = World::new(Some(1024));
    let client = world.connect(Options::default(), None);
    for (most, is_offered) in [(1024 - 28 - 24, false), (1024 - 28 - 20, true), (9000, true)] {
        let pending = client.submit_request(&Request::new(PROCEDURE, &[], most)).unwrap();
        let call = world.receive();
        assert_eq!(call.chunks().reply.is_some(), is_offered, "{most}");
        world.answer(&call, 1, b"short");
        assert_eq!(outcome(&mut world, pending), Ok(b"short".to_vec()));
    }
    let pending = client.submit_request(&Request::new(PROCEDURE, &[], 200_000)).unwrap();
    let call = world.receive();
    let offered = call.chunks().reply.clone().unwrap();
    assert!(offered.len() >= 200_024);
    let reply = success(call.header.xid, &pattern(200_000));
    world.write(offered.segments[0], &reply);
    let chunks = reply_chunk(chunk(offered.segments[0], reply.len()));
    world.send(call.header.xid, 1, Body::NoMessage(chunks), &[]);
    assert!(outcome(&mut world, pending).unwrap() == pattern(200_000));
    // The options limit the results of a call that states no limit.
    let pending = client.submit(PROCEDURE, &[]).unwrap();
    let call = world.receive();
    let offered = call.chunks().reply.clone().unwrap();
    assert!(offered.len() >= client.options().results_bytes_max as u64);
    let chunks = reply_chunk(Chunk::default());
    world.send(call.header.xid, 1, Body::Message(chunks), &success(call.header.xid, b"fits"));
    assert_eq!(outcome(&mut world, pending), Ok(b"fits".to_vec()));
}

#[test]
fn memory_serves_the_next_connection_too() {
    let mut world = World::new(Some(4096));
    let client = world.connect(Options::default(), None);
    let memory = client.allocate(10_000).unwrap();
    world.net.lose(world.endpoint.unwrap());
    world.until(|_| client.is_broken());
    let error = client.submit(PROCEDURE, &[]).unwrap_err();
    assert!(matches!(error, CallError::Disconnected(_)), "{error}");
    drop(client);
    let client = world.connect(Options::default(), None);
    let (pending, call) = reading(&mut world, &client, &memory, &[(0, 10_000)]);
    let segment = call.chunks().writes[0].segments[0];
    world.write(segment, &pattern(10_000));
    let results = 10_000u32.to_be_bytes();
    let chunks = writes(&[chunk(segment, 10_000)]);
    world.send(call.header.xid, 1, Body::Message(chunks), &success(call.header.xid, &results));
    outcome(&mut world, pending).unwrap();
    assert!(memory.view().to_vec(Site::Inspect) == pattern(10_000));
    // When the memory is dropped, its key becomes invalid.
    let regions = world.regions_of_client();
    drop(memory);
    world.settle();
    assert_eq!(world.regions_of_client(), regions - 1);
}

#[test]
fn requests_that_cannot_be_sent_are_refused() {
    let mut world = World::new(Some(1024));
    let client = world.connect(Options { calls_max: 2, ..Options::default() }, None);
    let foreign = Memory::plain(100).unwrap();
    let refused = |request: &Request<'_>| {
        let error = client.submit_request(request).unwrap_err();
        assert!(matches!(error, CallError::Request(_)), "{error}");
    };
    let sinks = [foreign.whole()];
    refused(&Request { sinks: &sinks, ..Request::new(PROCEDURE, &[], 100) });
    let data = Some(SendData { position: 4, memory: foreign.whole() });
    refused(&Request { data, ..Request::new(PROCEDURE, &[&[0; 4]], 100) });
    refused(&Request::new(PROCEDURE, &[], usize::MAX / 2));
    let memory = client.allocate(100).unwrap();
    let many: Vec<_> = (0..60).map(|_| memory.whole()).collect();
    refused(&Request { sinks: &many, ..Request::new(PROCEDURE, &[], 100) });
    let long = vec![0; 5 << 20];
    let error = client.submit(PROCEDURE, &[&long]).unwrap_err();
    assert!(matches!(error, CallError::TooLong(_)), "{error}");
    let _held = [submit(&client, b""), submit(&client, b"")];
    assert_eq!(client.submit(PROCEDURE, &[]).unwrap_err(), CallError::TooMany);
}
