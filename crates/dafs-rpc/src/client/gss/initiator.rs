//! The contexts of one user at one server.
//!
//! Invariants
//! * At most one thread makes a context; others that need one wait for it. If the mechanism or the
//!   server refuses they fail with it, so that an absent KDC is not asked once per call. If its
//!   connection fails they try on their own.
//! * A context is renewed by a thread of its own, while calls go on in the old one.
//! * A context that the server does not know is used for no further call.

use super::context::Context;
use super::establish::establish;
use super::mechanism::Mechanism;
use super::protection::Protection;
use crate::client::error::CallError;
use crate::client::{Procedure, RpcClient};
use crate::limits::GSS_RENEWAL_PAUSE_MIN;
use dafs_mem::{Condvar, Mutex};
use dafs_wire::rpc::gss::Service;
use std::sync::Arc;
use std::time::Instant;

/// The contexts of one user at one server, with the protection that all calls get. All connections
/// to the server share them. A context is made with the first call, before its ticket ends, and
/// when the server has forgotten it.
#[derive(Debug)]
pub struct Initiator {
    mechanism: Arc<dyn Mechanism>,
    service: Service,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    current: Option<Arc<Context>>,
    /// True while a thread makes a context.
    is_busy: bool,
    /// Contexts that were made.
    made: u64,
    /// Attempts that have ended.
    attempts: u64,
    /// The reason why the last attempt failed.
    failed: Option<CallError>,
    /// The time before which no thread renews the context.
    next_renewal: Option<Instant>,
}

/// Two are the same if they share their contexts.
impl PartialEq for Initiator {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Initiator {}

impl Initiator {
    /// The contexts of a mechanism, none of them made yet.
    pub fn new(mechanism: Arc<dyn Mechanism>, service: Service) -> Self {
        Self { mechanism, service, state: Mutex::default(), changed: Condvar::new() }
    }

    /// The protection of calls and their replies.
    pub fn service(&self) -> Service {
        self.service
    }

    /// The name of the user in the current context, if there is one.
    pub fn principal(&self) -> Option<String> {
        self.state.lock().current.as_ref().map(|context| context.principal.to_string())
    }

    /// Contexts that were made so far.
    pub fn contexts_made(&self) -> u64 {
        self.state.lock().made
    }

    /// The protection of one call. It blocks while there is no context, in `make_room`, which gets
    /// the number of calls that may be unanswered, and until `until` for a sequence number.
    /// Contexts up to number `refused` are unknown to the server.
    pub(crate) fn protection(
        self: &Arc<Self>,
        rpc: &RpcClient,
        procedure: Procedure,
        refused: Option<u64>,
        until: Instant,
        make_room: impl Fn(usize) -> Result<(), CallError>,
    ) -> Result<Protection, CallError> {
        loop {
            let context = self.context(rpc, procedure, refused)?;
            make_room(context.half_window() as usize)?;
            // Other threads may have used up its last numbers.
            if let Some(protection) = Protection::of_call(&context, self.service, until)? {
                return Ok(protection);
            }
        }
    }

    /// Makes sure that there is a context.
    pub(crate) fn ready(
        self: &Arc<Self>,
        rpc: &RpcClient,
        procedure: Procedure,
    ) -> Result<(), CallError> {
        self.context(rpc, procedure, None).map(drop)
    }

    /// A context that can be used.
    fn context(
        self: &Arc<Self>,
        rpc: &RpcClient,
        procedure: Procedure,
        refused: Option<u64>,
    ) -> Result<Arc<Context>, CallError> {
        let mut state = self.state.lock();
        let attempts = state.attempts;
        loop {
            let now = Instant::now();
            let fits = |context: &&Arc<Context>| {
                refused.is_none_or(|refused| context.number > refused) && context.is_usable(now)
            };
            if let Some(context) = state.current.as_ref().filter(fits).cloned() {
                self.renew_ahead(&mut state, &context, rpc, procedure, now);
                return Ok(context);
            }
            if !state.is_busy {
                break;
            }
            state = self.changed.wait(state);
            if state.attempts != attempts
                && let Some(error @ CallError::Context(_)) = &state.failed
            {
                return Err(error.clone());
            }
        }
        state.is_busy = true;
        drop(state);
        self.make(rpc, procedure)
    }

    /// Makes a context. The caller has set `is_busy`.
    fn make(&self, rpc: &RpcClient, procedure: Procedure) -> Result<Arc<Context>, CallError> {
        let mut attempt = Attempt { initiator: self, outcome: None };
        let number = self.state.lock().made + 1;
        let made = establish(rpc, procedure, &*self.mechanism, number).map(Arc::new);
        attempt.outcome = Some(made.clone());
        made
    }

    /// Makes the next context, on a thread of its own, if the current one ends soon.
    fn renew_ahead(
        self: &Arc<Self>,
        state: &mut State,
        context: &Context,
        rpc: &RpcClient,
        procedure: Procedure,
        now: Instant,
    ) {
        let is_early = state.next_renewal.is_some_and(|next| now < next);
        if state.is_busy || is_early || !context.wants_renewal(now) {
            return;
        }
        state.next_renewal = now.checked_add(GSS_RENEWAL_PAUSE_MIN);
        state.is_busy = true;
        let (this, rpc) = (self.clone(), rpc.clone());
        let thread = std::thread::Builder::new().name("dafs-gss-renew".to_owned());
        let started = thread.spawn(move || {
            if let Err(error) = this.make(&rpc, procedure) {
                tracing::warn!(%error, "a security context could not be renewed");
            }
        });
        if started.is_err() {
            state.is_busy = false;
        }
    }

    /// Tells the server that the context is not needed any more. Best effort: otherwise it ends
    /// with its ticket.
    pub(crate) fn end(&self, rpc: &RpcClient, procedure: Procedure) {
        let context = self.state.lock().current.take();
        if let Some(context) = context
            && let Some(protection) = Protection::of_destroy(&context)
            && let Err(error) = super::establish::destroy(rpc, procedure, &protection)
        {
            tracing::debug!(%error, "a security context was not ended in order");
        }
    }
}

/// An attempt to make a context; dropped, it ends.
struct Attempt<'a> {
    initiator: &'a Initiator,
    outcome: Option<Result<Arc<Context>, CallError>>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = self.initiator.state.lock();
        state.is_busy = false;
        state.attempts += 1;
        match self.outcome.take() {
            Some(Ok(context)) => {
                state.made += 1;
                state.failed = None;
                state.current = Some(context);
            }
            Some(Err(error)) => state.failed = Some(error),
            // The mechanism has panicked.
            None => state.failed = Some(CallError::Context("the mechanism has failed".to_owned())),
        }
        drop(state);
        self.initiator.changed.notify_all();
    }
}
