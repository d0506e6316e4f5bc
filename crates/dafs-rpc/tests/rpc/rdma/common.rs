//! A server over RDMA in a world of its own, and a client under full control of the test.

use crate::peer::{self, any_iwarp, any_shm, iwarp, message, shm};
pub use crate::peer::{Memory, reads, words, writes};
use dafs_dat::sim::{SimFaults, SimNetwork};
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, Operation, ProtectionDomain, WorkStatus,
};
use dafs_mem::Site;
use dafs_rpc::client::Procedure;
use dafs_rpc::gss::Acceptor;
use dafs_rpc::server::{Config, Group, RdmaReactor};
use dafs_rpc::{
    AcceptStatus, Call, CallbackError, CallbackRequest, ConnectionId, Handled, Handler, OwnedArgs,
    Reply, Responder,
};
use dafs_wire::rpc::peek;
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, PrivateData};
use dafs_wire::xdr::{Decoder, Payload};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub const PROGRAM: u32 = 0x2000_0099;
/// Answers with its arguments; data outside of them is put back at its position.
pub const ECHO: u32 = 1;
/// As `ECHO`, but data may stay outside of the message.
pub const ECHO_APART: u32 = 2;
/// Answers with its arguments later, from another thread.
pub const LATER: u32 = 3;
/// Takes a length and a seed: returns that many bytes of bulk data, made from the seed, and the
/// word 7.
pub const BULK: u32 = 4;
/// As `BULK`, twice, the second with one byte more.
pub const BULK_TWICE: u32 = 5;
/// Takes a length: returns that many bytes of results that are not bulk.
pub const LONG: u32 = 6;
/// Sends a callback with its arguments; answers with the result when it has arrived.
pub const CALL_BACK: u32 = 7;
/// Never answered.
pub const DROP: u32 = 8;
/// Deferred until the server releases it.
pub const KEEP: u32 = 9;
/// As `BULK`, but the results are stored as bytes first, as in a reply cache.
pub const BULK_KEPT: u32 = 10;
/// Takes data, perhaps outside of the message; answers with its length.
pub const TAKE: u32 = 11;
/// Takes items of data and returns them as bulk data.
pub const MIRROR: u32 = 12;
/// As `MIRROR`, but the items may stay outside of the message.
pub const MIRROR_APART: u32 = 13;

#[derive(Default)]
pub struct Program {
    /// The acceptor of contexts, if the program takes RPCSEC_GSS.
    pub gss: Option<Arc<dyn Acceptor>>,
    /// Calls that the program has seen.
    pub calls: Arc<AtomicUsize>,
    back: Vec<(u64, Responder)>,
    calls_back: u64,
    /// Calls of `KEEP`.
    pub kept: Arc<std::sync::Mutex<Vec<(OwnedArgs, Responder)>>>,
    pub disconnected: Arc<std::sync::Mutex<Vec<ConnectionId>>>,
}

/// Makes the results of `ECHO_APART` from arguments, wherever their data lies.
fn echo(
    mut decoder: Decoder<'_>,
    data: &dyn Fn(&dafs_wire::xdr::MovedData) -> Vec<u8>,
) -> Option<Reply> {
    let mut reply = Reply::new();
    while decoder.remaining() > 0 {
        match decoder.payload(1 << 20).ok()? {
            Payload::Here(bytes) => reply.encoder().opaque(bytes),
            Payload::Moved(moved) => reply.encoder().opaque(&data(&moved)),
        }
    }
    decoder.finish().ok()?;
    Some(reply)
}

fn bulk(reply: &mut Reply, len: usize, fill: u32) {
    reply.encoder().u32(len as u32);
    let mut space = reply.bulk(len).unwrap();
    space.view().fill(fill as u8);
    space.finish(len);
}

impl Handler for Program {
    type Message = ();

    fn gss(&self) -> Option<&Arc<dyn Acceptor>> {
        self.gss.as_ref()
    }

    fn takes_moved_data(&self, program: u32, _version: u32, procedure: u32) -> bool {
        program == PROGRAM && matches!(procedure, ECHO_APART | LATER | TAKE | MIRROR_APART)
    }

