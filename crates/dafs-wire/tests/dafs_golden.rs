//! DAFS messages laid out by hand from the tables of DAFS 5 and 6, byte by byte, in both orders.
//!
//! Positions count from the start of the message, so a field at n of a fixed section is at 40 + n.

#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

use dafs_wire::dafs::*;

const ORDERS: [ByteOrder; 2] = [ByteOrder::Big, ByteOrder::Little];
const DIR: FileHandle = FileHandle { fs: [0x11; 16], file: [0x22; 48] };
const FILE: FileHandle = FileHandle { fs: [0x11; 16], file: [0x33; 48] };
const PADDING: u32 = 256;

/// A message that is written by position.
struct Layout {
    bytes: Vec<u8>,
    order: ByteOrder,
}

impl Layout {
    /// A request as `header()` makes it, all zero behind the header.
    fn request(order: ByteOrder, procedure: u32, bytes: usize) -> Self {
        let mut layout = Self { bytes: vec![0; bytes], order };
        layout.u32(0, 0x4441_4653).u32(4, 1).u16(8, 8).u16(10, 0x0a).u16(12, 3).u16(14, 0x0102);
        layout.raw(16, b"analyzer").raw(28, &[0, 0, 0, 7]);
        layout.u32(32, procedure).u32(36, bytes as u32);
        layout
    }

    /// A reply to it.
    fn reply(order: ByteOrder, status: u32, bytes: usize) -> Self {
        let mut layout = Self { bytes: vec![0; bytes], order };
        layout.u32(0, 0x4441_4652).u32(4, 1).u16(8, 64).u16(10, 0).u16(12, 3).u16(14, 0x0102);
        layout.raw(16, b"analyzer").u32(28, status).u32(32, bytes as u32);
        layout
    }

    fn raw(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u16(&mut self, at: usize, value: u16) -> &mut Self {
        let bytes = match self.order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        };
        self.raw(at, &bytes)
    }

    fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        let bytes = match self.order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        };
        self.raw(at, &bytes)
    }

    fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        let bytes = match self.order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        };
        self.raw(at, &bytes)
    }

    /// A string: count and octets.
    fn string(&mut self, at: usize, text: &[u8]) -> &mut Self {
        self.u32(at, text.len() as u32).raw(at + 4, text)
    }

    fn handle(&mut self, at: usize, handle: FileHandle) -> &mut Self {
        self.raw(at, &handle.fs).raw(at + 16, &handle.file)
    }

    /// A direct_op_buffer.
    fn buffer(&mut self, at: usize, buffer: DirectBuffer) -> &mut Self {
        self.u64(at, buffer.address).u32(at + 8, buffer.byte_count).u32(at + 12, buffer.context)
    }
}

fn header() -> RequestHeader {
    RequestHeader {
        desired_nreq: 8,
        chain_flags: ChainFlags::BACK | ChainFlags::FH,
        stream_id: 3,
        seq_number: 0x0102,
        analyzer: Analyzer(*b"analyzer"),
        cred_handle: CredHandle(7),
        ..RequestHeader::default()
    }
}

/// The request encodes to the layout, and the layout decodes to the request.
fn check_request(layout: &Layout, request: Request<'_>) {
    let mut out = vec![0xff; 4096];
    let bytes = encode_request(&mut out, layout.order, &header(), &request).unwrap();
    assert_bytes(&out[..bytes], &layout.bytes);
    let (found, decoded) = decode_request(&layout.bytes, layout.order, PADDING).unwrap();
    assert_eq!(found.chain_flags, header().chain_flags);
    assert_eq!(found.request_len as usize, layout.bytes.len());
    assert_eq!(decoded, request);
}

