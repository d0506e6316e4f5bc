//! READ_PLUS (RFC 7862 15.10): data as data, holes as holes.
//!
//! Invariants
//! * The pieces follow each other without gaps from the offset on. None reaches beyond the
//!   requested range, and none is empty.
//! * A hole is reported only where the store knows one. All else is data.
//! * All pieces together take at most 20 bytes more than the range. A client such as Linux reserves
//!   room for the requested bytes and the frame of one piece (`decode_read_plus_maxsz`), and
//!   reports EIO for a longer reply.
//! * The encoding before a piece of data takes no more bytes than that part of the range. Linux
//!   moves pieces to their places within the reply, the last first, and corrupts data that would
//!   have to move forward.

use super::read::{READ, read_part};
use crate::limits::{READ_PLUS_PIECES_MAX, TRANSFER_BYTES_MAX};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, of_io};
use dafs_store::{OpenFile, SeekWhat, StoreError};
use dafs_wire::nfs4::{ReadPlusArgs, ReadPlusContent, Status};

/// Bytes of a result without pieces: end-of-file flag and count.
const FRAME_BYTES: usize = 8;

/// Bytes of a hole: kind, offset, length.
const HOLE_FRAME_BYTES: usize = 4 + 8 + 8;

/// Bytes of a piece of data without its content and padding: kind, offset, length.
const DATA_FRAME_BYTES: usize = 4 + 8 + 4;

/// The longest padding of data.
const PADDING_BYTES_MAX: usize = 3;

/// The shortest hole that is encoded as one. A shorter hole costs more bytes than it saves, because
/// it has a frame, and so has the data behind it.
const HOLE_BYTES_MIN: u64 = (HOLE_FRAME_BYTES + DATA_FRAME_BYTES + PADDING_BYTES_MAX) as u64;

/// A part of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    is_hole: bool,
    offset: u64,
    end: u64,
}

pub(crate) fn read_plus(cx: &mut OpContext<'_>, args: &ReadPlusArgs) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(&args.stateid)?;
    let file = cx.service().opens.io_file(cx.caller()?, &handle, state, READ).map_err(of_io)?;
    cx.service().locks.check_span(&handle, args.offset, args.count.into()).map_err(of_io)?;
    let attr = file.attr()?;
    // A file with all its space allocated has no holes to look for.
    let dense = attr.space_used >= attr.size;
    let end = args.offset.saturating_add(args.count.min(TRANSFER_BYTES_MAX).into()).min(attr.size);
    let seek = |at, what| if dense { Err(StoreError::NotSupported) } else { file.seek(at, what) };
    let plan = plan(args.offset, end, seek)?;
    let mut encoder = cx.encoder();
    let head = encoder.position();
    encoder.bool(false);
    encoder.u32(0);
    let (mut at, mut pieces) = (args.offset, 0);
    let mut ended = false;
    for piece in plan {
        let room = cx.room().saturating_sub(FRAME_BYTES + HOLE_FRAME_BYTES) / 4 * 4;
        if room == 0 {
            break;
        }
        let Piece { is_hole, offset, end } = piece;
        if is_hole {
            cx.encoder().value(&ReadPlusContent::Hole { offset, length: end - offset });
            at = end;
        } else {
            let wanted = (end - offset).min(room as u64) as usize;
            let count = data(cx, &*file, offset, wanted);
            let count = cx.or_missed(count, &file, (offset, wanted))?;
            at += count as u64;
            // A race: the file has become shorter.
            ended = count < wanted;
            if count == 0 {
                break;
            }
        }
        pieces += 1;
        if at < end {
            break;
        }
    }
    let mut encoder = cx.encoder();
    encoder.patch_u32(head, (ended || at >= attr.size).into());
    encoder.patch_u32(head + 4, pieces);
    Ok(())
}

/// Splits the range from `offset` to `end` into data and holes, which alternate. `seek` reports the
/// extents. It may stop between two extents of one kind, and its answers may change.
fn plan(
    offset: u64,
    end: u64,
    mut seek: impl FnMut(u64, SeekWhat) -> dafs_store::Result<Option<u64>>,
) -> dafs_store::Result<Vec<Piece>> {
    // If the store cannot report holes, or the file has become shorter, the read finds the data.
    let mut next = |at, what, otherwise| match seek(at, what) {
        Ok(found) => Ok(found.unwrap_or(end).clamp(at, end)),
        Err(StoreError::NotSupported | StoreError::PastEnd) => Ok(otherwise),
        Err(error) => Err(error),
    };
    let mut pieces = Vec::new();
    let mut at = offset;
    for _ in 0..READ_PLUS_PIECES_MAX / 2 {
        if at >= end {
            return Ok(pieces);
        }
        let data = next(at, SeekWhat::Data, at)?;
        add(&mut pieces, Piece { is_hole: data - at >= HOLE_BYTES_MIN, offset: at, end: data });
        if data >= end {
            return Ok(pieces);
        }
        let hole = next(data, SeekWhat::Hole, end)?;
        add(&mut pieces, Piece { is_hole: false, offset: data, end: hole });
        at = hole;
    }
    add(&mut pieces, Piece { is_hole: false, offset: at, end });
    Ok(pieces)
}

