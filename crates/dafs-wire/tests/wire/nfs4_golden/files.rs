use super::*;
use dafs_wire::nfs4::*;

/// size = 0.
const SIZE_ZERO: &str = "00000001 00000010 00000008 0000000000000000";

fn size_zero() -> Fattr<'static> {
    Fattr { mask: Bitmap::EMPTY.with(4), values: &[0; 8] }
}

fn owner() -> StateOwner<'static> {
    StateOwner { client_id: 5, owner: b"open 1" }
}

const OWNER: &str = r#"0000000000000005 00000006 "open 1" 0000"#;

#[test]
fn open_by_name_creates() {
    check_op(
        &format!(
            r#"00000012 00000000 00300302 00000001 {OWNER}
               00000001 00000001 {SIZE_ZERO} 00000000 00000004 "file""#
        ),
        &Op::Open(OpenArgs {
            seqid: 0,
            share_access: ShareAccess(
                ShareAccess::WRITE
                    | 0x300
                    | ShareAccess::DELEGATED_TIMESTAMPS
                    | ShareAccess::OPEN_XOR_DELEGATION,
            ),
            share_deny: DENY_READ,
            owner: owner(),
            how: OpenHow::Guarded(size_zero()),
            claim: OpenClaim::Null(b"file"),
        }),
    );
    let access = ShareAccess(0x0030_0302);
    assert_eq!((access.access(), access.want()), (ShareAccess::WRITE, Want::Any));
    assert!(access.has(ShareAccess::DELEGATED_TIMESTAMPS));
}

