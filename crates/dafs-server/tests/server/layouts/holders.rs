//! Requests of a client through the server for a file that it writes by a layout, and the server's
//! resulting requests to data servers.

use super::harness::*;
use dafs_wire::dafs::*;

#[test]
fn a_file_keeps_the_time_that_its_writer_gives_it() {
    for place in [Where::Local, Where::Remote] {
        let cluster = Cluster::start(place, 1);
        let mut writer = cluster.client("writer");
        let file = writer.peer.open(b"f");
        let place = writer.layout_soon(file, LayoutMode::ReadWrite);
        let mut data = writer.data(&place);
        let at = place.at(0);
        let own = place.component(at, file);
        data[at].write(own, 0, b"data", Stability::DataSync).unwrap();
        let given = Time { seconds: 1_000_000, nseconds: 7 };
        let attributes =
            Attributes { time_modify_set: Some(SetTime::Client(given)), ..Attributes::default() };
        let (fh, state_id) = (file.fh, file.id);
        let set = Request::SetAttrInline(SetAttrInline { fh, state_id, attributes });
        // The server answers at once: while the client has the layout a wait would not help.
        assert_eq!(writer.peer.status(&set), Status::Ok);
        assert_eq!(writer.commit_layout(file, &place, 4), Ok(4));
        assert_eq!(writer.give_back(file, place.state_id, place.seqid), Status::Ok);
        let attributes = AttrMask::TIME_MODIFY;
        let ask = Request::GetAttrInline(GetAttrInline { fh, attributes });
        let answer = writer.peer.call(&ask);
        let Ok(Reply::GetAttrInline(reply)) = answer.reply() else { panic!("{answer:?}") };
        assert_eq!(reply.attributes.time_modify, Some(given));
        cluster.stop();
    }
}

#[test]
fn a_delegation_is_given_back_while_its_holder_writes_by_a_layout() {
    for place in [Where::Local, Where::Remote] {
        let cluster = Cluster::with(place, 1, |config| config.nfs.no_delegations = false);
        let mut holder = cluster.client("holder");
        let (file, delegation) = holder.peer.open_delegated(b"f");
        let state_id = delegation.expect("a write delegation");
        let place = holder.layout_soon(file, LayoutMode::ReadWrite);
        let mut data = holder.data(&place);
        let at = place.at(0);
        let own = place.component(at, file);
        data[at].write(own, 0, b"data", Stability::DataSync).unwrap();
        let back = Request::DelegReturn(DelegReturn { state_id });
        assert_eq!(holder.peer.status(&back), Status::Ok);
        // A client that uses the size finds all written data, although its writer did not commit
        // it.
        let mut other = cluster.deaf("other");
        let theirs = other.open(b"f");
        assert_eq!(other.read_all(theirs), b"data");
        // The layout outlives the delegation.
        data[at].write(own, 4, b"more", Stability::DataSync).unwrap();
        assert_eq!(holder.commit_layout(file, &place, 8), Ok(8));
        cluster.stop();
    }
}
