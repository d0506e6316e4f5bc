//! One finding: how bad, about what, one sentence, and the remedy.

use serde::Serialize;
use std::fmt;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// In order.
    Ok,
    /// Something is not there, which may be just what is wanted.
    Note,
    /// Something that is here does not work.
    Problem,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// A few words to sort by.
    pub(super) topic: &'static str,
    /// One sentence.
    pub(super) text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
    /// What was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured: Option<Measured>,
}

/// What transfers have shown.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Measured {
    /// A message there and one back, the median.
    pub(super) round_trip_microseconds: f64,
    /// By RDMA writes of 1 MiB.
    pub(super) write_mebibytes_per_second: f64,
    /// By RDMA reads of 1 MiB.
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
