//! The mean and the quantiles of durations, from the counts of two moments.

use dafs_server::LatencyReport;
use dafs_service::{BUCKETS, Histogram};

/// The durations of the requests of an interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Latency {
    /// By the buckets of [`Histogram`].
    counts: Vec<u64>,
    sum_nanoseconds: u64,
}

impl Latency {
    /// Returns the durations between two reports. Without a former report all are new.
    pub(super) fn between(before: Option<&LatencyReport>, after: &LatencyReport) -> Self {
        let former = |bucket: usize| {
            before.and_then(|before| before.counts.get(bucket)).copied().unwrap_or_default()
        };
        let counts = after.counts.iter().take(BUCKETS).enumerate();
        let former_sum = before.map_or(0, |before| before.sum_nanoseconds);
        Self {
            counts: counts.map(|(bucket, count)| count.saturating_sub(former(bucket))).collect(),
            sum_nanoseconds: after.sum_nanoseconds.saturating_sub(former_sum),
        }
    }

    /// Adds the durations of another party.
    pub(super) fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own = own.saturating_add(*more);
        }
        self.sum_nanoseconds = self.sum_nanoseconds.saturating_add(other.sum_nanoseconds);
    }

    fn count(&self) -> f64 {
        self.counts.iter().map(|&count| count as f64).sum()
    }

    /// Returns the mean in seconds. `None` if there are no durations.
    pub(super) fn mean_seconds(&self) -> Option<f64> {
        let count = self.count();
        (count > 0.0).then(|| self.sum_nanoseconds as f64 / 1e9 / count)
    }

    /// Returns the seconds that this share of the durations does not exceed. Within a bucket they are
    /// taken to lie evenly. The last bucket has no end, so its begin stands for it.
    pub(super) fn quantile_seconds(&self, share: f64) -> Option<f64> {
        let wanted = self.count() * share;
        let mut below = 0.0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            let inside = count as f64;
            if inside > 0.0 && below + inside >= wanted {
                let begin = bucket.checked_sub(1).map_or(0.0, Histogram::bound_seconds);
                let end = Histogram::bound_seconds(bucket);
                let part = (wanted - below) / inside;
                return Some(if end.is_finite() { begin + (end - begin) * part } else { begin });
            }
            below += inside;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(counts: &[u64], sum_nanoseconds: u64) -> LatencyReport {
        LatencyReport { counts: counts.to_vec(), sum_nanoseconds }
    }

    #[test]
    fn only_the_durations_of_the_interval_count() {
        let before = report(&[5, 1], 100);
        let latency = Latency::between(Some(&before), &report(&[5, 1, 0, 4], 24_100));
        assert_eq!(latency.mean_seconds(), Some(6e-6));
        // All four lie between 4 and 8 microseconds.
        assert!((latency.quantile_seconds(0.5).unwrap() - 6e-6).abs() < 1e-12);
        assert!((latency.quantile_seconds(1.0).unwrap() - 8e-6).abs() < 1e-12);
        assert_eq!(Latency::between(Some(&before), &before).quantile_seconds(0.99), None);
        assert_eq!(Latency::between(Some(&before), &report(&[], 0)).mean_seconds(), None);
    }

    #[test]
    fn durations_without_an_end_have_the_begin_of_their_bucket() {
        let mut counts = vec![0; BUCKETS + 5];
        counts[BUCKETS - 1] = 1;
        counts[BUCKETS + 4] = 7;
        let latency = Latency::between(None, &report(&counts, 0));
        assert_eq!(latency.quantile_seconds(0.99), Some((1u64 << (BUCKETS - 2)) as f64 / 1e6));
    }

    #[test]
    fn parties_add_up() {
        let mut sum = Latency::default();
        sum.add(&Latency::between(None, &report(&[1], 10)));
        sum.add(&Latency::between(None, &report(&[0, 1], 20)));
        assert_eq!(sum, Latency { counts: vec![1, 1], sum_nanoseconds: 30 });
    }
}
