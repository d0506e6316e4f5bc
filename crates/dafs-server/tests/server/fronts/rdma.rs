//! The same operations over TCP, iWARP and shared memory: the transport only changes the path of
//! the data.

use super::harness::{Served, existing, open_wanting};
use crate::common::encoded;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{Address, shm_socket_name};
use dafs_mem::Site;
use dafs_nfs_client::{
    Compound, Connection, Handle, Identity, OpenFile, Options, Session, connect_over, patiently,
};
use dafs_rpc::client::{
    CallError, Memory, Options as RpcOptions, Port, Procedure as RpcProcedure, Request, Results,
    SendData,
};
use dafs_rpc::{AcceptStatus, AuthStatus, RejectStatus};
use dafs_service::AddressRange;
use dafs_wire::mount3;
use dafs_wire::nfs3::{
    self, FileHandle, GetattrArgs, Procedure, ReadArgs, ReadOk, ReadlinkOk, Stability, WriteArgs,
    WriteOk,
};
use dafs_wire::nfs4::{
    self, CompoundResult, CreateArgs, CreateType, DENY_NONE, Fattr, Op, OpResult, PutfhArgs,
    ReadArgs as ReadArgs4, ReadPlusArgs, ReadPlusContent, ReadlinkArgs, ResultBody, ShareAccess,
    StableHow, Status, Want, WriteArgs as WriteArgs4,
};
use dafs_wire::xdr::{Decode, MovedData, Payload};
use std::os::unix::fs::FileExt;

const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// The transport of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Tcp,
    Iwarp,
    Shm,
}

const WAYS: [Way; 3] = [Way::Tcp, Way::Iwarp, Way::Shm];

fn rpc_options() -> RpcOptions {
    RpcOptions {
        identity: Identity::sys("ways", 0, 0, &[]),
        results_bytes_max: TRANSFER_BYTES_MAX + 4096,
        ..RpcOptions::default()
    }
}

fn open(served: &Served, way: Way) -> Connection {
    match way {
        Way::Tcp => Connection::open_with(served.nfs, rpc_options()).unwrap(),
        Way::Iwarp => {
            let adapter = IwarpAdapter::new(IwarpConfig::default()).unwrap();
            let port = Port::new(Box::new(adapter)).unwrap();
            Connection::open_rdma(&port, &Address::Tcp(served.rdma), rpc_options()).unwrap()
        }
        Way::Shm => {
            let adapter = ShmAdapter::new(ShmConfig::default()).unwrap();
            let port = Port::new(Box::new(adapter)).unwrap();
            let address = Address::Shm(shm_socket_name(served.rdma));
            Connection::open_rdma(&port, &address, rpc_options()).unwrap()
        }
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 7 / 5) as u8).collect()
}

/// Results, and data that was moved separately.
struct Answer {
    results: Results,
    sinks: Vec<Memory>,
}

impl Answer {
    fn data(&self, payload: Payload<'_>) -> Vec<u8> {
        match payload {
            Payload::Here(data) => data.to_vec(),
            Payload::Moved(moved) => {
                let place = self.sinks[moved.index].view();
                place.slice(0, moved.len).unwrap().to_vec(Site::Inspect)
            }
        }
    }
}

/// Sends a call with memory for separate results, and with separate data behind the arguments if
/// there is any.
fn call(
    connection: &Connection,
    procedure: RpcProcedure,
    args: &[u8],
    data: Option<(usize, &[u8])>,
    sink_bytes: &[usize],
) -> Answer {
    let rpc = connection.rpc();
    let sinks: Vec<_> = sink_bytes.iter().map(|&bytes| rpc.allocate(bytes).unwrap()).collect();
    let places: Vec<_> = sinks.iter().map(Memory::whole).collect();
    let data = data.map(|(position, bytes)| {
        let memory = rpc.allocate(bytes.len()).unwrap();
        memory.view().copy_from(bytes, Site::Inspect);
        SendData { position, memory: memory.whole() }
    });
    let pieces = [args];
    let request = Request {
        data,
        sinks: &places,
        ..Request::new(procedure, &pieces, TRANSFER_BYTES_MAX + 4096)
    };
    let results = rpc.submit_request(&request).unwrap().wait().unwrap();
    Answer { results, sinks }
}

