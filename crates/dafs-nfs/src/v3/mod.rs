//! NFSv3 (RFC 1813), and the program for its access control lists (NFS_ACL): each procedure is one
//! call of the service, answered on the reactor unless it has to wait.
//!
//! Invariants
//! * With `Wait::Never` no procedure blocks. One that has to wait is executed again from its start
//!   on a pool thread ([`Parked`]), and has changed no object before.
//! * A non-idempotent request is executed once, however often it is retried ([`duplicate`]).
//! * Attributes from before an operation are sent only if no other change of the object can have
//!   come in between. A client that trusts them keeps its cache (RFC 1813 2.6).
//! * A change of names or attributes is guarded: it waits for conflicting logged changes of clients
//!   with durable replies. It waits at a [`Gate`], where it blocks no thread.
//! * Every handle is checked against the rules of its export on every request. A flavour that the
//!   export refuses is refused by the RPC layer, except for GETATTR and FSINFO of the export's
//!   root: clients send them before they know the flavours (RFC 2623 2.3.2).

mod acl;
mod attr;
mod convert;
mod create;
mod duplicate;
mod fs;
mod lookup;
mod names;
mod read;
mod readdir;
mod status;
mod write;

pub(crate) use convert::attributes;
pub(crate) use duplicate::Duplicates;

use crate::admission::{CallerIdentity, Origin};
use crate::args::Args;
use crate::connection::Connection;
use crate::listings::Listings;
use crate::measure::{About, Stages};
use crate::shared::NfsShared;
use crate::v4::journal::Gate;
use crate::wire_handle;
use dafs_rpc::{Mark, Reply};
use dafs_service::durable::{Change, Intended, LoggedChange};
use dafs_service::{Caller, FileRange, FrontEnd, Handle, Service, ServiceError, Subject, Touch};
use dafs_store::{Attr, DirChange, StoreError, Wait};
use dafs_wire::nfs_acl3;
use dafs_wire::nfs3::{
    Attributes, FileHandle, Procedure, Status, WccData, encode_failure, encode_ok,
};
use dafs_wire::xdr::{Decode, Encode, XdrError};
use duplicate::{Known, RequestKey, Source};
use std::cell::Cell;
use std::sync::Arc;

/// The sender of a request, with its origin and time.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    /// The origin of the connection.
    pub(crate) origin: Origin,
    /// The caller.
    pub(crate) who: CallerIdentity,
    /// The connection of the request.
    pub(crate) connection: Arc<Connection>,
    /// The time, in nanoseconds of the service's clock.
    pub(crate) now_ns: u64,
    /// The listing budget of the reactor.
    pub(crate) listings: Arc<Listings>,
}

impl Sender {
    /// Returns the subject that fences see. NFSv3 knows no names of clients.
    pub(crate) fn subject(&self) -> Subject<'static> {
        self.origin.subject(None)
    }
}

/// The outcome of a request.
pub(crate) enum Answer {
    /// The call has these results.
    Reply(Reply),
    /// The arguments are not XDR.
    Garbage,
    /// There is no such procedure.
    NoProcedure,
    /// No answer, because a copy of the request is being executed.
    Drop,
    /// The export demands another flavour.
    TooWeak,
    /// The request has to run where waiting is allowed.
    Parked(Box<Parked>),
}

/// The reason why a procedure has no ordinary result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The arguments are not XDR.
    Garbage,
    /// It failed.
    Fail(Status),
    /// The export of a handle demands another flavour.
    TooWeak,
    /// It has to wait.
    Wait,
}

/// The export of a handle demands another flavour of authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooWeak;

impl From<XdrError> for Stop {
    fn from(_: XdrError) -> Self {
        Self::Garbage
    }
}

impl From<Status> for Stop {
    fn from(status: Status) -> Self {
        Self::Fail(status)
    }
}

