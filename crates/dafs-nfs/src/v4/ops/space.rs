//! Ranges of files in NFSv4.2: SEEK, ALLOCATE, DEALLOCATE, CLONE and IO_ADVISE
//! (RFC 7862 15.1, 15.4, 15.5, 15.11, 15.13).

use super::read::READ;
use super::write::WRITE;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, of_io};
use dafs_store::{Advised, CacheAdvice, CopyRange, OpenFile, OpenMode, SeekWhat};
use dafs_wire::nfs4::{
    AllocateArgs, Bitmap, CloneArgs, DeallocateArgs, IoAdvice, IoAdviseArgs, IoAdviseResult,
    SeekArgs, SeekResult, SeekWhat as Content, Stateid, Status,
};
use std::sync::Arc;

pub(crate) fn seek(cx: &mut OpContext<'_>, args: &SeekArgs) -> OpResult {
    let what = match args.what {
        Content::Data => SeekWhat::Data,
        Content::Hole => SeekWhat::Hole,
        Content::Other(_) => return Err(Status::UnionNotSupp.into()),
    };
    cx.may_wait()?;
    let file = file(cx, &args.stateid, READ)?;
    cx.service().layouts.extend_to_own(cx.caller()?, &cx.current()?)?;
    let found = file.seek(args.offset, what)?;
    let size = file.attr()?.size;
    let offset = found.unwrap_or(size);
    cx.answer(&SeekResult { eof: offset >= size, offset })
}

pub(crate) fn allocate(cx: &mut OpContext<'_>, args: &AllocateArgs) -> OpResult {
    cx.may_wait()?;
    let file = file(cx, &args.stateid, WRITE)?;
    check_range(args.offset, args.length)?;
    cx.service().locks.check_span(&cx.current()?, args.offset, args.length).map_err(of_io)?;
    Ok(file.allocate(args.offset, args.length)?)
}

pub(crate) fn deallocate(cx: &mut OpContext<'_>, args: &DeallocateArgs) -> OpResult {
    cx.may_wait()?;
    let file = file(cx, &args.stateid, WRITE)?;
    check_range(args.offset, args.length)?;
    cx.service().locks.check_span(&cx.current()?, args.offset, args.length).map_err(of_io)?;
    Ok(file.deallocate(args.offset, args.length)?)
}

pub(crate) fn clone(cx: &mut OpContext<'_>, args: &CloneArgs) -> OpResult {
    cx.may_wait()?;
    let source_handle = cx.saved()?;
    let source_state = cx.saved_state(&args.source_stateid)?;
    let target = file(cx, &args.destination_stateid, WRITE)?;
    let service = cx.service();
    let source =
        service.opens.io_file(cx.caller()?, &source_handle, source_state, READ).map_err(of_io)?;
    let (from, to) = (args.source_offset, args.destination_offset);
    if from.checked_add(args.count).is_none() || to.checked_add(args.count).is_none() {
        return Err(Status::Inval.into());
    }
    service.locks.check_span(&source_handle, from, args.count).map_err(of_io)?;
    service.locks.check_span(&cx.current()?, to, args.count).map_err(of_io)?;
    // Beyond its end the source has no data to share (RFC 7862 15.13.3).
    if from + args.count > source.attr()?.size {
        return Err(Status::Inval.into());
    }
    Ok(target.clone_range_from(&*source, CopyRange::new(from, to, args.count))?)
}

pub(crate) fn io_advise(cx: &mut OpContext<'_>, args: &IoAdviseArgs) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(&args.stateid)?;
    let mut followed = Bitmap::EMPTY;
    let mut advice = ADVICE.iter().filter(|(hint, _)| args.hints.contains(*hint as u32)).peekable();
    if advice.peek().is_some() {
        // Reading ahead and dropping may wait for a device.
        cx.may_wait()?;
        let file = cx.service().advised_file(cx.caller()?, &handle, state).map_err(of_io)?;
        for (hint, advice) in advice {
            if matches!(file.advise(args.offset, args.count, *advice), Ok(Advised::Followed)) {
                followed.insert(*hint as u32);
            }
        }
    } else if !state.is_special() {
        let none = OpenMode { read: false, write: false };
        cx.service().opens.io_file(cx.caller()?, &handle, state, none).map_err(of_io)?;
    }
    cx.answer(&IoAdviseResult { hints: followed })
}

/// The hints that the server has a use for, and their meaning for a store. It prefetches nothing for
/// an opportunistic hint, but keeps what is there.
const ADVICE: [(IoAdvice, CacheAdvice); 7] = [
    (IoAdvice::Normal, CacheAdvice::Normal),
    (IoAdvice::Sequential, CacheAdvice::Sequential),
    (IoAdvice::Random, CacheAdvice::Random),
    (IoAdvice::WillNeed, CacheAdvice::WillNeed),
    (IoAdvice::WillNeedOpportunistic, CacheAdvice::Keep),
    (IoAdvice::DontNeed, CacheAdvice::DontNeed),
    (IoAdvice::NoReuse, CacheAdvice::LeaveFirst),
];

/// Returns the current file, open for `need` under this state-id.
fn file(
    cx: &OpContext<'_>,
    argument: &Stateid,
    need: OpenMode,
) -> Result<Arc<dyn OpenFile>, OpError> {
    let handle = cx.current()?;
    let state = cx.state(argument)?;
    cx.service().opens.io_file(cx.caller()?, &handle, state, need).map_err(of_io)
}

/// Refuses ranges that are empty or wrap.
fn check_range(offset: u64, length: u64) -> Result<(), Status> {
    match offset.checked_add(length) {
        Some(end) if end > offset => Ok(()),
        _ => Err(Status::Inval),
    }
}
