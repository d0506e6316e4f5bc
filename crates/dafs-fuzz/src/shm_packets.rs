//! A peer of the shared-memory provider that does what the input says: control packets, records in
//! the ring and stores to shared words, each either of raw bytes or well-formed but for what the
//! input chooses, while this side posts work of its own.
//!
//! Checked: no panic, no signal, all posted work completes exactly once and before the end of the
//! connection, which does come, and no byte is changed that the peer has no right to.

use crate::input::Input;
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{Access, Adapter, Address, EndpointId, Event, Instant, RemoteBuffer};
use dafs_mem::Site;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

const RING_BYTES: usize = 4096;
const MEMORY_BYTES: usize = 8192 + 2 * RING_BYTES;
/// Where the ring of a connecting peer lies in the shared memory.
const RING_AT: usize = 8192;
const REGION_BYTES: usize = 8192;
const BUFFER_BYTES: usize = 8192;
const GUARD: u8 = 0xa5;
/// An address that the peer claims for its regions.
const PEER_ADDRESS: u64 = 1 << 20;
/// Polls within which a connection whose peer has gone must have ended.
const POLLS_TO_END_MAX: usize = 10_000;

/// The peer by hand: a socket and files. Shared memory is written through its file.
struct Peer {
    socket: OwnedFd,
    memory: OwnedFd,
    region: OwnedFd,
    /// Bytes put into the ring so far.
    tail: usize,
}

fn memory_file(bytes: usize) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("peer", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

impl Peer {
    fn connect(address: &Address) -> Self {
        let Address::Shm(name) = address else { panic!("{address}") };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let (memory, region) = (memory_file(MEMORY_BYTES), memory_file(REGION_BYTES));
        Self { socket, memory, region, tail: 0 }
    }

    /// Sends a packet; a socket that is full or closed is no concern of the peer.
    fn send(&self, packet: &[u8], file: Option<&OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file.as_fd()]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL;
        let _ = rustix::net::sendmsg(&self.socket, &[IoSlice::new(packet)], &mut control, flags);
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        rustix::io::pwrite(&self.memory, bytes, offset as u64).unwrap();
    }

    fn hello(&self) {
        let mut packet = b"\x01DAFSSHM\x01".to_vec();
        packet.extend_from_slice(&(RING_BYTES as u32).to_ne_bytes());
        self.send(&packet, Some(&self.memory));
    }

    /// Shows a region and sets its slot.
    fn show(&self, input: &mut Input<'_>) {
        let (key, slot, access) = (u32::from(input.byte()), u16::from(input.byte()), input.byte());
        let len = u64::from(input.short());
        let mut packet = vec![6, access];
        packet.extend_from_slice(&slot.to_ne_bytes());
        packet.extend_from_slice(&key.to_ne_bytes());
        packet.extend_from_slice(&PEER_ADDRESS.to_ne_bytes());
        packet.extend_from_slice(&len.to_ne_bytes());
        self.store(512 + 4 * usize::from(slot), &key.to_ne_bytes());
        self.send(&packet, Some(&self.region));
    }

    /// Puts a record into the ring, header last, whether there is room or not.
    fn record(&mut self, input: &mut Input<'_>, keys: [RemoteBuffer; 2]) {
        let (kind, choice) = (u64::from(input.byte() % 6), input.byte());
        let len = usize::from(input.short()) % RING_BYTES;
        let target = keys[usize::from(choice & 1)];
        let key = if choice & 2 == 0 { target.key } else { u32::from(choice) };
        let mut body = Vec::new();
        if kind == 2 || kind == 3 {
            let length = u64::from(input.short());
            let high = if kind == 3 { length << 32 } else { 0 };
            body.extend_from_slice(&(u64::from(key) | high).to_ne_bytes());
            let address = target.address.wrapping_add(u64::from(input.short()));
            body.extend_from_slice(&address.to_ne_bytes());
        }
        if kind != 3 {
            body.resize(body.len() + len, choice);
        }
        let last = if choice & 4 == 0 { 1 << 40 } else { 0 };
        let header = 0xDA75 << 48 | last | kind << 32 | body.len() as u64;
        let start = self.tail;
        self.tail += 8 + body.len().next_multiple_of(8);
        self.store(RING_AT + self.tail % RING_BYTES, &[0; 8]);
        for (at, word) in body.chunks(8).enumerate() {
            self.store(RING_AT + (start + 8 + 8 * at) % RING_BYTES, word);
        }
        self.store(RING_AT + start % RING_BYTES, &u64::to_ne_bytes(header));
    }
}

