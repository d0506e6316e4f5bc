//! One world of crashes: everything that follows from one seed.

use super::client::Client;
use super::model::board::Board;
use super::model::gate::Gate;
use super::model::lease::LeaseBook;
use super::model::log::Log;
use super::model::vault::Vault;
use super::plan::{CrashOptions, Danger, EndAt, Fault, FaultKind, Plan};
use super::undo::UndoDirectory;
use super::{BOARDS, DIRECTORIES, LockCounts, Shared, VAULTS, audit};
use crate::common::{Common, WorkCounts};
use crate::disk::{JournalDisk, Power, SimDisk};
use crate::limits::{
    FIRST_CLIENT_HOST, LEASE, REST_TIME_MAX, SERVER_HOST, STEPS_MAX, STILL_STEPS_MAX,
    WORLD_TIME_MAX,
};
use crate::records::{Forgets, SimRecords};
use crate::server::{Server, Setup};
use crate::store::{StoreFaults, Strained};
use crate::world::{Violation, caught, memory_store};
use dafs_dat::Instant;
use dafs_dat::sim::{SimCounts, SimNetwork, SimRng};
use dafs_service::durable::Durability;
use dafs_service::{ExportOptions, FenceObject, Handle, ServiceCounts};
use dafs_store::{
    CreateHow, Cred, MemoryStore, NewObject, OpenMode, Result as StoreResult, SetAttr, Store,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Retention time of replies for clients that do not come back.
const RETENTION: Duration = Duration::from_nanos(dafs_service::limits::REPLY_RETENTION_NS);

/// Courtesy time of persistent locks without a conflicting request.
const COURTESY: Duration = dafs_service::limits::COURTESY_TIME;

/// The result of a world in which everything could be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashReport {
    /// A hash over all events; the same for every run of a seed.
    pub digest: u64,
    /// The work of the clients.
    pub work: WorkCounts,
    /// The answers to visitors of vaults.
    pub locks: LockCounts,
    /// The counts of the network.
    pub network: SimCounts,
    /// Number of the server's ends.
    pub server_ends: u32,
    /// Operations whose outcome stays unknown.
    pub in_doubt: u64,
    /// Number of ends with a power failure.
    pub power_cuts: u32,
    /// True if replies were to survive those ends.
    pub durable: bool,
    /// True if the place of the requested end was reached.
    pub ended: bool,
    /// Simulated time.
    pub simulated: Duration,
}

/// A world that failed, with the command that replays it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed} failed {violation}\n  replay: {replay}", seed = .options.seed)]
pub struct CrashFailure {
    /// The options of the world.
    pub options: CrashOptions,
    /// The violation.
    pub violation: Violation,
    /// The command that replays it.
    pub replay: String,
}

/// Runs the world of a seed.
///
/// # Errors
/// The violation. The same options give the same error.
pub fn run(options: &CrashOptions) -> Result<CrashReport, Violation> {
    let fault = |text| Violation { at: Duration::ZERO, text };
    let mut world = World::new(options).map_err(fault)?;
    let result = world.live();
    let at = Duration::from_nanos(world.shared.common.now.0);
    result.map_err(|text| Violation { at, text })?;
    let mut digest = world.shared.common.digest;
    digest.word(world.shared.common.network.digest());
    Ok(CrashReport {
        digest: digest.value(),
        work: world.shared.common.counts,
        locks: world.shared.lock_counts,
        network: world.shared.common.network.counts(),
        server_ends: world.shared.ends,
        in_doubt: world.shared.in_doubt,
        power_cuts: world.shared.cuts,
        durable: world.plan.durability != Durability::Off,
        ended: world.ended,
        simulated: at,
    })
}

/// Runs the world of a seed, and catches its panics.
///
/// # Errors
/// The violation and the command that replays it.
pub fn check(options: &CrashOptions) -> Result<CrashReport, Box<CrashFailure>> {
    caught(|| run(options)).map_err(|violation| {
        let (options, replay) = (options.clone(), options.command());
        Box::new(CrashFailure { options, violation, replay })
    })
}

