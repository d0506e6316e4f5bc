//! The adapters, the memory and the messages of peers that a test plays itself.

#![allow(unreachable_pub, reason = "a module of several test programs")]

use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{Access, Adapter, Address, MemoryRegion, ProtectionDomain, RemoteBuffer};
use dafs_mem::{Buffer, Site};
use dafs_rpc::client::Procedure;
use dafs_wire::rpc::{AcceptStatus, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, HeaderFault, ReadSegment, Segment};
use dafs_wire::xdr::{Decoder, Encode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub fn iwarp() -> Box<dyn Adapter> {
    Box::new(IwarpAdapter::new(IwarpConfig::default()).unwrap())
}

pub fn shm() -> Box<dyn Adapter> {
    Box::new(ShmAdapter::new(ShmConfig::default()).unwrap())
}

/// An address of this host for iWARP, with a port that the kernel chooses.
pub fn any_iwarp() -> Address {
    Address::Tcp("127.0.0.1:0".parse().unwrap())
}

/// A name for shared memory that no other listener has.
pub fn any_shm() -> Address {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Address::Shm(format!("dafs-rpc-test-{}-{number}", std::process::id()))
}

/// Registered memory.
#[derive(Debug, Clone)]
pub struct Memory {
    pub buffer: Arc<Buffer>,
    pub region: MemoryRegion,
}

impl Memory {
    /// Registers memory with these rights.
    pub fn new(
        adapter: &mut dyn Adapter,
        domain: ProtectionDomain,
        bytes: usize,
        access: Access,
    ) -> Self {
        let buffer = adapter.allocate(bytes).expect("memory");
        let region = adapter.register(domain, buffer.clone(), access).expect("few regions");
        Self { buffer, region }
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        let place = self.buffer.slice(at, bytes.len()).expect("inside the region");
        place.copy_from(bytes, Site::Inspect);
    }

    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.buffer.slice(at, len).expect("inside the region").to_vec(Site::Inspect)
    }

    pub fn segment(&self, at: usize, len: usize) -> Segment {
        let offset = self.region.address.wrapping_add(at as u64);
        Segment { handle: self.region.key, length: len as u32, offset }
    }

    pub fn chunk(&self, at: usize, len: usize) -> Chunk {
        chunk(&[self.segment(at, len)])
    }

    pub fn read(&self, position: u32, at: usize, len: usize) -> ReadSegment {
        ReadSegment { position, segment: self.segment(at, len) }
    }
}

pub fn chunk(segments: &[Segment]) -> Chunk {
    Chunk { segments: segments.iter().copied().collect() }
}

/// These read chunks alone.
pub fn reads(segments: &[ReadSegment]) -> Chunks {
    Chunks { reads: segments.iter().copied().collect(), ..Chunks::default() }
}

/// These write chunks alone.
pub fn writes(chunks: &[Chunk]) -> Chunks {
    Chunks { writes: chunks.iter().cloned().collect(), ..Chunks::default() }
}

/// A reply chunk alone.
pub fn reply_chunk(chunk: Chunk) -> Chunks {
    Chunks { reply: Some(chunk), ..Chunks::default() }
}

/// The remote memory that a segment names.
pub fn remote(segment: Segment) -> RemoteBuffer {
    RemoteBuffer { key: segment.handle, address: segment.offset, len: segment.length }
}

/// A message from the other end.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub header: Header,
    /// The bytes after the header.
    pub body: Vec<u8>,
}

impl Message {
    pub fn parse(bytes: &[u8]) -> Self {
        let (header, len) = Header::decode(bytes).expect("the other end sends good headers");
        Self { header, body: bytes[len..].to_vec() }
    }

    pub fn chunks(&self) -> &Chunks {
        match &self.header.body {
            Body::Message(chunks) | Body::NoMessage(chunks) => chunks,
            other => panic!("no message but {other:?}"),
        }
    }

    /// The fault that the message reports.
    pub fn fault(&self) -> Option<HeaderFault> {
        match self.header.body {
            Body::Error(fault) => Some(fault),
            _ => None,
        }
    }

    /// The status and the results of an RPC reply that came inline.
    pub fn reply(&self) -> (AcceptStatus, Vec<u8>) {
        assert!(matches!(self.header.body, Body::Message(_)), "{self:?}");
        reply(self.header.xid, &self.body)
    }
}

/// XDR words.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A message with this header.
pub fn message(header: &Header, rest: &[u8]) -> Vec<u8> {
    [&header.encoded()[..], rest].concat()
}

/// An RPC call without a credential.
pub fn call(xid: u32, procedure: Procedure, args: &[u8]) -> Vec<u8> {
    let Procedure { program, version, procedure } = procedure;
    let none = OpaqueAuth::NONE;
    let header = CallHeader { xid, program, version, procedure, credential: none, verifier: none };
    [&header.encoded()[..], args].concat()
}

/// A successful RPC reply.
pub fn success(xid: u32, results: &[u8]) -> Vec<u8> {
    [&ReplyHeader::accepted(xid, AcceptStatus::Success).encoded()[..], results].concat()
}

/// The status and the results of an RPC reply to the call with this XID.
pub fn reply(xid: u32, bytes: &[u8]) -> (AcceptStatus, Vec<u8>) {
    let mut decoder = Decoder::new(bytes);
    let header: ReplyHeader<'_> = decoder.value().expect("a reply");
    assert_eq!(header.xid, xid, "the header and the reply name the same call");
    let ReplyStatus::Accepted { status, .. } = header.status else { panic!("{header:?}") };
    (status, decoder.rest().to_vec())
}
