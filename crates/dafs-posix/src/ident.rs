//! On whose behalf the thread works.
//!
//! A server with root's power runs every operation that takes a [`Cred`] with that caller's
//! file-system user id, group id and groups, so that the kernel decides. An unprivileged server
//! works as its own user, whoever the caller is. Threads get their identities by `dafs_mem::sys`.
//!
//! Invariants
//! * Root that cannot switch, or keeps its power when it does, serves nobody.

use dafs_mem::sys::{FileIdentity, FileIdentityGuard, act_as, as_server};
use dafs_store::{Cred, Result, StoreError};
use rustix::thread::{CapabilitySet, capabilities};

/// A user and group without power, for the proof that switching works.
const ORDINARY_ID: u32 = 65_534;

/// Whether this process can take on the identities of its callers.
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
        as_server()?;
        proved.map(|()| identity)
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
            return Ok(Caller(None));
        }
        let Cred { uid, gid, groups } = cred.clone();
        Ok(Caller(Some(act_as(FileIdentity { uid, gid, groups })?)))
    }

    /// Goes back to the server's own identity with all its power.
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
