//! Connections: identifiers, events and queue pairs of librdmacm.
//!
//! Invariants
//! * An event is copied and acknowledged at once, so that an identifier can be destroyed whenever
//!   that is called for, without waiting for ourselves.
//! * The context of an identifier is a number of ours, never a pointer.
//! * A queue pair lives inside its identifier and is destroyed before it.

use super::error::VerbsError;
use super::ffi;
use super::fork;
use super::keeper;
use super::library::Library;
use super::sys::{CompletionQueue, Domain, set_nonblocking};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null, null_mut};

/// Requests of one call that posts.
pub(super) const CHAIN_COUNT_MAX: usize = 32;

fn check(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        error if error > 0 => Err(io::Error::from_raw_os_error(error)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where events of connections arrive.
pub(super) struct EventChannel {
    library: &'static Library,
    channel: NonNull<ffi::rdma_event_channel>,
}

// SAFETY: a handle of the library, which takes them from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: one thread drives an adapter, so what is shared is used by one at a time.
unsafe impl Sync for EventChannel {}

/// An event, copied.
#[derive(Debug)]
pub(super) struct CmEvent {
    /// Our number of the identifier it is about; of a request, that of its listener.
    pub(super) token: u64,
    pub(super) kind: i32,
    pub(super) status: i32,
    /// The identifier of a request.
    pub(super) request: Option<CmId>,
    pub(super) private_data: Vec<u8>,
    /// Reads that the peer may want answered at a time, as far as it says.
    pub(super) responder_resources: u8,
    /// Reads that the peer will answer at a time.
    pub(super) initiator_depth: u8,
}

impl EventChannel {
    pub(super) fn new(library: &'static Library) -> Result<Self, VerbsError> {
        // SAFETY: no argument.
        let channel = unsafe { (library.create_event_channel)() };
        let Some(channel) = NonNull::new(channel) else {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::ENODEV) => VerbsError::NoDevice,
                _ => VerbsError::ConnectionManager(error),
            });
        };
        let channel = Self { library, channel };
        set_nonblocking(channel.fd())
            .map_err(|error| VerbsError::Io { what: "prepare an event channel", error })?;
        Ok(channel)
    }

    fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { self.channel.as_ref().fd }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }

    /// A new identifier that reports here under `token`.
    pub(super) fn identifier(&self, token: u64) -> io::Result<CmId> {
        keeper::on_behalf(self.fd(), || {
            let mut id = null_mut();
            // SAFETY: writes the identifier; the context is a number that nobody follows.
            check(unsafe {
                let context = std::ptr::without_provenance_mut(token as usize);
                (self.library.create_id)(self.channel.as_ptr(), &mut id, context, ffi::PS_TCP)
            })?;
            let id = NonNull::new(id).ok_or_else(io::Error::last_os_error)?;
            Ok(CmId { library: self.library, id })
        })
    }

    /// Whether there is an event. To ask so is open to every thread, which taking it is not.
    fn is_ready(&self) -> bool {
        let mut set = [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut set, Some(&now)), Ok(0))
    }

    /// The next event, if there is one.
    pub(super) fn next(&self) -> io::Result<Option<CmEvent>> {
        if !self.is_ready() {
            return Ok(None);
        }
        keeper::on_behalf(self.fd(), || self.take())
    }

    fn take(&self) -> io::Result<Option<CmEvent>> {
        let mut event = null_mut();
        // SAFETY: writes the event; does not wait, for the descriptor is non-blocking.
        let returned = unsafe { (self.library.get_cm_event)(self.channel.as_ptr(), &mut event) };
        if returned != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        let copy = {
            // SAFETY: an event that is not acknowledged yet; so are the identifiers in it.
            let event = unsafe { &*event };
            let conn = &event.conn;
            let private_data = if conn.private_data.is_null() {
                Vec::new()
            } else {
                // SAFETY: the event holds that many bytes there.
                unsafe {
                    let len = usize::from(conn.private_data_len);
                    std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec()
                }
            };
            let is_request = event.event == ffi::CM_CONNECT_REQUEST;
            let library = self.library;
            CmEvent {
                // SAFETY: an identifier of ours, alive until its owner destroys it, which waits
                // for the acknowledgement. That of a request has the context of its listener.
                token: unsafe { (*event.id).context.addr() as u64 },
                kind: event.event,
                status: event.status,
                request: NonNull::new(event.id)
                    .filter(|_| is_request)
                    .map(|id| CmId { library, id }),
                private_data,
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
            }
        };
        // SAFETY: the event just copied, once.
        unsafe { (self.library.ack_cm_event)(event) };
        Ok(Some(copy))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if !fork::is_child() {
            // SAFETY: ours; all its identifiers are gone before it.
            unsafe { (self.library.destroy_event_channel)(self.channel.as_ptr()) };
        }
    }
}

