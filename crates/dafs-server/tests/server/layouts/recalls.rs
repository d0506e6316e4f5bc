//! Layouts conflict with other clients' operations on a file until they are returned or revoked.

use super::harness::*;
use dafs_wire::dafs::*;

/// A client that holds a layout for writing, and another one that truncates the file.
struct Conflict {
    cluster: Cluster,
    holder: Caller,
    file: File,
    place: Place,
    other: Peer,
    theirs: File,
}

impl Conflict {
    fn new(place: Where) -> Self {
        let cluster = Cluster::start(place, 1);
        let mut holder = cluster.client("holder");
        let file = holder.peer.open(b"f");
        let place = holder.layout_soon(file, LayoutMode::ReadWrite);
        let mut other = cluster.deaf("other");
        let theirs = other.open(b"f");
        Self { cluster, holder, file, place, other, theirs }
    }

    fn cut(&self) -> Request<'static> {
        let attributes = Attributes { object_size: Some(0), ..Attributes::default() };
        let (fh, state_id) = (self.theirs.fh, self.theirs.id);
        Request::SetAttrInline(SetAttrInline { fh, state_id, attributes })
    }

    /// Makes the server recall the layout. The recall is not answered yet.
    fn recalled(&mut self) -> (dafs_testkit::raw::CallbackRequest, XBcLayoutRecall) {
        let cut = self.cut();
        assert_eq!(self.other.status(&cut), Status::Delay);
        let call = self.holder.channel.called();
        let Request::XBcLayoutRecall(recall) = call.request() else {
            panic!("{:?}", call.request())
        };
        let wanted = XBcLayoutRecall {
            fh: self.file.fh,
            state_id: self.place.state_id,
            seqid: self.place.seqid + 1,
            scope: LayoutScope::File,
        };
        assert_eq!(recall, wanted);
        (call, recall)
    }
}

#[test]
fn a_layout_is_recalled_and_what_it_stood_against_comes_after_its_return() {
    for place in [Where::Local, Where::Remote] {
        let mut it = Conflict::new(place);
        let mut data = it.holder.data(&it.place);
        let at = it.place.at(0);
        let own = it.place.component(at, it.file);
        data[at].write(own, 0, b"data", Stability::DataSync).unwrap();
        let (call, recall) = it.recalled();
        it.holder.channel.client.answer(&call, 4, &Reply::XBcLayoutRecall);
        it.holder.channel.turn();
        // Until it is returned the layout is valid, and no other is granted.
        let again = it.holder.layout(it.file, LayoutMode::Read).map(|place| place.seqid);
        assert_eq!(again, Err(Status::XLayoutRecalled));
        data[at].write(own, 4, b"more", Stability::DataSync).unwrap();
        assert_eq!(it.holder.commit_layout(it.file, &it.place, 8), Ok(8));
        assert_eq!(it.holder.give_back(it.file, recall.state_id, recall.seqid), Status::Ok);
        let cut = it.cut();
        assert_eq!(it.other.patiently(&cut).status(), Status::Ok);
        assert_eq!(it.other.size(it.theirs), 0);
        let late = data[at].write(own, 0, b"late", Stability::Unstable).map(|done| done.count);
        assert_eq!(late, Err(Status::XNoLayout));
        assert_eq!(it.other.size(it.theirs), 0);
        it.cluster.stop();
    }
}

#[test]
fn a_client_that_knows_no_such_layout_has_none() {
    let mut it = Conflict::new(Where::Local);
    let mut data = it.holder.data(&it.place);
    let at = it.place.at(0);
    let own = it.place.component(at, it.file);
    data[at].write(own, 0, b"data", Stability::DataSync).unwrap();
    let (call, _) = it.recalled();
    it.holder.channel.client.refuse(&call, Status::NotFound);
    it.holder.channel.turn();
    let cut = it.cut();
    assert_eq!(it.other.patiently(&cut).status(), Status::Ok);
    let late = data[at].write(own, 0, b"late", Stability::Unstable).map(|done| done.count);
    assert_eq!(late, Err(Status::XNoLayout));
    it.cluster.stop();
}

#[test]
fn a_recall_that_came_too_early_comes_again() {
    let mut it = Conflict::new(Where::Local);
    let (call, _) = it.recalled();
    it.holder.channel.client.refuse(&call, Status::Delay);
    it.holder.channel.turn();
    // After the answer to this request, the answer to the recall has arrived, too.
    assert_eq!(it.holder.peer.status(&Request::Null), Status::Ok);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let cut = it.cut();
    while it.holder.channel.client.calls.is_empty() {
        assert_eq!(it.other.status(&cut), Status::Delay);
        it.holder.channel.turn();
        assert!(std::time::Instant::now() < end, "never");
    }
    let call = it.holder.channel.called();
    it.holder.channel.client.answer(&call, 4, &Reply::XBcLayoutRecall);
    it.holder.channel.turn();
    let (fh, state_id, seqid) = (it.file.fh, StateId::ZERO, 0);
    // The holder returns all its layouts at once.
    let scope = LayoutScope::All;
    let back = XLayoutReturn { fh, state_id, seqid, scope, errors: Seq::empty() };
    assert_eq!(it.holder.peer.status(&Request::XLayoutReturn(back)), Status::Ok);
    assert_eq!(it.other.patiently(&cut).status(), Status::Ok);
    it.cluster.stop();
}

#[test]
fn a_fence_takes_layouts_away() {
    for place in [Where::Local, Where::Remote] {
        let cluster = Cluster::start(place, 1);
        let mut holder = cluster.client_with("holder", b"one");
        let file = holder.peer.open(b"f");
        let place = holder.layout_soon(file, LayoutMode::ReadWrite);
        let mut data = holder.data(&place);
        let at = place.at(0);
        let own = place.component(at, file);
        data[at].write(own, 0, b"data", Stability::DataSync).unwrap();
        let mut other = cluster.client_with("other", b"two");
        let fence = Request::SetFencingList(SetFencingList {
            fh: file.fh,
            object: FenceObject::File,
            access: FenceAccess::Allow,
            update: FenceUpdate::Overwrite,
            list: Seq::new(&[b"two"]),
        });
        assert_eq!(other.peer.status(&fence), Status::Ok);
        let late = data[at].write(own, 0, b"late", Stability::Unstable).map(|done| done.count);
        assert_eq!(late, Err(Status::XNoLayout));
        let refused = holder.layout(file, LayoutMode::Read).map(|place| place.seqid);
        assert_eq!(refused, Err(Status::Fenced));
        // Others are not fenced, and go through the server as long as there is a fence.
        let theirs = other.peer.open(b"f");
        let refused = other.layout(theirs, LayoutMode::Read).map(|place| place.seqid);
        assert_eq!(refused, Err(Status::XNoLayout));
        assert_eq!(other.peer.read(theirs, 0, 4).unwrap().0, b"data");
        cluster.stop();
    }
}
