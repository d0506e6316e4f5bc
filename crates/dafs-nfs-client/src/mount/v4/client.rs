//! The client that a server knows: calls behind SEQUENCE, and its session, made again when lost.
//!
//! Invariants
//! * One thread at a time makes a session; the others wait for it and use it.
//! * A new session is used by others only when what was open has been taken back.

use super::exchange::{Exchange, Message, Outcome};
use super::reclaim;
use super::session::Session;
use crate::client::{Options, create_session_args};
use crate::compound::{Compound, Results};
use crate::connection::COMPOUND;
use crate::error::NfsError;
use crate::mount::error::{MountError, Result};
use crate::mount::limits::{HEAD_BYTES, REQUESTS_MAX, SMALL_RESULT_BYTES};
use crate::mount::link::{Link, is_loss};
use crate::mount::open::{Held, Open};
use crate::mount::patience::Patience;
use dafs_rpc::client::{Pending, Request};
use dafs_wire::nfs4::{
    ChannelAttributes, ClientOwner, DestroyClientidArgs, DestroySessionArgs, ExchangeFlags,
    ExchangeIdArgs, Op, OpNum, ResultBody, SequenceStatus, StateProtectArgs, Stateid, Status,
    Verifier,
};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// A client of one server.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) link: Arc<Link>,
    pub(crate) minor_version: u32,
    options: Options,
    session: RwLock<Arc<Session>>,
    identity: Mutex<Identity>,
    /// The open files, by number.
    opens: Mutex<FxHashMap<u64, Weak<Open>>>,
    opens_made: AtomicU64,
    /// The server said that it has restarted with its sessions and without its opens.
    must_reclaim: AtomicBool,
    begun: Instant,
    /// When the lease was renewed last, in milliseconds after `begun`.
    renewed_ms: AtomicU64,
}

/// What the server knows this client by.
#[derive(Debug)]
struct Identity {
    client_id: u64,
    /// The number of the next CREATE_SESSION.
    sequence: u32,
    verifier: [u8; 8],
}

/// Why no session could be made this time.
pub(crate) enum Setback {
    /// The same once more, after a pause.
    Later(MountError),
    /// The new session is lost too.
    SessionOver,
    Final(MountError),
}

impl From<MountError> for Setback {
    fn from(error: MountError) -> Self {
        match error.status() {
            Some(Status::Delay | Status::Grace) => Self::Later(error),
            _ => Self::Final(error),
        }
    }
}

impl Client {
    /// Introduces a client and makes its first session.
    pub(crate) fn connect(
        link: Arc<Link>,
        minor_version: u32,
        name: &[u8],
        data_bytes_max: u32,
    ) -> Result<Arc<Self>> {
        let options = Options {
            minor_version,
            owner: name.to_vec(),
            verifier: random(),
            identity: link.options().identity.clone(),
            slots: REQUESTS_MAX,
            message_bytes_max: data_bytes_max + HEAD_BYTES,
            // No delegations are wanted, and nothing else would be called back for.
            back_slots: 0,
            ..Options::new(name)
        };
        let mut patience = link.patience();
        let (identity, session) = loop {
            match first_session(&link, &options, &mut patience) {
                Err(error) if error.status() == Some(Status::Delay) && patience.pause() => {}
                other => break other?,
            }
        };
        let client = Arc::new(Self {
            link,
            minor_version,
            options,
            session: RwLock::new(session.clone()),
            identity: Mutex::new(identity),
            opens: Mutex::default(),
            opens_made: AtomicU64::new(0),
            must_reclaim: AtomicBool::new(false),
            begun: Instant::now(),
            renewed_ms: AtomicU64::new(0),
        });
        match reclaim::complete(&client, &session, &mut patience) {
            // A session that is over already is replaced by the next call.
            Ok(()) | Err(Setback::SessionOver | Setback::Later(_)) => Ok(client),
            Err(Setback::Final(error)) => Err(error),
        }
    }

    fn current(&self) -> Arc<Session> {
        self.session.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the server granted for requests.
    pub(crate) fn limits(&self) -> ChannelAttributes {
        self.current().granted.fore
    }

    fn opens(&self) -> MutexGuard<'_, FxHashMap<u64, Weak<Open>>> {
        self.opens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session that is not known to be lost.
    pub(crate) fn session(&self, patience: &mut Patience) -> Result<Arc<Session>> {
        let session = self.current();
        if !session.is_over() {
            return Ok(session);
        }
        let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let session = self.current();
            if !session.is_over() {
                return Ok(session);
            }
            let last = match self.renew_session(&mut identity, patience) {
                Ok(()) => continue,
                Err(Setback::SessionOver) => self.link.lost("the session was lost again and again"),
                Err(Setback::Later(error)) => error,
                Err(Setback::Final(error)) => return Err(error),
            };
            if !patience.pause() {
                return Err(last);
            }
        }
    }

