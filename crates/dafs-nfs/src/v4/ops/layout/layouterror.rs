//! LAYOUTERROR and LAYOUTSTATS (RFC 7862 15.6, 15.7): what clients met at data servers. Where they cannot
//! write, this server goes on without, if it can; the rest is for the administrator to read.

use super::{hear_errors, of_layout};
use crate::v4::compound::{Compound, OpResult};
use crate::v4::stateid;
use dafs_service::StateKind;
use dafs_wire::nfs4::{LayouterrorArgs, LayoutstatsArgs, Stateid, Status};

pub(in crate::v4::ops) fn layouterror(cx: &mut Compound<'_>, args: &LayouterrorArgs) -> OpResult {
    check_layout(cx, &args.stateid)?;
    hear_errors(cx, &args.stateid, &args.errors)
}

pub(in crate::v4::ops) fn layoutstats(
    cx: &mut Compound<'_>,
    args: &LayoutstatsArgs<'_>,
) -> OpResult {
    check_layout(cx, &args.stateid)?;
    let (read, written) = (args.read.bytes, args.write.bytes);
    tracing::debug!(read, written, "a client tells of its use of a data server");
    Ok(())
}

/// Both come with a layout of the current file.
fn check_layout(cx: &mut Compound<'_>, wire: &Stateid) -> OpResult {
    let handle = cx.current()?;
    let state = stateid::reference(&cx.stateid(wire)?)?;
    let service = cx.shared.service.clone();
    match service.check_state(cx.caller()?, Some(&handle), state.id.into()).map_err(of_layout)? {
        StateKind::Layout => Ok(()),
        StateKind::Open | StateKind::Lock | StateKind::Delegation => Err(Status::BadStateId.into()),
    }
}
