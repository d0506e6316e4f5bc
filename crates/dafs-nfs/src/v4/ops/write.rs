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
use crate::v4::stateid;
use crate::v4::status::{OpError, OpResult, of_io, of_store};
use dafs_store::{OpenMode, Stability, StoreError};
use dafs_wire::nfs4::{StableHow, Status, WriteArgs, WriteResult};

/// The mode that a write requires of an open.
pub(crate) const WRITE: OpenMode = OpenMode { read: false, write: true };

pub(crate) fn write<'a>(cx: &mut OpContext<'a>, args: &WriteArgs<'a>) -> OpResult {
    let handle = cx.current()?;
    let state = stateid::reference(&cx.stateid(&args.stateid)?)?;
    let data = cx.args().view(args.data).ok_or(Status::BadXdr)?;
    let stability = stability(args.stable);
    if stability != Stability::Unstable || args.data.len() > WRITE_INLINE_BYTES_MAX {
        cx.may_wait()?;
    }
    let file = cx.service().io_file(cx.caller()?, &handle, state, WRITE).map_err(of_io)?;
    if args.offset.checked_add(args.data.len() as u64).is_none() {
        return Err(Status::Inval.into());
    }
    let len = args.data.len() as u64;
    cx.service().check_span(&handle, args.offset, len).map_err(of_io)?;
    let client = cx.caller()?.client;
    if client.may_have_late_writes() {
        // The present time: the client may have made a session at a data server since the call was
        // read.
        let moment = (cx.now_ns(), cx.wait());
        let range = (args.offset, len);
        cx.service().overtake_late_writes(client, moment, &handle, range).map_err(of_io)?;
    }
    cx.announce_write(&handle, args.offset, args.data, stability)?;
    // Read before the data is written: if the data is lost meanwhile, the client must see that.
    let verifier = cx.write_verifier();
    let count = match write_all(&*file, data, args.offset, stability, cx.wait()) {
        Ok(count) => count,
        Err(StoreError::WouldBlock) => return Err(OpError::Wait),
        Err(error) if stability != Stability::Unstable => {
            return Err(OpError::Status(sync_failed(cx, error)));
        }
        Err(error) => return Err(OpError::Status(of_store(error))),
    };
    let result = WriteResult { count: count as u32, committed: args.stable, verifier };
    cx.encoder().value(&result);
    cx.count_bytes(0, count);
    Ok(())
}

fn stability(how: StableHow) -> Stability {
    match how {
        StableHow::Unstable => Stability::Unstable,
        StableHow::DataSync => Stability::Data,
        StableHow::FileSync => Stability::File,
    }
}