fn check_reply(layout: &Layout, reply: Reply<'_>) {
    let mut out = vec![0xff; 4096];
    let answer = ResponseHeader::answering(&header(), 64);
    let bytes = encode_response(&mut out, layout.order, &answer, &reply).unwrap();
    assert_bytes(&out[..bytes], &layout.bytes);
    let (found, outcome) = decode_response(&layout.bytes, layout.order, reply.procedure()).unwrap();
    assert_eq!((found.target_nreq, found.status), (64, Status::Ok));
    assert_eq!(outcome, Outcome::Ok(reply));
}

fn check_error(layout: &Layout, procedure: Procedure, status: Status, body: ErrorBody<'_>) {
    let mut out = vec![0xff; 4096];
    let answer = ResponseHeader::answering(&header(), 64).with_status(status);
    let bytes = encode_error(&mut out, layout.order, &answer, procedure, &body).unwrap();
    assert_bytes(&out[..bytes], &layout.bytes);
    let (_, outcome) = decode_response(&layout.bytes, layout.order, procedure).unwrap();
    assert_eq!(outcome, Outcome::Error { status, body });
}

#[track_caller]
fn assert_bytes(found: &[u8], expected: &[u8]) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        panic!("byte {at}: {:02x?}, expected {:02x?}", &found[at..], &expected[at..]);
    }
    assert_eq!(found.len(), expected.len(), "length");
}

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
        // With GSS the same body also comes with a status that is not OK (DAFS O13).
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
fn lookup() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 130, 40 + 72 + 8 + 8 + 9);
        layout.handle(40, DIR).u32(104, 72);
        layout.u32(112, 2).string(120, b"usr").string(128, b"l\xffb64");
        let path = Path::new(&[b"usr", b"l\xffb64"]);
        check_request(&layout, Request::Lookup(Lookup { dir: DIR, path }));

        let mut layout = Layout::reply(order, 0, 112);
        layout.handle(40, FILE).u32(104, 2);
        check_reply(&layout, Reply::Lookup(LookupReply { fh: FILE, component_count: 2 }));

        let mut layout = Layout::reply(order, 2, 112);
        layout.handle(40, DIR).u32(104, 1);
        let walked = LookupReply { fh: DIR, component_count: 1 };
        check_error(&layout, Procedure::Lookup, Status::NoEnt, ErrorBody::Walked(walked));
        // Header alone: the server knows nothing more.
        check_error(
            &Layout::reply(order, 2, 40),
            Procedure::Lookup,
            Status::NoEnt,
            ErrorBody::None,
        );
    }
}

#[test]
fn open() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 134, 40 + 144 + 16 + 24 + 7);
        layout.handle(48, DIR).u32(112, 144); // claim NULL; path
        layout.u32(128, 1).u32(136, 1).u32(144, 160); // CREATE, GUARDED, attributes
        layout.u32(152, 1).u32(156, 184).u32(160, 3).u32(164, 2); // dispositions, owner, share
        layout.u32(168, 3).u64(176, 0x0102_0304_0506_0708);
        layout.u32(184, 1).string(192, b"f"); // path
        layout.u64(200, 0x20).u64(208, 0x20).u32(216, 0o640); // attribute 6: mode
        layout.string(224, b"own");
        let attributes =
            Attributes { included: AttrMask::MODE, mode: Some(0o640), ..Default::default() };
        check_request(
            &layout,
            Request::Open(Open {
                claim: OpenClaim::Null { dir: DIR, path: Path::new(&[b"f"]) },
                create: Some(CreateMode::Guarded { attributes }),
                delete_disposition: DeleteDisposition::Deny,
                owner: b"own",
                share_access: ShareAccess::Both,
                share_deny: ShareDeny::Write,
                share_key: ShareKey(Some(0x0102_0304_0506_0708)),
            }),
        );
        open_reply(order);

        let mut layout = Layout::reply(order, 10029, 192);
        layout.handle(40, DIR).u32(136, 2);
        let walked = LookupReply { fh: DIR, component_count: 2 };
        check_error(&layout, Procedure::Open, Status::Symlink, ErrorBody::Walked(walked));
    }
}

