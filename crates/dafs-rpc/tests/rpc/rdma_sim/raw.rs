//! One raw end of a connection: an adapter of the simulated network that sends arbitrary messages
//! and shows the answers.

use super::net::{Net, SERVER_HOST};
use dafs_dat::sim::SimAdapter;
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, ListenerId, MemoryRegion, Operation,
    PostError, ProtectionDomain, RemoteBuffer, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use dafs_wire::rpc::{AcceptStatus, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, HeaderFault, ReadSegment, Segment};
use dafs_wire::xdr::{Decoder, Encode, Encoder};
use std::collections::VecDeque;
use std::sync::Arc;

/// Receives that it keeps posted; below, their size in bytes.
const SLOTS: usize = 64;
const SLOT_BYTES: usize = 16 << 10;

/// Registered memory of the peer.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) region: MemoryRegion,
}

impl Memory {
    pub(crate) fn segment(&self, offset: usize, len: usize) -> Segment {
        let offset = self.region.address.wrapping_add(offset as u64);
        Segment { handle: self.region.key, length: len as u32, offset }
    }

    pub(crate) fn chunk(&self, offset: usize, len: usize) -> Chunk {
        chunk(&[self.segment(offset, len)])
    }

    pub(crate) fn read(&self, position: u32, offset: usize, len: usize) -> ReadSegment {
        ReadSegment { position, segment: self.segment(offset, len) }
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        let place = self.buffer.slice(at, bytes.len()).expect("inside the region");
        place.copy_from(bytes, Site::Inspect);
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.buffer.slice(at, len).expect("inside the region").to_vec(Site::Inspect)
    }
}

pub(crate) fn chunk(segments: &[Segment]) -> Chunk {
    Chunk { segments: segments.iter().copied().collect() }
}

/// A message from the other end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub(crate) header: Header,
    /// The bytes after the header.
    pub(crate) body: Vec<u8>,
}

impl Message {
    fn parse(bytes: &[u8]) -> Self {
        let (header, len) = Header::decode(bytes).expect("the other end sends good headers");
        Self { header, body: bytes[len..].to_vec() }
    }

    pub(crate) fn chunks(&self) -> &Chunks {
        match &self.header.body {
            Body::Message(chunks) | Body::NoMessage(chunks) => chunks,
            other => panic!("no message but {other:?}"),
        }
    }

    /// The fault that the message reports.
    pub(crate) fn fault(&self) -> Option<HeaderFault> {
        match self.header.body {
            Body::Error(fault) => Some(fault),
            _ => None,
        }
    }

    /// The status and the results of an RPC reply that came inline.
    pub(crate) fn reply(&self) -> (AcceptStatus, Vec<u8>) {
        assert!(matches!(self.header.body, Body::Message(_)), "{self:?}");
        reply(self.header.xid, &self.body)
    }
}

/// The status and the results of an RPC reply.
pub(crate) fn reply(xid: u32, bytes: &[u8]) -> (AcceptStatus, Vec<u8>) {
    let mut decoder = Decoder::new(bytes);
    let header: ReplyHeader<'_> = decoder.value().expect("a reply");
    assert_eq!(header.xid, xid, "the header and the reply name the same call");
    let ReplyStatus::Accepted { status, .. } = header.status else { panic!("{header:?}") };
    (status, decoder.rest().to_vec())
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    Connecting,
    Up,
    Over(String),
}

/// The raw peer.
pub(crate) struct Raw {
    adapter: SimAdapter,
    pub(crate) domain: ProtectionDomain,
    state: State,
    endpoint: Option<EndpointId>,
    listener: Option<ListenerId>,
    /// The other end's private data from the connection set-up.
    pub(crate) told: Vec<u8>,
    slots: Memory,
    /// True if consumed receives are posted again.
    pub(crate) reposts: bool,
    pub(crate) inbox: VecDeque<Message>,
    /// Keys of this end that the other end has invalidated.
    pub(crate) invalidated: Vec<u32>,
    sends: u64,
    /// A key of the other end that the next message invalidates.
    dying: Option<u32>,
}

