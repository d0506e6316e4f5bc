//! READ (RFC 1813 3.3.6): moves data from the file straight into the reply.
//!
//! Invariants
//! * The attributes are never newer than the data. A client that caches both learns by the next
//!   attributes that the data is old. So the attributes are those from just before the read, unless
//!   the read contradicts them.
//! * The eof flag agrees with the attributes of the same result.

use super::{Args, Context, Done, Stop, args, attributes};
use crate::disk::missed;
use crate::io;
use crate::limits::TRANSFER_BYTES_MAX;
use dafs_service::StatelessFile;
use dafs_store::{OpenMode, StoreError};
use dafs_wire::nfs3::{ObjectFailure, READ_HEAD_BYTES, ReadArgs, Status, read_head};

const READ: OpenMode = OpenMode { read: true, write: false };

pub(super) fn read(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: ReadArgs<'_> = args(wire)?;
    let outcome = read_of(cx, &args).map_err(only_files);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.file) })
}

/// Converts the status for a directory: READ and WRITE have none of their own.
pub(super) fn only_files(stop: Stop) -> Stop {
    if stop == Stop::Fail(Status::IsDir) { Stop::Fail(Status::Inval) } else { stop }
}

fn read_of(cx: &mut Context<'_>, args: &ReadArgs<'_>) -> Result<(), Stop> {
    let handle = cx.handle(args.file)?;
    let StatelessFile { file, mut attr } =
        cx.service().opens.stateless_file(cx.caller(), &handle, READ)?;
    cx.service().locks.check_span(&handle, args.offset, args.count.into())?;
    let wait = cx.wait;
    let wanted = args.count.min(TRANSFER_BYTES_MAX) as usize;
    // No file is that long, and the kernel would refuse the offset.
    let wanted = if i64::try_from(args.offset).is_ok() { wanted } else { 0 };
    let head_at = cx.reply.encoder().position();
    cx.reply.encoder().raw(&[0; READ_HEAD_BYTES]);
    let mut space = cx.reply.bulk(wanted).map_err(|_| StoreError::Busy)?;
    let mut count = 0;
    if wanted > 0 {
        let read = io::read_all(&*file, space.view(), args.offset, wait);
        if matches!(read, Err(StoreError::WouldBlock)) {
            cx.held.missed = Some(missed(&file, args.offset, space.view().len()));
        }
        count = read?;
    }
    space.finish(count);
    let end = args.offset.saturating_add(count as u64);
    // A race: the size of the file has changed after its attributes were read.
    if end > attr.size && count > 0 || end < attr.size && count < wanted {
        attr = file.attr()?;
    }
    let head = read_head(&attributes(&handle.fs, &attr), count as u32, end >= attr.size);
    cx.reply.encoder().patch(head_at, &head);
    cx.stages.read_bytes = count as u64;
    Ok(())
}
