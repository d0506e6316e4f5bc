//! A connection of RPC-over-RDMA without reduction, as stock clients use it under krb5i and krb5p: a
//! long call lies in a position-zero read chunk, a long reply in the reply chunk.

use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, MemoryRegion, Operation, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, PrivateData, ReadSegment, Segment};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The longest message.
const INLINE_BYTES: usize = 4096;

/// Places in the memory: of sent messages, received ones, long calls, long replies.
const SEND_AT: usize = 0;
const RECEIVE_AT: usize = INLINE_BYTES;
const CALL_AT: usize = 2 * INLINE_BYTES;
const LONG_BYTES: usize = (1 << 20) + (16 << 10);
const REPLY_AT: usize = CALL_AT + LONG_BYTES;

pub(super) struct Rdma {
    adapter: IwarpAdapter,
    endpoint: EndpointId,
    buffer: Arc<Buffer>,
    region: MemoryRegion,
}

impl Rdma {
    pub(super) fn new(server: SocketAddr) -> Self {
        let mut adapter = IwarpAdapter::new(IwarpConfig::default()).unwrap();
        let domain = adapter.protection_domain();
        let buffer = adapter.allocate(REPLY_AT + LONG_BYTES).unwrap();
        let region = adapter.register(domain, buffer.clone(), Access::all()).unwrap();
        let bytes = INLINE_BYTES as u32;
        let told =
            PrivateData { remote_invalidation: false, send_bytes: bytes, receive_bytes: bytes };
        let endpoint = adapter.connect(domain, &Address::Tcp(server), &told.encode()).unwrap();
        let mut rdma = Self { adapter, endpoint, buffer, region };
        rdma.until(|event| matches!(event, Event::Established { .. }).then_some(()));
        rdma
    }

    /// Polls until an event is the one.
    fn until<T>(&mut self, mut find: impl FnMut(&Event) -> Option<T>) -> T {
        let (mut events, start) = (Vec::new(), Instant::now());
        loop {
            self.adapter.poll(Instant::now(), &mut events);
            for event in events.drain(..) {
                if let Event::Disconnected { reason, .. } = &event {
                    panic!("the server has closed the connection: {reason}");
                }
                if let Some(found) = find(&event) {
                    return found;
                }
            }
            self.adapter.flush();
            let passed = Duration::from_nanos(Instant::now().0 - start.0);
            assert!(passed < Duration::from_secs(60), "the server does not answer");
            std::thread::yield_now();
        }
    }

    fn segment(&self, at: usize, len: usize) -> Segment {
        let offset = self.region.address.wrapping_add(at as u64);
        Segment { handle: self.region.key, length: len as u32, offset }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.buffer.slice(at, bytes.len()).unwrap().copy_from(bytes, Site::Inspect);
    }

    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.buffer.slice(at, len).unwrap().to_vec(Site::Inspect)
    }

    /// Sends an RPC message, and returns the reply.
    pub(super) fn send(&mut self, message: &[u8]) -> Vec<u8> {
        let room = Chunk { segments: [self.segment(REPLY_AT, LONG_BYTES)].into_iter().collect() };
        let mut chunks = Chunks { reply: Some(room), ..Chunks::default() };
        let xid = u32::from_be_bytes(*message.first_chunk().unwrap());
        // The header has less than a hundred bytes.
        let is_long = message.len() > INLINE_BYTES - 100;
        let mut sent = if is_long {
            self.put(CALL_AT, message);
            let segment = self.segment(CALL_AT, message.len());
            chunks.reads.push(ReadSegment { position: 0, segment });
            encoded(Header { xid, credits: 1, body: Body::NoMessage(chunks) })
        } else {
            encoded(Header { xid, credits: 1, body: Body::Message(chunks) })
        };
        if !is_long {
            sent.extend_from_slice(message);
        }
        let receive = self.region.local(RECEIVE_AT, INLINE_BYTES);
        self.adapter.post_receive(self.endpoint, 1, receive).unwrap();
        self.put(SEND_AT, &sent);
        let segment = self.region.local(SEND_AT, sent.len());
        self.adapter.post_send(self.endpoint, 2, &[segment]).unwrap();
        let len = self.until(|event| match event {
            Event::Completion(done) if done.operation == Operation::Receive => match done.status {
                WorkStatus::Ok(len) => Some(len as usize),
                WorkStatus::Flushed => panic!("the connection has ended"),
            },
            _ => None,
        });
        let received = self.get(RECEIVE_AT, len);
        let (header, at) = Header::decode(&received).unwrap();
        assert_eq!(header.xid, xid);
        match header.body {
            Body::Message(_) => received[at..].to_vec(),
            Body::NoMessage(Chunks { reply: Some(chunk), .. }) => self
                .get(REPLY_AT, chunk.segments.iter().map(|segment| segment.length as usize).sum()),
            other => panic!("{other:?}"),
        }
    }
}

fn encoded(header: Header) -> Vec<u8> {
    crate::common::encoded(&header)
}
