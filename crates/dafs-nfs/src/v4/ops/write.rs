//! WRITE (RFC 8881 18.32): moves the request's bytes into the file, without a copy here.
//!
//! Invariants
//! * The reply has the requested stability, which has been reached.
//! * A write that is repeated on a pool thread writes the same bytes to the same place, before the
//!   client has an answer to either.

use super::commit::sync_failed;
use crate::io::write_all;
use crate::limits::WRITE_INLINE_BYTES_MAX;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, of_io};
use dafs_mem::VolatileSlice;
use dafs_store::{OpenFile, OpenMode, Stability, StoreError};
use dafs_wire::nfs4::{StableHow, Status, WriteArgs, WriteResult};

/// The mode that a write requires of an open.
pub(crate) const WRITE: OpenMode = OpenMode { read: false, write: true };

pub(crate) fn write<'a>(cx: &mut OpContext<'a>, args: &WriteArgs<'a>) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(&args.stateid)?;
    let data = cx.args().view(args.data).ok_or(Status::BadXdr)?;
    let stability = stability(args.stable);
    if stability != Stability::Unstable || args.data.len() > WRITE_INLINE_BYTES_MAX {
        cx.may_wait()?;
    }
    let (opens, caller) = (&cx.service().opens, cx.caller()?);
    let file = opens.io_file(caller, &handle, state, WRITE).map_err(of_io)?;
    if args.offset.checked_add(args.data.len() as u64).is_none() {
        return Err(Status::Inval.into());
    }
    let len = args.data.len() as u64;
    cx.service().locks.check_span(&handle, args.offset, len).map_err(of_io)?;
    let client = cx.caller()?.client;
    if client.may_have_late_writes() {
        // The present time: the client may have made a session at a data server since the call was
        // read.
        let moment = (cx.now_ns(), cx.wait());
        let range = (args.offset, len);
        cx.service().layouts.overtake_late_writes(client, moment, &handle, range).map_err(of_io)?;
    }
    cx.log_write_intent(&handle, args.offset, args.data, stability)?;
    write_data(cx, &*file, data, args.offset, (stability, args.stable))
}

/// Writes data, and the result with the stability that it has then.
pub(in crate::v4) fn write_data(
    cx: &mut OpContext<'_>,
    file: &dyn OpenFile,
    data: VolatileSlice<'_>,
    offset: u64,
    (stability, committed): (Stability, StableHow),
) -> OpResult {
    // Read before the data is written: if the data is lost meanwhile, the client must see that.
    let verifier = cx.write_verifier();
    let count = match write_all(file, data, offset, stability, cx.wait()) {
        Ok(count) => count,
        Err(error) if stability != Stability::Unstable && error != StoreError::WouldBlock => {
            return Err(OpError::Status(sync_failed(cx, error)));
        }
        Err(error) => return Err(error.into()),
    };
    cx.count_bytes(0, count);
    cx.answer(&WriteResult { count: count as u32, committed, verifier })
}

fn stability(how: StableHow) -> Stability {
    match how {
        StableHow::Unstable => Stability::Unstable,
        StableHow::DataSync => Stability::Data,
        StableHow::FileSync => Stability::File,
    }
}
