//! Damaged messages cause an error or the end of their connection, and no other effect.

use crate::common::*;
use dafs_dat::sim::SimRng;
use dafs_service::ExportOptions;
use dafs_wire::dafs::{
    self, ByteOrder, DirectBuffer, FileHandle, Procedure, Request, RequestHeader, Seq,
    SessionOptions, StateId, Status, Verifier,
};

/// Returns a valid request of every procedure.
fn requests<'a>(
    root: FileHandle,
    file: File,
    path: &'a [&'a [u8]],
    buffers: &'a [DirectBuffer],
    batch: &'a [dafs::ReadWriteRequest<'a>],
) -> Vec<Request<'a>> {
    let File { fh, id: state_id } = file;
    let none = dafs::Attributes::default();
    let change = dafs::Attributes { mode: Some(0o640), owner: Some(b"7"), ..none };
    let mask = dafs::AttrMask::ALL;
    let check = dafs::CheckResponse {
        session_id: dafs::SessionId([1; 8]),
        stream_id: 1,
        seq_number: 2,
        procedure: Procedure::Open,
    };
    let lock_type = dafs::LockType::Read;
    let auth = text("anna", "secret");
    let options = SessionOptions::default();
    let verify = dafs::Verify { fh, attributes: change };
    let readdir = dafs::ReadDirInline {
        fh: root,
        cookie: 0,
        cookieverf: Verifier::default(),
        dircount: 100,
        maxcount: 1000,
        attributes: mask,
    };
    let mut open = open_request(root, path, b"owner");
    open.delete_disposition = dafs::DeleteDisposition::Deny;
    vec![
        Request::ClientAuth(dafs::ClientAuth { auth }),
        client_connect("name", 1, options),
        connect_auth("name", 1, options),
        Request::ConnectBind(dafs::ConnectBind { auth, ..bind_request(check.session_id) }),
        Request::Disconnect,
        Request::RegisterCred(dafs::RegisterCred {
            credential: dafs::Credential::Id { uid: 5, gid: 6, groups: Seq::new(&[7, 8]) },
        }),
        Request::ReleaseCred(dafs::CredHandleBody { cred_handle: dafs::CredHandle(1) }),
        Request::SecInfo,
        Request::ServerAuth(dafs::ServerAuth { auth_type: dafs::AuthType::Text }),
        Request::CheckResponse(check),
        Request::FetchResponse(check),
        Request::DiscardResponses(dafs::DiscardResponses { session_id: check.session_id }),
        Request::Access(dafs::Access { fh, mask: dafs::AccessMask::all() }),
        Request::CacheHint(dafs::CacheHint {
            fh,
            offset: 0,
            count: 10,
            access_pattern: dafs::AccessPattern::Random,
            cache_hint: dafs::HintWord::from_bits(0x7f),
        }),
        close(file),
        Request::Commit(dafs::Commit { fh, offset: 0, count: 0 }),
        create(root, b"link", dafs::NewObject::Symlink(b"there")),
        Request::DelegPurge,
        Request::DelegReturn(dafs::DelegReturn { state_id }),
        Request::GetFsAttr(dafs::GetFsAttr { fh, attributes: dafs::FsAttrMask::ALL }),
        Request::GetRootHandle,
        Request::GetAttrInline(dafs::GetAttrInline { fh, attributes: mask }),
        Request::GetAttrDirect(dafs::GetAttrDirect { fh, attributes: mask, buffer: buffers[0] }),
        Request::Link(dafs::Link { source: fh, target_dir: root, name: b"other" }),
        Request::Lock(dafs::Lock {
            fh,
            lock_type,
            options: dafs::LockOptions::empty(),
            state_id,
            offset: 0,
            length: 5,
        }),
        Request::LockT(dafs::LockT { fh, lock_type, owner: b"o", offset: 0, length: 5 }),
        Request::LockU(dafs::LockU { fh, lock_type, state_id, offset: 0, length: 5 }),
        lookup(root, path),
        Request::LookupP(dafs::LookupP { fh: root }),
        Request::Null,
        Request::NVerify(verify),
        Request::Open(open),
        downgrade(file, dafs::ShareAccess::Both, dafs::ShareDeny::None),
        Request::OpenAttr(dafs::OpenAttr { fh }),
        read_inline(file, 0, 50),
        read_direct(file, 0, 90, buffers),
        Request::ReadDirInline(readdir),
        Request::ReadDirDirect(dafs::ReadDirDirect {
            fh: root,
            cookie: 0,
            cookieverf: Verifier::default(),
            dircount: 100,
            maxcount: 1000,
            attributes: mask,
            buffers: Seq::new(buffers),
        }),
        Request::ReadLinkInline(dafs::ReadLinkInline { fh }),
        Request::ReadLinkDirect(dafs::ReadLinkDirect { fh, buffer: buffers[0] }),
        Request::XGetXattr(dafs::XGetXattr { fh, buffer: buffers[0], name: b"note" }),
        remove(root, b"other", true),
        rename(root, b"link", b"other"),
        set(file, change),
        Request::SetAttrDirect(dafs::SetAttrDirect {
            fh,
            state_id,
            direct_checksum: dafs::Checksum::ZERO,
            buffer: buffers[0],
        }),
        Request::Verify(verify),
        Request::BatchSubmit(dafs::BatchSubmit {
            requests: Seq::new(batch),
            usec_window: 0,
            num_completions: 0,
            synchronous: true,
        }),
        write_inline(file, 0, b"some data of a file"),
        Request::WriteDirect(write_direct(file, 0, 90, buffers)),
        Request::BcGetAttr(dafs::GetAttrInline { fh, attributes: mask }),
        Request::BcNull,
        Request::BcRecall(dafs::BcRecall { fh, state_id, truncate: false }),
        Request::BcBatchCompletion(dafs::BatchCompletions { completions: Seq::empty() }),
        append_inline(file, dafs::Stability::DataSync, b"tail"),
        Request::AppendDirect(append_direct(file, 10, buffers[0])),
        Request::GetFencingList(dafs::GetFencingList { fh }),
        Request::SetFencingList(dafs::SetFencingList {
            fh,
            object: dafs::FenceObject::File,
            access: dafs::FenceAccess::Allow,
            update: dafs::FenceUpdate::Overwrite,
            list: Seq::new(&[b"one", b"two"]),
        }),
        Request::HurryUp(dafs::HurryUp { request_id: 1 }),
        Request::XLayoutGet(dafs::XLayoutGet { fh, state_id, mode: dafs::LayoutMode::Read }),
        Request::XLayoutCommit(dafs::XLayoutCommit {
            fh,
            state_id,
            seqid: 1,
            reclaim: false,
            end: 10,
        }),
        Request::XLayoutReturn(dafs::XLayoutReturn {
            fh,
            state_id,
            seqid: 1,
            scope: dafs::LayoutScope::File,
            errors: Seq::new(&[dafs::LayoutError {
                device: [1; 16],
                status: Status::Io,
                writing: true,
            }]),
        }),
        Request::XNodeInfo(dafs::XNodeInfo { device: [1; 16] }),
        Request::XBcLayoutRecall(dafs::XBcLayoutRecall {
            fh,
            state_id,
            seqid: 1,
            scope: dafs::LayoutScope::All,
        }),
        Request::XExposeGet(dafs::XExposeGet {
            fh,
            state_id,
            window: 0,
            exposure: 0,
            windows: 1,
            known: 0,
            small: true,
        }),
        Request::XSeek(dafs::XSeek { fh, state_id, offset: 1, what: dafs::SeekWhat::Data }),
        Request::XCancel(dafs::XCancel { items: Seq::new(CANCELS) }),
        Request::XReclaimComplete,
    ]
}

