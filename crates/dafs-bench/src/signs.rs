//! The signs that `dafs advise` predicts, beside the measured ones: faster or slower than local files, or
//! equal. The prediction watches one run on local files, and knows the machine by its own measurement.
//!
//! Invariants
//! * Nothing fails on a wrong sign, nor on a prediction that fails: the table is for people.

use crate::fronts::{Way, dafs};
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};

/// Times closer than this share are equal, as in `dafs advise`.
const BAND: f64 = 0.1;

/// The first words of a remark on programs whose calls were not counted.
const UNWATCHED: &str = "NOT WATCHED";

/// The longest time of a program that is watched, in seconds.
const WATCHED_SECONDS_MAX: &str = "900";

/// The part of the answer of `dafs advise` that counts here.
#[derive(Debug, Deserialize)]
struct Answer {
    predictions: Vec<Prediction>,
    observation: Observation,
}

#[derive(Debug, Deserialize)]
struct Prediction {
    way: String,
    transport: String,
    optimistic: bool,
    seconds: f64,
}

#[derive(Debug, Deserialize)]
struct Observation {
    remarks: Vec<String>,
}

/// The predictions for one program.
#[derive(Debug)]
pub(crate) struct Predicted(Answer);

/// A case, and its predicted time relative to local files.
#[derive(Debug)]
pub(crate) struct Sign {
    case: String,
    ratio: f64,
}

/// A predicted time relative to local files, and the measured one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Compared {
    pub(crate) case: String,
    pub(crate) predicted: f64,
    pub(crate) measured: f64,
}

impl Compared {
    /// True if both are faster than local files, or slower, or equal.
    pub(crate) fn is_right(&self) -> bool {
        word(self.predicted) == word(self.measured)
    }
}

/// The beginning of a command that watches a program, which the caller adds with its arguments, on files
/// below a folder.
pub(crate) fn watching(below: &Path, answer: &Path) -> Result<Command> {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", WATCHED_SECONDS_MAX]).arg(dafs()?);
    command.args(["advise", "--json", "--output"]).arg(answer).arg("--below").arg(below).arg("--");
    command.stdin(Stdio::null());
    Ok(command)
}

impl Predicted {
    /// Reads the answer of such a command.
    pub(crate) fn read(answer: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(answer)?;
        let answer: Answer = serde_json::from_str(&text).context("the answer of dafs advise")?;
        let remarks = &answer.observation.remarks;
        for remark in remarks {
            println!("  dafs advise: {remark}");
        }
        // A prediction from a part of the work would be one for another program.
        ensure!(!remarks.iter().any(|remark| remark.starts_with(UNWATCHED)), "not all was watched");
        Ok(Self(answer))
    }

    /// The sign of a case by this way; `None` for local files, or where there is no prediction.
    pub(crate) fn sign(&self, case: &str, way: Way, is_optimistic: bool) -> Option<Sign> {
        let name = match way {
            Way::Run => "run",
            Way::Mount => "mount",
            // Requests under way, into memory of the library.
            Way::Fsspec => "api",
            Way::Local | Way::Passthrough => return None,
        };
        let local = self.0.predictions.iter().find(|one| one.way == "local")?;
        let one = self.0.predictions.iter().find(|one| {
            one.way == name && one.transport == "shm" && one.optimistic == is_optimistic
        })?;
        let ratio = one.seconds / local.seconds.max(f64::MIN_POSITIVE);
        Some(Sign { case: case.to_owned(), ratio })
    }
}

/// The signs; none, and a remark, after a failure.
pub(crate) fn if_any(signs: Result<Vec<Sign>>) -> Vec<Sign> {
    signs.unwrap_or_else(|error| {
        println!("  no signs by dafs advise: {error:#}");
        Vec::new()
    })
}

fn word(ratio: f64) -> &'static str {
    match ratio {
        ratio if ratio > 1.0 + BAND => "slower",
        ratio if ratio < 1.0 - BAND => "faster",
        _ => "equal",
    }
}

/// Prints the signs beside those that have been measured, and adds them to the report.
pub(crate) fn tell(report: &mut Report, signs: &[Sign]) {
    let measured = |case: &str| {
        report.rows().iter().rev().find(|row| row.case == case).and_then(|row| row.ratio)
    };
    let compared = |sign: &Sign| {
        let measured = measured(&sign.case)?;
        Some(Compared { case: sign.case.clone(), predicted: sign.ratio, measured })
    };
    let known: Vec<Compared> = signs.iter().filter_map(compared).collect();
    let Some(first) = known.first() else { return };
    println!("\n  time against local files: predicted by dafs advise, and measured");
    for one in &known {
        let right = if one.is_right() { "right" } else { "WRONG" };
        println!(
            "  {:<40} {:>9.2} {:<7} {:>9.2} {:<7} {right}",
            one.case,
            one.predicted,
            word(one.predicted),
            one.measured,
            word(one.measured)
        );
    }
    let right = known.iter().filter(|one| one.is_right()).count();
    let share = right as f64 / known.len() as f64;
    let name = format!("signs right, {}", first.case);
    let text = format!("{right} of {} (target: all)", known.len());
    report.figure(&name, share, &text);
    report.add_signs(known);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_is_that_of_the_way_and_differences_of_a_tenth_are_none() {
        let text = r#"{"predictions": [
            {"way": "local", "transport": "local", "optimistic": false, "seconds": 2.0},
            {"way": "run", "transport": "iwarp", "optimistic": false, "seconds": 9.0},
            {"way": "run", "transport": "shm", "optimistic": true, "seconds": 2.1},
            {"way": "run", "transport": "shm", "optimistic": false, "seconds": 3.0}],
            "observation": {"remarks": []}, "machine": {}}"#;
        let predicted = Predicted(serde_json::from_str(text).expect("an answer"));
        let ratio = |way, shown| predicted.sign("a", way, shown).map(|sign| sign.ratio);
        assert_eq!((ratio(Way::Run, false), ratio(Way::Run, true)), (Some(1.5), Some(1.05)));
        assert_eq!((ratio(Way::Local, false), ratio(Way::Mount, false)), (None, None));
        assert_eq!((word(1.5), word(1.05), word(0.8)), ("slower", "equal", "faster"));
    }

    #[test]
    fn a_part_of_the_work_predicts_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let answer = folder.path().join("answer");
        let read = |remark: &str| {
            let text =
                format!(r#"{{"predictions": [], "observation": {{"remarks": ["{remark}"]}}}}"#);
            std::fs::write(&answer, text).expect("written");
            Predicted::read(&answer)
        };
        assert!(read("5 bytes were read by calls that are not seen").is_ok());
        let error = read("NOT WATCHED: 7 programs that it has started").expect_err("a part");
        assert_eq!(error.to_string(), "not all was watched");
    }

    #[test]
    fn a_prediction_is_right_by_its_sign_alone() {
        let compared = |predicted, measured| Compared { case: "a".into(), predicted, measured };
        assert!(compared(1.5, 30.0).is_right() && compared(0.95, 1.05).is_right());
        assert!(!compared(1.5, 1.05).is_right() && !compared(0.8, 1.2).is_right());
    }
}
