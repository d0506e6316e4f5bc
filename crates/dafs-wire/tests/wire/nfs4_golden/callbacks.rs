use super::*;
use dafs_wire::nfs4::*;

#[track_caller]
fn check_cb(text: &str, op: &CbOp<'_>) {
    let wire = bytes(text);
    assert_eq!(op.encoded(), wire, "encoding");
    let mut d = Decoder::new(&wire);
    assert_eq!(&CbOp::decode(&mut d).unwrap(), op, "decoding");
    assert_eq!(d.remaining(), 0);
}

#[track_caller]
fn check_cb_result(text: &str, number: u32, status: Status, body: CbResultBody<'_>) {
    let wire = bytes(text);
    let result = CbOpResult { number, status, body };
    assert_eq!(result.encoded(), wire, "encoding");
    let mut d = Decoder::new(&wire);
    assert_eq!(CbOpResult::decode(&mut d).unwrap(), result, "decoding");
    assert_eq!(d.remaining(), 0);
}

#[test]
fn the_head() {
    let wire = bytes("00000000 00000001 00000000 00000002");
    let head = CbCompoundArgs { tag: b"", minor_version: 1, callback_ident: 0, op_count: 2 };
    assert_eq!(head.encoded(), wire);
    assert_eq!(CbCompoundArgs::decode(&mut Decoder::new(&wire)), Ok(head));
}

#[test]
fn sequence() {
    let session_id = SessionId(*b"0123456789abcdef");
    check_cb(
        r#"0000000b "0123456789abcdef" 00000001 00000000 00000000 00000000
           00000001 "0123456789abcdef" 00000001 00000009 00000003"#,
        &CbOp::Sequence(CbSequenceArgs {
            session_id,
            sequence_id: 1,
            slot_id: 0,
            highest_slot_id: 0,
            cache_this: false,
            referring: vec![ReferringCalls {
                session_id,
                calls: vec![ReferringCall { sequence_id: 9, slot_id: 3 }],
            }],
        }),
    );
    check_cb_result(
        r#"0000000b 00000000 "0123456789abcdef" 00000001 00000000 00000000 00000000"#,
        11,
        Status::Ok,
        CbResultBody::Sequence(CbSequenceResult {
            session_id,
            sequence_id: 1,
            slot_id: 0,
            highest_slot_id: 0,
            target_highest_slot_id: 0,
        }),
    );
}

#[test]
fn delegations() {
    check_cb(
        &format!(r#"00000004 {STATEID_TEXT} 00000001 00000004 "file""#),
        &CbOp::Recall(CbRecallArgs { stateid: STATEID, truncate: true, handle: b"file" }),
    );
    check_cb_result("00000004 00000000", 4, Status::Ok, CbResultBody::Recall(()));
    check_cb_result("00000004 00002729", 4, Status::BadStateId, CbResultBody::Nothing);
    check_cb(
        r#"00000003 00000004 "file" 00000001 00000018"#,
        &CbOp::Getattr(CbGetattrArgs { handle: b"file", request: Bitmap::of(&[3, 4]) }),
    );
    check_cb_result(
        "00000003 00000000 00000001 00000018 00000010 0000000000000001 0000000000000002",
        3,
        Status::Ok,
        CbResultBody::Getattr(CbGetattrResult {
            attributes: Fattr {
                mask: Bitmap::of(&[3, 4]),
                values: &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
            },
        }),
    );
    check_cb(
        "00000008 00000010 00000001 00000003",
        &CbOp::RecallAny(CbRecallAnyArgs { objects_to_keep: 16, kinds: Bitmap::of(&[0, 1]) }),
    );
}

#[test]
fn locks_slots_and_copies() {
    check_cb(
        r#"0000000d 00000004 "file" 0000000000000005 00000004 "lock""#,
        &CbOp::NotifyLock(CbNotifyLockArgs {
            handle: b"file",
            owner: StateOwner { client_id: 5, owner: b"lock" },
        }),
    );
    check_cb(
        "0000000a 00000007",
        &CbOp::RecallSlot(CbRecallSlotArgs { target_highest_slot_id: 7 }),
    );
    check_cb(
        &format!(
            r#"0000000f 00000004 "file" {STATEID_TEXT}
               00000000 00000000 0000000000000010 00000002 "verifier""#
        ),
        &CbOp::Offload(CbOffloadArgs {
            handle: b"file",
            stateid: STATEID,
            outcome: OffloadInfo::Done(WriteResponse {
                callback_id: None,
                count: 16,
                committed: StableHow::FileSync,
                verifier: Verifier(*b"verifier"),
            }),
        }),
    );
    check_cb(
        &format!(r#"0000000f 00000004 "file" {STATEID_TEXT} 0000001c 0000000000000008"#),
        &CbOp::Offload(CbOffloadArgs {
            handle: b"file",
            stateid: STATEID,
            outcome: OffloadInfo::Failed(Status::NoSpc, 8),
        }),
    );
}

#[test]
fn layouts_and_devices() {
    let recall = |recall| {
        let (layout_type, io_mode, changed) = (1, 3, true);
        CbOp::Layoutrecall(CbLayoutrecallArgs { layout_type, io_mode, changed, recall })
    };
    check_cb(
        "00000005 00000001 00000003 00000001 00000002 0000000000000007 0000000000000008",
        &recall(LayoutRecall::FileSystem(Fsid { major: 7, minor: 8 })),
    );
    check_cb("00000005 00000001 00000003 00000001 00000003", &recall(LayoutRecall::All));
    let device_id = DeviceId(*b"0123456789abcdef");
    let moved = DeviceMoved { layout_type: 1, device_id, immediate: true };
    let deleted = DeviceDeleted { layout_type: 4, device_id };
    check_cb(
        r#"0000000e 00000002
           00000001 00000002 00000018 00000001 "0123456789abcdef" 00000001
           00000001 00000004 00000014 00000004 "0123456789abcdef""#,
        &CbOp::NotifyDeviceid(CbNotifyDeviceidArgs {
            changes: vec![DeviceChange::Moved(moved), DeviceChange::Deleted(deleted)],
        }),
    );
    // Two changes of one device at once; then an undefined kind, too few and too many bytes.
    let both = r#"0000000e 00000001 00000001 00000006 0000002c
        00000001 "0123456789abcdef" 00000001 00000004 "0123456789abcdef""#;
    let Ok(CbOp::NotifyDeviceid(args)) = CbOp::decode(&mut Decoder::new(&bytes(both))) else {
        panic!("two kinds of changes")
    };
    assert_eq!(args.changes, [DeviceChange::Moved(moved), DeviceChange::Deleted(deleted)]);
    for (mask, length) in
        [("0000000c", "00000014"), ("00000002", "00000014"), ("00000004", "00000018")]
    {
        let text = format!(
            r#"0000000e 00000001 00000001 {mask} {length} 00000004 "0123456789abcdef" 00000000"#
        );
        assert_eq!(CbOp::decode(&mut Decoder::new(&bytes(&text))).unwrap_err().number, 14);
    }
}

#[test]
fn unknown_callbacks_are_told_apart() {
    let wire = bytes("00000002 00000000");
    assert_eq!(CbOp::decode(&mut Decoder::new(&wire)), Ok(CbOp::Illegal(2)));
    let wire = bytes("00000004 00000000");
    assert_eq!(CbOp::decode(&mut Decoder::new(&wire)).unwrap_err().number, 4);
}
