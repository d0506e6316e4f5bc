//! The contract of every provider, written once against the trait.
//!
//! A provider's test file makes a [`World`] and passes it to the functions of the submodules; the
//! `contract_tests!` macro makes one test of each.

// Each provider's test program is a crate of its own and uses a part of this one.
#![allow(dead_code, unreachable_pub)]
// A helper of tests fails the test.
#![allow(clippy::unwrap_used)]

pub mod data;
pub mod ending;
pub mod faults;
pub mod grant;
pub mod invalidate;
pub mod setup;

use dafs_dat::{
    Access, Adapter, Address, Completion, DisconnectReason, EndpointId, Event, Instant, ListenerId,
    MemoryRegion, Operation, ProtectionDomain, RemoteBuffer, RequestId, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Two adapters that can reach each other, and their clock.
pub struct World {
    pub client: Side,
    pub server: Side,
    /// The server's address.
    pub listen: Address,
    /// The time of the next poll. Simulated time advances here.
    pub clock: Box<dyn FnMut() -> Instant>,
    /// True if both sides learn which side broke a rule. RDMA devices inform one side, or none.
    pub tells_whose_mistake: bool,
}

/// One adapter and its reported events.
pub struct Side {
    pub adapter: Box<dyn Adapter>,
    pub domain: ProtectionDomain,
    pub events: VecDeque<Event>,
}

/// A connection seen from both sides.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    pub client: EndpointId,
    pub server: EndpointId,
}

/// Memory with its registration.
#[derive(Debug, Clone)]
pub struct Memory {
    pub buffer: Arc<Buffer>,
    pub region: MemoryRegion,
}

/// The longest wait for an event, in real time.
const PATIENCE: Duration = Duration::from_secs(60);

impl Side {
    pub fn new(mut adapter: Box<dyn Adapter>) -> Self {
        let domain = adapter.protection_domain();
        Self { adapter, domain, events: VecDeque::new() }
    }

    pub fn memory(&mut self, bytes: usize, access: Access) -> Memory {
        let domain = self.domain;
        self.memory_in(domain, bytes, access)
    }

    pub fn memory_in(&mut self, domain: ProtectionDomain, bytes: usize, access: Access) -> Memory {
        let buffer = self.adapter.allocate(bytes).unwrap();
        let region = self.adapter.register(domain, buffer.clone(), access).unwrap();
        Memory { buffer, region }
    }

    fn poll(&mut self, now: Instant) {
        let mut events = Vec::new();
        let count = self.adapter.poll(now, &mut events);
        assert_eq!(count, events.len());
        self.events.extend(events);
    }

    /// Takes the first event that `pick` accepts.
    fn take<T>(&mut self, pick: &mut dyn FnMut(&Event) -> Option<T>) -> Option<T> {
        let (index, value) =
            self.events.iter().enumerate().find_map(|(i, event)| Some((i, pick(event)?)))?;
        self.events.remove(index);
        Some(value)
    }
}

impl Memory {
    pub fn fill(&self, seed: u64) {
        self.buffer.view().copy_from(&pattern(seed, self.buffer.len()), Site::Inspect);
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let view = self.buffer.slice(offset, bytes.len()).unwrap();
        view.copy_from(bytes, Site::Inspect);
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        self.buffer.slice(offset, len).unwrap().to_vec(Site::Inspect)
    }

    pub fn remote(&self, offset: usize, len: u32) -> RemoteBuffer {
        self.region.remote(offset, len).unwrap()
    }
}

/// Bytes that vary with position and seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl World {
    pub fn poll(&mut self) {
        let now = (self.clock)();
        self.client.poll(now);
        self.server.poll(now);
    }

    /// Polls both sides until `pick` returns a value.
    pub fn until<T>(&mut self, mut pick: impl FnMut(&mut World) -> Option<T>) -> T {
        let start = std::time::Instant::now();
        loop {
            if let Some(value) = pick(self) {
                return value;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "nothing came; client has {:?}, server has {:?}",
                self.client.events,
                self.server.events
            );
            self.poll();
        }
    }

    pub fn client_event<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        self.until(|world| world.client.take(&mut pick))
    }

    pub fn server_event<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        self.until(|world| world.server.take(&mut pick))
    }

    pub fn start_listening(&mut self) -> (ListenerId, Address) {
        let listener = self.server.adapter.listen(&self.listen.clone()).unwrap();
        let address = self.server.adapter.listener_address(listener).unwrap();
        (listener, address)
    }

    /// Connects with private data both ways.
    pub fn connect_with(&mut self, ask: &[u8], answer: &[u8]) -> Link {
        let accept = |side: &mut Side, request: RequestId| {
            side.adapter.accept(request, side.domain, answer).unwrap()
        };
        self.connect_by(ask, accept, answer)
    }

    /// Connects a client that may be granted memory of the server.
    pub fn connect_isolated(&mut self) -> Link {
        let accept = |side: &mut Side, request: RequestId| {
            side.adapter.accept_isolated(request, side.domain, b"").unwrap()
        };
        self.connect_by(b"", accept, b"")
    }

    fn connect_by(
        &mut self,
        ask: &[u8],
        accept: impl FnOnce(&mut Side, RequestId) -> EndpointId,
        answer: &[u8],
    ) -> Link {
        let (_, address) = self.start_listening();
        let client = self.client.adapter.connect(self.client.domain, &address, ask).unwrap();
        let (request, asked) = self.server_request();
        assert_eq!(asked, ask);
        let server = accept(&mut self.server, request);
        let answered = self.client_event(|event| match event {
            Event::Established { endpoint, private_data } if *endpoint == client => {
                Some(private_data.to_vec())
            }
            _ => None,
        });
        assert_eq!(answered, answer);
        self.server_event(|event| match event {
            Event::Established { endpoint, .. } if *endpoint == server => Some(()),
            _ => None,
        });
        Link { client, server }
    }

    pub fn connect(&mut self) -> Link {
        self.connect_with(b"", b"")
    }

    pub fn server_request(&mut self) -> (RequestId, Vec<u8>) {
        self.server_event(|event| match event {
            Event::ConnectRequest { request, private_data, .. } => {
                Some((*request, private_data.to_vec()))
            }
            _ => None,
        })
    }

    /// Sends the first message of the connecting side, so that the other may send.
    pub fn greet(&mut self, link: Link) {
        let to = self.server.memory(16, Access::LOCAL_WRITE);
        let from = self.client.memory(16, Access::empty());
        self.server.adapter.post_receive(link.server, 900, to.region.local(0, 16)).unwrap();
        self.client.adapter.post_send(link.client, 901, &[from.region.local(0, 16)]).unwrap();
        assert_eq!(self.server_done(900), WorkStatus::Ok(16));
        assert_eq!(self.client_done(901), WorkStatus::Ok(16));
        self.server.adapter.deregister(to.region.id);
        self.client.adapter.deregister(from.region.id);
    }

    /// Waits for the completion of this work.
    pub fn client_done(&mut self, work: u64) -> WorkStatus {
        self.client_event(|event| completion(event, work)).status
    }

    pub fn server_done(&mut self, work: u64) -> WorkStatus {
        self.server_event(|event| completion(event, work)).status
    }

    pub fn client_gone(&mut self, endpoint: EndpointId) -> DisconnectReason {
        self.client_event(|event| gone(event, endpoint))
    }

    pub fn server_gone(&mut self, endpoint: EndpointId) -> DisconnectReason {
        self.server_event(|event| gone(event, endpoint))
    }
}

