//! OPEN, READ, WRITE, COMMIT, CLOSE and the current state-id.

use super::helper::*;
use crate::common::with_sequence;
use dafs_wire::nfs4::*;

fn data(answer: &crate::common::Answer, at: usize) -> (Vec<u8>, bool) {
    let ResultBody::Read(result) = answer.body(at) else { panic!("{:?}", answer.results()) };
    (result.data.here().unwrap().to_vec(), result.eof)
}

#[test]
fn reads_return_written_data_up_to_the_exact_end() {
    let (mut client, fh, stateid) = Client::with_file(1);
    let stable = StableHow::FileSync;
    let answer = client.send(&[putfh(&fh), write_stable(stateid, 5, b"write test data", stable)]);
    let ResultBody::Write(written) = answer.body(2) else { panic!() };
    assert_eq!((written.count, written.committed), (15, stable));
    let cases = [
        (0, 1000, &b"\0\0\0\0\0write test data"[..], true),
        (5, 15, b"write test data", true),
        (5, 14, b"write test dat", false),
        (19, 1, b"a", true),
        (20, 1, b"", true),
        (u64::MAX, 1, b"", true),
        (0, 0, b"", false),
        (20, 0, b"", true),
    ];
    for (offset, count, expected, eof) in cases {
        let answer = client.send(&[putfh(&fh), read(stateid, offset, count)]);
        assert_eq!(data(&answer, 2), (expected.to_vec(), eof), "{count} from {offset}");
    }
    assert_eq!(client.send(&[putfh(&fh), close(stateid)]).status(), Status::Ok);
    let again = client.send(&[putfh(&fh), close(stateid)]);
    assert_eq!(again.status(), Status::BadStateId);
}

#[test]
fn megabytes_travel_in_one_piece() {
    let (mut client, fh, stateid) = Client::with_file(1);
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    let answer = client.send(&[putfh(&fh), write(stateid, 0, &bytes)]);
    let ResultBody::Write(written) = answer.body(2) else { panic!() };
    assert_eq!(written.count, 1 << 20);
    let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
    let answer = client.send(&[putfh(&fh), commit, read(stateid, 0, 1 << 20), getfh()]);
    let ResultBody::Commit(committed) = answer.body(2) else { panic!() };
    assert_eq!(committed.verifier, written.verifier);
    let (read, eof) = data(&answer, 3);
    assert!(read == bytes && eof, "{} bytes", read.len());
    assert_eq!(handle(&answer, 4), fh);
}

#[test]
fn the_current_stateid_follows_the_rules() {
    let mut client = Client::new(1);
    let current = Stateid::CURRENT;
    let create = || open(b"f", ShareAccess::BOTH, unchecked(NOTHING));
    let ops = [create(), write(current, 0, b"abc"), read(current, 0, 9), close(current)];
    let answer = client.at_root(&ops);
    assert_eq!(answer.status(), Status::Ok);
    assert_eq!(data(&answer, 4), (b"abc".to_vec(), true));
    // An operation that sets the file handle without a state-id clears the state-id.
    let root = || Op::Putrootfh(PutrootfhArgs);
    let answer = client.at_root(&[create(), getfh(), root(), lookup(b"f"), close(current)]);
    assert_eq!(answer.status(), Status::BadStateId);
    let ResultBody::Open(opened) = answer.body(2) else { panic!() };
    let fh = handle(&answer, 3);
    assert_eq!(client.send(&[putfh(&fh), read(current, 0, 1)]).status(), Status::BadStateId);
    assert_eq!(client.send(&[putfh(&fh), close(opened.stateid)]).status(), Status::Ok);
    // SAVEFH and RESTOREFH keep it.
    let ops = [create(), savefh(), root(), Op::Restorefh(RestorefhArgs), close(current)];
    assert_eq!(client.status(&ops), Status::Ok);
    // A closed open has none.
    assert_eq!(client.status(&[create(), close(current), close(current)]), Status::BadStateId);
}

#[test]
fn special_stateids_read_and_write_without_an_open() {
    let (mut client, fh, stateid) = Client::with_file(1);
    client.send(&[putfh(&fh), close(stateid)]);
    let ops = [putfh(&fh), write(Stateid::ANONYMOUS, 0, b"abc"), read(Stateid::READ_BYPASS, 0, 3)];
    let answer = client.send(&ops);
    assert_eq!(data(&answer, 3), (b"abc".to_vec(), true));
    let odd = Stateid { seqid: 5, other: [0; 12] };
    assert_eq!(client.send(&[putfh(&fh), read(odd, 0, 3)]).status(), Status::BadStateId);
    assert_eq!(client.send(&[putfh(&fh), read(stateid, 0, 3)]).status(), Status::BadStateId);
    assert_eq!(
        client.send(&[putfh(&fh), read(Stateid::INVALID, 0, 3)]).status(),
        Status::BadStateId
    );
}

