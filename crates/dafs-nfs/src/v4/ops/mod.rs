//! The operations on files.

use super::compound::{Compound, OpResult};
use dafs_wire::nfs4::{Op, Status};

/// Runs an operation on files.
pub(crate) fn dispatch(_cx: &mut Compound<'_>, _op: &Op<'_>) -> OpResult {
    Err(Status::NotSupp.into())
}
