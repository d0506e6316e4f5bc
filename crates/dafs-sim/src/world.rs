//! One world: everything that follows from one seed.

use crate::actor::Actor;
use crate::audit;
use crate::common::{Common, WorkCounts};
use crate::exposure::Exposure;
use crate::limits::{
    FIRST_CLIENT_HOST, LEASE, OPTIMISTIC_BLOCKS, REST_TIME_MAX, SERVER_HOST, SERVER_REGIONS_MAX,
    SHARED_FILES, STEPS_MAX, WORLD_TIME_MAX,
};
use crate::plan::{Plan, WorldOptions};
use crate::server::{Server, Setup};
use crate::store::{StoreControl, Strained};
use dafs_dat::Instant;
use dafs_dat::sim::{SimCounts, SimNetwork, SimRng};
use dafs_service::{
    BLOCK_BYTES, ExportOptions, NoFenceRecords, NoRecords, OptimisticReads, Squash,
};
use dafs_store::{
    CreateHow, Cred, ExportSecret, MemoryOptions, MemoryStore, NewObject, OpenMode, SetAttr, Store,
    TimeSpec,
};
use std::panic::UnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The result of a world in which everything could be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// A hash over all events; the same for every run of a seed.
    pub digest: u64,
    /// The work of the clients.
    pub work: WorkCounts,
    /// The counts of the network.
    pub network: SimCounts,
    /// Simulated time.
    pub simulated: Duration,
}

/// A violation of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("after {at:?}: {text}")]
pub struct Violation {
    /// Simulated time since the start.
    pub at: Duration,
    /// The description of the violation.
    pub text: String,
}

/// Runs the world of a seed.
///
/// # Errors
/// The violation. The same options give the same error.
pub fn run(options: &WorldOptions) -> Result<Report, Violation> {
    let fault = |text| Violation { at: Duration::ZERO, text };
    let mut world = World::new(options).map_err(fault)?;
    let result = world.live();
    let at = Duration::from_nanos(world.common.now.0);
    result.map_err(|text| Violation { at, text })?;
    let mut digest = world.common.digest;
    digest.word(world.common.network.digest());
    Ok(Report {
        digest: digest.value(),
        work: world.common.counts,
        network: world.common.network.counts(),
        simulated: at,
    })
}

/// A world that failed, with the command that replays it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed} failed {violation}\n  replay: {replay}", seed = .options.seed)]
pub struct Failure {
    /// The options of the world.
    pub options: WorldOptions,
    /// The violation.
    pub violation: Violation,
    /// The command that replays it.
    pub replay: String,
}

/// Runs the world of a seed, and catches its panics.
///
/// # Errors
/// The violation and the command that replays it.
pub fn check(options: &WorldOptions) -> Result<Report, Failure> {
    caught(|| run(options)).map_err(|violation| Failure {
        options: options.clone(),
        violation,
        replay: options.command(),
    })
}

/// Runs a world, and makes a violation of its panic.
pub(crate) fn caught<R>(
    run: impl FnOnce() -> Result<R, Violation> + UnwindSafe,
) -> Result<R, Violation> {
    let before = dafs_dat::confine::faults();
    let result = std::panic::catch_unwind(|| {
        let report = run()?;
        // Clients would take a confined panic for a lost connection.
        assert_eq!(dafs_dat::confine::faults(), before, "a panic was confined to a connection");
        Ok(report)
    });
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        Err(Violation { at: Duration::ZERO, text: format!("a panic: {text}") })
    })
}

/// The parameters of each start of the server.
struct Start {
    store: Arc<dyn Store>,
    /// The clients are on other hosts.
    is_remote: bool,
    /// Small files share memory.
    is_small: bool,
    credits_total_max: usize,
    credits_initial: u16,
}