/// A transfer and a request.
const CANCELS: &[dafs::CancelItem] = &[
    dafs::CancelItem { kind: dafs::CancelKind::Transfer, stream: 0, sequence: 0, request_id: 1 },
    dafs::CancelItem { kind: dafs::CancelKind::Request, stream: 1, sequence: 1, request_id: 0 },
];

fn put(message: &mut [u8], at: usize, value: u32, order: ByteOrder) {
    let bytes = match order {
        ByteOrder::Big => value.to_be_bytes(),
        ByteOrder::Little => value.to_le_bytes(),
    };
    message[at..at + 4].copy_from_slice(&bytes);
}

/// Damages a message. Most of the time the header still leads to the decoder of the body.
fn damage(message: &mut Vec<u8>, rng: &mut SimRng, order: ByteOrder) {
    let interesting = [0, 1, 2, 7, 8, 40, 0x7fff_ffff, 0x8000_0000, u32::MAX - 7, u32::MAX];
    for _ in 0..rng.between(1, 4) {
        let len = message.len() as u64;
        // The header alone has 40 bytes.
        let body = if len > 44 { 40 } else { 0 };
        match rng.below(8) {
            0 => {
                let at = rng.between(body, len - 1) as usize;
                message[at] = rng.bits() as u8;
            }
            1 | 2 if len >= body + 4 => {
                let at = (rng.between(body, len - 4) & !3) as usize;
                put(message, at, interesting[rng.below(10) as usize], order);
            }
            3 if len >= body + 4 => {
                let at = (rng.between(body, len - 4) & !3) as usize;
                put(message, at, rng.below(2 * len) as u32, order);
            }
            4 => message.truncate(rng.between(40.min(len), len) as usize),
            5 => message.extend((0..rng.between(1, 64)).map(|n| n as u8)),
            6 => {
                let number = rng.between(95, 170) as u32;
                put(message, 32, number, order);
            }
            _ => {
                let at = rng.below(len) as usize;
                message[at] ^= 1 << rng.below(8);
            }
        }
    }
    if !rng.chance(50_000) {
        let len = message.len() as u32;
        put(message, 36, len, order);
    }
}

