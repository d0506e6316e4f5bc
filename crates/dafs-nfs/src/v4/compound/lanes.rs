//! Whose machines a compound waits for.
//!
//! Invariants
//! * On a thread that is there for the calls of one store, or for those that wait for no other machine, a
//!   compound does nothing for which the machines of another store may be waited for: the threads of a store
//!   that does not answer are not to be those of others, whatever handles clients put into one request.

use super::{Compound, Frame, Place};
use dafs_service::{Service, Touch};
use dafs_wire::nfs4::OpNum;

impl Compound<'_> {
    /// Whether whatever an operation does with the current file handle may wait for other machines.
    pub(super) fn waits_for_store(&self, number: OpNum) -> bool {
        let service = &self.shared.service;
        let waits = |place: Place| service.namespace().waits_for(&place.handle, Touch::Object);
        !is_about_handles(number) && self.frame.current.is_some_and(waits)
    }

    /// Whether an operation may wait for machines that this thread is not to wait for.
    pub(super) fn is_elsewhere(&self, number: OpNum) -> bool {
        let Some(own) = self.lane else { return false };
        let lane = self.frame.lane(&self.shared.service);
        !is_about_handles(number) && lane != own && lane != 0
    }
}

/// Whether an operation does nothing but remember and tell handles.
fn is_about_handles(number: OpNum) -> bool {
    matches!(
        number,
        OpNum::Sequence
            | OpNum::Putfh
            | OpNum::Putrootfh
            | OpNum::Putpubfh
            | OpNum::Getfh
            | OpNum::Savefh
            | OpNum::Restorefh
    )
}

impl Frame {
    /// Whose machines may be waited for next: those of the current file handle, or of the saved one.
    pub(super) fn lane(&self, service: &Service) -> u64 {
        let namespace = service.namespace();
        let lane = |place: Option<Place>| place.map_or(0, |place| namespace.lane(&place.handle));
        match lane(self.current) {
            0 => lane(self.saved),
            own => own,
        }
    }
}
