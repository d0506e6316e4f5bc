//! Progress of work that a server does in the background: a bar on a terminal, and elsewhere a line
//! from time to time.

use crate::copy::{can_draw, style};
use crate::limits::{PROGRESS_LINE_INTERVAL, PROGRESS_TICK};
use crate::output::complain;
use indicatif::{BinaryBytes, FormattedDuration, ProgressBar};
use std::time::{Duration, Instant};

/// The state of the work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Files and bytes that are done.
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Those that are left, if that is known.
    pub(super) left: Option<(u64, u64)>,
}

impl Progress {
    /// Returns the state in words. The time that is left follows from the rate so far.
    fn text(&self, elapsed: Duration) -> String {
        let rate = self.bytes as f64 / elapsed.as_secs_f64().max(1e-3);
        let done = format!("{} files, {} done", self.files, BinaryBytes(self.bytes));
        let speed = BinaryBytes(rate as u64);
        let Some((files, bytes)) = self.left else { return format!("{done}; {speed}/s") };
        let mut text = format!("{done}; {files} files, {} left; {speed}/s", BinaryBytes(bytes));
        if rate >= 1.0 && bytes > 0 {
            // No wait is longer than the text can tell.
            let seconds = (bytes as f64 / rate).ceil().min(1e9) as u64;
            text.push_str(&format!(", {}", FormattedDuration(Duration::from_secs(seconds))));
        }
        text
    }
}

/// Shows the progress on standard error.
#[derive(Debug)]
pub(super) struct Meter {
    /// `None` where no line can be drawn again.
    bar: Option<ProgressBar>,
    began: Instant,
    /// The time of the last line.
    told: Instant,
}

impl Meter {
    pub(super) fn new() -> Self {
        let bar = can_draw().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(style("{spinner} {wide_msg}"));
            bar.enable_steady_tick(PROGRESS_TICK);
            bar
        });
        let now = Instant::now();
        Self { bar, began: now, told: now }
    }

    /// Shows the present state. `note` follows it.
    pub(super) fn show(&mut self, progress: &Progress, note: &str) {
        let text = progress.text(self.began.elapsed());
        self.draw(progress.bytes, progress.left.map(|(_, bytes)| bytes), text, note);
    }

    /// Does the same for work that is counted in files alone.
    pub(super) fn show_files(&mut self, done: u64, left: u64, note: &str) {
        self.draw(done, Some(left), format!("{done} files done; {left} files left"), note);
    }

    fn draw(&mut self, done: u64, left: Option<u64>, mut text: String, note: &str) {
        if !note.is_empty() {
            text.push_str(&format!("; {note}"));
        }
        let Some(bar) = &self.bar else {
            let now = Instant::now();
            if now.saturating_duration_since(self.told) >= PROGRESS_LINE_INTERVAL {
                self.told = now;
                complain!("dafs: {text}");
            }
            return;
        };
        if let Some(left) = left {
            bar.set_length((done + left).max(1));
            bar.set_style(style("{percent:>3}% {bar:20} {wide_msg}"));
        }
        bar.set_position(done);
        bar.set_message(text);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_follows_from_the_rate() {
        let elapsed = Duration::from_secs(4);
        let progress = Progress { files: 3, bytes: 4 << 20, left: Some((2, 120 << 20)) };
        let text = "3 files, 4.00 MiB done; 2 files, 120.00 MiB left; 1.00 MiB/s, 00:02:00";
        assert_eq!(progress.text(elapsed), text);
        let unknown = Progress { left: None, ..progress };
        assert_eq!(unknown.text(elapsed), "3 files, 4.00 MiB done; 1.00 MiB/s");
        let idle = Progress { files: 0, bytes: 0, left: Some((1, 5)) };
        assert_eq!(idle.text(elapsed), "0 files, 0 B done; 1 files, 5 B left; 0 B/s");
    }
}
