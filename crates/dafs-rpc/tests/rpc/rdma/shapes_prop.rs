//! Calls of every shape: items inline and in read chunks, in pieces, long calls, write chunks that
//! fit and that do not. The data must return unchanged, wherever the server puts it.

use super::common::*;
use crate::peer::chunk;
use dafs_wire::rpcrdma::{Body, Chunks, HeaderFault, Segment};
use dafs_wire::xdr::padded;
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Item {
    len: usize,
    /// The number of segments of its read chunk, and whether the chunk has its padding.
    chunk: Option<(usize, bool)>,
    /// The length of its write chunk, relative to its own, and the number of segments.
    sink: Option<(i32, usize)>,
}

#[derive(Debug, Clone)]
struct Shape {
    items: Vec<Item>,
    long: bool,
    apart: bool,
    reply_bytes: Option<usize>,
}

fn item() -> impl Strategy<Value = Item> {
    let len = prop_oneof![0usize..20, 0usize..600, 0usize..20_000];
    let chunk = prop::option::of((1usize..4, any::<bool>()));
    let sink = prop::option::of((prop_oneof![Just(0), -9i32..9, 0i32..5000], 1usize..4));
    (len, chunk, sink).prop_map(|(len, chunk, sink)| {
        // A large item does not fit into the message.
        let chunk = chunk.or((len > 600).then_some((1, false)));
        Item { len, chunk: chunk.filter(|_| len > 0), sink }
    })
}

fn shape() -> impl Strategy<Value = Shape> {
    let items = prop::collection::vec(item(), 0..5);
    let reply_bytes = prop::option::of(prop_oneof![0usize..3000, 100_000usize..100_001]);
    (items, any::<bool>(), any::<bool>(), reply_bytes)
        .prop_map(|(items, long, apart, reply_bytes)| Shape { items, long, apart, reply_bytes })
}

/// Hands out areas of the client's memory in sequence.
struct Places(usize);

impl Places {
    fn take(&mut self, len: usize) -> usize {
        let at = self.0;
        self.0 += len.next_multiple_of(8) + 8;
        assert!(self.0 <= 1 << 19);
        at
    }
}

/// Cuts `len` bytes at `at` into segments.
fn pieces(client: &Client, at: usize, len: usize, count: usize) -> Vec<Segment> {
    let step = len.div_ceil(count).max(1);
    (0..len)
        .step_by(step)
        .map(|from| client.memory.segment(at + from, step.min(len - from)))
        .collect()
}

fn data(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 97 + at / 251) as u8).collect()
}

fn check(world: &mut World, client: &mut Client, shape: &Shape) {
    let mut places = Places(0);
    let mut reduced = Vec::new();
    let mut position = CALL_BYTES as usize;
    let mut chunks = Chunks::default();
    // Write chunks are in order: no item after one without a chunk has one.
    let mut sinks = Vec::new();
    for (index, item) in shape.items.iter().enumerate() {
        let bytes = data(item.len, index);
        reduced.extend(words(&[item.len as u32]));
        position += 4;
        match item.chunk {
            Some((count, padding)) => {
                let at = places.take(padded(item.len));
                client.memory.put(at, &bytes);
                let len = if padding { padded(item.len) } else { item.len };
                for segment in pieces(client, at, len, count) {
                    let position = position as u32;
                    chunks.reads.push(dafs_wire::rpcrdma::ReadSegment { position, segment });
                }
            }
            None => {
                reduced.extend_from_slice(&bytes);
                reduced.resize(reduced.len().next_multiple_of(4), 0);
            }
        }
        position += padded(item.len);
        if let Some((more, count)) = item.sink
            && sinks.len() == index
        {
            let room = usize::try_from(item.len as i32 + more).unwrap_or(0);
            let at = places.take(room);
            client.memory.put(at, &vec![0xee; room]);
            chunks.writes.push(chunk(&pieces(client, at, room, count)));
            sinks.push((at, room));
        }
    }
    let reply_at = shape.reply_bytes.map(|len| (places.take(len), len));
    chunks.reply = reply_at.map(|(at, len)| client.memory.chunk(at, len));
    let procedure = if shape.apart { MIRROR_APART } else { MIRROR };
    let message = client.call_message(procedure, &reduced);
    let header_bytes = 28 + chunks.reads.len() * 24;
    if shape.long || header_bytes + message.len() > 3000 {
        let at = places.take(message.len());
        client.memory.put(at, &message);
        chunks.reads.push(client.memory.read(0, at, message.len()));
        client.send(Body::NoMessage(chunks), b"");
    } else {
        client.send(Body::Message(chunks), &message);
    }
    let (header, rest) = world.message(client);

    let mut want = vec![0; 24];
    let mut written = Vec::new();
    let mut placed = Vec::new();
    for (index, item) in shape.items.iter().enumerate() {
        want.extend(words(&[item.len as u32]));
        let bytes = data(item.len, index);
        match sinks.get(index) {
            Some(&(at, room)) if room >= item.len && item.len > 0 => {
                placed.push((at, room, bytes));
                written.push(item.len);
            }
            sink => {
                want.extend_from_slice(&bytes);
                want.resize(want.len().next_multiple_of(4), 0);
                written.extend(sink.map(|_| 0));
            }
        }
    }
    let stream = match &header.body {
        Body::Message(_) => rest,
        Body::NoMessage(chunks) => {
            let len = lengths(chunks.reply.as_ref().unwrap())[0] as usize;
            assert!(want.len() > 3500, "it would have fitted into a message");
            client.memory.get(reply_at.unwrap().0, len)
        }
        Body::Error(HeaderFault::Chunk) => {
            assert!(want.len() > 3500 && shape.reply_bytes.is_none_or(|room| room < want.len()));
            return;
        }
        other => panic!("{other:?}"),
    };
    assert!(results(&stream) == want[24..]);
    for (at, room, bytes) in placed {
        let (got, rest) = (client.memory.get(at, bytes.len()), room - bytes.len());
        assert!(got == bytes);
        assert!(client.memory.get(at + bytes.len(), rest).iter().all(|byte| *byte == 0xee));
    }
    let (Body::Message(chunks) | Body::NoMessage(chunks)) = header.body else { return };
    let got = chunks.writes.iter().map(|chunk| lengths(chunk).iter().sum::<u32>() as usize);
    assert_eq!(got.collect::<Vec<_>>(), written);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_server_echoes_every_shape(shapes in prop::collection::vec(shape(), 1..8)) {
        for kind in KINDS {
            let mut world = World::new(kind);
            let mut client = world.client(Some(TOLD), 4);
            for shape in &shapes {
                check(&mut world, &mut client, shape);
            }
            prop_assert_eq!(world.group.statistics().broken, 0);
        }
    }
}