impl Start {
    fn setup(&self, exposure: Option<&Exposure>) -> Setup {
        Setup {
            store: self.store.clone(),
            options: ExportOptions {
                optimistic: match (exposure, self.is_remote) {
                    (None, _) => OptimisticReads::Off,
                    (Some(_), false) => OptimisticReads::Local,
                    (Some(_), true) => OptimisticReads::Remote,
                },
                squash: if self.is_small { Squash::None } else { Squash::Root },
                ..ExportOptions::default()
            },
            records: Box::new(NoRecords),
            journal: None,
            fences: Box::new(NoFenceRecords),
            lease: LEASE,
            undo: None,
            credits_total_max: self.credits_total_max,
            credits_initial: self.credits_initial,
            exposed: exposure.map(Exposure::shown),
        }
    }
}

/// A running world.
pub(crate) struct World {
    pub(crate) common: Common,
    pub(crate) server: Server,
    pub(crate) actors: Vec<Actor>,
    clock: Arc<AtomicU64>,
    store: StoreControl,
    start: Start,
    /// None without optimistic reads.
    exposure: Option<Exposure>,
    rng: SimRng,
    trouble_every: Option<Duration>,
    next_trouble: Instant,
    /// Partitions under way, by the time of their end.
    partitions: Vec<(Instant, u32)>,
    steps: u64,
}

impl World {
    fn new(options: &WorldOptions) -> Result<Self, String> {
        let mut rng = SimRng::new(options.seed ^ 0x6461_6673);
        let plan = Plan::draw(options, &mut rng);
        let network = SimNetwork::new(rng.bits(), plan.network.clone());
        network.map_memory(plan.maps_memory);
        network.grant_memory(options.optimistic && !options.remote);
        network.grant_reads(options.optimistic && options.remote);
        let mut common = Common::new(network.clone(), options.trace);
        common.note(|| format!("{plan:?}"));
        common.store_errors = plan.store.error_ppm > 0;
        common.restarts = options.optimistic;
        let clock = Arc::new(AtomicU64::new(0));
        let memory = memory_store(clock.clone());
        furnish(&memory, &plan, &mut common).map_err(|error| error.to_string())?;
        let show = || Exposure::new(options.seed, options.danger.exposure, &memory);
        let exposure = options.optimistic.then(show).transpose()?;
        let store = Strained::over(Arc::new(memory), plan.store, rng.fork());
        let control = store.control();
        let start = Start {
            store: Arc::new(store),
            is_remote: options.remote,
            is_small: options.small,
            credits_total_max: plan.credits_total_max,
            credits_initial: plan.credits_initial,
        };
        let setup = start.setup(exposure.as_ref());
        let server = Server::start(&network, setup, Instant(0), &mut rng)?;
        let actors = plan.actors.iter().enumerate();
        let actors = actors
            .map(|(number, actor)| Actor::new(number, actor.clone(), &network, rng.fork()))
            .collect();
        Ok(Self {
            common,
            server,
            actors,
            clock,
            store: control,
            start,
            exposure,
            rng,
            trouble_every: plan.trouble_every,
            next_trouble: Instant(0),
            partitions: Vec::new(),
            steps: 0,
        })
    }

    fn live(&mut self) -> Result<(), String> {
        while self.actors.iter().any(|actor| !actor.is_done()) {
            if self.common.now > Instant(0) + WORLD_TIME_MAX {
                self.actors.iter_mut().for_each(Actor::rest);
                break;
            }
            self.trouble();
            self.end_server()?;
            self.step()?;
        }
        self.common.note(|| "calm".to_owned());
        self.common.network.calm();
        self.partitions.clear();
        self.trouble_every = None;
        self.exposure.iter_mut().for_each(Exposure::rest);
        self.store.calm();
        let limit = self.common.now + REST_TIME_MAX;
        while self.actors.iter().any(|actor| !actor.is_done())
            || self.common.network.connection_count() > 0
        {
            if self.common.now > limit {
                return Err("the world does not come to rest".to_owned());
            }
            self.step()?;
        }
        self.check_leftovers()?;
        audit::run(self)?;
        self.check_leftovers()
    }

