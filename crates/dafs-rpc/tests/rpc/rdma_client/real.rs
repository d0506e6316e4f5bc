//! The client against the server of this crate, over the transports of one host.

use crate::peer;
use dafs_dat::{Adapter, Address};
use dafs_mem::Site;
use dafs_rpc::client::{
    BackHandler, BackRequest, CallError, Memory, Options, Pending, Port, Procedure, Request,
    RpcClient, SendData, WaitPolicy,
};
use dafs_rpc::server::{Config, Group};
use dafs_rpc::{
    AcceptStatus, Call, CallbackError, CallbackRequest, ConnectionId, Handled, Handler, Injector,
    Reply,
};
use dafs_wire::xdr::{Decoder, Encoder, Payload, XdrError};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const PROGRAM: u32 = 0x2000_0055;

/// A timeout longer than any successful step.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the arguments.
const ECHO: u32 = 1;
/// Sends data to the server, which returns its sum.
const PUT: u32 = 2;
/// Returns as much data as requested.
const GET: u32 = 3;
/// Gets no answer.
const DROP: u32 = 4;
/// The server sends a callback with the arguments, and answers at once.
const CALL_BACK: u32 = 5;
/// The server ends the connection.
const CLOSE: u32 = 6;

#[derive(Debug, PartialEq)]
enum Told {
    BackReply(Result<Vec<u8>, CallbackError>),
    Disconnected,
}

struct Program(Sender<Told>);

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 5 / 3) as u8).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

impl Program {
    fn serve(&self, call: &Call<'_>) -> Result<Handled, XdrError> {
        let mut reply = call.reply();
        let mut args = call.decoder();
        match call.procedure {
            ECHO => reply.encoder().raw(call.args),
            PUT => {
                let sum = match args.payload(usize::MAX)? {
                    Payload::Here(bytes) => sum(bytes),
                    Payload::Moved(moved) => {
                        let data = call.data(&moved).unwrap();
                        sum(&data.slice(0, moved.len).unwrap().to_vec(Site::Inspect))
                    }
                };
                reply.encoder().u64(sum);
            }
            GET => {
                let len = args.u32()? as usize;
                reply.encoder().count(len);
                let mut bulk = reply.bulk(len).unwrap();
                bulk.view().copy_from(&pattern(len), Site::Inspect);
                bulk.finish(len);
                reply.encoder().u32(7);
            }
            DROP => return Ok(Handled::Drop),
            CALL_BACK => call.connection().send_callback(CallbackRequest {
                program: PROGRAM + 1,
                version: 1,
                procedure: 2,
                auth_sys: None,
                args: call.args.to_vec(),
                token: 1,
            }),
            CLOSE => call.connection().close(),
            _ => return Ok(AcceptStatus::ProcedureUnavailable.into()),
        }
        Ok(reply.into())
    }
}

impl Handler for Program {
    type Message = ();

    fn takes_moved_data(&self, _: u32, _: u32, procedure: u32) -> bool {
        procedure == PUT
    }

    fn call(&mut self, call: Call<'_>) -> Handled {
        self.serve(&call).unwrap_or_else(|_| AcceptStatus::GarbageArgs.into())
    }

    fn back_reply(&mut self, _: ConnectionId, _: u64, result: Result<&[u8], CallbackError>) {
        let _ = self.0.send(Told::BackReply(result.map(<[u8]>::to_vec)));
    }

    fn disconnected(&mut self, _: ConnectionId) {
        let _ = self.0.send(Told::Disconnected);
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Iwarp,
    Shm,
}

impl Kind {
    fn adapter(self) -> Box<dyn Adapter> {
        match self {
            Self::Iwarp => peer::iwarp(),
            Self::Shm => peer::shm(),
        }
    }

    fn any_address(self) -> Address {
        match self {
            Self::Iwarp => peer::any_iwarp(),
            Self::Shm => peer::any_shm(),
        }
    }
}

struct Server {
    kind: Kind,
    group: Group,
    address: Address,
    told: Receiver<Told>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(kind: Kind) -> Self {
        let mut adapter = kind.adapter();
        let listener = adapter.listen(&kind.any_address()).unwrap();
        let address = adapter.listener_address(listener).unwrap();
        let group = Group::new(Vec::new(), 1, Config::default()).unwrap();
        let (teller, told) = channel();
        let make = |_: Injector<()>| Program(teller);
        let reactor = group.rdma_reactor(vec![adapter], make).unwrap();
        let thread = Some(std::thread::spawn(move || reactor.run()));
        Self { kind, group, address, told, thread }
    }

    fn port(&self, policy: WaitPolicy) -> Port {
        Port::with_wait(self.kind.adapter(), policy).unwrap()
    }

    fn connect(&self, port: &Port) -> RpcClient {
        self.connect_with(port, PATIENCE, None)
    }

    fn connect_with(
        &self,
        port: &Port,
        call_timeout: Duration,
        back: Option<BackHandler>,
    ) -> RpcClient {
        let options = Options { call_timeout, connect_timeout: PATIENCE, ..Options::default() };
        RpcClient::connect_rdma(port, &self.address, options, back).unwrap()
    }

