//! Dispatches a call of the RPC server to its program, version and procedure.
//!
//! Invariants
//! * A call is answered on the reactor, or moves as a whole to the pool, or waits until the kernel has
//!   read its data ([`disk`](crate::disk)). No step here waits.
//! * Callers that no export admits are refused before they get any state. Every caller may send
//!   NULL.

use crate::admission::{CallerIdentity, Origin};
use crate::args::Args;
use crate::certificate::Certified;
use crate::connection::Connection;
use crate::disk::{Disk, Waiting};
use crate::limits::{PROVEN_REUSED_NS, USERS_LANE};
use crate::listings::Listings;
use crate::measure::Stages;
use crate::mount;
use crate::nlm;
use crate::shared::NfsShared;
use crate::v3::{self, Operation, Sender};
use crate::v4::compound::context::CallContext;
use crate::v4::compound::engine::{self, Answer};
use dafs_mem::Shrinking as _;
use dafs_rpc::gss::{Acceptor, Context, Handle, Origin as GssOrigin};
use dafs_rpc::{
    AcceptStatus, AuthStatus, Call, CallbackError, CallerProcess, ConnectionId, Credential, Groups,
    GssService, Handled, Handler, Injector, RejectStatus, Rejection, Reply, VersionRange,
};
use dafs_service::{Owner, PageReads, Place, TransportSecurity};
use dafs_store::Wait;
use dafs_wire::{mount3, nfs_acl3, nfs3, nfs4, nlm4, nsm1};
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// The null procedure of every program.
const PROCEDURE_NULL: u32 = 0;

/// The NFS programs on one reactor.
#[derive(Debug)]
pub struct NfsHandler {
    shared: Arc<NfsShared>,
    connections: FxHashMap<ConnectionId, PeerState>,
    listings: Arc<Listings>,
    /// Where the kernel reads what is not in memory.
    disk: Option<Disk>,
}

/// The state of a connection.
#[derive(Debug)]
struct PeerState {
    connection: Arc<Connection>,
    origin: Origin,
    /// The owner of its calls for the scheduler.
    owner: Owner,
    /// True if some export admits callers from its origin, as of a version of the exports: those
    /// that prove their name, and others.
    admitted: [Option<(u64, bool)>; 2],
    /// The last credential and the caller that it stands for: the next call most likely brings the
    /// same.
    last: Option<(u32, u32, Groups, CallerIdentity)>,
    /// The same for callers that prove their names.
    proven: Option<Proven>,
    /// The user whom the certificate of the connection names, and the time until which it is not
    /// looked up again.
    certified: Option<(Certified, u64)>,
}

/// A caller that has proven its name.
#[derive(Debug)]
struct Proven {
    /// Its context and service.
    by: (Handle, GssService),
    who: CallerIdentity,
    /// The time until which its user is not looked up again.
    until_ns: u64,
}

impl NfsHandler {
    /// Serves the programs of `shared` on one reactor.
    pub fn new(shared: Arc<NfsShared>) -> Self {
        Self { shared, connections: FxHashMap::default(), listings: Arc::default(), disk: None }
    }

    /// Lets the kernel read data that is not in memory. `injector` is that of the reactor.
    pub fn reading_by(mut self, pages: Box<dyn PageReads>, injector: Injector<()>) -> Self {
        self.disk = Some(Disk::new(pages, injector));
        self
    }

    fn call_v4(&mut self, call: Call<'_>, who: CallerIdentity) -> Handled {
        match call.procedure {
            nfs4::limits::PROCEDURE_NULL => Reply::new().into(),
            nfs4::limits::PROCEDURE_COMPOUND => self.compound(call, who),
            _ => AcceptStatus::ProcedureUnavailable.into(),
        }
    }

    fn compound(&mut self, call: Call<'_>, who: CallerIdentity) -> Handled {
        let context = self.context(&call, who);
        match engine::compound(&self.shared, context, Args::of(&call), Wait::Never) {
            Answer::Reply(reply) => reply.into(),
            Answer::Garbage => AcceptStatus::GarbageArgs.into(),
            Answer::Parked(parked) => {
                let (args, responder) = call.later();
                self.park(Waiting::Compound(parked, args, responder));
                Handled::Later
            }
        }
    }

    fn call_v3(
        &mut self,
        call: Call<'_>,
        who: CallerIdentity,
        operation: Option<Operation>,
    ) -> Handled {
        let sender = self.sender(&call, who);
        match v3::call(&self.shared, sender, call.xid, operation, Args::of(&call)) {
            v3::Answer::Reply(reply) => reply.into(),
            v3::Answer::Garbage => AcceptStatus::GarbageArgs.into(),
            v3::Answer::NoProcedure => AcceptStatus::ProcedureUnavailable.into(),
            v3::Answer::Drop => Handled::Drop,
            v3::Answer::TooWeak => RejectStatus::Auth(AuthStatus::TooWeak).into(),
            v3::Answer::Parked(parked) => {
                let owner = self.peer(&call).owner;
                let (args, responder) = call.later();
                self.park(Waiting::Procedure(parked, owner, args, responder));
                Handled::Later
            }
        }
    }