#[test]
fn each_open_of_an_owner_counts_the_stateid_up() {
    let mut client = Client::new(1);
    let how = OpenHow::NoCreate;
    let (fh, first) = client.file(b"f");
    assert_eq!(first.seqid, 1);
    let answer = client.at_root(&[open(b"f", ShareAccess::READ, how)]);
    let ResultBody::Open(second) = answer.body(2) else { panic!() };
    assert_eq!(second.stateid, Stateid { seqid: 2, ..first });
    assert_eq!(client.send(&[putfh(&fh), read(first, 0, 1)]).status(), Status::OldStateId);
    let downgrade = |access| {
        Op::OpenDowngrade(OpenDowngradeArgs {
            stateid: second.stateid,
            seqid: 0,
            share_access: ShareAccess(access),
            share_deny: DENY_NONE,
        })
    };
    let answer = client.send(&[putfh(&fh), downgrade(0)]);
    assert_eq!(answer.status(), Status::Inval);
    let answer = client.send(&[putfh(&fh), downgrade(ShareAccess::READ)]);
    let ResultBody::OpenDowngrade(third) = answer.body(2) else { panic!() };
    assert_eq!(third.stateid.seqid, 3);
    let refused = client.send(&[putfh(&fh), write(third.stateid, 0, b"x")]);
    assert_eq!(refused.status(), Status::OpenMode);
}

#[test]
fn opens_are_made_in_every_way() {
    let mut client = Client::new(1);
    let both = ShareAccess::BOTH;
    let mut opened = |name: &[u8], how: OpenHow<'_>| {
        let answer = client.at_root(&[open(name, both, how), close(Stateid::CURRENT)]);
        match answer.status() {
            Status::Ok => match answer.body(2) {
                ResultBody::Open(opened) => Ok(opened.attributes_set),
                _ => panic!(),
            },
            status => Err(status),
        }
    };
    let set = SetAttributes { mode: Some(0o640), size: Some(3), ..SetAttributes::default() };
    let values = set.to_values();
    let fattr = Fattr { mask: set.mask(), values: &values };
    assert_eq!(opened(b"a", OpenHow::NoCreate), Err(Status::NoEnt));
    assert_eq!(opened(b"a", OpenHow::Guarded(fattr)), Ok(set.mask()));
    assert_eq!(opened(b"a", OpenHow::Guarded(fattr)), Err(Status::Exist));
    assert_eq!(opened(b"a", unchecked(fattr)), Ok(Bitmap::EMPTY));
    let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let values = empty.to_values();
    let truncate = Fattr { mask: empty.mask(), values: &values };
    assert_eq!(opened(b"a", unchecked(truncate)), Ok(empty.mask()));
    // Exclusive creates of both kinds: a retry finds the file, and another create does not.
    let kept = Attr::set(&[Attr::TimeAccessSet, Attr::TimeModifySet]);
    let (one, other) = (Verifier([1; 8]), Verifier([2; 8]));
    assert_eq!(opened(b"b", OpenHow::Exclusive(one)), Ok(kept));
    assert_eq!(opened(b"b", OpenHow::Exclusive(one)), Ok(kept));
    assert_eq!(opened(b"b", OpenHow::Exclusive(other)), Err(Status::Exist));
    let mode = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    let values = mode.to_values();
    let with_mode = Fattr { mask: mode.mask(), values: &values };
    let all = mode.mask().or(kept);
    assert_eq!(opened(b"c", OpenHow::Exclusive41(one, with_mode)), Ok(all));
    assert_eq!(opened(b"c", OpenHow::Exclusive41(one, with_mode)), Ok(all));
    assert_eq!(opened(b"c", OpenHow::Exclusive41(other, with_mode)), Err(Status::Exist));
    assert_eq!(opened(b"d", OpenHow::Exclusive41(one, fattr)), Err(Status::Inval));
}

