//! Whether a write that was allowed when its request came still is, now that its data is here: a
//! fence may have been set since, the open revoked, or a lock over the bytes broken (DAFS 9.3, 11).
//!
//! Invariants
//! * Asked again before each piece is written, by the thread that writes it.

use super::convert;
use super::request::{Context, check_span};
use super::work::Unwritten;
use super::write::WRITE;
use dafs_service::{Handle, OpenState, Service, Subject};
use dafs_wire::dafs::Status;
use std::sync::Arc;

/// Where a write goes and what allows it.
#[derive(Clone)]
pub(super) struct Allowed {
    pub(super) handle: Handle,
    /// The open that allows it.
    pub(super) open: Option<Arc<OpenState>>,
}

/// The same for a thread of the pool.
pub(super) struct AllowedElsewhere {
    service: Arc<Service>,
    handle: Handle,
    open: Option<Arc<OpenState>>,
    /// Of the session, where there were fences when the job was made; a later one waits for the job.
    fence_id: Option<Vec<u8>>,
}

impl Context<'_> {
    /// Refuses what is not allowed any more.
    pub(super) fn still_allowed(
        &self,
        Allowed { handle, open }: &Allowed,
        span: (u64, u64),
    ) -> Result<(), Status> {
        let subject = Subject::Session(self.connection.fence_id());
        check(&self.shared.service, Some(subject), (handle, open.as_deref()), span)
    }

    /// What a job asks with before it writes.
    pub(super) fn allowed_elsewhere(&self, allowed: &Allowed) -> AllowedElsewhere {
        let service = self.shared.service.clone();
        let fence_id = service.has_fences().then(|| self.connection.fence_id().to_vec());
        AllowedElsewhere { service, handle: allowed.handle, open: allowed.open.clone(), fence_id }
    }
}

impl AllowedElsewhere {
    /// Refuses what is not allowed any more. Somebody else may hold the file by now.
    pub(super) fn check(&self, span: (u64, u64)) -> Result<(), Unwritten> {
        let Self { service, handle, open, fence_id } = self;
        let subject = fence_id.as_deref().map(Subject::Session);
        check(service, subject, (handle, open.as_deref()), span).map_err(Unwritten::Refused)
    }

    /// The same for an append, which goes to wherever the end is.
    pub(super) fn check_append(&self) -> Result<(), Unwritten> {
        let span = self.service.append_span(&self.handle);
        let span = span.map_err(|error| Unwritten::Refused(convert::status(error)))?;
        self.check(span)
    }
}

fn check(
    service: &Service,
    subject: Option<Subject<'_>>,
    (handle, open): (&Handle, Option<&OpenState>),
    span: (u64, u64),
) -> Result<(), Status> {
    if let Some(subject) = subject {
        service.check_fence(&subject, handle).map_err(convert::status)?;
    }
    if let Some(open) = open {
        open.file(WRITE).map_err(convert::status)?;
    }
    check_span(service, handle, open.is_none(), span)
}
