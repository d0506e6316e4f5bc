//! A client of a world of crashes: the shipped session with its recovery, under an application that
//! predicts the answer of each operation.
//!
//! Invariants
//! * Every operation is answered, lost, or retried after a refusal that promises no effect. The
//!   models learn which.

mod answer;
mod batch;
mod board;
mod gate;
mod issue;
mod job;
mod visit;

use super::Shared;
use super::model::names::Names;
use super::model::slots::Slots;
use super::model::vault::Holder;
use super::plan::ClientPlan;
use crate::common::{OPENING_TIME_MAX, poll};
use crate::limits::{FIRST_CLIENT_HOST, SERVER_HOST};
use board::OpenBoard;
use dafs_client::core::{
    Completed, Done, Piece, RegisteredMemory, SessionConfig, SessionCore, Stage,
};
use dafs_dat::sim::{SimAdapter, SimNetwork, SimRng};
use dafs_dat::{Adapter, Address, Instant};
use dafs_mem::Buffer;
use dafs_wire::dafs::{FileHandle, StateId, Verifier};
use job::Job;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
pub(super) use visit::content;

/// The longest time in which a session replaces its connection.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(120);

/// Pieces of memory for transfers.
const PIECES: usize = 16;

const PIECE_BYTES: usize = 8192;

pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) host: u32,
    plan: ClientPlan,
    rng: SimRng,
    adapter: SimAdapter,
    session: Option<SessionCore>,
    session_since: Instant,
    memory: Option<Arc<RegisteredMemory>>,
    pieces_free: Vec<usize>,
    /// The run (process) of the client.
    run: u64,
    flights: BTreeMap<u64, Flight>,
    /// Operations to retry, and when.
    retries: Vec<(Instant, Job)>,
    last_tag: u64,
    pub(crate) names: Names,
    pub(crate) slots: Slots,
    handles: Handles,
    /// The latest write verifier from the server.
    verifier: Option<Verifier>,
    /// A visit is under way.
    visiting: bool,
    board: Option<OpenBoard>,
    opening_board: bool,
    /// The outcome of the first member of a chain, if known.
    chained: Option<Chained>,
    remaining: u32,
    next_action: Instant,
}

/// An operation that was submitted.
#[derive(Debug)]
struct Flight {
    job: Job,
    /// Its memory.
    piece: Option<usize>,
    /// Number of the server's ends when it was submitted.
    ends: u32,
    since: Instant,
}

/// The outcome of the first member of a chain; the second one is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chained {
    Open(FileHandle, StateId),
    Refused,
}

/// The handles that a client looks up first.
#[derive(Debug, Default)]
struct Handles {
    dirs: BTreeMap<u8, FileHandle>,
    data: Option<FileHandle>,
    log: Option<FileHandle>,
    gate: Option<FileHandle>,
}

impl Client {
    pub(crate) fn new(number: usize, plan: ClientPlan, network: &SimNetwork) -> Self {
        let host = FIRST_CLIENT_HOST + number as u32;
        let mut rng = SimRng::new(plan.seed);
        Self {
            number,
            host,
            remaining: plan.operations,
            plan,
            adapter: network.adapter(host),
            session: None,
            session_since: Instant(0),
            memory: None,
            pieces_free: Vec::new(),
            run: rng.bits(),
            rng,
            flights: BTreeMap::new(),
            retries: Vec::new(),
            last_tag: 0,
            names: Names::default(),
            slots: Slots::default(),
            handles: Handles::default(),
            verifier: None,
            visiting: false,
            board: None,
            opening_board: false,
            chained: None,
            next_action: Instant(0),
        }
    }

    /// The name of a place of a client.
    pub(crate) fn name(client: usize, name: u8) -> Vec<u8> {
        format!("c{client}n{name}").into_bytes()
    }

    pub(crate) fn parse_name(name: &[u8]) -> Option<(usize, u8)> {
        let text = std::str::from_utf8(name).ok()?;
        let (client, name) = text.strip_prefix('c')?.split_once('n')?;
        Some((client.parse().ok()?, name.parse().ok()?))
    }

    /// The name of its data file.
    pub(crate) fn data_name(number: usize) -> Vec<u8> {
        format!("data{number}").into_bytes()
    }

    fn has_work(&self) -> bool {
        let waits = !self.retries.is_empty() || !self.flights.is_empty();
        self.remaining > 0 || waits || self.board.is_some()
    }

    /// True when it will start nothing more by itself.
    pub(crate) fn is_done(&self) -> bool {
        !self.has_work() && self.session.is_none()
    }

    /// Stops starting operations.
    pub(crate) fn rest(&mut self) {
        self.remaining = 0;
    }

    /// Its state, for reports.
    pub(crate) fn status(&self) -> String {
        let stage = self.session.as_ref().map(SessionCore::stage);
        format!(
            "c{} {stage:?}: {} to do, in flight {:?}, again {:?}",
            self.number, self.remaining, self.flights, self.retries
        )
    }

    /// The time of its next turn if nothing arrives.
    pub(crate) fn next(&self) -> Option<Instant> {
        let Some(session) = &self.session else {
            return self.has_work().then_some(self.next_action);
        };
        let opening = self.session_since + OPENING_TIME_MAX;
        let wants = match session.stage() {
            Stage::Connecting | Stage::Opening => Some(opening),
            Stage::Ready if self.remaining > 0 && self.flights.len() < self.plan.depth => {
                Some(self.next_action)
            }
            _ => None,
        };
        let ready = session.stage() == Stage::Ready;
        let retry = self.retries.iter().map(|(at, _)| *at).min().filter(|_| ready);
        session.next_timeout().into_iter().chain(wants).chain(retry).min()
    }

