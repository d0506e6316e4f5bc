//! Page invalidation of many files at once, some of which block.
//!
//! The kernel drops the pages of a file one after the other, and waits at each that is being read.
//! An unreachable server does not answer those reads; the pages behind them must be dropped
//! nevertheless.
//!
//! Invariants
//! * A range that blocks is divided: in the end only [`DROPPED_TOGETHER`] bytes around the pages
//!   that are being read wait for them.
//! * While ranges wait there are threads for them, beside those that block, up to
//!   [`DROPPING_THREADS_MAX`].

use crate::limits::{DROP_HANGS, DROPPED_TOGETHER, DROPPING_THREADS_AT_ONCE, DROPPING_THREADS_MAX};
use dafs_mem::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// All of a file.
pub(super) const WHOLE: Range<u64> = 0..i64::MAX as u64;

/// The number of parts into which a blocked range is divided.
const PARTS: u64 = 16;

/// The stack of the threads, which do little.
const STACK_BYTES: usize = 128 << 10;

#[derive(Clone)]
struct Item<T> {
    file: T,
    range: Range<u64>,
}

struct Begun<T> {
    item: Item<T>,
    at: Instant,
    is_divided: bool,
}

struct State<T> {
    waiting: VecDeque<Item<T>>,
    under_way: FxHashMap<u64, Begun<T>>,
    next: u64,
    threads: usize,
}

struct Dropping<T, D> {
    drop: D,
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// Calls `drop` for all of each file, and for parts of it where that blocks. Returns when all calls
/// have returned.
pub(super) fn drop_all<T: Copy + Send>(
    files: impl Iterator<Item = T>,
    drop: impl Fn(T, Range<u64>) + Sync,
) {
    let waiting = files.map(|file| Item { file, range: WHOLE }).collect();
    let state = State { waiting, under_way: FxHashMap::default(), next: 0, threads: 0 };
    let dropping = Dropping { drop, state: Mutex::new(state), changed: Condvar::new() };
    std::thread::scope(|scope| {
        let mut patience = Duration::ZERO;
        while let Some(more) = dropping.look(patience) {
            patience = DROP_HANGS;
            for _ in 0..more {
                let thread = std::thread::Builder::new().name("dafs-dropping".into());
                let begun = thread.stack_size(STACK_BYTES).spawn_scoped(scope, || dropping.work());
                if let Err(error) = begun {
                    tracing::warn!(%error, "few threads to let the kernel drop what it keeps");
                    dropping.leave();
                }
            }
        }
    });
}

impl<T: Copy + Send, D: Fn(T, Range<u64>) + Sync> Dropping<T, D> {
    /// Waits for a time; returns how many more threads are needed, which count from now on. `None`
    /// when all is done.
    fn look(&self, patience: Duration) -> Option<usize> {
        let goes_on = |state: &mut State<T>| !state.is_done();
        let waited = self.changed.wait_timeout_while(self.state.lock(), patience, goes_on);
        let mut state = waited.0;
        if state.is_done() {
            return None;
        }
        let hanging = state.divide(Instant::now());
        let more = state.more(hanging);
        state.threads += more;
        Some(more)
    }

    fn work(&self) {
        let mut state = self.state.lock();
        while let Some((number, Item { file, range })) = state.begin() {
            drop(state);
            (self.drop)(file, range);
            state = self.state.lock();
            state.under_way.remove(&number);
        }
        drop(state);
        self.leave();
    }

    /// Uncounts a thread that ends, or that was not started.
    fn leave(&self) {
        self.state.lock().threads -= 1;
        self.changed.notify_all();
    }
}

impl<T: Copy> State<T> {
    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    fn begin(&mut self) -> Option<(u64, Item<T>)> {
        let item = self.waiting.pop_front()?;
        let (number, at) = (self.next, Instant::now());
        self.next += 1;
        self.under_way.insert(number, Begun { item: item.clone(), at, is_divided: false });
        Some((number, item))
    }

    /// Divides ranges that block; returns how many do.
    fn divide(&mut self, now: Instant) -> usize {
        let mut hanging = 0;
        for begun in self.under_way.values_mut() {
            if now.saturating_duration_since(begun.at) < DROP_HANGS {
                continue;
            }
            hanging += 1;
            if !std::mem::replace(&mut begun.is_divided, true) {
                let Item { file, range } = &begun.item;
                let parts = parts(range).into_iter();
                self.waiting.extend(parts.map(|range| Item { file: *file, range }));
            }
        }
        hanging
    }

