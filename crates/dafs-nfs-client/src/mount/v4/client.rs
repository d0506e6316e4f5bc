//! The client's state at a server: calls behind SEQUENCE, and its session, replaced when lost.
//!
//! Invariants
//! * One thread at a time makes a session; the others wait for it and use it.
//! * Other threads use a new session only when all opens have been reclaimed.

use super::exchange::{Exchange, Message, Outcome};
use super::layouts::Layouts;
use super::reclaim;
use super::session::Session;
use crate::back::BackChannel;
use crate::client::{Options, create_session_args};
use crate::compound::{Compound, Results};
use crate::connection::COMPOUND;
use crate::files::Handle;
use crate::mount::error::{MountError, Result};
use crate::mount::limits::{
    BACK_SLOTS, BIND_PAUSE, HEAD_BYTES, LAYOUT_BYTES_MAX, REQUESTS_MAX, SMALL_RESULT_BYTES,
};
use crate::mount::link::{Link, is_loss};
use crate::mount::open::{Held, Open};
use crate::mount::retry_timer::RetryTimer;
use dafs_mem::{Mutex, RwLock};
use dafs_rpc::client::{Pending, Request};
use dafs_wire::nfs4::{
    BindConnToSessionArgs, ChannelAttributes, ChannelFromClient, ClientOwner, DestroyClientidArgs,
    DestroySessionArgs, ExchangeFlags, ExchangeIdArgs, Op, SequenceStatus, StateProtectArgs,
    Stateid, Status, Verifier,
};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A client of one server.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) link: Arc<Link>,
    pub(crate) minor_version: u32,
    options: Options,
    flags: ExchangeFlags,
    session: RwLock<Arc<Session>>,
    identity: Mutex<Identity>,
    /// The open files, by number.
    opens: Mutex<FxHashMap<u64, Weak<Open>>>,
    opens_made: AtomicU64,
    /// The server has restarted with its sessions and without its opens.
    must_reclaim: AtomicBool,
    begun: Instant,
    /// The time when the lease was renewed last, in milliseconds after `begun`.
    renewed_ms: AtomicU64,
    /// The layouts of files, if the server grants any.
    layouts: Option<Arc<Layouts>>,
    /// The number of the connection that has the back channel.
    called_over: AtomicU64,
    /// The time of the last request for a back channel. Held by the thread that asks.
    asked_to_call: Mutex<Option<Instant>>,
}

/// The role of a client at a server.
#[derive(Debug)]
pub(crate) struct Role {
    minor_version: u32,
    name: Vec<u8>,
    verifier: [u8; 8],
    message_bytes_max: u32,
    /// The roles in EXCHANGE_ID (RFC 8881 13.1).
    flags: ExchangeFlags,
    layouts: Option<Arc<Layouts>>,
}

impl Role {
    /// The role at the mounted server; with `layouts` to use pNFS.
    pub(crate) fn of_server(
        minor_version: u32,
        name: &[u8],
        data_bytes_max: u32,
        layouts: Option<Arc<Layouts>>,
    ) -> Self {
        let flags = match &layouts {
            Some(_) => ExchangeFlags::USE_PNFS_MDS | ExchangeFlags::USE_NON_PNFS,
            None => ExchangeFlags::empty(),
        };
        let message_bytes_max = data_bytes_max + HEAD_BYTES;
        let (name, verifier) = (name.to_vec(), random());
        Self { minor_version, name, verifier, message_bytes_max, flags, layouts }
    }

    /// The role at a data server of the server that `of` is a client of. All data servers speak at
    /// least 4.1.
    pub(crate) fn of_data_server(of: &Client) -> Self {
        Self {
            minor_version: 1,
            name: of.options.owner.clone(),
            verifier: of.options.verifier,
            message_bytes_max: of.options.message_bytes_max,
            flags: ExchangeFlags::USE_PNFS_DS,
            layouts: None,
        }
    }

    fn is_of_data_server(&self) -> bool {
        self.flags == ExchangeFlags::USE_PNFS_DS
    }
}

/// The identity of this client at the server.
#[derive(Debug)]
struct Identity {
    client_id: u64,
    /// The sequence number of the next CREATE_SESSION.
    sequence: u32,
    verifier: [u8; 8],
}

/// The reason why no session could be made.
pub(crate) enum SessionError {
    /// The server answered DELAY: retry after a pause.
    Later(MountError),
    /// The new session is lost, too.
    SessionOver,
    Final(MountError),
}

