//! RECLAIM_COMPLETE (RFC 8881 18.51).

use crate::v4::compound::context::OpContext;
use crate::v4::status::OpResult;
use dafs_service::ServiceError;
use dafs_wire::nfs4::{ReclaimCompleteArgs, Status};

/// Completes the client's reclaims. For one file system (after a migration, which this server does
/// not have) there is no work to do.
pub(crate) fn reclaim_complete(cx: &mut OpContext<'_>, args: &ReclaimCompleteArgs) -> OpResult {
    if args.one_fs {
        cx.current()?;
        return Ok(());
    }
    // The durable record is written now.
    cx.may_wait()?;
    match cx.service().clients.reclaim_complete(cx.client()?) {
        // The lease ended after SEQUENCE. No other status for it is allowed here (RFC 8881 15.2).
        Err(ServiceError::Expired) => Err(Status::DeadSession.into()),
        completed => Ok(completed?),
    }
}
