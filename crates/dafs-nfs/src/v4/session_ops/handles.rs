//! PUTFH, PUTROOTFH, PUTPUBFH, GETFH (RFC 8881 18.8, 18.19 - 18.21).

use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult};
use crate::wire_handle;
use dafs_wire::nfs4::{GetfhResult, PutfhArgs, Status};

/// Sets the current file handle. `rest` are the operations that follow.
pub(crate) fn putfh(cx: &mut OpContext<'_>, args: &PutfhArgs<'_>, rest: &[u8]) -> OpResult {
    let handle = wire_handle::decode(args.handle).ok_or(OpError::Status(Status::BadHandle))?;
    cx.set_current(handle);
    cx.check_put(rest)
}

/// Sets the root as the current file handle. The public file handle is the root too.
pub(crate) fn putrootfh(cx: &mut OpContext<'_>, rest: &[u8]) -> OpResult {
    let root = cx.service().root();
    cx.set_current(root);
    cx.check_put(rest)
}

/// Returns the current file handle to the client.
pub(crate) fn getfh(cx: &mut OpContext<'_>) -> OpResult {
    let handle = cx.current()?;
    let bytes = wire_handle::encode(&handle);
    cx.answer(&GetfhResult { handle: &bytes })
}
