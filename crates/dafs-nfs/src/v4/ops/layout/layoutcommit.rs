//! LAYOUTCOMMIT (RFC 8881 18.42): what was written at data servers becomes part of the file. The time
//! of change is this server's, whatever the client says.

use super::{check_range, form, of_layout};
use crate::v4::compound::{Compound, OpError, OpResult};
use crate::v4::stateid;
use dafs_service::ServiceError;
use dafs_wire::nfs4::{LayoutcommitArgs, LayoutcommitResult, Status};

pub(in crate::v4::ops) fn layoutcommit(
    cx: &mut Compound<'_>,
    args: &LayoutcommitArgs<'_>,
) -> OpResult {
    let handle = cx.current()?;
    form(cx, args.update.layout_type)?;
    // A client that only says when it wrote may name no bytes.
    if args.length != 0 {
        check_range(args.offset, args.length)?;
    }
    let end = match args.last_write_offset {
        Some(last) => Some(last.checked_add(1).ok_or(Status::Inval)?),
        None => None,
    };
    // It waits for the disk.
    cx.may_wait()?;
    let caller = cx.caller()?;
    let state = match args.reclaim {
        true => dafs_service::StateRef::ANONYMOUS,
        false => stateid::reference(&cx.stateid(&args.stateid)?)?,
    };
    let service = &cx.shared.service;
    let size = service.commit_layout(caller, &handle, state, args.reclaim, end);
    let size = size.map_err(of_commit)?;
    // The file ends where this client has written last, or others have made it as long as it is. How long it
    // was before is not asked: where data servers know that, they would be kept from their work.
    cx.encoder().value(&LayoutcommitResult { new_size: end.filter(|&end| end == size) });
    Ok(())
}

/// A layout that is not known any more, as after a restart of this server, is told as no layout. What
/// was stable at data servers that answer belongs to the file all the same (the service has seen to that), and
/// clients know that of this status alone: with one about state-ids Linux fails the application's sync.
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
