//! Late writes: they reach a data server long after their client has abandoned them.

use super::harness::{Cluster, UNIT};
use crate::common::{self, WRITE};
use dafs_nfs_client::{Handle, NfsError, OpenFile, Options, Session, connect, patiently};
use dafs_wire::nfs4::{
    FilesLayout, LAYOUT_FILES, LayoutReturn, LayoutreturnArgs, Op, PutfhArgs, ReturnedLayout,
    StableHow, Stateid, Status,
};
use dafs_wire::xdr::{Decode, Decoder};

/// Requests the layout of a file for writing. Returns its state-id, and the handle of the component
/// of its first stripe.
pub(crate) fn layout(session: &Session, file: &OpenFile) -> (Stateid, Handle) {
    let (stateid, body) = patiently(|| common::layout(session, file, WRITE)).unwrap();
    let layout = FilesLayout::decode(&mut Decoder::new(&body)).unwrap();
    (stateid, Handle(layout.handles[layout.first_stripe_index as usize].0.to_vec()))
}

fn give_back(session: &Session, file: &OpenFile, stateid: Stateid) {
    let returned = ReturnedLayout { offset: 0, length: u64::MAX, stateid, body: b"" };
    let args = LayoutreturnArgs {
        reclaim: false,
        layout_type: LAYOUT_FILES,
        io_mode: 3,
        returned: LayoutReturn::File(returned),
    };
    let returned = session.call_cached(|compound| {
        let handle = Op::Putfh(PutfhArgs { handle: &file.handle.0 });
        compound.op(&handle).op(&Op::Layoutreturn(args));
    });
    returned.unwrap().finish().unwrap();
}

pub(crate) fn node(cluster: &Cluster, number: usize, owner: &[u8]) -> Session {
    let options =
        Options { minor_version: 1, back_slots: 0, reclaim_complete: false, ..Options::new(owner) };
    connect(cluster.node_address(number), &options).unwrap()
}

pub(crate) fn write(
    session: &Session,
    file: &Handle,
    stateid: Stateid,
    bytes: &[u8],
) -> Result<(), NfsError> {
    patiently(|| session.write(file, stateid, 0, bytes, StableHow::FileSync)).map(drop)
}

#[test]
fn a_late_write_does_not_land_over_what_its_client_wrote_through_the_server_since() {
    let cluster = Cluster::new();
    let session = cluster.session(b"late");
    let file = session.create(&session.root().unwrap(), b"f").unwrap();
    let read = || patiently(|| session.read(&file.handle, file.stateid, 0, 3)).unwrap().0;
    // The server knows the size after this write.
    write(&session, &file.handle, file.stateid, b"was").unwrap();
    let (stateid, component) = layout(&session, &file);
    // The component may be on any node.
    let nodes: Vec<_> = (0..3).map(|number| node(&cluster, number, b"late")).collect();
    let writes = nodes.iter().map(|node| write(node, &component, file.stateid, b"one"));
    let at = writes.map(|written| written.is_ok()).collect::<Vec<_>>();
    let at = at.iter().position(|&written| written).unwrap();
    assert_eq!(read(), b"one");
    // Another write is on its way there, and its client has abandoned it. First the client does not
    // return the layout, as a kernel does. Then it returns the layout and gets it again.
    write(&session, &file.handle, file.stateid, b"two").unwrap();
    let late = write(&nodes[at], &component, file.stateid, b"old").unwrap_err();
    assert_eq!((late.status(), &*read()), (Some(Status::DeadSession), &b"two"[..]));
    let late = write(&nodes[at], &component, file.stateid, b"old").unwrap_err();
    assert_eq!(late.status(), Some(Status::BadSession));
    let fresh = node(&cluster, at, b"late");
    write(&fresh, &component, file.stateid, b"six").unwrap();
    assert_eq!(read(), b"six");
    give_back(&session, &file, stateid);
    write(&session, &file.handle, file.stateid, b"ten").unwrap();
    layout(&session, &file);
    let late = write(&fresh, &component, file.stateid, b"old").unwrap_err();
    assert_eq!((late.status(), &*read()), (Some(Status::DeadSession), &b"ten"[..]));
    // Bytes on other nodes are not affected.
    let fresh = node(&cluster, at, b"late");
    patiently(|| {
        session.write(&file.handle, file.stateid, UNIT as u64, b"far", StableHow::FileSync)
    })
    .unwrap();
    write(&fresh, &component, file.stateid, b"end").unwrap();
    assert_eq!(read(), b"end");
}