    /// Makes a session, for a new client if the server has forgotten the old one.
    fn renew_session(
        &self,
        identity: &mut Identity,
        patience: &mut Patience,
    ) -> Result<(), Setback> {
        let mut forgotten = self.must_reclaim.load(Ordering::Relaxed);
        let session = match create(&self.link, &self.options, identity, patience) {
            Err(error) if error.status() == Some(Status::StaleClientId) => {
                *identity = introduce(&self.link, &self.options, identity.verifier, patience)?;
                forgotten = true;
                create(&self.link, &self.options, identity, patience)?
            }
            Err(error) if error.status() == Some(Status::SeqMisordered) => {
                // Client and server do not agree on the past; another incarnation has none.
                identity.verifier = random();
                *identity = introduce(&self.link, &self.options, identity.verifier, patience)?;
                forgotten = true;
                create(&self.link, &self.options, identity, patience)?
            }
            other => other?,
        };
        if forgotten {
            self.must_reclaim.store(true, Ordering::Relaxed);
            let opens: Vec<Arc<Open>> = self.opens().values().filter_map(Weak::upgrade).collect();
            reclaim::opens(self, &session, &opens, patience)?;
            self.must_reclaim.store(false, Ordering::Relaxed);
        }
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = session;
        Ok(())
    }

    /// Carries a compound out under a session: SEQUENCE and what `build` appends.
    pub(crate) fn call_under(
        &self,
        session: &Arc<Session>,
        cache_this: bool,
        results_bytes_max: usize,
        build: &dyn Fn(&mut Compound),
        patience: &mut Patience,
    ) -> Outcome {
        let Ok(sequence) = session.take(cache_this) else { return Outcome::SessionOver };
        let mut compound = Compound::new(self.minor_version);
        compound.op(&Op::Sequence(sequence));
        build(&mut compound);
        let message = Message { compound, data: None, sink: None, results_bytes_max };
        let exchange = Exchange::begin(&self.link, session.clone(), sequence, message);
        let outcome = exchange.finish(&self.link, patience);
        if let Outcome::Done { status, .. } = &outcome {
            self.note(*status);
        }
        outcome
    }

    /// Carries a compound out, under new sessions if need be, and again while the server asks for
    /// time. At most its last operation may be one that asks for time and changes something.
    pub(crate) fn call(
        &self,
        cache_this: bool,
        results_bytes_max: usize,
        build: &dyn Fn(&mut Compound),
    ) -> Result<Results> {
        let mut patience = self.link.patience();
        loop {
            let session = self.session(&mut patience)?;
            match self.call_under(&session, cache_this, results_bytes_max, build, &mut patience) {
                Outcome::Done { results, .. } => match results.status() {
                    Status::Delay | Status::Grace if patience.pause() => {}
                    _ => return Ok(results),
                },
                Outcome::Repeat | Outcome::SessionOver => {
                    if !patience.pause() {
                        return Err(self.link.lost("the session was lost again and again"));
                    }
                }
                Outcome::Failed(error) => return Err(error),
            }
        }
    }

    /// A call that changes nothing, or the same when it is repeated.
    pub(crate) fn ask(&self, build: &dyn Fn(&mut Compound)) -> Result<Results> {
        self.call(false, SMALL_RESULT_BYTES, build)
    }

    /// A call that must not be carried out twice, so that the server keeps its answer.
    pub(crate) fn change(&self, build: &dyn Fn(&mut Compound)) -> Result<Results> {
        self.call(true, SMALL_RESULT_BYTES, build)
    }

    /// Minds what the server says about the client's state (RFC 8881 18.46.3).
    pub(crate) fn note(&self, status: SequenceStatus) {
        self.renewed_ms.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        if status.intersects(SequenceStatus::RESTART_RECLAIM_NEEDED)
            && !self.must_reclaim.swap(true, Ordering::Relaxed)
        {
            self.current().end();
        }
    }

    /// For how long nothing has renewed the lease.
    pub(crate) fn idle(&self) -> Duration {
        let renewed = Duration::from_millis(self.renewed_ms.load(Ordering::Relaxed));
        self.begun.elapsed().saturating_sub(renewed)
    }

    /// A number for a new open.
    pub(crate) fn open_number(&self) -> u64 {
        self.opens_made.fetch_add(1, Ordering::Relaxed)
    }

    /// Remembers an open, so that it can be taken back.
    pub(crate) fn remember(&self, open: &Arc<Open>) {
        self.opens().insert(open.number, Arc::downgrade(open));
    }

    pub(crate) fn forget(&self, open: &Open) {
        self.opens().remove(&open.number);
    }

    /// The name of an open.
    pub(crate) fn stateid(&self, open: &Open) -> Result<Stateid> {
        let Held { lost, .. } = *open.held();
        match lost {
            Some(status) => Err(MountError::OpenLost(status)),
            None => Ok(open.stateid()),
        }
    }

