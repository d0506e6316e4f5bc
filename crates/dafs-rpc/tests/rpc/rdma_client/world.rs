//! A client on the simulated network, and a server that sends exactly what a test says.

use crate::peer::{Memory, Message, message, remote, success};
use dafs_dat::sim::{SimAdapter, SimFaults, SimNetwork};
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Operation, ProtectionDomain, WorkStatus,
};
use dafs_rpc::client::{BackHandler, Options, Port, Procedure, RpcClient};
use dafs_wire::rpc::CallHeader;
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, PrivateData, Segment};
use dafs_wire::xdr::Decoder;
use std::collections::VecDeque;

pub(crate) const PROCEDURE: Procedure =
    Procedure { program: 0x2000_0077, version: 3, procedure: 9 };

const SERVER: u32 = 1;
const CLIENT: u32 = 2;

/// Turns without an event after which a test fails.
const TURNS_MAX: usize = 20_000;

const RECEIVE_BYTES: usize = 8 << 10;
const RECEIVES: usize = 64;
const DATA_BYTES: usize = 4 << 20;

/// The first XID.
pub(crate) const FIRST_XID: u32 = 700;

pub(crate) struct World {
    pub(crate) net: SimNetwork,
    pub(crate) port: Port,
    server: SimAdapter,
    domain: ProtectionDomain,
    /// Memory for receives, one after the other.
    receives: Memory,
    /// Memory to send, write or read.
    data: Memory,
    data_at: usize,
    pub(crate) endpoint: Option<EndpointId>,
    /// The client's private data from the connection set-up.
    pub(crate) private_data: Vec<u8>,
    answer: Vec<u8>,
    inbox: VecDeque<Vec<u8>>,
    /// RDMA operations of the server that are not complete.
    transfers: usize,
    is_established: bool,
    pub(crate) is_disconnected: bool,
}

/// The header and the arguments of a call.
pub(crate) fn args(rpc: &[u8]) -> (u32, Vec<u8>) {
    let mut decoder = Decoder::new(rpc);
    let header = CallHeader::decode(&mut decoder).unwrap();
    assert_eq!((header.program, header.version, header.procedure), (0x2000_0077, 3, 9));
    (header.xid, decoder.rest().to_vec())
}

/// The part of `segment` that a reply returns.
pub(crate) fn chunk(segment: Segment, length: usize) -> Chunk {
    Chunk { segments: [Segment { length: length as u32, ..segment }].into_iter().collect() }
}

impl World {
    /// A server for messages of `inline` bytes; it announces that size unless it is `None`.
    pub(crate) fn new(inline: Option<u32>) -> Self {
        let net = SimNetwork::new(7, SimFaults::none());
        let mut server = net.adapter(SERVER);
        let domain = server.protection_domain();
        server.listen(&Address::Sim(SERVER)).unwrap();
        let mut memory = |bytes| Memory::new(&mut server, domain, bytes, Access::LOCAL_WRITE);
        let (receives, data) = (memory(RECEIVE_BYTES * RECEIVES), memory(DATA_BYTES));
        let answer = inline.map_or(Vec::new(), |bytes| {
            let told =
                PrivateData { remote_invalidation: true, send_bytes: bytes, receive_bytes: bytes };
            told.encode().to_vec()
        });
        let port = Port::new(Box::new(net.adapter(CLIENT))).unwrap();
        Self {
            net,
            port,
            server,
            domain,
            receives,
            data,
            data_at: 0,
            endpoint: None,
            private_data: Vec::new(),
            answer,
            inbox: VecDeque::new(),
            transfers: 0,
            is_established: false,
            is_disconnected: false,
        }
    }

    pub(crate) fn connect(&mut self, options: Options, back: Option<BackHandler>) -> RpcClient {
        self.endpoint = None;
        (self.is_established, self.is_disconnected) = (false, false);
        let address = Address::Sim(SERVER);
        let client = RpcClient::begin_rdma(&self.port, &address, options, back, FIRST_XID).unwrap();
        self.until(|world| client.is_connected() && world.is_established);
        client
    }

