//! The identity under which the thread works.
//!
//! A server with root's privileges runs every operation that takes a [`Cred`] with that caller's
//! file-system user id, group id and groups, so that the kernel checks the rights. An unprivileged
//! server works as its own user for all callers. Threads get their identities by `dafs_mem::sys`.
//!
//! Invariants
//! * A root server that cannot switch, or keeps its privileges after a switch, opens no export.

use dafs_mem::sys::{FileIdentity, FileIdentityGuard, act_as, as_server};
use dafs_store::{Cred, Result, StoreError};
use rustix::thread::{CapabilitySet, capabilities};

/// A user and group without privileges, for the proof that switching works.
const ORDINARY_ID: u32 = 65_534;

/// True if this process takes on the identities of its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    switches: bool,
}

/// Proof that the thread works as the caller whose [`Cred`] it was made from.
#[derive(Debug)]
#[must_use]
pub(super) struct Caller(
    #[expect(dead_code, reason = "dropped to go back")] Option<FileIdentityGuard>,
);

/// Proof that the thread works as the server itself.
#[derive(Debug)]
#[must_use]
pub(super) struct AsServer(#[expect(dead_code, reason = "dropped to go back")] Caller);

impl Identity {
    /// Detects the privileges of this process, and proves once that a switch drops those of root.
    ///
    /// # Errors
    /// [`StoreError::Access`] for root that cannot act as its callers: no administrator wants to
    /// serve all clients with root's rights.
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
        // The proof has left the thread with the identity of an ordinary user.
        as_server()?;
        proved.map(|()| identity)
    }

    /// Becomes an ordinary user and checks that root's privileges over files are gone.
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

    /// True if operations run with the caller's rights instead of the server's.
    pub(super) fn switches(self) -> bool {
        self.switches
    }

    /// Takes on the caller's identity.
    pub(super) fn caller(self, cred: &Cred) -> Result<Caller> {
        if !self.switches {
            return Ok(Caller(None));
        }
        let Cred { uid, gid, groups } = cred.clone();
        Ok(Caller(Some(act_as(FileIdentity { uid, gid, groups })?)))
    }

    /// Returns to the server's own identity with all its privileges.
    pub(super) fn server(self) -> Result<AsServer> {
        self.caller(&Cred::new(0, 0)).map(AsServer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_is_in_use_is_not_taken_away() {
        let identity = Identity::detect().unwrap();
        let caller = identity.caller(&Cred::new(1001, 1001)).unwrap();
        assert_eq!(as_server().is_err(), identity.switches());
        drop(caller);
        as_server().unwrap();
    }
}
