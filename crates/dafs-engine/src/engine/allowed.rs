//! Checks that a write that was allowed when its request arrived is still allowed, now that its
//! data is here. A fence may have been set since, the open revoked, or a lock over the bytes broken
//! (DAFS 9.3, 11). An open that has come since may exclude a request without an open. The write must
//! also be ordered after earlier writes of its client to data servers.
//!
//! Invariants
//! * The check is repeated before each piece is written, by the thread that writes it. So is the last
//!   of these checks before each piece is read.
//! * A write is ordered after all writes that its client had sent to data servers when the request
//!   arrived, however long its data took. Writes that the client has sent there since may be
//!   ordered before or after it.

use super::convert;
use super::request::{Call, Context, check_span};
use super::transfers::Transfers;
use super::work::Unwritten;
use crate::ops::write::WRITE;
use dafs_service::{Client, Handle, OpenState, Service, ServiceError, Subject};
use dafs_store::{OpenFile, OpenMode, StoreError, Wait};
use dafs_wire::dafs::{self, FileHandle, Status};
use std::sync::Arc;

/// The target of a write, and its authorisation.
#[derive(Clone)]
pub(crate) struct Allowed {
    pub(crate) handle: Handle,
    /// The open that allows it.
    pub(super) open: Option<Arc<OpenState>>,
    /// The late writes that it must be ordered after, if there may be any.
    pub(crate) late_writes: Option<LateWrites>,
}

/// The target and authorisation of a write, for a thread of the pool.
pub(crate) struct PoolAuthorisation {
    service: Arc<Service>,
    allowed: Allowed,
    /// The fence id of the session, if there were fences when the job was made. A later fence waits
    /// for the job.
    fence_id: Option<Vec<u8>>,
}

/// I/O on a file without an open.
#[derive(Clone)]
pub(crate) struct Anonymous {
    service: Arc<Service>,
    handle: Handle,
    need: OpenMode,
}

impl Anonymous {
    /// Refuses the next piece of I/O that may be without an open, if an open that has come meanwhile
    /// excludes it.
    ///
    /// # Errors
    /// `Busy`: the client repeats its request and gets the reason.
    pub(crate) fn check(anonymous: Option<&Self>) -> Result<(), StoreError> {
        let Some(Self { service, handle, need }) = anonymous else { return Ok(()) };
        service.opens.check_again(handle, *need).map_err(|_| StoreError::Busy)
    }
}

/// A client that may have late writes: sent to data servers, and abandoned.
#[derive(Clone)]
pub(crate) struct LateWrites {
    service: Arc<Service>,
    client: Arc<Client>,
    /// The arrival of its request for this write.
    asked_ns: u64,
}

impl LateWrites {
    /// Orders earlier writes before the next write of these bytes of a file. Called before that
    /// write.
    ///
    /// # Errors
    /// Those of the service. `WouldWait` where data servers have to be asked and `wait` forbids it.
    pub(crate) fn before(
        &self,
        handle: &Handle,
        span: (u64, u64),
        wait: Wait,
    ) -> dafs_service::Result<()> {
        let Self { service, client, asked_ns } = self;
        service.layouts.overtake_late_writes(client, (*asked_ns, wait), handle, span)
    }
}

impl Allowed {
    /// True if these bytes may be written without waiting for data servers.
    pub(crate) fn may_write_now(&self, span: (u64, u64)) -> bool {
        let now = |late_writes: &LateWrites| late_writes.before(&self.handle, span, Wait::Never);
        self.late_writes.as_ref().is_none_or(|late_writes| now(late_writes).is_ok())
    }
}

impl Context<'_> {
    /// Returns the file that a write goes to, and its authorisation.
    pub(crate) fn write_target(
        &mut self,
        call: &Call,
        fh: &FileHandle,
        id: dafs::StateId,
        span: (u64, u64),
    ) -> Result<(Arc<dyn OpenFile>, Allowed), Status> {
        let (file, open) = self.io_file(call, fh, id, WRITE, span)?;
        let (handle, late_writes) = (convert::handle(fh), self.late_writes(call));
        Ok((file, Allowed { handle, open, late_writes }))
    }

    /// Returns the late writes that the writes of this request must be ordered after. A client that
    /// never had a layout has none.
    pub(crate) fn late_writes(&self, call: &Call) -> Option<LateWrites> {
        let session = self.connection.session.as_ref()?;
        let client = &session.proven.as_ref()?.client;
        client.may_have_late_writes().then(|| {
            let (service, client) = (self.shared.service.clone(), client.clone());
            LateWrites { service, client, asked_ns: call.began.0 }
        })
    }
}