    /// Runs events until `done`.
    pub(crate) fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..TURNS_MAX {
            self.turn();
            if done(self) {
                return;
            }
        }
        panic!("it does not happen");
    }

    /// Runs all pending events.
    pub(crate) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            idle = if self.turn() { 0 } else { idle + 1 };
        }
    }

    /// Runs one event; returns false when there is none.
    fn turn(&mut self) -> bool {
        let next = self.net.next_event();
        if let Some(next) = next {
            self.net.advance_to(next);
        }
        self.port.poll(self.net.now());
        let mut events = Vec::new();
        self.server.poll(self.net.now(), &mut events);
        for event in events.drain(..) {
            self.handle(event);
        }
        self.server.flush();
        next.is_some()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ConnectRequest { request, private_data, .. } => {
                self.private_data = *private_data;
                let endpoint = self.server.accept(request, self.domain, &self.answer).unwrap();
                self.endpoint = Some(endpoint);
                (0..RECEIVES as u64).for_each(|slot| self.post_receive(slot));
            }
            Event::Completion(done) => match (done.operation, done.status) {
                (Operation::Receive, WorkStatus::Ok(bytes)) => {
                    let at = done.work as usize * RECEIVE_BYTES;
                    self.inbox.push_back(self.receives.get(at, bytes as usize));
                    self.post_receive(done.work);
                }
                (Operation::RdmaRead | Operation::RdmaWrite, _) => self.transfers -= 1,
                _ => {}
            },
            Event::Established { .. } => self.is_established = true,
            Event::Disconnected { .. } => self.is_disconnected = true,
            _ => {}
        }
    }

    fn post_receive(&mut self, slot: u64) {
        let segment = self.receives.region.local(slot as usize * RECEIVE_BYTES, RECEIVE_BYTES);
        // The connection may be over.
        let _ = self.server.post_receive(self.endpoint.unwrap(), slot, segment);
    }

    /// The next message that arrives.
    pub(crate) fn receive(&mut self) -> Message {
        self.until(|world| !world.inbox.is_empty());
        Message::parse(&self.inbox.pop_front().unwrap())
    }

    /// Messages that have arrived and were not taken.
    pub(crate) fn arrived(&self) -> usize {
        self.inbox.len()
    }

    fn store(&mut self, bytes: &[u8]) -> usize {
        let at = if self.data_at + bytes.len() > DATA_BYTES { 0 } else { self.data_at };
        self.data.put(at, bytes);
        self.data_at = at + bytes.len();
        at
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        let at = self.store(bytes);
        let segment = self.data.region.local(at, bytes.len());
        self.server.post_send(self.endpoint.unwrap(), 99, &[segment]).unwrap();
    }

    pub(crate) fn send(&mut self, xid: u32, credits: u32, body: Body, rpc: &[u8]) {
        self.send_bytes(&message(&Header { xid, credits, body }, rpc));
    }

    /// Sends an RPC message without chunks.
    pub(crate) fn send_plain(&mut self, xid: u32, credits: u32, rpc: &[u8]) {
        self.send(xid, credits, Body::Message(Chunks::default()), rpc);
    }

    /// Answers a call with plain results.
    pub(crate) fn answer(&mut self, call: &Message, credits: u32, results: &[u8]) {
        let xid = call.header.xid;
        self.send_plain(xid, credits, &success(xid, results));
    }

    /// Writes to the client's memory.
    pub(crate) fn write(&mut self, segment: Segment, bytes: &[u8]) {
        let at = self.store(bytes);
        let local = self.data.region.local(at, bytes.len());
        let endpoint = self.endpoint.unwrap();
        self.transfers += 1;
        self.server
            .rdma_write(
                endpoint,
                1,
                &[local],
                remote(Segment { length: bytes.len() as u32, ..segment }),
            )
            .unwrap();
    }

    /// Reads the client's memory.
    pub(crate) fn read(&mut self, segment: Segment) -> Vec<u8> {
        let len = segment.length as usize;
        let at = self.store(&vec![0; len]);
        let local = self.data.region.local(at, len);
        self.transfers += 1;
        self.server.rdma_read(self.endpoint.unwrap(), 2, local, remote(segment)).unwrap();
        self.until(|world| world.transfers == 0);
        self.data.get(at, len)
    }

    pub(crate) fn posted_by_client(&self) -> usize {
        let endpoints = self.net.endpoints(CLIENT);
        endpoints.iter().map(|endpoint| self.net.posted_receives(*endpoint)).sum()
    }

    pub(crate) fn regions_of_client(&self) -> usize {
        self.net.region_count(CLIENT)
    }
}