    fn call(&mut self, call: Call<'_>) -> Handled {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if call.program != PROGRAM {
            return AcceptStatus::ProgramUnavailable.into();
        }
        let mut decoder = call.decoder();
        match call.procedure {
            0 => Reply::new().into(),
            ECHO => Reply::from_bytes(call.args).into(),
            ECHO_APART => {
                let data = |moved: &_| call.data(moved).unwrap().to_vec(Site::Inspect);
                match echo(decoder, &data) {
                    Some(reply) => reply.into(),
                    None => AcceptStatus::GarbageArgs.into(),
                }
            }
            LATER => {
                let (args, responder) = call.later();
                std::thread::spawn(move || {
                    let data = |moved: &_| args.data(moved).unwrap().to_vec(Site::Inspect);
                    responder.respond(echo(args.decoder(), &data).unwrap());
                });
                Handled::Later
            }
            BULK | BULK_KEPT | BULK_TWICE => {
                let (len, fill) = (decoder.u32().unwrap() as usize, decoder.u32().unwrap());
                let mut reply = call.reply();
                bulk(&mut reply, len, fill);
                if call.procedure == BULK_TWICE {
                    bulk(&mut reply, len + 1, fill + 1);
                }
                reply.encoder().u32(7);
                if call.procedure == BULK_KEPT {
                    reply = Reply::from_bytes(&reply.to_bytes());
                }
                reply.into()
            }
            LONG => {
                let len = decoder.u32().unwrap() as usize;
                Reply::from_bytes(&pattern(len)).into()
            }
            CALL_BACK => {
                let (args, responder) = call.later();
                self.calls_back += 1;
                let token = self.calls_back;
                responder.connection().send_callback(CallbackRequest {
                    program: 77,
                    version: 1,
                    procedure: 2,
                    auth_sys: None,
                    args: args.to_vec(),
                    token,
                });
                self.back.push((token, responder));
                Handled::Later
            }
            KEEP => {
                call.connection().establish();
                self.kept.lock().unwrap().push(call.later());
                Handled::Later
            }
            TAKE => {
                let payload = decoder.payload(1 << 20).unwrap();
                let mut reply = call.reply();
                reply.encoder().u32(payload.len() as u32);
                reply.into()
            }
            MIRROR | MIRROR_APART => {
                let mut reply = call.reply();
                while decoder.remaining() > 0 {
                    let Ok(payload) = decoder.payload(1 << 20) else {
                        return AcceptStatus::GarbageArgs.into();
                    };
                    let data = match payload {
                        Payload::Here(bytes) => bytes.to_vec(),
                        Payload::Moved(moved) => call.data(&moved).unwrap().to_vec(Site::Inspect),
                    };
                    reply.encoder().u32(data.len() as u32);
                    let mut space = reply.bulk(data.len()).unwrap();
                    space.view().copy_from(&data, Site::Inspect);
                    space.finish(data.len());
                }
                reply.into()
            }
            DROP => Handled::Drop,
            _ => AcceptStatus::ProcedureUnavailable.into(),
        }
    }

    fn back_reply(&mut self, _: ConnectionId, token: u64, result: Result<&[u8], CallbackError>) {
        let Some(at) = self.back.iter().position(|(own, _)| *own == token) else { return };
        let (_, responder) = self.back.swap_remove(at);
        let text = match result {
            Ok(results) => results.to_vec(),
            Err(error) => format!("{error:?}").into_bytes(),
        };
        responder.respond(Reply::from_bytes(&text));
    }

    fn disconnected(&mut self, connection: ConnectionId) {
        self.disconnected.lock().unwrap().push(connection);
    }
}

/// A pattern of varied bytes.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ 0x5a) as u8).collect()
}

/// The transport under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sim,
    /// Simulated, with memory that the server can map.
    SimMapped,
    Iwarp,
    Shm,
}

pub const KINDS: [Kind; 4] = [Kind::Sim, Kind::SimMapped, Kind::Iwarp, Kind::Shm];

/// Runs a test on every transport, with a client that has posted this many receives.
pub fn on_every_transport(receives: usize, mut test: impl FnMut(&mut World, &mut Client)) {
    for kind in KINDS {
        // For the reader of a failure.
        println!("on {kind:?}");
        let mut world = World::new(kind);
        let mut client = world.client(Some(TOLD), receives);
        test(&mut world, &mut client);
    }
}

/// A server and a network.
pub struct World {
    pub kind: Kind,
    pub group: Group,
    pub server: RdmaReactor<Program>,
    pub disconnected: Arc<std::sync::Mutex<Vec<ConnectionId>>>,
    pub network: Option<SimNetwork>,
    pub address: Address,
    /// Additional time that has passed.
    pub idle_ns: u64,
    /// The host number of the last client.
    pub next_host: u32,
    /// A meter that is read before and after the server's turns, and its growth in them.
    pub meter: fn() -> u64,
    pub metered: u64,
}

