//! Tests: transfers under way in a session that the data server ends, and the ends of sessions and
//! layouts that are of no use any more.

use super::file::Granted;
use super::file::tests::grant;
use super::nodes::Node;
use super::{FileLayout, Layouts};
use crate::files::Handle;
use crate::mount::kerberos::Login;
use crate::mount::layout::NodeAddress;
use crate::mount::link::Link;
use crate::mount::open::{Direction, Open, Transfer};
use crate::mount::options::MountOptions;
use crate::mount::route::Route;
use crate::mount::v4::client::{Client, Role};
use crate::mount::v4::flight::{NodePart, TransferFlight};
use dafs_parallel::limits::{DATA_SERVERS_MAX, LAYOUT_THRESHOLD_BYTES};
use dafs_parallel::{LayoutState, Nodes, Protocol, Want};
use dafs_rpc::client::Memory;
use dafs_rpc::server::{Config, Group};
use dafs_rpc::{Call, Handled, Handler, Reply};
use dafs_wire::nfs4::{
    ChannelAttributes, CompoundArgs, CompoundResult, CreateSessionFlags, CreateSessionResult,
    ExchangeFlags, ExchangeIdResult, Op, OpResult, ResultBody, SequenceResult, SequenceStatus,
    ServerOwner, SessionId, StableHow, StateProtectResult, Stateid, Status, Verifier, WriteResult,
};
use dafs_wire::xdr::{Decode, Encode, Encoder, Payload};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The session that the data server ends while it has WRITEs behind SEQUENCE. The session before it
/// is that of the client at the metadata server.
const ENDED: u8 = 2;

/// The requests to the data server, by the numbers of sessions.
#[derive(Debug, Default)]
struct Asked {
    made: Vec<u8>,
    destroyed: Vec<u8>,
    /// The session of each WRITE that was carried out.
    wrote: Vec<u8>,
}

struct DataServer {
    asked: Arc<Mutex<Asked>>,
}

impl DataServer {
    fn done(&self, op: &Op<'_>, session: &mut u8) -> Result<ResultBody<'static>, Status> {
        let mut asked = self.asked.lock().unwrap();
        Ok(match op {
            Op::ExchangeId(_) => ResultBody::ExchangeId(ExchangeIdResult {
                client_id: 1,
                sequence_id: 1,
                flags: ExchangeFlags::USE_PNFS_DS,
                state_protect: StateProtectResult::None,
                server_owner: ServerOwner { minor_id: 0, major_id: b"data" },
                server_scope: b"data",
                implementation: None,
            }),
            Op::CreateSession(args) => {
                let number = asked.made.len() as u8 + 1;
                asked.made.push(number);
                ResultBody::CreateSession(CreateSessionResult {
                    session_id: SessionId([number; 16]),
                    sequence: args.sequence,
                    flags: CreateSessionFlags::empty(),
                    fore: ChannelAttributes { requests_max: 4, ..args.fore },
                    back: args.back,
                })
            }
            Op::DestroySession(args) => {
                asked.destroyed.push(args.session_id.0[0]);
                ResultBody::DestroySession(())
            }
            Op::Sequence(args) => {
                *session = args.session_id.0[0];
                ResultBody::Sequence(SequenceResult {
                    session_id: args.session_id,
                    sequence_id: args.sequence_id,
                    slot_id: args.slot_id,
                    highest_slot_id: 3,
                    target_highest_slot_id: 3,
                    status: SequenceStatus::empty(),
                })
            }
            Op::DestroyClientid(_) => ResultBody::DestroyClientid(()),
            Op::ReclaimComplete(_) => ResultBody::ReclaimComplete(()),
            Op::Putfh(_) => ResultBody::Putfh(()),
            Op::Write(_) if *session == ENDED => return Err(Status::DeadSession),
            Op::Write(args) => {
                asked.wrote.push(*session);
                let Payload::Here(data) = args.data else { panic!("{:?}", args.data) };
                let (count, verifier) = (data.len() as u32, Verifier([7; 8]));
                ResultBody::Write(WriteResult { count, committed: StableHow::FileSync, verifier })
            }
            other => panic!("{other:?}"),
        })
    }
}

impl Handler for DataServer {
    type Message = ();

    fn call(&mut self, call: Call<'_>) -> Handled {
        let mut d = call.decoder();
        let head = CompoundArgs::decode(&mut d).unwrap();
        let (mut results, mut status, mut op_count, mut session) = (Vec::new(), Status::Ok, 0, 0);
        while op_count < head.op_count && status == Status::Ok {
            let op = Op::decode(&mut d, head.minor_version).unwrap();
            let done = self.done(&op, &mut session);
            status = done.as_ref().map_or_else(|status| *status, |_| Status::Ok);
            let body = done.unwrap_or(ResultBody::Nothing);
            let result = OpResult { number: op.number(), status, body };
            result.encode(&mut Encoder::new(&mut results));
            op_count += 1;
        }
        let mut reply = Reply::new();
        let mut e = reply.encoder();
        CompoundResult { status, tag: head.tag, op_count }.encode(&mut e);
        e.raw(&results);
        reply.into()
    }
}

/// A data server on a port of its own.
struct Served {
    address: SocketAddr,
    asked: Arc<Mutex<Asked>>,
    group: Group,
    thread: JoinHandle<()>,
}

impl Served {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let group = Group::new(vec![listener], 1, Config::default()).unwrap();
        let asked = Arc::<Mutex<Asked>>::default();
        let reactor = group.reactor(|_| DataServer { asked: asked.clone() }).unwrap();
        let thread = std::thread::spawn(move || reactor.run());
        Self { address, asked, group, thread }
    }

