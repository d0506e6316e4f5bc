//! Clients that get no layout, and refusals at a data server.

use super::harness::*;
use dafs_server::{ExportSource, NodePlace};
use dafs_wire::dafs::*;

#[test]
fn an_export_says_whether_its_files_are_laid_out() {
    let cluster = Cluster::start(Where::Local, 1);
    let mut client = cluster.client("one");
    let file = client.peer.open(b"f");
    let attributes = FsAttrMask::X_LAYOUTS | FsAttrMask::SUPPORTED_FSATTR;
    let answer = client.peer.call(&Request::GetFsAttr(GetFsAttr { fh: file.fh, attributes }));
    let Ok(Reply::GetFsAttr(reply)) = answer.reply() else { panic!("{answer:?}") };
    assert_eq!(reply.attributes.x_layouts, Some(true));
    let supported = FsAttrMask(reply.attributes.supported_fsattr.unwrap());
    assert!(supported.contains(FsAttrMask::X_LAYOUTS));
    let unknown = Request::XNodeInfo(XNodeInfo { device: [7; 16] });
    assert_eq!(client.peer.status(&unknown), Status::NoEnt);
    cluster.stop();

    // Data servers without a DAFS front end have no layouts for DAFS clients.
    let cluster = Cluster::with(Where::Local, 1, |config| {
        let ExportSource::Striped { nodes, .. } = &mut config.exports[0].source else { panic!() };
        for node in nodes {
            let NodePlace::Directory { dafs_listen, .. } = &mut node.place else { panic!() };
            *dafs_listen = None;
        }
    });
    let mut client = cluster.client("one");
    let file = client.peer.open(b"f");
    let answer = client.peer.call(&Request::GetFsAttr(GetFsAttr { fh: file.fh, attributes }));
    let Ok(Reply::GetFsAttr(reply)) = answer.reply() else { panic!("{answer:?}") };
    assert_eq!(reply.attributes.x_layouts, Some(false));
    cluster.stop();
}

#[test]
fn layouts_go_to_those_who_can_be_called_and_have_an_open() {
    let cluster = Cluster::start(Where::Local, 1);
    let mut deaf = cluster.deaf("deaf");
    let file = deaf.open(b"f");
    let (fh, mode) = (file.fh, LayoutMode::ReadWrite);
    let get = |state_id| Request::XLayoutGet(XLayoutGet { fh, state_id, mode });
    assert_eq!(deaf.status(&get(file.id)), Status::XNoLayout);
    let mut client = cluster.client("one");
    assert_eq!(client.peer.status(&get(file.id)), Status::BadStateId, "not its own");
    assert_eq!(client.peer.status(&get(StateId::ZERO)), Status::BadStateId);
    let own = client.peer.open(b"f");
    let place = client.layout_soon(own, mode);
    // A second request gets the same layout, with another seqid. The one before is too old for a
    // return.
    let again = client.layout(own, mode).unwrap();
    assert_eq!((again.state_id, again.seqid), (place.state_id, place.seqid + 1));
    assert_eq!(client.give_back(own, place.state_id, place.seqid), Status::OldStateId);
    assert_eq!(client.give_back(own, place.state_id, place.seqid + 9), Status::BadStateId);
    let mut strange = again.clone();
    strange.state_id = file.id;
    assert_eq!(client.commit_layout(own, &strange, 1), Err(Status::BadStateId));
    assert_eq!(client.give_back(own, again.state_id, again.seqid), Status::Ok);
    assert_eq!(client.commit_layout(own, &again, 1), Err(Status::StaleStateId));
    // A callback is no request of a client.
    let recall = Request::XBcLayoutRecall(XBcLayoutRecall {
        fh,
        state_id: again.state_id,
        seqid: 1,
        scope: LayoutScope::File,
    });
    assert_eq!(client.peer.status(&recall), Status::IllegalState);
    cluster.stop();
}

#[test]
fn a_data_server_goes_by_tickets_and_by_what_its_metadata_server_says() {
    for servers in [Where::Local, Where::Remote] {
        let cluster = Cluster::start(servers, 1);
        let mut client = cluster.client("one");
        let file = client.peer.open(b"f");
        let place = client.layout_soon(file, LayoutMode::ReadWrite);
        let at = place.at(0);
        let address = place.servers[at];
        let mut forged = place.ticket.clone();
        *forged.last_mut().unwrap() ^= 1;
        for ticket in [&forged[..], b"", b"password"] {
            let refused = Peer::with_ticket(address, "one", ticket).err();
            assert_eq!(refused, Some(Status::NotAuthorized));
        }
        let mut data = client.data(&place);
        let own = place.component(at, file);
        data[at].write(own, 0, b"data", Stability::Unstable).unwrap();
        let mut write = |file, offset| {
            let written = data[at].write(file, offset, b"late", Stability::Unstable);
            written.map(|written| written.count)
        };
        assert_eq!(write(File { id: StateId([9; 8]), ..own }, 0), Err(Status::XNoLayout));
        assert_eq!(write(File { id: StateId::ZERO, ..own }, 0), Err(Status::XNoLayout));
        // A handle of another node, and one without a valid MAC.
        let elsewhere = place.component((at + 1) % 3, file);
        assert_eq!(write(elsewhere, 0), Err(Status::BadHandle));
        let mut unsealed = own;
        unsealed.fh.file[20] ^= 1;
        assert_eq!(write(unsealed, 0), Err(Status::BadHandle));
        // Another client with a ticket of its own cannot use this one's state.
        let mut second = cluster.client("two");
        let theirs = second.peer.open(b"g");
        let other = second.layout_soon(theirs, LayoutMode::ReadWrite);
        let mut stranger = Peer::with_ticket(address, "two", &other.ticket).unwrap();
        let refused = stranger.write(own, 0, b"late", Stability::Unstable).map(|done| done.count);
        assert_eq!(refused, Err(Status::XNoLayout));
        // A data server supports no other requests either.
        let root = Request::GetRootHandle;
        assert_eq!(stranger.status(&root), Status::NotSupp);
        let get = XLayoutGet { fh: file.fh, state_id: file.id, mode: LayoutMode::Read };
        assert_eq!(stranger.status(&Request::XLayoutGet(get)), Status::NotSupp);
        // The layout ends with the open, and with it all access. On data servers of other machines
        // that takes some time.
        client.peer.close(file);
        if servers == Where::Local {
            assert_eq!(write(own, 0), Err(Status::XNoLayout));
        }
        cluster.stop();
    }
}

#[test]
fn a_layout_for_reading_allows_no_writing() {
    let cluster = Cluster::start(Where::Local, 1);
    let mut client = cluster.client("one");
    let file = client.peer.open(b"f");
    client.peer.write(file, 0, &pattern(UNIT), Stability::DataSync).unwrap();
    let place = client.layout_soon(file, LayoutMode::Read);
    let mut data = client.data(&place);
    let at = place.at(0);
    let own = place.component(at, file);
    assert!(data[at].read(own, 0, UNIT).unwrap().0 == pattern(UNIT));
    let refused = data[at].write(own, 0, b"late", Stability::Unstable).map(|done| done.count);
    assert_eq!(refused, Err(Status::XNoLayout));
    assert_eq!(client.commit_layout(file, &place, UNIT), Err(Status::XNoLayout));
    let more = client.layout(file, LayoutMode::ReadWrite).unwrap();
    assert_eq!((more.state_id, more.seqid), (place.state_id, place.seqid + 1));
    data[at].write(own, 0, b"late", Stability::Unstable).unwrap();
    cluster.stop();
}
