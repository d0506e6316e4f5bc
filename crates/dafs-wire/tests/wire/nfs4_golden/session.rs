use super::*;
use dafs_wire::nfs4::*;

#[test]
fn compounds_have_a_head() {
    check_head(
        r#"00000003 "ls " 00 00000002 00000001"#,
        CompoundArgs { tag: b"ls ", minor_version: 2, op_count: 1 },
    );
    let wire = bytes(r#"00002746 00000000 00000005"#);
    let result = CompoundResult { status: Status::RestoreFh, tag: b"", op_count: 5 };
    let wanted = CompoundResult { status: Status::from_u32(10_054), ..result };
    assert_eq!(wanted.encoded(), wire);
    assert_eq!(CompoundResult::decode(&mut Decoder::new(&wire)), Ok(wanted));
    assert_eq!(wanted.status, Status::CompleteAlready);
}

#[track_caller]
fn check_head(text: &str, head: CompoundArgs<'_>) {
    let wire = bytes(text);
    assert_eq!(head.encoded(), wire);
    assert_eq!(CompoundArgs::decode(&mut Decoder::new(&wire)), Ok(head));
}

#[test]
fn sequence() {
    check_op(
        r#"00000035 "0123456789abcdef" 00000009 00000003 0000001f 00000001"#,
        &Op::Sequence(SequenceArgs {
            session_id: SessionId(*b"0123456789abcdef"),
            sequence_id: 9,
            slot_id: 3,
            highest_slot_id: 31,
            cache_this: true,
        }),
    );
    check_result(
        r#"00000035 00000000 "0123456789abcdef" 00000009 00000003 0000003f 0000001f 00000301"#,
        53,
        Status::Ok,
        ResultBody::Sequence(SequenceResult {
            session_id: SessionId(*b"0123456789abcdef"),
            sequence_id: 9,
            slot_id: 3,
            highest_slot_id: 63,
            target_highest_slot_id: 31,
            status: SequenceStatus::CB_PATH_DOWN
                | SequenceStatus::RESTART_RECLAIM_NEEDED
                | SequenceStatus::CB_PATH_DOWN_SESSION,
        }),
    );
    check_result("00000035 00002744", 53, Status::BadSession, ResultBody::Nothing);
}

#[test]
fn exchange_id() {
    check_op(
        r#"0000002a "verifier" 00000005 "owner" 000000 40000103 00000000
           00000001 0000000a "kernel.org" 0000 00000005 "Linux" 000000 0000000000000005 00000006"#,
        &Op::ExchangeId(ExchangeIdArgs {
            owner: ClientOwner { verifier: Verifier(*b"verifier"), owner_id: b"owner" },
            flags: ExchangeFlags::SUPP_MOVED_REFER
                | ExchangeFlags::SUPP_MOVED_MIGR
                | ExchangeFlags::BIND_PRINC_STATEID
                | ExchangeFlags::UPD_CONFIRMED_REC_A,
            state_protect: StateProtectArgs::None,
            implementation: Some(ImplementationId {
                domain: b"kernel.org",
                name: b"Linux",
                date: Time { seconds: 5, nanoseconds: 6 },
            }),
        }),
    );
    check_result(
        r#"0000002a 00000000 0102030405060708 00000001 80010001 00000000
           0000000000000002 00000004 "host" 00000005 "scope" 000000 00000000"#,
        42,
        Status::Ok,
        ResultBody::ExchangeId(ExchangeIdResult {
            client_id: 0x0102_0304_0506_0708,
            sequence_id: 1,
            flags: ExchangeFlags::CONFIRMED_R
                | ExchangeFlags::USE_NON_PNFS
                | ExchangeFlags::SUPP_MOVED_REFER,
            state_protect: StateProtectResult::None,
            server_owner: ServerOwner { minor_id: 2, major_id: b"host" },
            server_scope: b"scope",
            implementation: None,
        }),
    );
}

#[test]
fn state_protection() {
    // SP4_MACH_CRED, with EXCHANGE_ID, CREATE_SESSION and DESTROY_SESSION enforced.
    let wire = bytes(
        r#"0000002a "verifier" 00000000 00000000
           00000001 00000002 00000000 00001c00 00000000 00000000"#,
    );
    let Ok(Op::ExchangeId(args)) = Op::decode(&mut Decoder::new(&wire), 1) else { panic!() };
    let StateProtectArgs::MachineCredential(ops) = args.state_protect else { panic!() };
    assert_eq!(ops.must_enforce.iter().collect::<Vec<_>>(), [42, 43, 44]);
    assert!(ops.must_allow.is_empty());
    // SP4_SSV: one hash algorithm, one encryption algorithm.
    let wire = bytes(
        r#"0000002a "verifier" 00000000 00000000 00000002 00000000 00000000
           00000001 00000002 2a03 0000 00000001 00000001 2b 000000 00000004 00000001 00000000"#,
    );
    let Ok(Op::ExchangeId(args)) = Op::decode(&mut Decoder::new(&wire), 1) else { panic!() };
    let StateProtectArgs::Ssv(ssv) = args.state_protect else { panic!() };
    assert_eq!((ssv.hash_algorithms, ssv.window), (vec![&[0x2a, 3][..]], 4));
}

#[test]
fn create_session() {
    let fore = ChannelAttributes {
        header_pad_bytes: 0,
        request_bytes_max: 0x0010_0400,
        response_bytes_max: 0x0010_0200,
        response_bytes_max_cached: 0x1800,
        operations_max: 8,
        requests_max: 64,
        rdma_ird: None,
    };
    let back = ChannelAttributes { rdma_ird: Some(5), ..ChannelAttributes::default() };
    let channels = "00000000 00100400 00100200 00001800 00000008 00000040 00000000
         00000000 00000000 00000000 00000000 00000000 00000000 00000001 00000005";
    check_op(
        &format!(
            r#"0000002b 0102030405060708 00000001 00000002 {channels} 40000000
               00000002 00000000 00000001 00000007 00000004 "host" 00000000 00000001
               00000002 00000003 00000004"#
        ),
        &Op::CreateSession(CreateSessionArgs {
            client_id: 0x0102_0304_0506_0708,
            sequence: 1,
            flags: CreateSessionFlags::CONN_BACK_CHAN,
            fore,
            back,
            callback_program: 0x4000_0000,
            security: vec![
                CallbackSecurity::None,
                CallbackSecurity::Sys(AuthSysParameters {
                    stamp: 7,
                    machine: b"host",
                    uid: 0,
                    gid: 1,
                    groups: vec![3, 4],
                }),
            ],
        }),
    );
    check_result(
        &format!(r#"0000002b 00000000 "0123456789abcdef" 00000001 00000002 {channels}"#),
        43,
        Status::Ok,
        ResultBody::CreateSession(CreateSessionResult {
            session_id: SessionId(*b"0123456789abcdef"),
            sequence: 1,
            flags: CreateSessionFlags::CONN_BACK_CHAN,
            fore,
            back,
        }),
    );
}

#[test]
fn small_operations() {
    let session_id = SessionId(*b"0123456789abcdef");
    check_op(
        r#"00000029 "0123456789abcdef" 00000007 00000000"#,
        &Op::BindConnToSession(BindConnToSessionArgs {
            session_id,
            direction: ChannelFromClient::BackOrBoth,
            use_rdma: false,
        }),
    );
    check_result(
        r#"00000029 00000000 "0123456789abcdef" 00000003 00000000"#,
        41,
        Status::Ok,
        ResultBody::BindConnToSession(BindConnToSessionResult {
            session_id,
            direction: ChannelFromServer::Both,
            use_rdma: false,
        }),
    );
    check_op(
        r#"00000028 40000001 00000001 00000006 00000001 00000002 abcd 0000 00000000"#,
        &Op::BackchannelCtl(BackchannelCtlArgs {
            callback_program: 0x4000_0001,
            security: vec![CallbackSecurity::Gss(GssCallbackHandles {
                service: 1,
                from_server: &[0xab, 0xcd],
                from_client: &[],
            })],
        }),
    );
    check_op(
        r#"0000002c "0123456789abcdef""#,
        &Op::DestroySession(DestroySessionArgs { session_id }),
    );
    check_op(
        "00000039 0000000000000001",
        &Op::DestroyClientid(DestroyClientidArgs { client_id: 1 }),
    );
    check_op("0000003a 00000001", &Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: true }));
    check_op(
        &format!("0000002d {STATEID_TEXT}"),
        &Op::FreeStateid(FreeStateidArgs { stateid: STATEID }),
    );
    check_op(
        &format!("00000037 00000002 {STATEID_TEXT} {STATEID_TEXT}"),
        &Op::TestStateid(TestStateidArgs { stateids: vec![STATEID; 2] }),
    );
    check_result(
        "00000037 00000000 00000002 00000000 00002729",
        55,
        Status::Ok,
        ResultBody::TestStateid(TestStateidResult {
            statuses: vec![Status::Ok, Status::BadStateId],
        }),
    );
    check_op(
        "00000036 00000001 aa 000000 00000000",
        &Op::SetSsv(SetSsvArgs { ssv: &[0xaa], digest: &[] }),
    );
}

#[test]
fn the_kinds_of_state_ids_have_their_bytes() {
    check("00000000 00000000 00000000 00000000", &Stateid::ANONYMOUS);
    check("ffffffff ffffffff ffffffff ffffffff", &Stateid::READ_BYPASS);
    check("00000001 00000000 00000000 00000000", &Stateid::CURRENT);
    check("ffffffff 00000000 00000000 00000000", &Stateid::INVALID);
}
