//! Callers that have proven their name (RPCSEC_GSS).

use crate::admission::CallerIdentity;
use dafs_rpc::gss::{Acceptor, Context};
use dafs_rpc::{AuthStatus, GssService};
use dafs_service::{Flavour, Identities, Known, NO_USER};
use dafs_store::Cred;
use std::sync::Arc;

/// The acceptor of contexts, and the users of their principals.
pub struct NfsGss {
    /// The acceptor. When a context is established, it has asked `identities` for its user.
    pub acceptor: Arc<dyn Acceptor>,
    /// The users of principals.
    pub identities: Arc<Identities>,
}

impl NfsGss {
    /// The caller of a context, and true if its user should be looked up again.
    ///
    /// # Errors
    /// `GssCredentialProblem` for a principal that is not known any more: with the next context its
    /// user is looked up.
    pub(crate) fn who(
        &self,
        context: &Context,
        service: GssService,
        now_ns: u64,
    ) -> Result<(CallerIdentity, bool), AuthStatus> {
        let principal = context.principal();
        let (mapped, is_stale) = match self.identities.known(&principal.display_name, now_ns) {
            Known::Fresh(mapped) => (mapped, false),
            Known::Stale(mapped) => (mapped, true),
            Known::Nothing => return Err(AuthStatus::GssCredentialProblem),
        };
        let cred = mapped.cred.clone().unwrap_or_else(|| Cred::new(NO_USER, NO_USER));
        let flavour = match service {
            GssService::None => Flavour::Krb5,
            GssService::Integrity => Flavour::Krb5i,
            GssService::Privacy => Flavour::Krb5p,
        };
        let principal = Some(principal.exported_name.clone());
        Ok((CallerIdentity { cred, flavour, principal }, is_stale))
    }
}

impl std::fmt::Debug for NfsGss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NfsGss")
    }
}
