//! The user of a call: the effective user of the process at that moment.
//!
//! A session is opened for the effective user of the process at its first use. A process that changes
//! its user later, as a daemon of root does, goes on as the new one, where the server trusts it to
//! act for others.
//!
//! Invariants
//! * A process that has given up rights does not use those with which its sessions were opened.
//! * A session that has proven a user, which no server trusts to act for others, acts as that user
//!   whoever the process is.

use crate::failure::{Errno, Result};
use dafs_client::{Client, User, acting_as};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Some server trusts this process to act for others.
static IS_TRUSTED: AtomicBool = AtomicBool::new(false);

/// The process has been another user than at first.
static HAS_CHANGED: AtomicBool = AtomicBool::new(false);

/// User and group of the process at first.
static FIRST: OnceLock<(u32, u32)> = OnceLock::new();

thread_local! {
    /// False during a call that began when no server was known to trust this process. The call has no
    /// user then.
    static HAS_USER: Cell<bool> = const { Cell::new(true) };
}

/// Called with each session that was opened, and the user that it was opened for: a thread that
/// changes the user meanwhile must not be taken for that one.
pub(crate) fn opened(client: &Client, user: &User) {
    FIRST.get_or_init(|| (user.ids().uid, user.ids().gid));
    if Some(&now()) != FIRST.get() {
        HAS_CHANGED.store(true, Ordering::Relaxed);
    }
    if client.session().trusted {
        IS_TRUSTED.store(true, Ordering::Relaxed);
    }
}

/// Runs `work`, which serves a call, as the user of the process.
pub(crate) fn as_caller<T>(work: impl FnOnce() -> T) -> T {
    let is_trusted = IS_TRUSTED.load(Ordering::Relaxed);
    HAS_USER.set(is_trusted);
    let done = match is_trusted.then(user).flatten() {
        Some(user) => acting_as(Some(&user), work),
        None => work(),
    };
    HAS_USER.set(true);
    done
}

/// Checks that this call may use a session which another one has opened.
///
/// # Errors
/// `EAGAIN` if the call began before there was a session, and the process is another user by now.
pub(crate) fn check(client: &Client) -> Result<()> {
    if client.session().trusted && !HAS_USER.get() && Some(&now()) != FIRST.get() {
        return Err(Errno(libc::EAGAIN));
    }
    Ok(())
}

/// The user of the process; `None` if that of its sessions will do.
fn user() -> Option<User> {
    if Some(&now()) != FIRST.get() {
        HAS_CHANGED.store(true, Ordering::Relaxed);
    }
    // Sessions may have been opened for several users since.
    HAS_CHANGED.load(Ordering::Relaxed).then(User::of_process)
}

/// The effective user and group.
fn now() -> (u32, u32) {
    // SAFETY: the calls take no memory.
    unsafe { (libc::geteuid(), libc::getegid()) }
}
