//! A server that replies but never takes a message.

use super::*;
use crate::client::gss::Outgoing;
use crate::client::request::Request;
use crate::client::{Identity, Procedure};
use dafs_dat::{
    Access, Adapter, Instant, ListenerId, LocalSegment, MemoryRegion, PeerInfo, PostError,
    ProtectionDomain, RegionId, RegionTable, RegisterError, RequestId, Transfer,
};
use dafs_mem::{Buffer, Site};
use dafs_wire::rpc::{AcceptStatus, CallHeader, OpaqueAuth, ReplyHeader};
use dafs_wire::rpcrdma::{Body, Chunks, Header};
use dafs_wire::xdr::{Encode, Encoder};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

const ENDPOINT: EndpointId = EndpointId(1);
const DOMAIN: ProtectionDomain = ProtectionDomain(1);

#[derive(Default)]
struct State {
    regions: RegionTable,
    receives: VecDeque<(u64, LocalSegment)>,
    /// Sends, which never complete.
    sends: usize,
}

/// An adapter whose sends never complete.
#[derive(Default, Clone)]
struct Clogged(Arc<Mutex<State>>);

impl Adapter for Clogged {
    fn name(&self) -> &'static str {
        "clogged"
    }

    fn protection_domain(&mut self) -> ProtectionDomain {
        DOMAIN
    }

    fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let mut state = self.0.lock().unwrap();
        let mut key = 0;
        state.regions.register(domain, buffer, access, || {
            key += 1;
            key
        })
    }

    fn deregister(&mut self, region: RegionId) {
        self.0.lock().unwrap().regions.deregister(region);
    }

    fn listen(&mut self, _: &Address) -> io::Result<ListenerId> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn listener_address(&self, _: ListenerId) -> Option<Address> {
        None
    }

    fn connect(
        &mut self,
        _: ProtectionDomain,
        _: &Address,
        _: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        Ok(ENDPOINT)
    }

    fn accept(
        &mut self,
        _: RequestId,
        _: ProtectionDomain,
        _: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        Err(ConnectError::Gone)
    }

    fn reject(&mut self, _: RequestId, _: &[u8]) {}

    fn peer(&self, _: EndpointId) -> Option<PeerInfo> {
        None
    }

    fn post_receive(
        &mut self,
        _: EndpointId,
        work: u64,
        segment: LocalSegment,
    ) -> Result<(), PostError> {
        self.0.lock().unwrap().receives.push_back((work, segment));
        Ok(())
    }

    fn post(&mut self, _: EndpointId, _: u64, transfer: Transfer<'_>) -> Result<(), PostError> {
        let Transfer::Send { invalidate: None, .. } = transfer else {
            return Err(PostError::NotConnected);
        };
        self.0.lock().unwrap().sends += 1;
        Ok(())
    }

    fn poll(&mut self, _: Instant, _: &mut Vec<Event>) -> usize {
        0
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn disconnect(&mut self, _: EndpointId) {}

    fn abort(&mut self, _: EndpointId) {}
}

struct Scene {
    adapter: Clogged,
    base: Base,
    connection: Connection,
}

fn scene() -> Scene {
    let adapter = Clogged::default();
    let mut base = Base::new(Box::new(adapter.clone()));
    let options = Options { credits: 8, identity: Identity::None, ..Options::default() };
    let address = Address::Sim(1);
    let mut connection = Connection::connect(&mut base, &address, options, None, 1).unwrap();
    let private_data = Box::default();
    connection.handle(&mut base, Event::Established { endpoint: ENDPOINT, private_data });
    Scene { adapter, base, connection }
}

impl Scene {
    /// Delivers a message.
    fn arrive(&mut self, xid: u32, credits: u32, rpc: impl FnOnce(&mut Encoder<'_>)) {
        let mut bytes = Vec::new();
        let encoder = &mut Encoder::new(&mut bytes);
        Header { xid, credits, body: Body::Message(Chunks::default()) }.encode(encoder);
        rpc(encoder);
        let work = {
            let mut state = self.adapter.0.lock().unwrap();
            let (work, segment) = state.receives.pop_front().expect("no receive is posted");
            let place = state.regions.local(DOMAIN, segment, Access::LOCAL_WRITE).unwrap();
            place.view().copy_from(&bytes, Site::Inspect);
            work
        };
        let completion = Completion {
            endpoint: ENDPOINT,
            work,
            operation: Operation::Receive,
            status: WorkStatus::Ok(bytes.len() as u32),
            invalidated: None,
        };
        self.connection.handle(&mut self.base, Event::Completion(completion));
    }

    fn sends(&self) -> usize {
        self.adapter.0.lock().unwrap().sends
    }
}

#[test]
fn answers_to_calls_that_were_not_taken_do_not_pile_up_messages() {
    let mut scene = scene();
    let procedure = Procedure { program: 1, version: 1, procedure: 1 };
    for _ in 0..200 {
        let request = Request::new(procedure, &[], 10);
        let xid = scene.connection.submit(&mut scene.base, &Outgoing::plain(&request)).unwrap();
        scene.arrive(xid, 8, |encoder| {
            ReplyHeader::accepted(xid, AcceptStatus::Success).encode(encoder);
        });
    }
    assert_eq!(scene.sends(), 16);
    assert_eq!(scene.connection.stage(), Stage::Up);
    // When one send completes, the next call follows.
    let completion = Completion {
        endpoint: ENDPOINT,
        work: 0,
        operation: Operation::Send,
        status: WorkStatus::Ok(0),
        invalidated: None,
    };
    scene.connection.handle(&mut scene.base, Event::Completion(completion));
    assert_eq!(scene.sends(), 17);
}

#[test]
fn a_server_that_calls_and_takes_no_answers_loses_the_connection() {
    let mut scene = scene();
    let none = OpaqueAuth::NONE;
    let header = |xid| CallHeader {
        xid,
        program: 1,
        version: 1,
        procedure: 1,
        credential: none,
        verifier: none,
    };
    for xid in 0..200 {
        if scene.connection.stage() == Stage::Over {
            break;
        }
        scene.arrive(xid, 8, |encoder| header(xid).encode(encoder));
    }
    assert_eq!(scene.connection.stage(), Stage::Over);
    assert_eq!(scene.sends(), 16 + 64);
}
