//! Targets of the design and claims of the papers: a bound on a value, and the verdict on it.

use crate::report::Measure;
use serde::Serialize;
use std::fmt;

/// The values that meet a target or a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Within(f64, f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    NotMet,
    NotHere,
}

impl Verdict {
    pub(crate) const ALL: [Self; 3] = [Self::Met, Self::NotMet, Self::NotHere];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "not met",
            Self::NotHere => "cannot be shown here",
        }
    }
}

impl Bound {
    /// The distance of a value from the bound: above 0 outside.
    pub(crate) fn excess(self, value: f64) -> f64 {
        match self {
            Self::AtLeast(least) => least - value,
            Self::AtMost(most) => value - most,
            Self::Within(least, most) => (least - value).max(value - most),
        }
    }

    /// The verdict on a value. A value that is no number proves nothing.
    pub(crate) fn judge(self, value: f64) -> Verdict {
        match value.is_finite() {
            false => Verdict::NotHere,
            true if self.excess(value) <= 0.0 => Verdict::Met,
            true => Verdict::NotMet,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::Within(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

/// The value of a row that its target bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// The row's ratio: time, or processor time of one side, relative to the floor.
    Ratio,
    /// The client's processor time relative to the floor, whatever the row's ratio is.
    ClientCpuRatio,
    OperationsPerSecond,
    /// The time of an operation.
    Microseconds,
    /// The server's processor time for an operation.
    ServerMicroseconds,
    /// The same beyond that of the floor.
    ServerMicrosecondsMore,
}

/// The target of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) quantity: Quantity,
    pub(crate) bound: Bound,
}

impl Target {
    /// The row's ratio is so much at most.
    pub(crate) const fn ratio(most: f64) -> Self {
        Self { quantity: Quantity::Ratio, bound: Bound::AtMost(most) }
    }

    /// Another quantity is so much at most.
    pub(crate) const fn at_most(quantity: Quantity, most: f64) -> Self {
        Self { quantity, bound: Bound::AtMost(most) }
    }

    /// So many operations in a second, or more.
    pub(crate) const fn rate(least: f64) -> Self {
        Self { quantity: Quantity::OperationsPerSecond, bound: Bound::AtLeast(least) }
    }

    /// The target in words, for a row whose ratio is of that measure.
    pub(crate) fn words(&self, measure: Measure) -> String {
        let bound = self.bound;
        match self.quantity {
            Quantity::Ratio => match measure {
                Measure::Elapsed => bound.to_string(),
                Measure::ClientCpu => format!("client CPU {bound}"),
                Measure::ServerCpu => format!("server CPU {bound}"),
            },
            Quantity::ClientCpuRatio => format!("client CPU {bound}"),
            Quantity::OperationsPerSecond => format!("{bound} op/s"),
            Quantity::Microseconds => format!("{bound} us"),
            Quantity::ServerMicroseconds => format!("server {bound} us"),
            Quantity::ServerMicrosecondsMore => format!("server {bound} us more"),
        }
    }
}

/// A target beside what was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Judged {
    pub(crate) row: String,
    pub(crate) target: String,
    pub(crate) value: f64,
    pub(crate) verdict: &'static str,
}

/// A list of verdicts with their counts, each row in the order of its measurement.
pub(crate) fn table(judged: &[Judged]) -> String {
    let count =
        |verdict: Verdict| judged.iter().filter(|one| one.verdict == verdict.name()).count();
    let counts = Verdict::ALL.map(|verdict| format!("{} {}", count(verdict), verdict.name()));
    let mut text = format!("{} targets: {}", judged.len(), counts.join(", "));
    for Judged { row, target, value, verdict } in judged {
        let value = if value.is_finite() { format!("{value:.2}") } else { "-".to_owned() };
        text += &format!("\n  {verdict:<8} {value:>10}  {target:<28} {row}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_follows_from_the_side_of_the_bound() {
        for (bound, value, verdict) in [
            (Bound::AtMost(1.0), 1.0, Verdict::Met),
            (Bound::AtMost(1.0), 1.01, Verdict::NotMet),
            (Bound::AtLeast(1.95), 1.95, Verdict::Met),
            (Bound::AtLeast(1.95), 1.9, Verdict::NotMet),
            (Bound::Within(0.9, 1.1), 1.1, Verdict::Met),
            (Bound::Within(0.9, 1.1), 0.8, Verdict::NotMet),
            (Bound::Within(0.9, 1.1), 1.2, Verdict::NotMet),
            (Bound::AtMost(1.0), f64::NAN, Verdict::NotHere),
            (Bound::AtLeast(1.0), f64::INFINITY, Verdict::NotHere),
        ] {
            assert_eq!(bound.judge(value), verdict, "{bound}: {value}");
        }
    }

    #[test]
    fn a_target_says_which_value_it_bounds() {
        let words = |target: Target| target.words(Measure::Elapsed);
        assert_eq!(words(Target::ratio(0.33)), "at most 0.33");
        assert_eq!(Target::ratio(0.5).words(Measure::ClientCpu), "client CPU at most 0.5");
        assert_eq!(Target::ratio(1.0).words(Measure::ServerCpu), "server CPU at most 1");
        assert_eq!(words(Target::rate(300_000.0)), "at least 300000 op/s");
        let server = Target::at_most(Quantity::ServerMicroseconds, 3.0);
        assert_eq!(words(server), "server at most 3 us");
    }

    #[test]
    fn a_table_counts_its_verdicts() {
        let judged = |verdict: Verdict, value| Judged {
            row: "a row".to_owned(),
            target: "at most 1".to_owned(),
            value,
            verdict: verdict.name(),
        };
        let all = [
            judged(Verdict::Met, 0.5),
            judged(Verdict::NotMet, 1.5),
            judged(Verdict::Met, 0.9),
            judged(Verdict::NotHere, f64::NAN),
        ];
        let text = table(&all);
        assert!(text.starts_with("4 targets: 2 met, 1 not met, 1 cannot be shown here"), "{text}");
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.lines().any(|line| line.starts_with("  not met        1.50")), "{text}");
    }
}