impl From<ServiceError> for Stop {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::WouldWait | ServiceError::Store(StoreError::WouldBlock) => Self::Wait,
            error => Self::Fail(status::of_service(error)),
        }
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        ServiceError::Store(error).into()
    }
}

/// A procedure of one of the two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// One of NFSv3.
    Nfs(Procedure),
    /// One of NFS_ACL.
    Acl(nfs_acl3::Procedure),
}

impl Operation {
    /// Returns the procedure of NFSv3 with this number.
    pub(crate) fn of_nfs(number: u32) -> Option<Self> {
        Procedure::from_number(number).map(Self::Nfs)
    }

    /// Returns the procedure of NFS_ACL with this number.
    pub(crate) fn of_acl(number: u32) -> Option<Self> {
        nfs_acl3::Procedure::from_number(number).map(Self::Acl)
    }

    /// Returns its program, number and name for the counters.
    fn counted(self) -> (FrontEnd, u32, &'static str) {
        match self {
            Self::Nfs(one) => (FrontEnd::Nfs3, one.number(), one.name()),
            Self::Acl(one) => (FrontEnd::NfsAcl, one.number(), one.name()),
        }
    }

    /// True if the procedure is not idempotent.
    fn needs_once(self) -> bool {
        match self {
            Self::Nfs(procedure) => needs_once(procedure),
            // SETACL sets whole lists.
            Self::Acl(_) => false,
        }
    }
}

/// The outcome of a procedure. The results are in the reply.
type Done = Result<Status, Stop>;

/// State that a procedure keeps from its first run on.
#[derive(Default)]
struct Held {
    /// Protects conflicting logged changes from its own change.
    guard: Option<LoggedChange>,
    /// The gate where it waits for them.
    gate: Option<Arc<Gate>>,
    /// The object of the first handle. The request is accounted to its export.
    first: Cell<Option<Handle>>,
    /// The range that it wanted to read, and that is not in memory.
    missed: Option<FileRange>,
}

/// A procedure under way.
struct Context<'a> {
    shared: &'a Arc<NfsShared>,
    held: &'a mut Held,
    sender: &'a Sender,
    wait: Wait,
    reply: Reply,
    /// The start of the results.
    start: Mark,
    stages: Stages,
}