impl From<MountError> for SessionError {
    fn from(error: MountError) -> Self {
        match error.status() {
            Some(Status::Delay | Status::Grace) => Self::Later(error),
            _ => Self::Final(error),
        }
    }
}

impl Client {
    /// Sends EXCHANGE_ID and makes the first session.
    pub(crate) fn connect(link: Arc<Link>, mut role: Role) -> Result<Arc<Self>> {
        let mut options = Options {
            minor_version: role.minor_version,
            owner: role.name.clone(),
            verifier: role.verifier,
            identity: link.options().identity.clone(),
            slots: REQUESTS_MAX,
            message_bytes_max: role.message_bytes_max,
            // The client wants no delegations. The server must be able to recall layouts.
            back_slots: 0,
            // There is nothing to reclaim from a data server: it has no state of its own.
            reclaim_complete: !role.is_of_data_server(),
            ..Options::new(&role.name)
        };
        let mut retry_timer = link.retry_timer();
        // If the connection has changed since, it is bound when the server reports CB_PATH_DOWN.
        let called_over = link.connected().number;
        let (identity, session) = loop {
            match first_session(&link, &mut options, &mut role, &mut retry_timer) {
                Err(error) if error.status() == Some(Status::Delay) && retry_timer.pause() => {}
                other => break other?,
            }
        };
        let client = Arc::new(Self {
            called_over: AtomicU64::new(called_over),
            asked_to_call: Mutex::default(),
            link,
            minor_version: role.minor_version,
            flags: role.flags,
            layouts: role.layouts,
            options,
            session: RwLock::new(session.clone()),
            identity: Mutex::new(identity),
            opens: Mutex::default(),
            opens_made: AtomicU64::new(0),
            must_reclaim: AtomicBool::new(false),
            begun: Instant::now(),
            renewed_ms: AtomicU64::new(0),
        });
        if !client.options.reclaim_complete {
            return Ok(client);
        }
        match reclaim::complete(&client, &session, &mut retry_timer) {
            // The next call replaces a session that is over already.
            Ok(()) | Err(SessionError::SessionOver | SessionError::Later(_)) => Ok(client),
            Err(SessionError::Final(error)) => Err(error),
        }
    }

    fn current(&self) -> Arc<Session> {
        self.session.read().clone()
    }

    /// The limits of requests that the server granted.
    pub(crate) fn limits(&self) -> ChannelAttributes {
        self.current().granted.fore
    }

    /// A session that is not known to be lost.
    pub(crate) fn session(&self, retry_timer: &mut RetryTimer) -> Result<Arc<Session>> {
        let session = self.current();
        if !session.is_over() {
            return Ok(session);
        }
        let mut identity = self.identity.lock();
        loop {
            let session = self.current();
            if !session.is_over() {
                return Ok(session);
            }
            let last = match self.renew_session(&mut identity, retry_timer) {
                Ok(()) => continue,
                Err(SessionError::SessionOver) => {
                    self.link.lost("the session was lost again and again")
                }
                Err(SessionError::Later(error)) => error,
                Err(SessionError::Final(error)) => return Err(error),
            };
            if !retry_timer.pause() {
                return Err(last);
            }
        }
    }

    /// Makes a session, for a new client id if the server has forgotten the old one.
    fn renew_session(
        &self,
        identity: &mut Identity,
        retry_timer: &mut RetryTimer,
    ) -> Result<(), SessionError> {
        let mut forgotten = self.must_reclaim.load(Ordering::Relaxed);
        let called_over = self.link.connected().number;
        let session = match create(&self.link, &self.options, identity, retry_timer) {
            Err(error) if error.status() == Some(Status::StaleClientId) => {
                self.introduce_again(identity, retry_timer)?;
                forgotten = true;
                create(&self.link, &self.options, identity, retry_timer)?
            }
            Err(error) if error.status() == Some(Status::SeqMisordered) => {
                // Client and server disagree on the client's state; a new verifier starts a new
                // incarnation without state.
                identity.verifier = random();
                self.introduce_again(identity, retry_timer)?;
                forgotten = true;
                create(&self.link, &self.options, identity, retry_timer)?
            }
            other => other?,
        };
        self.called_over.store(called_over, Ordering::Relaxed);
        if forgotten && self.options.reclaim_complete {
            self.must_reclaim.store(true, Ordering::Relaxed);
            if let Some(layouts) = &self.layouts {
                layouts.void();
            }
            let opens: Vec<Arc<Open>> =
                self.opens.lock().values().filter_map(Weak::upgrade).collect();
            reclaim::opens(self, &session, &opens, retry_timer)?;
            self.must_reclaim.store(false, Ordering::Relaxed);
        }
        if self.flags == ExchangeFlags::USE_PNFS_DS && !forgotten {
            // Requests under way that were given up must not be carried out.
            let session_id = self.current().id();
            self.say_once(&Op::DestroySession(DestroySessionArgs { session_id }));
        }
        *self.session.write() = session;
        Ok(())
    }

