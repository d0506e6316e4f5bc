//! READ at a data server (RFC 8881 13.10, 18.22).
//!
//! Invariants
//! * Where the component ends before the file, there is a hole: the answer is zeros ([`fill`]).
//!   Only the metadata server knows the end of the file, and is asked when a component is too
//!   short.

use super::check;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult};
use dafs_mem::VolatileSlice;
use dafs_service::DataRole;
use dafs_store::{DataUse, Wait, fill};
use dafs_wire::nfs4::{ReadArgs, Status};

/// Bytes of a result without data: end-of-file flag and length.
const FRAME_BYTES: usize = 8;

pub(super) fn read(cx: &mut OpContext<'_>, role: &DataRole, args: &ReadArgs) -> OpResult {
    let handle = cx.current()?;
    cx.may_wait()?;
    let file = role.files.open(&handle.file)?;
    let _use = DataUse::begin(&*file);
    check(cx, role, &handle, &args.stateid, false)?;
    let room = cx.room().saturating_sub(FRAME_BYTES) / 4 * 4;
    let wanted = (args.count.min(TRANSFER_BYTES_MAX) as usize).min(room);
    let wanted = file.served_bytes(args.offset, wanted)?;
    let mut encoder = cx.encoder();
    let head = encoder.position();
    encoder.bool(false);
    encoder.u32(0);
    let mut space = cx.reply().bulk(wanted).map_err(|_| OpError::Status(Status::Delay))?;
    let read = |view: VolatileSlice<'_>, at| file.read_at(&[view], at, Wait::Allowed);
    let size = || match file.file_size()? {
        Some(size) => Ok(size),
        None => role.states.size(&file.id()),
    };
    let part = fill(space.view(), args.offset, read, size)?;
    space.finish(part.count);
    let mut encoder = cx.encoder();
    encoder.patch_u32(head, part.eof.into());
    encoder.patch_u32(head + 4, part.count as u32);
    cx.count_bytes(part.count, 0);
    Ok(())
}
