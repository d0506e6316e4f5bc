//! Cache hints that ride on reads and writes (DAFS 13.4).
//!
//! They are followed after the reply, on the pool, because the kernel may wait for a device.
//!
//! Invariants
//! * A hint never changes the result of the request that it rides on, nor delays its reply.
//! * A word that asks for nothing makes no job, takes no lock and allocates nothing.
//! * The hints of a connection that wait are bounded: the oldest are forgotten. A job follows a
//!   bounded number, so that other jobs get their turn.

use super::request::Context;
use crate::limits::{HINTS_PER_JOB, HINTS_WAITING_MAX};
use dafs_mem::Mutex;
use dafs_service::{Handle, Place, Pool, advice_by_likelihood};
use dafs_store::{CacheAdvice, OpenFile};
use dafs_wire::dafs::HintWord;
use std::collections::VecDeque;
use std::sync::Arc;

/// The hint of a request that is under way.
pub(crate) struct Ride {
    handle: Handle,
    file: Arc<dyn OpenFile>,
    offset: u64,
    advice: CacheAdvice,
}

impl Ride {
    /// Returns the hint of a transfer to or from a file, at `offset`. `None` if the word asks for
    /// nothing.
    pub(crate) fn of(
        word: HintWord,
        handle: &Handle,
        file: &Arc<dyn OpenFile>,
        offset: u64,
    ) -> Option<Box<Self>> {
        let advice = advice_of(word)?;
        Some(Box::new(Self { handle: *handle, file: file.clone(), offset, advice }))
    }

    /// Returns the hint at the offset that was chosen for the transfer.
    pub(crate) fn at(mut self: Box<Self>, offset: u64) -> Box<Self> {
        self.offset = offset;
        self
    }
}

/// Returns the advice of a hint word about its range, apart from a prefetch.
pub(crate) fn advice_of(word: HintWord) -> Option<CacheAdvice> {
    word.likelihood().and_then(|likelihood| advice_by_likelihood(likelihood as u32))
}

/// The hints of a connection for the stores of one lane.
#[derive(Default)]
pub(super) struct Hints {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// True while a job follows them.
    working: bool,
}

struct Waiting {
    handle: Handle,
    file: Arc<dyn OpenFile>,
    offset: u64,
    len: u64,
    advice: CacheAdvice,
}

impl Waiting {
    /// Takes in the range behind this one, if it has the same advice.
    fn extend(&mut self, next: &Self) -> bool {
        let follows = self.handle == next.handle
            && self.advice == next.advice
            && self.offset.checked_add(self.len) == Some(next.offset);
        if follows {
            self.len = self.len.saturating_add(next.len);
        }
        follows
    }
}

/// The job that follows hints. A panic of a store ends it.
struct Working<'a>(&'a Hints);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.forget();
        }
    }
}

impl Hints {
    /// Adds a hint. Returns true if a job must begin that follows it.
    fn add(&self, hint: Waiting) -> bool {
        let mut state = self.state.lock();
        // Its file may be closed with it, which takes time.
        let mut forgotten = None;
        if !state.waiting.back_mut().is_some_and(|last| last.extend(&hint)) {
            if state.waiting.len() == HINTS_WAITING_MAX {
                forgotten = state.waiting.pop_front();
            }
            state.waiting.push_back(hint);
        }
        let begins = !std::mem::replace(&mut state.working, true);
        drop(state);
        drop(forgotten);
        begins
    }

    fn next(&self) -> Option<Waiting> {
        let mut state = self.state.lock();
        let next = state.waiting.pop_front();
        state.working = next.is_some();
        next
    }

    /// Forgets all hints, because their job has failed.
    fn forget(&self) {
        let forgotten = std::mem::take(&mut *self.state.lock());
        drop(forgotten);
    }

    /// Follows some hints while their connection lives. Returns true if more may wait. Runs on the
    /// pool.
    fn follow(self: &Arc<Self>) -> bool {
        let _working = Working(self);
        for _ in 0..HINTS_PER_JOB {
            // The connection holds the other reference.
            if Arc::strong_count(self) == 1 {
                return false;
            }
            let Some(Waiting { file, offset, len, advice, .. }) = self.next() else { return false };
            // A hint that cannot be followed is worth no error.
            let _ = file.advise(offset, len, advice);
        }
        true
    }
}