    fn introduce_again(&self, identity: &mut Identity, retry_timer: &mut RetryTimer) -> Result<()> {
        let verifier = identity.verifier;
        *identity = introduce(&self.link, &self.options, self.flags, verifier, retry_timer)?.0;
        Ok(())
    }

    /// Carries a compound out under a session: SEQUENCE and the operations that `build` appends.
    pub(crate) fn call_under(
        &self,
        session: &Arc<Session>,
        cache_this: bool,
        results_bytes_max: usize,
        build: &dyn Fn(&mut Compound),
        retry_timer: &mut RetryTimer,
    ) -> Outcome {
        let Ok(sequence) = session.take(cache_this) else {
            return Outcome::SessionOver { sent_again: false };
        };
        let mut compound = Compound::new(self.minor_version);
        compound.op(&Op::Sequence(sequence));
        build(&mut compound);
        let message = Message { compound, data: None, sink: None, results_bytes_max };
        let exchange = Exchange::begin(&self.link, session.clone(), sequence, message);
        let outcome = exchange.finish(&self.link, retry_timer);
        if let Outcome::Done { status, .. } = &outcome {
            self.note(*status);
        }
        outcome
    }

    /// Carries a compound out, under new sessions if need be, and retries while the server answers
    /// DELAY. Only its last operation may be one that both changes state and is answered with
    /// DELAY.
    pub(crate) fn call(
        &self,
        cache_this: bool,
        results_bytes_max: usize,
        build: &dyn Fn(&mut Compound),
    ) -> Result<Results> {
        let mut retry_timer = self.link.retry_timer();
        loop {
            let results = self.call_once(cache_this, results_bytes_max, build, &mut retry_timer)?;
            match results.status() {
                Status::Delay | Status::Grace if retry_timer.pause() => {}
                _ => return Ok(results),
            }
        }
    }

    /// As [`call`](Self::call), but returns DELAY to the caller.
    fn call_once(
        &self,
        cache_this: bool,
        results_bytes_max: usize,
        build: &dyn Fn(&mut Compound),
        retry_timer: &mut RetryTimer,
    ) -> Result<Results> {
        loop {
            let session = self.session(retry_timer)?;
            match self.call_under(&session, cache_this, results_bytes_max, build, retry_timer) {
                Outcome::Done { results, .. } => return Ok(results),
                Outcome::Repeat | Outcome::SessionOver { .. } => {
                    if !retry_timer.pause() {
                        return Err(self.link.lost("the session was lost again and again"));
                    }
                }
                Outcome::Failed(error) => return Err(error),
            }
        }
    }

    /// Carries an idempotent compound out.
    pub(crate) fn ask(&self, build: &dyn Fn(&mut Compound)) -> Result<Results> {
        self.call(false, SMALL_RESULT_BYTES, build)
    }

    /// Carries a compound out that asks for a layout or a device, whose results may be long.
    pub(crate) fn ask_long(&self, build: &dyn Fn(&mut Compound)) -> Result<Results> {
        self.call(false, SMALL_RESULT_BYTES + LAYOUT_BYTES_MAX as usize, build)
    }

    /// As [`ask_long`](Self::ask_long), for results that the caller can do without: DELAY is
    /// returned.
    pub(crate) fn ask_once(&self, build: &dyn Fn(&mut Compound)) -> Result<Results> {
        let room = SMALL_RESULT_BYTES + LAYOUT_BYTES_MAX as usize;
        self.call_once(false, room, build, &mut self.link.retry_timer())
    }

    /// Carries out a compound that is not idempotent, so that the server keeps its answer in the
    /// replay cache.
    pub(crate) fn change(&self, build: &dyn Fn(&mut Compound)) -> Result<Results> {
        self.call(true, SMALL_RESULT_BYTES, build)
    }

    /// Processes the server's flags about the client's state (RFC 8881 18.46.3).
    pub(crate) fn note(&self, status: SequenceStatus) {
        self.renewed_ms.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        if status.intersects(SequenceStatus::RESTART_RECLAIM_NEEDED)
            && !self.must_reclaim.swap(true, Ordering::Relaxed)
        {
            self.current().end();
        }
        let down = SequenceStatus::CB_PATH_DOWN | SequenceStatus::CB_PATH_DOWN_SESSION;
        if self.layouts.is_some() && status.intersects(down) {
            self.let_call_back();
        }
    }

