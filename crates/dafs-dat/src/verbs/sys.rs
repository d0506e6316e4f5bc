//! Devices, protection domains, memory and queues of libibverbs, each with an owner that releases
//! it. Only this module, `cm`, `qp`, `window` and `library` call the library.
//!
//! Invariants
//! * A handle is released once, when its owner is dropped, and never in a child of a fork.
//! * Owners are dropped in the order that the library requires: queue pairs before queues, regions
//!   before their domain. The adapter's fields are in that order.
//! * Contexts belong to librdmacm and stay open for the life of the process.

use super::command_thread;
use super::error::VerbsError;
use super::ffi;
use super::fork;
use super::library::Library;
use dafs_mem::Buffer;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};

/// Makes a descriptor non-blocking.
pub(super) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the caller's descriptor is open; only its flags are read and set.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The result of a call that returns 0 or an error number.
pub(super) fn check(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        error if error > 0 => Err(io::Error::from_raw_os_error(error)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An open device. The context belongs to librdmacm, so that its connections may use objects of
/// this device.
#[derive(Clone, Copy)]
pub(super) struct Device {
    library: &'static Library,
    context: NonNull<ffi::ibv_context>,
}

// SAFETY: contexts live as long as the process, and the library locks shared state.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// All devices that the connection manager knows. Their contexts stay open.
    pub(super) fn all(library: &'static Library) -> Result<Vec<Device>, VerbsError> {
        let mut count = 0;
        // SAFETY: writes `count`; the list has `count` contexts. The list is never freed, which
        // keeps the contexts open.
        let list = unsafe { (library.get_devices)(&mut count) };
        if list.is_null() {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENODEV) | None => Err(VerbsError::NoDevice),
                _ => Err(VerbsError::ConnectionManager(error)),
            };
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the library has just returned a list of that many pointers.
        let contexts = unsafe { std::slice::from_raw_parts(list, count) };
        let devices = contexts.iter().filter_map(|context| NonNull::new(*context));
        Ok(devices.map(|context| Device { library, context }).collect())
    }

    /// The device of a connection.
    pub(super) fn of(library: &'static Library, context: *mut ffi::ibv_context) -> Option<Self> {
        NonNull::new(context).map(|context| Device { library, context })
    }

    pub(super) fn is(&self, context: *mut ffi::ibv_context) -> bool {
        self.context.as_ptr() == context
    }

    /// The descriptor to which commands for the device are written.
    fn fd(&self) -> RawFd {
        // SAFETY: an open context.
        unsafe { (*self.context.as_ptr()).cmd_fd }
    }

    fn device(&self) -> &ffi::ibv_device {
        // SAFETY: an open context has a device, which lives as long as it.
        unsafe { &*(*self.context.as_ptr()).device }
    }

    pub(super) fn name(&self) -> String {
        // SAFETY: the library terminates the name within its array.
        let name = unsafe { CStr::from_ptr(self.device().name.as_ptr()) };
        name.to_string_lossy().into_owned()
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.device().transport_type == ffi::TRANSPORT_IWARP
    }

    pub(super) fn is_infiniband(&self) -> bool {
        self.device().transport_type == ffi::TRANSPORT_IB
    }

    pub(super) fn attributes(&self) -> Result<ffi::ibv_device_attr, VerbsError> {
        let mut attributes = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
        // SAFETY: an open context; the call fills the structure, for which zeros are valid.
        let returned =
            unsafe { (self.library.query_device)(self.context.as_ptr(), attributes.as_mut_ptr()) };
        check(returned).map_err(|error| VerbsError::Io { what: "query an RDMA device", error })?;
        // SAFETY: integers, zeroed or written.
        Ok(unsafe { attributes.assume_init() })
    }

    pub(super) fn port(&self, number: u8) -> Result<ffi::ibv_port_attr, VerbsError> {
        let mut attributes = MaybeUninit::<ffi::ibv_port_attr>::zeroed();
        // SAFETY: as above; the symbol writes at most the structure.
        let returned = unsafe {
            (self.library.query_port)(self.context.as_ptr(), number, attributes.as_mut_ptr())
        };
        check(returned)
            .map_err(|error| VerbsError::Io { what: "query a port of an RDMA device", error })?;
        // SAFETY: integers, zeroed or written.
        Ok(unsafe { attributes.assume_init() })
    }

    /// The next asynchronous error event of this device: its queue pair number, if it has one, and
    /// its type. The whole process shares the events of a device.
    pub(super) fn async_event(&self) -> Option<(Option<u32>, i32)> {
        // SAFETY: an open context.
        let fd = unsafe { (*self.context.as_ptr()).async_fd };
        set_nonblocking(fd).ok()?;
        let mut event = ffi::ibv_async_event { element: null_mut(), event_type: -1 };
        // SAFETY: fills the event; does not wait, because one was found above.
        if unsafe { (self.library.get_async_event)(self.context.as_ptr(), &mut event) } != 0 {
            return None;
        }
        let about_queue_pair =
            (ffi::EVENT_QP_FATAL..=ffi::EVENT_COMM_EST).contains(&event.event_type);
        // SAFETY: for these types the element is a queue pair, which is not destroyed before its
        // events are acknowledged.
        let number =
            about_queue_pair.then(|| unsafe { (*event.element.cast::<ffi::ibv_qp>()).qp_num });
        // SAFETY: the event just taken, once.
        unsafe { (self.library.ack_async_event)(&mut event) };
        Some((number, event.event_type))
    }

    pub(super) fn domain(&self) -> io::Result<Domain> {
        fork::check()?;
        command_thread::with_opener_credentials(self.fd(), || {
            // SAFETY: an open context.
            let pd = unsafe { (self.library.alloc_pd)(self.context.as_ptr()) };
            let pd = NonNull::new(pd).ok_or_else(io::Error::last_os_error)?;
            Ok(Domain { library: self.library, pd })
        })
    }

    pub(super) fn completion_channel(&self) -> io::Result<CompletionChannel> {
        // SAFETY: an open context.
        let channel = unsafe { (self.library.create_comp_channel)(self.context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let channel = CompletionChannel { library: self.library, channel };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(super) fn completion_queue(
        &self,
        channel: &CompletionChannel,
        entries: u32,
    ) -> io::Result<CompletionQueue> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        command_thread::with_opener_credentials(self.fd(), || {
            // SAFETY: an open context and a channel of it, which outlives the queue.
            let cq = unsafe {
                let context = self.context.as_ptr();
                (self.library.create_cq)(context, entries, null_mut(), channel.channel.as_ptr(), 0)
            };
            let cq = NonNull::new(cq).ok_or_else(io::Error::last_os_error)?;
            Ok(CompletionQueue { library: self.library, cq })
        })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

macro_rules! owner {
    ($(#[$doc:meta])* $name:ident { $field:ident: $kind:ident, $release:ident }) => {
        $(#[$doc])*
        pub(super) struct $name {
            library: &'static Library,
            $field: NonNull<ffi::$kind>,
        }

        // SAFETY: a handle of the library, which accepts it from any thread.
        unsafe impl Send for $name {}
        // SAFETY: one thread drives an adapter, so only one thread at a time uses a shared handle;
        // posted work holds only numbers of a registration, which never change.
        unsafe impl Sync for $name {}

        impl $name {
            /// Called once, on drop.
            fn release(&self) -> libc::c_int {
                // SAFETY: owned by this value and released once; no user of it is left (see above).
                unsafe { (self.library.$release)(self.$field.as_ptr()) }
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if fork::is_child() {
                    return;
                }
                // SAFETY: a live handle of an open context.
                let descriptor = unsafe { (*self.$field.as_ref().context).cmd_fd };
                let failed = command_thread::with_opener_credentials(descriptor, || self.release());
                if failed != 0 {
                    tracing::warn!(failed, concat!("cannot release: ", stringify!($release)));
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.$field)
            }
        }
    };
}

owner! {
    /// A protection domain.
    Domain { pd: ibv_pd, dealloc_pd }
}
owner! {
    /// A registration of memory.
    Registration { mr: ibv_mr, dereg_mr }
}
owner! {
    /// Reports that completion queues are no longer empty.
    CompletionChannel { channel: ibv_comp_channel, destroy_comp_channel }
}
owner! {
    /// A completion queue.
    CompletionQueue { cq: ibv_cq, destroy_cq }
}

impl Domain {
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.pd.as_ptr()
    }

    /// Registers a whole buffer, which the caller keeps alive until the registration is dropped.
    pub(super) fn register(&self, buffer: &Buffer, access: i32) -> io::Result<Registration> {
        fork::check()?;
        // SAFETY: a live domain of an open context.
        let descriptor = unsafe { (*self.pd.as_ref().context).cmd_fd };
        command_thread::with_opener_credentials(descriptor, || {
            // SAFETY: the range is mapped as long as the buffer lives; the device gets no more than
            // it, and views of it tolerate changes.
            let mr = unsafe {
                let (address, len) = (buffer.as_ptr().cast(), buffer.len());
                (self.library.reg_mr)(self.pd.as_ptr(), address, len, access)
            };
            let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
            Ok(Registration { library: self.library, mr })
        })
    }
}

impl Registration {
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_mr {
        self.mr.as_ptr()
    }

    /// The key for local work.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: a live registration.
        unsafe { self.mr.as_ref().lkey }
    }

    /// The key for peers.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref().rkey }
    }
}

impl CompletionChannel {
    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: a live channel.
        unsafe { self.channel.as_ref().fd }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }

    /// Takes all reports, so that the descriptor is not readable until a queue is armed and gets a
    /// completion.
    pub(super) fn drain(&self) {
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: writes both; does not wait, for the descriptor is non-blocking.
            unsafe {
                if (self.library.get_cq_event)(self.channel.as_ptr(), &mut cq, &mut context) != 0 {
                    return;
                }
                // One report, of a queue that cannot be destroyed before the acknowledgement.
                (self.library.ack_cq_events)(cq, 1);
            }
        }
    }
}

/// One completion from a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reaped {
    /// The identifier of the posted work.
    pub(super) id: u64,
    pub(super) status: i32,
    pub(super) bytes: u32,
    /// The key that the peer's message has invalidated.
    pub(super) invalidated: Option<u32>,
}