/// Follows hints by one job after the other, so that other jobs get their turn.
fn follow(hints: Arc<Hints>, pool: Arc<dyn Pool>, place: Place) {
    let next = pool.clone();
    let job = move || {
        if hints.follow() {
            follow(hints, next, place);
        }
    };
    pool.submit_to(place, Box::new(job));
}

impl Context<'_> {
    /// Follows the hint of a transfer of `len` bytes, after its reply.
    pub(crate) fn follow(&mut self, ride: Option<Box<Ride>>, len: usize) {
        let Some(ride) = ride.filter(|_| len > 0) else { return };
        let Ride { handle, file, offset, advice } = *ride;
        let lane = self.lane(&handle);
        let known = self.connection.hints.iter().find(|(of, _)| *of == lane);
        let hints = known.map(|(_, hints)| hints.clone()).unwrap_or_else(|| {
            let hints = Arc::<Hints>::default();
            self.connection.hints.push((lane, hints.clone()));
            hints
        });
        if hints.add(Waiting { handle, file, offset, len: len as u64, advice }) {
            follow(hints, self.shared.pool.clone(), self.place(lane));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{CreateHow, Cred, FsId, MemoryOptions, MemoryStore, OpenMode, SetAttr, Store};

    fn file() -> Arc<dyn OpenFile> {
        let store = MemoryStore::new(MemoryOptions::default());
        let (cred, mode) = (Cred::new(0, 0), OpenMode { read: true, write: true });
        let (how, none) = (CreateHow::Guarded, SetAttr::default());
        store.create(&cred, &store.root(), b"f", how, &none, mode).unwrap().file
    }

    fn hint(file: &Arc<dyn OpenFile>, offset: u64, advice: CacheAdvice) -> Waiting {
        let handle = Handle { fs: FsId([0; 16]), file: file.id() };
        Waiting { handle, file: file.clone(), offset, len: 10, advice }
    }

    fn ranges(hints: &Hints) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| hints.next()).map(|hint| (hint.offset, hint.len)).collect()
    }

    #[test]
    fn ranges_one_behind_the_other_become_one() {
        let (hints, file) = (Hints::default(), file());
        let add = |offset, advice| hints.add(hint(&file, offset, advice));
        assert!(add(0, CacheAdvice::DontNeed), "a job begins");
        assert!(!add(10, CacheAdvice::DontNeed), "it follows this one, too");
        add(20, CacheAdvice::Keep);
        add(40, CacheAdvice::Keep);
        assert_eq!(ranges(&hints), [(0, 20), (20, 10), (40, 10)]);
        assert!(add(0, CacheAdvice::Keep), "the last job has ended");
    }

    #[test]
    fn the_oldest_hints_of_a_flood_are_forgotten() {
        let (hints, file) = (Hints::default(), file());
        let count = 10 * HINTS_WAITING_MAX as u64;
        for at in 0..count {
            hints.add(hint(&file, at * 100, CacheAdvice::DontNeed));
        }
        let ranges = ranges(&hints);
        assert_eq!(ranges.len(), HINTS_WAITING_MAX);
        assert_eq!(ranges.last(), Some(&((count - 1) * 100, 10)));
    }

    #[test]
    fn a_job_follows_a_bounded_number_and_ends_with_its_connection() {
        let (hints, file) = (Arc::<Hints>::default(), file());
        let connection = hints.clone();
        let add = |at| hints.add(hint(&file, at * 100, CacheAdvice::Keep));
        assert!(add(0), "a job begins");
        (1..=HINTS_PER_JOB as u64).for_each(|at| assert!(!add(at)));
        assert!(hints.follow(), "one is left for the next job");
        assert!(!hints.follow());
        assert!(add(0), "the job has ended");
        drop(connection);
        assert!(!hints.follow());
        assert_eq!(ranges(&hints).len(), 1, "it was for nobody");
    }

    #[test]
    fn words_become_advice() {
        let check = |word, advice| assert_eq!(advice_of(HintWord::from_bits(word)), advice);
        check(0, None);
        check(0x01, None);
        check(0x01 | 4 << 1 | 4 << 4, None);
        check(1 << 1, Some(CacheAdvice::DontNeed));
        check(1 << 1 | 1 << 4, Some(CacheAdvice::DontNeed));
        check(1 << 1 | 3 << 4, Some(CacheAdvice::LeaveFirst));
        check(1 << 1 | 4 << 4, None);
        check(0xffff_ff80 | 1 << 1 | 6 << 4, Some(CacheAdvice::Keep));
    }
}
