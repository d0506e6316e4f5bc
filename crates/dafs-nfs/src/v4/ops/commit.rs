//! COMMIT (RFC 8881 18.3).

use super::{holds_data, kind_of};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, of_store, without_perm};
use dafs_store::StoreError;
use dafs_wire::nfs4::{CommitArgs, CommitResult, Status};

pub(crate) fn commit(cx: &mut OpContext<'_>, args: &CommitArgs) -> OpResult {
    let handle = cx.current()?;
    cx.may_wait()?;
    holds_data(kind_of(cx, &handle)?)?;
    let file = cx.service().file_for_sync(cx.caller()?, &handle).map_err(without_perm)?;
    // A range beyond every offset ends at the end of the file.
    let end = args.offset.checked_add(u64::from(args.count));
    let count = if end.is_some() { u64::from(args.count) } else { 0 };
    // Read before the data is made stable: if the data is lost meanwhile, the client must see that.
    let verifier = cx.write_verifier();
    if let Err(error) = file.commit(args.offset, count) {
        let error = match error {
            // The disk had no space for cached data, so that data is lost too.
            StoreError::NoSpace | StoreError::Quota => StoreError::Io,
            error => error,
        };
        return Err(OpError::Status(sync_failed(cx, error)));
    }
    // A race: another thread has found that data is lost, which may be this client's. This verifier
    // would be the old one, so the client retries and gets the new one.
    if cx.write_verifier() != verifier {
        return Err(Status::Delay.into());
    }
    cx.answer(&CommitResult { verifier })
}

/// Returns the status for data that could not be made stable. If a device failed, unstable data of
/// any client may be lost with it.
pub(crate) fn sync_failed(cx: &OpContext<'_>, error: StoreError) -> Status {
    if error == StoreError::Io {
        // The verifier changes first: the next commit of the file may succeed.
        cx.shared().write_verifier.change();
        tracing::error!(%error, "data could not be made stable");
    }
    of_store(error)
}
