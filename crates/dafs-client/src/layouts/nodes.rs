//! Data servers: one session with each, made at its first use and shared by all files of a client.
//!
//! Invariants
//! * A data server knows this client by the same identity as the metadata server does, and
//!   authenticates it by the ticket of the device.
//! * The client avoids an unreachable data server for a while, longer each time. Meanwhile only a
//!   commit tries it, because unstable data there would be lost.
//! * A report of a failure never blocks, because an async task may make it.

use super::plan::Place;
use super::sent::Failure;
use crate::connect;
use crate::core::{Authenticator, Exchange, Fixed, Proof};
use crate::driver::Shared;
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use crate::limit::{self, Limit};
use crate::limits::UNPROBED_DEADLINE_FACTOR;
use crate::options::{Authentication, ConnectOptions, Credential};
use dafs_mem::Condvar;
use dafs_parallel::limits::{NODE_ANSWER_TIMEOUT, NODE_CONNECT_TIMEOUT, NODE_PAUSE_MIN};
use dafs_parallel::{Fault, ServerBackoff};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// After this many sessions in a row that were aborted for a caller's deadline, the data server
/// counts as failed.
const HURRIED_MAX: u32 = 3;

/// A data server.
#[derive(Debug)]
pub(crate) struct Node {
    options: Arc<ConnectOptions>,
    /// Not held while a thread waits for the data server.
    state: ForkMutex<State>,
    changed: Condvar,
    /// Sessions in a row that were aborted because a caller had no time for an answer.
    hurried: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Arc<Shared>>,
    /// A thread connects, and the others wait for it.
    is_connecting: bool,
    /// The time of the last failed attempt to connect, if none has succeeded since. A session that
    /// broke does not count.
    unreachable_since: Option<Instant>,
    backoff: ServerBackoff,
}

/// Marks that a thread connects to a data server, until this is dropped.
struct Connecting<'a>(&'a Node);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.state.lock_here().is_connecting = false;
        self.0.changed.notify_all();
    }
}

impl State {
    /// Returns the session, if it is not over.
    fn running(&mut self) -> Option<Arc<Shared>> {
        self.session = self.session.take().filter(|session| !session.is_over());
        self.session.clone()
    }

    fn is_current(&self, session: &Arc<Shared>) -> bool {
        self.session.as_ref().is_some_and(|now| Arc::ptr_eq(now, session))
    }
}

impl Node {
    /// `options` are those of the session with the metadata server.
    pub(super) fn new(options: Arc<ConnectOptions>) -> Self {
        let (changed, hurried) = (Condvar::new(), AtomicU32::new(0));
        Self { options, state: ForkMutex::default(), changed, hurried }
    }

    /// Returns the session with this data server, and connects if there is none. `of` is the
    /// session with the metadata server.
    pub(super) fn session(&self, of: &Shared, place: &Place) -> Result<Arc<Shared>, Failure> {
        self.session_of(of, place, false)
    }

    /// The same, even while the data server is avoided because a session broke.
    pub(super) fn session_regardless(
        &self,
        of: &Shared,
        place: &Place,
    ) -> Result<Arc<Shared>, Failure> {
        self.session_of(of, place, true)
    }

    fn session_of(
        &self,
        of: &Shared,
        place: &Place,
        regardless: bool,
    ) -> Result<Arc<Shared>, Failure> {
        let mut state = self.state.lock_here();
        loop {
            if let Some(session) = state.running() {
                return Ok(session);
            }
            let now = Instant::now();
            let is_avoided = match regardless {
                false => state.backoff.is_avoided(now),
                true => state.unreachable_since.is_some_and(|since| now < since + NODE_PAUSE_MIN),
            };
            if is_avoided {
                return Err(Fault::Unavailable);
            }
            if !state.is_connecting {
                break;
            }
            state = match Limit::current() {
                None => self.changed.wait(state),
                Some(_) if limit::is_over() => return Err(Fault::Unavailable),
                Some(limit) => {
                    let waited =
                        self.changed.wait_timeout(state, limit.at.since(dafs_dat::Instant::now()));
                    waited.0
                }
            };
        }
        state.is_connecting = true;
        drop(state);
        let _connecting = Connecting(self);
        // Other threads need the outcome, too, so the deadline of this caller does not limit it.
        let made = limit::without(|| self.connect(of, place));
        let mut state = self.state.lock_here();
        state.unreachable_since = made.is_err().then(Instant::now);
        match made {
            Ok(session) => {
                state.session = Some(session.clone());
                state.backoff.reached();
                Ok(session)
            }
            Err(reasons) => {
                tracing::warn!(%reasons, "a data server cannot be reached");
                state.backoff.failed(Instant::now());
                Err(Fault::Unreachable)
            }
        }
    }

    /// Retires a session that is too old to write by. The next transfer makes another; requests
    /// under way by the old one go on.
    pub(super) fn outgrow(&self, session: &Arc<Shared>) {
        let mut state = self.state.lock_here();
        // The current session may be a newer one: other threads may have met the same refusal
        // before.
        if state.is_current(session) {
            state.session = None;
        }
    }

