//! The state that all parts of a world share: time, order of events, files, trace.

use crate::model::content::{FileModel, Tick};
use crate::pattern::WriteId;
use dafs_client::core::{SessionCore, Stage};
use dafs_dat::sim::{SimAdapter, SimDigest, SimNetwork};
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{FileHandle, Verifier};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The client gives up a session that is not ready after this long, as the shipped driver does.
pub(crate) const OPENING_TIME_MAX: Duration = Duration::from_secs(10);

/// One regular file of the world.
#[derive(Debug, Default)]
pub(crate) struct FileRecord {
    pub(crate) model: FileModel,
    /// Its handle, once a client knows it.
    pub(crate) handle: Option<FileHandle>,
    /// The client whose tree it lives in; `None` for the shared ones.
    pub(crate) owner: Option<usize>,
    /// The permission bits that it may have.
    pub(crate) modes: BTreeSet<u32>,
}

/// Shared by everything in a world.
pub(crate) struct Common {
    pub(crate) network: SimNetwork,
    pub(crate) now: Instant,
    pub(crate) files: Vec<FileRecord>,
    /// Outstanding reads by the tick of their begin; pruning must not pass them.
    reads: BTreeMap<Tick, ()>,
    /// Write verifier of the server.
    pub(crate) verifier: Option<Verifier>,
    /// True if an open has denied access to others.
    pub(crate) denials: bool,
    /// True if the store injects errors.
    pub(crate) store_errors: bool,
    /// True if the server ends now and then, and starts again.
    pub(crate) restarts: bool,
    pub(crate) digest: SimDigest,
    pub(crate) counts: WorkCounts,
    last_tick: Tick,
    last_write: u64,
    trace: bool,
}

/// The work of the clients of a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkCounts {
    /// Operations started.
    pub started: u64,
    /// Operations answered with success.
    pub succeeded: u64,
    /// Operations answered with an error.
    pub refused: u64,
    /// Operations whose connection broke before the answer.
    pub lost: u64,
    /// Sessions that became ready.
    pub sessions: u64,
    /// Bytes read and compared.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Optimistic reads that were hits.
    pub hits: u64,
    /// Those from memory that many small files share.
    pub small_hits: u64,
    /// Optimistic reads of blocks that changed meanwhile.
    pub stale: u64,
}

impl Common {
    pub(crate) fn new(network: SimNetwork, trace: bool) -> Self {
        Self {
            network,
            now: Instant(0),
            files: Vec::new(),
            reads: BTreeMap::new(),
            verifier: None,
            denials: false,
            store_errors: false,
            restarts: false,
            digest: SimDigest::default(),
            counts: WorkCounts::default(),
            last_tick: 0,
            last_write: 0,
            trace,
        }
    }

    /// The next tick in the order of events.
    pub(crate) fn tick(&mut self) -> Tick {
        self.last_tick += 1;
        self.last_tick
    }

    pub(crate) fn next_write(&mut self) -> WriteId {
        self.last_write += 1;
        WriteId(self.last_write)
    }

    pub(crate) fn begin_read(&mut self) -> Tick {
        let tick = self.tick();
        self.reads.insert(tick, ());
        tick
    }

    pub(crate) fn end_read(&mut self, begin: Tick) {
        self.reads.remove(&begin);
    }

    /// Drops changes of a file that no read can see any more.
    pub(crate) fn prune(&mut self, file: usize) {
        let oldest = self.reads.first_key_value().map_or(self.last_tick + 1, |(tick, ())| *tick);
        self.files[file].model.prune(oldest);
    }

    pub(crate) fn add_file(&mut self, owner: Option<usize>, mode: u32) -> usize {
        let modes = BTreeSet::from([mode]);
        self.files.push(FileRecord { owner, modes, ..FileRecord::default() });
        self.files.len() - 1
    }

    /// Checks a handle against the known one of a file, and remembers it.
    pub(crate) fn check_handle(&mut self, file: usize, told: FileHandle) -> Result<(), String> {
        match self.files[file].handle {
            Some(known) if known != told => {
                Err(format!("file {file} has the handle {known:?}, but {told:?} was told"))
            }
            _ => {
                self.files[file].handle = Some(told);
                Ok(())
            }
        }
    }

    /// Checks a write verifier. Only a restart of the server or an error of the store can have changed
    /// it.
    pub(crate) fn check_verifier(&mut self, told: Verifier) -> Result<(), String> {
        let known = *self.verifier.get_or_insert(told);
        if known == told || self.store_errors || self.restarts {
            Ok(())
        } else {
            Err("the write verifier has changed without an error of the store".to_owned())
        }
    }

    /// Prints a line of the trace and adds it to the digest.
    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        if self.trace {
            let time = Duration::from_nanos(self.now.0);
            println!("{:>12.6} {}", time.as_secs_f64(), text());
        }
    }
}

/// Hands the events of an adapter to the session on it, which began to open at `since`.
pub(crate) fn poll(
    (adapter, session): (&mut SimAdapter, &mut Option<SessionCore>),
    since: Instant,
    now: Instant,
) {
    let mut events = Vec::new();
    adapter.poll(now, &mut events);
    let Some(session) = session else { return };
    for event in events {
        session.handle(adapter, event, now);
    }
    session.on_time(adapter, now);
    let opening = matches!(session.stage(), Stage::Connecting | Stage::Opening);
    if opening && now >= since + OPENING_TIME_MAX {
        session.abort(adapter);
    }
}
