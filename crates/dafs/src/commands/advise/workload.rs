//! The work of a program on files: what a description in TOML says, or a watched program has done.
//!
//! Invariants
//! * Every number is finite and in its range: a share from 0 to 1, no time below 0, at least one call
//!   at a time. A workload that breaks this cannot be made.

use crate::failure::Failure;
use crate::limits::DESCRIPTION_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The longest time, in seconds: a century.
const SECONDS_MAX: f64 = 100.0 * 365.0 * 24.0 * 3600.0;

/// Most calls at once.
const AT_ONCE_MAX: f64 = 65536.0;

/// A share of a whole, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub(super) struct Share(f64);

/// A time in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub(super) struct Seconds(f64);

/// Calls under way at once: their mean, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub(super) struct AtOnce(f64);

impl Share {
    pub(super) fn of(part: u64, whole: u64) -> Self {
        Self(part.min(whole) as f64 / whole.max(1) as f64)
    }

    pub(super) fn get(self) -> f64 {
        self.0
    }
}

impl Seconds {
    /// The nearest time to a number of seconds.
    pub(super) fn near(seconds: f64) -> Self {
        // No number is not above 0.
        Self(if seconds > 0.0 { seconds.min(SECONDS_MAX) } else { 0.0 })
    }

    pub(super) fn get(self) -> f64 {
        self.0
    }
}

impl AtOnce {
    /// The nearest mean to a number of calls.
    pub(super) fn near(calls: f64) -> Self {
        Self(if calls > 1.0 { calls.min(AT_ONCE_MAX) } else { 1.0 })
    }

    pub(super) fn get(self) -> f64 {
        self.0
    }
}

impl Default for AtOnce {
    fn default() -> Self {
        Self(1.0)
    }
}

impl TryFrom<f64> for Share {
    type Error = &'static str;

    fn try_from(number: f64) -> Result<Self, Self::Error> {
        (0.0..=1.0).contains(&number).then_some(Self(number)).ok_or("write a share from 0 to 1")
    }
}

impl TryFrom<f64> for Seconds {
    type Error = &'static str;

    fn try_from(number: f64) -> Result<Self, Self::Error> {
        let is_time = (0.0..=SECONDS_MAX).contains(&number);
        is_time.then_some(Self(number)).ok_or("write seconds, from 0 to a century")
    }
}

impl TryFrom<f64> for AtOnce {
    type Error = &'static str;

    fn try_from(number: f64) -> Result<Self, Self::Error> {
        let is_mean = (1.0..=AT_ONCE_MAX).contains(&number);
        is_mean.then_some(Self(number)).ok_or("write a number of calls from 1 to 65536")
    }
}

impl From<Share> for f64 {
    fn from(share: Share) -> Self {
        share.0
    }
}

impl From<Seconds> for f64 {
    fn from(seconds: Seconds) -> Self {
        seconds.0
    }
}

impl From<AtOnce> for f64 {
    fn from(calls: AtOnce) -> Self {
        calls.0
    }
}

/// Reads, or writes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "Given")]
pub(super) struct Transfers {
    pub(super) calls: u64,
    /// The bytes of all calls.
    pub(super) bytes: u64,
    /// The share of calls that begin where the last one ended.
    pub(super) in_order: Share,
    /// The share of reads of a place that was read before.
    pub(super) again: Share,
    /// The share of calls with memory that begins at a page.
    pub(super) aligned: Share,
}

/// The same as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Given {
    calls: u64,
    bytes: u64,
    in_order: Share,
    again: Share,
    aligned: Share,
}

impl TryFrom<Given> for Transfers {
    type Error = &'static str;

    fn try_from(given: Given) -> Result<Self, Self::Error> {
        let Given { calls, bytes, in_order, again, aligned } = given;
        match (calls, bytes) {
            (0, 1..) => Err("these bytes need calls: write calls = NUMBER"),
            _ if bytes < calls => Err("a call moves a byte at least: bytes is that of all calls"),
            _ => Ok(Self { calls, bytes, in_order, again, aligned }),
        }
    }
}

impl Transfers {
    /// The mean bytes of a call; 0 if there is none.
    pub(super) fn mean_bytes(&self) -> f64 {
        self.bytes as f64 / self.calls.max(1) as f64
    }
}

