//! A client that knows only the wire format. It counts streams and credits by the protocol, and can
//! violate every rule on purpose.

use dafs_dat::sim::SimAdapter;
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, MemoryRegion, Operation,
    ProtectionDomain, RegionId, RemoteBuffer, WorkStatus,
};
use dafs_mem::{Buffer, Mutex, Site};
use dafs_wire::dafs::{
    ByteOrder, DirectBuffer, ErrorBody, Outcome, Procedure, Reply, Request, RequestHeader,
    ResponseHeader, Status, decode_request, decode_response, encode_error, encode_request,
    encode_response, seal, verify,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const MESSAGE_BYTES: usize = 32 << 10;
const RECEIVES: u64 = 300;

/// The server's host on simulated networks.
pub const SERVER: u32 = 1;

struct Stream {
    next_seq: u16,
    busy: Option<Procedure>,
}

/// A received reply.
#[derive(Debug)]
pub struct Answer {
    pub bytes: Vec<u8>,
    pub order: ByteOrder,
    pub procedure: Procedure,
}

impl Answer {
    pub fn header(&self) -> ResponseHeader {
        ResponseHeader::decode(&self.bytes, self.order).unwrap()
    }

    pub fn status(&self) -> Status {
        self.header().status
    }

    pub fn reply(&self) -> Result<Reply<'_>, Status> {
        self.outcome().into_result()
    }

    pub fn outcome(&self) -> Outcome<'_> {
        decode_response(&self.bytes, self.order, self.procedure).unwrap().1
    }

    pub fn error_body(&self) -> ErrorBody<'_> {
        match self.outcome() {
            Outcome::Error { body, .. } => body,
            Outcome::Ok(reply) => panic!("no error: {reply:?}"),
        }
    }
}

/// Memory that the server may access by RDMA.
pub struct Memory {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
}

impl Memory {
    pub fn bytes(&self) -> Vec<u8> {
        self.buffer.view().to_vec(Site::Inspect)
    }

    pub fn set(&self, bytes: &[u8]) {
        self.buffer.slice(0, bytes.len()).unwrap().copy_from(bytes, Site::Inspect);
    }

    /// Returns the piece as a request names it. It may lie outside the memory.
    pub fn direct(&self, offset: u64, byte_count: u32) -> DirectBuffer {
        DirectBuffer {
            address: self.region.address.wrapping_add(offset),
            byte_count,
            context: self.region.key,
        }
    }
}

/// The state that connections of one process share.
struct Process {
    adapter: Box<dyn Adapter>,
    address: Address,
    domain: ProtectionDomain,
    /// Events that no connection has taken yet.
    events: Vec<Event>,
}

pub struct Client {
    process: Arc<Mutex<Process>>,
    pub endpoint: EndpointId,
    pub order: ByteOrder,
    /// Requests have a checksum, and replies are verified.
    pub checksums: bool,
    pub desired: u16,
    pub cred: u32,
    pub flags: u16,
    pub version: u32,
    pub credits: u16,
    /// The target of the last reply.
    pub target: u16,
    pub established: bool,
    /// The reason why the connection is over.
    pub closed: Option<String>,
    receives: (Arc<Buffer>, MemoryRegion),
    sends: Vec<RegionId>,
    streams: Vec<Stream>,
    answers: BTreeMap<u16, Answer>,
    outstanding: u16,
    /// Replies to requests that were sent raw.
    pub stray: Vec<Vec<u8>>,
    /// Unanswered calls of the server on this channel.
    pub calls: Vec<CallbackRequest>,
    /// The number of own RDMA reads that are done.
    pub reads_done: usize,
}

/// A received call of the server.
#[derive(Debug)]
pub struct CallbackRequest {
    pub bytes: Vec<u8>,
    pub order: ByteOrder,
}

impl CallbackRequest {
    pub fn header(&self) -> RequestHeader {
        RequestHeader::decode(&self.bytes, self.order).unwrap()
    }

    pub fn request(&self) -> Request<'_> {
        decode_request(&self.bytes, self.order, 0).unwrap().1
    }
}

impl Client {
    /// Opens a connection of a process of its own.
    pub fn connect(adapter: SimAdapter, channel: u32, order: ByteOrder) -> Self {
        Self::connect_to(Box::new(adapter), Address::Sim(SERVER), channel, order)
    }

    /// Opens a connection to any address.
    pub fn connect_to(
        mut adapter: Box<dyn Adapter>,
        address: Address,
        channel: u32,
        order: ByteOrder,
    ) -> Self {
        let domain = adapter.protection_domain();
        let process = Process { adapter, address, domain, events: Vec::new() };
        Self::connect_in(Arc::new(Mutex::new(process)), channel, order)
    }

    /// Opens a further connection of this client's process.
    pub fn beside(&self, channel: u32, order: ByteOrder) -> Self {
        Self::connect_in(self.process.clone(), channel, order)
    }