/// The circumstances of a server's end and restart.
#[derive(Debug, Clone, Copy, Default)]
struct Ending {
    power: bool,
    down: Duration,
    again: Option<u64>,
    cut: Option<(usize, Duration)>,
    with: Option<usize>,
}

/// A running world.
pub(super) struct World {
    pub(super) shared: Shared,
    pub(super) plan: Plan,
    pub(super) clients: Vec<Client>,
    pub(super) disk: SimDisk,
    server: Option<Server>,
    /// The time of the server's restart.
    restart: Option<(Instant, Ending)>,
    /// The circumstances of its next end.
    ending: Option<Ending>,
    /// Clients that will lose their connections.
    cuts: Vec<(Instant, usize)>,
    /// The place of the requested end was reached.
    ended: bool,
    end: Option<EndAt>,
    danger: Danger,
    /// Steps since time last advanced.
    still: u64,
    power: Power,
    records: SimRecords,
    undo: UndoDirectory,
    journal: JournalDisk,
    clock: Arc<AtomicU64>,
    server_rng: SimRng,
    store_rng: SimRng,
    disk_rng: SimRng,
    order_rng: SimRng,
    faults: VecDeque<(usize, Fault)>,
    /// Partitions under way, by the time of their end.
    partitions: Vec<(Instant, u32)>,
    steps: u64,
}

impl World {
    fn new(options: &CrashOptions) -> Result<Self, String> {
        let plan = Plan::draw(options);
        let network = SimNetwork::new(plan.network_seed, plan.network.clone());
        let common = Common::new(network.clone(), options.trace);
        let clock = Arc::new(AtomicU64::new(0));
        let memory = memory_store(clock.clone());
        furnish(&memory, &plan).map_err(|error| error.to_string())?;
        let gate_file = memory.lookup(&Cred::new(0, 0), &memory.root(), Client::GATE);
        let gate_file = gate_file.map_err(|error| error.to_string())?.0;
        let disk = SimDisk::new(memory, options.danger == Danger::LyingSync);
        let at_end = network.clone();
        let power = Power::new(move || at_end.end_processes(SERVER_HOST));
        let clients = plan.clients.iter().enumerate();
        let clients =
            clients.map(|(number, client)| Client::new(number, client.clone(), &network)).collect();
        let log = Log::default();
        let shared = Shared {
            common,
            log,
            vaults: VAULTS.iter().copied().map(Vault::new).collect(),
            boards: (0..BOARDS).map(|_| Board::default()).collect(),
            leases: LeaseBook::default(),
            gate: Gate::new(plan.clients.len()),
            disk: disk.clone(),
            gate_file,
            lock_counts: LockCounts::default(),
            danger: options.danger,
            durable: plan.durability != Durability::Off,
            started: 0,
            ends: 0,
            cuts: 0,
            in_doubt: 0,
        };
        let mut world = Self {
            shared,
            clients,
            disk,
            server: None,
            restart: None,
            ending: None,
            power,
            records: SimRecords::default(),
            undo: UndoDirectory::new(plan.disk_seed).map_err(|error| error.to_string())?,
            journal: JournalDisk::new(options.danger == Danger::LyingJournal),
            cuts: Vec::new(),
            ended: false,
            end: options.end,
            danger: options.danger,
            still: 0,
            clock,
            server_rng: SimRng::new(plan.server_seed),
            store_rng: SimRng::new(plan.store_seed),
            disk_rng: SimRng::new(plan.disk_seed),
            order_rng: SimRng::new(plan.order_seed),
            faults: plan.faults.iter().copied().collect(),
            partitions: Vec::new(),
            steps: 0,
            plan,
        };
        let plan = &world.plan;
        world.shared.common.note(|| format!("{plan:#?}"));
        let names = (0..world.clients.len()).map(Client::fence_id).collect();
        let (fs, file) = (world.disk.memory().fs_id(), world.shared.gate_file);
        world.records.fence(FenceObject::File(Handle { fs, file }), names);
        world.start_server(None)?;
        if let Some(EndAt::Server(effects, power)) = world.end {
            let down = Duration::from_millis(1);
            world.ending = Some(Ending { power, down, ..Ending::default() });
            world.power.end_after(effects);
        }
        Ok(world)
    }