    fn told(&self) -> Told {
        self.told.recv_timeout(PATIENCE).expect("nothing happened")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.group.stop();
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn procedure(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: 1, procedure }
}

fn number(number: usize) -> [u8; 4] {
    (number as u32).to_be_bytes()
}

fn get(client: &RpcClient, memory: &Memory, len: usize) -> Pending {
    let (args, sinks) = ([&number(len)[..]], [memory.slice(0..len).unwrap()]);
    let request = Request { sinks: &sinks, ..Request::new(procedure(GET), &args, 16) };
    client.submit_request(&request).unwrap()
}

fn check_got(pending: Pending, memory: &Memory, len: usize) {
    let results = pending.wait().unwrap();
    let mut decoder = results.decoder();
    let data = decoder.payload(len).unwrap();
    assert_eq!(decoder.u32(), Ok(7));
    decoder.finish().unwrap();
    let sink = memory.slice(0..len).unwrap();
    assert_eq!(sink.take(data), len);
    assert!(sink.view().to_vec(Site::Inspect) == pattern(len), "{len} bytes differ");
}

fn put(client: &RpcClient, memory: &Memory, len: usize) {
    let view = memory.view().slice(0, len).unwrap();
    view.copy_from(&pattern(len), Site::Inspect);
    let data = Some(SendData { position: 4, memory: memory.slice(0..len).unwrap() });
    let args = [&number(len)[..]];
    let request = Request { data, ..Request::new(procedure(PUT), &args, 8) };
    let results = client.submit_request(&request).unwrap().wait().unwrap();
    assert_eq!(Decoder::new(&results).u64(), Ok(sum(&pattern(len))), "{len} bytes");
}

const POLICIES: [WaitPolicy; 3] =
    [WaitPolicy::Adaptive { spin: 100 }, WaitPolicy::Sleep, WaitPolicy::Poll];

fn on_every_transport(test: impl Fn(Kind)) {
    [Kind::Iwarp, Kind::Shm].into_iter().for_each(test);
}

#[test]
fn data_of_every_size_in_both_directions() {
    on_every_transport(|kind| {
        let server = Server::start(kind);
        for policy in POLICIES {
            let client = server.connect(&server.port(policy));
            let memory = client.allocate(1 << 20).unwrap();
            for len in [0, 1, 3, 4, 1000, 4000, 4096, 5001, 65_536, 300_001, 1 << 20] {
                put(&client, &memory, len);
                memory.view().fill(0);
                check_got(get(&client, &memory, len), &memory, len);
            }
        }
    });
}

#[test]
fn calls_and_replies_of_every_length() {
    on_every_transport(|kind| {
        let server = Server::start(kind);
        let client = server.connect(&server.port(WaitPolicy::default()));
        for len in [0, 4, 1000, 3996, 4000, 4100, 30_000, 200_000, 1_000_000] {
            let (args, echo) = (pattern(len), procedure(ECHO));
            let pieces = [&args[..len / 2], &args[len / 2..]];
            let pending = client.submit_request(&Request::new(echo, &pieces, len)).unwrap();
            assert!(pending.wait().unwrap()[..] == args, "{len}");
        }
        // The results exceed the limit of the call.
        let (args, get) = ([&number(9000)[..]], procedure(GET));
        let pending = client.submit_request(&Request::new(get, &args, 100)).unwrap();
        assert_eq!(pending.wait().unwrap_err(), CallError::Chunks);
        let unknown = client.call(procedure(99), &[]).unwrap_err();
        assert_eq!(unknown, CallError::NotDone(AcceptStatus::ProcedureUnavailable));
        client.call(procedure(ECHO), &[]).unwrap();
    });
}

#[test]
fn many_threads_on_one_connection_and_on_two_of_one_port() {
    on_every_transport(|kind| {
        let server = Server::start(kind);
        for policy in POLICIES {
            let port = server.port(policy);
            let clients = [server.connect(&port), server.connect(&port)];
            std::thread::scope(|scope| {
                for thread in 0..6usize {
                    let client = clients[thread % 2].clone();
                    scope.spawn(move || work(&client, thread));
                }
            });
        }
    });
}

/// Calls of all kinds, many at a time.
fn work(client: &RpcClient, thread: usize) {
    let mut pending = VecDeque::new();
    let memories: Vec<_> = (0..4).map(|_| client.allocate(100_000).unwrap()).collect();
    for round in 0..60 {
        let memory = memories[round % 4].clone();
        let len = (thread * 1001 + round * 777) % 100_000;
        pending.push_back((get(client, &memory, len), memory, len));
        let args = number(round);
        let echoes: Vec<_> =
            (0..5).map(|_| client.queue(procedure(ECHO), &args).unwrap()).collect();
        for echo in echoes {
            assert_eq!(echo.wait().unwrap()[..], args);
        }
        if pending.len() == 4 {
            let (oldest, memory, len) = pending.pop_front().unwrap();
            check_got(oldest, &memory, len);
        }
    }
    for (oldest, memory, len) in pending {
        check_got(oldest, &memory, len);
    }
}

#[test]
fn the_server_calls_a_client_that_does_nothing() {
    on_every_transport(|kind| {
        let server = Server::start(kind);
        let back: BackHandler = Box::new(|request: BackRequest| {
            let mut reply = Reply::new();
            reply.encoder().raw(&request.args);
            request.answer(Ok(reply));
        });
        let port = server.port(WaitPolicy::default());
        let client = server.connect_with(&port, PATIENCE, Some(back));
        for round in 0..20 {
            let args = number(round);
            client.call(procedure(CALL_BACK), &args).unwrap();
            assert_eq!(server.told(), Told::BackReply(Ok(args.to_vec())));
        }
        drop(client);
        assert_eq!(server.told(), Told::Disconnected);
        // A client that accepts no callbacks refuses them.
        let client = server.connect(&port);
        client.call(procedure(CALL_BACK), &[]).unwrap();
        let refused = CallbackError::NotDone(AcceptStatus::ProgramUnavailable);
        let told = loop {
            // A client without callbacks has no helper, so no other thread polls.
            port.poll(dafs_dat::Instant::now());
            if let Ok(told) = server.told.try_recv() {
                break told;
            }
            std::thread::yield_now();
        };
        assert_eq!(told, Told::BackReply(Err(refused)));
    });
}

#[test]
fn a_call_that_takes_too_long_ends_the_connection_before_its_memory_is_used_again() {
    on_every_transport(|kind| {
        let server = Server::start(kind);
        let port = server.port(WaitPolicy::default());
        let client = server.connect_with(&port, Duration::from_millis(10), None);
        let memory = client.allocate(1 << 16).unwrap();
        let sinks = [memory.whole()];
        let request = Request { sinks: &sinks, ..Request::new(procedure(DROP), &[], 16) };
        let pending = client.submit_request(&request).unwrap();
        assert_eq!(pending.wait().unwrap_err(), CallError::TimedOut);
        assert!(client.is_broken());
        let again = client.submit_request(&request).unwrap_err();
        assert!(matches!(again, CallError::Disconnected(_)), "{again}");
        assert_eq!(server.told(), Told::Disconnected);
        // A server that maps the memory may still write to it.
        assert_eq!(memory.is_spoiled(), kind == Kind::Shm);
        let client = server.connect(&port);
        if memory.is_spoiled() {
            let again = client.submit_request(&request).unwrap_err();
            assert!(matches!(again, CallError::Request(_)), "{again}");
            drop((sinks, memory));
        } else {
            check_got(get(&client, &memory, 1 << 16), &memory, 1 << 16);
        }
        let memory = client.allocate(1 << 16).unwrap();
        check_got(get(&client, &memory, 1 << 16), &memory, 1 << 16);
    });
}

#[test]
fn calls_end_with_the_connection_and_the_port_goes_on() {
    on_every_transport(|kind| {
        let server = Server::start(kind);
        let port = server.port(WaitPolicy::default());
        let memory = port.allocate(4096).unwrap();
        for _ in 0..5 {
            let client = server.connect(&port);
            put(&client, &memory, 4096);
            let dropped = client.submit(procedure(DROP), &[]).unwrap();
            let error = client.call(procedure(CLOSE), &[]).and(dropped.wait()).unwrap_err();
            assert!(matches!(error, CallError::Disconnected(_)), "{error}");
            assert!(client.is_broken());
            assert_eq!(server.told(), Told::Disconnected);
        }
        let client = server.connect(&port);
        let waits = client.submit(procedure(DROP), &[]).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| waits.wait().unwrap_err());
            client.close();
            assert!(matches!(waiter.join().unwrap(), CallError::Disconnected(_)));
        });
    });
}