fn open_reply(order: ByteOrder) {
    let mut layout = Layout::reply(order, 0, 40 + 152 + 10);
    layout.handle(40, FILE).raw(104, b"state-id");
    layout.u64(112, 5).u64(120, 6).u32(128, 1).u32(136, 1).u32(140, 1);
    layout.u32(144, 2).raw(152, b"deleg-id").u32(160, 1).u32(164, 1).u64(168, 1 << 40);
    layout.u32(176, 4).u32(180, 0x40).u32(184, 3).u32(188, 152).string(192, b"OWNER@");
    check_reply(
        &layout,
        Reply::Open(OpenReply {
            fh: FILE,
            state_id: StateId(*b"state-id"),
            change: ChangeInfo { before: 5, after: 6, atomic: true },
            component_count: 1,
            result_flags: OpenResultFlags::MLOCK,
            delegation: Delegation::Write {
                state_id: StateId(*b"deleg-id"),
                recall: true,
                space_limit: SpaceLimit::Size(1 << 40),
                permissions: Ace {
                    ace_type: AceType::Alarm,
                    flag: 0x40,
                    access_mask: 3,
                    who: b"OWNER@",
                },
            },
        }),
    );
}

#[test]
fn read_inline() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 137, 128);
        layout.handle(40, FILE).raw(104, b"state-id").u64(112, 1 << 33).u32(120, 4096).u32(124, 8);
        check_request(
            &layout,
            Request::ReadInline(ReadInline {
                fh: FILE,
                state_id: StateId(*b"state-id"),
                offset: 1 << 33,
                byte_count: 4096,
                cache_hint: 8,
            }),
        );
        let mut layout = Layout::reply(order, 0, 48 + 5);
        layout.u32(40, 1).u32(44, 5).raw(48, b"hello");
        check_reply(&layout, Reply::ReadInline(ReadInlineReply { eof: true, data: b"hello" }));
    }
}

const BUFFER: DirectBuffer =
    DirectBuffer { address: 0x7fff_0000_1000, byte_count: 65536, context: 0x1234_5678 };

#[test]
fn read_direct() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 138, 160);
        layout.handle(40, FILE).u64(112, 7).u32(120, 65536).u32(128, 96);
        layout.u32(136, 1).buffer(144, BUFFER);
        check_request(
            &layout,
            Request::ReadDirect(ReadDirect {
                fh: FILE,
                state_id: StateId::ZERO,
                offset: 7,
                byte_count: 65536,
                cache_hint: 0,
                buffers: Seq::new(&[BUFFER]),
            }),
        );
        let mut layout = Layout::reply(order, 0, 56);
        layout.u32(40, 0).u32(44, 65536).raw(48, &[1, 2, 3, 4]);
        check_reply(
            &layout,
            Reply::ReadDirect(ReadDirectReply {
                eof: false,
                bytes_read: 65536,
                direct_checksum: Checksum([1, 2, 3, 4]),
            }),
        );
    }
}

#[test]
fn write_inline_padded_and_not() {
    for order in ORDERS {
        let mut request = WriteInline {
            fh: FILE,
            state_id: StateId(*b"state-id"),
            offset: 0x0102_0304_0506_0708,
            stable: Stability::FileSync,
            padded_to: None,
            cache_hint: 9,
            data: b"twelve bytes",
        };
        let put = |layout: &mut Layout| {
            layout.handle(40, FILE).raw(104, b"state-id").u64(112, 0x0102_0304_0506_0708);
            layout.u32(120, 12).u32(124, 2).u32(132, 9);
        };
        let mut layout = Layout::request(order, 149, 136 + 12);
        put(&mut layout);
        layout.raw(136, b"twelve bytes");
        check_request(&layout, Request::WriteInline(request));

        request.padded_to = Some(PADDING);
        let mut layout = Layout::request(order, 149, 256 + 12);
        put(&mut layout);
        layout.u32(128, 1).raw(256, b"twelve bytes");
        check_request(&layout, Request::WriteInline(request));
        assert_eq!(
            decode_request(&layout.bytes, order, 0),
            Err(DecodeError::PaddingNotAgreed),
            "the session has no inline_write_header_size"
        );
        let mut layout = Layout::reply(order, 0, 56);
        layout.u32(40, 12).u32(44, 2).raw(48, b"verifier");
        let reply = WriteReply {
            count: 12,
            committed: Stability::FileSync,
            verifier: Verifier(*b"verifier"),
        };
        check_reply(&layout, Reply::WriteInline(reply));
    }
}