fn v3(procedure: Procedure) -> RpcProcedure {
    let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
    RpcProcedure { program, version, procedure: procedure.number() }
}

/// Looks up a name in the root by NFSv3.
fn handle(served: &Served, name: &str) -> Handle {
    let (client, root) = served.v3();
    client.lookup(&root, name.as_bytes()).unwrap()
}

/// Decodes results of NFSv3, which must be a success.
fn ok<'a, T: Decode<'a>>(answer: &'a Answer) -> T {
    let mut decoder = answer.results.decoder();
    assert_eq!(decoder.u32(), Ok(0));
    let value = decoder.value().unwrap();
    decoder.finish().unwrap();
    value
}

#[test]
fn a_read_says_the_same_whichever_way_it_goes() {
    let served = Served::new();
    let content = pattern(TRANSFER_BYTES_MAX + 70_001, 3);
    std::fs::write(served.path().join("file"), &content).unwrap();
    let file = handle(&served, "file");
    let lengths = [0, 1, 3, 1000, 4096, 4099, 40_000, 70_001, 300_000, TRANSFER_BYTES_MAX];
    let offsets = [0, 5, TRANSFER_BYTES_MAX, content.len() - 2, content.len() + 9];
    for way in WAYS {
        let connection = open(&served, way);
        for (len, offset) in lengths.iter().flat_map(|len| offsets.map(|offset| (*len, offset))) {
            let args =
                ReadArgs { file: FileHandle(&file.0), offset: offset as u64, count: len as u32 };
            let want = &content[offset.min(content.len())..(offset + len).min(content.len())];
            // With memory of the right size, with memory that is too small, and with none.
            for sinks in [&[len.max(1)][..], &[len / 2 + 1], &[]] {
                let answer = call(&connection, v3(Procedure::Read), &encoded(&args), None, sinks);
                let read: ReadOk<'_> = ok(&answer);
                let what = format!("{way:?}: {len} bytes at {offset}, {sinks:?}");
                assert!(answer.data(read.data) == want, "{what}");
                assert_eq!(read.count as usize, want.len(), "{what}");
                assert_eq!(read.eof, offset + want.len() >= content.len(), "{what}");
            }
        }
    }
}

#[test]
fn a_write_writes_the_same_whichever_way_it_goes() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), "").unwrap();
    let file = handle(&served, "file");
    let on_disk = std::fs::File::open(served.path().join("file")).unwrap();
    let mut seed = 0;
    for way in WAYS {
        let connection = open(&served, way);
        for len in [0, 1, 4, 4095, 5001, 65_536, 262_145, TRANSFER_BYTES_MAX] {
            for (moved, stable) in [
                (true, Stability::Unstable),
                (true, Stability::FileSync),
                (false, Stability::Unstable),
                (false, Stability::FileSync),
            ] {
                seed += 1;
                let data = pattern(len, seed);
                let payload = if moved {
                    Payload::Moved(MovedData { index: 0, len })
                } else {
                    data.as_slice().into()
                };
                let (file, count) = (FileHandle(&file.0), len as u32);
                let args = encoded(&WriteArgs { file, offset: 7, count, stable, data: payload });
                let data_apart = moved.then_some((args.len(), data.as_slice()));
                let answer = call(&connection, v3(Procedure::Write), &args, data_apart, &[]);
                let written: WriteOk = ok(&answer);
                let what = format!("{way:?}: {len} bytes, apart: {moved}, {stable:?}");
                assert_eq!((written.count, written.committed), (len as u32, stable), "{what}");
                let mut there = vec![0; len];
                on_disk.read_exact_at(&mut there, 7).unwrap();
                assert!(there == data, "{what}");
            }
        }
    }
}

const COMPOUND: RpcProcedure = RpcProcedure {
    program: nfs4::limits::PROGRAM,
    version: nfs4::limits::VERSION,
    procedure: nfs4::limits::PROCEDURE_COMPOUND,
};

