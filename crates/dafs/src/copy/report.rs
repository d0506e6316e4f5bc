//! Counts and failures of a copy, its progress display, and its summary.

use super::error::{CopyError, Outcome};
use super::pace::Pace;
use crate::failure::Failure;
use crate::limits::{PACE_STEP, PROGRESS_TICK};
use crate::output::{complain, say};
use crate::remote::Remote;
use dafs_mem::Mutex;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::room::Room;
use super::temporary::Registry;

/// The type of a copied object.
#[derive(Debug, Clone, Copy)]
pub(super) enum Copied {
    Directory,
    File,
    /// A further name of an existing file.
    HardLink,
    Special,
    Symlink,
}

/// The state of a copy that all its threads share.
#[derive(Debug)]
pub(super) struct Report {
    started: Instant,
    bytes: AtomicU64,
    counts: [AtomicU64; 5],
    unchanged: AtomicU64,
    deleted: AtomicU64,
    resumed: AtomicU64,
    skipped: AtomicU64,
    errors: AtomicU64,
    stopped: AtomicBool,
    failure: Mutex<Option<Failure>>,
    /// Transport and the reason for it, once there is a session.
    transport: Mutex<Option<(String, String)>>,
    bar: ProgressBar,
    pace: Option<Pace>,
    /// Unfinished files on this host.
    pub(super) temporaries: Registry,
    pub(super) room: Room,
}

impl Report {
    #[cfg(test)]
    pub(super) fn new() -> Self {
        Self::with_limit(None)
    }

    /// A report of a copy that passes at most so many bytes in a second.
    pub(super) fn with_limit(bytes_per_second: Option<u64>) -> Self {
        let bar = if can_draw() {
            let bar = ProgressBar::new_spinner();
            bar.set_style(style("{spinner} {wide_msg}"));
            bar.enable_steady_tick(PROGRESS_TICK);
            bar
        } else {
            ProgressBar::hidden()
        };
        Self {
            started: Instant::now(),
            bytes: AtomicU64::new(0),
            counts: Default::default(),
            unchanged: AtomicU64::new(0),
            deleted: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failure: Mutex::new(None),
            transport: Mutex::new(None),
            bar,
            pace: bytes_per_second.map(Pace::new),
            temporaries: Registry::default(),
            room: Room::default(),
        }
    }

    /// Notes the transport of a session.
    pub(super) fn connected(&self, client: &Remote) {
        *self.transport.lock() = Some(client.transport());
    }

    /// Counts bytes of copied data, and waits as long as the bandwidth limit wants.
    pub(super) fn add_bytes(&self, bytes: u64) {
        self.count_bytes(bytes);
        self.pace(bytes);
    }

