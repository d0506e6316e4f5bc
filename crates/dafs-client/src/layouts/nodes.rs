//! Data servers: one session with each, made when it is needed first, for all files of a client.
//!
//! Invariants
//! * A data server knows this client by the name that the metadata server knows it by, and believes it by
//!   what that has told of the device.
//! * One that cannot be reached is left alone for a while, longer each time, and nobody waits for it
//!   meanwhile but who would lose what was written there.
//! * Whoever tells that it failed waits for nobody: it may be a task.

use super::plan::Place;
use super::sent::Failure;
use crate::connect;
use crate::core::{Authenticator, Challenge, Proof};
use crate::driver::Shared;
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use crate::limit::{self, Limit};
use crate::limits::UNPROBED_DEADLINE_FACTOR;
use crate::options::{Authentication, ConnectOptions, Credential};
use dafs_parallel::limits::{NODE_ANSWER_TIMEOUT, NODE_CONNECT_TIMEOUT, NODE_PAUSE_MIN};
use dafs_parallel::{Avoidance, Fault};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Instant;

/// So many sessions in a row given up for callers without time, and a data server counts as one that does not
/// answer.
const HURRIED_MAX: u32 = 3;

/// A data server.
#[derive(Debug)]
pub(crate) struct Node {
    options: Arc<ConnectOptions>,
    /// Not held while somebody waits for the data server.
    state: ForkMutex<State>,
    changed: Condvar,
    /// Sessions in a row that were given up because a caller had no time for an answer.
    hurried: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Arc<Shared>>,
    /// Others wait for whoever is at it.
    is_connecting: bool,
    /// When it had no answer to a connection, and none since. That one broke says less.
    unreachable_since: Option<Instant>,
    avoidance: Avoidance,
}

/// Somebody makes a session with a data server, until this is dropped.
struct Connecting<'a>(&'a Node);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.state.lock_here().is_connecting = false;
        self.0.changed.notify_all();
    }
}

impl State {
    /// The session, if it is there.
    fn running(&mut self) -> Option<Arc<Shared>> {
        self.session = self.session.take().filter(|session| !session.is_over());
        self.session.clone()
    }

    fn is_current(&self, session: &Arc<Shared>) -> bool {
        self.session.as_ref().is_some_and(|now| Arc::ptr_eq(now, session))
    }
}

impl Node {
    /// `options` are those by which the client is connected to the metadata server.
    pub(super) fn new(options: Arc<ConnectOptions>) -> Self {
        let (changed, hurried) = (Condvar::new(), AtomicU32::new(0));
        Self { options, state: ForkMutex::default(), changed, hurried }
    }

    /// The session with this data server, made anew if need be. `of` is that with the metadata server.
    pub(super) fn session(&self, of: &Shared, place: &Place) -> Result<Arc<Shared>, Failure> {
        self.session_of(of, place, false)
    }

    /// The same, even if it is left alone just now because a session broke.
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
            let is_left_alone = match regardless {
                false => state.avoidance.is_left_alone(now),
                true => state.unreachable_since.is_some_and(|since| now < since + NODE_PAUSE_MIN),
            };
            if is_left_alone {
                return Err(Fault::Away);
            }
            if !state.is_connecting {
                break;
            }
            state = match Limit::current() {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(_) if limit::is_over() => return Err(Fault::Away),
                Some(limit) => {
                    let waited =
                        self.changed.wait_timeout(state, limit.at.since(dafs_dat::Instant::now()));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.is_connecting = true;
        drop(state);
        let _connecting = Connecting(self);
        // Whether it is there is found out for all.
        let made = limit::without(|| self.connect(of, place));
        let mut state = self.state.lock_here();
        state.unreachable_since = made.is_err().then(Instant::now);
        match made {
            Ok(session) => {
                state.session = Some(session.clone());
                state.avoidance.reached();
                Ok(session)
            }
            Err(reasons) => {
                tracing::warn!(%reasons, "a data server cannot be reached");
                state.avoidance.failed(Instant::now());
                Err(Fault::Unreachable)
            }
        }
    }

    /// A session began too long ago to write by. Whoever needs one next makes another; what is under way by
    /// this one goes on.
    pub(super) fn outgrow(&self, session: &Arc<Shared>) {
        let mut state = self.state.lock_here();
        // That of now may be another: others that met the same were looked at before.
        if state.is_current(session) {
            state.session = None;
        }
    }

    /// It did not answer by a session, which is used no more. What others meet who have used the same is no
    /// other failure.
    fn failed(&self, session: &Arc<Shared>) {
        let mut state = self.state.lock_here();
        if state.is_current(session) {
            self.hurried.store(0, Ordering::Relaxed);
            state.session = None;
            state.avoidance.failed(Instant::now());
        }
    }

    /// An operation there ended with an error, which may be that the session is over.
    pub(super) fn met(&self, session: &Arc<Shared>, error: &Error) {
        if !error.is_fatal() {
            return self.answered();
        }
        // What a caller, this or another one, had no time for costs the connection, and says little of the data
        // server unless there is never time enough.
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
                state.avoidance.failed(Instant::now());
            }
        }
    }

    /// It has answered.
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
            // Whose rights count was judged at the open.
            credential: Credential::Session,
            connect_timeout: self.options.connect_timeout.min(NODE_CONNECT_TIMEOUT),
            deadline: Some(deadline.min(NODE_ANSWER_TIMEOUT)),
            // There is another way to the data: what fails is not tried again here.
            recovery: None,
            identity: Some(identity),
            ..(*self.options).clone()
        };
        let mut reasons = Vec::new();
        for address in &*place.addresses {
            match connect::open_data_server(*address, &options) {
                Ok(session) => return Ok(session),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(reasons.join("; "))
    }
}