#[test]
fn opens_that_make_no_sense_are_refused() {
    let mut client = Client::new(1);
    client.directory(b"d");
    client.status(&[make(CreateType::Symlink(b"d".into()), b"l")]);
    client.status(&[make(CreateType::Plain(FileType::Fifo), b"p")]);
    let (read_only, none) = (ShareAccess::READ, OpenHow::NoCreate);
    for (name, status) in [
        (&b"d"[..], Status::IsDir),
        (b"l", Status::Symlink),
        (b"p", Status::WrongType),
        (b"", Status::Inval),
        (b"..", Status::BadName),
        (b"a/b", Status::BadChar),
    ] {
        assert_eq!(client.status(&[open(name, read_only, none)]), status, "{name:?}");
    }
    let cases = [
        (OpenClaim::Null(b"f"), 0, DENY_NONE, none, Status::Inval),
        (OpenClaim::Null(b"f"), 0x40_0001, DENY_NONE, none, Status::Inval),
        (OpenClaim::Null(b"f"), 1, 4, none, Status::Inval),
        (OpenClaim::Handle, 1, DENY_NONE, unchecked(NOTHING), Status::Inval),
        (OpenClaim::Handle, 1, DENY_NONE, none, Status::IsDir),
        (OpenClaim::DelegatePrevious(b"f"), 1, DENY_NONE, none, Status::ReclaimBad),
        (OpenClaim::DelegatePreviousHandle, 1, DENY_NONE, none, Status::ReclaimBad),
        (
            OpenClaim::DelegateCurrent(Stateid::ANONYMOUS, b"f"),
            1,
            DENY_NONE,
            none,
            Status::BadStateId,
        ),
    ];
    for (claim, access, deny, how, status) in cases {
        let op = open_by(b"o", claim, access, deny, how);
        assert_eq!(client.status(&[op]), status, "{claim:?} {access} {deny}");
    }
    let (fh, _) = client.file(b"f");
    let name = open(b"x", read_only, none);
    assert_eq!(client.send(&[putfh(&fh), name]).status(), Status::NotDir);
}

#[test]
fn shares_are_kept_between_owners_and_from_anonymous_io() {
    let mut client = Client::new(1);
    let denying =
        open_by(b"first", OpenClaim::Null(b"f"), ShareAccess::BOTH, DENY_WRITE, unchecked(NOTHING));
    let answer = client.at_root(&[denying, getfh()]);
    let fh = handle(&answer, 3);
    let none = OpenHow::NoCreate;
    let second = |access| open_by(b"second", OpenClaim::Handle, access, DENY_NONE, none);
    let refused = client.send(&[putfh(&fh), second(ShareAccess::WRITE)]);
    assert_eq!(refused.status(), Status::ShareDenied);
    let fine = client.send(&[putfh(&fh), second(ShareAccess::READ)]);
    assert_eq!(fine.status(), Status::Ok);
    let refused = client.send(&[putfh(&fh), write(Stateid::ANONYMOUS, 0, b"x")]);
    assert_eq!(refused.status(), Status::Locked);
}

#[test]
fn io_on_what_holds_no_data_is_refused() {
    let mut client = Client::new(1);
    client.directory(b"d");
    client.status(&[make(CreateType::Symlink(b"d".into()), b"l")]);
    client.status(&[make(CreateType::Plain(FileType::Socket), b"s")]);
    let commit = || Op::Commit(CommitArgs { offset: 0, count: 0 });
    let special = Stateid::ANONYMOUS;
    for (name, status) in
        [(&b"d"[..], Status::IsDir), (b"l", Status::Symlink), (b"s", Status::WrongType)]
    {
        for op in [read(special, 0, 1), write(special, 0, b"x"), commit()] {
            assert_eq!(client.status(&[lookup(name), op.clone()]), status, "{name:?} {op:?}");
        }
    }
}

#[test]
fn a_state_id_gives_other_users_only_what_the_file_gives() {
    let (mut client, fh, stateid) = Client::with_file(1);
    let set = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    for (mode, read_status, write_status) in [
        (0o600, Status::Access, Status::Access),
        (0o604, Status::Ok, Status::Access),
        (0o601, Status::Ok, Status::Access),
        (0o602, Status::Access, Status::Ok),
    ] {
        let (mask, values) = (set(mode).mask(), set(mode).to_values());
        let attributes = Fattr { mask, values: &values };
        let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
        let own = [putfh(&fh), set, write(stateid, 0, b"data"), read(stateid, 0, 4)];
        assert_eq!(client.send(&own).status(), Status::Ok);
        for (op, status) in
            [(read(stateid, 0, 4), read_status), (write(stateid, 0, b"d"), write_status)]
        {
            client.session.sequence += 1;
            let ops = with_sequence(client.session.sequence_args(), &[putfh(&fh), op]);
            assert_eq!(client.world.send(1, 7, &ops).status(), status, "{mode:o}");
        }
    }
}