    fn client(&self, role: Role) -> Arc<Client> {
        let options = MountOptions { reserved_port: false, ..MountOptions::default() };
        let url = format!("nfs://{}/", self.address).parse().unwrap();
        let login = Login::Fixed(options.identity.clone());
        let link = Link::new(Route::new(&url, 1 << 20), &options, login).unwrap();
        Client::connect(Arc::new(link), role).unwrap()
    }

    /// The client at the metadata server, which this server stands for, too.
    fn metadata(&self) -> Arc<Client> {
        self.client(Role::of_server(1, b"owner", 1 << 20, None))
    }

    fn stop(self) {
        self.group.stop();
        self.thread.join().unwrap();
    }
}

#[test]
fn requests_of_an_ended_session_are_resent_by_one_new_session() {
    let served = Served::new();
    let of = served.metadata();
    let client = served.client(Role::of_data_server(&of));
    let stateid = Stateid { seqid: 1, other: [1; 12] };
    let handle = Handle(b"file".to_vec());
    let open = Arc::new(Open::new(0, handle.clone(), true, true, stateid));
    let (file, grant) = (Arc::new(FileLayout::new(handle.clone())), grant(true));
    file.granted(&Granted { grant: grant.clone(), name: stateid, size: None });
    let memory = Memory::plain(4096).unwrap();
    let begin = |offset| {
        let (handle, file, grant) = (handle.clone(), file.clone(), grant.clone());
        let part = NodePart { handle, stateid, offset, component: 0, file, grant };
        let (memory, direction) = (memory.whole(), Direction::Write(StableHow::FileSync));
        let transfer = Transfer { open: open.clone(), offset, memory, direction };
        TransferFlight::begin_part(&client, transfer, Some(part)).unwrap()
    };

    // All are under way before the first answer is read.
    let flights = [begin(0), begin(4096), begin(8192)];
    let again = flights.map(|flight| {
        flight.settled().unwrap_err();
        flight.again().expect("it was not carried out").unwrap()
    });
    for flight in again {
        assert_eq!(flight.settled().unwrap().bytes, 4096);
    }
    let Asked { made, destroyed, wrote } = std::mem::take(&mut *served.asked.lock().unwrap());
    assert_eq!((made, destroyed, wrote), (vec![1, 2, 3], vec![2], vec![3, 3, 3]));
    drop((of, client));
    served.stop();
}

#[test]
fn an_unused_data_server_makes_room_and_its_session_ends() {
    let served = Served::new();
    let (of, nodes) = (served.metadata(), Nodes::<Layouts>::default());
    let port = served.address.port();
    let node = |port| {
        let socket = SocketAddr::new(served.address.ip(), port);
        nodes.node(&[NodeAddress { socket, rdma: false }], Node::new)
    };
    drop(node(port).unwrap().client(&of).ok().unwrap());
    let used: Vec<_> = (1..DATA_SERVERS_MAX as u16).map(|n| node(port ^ n).unwrap()).collect();
    let one_more = node(port ^ DATA_SERVERS_MAX as u16);
    assert!(one_more.is_some());
    let begun = Instant::now();
    while served.asked.lock().unwrap().destroyed.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(served.asked.lock().unwrap().destroyed, [2]);
    assert!(node(0).is_none(), "all others are in use");
    drop((used, one_more, of));
    served.stop();
}

#[test]
fn a_file_without_a_writer_costs_no_pause_of_layouts() {
    let served = Served::new();
    let (of, layouts) = (served.metadata(), Layouts::new(&[]));
    let (file, grant) = (layouts.file(&Handle(b"file".to_vec())), grant(true));
    let name = Stateid { seqid: 1, other: [1; 12] };
    file.granted(&Granted { grant: grant.clone(), name, size: None });
    file.wrote(&grant, 0, (4096, 4096), None);
    file.change(LayoutState::void);
    // No layout is left to report the write by, and no open to request one by.
    layouts.at(&of, &file).tell().unwrap_err();
    assert_eq!(file.verifier(), 1u64.to_be_bytes(), "the write counts as lost");
    assert!(matches!(file.want(false, LAYOUT_THRESHOLD_BYTES, |_| true), Want::Ask(None)));
    drop(of);
    served.stop();
}