    /// Lets a request wait: for the kernel if it has missed data, which the ring can read, else on the
    /// pool.
    fn park(&mut self, mut waiting: Waiting) {
        let Some(range) = waiting.take_missed() else { return waiting.run_on_pool(&self.shared) };
        let left = match &mut self.disk {
            Some(disk) => disk.begin(range, waiting),
            None => Some(waiting),
        };
        self.shared.misses.count(left.is_none());
        if let Some(waiting) = left {
            waiting.run_on_pool(&self.shared);
        }
    }

    fn call_mount(&mut self, call: Call<'_>, who: CallerIdentity) -> Handled {
        let sender = self.sender(&call, who);
        match mount::call(&self.shared, &sender, call.procedure, call.args) {
            mount::Answer::Reply(reply) => reply.into(),
            mount::Answer::Garbage => AcceptStatus::GarbageArgs.into(),
            mount::Answer::NoProcedure => AcceptStatus::ProcedureUnavailable.into(),
        }
    }

    fn call_nlm(&mut self, call: Call<'_>, who: CallerIdentity) -> Handled {
        let sender = self.sender(&call, who);
        let mut stages = Stages::begin(sender.now_ns);
        let now = (Wait::Never, &mut stages);
        match nlm::call(&self.shared, &sender, call.procedure, call.args, now) {
            nlm::Answer::Reply(reply) => reply.into(),
            nlm::Answer::Garbage => AcceptStatus::GarbageArgs.into(),
            nlm::Answer::NoProcedure => AcceptStatus::ProcedureUnavailable.into(),
            nlm::Answer::Wait(place) => {
                let (owner, shared) = (self.peer(&call).owner, self.shared.clone());
                let (procedure, lane) = (call.procedure, shared.lane(place));
                stages.park(&shared);
                let (args, responder) = call.later();
                let job = move || {
                    stages.resume(&shared);
                    let (bytes, later) = (args.decoder().rest(), (Wait::Allowed, &mut stages));
                    match nlm::call(&shared, &sender, procedure, bytes, later) {
                        nlm::Answer::Reply(reply) => responder.respond(reply),
                        // It was understood before, and waiting is allowed.
                        _ => responder.reject(Rejection::Accept(AcceptStatus::SystemError)),
                    }
                };
                self.shared.run_in(Place { lane, owner }, Box::new(job));
                Handled::Later
            }
        }
    }

    fn call_monitor(&mut self, call: Call<'_>, who: CallerIdentity) -> Handled {
        let sender = self.sender(&call, who);
        match nlm::call_monitor(&self.shared, &sender, call.procedure, call.args) {
            nlm::Answer::Reply(reply) => reply.into(),
            nlm::Answer::Garbage => AcceptStatus::GarbageArgs.into(),
            nlm::Answer::NoProcedure | nlm::Answer::Wait(_) => {
                AcceptStatus::ProcedureUnavailable.into()
            }
        }
    }

    fn peer(&mut self, call: &Call<'_>) -> &mut PeerState {
        let peer = self.connections.entry(call.connection_id).or_insert_with(|| {
            let origin = self.shared.admission().origin(call.peer, call.process);
            let number = call.connection_id.to_u64();
            let owner = Owner { origin: origin.of_turns(), number };
            let connection = Connection::new(call.connection(), self.listings.clone());
            PeerState {
                connection,
                origin,
                owner,
                admitted: [None; 2],
                last: None,
                proven: None,
                certified: None,
            }
        });
        // A connection may begin in the clear and go on in TLS.
        if peer.origin.security() != call.security {
            peer.origin = peer.origin.with_security(call.security);
            peer.admitted = [None; 2];
        }
        peer
    }

    /// True if some export admits the callers of this connection.
    fn is_admitted(&mut self, call: &Call<'_>) -> bool {
        let shared = self.shared.clone();
        let version = shared.service.namespace_version();
        let is_proven = matches!(call.credential, Credential::Gss { .. });
        let is_mount = call.program == mount3::PROGRAM;
        let peer = self.peer(call);
        if is_mount {
            // MOUNT is asked in the clear, also for exports that demand TLS.
            let origin = peer.origin.with_security(TransportSecurity::Mtls);
            let namespace = shared.service.namespace();
            let refused = origin.refused(&namespace, is_proven);
            if let Some(export) = refused {
                shared.note_refusal_of(&origin, export, is_proven);
            }
            return refused.is_none();
        }
        if let Some((at, admitted)) = peer.admitted[usize::from(is_proven)]
            && at == version
        {
            return admitted;
        }
        let namespace = shared.service.namespace();
        let refused = peer.origin.refused(&namespace, is_proven);
        if let Some(export) = refused {
            shared.note_refusal_of(&peer.origin, export, is_proven);
        }
        peer.admitted[usize::from(is_proven)] = Some((version, refused.is_none()));
        refused.is_none()
    }

