//! Delegations in the results of OPEN, and DELEGRETURN.

use super::helper::*;
use crate::common::back_op;
use dafs_wire::nfs4::*;

fn delegation<'a>(answer: &'a crate::common::Answer) -> OpenDelegation<'a> {
    let ResultBody::Open(opened) = answer.body(2) else { panic!("{:?}", answer.results()) };
    opened.delegation
}

fn create(want: Want) -> Op<'static> {
    open(b"f", ShareAccess::READ | want.number(), unchecked(NOTHING))
}

#[test]
fn reasons_are_told_to_those_who_want() {
    let mut client = Client::new(1);
    let answer = client.at_root(&[create(Want::None)]);
    assert_eq!(delegation(&answer), OpenDelegation::Why(WhyNone::NotWanted));
    let answer = client.at_root(&[create(Want::Cancel)]);
    assert_eq!(delegation(&answer), OpenDelegation::Why(WhyNone::Cancelled));
    assert_eq!(client.status(&[create(Want::Other(0x0600))]), Status::Inval);
    let mut other = session(&mut client.world, b"other");
    let writes = open_by(b"o", OpenClaim::Null(b"f"), ShareAccess::WRITE, 0, OpenHow::NoCreate);
    let answer = client.world.next(&mut other, &[Op::Putrootfh(PutrootfhArgs), writes]);
    assert_eq!(answer.status(), Status::Ok);
    let answer = client.at_root(&[create(Want::Read)]);
    assert_eq!(delegation(&answer), OpenDelegation::Contention { will_push: false });
}

#[test]
fn a_delegation_reads_is_recalled_and_goes_back() {
    let mut client = Client::new(1);
    let answer = client.at_root(&[create(Want::Read), getfh()]);
    let OpenDelegation::Read(given) = delegation(&answer) else { panic!("{:?}", answer.results()) };
    assert!(!given.recall);
    let stateid = given.stateid;
    let fh = handle(&answer, 3);
    assert_eq!(client.send(&[putfh(&fh), read(stateid, 0, 1)]).status(), Status::Ok);
    let mut other = session(&mut client.world, b"other");
    let writes = || open_by(b"o", OpenClaim::Null(b"f"), ShareAccess::WRITE, 0, OpenHow::NoCreate);
    let ops = [Op::Putrootfh(PutrootfhArgs), writes()];
    assert_eq!(client.world.next(&mut other, &ops).status(), Status::Delay);
    let (_, call) = client.world.back_calls.pop().expect("the delegation is recalled");
    let CbOp::Recall(recall) = back_op(&call) else { panic!() };
    assert_eq!((recall.stateid, recall.handle), (stateid, &fh[..]));
    // The holder opens the delegated file once more, and returns the delegation.
    let claim = OpenClaim::DelegateCurrentHandle(stateid);
    let again = open_by(b"mine", claim, ShareAccess::READ, 0, OpenHow::NoCreate);
    assert_eq!(client.send(&[putfh(&fh), again]).status(), Status::Ok);
    let give = |stateid| Op::Delegreturn(DelegreturnArgs { stateid });
    let special = client.send(&[putfh(&fh), give(Stateid::ANONYMOUS)]);
    assert_eq!(special.status(), Status::BadStateId);
    assert_eq!(client.send(&[putfh(&fh), give(stateid)]).status(), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), give(stateid)]).status(), Status::BadStateId);
    assert_eq!(client.world.next(&mut other, &ops).status(), Status::Ok);
}

/// RFC 8881 10.4.1: a holder may keep data at close only as far as the server has space for it.
#[test]
fn a_holder_keeps_no_data_when_a_file_is_closed() {
    let mut client = Client::new(1);
    let access = ShareAccess::BOTH | Want::Write.number();
    let answer = client.at_root(&[open(b"f", access, unchecked(NOTHING))]);
    let OpenDelegation::Write(given) = delegation(&answer) else {
        panic!("{:?}", answer.results())
    };
    assert_eq!(given.space_limit, SpaceLimit::Size(0));
}