    fn connect_in(process: Arc<Mutex<Process>>, channel: u32, order: ByteOrder) -> Self {
        let mut guard = process.lock();
        let Process { adapter, address, domain, .. } = &mut *guard;
        let domain = *domain;
        let mut private = [0; 16];
        let words = [0x4441_4653, 7, 8, channel];
        for (slot, word) in private.chunks_exact_mut(4).zip(words) {
            let bytes: [u8; 4] = match order {
                ByteOrder::Big => u32::to_be_bytes(word),
                ByteOrder::Little => u32::to_le_bytes(word),
            };
            slot.copy_from_slice(&bytes);
        }
        let endpoint = adapter.connect(domain, address, &private).unwrap();
        let buffer = Arc::new(Buffer::zeroed(RECEIVES as usize * MESSAGE_BYTES).unwrap());
        let region = adapter.register(domain, buffer.clone(), Access::LOCAL_WRITE).unwrap();
        for slot in 0..RECEIVES {
            let segment = region.local(slot as usize * MESSAGE_BYTES, MESSAGE_BYTES);
            adapter.post_receive(endpoint, slot, segment).unwrap();
        }
        drop(guard);
        Self {
            process,
            endpoint,
            order,
            checksums: false,
            desired: 0,
            cred: 0,
            flags: 0,
            version: 1,
            credits: 1,
            target: 1,
            established: false,
            closed: None,
            receives: (buffer, region),
            sends: Vec::new(),
            streams: Vec::new(),
            answers: BTreeMap::new(),
            outstanding: 0,
            stray: Vec::new(),
            calls: Vec::new(),
            reads_done: 0,
        }
    }

    /// Registers memory for direct transfers.
    pub fn memory(&mut self, bytes: usize) -> Memory {
        self.memory_with(bytes, Access::REMOTE_READ | Access::REMOTE_WRITE)
    }

    /// Registers memory with these bytes in it.
    pub fn memory_of(&mut self, bytes: &[u8]) -> Memory {
        let memory = self.memory(bytes.len());
        memory.set(bytes);
        memory
    }

    pub fn memory_with(&mut self, bytes: usize, access: Access) -> Memory {
        let domain = self.process.lock().domain;
        self.memory_in(domain, bytes, access)
    }

    /// Registers memory of another protection domain of this process.
    pub fn foreign_memory(&mut self, bytes: usize) -> Memory {
        let domain = self.process.lock().adapter.protection_domain();
        self.memory_in(domain, bytes, Access::REMOTE_READ | Access::REMOTE_WRITE)
    }

    fn memory_in(&mut self, domain: ProtectionDomain, bytes: usize, access: Access) -> Memory {
        let buffer = Arc::new(Buffer::zeroed(bytes).unwrap());
        let region = self.process.lock().adapter.register(domain, buffer.clone(), access).unwrap();
        Memory { buffer, region }
    }

    /// Returns the header of the next request on a stream.
    pub fn header(&mut self, stream: u16) -> RequestHeader {
        while self.streams.len() <= usize::from(stream) {
            self.streams.push(Stream { next_seq: 1, busy: None });
        }
        RequestHeader {
            protocol_version: self.version,
            desired_nreq: self.desired,
            chain_flags: dafs_wire::dafs::ChainFlags::from_bits_retain(self.flags),
            stream_id: stream,
            seq_number: self.streams[usize::from(stream)].next_seq,
            cred_handle: dafs_wire::dafs::CredHandle(self.cred),
            ..RequestHeader::default()
        }
    }

    /// Encodes a request with the given header.
    pub fn encode(&self, header: &RequestHeader, request: &Request<'_>) -> Vec<u8> {
        self.message(|message| encode_request(message, self.order, header, request).unwrap())
    }

    fn message(&self, encode: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
        let mut message = vec![0; MESSAGE_BYTES];
        let len = encode(&mut message);
        message.truncate(len);
        if self.checksums {
            seal(&mut message);
        }
        message
    }

    /// Sends a request on a free stream within the credits, and returns the stream.
    pub fn post(&mut self, request: &Request<'_>) -> u16 {
        assert!(self.outstanding < self.credits, "no credit left of {}", self.credits);
        let free = self.streams.iter().position(|stream| stream.busy.is_none());
        let stream = free.unwrap_or(self.streams.len()) as u16;
        let header = self.header(stream);
        let message = self.encode(&header, request);
        self.mark(stream, request.procedure());
        self.send_raw(&message);
        stream
    }

    /// Counts a message that is sent raw as a request on its stream.
    pub fn mark(&mut self, stream: u16, procedure: Procedure) {
        let slot = &mut self.streams[usize::from(stream)];
        slot.busy = Some(procedure);
        slot.next_seq = slot.next_seq.wrapping_add(1);
        self.outstanding += 1;
    }