/// The work of a program.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Workload {
    /// Time outside of calls on files.
    pub(super) outside_seconds: Seconds,
    /// Processor time outside of calls on files, of all threads and processes.
    pub(super) cpu_seconds: Seconds,
    /// Calls with a path (opens, checks, removals), and those about an open file that ask a server
    /// (closes, locks, `fstat`, truncation).
    pub(super) names: u64,
    /// Calls that make data stable.
    pub(super) syncs: u64,
    /// The time of one of these on a local file, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sync_seconds: Option<Seconds>,
    /// Reads, writes and syncs under way at once.
    pub(super) at_once: AtOnce,
    /// Bytes of files that are mapped, whose reads and writes are not seen.
    pub(super) mapped_bytes: u64,
    pub(super) reads: Transfers,
    pub(super) writes: Transfers,
}

impl Workload {
    /// True if it does nothing on files.
    pub(super) fn is_idle(&self) -> bool {
        let calls = [self.reads.calls, self.writes.calls, self.names, self.syncs];
        calls.iter().all(|calls| *calls == 0)
    }

    /// Reads a description.
    pub(super) fn load(path: &Path) -> Result<Self, Failure> {
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::Usage(format!("cannot read the workload {}: {why}", path.display()))
        };
        let mut text = String::new();
        let file = File::open(path).map_err(|error| wrong(&error))?;
        let limit = DESCRIPTION_BYTES_MAX + 1;
        file.take(limit).read_to_string(&mut text).map_err(|error| wrong(&error))?;
        if text.len() as u64 > DESCRIPTION_BYTES_MAX {
            let why = format!("it is longer than {DESCRIPTION_BYTES_MAX} bytes");
            return Err(wrong(&why));
        }
        Self::parse(&text).map_err(|(line, why)| {
            Failure::Usage(format!(
                "{} line {line}: {why}; docs/advise.md lists the keys, and --save writes such a file \
                 for a program",
                path.display()
            ))
        })
    }

    /// Parses a description. The error has its line and the reason.
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        toml::from_str(text).map_err(|error| {
            let begin = error.span().map_or(0, |span| span.start);
            let line = text.bytes().take(begin).filter(|byte| *byte == b'\n').count() + 1;
            (line, error.message().trim().replace('\n', " "))
        })
    }

    /// Writes a description.
    pub(super) fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self).map_err(|error| Failure::Failed(error.to_string()))?;
        std::fs::write(path, text).map_err(|error| Failure::local(path.display(), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "outside_seconds = 2.5\ncpu_seconds = 2\nnames = 3\nat_once = 1\n\
                        [reads]\ncalls = 35000\nbytes = 573440000\nin_order = 1\n";

    #[test]
    fn a_description_has_defaults_and_comes_back_as_it_was_written() {
        let workload = Workload::parse(TEXT).unwrap();
        assert_eq!(workload.reads.mean_bytes(), 16384.0);
        assert_eq!((workload.reads.again.get(), workload.writes.calls), (0.0, 0));
        assert!(!workload.is_idle() && Workload::parse("").unwrap().is_idle());
        let text = toml::to_string(&workload).unwrap();
        assert_eq!(Workload::parse(&text).unwrap(), workload);
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, line, why) in [
            ("names = 1\nnmes = 2\n", 2, "unknown field"),
            ("names = 1\n[reads]\ncals = 2\n", 3, "unknown field"),
            ("\n[reads]\ncalls = 2\nbytes = 2\nin_order = 1.5\n", 5, "from 0 to 1"),
            ("[reads]\ncalls = 2\nbytes = 2\nagain = nan\n", 4, "from 0 to 1"),
            ("cpu_seconds = -1\n", 1, "from 0"),
            ("outside_seconds = inf\n", 1, "from 0"),
            ("at_once = 0\n", 1, "from 1"),
            ("names = -1\n", 1, "u64"),
            ("names = = 3\n", 1, ""),
        ] {
            let (found, text) = Workload::parse(text).unwrap_err();
            assert_eq!(found, line, "{text}");
            assert!(text.contains(why), "{text}");
        }
        for text in ["[reads]\nbytes = 1\n", "[writes]\ncalls = 3\nbytes = 2\n"] {
            assert!(Workload::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_nearest_time_and_mean_are_in_range() {
        for (number, seconds, calls) in
            [(-1.0, 0.0, 1.0), (f64::NAN, 0.0, 1.0), (f64::INFINITY, SECONDS_MAX, AT_ONCE_MAX)]
        {
            assert_eq!(Seconds::near(number).get(), seconds);
            assert_eq!(AtOnce::near(number).get(), calls);
        }
        assert_eq!((Share::of(3, 0).get(), Share::of(7, 4).get()), (0.0, 1.0));
    }
}
