//! NLM version 4 and NSM (X/Open C702 chapters 10 and 11): byte-range locks and share reservations
//! of NFSv3 clients, on the state that all protocols share.
//!
//! Invariants
//! * With `Wait::Never` no procedure blocks. One that has to wait is executed again from its start
//!   on a pool thread.
//! * A host frees and names its own locks alone: its address is a part of its name. Users of a host
//!   who may use any port neither use nor free the locks of its root.
//! * Every handle is checked against the rules of its export, as for NFSv3 itself.

mod blocked;
mod lock;
mod peers;
mod restart;
mod share;
#[cfg(test)]
mod tests;

pub(crate) use blocked::lock_available;
pub use peers::Peers;
pub(crate) use restart::{call_monitor, tick};

use crate::admission::Origin;
use crate::measure::{About, Stages};
use crate::shared::NfsShared;
use crate::v3::Sender;
use crate::wire_handle;
use blocked::Blocked;
use dafs_rpc::Reply;
use dafs_service::{
    Caller, Client, ClientAddress, ClientKey, Front, FrontEnd, Handle, Host, LockManager,
    ServiceError, Touch,
};
use dafs_store::{StoreError, Wait};
use dafs_wire::nlm4::{HostName, LockResult, NetObject, Procedure, Status};
use dafs_wire::xdr::{Decode, Decoder, Encode, XdrError};
use restart::Restarts;
use std::cell::Cell;
use std::sync::{Arc, OnceLock, Weak};

/// The state of the front end of NLM.
#[derive(Default)]
pub(crate) struct LockManagers {
    /// Set before the first call, if the server can call its clients.
    peers: OnceLock<Arc<dyn Peers>>,
    blocked: Blocked,
    restarts: Restarts,
}

impl LockManagers {
    /// Takes the way to clients. For the time before the first call.
    pub(crate) fn accept_peers(&self, peers: Arc<dyn Peers>) {
        let _ = self.peers.set(peers);
    }

    /// Forgets a client that is gone.
    pub(crate) fn forget(&self, client: ClientKey) {
        self.blocked.forget(client);
        self.restarts.forget(client);
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
    /// The request has to run where waiting is allowed, perhaps for the machines of this object.
    Wait(Option<Handle>),
}

/// The reason why a procedure has no ordinary result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The arguments are not XDR.
    Garbage,
    /// It failed.
    Fail(Status),
    /// It has to wait.
    Wait(Option<Handle>),
}

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
        Self::Fail(match error {
            ServiceError::WouldWait | ServiceError::Store(StoreError::WouldBlock) => {
                return Self::Wait(None);
            }
            // A client repeats its request after some seconds.
            ServiceError::Grace
            | ServiceError::NoGrace
            | ServiceError::ReclaimBad
            | ServiceError::Delay
            | ServiceError::Expired
            | ServiceError::Store(StoreError::Busy) => Status::DeniedGracePeriod,
            ServiceError::ShareDenied
            | ServiceError::KeyMismatch
            | ServiceError::LockRange
            | ServiceError::ReclaimConflict => Status::Denied,
            ServiceError::Resource | ServiceError::Store(StoreError::TooManyOpen) => {
                Status::DeniedNoLocks
            }
            ServiceError::Store(StoreError::ReadOnly) => Status::ReadOnly,
            ServiceError::Store(StoreError::Invalid) => Status::TooBig,
            ServiceError::Store(
                StoreError::Stale | StoreError::BadHandle | StoreError::MovedOut,
            ) => Status::StaleHandle,
            _ => Status::Failed,
        })
    }
}

/// A request under way.
struct Context<'a> {
    shared: &'a Arc<NfsShared>,
    sender: &'a Sender,
    wait: Wait,
    /// The object of the request, which is accounted to its export.
    object: Cell<Option<Handle>>,
    /// True if the request is refused.
    failed: Cell<bool>,
}

impl Context<'_> {
    fn caller<'c>(&'c self, client: &'c Arc<Client>) -> Caller<'c> {
        let Sender { who, now_ns, .. } = self.sender;
        let subject = self.sender.subject();
        Caller { client, cred: &who.cred, subject, wait: self.wait, now_ns: *now_ns }
    }

    /// Decodes a handle of the arguments, if this caller may use its export.
    fn handle(&self, wire: NetObject<'_>) -> Result<Handle, Stop> {
        let handle = wire_handle::decode(wire.0).ok_or(Status::StaleHandle)?;
        let service = &self.shared.service;
        let namespace = service.namespace();
        let export = namespace.export(&handle)?;
        self.object.set(Some(handle));
        let Sender { origin, who, connection, .. } = self.sender;
        if !origin.admitted(export, who.flavour) {
            self.shared.note_refusal(origin, export);
            return Err(Status::Failed.into());
        }
        connection.establish();
        service.fences.check(&self.sender.subject(), &handle)?;
        if self.wait == Wait::Never && namespace.waits_for(&handle, Touch::Object) {
            return Err(Stop::Wait(Some(handle)));
        }
        Ok(handle)
    }

    /// Returns the service's name of a host that calls itself by `name`.
    fn name(&self, name: HostName<'_>) -> Vec<u8> {
        [place_of(&self.sender.origin).as_bytes(), b" ", name.0].concat()
    }

    /// Makes or finds the record of the caller's lock manager.
    fn manager(&self, name: HostName<'_>) -> Result<Arc<Client>, Stop> {
        let (name, origin) = (self.name(name), &self.sender.origin);
        let manager =
            LockManager { name: &name, address: origin.client_address(), host: origin.host() };
        let front: Weak<dyn Front> = Arc::<NfsShared>::downgrade(self.shared);
        let service = &self.shared.service;
        Ok(service.lock_manager(&manager, &front, self.sender.now_ns, self.wait)?)
    }
}

