//! The role of a data server: sessions, and I/O on components with the metadata server's
//! authorisation (RFC 8881 13.3).
//!
//! Invariants
//! * An operation touches the context and the files of its role, never the slot or the engine.
//! * No operation depends on state of this server, because it has none. State-ids are the metadata
//!   server's, which checks each use.
//! * A use begins before it is checked, so that a revocation can wait for its end.
//! * A write that its client may have abandoned, and executed elsewhere since, is not executed: its
//!   session is destroyed. A client that still wants the write retries it over a new session at
//!   once.

mod read;
mod write;

use super::compound::context::OpContext;
use super::status::{OpError, OpResult};
use crate::wire_handle;
use dafs_service::{DataRole, ForeignUse, Handle, ServiceError};
use dafs_wire::nfs4::{Op, Stateid, Status};
use std::time::Duration;

/// Runs an operation of a data server. Returns `None` for operations that it shares with other
/// servers.
pub(super) fn run<'a>(cx: &mut OpContext<'a>, role: &DataRole, op: &Op<'a>) -> Option<OpResult> {
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

/// Asks the metadata server for authorisation.
fn check(
    cx: &OpContext<'_>,
    role: &DataRole,
    handle: &Handle,
    argument: &Stateid,
    write: bool,
) -> OpResult {
    // There is no current state-id, because no operation here sets one.
    let state = cx.state(argument)?;
    let component = wire_handle::encode(handle);
    let client = cx.client()?;
    let now_ns = cx.now_ns();
    let (owner, identity) = (client.name(), client.identity());
    let component = &component[..];
    let caller = Some(cx.call().origin.nfs_caller(cx.call().who.flavour));
    let security = cx.call().origin.security();
    let wanted = ForeignUse { owner, identity, component, state, write, caller, security, now_ns };
    let checked = role.states.check(&wanted).inspect_err(|error| {
        tracing::debug!(client = %owner.escape_ascii(), write, %error, "a data server refuses");
    });
    let age = checked.map_err(|error| match error {
        // With any other status a kernel client keeps the layout and retries.
        ServiceError::BadLayout => OpError::Status(Status::PnfsNoLayout),
        error => error.into(),
    })?;
    match age.filter(|_| write) {
        Some(age) => check_session(cx, age),
        None => Ok(()),
    }
}

/// Destroys the session if it is too old.
fn check_session(cx: &OpContext<'_>, age: Duration) -> OpResult {
    let session = cx.session()?;
    let now_ns = cx.now_ns();
    let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
    if session.made_ns() >= now_ns.saturating_sub(age_ns) {
        return Ok(());
    }
    cx.shared().destroy_session(session, now_ns);
    Err(Status::DeadSession.into())
}
