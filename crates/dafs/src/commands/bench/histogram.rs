//! Counts of latencies, with a resolution of three per cent.
//!
//! Invariants
//! * Its memory does not grow with the number of latencies.

use std::time::Duration;

/// Steps within each doubling.
const STEPS: usize = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// Counts of latencies.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { counts: vec![0; 64 * STEPS], total: 0, max: Duration::ZERO }
    }

    pub(super) fn add(&mut self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[place(nanoseconds)] += 1;
        self.total += 1;
        self.max = self.max.max(time);
    }

    /// The latency that this share of all did not exceed.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let wanted = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(upper(place)).min(self.max);
            }
        }
        self.max
    }

    pub(super) fn max(&self) -> Duration {
        self.max
    }

    pub(super) fn count(&self) -> u64 {
        self.total
    }
}

/// The place of a value: small values have their own, others share one by their first bits.
fn place(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - STEP_BITS;
    let step = (value >> shift) as usize - STEPS;
    (shift as usize + 1) * STEPS + step
}

/// The largest value of a place.
fn upper(place: usize) -> u64 {
    if place < STEPS {
        return place as u64;
    }
    let shift = place / STEPS - 1;
    let step = (place % STEPS + STEPS) as u64;
    ((step + 1) << shift).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_at_most_a_thirtieth_below_the_end_of_its_place() {
        for value in (0..200_000).chain([u64::MAX / 2, u64::MAX]) {
            let end = upper(place(value));
            assert!(value <= end && end - value <= value / 31, "{value} {end}");
        }
    }

    #[test]
    fn quantiles_are_in_order() {
        let mut histogram = Histogram::new();
        (1..=1000).for_each(|us| histogram.add(Duration::from_micros(us)));
        let median = histogram.quantile(0.5);
        assert!((500..=520).contains(&median.as_micros()), "{median:?}");
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(1000));
        assert_eq!((histogram.max(), histogram.count()), (Duration::from_micros(1000), 1000));
    }
}