impl Transfers<'_> {
    /// Refuses a write that is not allowed any more.
    pub(crate) fn still_allowed(&self, allowed: &Allowed, span: (u64, u64)) -> Result<(), Status> {
        let subject = Subject::Session(self.connection.fence_id());
        check(&self.shared.service, Some(subject), allowed, span)
    }

    /// Returns the authorisation that a job checks before it writes.
    pub(crate) fn pool_authorisation(&self, allowed: &Allowed) -> PoolAuthorisation {
        let (service, allowed) = (self.shared.service.clone(), allowed.clone());
        let fence_id = service.fences.exist().then(|| self.connection.fence_id().to_vec());
        PoolAuthorisation { service, allowed, fence_id }
    }

    /// Refuses an access that a fence or a broken lock forbids by now (DAFS 9.3, 11), or an open if
    /// it has none itself. `anonymous` is its mode then.
    pub(crate) fn check_access(
        &self,
        handle: &Handle,
        anonymous: Option<OpenMode>,
        mut spans: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(), Status> {
        let service = &self.shared.service;
        let subject = Subject::Session(self.connection.fence_id());
        service.fences.check(&subject, handle).map_err(convert::status)?;
        if let Some(need) = anonymous {
            service.opens.check_again(handle, need).map_err(convert::status)?;
        }
        spans.try_for_each(|span| check_span(service, handle, anonymous.is_some(), span))
    }

    /// Returns I/O without an open, for the checks of its pieces. The metadata server knows the opens
    /// of a data server's clients.
    pub(crate) fn anonymous(
        &self,
        handle: &Handle,
        open: Option<&Arc<OpenState>>,
        need: OpenMode,
    ) -> Option<Anonymous> {
        let service = &self.shared.service;
        let is_anonymous = open.is_none() && self.shared.data.is_none();
        is_anonymous.then(|| Anonymous { service: service.clone(), handle: *handle, need })
    }
}

impl PoolAuthorisation {
    /// Refuses a write that is not allowed any more, because another client may hold the file by
    /// now. Waits for data servers.
    pub(crate) fn check(&self, span: (u64, u64)) -> Result<(), Unwritten> {
        self.overtake(span)?;
        self.check_rights(span)
    }

    /// Checks an append, which goes to the present end of the file.
    pub(crate) fn check_append(&self) -> Result<(), Unwritten> {
        self.overtake((0, u64::MAX))?;
        let span = self.service.locks.append_span(&self.allowed.handle).map_err(refused)?;
        self.check_rights(span)
    }

    fn overtake(&self, span: (u64, u64)) -> Result<(), Unwritten> {
        let Allowed { handle, late_writes, .. } = &self.allowed;
        let Some(late_writes) = late_writes else { return Ok(()) };
        late_writes.before(handle, span, Wait::Allowed).map_err(refused)
    }

    fn check_rights(&self, span: (u64, u64)) -> Result<(), Unwritten> {
        let subject = self.fence_id.as_deref().map(Subject::Session);
        check(&self.service, subject, &self.allowed, span).map_err(Unwritten::Refused)
    }
}

fn refused(error: ServiceError) -> Unwritten {
    Unwritten::Refused(convert::status(error))
}

fn check(
    service: &Service,
    subject: Option<Subject<'_>>,
    Allowed { handle, open, .. }: &Allowed,
    span: (u64, u64),
) -> Result<(), Status> {
    if let Some(subject) = subject {
        service.fences.check(&subject, handle).map_err(convert::status)?;
    }
    match open {
        Some(open) => open.file(WRITE).map(drop),
        None => service.opens.check_again(handle, WRITE),
    }
    .map_err(convert::status)?;
    check_span(service, handle, open.is_none(), span)
}