    /// Identifies the caller. An error without a status means that there is no answer, and that the
    /// connection ends.
    fn who(&mut self, call: &Call<'_>) -> Result<CallerIdentity, Option<AuthStatus>> {
        match (call.credential, call.user) {
            (Credential::Gss { context, service }, _) => {
                self.proven(call, context, service).map_err(Some)
            }
            (_, None) => Ok(self.peer(call).who(&call.credential)),
            (_, Some(user)) => self.certified(call, user).ok_or_else(|| {
                tracing::info!(peer = %call.peer, %user, "a connection ends: its user is not known");
                call.connection().close();
                None
            }),
        }
    }

    /// Identifies the caller on a connection whose certificate names a user.
    fn certified(&mut self, call: &Call<'_>, user: &Arc<str>) -> Option<CallerIdentity> {
        if let Some((known, until_ns)) = &self.peer(call).certified
            && call.now_ns < *until_ns
        {
            return Some(known.caller(&call.credential));
        }
        let shared = self.shared.clone();
        let users = shared.users();
        let known = Certified::find(users.map(|users| &**users), user, call.now_ns)?;
        if let Some(users) = users.filter(|_| known.is_stale) {
            let (users, user, now_ns) = (users.clone(), user.clone(), call.now_ns);
            let job = move || {
                if let Err(error) = users.resolve(&user, now_ns) {
                    tracing::warn!(%error, "the groups of a user may be old");
                }
            };
            let owner = self.peer(call).owner;
            shared.run_in(Place { lane: USERS_LANE, owner }, Box::new(job));
        }
        let who = known.caller(&call.credential);
        let until_ns = call.now_ns.saturating_add(PROVEN_REUSED_NS);
        self.peer(call).certified = Some((known, until_ns));
        Some(who)
    }

    /// Identifies the caller of a context.
    fn proven(
        &mut self,
        call: &Call<'_>,
        context: &Arc<Context>,
        service: GssService,
    ) -> Result<CallerIdentity, AuthStatus> {
        let (by, now_ns) = ((context.handle(), service), call.now_ns);
        if let Some(proven) = &self.peer(call).proven
            && proven.by == by
            && now_ns < proven.until_ns
        {
            return Ok(proven.who.clone());
        }
        let gss = self.shared.gss().ok_or(AuthStatus::TooWeak)?.clone();
        let (who, is_stale) = gss.who(context, service, now_ns)?;
        let until_ns = now_ns.saturating_add(PROVEN_REUSED_NS);
        self.peer(call).proven = Some(Proven { by, who: who.clone(), until_ns });
        if is_stale {
            let (own, context) = (gss.clone(), context.clone());
            gss.acceptor.run(
                GssOrigin::of_address(call.peer.ip()),
                Box::new(move || {
                    let name = &context.principal().display_name;
                    if let Err(error) = own.identities.resolve(name, now_ns) {
                        tracing::warn!(%error, "the groups of a user may be old");
                    }
                }),
            );
        }
        Ok(who)
    }

    fn sender(&mut self, call: &Call<'_>, who: CallerIdentity) -> Sender {
        let now_ns = self.shared.service_time(call.now_ns);
        let peer = self.peer(call);
        let (origin, connection) = (peer.origin, peer.connection.clone());
        let listings = connection.listings().clone();
        Sender { origin, who, connection, now_ns, listings }
    }

    fn context(&mut self, call: &Call<'_>, who: CallerIdentity) -> CallContext {
        let now_ns = self.shared.service_time(call.now_ns);
        let peer = self.peer(call);
        CallContext {
            who,
            origin: peer.origin,
            owner: peer.owner,
            connection: peer.connection.clone(),
            peer: call.peer,
            user: call.user.cloned(),
            is_rdma: call.is_rdma,
            now_ns,
            call_bytes: call.call_bytes(),
            reply_rpc_bytes: call.reply_bytes_beside_results(),
        }
    }
}

impl Handler for NfsHandler {
    type Message = ();

    fn gss(&self) -> Option<&Arc<dyn Acceptor>> {
        self.shared.gss().map(|gss| &gss.acceptor)
    }

