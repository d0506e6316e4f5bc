//! Delegations of DAFS clients: granted, recalled, queried, returned, revoked.

use crate::common::*;
use crate::responses::lose;
use dafs_wire::dafs::{
    self, AttrMask, Attributes, DelegReturn, Delegation, OpenClaim, Path, Reply, Request,
    ShareAccess, StateId, Status,
};
use std::time::Duration;

/// Opens an existing file of the root. Returns the file and its delegation, true for a write
/// delegation.
fn open(
    world: &mut World,
    client: usize,
    name: &[u8],
    access: ShareAccess,
) -> Result<(File, Option<(StateId, bool)>), Status> {
    let path = [name];
    let mut request = open_request(world.root(), &path, b"owner");
    request.create = None;
    request.share_access = access;
    opened(world, client, &request)
}

fn opened(
    world: &mut World,
    client: usize,
    request: &dafs::Open<'_>,
) -> Result<(File, Option<(StateId, bool)>), Status> {
    let answer = world.call(client, &Request::Open(*request));
    let Reply::Open(reply) = answer.reply()? else { panic!() };
    let delegation = match reply.delegation {
        Delegation::None => None,
        Delegation::Read { state_id, recall: false, .. } => Some((state_id, false)),
        Delegation::Write { state_id, recall: false, .. } => Some((state_id, true)),
        other => panic!("{other:?}"),
    };
    Ok((File { fh: reply.fh, id: reply.state_id }, delegation))
}

/// Makes a world with a file without recent writes.
fn world() -> World {
    let mut world = World::new(Setup::default());
    let maker = world.session(9, "maker");
    let file = world.open(maker, b"f");
    world.write(maker, file, 0, &pattern(1000, 1));
    assert_eq!(world.status(maker, &close(file)), Status::Ok);
    assert_eq!(world.status(maker, &Request::Disconnect), Status::Ok);
    world.pass(Duration::from_secs(10));
    world
}

/// Makes such a world with a client that has a delegation of the file, its channel, and another
/// client.
fn held() -> (World, [usize; 3], File, StateId) {
    let mut world = world();
    let (holder, channel) = with_channel(&mut world, 2, "holder", PLAIN);
    let other = world.session(3, "other");
    let (file, delegation) = open(&mut world, holder, b"f", ShareAccess::Both).unwrap();
    let (id, true) = delegation.expect("a write delegation") else { panic!() };
    (world, [holder, channel, other], file, id)
}

fn give_back(id: StateId) -> Request<'static> {
    Request::DelegReturn(DelegReturn { state_id: id })
}

/// Takes and acknowledges the recall that has arrived on a channel.
fn recalled(world: &mut World, channel: usize) -> StateId {
    world.settle();
    let call = world.clients[channel].calls.pop().expect("a recall");
    let Request::BcRecall(recall) = call.request() else { panic!("{:?}", call.request()) };
    world.clients[channel].answer(&call, 4, &Reply::BcRecall);
    world.settle();
    recall.state_id
}

#[test]
fn a_client_with_a_back_channel_gets_delegations() {
    let mut world = world();
    let deaf = world.session(2, "deaf");
    let (file, delegation) = open(&mut world, deaf, b"f", ShareAccess::Read).unwrap();
    assert_eq!(delegation, None);
    let (one, _) = with_channel(&mut world, 3, "one", PLAIN);
    let (two, _) = with_channel(&mut world, 4, "two", PLAIN);
    for client in [one, two] {
        let (_, delegation) = open(&mut world, client, b"f", ShareAccess::Read).unwrap();
        assert!(matches!(delegation, Some((_, false))), "readers share");
    }
    assert_eq!(world.status(deaf, &close(file)), Status::Ok);
    world.end();
}

#[test]
fn a_conflicting_open_recalls_and_goes_on_after_the_return() {
    let (mut world, [holder, channel, other], file, id) = held();
    assert_eq!(open(&mut world, other, b"f", ShareAccess::Read).unwrap_err(), Status::Delay);
    assert_eq!(recalled(&mut world, channel), id);
    assert_eq!(open(&mut world, other, b"f", ShareAccess::Read).unwrap_err(), Status::Delay);
    assert!(world.clients[channel].calls.is_empty(), "it was told once");
    // Meanwhile it may open by its delegation.
    let path: [&[u8]; 1] = [b"f"];
    let by_right = dafs::Open {
        claim: OpenClaim::DelegateCur { dir: world.root(), path: Path::new(&path), state_id: id },
        create: None,
        ..open_request(world.root(), &path, b"second owner")
    };
    let (second, none) = opened(&mut world, holder, &by_right).unwrap();
    assert_eq!(none, None);
    world.write(holder, second, 0, b"late");
    assert_eq!(world.status(other, &give_back(id)), Status::BadStateId);
    assert_eq!(world.status(holder, &give_back(id)), Status::Ok);
    assert_eq!(world.status(holder, &give_back(id)), Status::StaleStateId);
    let (theirs, _) = open(&mut world, other, b"f", ShareAccess::Read).unwrap();
    assert_eq!(world.read(other, theirs)[..4], *b"late");
    assert_eq!(world.status(holder, &close(file)), Status::Ok);
    // Without the delegation it may not.
    assert_eq!(opened(&mut world, holder, &by_right).unwrap_err(), Status::StaleStateId);
    world.end();
}