impl Context<'_> {
    fn service(&self) -> &Service {
        &self.shared.service
    }

    fn caller(&self) -> Caller<'_> {
        let client = self.shared.service.stateless_client();
        let Sender { who, now_ns, .. } = self.sender;
        let subject = self.sender.subject();
        Caller { client, cred: &who.cred, subject, wait: self.wait, now_ns: *now_ns }
    }

    /// Decodes a handle of the arguments, if this caller may use its export.
    fn handle(&self, wire: FileHandle<'_>) -> Result<Handle, Stop> {
        self.handle_for(wire, false)
    }

    /// Does the same for a request that clients send before they know the flavours of an export: at
    /// the root AUTH_NONE and AUTH_SYS will do, whatever the export accepts (RFC 2623 2.3.2).
    fn handle_at_mount(&self, wire: FileHandle<'_>) -> Result<Handle, Stop> {
        self.handle_for(wire, true)
    }

    fn handle_for(&self, wire: FileHandle<'_>, at_mount: bool) -> Result<Handle, Stop> {
        let handle = wire_handle::decode(wire.0).ok_or(Status::BadHandle)?;
        let namespace = self.service().namespace();
        let export = namespace.export(&handle)?;
        if self.held.first.get().is_none() {
            self.held.first.set(Some(handle));
        }
        let Sender { origin, who, .. } = self.sender;
        if !origin.admitted(export, who.flavour) {
            if origin.refusal(export).is_some() {
                self.shared.note_refusal(origin, export);
                return Err(Status::Acces.into());
            }
            let is_open = at_mount && !who.flavour.is_proven() && handle == export.root();
            if !is_open {
                return Err(Stop::TooWeak);
            }
        }
        self.sender.connection.establish();
        self.service().fences.check(&self.sender.subject(), &handle)?;
        if self.wait == Wait::Never && namespace.waits_for(&handle, Touch::Object) {
            return Err(Stop::Wait);
        }
        Ok(handle)
    }

    /// Guards the change of this procedure against logged changes of other clients. Must come
    /// before any other step that may wait.
    fn guard(&mut self, change: &Change<'_>) -> Result<(), Stop> {
        if let Some(gate) = self.held.gate.take() {
            // INVARIANT: a procedure goes on when its gate has opened.
            return Ok(gate.result().ok_or(Status::ServerFault)??);
        }
        if self.held.guard.is_some() {
            return Ok(());
        }
        let (shared, mut gate) = (self.shared, None);
        let guarded = shared.service.durable.guard(self.caller(), change, || {
            let gate: &Arc<Gate> = gate.insert(Gate::new(shared));
            gate.notify()
        })?;
        match guarded {
            Intended::Unneeded => Ok(()),
            Intended::Ready(op) => {
                self.held.guard = Some(op);
                Ok(())
            }
            Intended::Waiting(op) => {
                (self.held.guard, self.held.gate) = (Some(op), gate);
                Err(Stop::Wait)
            }
        }
    }

    /// Writes the results of a success.
    fn ok<T: Encode>(&mut self, body: &T) -> Result<(), Stop> {
        encode_ok(&mut self.reply.encoder(), body);
        Ok(())
    }

    /// Returns the attributes of an object if they are available. They are optional in results.
    fn attributes(&self, handle: &Handle) -> Option<Attributes> {
        let attr = self.service().delegations.attributes(self.caller(), handle).ok()?;
        Some(attributes(&handle.fs, &attr))
    }

    /// Returns the attributes of the object of a handle in the arguments, if they are available.
    fn attributes_of(&self, wire: FileHandle<'_>) -> Option<Attributes> {
        self.attributes(&self.handle(wire).ok()?)
    }

    /// Returns the wcc_data of an object that was changed, or was to be.
    fn wcc_of(&self, wire: FileHandle<'_>) -> WccData {
        WccData { before: None, after: self.attributes_of(wire) }
    }

    /// Returns the wcc_data of a directory in which a name was changed.
    fn wcc(&self, dir: &Handle, change: &DirChange) -> WccData {
        let attr = change.attr.map(|attr| attributes(&dir.fs, &attr));
        WccData { before: None, after: attr.or_else(|| self.attributes(dir)) }
    }

    /// Ends a procedure. A failure gets its failure body.
    fn finish<F: Encode>(
        &mut self,
        outcome: Result<(), Stop>,
        body: impl FnOnce(&Self) -> F,
    ) -> Done {
        let status = match outcome {
            Ok(()) => return Ok(Status::Ok),
            Err(Stop::Fail(status)) => status,
            // A procedure that may wait and still cannot go on tells the client to retry.
            Err(Stop::Wait) if self.wait == Wait::Allowed => Status::Jukebox,
            Err(stop) => return Err(stop),
        };
        let body = body(self);
        self.reply.truncate_to(self.start);
        encode_failure(&mut self.reply.encoder(), status, &body);
        Ok(status)
    }
}

/// Reads the arguments of a procedure. Later bytes of the stream are ignored.
fn args<'a, T: Decode<'a>>(wire: Args<'a>) -> Result<T, Stop> {
    let mut decoder = wire.decoder();
    let args = decoder.value()?;
    decoder.finish_apart()?;
    Ok(args)
}

fn attr_of(handle: &Handle, attr: &Attr) -> Option<Attributes> {
    Some(attributes(&handle.fs, attr))
}

