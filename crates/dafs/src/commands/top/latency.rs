//! The mean and the quantiles of durations, from the counts of two moments.

use dafs_server::LatencyReport;
use dafs_service::{BUCKETS, Histogram};

/// The durations of the requests of an interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Latency {
    /// By the buckets of [`Histogram`].
    counts: Vec<u64>,
    sum_microseconds: u64,
}

impl Latency {
    /// Returns the durations between two reports. In a class without a former report all are new.
    pub(super) fn between(before: &[LatencyReport], after: &[LatencyReport]) -> Self {
        let mut all = Self::default();
        for is in after {
            let was = before.iter().find(|was| was.class == is.class);
            let former = |bucket: usize| {
                was.and_then(|was| was.buckets.get(bucket)).copied().unwrap_or_default()
            };
            let counts = is.buckets.iter().take(BUCKETS).enumerate();
            let former_sum = was.map_or(0, |was| was.total_microseconds);
            all.add(&Self {
                counts: counts.map(|(at, count)| count.saturating_sub(former(at))).collect(),
                sum_microseconds: is.total_microseconds.saturating_sub(former_sum),
            });
        }
        all
    }

    /// Adds other durations.
    pub(super) fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own = own.saturating_add(*more);
        }
        self.sum_microseconds = self.sum_microseconds.saturating_add(other.sum_microseconds);
    }

    fn count(&self) -> f64 {
        self.counts.iter().map(|&count| count as f64).sum()
    }

    /// Returns the mean in seconds. `None` if there are no durations.
    pub(super) fn mean_seconds(&self) -> Option<f64> {
        let count = self.count();
        (count > 0.0).then(|| self.sum_microseconds as f64 / 1e6 / count)
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

    fn report(class: &str, buckets: &[u64], total_microseconds: u64) -> LatencyReport {
        LatencyReport { class: class.to_owned(), total_microseconds, buckets: buckets.to_vec() }
    }

    #[test]
    fn only_the_durations_of_the_interval_count() {
        let before = [report("read", &[5, 1], 100)];
        let latency = Latency::between(&before, &[report("read", &[5, 1, 0, 4], 124)]);
        assert_eq!(latency.mean_seconds(), Some(6e-6));
        // All four lie between 4 and 8 microseconds.
        assert!((latency.quantile_seconds(0.5).unwrap() - 6e-6).abs() < 1e-12);
        assert!((latency.quantile_seconds(1.0).unwrap() - 8e-6).abs() < 1e-12);
        assert_eq!(Latency::between(&before, &before).quantile_seconds(0.99), None);
        assert_eq!(Latency::between(&before, &[report("read", &[], 0)]).mean_seconds(), None);
        assert_eq!(Latency::between(&before, &[]).mean_seconds(), None);
    }

    #[test]
    fn durations_without_an_end_have_the_begin_of_their_bucket() {
        let mut counts = vec![0; BUCKETS + 5];
        counts[BUCKETS - 1] = 1;
        counts[BUCKETS + 4] = 7;
        let latency = Latency::between(&[], &[report("other", &counts, 0)]);
        assert_eq!(latency.quantile_seconds(0.99), Some((1u64 << (BUCKETS - 2)) as f64 / 1e6));
    }

    #[test]
    fn classes_add_up() {
        let before = [report("write", &[0, 3], 7)];
        let after = [report("read", &[1], 10), report("write", &[0, 4], 27)];
        let expected = Latency { counts: vec![1, 1], sum_microseconds: 30 };
        assert_eq!(Latency::between(&before, &after), expected);
    }
}
