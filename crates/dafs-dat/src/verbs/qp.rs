//! The queue pair of a connection: creation, posting, state, destruction.
//!
//! Invariants
//! * A queue pair lives inside its identifier and is destroyed before it.
//! * The device copies posted requests. The caller keeps the memory that they name registered until
//!   completion.

use super::cm::CmId;
use super::command_thread;
use super::connection::Lane;
use super::ffi;
use super::fork;
use super::sys::{CompletionQueue, Domain, Registration, check};
use super::window::Window;
use smallvec::SmallVec;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

/// The most requests of one posting call.
pub(super) const CHAIN_COUNT_MAX: usize = 32;

/// The queues of a queue pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depths {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) segments: u32,
}

/// One request for a send queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SendRequest {
    pub(super) opcode: i32,
    pub(super) segments: SmallVec<[ffi::ibv_sge; 4]>,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    /// The key of a send with invalidate.
    pub(super) invalidate: u32,
}

impl CmId {
    pub(super) fn create_queue_pair(
        &self,
        domain: &Domain,
        queue: &CompletionQueue,
        depths: Depths,
    ) -> io::Result<()> {
        fork::check()?;
        command_thread::with_opener_credentials(self.fd(), || {
            self.create_queue_pair_here(domain, queue, depths)
        })
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
            // Every request completes, so that slots in the queue are counted exactly.
            sq_sig_all: 1,
        };
        // SAFETY: live handles of one context; the domain and the queue outlive the pair.
        check(unsafe { (self.library.create_qp)(self.as_ptr(), domain.as_ptr(), &mut attributes) })
    }

    fn queue_pair(&self) -> Option<NonNull<ffi::ibv_qp>> {
        // SAFETY: a live identifier; the pair in it, if any, lives.
        NonNull::new(unsafe { (*self.as_ptr()).qp })
    }

    pub(super) fn queue_pair_number(&self) -> Option<u32> {
        // SAFETY: a live pair.
        self.queue_pair().map(|qp| unsafe { qp.as_ref().qp_num })
    }

    /// Destroys the queue pair: when this returns the device accesses no memory for it any more.
    pub(super) fn destroy_queue_pair(&mut self) {
        if self.queue_pair().is_some() && !fork::is_child() {
            command_thread::with_opener_credentials(self.fd(), || {
                // SAFETY: a live pair; the call clears the field.
                unsafe { (self.library.destroy_qp)(self.as_ptr()) };
            });
        }
    }

    /// True if the queue pair is in its error state.
    pub(super) fn is_in_error(&self) -> bool {
        command_thread::with_opener_credentials(self.fd(), || {
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

    /// Posts requests in their order, at most [`CHAIN_COUNT_MAX`], each under the number of its
    /// lane. Returns how many the device has accepted, with its error if not all. With `is_written` a
    /// write to the descriptor informs the device.
    pub(super) fn post_sends(
        &self,
        connection: u64,
        requests: &mut [&mut SendRequest],
        is_written: bool,
    ) -> Posted {
        if is_written {
            command_thread::with_opener_credentials(self.fd(), || {
                self.post_sends_here(connection, requests)
            })
        } else {
            self.post_sends_here(connection, requests)
        }
    }

    /// Posts the request that binds a window to this queue pair, so that its peer may read a part of a
    /// registration: its address and its bytes. The completion has the number of the sends.
    pub(super) fn post_bind(
        &self,
        connection: u64,
        (window, registration): (&Window, &Registration),
        place: (u64, u64),
        is_written: bool,
    ) -> io::Result<()> {
        let post = || self.post_bind_here(connection, (window, registration), place);
        if is_written { command_thread::with_opener_credentials(self.fd(), post) } else { post() }
    }

    fn post_bind_here(
        &self,
        connection: u64,
        (window, registration): (&Window, &Registration),
        place: (u64, u64),
    ) -> io::Result<()> {
        let qp = self.queue_pair().ok_or(io::ErrorKind::NotConnected)?;
        let mut request = ffi::ibv_send_wr {
            wr_id: Lane::Send.number(connection),
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
            opcode: ffi::WR_BIND_MW,
            send_flags: ffi::SEND_SIGNALED,
            invalidate_rkey: 0,
            remote_addr: 0,
            rkey: 0,
            _between: [0; 7],
            bind_mw: window.reading(registration, place),
        };
        let mut bad = null_mut();
        // SAFETY: a live pair of an open context, and a live window and registration of its domain. The
        // request lives through the call, which copies it. The caller keeps window and registration
        // until completion.
        unsafe {
            let post = (*qp.as_ref().context).ops.post_send.ok_or(io::ErrorKind::Unsupported)?;
            check(post(qp.as_ptr(), &mut request, &mut bad))
        }
    }

    fn post_sends_here(&self, connection: u64, requests: &mut [&mut SendRequest]) -> Posted {
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
                wr_id: Lane::of(request.opcode).number(connection),
                next: null_mut(),
                sg_list: request.segments.as_mut_ptr(),
                num_sge: request.segments.len() as i32,
                opcode: request.opcode,
                // siw sends pages by reference if nothing reports their end.
                send_flags: ffi::SEND_SIGNALED,
                invalidate_rkey: request.invalidate,
                remote_addr: request.remote_address,
                rkey: request.remote_key,
                _between: [0; 7],
                bind_mw: ffi::ibv_bind_mw::NONE,
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
                // The device reports the first request that it has not accepted.
                let offset =
                    (bad.addr().wrapping_sub(first.addr())) / size_of::<ffi::ibv_send_wr>();
                let count = if bad.is_null() || offset >= chain.len() { 0 } else { offset };
                Posted { count, error: Some(error) }
            }
        }
    }
}

/// The result of [`CmId::post_sends`].
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) count: usize,
    pub(super) error: Option<io::Error>,
}