    fn may_establish(&mut self, peer: SocketAddr, process: CallerProcess) -> bool {
        // A client may make its contexts over a connection of their own, in the clear. Their keys
        // protect each call, and every use of a handle is judged by its own connection.
        let origin = self.shared.admission().origin(peer, process);
        let origin = origin.with_security(TransportSecurity::Mtls);
        let namespace = self.shared.service.namespace();
        let refused = origin.refused(&namespace, true);
        if let Some(export) = refused {
            self.shared.note_refusal_of(&origin, export, true);
        }
        refused.is_none()
    }

    fn call(&mut self, call: Call<'_>) -> Handled {
        if call.procedure != PROCEDURE_NULL && !self.is_admitted(&call) {
            let status = RejectStatus::Auth(AuthStatus::TooWeak);
            return Handled::Reject(Rejection::Reject(status));
        }
        let who = match self.who(&call) {
            Ok(who) => who,
            Err(Some(status)) => return RejectStatus::Auth(status).into(),
            Err(None) => return Handled::Drop,
        };
        match (call.program, call.version) {
            (nfs4::limits::PROGRAM, nfs4::limits::VERSION) => self.call_v4(call, who),
            (nfs4::limits::PROGRAM, _) if self.shared.data_role().is_some() => {
                let (low, high) = (nfs4::limits::VERSION, nfs4::limits::VERSION);
                AcceptStatus::ProgramMismatch(VersionRange { low, high }).into()
            }
            (mount3::PROGRAM | nlm4::PROGRAM | nsm1::PROGRAM | nfs_acl3::PROGRAM, _)
                if self.shared.data_role().is_some() =>
            {
                AcceptStatus::ProgramUnavailable.into()
            }
            (nfs3::PROGRAM, nfs3::VERSION) => {
                let operation = Operation::of_nfs(call.procedure);
                self.call_v3(call, who, operation)
            }
            (nfs_acl3::PROGRAM, nfs_acl3::VERSION) => {
                let operation = Operation::of_acl(call.procedure);
                self.call_v3(call, who, operation)
            }
            (nfs4::limits::PROGRAM, _) => {
                let (low, high) = (nfs3::VERSION, nfs4::limits::VERSION);
                AcceptStatus::ProgramMismatch(VersionRange { low, high }).into()
            }
            (mount3::PROGRAM, mount3::VERSION) => self.call_mount(call, who),
            (nlm4::PROGRAM, nlm4::VERSION) => self.call_nlm(call, who),
            (nsm1::PROGRAM, nsm1::VERSION) => self.call_monitor(call, who),
            (mount3::PROGRAM, _) => only(mount3::VERSION),
            (nlm4::PROGRAM, _) => only(nlm4::VERSION),
            (nsm1::PROGRAM, _) => only(nsm1::VERSION),
            (nfs_acl3::PROGRAM, _) => only(nfs_acl3::VERSION),
            _ => AcceptStatus::ProgramUnavailable.into(),
        }
    }

    fn takes_moved_data(&self, program: u32, version: u32, procedure: u32) -> bool {
        match (program, version) {
            (nfs4::limits::PROGRAM, nfs4::limits::VERSION) => {
                procedure == nfs4::limits::PROCEDURE_COMPOUND
            }
            (nfs3::PROGRAM, nfs3::VERSION) => procedure == nfs3::Procedure::Write.number(),
            _ => false,
        }
    }

    fn back_reply(
        &mut self,
        _connection: ConnectionId,
        token: u64,
        result: Result<&[u8], CallbackError>,
    ) {
        self.shared.back_reply(token, result);
    }

    fn disconnected(&mut self, connection: ConnectionId) {
        if let Some(peer) = self.connections.remove_and_shrink(&connection) {
            self.shared.disconnected(&peer.connection);
        }
    }

    fn turn_over(&mut self, now_ns: u64) -> Option<u64> {
        let disk = self.disk.as_mut()?;
        let next = disk.turn(now_ns);
        // A panic in one request leaves the others to the next turn.
        while let Some(waiting) = disk.take_ready() {
            waiting.run_again(&self.shared);
        }
        next
    }

    fn tick(&mut self, now_ns: u64) {
        self.shared.tick(self.shared.service_time(now_ns));
    }
}

/// Refuses a version of a program that has one version alone.
fn only(version: u32) -> Handled {
    AcceptStatus::ProgramMismatch(VersionRange { low: version, high: version }).into()
}

impl PeerState {
    fn who(&mut self, credential: &Credential<'_>) -> CallerIdentity {
        let Credential::Sys(sys) = credential else { return self.origin.who(credential) };
        if let Some((uid, gid, groups, who)) = &self.last
            && (*uid, *gid, groups) == (sys.uid, sys.gid, &sys.groups)
        {
            return who.clone();
        }
        let who = self.origin.who(credential);
        self.last = Some((sys.uid, sys.gid, sys.groups, who.clone()));
        who
    }
}