#[test]
fn write_and_append_direct() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 150, 168);
        layout.handle(40, FILE).u64(112, 3).u32(120, 65536).u32(124, 1).u32(128, 4);
        layout.raw(132, &[9, 8, 7, 6]).u32(136, 104).u32(144, 1).buffer(152, BUFFER);
        check_request(
            &layout,
            Request::WriteDirect(WriteDirect {
                fh: FILE,
                state_id: StateId::ZERO,
                offset: 3,
                byte_count: 65536,
                stable: Stability::DataSync,
                cache_hint: 4,
                direct_checksum: Checksum([9, 8, 7, 6]),
                buffers: Seq::new(&[BUFFER]),
            }),
        );
        let mut layout = Layout::request(order, 157, 144);
        layout.handle(40, FILE).u32(112, 1).u32(116, 65536).u32(120, 4).raw(124, &[9, 8, 7, 6]);
        layout.buffer(128, BUFFER);
        check_request(
            &layout,
            Request::AppendDirect(AppendDirect {
                fh: FILE,
                state_id: StateId::ZERO,
                stable: Stability::DataSync,
                byte_count: 65536,
                cache_hint: 4,
                direct_checksum: Checksum([9, 8, 7, 6]),
                buffer: BUFFER,
            }),
        );
    }
}

fn sample_attributes() -> Attributes<'static> {
    Attributes {
        // Attribute 7, the number of links, is included without a value.
        included: AttrMask(0x0082_0171),
        named_attr: Some(true),
        object_type: Some(ObjectType::Directory),
        mode: Some(0o755),
        object_size: Some(4096),
        time_modify: Some(Time { seconds: -2, nseconds: 5 }),
        owner: Some(b"alice"),
        ..Attributes::default()
    }
}

/// The block of `sample_attributes` at `at`, 73 bytes long.
fn put_sample(layout: &mut Layout, at: usize) {
    let valid = 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 17 | 1 << 23;
    layout.u64(at, valid | 1 << 6).u64(at + 8, valid);
    layout.raw(at + 16, &[1]).u32(at + 20, 2).u32(at + 24, 0o755);
    layout.u64(at + 32, 4096).u64(at + 40, (-2i64).cast_unsigned()).u32(at + 48, 5);
    layout.u32(at + 56, 64).string(at + 64, b"alice");
}

#[test]
fn getattr_inline() {
    let sample = sample_attributes();
    for order in ORDERS {
        let mut layout = Layout::request(order, 124, 112);
        layout.handle(40, FILE).u64(104, 0x0082_0171);
        let wanted = GetAttrInline { fh: FILE, attributes: AttrMask(0x0082_0171) };
        check_request(&layout, Request::GetAttrInline(wanted));

        let mut layout = Layout::reply(order, 0, 40 + 8 + 73);
        layout.u32(40, 8);
        put_sample(&mut layout, 48);
        let reply = GetAttrInlineReply { attributes: sample };
        check_reply(&layout, Reply::GetAttrInline(reply));

        // The direct form is the bare block.
        let mut out = [0xff; 73];
        assert_eq!(sample.encode_direct(&mut out, order), Ok(73));
        assert_bytes(&out, &layout.bytes[48..]);
    }
}