fn completion(event: &Event, work: u64) -> Option<Completion> {
    match event {
        Event::Completion(completion) if completion.work == work => Some(*completion),
        _ => None,
    }
}

fn gone(event: &Event, endpoint: EndpointId) -> Option<DisconnectReason> {
    match event {
        Event::Disconnected { endpoint: known, reason } if *known == endpoint => {
            Some((**reason).clone())
        }
        _ => None,
    }
}

/// The completions in the order of their report, and whether the end came after all of them.
pub fn drain_completions(side: &mut Side, endpoint: EndpointId) -> (Vec<Completion>, bool) {
    let mut completions = Vec::new();
    let mut over = false;
    for event in side.events.drain(..) {
        match event {
            Event::Completion(completion) if completion.endpoint == endpoint => {
                assert!(!over, "a completion after the end");
                completions.push(completion);
            }
            Event::Disconnected { endpoint: known, .. } if known == endpoint => {
                assert!(!over, "two ends");
                over = true;
            }
            _ => {}
        }
    }
    (completions, over)
}

/// Checks that the list has this work of this kind exactly once, flushed.
pub fn assert_flushed(completions: &[Completion], operation: Operation, work: u64) {
    let found: Vec<_> = completions.iter().filter(|c| c.work == work).collect();
    assert_eq!(found.len(), 1, "work {work} completes exactly once");
    assert_eq!(found[0].operation, operation);
    assert_eq!(found[0].status, WorkStatus::Flushed);
}

/// Makes one test per promise, with a function that makes a world.
#[macro_export]
macro_rules! contract_tests {
    ($make:path: $($module:ident :: { $($name:ident),* $(,)? })*) => {
        $($(
            #[test]
            fn $name() {
                $crate::contract::$module::$name(&mut $make());
            }
        )*)*
    };
}

/// Hands the promises that all providers keep to the macro `$then`, between `$first` and `$rest`.
#[macro_export]
macro_rules! common_promises {
    ($then:ident!, [$($first:tt)*], $($rest:tt)*) => {
        $then! { $($first)*
            setup::{
                private_data_passes_both_ways, too_much_private_data_is_refused,
                a_reject_carries_its_reason, a_connection_without_a_listener_fails, the_peer_is_known,
            }
            data::{
                messages_keep_their_order, a_send_gathers_its_segments, an_empty_message_arrives,
                a_write_is_placed_before_the_next_send, a_read_brings_the_bytes,
                large_transfers_of_odd_sizes, many_in_flight, both_sides_read_eight_mebibytes,
                more_reads_than_the_depth, deregistered_memory_lives_while_posted,
            }
            faults::{
                a_message_longer_than_its_receive, a_message_without_a_receive, a_forged_key,
                a_key_of_another_domain, a_range_past_the_end, a_right_that_is_missing,
                a_key_that_was_deregistered, bad_posts_queue_nothing,
            }
            ending::{
                disconnect_hands_over_what_was_posted, a_disconnect_flushes_what_is_posted,
                a_dead_endpoint_takes_no_work, others_live_on_when_one_ends,
            }
            $($rest)*
        }
    };
}

/// Every promise.
#[macro_export]
macro_rules! all_contract_tests {
    ($make:path) => {
        common_promises! { contract_tests!, [$make:],
            ending::{ an_abort_ends_both_sides }
            invalidate::{
                a_message_invalidates_a_key, the_accepting_side_invalidates_too,
                only_a_key_that_was_granted_can_be_invalidated,
                a_write_is_placed_before_its_key_dies, a_read_under_way_when_its_key_dies,
                a_key_dies_on_every_connection, a_bad_post_invalidates_nothing,
            }
        }
    };
}