/// Makes a session in the first export with a file of its own. It makes a new one where the old one
/// has ended.
fn victim(world: &mut World, client: Option<usize>, order: ByteOrder) -> (usize, FileHandle, File) {
    let client = match client {
        Some(client) => {
            let fresh = Client::connect(world.network.adapter(2), 1, order);
            world.clients[client] = fresh;
            client
        }
        None => world.connect_as(2, 1, order),
    };
    world.run_until("connection", |world| world.clients[client].established);
    let answer = world.call(client, &connect_auth("mutant", 1, SessionOptions::default()));
    assert_eq!(answer.status(), Status::Ok);
    let top = world.root();
    let dir = found(&world.call(client, &lookup(top, &[b"a"])));
    let request = open_request(dir, F, b"owner");
    // A mutant may have made another object with that name, or removed our access.
    let nowhere = File { fh: dir, id: StateId([0; 8]) };
    let file = world.open_with(client, &request).unwrap_or(nowhere);
    (client, dir, file)
}

#[test]
fn ten_thousand_damaged_messages_hurt_nobody_else() {
    let exports = vec![("a", ExportOptions::default()), ("b", ExportOptions::default())];
    let mut world = World::new(Setup { exports, ..Setup::default() });
    let honest = world.session(3, "honest");
    let path = [b"b".as_slice(), b"precious"];
    let request = open_request(world.root(), &path, b"owner");
    let precious = world.open_with(honest, &request).unwrap();
    let data = pattern(30_000, 1);
    world.write(honest, precious, 0, &data);
    let mut rng = SimRng::new(0x0bad_0bad);
    let mut client = None;
    let (mut sent, mut ended) = (0, 0);
    while sent < 10_000 {
        let order = if rng.chance(500_000) { ByteOrder::Big } else { ByteOrder::Little };
        let (index, root, file) = victim(&mut world, client, order);
        client = Some(index);
        let memory = world.clients[index].memory(4096);
        let buffers = [memory.direct(0, 100), memory.direct(100, 4)];
        let chunks =
            [dafs::FileChunk { offset: 0, byte_count: 10, cache_hint: dafs::HintWord::NONE }];
        let batch = [dafs::ReadWriteRequest {
            fh: file.fh,
            request_id: 1,
            state_id: file.id,
            rw_flag: dafs::ReadWrite::Read,
            chunks: Seq::new(&chunks),
            buffers: Seq::new(&buffers[..1]),
            direct_checksum: dafs::Checksum::ZERO,
        }];
        let path = [b"f".as_slice()];
        let samples = requests(root, file, &path, &buffers, &batch);
        assert_eq!(samples.len(), Procedure::ALL.len());
        while sent < 10_000 && world.clients[index].closed.is_none() {
            let request = &samples[rng.below(samples.len() as u64) as usize];
            let stream = rng.below(4) as u16;
            let header = world.clients[index].header(stream);
            let mut message = world.clients[index].encode(&header, request);
            damage(&mut message, &mut rng, order);
            world.clients[index].mark(stream, request.procedure());
            world.clients[index].send_raw(&message);
            sent += 1;
            world.settle();
            // Every mutant was answered, or the connection is over.
            let answered = world.clients[index].has_answer(stream);
            let stray = !world.clients[index].stray.is_empty();
            let over = world.clients[index].closed.is_some();
            assert!(answered || stray || over, "{} is not answered", request.procedure().name());
            world.clients[index].take_answer(stream);
            if stray {
                // It was answered on an unexpected stream, so the test begins again.
                break;
            }
            if sent % 100 == 0 {
                assert_eq!(world.status(honest, &Request::Null), Status::Ok);
            }
        }
        ended += 1;
    }
    assert!(ended < 9000, "most messages should reach the decoders: {ended}");
    let sessions = world.counts().sessions;
    assert!(sessions <= 2, "{sessions}");
    let index = client.unwrap();
    world.clients.swap_remove(index);
    world.settle();
    let counts = world.counts();
    assert_eq!((counts.connections, counts.pending, counts.chunks), (1, 0, 0));
    assert_eq!((counts.replies, counts.credits), (0, 8));
    let regions = world.network.region_count(SERVER);
    assert!(regions < 20, "{regions} regions are left");
    let honest = world.clients.len() - 1;
    assert!(world.read(honest, precious) == data);
    world.end();
}

