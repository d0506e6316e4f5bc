//! Converts state-ids between the wire and the service (RFC 8881 8.2).
//!
//! The twelve opaque bytes are the service's number, big end first, and four zeros.

use dafs_service::{StateId, StateRef};
use dafs_wire::nfs4::{Stateid, Status};

/// Returns the service's reference for a state-id from the wire. The special one for the current
/// state-id must have been replaced before.
///
/// # Errors
/// `BadStateId` for one that this server never assigns.
pub(crate) fn reference(stateid: &Stateid) -> Result<StateRef, Status> {
    let [a, b, c, d, e, f, g, h, rest @ ..] = stateid.other;
    match *stateid {
        Stateid::ANONYMOUS => Ok(StateRef::ANONYMOUS),
        Stateid::READ_BYPASS => Ok(StateRef::READ_BYPASS),
        Stateid { other: [0, ..], .. } if stateid.other == [0; 12] => Err(Status::BadStateId),
        Stateid { other: [0xff, ..], .. } if stateid.other == [0xff; 12] => Err(Status::BadStateId),
        Stateid { seqid, .. } if rest == [0; 4] => {
            Ok(StateRef { id: StateId(u64::from_be_bytes([a, b, c, d, e, f, g, h])), seqid })
        }
        _ => Err(Status::BadStateId),
    }
}

/// Returns the state-id for the wire.
pub(crate) fn wire(state: StateRef) -> Stateid {
    let mut other = [0; 12];
    other[..8].copy_from_slice(&state.id.0.to_be_bytes());
    Stateid { seqid: state.seqid, other }
}
