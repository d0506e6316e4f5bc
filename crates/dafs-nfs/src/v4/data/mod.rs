//! What a data server does: sessions, and data of components by leave of the metadata server
//! (RFC 8881 13.3).
//!
//! Invariants
//! * No operation goes by state of this server: it has none. State-ids are the metadata server's, and
//!   it judges each use.
//! * A use is begun before it is judged, so that whoever takes leave back can wait for its end.

mod read;
mod write;

use super::compound::{Compound, OpResult};
use super::stateid;
use crate::data_server::{DataRole, ForeignUse};
use crate::wire_handle;
use dafs_service::{Handle, ServiceError};
use dafs_wire::nfs4::{Op, Stateid, Status};

/// Runs an operation of a data server. `None` for those that it has in common with others.
pub(super) fn run<'a>(cx: &mut Compound<'a>, role: &DataRole, op: &Op<'a>) -> Option<OpResult> {
    match op {
        Op::Sequence(_)
        | Op::ExchangeId(_)
        | Op::CreateSession(_)
        | Op::DestroySession(_)
        | Op::DestroyClientid(_)
        | Op::BindConnToSession(_)
        | Op::BackchannelCtl(_)
        | Op::ReclaimComplete(_)
        | Op::SetSsv(_)
        | Op::Putfh(_)
        | Op::Getattr(_)
        | Op::Commit(_)
        | Op::Illegal(_) => None,
        Op::Read(args) => Some(read::read(cx, role, args)),
        Op::Write(args) => Some(write::write(cx, role, args)),
        _ => Some(Err(Status::NotSupp.into())),
    }
}

/// Asks the metadata server.
fn check(
    cx: &Compound<'_>,
    role: &DataRole,
    handle: &Handle,
    argument: &Stateid,
    write: bool,
) -> OpResult {
    // There is no current state-id: nothing here makes one.
    let state = stateid::reference(&cx.stateid(argument)?)?;
    let component = wire_handle::encode(handle);
    let client = cx.client()?;
    let now_ns = cx.call.now_ns;
    let (owner, identity) = (client.name(), client.identity());
    let wanted = ForeignUse { owner, identity, component: &component, state, write, now_ns };
    role.states.check(&wanted).map_err(|error| match error {
        // With any other status a kernel client keeps the layout and tries again.
        ServiceError::BadLayout => Status::PnfsNoLayout.into(),
        error => error.into(),
    })
}
