//! Data servers refuse invalid and revoked state-ids, and fenced clients.

use super::harness::Cluster;
use super::late::{layout, node, write};
use dafs_nfs_client::{Handle, OpenFile, Session, patiently};
use dafs_server::{AdminRequest, FenceOrder};
use dafs_wire::nfs4::{Stateid, Status};

/// A client that writes at the data server of its file's first stripe.
struct Writer {
    session: Session,
    file: OpenFile,
    /// Its session at the data server, and the handle of the component there.
    node: Session,
    component: Handle,
}

impl Writer {
    fn new(cluster: &Cluster, owner: &[u8], name: &[u8]) -> Self {
        let session = cluster.session(owner);
        let file = patiently(|| session.create(&session.root().unwrap(), name)).unwrap();
        let (_, component) = layout(&session, &file);
        // The component may be on any node.
        let mut nodes = (0..3).map(|number| node(cluster, number, owner));
        let is_there = |node: &Session| write(node, &component, file.stateid, b"was").is_ok();
        let node = nodes.find(is_there).unwrap();
        Self { session, file, node, component }
    }

    /// Writes at the data server with a state-id. Returns the status.
    fn write(&self, stateid: Stateid) -> Option<Status> {
        let written = write(&self.node, &self.component, stateid, b"new");
        written.err().map(|error| error.status().unwrap())
    }

    fn read(&self, stateid: Stateid) -> Option<Status> {
        let read = patiently(|| self.node.read(&self.component, stateid, 0, 3));
        read.err().map(|error| error.status().unwrap())
    }
}

#[test]
fn a_client_that_is_fenced_has_nothing_at_data_servers_any_more() {
    let cluster = Cluster::new();
    let one = Writer::new(&cluster, b"one", b"f");
    let two = Writer::new(&cluster, b"two", b"g");
    let fence = |change, names: &[&str]| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        cluster.administer(&AdminRequest::Fence { exports: vec![], change, names });
    };
    fence(FenceOrder::Set, &["nfs:two"]);
    for writer in [&one, &two] {
        // The metadata server checks fences, so clients that are not fenced go there, too.
        let stateid = writer.file.stateid;
        let refused = [writer.write(stateid), writer.read(stateid)];
        assert_eq!(refused, [Some(Status::PnfsNoLayout); 2]);
    }
    let through = |writer: &Writer| {
        let written = write(&writer.session, &writer.file.handle, writer.file.stateid, b"far");
        written.err().map(|error| error.status().unwrap())
    };
    assert_eq!([through(&one), through(&two)], [Some(Status::Access), None]);
    fence(FenceOrder::Clear, &[]);
    let (file, session) = (&one.file, &one.session);
    assert_eq!(patiently(|| session.read(&file.handle, file.stateid, 0, 9)).unwrap().0, b"was");
    // A client whose fence is lifted gets its layout again, and data servers serve it.
    layout(session, file);
    assert_eq!((one.write(file.stateid), one.read(file.stateid)), (None, None));
}

#[test]
fn state_ids_that_are_not_good_are_refused_at_data_servers() {
    let cluster = Cluster::new();
    let one = Writer::new(&cluster, b"one", b"f");
    let two = Writer::new(&cluster, b"two", b"g");
    let own = one.file.stateid;
    let mut other = own.other;
    other[11] ^= 1;
    let forged = [
        two.file.stateid,
        Stateid { other, ..own },
        Stateid { other: [7; 12], ..own },
        Stateid { seqid: own.seqid + 1, ..own },
        Stateid::ANONYMOUS,
    ];
    for stateid in forged {
        assert_eq!(one.write(stateid), Some(Status::BadStateId), "{stateid:?}");
        assert_eq!(one.read(stateid), Some(Status::BadStateId), "{stateid:?}");
    }
    // The state-id of another file that it has open.
    let root = one.session.root().unwrap();
    let beside = patiently(|| one.session.create(&root, b"beside")).unwrap();
    assert_eq!(one.write(beside.stateid), Some(Status::PnfsNoLayout));
    patiently(|| one.session.close(&beside)).unwrap();
    let stale = [one.write(beside.stateid), one.read(beside.stateid)];
    assert_eq!(stale, [Some(Status::BadStateId); 2]);
    assert_eq!((one.write(own), one.read(own)), (None, None));
}