    /// Handles events, then goes on.
    pub(crate) fn turn(&mut self, shared: &mut Shared) -> Result<(), String> {
        poll((&mut self.adapter, &mut self.session), self.session_since, shared.common.now);
        self.collect(shared)?;
        self.act(shared)?;
        self.adapter.flush();
        Ok(())
    }

    fn collect(&mut self, shared: &mut Shared) -> Result<(), String> {
        while let Some(Completed { tag, done }) =
            self.session.as_mut().and_then(SessionCore::take_completed)
        {
            let flight = self.flights.remove(&tag);
            let Flight { job, piece, ends, since } =
                flight.ok_or_else(|| format!("tag {tag} is over twice"))?;
            let text = format!("c{} {job:?}", self.number);
            if !matches!(done, Done::Lost(_) | Done::InDoubt(_)) {
                shared.leases.renewed(self.number, since);
            }
            shared.common.digest.word(tag);
            shared.common.digest.word(shared.common.now.0);
            let result = self.completed(shared, job, piece, ends, done);
            result.map_err(|error| format!("{text}: {error}"))?;
            if let Some(piece) = piece {
                self.pieces_free.push(piece);
            }
        }
        if self.session.as_ref().is_some_and(|session| session.stage() == Stage::Over) {
            self.session_over(shared, false)?;
        }
        Ok(())
    }

    /// Connects, issues operations, or ends the session.
    fn act(&mut self, shared: &mut Shared) -> Result<(), String> {
        let now = shared.common.now;
        let Some(session) = &mut self.session else {
            if self.has_work() && now >= self.next_action {
                self.connect(shared);
            }
            return Ok(());
        };
        if session.stage() != Stage::Ready {
            return Ok(());
        }
        if self.memory.is_none() {
            shared.common.counts.sessions += 1;
            shared.session_ready(Holder { client: self.number, run: self.run });
            let buffer = Arc::new(Buffer::zeroed(PIECES * PIECE_BYTES).map_err(|e| e.to_string())?);
            let memory = session.register(&mut self.adapter, buffer);
            self.memory = Some(memory.map_err(|error| error.to_string())?);
            self.pieces_free = (0..PIECES).collect();
            if self.plan.boards {
                session.want_back(&mut self.adapter, now);
            }
        }
        // Recalls first: a recalled delegation must not be used.
        self.handle_recalls(shared)?;
        while let Some(due) = self.retries.iter().position(|(at, _)| *at <= now) {
            let (_, job) = self.retries.swap_remove(due);
            self.submit(shared, job)?;
        }
        while self.remaining > 0
            && self.flights.len() < self.plan.depth
            && now >= self.next_action
            && self.session.is_some()
        {
            let steps = self.rng.below(self.plan.think_steps_max + 1);
            self.next_action = now + Duration::from_micros(10 * steps);
            self.issue(shared)?;
        }
        self.handle_recalls(shared)?;
        if !self.has_work()
            && let Some(session) = &mut self.session
        {
            session.close(&mut self.adapter, now);
        }
        Ok(())
    }

    fn connect(&mut self, shared: &mut Shared) {
        let plan = &self.plan;
        let name = format!("client {}", self.number).into_bytes();
        let mut config = SessionConfig::new(name, Verifier(self.run.to_be_bytes()));
        config.byte_order = plan.byte_order;
        config.checksums = plan.checksums;
        config.requests = plan.requests;
        config.requests_max = plan.requests;
        config.inline_bytes = plan.inline_bytes;
        config.fence_id = Some(Self::fence_id(self.number));
        config.recovery = Some(RECOVERY_TIME_MAX);
        config.session_differentiator = (self.rng.bits() as u32).to_be_bytes();
        shared.common.note(|| format!("c{} connects", self.number));
        self.session_since = shared.common.now;
        let address = Address::Sim(SERVER_HOST);
        let now = shared.common.now;
        self.session = SessionCore::connect(&mut self.adapter, config, &address, now).ok();
        self.next_action = now + Duration::from_micros(10 * self.rng.log_below(20_000));
    }

    /// Ends the session; `killed` if the process ended.
    fn session_over(&mut self, shared: &mut Shared, killed: bool) -> Result<(), String> {
        for (_, Flight { job, .. }) in std::mem::take(&mut self.flights) {
            self.lost(shared, job);
        }
        self.memory = None;
        if let Some(mut session) = self.session.take() {
            let failure = session.failure().map(ToString::to_string);
            shared.common.note(|| format!("c{} session over: {failure:?}", self.number));
            if !killed {
                session.release(&mut self.adapter);
            }
        }
        self.next_action =
            shared.common.now + Duration::from_micros(10 * self.rng.log_below(50_000));
        Ok(())
    }

    /// Ends the process without a disconnect, and starts it again as a new instance.
    pub(crate) fn kill(&mut self, shared: &mut Shared) -> Result<(), String> {
        shared.common.note(|| format!("c{} is killed", self.number));
        self.adapter = shared.common.network.adapter(self.host);
        self.visiting = false;
        shared.leases.killed(self.number);
        let steps = |job: &Job| {
            matches!(
                job,
                Job::OpenVault { .. }
                    | Job::Guarded { .. }
                    | Job::Fence { .. }
                    | Job::OpenBoard { .. }
                    | Job::Board(_)
                    | Job::Return(_)
            )
        };
        self.retries.retain(|(_, job)| !steps(job));
        self.session_over(shared, true)?;
        self.board_gone(shared);
        self.run = self.rng.bits();
        Ok(())
    }

    fn piece(&self, piece: usize, len: usize) -> Option<Piece> {
        Piece::new(self.memory.as_ref()?, piece * PIECE_BYTES, u32::try_from(len).ok()?)
    }
}
