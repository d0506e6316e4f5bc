//! Sessions, locks, fences and errors.

use super::layout::*;
use dafs_wire::dafs::*;

#[test]
fn null_with_its_checksum() {
    #[rustfmt::skip]
    let big = [
        0x44, 0x41, 0x46, 0x53, 0, 0, 0, 1, 0, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        0xa3, 0xad, 0x8c, 0x4b, 0, 0, 0, 0, 0, 0, 0, 132, 0, 0, 0, 40,
    ];
    #[rustfmt::skip]
    let little = [
        0x53, 0x46, 0x41, 0x44, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0x6c, 0xa6, 0x4b, 0x8c, 0, 0, 0, 0, 132, 0, 0, 0, 40, 0, 0, 0,
    ];
    for (order, expected) in [(ByteOrder::Big, big), (ByteOrder::Little, little)] {
        let header = RequestHeader { desired_nreq: 8, seq_number: 1, ..RequestHeader::default() };
        let mut out = [0xff; 40];
        assert_eq!(encode_request(&mut out, order, &header, &Request::Null), Ok(40));
        seal(&mut out);
        assert_eq!(out, expected);
        assert!(verify(&expected));
        assert_eq!(peek_order(&expected), Some(order));
        let (found, request) = decode_request(&expected, order, 0).unwrap();
        assert_eq!(request, Request::Null);
        assert_eq!(found.message_checksum.0, expected[24..28]);
        check_reply(&Layout::reply(order, 0, 40), Reply::Null);
    }
}

const OPTIONS: SessionOptions = SessionOptions {
    use_checksums: true,
    use_response_cache: false,
    max_credentials: 16,
    max_request_size: 8192,
    max_response_size: 4096,
    max_requests: 64,
    inline_write_header_size: 512,
    use_back_control_channel: true,
    use_rdma_read_channel: false,
};

fn put_options(layout: &mut Layout, at: usize) {
    layout.u32(at, 1).u32(at + 4, 0).u32(at + 8, 16).u32(at + 12, 8192).u32(at + 16, 4096);
    layout.u32(at + 20, 64).u32(at + 24, 512).u32(at + 28, 1).u32(at + 32, 0);
}

#[test]
fn client_connect() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 101, 40 + 56 + 16 + 10);
        put_options(&mut layout, 40);
        layout.u32(76, 56).u32(80, 72).raw(88, b"verifier");
        layout.string(96, b"node1").string(112, b"client");
        check_request(
            &layout,
            Request::ClientConnect(ClientConnect {
                options: OPTIONS,
                fence_id: b"node1",
                client_id_string: b"client",
                client_verifier: Verifier(*b"verifier"),
            }),
        );
        let mut layout = Layout::reply(order, 0, 96);
        layout.raw(40, b"session!").raw(48, b"clientid");
        put_options(&mut layout, 56);
        check_reply(
            &layout,
            Reply::ClientConnect(ClientConnectReply {
                session_id: SessionId(*b"session!"),
                client_id: ClientId(*b"clientid"),
                options: OPTIONS,
            }),
        );
    }
}

#[test]
fn client_connect_auth() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 102, 40 + 72 + 16 + 16 + 16 + 6);
        put_options(&mut layout, 40);
        layout.u32(76, 72).u32(80, 88).raw(88, b"verifier");
        layout.u32(96, 1).u32(100, 104).u32(104, 120);
        layout.string(112, b"node1").string(128, b"client");
        layout.string(144, b"alice").string(160, b"pw");
        check_request(
            &layout,
            Request::ClientConnectAuth(ClientConnectAuth {
                options: OPTIONS,
                fence_id: b"node1",
                client_id_string: b"client",
                client_verifier: Verifier(*b"verifier"),
                auth: AuthRequest::Text { id: b"alice", password: b"pw" },
            }),
        );
        // With GSS the same body also occurs with a status that is not OK (DAFS O13).
        let mut layout = Layout::reply(order, 15011, 40 + 72 + 7);
        layout.raw(40, b"session!").raw(48, b"clientid");
        put_options(&mut layout, 56);
        layout.u32(92, 2).u32(96, 5).u32(100, 6).u32(104, 72).raw(108, &[1]).string(112, b"tok");
        let body = ClientConnectAuthReply {
            session_id: SessionId(*b"session!"),
            client_id: ClientId(*b"clientid"),
            options: OPTIONS,
            auth: AuthResult::Gss { major: 5, minor: 6, token: b"tok" },
            trusted: true,
        };
        let procedure = Procedure::ClientConnectAuth;
        let continued = ErrorBody::ClientConnectAuth(body);
        check_error(&layout, procedure, Status::GssContinueInit, continued);
        layout.u32(28, 0);
        check_reply(&layout, Reply::ClientConnectAuth(body));
    }
}

#[test]
fn fencing_list() {
    for order in ORDERS {
        // Array at 120: count, two offsets counted from 120, strings at 136 and 152.
        let mut layout = Layout::request(order, 159, 40 + 80 + 16 + 16 + 9);
        layout.handle(40, FILE).u32(104, 2).u32(108, 1).u32(112, 3).u32(116, 80);
        layout.u32(120, 2).u32(124, 16).u32(128, 32);
        layout.string(136, b"node1").string(152, b"node2");
        check_request(
            &layout,
            Request::SetFencingList(SetFencingList {
                fh: FILE,
                object: FenceObject::FileSystem,
                access: FenceAccess::Allow,
                update: FenceUpdate::Remove,
                list: Seq::new(&[b"node1", b"node2"]),
            }),
        );
    }
}

#[test]
fn errors_with_bodies_and_without() {
    for order in ORDERS {
        let mut layout = Layout::reply(order, 10010, 40 + 40 + 6);
        layout.raw(40, b"clientid").u32(48, 40).u64(56, 100).u64(64, u64::MAX).u32(72, 2);
        layout.string(80, b"me");
        let holder = LockHolder {
            client_id: ClientId(*b"clientid"),
            owner: b"me",
            offset: 100,
            length: u64::MAX,
            lock_type: LockType::Write,
        };
        let body = ErrorBody::LockHolder(holder);
        check_error(&layout, Procedure::Lock, Status::Denied, body);
        check_error(&layout, Procedure::LockT, Status::Denied, body);
        layout.u32(28, 15021);
        check_error(&layout, Procedure::Lock, Status::LockBroken, body);

        let mut layout = Layout::reply(order, 1, 48);
        layout.u64(40, 0x20);
        let set = ErrorBody::SetAttr(SetAttrReply { attributes: AttrMask::MODE });
        check_error(&layout, Procedure::SetAttrInline, Status::Perm, set);

        let layout = Layout::reply(order, 70, 40);
        check_error(&layout, Procedure::ReadDirect, Status::Stale, ErrorBody::None);
        let layout = Layout::reply(order, 12345, 40);
        check_error(&layout, Procedure::Null, Status::Unknown(12345), ErrorBody::None);
        // A lock granted is 40 zero bytes, or none (DAFS O14).
        check_reply(&Layout::reply(order, 0, 80), Reply::Lock);
        let empty = Layout::reply(order, 0, 40);
        let (_, outcome) = decode_response(&empty.bytes, order, Procedure::LockT).unwrap();
        assert_eq!(outcome, Outcome::Ok(Reply::LockT));
    }
}
