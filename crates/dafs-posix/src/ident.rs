//! On whose behalf the thread works.
//!
//! A server with root's power runs every operation that takes a [`Cred`] with that caller's
//! file-system user id, group id and groups, so that the kernel decides. An unprivileged server
//! works as its own user, whoever the caller is.
//!
//! Switching costs a few system calls, so a thread keeps its last identity after a guard is gone,
//! until another one is asked for. A thread that touches files outside a store between operations
//! must call [`as_server`] first.
//!
//! Invariants
//! * A guard means that the thread has that identity now. Guards nest; the end of an inner one
//!   brings the outer one's identity back.
//! * A switch that does not succeed completely fails the operation.
//! * Root that cannot switch, or keeps its power when it does, serves nobody.
//! * Threads that serve callers give up CAP_SYS_RESOURCE, because with it disk quotas do not hold.

use super::sys;
use dafs_store::{Cred, Result, StoreError};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::cell::RefCell;
use std::marker::PhantomData;

/// A user and group without power, for the proof that switching works.
const ORDINARY_ID: u32 = 65_534;

/// What a thread knows about itself.
struct ThreadIdentity {
    /// The identity that the kernel holds for this thread; `None` before the first switch, when
    /// the thread may have inherited anything from the thread that made it.
    current: Option<Cred>,
    /// The identity that the innermost guard asked for.
    held: Option<Cred>,
}

thread_local! {
    static THREAD: RefCell<ThreadIdentity> =
        const { RefCell::new(ThreadIdentity { current: None, held: None }) };
}

/// Whether this process can take on the identities of its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    switches: bool,
}

/// Proof that the thread works as the caller whose [`Cred`] it was made from.
#[derive(Debug)]
#[must_use]
pub(super) struct Caller {
    outer: Option<Cred>,
    switched: bool,
    /// The proof is about one thread.
    not_send: PhantomData<*const ()>,
}

/// Proof that the thread works as the server itself.
#[derive(Debug)]
#[must_use]
pub(super) struct AsServer(#[expect(dead_code, reason = "dropped to go back")] Caller);

impl Identity {
    /// Finds out what this process can do, and proves once that a switch takes root's power away.
    ///
    /// # Errors
    /// [`StoreError::Access`] for root that cannot act as its callers: serving everybody with root's
    /// rights is never what was meant.
    pub(super) fn detect() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self { switches: false });
        }
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        if !capabilities(None).is_ok_and(|sets| sets.effective.contains(needed)) {
            tracing::error!(
                "root without CAP_SETUID and CAP_SETGID cannot act as its callers: grant both, or \
                 run the server as an ordinary user"
            );
            return Err(StoreError::Access);
        }
        let identity = Self { switches: true };
        let proved = identity.prove_switch();
        // The thread was an ordinary user for the proof.
        as_server().and(proved).map(|()| identity)
    }

    /// Becomes an ordinary user and looks whether root's power over files is gone.
    fn prove_switch(self) -> Result<()> {
        let Ok(_caller) = self.caller(&Cred::new(ORDINARY_ID, ORDINARY_ID)) else {
            tracing::error!(
                "the system does not let the server become user {ORDINARY_ID}: map that user and \
                 group into the container and allow setgroups, or run the server as an ordinary user"
            );
            return Err(StoreError::Access);
        };
        let power = CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::DAC_READ_SEARCH
            | CapabilitySet::FOWNER
            | CapabilitySet::FSETID;
        if capabilities(None).is_ok_and(|sets| !sets.effective.intersects(power)) {
            return Ok(());
        }
        tracing::error!(
            "a caller's identity would keep root's rights over files: clear the securebit \
             no_setuid_fixup, or run the server as an ordinary user"
        );
        Err(StoreError::Access)
    }

    /// True when operations run with the caller's rights rather than the server's.
    pub(super) fn switches(self) -> bool {
        self.switches
    }

    /// Takes on the caller's identity.
    pub(super) fn caller(self, cred: &Cred) -> Result<Caller> {
        if !self.switches {
            return Ok(Caller { outer: None, switched: false, not_send: PhantomData });
        }
        THREAD.with_borrow_mut(|thread| {
            thread.become_caller(cred)?;
            let outer = thread.held.replace(cred.clone());
            Ok(Caller { outer, switched: true, not_send: PhantomData })
        })
    }

    /// Goes back to the server's own identity with all its power.
    pub(super) fn server(self) -> Result<AsServer> {
        self.caller(&Cred::new(0, 0)).map(AsServer)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.switched {
            return;
        }
        THREAD.with_borrow_mut(|thread| {
            let Some(outer) = self.outer.take() else {
                thread.held = None;
                return;
            };
            if thread.become_caller(&outer).is_err() {
                // Going on would run the rest of the outer operation with foreign rights.
                tracing::error!(uid = outer.uid, "cannot go back to a caller's identity");
                std::process::abort();
            }
            thread.held = Some(outer);
        });
    }
}

impl ThreadIdentity {
    fn become_caller(&mut self, cred: &Cred) -> Result<()> {
        if self.current.as_ref() == Some(cred) {
            return Ok(());
        }
        // Unknown until all parts are in place.
        let old = self.current.take();
        if old.is_none() {
            give_up_resource_override();
        }
        let same = |part: fn(&Cred, &Cred) -> bool| old.as_ref().is_some_and(|old| part(old, cred));
        let taken = (same(|a, b| a.groups == b.groups)
            || sys::set_thread_groups(&cred.groups).is_ok())
            && (same(|a, b| a.gid == b.gid) || sys::set_fs_gid(cred.gid))
            && (same(|a, b| a.uid == b.uid) || sys::set_fs_uid(cred.uid));
        if !taken {
            return Err(StoreError::Access);
        }
        self.current = Some(cred.clone());
        Ok(())
    }
}

fn give_up_resource_override() {
    let without = capabilities(None).and_then(|mut sets| {
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        set_capabilities(None, sets)
    });
    if let Err(error) = without {
        tracing::warn!(%error, "quotas may not hold: CAP_SYS_RESOURCE stays");
    }
}

/// Gives the thread the server's own identity back, if a store left another one on it.
///
/// # Errors
/// [`StoreError::Access`] when the kernel refuses, or when an operation of a store is under way on
/// this thread and still needs its caller's identity; the thread must not touch files then.
pub fn as_server() -> Result<()> {
    THREAD.with_borrow_mut(|thread| match &thread.current {
        _ if thread.held.is_some() => Err(StoreError::Access),
        Some(cred) if cred.uid != 0 || cred.gid != 0 || !cred.groups.is_empty() => {
            thread.become_caller(&Cred::new(0, 0))
        }
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_is_in_use_is_not_taken_away() {
        let identity = Identity::detect().unwrap();
        let caller = identity.caller(&Cred::new(1001, 1001)).unwrap();
        let expected = if identity.switches() { Err(StoreError::Access) } else { Ok(()) };
        assert_eq!(as_server(), expected);
        drop(caller);
        assert_eq!(as_server(), Ok(()));
    }
}
