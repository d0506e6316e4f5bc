//! Comparison of the copies of all files of an export, when an administrator wants it.
//!
//! Invariants
//! * At most one runs in an export. It compares a bounded number of files at once, and each node reads at
//!   most so many bytes in a second for all of them. It ends when this is dropped.
//! * Files in use wait for a later round. Both their number and the rounds are bounded.

use crate::admin::{FaultReport, ScrubOrder, ScrubReport};
use crate::limits::{
    MEND_BYTES_PER_SECOND, MEND_CHECKS, SCRUB_FAULTS_MAX, SCRUB_FILES_AT_ONCE, SCRUB_ROUNDS,
    SCRUB_WAITING_MAX,
};
use dafs_mem::{Condvar, Mutex};
use dafs_store::{FileId, StoreError};
use dafs_striped::{Fault, Faults, Scrubbed, StripedStore};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A file, with its path below the root of the export.
type Found = (FileId, Vec<u8>);

/// The comparison of an export.
pub(super) struct Scrubber {
    report: Arc<Mutex<ScrubReport>>,
    /// Ends the threads.
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
    /// The pause before files in use are looked at again.
    round_pause: Duration,
}

/// The end of a comparison, on which all its threads wait.
#[derive(Default)]
struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

impl End {
    fn come(&self) {
        *self.has_come.lock() = true;
        self.changed.notify_all();
    }

    /// Pauses until then, and for so long at most.
    fn pause(&self, time: Duration) -> Result<(), Stopped> {
        let is_awaited = |has_come: &mut bool| !*has_come;
        match *self.changed.wait_timeout_while(self.has_come.lock(), time, is_awaited).0 {
            false => Ok(()),
            true => Err(Stopped),
        }
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A failed thread has reported its panic.
            let _ = thread.join();
        }
    }
}

impl Scrubber {
    /// Prepares comparisons in an export whose copies are repaired after `mend_idle` without a write.
    pub(super) fn new(mend_idle: Duration) -> Self {
        Self {
            report: Arc::default(),
            end: Arc::default(),
            thread: None,
            round_pause: mend_idle + mend_idle / MEND_CHECKS,
        }
    }

    /// Executes an order about the export of that name. The text of an error says how to proceed.
    pub(super) fn order(
        &mut self,
        store: &Arc<StripedStore>,
        export: &str,
        order: &ScrubOrder,
    ) -> Result<ScrubReport, String> {
        match *order {
            ScrubOrder::Start { bytes_per_second, mend } => {
                let rate = bytes_per_second.unwrap_or(MEND_BYTES_PER_SECOND as u64).max(1);
                self.start(store.clone(), export, rate, mend)?;
            }
            // A server that has started since, or was taken over, knows of none before.
            ScrubOrder::Show if self.thread.is_none() => {
                return Err("no copies were compared since the server has started: begin with dafs cluster \
                            scrub"
                    .to_owned());
            }
            ScrubOrder::Show => {}
            ScrubOrder::Stop => self.stop(),
        }
        Ok(self.report.lock().clone())
    }

    fn start(
        &mut self,
        store: Arc<StripedStore>,
        export: &str,
        bytes_per_second: u64,
        mend: bool,
    ) -> Result<(), String> {
        if self.report.lock().running {
            return Err(
                "copies are being compared already: see dafs cluster scrub --show, or end \
                        that with --stop"
                    .to_owned(),
            );
        }
        let (end, report) = (Arc::<End>::default(), self.report.clone());
        *report.lock() = ScrubReport { running: true, ..ScrubReport::default() };
        let root = if export.is_empty() { String::new() } else { format!("/{export}") };
        let (began, round_pause) = (Instant::now(), self.round_pause);
        let (own, rate) = (end.clone(), Rate { bytes_per_second, busy: Mutex::default() });
        let scrub = Scrub { store, root, rate, mend, began, round_pause, end, report };
        let thread = std::thread::Builder::new().name("dafs-scrub".to_owned());
        let thread = thread.spawn(move || scrub.run()).map_err(|error| {
            self.report.lock().running = false;
            format!("no thread can be started for it: {error}")
        })?;
        // The one before has ended.
        (self.end, self.thread) = (own, Some(thread));
        Ok(())
    }