    /// Starts the server. It ends again after `again` effects, those of its start included.
    fn start_server(&mut self, again: Option<u64>) -> Result<(), String> {
        let plug = self.power.plug();
        if let Some(effects) = again {
            self.power.end_after(effects);
        }
        let faults = StoreFaults {
            would_block_ppm: self.plan.would_block_ppm,
            danger_stale_every: if self.danger == Danger::StaleAppend { 5 } else { 0 },
            ..StoreFaults::default()
        };
        let disk = Arc::new(self.disk.store(plug.clone()));
        let durable = self.plan.durability != Durability::Off && self.danger != Danger::Unkept;
        let again = self.shared.ends > 0;
        let forgets = Forgets {
            locks: again && self.danger == Danger::ForgottenLock,
            fences: again && self.danger == Danger::ForgottenFence,
        };
        let mut boot = [0; 16];
        boot[..4].copy_from_slice(&self.shared.cuts.to_le_bytes());
        let setup = Setup {
            store: Arc::new(Strained::over(disk, faults, self.store_rng.fork())),
            options: ExportOptions {
                durable_replies: if durable { self.plan.durability } else { Durability::Off },
                ..ExportOptions::default()
            },
            journal: durable.then(|| (self.journal.plugged(plug.clone()), boot)),
            fences: self.records.plugged_fences(plug.clone(), forgets),
            lease: if self.danger == Danger::ShortLease { LEASE / 2_000 } else { LEASE },
            records: self.records.plugged(plug, forgets),
            undo: Some(self.undo.path().to_owned()),
            credits_total_max: 4096,
            credits_initial: self.plan.credits_initial,
            exposed: None,
        };
        let now = self.shared.common.now;
        let network = self.shared.common.network.clone();
        let mut rng = self.server_rng.fork();
        match Server::start(&network, setup, now, &mut rng) {
            Ok(server) => self.server = Some(server),
            Err(_) if self.power.is_off() => {
                self.server_ended(now);
                return Ok(());
            }
            // The same seed has the same violation; the directory has another name each time.
            Err(error) => {
                let directory = self.undo.path().display().to_string();
                return Err(error.replace(&directory, "undo"));
            }
        }
        self.shared.leases.server_started(now);
        self.shared.common.note(|| "the server starts".to_owned());
        Ok(())
    }

    fn live(&mut self) -> Result<(), String> {
        while self.clients.iter().any(|client| !client.is_done()) {
            if self.shared.common.now > Instant(0) + WORLD_TIME_MAX {
                self.clients.iter_mut().for_each(Client::rest);
                break;
            }
            self.make_trouble()?;
            self.step()?;
            if self.end == Some(EndAt::Client(self.steps)) {
                self.ended = true;
                self.clients[0].kill(&mut self.shared)?;
            }
        }
        self.calm()?;
        let limit = self.shared.common.now + REST_TIME_MAX;
        while self.clients.iter().any(|client| !client.is_done())
            || self.shared.common.network.connection_count() > 0
        {
            if self.shared.common.now > limit {
                let clients: Vec<_> = self.clients.iter().map(Client::status).collect();
                return Err(format!("the world does not come to rest: {clients:#?}"));
            }
            self.step()?;
        }
        self.check_leftovers()?;
        audit::run(self)
    }

    /// Ends all faults and repairs the network.
    fn calm(&mut self) -> Result<(), String> {
        self.shared.common.note(|| "calm".to_owned());
        self.shared.common.network.calm();
        self.partitions.clear();
        self.faults.clear();
        self.cuts.clear();
        while let Some((_, ending)) = self.restart.take() {
            self.restart_server(ending)?;
        }
        if self.ending.take().is_some() {
            self.power.spare();
        }
        Ok(())
    }