/// Returns the first word of the names of lock managers at an origin: the address, and a mark for
/// users who are not vouched for as root of their host.
fn place_of(origin: &Origin) -> String {
    let ClientAddress { ip, privileged } = origin.client_address();
    match origin.host() {
        Host::User(user) if origin.is_certain() => format!("{ip}?{user}"),
        _ if privileged => ip.to_string(),
        _ => format!("{ip}?"),
    }
}

/// Reads the arguments of a procedure.
fn args<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, Stop> {
    let mut decoder = Decoder::new(bytes);
    Ok(decoder.value()?)
}

/// Writes a result.
fn results(value: &impl Encode) -> Reply {
    let mut reply = Reply::new();
    value.encode(&mut reply.encoder());
    reply
}

/// Returns the status of a procedure that has ended. One that has to wait, and may not, has not.
fn ended(cx: &Context<'_>, outcome: Result<Status, Stop>) -> Result<Status, Stop> {
    let status = match outcome {
        Ok(status) | Err(Stop::Fail(status)) => status,
        // A procedure that may wait and still cannot go on tells the client to retry.
        Err(Stop::Wait(_)) if cx.wait == Wait::Allowed => Status::DeniedGracePeriod,
        Err(stop) => return Err(stop),
    };
    cx.failed.set(!matches!(status, Status::Granted | Status::Blocked));
    Ok(status)
}

/// Writes the result of most procedures.
fn lock_result(
    cx: &Context<'_>,
    cookie: NetObject<'_>,
    outcome: Result<Status, Stop>,
) -> Result<Reply, Stop> {
    ended(cx, outcome).map(|status| results(&LockResult { cookie, status }))
}

fn dispatch(cx: &Context<'_>, procedure: Procedure, bytes: &[u8]) -> Result<Reply, Stop> {
    match procedure {
        Procedure::Null => Ok(Reply::new()),
        Procedure::Test => lock::test(cx, &args(bytes)?),
        Procedure::Lock => lock::lock(cx, &args(bytes)?),
        Procedure::Cancel => lock::cancel(cx, &args(bytes)?),
        Procedure::Unlock => lock::unlock(cx, &args(bytes)?),
        Procedure::Granted => lock::granted(cx, &args(bytes)?),
        Procedure::Share => share::share(cx, &args(bytes)?),
        Procedure::Unshare => share::unshare(cx, &args(bytes)?),
        Procedure::NmLock => lock::unmonitored(cx, &args(bytes)?),
        Procedure::FreeAll => restart::free_all(cx, &args(bytes)?),
    }
}

/// Executes a request of NLM, and counts it when it is answered.
pub(crate) fn call(
    shared: &Arc<NfsShared>,
    sender: &Sender,
    procedure: u32,
    args: &[u8],
    (wait, stages): (Wait, &mut Stages),
) -> Answer {
    let Some(procedure) = Procedure::from_number(procedure) else { return Answer::NoProcedure };
    // A client that sets a fence against the caller waits for this work to end.
    let _entry = shared.service.fences.begin_work(sender.origin.address());
    let (object, failed) = (Cell::default(), Cell::default());
    let cx = Context { shared, sender, wait, object, failed };
    match dispatch(&cx, procedure, args) {
        Ok(reply) => {
            count(&cx, procedure, stages);
            Answer::Reply(reply)
        }
        Err(Stop::Wait(place)) => Answer::Wait(place),
        Err(Stop::Garbage | Stop::Fail(_)) => Answer::Garbage,
    }
}

fn count(cx: &Context<'_>, procedure: Procedure, stages: &mut Stages) {
    let (front_end, failed) = (FrontEnd::Nlm, cx.failed.get());
    stages.lap(cx.shared, front_end, procedure.number(), failed);
    let about = About {
        front_end,
        operation: procedure.name(),
        user: cx.sender.who.cred.uid,
        client: None,
        handle: cx.object.get(),
        peer: cx.sender.origin.address(),
        failed,
    };
    stages.end(cx.shared, &about);
}
