//! Comparison of the copies of all files of an export, when an administrator wants it.
//!
//! Invariants
//! * At most one runs in an export. It compares one file at a time, and each node reads at most so
//!   many bytes in a second. It ends when this is dropped.
//! * Files in use wait for a later round. Both their number and the rounds are bounded.

use crate::admin::{FaultReport, ScrubOrder, ScrubReport};
use crate::limits::{
    MEND_BYTES_PER_SECOND, SCRUB_FAULTS_MAX, SCRUB_ROUND_PAUSE, SCRUB_ROUNDS, SCRUB_WAITING_MAX,
};
use dafs_mem::Mutex;
use dafs_store::{FileId, StoreError};
use dafs_striped::{Fault, Faults, Scrubbed, StripedStore};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The comparison of an export.
#[derive(Default)]
pub(super) struct Scrubber {
    report: Arc<Mutex<ScrubReport>>,
    /// Dropped to stop the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
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
        let (running, ended) = channel();
        let report = self.report.clone();
        *report.lock() = ScrubReport { running: true, ..ScrubReport::default() };
        let root = if export.is_empty() { String::new() } else { format!("/{export}") };
        let began = Instant::now();
        let scrub = Scrub { store, root, bytes_per_second, mend, began, ended, report };
        let thread = std::thread::Builder::new().name("dafs-scrub".to_owned());
        let thread = thread.spawn(move || scrub.run()).map_err(|error| {
            self.report.lock().running = false;
            format!("no thread can be started for it: {error}")
        })?;
        // The one before has ended.
        (self.running, self.thread) = (Some(running), Some(thread));
        Ok(())
    }

    /// Ends it after its present piece.
    fn stop(&mut self) {
        drop(self.running.take());
    }
}

/// A running comparison.
struct Scrub {
    store: Arc<StripedStore>,
    /// The path of the export for clients.
    root: String,
    bytes_per_second: u64,
    mend: bool,
    began: Instant,
    /// Disconnected when it is to stop.
    ended: Receiver<()>,
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
        while let Some(files) = self.store.next_files(&mut walk) {
            for (file, path) in files {
                if !self.compare(&file, &path)? {
                    self.wait_for(&mut waiting, (file, path));
                }
            }
        }
        for _ in 0..SCRUB_ROUNDS {
            if waiting.is_empty() {
                break;
            }
            self.pause(SCRUB_ROUND_PAUSE)?;
            for (file, path) in std::mem::take(&mut waiting) {
                self.report.lock().waiting_files -= 1;
                if !self.compare(&file, &path)? {
                    self.wait_for(&mut waiting, (file, path));
                }
            }
        }
        let mut report = self.report.lock();
        let in_use = std::mem::take(&mut report.waiting_files);
        report.in_use_files += in_use;
        if let Some(error) = walk.unseen() {
            report.trouble = format!("some files cannot be looked at: {error}");
        }
        Ok(())
    }

    /// Keeps a file for a later round, if there is room.
    fn wait_for(&self, waiting: &mut Vec<(FileId, Vec<u8>)>, file: (FileId, Vec<u8>)) {
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
        let pace = |bytes: usize| {
            self.report.lock().bytes += bytes as u64;
            let seconds = bytes as f64 / self.bytes_per_second as f64;
            self.pause(Duration::from_secs_f64(seconds)).is_ok()
        };
        self.pause(Duration::ZERO)?;
        let outcome = self.store.scrub(file, &pace);
        // An end of the comparison looks like a writer.
        self.pause(Duration::ZERO)?;
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

    fn pause(&self, time: Duration) -> Result<(), Stopped> {
        match self.ended.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => Err(Stopped),
        }
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Returns a fault in a word.
fn word(fault: Fault) -> &'static str {
    match fault {
        Fault::Differs => "differs",
        Fault::Missing => "missing",
        Fault::Unreadable => "unreadable",
    }
}