#[test]
fn the_holder_is_asked_for_size_and_change() {
    let (mut world, [holder, channel, other], file, _) = held();
    assert_eq!(attributes(&mut world, holder, file.fh).unwrap().size, 1000);
    assert_eq!(attributes(&mut world, other, file.fh).unwrap_err(), Status::Delay);
    world.settle();
    let call = world.clients[channel].calls.pop().expect("a question");
    let Request::BcGetAttr(asked) = call.request() else { panic!() };
    assert_eq!(asked.fh, file.fh);
    let mask = AttrMask::CHANGE.union(AttrMask::TIME_MODIFY).union(AttrMask::OBJECT_SIZE);
    assert_eq!(asked.attributes, mask);
    let attributes_there =
        Attributes { change: Some(u64::MAX), object_size: Some(7777), ..Attributes::default() };
    let reply = Reply::BcGetAttr(dafs::GetAttrInlineReply { attributes: attributes_there });
    world.clients[channel].answer(&call, 4, &reply);
    world.settle();
    assert_eq!(attributes(&mut world, other, file.fh).unwrap().size, 7777);
    world.end();
}

#[test]
fn a_holder_that_cannot_answer_a_question_is_recalled() {
    let (mut world, [_, channel, other], file, id) = held();
    assert_eq!(attributes(&mut world, other, file.fh).unwrap_err(), Status::Delay);
    world.settle();
    let call = world.clients[channel].calls.pop().expect("a question");
    world.clients[channel].refuse(&call, Status::BadHandle);
    world.settle();
    assert_eq!(attributes(&mut world, other, file.fh).unwrap_err(), Status::Delay);
    assert_eq!(recalled(&mut world, channel), id);
    world.end();
}

#[test]
fn a_recall_that_did_not_arrive_comes_on_the_next_channel() {
    let (mut world, [_, channel, other], _, id) = held();
    assert_eq!(open(&mut world, other, b"f", ShareAccess::Read).unwrap_err(), Status::Delay);
    world.settle();
    let call = world.clients[channel].calls.pop().expect("a recall");
    // The recall was not understood: it may have overtaken the reply to OPEN.
    world.clients[channel].refuse(&call, Status::BadStateId);
    world.settle();
    assert_eq!(open(&mut world, other, b"f", ShareAccess::Read).unwrap_err(), Status::Delay);
    assert_eq!(recalled(&mut world, channel), id, "it is sent again");
    world.end();
}

/// For a moment it has no session, and the server has no channel to call it on.
#[test]
fn a_recall_while_the_holder_is_away_comes_when_it_is_back() {
    let (mut world, [holder, channel, other], _, id) = held();
    lose(&mut world, channel);
    lose(&mut world, holder);
    world.pass(Duration::from_secs(1));
    assert_eq!(open(&mut world, other, b"f", ShareAccess::Read).unwrap_err(), Status::Delay);
    let (_, channel) = with_channel(&mut world, 2, "holder", PLAIN);
    assert_eq!(recalled(&mut world, channel), id);
    world.end();
}

/// It has two sessions, and the recall is lost with the channel of one of them.
#[test]
fn a_recall_that_goes_with_its_channel_comes_on_another_one_that_was_there_before() {
    let mut world = world();
    let (holder, first) = with_channel(&mut world, 2, "holder", PLAIN);
    let (_, second) = with_channel(&mut world, 2, "holder", PLAIN);
    let other = world.session(3, "other");
    let (_, delegation) = open(&mut world, holder, b"f", ShareAccess::Both).unwrap();
    assert_eq!(open(&mut world, other, b"f", ShareAccess::Read).unwrap_err(), Status::Delay);
    world.settle();
    let told = |channel: &usize| !world.clients[*channel].calls.is_empty();
    let lost = [first, second].into_iter().find(told).expect("a recall");
    lose(&mut world, lost);
    assert_eq!(recalled(&mut world, first + second - lost), delegation.unwrap().0);
    world.end();
}

