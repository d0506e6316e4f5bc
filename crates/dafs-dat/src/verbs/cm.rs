//! Connections: identifiers and events of librdmacm. Queue pairs are in `qp`.
//!
//! Invariants
//! * An event is copied and acknowledged at once. So an identifier can be destroyed at any time,
//!   without a deadlock.
//! * The context of an identifier is a number, never a pointer.

use super::address::{raw_address, socket_address};
use super::command_thread;
use super::error::VerbsError;
use super::ffi;
use super::fork;
use super::library::Library;
use super::sys::{check, set_nonblocking};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null, null_mut};

/// The event channel of connections.
pub(super) struct EventChannel {
    library: &'static Library,
    channel: NonNull<ffi::rdma_event_channel>,
}

// SAFETY: a handle of the library, which accepts it from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: one thread drives an adapter, so only one thread at a time uses a shared handle.
unsafe impl Sync for EventChannel {}

/// A copied event.
#[derive(Debug)]
pub(super) struct CmEvent {
    /// The token of its identifier; for a request, that of its listener.
    pub(super) token: u64,
    pub(super) kind: i32,
    pub(super) status: i32,
    /// The identifier of a request.
    pub(super) request: Option<CmId>,
    pub(super) private_data: Vec<u8>,
    /// Reads that the peer may have in progress at a time, as far as it states that.
    pub(super) responder_resources: u8,
    /// Reads of this side that the peer answers at a time.
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
        command_thread::with_opener_credentials(self.fd(), || {
            let mut id = null_mut();
            // SAFETY: writes the identifier; the context is a number that no code dereferences.
            check(unsafe {
                let context = std::ptr::without_provenance_mut(token as usize);
                (self.library.create_id)(self.channel.as_ptr(), &mut id, context, ffi::PS_TCP)
            })?;
            let id = NonNull::new(id).ok_or_else(io::Error::last_os_error)?;
            Ok(CmId { library: self.library, id })
        })
    }

    /// True if there is an event. Any thread may check this, but not take the event.
    fn is_ready(&self) -> bool {
        let mut set = [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut set, Some(&now)), Ok(0))
    }

    pub(super) fn next(&self) -> io::Result<Option<CmEvent>> {
        if !self.is_ready() {
            return Ok(None);
        }
        command_thread::with_opener_credentials(self.fd(), || self.take())
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
                // SAFETY: an identifier of this adapter, alive until its owner destroys it, which
                // waits for the acknowledgement. The identifier of a request has the context of its
                // listener.
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
            // SAFETY: owned by this value; all its identifiers were destroyed before it.
            unsafe { (self.library.destroy_event_channel)(self.channel.as_ptr()) };
        }
    }
}

/// The agreement of both sides besides private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadDepths {
    /// Reads of the peer that this side answers at a time (IRD).
    pub(super) inbound: u8,
    /// Own reads at a time (ORD).
    pub(super) outbound: u8,
}

/// A connection identifier, with its queue pair once it has one.
pub(super) struct CmId {
    pub(super) library: &'static Library,
    id: NonNull<ffi::rdma_cm_id>,
}

// SAFETY: a handle of the library, which accepts it from any thread.
unsafe impl Send for CmId {}
// SAFETY: one thread drives an adapter, so only one thread at a time uses a shared handle.
unsafe impl Sync for CmId {}

impl std::fmt::Debug for CmId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CmId({:?})", self.id)
    }
}

impl CmId {
    pub(super) fn as_ptr(&self) -> *mut ffi::rdma_cm_id {
        self.id.as_ptr()
    }

    /// The descriptor to which its commands are written.
    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: an identifier lives no longer than its channel.
        unsafe { (*(*self.as_ptr()).channel).fd }
    }

    /// Changes the token of its events.
    pub(super) fn set_token(&mut self, token: u64) {
        // SAFETY: the field belongs to the program.
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
        command_thread::with_opener_credentials(self.fd(), || {
            let mut address = raw_address(address);
            // SAFETY: a live identifier and an address of the family it names.
            check(unsafe { (self.library.bind_addr)(self.as_ptr(), (&raw mut address).cast()) })
        })
    }

    pub(super) fn listen(&self, backlog: i32) -> io::Result<()> {
        command_thread::with_opener_credentials(self.fd(), || {
            // SAFETY: a live, bound identifier.
            check(unsafe { (self.library.listen)(self.as_ptr(), backlog) })
        })
    }

    pub(super) fn resolve_address(&self, to: SocketAddr, timeout_ms: i32) -> io::Result<()> {
        command_thread::with_opener_credentials(self.fd(), || {
            let mut to = raw_address(to);
            // SAFETY: as in `bind`; without a source address the system chooses one.
            check(unsafe {
                let to = (&raw mut to).cast();
                (self.library.resolve_addr)(self.as_ptr(), null_mut(), to, timeout_ms)
            })
        })
    }

    pub(super) fn resolve_route(&self, timeout_ms: i32) -> io::Result<()> {
        command_thread::with_opener_credentials(self.fd(), || {
            // SAFETY: a live identifier.
            check(unsafe { (self.library.resolve_route)(self.as_ptr(), timeout_ms) })
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
            // The maximum of the device, because it covers lost packets.
            retry_count: 7,
            // A send without a receive breaks the connection.
            rnr_retry_count: 0,
            srq: 0,
            qp_num: 0,
        }
    }

    pub(super) fn connect(&self, private_data: &[u8], depths: ReadDepths) -> io::Result<()> {
        command_thread::with_opener_credentials(self.fd(), || {
            let mut parameters = Self::parameters(private_data, depths);
            // SAFETY: a live identifier with a route and a pair; the data lives through the call.
            check(unsafe { (self.library.connect)(self.as_ptr(), &mut parameters) })
        })
    }

    pub(super) fn accept(&self, private_data: &[u8], depths: ReadDepths) -> io::Result<()> {
        command_thread::with_opener_credentials(self.fd(), || {
            let mut parameters = Self::parameters(private_data, depths);
            // SAFETY: a live identifier of a request, with a pair; the data lives through the call.
            check(unsafe { (self.library.accept)(self.as_ptr(), &mut parameters) })
        })
    }

    pub(super) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = private_data.len().min(usize::from(u8::MAX)) as u8;
        command_thread::with_opener_credentials(self.fd(), || {
            // SAFETY: a live identifier of a request; the data lives through the call.
            check(unsafe {
                (self.library.reject)(self.as_ptr(), private_data.as_ptr().cast(), len)
            })
        })
    }

    /// Tells the connection manager that a message has arrived before its own last message.
    pub(super) fn notify_established(&self) {
        command_thread::with_opener_credentials(self.fd(), || {
            // SAFETY: a live identifier. A failure means that the last message has arrived
            // meanwhile.
            let _ = unsafe { (self.library.notify)(self.as_ptr(), ffi::EVENT_COMM_EST) };
        });
    }

    /// Disconnects and moves the queue pair to its error state, which flushes its work.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        command_thread::with_opener_credentials(self.fd(), || {
            // SAFETY: a live identifier.
            check(unsafe { (self.library.disconnect)(self.as_ptr()) })
        })
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.destroy_queue_pair();
        command_thread::with_opener_credentials(self.fd(), || {
            // SAFETY: owned by this value, without a pair; every event of it has been acknowledged.
            unsafe { (self.library.destroy_id)(self.as_ptr()) };
        });
    }
}
