//! Ends or downgrades a client's state on a file: CLOSE, OPEN_DOWNGRADE, DELEGRETURN (RFC 8881
//! 18.2, 18.6, 18.18).

use super::open::share;
use crate::v4::compound::context::OpContext;
use crate::v4::stateid;
use crate::v4::status::{OpResult, without_perm};
use dafs_wire::nfs4::{
    CloseArgs, DelegreturnArgs, OpenDowngradeArgs, ShareAccess, Stateid, StateidResult, Status,
};

pub(crate) fn close(cx: &mut OpContext<'_>, args: &CloseArgs) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(&args.stateid)?;
    cx.service().opens.close(cx.caller()?, &handle, state).map_err(without_perm)?;
    // A closed open has no state-id. This one is never valid (RFC 8881 18.2.4).
    cx.set_current_stateid(Stateid::INVALID);
    cx.answer(&StateidResult { stateid: Stateid::INVALID })
}

pub(crate) fn open_downgrade(cx: &mut OpContext<'_>, args: &OpenDowngradeArgs) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(&args.stateid)?;
    // Wants have no meaning here, but clients send them (RFC 8881 18.18.3).
    let access = ShareAccess(args.share_access.access());
    let share = share(access, args.share_deny)?;
    let downgraded = cx.service().opens.downgrade(cx.caller()?, &handle, state, share, None);
    let stateid = stateid::wire(downgraded.map_err(without_perm)?);
    cx.set_current_stateid(stateid);
    cx.answer(&StateidResult { stateid })
}

pub(crate) fn delegreturn(cx: &mut OpContext<'_>, args: &DelegreturnArgs) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(&args.stateid)?;
    if state.is_special() {
        return Err(Status::BadStateId.into());
    }
    cx.service().delegations.take_back(cx.caller()?, Some(&handle), state).map_err(without_perm)
}