    /// Binds the back channel to the current connection, until the server has agreed.
    fn let_call_back(&self) {
        let connected = self.link.connected();
        if self.called_over.load(Ordering::Relaxed) == connected.number {
            return;
        }
        let Some(mut asked) = self.asked_to_call.try_lock() else { return };
        if asked.is_some_and(|time| time.elapsed() < BIND_PAUSE) {
            return;
        }
        *asked = Some(Instant::now());
        let mut compound = Compound::new(self.minor_version);
        compound.op(&Op::BindConnToSession(BindConnToSessionArgs {
            session_id: self.current().id(),
            direction: ChannelFromClient::ForeOrBoth,
            use_rdma: false,
        }));
        let args = [compound.bytes()];
        let request = Request::new(COMPOUND, &args, SMALL_RESULT_BYTES);
        let answer = connected.rpc.submit_request(&request).and_then(Pending::wait);
        let agreed = answer.is_ok_and(|answer| {
            Results::new(answer).is_ok_and(|results| results.status() == Status::Ok)
        });
        if agreed {
            self.called_over.store(connected.number, Ordering::Relaxed);
        }
    }

    /// The layouts of files, if the server grants any.
    pub(crate) fn layouts(&self) -> Option<&Arc<Layouts>> {
        self.layouts.as_ref()
    }

    /// True when no other open of the same file is left.
    pub(crate) fn is_last_open(&self, open: &Open) -> bool {
        let opens: Vec<_> = self.opens.lock().values().filter_map(Weak::upgrade).collect();
        !opens.iter().any(|other| other.number != open.number && other.handle == open.handle)
    }

    /// An open of this file.
    pub(crate) fn open_of(&self, file: &Handle, write: bool) -> Option<Arc<Open>> {
        let mut opens: Vec<_> = self.opens.lock().values().filter_map(Weak::upgrade).collect();
        let at = opens.iter().position(|open| open.handle == *file && (open.write || !write))?;
        Some(opens.swap_remove(at))
    }

    /// The time since the lease was renewed.
    pub(crate) fn idle(&self) -> Duration {
        let renewed = Duration::from_millis(self.renewed_ms.load(Ordering::Relaxed));
        self.begun.elapsed().saturating_sub(renewed)
    }

    /// A number for a new open.
    pub(crate) fn open_number(&self) -> u64 {
        self.opens_made.fetch_add(1, Ordering::Relaxed)
    }

    /// Remembers an open, to reclaim it.
    pub(crate) fn remember(&self, open: &Arc<Open>) {
        self.opens.lock().insert(open.number, Arc::downgrade(open));
    }

    pub(crate) fn forget(&self, open: &Open) {
        self.opens.lock().remove(&open.number);
    }

    /// The state-id of an open.
    pub(crate) fn stateid(&self, open: &Open) -> Result<Stateid> {
        let Held { lost, .. } = *open.held();
        match lost {
            Some(status) => Err(MountError::OpenLost(status)),
            None => Ok(open.stateid()),
        }
    }

    /// Opens a file again whose open the server has lost, unless another thread has done so since
    /// `stateid` was used.
    pub(crate) fn reopen(
        &self,
        open: &Open,
        stateid: Stateid,
        error: &MountError,
        retry_timer: &mut RetryTimer,
    ) -> Result<()> {
        if !retry_timer.pause() {
            return Err(error.clone());
        }
        loop {
            let session = self.session(retry_timer)?;
            // This is not the lock of `held`: transfers take that while they have a slot, and this
            // waits for a slot.
            let one_at_a_time = open.reopening();
            let held = *open.held();
            if held.stateid.other != stateid.other || held.lost.is_some() {
                return Ok(());
            }
            let last = match reclaim::again(self, &session, open, retry_timer) {
                Ok(fresh) => {
                    open.held().stateid = fresh;
                    return Ok(());
                }
                Err(SessionError::Later(error)) => error,
                Err(SessionError::SessionOver) => {
                    self.link.lost("the session was lost again and again")
                }
                Err(SessionError::Final(error)) => match error.status() {
                    Some(status) => {
                        open.held().lost = Some(status);
                        return Err(MountError::OpenLost(status));
                    }
                    None => return Err(error),
                },
            };
            drop(one_at_a_time);
            if !retry_timer.pause() {
                return Err(last);
            }
        }
    }

