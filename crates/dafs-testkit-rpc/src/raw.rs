//! One raw end of a connection: an adapter of the simulated network that sends arbitrary messages
//! and shows the answers.

use super::net::{Net, SERVER_HOST};
use super::peer::{self, Memory, Message, message};
use super::program::PROGRAM;
use dafs_dat::sim::SimAdapter;
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, Operation, PostError, ProtectionDomain,
    RemoteBuffer, Transfer, WorkStatus,
};
use dafs_rpc::client::Procedure;
use dafs_wire::rpcrdma::{Body, Chunks, Header};
use std::collections::VecDeque;

/// Receives that it keeps posted; below, their size in bytes.
const SLOTS: usize = 64;
const SLOT_BYTES: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq)]
enum State {
    Connecting,
    Up,
    Over(String),
}

/// The raw peer.
pub struct Raw {
    adapter: SimAdapter,
    domain: ProtectionDomain,
    state: State,
    endpoint: Option<EndpointId>,
    slots: Memory,
    pub inbox: VecDeque<Message>,
    /// Keys of this end that the other end has invalidated.
    pub invalidated: Vec<u32>,
    sends: u64,
}

impl Raw {
    /// A peer in a process of a host.
    pub fn new(net: &Net, host: u32) -> Self {
        let mut adapter = net.network.adapter(host);
        let domain = adapter.protection_domain();
        let slots = Memory::new(&mut adapter, domain, SLOTS * SLOT_BYTES, Access::LOCAL_WRITE);
        Self {
            adapter,
            domain,
            state: State::Connecting,
            endpoint: None,
            slots,
            inbox: VecDeque::new(),
            invalidated: Vec::new(),
            sends: 0,
        }
    }

    /// A client with a connection to the server of the world.
    pub fn connect(net: &mut Net, host: u32, private_data: &[u8]) -> Self {
        let mut raw = Self::new(net, host);
        raw.dial(private_data);
        net.settle(&mut [&mut raw]);
        assert_eq!(raw.state, State::Up);
        raw
    }

    /// Starts to connect.
    pub fn dial(&mut self, private_data: &[u8]) {
        let address = Address::Sim(SERVER_HOST);
        let endpoint = self.adapter.connect(self.domain, &address, private_data);
        let endpoint = endpoint.expect("a simulated address");
        self.endpoint = Some(endpoint);
        self.state = State::Connecting;
        (0..SLOTS).for_each(|slot| self.post(slot));
    }

    /// Listens in place of a server, and accepts the next connection.
    pub fn listen(&mut self) {
        self.adapter.listen(&Address::Sim(SERVER_HOST)).expect("nobody else listens there");
    }

    /// Registers memory with these rights.
    pub fn memory_with(&mut self, len: usize, access: Access) -> Memory {
        Memory::new(&mut self.adapter, self.domain, len, access)
    }

    /// Registers memory with all rights for the other end.
    pub fn memory(&mut self, len: usize) -> Memory {
        self.memory_with(len, Access::all())
    }

    /// Registers memory in another protection domain.
    pub fn foreign_memory(&mut self, len: usize) -> Memory {
        let domain = self.adapter.protection_domain();
        Memory::new(&mut self.adapter, domain, len, Access::all())
    }

    pub fn deregister(&mut self, memory: &Memory) {
        self.adapter.deregister(memory.region.id);
    }

    pub fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// The reason why the connection has ended.
    pub fn ending(&self) -> Option<&str> {
        match &self.state {
            State::Over(reason) => Some(reason),
            _ => None,
        }
    }

    /// Sends bytes as one message.
    pub fn send(&mut self, bytes: &[u8]) {
        self.send_and(bytes, None);
    }

    /// Sends bytes as one message that invalidates a key of the other end.
    pub fn send_invalidate(&mut self, bytes: &[u8], key: u32) {
        self.send_and(bytes, Some(key));
    }

    fn send_and(&mut self, bytes: &[u8], invalidate: Option<u32>) {
        let memory = self.memory_with(bytes.len().max(1), Access::empty());
        memory.put(0, bytes);
        let segments = &[memory.region.local(0, bytes.len())];
        self.transfer(Transfer::Send { segments, invalidate });
        // The posted send keeps its memory.
        self.deregister(&memory);
    }

    fn transfer(&mut self, transfer: Transfer<'_>) {
        self.sends += 1;
        let (endpoint, work) = (self.endpoint.expect("connected"), SLOTS as u64 + self.sends);
        let posted = self.adapter.post(endpoint, work, transfer);
        // The connection may have ended already; an event reports that.
        assert!(matches!(posted, Ok(()) | Err(PostError::NotConnected)), "{posted:?}");
        self.adapter.flush();
    }

    /// Sends a message with this header.
    pub fn send_message(&mut self, header: &Header, body: &[u8]) {
        self.send(&message(header, body));
    }

    /// Sends a header alone.
    pub fn send_header(&mut self, xid: u32, credits: u32, body: Body) {
        self.send_message(&Header { xid, credits, body }, &[]);
    }

    /// Sends a call with these chunks; `args` are the inline arguments.
    pub fn call(&mut self, xid: u32, procedure: u32, chunks: Chunks, args: &[u8]) {
        let header = Header { xid, credits: 16, body: Body::Message(chunks) };
        self.send_message(&header, &call(xid, procedure, args));
    }

    /// Writes into the other end's memory.
    pub fn write(&mut self, from: &Memory, remote: RemoteBuffer) {
        let segments = &[from.region.local(0, remote.len as usize)];
        self.transfer(Transfer::Write { segments, remote });
    }

    /// Flushes posted work.
    pub fn flush(&mut self) {
        self.adapter.flush();
    }

    /// Ends the connection.
    pub fn abort(&mut self) {
        if let Some(endpoint) = self.endpoint {
            self.adapter.abort(endpoint);
        }
    }

    /// The next message, which must have arrived.
    pub fn heard(&mut self) -> Message {
        self.inbox.pop_front().unwrap_or_else(|| panic!("no message; {:?}", self.state))
    }

    fn post(&mut self, slot: usize) {
        let Some(endpoint) = self.endpoint else { return };
        let segment = self.slots.region.local(slot * SLOT_BYTES, SLOT_BYTES);
        // The connection may have ended already; an event reports that.
        let _ = self.adapter.post_receive(endpoint, slot as u64, segment);
    }

    /// Handles events. Returns true if there were any.
    pub fn poll(&mut self, now: Instant) -> bool {
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
            Event::Established { .. } => self.state = State::Up,
            Event::ConnectRequest { request, .. } => {
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
                self.post(slot);
            }
            Event::ConnectFailed { error, .. } => self.state = State::Over(error.to_string()),
            Event::Disconnected { reason, .. } => {
                self.state = State::Over(reason.to_string());
                self.endpoint = None;
            }
        }
    }
}

/// A call of the program.
pub fn call(xid: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
    peer::call(xid, Procedure { program: PROGRAM, version: 1, procedure }, args)
}
