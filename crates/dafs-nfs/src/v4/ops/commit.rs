//! COMMIT (RFC 8881 18.3).

use super::{holds_data, kind_of};
use crate::v4::compound::{Compound, OpError, OpResult};
use crate::v4::status::{of_store, without_perm};
use dafs_store::StoreError;
use dafs_wire::nfs4::{CommitArgs, CommitResult, Status, Verifier};

pub(crate) fn commit(cx: &mut Compound<'_>, args: &CommitArgs) -> OpResult {
    let handle = cx.current()?;
    cx.may_wait()?;
    holds_data(kind_of(cx, &handle)?)?;
    let file = cx.shared.service.file_for_sync(cx.caller()?, &handle).map_err(without_perm)?;
    // A range beyond every offset ends where the file does.
    let end = args.offset.checked_add(u64::from(args.count));
    let count = if end.is_some() { u64::from(args.count) } else { 0 };
    // Before the data is made stable: should it be lost meanwhile, the client is to see that.
    let verifier = Verifier(cx.shared.write_verifier.current());
    if let Err(error) = file.commit(args.offset, count) {
        let error = match error {
            // Space that was promised to cached data and could not be had: that data is gone too.
            StoreError::NoSpace | StoreError::Quota => StoreError::Io,
            error => error,
        };
        return Err(OpError::Status(sync_failed(cx, error)));
    }
    // Somebody else has found meanwhile that data is lost, which may be this client's: its word would
    // be of before that. When it asks again it is told the new verifier.
    if cx.shared.write_verifier.current() != verifier.0 {
        return Err(Status::Delay.into());
    }
    cx.encoder().value(&CommitResult { verifier });
    Ok(())
}

/// The status for data that could not be made stable. If a device failed, unstable data of anybody
/// may be gone with it.
pub(crate) fn sync_failed(cx: &Compound<'_>, error: StoreError) -> Status {
    if error == StoreError::Io {
        // First of all: the next commit of the file may find nothing wrong any more.
        cx.shared.write_verifier.change();
        tracing::error!(%error, "data could not be made stable");
    }
    of_store(error)
}