/// Sends a COMPOUND of SEQUENCE, PUTFH and these operations. `data` is that of the first, behind so
/// many of its bytes.
fn compound(
    session: &Session,
    connection: &Connection,
    object: &Handle,
    operations: &[Op<'_>],
    data: Option<(usize, &[u8])>,
    sink_bytes: &[usize],
) -> Answer {
    let sequence = session.take_slot(false);
    let mut compound = Compound::new(session.minor_version());
    compound.op(&Op::Sequence(sequence)).op(&putfh(object));
    let head_bytes = compound.bytes().len();
    operations.iter().for_each(|operation| {
        compound.op(operation);
    });
    let data = data.map(|(at, data)| (head_bytes + at, data));
    let answer = call(connection, COMPOUND, compound.bytes(), data, sink_bytes);
    let results = results(&answer);
    let ResultBody::Sequence(taken) = &results[0].body else { panic!("no SEQUENCE") };
    session.give_slot(&sequence, Some(taken));
    drop(results);
    answer
}

fn putfh(object: &Handle) -> Op<'_> {
    Op::Putfh(PutfhArgs { handle: &object.0 })
}

/// Decodes the results of a COMPOUND.
fn results(answer: &Answer) -> Vec<OpResult<'_>> {
    let mut decoder = answer.results.decoder();
    let head: CompoundResult<'_> = decoder.value().unwrap();
    let results = (0..head.op_count).map(|_| decoder.value().unwrap()).collect();
    decoder.finish().unwrap();
    results
}

fn session(connection: &Connection, way: Way) -> Session {
    let owner = format!("{way:?}");
    connect_over(connection.clone(), &Options::new(owner.as_bytes())).unwrap()
}

#[test]
fn compounds_move_data_whichever_way_they_go() {
    let served = Served::new();
    for way in WAYS {
        let connection = open(&served, way);
        let session = session(&connection, way);
        let root = session.root().unwrap();
        let name = format!("file-{way:?}");
        let OpenFile { handle, stateid, .. } =
            open_wanting(&session, &root, name.as_bytes(), ShareAccess::BOTH, Want::None);
        for (seed, len) in [0, 1, 4095, 5001, 262_145, TRANSFER_BYTES_MAX].into_iter().enumerate() {
            let data = pattern(len, seed);
            let payload = Payload::Moved(MovedData { index: 0, len });
            let stable = [StableHow::Unstable, StableHow::FileSync][seed % 2];
            let write = Op::Write(WriteArgs4 { stateid, offset: 3, stable, data: payload });
            let place = Some((WRITE_HEAD_BYTES, data.as_slice()));
            let answer = compound(&session, &connection, &handle, &[write], place, &[]);
            let written = results(&answer);
            let ResultBody::Write(written) = &written[2].body else { panic!("{written:?}") };
            assert_eq!((written.count as usize, written.committed), (len, stable), "{way:?} {len}");
            let there = std::fs::read(served.path().join(&name)).unwrap();
            assert!(len == 0 || there[3..3 + len] == data, "{way:?} {len}");

            // Two reads in one request, each with memory for its data. READ_PLUS has none for its
            // content.
            let half = (len / 2) as u32;
            let read = |offset, count| Op::Read(ReadArgs4 { stateid, offset, count });
            let plus = Op::ReadPlus(ReadPlusArgs { stateid, offset: 3, count: 100 });
            let operations = [read(3, half), plus, read(3 + u64::from(half), half)];
            for sinks in [&[len.max(1), len.max(1)][..], &[1, len.max(1)], &[]] {
                let answer = compound(&session, &connection, &handle, &operations, None, sinks);
                let found = results(&answer);
                let what = format!("{way:?} {len} {sinks:?}");
                let (ResultBody::Read(first), ResultBody::Read(last)) =
                    (&found[2].body, &found[4].body)
                else {
                    panic!("{what}: {found:?}")
                };
                let half = half as usize;
                assert!(answer.data(first.data) == data[..half], "{what}");
                assert!(answer.data(last.data) == data[half..2 * half], "{what}");
                assert_eq!(last.eof, there.len() <= 3 + 2 * half, "{what}");
                let ResultBody::ReadPlus(plus) = &found[3].body else { panic!("{what}") };
                let plus: Vec<u8> = plus.contents.iter().flat_map(bytes_of).collect();
                let end = there.len().min(103);
                assert!(plus == there[end.min(3)..end], "{what}");
            }
        }
    }
}

/// Bytes of WRITE before its data: number, state-id, offset, stability, length.
const WRITE_HEAD_BYTES: usize = 4 + 16 + 8 + 4 + 4;

/// Bytes of CREATE before the text of a symbolic link: number, type, length.
const SYMLINK_HEAD_BYTES: usize = 4 + 4 + 4;

