//! READ at a data server (RFC 8881 13.10, 18.22).
//!
//! Invariants
//! * Where the component ends before the file does, there is a hole: zeros are answered. Only the
//!   metadata server knows where the file ends, and is asked when a component comes short.
//! * The size covers only what is on the node already. So what it covers and the component did not have
//!   before the size was asked for is looked for once more, and is a hole only if it is not there then.

use super::check;
use crate::data_server::DataRole;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::v4::compound::{Compound, OpError, OpResult};
use dafs_mem::VolatileSlice;
use dafs_store::{DataUse, StoreError, Wait};
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
    let read = |view: VolatileSlice<'_>, at| file.read_at(&[view], at, Wait::Allowed);
    let size = || match file.file_size()? {
        Some(size) => Ok(size),
        None => role.states.size(&file.id()),
    };
    let part = filled(space.view(), args.offset, read, size)?;
    space.finish(part.count);
    let mut encoder = cx.encoder();
    encoder.patch_u32(head, part.eof.into());
    encoder.patch_u32(head + 4, part.count as u32);
    cx.count_bytes(part.count, 0);
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Part {
    count: usize,
    eof: bool,
}

/// Fills a view with what is to be answered of it, by what the component has and how far the file
/// reaches.
fn filled(
    view: VolatileSlice<'_>,
    offset: u64,
    read: impl Fn(VolatileSlice<'_>, u64) -> Result<usize, StoreError>,
    size: impl FnOnce() -> Result<u64, StoreError>,
) -> Result<Part, StoreError> {
    let wanted = view.len();
    let got = read(view, offset)?;
    if got == wanted && wanted > 0 {
        return Ok(Part { count: got, eof: false });
    }
    let size = size()?;
    let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let count = left.min(wanted).max(got);
    if let Some(gap) = view.slice(got, count - got).filter(|gap| !gap.is_empty()) {
        let more = read(gap, offset + got as u64)?;
        if let Some(hole) = gap.slice(more, gap.len() - more) {
            hole.fill(0);
        }
    }
    let eof = offset.saturating_add(count as u64) >= size;
    Ok(Part { count, eof })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Site;
    use std::cell::RefCell;

    /// Reads ten bytes of a component that is extended while the size is asked for.
    fn read_while_written(before: &[u8], after: &[u8], size: u64) -> (Part, Vec<u8>) {
        let component = RefCell::new(before.to_vec());
        let read = |view: VolatileSlice<'_>, at: u64| {
            Ok(component
                .borrow()
                .get(at as usize..)
                .map_or(0, |rest| view.copy_from(rest, Site::Sim)))
        };
        let size = || {
            *component.borrow_mut() = after.to_vec();
            Ok(size)
        };
        let mut bytes = vec![0xee; 10];
        let part = filled(VolatileSlice::from_mut(&mut bytes), 0, read, size).expect("read");
        bytes.truncate(part.count);
        (part, bytes)
    }

    #[test]
    fn what_comes_before_the_size_is_known_is_no_hole() {
        let (part, bytes) = read_while_written(b"abc", b"abcdef", 8);
        assert_eq!(part, Part { count: 8, eof: true });
        assert_eq!(bytes, b"abcdef\0\0");
        let (part, bytes) = read_while_written(b"abc", b"abcdef", 3);
        assert_eq!((part.count, part.eof, &*bytes), (3, true, &b"abc"[..]));
        let (part, bytes) = read_while_written(b"", b"0123456789abc", 13);
        assert_eq!((part.count, part.eof, &*bytes), (10, false, &b"0123456789"[..]));
    }
}
