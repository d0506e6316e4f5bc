//! The client that a session has authenticated as, and the credentials that the session registers.
//!
//! Invariants
//! * Registrations end with their session, so a client that reconnects for ever, or begins anew under
//!   its old name, leaves none behind.

use crate::auth::Admission;
use dafs_service::Client;
use dafs_store::Cred;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The client of a session.
pub(super) struct Proven {
    pub(super) client: Arc<Client>,
    pub(super) admission: Admission,
    /// The credentials that this session has registered, by number.
    creds: FxHashSet<u32>,
}

impl Proven {
    pub(super) fn new(client: Arc<Client>, admission: Admission) -> Self {
        Self { client, admission, creds: FxHashSet::default() }
    }

    /// Registers a credential, which the session has once however often it asks, and returns its
    /// number. Returns `None` when the client has `max`.
    pub(super) fn register_cred(&mut self, cred: Cred, max: usize) -> Option<u32> {
        let number = self.client.register_cred(cred, max)?;
        if !self.creds.insert(number) {
            // The client counts its sessions.
            self.client.release_cred(number);
        }
        Some(number)
    }

    /// Ends a registration. Returns false when the session has none of that number.
    pub(super) fn release_cred(&mut self, number: u32) -> bool {
        self.creds.remove(&number) && self.client.release_cred(number)
    }
}

impl Drop for Proven {
    fn drop(&mut self) {
        for &number in &self.creds {
            self.client.release_cred(number);
        }
    }
}