impl World {
    pub fn new(kind: Kind) -> Self {
        Self::with(kind, Config::default())
    }

    pub fn with(kind: Kind, config: Config) -> Self {
        Self::of(kind, config, Program::default())
    }

    pub fn of(kind: Kind, config: Config, program: Program) -> Self {
        let (mut adapter, address, network): (Box<dyn Adapter>, _, _) = match kind {
            Kind::Sim | Kind::SimMapped => {
                let network = SimNetwork::new(7, SimFaults::none());
                network.map_memory(kind == Kind::SimMapped);
                (Box::new(network.adapter(1)), Address::Sim(1), Some(network))
            }
            Kind::Iwarp => (iwarp(), any_iwarp(), None),
            Kind::Shm => (shm(), any_shm(), None),
        };
        let listener = adapter.listen(&address).unwrap();
        let address = adapter.listener_address(listener).unwrap_or(address);
        let group = Group::new(Vec::new(), 1, config).unwrap();
        let disconnected = program.disconnected.clone();
        let server = group.rdma_reactor(vec![adapter], |_| program).unwrap();
        Self {
            kind,
            group,
            server,
            disconnected,
            network,
            address,
            idle_ns: 0,
            next_host: 2,
            meter: || 0,
            metered: 0,
        }
    }

    fn adapter(&mut self) -> Box<dyn Adapter> {
        match (&self.network, self.kind) {
            (Some(network), _) => {
                self.next_host += 1;
                Box::new(network.adapter(self.next_host))
            }
            (None, Kind::Iwarp) => iwarp(),
            (None, _) => shm(),
        }
    }

    pub fn now(&self) -> Instant {
        match &self.network {
            Some(network) => Instant(network.now().0 + self.idle_ns),
            None => Instant(Instant::now().0 + self.idle_ns),
        }
    }

    /// Runs a turn of the server, and simulated time up to the next event.
    pub fn step(&mut self) {
        self.turn();
        if let Some(network) = &self.network
            && let Some(next) = network.next_event()
        {
            network.advance_to(next);
        }
        self.turn();
    }

    fn turn(&mut self) {
        let now = self.now();
        let before = (self.meter)();
        self.server.turn(now.0);
        self.metered += (self.meter)() - before;
    }

    /// A client with this private data and number of posted receives.
    pub fn client(&mut self, private_data: Option<PrivateData>, receives: usize) -> Client {
        let mut client = self.begin_client(private_data, receives);
        self.until(&mut client, |client| client.established.then_some(()));
        client
    }

    /// The same before its connection is established.
    pub fn begin_client(&mut self, private_data: Option<PrivateData>, receives: usize) -> Client {
        let mut adapter = self.adapter();
        let domain = adapter.protection_domain();
        let told = private_data.map(|data| data.encode().to_vec()).unwrap_or_default();
        let endpoint = adapter.connect(domain, &self.address, &told).unwrap();
        let receive_bytes = private_data.map_or(1024, |data| data.receive_bytes as usize);
        let memory = Memory::new(&mut *adapter, domain, 1 << 20, Access::all());
        let mut client = Client {
            adapter,
            domain,
            endpoint,
            memory,
            receive_bytes,
            slots: Vec::new(),
            sent_at: 0,
            received: VecDeque::new(),
            established: false,
            server_told: None,
            invalidated: None,
            ended: None,
            xid: 0x1000,
            credits: 0,
            events: Vec::new(),
        };
        (0..receives).for_each(|_| client.receive());
        client
    }

    /// Steps until the client has what `find` looks for.
    pub fn until<T>(
        &mut self,
        client: &mut Client,
        mut look: impl FnMut(&mut Client) -> Option<T>,
    ) -> T {
        let start = std::time::Instant::now();
        loop {
            let now = self.now();
            client.poll(now);
            if let Some(found) = look(client) {
                return found;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "nothing came; ended: {:?}",
                client.ended
            );
            client.adapter.flush();
            self.step();
        }
    }

    /// The next message to the client.
    pub fn message(&mut self, client: &mut Client) -> (Header, Vec<u8>) {
        self.until(client, |client| client.received.pop_front())
    }

    /// Makes a call and returns the whole answer: header and body.
    pub fn call(
        &mut self,
        client: &mut Client,
        procedure: u32,
        args: &[u8],
        chunks: Chunks,
    ) -> (Header, Vec<u8>) {
        client.ask(procedure, args, chunks);
        let (header, rest) = self.message(client);
        assert_eq!(header.xid, client.xid);
        (header, rest)
    }