    /// Advances to the time of the next event and handles it.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            let waiting: Vec<_> = self.actors.iter().map(Actor::next).collect();
            let server = self.server.next();
            let network = self.common.network.next_event();
            return Err(format!(
                "the world goes round in circles: {waiting:?}, {server:?}, {network:?}"
            ));
        }
        let network = self.common.network.clone();
        let times = self.actors.iter().filter_map(Actor::next);
        let times = times.chain([self.server.next()]).chain(network.next_event());
        let times = times.chain(self.trouble_every.map(|_| self.next_trouble));
        let times = times.chain(self.partitions.iter().map(|(end, _)| *end));
        let times = times.chain(self.exposure.as_ref().and_then(Exposure::next_end));
        // A paused host may be overdue. Time then advances in the smallest step.
        let next = times.min().unwrap_or(self.common.now).max(self.common.now);
        let stuck = self.actors.iter().any(|actor| network.is_paused(actor.host))
            || network.is_paused(SERVER_HOST);
        let least = if stuck { Duration::from_micros(100) } else { Duration::ZERO };
        self.advance(next.max(self.common.now + least))
    }

    /// Advances to a time and gives a turn to each part that is due, in a drawn order.
    pub(crate) fn advance(&mut self, now: Instant) -> Result<(), String> {
        self.common.now = now;
        self.clock.store(now.0, Ordering::Relaxed);
        let network = self.common.network.clone();
        network.advance_to(now);
        let mut order: Vec<usize> = (0..=self.actors.len()).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, self.rng.below(index as u64 + 1) as usize);
        }
        for index in order {
            let Some(actor) = self.actors.get_mut(index) else {
                let due = self.server.next() <= now || network.is_ready(SERVER_HOST);
                if due && !network.is_paused(SERVER_HOST) {
                    self.server.turn(now);
                }
                continue;
            };
            let due = actor.next().is_some_and(|at| at <= now) || network.is_ready(actor.host);
            if due && !network.is_paused(actor.host) {
                actor.turn(&mut self.common)?;
            }
        }
        self.read_blocks()?;
        for actor in &mut self.actors {
            actor.settle(&mut self.common, &self.server);
        }
        Ok(())
    }

    /// Lets clients read from the server's memory, while the network and the server run.
    fn read_blocks(&mut self) -> Result<(), String> {
        let Self { common, server, actors, clock, exposure: Some(exposure), .. } = self else {
            return Ok(());
        };
        let network = common.network.clone();
        for actor in actors.iter_mut().filter(|actor| actor.wants_blocks()) {
            if network.is_paused(actor.host) {
                continue;
            }
            let mut now = common.now;
            let mut serve = |time: Duration| {
                now = now + time;
                clock.store(now.0, Ordering::Relaxed);
                network.advance_to(now);
                let due = server.next() <= now || network.is_ready(SERVER_HOST);
                if due && !network.is_paused(SERVER_HOST) {
                    server.turn(now);
                }
            };
            actor.read_blocks(common, &mut || exposure.step(&mut serve))?;
        }
        Ok(())
    }

    /// Ends the server's process, if it is time, and starts another one. In between, before any client
    /// knows, a local program changes a file, and clients read it.
    fn end_server(&mut self) -> Result<(), String> {
        let Self { common, server, actors, start, exposure: Some(exposure), .. } = self else {
            return Ok(());
        };
        let now = common.now;
        if exposure.next_end().is_none_or(|at| at > now) {
            return Ok(());
        }
        common.note(|| "the server ends and starts".to_owned());
        let network = common.network.clone();
        network.end_processes(SERVER_HOST);
        exposure.renew(now)?;
        let setup = start.setup(Some(&*exposure));
        let mut next = Server::start(&network, setup, now, exposure.rng())?;
        next.follow(server);
        // Its memory stays as it was until no client reads it any more.
        let former = std::mem::replace(server, next);
        let file = exposure.change_locally(common)?;
        for actor in actors.iter_mut().filter(|actor| !network.is_paused(actor.host)) {
            for block in 0..OPTIMISTIC_BLOCKS {
                let part = (block * BLOCK_BYTES as u64, BLOCK_BYTES);
                actor.observe(common, file, part, &mut || BLOCK_BYTES)?;
            }
        }
        drop(former);
        Ok(())
    }

    /// Injects faults beyond a single connection.
    fn trouble(&mut self) {
        let now = self.common.now;
        let network = &self.common.network;
        self.partitions.retain(|(end, host)| {
            let over = *end <= now;
            if over {
                network.partition(SERVER_HOST, *host, false);
            }
            !over
        });
        let Some(every) = self.trouble_every else { return };
        if now < self.next_trouble {
            return;
        }
        let mean = every.as_micros() as u64 / 10;
        self.next_trouble = now + Duration::from_micros(10 * (1 + self.rng.below(2 * mean)));
        let client = self.rng.below(self.actors.len() as u64) as usize;
        let host = FIRST_CLIENT_HOST + client as u32;
        let short = Duration::from_micros(10 * self.rng.log_below(20_000));
        let long = Duration::from_micros(10 * self.rng.log_below(1_500_000));
        match self.rng.below(100) {
            0..30 => {
                self.common.note(|| format!("c{client} is cut off for {long:?}"));
                self.common.network.partition(SERVER_HOST, host, true);
                self.partitions.push((now + long, host));
            }
            30..50 => self.common.network.pause(SERVER_HOST, now + short),
            50..70 => self.common.network.pause(host, now + short),
            70..80 => {
                let endpoints = self.common.network.endpoints(host);
                for endpoint in endpoints {
                    self.common.network.lose(endpoint);
                }
            }
            80..83 => self.actors[client].kill(&mut self.common),
            _ => {}
        }
    }

    /// After all clients have gone and all leases have ended, the server holds nothing.
    fn check_leftovers(&mut self) -> Result<(), String> {
        let end = self.common.now + 3 * LEASE;
        while self.common.now < end {
            let next = self.server.next().max(self.common.now + Duration::from_millis(1));
            self.advance(next)?;
        }
        self.check_nothing_held()?;
        for actor in &self.actors {
            let regions = self.common.network.region_count(actor.host);
            if regions > 0 {
                return Err(format!("c{} has {regions} memory regions left", actor.number));
            }
        }
        let (connections, regions) =
            (self.common.network.connection_count(), self.common.network.region_count(SERVER_HOST));
        if connections > 0 || regions > SERVER_REGIONS_MAX {
            return Err(format!("{connections} connections and {regions} server regions are left"));
        }
        Ok(())
    }

    fn check_nothing_held(&self) -> Result<(), String> {
        let (engine, service) = self.server.counts();
        if engine != Default::default() || service != Default::default() {
            return Err(format!("the server still holds {engine:?} and {service:?}"));
        }
        match self.server.exposed_bytes() {
            0 => Ok(()),
            bytes => Err(format!("the server still shows {bytes} bytes")),
        }
    }
}

