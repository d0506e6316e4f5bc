//! Definitions of metrics: names, types, units and meanings, as Prometheus and docs/metrics.md show them.
//!
//! Invariants
//! * A name begins with `dafs_` and ends with its unit, if it has one, and a counter's with `_total`
//!   behind that.

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt;

static BYTES: Unit = Unit::Bytes;
static SECONDS: Unit = Unit::Seconds;

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Definition {
    /// The name of its samples; those of a histogram add `_bucket`, `_sum` and `_count`.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
    pub(crate) labels: &'static [&'static str],
}

impl Definition {
    const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, kind, help, labels: &[] }
    }

    /// A counter.
    pub(crate) const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Counter, help)
    }

    /// A gauge.
    pub(crate) const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Gauge, help)
    }

    /// A histogram.
    pub(crate) const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Histogram, help)
    }

    /// The same with labels.
    pub(crate) const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// Returns the name without unit and `_total`, which the encoder adds, and the unit.
    fn parts(&self) -> (&'static str, Option<&'static Unit>) {
        let name = match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        };
        if let Some(base) = name.strip_suffix("_bytes") {
            (base, Some(&BYTES))
        } else if let Some(base) = name.strip_suffix("_seconds") {
            (base, Some(&SECONDS))
        } else {
            (name, None)
        }
    }

    /// Writes the lines before the samples.
    pub(super) fn begin<'e>(
        &self,
        encoder: &'e mut DescriptorEncoder<'_>,
    ) -> Result<MetricEncoder<'e>, fmt::Error> {
        let (base, unit) = self.parts();
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        encoder.encode_descriptor(base, self.help, unit, kind)
    }
}

/// A metric without labels, and its value in a set of counts.
pub(crate) struct Source<T: ?Sized> {
    pub(crate) definition: Definition,
    read: fn(&T) -> u64,
}

/// A counter of a set of counts.
pub(crate) const fn counter<T: ?Sized>(
    name: &'static str,
    help: &'static str,
    read: fn(&T) -> u64,
) -> Source<T> {
    Source { definition: Definition::counter(name, help), read }
}

/// A gauge of a set of counts.
pub(crate) const fn gauge<T: ?Sized>(
    name: &'static str,
    help: &'static str,
    read: fn(&T) -> u64,
) -> Source<T> {
    Source { definition: Definition::gauge(name, help), read }
}

/// A metric without labels, and its present value.
pub(crate) type Sample = (Definition, u64);

/// Reads the values of metrics.
pub(crate) fn samples<T: ?Sized>(sources: &[Source<T>], counts: &T) -> Vec<Sample> {
    sources.iter().map(|source| (source.definition, (source.read)(counts))).collect()
}