#[test]
fn readdir_inline() {
    let sample = sample_attributes();
    for order in ORDERS {
        let mut layout = Layout::request(order, 139, 136);
        layout.handle(40, DIR).u64(104, 9).raw(112, b"verifier").u32(120, 100).u32(124, 4000);
        layout.u64(128, 0x21);
        check_request(
            &layout,
            Request::ReadDirInline(ReadDirInline {
                fh: DIR,
                cookie: 9,
                cookieverf: Verifier(*b"verifier"),
                dircount: 100,
                maxcount: 4000,
                attributes: AttrMask::NAMED_ATTR | AttrMask::MODE,
            }),
        );
        // Array at 56: 8 + 2 * 16; blocks and names behind, counted from 56.
        let mut layout = Layout::reply(order, 0, 56 + 40 + 80 + 8 + 16 + 5);
        layout.raw(40, b"verifier").u32(48, 1).u32(52, 16);
        layout.u32(56, 2);
        layout.u64(64, 10).u32(72, 40).u32(76, 120);
        layout.u64(80, 11).u32(88, 128).u32(92, 144);
        put_sample(&mut layout, 96);
        layout.string(176, b"dir").string(200, b"\xfe");
        let entries = [
            DirEntry { cookie: 10, attributes: sample, name: b"dir" },
            DirEntry { cookie: 11, attributes: Attributes::default(), name: b"\xfe" },
        ];
        check_reply(
            &layout,
            Reply::ReadDirInline(ReadDirInlineReply {
                cookieverf: Verifier(*b"verifier"),
                eof: true,
                entries: Seq::new(&entries),
            }),
        );
        readdir_streamed(order, &entries, sample);
    }
}

/// The same entries by the writer, whose heap is filled from the back.
fn readdir_streamed(order: ByteOrder, entries: &[DirEntry<'_>], sample: Attributes<'_>) {
    let mut layout = Layout { bytes: vec![0; 40 + 24 + 80 + 7], order };
    layout.u32(0, 2);
    layout.u64(8, 10).u32(16, 64).u32(20, 144);
    layout.u64(24, 11).u32(32, 40).u32(36, 56);
    layout.string(56, b"\xfe");
    put_sample(&mut layout, 64);
    layout.string(144, b"dir");
    let mut area = [0xff; 1000];
    let mut writer = DirEntriesWriter::new(&mut area, order).unwrap();
    assert!(entries.iter().all(|entry| writer.push(entry)));
    let length = writer.finish().unwrap();
    assert_bytes(&area[..length.bytes], &layout.bytes);
    assert_eq!(sample, entries[0].attributes);
}

#[test]
fn batch_submit() {
    for order in ORDERS {
        // Array at 56 with one element of 96 at 64; its lists at 160 and 184, counted from 56.
        let mut layout = Layout::request(order, 148, 40 + 16 + 8 + 96 + 24 + 24);
        layout.u32(40, 16).u32(44, 500).u32(48, 2).raw(52, &[1]);
        layout.u32(56, 1).handle(64, FILE).u64(128, 77).raw(136, b"state-id").u32(144, 2);
        layout.u32(148, 104).u32(152, 128).raw(156, &[4, 3, 2, 1]);
        layout.u32(160, 1).u64(168, 1 << 20).u32(176, 65536).u32(180, 8);
        layout.u32(184, 1).buffer(192, BUFFER);
        let chunks = [FileChunk { offset: 1 << 20, byte_count: 65536, cache_hint: 8 }];
        let requests = [ReadWriteRequest {
            fh: FILE,
            request_id: 77,
            state_id: StateId(*b"state-id"),
            rw_flag: ReadWrite::Write,
            chunks: Seq::new(&chunks),
            buffers: Seq::new(&[BUFFER]),
            direct_checksum: Checksum([4, 3, 2, 1]),
        }];
        check_request(
            &layout,
            Request::BatchSubmit(BatchSubmit {
                requests: Seq::new(&requests),
                usec_window: 500,
                num_completions: 2,
                synchronous: true,
            }),
        );
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
