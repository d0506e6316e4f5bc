//! The server of a world: the shipped engine over the simulated network, store and pool.

use crate::exposure::Shown;
use crate::limits::{LOOK_INTERVAL, SERVER_HOST};
use crate::pool::{PoolSchedule, SimPool};
use dafs_dat::sim::{SimNetwork, SimRng};
use dafs_dat::{Adapter, Address, Instant};
use dafs_engine::{
    AuthConfig, Authenticator, Engine, EngineCounts, ExposedMemory, Inbox, Registry, SessionLimits,
    Shared, Ticker,
};
use dafs_journal::{Disk, Spawn};
use dafs_service::durable::JournalConfig;
use dafs_service::{
    ClientRecords, Export, ExportOptions, FenceRecords, Namespace, Pool, Service, ServiceConfig,
    ServiceCounts, WriteVerifier,
};
use dafs_store::Store;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Server {
    engine: Engine,
    service: Arc<Service>,
    ticker: Ticker,
    /// The memory that it shows.
    exposed: Option<Arc<ExposedMemory>>,
    /// The time of its next look for changes that bypass it.
    next_look: Option<Instant>,
    pub(crate) jobs: PoolSchedule,
    /// Number of turns of the engine.
    pub(crate) turns: u64,
}

/// Bytes of a segment of the journal: few, so that worlds use several.
const SEGMENT_BYTES: u64 = 64 << 10;

/// The parameters of a server's start.
pub(crate) struct Setup {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: ExportOptions,
    pub(crate) records: Box<dyn ClientRecords>,
    pub(crate) fences: Box<dyn FenceRecords>,
    pub(crate) lease: Duration,
    /// The journal's disk, and the instance of the system. None without durable replies.
    pub(crate) journal: Option<(Arc<dyn Disk>, [u8; 16])>,
    /// The directory of undo logs of locks with recovery. None without such locks.
    pub(crate) undo: Option<PathBuf>,
    pub(crate) credits_total_max: usize,
    pub(crate) credits_initial: u16,
    /// The memory for optimistic reads. None without such reads.
    pub(crate) exposed: Option<Shown>,
}

impl Server {
    /// Starts a server that listens on its host.
    pub(crate) fn start(
        network: &SimNetwork,
        setup: Setup,
        now: Instant,
        rng: &mut SimRng,
    ) -> Result<Self, String> {
        let export = Export::new("", setup.store, setup.options);
        let namespace = Namespace::new(vec![export]).map_err(|error| error.to_string())?;
        // No request can arrive while a call waits, because a world is one thread.
        let recall_wait = Duration::ZERO;
        let config =
            ServiceConfig { recall_wait, ..ServiceConfig::new(setup.lease, rng.bits() as u32) };
        let service = Service::with_records(config, namespace, setup.records, now.0);
        let service = Arc::new(service.map_err(|error| error.to_string())?);
        service.fences.load(setup.fences).map_err(|error| error.to_string())?;
        if let Some(shown) = &setup.exposed {
            service.start_exposure(shown.seen.clone());
        }
        let exposed = setup.exposed.map(|shown| shown.memory);
        let pool = SimPool::default();
        if let Some((disk, boot)) = setup.journal {
            let jobs = pool.clone();
            let spawn: Spawn = Arc::new(move |job| jobs.submit(job));
            let journal = JournalConfig { disk, boot, segment_bytes: SEGMENT_BYTES, spawn };
            service.durable.start_journal(journal, now.0).map_err(|error| error.to_string())?;
        }
        if let Some(directory) = &setup.undo {
            service.locks.keep_undo_in(directory).map_err(|error| error.to_string())?;
            let jobs = pool.clone();
            service.locks.undo_elsewhere(Arc::new(move |job| jobs.submit(job)));
        }
        let authenticator =
            Authenticator::new(&AuthConfig::default()).map_err(|error| error.to_string())?;
        let limits = SessionLimits {
            credits_total_max: setup.credits_total_max,
            credits_initial: setup.credits_initial,
            ..SessionLimits::default()
        };
        let shared = Shared {
            service: service.clone(),
            authenticator: Arc::new(authenticator),
            registry: Arc::new(Registry::new([rng.bits(), rng.bits()])),
            pool: Arc::new(pool.clone()),
            limits,
            write_verifier: Arc::new(WriteVerifier::new(rng.bits())),
            clock: Instant::default,
            proofs: Arc::new(pool.clone()),
            exposed: exposed.clone(),
            data: None,
        };
        service.durable.tell_of_lost_data(shared.write_verifier.clone());
        let adapter: Box<dyn Adapter> = Box::new(network.adapter(SERVER_HOST));
        let mut engine = Engine::new(Arc::new(shared), vec![adapter], Arc::new(Inbox::unwatched()));
        let listening = engine.listen(0, &Address::Sim(SERVER_HOST));
        listening.map_err(|error| error.to_string())?;
        let jobs = PoolSchedule::new(pool, rng.fork());
        let next_look = exposed.is_some().then_some(now);
        let ticker = Ticker::default();
        Ok(Self { engine, service, ticker, exposed, next_look, jobs, turns: 0 })
    }

    /// Runs due jobs and lets the engine handle all events.
    pub(crate) fn turn(&mut self, now: Instant) {
        self.jobs.run(now);
        self.engine.turn(now);
        self.ticker.turn(&self.service, now);
        if self.next_look.is_some_and(|at| at <= now) {
            self.service.take_local_changes(now.0);
            self.next_look = Some(now + LOOK_INTERVAL);
        }
        self.jobs.admit(now);
        self.turns += 1;
    }

    /// The time of its next turn.
    pub(crate) fn next(&self) -> Instant {
        let own = self.engine.next_timeout().min(self.ticker.next());
        let own = self.next_look.map_or(own, |at| at.min(own));
        self.jobs.next().map_or(own, |at| at.min(own))
    }

    /// Goes on counting turns and jobs where a server that has ended has stopped.
    pub(crate) fn follow(&mut self, former: &Self) {
        self.turns = former.turns;
        self.jobs.follow(&former.jobs);
    }

    /// The bytes of memory that it shows.
    pub(crate) fn exposed_bytes(&self) -> usize {
        self.exposed.as_ref().map_or(0, |memory| memory.used_bytes())
    }

    pub(crate) fn counts(&self) -> (EngineCounts, ServiceCounts) {
        (self.engine.counts(), self.service.counts())
    }
}
