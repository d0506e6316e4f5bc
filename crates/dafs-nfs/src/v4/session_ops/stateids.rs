//! FREE_STATEID and TEST_STATEID (RFC 8881 18.38, 18.48).

use crate::v4::compound::context::OpContext;
use crate::v4::stateid;
use crate::v4::status::{self, OpResult};
use dafs_wire::nfs4::{FreeStateidArgs, Status, TestStateidArgs, TestStateidResult};

/// Frees state of locks without ranges, and revoked state that the client has seen.
pub(crate) fn free_stateid(cx: &mut OpContext<'_>, args: &FreeStateidArgs) -> OpResult {
    let state = cx.state(&args.stateid)?;
    if state.is_special() {
        return Err(Status::BadStateId.into());
    }
    cx.service().opens.free(cx.caller()?, state)?;
    Ok(())
}

/// Tests each state-id.
pub(crate) fn test_stateid(cx: &mut OpContext<'_>, args: &TestStateidArgs) -> OpResult {
    let mut statuses = Vec::with_capacity(args.stateids.len());
    for stateid in &args.stateids {
        let tested = match stateid::reference(stateid) {
            Ok(state) if state.is_special() => Err(Status::BadStateId),
            Ok(state) => {
                cx.service().state.check_state(cx.caller()?, None, state).map_err(status::of)
            }
            Err(status) => Err(status),
        };
        statuses.push(tested.err().unwrap_or(Status::Ok));
    }
    cx.answer(&TestStateidResult { statuses })
}