    /// Sends bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let buffer = Arc::new(Buffer::zeroed(bytes.len()).unwrap());
        buffer.view().copy_from(bytes, Site::Inspect);
        let mut process = self.process.lock();
        let domain = process.domain;
        let adapter = &mut process.adapter;
        let region = adapter.register(domain, buffer, Access::empty()).unwrap();
        let work = 1 << 32 | u64::from(region.id.0);
        let segment = region.local(0, bytes.len());
        // A connection that is over refuses the send. The test sees it as closed.
        if adapter.post_send(self.endpoint, work, &[segment]).is_err() {
            adapter.deregister(region.id);
        }
        self.sends.push(region.id);
        adapter.flush();
    }

    /// Reads memory of the server by RDMA.
    pub fn rdma_read(&mut self, into: &Memory, remote: RemoteBuffer) {
        let segment = into.region.local(0, remote.len as usize);
        let adapter = &mut self.process.lock().adapter;
        // A connection that is over refuses it. The test sees it as closed.
        let _ = adapter.rdma_read(self.endpoint, 2 << 32, segment, remote);
        adapter.flush();
    }

    /// Writes to memory of the server by RDMA.
    pub fn rdma_write(&mut self, from: &Memory, remote: RemoteBuffer) {
        let segment = from.region.local(0, remote.len as usize);
        let adapter = &mut self.process.lock().adapter;
        let _ = adapter.rdma_write(self.endpoint, 2 << 32, &[segment], remote);
        adapter.flush();
    }

    /// Answers a call of the server, and grants `target` credits.
    pub fn answer(&mut self, call: &CallbackRequest, target: u16, reply: &Reply<'_>) {
        let header = ResponseHeader::answering(&call.header(), target);
        let message =
            self.message(|message| encode_response(message, self.order, &header, reply).unwrap());
        self.send_raw(&message);
    }

    /// Answers a call of the server with an error.
    pub fn refuse(&mut self, call: &CallbackRequest, status: Status) {
        let header = ResponseHeader::answering(&call.header(), 1).with_status(status);
        let procedure = call.request().procedure();
        let body = ErrorBody::None;
        let message = self.message(|message| {
            encode_error(message, self.order, &header, procedure, &body).unwrap()
        });
        self.send_raw(&message);
    }

    pub fn has_answer(&self, stream: u16) -> bool {
        self.answers.contains_key(&stream)
    }

    pub fn take_answer(&mut self, stream: u16) -> Option<Answer> {
        self.answers.remove(&stream)
    }

    /// Handles pending events.
    pub fn poll(&mut self, now: Instant) -> bool {
        let events = self.take_events(now);
        let busy = !events.is_empty();
        for event in events {
            match event {
                Event::Established { .. } => self.established = true,
                Event::ConnectFailed { error, .. } => self.closed = Some(error.to_string()),
                Event::Disconnected { reason, .. } => self.closed = Some(reason.to_string()),
                Event::ConnectRequest { .. } => panic!("nobody connects to a client"),
                Event::Completion(done) => match (done.operation, done.status) {
                    (Operation::Receive, WorkStatus::Ok(len)) => {
                        self.received(done.work, len as usize);
                    }
                    (Operation::Send, _) => {
                        let region = RegionId(done.work as u32);
                        self.process.lock().adapter.deregister(region);
                    }
                    (Operation::RdmaRead, WorkStatus::Ok(_)) => self.reads_done += 1,
                    _ => {}
                },
            }
        }
        self.process.lock().adapter.flush();
        busy
    }

    /// Takes the events of this connection. The other connections of the process take the rest.
    fn take_events(&self, now: Instant) -> Vec<Event> {
        let mut process = self.process.lock();
        let Process { adapter, events, .. } = &mut *process;
        adapter.poll(now, events);
        let own = |event: &mut Event| match event {
            Event::Established { endpoint, .. }
            | Event::ConnectFailed { endpoint, .. }
            | Event::Disconnected { endpoint, .. } => *endpoint == self.endpoint,
            Event::Completion(done) => done.endpoint == self.endpoint,
            Event::ConnectRequest { .. } => true,
        };
        events.extract_if(.., own).collect()
    }

    fn received(&mut self, slot: u64, len: usize) {
        let offset = slot as usize * MESSAGE_BYTES;
        let bytes = self.receives.0.slice(offset, len).unwrap().to_vec(Site::Inspect);
        let segment = self.receives.1.local(offset, MESSAGE_BYTES);
        let adapter = &mut self.process.lock().adapter;
        let _ = adapter.post_receive(self.endpoint, slot, segment);
        if self.checksums {
            assert!(verify(&bytes), "a message has a wrong checksum");
        }
        if RequestHeader::decode(&bytes, self.order).is_ok() {
            return self.calls.push(CallbackRequest { bytes, order: self.order });
        }
        let header = ResponseHeader::decode(&bytes, self.order).unwrap();
        self.target = header.target_nreq;
        self.credits = (self.credits - 1).max(header.target_nreq);
        let stream = self.streams.get_mut(usize::from(header.stream_id));
        let Some(procedure) = stream.and_then(|stream| stream.busy.take()) else {
            self.stray.push(bytes);
            return;
        };
        self.outstanding -= 1;
        let answer = Answer { bytes, order: self.order, procedure };
        self.answers.insert(header.stream_id, answer);
    }
}