pub(crate) fn memory_store(clock: Arc<AtomicU64>) -> MemoryStore {
    let time = move || {
        let nanoseconds = clock.load(Ordering::Relaxed);
        TimeSpec {
            seconds: 1_700_000_000 + (nanoseconds / 1_000_000_000) as i64,
            nanoseconds: (nanoseconds % 1_000_000_000) as u32,
        }
    };
    // A fixed key, so that a seed gives the same ids in every run.
    let id_key = Some(ExportSecret::from_bytes([0; 16]));
    MemoryStore::new(MemoryOptions { clock: Arc::new(time), id_key, ..MemoryOptions::default() })
}

/// Makes the shared files and the clients' own directories.
fn furnish(store: &dyn Store, plan: &Plan, common: &mut Common) -> dafs_store::Result<()> {
    let root = Cred::new(0, 0);
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let top = store.root();
    let shared = store.make(&root, &top, b"shared", NewObject::Directory, &mode(0o777))?.id;
    let open = OpenMode { read: true, write: true };
    for number in 0..SHARED_FILES {
        let name = format!("s{number}").into_bytes();
        store.create(&root, &shared, &name, CreateHow::Guarded, &mode(0o666), open)?;
        common.add_file(None, 0o666);
    }
    for (number, actor) in plan.actors.iter().enumerate() {
        let name = Actor::home_name(number);
        let uid = Actor::uid(number, actor);
        let attr = SetAttr { uid: Some(uid), gid: Some(uid), ..mode(0o755) };
        store.make(&root, &top, &name, NewObject::Directory, &attr)?;
    }
    Ok(())
}