fn bytes_of(content: &ReadPlusContent<'_>) -> Vec<u8> {
    match content {
        ReadPlusContent::Data { data, .. } => data.to_vec(),
        ReadPlusContent::Hole { length, .. } => vec![0; *length as usize],
    }
}

#[test]
fn texts_of_links_come_and_go_whichever_way() {
    let served = Served::new();
    let text: Vec<u8> = pattern(3001, 1).iter().map(|byte| b'a' + byte % 26).collect();
    for way in WAYS {
        let connection = open(&served, way);
        let session = session(&connection, way);
        let root = session.root().unwrap();
        let name = format!("link-{way:?}");
        let kind = CreateType::Symlink(Payload::Moved(MovedData { index: 0, len: text.len() }));
        let attributes = Fattr::default();
        let create = Op::Create(CreateArgs { kind, name: name.as_bytes(), attributes });
        let place = Some((SYMLINK_HEAD_BYTES, text.as_slice()));
        let answer = compound(&session, &connection, &root, &[create], place, &[]);
        assert_eq!(results(&answer)[2].status, Status::Ok, "{way:?}");
        let link = std::fs::read_link(served.path().join(&name)).unwrap();
        assert_eq!(link.as_os_str().as_encoded_bytes(), text);

        let link = handle(&served, &name);
        let args = encoded(&GetattrArgs { object: FileHandle(&link.0) });
        for sinks in [&[4096][..], &[10], &[]] {
            let answer = call(&connection, v3(Procedure::Readlink), &args, None, sinks);
            let read: ReadlinkOk<'_> = ok(&answer);
            assert_eq!(answer.data(read.target), text, "{way:?} {sinks:?}");
            let readlink = [Op::Readlink(ReadlinkArgs)];
            let answer = compound(&session, &connection, &link, &readlink, None, sinks);
            let found = results(&answer);
            let ResultBody::Readlink(read) = &found[2].body else { panic!("{found:?}") };
            assert_eq!(answer.data(read.text), text, "{way:?} {sinks:?}");
        }
    }
}

#[test]
fn a_retry_over_a_new_connection_is_answered_and_not_carried_out() {
    let served = Served::new();
    let first = open(&served, Way::Iwarp);
    let session = session(&first, Way::Iwarp);
    let root = session.root().unwrap();
    let sequence = session.take_slot(true);
    let text = vec![b't'; 2000];
    let kind = CreateType::Symlink(Payload::Moved(MovedData { index: 0, len: text.len() }));
    let attributes = Fattr::default();
    let mut compound = Compound::new(session.minor_version());
    compound.op(&Op::Sequence(sequence)).op(&putfh(&root));
    let position = compound.bytes().len() + SYMLINK_HEAD_BYTES;
    compound.op(&Op::Create(CreateArgs { kind, name: b"link", attributes }));
    let send = |connection: &Connection, text: &[u8]| {
        call(connection, COMPOUND, compound.bytes(), Some((position, text)), &[])
    };
    let made = send(&first, &text);
    assert_eq!(results(&made)[2].status, Status::Ok);
    first.close();
    std::fs::remove_file(served.path().join("link")).unwrap();
    for way in [Way::Iwarp, Way::Shm] {
        let again = open(&served, way);
        assert_eq!(*send(&again, &text).results, *made.results, "{way:?}");
        assert!(!served.path().join("link").is_symlink(), "{way:?}");
        // The same request with another text is a different one.
        let other = send(&again, &vec![b'o'; 2000]);
        assert_eq!(results(&other)[0].status, Status::SeqFalseRetry, "{way:?}");
    }
}

#[test]
fn long_listings_come_whichever_way() {
    let served = Served::new();
    for number in 0..600 {
        std::fs::write(served.path().join(format!("a-name-of-some-length-{number}")), "").unwrap();
    }
    for way in WAYS {
        let session = session(&open(&served, way), way);
        let root = session.root().unwrap();
        assert_eq!(session.read_directory(&root, 1 << 20).unwrap().len(), 600, "{way:?}");
    }
}