/// Appends a piece, and merges it with the last one of the same kind.
fn add(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        _ if piece.offset >= piece.end => {}
        Some(last) if last.is_hole == piece.is_hole => last.end = piece.end,
        _ => pieces.push(piece),
    }
}

/// Writes a piece of data, unless it is empty.
fn data(
    cx: &mut OpContext<'_>,
    file: &dyn OpenFile,
    offset: u64,
    wanted: usize,
) -> Result<usize, OpError> {
    let wait = cx.wait();
    let mark = cx.reply().mark();
    let mut encoder = cx.encoder();
    encoder.value(&ReadPlusContent::Data { offset, data: b"" });
    let length_at = encoder.position() - 4;
    // It stays among the results, even if the transport could move it separately (RFC 8267 5.2).
    let space = cx.reply().bulk_here(wanted).map_err(|_| OpError::Status(Status::Delay))?;
    let part = read_part(space, file, offset, wait)?;
    if part.count == 0 {
        cx.reply().truncate_to(mark);
    } else {
        cx.encoder().patch_u32(length_at, part.count as u32);
    }
    Ok(part.count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The end of each extent, and true for a hole. Two extents of one kind may follow each other.
    type Extents = Vec<(u64, bool)>;

    fn seek(extents: &Extents, at: u64, what: SeekWhat) -> dafs_store::Result<Option<u64>> {
        let size = extents.last().map_or(0, |last| last.0);
        if at >= size {
            return Err(StoreError::PastEnd);
        }
        let here = extents.iter().position(|extent| at < extent.0).unwrap();
        let found = match what {
            SeekWhat::Data => (here..extents.len()).find(|&index| !extents[index].1),
            // File systems with unwritten extents do the same: the end of this one counts.
            SeekWhat::Hole if extents[here].1 => Some(here),
            SeekWhat::Hole => return Ok(Some(extents[here].0)),
        };
        Ok(found.map(|index| if index == here { at } else { extents[index - 1].0 }))
    }

    fn encoded_bytes(pieces: &[Piece]) -> u64 {
        let bytes = |piece: &Piece| match piece.is_hole {
            true => HOLE_FRAME_BYTES as u64,
            false => DATA_FRAME_BYTES as u64 + (piece.end - piece.offset).next_multiple_of(4),
        };
        pieces.iter().map(bytes).sum()
    }

    /// Checks that the pieces are complete, alternate, and fit into the room that Linux has.
    fn check(extents: &Extents, pieces: &[Piece], offset: u64, end: u64) {
        let mut at = offset;
        for (index, piece) in pieces.iter().enumerate() {
            assert!(piece.offset == at && piece.end > at && piece.end <= end, "{pieces:?}");
            assert!(index == 0 || pieces[index - 1].is_hole != piece.is_hole, "{pieces:?}");
            if !piece.is_hole {
                // A frame that comes first has room of its own.
                let before = encoded_bytes(&pieces[..index]);
                assert!(before <= piece.offset - offset, "{pieces:?} has data too far behind");
            }
            let mut from = 0;
            for &(until, is_hole) in extents {
                let within = from.max(piece.offset) < until.min(piece.end);
                assert!(!piece.is_hole || is_hole || !within, "{pieces:?} has data as a hole");
                from = until;
            }
            at = piece.end;
        }
        assert_eq!(at, end.max(offset));
        assert!(encoded_bytes(pieces) <= end.saturating_sub(offset) + 20, "{pieces:?}");
    }

    #[test]
    fn a_hole_that_costs_more_than_it_spares_is_data() {
        let extents = vec![(4096, false), (1 << 20, true)];
        for count in 4090..4200 {
            let pieces = plan(0, count, |at, what| seek(&extents, at, what)).unwrap();
            check(&extents, &pieces, 0, count);
            assert_eq!(pieces.len(), if count < 4096 + HOLE_BYTES_MIN { 1 } else { 2 });
        }
    }

    #[test]
    fn data_that_lies_in_several_extents_is_one_piece() {
        let extents = vec![(4096, false), (8192, false), (12288, false), (1 << 20, true)];
        let pieces = plan(0, 12288, |at, what| seek(&extents, at, what)).unwrap();
        assert_eq!(pieces, [Piece { is_hole: false, offset: 0, end: 12288 }]);
    }

    proptest! {
        #[test]
        fn every_range_fits_the_room_of_its_client(
            lengths in prop::collection::vec((1_u64..9000, any::<bool>()), 1..200),
            offset in 0_u64..100_000,
            count in 0_u64..1_000_000,
        ) {
            let mut size = 0;
            let grow = |(length, is_hole)| { size += length; (size, is_hole) };
            let extents: Extents = lengths.into_iter().map(grow).collect();
            let end = (offset + count).min(size);
            let pieces = plan(offset, end, |at, what| seek(&extents, at, what)).unwrap();
            check(&extents, &pieces, offset, end);
        }
    }
}