    /// As `call`, for an inline reply; returns the results.
    pub fn results(
        &mut self,
        client: &mut Client,
        procedure: u32,
        args: &[u8],
        chunks: Chunks,
    ) -> Vec<u8> {
        let (header, rest) = self.call(client, procedure, args, chunks);
        assert!(matches!(header.body, Body::Message(_)), "{header:?}");
        results(&rest)
    }

    /// Steps until the connection of the client has ended.
    pub fn end(&mut self, client: &mut Client) -> String {
        self.until(client, |client| client.ended.clone())
    }
}

/// The results of a successful reply.
pub fn results(message: &[u8]) -> Vec<u8> {
    let (xid, _) = peek(message).unwrap();
    let (status, results) = peer::reply(xid, message);
    assert_eq!(status, AcceptStatus::Success);
    results
}

/// A raw client.
pub struct Client {
    pub adapter: Box<dyn Adapter>,
    pub domain: ProtectionDomain,
    pub endpoint: EndpointId,
    /// For chunks.
    pub memory: Memory,
    receive_bytes: usize,
    slots: Vec<Memory>,
    sent_at: usize,
    pub received: VecDeque<(Header, Vec<u8>)>,
    established: bool,
    pub server_told: Option<PrivateData>,
    /// The last key that a message has invalidated.
    pub invalidated: Option<u32>,
    pub ended: Option<String>,
    pub xid: u32,
    /// The last credit grant.
    pub credits: u32,
    events: Vec<Event>,
}

impl Client {
    pub fn receive(&mut self) {
        let slot =
            Memory::new(&mut *self.adapter, self.domain, self.receive_bytes, Access::LOCAL_WRITE);
        let segment = slot.region.local(0, self.receive_bytes);
        self.adapter.post_receive(self.endpoint, self.slots.len() as u64, segment).unwrap();
        self.slots.push(slot);
    }

    pub fn poll(&mut self, now: Instant) {
        let mut events = std::mem::take(&mut self.events);
        self.adapter.poll(now, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Completion(done) => {
                    if let (Operation::Receive, WorkStatus::Ok(len)) = (done.operation, done.status)
                    {
                        let bytes = self.slots[done.work as usize].get(0, len as usize);
                        let (header, at) = Header::decode(&bytes).unwrap();
                        self.credits = header.credits;
                        self.invalidated = done.invalidated.or(self.invalidated);
                        self.received.push_back((header, bytes[at..].to_vec()));
                        self.receive();
                    }
                }
                Event::Established { private_data, .. } => {
                    self.established = true;
                    self.server_told = PrivateData::find(&private_data);
                }
                Event::ConnectFailed { error, .. } => self.ended = Some(error.to_string()),
                Event::Disconnected { reason, .. } => self.ended = Some(reason.to_string()),
                Event::ConnectRequest { .. } => panic!("nobody connects to a client"),
            }
        }
        self.events = events;
    }

    /// The RPC message of a call with the next XID.
    pub fn call_message(&mut self, procedure: u32, args: &[u8]) -> Vec<u8> {
        self.xid += 1;
        peer::call(self.xid, Procedure { program: PROGRAM, version: 1, procedure }, args)
    }

    /// Sends a message with the last XID.
    pub fn send(&mut self, body: Body, rest: &[u8]) {
        self.send_bytes(&message(&Header { xid: self.xid, credits: 32, body }, rest));
    }

    /// Sends a call with the next XID.
    pub fn ask(&mut self, procedure: u32, args: &[u8], chunks: Chunks) {
        let message = self.call_message(procedure, args);
        self.send(Body::Message(chunks), &message);
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        // Messages use the end of the memory; a place is reused after many others.
        let at = (1 << 19) + self.sent_at;
        self.sent_at = (self.sent_at + 8192) % (1 << 19);
        self.memory.put(at, bytes);
        let segment = self.memory.region.local(at, bytes.len());
        self.adapter.post_send(self.endpoint, 0, &[segment]).unwrap();
    }
}

/// The private data of a client like that of Linux.
pub const TOLD: PrivateData =
    PrivateData { remote_invalidation: false, send_bytes: 4096, receive_bytes: 4096 };

/// The length of a call's header without a credential.
pub const CALL_BYTES: u32 = 40;

pub fn lengths(chunk: &Chunk) -> Vec<u32> {
    chunk.segments.iter().map(|segment| segment.length).collect()
}
