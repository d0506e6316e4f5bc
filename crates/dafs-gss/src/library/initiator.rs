//! The initiating side.

use super::acceptor::place;
use super::cache::MemoryCache;
use super::error::{LibraryError, check_keytab};
use super::sys::{Context, Credential, Gss, Kind, Name, Usage, flag};
use super::{established, pending};
use crate::limits::{BINDINGS_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::mechanism::{BAD_BINDINGS, FAILURE, Failure, Initiate, Pending, Step, Wanted};
use std::ffi::{CStr, CString};
use std::path::PathBuf;

/// Where an initiator's tickets come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The user's default cache, as the library finds it (KRB5CCNAME, krb5.conf).
    Default,
    /// A cache by its name, such as `FILE:/tmp/krb5cc_1000`.
    Cache(String),
    /// A keytab with the keys of a principal. Tickets are fetched with them when they are needed, and renewed.
    Keytab {
        /// The file.
        path: PathBuf,
        /// The principal, such as `backup@EXAMPLE.ORG`; without one, the first of the keytab.
        principal: Option<String>,
    },
}

/// Initiates contexts with the tickets of one user.
#[derive(Debug)]
pub struct Initiator {
    credentials: Credentials,
    /// The store of the credentials: pairs of a kind and a place. None for the default cache.
    store: Vec<(&'static CStr, CString)>,
    /// The cache for tickets that a keytab yields, which ends with the initiator.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is dropped"))]
    cache: Option<MemoryCache>,
}

/// A context on the way, with the number of its tokens so far.
struct State {
    context: Context,
    credential: Option<Credential>,
    target: Name,
    round: u8,
}

impl Initiator {
    /// Makes an initiator. Tickets are looked for when a context is initiated, so they may come later.
    ///
    /// # Errors
    /// [`LibraryError`]: the library or the keytab is missing.
    pub fn new(credentials: Credentials) -> Result<Self, LibraryError> {
        Gss::get()?;
        let text =
            |text: &str| CString::new(text).map_err(|_| LibraryError::ZeroByte(text.to_owned()));
        let (store, cache) = match &credentials {
            Credentials::Default => (Vec::new(), None),
            Credentials::Cache(name) => (vec![(c"ccache", text(name)?)], None),
            Credentials::Keytab { path, principal } => {
                check_keytab(path)?;
                text(principal.as_deref().unwrap_or_default())?;
                let cache = MemoryCache::new();
                let store = vec![
                    (c"client_keytab", place("FILE:", path)?),
                    (c"ccache", cache.name().to_owned()),
                ];
                (store, Some(cache))
            }
        };
        Ok(Self { credentials, store, cache })
    }

    /// Returns the name of the cache of its own.
    #[cfg(test)]
    pub(super) fn cache_name(&self) -> Option<String> {
        self.cache.as_ref().and_then(|cache| cache.name().to_str().ok().map(str::to_owned))
    }

    /// Acquires the credentials anew for each context, so that renewed tickets are used.
    fn acquire(&self, gss: Gss) -> Result<Option<Credential>, Failure> {
        if self.store.is_empty() {
            return Ok(None);
        }
        let name = match &self.credentials {
            Credentials::Keytab { principal: Some(principal), .. } => {
                Some(gss.import(principal, Kind::Principal)?)
            }
            _ => None,
        };
        let store: Vec<_> = self.store.iter().map(|(kind, at)| (*kind, at.as_c_str())).collect();
        gss.acquire(Usage::Initiate, name.as_ref(), &store).map(Some)
    }

    fn begin(&self, wanted: &Wanted<'_>) -> Result<State, Failure> {
        let gss = Gss::get().map_err(|error| Failure::here(FAILURE, &error.to_string()))?;
        Ok(State {
            credential: self.acquire(gss)?,
            target: gss.import(wanted.target.as_str(), Kind::HostBasedService)?,
            context: Context::new(gss),
            round: 0,
        })
    }

    fn step(
        &self,
        state: Option<Pending>,
        wanted: &Wanted<'_>,
        token: &[u8],
    ) -> Result<Step, Failure> {
        if token.len() > TOKEN_BYTES_MAX || token.is_empty() != state.is_none() {
            return Err(Failure::defective("the token is empty, not expected or too long"));
        }
        if wanted.bindings.is_some_and(|bindings| bindings.len() > BINDINGS_BYTES_MAX) {
            return Err(Failure::here(BAD_BINDINGS, "the channel bindings are too long"));
        }
        let mut state = match state {
            None => self.begin(wanted)?,
            Some(state) => state
                .into_state::<State>()
                .ok_or_else(|| Failure::defective("the context is of another mechanism"))?,
        };
        let mut flags = flag::CONFIDENTIALITY | flag::INTEGRITY;
        if wanted.mutual {
            flags |= flag::MUTUAL;
        }
        let credential = state.credential.as_ref();
        let moved =
            state.context.initiate(credential, &state.target, flags, token, wanted.bindings)?;
        state.round += 1;
        if !moved.is_complete {
            return pending(state.round, moved, state);
        }
        if wanted.mutual && moved.flags & flag::MUTUAL == 0 {
            return Err(Failure::here(FAILURE, "the service did not prove who it is"));
        }
        let initiator = state.context.initiator()?;
        established(state.context, &initiator, moved)
    }
}

impl Initiate for Initiator {
    fn initiate(&self, pending: Option<Pending>, wanted: &Wanted<'_>, token: &[u8]) -> Step {
        self.step(pending, wanted, token).unwrap_or_else(Step::Failed)
    }
}
