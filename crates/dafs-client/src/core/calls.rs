//! The calls of the application from their acceptance to their end, and the state that it holds at
//! the server.
//!
//! Invariants
//! * Every accepted call completes exactly once: answered, refused by the server, or lost with the
//!   session (`completed` grows by one entry per call, in `complete` and `let_go` alone).

use super::back::Delegations;
use super::call::{Call, Completed, Done, Purpose};
use super::cancel::unless_canceled;
use super::chain::{Chains, Ended};
use super::failure::Failure;
use super::link::Link;
use super::open_states::OpenStates;
use super::orphans::{Orphan, Orphans};
use super::users::User;
use dafs_dat::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The calls of a session.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Calls that wait for a credit, or for a connection.
    pub(crate) waiting: VecDeque<Call>,
    /// Calls that a restarted server has answered with GRACE, with the time of the retry; earliest
    /// first.
    pub(crate) delayed: VecDeque<(Instant, Call)>,
    /// The time of the first GRACE since the connection was made.
    pub(crate) grace_since: Option<Instant>,
    pub(crate) chains: Chains,
    /// Calls that have completed before they were answered.
    pub(crate) orphans: Orphans,
    pub(crate) completed: VecDeque<Completed>,
    pub(crate) opens: OpenStates,
    pub(crate) delegations: Delegations,
    /// The user of the next submission; `None` for the session's own.
    pub(super) acting: Option<User>,
    /// Requests are kept until they are answered: for recovery, or because their answers are noted
    /// for delegations.
    pub(crate) keeps_requests: bool,
}

impl Calls {
    /// Queues a call.
    pub(crate) fn wait(&mut self, link: &mut Link, call: Call) {
        link.note_deadline(call.due);
        self.waiting.push_back(call);
        // The queue backs up: ask for as many credits as could be used now.
        let outstanding = usize::from(link.conn.streams.outstanding());
        link.want_credits(outstanding + self.waiting.len());
    }

    /// Ends a call.
    pub(crate) fn finish(&mut self, link: &Link, purpose: Purpose, done: Done) {
        if let Purpose::Caller(tag) = purpose {
            match self.chains.end(tag, unless_canceled(done), link.info.client_id) {
                Ended::Alone(done) => self.complete(tag, done),
                Ended::Pending => {}
                Ended::Chain(chain) => self.finish_chain(link, chain),
            }
        }
    }

    /// The only place where ended calls leave.
    pub(crate) fn complete(&mut self, tag: u64, done: Done) {
        match self.orphans.forget(tag) {
            None => self.completed.push_back(Completed { tag, done }),
            Some(orphan) => self.on_orphan(orphan, &done),
        }
    }

    /// Completes a call that the server may have carried out, or may carry out yet.
    pub(super) fn let_go(&mut self, tag: u64, orphan: Orphan, after: Duration) {
        self.completed.push_back(Completed { tag, done: Done::Lost(Failure::Deadline(after)) });
        self.orphans.calls.insert(tag, orphan);
    }

    /// Removes a call that the server does not have.
    pub(super) fn take_unsent(&mut self, tag: u64) -> Option<Call> {
        if let Some(at) = self.waiting.iter().position(|call| call.tag == tag) {
            return self.waiting.remove(at);
        }
        let at = self.delayed.iter().position(|(_, call)| call.tag == tag)?;
        self.delayed.remove(at).map(|(_, call)| call)
    }
}
