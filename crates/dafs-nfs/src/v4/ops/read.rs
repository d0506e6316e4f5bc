//! READ (RFC 8881 18.22): moves data from the file straight into the reply.
//!
//! Invariants
//! * The end-of-file flag is exact: it is set if and only if no byte follows the answer.
//! * Data that is not in memory is read on a pool thread, or by the kernel into its page cache before
//!   the operation runs again. No answer comes from a partial check.

use crate::limits::TRANSFER_BYTES_MAX;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, of_io};
use dafs_mem::VolatileSlice;
use dafs_rpc::BulkSpace;
use dafs_store::{OpenFile, OpenMode, StoreError, Wait};
use dafs_wire::nfs4::{ReadArgs, Status};

/// The mode that a read requires of an open.
pub(crate) const READ: OpenMode = OpenMode { read: true, write: false };

/// Bytes of a result without data: end-of-file flag and length.
const FRAME_BYTES: usize = 8;

pub(crate) fn read(cx: &mut OpContext<'_>, args: &ReadArgs) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(&args.stateid)?;
    let file = cx.service().opens.io_file(cx.caller()?, &handle, state, READ).map_err(of_io)?;
    cx.service().locks.check_span(&handle, args.offset, args.count.into()).map_err(of_io)?;
    let room = cx.room().saturating_sub(FRAME_BYTES) / 4 * 4;
    let wanted = args.count.min(TRANSFER_BYTES_MAX) as usize;
    let wait = cx.wait();
    let mut encoder = cx.encoder();
    let head = encoder.position();
    encoder.bool(false);
    encoder.u32(0);
    let space = cx.reply().bulk(wanted.min(room)).map_err(|_| OpError::Status(Status::Delay))?;
    let part = read_part(space, &*file, args.offset, wait);
    let part = cx.or_missed(part, &file, (args.offset, wanted.min(room)))?;
    let mut encoder = cx.encoder();
    encoder.patch_u32(head, part.eof.into());
    encoder.patch_u32(head + 4, part.count as u32);
    cx.count_bytes(part.count, 0);
    Ok(())
}

/// The outcome of a read.
pub(super) struct Part {
    /// Bytes read.
    pub(super) count: usize,
    /// The file ends behind them.
    pub(super) eof: bool,
}

/// Reads as much as there is space for to the end of the reply and pads it.
///
/// # Errors
/// `Wait` when not all data is in memory and waiting is not allowed.
pub(super) fn read_part(
    mut space: BulkSpace<'_>,
    file: &dyn OpenFile,
    offset: u64,
    wait: Wait,
) -> Result<Part, OpError> {
    if space.len_max() == 0 || i64::try_from(offset).is_err() {
        // No file is that long, and the kernel would refuse the offset.
        let eof = offset >= file.attr()?.size;
        space.finish(0);
        return Ok(Part { count: 0, eof });
    }
    let end = read_all(file, space.view(), offset, wait)?;
    space.finish(end.count);
    Ok(end)
}

/// Fills the view, up to the end of the file.
fn read_all(
    file: &dyn OpenFile,
    view: VolatileSlice<'_>,
    offset: u64,
    wait: Wait,
) -> Result<Part, OpError> {
    let wanted = view.len();
    // One byte more than requested shows if the file goes on, at a lower cost than a query of its
    // size. A thread that may wait queries the size instead, so that it does not wait for an
    // unneeded byte.
    let mut beyond = [0; 1];
    let beyond = VolatileSlice::from_mut(&mut beyond);
    let probe = wait == Wait::Never;
    let mut done = 0;
    while done < wanted {
        let Some(rest) = view.slice(done, wanted - done) else { break };
        let views = [rest, beyond];
        let views = if probe { &views[..] } else { &views[..1] };
        match file.read_at(views, offset + done as u64, wait) {
            Ok(0) => return Ok(Part { count: done, eof: true }),
            Ok(count) if count > wanted - done => return Ok(Part { count: wanted, eof: false }),
            Ok(count) => done += count,
            Err(StoreError::WouldBlock) => return Err(OpError::Wait),
            Err(error) if done == 0 => return Err(error.into()),
            // The data before the error is good. The client gets the error when it reads on.
            Err(_) => return Ok(Part { count: done, eof: false }),
        }
    }
    let eof = offset + done as u64 >= file.attr()?.size;
    Ok(Part { count: done, eof })
}
