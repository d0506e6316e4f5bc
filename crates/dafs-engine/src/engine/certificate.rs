//! Sessions of clients whose certificate names a user, and who offer no other proof.
//!
//! Invariants
//! * The user is looked up on the pool, in the lane of tokens, because that asks the database of users.

use super::request::{Call, Context, Done};
use super::work::{JobResult, Work, submit};
use crate::auth::NotProven;
use crate::limits::GSS_LANE;
use dafs_service::Identities;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Has the user of the client's certificate looked up on the pool.
pub(super) fn take(
    cx: &mut Context<'_>,
    call: &Call,
    (users, user): (Arc<Identities>, Arc<str>),
) -> Done {
    cx.connection.proving = true;
    let authenticator = cx.shared.authenticator.clone();
    let (peer, now, gone) = (cx.connection.peer.clone(), cx.now, cx.connection.gone.clone());
    let id = cx.defer(call, Work::Authenticate);
    submit((&*cx.shared.pool, cx.place(GSS_LANE)), cx.inbox, id, move || {
        // A client that has gone needs no answer, and others wait for their turn.
        JobResult::Admission(match gone.load(Ordering::Relaxed) {
            true => Err(NotProven::TooMany),
            false => authenticator.admit_user(&peer, (&users, &user), now),
        })
    });
    Ok(())
}
