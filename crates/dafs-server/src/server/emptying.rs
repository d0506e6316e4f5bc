//! Moving files off the nodes that an administrator wants emptied, a piece at a time.
//!
//! Invariants
//! * A file is moved when no client has a layout of it, and no data server goes by one.
//! * A node counts as empty when two looks in a row through all directories have met nothing that lies
//!   there, and nothing is in use or waits to be removed there. The first of them may have passed over
//!   a file that was being made when the emptying began.

use crate::limits::{MOVE_PATIENCE, MOVE_TURN};
use dafs_dat::Instant;
use dafs_service::{Handle, Service};
use dafs_store::striped::{Relocation, Walk};
use dafs_store::{FileId, Result, Store, StoreError, StripedStore};
use std::collections::VecDeque;
use std::time::Duration;

/// How far it has come.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// The nodes that it is about.
    leaving: Vec<u32>,
    /// All directories were looked through, and nothing lies where it should not.
    through: bool,
    pub(super) moved_files: u64,
    pub(super) moved_bytes: u64,
    /// What stands in the way.
    pub(super) trouble: String,
}

impl Progress {
    /// Whether a node is empty.
    pub(super) fn is_empty(&self, store: &StripedStore, number: u32) -> bool {
        self.leaving.contains(&number) && self.through && store.is_idle(number).unwrap_or(false)
    }
}

/// What does it.
#[derive(Default)]
pub(super) struct Emptying {
    progress: Progress,
    walk: Option<Walk>,
    /// Something was met that was to be moved.
    met: bool,
    /// Looks that have met nothing, one after the other.
    clean: u32,
    due: VecDeque<FileId>,
    current: Option<Current>,
    /// Not before this moment.
    pause_until_ns: u64,
}

struct Current {
    relocation: Relocation,
    key: Handle,
    vacated: bool,
    /// When it last went on.
    since_ns: u64,
}

/// Whether there is more to do at once.
#[derive(PartialEq, Eq)]
enum Next {
    Now,
    Later,
}

/// Looks in a row that have to meet nothing.
const CLEAN_LOOKS: u32 = 2;

/// How long to wait after a look through all directories.
const PAUSE: Duration = Duration::from_secs(1);

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Emptying {
    /// Does some of it, for a bounded time.
    pub(super) fn turn(&mut self, store: &StripedStore, service: &Service) {
        let leaving = store.leaving();
        if leaving != self.progress.leaving {
            let Progress { moved_files, moved_bytes, .. } = self.progress;
            let progress = Progress { leaving, moved_files, moved_bytes, ..Progress::default() };
            *self = Self { progress, ..Self::default() };
        }
        if self.progress.leaving.is_empty() || self.progress.through {
            return;
        }
        let end_ns = Instant::now().0.saturating_add(nanoseconds(MOVE_TURN));
        while Instant::now().0 < end_ns {
            match self.advance(store, service) {
                Ok(Next::Now) => {}
                Ok(Next::Later) => return,
                Err(error) => {
                    self.met = true;
                    let text = error.to_string();
                    if text != self.progress.trouble {
                        tracing::warn!(%error, "a file cannot be moved yet");
                        self.progress.trouble = text;
                    }
                    return;
                }
            }
        }
    }

    /// How far it has come.
    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    fn advance(&mut self, store: &StripedStore, service: &Service) -> Result<Next> {
        let now_ns = Instant::now().0;
        if let Some(current) = self.current.take() {
            return self.go_on(current, service, now_ns);
        }
        if let Some(file) = self.due.pop_front() {
            self.met = true;
            if let Some(relocation) = gone_is_fine(store.begin_move(&file))?.flatten() {
                let key = Handle { fs: store.fs_id(), file };
                let (vacated, since_ns) = (false, now_ns);
                self.current = Some(Current { relocation, key, vacated, since_ns });
            }
            return Ok(Next::Now);
        }
        if now_ns < self.pause_until_ns {
            return Ok(Next::Later);
        }
        let walk = self.walk.get_or_insert_with(|| store.walk());
        match store.misplaced(walk).inspect_err(|_| self.walk = None)? {
            Some(files) => {
                self.met |= !files.is_empty();
                self.due.extend(files);
                Ok(Next::Now)
            }
            None => {
                let all = self.walk.take().is_some_and(|walk| store.met_all(&walk));
                let clean = all && !std::mem::take(&mut self.met);
                self.clean = if clean { self.clean + 1 } else { 0 };
                self.pause_until_ns = now_ns.saturating_add(nanoseconds(PAUSE));
                if self.clean >= CLEAN_LOOKS {
                    self.progress.through = true;
                    self.progress.trouble.clear();
                    tracing::info!(nodes = ?self.progress.leaving, "nothing lies there any more that has a name");
                }
                Ok(Next::Later)
            }
        }
    }

    /// Goes on with a file, or gives it up for now.
    fn go_on(&mut self, mut current: Current, service: &Service, now_ns: u64) -> Result<Next> {
        let patient = now_ns.saturating_sub(current.since_ns) < nanoseconds(MOVE_PATIENCE);
        if !current.vacated {
            if service.vacate(&current.key, now_ns).is_err() {
                // Clients have a lease's time to give back what they know.
                if patient {
                    self.current = Some(current);
                }
                return Ok(Next::Later);
            }
            current.vacated = true;
        }
        match current.relocation.step() {
            Ok(true) => {
                self.progress.moved_files += 1;
                self.progress.moved_bytes += current.relocation.copied_bytes();
                Ok(Next::Now)
            }
            Ok(false) => {
                current.since_ns = now_ns;
                self.current = Some(current);
                Ok(Next::Now)
            }
            Err(StoreError::Busy) if patient && !current.relocation.has_failed() => {
                self.current = Some(current);
                Ok(Next::Later)
            }
            Err(StoreError::Stale | StoreError::NotFound) => Ok(Next::Now),
            Err(error) => Err(error),
        }
    }
}

/// A file that is gone needs no move.
fn gone_is_fine<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::Stale | StoreError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}