/// A fault in the frame of a message ends the session (DAFS O15, O64).
#[test]
fn a_wrong_frame_ends_the_session() {
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage); 8] = [
        ("empty", |message| message.clear()),
        ("one byte", |message| message.truncate(1)),
        ("half a header", |message| message.truncate(39)),
        ("magic", |message| message[0] ^= 1),
        ("magic of the other order", |message| message[..4].reverse()),
        ("a reply", |message| message[0] = 0x52),
        ("longer than it says", |message| message.push(0)),
        ("shorter than it says", |message| message[36] += 1),
    ];
    let mut world = World::new(Setup::default());
    let honest = world.session(3, "honest");
    for (what, damage) in cases {
        let client = world.session(2, "a");
        let header = world.clients[client].header(0);
        let mut message = world.clients[client].encode(&header, &Request::Null);
        damage(&mut message);
        world.clients[client].send_raw(&message);
        world.settle();
        assert!(world.clients[client].closed.is_some(), "{what}");
        assert!(world.clients[client].stray.is_empty(), "{what}");
        // The same as a first message.
        let client = world.connect(2);
        let header = world.clients[client].header(0);
        let request = connect_auth("a", 1, SessionOptions::default());
        let mut message = world.clients[client].encode(&header, &request);
        damage(&mut message);
        world.clients[client].send_raw(&message);
        world.settle();
        assert!(world.clients[client].closed.is_some(), "{what}, first");
    }
    // Longer than the negotiated size, or than a first message may be.
    for first in [true, false] {
        let client = if first { world.connect(2) } else { world.session(2, "a") };
        world.clients[client].send_raw(&vec![0; if first { 4097 } else { 16_385 }]);
        world.settle();
        assert!(world.clients[client].closed.is_some());
    }
    assert_eq!(world.status(honest, &Request::Null), Status::Ok);
    assert_eq!(world.counts().connections, 1);
    world.end();
}

/// A fault in the body is answered with INVAL, and the session goes on (DAFS O8).
#[test]
fn a_wrong_body_is_answered() {
    let (mut world, client) = World::with_session(Setup::default());
    let root = world.root();
    let name = [b"f".as_slice()];
    let lookup = Request::Lookup(dafs::Lookup { dir: root, path: dafs::Path::new(&name) });
    let access = Request::Open(open_request(root, &name, b"o"));
    let order = world.clients[client].order;
    // (request, position in the body, value)
    let cases = [
        (&lookup, 64, u32::MAX, "offset outside"),
        (&lookup, 64, 75, "offset misaligned"),
        (&lookup, 64, 4000, "offset behind the end"),
        (&lookup, 72, u32::MAX, "count"),
        (&lookup, 80, u32::MAX, "string length"),
        (&access, 0, 9, "claim"),
        (&access, 120, 0, "no access"),
        (&access, 120, 4, "access"),
        (&access, 124, 4, "deny"),
        (&access, 128, 1, "share key"),
        (&access, 128, 2, "share key"),
        (&access, 128, 4, "strictness without a share key"),
        (&access, 128, 8, "share key"),
        (&access, 128, u32::MAX, "share key"),
        (&access, 112, 2, "disposition"),
        (&access, 96, 3, "create mode"),
    ];
    for (request, at, value, what) in cases {
        let header = world.clients[client].header(0);
        let mut message = world.clients[client].encode(&header, request);
        put(&mut message, 40 + at, value, order);
        world.clients[client].mark(0, request.procedure());
        world.clients[client].send_raw(&message);
        let answer = world.wait(client, 0).unwrap_or_else(|| panic!("{what}"));
        assert_eq!(answer.status(), Status::Inval, "{what}");
    }
    // A body that ends early.
    for cut in [40, 50, 103, 111] {
        let header = world.clients[client].header(0);
        let mut message = world.clients[client].encode(&header, &lookup);
        message.truncate(cut);
        put(&mut message, 36, cut as u32, order);
        world.clients[client].mark(0, Procedure::Lookup);
        world.clients[client].send_raw(&message);
        assert_eq!(world.wait(client, 0).unwrap().status(), Status::Inval, "cut at {cut}");
    }
    // Numbers without a procedure.
    for number in [0, 99, 107, 120, 121, 154, 171, u32::MAX] {
        let header: RequestHeader = world.clients[client].header(0);
        let mut message = world.clients[client].encode(&header, &Request::Null);
        put(&mut message, 32, number, order);
        world.clients[client].mark(0, Procedure::Null);
        world.clients[client].send_raw(&message);
        assert_eq!(world.wait(client, 0).unwrap().status(), Status::NotSupp, "{number}");
    }
    assert_eq!(world.service.counts().opens, 0);
    world.end();
}