    /// Ends it after its present pieces.
    fn stop(&self) {
        self.end.come();
    }
}

/// A running comparison.
struct Scrub {
    store: Arc<StripedStore>,
    /// The path of the export for clients.
    root: String,
    rate: Rate,
    mend: bool,
    began: Instant,
    round_pause: Duration,
    end: Arc<End>,
    report: Arc<Mutex<ScrubReport>>,
}

/// It is to stop.
struct Stopped;

impl Scrub {
    fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.compare_all()));
        let mut report = self.report.lock();
        report.milliseconds = self.milliseconds();
        report.running = false;
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(Stopped)) => report.stopped = true,
            Err(_) => {
                report.stopped = true;
                report.trouble = "the comparison has failed: see the server's log".to_owned();
            }
        }
        let ScrubReport { files, faulty_files, mended_files, .. } = *report;
        tracing::info!(files, faulty_files, mended_files, "a comparison of copies has ended");
    }

    fn compare_all(&self) -> Result<(), Stopped> {
        let (mut walk, mut waiting) = (self.store.walk(), Vec::new());
        let all = std::iter::from_fn(|| self.store.next_files(&mut walk));
        self.compare_each(all.flatten(), &mut waiting)?;
        for _ in 0..SCRUB_ROUNDS {
            if waiting.is_empty() {
                break;
            }
            self.end.pause(self.round_pause)?;
            let again = std::mem::take(&mut waiting).into_iter();
            let again = again.inspect(|_| self.report.lock().waiting_files -= 1);
            self.compare_each(again, &mut waiting)?;
        }
        let mut report = self.report.lock();
        let in_use = std::mem::take(&mut report.waiting_files);
        report.in_use_files += in_use;
        if let Some(error) = walk.unseen() {
            report.trouble = format!("some files cannot be looked at: {error}");
        }
        Ok(())
    }

    /// Compares files, several at once. Those in use are added to `waiting`.
    fn compare_each(
        &self,
        files: impl Iterator<Item = Found> + Send,
        waiting: &mut Vec<Found>,
    ) -> Result<(), Stopped> {
        let waiting = Mutex::new(waiting);
        at_once(files, |(file, path)| {
            if !self.compare(&file, &path)? {
                self.wait_for(&mut waiting.lock(), (file, path));
            }
            Ok(())
        })
    }

    /// Keeps a file for a later round, if there is room.
    fn wait_for(&self, waiting: &mut Vec<Found>, file: Found) {
        let mut report = self.report.lock();
        if waiting.len() < SCRUB_WAITING_MAX {
            waiting.push(file);
            report.waiting_files += 1;
        } else {
            report.in_use_files += 1;
        }
    }

    /// Compares a file. False if it is in use.
    fn compare(&self, file: &FileId, path: &[u8]) -> Result<bool, Stopped> {
        let pace = |nodes: &[u32], bytes: usize| {
            self.report.lock().bytes += bytes as u64;
            self.end.pause(self.rate.rest(nodes, bytes, Instant::now())).is_ok()
        };
        self.end.pause(Duration::ZERO)?;
        let outcome = self.store.scrub(file, &pace);
        // An end of the comparison looks like a writer.
        self.end.pause(Duration::ZERO)?;
        let mut report = self.report.lock();
        report.milliseconds = self.milliseconds();
        match outcome {
            Ok(Scrubbed::Sound) => report.files += 1,
            Ok(Scrubbed::InUse) => return Ok(false),
            Ok(Scrubbed::Away(_)) => report.away_files += 1,
            Ok(Scrubbed::Faulty(faults)) => {
                report.files += 1;
                drop(report);
                self.note(file, path, &faults);
            }
            Err(StoreError::Stale | StoreError::NotFound) => {}
            Err(error) => report.trouble = format!("{}: {error}", self.name(path)),
        }
        Ok(true)
    }

    /// Reports faults, and gives up the copies that are certainly wrong.
    fn note(&self, file: &FileId, path: &[u8], faults: &Faults) {
        let is_wrong = |number: u32| faults.nodes.iter().any(|(node, _)| *node == number);
        let mended = self.mend
            && faults.right.is_some()
            && self.store.give_up_copies(file, &is_wrong).is_ok();
        let path = self.name(path);
        let mut report = self.report.lock();
        report.faulty_files += 1;
        report.mended_files += u64::from(mended);
        for &(node, fault) in &faults.nodes {
            let fault = word(fault);
            tracing::warn!(?path, node, fault, mended, "a copy of a file is damaged");
            if report.faults.len() < SCRUB_FAULTS_MAX {
                let (path, fault, right) = (path.clone(), fault.to_owned(), faults.right);
                report.faults.push(FaultReport { path, node, fault, right, mended });
            }
        }
    }

    /// Returns the path of a file for clients.
    fn name(&self, path: &[u8]) -> String {
        match std::str::from_utf8(path) {
            Ok(path) => format!("{}{path}", self.root),
            Err(_) => format!("{}{}", self.root, path.escape_ascii()),
        }
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The bytes that each node reads in a second, for all files together.
struct Rate {
    bytes_per_second: u64,
    /// The time until which a node has read enough, by its number.
    busy: Mutex<BTreeMap<u32, Instant>>,
}

impl Rate {
    /// Returns the time for which nodes rest that have read so many bytes each.
    fn rest(&self, nodes: &[u32], bytes: usize, now: Instant) -> Duration {
        let time = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        let mut busy = self.busy.lock();
        let rests = nodes.iter().map(|&node| {
            let until = busy.entry(node).or_insert(now);
            *until = (*until).max(now) + time;
            *until - now
        });
        rests.max().unwrap_or_default()
    }
}

/// Does work on items, on several of them at once.
fn at_once<T>(
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> Result<(), Stopped> + Sync,
) -> Result<(), Stopped> {
    let items = Mutex::new(items);
    let run = || -> Result<(), Stopped> {
        loop {
            let next = items.lock().next();
            let Some(item) = next else { return Ok(()) };
            work(item)?;
        }
    };
    std::thread::scope(|scope| {
        let spawn = |_| {
            let thread = std::thread::Builder::new().name("dafs-scrub".to_owned());
            // Where the system has none left, it takes longer.
            thread.spawn_scoped(scope, run).ok()
        };
        let others: Vec<_> = (1..SCRUB_FILES_AT_ONCE).filter_map(spawn).collect();
        let own = run();
        others.into_iter().fold(own, |all, other| {
            all.and(other.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    })
}

/// Returns a fault in a word.
fn word(fault: Fault) -> &'static str {
    match fault {
        Fault::Differs => "differs",
        Fault::Missing => "missing",
        Fault::Unreadable => "unreadable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn so_many_files_are_compared_at_once() {
        let (all, under_way) = (Barrier::new(SCRUB_FILES_AT_ONCE), AtomicUsize::new(0));
        let done = AtomicUsize::new(0);
        let compared = at_once(0..3 * SCRUB_FILES_AT_ONCE, |_| {
            assert!(under_way.fetch_add(1, Ordering::SeqCst) < SCRUB_FILES_AT_ONCE);
            // This waits for the others.
            all.wait();
            under_way.fetch_sub(1, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        assert!(compared.is_ok());
        assert_eq!(done.into_inner(), 3 * SCRUB_FILES_AT_ONCE);
        let stops = |number| if number == 0 { Err(Stopped) } else { Ok(()) };
        assert!(at_once(0..100, stops).is_err());
    }

    #[test]
    fn a_node_rests_after_the_bytes_of_all_files() {
        let rate = Rate { bytes_per_second: 1000, busy: Mutex::default() };
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(rate.rest(&[1], 1000, now), second);
        assert_eq!(rate.rest(&[2], 500, now), second / 2, "another node has read nothing yet");
        assert_eq!(rate.rest(&[1, 2], 1000, now), 2 * second);
        assert_eq!(rate.rest(&[2], 500, now + second), second, "it has rested for a part");
        assert_eq!(rate.rest(&[1], 1000, now + 5 * second), second);
        assert_eq!(rate.rest(&[], 1000, now), Duration::ZERO);
    }
}
