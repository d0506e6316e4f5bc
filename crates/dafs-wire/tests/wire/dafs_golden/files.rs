//! Names, opens, data, attributes and directories.

use super::layout::*;
use dafs_wire::dafs::*;

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
        // The header alone: the server has no more information.
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
                share_key: ShareKey::Both(0x0102_0304_0506_0708),
            }),
        );
        for (kind, share_key) in
            [(0, ShareKey::None), (3, ShareKey::Both(u64::MAX)), (7, ShareKey::XStrict(u64::MAX))]
        {
            let mut layout = Layout::request(order, 135, 136);
            layout.handle(40, FILE).raw(104, b"state-id").u32(112, 1).u32(120, kind);
            layout.u64(128, if kind == 0 { 0 } else { u64::MAX });
            check_request(
                &layout,
                Request::OpenDowngrade(OpenDowngrade {
                    fh: FILE,
                    state_id: StateId(*b"state-id"),
                    share_access: ShareAccess::Read,
                    share_deny: ShareDeny::None,
                    share_key,
                }),
            );
        }
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
                cache_hint: HintWord::from_bits(8),
            }),
        );
        let mut layout = Layout::reply(order, 0, 48 + 5);
        layout.u32(40, 1).u32(44, 5).raw(48, b"hello");
        let reply = ReadInlineReply { eof: true, data: b"hello" };
        check_reply(&layout, Reply::ReadInline(reply));
        assert_eq!(ReadInlineReply::decode_body(&layout.bytes[40..], order), Ok(reply));
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
                cache_hint: HintWord::from_bits(0),
                buffers: Seq::new(&[BUFFER]),
            }),
        );
        let mut layout = Layout::reply(order, 0, 56);
        layout.u32(40, 0).u32(44, 65536).raw(48, &[1, 2, 3, 4]);
        let reply = ReadDirectReply {
            eof: false,
            bytes_read: 65536,
            direct_checksum: Checksum([1, 2, 3, 4]),
        };
        check_reply(&layout, Reply::ReadDirect(reply));
        assert_eq!(ReadDirectReply::decode_body(&layout.bytes[40..], order), Ok(reply));
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
            cache_hint: HintWord::from_bits(9),
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
                cache_hint: HintWord::from_bits(4),
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
                cache_hint: HintWord::from_bits(4),
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
fn extended_attributes() {
    for order in ORDERS {
        let mut layout = Layout::request(order, 167, 40 + 88 + 4 + 3);
        layout.handle(40, FILE).u64(104, 0x7fff_0000_1000).u32(112, 65536);
        layout.u32(116, 0x1234_5678).u32(120, 88).string(128, b"a/b");
        let get = XGetXattr { fh: FILE, buffer: BUFFER, name: b"a/b" };
        check_request(&layout, Request::XGetXattr(get));

        // The block of a SETATTR: name, value, and effect.
        let mut layout = Layout::reply(order, 0, 40 + 8 + 28 + 4 + 12 + 3);
        let valid = 0b111 << 48;
        layout.u32(40, 8).u64(48, valid).u64(56, valid).u32(64, 32).u32(68, 40).u32(72, 2);
        layout.string(80, b"n").string(88, b"one");
        let attributes = Attributes {
            included: AttrMask(valid),
            x_xattr_name: Some(b"n"),
            x_xattr_value: Some(b"one"),
            x_xattr_how: Some(XattrHow::Create),
            ..Attributes::default()
        };
        check_reply(&layout, Reply::GetAttrInline(GetAttrInlineReply { attributes }));
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
        // Array at 56: 8 + 2 * 16; then blocks and names, counted from 56.
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

/// The same entries from the writer, which fills the heap from the back.
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
        let chunks =
            [FileChunk { offset: 1 << 20, byte_count: 65536, cache_hint: HintWord::from_bits(8) }];
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