#[test]
fn a_connection_without_a_listener_fails() {
    for kind in [Kind::Iwarp, Kind::Shm] {
        let port = Port::new(kind.adapter()).unwrap();
        let address = match kind {
            // A port that was bound and is free again.
            Kind::Iwarp => {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                Address::Tcp(listener.local_addr().unwrap())
            }
            Kind::Shm => kind.any_address(),
        };
        let failed = RpcClient::connect_rdma(&port, &address, Options::default(), None);
        let error = failed.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
    }
}

#[test]
fn arguments_of_a_long_call_keep_data_apart() {
    on_every_transport(|kind| {
        let server = Server::start(kind);
        let client = server.connect(&server.port(WaitPolicy::default()));
        let memory = client.allocate(50_000).unwrap();
        memory.view().copy_from(&pattern(50_000), Site::Inspect);
        let mut tail = Vec::new();
        Encoder::new(&mut tail).opaque(&pattern(20_000));
        let count = number(50_000);
        let args = [&count[..], &tail];
        let data = Some(SendData { position: 4, memory: memory.whole() });
        let request = Request { data, ..Request::new(procedure(PUT), &args, 8) };
        let results = client.submit_request(&request).unwrap().wait().unwrap();
        assert_eq!(Decoder::new(&results).u64(), Ok(sum(&pattern(50_000))));
    });
}
