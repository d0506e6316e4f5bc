//! Callers that have proven their name (RPCSEC_GSS).

use crate::admission::CallerIdentity;
use dafs_rpc::gss::{Acceptor, Context};
use dafs_rpc::{AuthStatus, GssService};
use dafs_service::{Flavour, Identities, Known, NO_USER, OwnerNames};
use dafs_store::Cred;
use std::sync::Arc;

/// The acceptor of contexts, and the users of their principals.
pub struct NfsGss {
    /// The acceptor. When a context is established, it has asked `identities` for its user.
    pub acceptor: Arc<dyn Acceptor>,
    /// The users of principals.
    pub identities: Arc<Identities>,
    /// The names of owners for callers that prove their names, if the server has a domain. They are
    /// looked up on the threads of `acceptor`.
    pub owners: Option<Arc<OwnerNames>>,
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

/// For tests: an acceptor that no client asks, and whose thread runs jobs at once.
#[cfg(test)]
pub(crate) fn of_tests(owners: Option<OwnerNames>) -> Arc<NfsGss> {
    use dafs_rpc::gss::{ContextLimits, Contexts, Job, Origin, PartialContext};

    struct Inline(Arc<Contexts>);

    impl Acceptor for Inline {
        fn contexts(&self) -> &Arc<Contexts> {
            &self.0
        }

        fn begin(&self) -> Box<dyn PartialContext> {
            panic!("no client asks")
        }

        fn run(&self, _: Origin, job: Job) {
            job();
        }
    }

    let directory = Box::new(dafs_service::LocalDirectory);
    let identities = Arc::new(Identities::new(dafs_service::Rules::default(), directory));
    let acceptor = Arc::new(Inline(Contexts::new(ContextLimits::default())));
    Arc::new(NfsGss { acceptor, identities, owners: owners.map(Arc::new) })
}
