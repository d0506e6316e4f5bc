//! Whether a write that was allowed when its request came still is, now that its data is here: a
//! fence may have been set since, the open revoked, or a lock over the bytes broken (DAFS 9.3, 11).
//! And whether it would come before something that its client has sent to a data server earlier.
//!
//! Invariants
//! * Asked again before each piece is written, by the thread that writes it.
//! * A write is younger than what its client had sent to data servers when the request came, however
//!   long its data took; what it has sent there since may come before or after it.

use super::convert;
use super::request::{Call, Context, check_span};
use super::work::Unwritten;
use super::write::WRITE;
use dafs_service::{Client, Handle, OpenState, Service, ServiceError, Subject};
use dafs_store::{OpenFile, Wait};
use dafs_wire::dafs::{self, FileHandle, Status};
use std::sync::Arc;

/// Where a write goes and what allows it.
#[derive(Clone)]
pub(super) struct Allowed {
    pub(super) handle: Handle,
    /// The open that allows it.
    pub(super) open: Option<Arc<OpenState>>,
    /// What it has to come after, if there may be anything.
    pub(super) overtakes: Option<Overtakes>,
}

/// The same for a thread of the pool.
pub(super) struct AllowedElsewhere {
    service: Arc<Service>,
    allowed: Allowed,
    /// Of the session, where there were fences when the job was made; a later one waits for the job.
    fence_id: Option<Vec<u8>>,
}

/// A client that may have sent something to data servers which it has given up.
#[derive(Clone)]
pub(super) struct Overtakes {
    service: Arc<Service>,
    client: Arc<Client>,
    /// When it asked for what it wants written here.
    asked_ns: u64,
}

impl Overtakes {
    /// To be called before these bytes of a file are written: what was sent earlier does not come later.
    ///
    /// # Errors
    /// Those of the service; `WouldWait` where data servers have to be asked and `wait` forbids it.
    pub(super) fn before(
        &self,
        handle: &Handle,
        span: (u64, u64),
        wait: Wait,
    ) -> dafs_service::Result<()> {
        let Self { service, client, asked_ns } = self;
        service.overtake_late_writes(client, (*asked_ns, wait), handle, span)
    }
}

impl Allowed {
    /// Whether these bytes may be written without waiting for data servers.
    pub(super) fn overtakes_now(&self, span: (u64, u64)) -> bool {
        let now = |overtakes: &Overtakes| overtakes.before(&self.handle, span, Wait::Never);
        self.overtakes.as_ref().is_none_or(|overtakes| now(overtakes).is_ok())
    }
}

impl Context<'_> {
    /// The file that a write goes to, and what allows it.
    pub(super) fn write_target(
        &mut self,
        call: &Call,
        fh: &FileHandle,
        id: dafs::StateId,
        span: (u64, u64),
    ) -> Result<(Arc<dyn OpenFile>, Allowed), Status> {
        let (file, open) = self.io_file(call, fh, id, WRITE, span)?;
        let (handle, overtakes) = (convert::handle(fh), self.overtakes(call));
        Ok((file, Allowed { handle, open, overtakes }))
    }

    /// What the writes of this request have to come after. Whoever has had no layout has sent nothing.
    pub(super) fn overtakes(&self, call: &Call) -> Option<Overtakes> {
        let session = self.connection.session.as_ref()?;
        let client = &session.proven.as_ref()?.client;
        client.may_have_late_writes().then(|| {
            let (service, client) = (self.shared.service.clone(), client.clone());
            Overtakes { service, client, asked_ns: call.began.0 }
        })
    }

    /// Refuses what is not allowed any more.
    pub(super) fn still_allowed(&self, allowed: &Allowed, span: (u64, u64)) -> Result<(), Status> {
        let subject = Subject::Session(self.connection.fence_id());
        check(&self.shared.service, Some(subject), allowed, span)
    }

    /// What a job asks with before it writes.
    pub(super) fn allowed_elsewhere(&self, allowed: &Allowed) -> AllowedElsewhere {
        let (service, allowed) = (self.shared.service.clone(), allowed.clone());
        let fence_id = service.has_fences().then(|| self.connection.fence_id().to_vec());
        AllowedElsewhere { service, allowed, fence_id }
    }
}

impl AllowedElsewhere {
    /// Refuses what is not allowed any more. Somebody else may hold the file by now. Waits for data
    /// servers.
    pub(super) fn check(&self, span: (u64, u64)) -> Result<(), Unwritten> {
        self.overtake(span)?;
        self.check_rights(span)
    }

    /// The same for an append, which goes to wherever the end is.
    pub(super) fn check_append(&self) -> Result<(), Unwritten> {
        self.overtake((0, u64::MAX))?;
        let span = self.service.append_span(&self.allowed.handle).map_err(refused)?;
        self.check_rights(span)
    }

    fn overtake(&self, span: (u64, u64)) -> Result<(), Unwritten> {
        let Allowed { handle, overtakes, .. } = &self.allowed;
        let Some(overtakes) = overtakes else { return Ok(()) };
        overtakes.before(handle, span, Wait::Allowed).map_err(refused)
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
        service.check_fence(&subject, handle).map_err(convert::status)?;
    }
    if let Some(open) = open {
        open.file(WRITE).map_err(convert::status)?;
    }
    check_span(service, handle, open.is_none(), span)
}
