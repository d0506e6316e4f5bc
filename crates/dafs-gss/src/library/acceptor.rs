//! The accepting side.

use super::error::{LibraryError, check_keytab};
use super::sys::{Context, Credential, Gss, Kind, Usage, flag};
use super::{established, pending};
use crate::limits::{ACCEPTS_AT_ONCE, BINDINGS_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::mechanism::{Accept, BAD_BINDINGS, FAILURE, Failure, Pending, ServiceName, Step};
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Accepts contexts for one service, with its keys from a keytab. The library reads the file for each context,
/// so new keys in it are used at once.
pub struct Acceptor {
    gss: Gss,
    /// The same credentials several times. The library locks them while it accepts a context.
    credentials: [Credential; ACCEPTS_AT_ONCE],
    /// Counts the contexts, which take the credentials in turn.
    turns: AtomicUsize,
    keytab: PathBuf,
    service: ServiceName,
}

/// A context on the way, with the number of its tokens so far.
struct State {
    context: Context,
    round: u8,
}

impl Acceptor {
    /// Acquires the credentials of a service whose protocol uses the keys of each context. A replayed token
    /// gains nothing there, so there is no replay cache.
    ///
    /// # Errors
    /// [`LibraryError`]: the library or the keytab is missing, others may read the keytab, or it has no keys for
    /// the service.
    pub fn new(keytab: &Path, service: &ServiceName) -> Result<Self, LibraryError> {
        Self::acquire(keytab, service, c"none:")
    }

    /// Acquires the credentials of a service whose protocol takes a token as the whole proof, and so must take
    /// none twice. The library notes the authenticators that it has seen in the file `cache`, for as long as
    /// their time is valid, also over restarts of the server. It makes the file with the first context.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn refusing_replays(
        keytab: &Path,
        service: &ServiceName,
        cache: &Path,
    ) -> Result<Self, LibraryError> {
        // The library tells authenticators apart by what is encrypted in them. A digest of the token would not
        // do: a token has bytes that may be changed without harm to it.
        Self::acquire(keytab, service, &place("file2:", cache)?)
    }

    fn acquire(keytab: &Path, service: &ServiceName, replays: &CStr) -> Result<Self, LibraryError> {
        let gss = Gss::get()?;
        check_keytab(keytab)?;
        let place = place("FILE:", keytab)?;
        let acquire = || {
            let name = gss.import(service.as_str(), Kind::HostBasedService)?;
            let store = [(c"keytab", place.as_c_str()), (c"rcache", replays)];
            gss.acquire(Usage::Accept, Some(&name), &store)
        };
        let of = || format!("{service} in {}", keytab.display());
        let acquire =
            || acquire().map_err(|failure| LibraryError::Credentials { of: of(), failure });
        let credentials = [acquire()?, acquire()?, acquire()?, acquire()?];
        let (keytab, service) = (keytab.to_owned(), service.clone());
        Ok(Self { gss, credentials, turns: AtomicUsize::new(0), keytab, service })
    }

    /// Returns the service.
    pub fn service(&self) -> &ServiceName {
        &self.service
    }

    /// Returns the keytab.
    pub fn keytab(&self) -> &Path {
        &self.keytab
    }

    fn step(
        &self,
        state: Option<Pending>,
        token: &[u8],
        bindings: Option<&[u8]>,
    ) -> Result<Step, Failure> {
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Err(Failure::defective("the token is empty or too long"));
        }
        if bindings.is_some_and(|bindings| bindings.len() > BINDINGS_BYTES_MAX) {
            return Err(Failure::here(BAD_BINDINGS, "the channel bindings are too long"));
        }
        let mut state = match state {
            None => State { context: Context::new(self.gss), round: 0 },
            Some(state) => state
                .into_state::<State>()
                .ok_or_else(|| Failure::defective("the context is of another mechanism"))?,
        };
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) % ACCEPTS_AT_ONCE;
        let mut moved = state.context.accept(&self.credentials[turn], token, bindings)?;
        state.round += 1;
        if !moved.is_complete {
            return pending(state.round, moved, state);
        }
        if bindings.is_some() && moved.flags & flag::CHANNEL_BOUND == 0 {
            return Err(Failure {
                remedy: Some(
                    "the client must send channel bindings, and the server needs libgssapi-krb5-2 \
                     1.19 or newer",
                ),
                ..Failure::here(BAD_BINDINGS, "the context is not bound to its channel")
            });
        }
        let initiator = moved.initiator.take();
        let initiator =
            initiator.ok_or_else(|| Failure::here(FAILURE, "the context has no initiator"))?;
        established(state.context, &initiator, moved)
    }
}

impl Accept for Acceptor {
    fn accept(&self, pending: Option<Pending>, token: &[u8], bindings: Option<&[u8]>) -> Step {
        self.step(pending, token, bindings).unwrap_or_else(Step::Failed)
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acceptor({} in {})", self.service, self.keytab.display())
    }
}

/// Returns the name of a place, such as a keytab, as the library wants it.
pub(super) fn place(kind: &str, path: &Path) -> Result<CString, LibraryError> {
    CString::new([kind.as_bytes(), path.as_os_str().as_bytes()].concat())
        .map_err(|_| LibraryError::ZeroByte(path.display().to_string()))
}