/// True if a procedure of NFSv3 is not idempotent.
fn needs_once(procedure: Procedure) -> bool {
    match procedure {
        Procedure::Setattr
        | Procedure::Write
        | Procedure::Create
        | Procedure::Mkdir
        | Procedure::Symlink
        | Procedure::Mknod
        | Procedure::Remove
        | Procedure::Rmdir
        | Procedure::Rename
        | Procedure::Link => true,
        Procedure::Null
        | Procedure::Getattr
        | Procedure::Lookup
        | Procedure::Access
        | Procedure::Readlink
        | Procedure::Read
        | Procedure::Readdir
        | Procedure::Readdirplus
        | Procedure::FsStat
        | Procedure::FsInfo
        | Procedure::PathConf
        | Procedure::Commit => false,
    }
}

fn dispatch(cx: &mut Context<'_>, operation: Operation, args: Args<'_>) -> Done {
    let procedure = match operation {
        Operation::Nfs(procedure) => procedure,
        Operation::Acl(procedure) => return acl::dispatch(cx, procedure, args),
    };
    match procedure {
        Procedure::Null => Ok(Status::Ok),
        Procedure::Getattr => attr::getattr(cx, args),
        Procedure::Setattr => attr::setattr(cx, args),
        Procedure::Lookup => lookup::lookup(cx, args),
        Procedure::Access => attr::access(cx, args),
        Procedure::Readlink => lookup::readlink(cx, args),
        Procedure::Read => read::read(cx, args),
        Procedure::Write => write::write(cx, args),
        Procedure::Create => create::create(cx, args),
        Procedure::Mkdir => create::mkdir(cx, args),
        Procedure::Symlink => create::symlink(cx, args),
        Procedure::Mknod => create::mknod(cx, args),
        Procedure::Remove => names::remove(cx, args),
        Procedure::Rmdir => names::rmdir(cx, args),
        Procedure::Rename => names::rename(cx, args),
        Procedure::Link => names::link(cx, args),
        Procedure::Readdir => readdir::readdir(cx, args),
        Procedure::Readdirplus => readdir::readdirplus(cx, args),
        Procedure::FsStat => fs::fsstat(cx, args),
        Procedure::FsInfo => fs::fsinfo(cx, args),
        Procedure::PathConf => fs::pathconf(cx, args),
        Procedure::Commit => write::commit(cx, args),
    }
}

/// A request that is recorded as under way. If it is dropped unfinished, as by a panic, its record
/// is removed, so that the client's next retry is executed.
struct Once {
    shared: Arc<NfsShared>,
    key: RequestKey,
    finished: bool,
}

impl Once {
    fn finish(mut self, reply: &Reply, status: Status, now_ns: u64) {
        self.finished = true;
        let keep = (status != Status::Jukebox).then(|| reply.to_bytes());
        self.shared.duplicates.finish(self.key, keep, now_ns);
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.duplicates.finish(self.key, None, 0);
        }
    }
}

/// A request that has to wait.
pub(crate) struct Parked {
    shared: Arc<NfsShared>,
    sender: Sender,
    operation: Operation,
    held: Held,
    once: Option<Once>,
    stages: Stages,
}

impl Parked {
    /// Returns the gate that has to open before the request can be executed. `None` when any thread
    /// that may wait will do.
    pub(crate) fn gate(&self) -> Option<Arc<Gate>> {
        self.held.gate.clone()
    }

    /// Returns the range that a read did not find in memory, once. `None` when the request waits for
    /// something else.
    pub(crate) fn take_missed(&mut self) -> Option<FileRange> {
        self.held.missed.take().filter(|_| self.held.gate.is_none())
    }

    /// Returns the object of the request.
    pub(crate) fn place(&self) -> Option<Handle> {
        self.held.first.get()
    }

    /// Executes the request as far as it need not wait. `args` are its arguments.
    pub(crate) fn run_again(self, args: Args<'_>) -> Answer {
        let Self { shared, sender, operation, held, once, mut stages } = self;
        stages.resume(&shared);
        attempt(&shared, (sender, operation), args, (held, once, stages))
    }