/// The side under test.
struct Server {
    adapter: ShmAdapter,
    events: Vec<Event>,
    posted: u64,
}

impl Server {
    fn poll(&mut self) {
        self.adapter.poll(Instant::now(), &mut self.events);
    }

    fn is_over(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Disconnected { .. }))
    }

    /// Counts work that was taken.
    fn note<E>(&mut self, result: Result<(), E>) {
        self.posted += u64::from(result.is_ok());
    }
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut adapter = ShmAdapter::new(ShmConfig::default()).unwrap();
    let listener = adapter.listen(&Address::Shm(String::new())).unwrap();
    let address = adapter.listener_address(listener).unwrap();
    let domain = adapter.protection_domain();
    let mut server = Server { adapter, events: Vec::new(), posted: 0 };
    let mut region = |access| {
        let buffer = server.adapter.allocate(BUFFER_BYTES).unwrap();
        buffer.view().fill(GUARD);
        let region = server.adapter.register(domain, buffer.clone(), access).unwrap();
        (buffer, region)
    };
    let (_open, open) = region(Access::all());
    let (closed_buffer, closed) = region(Access::REMOTE_READ);
    let keys = [&open, &closed].map(|region| region.remote(0, BUFFER_BYTES as u32).unwrap());

    let mut peer = Peer::connect(&address);
    match input.byte() {
        0 => {
            let len = usize::from(input.byte());
            peer.send(input.take(len), Some(&peer.memory));
        }
        _ => peer.hello(),
    }
    server.poll();
    let Some(Event::ConnectRequest { request, .. }) = server.events.pop() else { return };
    let Ok(endpoint) = server.adapter.accept(request, domain, b"") else { return };
    while !input.0.is_empty() && !server.is_over() {
        step(&mut server, endpoint, &mut peer, &mut input, &open, keys);
    }
    drop(peer);
    for _ in 0..POLLS_TO_END_MAX {
        if server.is_over() {
            break;
        }
        server.poll();
    }
    server.poll();
    assert!(
        matches!(server.events.last(), Some(Event::Disconnected { .. })),
        "the end is the last event"
    );
    let done = server.events.iter().filter(|event| matches!(event, Event::Completion(_))).count();
    assert_eq!(done as u64, server.posted, "all work completes once");
    assert!(closed_buffer.view().to_vec(Site::Inspect).iter().all(|&byte| byte == GUARD));
}

fn step(
    server: &mut Server,
    endpoint: EndpointId,
    peer: &mut Peer,
    input: &mut Input<'_>,
    open: &dafs_dat::MemoryRegion,
    keys: [RemoteBuffer; 2],
) {
    let work = server.posted;
    match input.byte() % 8 {
        0 => {
            let (len, choice) = (usize::from(input.byte()), input.byte());
            let file = (choice & 1 != 0).then_some(&peer.region);
            peer.send(input.take(len), file);
        }
        1 => peer.show(input),
        2 => peer.record(input, keys),
        3 => {
            let offset = usize::from(input.short()) % (MEMORY_BYTES - 8);
            peer.store(offset, input.take(8));
        }
        4 => server.poll(),
        5 => {
            let (key, len) = (u32::from(input.byte()), u32::from(input.short()) % 8192);
            let address = PEER_ADDRESS + u64::from(input.byte());
            let remote = RemoteBuffer { key, address, len };
            let result = match input.byte() % 3 {
                0 => {
                    let sink = open.local(0, len as usize);
                    server.adapter.rdma_read(endpoint, work, sink, remote)
                }
                1 => {
                    let sources = [open.local(0, len as usize)];
                    server.adapter.rdma_write(endpoint, work, &sources, remote)
                }
                _ => {
                    let need = Access::REMOTE_READ;
                    if let Some(window) = server.adapter.map_remote(endpoint, remote, need) {
                        window.view().scan(|_| {});
                    }
                    return;
                }
            };
            server.note(result);
        }
        6 => {
            let len = usize::from(input.short()) % BUFFER_BYTES;
            let result = server.adapter.post_send(endpoint, work, &[open.local(0, len)]);
            server.note(result);
        }
        _ => {
            let len = usize::from(input.short()) % BUFFER_BYTES;
            let result = server.adapter.post_receive(endpoint, work, open.local(0, len));
            server.note(result);
        }
    }
}
