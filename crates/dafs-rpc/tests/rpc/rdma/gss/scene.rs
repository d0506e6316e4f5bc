//! A server over RDMA that takes RPCSEC_GSS, and a client with a context.

use super::toy::{self, Client as Initiator};
use crate::rdma::common::*;
use dafs_dat::connections::Origin;
use dafs_rpc::gss::{Acceptor, ContextLimits, Contexts, Job, PartialContext};
use dafs_rpc::server::Config;
use dafs_rpc::{OwnedArgs, Responder};
use dafs_wire::rpc::gss::{Credential, Service};
use dafs_wire::rpcrdma::{Body, Chunks, Header};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];

/// The XID of all messages of the toy mechanism.
const XID: u32 = 77;

/// Places in the client's memory: of long calls, of reply chunks, of write chunks.
pub const CALL_AT: usize = 0;
pub const REPLY_AT: usize = 200_000;
pub const WRITE_AT: usize = 400_000;

/// Runs steps of the mechanism at once, or keeps them for the test.
pub struct Door {
    contexts: Arc<Contexts>,
    pub kept: Option<Mutex<Vec<Job>>>,
}

impl Acceptor for Door {
    fn contexts(&self) -> &Arc<Contexts> {
        &self.contexts
    }

    fn begin(&self) -> Box<dyn PartialContext> {
        toy::begin()
    }

    fn run(&self, _: Origin, job: Job) {
        match &self.kept {
            Some(kept) => kept.lock().unwrap().push(job),
            None => job(),
        }
    }
}

pub struct Scene {
    pub world: World,
    pub client: Client,
    pub me: Initiator,
    pub sequence: u32,
    pub door: Arc<Door>,
    /// Calls that the handler has seen.
    pub calls: Arc<AtomicUsize>,
    pub kept: Arc<Mutex<Vec<(OwnedArgs, Responder)>>>,
}

impl Scene {
    /// A client whose context was established elsewhere, as over TCP.
    pub fn new(kind: Kind) -> Self {
        Self::with(kind, false)
    }

    pub fn with(kind: Kind, keeps_steps: bool) -> Self {
        // For the reader of a failure.
        println!("on {kind:?}");
        let server = toy::Server::new(ContextLimits::default());
        let kept = keeps_steps.then(Mutex::default);
        let door = Arc::new(Door { contexts: server.contexts.clone(), kept });
        let mut program = Program::default();
        program.gss = Some(door.clone());
        let (calls, kept) = (program.calls.clone(), program.kept.clone());
        let mut world = World::of(kind, Config::default(), program);
        server.now_ns.store(world.now().0, Ordering::Relaxed);
        let me = Initiator::from_host(&server, 9, 200, "anna", Origin::Sim(99));
        let client = world.client(Some(TOLD), 16);
        Self { world, client, me, sequence: 0, door, calls, kept }
    }

    /// The message of the next call.
    pub fn message(&mut self, procedure: u32, service: Service, args: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let credential = Credential::Data(self.me.fields(self.sequence, service));
        let body = self.me.body(self.sequence, service, args);
        self.me.message(procedure, credential, &body)
    }

    /// Sends a message inline.
    pub fn send(&mut self, message: &[u8], chunks: Chunks) {
        self.client.xid = XID;
        self.client.send(Body::Message(chunks), message);
    }

    /// Sends a message in a position-zero read chunk.
    pub fn send_long(&mut self, message: &[u8], mut chunks: Chunks) {
        self.client.memory.put(CALL_AT, message);
        chunks.reads.push(self.client.memory.read(0, CALL_AT, message.len()));
        self.client.xid = XID;
        self.client.send(Body::NoMessage(chunks), b"");
    }

    /// The next message from the server.
    pub fn answer(&mut self) -> (Header, Vec<u8>) {
        self.world.message(&mut self.client)
    }

    /// Calls inline, and returns the whole answer.
    pub fn call(
        &mut self,
        procedure: u32,
        service: Service,
        args: &[u8],
        chunks: Chunks,
    ) -> (Header, Vec<u8>) {
        let message = self.message(procedure, service, args);
        self.send(&message, chunks);
        self.answer()
    }

    /// Calls inline without chunks, and returns the results.
    pub fn results(&mut self, procedure: u32, service: Service, args: &[u8]) -> Vec<u8> {
        let answer = self.call(procedure, service, args, Chunks::default());
        self.results_of(service, &answer)
    }

    /// The reply, inline or in the reply chunk.
    pub fn reply(&self, (header, rest): &(Header, Vec<u8>)) -> Vec<u8> {
        match &header.body {
            Body::Message(_) => rest.clone(),
            Body::NoMessage(chunks) => {
                let len: u32 = lengths(chunks.reply.as_ref().unwrap()).iter().sum();
                self.client.memory.get(REPLY_AT, len as usize)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The results of the last call, verified.
    pub fn results_of(&self, service: Service, answer: &(Header, Vec<u8>)) -> Vec<u8> {
        self.me.results(self.sequence, service, &self.reply(answer))
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}