/// Completions taken in one call.
const REAP_COUNT: usize = 32;

impl CompletionQueue {
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.cq.as_ptr()
    }

    pub(super) fn capacity(&self) -> u32 {
        // SAFETY: a live queue.
        u32::try_from(unsafe { self.cq.as_ref().cqe }).unwrap_or(0)
    }

    fn ops(&self) -> &ffi::ibv_context_ops {
        // SAFETY: a live queue has an open context.
        unsafe { &(*self.cq.as_ref().context).ops }
    }

    /// Takes a few completions; returns how many.
    pub(super) fn reap(&self, mut found: impl FnMut(Reaped)) -> io::Result<usize> {
        let Some(poll) = self.ops().poll_cq else { return Err(missing_operation()) };
        let mut completions = [MaybeUninit::<ffi::ibv_wc>::uninit(); REAP_COUNT];
        let room = REAP_COUNT as i32;
        // SAFETY: the device writes at most `room` completions to an array of that many.
        let count = unsafe { poll(self.cq.as_ptr(), room, completions.as_mut_ptr().cast()) };
        let count = usize::try_from(count)
            .map_err(|_| io::Error::other("the RDMA device's completion queue has failed"))?;
        for completion in &completions[..count.min(REAP_COUNT)] {
            // SAFETY: one of the written completions.
            let wc = unsafe { completion.assume_init_ref() };
            let ok = wc.status == ffi::WC_SUCCESS;
            // In a failed one only the identifier and the status are valid.
            let with_key = ok && wc.wc_flags & ffi::WC_WITH_INV != 0;
            found(Reaped {
                id: wc.wr_id,
                status: wc.status,
                bytes: if ok { wc.byte_len } else { 0 },
                invalidated: with_key.then_some(wc.invalidated_rkey),
            });
        }
        Ok(count)
    }

    /// Makes the next completion report to the channel. With `is_written` a write to the descriptor
    /// informs the device.
    pub(super) fn request_notice(&self, is_written: bool) -> io::Result<()> {
        let Some(request) = self.ops().req_notify_cq else { return Err(missing_operation()) };
        // SAFETY: a live queue of an open context.
        let descriptor = unsafe { (*self.cq.as_ref().context).cmd_fd };
        let call = || {
            // SAFETY: a live queue.
            check(unsafe { request(self.cq.as_ptr(), 0) })
        };
        if is_written { command_thread::with_opener_credentials(descriptor, call) } else { call() }
    }
}

fn missing_operation() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the RDMA device's driver lacks an operation")
}

/// The library's text for a status.
pub(super) fn status_text(library: &Library, status: i32) -> String {
    // SAFETY: yields a constant text for any number.
    let text = unsafe { (library.status_text)(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: a terminated constant.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