impl Raw {
    /// A peer in a process of a host.
    pub(crate) fn new(net: &Net, host: u32) -> Self {
        let mut adapter = net.network.adapter(host);
        let domain = adapter.protection_domain();
        let slots = register(&mut adapter, domain, SLOTS * SLOT_BYTES, Access::LOCAL_WRITE);
        Self {
            adapter,
            domain,
            state: State::Connecting,
            endpoint: None,
            listener: None,
            told: Vec::new(),
            slots,
            reposts: true,
            inbox: VecDeque::new(),
            invalidated: Vec::new(),
            sends: 0,
            dying: None,
        }
    }

    /// A client with a connection to the server of the world.
    pub(crate) fn connect(net: &mut Net, host: u32, private_data: &[u8]) -> Self {
        let mut raw = Self::new(net, host);
        raw.dial(private_data);
        net.settle(&mut [&mut raw]);
        assert_eq!(raw.state, State::Up);
        raw
    }

    /// Starts to connect.
    pub(crate) fn dial(&mut self, private_data: &[u8]) {
        let address = Address::Sim(SERVER_HOST);
        let endpoint = self.adapter.connect(self.domain, &address, private_data);
        let endpoint = endpoint.expect("a simulated address");
        self.endpoint = Some(endpoint);
        self.state = State::Connecting;
        (0..SLOTS).for_each(|slot| self.post(slot));
    }

    /// Listens in place of a server, and accepts the next connection.
    pub(crate) fn listen(&mut self) {
        let listener = self.adapter.listen(&Address::Sim(SERVER_HOST));
        self.listener = Some(listener.expect("nobody else listens there"));
    }

    /// Registers memory with these rights.
    pub(crate) fn memory_with(&mut self, len: usize, access: Access) -> Memory {
        register(&mut self.adapter, self.domain, len, access)
    }

    /// Registers memory with all rights for the other end.
    pub(crate) fn memory(&mut self, len: usize) -> Memory {
        self.memory_with(len, Access::all())
    }

    /// Registers memory in another protection domain.
    pub(crate) fn foreign_memory(&mut self, len: usize) -> Memory {
        let domain = self.adapter.protection_domain();
        register(&mut self.adapter, domain, len, Access::all())
    }

    pub(crate) fn deregister(&mut self, memory: &Memory) {
        self.adapter.deregister(memory.region.id);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// The reason why the connection has ended.
    pub(crate) fn ending(&self) -> Option<&str> {
        match &self.state {
            State::Over(reason) => Some(reason),
            _ => None,
        }
    }

    /// Sends bytes as one message.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let endpoint = self.endpoint.expect("connected");
        let memory = self.memory_with(bytes.len().max(1), Access::empty());
        memory.put(0, bytes);
        self.sends += 1;
        let segment = memory.region.local(0, bytes.len());
        let work = SLOTS as u64 + self.sends;
        let posted = match self.dying.take() {
            Some(key) => self.adapter.post_send_invalidate(endpoint, work, &[segment], key),
            None => self.adapter.post_send(endpoint, work, &[segment]),
        };
        // The connection may have ended already; an event reports that.
        assert!(matches!(posted, Ok(()) | Err(PostError::NotConnected)), "{posted:?}");
        self.adapter.flush();
        // The posted send keeps its memory.
        self.deregister(&memory);
    }

    /// Sends bytes as one message that invalidates a key of the other end.
    pub(crate) fn send_invalidate(&mut self, bytes: &[u8], key: u32) {
        self.dying = Some(key);
        self.send(bytes);
    }

    /// Sends a message with this header.
    pub(crate) fn send_message(&mut self, header: &Header, body: &[u8]) {
        self.send(&message(header, body));
    }

