//! The results of trials.
//!
//! Invariants
//! * Sample n of each row is of round n, so that two rows are compared within a round.

use super::super::cells::Network;
use super::super::results::{Quantity, Sample};
use super::trials::{Door, Trial, Work};
use crate::report::median;
use anyhow::Error;
use serde::{Deserialize, Serialize};

/// All rounds of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) trial: Trial,
    pub(crate) samples: Vec<Sample>,
    /// Pages that the client's kernel has read again in each round; none where it does not count them.
    #[serde(default)]
    pub(crate) refaults: Vec<u64>,
}

/// Trials that this machine cannot run: those of a work, on a network, through a door, or all. Or one
/// that has failed: its earlier rounds stay in the file, and decide nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) work: Option<Work>,
    pub(crate) network: Option<Network>,
    #[serde(default)]
    pub(crate) door: Option<Door>,
    #[serde(default)]
    pub(crate) step: Option<u64>,
    pub(crate) reason: String,
}

impl Skipped {
    /// A trial that has failed.
    pub(super) fn failed(trial: &Trial, error: &Error) -> Self {
        let &Trial { work, step, network, door } = trial;
        let (work, network, door, step) = (Some(work), Some(network), Some(door), Some(step));
        Self { work, network, door, step, reason: format!("{error:#}") }
    }

    /// The trials in words.
    pub(crate) fn rows(&self) -> String {
        let network = self.network.map(Network::name);
        let step = self.work.zip(self.step).map(|(work, step)| work.step(step));
        let (title, door) = (self.work.map(Work::title), self.door.map(Door::name));
        let words = [title, network, door, step.as_deref()];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        if words.is_empty() { "all programs".to_owned() } else { words.join("; ") }
    }

    fn covers(&self, trial: &Trial) -> bool {
        self.work.is_none_or(|work| work == trial.work)
            && self.network.is_none_or(|network| network == trial.network)
            && self.door.is_none_or(|door| door == trial.door)
            && self.step.is_none_or(|step| step == trial.step)
    }
}

/// The trials of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Programs {
    /// Percent of their full size at which programs run.
    pub(crate) scale: u64,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) rows: Vec<Row>,
}

impl Programs {
    /// The reason why this machine cannot run a trial, if it cannot.
    pub(crate) fn reason(&self, trial: &Trial) -> Option<&str> {
        let skipped = self.skipped.iter().find(|skipped| skipped.covers(trial))?;
        Some(&skipped.reason)
    }

    /// Adds the next round of a trial.
    pub(crate) fn add(&mut self, trial: Trial, sample: Sample, refaults: Option<u64>) {
        match self.rows.iter_mut().find(|row| row.trial == trial) {
            Some(row) => {
                row.samples.push(sample);
                row.refaults.extend(refaults);
            }
            None => {
                let refaults = refaults.into_iter().collect();
                self.rows.push(Row { trial, samples: vec![sample], refaults });
            }
        }
    }

    /// The median of the pages that were read again, if they were counted.
    pub(crate) fn refaults(&self, trial: &Trial) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.trial == *trial)?;
        let pages = row.refaults.iter().map(|&pages| pages as f64).collect();
        Some(median(pages)).filter(|pages| pages.is_finite())
    }

    /// All rounds of a trial, or the reason why there are none. Rounds before a failure are none.
    fn samples(&self, trial: &Trial) -> Result<&[Sample], String> {
        if let Some(reason) = self.reason(trial) {
            return Err(reason.to_owned());
        }
        let row = self.rows.iter().find(|row| row.trial == *trial);
        let samples = row.map(|row| &row.samples[..]).filter(|samples| !samples.is_empty());
        samples.ok_or_else(|| "its programs did not run".to_owned())
    }

    /// The median of a quantity over the rounds of a trial.
    pub(crate) fn value(&self, quantity: Quantity, trial: &Trial) -> Result<f64, String> {
        Ok(median(self.samples(trial)?.iter().map(|sample| quantity.of(sample)).collect()))
    }

    /// The median of the ratios of a quantity of two trials in each round.
    pub(crate) fn ratio(&self, quantity: Quantity, of: &Trial, to: &Trial) -> Result<f64, String> {
        let pairs = self.samples(of)?.iter().zip(self.samples(to)?);
        Ok(median(pairs.map(|(of, to)| quantity.of(of) / quantity.of(to)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_are_compared_round_by_round_and_missing_ones_have_a_reason() {
        let trial = |door| Trial { work: Work::Sizes, step: 270, network: Network::Link, door };
        let sample = |elapsed_ns| Sample {
            operations: 1,
            bytes: 1000,
            elapsed_ns,
            client_cpu_ns: 1,
            server_cpu_ns: 1,
            copied_bytes: None,
            crossed_bytes: None,
        };
        let mut programs = Programs::default();
        for round in 1..=3 {
            programs.add(trial(Door::Run), sample(round * 100), None);
            programs.add(trial(Door::Mount), sample(round * 300), Some(round));
        }
        assert_eq!(programs.refaults(&trial(Door::Mount)), Some(2.0));
        assert_eq!(programs.refaults(&trial(Door::Run)), None);
        let ratio = programs.ratio(Quantity::Elapsed, &trial(Door::Mount), &trial(Door::Run));
        assert!((ratio.expect("both are there") - 3.0).abs() < 1e-9);
        let value = programs.value(Quantity::Elapsed, &trial(Door::Run)).expect("it is there");
        assert!((value - 0.2).abs() < 1e-9, "{value}");
        let absent = Trial { work: Work::Queue, ..trial(Door::Run) };
        let reason = programs.value(Quantity::Elapsed, &absent).expect_err("no row");
        assert_eq!(reason, "its programs did not run");
        let reason = "there is no cc".to_owned();
        let (network, door) = (None, Some(Door::Run));
        let (work, step) = (Some(Work::Queue), None);
        programs.skipped.push(Skipped { work, network, door, step, reason });
        let reason = programs.value(Quantity::Elapsed, &absent).expect_err("no row");
        assert_eq!(reason, "there is no cc");
        assert!(programs.reason(&trial(Door::Run)).is_none());
        assert!(programs.reason(&Trial { door: Door::Mount, ..absent }).is_none());
        // The earlier rounds of one that fails decide nothing, and no other step is concerned.
        let failed = trial(Door::Mount);
        assert!(programs.value(Quantity::Elapsed, &failed).is_ok());
        let skipped = Skipped::failed(&failed, &Error::msg("it hangs"));
        assert!(skipped.rows().ends_with("link; mount; 270 % of the cache"), "{}", skipped.rows());
        programs.skipped.push(skipped);
        let reason = programs.value(Quantity::Elapsed, &failed).expect_err("a failure");
        assert_eq!(reason, "it hangs");
        assert!(programs.reason(&Trial { step: 50, ..failed }).is_none());
    }
}
