//! READ at a data server (RFC 8881 13.10, 18.22).
//!
//! Invariants
//! * Where the component ends before the file does, there is a hole: zeros are answered. Only the
//!   metadata server knows where the file ends, and is asked when a component comes short.

use super::check;
use crate::data_server::DataRole;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::v4::compound::{Compound, OpError, OpResult};
use dafs_store::{DataFile, DataUse, StoreError, Wait};
use dafs_wire::nfs4::{ReadArgs, Status};

/// Bytes of a result without data: end-of-file flag and length.
const FRAME_BYTES: usize = 8;

pub(super) fn read(cx: &mut Compound<'_>, role: &DataRole, args: &ReadArgs) -> OpResult {
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
    let mut space = cx.reply.bulk(wanted).map_err(|_| OpError::Status(Status::Delay))?;
    let got = file.read_at(&[space.view()], args.offset, Wait::Allowed)?;
    let part = fill(role, &*file, (args.offset, wanted), got)?;
    if let Some(hole) = space.view().slice(got, part.count - got) {
        hole.fill(0);
    }
    space.finish(part.count);
    let mut encoder = cx.encoder();
    encoder.patch_u32(head, part.eof.into());
    encoder.patch_u32(head + 4, part.count as u32);
    cx.count_bytes(part.count, 0);
    Ok(())
}

struct Part {
    count: usize,
    eof: bool,
}

/// How much is to be answered of what was asked for, when the component has `got` bytes of it.
fn fill(
    role: &DataRole,
    file: &dyn DataFile,
    (offset, wanted): (u64, usize),
    got: usize,
) -> Result<Part, StoreError> {
    if got == wanted && wanted > 0 {
        return Ok(Part { count: got, eof: false });
    }
    let size = match file.file_size()? {
        Some(size) => size,
        None => role.states.size(&file.id())?,
    };
    let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let count = left.min(wanted).max(got);
    let eof = offset.saturating_add(count as u64) >= size;
    Ok(Part { count, eof })
}
