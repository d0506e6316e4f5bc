//! Proof of identity by tokens of GSS-API (DAFS 4.5), one token at a time. Calls here may read files and ask
//! databases of users, so they belong on the pool.
//!
//! Invariants
//! * Inside TLS a context must be bound to its connection (RFC 9266): a token that was relayed from another
//!   one proves nothing.
//! * A context proves nothing until it is established, with mutual authentication. Its principal, and when
//!   the proof ends, is all that is kept: no message of DAFS uses its keys, so they are dropped at once.
//! * A principal is admitted only after its user was looked up. A principal without a user is nobody.
//! * A principal is trusted by a rule for it alone, never for its address.

use crate::auth::Admission;
use crate::limits::GSS_CLOCK_SKEW;
use dafs_dat::{Instant, PeerInfo};
use dafs_gss::limits::{NAME_BYTES_MAX, ROUNDS_MAX};
use dafs_gss::mechanism::{Accept, Established, Failure, Pending, Step};
use dafs_service::{Identities, Identity, Known, Mapped, NO_USER};
use dafs_store::Cred;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The name of the mechanism in identities.
pub(crate) const MECHANISM: &str = "gss";

/// GSS_S_FAILURE (RFC 2744 3.9.1).
const FAILURE: u32 = 13 << 16;

/// The means to check tokens.
#[derive(Clone)]
pub struct GssAuth {
    /// Accepts contexts for `dafs@HOST`. It must refuse replays, because a token is the whole proof.
    pub acceptor: Arc<dyn Accept>,
    /// The users of principals.
    pub identities: Arc<Identities>,
    /// Tokens are accepted from other hosts over channels that others may read and change, too.
    pub in_clear: bool,
    /// Returns the seconds since 1970, by which tickets end.
    pub time_seconds: fn() -> u64,
}

/// The proof of an established context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GssProof {
    /// The principal, such as `anna@EXAMPLE.ORG`.
    pub principal: Arc<str>,
    /// The end of the proof: that of the ticket, and a minute for clocks that differ.
    pub until: Instant,
    /// The last token for the client, until it is sent.
    pub(crate) token: Vec<u8>,
}

/// A context between two tokens.
#[derive(Debug)]
pub struct PartialContext {
    pending: Pending,
    rounds: u8,
}

/// The result of a token.
#[derive(Debug)]
pub enum GssStep {
    /// The client must send another one.
    Continue {
        /// The state of the context.
        context: PartialContext,
        /// The token for the client.
        token: Vec<u8>,
    },
    /// The client has proven its principal.
    Done(Box<Admission>),
    /// There will be no context, with the status that the client is told.
    Failed {
        /// Of GSS.
        major: u32,
        /// Of the mechanism.
        minor: u32,
    },
    /// The user of the principal could not be looked up. The client retries.
    Unknown,
}

impl GssAuth {
    /// Takes a token that came at `now`.
    pub(crate) fn take(
        &self,
        context: Option<PartialContext>,
        token: &[u8],
        (peer, now): (&PeerInfo, Instant),
    ) -> GssStep {
        let (pending, rounds) = match context {
            Some(context) => (Some(context.pending), context.rounds),
            None => (None, 0),
        };
        let refused = |failure: &Failure| {
            tracing::info!(%peer, "a proof by GSS was refused: {failure}");
            GssStep::Failed { major: failure.major, minor: failure.minor }
        };
        match self.acceptor.accept(pending, token, peer.binding()) {
            Step::Continue { pending, token } if rounds + 1 < ROUNDS_MAX => {
                GssStep::Continue { context: PartialContext { pending, rounds: rounds + 1 }, token }
            }
            Step::Continue { .. } => {
                refused(&Failure::here(FAILURE, "the context takes too many tokens"))
            }
            Step::Failed(failure) => refused(&failure),
            Step::Done(done) if !done.mutual => refused(&Failure {
                remedy: Some("the client must ask for mutual authentication"),
                ..Failure::here(FAILURE, "the client does not ask who the server is")
            }),
            Step::Done(done) => self.admit(*done, (peer, now)),
        }
    }

    fn admit(&self, done: Established, (peer, now): (&PeerInfo, Instant)) -> GssStep {
        let Established { token, principal, end_time_seconds, keys, .. } = done;
        drop(keys);
        let Some(mapped) = self.mapped(principal.display(), now) else { return GssStep::Unknown };
        let left_seconds = end_time_seconds.saturating_sub((self.time_seconds)());
        let until = now + Duration::from_secs(left_seconds) + GSS_CLOCK_SKEW;
        let cred = mapped.cred.clone().unwrap_or_else(|| Cred::new(NO_USER, NO_USER));
        tracing::debug!(
            %peer, principal = principal.display(), uid = cred.uid, trusted = mapped.trusted,
            "a principal is proven by GSS"
        );
        let identity = Identity { mechanism: MECHANISM, principal: principal.exported().to_vec() };
        let (principal, token) = (principal.display().into(), token.unwrap_or_default());
        let gss = Some(GssProof { principal, until, token });
        GssStep::Done(Box::new(Admission { identity, cred, trusted: mapped.trusted, gss }))
    }

    /// Looks up the user of a principal. `None`, with a line in the log, if that fails and it was never known.
    pub(crate) fn mapped(&self, principal: &str, now: Instant) -> Option<Arc<Mapped>> {
        if principal.len() > NAME_BYTES_MAX {
            return Some(Arc::new(Mapped { cred: None, trusted: false }));
        }
        match self.identities.resolve(principal, now.0) {
            Ok(mapped) => Some(mapped),
            Err(error) => match self.identities.known(principal, now.0) {
                Known::Fresh(mapped) | Known::Stale(mapped) => Some(mapped),
                Known::Nothing => {
                    tracing::warn!(%error, "a principal waits for its user");
                    None
                }
            },
        }
    }
}

impl fmt::Debug for GssAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GssAuth").field("in_clear", &self.in_clear).finish_non_exhaustive()
    }
}
