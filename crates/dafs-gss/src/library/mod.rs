//! Contexts of Kerberos by the library libgssapi_krb5, which is opened at run time.
//!
//! Invariants
//! * The library establishes contexts and does nothing else: the keys are exported, and all that belongs to the
//!   context is freed.
//! * An acceptor reads the keytab that it was told, and no other, and only if no other user may read it.
//! * An acceptor has a replay cache where a token is the whole proof. Where the keys of the context are used, a
//!   replayed token opens a context that its sender cannot use, since he does not know the keys.
//! * An acceptor takes tickets for its own service only.
//! * Where bindings are demanded, a context without them is refused. The library alone would let an initiator
//!   pass that sends none.

mod acceptor;
mod cache;
mod error;
mod initiator;
mod lucid;
#[cfg(test)]
mod reference;
mod remedy;
mod sys;
#[cfg(test)]
mod tests;

pub use acceptor::Acceptor;
pub use error::{KeytabProblem, LibraryError};
pub use initiator::{Credentials, Initiator};

use crate::limits::ROUNDS_MAX;
use crate::mechanism::{DEFECTIVE_TOKEN, Established, FAILURE, Failure, Pending, Principal, Step};
use crate::token::{Keys, Seed};
use sys::{Context, Moved, Name, flag};

/// Loads the library, and so shows whether Kerberos can be used.
///
/// # Errors
/// [`LibraryError::Unavailable`] names the package that is missing.
pub fn load() -> Result<(), LibraryError> {
    sys::Gss::get()?;
    Ok(())
}

/// Ends the establishment of a context: exports its keys.
fn established(context: Context, initiator: &Name, moved: Moved) -> Result<Step, Failure> {
    let (exported, display) = initiator.forms()?;
    let principal = Principal::new(exported, display).ok_or_else(|| {
        Failure::here(FAILURE, "the initiator has a name that is too long or is no text")
    })?;
    let seed = Seed::random()
        .map_err(|error| Failure::here(FAILURE, &format!("no random bytes: {error}")))?;
    let (agreed, end_time_seconds) = lucid::export(context)?;
    let keys = Keys::new(&agreed, seed);
    let mutual = moved.flags & flag::MUTUAL != 0;
    let token = (!moved.token.is_empty()).then_some(moved.token);
    Ok(Step::Done(Box::new(Established { token, principal, mutual, end_time_seconds, keys })))
}

/// Goes on after a step that did not complete the context. `round` is the number of steps so far.
fn pending<T: Send + 'static>(round: u8, moved: Moved, state: T) -> Result<Step, Failure> {
    if round >= ROUNDS_MAX || moved.token.is_empty() {
        return Err(Failure::here(DEFECTIVE_TOKEN, "the context takes too many tokens"));
    }
    Ok(Step::Continue { pending: Pending::new(state), token: moved.token })
}
