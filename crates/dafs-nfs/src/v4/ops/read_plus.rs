//! READ_PLUS (RFC 7862 15.10): data as data, holes as holes.
//!
//! Invariants
//! * The pieces follow each other without gaps from the offset on, none reaches beyond the range
//!   asked for, and none is empty.
//! * A hole is told only where the store knows one; anything else is data.

use super::read::{READ, read_part};
use crate::limits::{READ_PLUS_PIECES_MAX, TRANSFER_BYTES_MAX};
use crate::v4::compound::{Compound, OpError, OpResult};
use crate::v4::stateid;
use crate::v4::status::of_io;
use dafs_store::{OpenFile, SeekWhat, StoreError};
use dafs_wire::nfs4::{ReadPlusArgs, ReadPlusContent, Status};

/// Bytes of a result without pieces: end-of-file flag and count.
const FRAME_BYTES: usize = 8;

/// Bytes of a piece without data: kind, offset, and length of 4 or 8 bytes.
const PIECE_FRAME_BYTES: usize = 4 + 8 + 8;

/// What a file has from some offset on.
enum Next {
    Data { end: u64 },
    Hole { end: u64 },
}

pub(crate) fn read_plus(cx: &mut Compound<'_>, args: &ReadPlusArgs) -> OpResult {
    let handle = cx.current()?;
    let state = stateid::reference(&cx.stateid(&args.stateid)?)?;
    let file = cx.shared.service.io_file(cx.caller()?, &handle, state, READ).map_err(of_io)?;
    cx.shared.service.check_span(&handle, args.offset, args.count.into()).map_err(of_io)?;
    let attr = file.attr()?;
    // A file that has all its space has no holes worth looking for.
    let dense = attr.space_used >= attr.size;
    let end = args.offset.saturating_add(args.count.min(TRANSFER_BYTES_MAX).into()).min(attr.size);
    let mut encoder = cx.encoder();
    let head = encoder.position();
    encoder.bool(false);
    encoder.u32(0);
    let (mut at, mut pieces) = (args.offset, 0);
    let mut ended = false;
    while at < end && !ended && pieces < READ_PLUS_PIECES_MAX {
        let room = cx.room().saturating_sub(FRAME_BYTES + PIECE_FRAME_BYTES) / 4 * 4;
        if room == 0 {
            break;
        }
        let next = if dense { Next::Data { end } } else { next(&*file, at, end)? };
        match next {
            Next::Hole { end } => {
                let length = end - at;
                cx.encoder().value(&ReadPlusContent::Hole { offset: at, length });
                at = end;
            }
            Next::Data { end } => {
                let wanted = (end - at).min(room as u64) as usize;
                let count = data(cx, &*file, at, wanted)?;
                // The file has become shorter meanwhile.
                ended = count < wanted;
                at += count as u64;
                if count == 0 {
                    break;
                }
            }
        }
        pieces += 1;
    }
    let mut encoder = cx.encoder();
    encoder.patch_u32(head, (ended || at >= attr.size).into());
    encoder.patch_u32(head + 4, pieces);
    Ok(())
}

/// Writes a piece of data; nothing if there is none.
fn data(
    cx: &mut Compound<'_>,
    file: &dyn OpenFile,
    offset: u64,
    wanted: usize,
) -> Result<usize, OpError> {
    let wait = cx.wait;
    let mark = cx.reply.mark();
    let mut encoder = cx.encoder();
    encoder.value(&ReadPlusContent::Data { offset, data: b"" });
    let length_at = encoder.position() - 4;
    // It stays among the results whatever the transport could do (RFC 8267 5.2).
    let space = cx.reply.bulk_here(wanted).map_err(|_| OpError::Status(Status::Delay))?;
    let part = read_part(space, file, offset, wait)?;
    if part.count == 0 {
        cx.reply.truncate_to(mark);
    } else {
        cx.encoder().patch_u32(length_at, part.count as u32);
    }
    Ok(part.count)
}

/// What the file has at `at`, up to `end`, which is not behind the file's.
fn next(file: &dyn OpenFile, at: u64, end: u64) -> Result<Next, OpError> {
    let data = match file.seek(at, SeekWhat::Data) {
        Ok(data) => data.unwrap_or(end).clamp(at, end),
        // Where holes cannot be told, or the file has become shorter, reading says what there is.
        Err(StoreError::NotSupported | StoreError::PastEnd) => return Ok(Next::Data { end }),
        Err(error) => return Err(error.into()),
    };
    if data > at {
        return Ok(Next::Hole { end: data });
    }
    let hole = match file.seek(at, SeekWhat::Hole) {
        Ok(hole) => hole.unwrap_or(end),
        Err(StoreError::NotSupported | StoreError::PastEnd) => end,
        Err(error) => return Err(error.into()),
    };
    // Never empty, whatever happens to the file meanwhile.
    let end = if hole > at { hole.min(end) } else { end };
    Ok(Next::Data { end })
}