/// Whether a session was given up for a caller in a hurry, and not by its own deadline.
pub(super) fn is_hurry(session: &Shared, error: &Error) -> bool {
    let (Error::Deadline { after, .. } | Error::NotSent { after, .. }) = error else {
        return false;
    };
    session.deadline().is_some_and(|own| ![own, own * UNPROBED_DEADLINE_FACTOR].contains(after))
}

/// What shows a data server who this client is.
struct Ticket(Arc<[u8]>);

impl Authenticator for Ticket {
    fn begin(&self) -> Result<Proof, String> {
        Ok(Proof::Text { id: b"x-ticket".to_vec(), password: self.0.to_vec() })
    }

    fn next(&self, _: &Challenge) -> Result<Proof, String> {
        Err("the data server wants more than the metadata server's word".into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::served::{Served, TRANSPORTS};
    use std::time::Duration;

    #[test]
    fn what_fails_with_one_session_is_one_failure() {
        let served = Served::new();
        let [client, other] = [TRANSPORTS[0]; 2].map(|transport| served.client(transport));
        let (session, older) = (client.shared(), other.shared());
        let state = State { session: Some(session.clone()), ..State::default() };
        let node = Node { state: ForkMutex::new(state), ..Node::new(Arc::default()) };
        let is_left_alone = |time| node.state.lock_here().avoidance.is_left_alone(time);
        // Of one that was replaced, and one that is only too old.
        node.failed(older);
        node.outgrow(older);
        assert!(Arc::ptr_eq(&node.state.lock_here().running().unwrap(), session));
        assert!(!is_left_alone(Instant::now()));
        // One that was given up because a caller had no time for an answer.
        let given_up = |after| Error::Deadline { server: session.server_name().clone(), after };
        node.met(session, &Error::TooMany);
        assert!(node.state.lock_here().running().is_some());
        node.met(session, &given_up(Duration::from_millis(1)));
        assert!(node.state.lock_here().running().is_none());
        assert!(!is_left_alone(Instant::now()));
        node.state.lock_here().session = Some(session.clone());
        for _ in 0..6 {
            node.met(session, &given_up(session.deadline().unwrap()));
        }
        assert!(node.state.lock_here().running().is_none());
        assert!(!is_left_alone(Instant::now() + NODE_PAUSE_MIN), "it was counted once");
        // Callers never have time enough for it; one answer, and they had.
        node.state.lock_here().avoidance.reached();
        let hurry_again = || {
            node.state.lock_here().session = Some(session.clone());
            node.met(session, &given_up(Duration::from_millis(1)));
        };
        (1..HURRIED_MAX).for_each(|_| hurry_again());
        node.answered();
        (1..HURRIED_MAX).for_each(|_| hurry_again());
        assert!(!is_left_alone(Instant::now()));
        hurry_again();
        assert!(is_left_alone(Instant::now()));
    }
}