/// What both sides agree on besides private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadDepths {
    /// Reads of the peer that we answer at a time.
    pub(super) inbound: u8,
    /// Reads of ours at a time.
    pub(super) outbound: u8,
}

/// The queues of a queue pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depths {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) segments: u32,
}

/// One request to a send queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SendRequest {
    pub(super) opcode: i32,
    pub(super) segments: SmallVec<[ffi::ibv_sge; 4]>,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    /// For a send with invalidate.
    pub(super) invalidate: u32,
}

/// A connection identifier, with its queue pair once it has one.
pub(super) struct CmId {
    library: &'static Library,
    id: NonNull<ffi::rdma_cm_id>,
}

// SAFETY: a handle of the library, which takes them from any thread.
unsafe impl Send for CmId {}
// SAFETY: one thread drives an adapter, so what is shared is used by one at a time.
unsafe impl Sync for CmId {}

impl std::fmt::Debug for CmId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CmId({:?})", self.id)
    }
}

impl CmId {
    fn as_ptr(&self) -> *mut ffi::rdma_cm_id {
        self.id.as_ptr()
    }

    /// The descriptor that its commands are written to.
    fn fd(&self) -> RawFd {
        // SAFETY: an identifier lives no longer than its channel.
        unsafe { (*(*self.as_ptr()).channel).fd }
    }

    /// Reports under another number from now on.
    pub(super) fn set_token(&mut self, token: u64) {
        // SAFETY: the field is the program's own.
        unsafe { (*self.as_ptr()).context = std::ptr::without_provenance_mut(token as usize) };
    }

