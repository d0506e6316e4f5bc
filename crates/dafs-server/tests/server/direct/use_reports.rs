//! Clients' reports of I/O at data servers, in the administrators' view.

use super::harness::Cluster;
use crate::common::{self, WRITE};
use dafs_nfs_client::{Options, connect, patiently};
use dafs_wire::nfs4::{
    FilesLayout, IoInfo, LAYOUT_FILES, LayoutBody, LayoutstatsArgs, Op, PutfhArgs,
};
use dafs_wire::xdr::{Decode, Decoder};

#[test]
fn use_reports_of_clients_are_in_the_metrics() {
    let cluster = Cluster::new();
    let session = patiently(|| connect(cluster.address(), &Options::new(b"teller"))).unwrap();
    let file = patiently(|| session.create(&session.root().unwrap(), b"f")).unwrap();
    let (stateid, body) = patiently(|| common::layout(&session, &file, WRITE)).unwrap();
    let device_id = FilesLayout::decode(&mut Decoder::new(&body)).unwrap().device;
    let said = Op::Layoutstats(LayoutstatsArgs {
        offset: 0,
        length: u64::MAX,
        stateid,
        read: IoInfo { count: 3, bytes: 300 },
        write: IoInfo { count: 4, bytes: 400 },
        device_id,
        update: LayoutBody { layout_type: LAYOUT_FILES, body: b"" },
    });
    let putfh = Op::Putfh(PutfhArgs { handle: &file.handle.0 });
    let told = session.call(|compound| {
        compound.op(&putfh).op(&said);
    });
    told.unwrap().finish().unwrap();
    let metrics = cluster.server_metrics();
    for (name, value) in [("reads", 3), ("read_bytes", 300), ("writes", 4), ("written_bytes", 400)]
    {
        let line = format!("dafs_export_direct_{name}_total{{export=\"/\"}} {value}");
        assert!(metrics.lines().any(|known| known == line), "{line} is not in {metrics}");
    }
}