    /// The number of missing threads: blocked ones take no work.
    fn more(&self, hanging: usize) -> usize {
        let wanted = self.waiting.len().min(DROPPING_THREADS_AT_ONCE);
        let missing = wanted.saturating_sub(self.threads.saturating_sub(hanging));
        missing.min(DROPPING_THREADS_MAX - self.threads)
    }
}

/// The parts of a blocked range; none if it is not divided further. The size of the file is not
/// known, so each part of a whole file is as long as all before it.
fn parts(range: &Range<u64>) -> Vec<Range<u64>> {
    if *range == WHOLE {
        let next = |last: &Range<u64>| {
            let end = last.end.saturating_mul(2).min(WHOLE.end);
            (last.end < end).then_some(last.end..end)
        };
        return std::iter::successors(Some(0..DROPPED_TOGETHER), next).collect();
    }
    let len = (range.end - range.start).div_ceil(PARTS).max(DROPPED_TOGETHER);
    if range.end - range.start <= DROPPED_TOGETHER {
        return Vec::new();
    }
    let starts = (range.start..range.end).step_by(len as usize);
    starts.map(|start| start..range.end.min(start + len)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PAGE: u64 = 4096;

    #[test]
    fn parts_are_all_of_it() {
        for whole in [WHOLE, 0..DROPPED_TOGETHER * 64, 1 << 40..1 << 41] {
            let mut rest = vec![whole.clone()];
            for _ in 0..3 {
                rest = rest.iter().flat_map(parts).collect();
                assert_eq!(rest.first().unwrap().start, whole.start);
                assert_eq!(rest.last().unwrap().end, whole.end);
                assert!(rest.windows(2).all(|two| two[0].end == two[1].start));
                assert!(rest.iter().all(|part| part.start.is_multiple_of(PAGE)));
                if rest.iter().any(|part| part.end - part.start <= DROPPED_TOGETHER) {
                    break;
                }
            }
        }
        assert!(parts(&(0..DROPPED_TOGETHER)).is_empty());
    }

    /// By file and offset.
    type Pages = BTreeSet<(u32, u64)>;

    /// The pages that a kernel caches, and those that are being read.
    #[derive(Default)]
    struct Kernel {
        state: Mutex<(Pages, Pages)>,
        changed: Condvar,
    }

    impl Kernel {
        fn drop(&self, file: u32, range: Range<u64>) {
            let mut state = self.state.lock();
            loop {
                let next = state.0.range((file, range.start)..(file, range.end)).next().copied();
                let Some(page) = next else { return };
                if state.1.contains(&page) {
                    state = self.changed.wait(state);
                } else {
                    state.0.remove(&page);
                    self.changed.notify_all();
                }
            }
        }
    }

    #[test]
    fn a_page_that_is_being_read_keeps_few_others() {
        const FILES: u32 = 300;
        const HANGING: u32 = 90;
        let kernel = Kernel::default();
        let read = |file: u32| (file, u64::from(file) * 3 * DROPPED_TOGETHER + 7 * PAGE);
        // One page in each half of a range that is dropped together.
        let pages = |file| (0..600).map(move |number| (file, number * DROPPED_TOGETHER / 2));
        {
            let mut state = kernel.state.lock();
            state.0 = (0..FILES).flat_map(pages).collect();
            state.1 = (0..HANGING).map(read).collect();
            let read = state.1.clone();
            state.0.extend(read);
        }
        std::thread::scope(|scope| {
            let done = scope.spawn(|| drop_all(0..FILES, |file, range| kernel.drop(file, range)));
            let state = kernel.state.lock();
            let far = |(file, page): &(u32, u64)| {
                *file >= HANGING || page.abs_diff(read(*file).1) > DROPPED_TOGETHER
            };
            let waits = |state: &mut (Pages, Pages)| state.0.iter().any(far);
            let long = Duration::from_secs(60);
            let (mut state, late) = kernel.changed.wait_timeout_while(state, long, waits);
            let kept = state.0.len();
            state.1.clear();
            kernel.changed.notify_all();
            drop(state);
            assert!(!late.timed_out(), "{kept} pages are kept");
            done.join().unwrap();
        });
        assert!(kernel.state.lock().0.is_empty());
    }
}