#[test]
fn delegations_are_recalled_whichever_way_the_holder_came() {
    let served = Served::new();
    for way in WAYS {
        let owner = format!("holder-{way:?}");
        std::fs::write(served.path().join(&owner), "data").unwrap();
        let (holder, root, heard) = served.v4_listening_over(open(&served, way), owner.as_bytes());
        let file = open_wanting(&holder, &root, owner.as_bytes(), ShareAccess::READ, Want::Any);
        assert!(file.delegation.is_some(), "{way:?}");
        let (other, _) = served.v4(b"other");
        let opened = heard.while_returning(&holder, &file, || {
            patiently(|| {
                other.open(&root, owner.as_bytes(), &existing(ShareAccess::BOTH, DENY_NONE))
            })
        });
        other.close(&opened.unwrap()).unwrap();
        holder.close(&file).unwrap();
    }
}

#[test]
fn data_at_a_wrong_place_is_no_request_and_costs_nothing_else() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), "").unwrap();
    let file = handle(&served, "file");
    for way in [Way::Iwarp, Way::Shm] {
        let connection = open(&served, way);
        let data = Payload::Moved(MovedData { index: 0, len: 5000 });
        let (file, stable) = (FileHandle(&file.0), Stability::Unstable);
        let args = encoded(&WriteArgs { file, offset: 0, count: 5000, stable, data });
        for (position, len) in [(args.len() - 4, 5000), (8, 5000), (args.len(), 4000)] {
            let rpc = connection.rpc();
            let memory = rpc.allocate(len).unwrap();
            let data = Some(SendData { position, memory: memory.whole() });
            let pieces = [args.as_slice()];
            let request = Request { data, ..Request::new(v3(Procedure::Write), &pieces, 4096) };
            let refused = rpc.submit_request(&request).unwrap().wait().unwrap_err();
            let garbage = CallError::NotDone(AcceptStatus::GarbageArgs);
            assert_eq!(refused.to_string(), garbage.to_string(), "{way:?} {position} {len}");
        }
        connection.null().unwrap();
    }
    assert_eq!(std::fs::read(served.path().join("file")).unwrap(), b"");
}

#[test]
fn clients_are_admitted_by_address_port_and_process() {
    let mount = |served: &Served, way| {
        let (program, version) = (mount3::PROGRAM, mount3::VERSION);
        let procedure = mount3::Procedure::Mnt.number();
        let procedure = RpcProcedure { program, version, procedure };
        open(served, way).rpc().call(procedure, &encoded(&mount3::Path(b"/")))
    };
    // This process runs as root or as the server's own user, as the kernel reports in all three
    // cases.
    let own = Served::with(|config| {
        config.exports[0].options.admits.unprivileged_ports = false;
    });
    let elsewhere = Served::with(|config| {
        let network: AddressRange = "192.0.2.0/24".parse().unwrap();
        config.exports[0].options.admits.networks = vec![network];
    });
    for way in WAYS {
        assert_eq!(mount(&own, way).unwrap().decoder().u32().unwrap(), 0, "{way:?}");
        let refused = mount(&elsewhere, way).unwrap_err();
        let weak = CallError::Denied(RejectStatus::Auth(AuthStatus::TooWeak));
        assert_eq!(refused.to_string(), weak.to_string(), "{way:?}");
    }
}

#[test]
fn transfers_over_rdma_are_counted() {
    let served = Served::with(|config| {
        config.metrics_listen = Some("127.0.0.1:0".parse().unwrap());
    });
    std::fs::write(served.path().join("file"), pattern(50_000, 0)).unwrap();
    let file = handle(&served, "file");
    let connection = open(&served, Way::Iwarp);
    let args = ReadArgs { file: FileHandle(&file.0), offset: 0, count: 50_000 };
    call(&connection, v3(Procedure::Read), &encoded(&args), None, &[50_000]);
    // When this is answered, earlier calls have been counted.
    connection.null().unwrap();
    let counts = served.metrics();
    let count = |name: &str| {
        let mut lines = counts.lines().filter_map(|line| line.strip_prefix(name));
        lines.find_map(|rest| rest.trim().parse::<u64>().ok()).unwrap()
    };
    assert_eq!(count("dafs_nfs_rdma_connections"), 1);
    assert!(count("dafs_nfs_rdma_calls_total") >= 1);
    assert!(count("dafs_nfs_connections") >= 1);
    assert_eq!(count("dafs_nfs_rdma_written_bytes_total"), 50_000);
    assert_eq!(count("dafs_nfs_rdma_errors_total"), 0);
}
