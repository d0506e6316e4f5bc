//! Callers on a connection whose certificate names a user (draft-cel-nfsv4-rpc-tls-othername).
//!
//! Invariants
//! * AUTH_NONE and AUTH_SYS decide nothing but the flavour that an export has to accept: the caller is the
//!   user of the certificate, or nobody.
//! * The handshake has looked the user up. If nothing is known of it, the connection ends, and the next handshake
//!   looks it up again. An old finding still counts, and is looked up again meanwhile.

use crate::admission::CallerIdentity;
use dafs_rpc::Credential;
use dafs_service::{Flavour, Identities, Known, NO_USER};
use dafs_store::Cred;
use std::sync::Arc;

/// The user of a connection.
#[derive(Debug)]
pub(crate) struct Certified {
    cred: Cred,
    name: Arc<[u8]>,
    /// It should be looked up again.
    pub(crate) is_stale: bool,
}

impl Certified {
    /// Returns the user of this name, if it is known. A server without rules knows them as nobody: the metadata
    /// server of a data server decides about their rights.
    pub(crate) fn find(users: Option<&Identities>, name: &str, now_ns: u64) -> Option<Self> {
        let (mapped, is_stale) = match users.map(|users| users.known(name, now_ns)) {
            None => (None, false),
            Some(Known::Fresh(mapped)) => (mapped.cred.clone(), false),
            Some(Known::Stale(mapped)) => (mapped.cred.clone(), true),
            Some(Known::Nothing) => return None,
        };
        let cred = mapped.unwrap_or_else(|| Cred::new(NO_USER, NO_USER));
        Some(Self { cred, name: name.as_bytes().into(), is_stale })
    }

    /// The caller of a call with this credential, which proves nothing.
    pub(crate) fn caller(&self, credential: &Credential<'_>) -> CallerIdentity {
        let flavour = match credential {
            Credential::Sys(_) => Flavour::Sys,
            _ => Flavour::None,
        };
        CallerIdentity { cred: self.cred.clone(), flavour, principal: Some(self.name.clone()) }
    }
}