#[test]
fn every_way_to_make_a_file() {
    for (text, how) in [
        ("00000000", OpenHow::NoCreate),
        (&*format!("00000001 00000000 {SIZE_ZERO}"), OpenHow::Unchecked(size_zero())),
        (r#"00000001 00000002 "verifier""#, OpenHow::Exclusive(Verifier(*b"verifier"))),
        (
            &format!(r#"00000001 00000003 "verifier" {SIZE_ZERO}"#),
            OpenHow::Exclusive41(Verifier(*b"verifier"), size_zero()),
        ),
    ] {
        let wire = bytes(text);
        assert_eq!(how.encoded(), wire);
        assert_eq!(OpenHow::decode(&mut Decoder::new(&wire)), Ok(how));
    }
}

#[test]
fn every_claim() {
    for (text, claim) in [
        (r#"00000000 00000001 "f" 000000"#, OpenClaim::Null(b"f")),
        ("00000001 00000002", OpenClaim::Previous(DelegationType::Write)),
        (
            &*format!(r#"00000002 {STATEID_TEXT} 00000001 "f" 000000"#),
            OpenClaim::DelegateCurrent(STATEID, b"f"),
        ),
        (r#"00000003 00000001 "f" 000000"#, OpenClaim::DelegatePrevious(b"f")),
        ("00000004", OpenClaim::Handle),
        (&format!("00000005 {STATEID_TEXT}"), OpenClaim::DelegateCurrentHandle(STATEID)),
        ("00000006", OpenClaim::DelegatePreviousHandle),
    ] {
        let wire = bytes(text);
        assert_eq!(claim.encoded(), wire);
        assert_eq!(OpenClaim::decode(&mut Decoder::new(&wire)), Ok(claim));
    }
}

#[test]
fn open_results() {
    let plain = OpenResult {
        stateid: STATEID,
        change: ChangeInfo { atomic: true, before: 1, after: 2 },
        flags: OpenFlags::LOCKTYPE_POSIX | OpenFlags::MAY_NOTIFY_LOCK,
        attributes_set: Bitmap::EMPTY.with(4),
        delegation: OpenDelegation::None,
    };
    let head = format!(
        "00000012 00000000 {STATEID_TEXT} 00000001 0000000000000001 0000000000000002
         00000024 00000001 00000010"
    );
    let ace =
        Ace { kind: ACE_ALLOWED, flags: AceFlags::empty(), mask: AceMask::READ_DATA, who: b"me" };
    let permissions = r#"00000000 00000000 00000001 00000002 "me" 0000"#;
    let read = ReadDelegation { stateid: STATEID, recall: false, permissions: ace };
    let write = WriteDelegation {
        stateid: STATEID,
        recall: true,
        space_limit: SpaceLimit::Size(4096),
        permissions: ace,
    };
    for (text, delegation) in [
        ("00000000".to_owned(), OpenDelegation::None),
        (format!("00000001 {STATEID_TEXT} 00000000 {permissions}"), OpenDelegation::Read(read)),
        (
            format!("00000002 {STATEID_TEXT} 00000001 00000001 0000000000001000 {permissions}"),
            OpenDelegation::Write(write),
        ),
        (
            format!("00000004 {STATEID_TEXT} 00000000 {permissions}"),
            OpenDelegation::ReadAttributes(read),
        ),
        (
            format!("00000005 {STATEID_TEXT} 00000001 00000001 0000000000001000 {permissions}"),
            OpenDelegation::WriteAttributes(write),
        ),
        ("00000003 00000000".to_owned(), OpenDelegation::Why(WhyNone::NotWanted)),
        ("00000003 00000001 00000001".to_owned(), OpenDelegation::Contention { will_push: true }),
        ("00000003 00000002 00000000".to_owned(), OpenDelegation::Resource { will_signal: false }),
    ] {
        check_result(
            &format!("{head} {text}"),
            18,
            Status::Ok,
            ResultBody::Open(OpenResult { delegation, ..plain }),
        );
    }
}

#[test]
fn opens_change_and_end() {
    check_op(
        &format!("00000004 00000000 {STATEID_TEXT}"),
        &Op::Close(CloseArgs { seqid: 0, stateid: STATEID }),
    );
    check_result(
        &format!("00000004 00000000 {STATEID_TEXT}"),
        4,
        Status::Ok,
        ResultBody::Close(StateidResult { stateid: STATEID }),
    );
    check_op(
        &format!("00000015 {STATEID_TEXT} 00000000 00000001 00000002"),
        &Op::OpenDowngrade(OpenDowngradeArgs {
            stateid: STATEID,
            seqid: 0,
            share_access: ShareAccess(1),
            share_deny: DENY_WRITE,
        }),
    );
    check_op(
        &format!("00000008 {STATEID_TEXT}"),
        &Op::Delegreturn(DelegreturnArgs { stateid: STATEID }),
    );
}

#[test]
fn data() {
    check_op(
        &format!("00000019 {STATEID_TEXT} 0000000000001000 00010000"),
        &Op::Read(ReadArgs { stateid: STATEID, offset: 4096, count: 65_536 }),
    );
    check_result(
        r#"00000019 00000000 00000001 00000005 "hello" 000000"#,
        25,
        Status::Ok,
        ResultBody::Read(ReadResult { eof: true, data: b"hello".into() }),
    );
    check_op(
        &format!(r#"00000026 {STATEID_TEXT} 0000000000001000 00000002 00000003 "abc" 00"#),
        &Op::Write(WriteArgs {
            stateid: STATEID,
            offset: 4096,
            stable: StableHow::FileSync,
            data: b"abc".into(),
        }),
    );
    check_result(
        r#"00000026 00000000 00000003 00000000 "verifier""#,
        38,
        Status::Ok,
        ResultBody::Write(WriteResult {
            count: 3,
            committed: StableHow::Unstable,
            verifier: Verifier(*b"verifier"),
        }),
    );
    check_op("00000005 0000000000000000 00000000", &Op::Commit(CommitArgs { offset: 0, count: 0 }));
}

#[test]
fn locks() {
    check_op(
        &format!(
            r#"0000000c 00000004 00000000 0000000000000001 ffffffffffffffff 00000001
               00000000 {STATEID_TEXT} 00000000 0000000000000005 00000004 "lock""#
        ),
        &Op::Lock(LockArgs {
            kind: LockType::WriteWait,
            reclaim: false,
            offset: 1,
            length: u64::MAX,
            locker: Locker::New {
                open_seqid: 0,
                open: STATEID,
                lock_seqid: 0,
                owner: StateOwner { client_id: 5, owner: b"lock" },
            },
        }),
    );
    check_op(
        &format!(
            "0000000c 00000001 00000001 0000000000000001 0000000000000002 00000000
             {STATEID_TEXT} 00000000"
        ),
        &Op::Lock(LockArgs {
            kind: LockType::Read,
            reclaim: true,
            offset: 1,
            length: 2,
            locker: Locker::Existing { lock: STATEID, lock_seqid: 0 },
        }),
    );
    let denied = LockDenied {
        offset: 1,
        length: 2,
        kind: LockType::Write,
        owner: StateOwner { client_id: 5, owner: b"lock" },
    };
    let body = r#"0000000000000001 0000000000000002 00000002 0000000000000005 00000004 "lock""#;
    for number in [12, 13] {
        check_result(
            &format!("{number:08x} 0000271a {body}"),
            number,
            Status::Denied,
            ResultBody::Denied(denied),
        );
    }
    check_op(
        r#"0000000d 00000002 0000000000000001 0000000000000002 0000000000000005 00000004 "lock""#,
        &Op::Lockt(LocktArgs { kind: LockType::Write, offset: 1, length: 2, owner: denied.owner }),
    );
    check_op(
        &format!("0000000e 00000001 00000000 {STATEID_TEXT} 0000000000000001 0000000000000002"),
        &Op::Locku(LockuArgs {
            kind: LockType::Read,
            seqid: 0,
            stateid: STATEID,
            offset: 1,
            length: 2,
        }),
    );
}

#[test]
fn names() {
    check_op(r#"0000000f 00000003 "etc" 00"#, &Op::Lookup(LookupArgs { name: b"etc" }));
    check_op("00000018", &Op::Putrootfh(PutrootfhArgs));
    check_op("0000000a", &Op::Getfh(GetfhArgs));
    check_op("00000016 00000004 00010203", &Op::Putfh(PutfhArgs { handle: &[0, 1, 2, 3] }));
    check_op(
        "00000003 0000004d",
        &Op::Access(AccessArgs {
            access: Access::READ | Access::MODIFY | Access::EXTEND | Access::XATTR_READ,
        }),
    );
}

#[test]
fn more_names() {
    check_op(
        &format!(r#"00000006 00000005 00000002 "to" 0000 00000004 "link" {SIZE_ZERO}"#),
        &Op::Create(CreateArgs {
            kind: CreateType::Symlink(b"to".into()),
            name: b"link",
            attributes: size_zero(),
        }),
    );
    check_op(
        &format!(r#"00000006 00000003 00000008 00000001 00000003 "sda" 00 {SIZE_ZERO}"#),
        &Op::Create(CreateArgs {
            kind: CreateType::BlockDevice(DeviceNumbers { major: 8, minor: 1 }),
            name: b"sda",
            attributes: size_zero(),
        }),
    );
    check_op(
        &format!(r#"00000006 00000002 00000003 "dir" 00 {SIZE_ZERO}"#),
        &Op::Create(CreateArgs {
            kind: CreateType::Plain(FileType::Directory),
            name: b"dir",
            attributes: size_zero(),
        }),
    );
    check_op(
        r#"0000001d 00000001 "a" 000000 00000002 "bc" 0000"#,
        &Op::Rename(RenameArgs { old_name: b"a", new_name: b"bc" }),
    );
    check_op(
        r#"0000001a 0000000000000003 "verifier" 00000100 00001000 00000002 00100008 00800000"#,
        &Op::Readdir(ReaddirArgs {
            cookie: 3,
            cookie_verifier: Verifier(*b"verifier"),
            directory_bytes: 256,
            result_bytes_max: 4096,
            request: Bitmap::of(&[3, 20, 55]),
        }),
    );
    check_op(
        "00000034 00000001",
        &Op::SecinfoNoName(SecinfoNoNameArgs { style: SecinfoStyle::Parent }),
    );
    check_result(
        "00000034 00000000 00000002 00000006 00000002 2a03 0000 00000000 00000002 00000001",
        52,
        Status::Ok,
        ResultBody::SecinfoNoName(SecinfoResult {
            flavors: vec![
                Security::Gss { mechanism: &[0x2a, 3], quality: 0, service: 2 },
                Security::Sys,
            ],
        }),
    );
}

#[test]
fn a_directory_is_a_list() {
    let wire = bytes(&format!(
        r#"0000001a 00000000 "verifier"
           00000001 0000000000000007 00000001 "a" 000000 {SIZE_ZERO}
           00000001 0000000000000008 00000002 "bc" 0000 {SIZE_ZERO}
           00000000 00000001"#
    ));
    let mut d = Decoder::new(&wire);
    let result = OpResult::decode(&mut d).unwrap();
    assert_eq!(d.remaining(), 0);
    assert_eq!(result.encoded(), wire);
    let ResultBody::Readdir(list) = result.body else { panic!() };
    let entry = |cookie, name| DirectoryEntry { cookie, name, attributes: size_zero() };
    assert!(list.eof);
    assert_eq!(list.entries().collect::<Vec<_>>(), [entry(7, &b"a"[..]), entry(8, b"bc")]);
}

#[test]
fn ranges() {
    check_op(
        &format!("00000045 {STATEID_TEXT} 0000000000000100 00000001"),
        &Op::Seek(SeekArgs { stateid: STATEID, offset: 256, what: SeekWhat::Hole }),
    );
    check_op(
        &format!("0000003b {STATEID_TEXT} 0000000000000100 0000000000000200"),
        &Op::Allocate(AllocateArgs { stateid: STATEID, offset: 256, length: 512 }),
    );
    check_op(
        &format!(
            "00000047 {STATEID_TEXT} {STATEID_TEXT} 0000000000000001 0000000000000002
             0000000000000003"
        ),
        &Op::Clone(CloneArgs {
            source_stateid: STATEID,
            destination_stateid: STATEID,
            source_offset: 1,
            destination_offset: 2,
            count: 3,
        }),
    );
    check_op(
        &format!(
            r#"0000003c {STATEID_TEXT} {STATEID_TEXT} 0000000000000001 0000000000000002
               0000000000000003 00000001 00000000 00000001
               00000003 00000003 "tcp" 00 00000004 "addr""#
        ),
        &Op::Copy(CopyArgs {
            source_stateid: STATEID,
            destination_stateid: STATEID,
            source_offset: 1,
            destination_offset: 2,
            count: 3,
            consecutive: true,
            synchronous: false,
            source_servers: vec![NetworkLocation::Address(NetworkAddress {
                network: b"tcp",
                address: b"addr",
            })],
        }),
    );
    check_result(
        &format!(
            r#"0000003c 00000000 00000001 {STATEID_TEXT} 0000000000000003 00000002 "verifier"
               00000001 00000000"#
        ),
        60,
        Status::Ok,
        ResultBody::Copy(CopyResult {
            response: WriteResponse {
                callback_id: Some(STATEID),
                count: 3,
                committed: StableHow::FileSync,
                verifier: Verifier(*b"verifier"),
            },
            requirements: CopyRequirements { consecutive: true, synchronous: false },
        }),
    );
    check_result(
        "0000003c 0000276e 00000001 00000001",
        60,
        Status::OffloadNoReqs,
        ResultBody::Requirements(CopyRequirements { consecutive: true, synchronous: true }),
    );
    check_result(
        r#"00000044 00000000 00000001 00000002
           00000000 0000000000000000 00000002 "ab" 0000
           00000001 0000000000000002 0000000000000ffe"#,
        68,
        Status::Ok,
        ResultBody::ReadPlus(ReadPlusResult {
            eof: true,
            contents: vec![
                ReadPlusContent::Data { offset: 0, data: b"ab" },
                ReadPlusContent::Hole { offset: 2, length: 4094 },
            ],
        }),
    );
    check_result(
        "00000043 00000000 0000000000000005 00000001 00000000",
        67,
        Status::Ok,
        ResultBody::OffloadStatus(OffloadStatusResult { count: 5, complete: Some(Status::Ok) }),
    );
}

#[test]
fn extended_attributes() {
    check_op(
        r#"00000049 00000001 00000003 "key" 00 00000005 "value" 000000"#,
        &Op::Setxattr(SetxattrArgs {
            option: SetxattrOption::Create,
            name: b"key",
            value: b"value",
        }),
    );
    check_result(
        r#"0000004a 00000000 0000000000000002 00000002 00000001 "a" 000000 00000002 "bc" 0000
           00000001"#,
        74,
        Status::Ok,
        ResultBody::Listxattrs(ListxattrsResult { cookie: 2, names: vec![b"a", b"bc"], eof: true }),
    );
}

#[test]
fn layouts_are_understood_so_far_as_to_be_refused() {
    let range = "0000000000000000 ffffffffffffffff";
    check_op(
        &format!(
            "00000032 00000000 00000001 00000002 {range} 0000000000001000 {STATEID_TEXT} 00001000"
        ),
        &Op::Layoutget(LayoutgetArgs {
            signal_available: false,
            layout_type: 1,
            io_mode: 2,
            offset: 0,
            length: u64::MAX,
            length_min: 4096,
            stateid: STATEID,
            result_bytes_max: 4096,
        }),
    );
    check_op(
        &format!("00000033 00000000 00000004 00000003 00000001 {range} {STATEID_TEXT} 00000000"),
        &Op::Layoutreturn(LayoutreturnArgs {
            reclaim: false,
            layout_type: 4,
            io_mode: 3,
            returned: LayoutReturn::File(ReturnedLayout {
                offset: 0,
                length: u64::MAX,
                stateid: STATEID,
                body: b"",
            }),
        }),
    );
    check_result(
        "00000032 0000274a 00000001",
        50,
        Status::LayoutTryLater,
        ResultBody::WillSignal(true),
    );
    check_result("0000002f 00002715 00000400", 47, Status::TooSmall, ResultBody::SizeWanted(1024));
}
