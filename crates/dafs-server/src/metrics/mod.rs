//! The metrics for Prometheus: counters of operations, exports and clients.
//!
//! | part | file |
//! |---|---|
//! | the text, from the counters of a server | `mod.rs` |
//! | the port and its HTTP | `port.rs` |

mod port;

pub(crate) use port::{MetricsPort, MetricsTls};

use dafs_cluster::NodeCounters;
use dafs_service::{
    BUCKETS, DirectUse, Export, FrontEnd, Histogram, OPERATIONS_MAX, Service, Usage,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the name of an operation of a front end by its number.
pub(crate) type OperationName = fn(FrontEnd, u32) -> Option<&'static str>;

/// Current gauges: name, help, value.
pub(crate) type Gauges = Box<dyn Fn() -> Vec<(&'static str, &'static str, u64)> + Send + Sync>;

pub(crate) type Labels = Vec<(&'static str, String)>;

/// Reads the counters of a server at each scrape.
pub(crate) struct ServerCollector {
    pub(crate) service: Arc<Service>,
    pub(crate) name: OperationName,
    pub(crate) gauges: Gauges,
    pub(crate) nodes: Nodes,
}

impl fmt::Debug for ServerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCollector")
    }
}

/// A counter of [`Usage`]: its name, its help, and its field.
type UsageCounter = (&'static str, &'static str, fn(&Usage) -> &AtomicU64);

const USAGE: [UsageCounter; 4] = [
    ("operations", "Requests", |usage| &usage.operations),
    ("errors", "Requests that were refused", |usage| &usage.errors),
    ("read_bytes", "Bytes of file data read", |usage| &usage.read_bytes),
    ("written_bytes", "Bytes of file data written", |usage| &usage.written_bytes),
];

/// Counters of clients' I/O at each data server of this process.
pub(crate) type Nodes = Box<dyn Fn() -> Vec<(Labels, NodeCounters)> + Send + Sync>;

/// A counter of [`NodeCounters`]: its name, its help, and its value.
type NodeCounter = (&'static str, &'static str, fn(&NodeCounters) -> u64);

const NODE: [NodeCounter; 3] = [
    ("data_node_read_bytes", "Bytes read at a data server", |node| node.read_bytes),
    ("data_node_written_bytes", "Bytes written at a data server", |node| node.written_bytes),
    ("data_node_indirect_bytes", "Bytes of other data servers", |node| node.indirect_bytes),
];

/// A counter of [`DirectUse`]: its name, its help, and its field.
type DirectCounter = (&'static str, &'static str, fn(&DirectUse) -> &AtomicU64);

const DIRECT_USE: [DirectCounter; 4] = [
    ("reads", "Reads at data servers, as pNFS clients report", |direct| &direct.reads),
    ("read_bytes", "Bytes read at data servers, as pNFS clients report", |direct| {
        &direct.read_bytes
    }),
    ("writes", "Writes at data servers, as pNFS clients report", |direct| &direct.writes),
    ("written_bytes", "Bytes written at data servers, as pNFS clients report", |direct| {
        &direct.written_bytes
    }),
];

impl Collector for ServerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.operations(&mut encoder)?;
        let exports = self.service.namespace();
        let exports: Vec<_> = exports.exports().cloned().collect();
        let usages_of: Vec<(Labels, &Usage)> =
            exports.iter().map(|export| (labels_of(export), export.usage())).collect();
        usages(&mut encoder, "dafs_export", &usages_of)?;
        direct_uses(&mut encoder, &exports)?;
        for (name, help, value) in (self.gauges)() {
            let kind = MetricType::Gauge;
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            encoder.encode_descriptor(name, help, None, kind)?.encode_gauge(&value)?;
        }
        let nodes = (self.nodes)();
        for (name, help, counter) in NODE.iter().filter(|_| !nodes.is_empty()) {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, node) in &nodes {
                let value = counter(node);
                family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            }
        }
        let mut copied = encoder.encode_descriptor(
            "dafs_copied_bytes",
            "File data copied in user space, by place",
            None,
            MetricType::Counter,
        )?;
        for count in dafs_mem::copies() {
            let labels = vec![("site", count.site.label().to_owned())];
            copied
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&count.bytes, None)?;
        }
        Ok(())
    }
}

impl ServerCollector {
    /// Returns every operation that was ever requested, by front end and name.
    fn each_operation(&self) -> impl Iterator<Item = (Labels, u64, &Histogram)> {
        let metrics = self.service.metrics();
        let numbers =
            FrontEnd::ALL.into_iter().flat_map(|by| (0..OPERATIONS_MAX).map(move |n| (by, n)));
        numbers.filter_map(move |(by, number)| {
            let number = u32::try_from(number).ok()?;
            let operation = metrics.operation(by, number);
            let (buckets, _) = operation.latency.read();
            if buckets.iter().all(|&count| count == 0) {
                return None;
            }
            let name = (self.name)(by, number).unwrap_or("other");
            let labels = vec![("door", by.label().to_owned()), ("operation", name.to_owned())];
            Some((labels, operation.errors.load(Ordering::Relaxed), &operation.latency))
        })
    }

    fn operations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut latency = encoder.encode_descriptor(
            "dafs_operation_duration",
            "Time from the arrival of an operation to its answer",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (labels, _, histogram) in self.each_operation() {
            let mut family = latency.encode_family(&labels)?;
            encode_histogram(&mut family, histogram)?;
        }
        let mut errors = encoder.encode_descriptor(
            "dafs_operation_errors",
            "Operations that were refused",
            None,
            MetricType::Counter,
        )?;
        for (labels, count, _) in self.each_operation() {
            errors.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }
}

fn encode_histogram(
    encoder: &mut prometheus_client::encoding::MetricEncoder<'_>,
    histogram: &Histogram,
) -> fmt::Result {
    let (buckets, sum_ns) = histogram.read();
    let bounds: [(f64, u64); BUCKETS] =
        std::array::from_fn(|at| (Histogram::bound_seconds(at), buckets[at]));
    encoder.encode_histogram::<NoLabelSet>(sum_ns as f64 / 1e9, buckets.iter().sum(), &bounds, None)
}

/// Encodes the counters of clients or of exports.
fn usages(
    encoder: &mut DescriptorEncoder<'_>,
    prefix: &str,
    usages: &[(Labels, &Usage)],
) -> fmt::Result {
    for (name, help, counter) in USAGE {
        let name = format!("{prefix}_{name}");
        let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
        for (labels, usage) in usages {
            let value = counter(usage).load(Ordering::Relaxed);
            family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
    }
    let name = format!("{prefix}_request_duration");
    let help = "Time from the arrival of a request to its answer";
    let seconds = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(&name, help, seconds, MetricType::Histogram)?;
    for (labels, usage) in usages {
        encode_histogram(&mut family.encode_family(labels)?, &usage.latency)?;
    }
    Ok(())
}

fn labels_of(export: &Export) -> Labels {
    vec![("export", format!("/{}", export.name()))]
}

/// Encodes the counters of I/O at data servers, for exports that have some.
fn direct_uses(encoder: &mut DescriptorEncoder<'_>, exports: &[Arc<Export>]) -> fmt::Result {
    for (name, help, counter) in DIRECT_USE {
        let name = format!("dafs_export_direct_{name}");
        let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
        for export in exports.iter().filter(|export| export.store().layouts().is_some()) {
            let value = counter(export.direct_use()).load(Ordering::Relaxed);
            let labels = labels_of(export);
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
    }
    Ok(())
}