    /// Advances to the time of the next event and handles it.
    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            let clients: Vec<_> = self.clients.iter().map(Client::status).collect();
            return Err(format!("the world goes round in circles: {clients:#?}"));
        }
        let network = self.shared.common.network.clone();
        let now = self.shared.common.now;
        let times = self.clients.iter().filter_map(Client::next);
        let times = times.chain(self.server.as_ref().map(Server::next));
        let times = times.chain(network.next_event());
        let times = times.chain(self.restart.map(|(at, _)| at));
        let times = times.chain(self.partitions.iter().map(|(end, _)| *end));
        let times = times.chain(self.cuts.iter().map(|(at, _)| *at));
        // A paused host may be overdue. Time then advances in the smallest step.
        let next = times.min().unwrap_or(now).max(now);
        let stuck = self.clients.iter().any(|client| network.is_paused(client.host))
            || network.is_paused(SERVER_HOST);
        let least = if stuck { Duration::from_micros(100) } else { Duration::ZERO };
        let next = next.max(now + least);
        self.still = if next > now { 0 } else { self.still + 1 };
        if self.still > STILL_STEPS_MAX {
            return Err("everybody is busy and the time does not go on".to_owned());
        }
        self.advance(next)
    }

    /// Advances to a time and gives a turn to each part that is due, in a drawn order.
    fn advance(&mut self, now: Instant) -> Result<(), String> {
        self.shared.common.now = now;
        self.shared.leases.at(now);
        self.clock.store(now.0, Ordering::Relaxed);
        let network = self.shared.common.network.clone();
        network.advance_to(now);
        if let Some((at, ending)) = self.restart
            && at <= now
        {
            self.restart_server(ending)?;
        }
        let due = self.cuts.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>();
        due.into_iter().for_each(|(_, client)| self.cut(client));
        let mut order: Vec<usize> = (0..=self.clients.len()).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, self.order_rng.below(index as u64 + 1) as usize);
        }
        for index in order {
            let Some(client) = self.clients.get_mut(index) else {
                self.server_turn(now, &network);
                continue;
            };
            let due = client.next().is_some_and(|at| at <= now) || network.is_ready(client.host);
            if due && !network.is_paused(client.host) {
                client.turn(&mut self.shared)?;
            }
        }
        Ok(())
    }

    fn server_turn(&mut self, now: Instant, network: &SimNetwork) {
        if let Some(server) = &mut self.server {
            let due = server.next() <= now || network.is_ready(SERVER_HOST);
            if due && !network.is_paused(SERVER_HOST) {
                server.turn(now);
            }
        }
        if self.power.is_off() && self.server.is_some() {
            self.server_ended(now);
        }
    }

    /// Handles the end of the server, in the middle of its work.
    fn server_ended(&mut self, now: Instant) {
        let ending = self.ending.take().unwrap_or_default();
        let Ending { power, down, .. } = ending;
        self.server = None;
        self.ended = true;
        self.restart = Some((now + down, ending));
        self.shared.ends += 1;
        self.shared.leases.server_ended(now);
        let Shared { vaults, leases, common, .. } = &mut self.shared;
        vaults.iter_mut().for_each(|vault| vault.server_ended(power, leases));
        common.network.end_processes(SERVER_HOST);
        common.note(|| format!("the server has ended, power fails: {power}"));
    }

    fn restart_server(&mut self, ending: Ending) -> Result<(), String> {
        let Ending { power, down, again, cut, with } = ending;
        self.restart = None;
        if power {
            self.shared.cuts += 1;
            self.shared.boards.iter_mut().for_each(Board::power_failed);
            self.disk.cut_power(&mut self.disk_rng).map_err(|error| error.to_string())?;
            self.journal.cut_power(&mut self.disk_rng);
            let lies = self.danger == Danger::LyingUndo;
            let cut = self.undo.cut_power(&mut self.disk_rng, lies);
            cut.map_err(|error| error.to_string())?;
        }
        if let Some(client) = with {
            self.clients[client].kill(&mut self.shared)?;
        }
        let now = self.shared.common.now;
        self.cuts.extend(cut.map(|(client, after)| (now + after, client)));
        self.ending = again.map(|_| Ending { power, down, ..Ending::default() });
        self.undo.rot(self.danger == Danger::ForgottenList)?;
        self.start_server(again)?;
        let size = self.shared.gate_bytes();
        self.shared.gate.shrunk(size);
        Ok(())
    }

    fn cut(&self, client: usize) {
        let network = &self.shared.common.network;
        for endpoint in network.endpoints(FIRST_CLIENT_HOST + client as u32) {
            network.lose(endpoint);
        }
    }

    /// Injects the faults that are due.
    fn make_trouble(&mut self) -> Result<(), String> {
        let now = self.shared.common.now;
        let network = self.shared.common.network.clone();
        self.partitions.retain(|(end, host)| {
            let over = *end <= now;
            if over {
                network.partition(SERVER_HOST, *host, false);
            }
            !over
        });
        while let Some(&(number, fault)) = self.faults.front()
            && fault.at_operation <= self.shared.started
        {
            self.faults.pop_front();
            self.shared.common.note(|| format!("fault {number}: {:?}", fault.kind));
            let host = |client: usize| FIRST_CLIENT_HOST + client as u32;
            match fault.kind {
                FaultKind::ServerEnds { after_effects, power, down, again, cut, with } => {
                    if self.server.is_some() {
                        self.ending = Some(Ending { power, down, again, cut, with });
                        self.power.end_after(after_effects);
                    }
                }
                FaultKind::ClientEnds { client } => self.clients[client].kill(&mut self.shared)?,
                FaultKind::Partition { client, lasts } => {
                    network.partition(SERVER_HOST, host(client), true);
                    self.partitions.push((now + lasts, host(client)));
                }
                FaultKind::ServerStalls { lasts } => network.pause(SERVER_HOST, now + lasts),
                FaultKind::ClientStalls { client, lasts } => {
                    network.pause(host(client), now + lasts);
                }
                FaultKind::Cut { client } => self.cut(client),
            }
        }
        Ok(())
    }

    /// After all clients have gone and all leases have ended, the server holds nothing.
    fn check_leftovers(&mut self) -> Result<(), String> {
        let end = self.shared.common.now + 3 * LEASE;
        while self.shared.common.now < end {
            let next = self.server.as_ref().map_or(end, Server::next);
            self.advance(next.max(self.shared.common.now + Duration::from_millis(50)))?;
        }
        // The server keeps replies of lost sessions, and persistent locks without a conflict, for
        // longer.
        let end = self.shared.common.now + RETENTION.max(COURTESY);
        self.advance(end)?;
        self.advance(end + LEASE)?;
        let (engine, mut service) = self.server.as_ref().map(Server::counts).unwrap_or_default();
        self.take_kept(&mut service)?;
        if engine != Default::default() || service != Default::default() {
            return Err(format!("the server still holds {engine:?} and {service:?}"));
        }
        Ok(())
    }

    /// Checks the counts of persistent locks that ended clients have left, and sets them to zero.
    fn take_kept(&mut self, service: &mut ServiceCounts) -> Result<(), String> {
        let Shared { vaults, leases, .. } = &mut self.shared;
        let (mut least, mut most, mut undone) = (0, 0, 0);
        for vault in vaults {
            let (kept, may) = vault.kept(leases);
            (least, most) = (least + kept, most + may);
            undone += if vault.kind.recovers() { may } else { 0 };
        }
        let ServiceCounts { kept_locks, broken_locks, undo_files, fences, .. } = service;
        let fits = (least..=most).contains(kept_locks) && broken_locks <= kept_locks;
        if !fits || *undo_files > undone {
            return Err(format!("{least} to {most} persistent locks are left, not {service:?}"));
        }
        // The list of the fenced file.
        *fences = fences.saturating_sub(1);
        (*kept_locks, *broken_locks, *undo_files) = (0, 0, 0);
        Ok(())
    }
}

/// Makes the directories and files that all clients find.
fn furnish(store: &MemoryStore, plan: &Plan) -> StoreResult<()> {
    let root = Cred::new(0, 0);
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let top = store.root();
    for dir in 0..DIRECTORIES {
        let name = format!("d{dir}").into_bytes();
        store.make(&root, &top, &name, NewObject::Directory, &mode(0o777))?;
    }
    let open = OpenMode { read: true, write: true };
    let data = (0..plan.clients.len()).map(Client::data_name);
    let vaults = (0..VAULTS.len()).map(Client::vault_name);
    let boards = (0..BOARDS).map(Client::board_name);
    for name in data.chain(vaults).chain(boards).chain([b"log".to_vec(), Client::GATE.to_vec()]) {
        store.create(&root, &top, &name, CreateHow::Guarded, &mode(0o666), open)?;
    }
    Ok(())
}
