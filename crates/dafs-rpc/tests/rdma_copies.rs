//! Bulk data over RDMA is not copied in user space. Reads place it directly, and writes take it
//! from where the program has put it. Over shared memory it does not move at all.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unreachable_pub, dead_code, reason = "a module of another test program")]

#[path = "rdma/common.rs"]
mod common;

use common::*;
use dafs_mem::{Site, copied_bytes};
use dafs_wire::rpcrdma::Chunks;

/// Bytes of data that this crate has copied so far, and bytes that copies moved through shared
/// memory. Other copies of a transport are subject of its own tests.
fn copied() -> u64 {
    let sites = [Site::RpcStaging, Site::RpcDeferred, Site::RpcRdmaMessage, Site::ShmRdma];
    sites.into_iter().map(copied_bytes).sum()
}

#[test]
fn bulk_data_is_not_copied() {
    const LEN: usize = 200_000;
    for kind in [Kind::Iwarp, Kind::Shm] {
        let mut world = World::new(kind);
        let mut client = world.client(Some(TOLD), 8);
        let data = pattern(LEN);
        let before = copied();
        for round in 0..10u32 {
            let writes = [chunk(&[client.memory.segment(0, LEN)])].into_iter().collect();
            let args = words(&[LEN as u32, round]);
            world.results(&mut client, BULK, &args, Chunks { writes, ..Chunks::default() });
            assert!(client.memory.bytes(0, LEN) == vec![round as u8; LEN]);
            client.memory.put(200_000, &data);
            let mut chunks = Chunks::default();
            chunks.reads.push(client.memory.read(CALL_BYTES + 4, 200_000, LEN));
            let got = world.results(&mut client, TAKE, &words(&[LEN as u32]), chunks);
            assert_eq!(got, words(&[LEN as u32]));
        }
        assert_eq!(copied() - before, 0, "{kind:?}");
        // The counters work: a long reply is copied to registered memory.
        let reply = Some(chunk(&[client.memory.segment(0, 10_000)]));
        world.call(&mut client, LONG, &words(&[9000]), Chunks { reply, ..Chunks::default() });
        assert!(copied() - before >= 9000);
    }
}
