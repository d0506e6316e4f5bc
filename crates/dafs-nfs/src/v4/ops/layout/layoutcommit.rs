//! LAYOUTCOMMIT (RFC 8881 18.42): data written at data servers becomes part of the file. This
//! server chooses the modification time, whatever the client sends.

use super::{check_range, form, of_layout};
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult};
use dafs_service::ServiceError;
use dafs_wire::nfs4::{LayoutcommitArgs, LayoutcommitResult, Status};

pub(in crate::v4::ops) fn layoutcommit(
    cx: &mut OpContext<'_>,
    args: &LayoutcommitArgs<'_>,
) -> OpResult {
    let handle = cx.current()?;
    form(cx, args.update.layout_type)?;
    // A client that only reports the time of its write may have an empty range.
    if args.length != 0 {
        check_range(args.offset, args.length)?;
    }
    let end = match args.last_write_offset {
        Some(last) => Some(last.checked_add(1).ok_or(Status::Inval)?),
        None => None,
    };
    // The commit waits for the disk.
    cx.may_wait()?;
    let caller = cx.caller()?;
    let state = match args.reclaim {
        true => dafs_service::StateRef::ANONYMOUS,
        false => cx.state(&args.stateid)?,
    };
    let size = cx.service().layouts.commit(caller, &handle, state, args.reclaim, end);
    let size = size.map_err(of_commit)?;
    // The file ends behind this client's last write, or others have made it longer. The old size is
    // not read: that would block I/O at data servers that cache the size.
    cx.answer(&LayoutcommitResult { new_size: end.filter(|&end| end == size) })
}

/// Returns the outcome for a failed commit. An unknown layout, for instance after a restart of this
/// server, becomes BADLAYOUT. Data that was stable at reachable data servers belongs to the file
/// all the same: the service has made sure of that. Linux clients conclude it from this status
/// only. With a state-id status Linux fails the application's sync.
fn of_commit(error: ServiceError) -> OpError {
    match error {
        ServiceError::BadStateId | ServiceError::StaleStateId => OpError::Status(Status::BadLayout),
        error => of_layout(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_of_an_earlier_run_is_told_as_none() {
        let told = |error| match of_commit(error) {
            OpError::Status(status) => status,
            _ => panic!("it does not wait"),
        };
        for gone in [ServiceError::BadStateId, ServiceError::StaleStateId, ServiceError::BadLayout]
        {
            assert_eq!(told(gone), Status::BadLayout);
        }
        assert_eq!(told(ServiceError::OldStateId), Status::OldStateId);
        assert_eq!(told(ServiceError::Grace), Status::Grace);
    }
}