    /// Ends the session and the client. Best effort: otherwise they end with the lease.
    pub(crate) fn end(&self) {
        let session = self.current();
        if session.is_over() {
            return;
        }
        session.end();
        let identity = self.identity.lock();
        let session_id = session.id();
        let client_id = identity.client_id;
        self.say_once(&Op::DestroySession(DestroySessionArgs { session_id }));
        self.say_once(&Op::DestroyClientid(DestroyClientidArgs { client_id }));
    }

    /// Sends an operation outside of any session; its failure does not matter.
    fn say_once(&self, op: &Op<'_>) {
        let mut compound = Compound::new(self.minor_version);
        compound.op(op);
        let args = [compound.bytes()];
        let request = Request::new(COMPOUND, &args, SMALL_RESULT_BYTES);
        let answer = self.link.connected().rpc.submit_request(&request).and_then(Pending::wait);
        if let Err(error) = answer {
            tracing::debug!(%error, "a server did not answer a farewell");
        }
    }
}

/// Sends a compound without a session, and retries until it is answered.
fn plain(link: &Link, compound: &Compound, retry_timer: &mut RetryTimer) -> Result<Results> {
    let mut connected = link.connected();
    loop {
        let args = [compound.bytes()];
        let request = Request::new(COMPOUND, &args, SMALL_RESULT_BYTES);
        match connected.rpc.submit_request(&request).and_then(|pending| link.wait(pending)) {
            Ok(answer) => {
                link.note_answer();
                return Ok(Results::new(answer)?);
            }
            Err(error) if is_loss(&error) => {
                connected = link.reconnect(&connected, &error, retry_timer)?;
            }
            Err(error) => return Err(link.rejected(error)),
        }
    }
}

fn first_session(
    link: &Link,
    options: &mut Options,
    role: &mut Role,
    retry_timer: &mut RetryTimer,
) -> Result<(Identity, Arc<Session>)> {
    let verifier = options.verifier;
    let (mut identity, can) = introduce(link, options, role.flags, verifier, retry_timer)?;
    if role.is_of_data_server() && !can.contains(ExchangeFlags::USE_PNFS_DS) {
        return Err(MountError::protocol("a data server says that it is none"));
    }
    if !can.contains(ExchangeFlags::USE_PNFS_MDS) {
        role.layouts = None;
    }
    if let Some(layouts) = &role.layouts
        && options.back_slots == 0
    {
        options.back_slots = BACK_SLOTS;
        options.back_handler = layouts.back_handler();
        link.take_calls()?;
    }
    let session = create(link, options, &mut identity, retry_timer)?;
    Ok((identity, session))
}

/// EXCHANGE_ID; also returns the server's roles.
fn introduce(
    link: &Link,
    options: &Options,
    flags: ExchangeFlags,
    verifier: [u8; 8],
    retry_timer: &mut RetryTimer,
) -> Result<(Identity, ExchangeFlags)> {
    let mut compound = Compound::new(options.minor_version);
    compound.op(&Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier: Verifier(verifier), owner_id: &options.owner },
        flags,
        state_protect: StateProtectArgs::None,
        implementation: None,
    }));
    let mut results = plain(link, &compound, retry_timer)?;
    let result = results.take_exchange_id()?;
    let (client_id, sequence) = (result.client_id, result.sequence_id);
    Ok((Identity { client_id, sequence, verifier }, result.flags))
}

/// CREATE_SESSION. Its sequence number grows only when the server has answered, so that a retry
/// after a lost connection gets the answer to the first one (RFC 8881 18.36.4).
fn create(
    link: &Link,
    options: &Options,
    identity: &mut Identity,
    retry_timer: &mut RetryTimer,
) -> Result<Arc<Session>> {
    let mut compound = Compound::new(options.minor_version);
    compound.op(&Op::CreateSession(create_session_args(
        options,
        identity.client_id,
        identity.sequence,
    )));
    let mut results = plain(link, &compound, retry_timer)?;
    let result = results.take_create_session()?;
    identity.sequence = identity.sequence.wrapping_add(1);
    if options.back_slots > 0 {
        let (id, slots) = (result.session_id, result.back.requests_max);
        let handler = options.back_handler.clone();
        link.answer(Arc::new(BackChannel::new(id, slots, handler)));
    }
    Ok(Arc::new(Session::new(result)))
}

/// Random bytes that distinguish this client from others; the time where there are none.
pub(crate) fn random() -> [u8; 8] {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |time| time.as_nanos() as u64).to_ne_bytes();
    }
    bytes
}
