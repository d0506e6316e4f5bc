//! Calls of the service that may have to wait, for the disk or for another client. They are tried
//! at once, and repeated on the pool only if they would wait.
//!
//! Invariants
//! * A call that would wait has had no effect, so it is safe to repeat it.

use super::request::{Call, Context, Done};
use super::work::{JobResult, Rest, Work};
use dafs_service::{
    Caller, Client, Handle, LockError, Place, Service, ServiceError, Subject, Touch,
};
use dafs_store::{Cred, Wait};
use std::sync::Arc;

/// The outcome of a call that may succeed where it may wait.
pub(crate) trait Waits {
    /// True when it ended only because it may not wait here.
    fn would_wait(&self) -> bool;
}

impl<T> Waits for Result<T, ServiceError> {
    fn would_wait(&self) -> bool {
        matches!(self, Err(ServiceError::WouldWait))
    }
}

impl<T> Waits for Result<T, LockError> {
    fn would_wait(&self) -> bool {
        matches!(self, Err(LockError::Service(ServiceError::WouldWait)))
    }
}

impl Context<'_> {
    /// Runs `act` here or, if it would wait, on the pool in a lane. Then runs `then` here with the
    /// result.
    pub(crate) fn call_or_wait<T: Waits + Send + 'static>(
        &mut self,
        (call, lane): (&Call, u64),
        act: impl Fn(&Service, Caller<'_>) -> T + Send + 'static,
        then: impl FnOnce(&mut Context<'_>, &Call, T) -> Done + Send + 'static,
    ) -> Done {
        let mut owned = None;
        let first = self.call_service_raw(call, |service, caller| {
            let first = act(service, caller);
            if first.would_wait() {
                owned = Some((caller.client.clone(), caller.cred.clone()));
            }
            first
        })?;
        match owned {
            None => then(self, call, first),
            Some(who) => {
                self.call_on_pool(call, lane, who, act, then);
                Ok(())
            }
        }
    }

    /// Runs `act` here or, where that may wait for other machines or if it would wait, on the pool.
    /// Then runs `then` here with the result.
    pub(crate) fn call_at<T: Waits + Send + 'static>(
        &mut self,
        call: &Call,
        (handle, touch): (&Handle, Touch),
        act: impl Fn(&Service, Caller<'_>) -> T + Send + 'static,
        then: impl FnOnce(&mut Context<'_>, &Call, T) -> Done + Send + 'static,
    ) -> Done {
        match self.waits_for(handle, touch) {
            true => self.call_elsewhere(call, handle, act, then),
            false => self.call_or_wait((call, self.lane(handle)), act, then),
        }
    }

    /// Runs `act` on the pool, where it may wait. Then runs `then` here.
    pub(crate) fn call_elsewhere<T: Send + 'static>(
        &mut self,
        call: &Call,
        handle: &Handle,
        act: impl Fn(&Service, Caller<'_>) -> T + Send + 'static,
        then: impl FnOnce(&mut Context<'_>, &Call, T) -> Done + Send + 'static,
    ) -> Done {
        let who =
            self.call_service_raw(call, |_, caller| (caller.client.clone(), caller.cred.clone()))?;
        self.call_on_pool(call, self.lane(handle), who, act, then);
        Ok(())
    }

    /// True if an access to the object of a handle may wait for other machines.
    pub(crate) fn waits_for(&self, handle: &Handle, touch: Touch) -> bool {
        self.shared.service.namespace().waits_for(handle, touch)
    }

    /// Returns the lane of the pool for jobs that may wait for the store of a handle.
    pub(crate) fn lane(&self, handle: &Handle) -> u64 {
        self.shared.service.namespace().lane(handle)
    }

    /// Returns the place on the pool for a job of this connection that may wait for the machines of
    /// a lane.
    pub(super) fn place(&self, lane: u64) -> Place {
        Place { lane, owner: self.connection.owner }
    }

    fn call_on_pool<T: Send + 'static>(
        &mut self,
        call: &Call,
        lane: u64,
        (client, cred): (Arc<Client>, Cred),
        act: impl Fn(&Service, Caller<'_>) -> T + Send + 'static,
        then: impl FnOnce(&mut Context<'_>, &Call, T) -> Done + Send + 'static,
    ) {
        let (service, now_ns) = (self.shared.service.clone(), self.now.0);
        let fence_id = self.connection.fence_id().to_vec();
        let id = self.defer(call, Work::Call);
        self.submit_in(lane, id, move || {
            let (subject, wait) = (Subject::Session(&fence_id), Wait::Allowed);
            let caller = Caller { client: &client, cred: &cred, subject, wait, now_ns };
            let result = act(&service, caller);
            JobResult::Call(Rest(Box::new(move |context, call| then(context, call, result))))
        });
    }
}
