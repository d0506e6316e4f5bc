//! Byte-level peers of the iWARP provider.

// Each test program is a crate of its own and uses a part of this one.
#![allow(dead_code, unreachable_pub)]
// A helper of tests fails the test.
#![allow(clippy::unwrap_used)]

use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{
    Access, Adapter, Address, DisconnectReason, EndpointId, Event, Instant, MemoryRegion,
    ProtectionDomain,
};
use dafs_wire::iwarp::crc::Crc32c;
use dafs_wire::iwarp::ddp::{self, Header, Place, Queue};
use dafs_wire::iwarp::mpa::{self, Decoded, Enhanced, Frame, FrameKind};
use dafs_wire::iwarp::rdmap::{Opcode, Terminate};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The adapter under test and its memory.
pub struct Node {
    pub adapter: IwarpAdapter,
    pub events: Vec<Event>,
    pub domain: ProtectionDomain,
    pub address: SocketAddr,
    pub now: Instant,
    pub region: MemoryRegion,
}

impl Node {
    pub fn new(config: IwarpConfig) -> Self {
        let mut adapter = IwarpAdapter::new(config).unwrap();
        let listen = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = adapter.listen(&listen).unwrap();
        let Some(Address::Tcp(address)) = adapter.listener_address(listener) else { panic!() };
        let domain = adapter.protection_domain();
        let buffer = adapter.allocate(8192).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(domain, buffer, access).unwrap();
        Self { adapter, events: Vec::new(), domain, address, now: Instant(1), region }
    }

    pub fn poll(&mut self) {
        self.adapter.poll(self.now, &mut self.events);
        std::thread::sleep(Duration::from_micros(100));
    }

    pub fn until<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        // A minute at least, for a loaded machine.
        for _ in 0..600_000 {
            if let Some(at) = self.events.iter().position(|event| pick(event).is_some()) {
                return pick(&self.events.remove(at)).unwrap();
            }
            self.poll();
        }
        panic!("nothing came; have {:?}", self.events);
    }

    pub fn settle(&mut self) {
        for _ in 0..50 {
            self.poll();
        }
    }

    pub fn gone(&mut self, endpoint: EndpointId) -> DisconnectReason {
        self.until(|event| match event {
            Event::Disconnected { endpoint: known, reason } if *known == endpoint => {
                Some((**reason).clone())
            }
            _ => None,
        })
    }

    /// Takes the next request and accepts it.
    pub fn accept(&mut self) -> EndpointId {
        let request = self.until(|event| match event {
            Event::ConnectRequest { request, .. } => Some(*request),
            _ => None,
        });
        self.adapter.accept(request, self.domain, b"").unwrap()
    }

    /// A peer with an accepted request, with these flags; and the reply that it got.
    pub fn raw_peer(&mut self, request: &[u8]) -> (Raw, EndpointId) {
        let mut raw = Raw::connect(self.address);
        raw.stream.write_all(request).unwrap();
        let endpoint = self.accept();
        self.until(|event| matches!(event, Event::Established { .. }).then_some(()));
        (raw, endpoint)
    }

    /// The same with a plain request, its reply read.
    pub fn plain_peer(&mut self, crc: bool) -> (Raw, EndpointId) {
        let (mut raw, endpoint) = self.raw_peer(&request(crc, 2, Some(WORDS)));
        let reply = raw.read_reply();
        assert_eq!(reply.crc, crc);
        raw.crc = crc;
        (raw, endpoint)
    }
}

pub const WORDS: Enhanced = Enhanced {
    ird: 4,
    ord: 4,
    peer_to_peer: false,
    rtr_empty: false,
    rtr_write: false,
    rtr_read: false,
};

pub fn request(crc: bool, revision: u8, enhanced: Option<Enhanced>) -> Vec<u8> {
    let frame = Frame {
        kind: FrameKind::Request,
        markers: false,
        crc,
        reject: false,
        revision,
        enhanced,
        private_data: b"raw",
    };
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).unwrap();
    bytes
}

#[derive(Debug)]
pub struct Reply {
    pub crc: bool,
    pub revision: u8,
    pub enhanced: Option<Enhanced>,
}

/// A byte-level peer.
pub struct Raw {
    pub stream: TcpStream,
    pub crc: bool,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, crc: false }
    }

    pub fn read_reply(&mut self) -> Reply {
        let mut bytes = Vec::new();
        loop {
            match Frame::decode(FrameKind::Reply, &bytes).unwrap() {
                Decoded::Frame(frame, _) => {
                    let Frame { crc, revision, enhanced, .. } = frame;
                    return Reply { crc, revision, enhanced };
                }
                Decoded::Need(need) => {
                    let have = bytes.len();
                    bytes.resize(need, 0);
                    self.stream.read_exact(&mut bytes[have..]).unwrap();
                }
            }
        }
    }

    pub fn fpdu(&self, opcode: Opcode, last: bool, place: Place, payload: &[u8]) -> Vec<u8> {
        let header = Header { opcode, last, place, payload_bytes: payload.len() as u16 };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + mpa::padding_bytes(header.segment_bytes()), 0);
        let mut crc = Crc32c::new();
        crc.update(&bytes);
        bytes.extend_from_slice(&if self.crc { crc.finish() } else { [0; 4] });
        bytes
    }

    pub fn send(&mut self, opcode: Opcode, last: bool, place: Place, payload: &[u8]) {
        let bytes = self.fpdu(opcode, last, place, payload);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next FPDU: header, payload.
    pub fn read_fpdu(&mut self) -> (Header, Vec<u8>) {
        let mut bytes = vec![0; ddp::TAGGED_FPDU_HEADER_BYTES];
        self.stream.read_exact(&mut bytes).unwrap();
        let need = ddp::fpdu_header_bytes(&bytes);
        let have = bytes.len();
        bytes.resize(need, 0);
        self.stream.read_exact(&mut bytes[have..]).unwrap();
        let header = Header::decode(&bytes).unwrap().unwrap();
        let mut payload = vec![0; usize::from(header.payload_bytes)];
        self.stream.read_exact(&mut payload).unwrap();
        let mut trailer = vec![0; mpa::padding_bytes(header.segment_bytes()) + 4];
        self.stream.read_exact(&mut trailer).unwrap();
        if self.crc {
            let mut crc = Crc32c::new();
            for part in [&bytes[..], &payload, &trailer[..trailer.len() - 4]] {
                crc.update(part);
            }
            assert_eq!(crc.finish(), trailer[trailer.len() - 4..]);
        }
        (header, payload)
    }

    /// Checks that the adapter sends the Terminate, then ends.
    pub fn expect_terminate(&mut self, codes: Terminate) {
        let (header, payload) = self.read_fpdu();
        assert_eq!(header.opcode, Opcode::Terminate);
        assert_eq!(Terminate::decode(&payload), Some(codes));
        assert!(self.is_closed());
    }

    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 16]), Ok(0) | Err(_))
    }
}

pub fn send_place(msn: u32, offset: u32) -> Place {
    Place::Untagged { invalidate_stag: 0, queue: Queue::Send, msn, offset }
}

pub fn read_place(msn: u32) -> Place {
    Place::Untagged { invalidate_stag: 0, queue: Queue::ReadRequest, msn, offset: 0 }
}
