//! Two adapters in one thread, connected to each other.

use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{
    Access, Adapter, Address, DisconnectReason, EndpointId, Event, Instant, MemoryRegion,
    Operation, ProtectionDomain, RequestId, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use std::sync::Arc;

/// Polls after which a test fails; more than any of them needs.
const POLLS_MAX: usize = 100_000;

/// Polls without an event after which both sides count as quiet: more than lie between two checks
/// of the sockets.
const QUIET_POLLS: usize = 400;

/// Bytes that vary with seed and position.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256) as u8 ^ seed).collect()
}

/// A registered buffer.
pub(crate) struct Memory {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) region: MemoryRegion,
}

impl Memory {
    pub(crate) fn new(
        adapter: &mut ShmAdapter,
        domain: ProtectionDomain,
        len: usize,
        access: Access,
        shared: bool,
    ) -> Self {
        let buffer = if shared {
            adapter.allocate(len).unwrap()
        } else {
            Arc::new(Buffer::zeroed(len).unwrap())
        };
        let region = adapter.register(domain, buffer.clone(), access).unwrap();
        Self { buffer, region }
    }

    pub(crate) fn fill(&self, seed: u8) {
        self.buffer.view().copy_from(&pattern(seed, self.buffer.len()), Site::Inspect);
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.buffer.slice(offset, len).unwrap().to_vec(Site::Inspect)
    }
}

/// A client, a listening server, and its address.
pub(crate) fn adapters(config: ShmConfig) -> (ShmAdapter, ShmAdapter, Address) {
    let client = ShmAdapter::new(config.clone()).unwrap();
    let mut server = ShmAdapter::new(config).unwrap();
    let listener = server.listen(&Address::Shm(String::new())).unwrap();
    let address = server.listener_address(listener).unwrap();
    (client, server, address)
}

/// Polls until the events satisfy `done`.
pub(crate) fn wait(adapter: &mut ShmAdapter, done: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..POLLS_MAX {
        adapter.poll(Instant::now(), &mut events);
        if done(&events) {
            return events;
        }
    }
    panic!("nothing more happens after {events:?}");
}

pub(crate) fn wait_request(adapter: &mut ShmAdapter) -> RequestId {
    match wait(adapter, |events| !events.is_empty()).pop() {
        Some(Event::ConnectRequest { request, .. }) => request,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn status_of(event: &Event) -> Option<(Operation, u64, WorkStatus)> {
    match event {
        Event::Completion(c) => Some((c.operation, c.work, c.status)),
        _ => None,
    }
}

pub(crate) fn status(event: &Event) -> (Operation, u64, WorkStatus) {
    status_of(event).unwrap_or_else(|| panic!("not a completion: {event:?}"))
}

/// The reason for the end, which must be the last event.
pub(crate) fn reason(events: &[Event]) -> DisconnectReason {
    match events.last() {
        Some(Event::Disconnected { reason, .. }) => (**reason).clone(),
        other => panic!("not an end: {other:?}"),
    }
}

/// Two connected adapters.
pub(crate) struct Pair {
    pub(crate) left: ShmAdapter,
    pub(crate) right: ShmAdapter,
    pub(crate) left_domain: ProtectionDomain,
    pub(crate) right_domain: ProtectionDomain,
    pub(crate) at_left: EndpointId,
    pub(crate) at_right: EndpointId,
    pub(crate) left_events: Vec<Event>,
    pub(crate) right_events: Vec<Event>,
}

impl Pair {
    pub(crate) fn new(config: ShmConfig) -> Self {
        let (mut left, mut right, address) = adapters(config);
        let left_domain = left.protection_domain();
        let right_domain = right.protection_domain();
        let at_left = left.connect(left_domain, &address, b"hello").unwrap();
        let request = wait_request(&mut right);
        let at_right = right.accept(request, right_domain, b"welcome").unwrap();
        wait(&mut left, |events| matches!(events, [Event::Established { .. }]));
        wait(&mut right, |events| matches!(events, [Event::Established { .. }]));
        Self {
            left,
            right,
            left_domain,
            right_domain,
            at_left,
            at_right,
            left_events: Vec::new(),
            right_events: Vec::new(),
        }
    }

    pub(crate) fn left_memory(&mut self, len: usize, access: Access, shared: bool) -> Memory {
        Memory::new(&mut self.left, self.left_domain, len, access, shared)
    }

    pub(crate) fn right_memory(&mut self, len: usize, access: Access, shared: bool) -> Memory {
        Memory::new(&mut self.right, self.right_domain, len, access, shared)
    }

    /// Polls each side once.
    pub(crate) fn step(&mut self) -> usize {
        let now = Instant::now();
        self.left.poll(now, &mut self.left_events) + self.right.poll(now, &mut self.right_events)
    }

    /// Polls both sides until they are quiet.
    pub(crate) fn run(&mut self) {
        let mut quiet = 0;
        for _ in 0..POLLS_MAX {
            quiet = if self.step() == 0 { quiet + 1 } else { 0 };
            if quiet > QUIET_POLLS {
                return;
            }
        }
        panic!("the adapters do not come to rest");
    }

    pub(crate) fn take_left(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.left_events)
    }

    pub(crate) fn take_right(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.right_events)
    }
}