    /// Counts bytes of file data.
    pub(super) fn count_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bar.inc(bytes);
        self.show();
    }

    /// Waits as long as the bandwidth limit wants, after a transfer of so many bytes.
    pub(super) fn pace(&self, bytes: u64) {
        let Some(pace) = &self.pace else { return };
        let end = pace.reserve(bytes, Instant::now());
        while let Some(left) = end.checked_duration_since(Instant::now())
            && !left.is_zero()
            && !self.is_stopped()
        {
            std::thread::sleep(left.min(PACE_STEP));
        }
    }

    pub(super) fn add(&self, what: Copied) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
        self.show();
    }

    /// Updates the text of the progress line, which is cut at the width of the terminal.
    fn show(&self) {
        if self.is_shown() {
            let (bytes, files) = (BinaryBytes(self.bar.position()), Copied::File as usize);
            let rate = BinaryBytes(self.bar.per_sec() as u64);
            let files = self.counts[files].load(Ordering::Relaxed);
            self.bar.set_message(format!("{bytes} {rate}/s {files} files"));
        }
    }

    /// Counts an object that is already there.
    pub(super) fn unchanged(&self, bytes: u64) {
        self.unchanged.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    /// Counts the bytes of a file that an earlier run has copied.
    pub(super) fn resumed(&self, bytes: u64) {
        self.resumed.fetch_add(bytes, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    /// Counts an object of the copy that was removed.
    pub(super) fn deleted(&self) {
        self.deleted.fetch_add(1, Ordering::Relaxed);
    }

    /// The bytes that the progress line shows as done.
    pub(super) fn position(&self) -> u64 {
        self.bar.position()
    }

    /// True if somebody sees the progress.
    pub(super) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Removes the progress line.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows percent and the time that is left, because the copy has so many bytes.
    pub(super) fn set_total(&self, bytes: u64) {
        self.bar.set_length(bytes.max(1));
        self.bar.set_style(style("{percent:>3}% {wide_msg} {eta}"));
    }

    /// Prints that an object was left out or changed, without an error.
    pub(super) fn warn(&self, text: &str) {
        self.say(&format!("dafs: {text}"));
    }

    /// As `warn`, for an object that was left out.
    pub(super) fn skip(&self, text: &str) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        self.warn(text);
    }

    /// Counts the outcome of an object.
    pub(super) fn book(&self, outcome: Outcome) {
        match outcome {
            Ok(()) | Err(CopyError::Stopped) => {}
            Err(CopyError::Object(text) | CopyError::NoSpace(text)) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                self.say(&format!("dafs: {text}"));
            }
            Err(CopyError::Stop(failure)) => self.stop(failure),
        }
    }

    /// The number of errors booked.
    #[cfg(test)]
    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Prints a line to standard output, between two states of the progress line.
    pub(super) fn print(&self, line: &str) -> Outcome {
        self.bar.suspend(|| say!("{line}")).map_err(CopyError::Stop)
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| complain!("{line}"));
    }

    /// Ends the copy. The first reason is reported.
    pub(super) fn stop(&self, failure: Failure) {
        self.failure.lock().get_or_insert(failure);
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Notes how a walk has failed. Its own failures have been reported already.
    pub(super) fn stop_after_walk(&self, failure: Failure) {
        match failure {
            Failure::Reported => {
                self.errors.fetch_add(1, Ordering::Relaxed);
            }
            Failure::Failed(text) => self.book(Err(CopyError::Object(text))),
            other => self.stop(other),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Fails if the copy has been stopped; long transfers check between pieces.
    pub(super) fn go_on(&self) -> Outcome {
        if self.is_stopped() { Err(CopyError::Stopped) } else { Ok(()) }
    }

    /// The result of the whole command.
    pub(super) fn result(&self) -> Result<(), Failure> {
        match self.failure.lock().take() {
            Some(failure) => Err(failure),
            None if self.errors.load(Ordering::Relaxed) > 0 => Err(Failure::Reported),
            None => Ok(()),
        }
    }

    /// Prints the summary: as JSON if requested, and as text for a terminal.
    pub(super) fn summary(&self, as_json: bool) -> Result<(), Failure> {
        let count = |what: Copied| self.counts[what as usize].load(Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        let bytes = self.bytes.load(Ordering::Relaxed);
        let transport = self.transport.lock().clone();
        self.bar.finish_and_clear();
        if as_json {
            let (kind, why) = transport.unzip();
            let copies: serde_json::Map<String, serde_json::Value> = dafs_mem::copies()
                .filter(|count| count.bytes > 0)
                .map(|count| (count.site.label().to_owned(), count.bytes.into()))
                .collect();
            let object = json!({
                "files": count(Copied::File),
                "directories": count(Copied::Directory),
                "symlinks": count(Copied::Symlink),
                "hard_links": count(Copied::HardLink),
                "specials": count(Copied::Special),
                "bytes": bytes,
                "seconds": seconds,
                "transport": kind,
                "why": why,
                "user_space_copies": copies,
                "unchanged": self.unchanged.load(Ordering::Relaxed),
                "deleted": self.deleted.load(Ordering::Relaxed),
                "resumed_bytes": self.resumed.load(Ordering::Relaxed),
                "skipped": self.skipped.load(Ordering::Relaxed),
                "errors": self.errors.load(Ordering::Relaxed),
            });
            return say!("{object}");
        }
        if std::io::stderr().is_terminal() {
            let rate = (bytes as f64 / seconds.max(1e-9)) as u64;
            complain!(
                "{} files, {} in {seconds:.2} s, {}/s over {}",
                count(Copied::File),
                BinaryBytes(bytes),
                BinaryBytes(rate),
                transport.map_or_else(|| "no transport".to_owned(), |(kind, _)| kind),
            );
        }
        Ok(())
    }
}

/// True if standard error is a terminal on which a line can be drawn again.
pub(crate) fn can_draw() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    !is_dumb && std::io::stderr().is_terminal()
}

/// Returns the style of a progress line.
pub(crate) fn style(template: &'static str) -> ProgressStyle {
    // INVARIANT: the template is constant and well formed.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