    /// Sends a call with these chunks; `args` are the inline arguments.
    pub(crate) fn call(&mut self, xid: u32, procedure: u32, chunks: Chunks, args: &[u8]) {
        let header = Header { xid, credits: 16, body: Body::Message(chunks) };
        self.send_message(&header, &call(xid, procedure, args));
    }

    /// Writes into the other end's memory.
    pub(crate) fn write(&mut self, from: &Memory, remote: RemoteBuffer) {
        let endpoint = self.endpoint.expect("connected");
        self.sends += 1;
        let segment = from.region.local(0, remote.len as usize);
        let work = SLOTS as u64 + self.sends;
        let posted = self.adapter.rdma_write(endpoint, work, &[segment], remote);
        assert!(matches!(posted, Ok(()) | Err(PostError::NotConnected)), "{posted:?}");
        self.adapter.flush();
    }

    /// Flushes posted work.
    pub(crate) fn flush(&mut self) {
        self.adapter.flush();
    }

    /// Ends the connection.
    pub(crate) fn abort(&mut self) {
        if let Some(endpoint) = self.endpoint {
            self.adapter.abort(endpoint);
        }
    }

    /// The next message, which must have arrived.
    pub(crate) fn heard(&mut self) -> Message {
        self.inbox.pop_front().unwrap_or_else(|| panic!("no message; {:?}", self.state))
    }

    fn post(&mut self, slot: usize) {
        let Some(endpoint) = self.endpoint else { return };
        let segment = self.slots.region.local(slot * SLOT_BYTES, SLOT_BYTES);
        // The connection may have ended already; an event reports that.
        let _ = self.adapter.post_receive(endpoint, slot as u64, segment);
    }

    /// Handles events. Returns true if there were any.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        let mut events = Vec::new();
        self.adapter.poll(now, &mut events);
        let any = !events.is_empty();
        for event in events {
            self.take(event);
        }
        any
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Established { private_data, .. } => {
                self.told = *private_data;
                self.state = State::Up;
            }
            Event::ConnectRequest { request, private_data, .. } => {
                self.told = *private_data;
                let accepted = self.adapter.accept(request, self.domain, &[]);
                self.endpoint = Some(accepted.expect("the peer waits"));
                self.state = State::Connecting;
                (0..SLOTS).for_each(|slot| self.post(slot));
            }
            Event::Completion(completion) => {
                let WorkStatus::Ok(len) = completion.status else { return };
                if completion.operation != Operation::Receive {
                    return;
                }
                self.invalidated.extend(completion.invalidated);
                let slot = completion.work as usize;
                let bytes = self.slots.get(slot * SLOT_BYTES, len as usize);
                self.inbox.push_back(Message::parse(&bytes));
                if self.reposts {
                    self.post(slot);
                }
            }
            Event::ConnectFailed { error, .. } => self.state = State::Over(error.to_string()),
            Event::Disconnected { reason, .. } => {
                self.state = State::Over(reason.to_string());
                self.endpoint = None;
            }
        }
    }
}

fn register(
    adapter: &mut SimAdapter,
    domain: ProtectionDomain,
    len: usize,
    access: Access,
) -> Memory {
    let buffer = adapter.allocate(len).expect("memory");
    let region = adapter.register(domain, buffer.clone(), access).expect("few regions");
    Memory { buffer, region }
}

/// A message with this header.
pub(crate) fn message(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.encode(&mut Encoder::new(&mut bytes));
    bytes.extend_from_slice(body);
    bytes
}

/// An RPC call.
pub(crate) fn call(xid: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
    let none = OpaqueAuth::NONE;
    let (program, version) = (super::program::PROGRAM, 1);
    let header = CallHeader { xid, program, version, procedure, credential: none, verifier: none };
    let mut bytes = Vec::new();
    header.encode(&mut Encoder::new(&mut bytes));
    bytes.extend_from_slice(args);
    bytes
}

/// XDR words.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}
