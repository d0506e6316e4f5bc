//! Reclaiming opens, after the server's restart or when it has dropped the client.

use super::client::{Client, SessionError};
use super::exchange::Outcome;
use super::session::Session;
use crate::compound::Results;
use crate::files::putfh;
use crate::mount::error::{MountError, Result};
use crate::mount::limits::SMALL_RESULT_BYTES;
use crate::mount::open::Open;
use crate::mount::retry_timer::RetryTimer;
use crate::open::{Create, OpenOptions, append_open};
use dafs_wire::nfs4::{
    DENY_NONE, DelegationType, Op, OpNum, OpenClaim, ReclaimCompleteArgs, Stateid, Status, Want,
};
use std::sync::Arc;

/// Reclaims all opens, sends RECLAIM_COMPLETE, and opens the rest anew. Opens that the server
/// refuses are marked as lost.
pub(crate) fn opens(
    client: &Client,
    session: &Arc<Session>,
    opens: &[Arc<Open>],
    retry_timer: &mut RetryTimer,
) -> Result<(), SessionError> {
    let mut refused = Vec::new();
    for open in opens {
        let claim = OpenClaim::Previous(DelegationType::None);
        match claim_open(client, session, open, claim, retry_timer) {
            Ok(stateid) => open.held().stateid = stateid,
            // There is no grace period, or the server does not remember this client's opens.
            Err(SessionError::Final(error)) if error.status().is_some() => refused.push(open),
            Err(other) => return Err(other),
        }
    }
    complete(client, session, retry_timer)?;
    for open in refused {
        match again(client, session, open, retry_timer) {
            Ok(stateid) => open.held().stateid = stateid,
            Err(SessionError::Final(error)) => match error.status() {
                Some(status) => open.held().lost = Some(status),
                None => return Err(SessionError::Final(error)),
            },
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// Sends RECLAIM_COMPLETE (RFC 8881 18.51).
pub(crate) fn complete(
    client: &Client,
    session: &Arc<Session>,
    retry_timer: &mut RetryTimer,
) -> Result<(), SessionError> {
    let done = under(client, session, retry_timer, &|compound| {
        compound.op(&Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false }));
    });
    match done?.finish().map_err(MountError::from) {
        Err(error) if error.status() == Some(Status::CompleteAlready) => Ok(()),
        other => Ok(other?),
    }
}

/// Opens a file anew by its handle.
pub(crate) fn again(
    client: &Client,
    session: &Arc<Session>,
    open: &Open,
    retry_timer: &mut RetryTimer,
) -> Result<Stateid, SessionError> {
    claim_open(client, session, open, OpenClaim::Handle, retry_timer)
}

fn claim_open(
    client: &Client,
    session: &Arc<Session>,
    open: &Open,
    claim: OpenClaim<'_>,
    retry_timer: &mut RetryTimer,
) -> Result<Stateid, SessionError> {
    let owner = open.owner();
    let options = OpenOptions {
        access: open.share_access() | Want::None.number(),
        deny: DENY_NONE,
        owner: &owner,
        create: Create::No,
    };
    let mut results = under(client, session, retry_timer, &|compound| {
        compound.op(&putfh(&open.handle));
        append_open(compound, claim, &options);
    })?;
    let taken = results.skip(&[OpNum::Putfh]).and_then(|results| results.take_open());
    Ok(taken.map_err(MountError::from)?.stateid)
}

/// One call under the session that is being set up.
fn under(
    client: &Client,
    session: &Arc<Session>,
    retry_timer: &mut RetryTimer,
    build: &dyn Fn(&mut crate::compound::Compound),
) -> Result<Results, SessionError> {
    match client.call_under(session, true, SMALL_RESULT_BYTES, build, retry_timer) {
        Outcome::Done { results, .. } => Ok(results),
        Outcome::Repeat => Err(SessionError::Later(client.link.lost("an answer was lost"))),
        Outcome::SessionOver { .. } => Err(SessionError::SessionOver),
        Outcome::Failed(error) => Err(SessionError::Final(error)),
    }
}
