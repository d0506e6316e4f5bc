//! A program with all procedures that the tests need, and a server that runs it.

use dafs_dat::connections::{ConnectionLimits, Connections};
use dafs_rpc::client::{BackHandler, Identity, Options, Procedure, RpcClient};
use dafs_rpc::gss::Acceptor;
use dafs_rpc::server::{Config, Group};
use dafs_rpc::tls::ServerTls;
use dafs_rpc::{
    AcceptStatus, Call, CallbackError, CallbackRequest, ConnectionId, Credential, Handled, Handler,
    Injector, OwnedArgs, Reply, Responder,
};
use dafs_wire::rpc::{FragmentMark, ReplyHeader};
use dafs_wire::xdr::Decoder;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const PROGRAM: u32 = 0x2000_0099;

/// A timeout longer than any successful step.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Procedures of the program.
pub(crate) mod procedures {
    /// Does no work.
    pub(crate) const NULL: u32 = 0;
    /// Returns the arguments.
    pub(crate) const ECHO: u32 = 1;
    /// Returns the arguments from another thread, in any order.
    pub(crate) const ECHO_LATER: u32 = 2;
    /// Returns as many bytes of bulk data as the argument says.
    pub(crate) const BULK: u32 = 3;
    /// Returns the length and the sum of the arguments.
    pub(crate) const SUM: u32 = 4;
    /// As `SUM`, from another thread.
    pub(crate) const SUM_LATER: u32 = 5;
    /// Gets no answer.
    pub(crate) const DROP: u32 = 6;
    /// Gets no answer until `Event::release`.
    pub(crate) const HOLD: u32 = 7;
    /// The server sends a callback with the arguments, and answers at once.
    pub(crate) const CALL_BACK: u32 = 8;
    /// Returns the caller's identity.
    pub(crate) const WHO: u32 = 9;
    /// The handler panics.
    pub(crate) const PANIC: u32 = 10;
    /// The server ends the connection.
    pub(crate) const CLOSE: u32 = 11;
    /// Returns the protection of the connection.
    pub(crate) const SECURITY: u32 = 12;
}

/// A report of a handler to the test.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    BackReply(u64, Result<Vec<u8>, CallbackError>),
    Disconnected,
}

pub(crate) struct Tester {
    events: Sender<Event>,
    later: Sender<(u32, OwnedArgs, Responder)>,
    held: Arc<Mutex<Vec<Responder>>>,
    injector: Injector<u64>,
    told: VecDeque<u64>,
    gss: Option<Arc<dyn Acceptor>>,
}

/// The length and the sum of bytes.
pub(crate) fn sum(bytes: &[u8]) -> Vec<u8> {
    let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
    [bytes.len() as u64, sum].iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// Bulk data of this length.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3) as u8).collect()
}

impl Handler for Tester {
    type Message = u64;

    fn gss(&self) -> Option<&Arc<dyn Acceptor>> {
        self.gss.as_ref()
    }

    fn call(&mut self, call: Call<'_>) -> Handled {
        if call.program != PROGRAM {
            return AcceptStatus::ProgramUnavailable.into();
        }
        let mut reply = Reply::new();
        match call.procedure {
            procedures::NULL => {}
            procedures::ECHO => reply.encoder().raw(call.args),
            procedures::SUM => reply.encoder().raw(&sum(call.args)),
            procedures::ECHO_LATER | procedures::SUM_LATER => {
                let procedure = call.procedure;
                let (args, responder) = call.later();
                self.later.send((procedure, args, responder)).unwrap();
                return Handled::Later;
            }
            procedures::BULK => {
                let Ok(len) = Decoder::new(call.args).u32() else {
                    return AcceptStatus::GarbageArgs.into();
                };
                let len = len as usize;
                reply.encoder().count(len);
                let mut bulk = reply.bulk(len).unwrap();
                bulk.view().copy_from(&pattern(len), dafs_mem::Site::Inspect);
                bulk.finish(len);
            }
            procedures::DROP => return Handled::Drop,
            procedures::HOLD => {
                call.connection().establish();
                self.held.lock().unwrap().push(call.later().1);
                return Handled::Later;
            }
            procedures::CALL_BACK => {
                let args = call.args.to_vec();
                let program = PROGRAM + 1;
                let (version, procedure, auth_sys) = (1, 2, Some(vec![0; 20]));
                let token = u64::from(call.xid);
                let back = CallbackRequest { program, version, procedure, auth_sys, args, token };
                call.connection().send_callback(back);
                reply.encoder().u64(token);
            }
            procedures::WHO => match call.credential {
                Credential::Sys(sys) => {
                    reply.encoder().opaque(sys.machine);
                    reply.encoder().u32(sys.uid);
                    reply.encoder().u32(sys.gid);
                    sys.groups.iter().for_each(|&group| reply.encoder().u32(group));
                }
                _ => reply.encoder().opaque(b"nobody"),
            },
            procedures::PANIC => panic!("a handler that fails, on purpose"),
            procedures::CLOSE => call.connection().close(),
            procedures::SECURITY => reply.encoder().opaque(call.security.to_string().as_bytes()),
            _ => return AcceptStatus::ProcedureUnavailable.into(),
        }
        reply.into()
    }

    fn back_reply(&mut self, _: ConnectionId, token: u64, result: Result<&[u8], CallbackError>) {
        // Through a message, as a handler would that must notify another thread.
        self.told.push_back(token);
        self.injector.send(token);
        let _ = self.events.send(Event::BackReply(token, result.map(<[u8]>::to_vec)));
    }