    /// Opens a file again that the server does not know to be open any more, unless another thread
    /// has done it since `stateid` was used.
    pub(crate) fn reopen(
        &self,
        open: &Open,
        stateid: Stateid,
        error: &MountError,
        patience: &mut Patience,
    ) -> Result<()> {
        if !patience.pause() {
            return Err(error.clone());
        }
        loop {
            let session = self.session(patience)?;
            // Not the lock of what is held: transfers look at that while they have a slot, and a
            // slot is waited for here.
            let one_at_a_time = open.reopening();
            let held = *open.held();
            if held.stateid.other != stateid.other || held.lost.is_some() {
                return Ok(());
            }
            let last = match reclaim::again(self, &session, open, patience) {
                Ok(fresh) => {
                    open.held().stateid = fresh;
                    return Ok(());
                }
                Err(Setback::Later(error)) => error,
                Err(Setback::SessionOver) => self.link.lost("the session was lost again and again"),
                Err(Setback::Final(error)) => match error.status() {
                    Some(status) => {
                        open.held().lost = Some(status);
                        return Err(MountError::OpenLost(status));
                    }
                    None => return Err(error),
                },
            };
            drop(one_at_a_time);
            if !patience.pause() {
                return Err(last);
            }
        }
    }

    /// Ends the session and the client. Best effort: the lease ends them otherwise.
    pub(crate) fn end(&self) {
        let session = self.current();
        if session.is_over() {
            return;
        }
        session.end();
        let identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        let connected = self.link.connected();
        let session_id = session.id();
        let client_id = identity.client_id;
        for op in [
            Op::DestroySession(DestroySessionArgs { session_id }),
            Op::DestroyClientid(DestroyClientidArgs { client_id }),
        ] {
            let mut compound = Compound::new(self.minor_version);
            compound.op(&op);
            let args = [compound.bytes()];
            let request = Request::new(COMPOUND, &args, SMALL_RESULT_BYTES);
            // Whether it worked makes no difference to anybody.
            let _ = connected.rpc.submit_request(&request).and_then(Pending::wait);
        }
    }
}

/// Sends a compound without a session until it is answered.
fn plain(link: &Link, compound: &Compound, patience: &mut Patience) -> Result<Results> {
    let mut connected = link.connected();
    loop {
        let args = [compound.bytes()];
        let request = Request::new(COMPOUND, &args, SMALL_RESULT_BYTES);
        match connected.rpc.submit_request(&request).and_then(Pending::wait) {
            Ok(answer) => return Ok(Results::new(answer)?),
            Err(error) if is_loss(&error) => {
                connected = link.reconnect(&connected, &error, patience)?;
            }
            Err(error) => return Err(MountError::Rejected(error)),
        }
    }
}

fn first_session(
    link: &Link,
    options: &Options,
    patience: &mut Patience,
) -> Result<(Identity, Arc<Session>)> {
    let mut identity = introduce(link, options, options.verifier, patience)?;
    let session = create(link, options, &mut identity, patience)?;
    Ok((identity, session))
}

/// EXCHANGE_ID.
fn introduce(
    link: &Link,
    options: &Options,
    verifier: [u8; 8],
    patience: &mut Patience,
) -> Result<Identity> {
    let mut compound = Compound::new(options.minor_version);
    compound.op(&Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier: Verifier(verifier), owner_id: &options.owner },
        flags: ExchangeFlags::empty(),
        state_protect: StateProtectArgs::None,
        implementation: None,
    }));
    match plain(link, &compound, patience)?.take(OpNum::ExchangeId)? {
        ResultBody::ExchangeId(result) => {
            let (client_id, sequence) = (result.client_id, result.sequence_id);
            Ok(Identity { client_id, sequence, verifier })
        }
        _ => Err(NfsError::Unexpected("no result of EXCHANGE_ID").into()),
    }
}

/// CREATE_SESSION. Its number grows only when the server has answered, so that a repetition after
/// a lost connection gets the answer to the first one (RFC 8881 18.36.4).
fn create(
    link: &Link,
    options: &Options,
    identity: &mut Identity,
    patience: &mut Patience,
) -> Result<Arc<Session>> {
    let mut compound = Compound::new(options.minor_version);
    compound.op(&Op::CreateSession(create_session_args(
        options,
        identity.client_id,
        identity.sequence,
    )));
    let mut results = plain(link, &compound, patience)?;
    match results.take(OpNum::CreateSession)? {
        ResultBody::CreateSession(result) => {
            identity.sequence = identity.sequence.wrapping_add(1);
            Ok(Arc::new(Session::new(result)))
        }
        _ => Err(NfsError::Unexpected("no result of CREATE_SESSION").into()),
    }
}

/// Random bytes, to be told from other clients by. The time will do where there are none.
pub(crate) fn random() -> [u8; 8] {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |time| time.as_nanos() as u64).to_ne_bytes();
    }
    bytes
}
