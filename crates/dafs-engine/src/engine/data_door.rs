//! The DAFS front end of a data server. It moves data of components with the metadata server's
//! authorisation, and knows its clients by their tickets.
//!
//! Invariants
//! * No request depends on state of this server, because it has none. State-ids are the metadata
//!   server's, which checks each piece that is read or written, on the pool.
//! * A use begins before it is checked, so that a revocation can wait for its end.
//! * The reply never claims more stability than the data has. The metadata server has the size of
//!   the file, so a reply never says that the file is stable with its attributes.

use super::request::{Call, Context, Done, FileAndOpen};
use super::{convert, session_ops};
use crate::auth::Admission;
use crate::ops::{attr, open, read, write};
use dafs_dat::Instant;
use dafs_mem::VolatileSlice;
use dafs_service::{
    DataRole, ForeignUse, Handle, ServiceError, StateRef, Ticket, TransportSecurity,
};
use dafs_store::{
    Advised, Attr, CacheAdvice, Cred, DataFile, DataUse, FileId, OpenFile, OpenMode, PartOfFile,
    Result, StoreError, Wait, fill,
};
use dafs_wire::dafs::{
    self, AuthRequest, FileHandle, Reply, Request, Stability, Status, WriteDirect, WriteInline,
};
use std::any::Any;
use std::sync::Arc;

/// The user name of a proof with a ticket as password.
const TICKET_ID: &[u8] = b"x-ticket";

/// A user without rights, for a credential that is never checked.
const NOBODY: u32 = 65534;

/// Admits the client of a proof at a data server. The ticket is kept with the session.
pub(super) fn admit_by_ticket(
    cx: &mut Context<'_>,
    role: &DataRole,
    auth: &AuthRequest<'_>,
) -> Option<Admission> {
    let AuthRequest::Text { id: TICKET_ID, password } = *auth else { return None };
    let ticket = Ticket::open(password, |said| role.files.macs(said))?;
    let identity = ticket.identity.clone();
    // No channel is bound to a session of a data server, which sends no calls. An earlier time
    // than that of the session does no harm.
    let made = cx.now;
    cx.connection.session.as_mut()?.ticket = Some((Arc::new(ticket), made));
    Some(Admission { identity, cred: Cred::new(NOBODY, NOBODY), trusted: false, gss: None })
}

/// Executes a request at a data server.
pub(super) fn data_request(cx: &mut Context<'_>, call: &Call, request: &Request<'_>) -> Done {
    match request {
        Request::ReadInline(args) => read::read_inline(cx, call, args),
        Request::ReadDirect(args) => read::read_direct(cx, call, args),
        Request::WriteInline(args) => {
            let stable = stability(args.stable);
            write::write_inline(cx, call, &WriteInline { stable, ..*args })
        }
        Request::WriteDirect(args) => {
            let stable = stability(args.stable);
            write::write_direct(cx, call, &WriteDirect { stable, ..*args })
        }
        Request::Commit(args) => open::commit(cx, call, args),
        Request::GetAttrInline(args) => attr::getattr_inline(cx, call, args),
        Request::Null => cx.reply(call, &Reply::Null),
        Request::Disconnect => session_ops::disconnect(cx, call),
        _ => Err(Status::NotSupp),
    }
}

/// Returns a component for this session's client.
pub(super) fn judged_file(
    cx: &Context<'_>,
    role: &DataRole,
    fh: &FileHandle,
    id: dafs::StateId,
    need: OpenMode,
) -> std::result::Result<FileAndOpen, Status> {
    let session = cx.connection.session.as_ref();
    let shown = session.and_then(|session| session.ticket.clone());
    let (ticket, made) = shown.ok_or(Status::NotAuthenticated)?;
    let file = role.files.open(&FileId(fh.file)).map_err(convert::store_status)?;
    let authorised = AuthorisedFile {
        file,
        role: role.clone(),
        ticket,
        handle: convert::handle(fh),
        state: StateRef::from(convert::state_id(id)),
        write: need.write,
        security: cx.security(),
        made,
        clock: cx.shared.clock,
    };
    Ok((Arc::new(authorised), None))
}

/// Limits the stability: the attributes of the file are not here.
fn stability(asked: Stability) -> Stability {
    if asked == Stability::FileSync { Stability::DataSync } else { asked }
}

/// A component that is read and written with the metadata server's authorisation.
struct AuthorisedFile {
    file: Arc<dyn DataFile>,
    role: DataRole,
    ticket: Arc<Ticket>,
    handle: Handle,
    state: StateRef,
    write: bool,
    /// The protection of the connection.
    security: TransportSecurity,
    /// The start of the session, and a clock for its age: a request may wait before its check.
    made: Instant,
    clock: fn() -> Instant,
}

impl AuthorisedFile {
    fn check(&self) -> Result<()> {
        let Ticket { owner, identity } = &*self.ticket;
        let component = [&self.handle.fs.0[..], &self.handle.file.0[..]].concat();
        let (state, write, now_ns) = (self.state, self.write, (self.clock)().0);
        let component = &component[..];
        let (caller, security) = (None, self.security);
        let wanted =
            ForeignUse { owner, identity, component, state, write, caller, security, now_ns };
        let age = self.role.states.check(&wanted).map_err(|error| match error {
            ServiceError::Store(error) => error,
            ServiceError::Delay | ServiceError::WouldWait | ServiceError::Resource => {
                StoreError::Busy
            }
            _ => StoreError::Unvouched,
        })?;
        // Over an older session the write may have been sent before the client's later write
        // elsewhere.
        let session_age = (self.clock)().since(self.made);
        match age.filter(|_| write) {
            Some(age) if session_age > age => Err(StoreError::Outdated),
            _ => Ok(()),
        }
    }

    fn size(&self) -> Result<u64> {
        match self.file.file_size()? {
            Some(size) => Ok(size),
            None => self.role.states.size(&self.file.id()),
        }
    }
}

/// Returns the part of the first view that this data server has.
fn first<'a>(
    file: &dyn DataFile,
    views: &[VolatileSlice<'a>],
    offset: u64,
) -> Result<VolatileSlice<'a>> {
    let view = views.iter().find(|view| !view.is_empty()).ok_or(StoreError::Invalid)?;
    let served = file.served_bytes(offset, view.len())?;
    view.slice(0, served).ok_or(StoreError::Io)
}

impl OpenFile for AuthorisedFile {
    fn as_any(&self) -> &dyn Any {
        self.file.as_any()
    }

    fn id(&self) -> FileId {
        self.file.id()
    }

    /// Holes are zeros, and an empty read means the end of the whole file. A read may end early,
    /// where the bytes of another node begin.
    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        if wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        let file = &*self.file;
        let _use = DataUse::begin(file);
        self.check()?;
        let read = |view: VolatileSlice<'_>, at| file.read_at(&[view], at, Wait::Allowed);
        let filled = fill(first(file, views, offset)?, offset, read, || self.size())?;
        Ok(filled.count)
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: dafs_store::Stability,
        wait: Wait,
    ) -> Result<usize> {
        if wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        let file = &*self.file;
        let _use = DataUse::begin(file);
        self.check()?;
        let views = [first(file, views, offset)?];
        file.write_at(&views, offset, stability, Wait::Allowed)
    }

    fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.file.commit(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    fn attr(&self) -> Result<Attr> {
        self.file.attr()
    }
}

impl PartOfFile for AuthorisedFile {
    fn advise_part(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        self.file.advise(offset, len, advice)
    }
}
