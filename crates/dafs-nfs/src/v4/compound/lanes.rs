//! The lanes of a compound: the machines that it waits for.
//!
//! Invariants
//! * A thread of a lane serves the calls of one store, or those that wait for no other machine. On
//!   such a thread, a compound executes no operation that may wait for the machines of another
//!   store. So a store that does not answer never blocks the threads of others, whatever handles
//!   clients put into one request.

use super::context::{CurrentHandle, Frame, OpContext};
use crate::v4::class::Class;
use dafs_service::{Service, Touch};
use dafs_wire::nfs4::OpNum;

/// True if the operation on the current file handle may wait for other machines.
pub(super) fn waits_for_store(cx: &OpContext<'_>, number: OpNum) -> bool {
    let service = &cx.shared.service;
    let waits = |at: CurrentHandle| service.namespace().waits_for(&at.handle, Touch::Object);
    !Class::of(number).is_about_handles() && cx.frame.current.is_some_and(waits)
}

/// True if an operation may wait for machines of another lane than this thread's, which is `own`.
pub(super) fn is_elsewhere(cx: &OpContext<'_>, own: Option<u64>, number: OpNum) -> bool {
    let Some(own) = own else { return false };
    let lane = cx.frame.lane(&cx.shared.service);
    !Class::of(number).is_about_handles() && lane != own && lane != 0
}

impl Frame {
    /// Returns the next lane to wait for: that of the current file handle, or of the saved one.
    pub(super) fn lane(&self, service: &Service) -> u64 {
        let namespace = service.namespace();
        let lane = |at: Option<CurrentHandle>| at.map_or(0, |at| namespace.lane(&at.handle));
        match lane(self.current) {
            0 => lane(self.saved),
            own => own,
        }
    }
}
