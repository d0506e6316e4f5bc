//! The lanes in which the operations of one compound run.

use super::helper::*;
use super::layouts::open_spread;
use crate::common::unsquashed;
use dafs_service::{Export, Namespace};
use dafs_store::{MemoryOptions, MemoryStore, Store};
use dafs_wire::nfs4::*;
use std::sync::Arc;

#[test]
fn a_compound_waits_for_each_store_on_a_thread_of_its_own() {
    let (_base_a, a) = open_spread();
    let (_base_b, b) = open_spread();
    let memory = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let mut client = Client::new(2);
    let stores = [("a", a as Arc<dyn Store>), ("b", b), ("m", memory)];
    let exports = stores.map(|(name, store)| Export::new(name, store, unsquashed()));
    let service = client.world.shared.service.clone();
    service.replace_namespace(Namespace::new(exports.into()).unwrap());
    let mut file = |export: &[u8]| {
        let access = ShareAccess::BOTH | Want::None.number();
        let ops = [lookup(export), open(b"f", access, unchecked(NOTHING)), getfh()];
        let answer = client.at_root(&ops);
        assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
        let ResultBody::Open(opened) = answer.body(3) else { panic!() };
        (handle(&answer, 4), opened.stateid)
    };
    let [(a, _), (b, of_b), (m, _)] = [&b"a"[..], b"b", b"m"].map(&mut file);
    let commit = || Op::Commit(CommitArgs { offset: 0, count: 0 });
    client.world.pool.take_lanes();
    let steps = [putfh(&m), commit(), putfh(&a), commit(), commit(), putfh(&b), commit()];
    let answer = client.send(&[&steps[..], &[putfh(&m), commit()]].concat());
    assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
    let lanes = client.world.pool.take_lanes();
    assert_eq!(lanes.len(), 3, "{lanes:?}");
    assert_eq!(lanes[0], 0, "nobody is waited for");
    assert!(lanes[1] != 0 && lanes[2] != 0 && lanes[1] != lanes[2], "{lanes:?}");
    // The copied data comes from one of them, too.
    let copy = Op::Copy(CopyArgs {
        source_stateid: of_b,
        destination_stateid: of_b,
        source_offset: 0,
        destination_offset: 0,
        count: 0,
        consecutive: true,
        synchronous: true,
        source_servers: Vec::new(),
    });
    let _refused = client.send(&[putfh(&b), savefh(), putfh(&m), copy]);
    assert_eq!(client.world.pool.take_lanes(), [lanes[2]]);
}
