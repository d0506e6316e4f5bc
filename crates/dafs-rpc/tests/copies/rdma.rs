//! Bulk data over RDMA is not copied in user space. Reads place it directly, and writes take it
//! from where the program has put it. Over shared memory it does not move at all.

use crate::common::*;
use crate::peer::{reply_chunk, success};
use crate::{alone, scripted};
use dafs_mem::{Site, copied_bytes};
use dafs_rpc::client::{Options, Request};
use dafs_wire::rpcrdma::Body;
use dafs_wire::xdr::{Encoder, MovedData, Payload};

#[test]
fn bulk_data_is_not_copied() {
    let _alone = alone();
    a_server_does_not_copy();
    a_client_does_not_copy();
}

/// Bytes of data that this crate has copied so far, and bytes that copies moved through shared
/// memory. Other copies of a transport are subject of its own tests.
fn copied() -> u64 {
    let sites = [Site::RpcStaging, Site::RpcDeferred, Site::RpcRdmaMessage, Site::ShmRdma];
    sites.into_iter().map(copied_bytes).sum()
}

fn a_server_does_not_copy() {
    const LEN: usize = 200_000;
    for kind in [Kind::Iwarp, Kind::Shm] {
        let mut world = World::new(kind);
        let mut client = world.client(Some(TOLD), 8);
        let data = pattern(LEN);
        let before = copied();
        for round in 0..10u32 {
            let chunks = writes(&[client.memory.chunk(0, LEN)]);
            let args = words(&[LEN as u32, round]);
            world.results(&mut client, BULK, &args, chunks);
            assert!(client.memory.get(0, LEN) == vec![round as u8; LEN]);
            client.memory.put(200_000, &data);
            let chunks = reads(&[client.memory.read(CALL_BYTES + 4, 200_000, LEN)]);
            let got = world.results(&mut client, TAKE, &words(&[LEN as u32]), chunks);
            assert_eq!(got, words(&[LEN as u32]));
        }
        assert_eq!(copied() - before, 0, "{kind:?}");
        // The counters work: a long reply is copied to registered memory.
        let chunks = reply_chunk(client.memory.chunk(0, 10_000));
        world.call(&mut client, LONG, &words(&[9000]), chunks);
        assert!(copied() - before >= 9000);
    }
}

/// The client finds the server's results in the memory that its call offered.
fn a_client_does_not_copy() {
    const LEN: usize = 99_999;
    let copied = || copied_bytes(Site::RpcPlacement) + copied_bytes(Site::RpcRdmaLong);
    let mut world = scripted::World::new(Some(4096));
    let client = world.connect(Options::default(), None);
    let memory = client.allocate(1 << 20).unwrap();
    let sinks = [memory.slice(0..100_000).unwrap(), memory.slice(200_000..200_050).unwrap()];
    let request = Request::new(scripted::PROCEDURE, &[b"read"], 100);
    let pending = client.submit_request(&Request { sinks: &sinks, ..request }).unwrap();
    let call = world.receive();
    let segments = call.chunks().writes.iter().map(|chunk| chunk.segments[0]);
    let segments: Vec<_> = segments.collect();
    let before = copied();
    world.write(segments[0], &pattern(LEN));
    let mut results = Vec::new();
    let mut encoder = Encoder::new(&mut results);
    encoder.payload(Payload::Moved(MovedData { index: 0, len: LEN }));
    encoder.opaque(b"inline");
    let placed = [scripted::chunk(segments[0], LEN), scripted::chunk(segments[1], 0)];
    let body = Body::Message(writes(&placed));
    world.send(call.header.xid, 1, body, &success(call.header.xid, &results));
    world.until(|_| pending.is_answered());
    let results = pending.wait().unwrap();
    let mut decoder = results.decoder();
    let first = decoder.payload(1 << 20).unwrap();
    assert_eq!(memory.slice(0..100_000).unwrap().take(first), LEN);
    assert_eq!(copied() - before, 0);
    assert!(memory.view().slice(0, LEN).unwrap().to_vec(Site::Inspect) == pattern(LEN));
    // The counters count: data in the message itself goes to its place by a copy.
    let second = decoder.payload(50).unwrap();
    assert_eq!(memory.slice(200_000..200_050).unwrap().take(second), 6);
    assert_eq!(copied() - before, 6);
}
