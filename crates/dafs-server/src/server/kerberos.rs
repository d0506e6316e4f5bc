//! Kerberos for the front ends: contexts by the system's library, tokens of NFS by `dafs_gss`, and users
//! by the rules of the configuration.
//!
//! Invariants
//! * The library runs in a lane of the pool of its own, because it reads files and its lookups of
//!   users may wait for other machines. Those threads never act as a caller.
//! * A context is established only after the user of its principal was looked up, by itself or a
//!   short time ago by another.
//! * Each service has an acceptor of its own, so a ticket for one is of no use for the other.
//! * Tokens for DAFS are taken once, also over restarts. The cache that sees to it is in the state directory,
//!   which no other user can change.

use crate::config::{Config, KerberosConfig};
use crate::metrics::{Sample, Source, counter, gauge, samples};
use dafs_dat::connections::Origin;
use dafs_engine::{AuthConfig, GssAuth};
use dafs_gss::library::{Acceptor as Library, LibraryError};
use dafs_gss::mechanism::{Accept, Pending, Step as Taken};
use dafs_gss::token::{Keys, Parts};
use dafs_nfs::{NfsGss, NfsShared};
use dafs_rpc::gss::{
    Acceptor, BadToken, ContextCounts, ContextLimits, Contexts, Established, Failure, Job,
    MessageKeys, PartialContext, Principal, Step,
};
use dafs_service::{Identities, Known, LocalDirectory, Owner, OwnerNames, Place, Pool};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The lane of the pool for the library and the database of users.
const LANE: u64 = u64::MAX;

/// Opens the keys of the NFS service. Owners have names in `domain`.
///
/// # Errors
/// The library's, with the remedy.
pub(super) fn open(
    config: &KerberosConfig,
    domain: Option<&str>,
    pool: Arc<dyn Pool>,
) -> Result<Arc<NfsGss>, LibraryError> {
    let library = Arc::new(Library::new(&config.keytab, &config.nfs)?);
    let identities = Arc::new(Identities::new(config.rules.clone(), Box::new(LocalDirectory)));
    let contexts = Contexts::new(ContextLimits::default());
    let acceptor = Kerberos { contexts, mechanism: library, identities: identities.clone(), pool };
    let names = |domain| Arc::new(OwnerNames::new(domain, Box::new(LocalDirectory)));
    let owners = domain.map(names);
    Ok(Arc::new(NfsGss { acceptor: Arc::new(acceptor), identities, owners }))
}

/// The file in the state directory with the authenticators of DAFS clients that were seen lately.
const REPLAYS: &str = "dafs-replays";

/// Returns the rules of authentication, with the means to check tokens of DAFS clients.
///
/// # Errors
/// The library's, with the remedy.
pub(super) fn with_dafs(
    config: &Config,
    state_directory: &Path,
) -> Result<AuthConfig, LibraryError> {
    let open = |kerberos| open_dafs(kerberos, state_directory);
    let gss = config.kerberos.as_ref().map(open).transpose()?.flatten();
    Ok(AuthConfig { gss, ..config.auth.clone() })
}

/// Opens the keys of the DAFS service. `None`, with a line in the log, if the keytab has none: then DAFS clients
/// cannot use Kerberos.
///
/// # Errors
/// The library's, with the remedy.
fn open_dafs(
    config: &KerberosConfig,
    state_directory: &Path,
) -> Result<Option<GssAuth>, LibraryError> {
    let replays = state_directory.join(REPLAYS);
    let acceptor = match Library::refusing_replays(&config.keytab, &config.dafs, &replays) {
        Ok(acceptor) => Arc::new(acceptor),
        Err(error @ LibraryError::Credentials { .. }) => {
            tracing::warn!(%error, "DAFS clients cannot use Kerberos");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let identities = Arc::new(Identities::new(config.rules.clone(), Box::new(LocalDirectory)));
    let time_seconds = || UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    Ok(Some(GssAuth { acceptor, identities, in_clear: config.dafs_in_clear, time_seconds }))
}

pub(super) const GSS: &[Source<ContextCounts>] = &[
    gauge("dafs_nfs_gss_contexts", "Contexts of RPCSEC_GSS", |now: &ContextCounts| now.contexts),
    counter(
        "dafs_nfs_gss_established_total",
        "Contexts of RPCSEC_GSS established",
        |now: &ContextCounts| now.established,
    ),
    counter(
        "dafs_nfs_gss_failed_total",
        "Contexts that Kerberos refused",
        |now: &ContextCounts| now.failed,
    ),
    counter(
        "dafs_nfs_gss_busy_total",
        "Requests for contexts beyond a limit of their host",
        |now: &ContextCounts| now.busy,
    ),
    counter(
        "dafs_nfs_gss_evicted_total",
        "Contexts that made room for others",
        |now: &ContextCounts| now.evicted,
    ),
    counter("dafs_nfs_gss_unknown_total", "Calls in unknown contexts", |now: &ContextCounts| {
        now.unknown
    }),
    counter(
        "dafs_nfs_gss_unverified_total",
        "Calls with a wrong verifier",
        |now: &ContextCounts| now.unverified,
    ),
    counter("dafs_nfs_gss_replayed_total", "Replayed calls", |now: &ContextCounts| now.replayed),
];

/// Returns the values of the contexts of RPCSEC_GSS, if the server takes Kerberos.
pub(super) fn of_contexts(shared: &NfsShared) -> Vec<Sample> {
    shared.context_counts().map_or_else(Vec::new, |counts| samples(GSS, &counts))
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
pub(super) fn turns(origin: Origin) -> dafs_service::Origin {
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
                // A lookup may wait for other machines, and many contexts of a user may wait for it.
                let known = self.identities.known(name, now_ns);
                if !matches!(known, Known::Fresh(_))
                    && let Err(error) = self.identities.resolve(name, now_ns)
                    && known == Known::Nothing
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