    /// Retires a session by which the data server did not answer. Later reports about the same
    /// session are no further failures.
    fn failed(&self, session: &Arc<Shared>) {
        let mut state = self.state.lock_here();
        if state.is_current(session) {
            self.hurried.store(0, Ordering::Relaxed);
            state.session = None;
            state.backoff.failed(Instant::now());
        }
    }

    /// Handles an error of an operation at the data server, which may mean that the session is
    /// over.
    pub(super) fn met(&self, session: &Arc<Shared>, error: &Error) {
        if !error.is_fatal() {
            return self.answered();
        }
        // A caller's deadline, of this caller or another, costs the connection. It says little
        // about the data server, unless callers never have time enough.
        match is_hurry(session, error) || limit::is_over() {
            true => self.hurried(session),
            false => self.failed(session),
        }
    }

    fn hurried(&self, session: &Arc<Shared>) {
        let mut state = self.state.lock_here();
        if state.is_current(session) {
            state.session = None;
            if self.hurried.fetch_add(1, Ordering::Relaxed) + 1 >= HURRIED_MAX {
                self.hurried.store(0, Ordering::Relaxed);
                state.backoff.failed(Instant::now());
            }
        }
    }

    /// Notes an answer of the data server.
    pub(super) fn answered(&self) {
        if self.hurried.load(Ordering::Relaxed) != 0 {
            self.hurried.store(0, Ordering::Relaxed);
        }
    }

    fn connect(&self, of: &Shared, place: &Place) -> Result<Arc<Shared>, String> {
        let identity = of.identity().map_err(|error| error.to_string())?;
        let deadline = self.options.deadline.unwrap_or(NODE_ANSWER_TIMEOUT);
        let options = ConnectOptions {
            authentication: Authentication::Custom(Arc::new(Ticket(place.ticket.clone()))),
            // The metadata server has checked the user's rights at the open.
            credential: Credential::Session,
            connect_timeout: self.options.connect_timeout.min(NODE_CONNECT_TIMEOUT),
            deadline: Some(deadline.min(NODE_ANSWER_TIMEOUT)),
            // A transfer that fails here goes through the server, so the session is not recovered.
            recovery: None,
            identity: Some(identity),
            ..(*self.options).clone()
        };
        let mut reasons = Vec::new();
        for address in &*place.addresses {
            match connect::open_data_server(*address, &options, of.server_name()) {
                Ok(session) => return Ok(session),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(reasons.join("; "))
    }
}

/// True if a session was aborted for a caller's deadline, and not for its own.
pub(super) fn is_hurry(session: &Shared, error: &Error) -> bool {
    let (Error::Deadline { after, .. } | Error::NotSent { after, .. }) = error else {
        return false;
    };
    session.deadline().is_some_and(|own| ![own, own * UNPROBED_DEADLINE_FACTOR].contains(after))
}

/// Authenticates this client to a data server, by the ticket of its device.
struct Ticket(Arc<[u8]>);

impl Authenticator for Ticket {
    fn start(&self, _binding: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        let (id, password) = (b"x-ticket".to_vec(), self.0.to_vec());
        Ok(Fixed::exchange(Proof::Text { id, password }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::served::{Served, TRANSPORTS};
    use std::time::Duration;

    #[test]
    fn errors_of_one_session_count_once() {
        let served = Served::new();
        let [client, other] = [TRANSPORTS[0]; 2].map(|transport| served.client(transport));
        let (session, older) = (client.shared(), other.shared());
        let state = State { session: Some(session.clone()), ..State::default() };
        let node = Node { state: ForkMutex::new(state), ..Node::new(Arc::default()) };
        let is_avoided = |time| node.state.lock_here().backoff.is_avoided(time);
        // Reports about a session that was replaced change nothing.
        node.failed(older);
        node.outgrow(older);
        assert!(Arc::ptr_eq(&node.state.lock_here().running().unwrap(), session));
        assert!(!is_avoided(Instant::now()));
        // A session that was aborted because a caller had no time for an answer.
        let given_up = |after| Error::Deadline { server: session.server_name().clone(), after };
        node.met(session, &Error::TooMany);
        assert!(node.state.lock_here().running().is_some());
        node.met(session, &given_up(Duration::from_millis(1)));
        assert!(node.state.lock_here().running().is_none());
        assert!(!is_avoided(Instant::now()));
        node.state.lock_here().session = Some(session.clone());
        for _ in 0..6 {
            node.met(session, &given_up(session.deadline().unwrap()));
        }
        assert!(node.state.lock_here().running().is_none());
        assert!(!is_avoided(Instant::now() + NODE_PAUSE_MIN), "it was counted once");
        // Callers never have time enough. One answer resets the count.
        node.state.lock_here().backoff.reached();
        let hurry_again = || {
            node.state.lock_here().session = Some(session.clone());
            node.met(session, &given_up(Duration::from_millis(1)));
        };
        (1..HURRIED_MAX).for_each(|_| hurry_again());
        node.answered();
        (1..HURRIED_MAX).for_each(|_| hurry_again());
        assert!(!is_avoided(Instant::now()));
        hurry_again();
        assert!(is_avoided(Instant::now()));
    }
}
