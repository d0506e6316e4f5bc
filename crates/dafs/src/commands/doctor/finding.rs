//! One finding: severity, topic, one sentence, and the remedy.

use serde::Serialize;
use std::fmt;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// In order.
    Ok,
    /// Something is missing, perhaps on purpose.
    Note,
    /// Something present does not work.
    Problem,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// A few words to sort by.
    pub(super) topic: &'static str,
    /// One sentence.
    pub(super) text: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
    /// The measured values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured: Option<Measured>,
}

/// The measured values of transfers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Measured {
    /// Median round trip of a message.
    pub(super) round_trip_microseconds: f64,
    /// Throughput of RDMA writes of 1 MiB.
    pub(super) write_mebibytes_per_second: f64,
    /// Throughput of RDMA reads of 1 MiB.
    pub(super) read_mebibytes_per_second: f64,
}

impl Finding {
    pub(super) fn ok(topic: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Ok, topic, text: text.into(), fix: None, measured: None }
    }

    pub(super) fn note(
        topic: &'static str,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (text, fix) = (text.into(), Some(fix.into()));
        Self { level: Level::Note, topic, text, fix, measured: None }
    }

    pub(super) fn problem(
        topic: &'static str,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Problem, ..Self::note(topic, text, fix) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "PROBLEM",
        };
        write!(f, "{level:<8} {:<15} {}", self.topic, self.text)?;
        match &self.fix {
            Some(fix) => write!(f, "\n{:<24} -> {fix}", ""),
            None => Ok(()),
        }
    }
}