/// So a client without calls knows that its channel is dead.
#[test]
fn a_delegation_holder_is_called_periodically() {
    let mut world = world();
    let (holder, channel) = with_channel(&mut world, 2, "holder", PLAIN);
    world.pass(LEASE / 2);
    assert_eq!(world.status(holder, &Request::Null), Status::Ok);
    assert!(world.clients[channel].calls.is_empty(), "nothing hangs on it");
    let (_, delegation) = open(&mut world, holder, b"f", ShareAccess::Both).unwrap();
    let (delegation, _) = delegation.expect("a delegation");
    for time in [Duration::from_secs(1), LEASE / 6, LEASE / 6] {
        world.pass(time);
        let found = world.clients[channel].calls.pop();
        let call = found.unwrap_or_else(|| panic!("no sign of life after {time:?}"));
        assert!(matches!(call.request(), Request::BcNull));
        world.clients[channel].answer(&call, 4, &Reply::BcNull);
        world.pass(LEASE / 12);
        assert!(world.clients[channel].calls.is_empty(), "not more often than needed");
    }
    assert_eq!(world.status(holder, &give_back(delegation)), Status::Ok);
    world.pass(LEASE / 3);
    assert!(world.clients[channel].calls.is_empty());
    world.end();
}

/// A channel that dies silently is detected before its client's lease is over.
#[test]
fn a_client_that_answers_no_call_loses_the_channel() {
    let mut world = world();
    let (holder, channel) = with_channel(&mut world, 2, "holder", PLAIN);
    assert!(open(&mut world, holder, b"f", ShareAccess::Both).unwrap().1.is_some());
    world.pass(LEASE / 6);
    assert!(world.clients[channel].closed.is_none());
    world.pass(LEASE / 2);
    assert!(world.clients[channel].closed.is_some());
    assert_eq!(world.status(holder, &Request::Null), Status::Ok);
    world.end();
}

#[test]
fn a_delegation_that_is_not_returned_in_time_is_taken_away() {
    let (mut world, [holder, channel, other], file, id) = held();
    assert_eq!(open(&mut world, other, b"f", ShareAccess::Read).unwrap_err(), Status::Delay);
    recalled(&mut world, channel);
    for _ in 0..4 {
        world.pass(LEASE / 3);
        assert_eq!(world.status(holder, &Request::Null), Status::Ok);
        assert_eq!(world.status(other, &Request::Null), Status::Ok);
    }
    assert!(open(&mut world, other, b"f", ShareAccess::Read).is_ok());
    assert_eq!(world.status(holder, &give_back(id)), Status::StaleStateId);
    // Its open is not affected.
    assert_eq!(world.read(holder, file).len(), 1000);
    world.end();
}

#[test]
fn nothing_is_kept_of_delegations_across_a_restart_of_the_client() {
    let mut world = world();
    let (client, _) = with_channel(&mut world, 2, "a", PLAIN);
    assert_eq!(world.status(client, &Request::DelegPurge), Status::NotSupp);
    let path: [&[u8]; 1] = [b"f"];
    let claim = OpenClaim::DelegatePrev { dir: world.root(), path: Path::new(&path) };
    let request = dafs::Open { claim, ..open_request(world.root(), &path, b"o") };
    assert_eq!(opened(&mut world, client, &request).unwrap_err(), Status::NotSupp);
    world.end();
}

/// A reader with a strict key needs the delegations of other readers back, because their holders
/// open the file without the server. A further opener with the key does not.
#[test]
fn the_first_strict_key_recalls_read_delegations() {
    let mut world = world();
    let (holder, channel) = with_channel(&mut world, 2, "holder", PLAIN);
    let (keyed, other_channel) = with_channel(&mut world, 3, "keyed", PLAIN);
    let third = world.session(4, "third");
    let (file, delegation) = open(&mut world, holder, b"f", ShareAccess::Read).unwrap();
    let (id, false) = delegation.expect("a read delegation") else { panic!() };
    assert_eq!(world.status(holder, &close(file)), Status::Ok);
    let strict = |world: &World| dafs::Open {
        create: None,
        share_access: ShareAccess::Read,
        share_key: dafs::ShareKey::XStrict(1),
        ..open_request(world.root(), F, b"owner")
    };
    let request = strict(&world);
    assert_eq!(world.open_with(keyed, &request).unwrap_err(), Status::Delay);
    assert_eq!(recalled(&mut world, channel), id);
    assert_eq!(world.status(holder, &give_back(id)), Status::Ok);
    world.pass(Duration::from_secs(16));
    let (_, delegation) = opened(&mut world, keyed, &request).unwrap();
    assert!(delegation.is_some(), "the holder of the key gets a delegation");
    let plain = open(&mut world, holder, b"f", ShareAccess::Read).map(|_| ());
    assert_eq!(plain, Err(Status::KeyMismatch));
    world.open_with(third, &request).unwrap();
    world.settle();
    assert!(world.clients[other_channel].calls.is_empty());
    world.end();
}
