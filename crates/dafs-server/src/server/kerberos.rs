//! Kerberos for the NFS front ends: contexts by the system's library, tokens by `dafs_gss`, and users
//! by the rules of the configuration.
//!
//! Invariants
//! * The library runs in a lane of the pool of its own, because it reads files and its lookups of
//!   users may wait for other machines. Those threads never act as a caller.
//! * A context is established only after the user of its principal was looked up.

use crate::config::KerberosConfig;
use dafs_dat::connections::Origin;
use dafs_gss::library::{Acceptor as Library, LibraryError};
use dafs_gss::mechanism::{Accept, Pending, Step as Taken};
use dafs_gss::token::{Keys, Parts};
use dafs_nfs::NfsGss;
use dafs_rpc::gss::{
    Acceptor, BadToken, ContextLimits, Contexts, Established, Failure, Job, MessageKeys,
    PartialContext, Principal, Step,
};
use dafs_service::{Identities, Known, LocalDirectory, Owner, Place, Pool};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The lane of the pool for the library and the database of users.
const LANE: u64 = u64::MAX;

/// Opens the keys of the NFS service.
///
/// # Errors
/// The library's, with the remedy.
pub(super) fn open(
    config: &KerberosConfig,
    pool: Arc<dyn Pool>,
) -> Result<Arc<NfsGss>, LibraryError> {
    let library = Arc::new(Library::new(&config.keytab, &config.nfs)?);
    let identities = Arc::new(Identities::new(config.rules.clone(), Box::new(LocalDirectory)));
    let contexts = Contexts::new(ContextLimits::default());
    let acceptor = Kerberos { contexts, mechanism: library, identities: identities.clone(), pool };
    Ok(Arc::new(NfsGss { acceptor: Arc::new(acceptor), identities }))
}

struct Kerberos {
    contexts: Arc<Contexts>,
    mechanism: Arc<dyn Accept>,
    identities: Arc<Identities>,
    pool: Arc<dyn Pool>,
}

impl Acceptor for Kerberos {
    fn contexts(&self) -> &Arc<Contexts> {
        &self.contexts
    }

    fn begin(&self) -> Box<dyn PartialContext> {
        let (mechanism, identities) = (self.mechanism.clone(), self.identities.clone());
        Box::new(Partial { mechanism, identities, pending: None })
    }

    fn run(&self, origin: Origin, job: Job) {
        let owner = Owner { origin: turns(origin), number: 0 };
        self.pool.submit_to(Place { lane: LANE, owner }, job);
    }
}

/// The origin by which the scheduler shares turns.
fn turns(origin: Origin) -> dafs_service::Origin {
    match origin {
        Origin::Address(address) => dafs_service::Origin::host(address),
        Origin::User(uid) => dafs_service::Origin::User(uid),
        Origin::Sim(host) => dafs_service::Origin::Sim(host),
        Origin::Unknown => dafs_service::Origin::Server,
    }
}

/// A context between two tokens.
struct Partial {
    mechanism: Arc<dyn Accept>,
    identities: Arc<Identities>,
    pending: Option<Pending>,
}

impl PartialContext for Partial {
    fn accept(&mut self, token: &[u8]) -> Step {
        match self.mechanism.accept(self.pending.take(), token, None) {
            Taken::Continue { pending, token } => {
                self.pending = Some(pending);
                Step::Continue { token }
            }
            Taken::Failed(failure) => {
                let (major, minor) = (failure.major, failure.minor);
                Step::Failed(Failure { major, minor, text: failure.to_string() })
            }
            Taken::Done(done) => {
                let name = done.principal.display();
                let now_ns = dafs_dat::Instant::now().0;
                if let Err(error) = self.identities.resolve(name, now_ns)
                    && self.identities.known(name, now_ns) == Known::Nothing
                {
                    // GSS_S_FAILURE: the client tries again.
                    let text = error.to_string();
                    return Step::Failed(Failure { major: 13 << 16, minor: 0, text });
                }
                tracing::debug!(principal = name, "a context is established");
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let remaining = Duration::from_secs(done.end_time_seconds).saturating_sub(now);
                let principal = Principal {
                    exported_name: done.principal.exported().into(),
                    display_name: name.into(),
                };
                let keys = Box::new(Messages(done.keys));
                let established = Established { principal, remaining, keys };
                Step::Complete { token: done.token.unwrap_or_default(), established }
            }
        }
    }
}

/// The tokens of RFC 4121.
#[derive(Debug)]
struct Messages(Keys);

impl MessageKeys for Messages {
    fn mic_bytes(&self) -> usize {
        self.0.enctype().mic_len()
    }

    fn mic(&self, parts: &[&[u8]], mic: &mut [u8]) {
        let made = self.0.mic(Parts::new(parts), mic);
        debug_assert!(made.is_ok(), "a MIC has no room");
    }

    fn verify(&self, parts: &[&[u8]], mic: &[u8]) -> Result<(), BadToken> {
        self.0.verify_mic(Parts::new(parts), mic).map_err(|_| BadToken)
    }

    fn sealed_bytes(&self, plain_bytes: usize) -> usize {
        self.0.enctype().sealed_len(plain_bytes)
    }

    fn seal(&self, parts: &[&[u8]], token: &mut [u8]) {
        let made = self.0.seal(Parts::new(parts), token);
        debug_assert!(made.is_ok(), "a token has no room");
    }

    fn open(&self, token: &[u8], plain: &mut [u8]) -> Result<usize, BadToken> {
        self.0.open(token, plain).map_err(|_| BadToken)
    }
}