    /// Executes the request. May wait. `args` are its arguments.
    ///
    /// # Errors
    /// When the export of a handle demands another flavour.
    pub(crate) fn run(self, args: Args<'_>) -> Result<Reply, TooWeak> {
        let Self { shared, sender, operation, mut held, once, mut stages } = self;
        stages.resume(&shared);
        match run(&shared, &sender, operation, args, (Wait::Allowed, &mut held), stages) {
            Ok((reply, status)) => {
                if let Some(once) = once {
                    once.finish(&reply, status, sender.now_ns);
                }
                Ok(reply)
            }
            Err(Stop::TooWeak) => Err(TooWeak),
            Err(Stop::Garbage | Stop::Fail(_) | Stop::Wait) => {
                debug_assert!(
                    false,
                    "the arguments were understood before, and waiting is allowed"
                );
                Ok(Reply::new())
            }
        }
    }
}

fn run(
    shared: &Arc<NfsShared>,
    sender: &Sender,
    operation: Operation,
    args: Args<'_>,
    (wait, held): (Wait, &mut Held),
    stages: Stages,
) -> Result<(Reply, Status), Stop> {
    // A client that sets a fence against the caller waits for this work to end.
    let _entry = shared.service.fences.begin_work(sender.origin.address());
    let reply = args.reply();
    let start = reply.mark();
    let mut cx = Context { shared, held, sender, wait, reply, start, stages };
    let status = dispatch(&mut cx, operation, args)?;
    let Context { reply, mut stages, held, .. } = cx;
    let failed = status != Status::Ok;
    let (front_end, number, operation) = operation.counted();
    stages.lap(shared, front_end, number, failed);
    let about = About {
        front_end,
        operation,
        user: sender.who.cred.uid,
        client: None,
        handle: held.first.get(),
        peer: sender.origin.address(),
        failed,
    };
    stages.end(shared, &about);
    Ok((reply, status))
}

/// Executes a request, or the part of it that needs no waiting. Without an operation its number is
/// that of no procedure.
pub(crate) fn call(
    shared: &Arc<NfsShared>,
    sender: Sender,
    xid: u32,
    operation: Option<Operation>,
    args: Args<'_>,
) -> Answer {
    let Some(operation) = operation else { return Answer::NoProcedure };
    let mut once = None;
    if operation.needs_once() {
        let cache = &shared.duplicates;
        let (host, address) = (sender.origin.host(), sender.origin.address());
        let from = Source { host, address, who: &sender.who };
        let (_, number, _) = operation.counted();
        let key = cache.key(from, xid, number, args);
        match cache.begin(key, sender.now_ns) {
            Known::New => once = Some(Once { shared: shared.clone(), key, finished: false }),
            Known::UnderWay => return Answer::Drop,
            Known::Done(results) => return Answer::Reply(Reply::from_bytes(&results)),
        }
    }
    let stages = Stages::begin(sender.now_ns);
    attempt(shared, (sender, operation), args, (Held::default(), once, stages))
}

/// Executes the part of a request that needs no waiting.
fn attempt(
    shared: &Arc<NfsShared>,
    (sender, operation): (Sender, Operation),
    args: Args<'_>,
    (mut held, once, mut stages): (Held, Option<Once>, Stages),
) -> Answer {
    match run(shared, &sender, operation, args, (Wait::Never, &mut held), stages) {
        Ok((reply, status)) => {
            if let Some(once) = once {
                once.finish(&reply, status, sender.now_ns);
            }
            Answer::Reply(reply)
        }
        Err(Stop::Wait) => {
            stages.park(shared);
            let shared = shared.clone();
            Answer::Parked(Box::new(Parked { shared, sender, operation, held, once, stages }))
        }
        Err(Stop::TooWeak) => Answer::TooWeak,
        Err(Stop::Garbage | Stop::Fail(_)) => Answer::Garbage,
    }
}

#[cfg(test)]
pub(crate) mod tests;