    fn message(&mut self, token: u64) {
        assert_eq!(Some(token), self.told.pop_front());
    }

    fn disconnected(&mut self, _: ConnectionId) {
        let _ = self.events.send(Event::Disconnected);
    }
}

/// A server of the program; it stops when dropped.
pub(crate) struct Server {
    pub(crate) group: Group,
    pub(crate) address: SocketAddr,
    pub(crate) events: Receiver<Event>,
    pub(crate) held: Arc<Mutex<Vec<Responder>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(reactors: usize, config: Config) -> Self {
        Self::start_with_tls(reactors, config, None)
    }

    pub(crate) fn start_with_tls(
        reactors: usize,
        config: Config,
        tls: Option<Arc<ServerTls>>,
    ) -> Self {
        Self::start_with_gss(reactors, config, tls, None)
    }

    pub(crate) fn start_with_gss(
        reactors: usize,
        config: Config,
        tls: Option<Arc<ServerTls>>,
        gss: Option<Arc<dyn Acceptor>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Connections::new(ConnectionLimits {
            total: config.connections_max,
            per_address: config.connections_per_address_max,
        });
        let group = Group::with_tls(tls, connections, vec![listener], reactors, config).unwrap();
        let (events_in, events) = channel();
        let (later, work) = channel();
        let held = Arc::<Mutex<Vec<Responder>>>::default();
        let mut threads = Vec::new();
        for _ in 0..reactors {
            let reactor = group.reactor(|injector| Tester {
                events: events_in.clone(),
                later: later.clone(),
                held: held.clone(),
                injector,
                told: VecDeque::new(),
                gss: gss.clone(),
            });
            let reactor = reactor.unwrap();
            threads.push(std::thread::spawn(move || reactor.run()));
        }
        threads.push(std::thread::spawn(move || work_later(&work)));
        Self { group, address, events, held, threads }
    }

    pub(crate) fn connect(&self) -> RpcClient {
        self.connect_with(options(), None)
    }

    pub(crate) fn connect_with(&self, options: Options, back: Option<BackHandler>) -> RpcClient {
        RpcClient::connect(self.address, options, back).unwrap()
    }

    pub(crate) fn event(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("nothing happened")
    }

    /// Waits until the statistics match.
    pub(crate) fn wait_for(&self, what: impl Fn(&dafs_rpc::server::Statistics) -> bool) {
        let start = std::time::Instant::now();
        while !what(&self.group.statistics()) {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.group.statistics());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.held.lock().unwrap().clear();
        self.group.stop();
        let failed = self.threads.drain(..).any(|thread| thread.join().is_err());
        assert!(!failed || std::thread::panicking(), "a thread of the server failed");
    }
}

/// Answers in pairs, the second first.
fn work_later(work: &Receiver<(u32, OwnedArgs, Responder)>) {
    let answer = |(procedure, args, responder): (u32, OwnedArgs, Responder)| {
        let results = if procedure == procedures::SUM_LATER { sum(&args) } else { args.to_vec() };
        responder.respond(Reply::from_bytes(&results));
    };
    while let Ok(first) = work.recv() {
        if let Ok(second) = work.recv_timeout(Duration::from_millis(1)) {
            answer(second);
        }
        answer(first);
    }
}

pub(crate) fn options() -> Options {
    Options {
        call_timeout: PATIENCE,
        identity: Identity::sys("tester", 1000, 100, &[4, 24]),
        ..Options::default()
    }
}

pub(crate) fn procedure(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: 1, procedure }
}

/// A connection at byte level.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// The next record; none when the server has closed the connection.
    pub(crate) fn record(&mut self) -> Option<Vec<u8>> {
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).ok()?;
        let mark = FragmentMark::from_bytes(mark);
        assert!(mark.last);
        let mut record = vec![0; mark.len as usize];
        self.0.read_exact(&mut record).ok()?;
        Some(record)
    }

    /// The next reply: its XID, whether it is a success, and the bytes after the header.
    pub(crate) fn reply(&mut self) -> Option<(u32, ReplyHeader<'static>, Vec<u8>)> {
        let record = self.record()?.leak();
        let mut decoder = Decoder::new(record);
        let header: ReplyHeader<'static> = decoder.value().unwrap();
        Some((header.xid, header, decoder.rest().to_vec()))
    }

    /// The XID of the next reply; none for a callback.
    pub(crate) fn reply_or_call(&mut self) -> Option<u32> {
        let record = self.record().unwrap();
        let (xid, direction) = dafs_wire::rpc::peek(&record).unwrap();
        (direction == dafs_wire::rpc::Direction::Reply).then_some(xid)
    }

    /// True when the server ends the connection without sending anything.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0; 1]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// The words of a call with empty credential and verifier, in order.
pub(crate) fn call_words(xid: u32, procedure: u32) -> [u32; 10] {
    [xid, 0, 2, PROGRAM, 1, procedure, 0, 0, 0, 0]
}

pub(crate) fn call(xid: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
    record(&call_words(xid, procedure), args)
}

pub(crate) fn record(words: &[u32], rest: &[u8]) -> Vec<u8> {
    let len = words.len() * 4 + rest.len();
    let mut bytes = FragmentMark::whole(len).unwrap().to_bytes().to_vec();
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
    bytes.extend_from_slice(rest);
    bytes
}