    /// The device that the addresses lead to, once that is known.
    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        // SAFETY: a live identifier.
        unsafe { (*self.as_ptr()).verbs }
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: a live identifier holds both addresses.
        socket_address(unsafe { &(*self.as_ptr()).src_addr })
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        socket_address(unsafe { &(*self.as_ptr()).dst_addr })
    }

    pub(super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        keeper::on_behalf(self.fd(), || {
            let mut address = raw_address(address);
            // SAFETY: a live identifier and an address of the family it names.
            check(unsafe { (self.library.bind_addr)(self.as_ptr(), (&raw mut address).cast()) })
        })
    }

    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        keeper::on_behalf(self.fd(), || {
            // SAFETY: a live, bound identifier.
            check(unsafe { (self.library.listen)(self.as_ptr(), backlog) })
        })
    }

    pub(super) fn resolve_address(&self, to: SocketAddr, timeout_ms: i32) -> io::Result<()> {
        keeper::on_behalf(self.fd(), || {
            let mut to = raw_address(to);
            // SAFETY: as in `bind`; no source address asks for the system's choice.
            check(unsafe {
                let to = (&raw mut to).cast();
                (self.library.resolve_addr)(self.as_ptr(), null_mut(), to, timeout_ms)
            })
        })
    }

    pub(super) fn resolve_route(&self, timeout_ms: i32) -> io::Result<()> {
        keeper::on_behalf(self.fd(), || {
            // SAFETY: a live identifier.
            check(unsafe { (self.library.resolve_route)(self.as_ptr(), timeout_ms) })
        })
    }

    pub(super) fn create_queue_pair(
        &self,
        domain: &Domain,
        queue: &CompletionQueue,
        depths: Depths,
    ) -> io::Result<()> {
        fork::check()?;
        keeper::on_behalf(self.fd(), || self.create_queue_pair_here(domain, queue, depths))
    }

    fn create_queue_pair_here(
        &self,
        domain: &Domain,
        queue: &CompletionQueue,
        depths: Depths,
    ) -> io::Result<()> {
        let mut attributes = ffi::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            srq: null_mut(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: depths.sends,
                max_recv_wr: depths.receives,
                max_send_sge: depths.segments,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::QPT_RC,
            // Every request completes, so that places in the queue are counted exactly.
            sq_sig_all: 1,
        };
        // SAFETY: live handles of one context; the domain and the queue outlive the pair.
        check(unsafe { (self.library.create_qp)(self.as_ptr(), domain.as_ptr(), &mut attributes) })
    }

    fn queue_pair(&self) -> Option<NonNull<ffi::ibv_qp>> {
        // SAFETY: a live identifier; the pair in it, if any, lives.
        NonNull::new(unsafe { (*self.as_ptr()).qp })
    }

    /// The number of the queue pair, if there is one.
    pub(super) fn queue_pair_number(&self) -> Option<u32> {
        // SAFETY: a live pair.
        self.queue_pair().map(|qp| unsafe { qp.as_ref().qp_num })
    }

    /// Ends the queue pair: when this returns the device touches no memory for it any more.
    pub(super) fn destroy_queue_pair(&mut self) {
        if self.queue_pair().is_some() && !fork::is_child() {
            keeper::on_behalf(self.fd(), || {
                // SAFETY: a live pair; the call clears the field.
                unsafe { (self.library.destroy_qp)(self.as_ptr()) };
            });
        }
    }

    /// Whether the device has given up on the queue pair.
    pub(super) fn is_in_error(&self) -> bool {
        keeper::on_behalf(self.fd(), || {
            let Some(qp) = self.queue_pair() else { return false };
            let mut attributes = MaybeUninit::<ffi::ibv_qp_attr>::zeroed();
            let mut init = MaybeUninit::<ffi::ibv_qp_init_attr>::zeroed();
            // SAFETY: a live pair; the call fills both structures, for which zeros are valid.
            unsafe {
                let (attributes, init) = (attributes.as_mut_ptr(), init.as_mut_ptr());
                (self.library.query_qp)(qp.as_ptr(), attributes, ffi::QP_STATE, init) == 0
                    && (*attributes).qp_state == ffi::QPS_ERR
            }
        })
    }

    fn parameters(private_data: &[u8], depths: ReadDepths) -> ffi::rdma_conn_param {
        ffi::rdma_conn_param {
            private_data: if private_data.is_empty() {
                null()
            } else {
                private_data.as_ptr().cast()
            },
            private_data_len: private_data.len().min(usize::from(u8::MAX)) as u8,
            responder_resources: depths.inbound,
            initiator_depth: depths.outbound,
            flow_control: 1,
            // As often as the device can: this is about lost packets.
            retry_count: 7,
            // A send that finds no receive breaks the connection.
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        }
    }

    pub(super) fn connect(&self, private_data: &[u8], depths: ReadDepths) -> io::Result<()> {
        keeper::on_behalf(self.fd(), || {
            let mut parameters = Self::parameters(private_data, depths);
            // SAFETY: a live identifier with a route and a pair; the data lives through the call.
            check(unsafe { (self.library.connect)(self.as_ptr(), &mut parameters) })
        })
    }

    pub(super) fn accept(&self, private_data: &[u8], depths: ReadDepths) -> io::Result<()> {
        keeper::on_behalf(self.fd(), || {
            let mut parameters = Self::parameters(private_data, depths);
            // SAFETY: a live identifier of a request, with a pair; the data lives through the call.
            check(unsafe { (self.library.accept)(self.as_ptr(), &mut parameters) })
        })
    }

    pub(super) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = private_data.len().min(usize::from(u8::MAX)) as u8;
        keeper::on_behalf(self.fd(), || {
            // SAFETY: a live identifier of a request; the data lives through the call.
            check(unsafe {
                (self.library.reject)(self.as_ptr(), private_data.as_ptr().cast(), len)
            })
        })
    }

    /// Tells the connection manager that a message has come before its last word.
    pub(super) fn notify_established(&self) {
        keeper::on_behalf(self.fd(), || {
            // SAFETY: a live identifier. A failure means that the word has come meanwhile.
            let _ = unsafe { (self.library.notify)(self.as_ptr(), ffi::EVENT_COMM_EST) };
        });
    }

    /// Says good-bye and moves the queue pair to its error state, which flushes its work.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        keeper::on_behalf(self.fd(), || {
            // SAFETY: a live identifier.
            check(unsafe { (self.library.disconnect)(self.as_ptr()) })
        })
    }

    /// Posts one receive.
    pub(super) fn post_receive(&self, id: u64, segment: Option<ffi::ibv_sge>) -> io::Result<()> {
        let qp = self.queue_pair().ok_or(io::ErrorKind::NotConnected)?;
        let mut segment = segment;
        let count = i32::from(segment.is_some());
        let list = segment.as_mut().map_or(null_mut(), |segment| &raw mut *segment);
        let mut request =
            ffi::ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: list, num_sge: count };
        let mut bad = null_mut();
        // SAFETY: a live pair of an open context; the request and its segment live through the
        // call, which copies them. The caller keeps the memory registered until completion.
        unsafe {
            let post = (*qp.as_ref().context).ops.post_recv.ok_or(io::ErrorKind::Unsupported)?;
            check(post(qp.as_ptr(), &mut request, &mut bad))
        }
    }

    /// Posts requests in their order, at most [`CHAIN_COUNT_MAX`], all under the same number.
    /// Returns how many the device has taken, with its error if that is not all.
    /// With `is_written` the device is told by a write to its descriptor.
    pub(super) fn post_sends(
        &self,
        id: u64,
        requests: &mut [&mut SendRequest],
        is_written: bool,
    ) -> Posted {
        if is_written {
            keeper::on_behalf(self.fd(), || self.post_sends_here(id, requests))
        } else {
            self.post_sends_here(id, requests)
        }
    }

    fn post_sends_here(&self, id: u64, requests: &mut [&mut SendRequest]) -> Posted {
        let none = |error: io::Error| Posted { count: 0, error: Some(error) };
        let Some(qp) = self.queue_pair() else {
            return none(io::ErrorKind::NotConnected.into());
        };
        // SAFETY: a live pair of an open context.
        let Some(post) = (unsafe { (*qp.as_ref().context).ops.post_send }) else {
            return none(io::ErrorKind::Unsupported.into());
        };
        debug_assert!(!requests.is_empty() && requests.len() <= CHAIN_COUNT_MAX);
        let mut chain: SmallVec<[ffi::ibv_send_wr; CHAIN_COUNT_MAX]> = requests
            .iter_mut()
            .map(|request| ffi::ibv_send_wr {
                wr_id: id,
                next: null_mut(),
                sg_list: request.segments.as_mut_ptr(),
                num_sge: request.segments.len() as i32,
                opcode: request.opcode,
                send_flags: ffi::SEND_SIGNALED,
                invalidate_rkey: request.invalidate,
                remote_addr: request.remote_address,
                rkey: request.remote_key,
                _rest: [0; 19],
            })
            .collect();
        let first = chain.as_mut_ptr();
        let mut bad = null_mut();
        // SAFETY: the links stay inside the vector, which does not move any more; requests and
        // segments live through the call, which copies them. The caller keeps the memory
        // registered until completion.
        let returned = unsafe {
            for index in 1..chain.len() {
                (*first.add(index - 1)).next = first.add(index);
            }
            post(qp.as_ptr(), first, &mut bad)
        };
        match check(returned) {
            Ok(()) => Posted { count: chain.len(), error: None },
            Err(error) => {
                // The device names the first that it has not taken.
                let offset =
                    (bad.addr().wrapping_sub(first.addr())) / size_of::<ffi::ibv_send_wr>();
                let count = if bad.is_null() || offset >= chain.len() { 0 } else { offset };
                Posted { count, error: Some(error) }
            }
        }
    }
}

/// What [`CmId::post_sends`] came to.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) count: usize,
    pub(super) error: Option<io::Error>,
}

impl Drop for CmId {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.destroy_queue_pair();
        keeper::on_behalf(self.fd(), || {
            // SAFETY: ours, without a pair; every event of it has been acknowledged.
            unsafe { (self.library.destroy_id)(self.as_ptr()) };
        });
    }
}

/// An address as the library takes it.
fn raw_address(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zeros are a valid value.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(address) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger and aligned for every kind of address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(address) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
        }
    }
    storage
}

/// An address that the library holds; `None` if there is none of a known family.
fn socket_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is; every bit pattern is valid.
            let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = raw.sin_addr.s_addr.to_ne_bytes().into();
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let (ip, port) = (raw.sin6_addr.s6_addr.into(), u16::from_be(raw.sin6_port));
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_the_library() {
        for text in ["10.0.2.15:20049", "[fe80::1%3]:7", "[::1]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(socket_address(&raw_address(address)), Some(address));
        }
        // SAFETY: all zeros are a valid value.
        assert_eq!(socket_address(&unsafe { std::mem::zeroed() }), None);
    }
}
