//! The identity of a mount at each of its servers: claimed, or proven by Kerberos.
//!
//! Invariants
//! * A mount has one source of tickets. At each server it has contexts of its own, for the service
//!   `nfs` of that host.
//! * The library of Kerberos is asked only by threads that may block.

use super::error::{MountError, Result};
use super::route::Route;
use super::security::{SecurityFlavour, UrlSecurity};
use dafs_gss::library::{Credentials, Initiator as Library};
use dafs_gss::mechanism::{Initiate, Pending as Unfinished, ServiceName, Step as Taken, Wanted};
use dafs_gss::token::{Keys, Parts};
use dafs_mem::VolatileSlice;
use dafs_rpc::GssService;
use dafs_rpc::client::Identity;
use dafs_rpc::client::gss::{
    Established, Initiator, InitiatorKeys, Mechanism, PartialContext, Step,
};
use dafs_rpc::gss::BadToken;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The service that NFS servers are (RFC 7530 3.2.1.1).
const SERVICE: &str = "nfs";

/// The way in which a mount names its user to servers.
#[derive(Clone)]
pub(crate) enum Login {
    /// The same identity for each server.
    Fixed(Identity),
    /// Tickets, which are used with this protection.
    Kerberos(Arc<dyn Initiate>, GssService),
}

impl Login {
    /// The login of a URL; without security options it is the given identity.
    ///
    /// # Errors
    /// [`MountError::Kerberos`] without the library or the keytab.
    pub(crate) fn new(security: &UrlSecurity, given: &Identity) -> Result<Self> {
        let Some(service) = security.flavour.and_then(SecurityFlavour::service) else {
            return Ok(Self::Fixed(given.clone()));
        };
        let credentials = match (&security.keytab, &security.ccache) {
            (Some(path), _) => {
                Credentials::Keytab { path: path.clone(), principal: security.principal.clone() }
            }
            (None, Some(name)) => Credentials::Cache(name.clone()),
            (None, None) => Credentials::Default,
        };
        let library = Library::new(credentials).map_err(MountError::kerberos)?;
        Ok(Self::Kerberos(Arc::new(library), service))
    }

    /// The identity at the server at the end of a route.
    ///
    /// # Errors
    /// [`MountError::Kerberos`] for a host that no service can have.
    pub(crate) fn identity(&self, route: &Route) -> Result<Identity> {
        match self {
            Self::Fixed(identity) => Ok(identity.clone()),
            Self::Kerberos(initiator, service) => {
                let target = ServiceName::new(SERVICE, route.service_host());
                let target = target.map_err(MountError::kerberos)?;
                let tickets = Tickets { initiator: initiator.clone(), target };
                Ok(Identity::Gss(Arc::new(Initiator::new(Arc::new(tickets), *service))))
            }
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(identity) => f.debug_tuple("Fixed").field(identity).finish(),
            Self::Kerberos(_, service) => f.debug_tuple("Kerberos").field(service).finish(),
        }
    }
}

/// Tickets for one server.
struct Tickets {
    initiator: Arc<dyn Initiate>,
    target: ServiceName,
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tickets({})", self.target)
    }
}

impl Mechanism for Tickets {
    fn begin(&self) -> Box<dyn PartialContext> {
        let (initiator, target) = (self.initiator.clone(), self.target.clone());
        Box::new(Partial { initiator, target, unfinished: None })
    }
}

/// A context between two tokens.
struct Partial {
    initiator: Arc<dyn Initiate>,
    target: ServiceName,
    unfinished: Option<Unfinished>,
}

impl PartialContext for Partial {
    fn step(&mut self, token: &[u8]) -> Step {
        // The verifier of the reply proves the server, so there is no need for another proof.
        let wanted = Wanted { target: &self.target, mutual: false, bindings: None };
        match self.initiator.initiate(self.unfinished.take(), &wanted, token) {
            Taken::Continue { pending, token } => {
                self.unfinished = Some(pending);
                Step::Continue { token }
            }
            Taken::Failed(failure) => Step::Failed(format!("{}: {failure}", self.target)),
            Taken::Done(done) => {
                let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                let remaining = Duration::from_secs(done.end_time_seconds).saturating_sub(now);
                let established = Established {
                    principal: done.principal.display().to_owned(),
                    remaining,
                    keys: Box::new(Tokens(done.keys)),
                };
                Step::Complete { token: done.token.unwrap_or_default(), established }
            }
        }
    }
}

/// The tokens of RFC 4121.
#[derive(Debug)]
struct Tokens(Keys);

impl InitiatorKeys for Tokens {
    fn mic_bytes(&self) -> usize {
        self.0.enctype().mic_len()
    }

    fn mic(&self, parts: &[VolatileSlice<'_>], mic: &mut [u8]) {
        let made = self.0.mic(Parts::new(parts), mic);
        debug_assert!(made.is_ok(), "a MIC has no room");
    }

    fn verify(&self, parts: &[VolatileSlice<'_>], mic: &[u8]) -> Result<(), BadToken> {
        self.0.verify_mic(Parts::new(parts), mic).map_err(|_| BadToken)
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        self.0.enctype().sealed_len(plain_bytes)
    }

    fn seal(&self, parts: &[VolatileSlice<'_>], token: &mut [u8]) {
        let made = self.0.seal(Parts::new(parts), token);
        debug_assert!(made.is_ok(), "a token has no room");
    }

    fn open(&self, token: &[u8], write: &mut dyn FnMut(&[u8])) -> Result<(), BadToken> {
        self.0.open_to(token, write).map(drop).map_err(|_| BadToken)
    }
}
