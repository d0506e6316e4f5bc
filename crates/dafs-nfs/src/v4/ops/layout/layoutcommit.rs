//! LAYOUTCOMMIT (RFC 8881 18.42): what was written at data servers becomes part of the file.

use super::{check_range, of_files, of_layout};
use crate::v4::compound::{Compound, OpResult};
use crate::v4::stateid;
use dafs_store::TimeSpec;
use dafs_wire::nfs4::{LayoutcommitArgs, LayoutcommitResult, Status};

pub(in crate::v4::ops) fn layoutcommit(
    cx: &mut Compound<'_>,
    args: &LayoutcommitArgs<'_>,
) -> OpResult {
    let handle = cx.current()?;
    of_files(cx, args.update.layout_type)?;
    // A client that only says when it wrote may name no bytes.
    if args.length != 0 {
        check_range(args.offset, args.length)?;
    }
    let end = match args.last_write_offset {
        Some(last) => Some(last.checked_add(1).ok_or(Status::Inval)?),
        None => None,
    };
    let changed = args
        .time_modify
        .map(|time| TimeSpec { seconds: time.seconds, nanoseconds: time.nanoseconds });
    if changed.is_some_and(|time| time.nanoseconds >= 1_000_000_000) {
        return Err(Status::Inval.into());
    }
    // It waits for the disk.
    cx.may_wait()?;
    let caller = cx.caller()?;
    let state = match args.reclaim {
        true => dafs_service::StateRef::ANONYMOUS,
        false => stateid::reference(&cx.stateid(&args.stateid)?)?,
    };
    let service = &cx.shared.service;
    let before = service.getattr(&handle)?.size;
    let attr = service.commit_layout(caller, &handle, state, args.reclaim, end, changed);
    let size = attr.map_err(of_layout)?.size;
    cx.encoder().value(&LayoutcommitResult { new_size: (size != before).then_some(size) });
    Ok(())
}
