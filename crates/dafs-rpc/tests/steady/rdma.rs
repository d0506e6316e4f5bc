//! Steady traffic over RDMA allocates no memory, neither for messages nor for chunks, except for
//! calls that are joined from several places.

use crate::ALLOCATIONS;
use crate::common::*;
use dafs_wire::rpcrdma::{Body, Chunks};

#[test]
fn steady_traffic_allocates_nothing() {
    for kind in [Kind::Iwarp, Kind::Shm] {
        let mut world = World::new(kind);
        world.meter = || ALLOCATIONS.get();
        let mut client = world.client(Some(TOLD), 8);
        let (small, bulk, take) = (vec![0; 100], words(&[70_000, 1]), words(&[70_000]));
        let round = |world: &mut World, client: &mut Client| {
            world.results(client, ECHO, &small, Chunks::default());
            world.results(client, BULK, &bulk, writes(&[client.memory.chunk(0, 70_000)]));
            let mut chunks = reads(&[client.memory.read(CALL_BYTES + 4, 0, 70_000)]);
            chunks.reply = Some(client.memory.chunk(100_000, 80_000));
            world.results(client, TAKE, &take, chunks.clone());
            chunks.reads.clear();
            let (header, _) = world.call(client, BULK, &bulk, chunks);
            assert!(matches!(header.body, Body::NoMessage(_)));
        };
        for _ in 0..100 {
            round(&mut world, &mut client);
        }
        assert!(world.metered > 0, "the counter counts");
        // Tables of a transport may still grow once more; traffic that allocates shows every time.
        let least = (0..20)
            .map(|_| {
                world.metered = 0;
                for _ in 0..10 {
                    round(&mut world, &mut client);
                }
                world.metered
            })
            .min();
        assert_eq!(least, Some(0), "{kind:?}");
    }
}
