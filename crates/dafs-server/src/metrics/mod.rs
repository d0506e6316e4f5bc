//! The metrics for Prometheus: counters of operations, exports, clients and users.
//!
//! | part | file |
//! |---|---|
//! | the text, from the counters of a server | `mod.rs` |
//! | names, types, units and meanings | `definition.rs` |
//! | those of the process | `process.rs` |
//! | all definitions, for the documentation | `catalog.rs` |
//! | the port and its HTTP | `port.rs` |

#[cfg(test)]
mod catalog;
mod definition;
mod port;
mod process;

pub(crate) use definition::{Definition, Sample, Source, counter, gauge, samples};
pub(crate) use port::{MetricsPort, MetricsTls};

use crate::version::commit;
use dafs_cluster::NodeCounters;
use dafs_service::{
    BUCKETS, Class, DirectUse, Export, FrontEnd, Histogram, LatencyCounts, OPERATIONS_MAX, Service,
    UsageCounts,
};
use definition::Kind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Returns the name of an operation of a front end by its number.
pub(crate) type OperationName = fn(FrontEnd, u32) -> Option<&'static str>;

/// The present values of metrics without labels.
pub(crate) type Samples = Box<dyn Fn() -> Vec<Sample> + Send + Sync>;

pub(crate) type Labels = Vec<(&'static str, String)>;

/// Reads the counters of a server at each scrape.
pub(crate) struct ServerCollector {
    pub(crate) service: Arc<Service>,
    pub(crate) name: OperationName,
    pub(crate) samples: Samples,
    pub(crate) nodes: Nodes,
    /// When the server was started.
    pub(crate) started: SystemTime,
}

impl fmt::Debug for ServerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCollector")
    }
}

/// Counters of clients' I/O at each data server of this process.
pub(crate) type Nodes = Box<dyn Fn() -> Vec<(Labels, NodeCounters)> + Send + Sync>;

const BUILD_INFO: Definition =
    Definition::gauge("dafs_build_info", "1, with the version and the commit of this server")
        .by(&["version", "commit"]);

const OPERATION_DURATION: Definition = Definition::histogram(
    "dafs_operation_duration_seconds",
    "Time from the arrival of an operation to its answer",
)
.by(&["front_end", "operation"]);

const OPERATION_ERRORS: Definition =
    Definition::counter("dafs_operation_errors_total", "Operations that were refused")
        .by(&["front_end", "operation"]);

const EXPORT_DURATION: Definition = Definition::histogram(
    "dafs_export_request_duration_seconds",
    "Time from the arrival of a request to its answer, by the export and the class of the request",
)
.by(&["export", "class"]);

const COPIED_BYTES: Definition =
    Definition::counter("dafs_copied_bytes_total", "File data copied in user space, by place")
        .by(&["site"]);

/// The metrics of one kind of party: operations, errors, bytes read, bytes written, seconds.
type PartyMetrics = [Definition; 5];

const EXPORTS: PartyMetrics = [
    Definition::counter("dafs_export_operations_total", "Requests that used an export")
        .by(&["export", "class"]),
    Definition::counter("dafs_export_errors_total", "Requests to an export that were refused")
        .by(&["export"]),
    Definition::counter("dafs_export_read_bytes_total", "File data read from an export")
        .by(&["export"]),
    Definition::counter("dafs_export_written_bytes_total", "File data written to an export")
        .by(&["export"]),
    Definition::counter(
        "dafs_export_request_seconds_total",
        "The sum of the durations of requests to an export",
    )
    .by(&["export", "class"]),
];

const CLIENTS: PartyMetrics = [
    Definition::counter("dafs_client_operations_total", "Requests of the clients of a host")
        .by(&["client", "class"]),
    Definition::counter("dafs_client_errors_total", "Requests of a host that were refused")
        .by(&["client"]),
    Definition::counter("dafs_client_read_bytes_total", "File data read by a host").by(&["client"]),
    Definition::counter("dafs_client_written_bytes_total", "File data written by a host")
        .by(&["client"]),
    Definition::counter(
        "dafs_client_request_seconds_total",
        "The sum of the durations of a host's requests",
    )
    .by(&["client", "class"]),
];

const USERS: PartyMetrics = [
    Definition::counter("dafs_user_operations_total", "Requests of a user, by number")
        .by(&["user", "class"]),
    Definition::counter("dafs_user_errors_total", "Requests of a user that were refused")
        .by(&["user"]),
    Definition::counter("dafs_user_read_bytes_total", "File data read by a user").by(&["user"]),
    Definition::counter("dafs_user_written_bytes_total", "File data written by a user")
        .by(&["user"]),
    Definition::counter(
        "dafs_user_request_seconds_total",
        "The sum of the durations of a user's requests",
    )
    .by(&["user", "class"]),
];

/// The label of hosts or users that are not counted apart.
const OTHERS: &str = "other";

/// A counter of [`NodeCounters`], and its value.
type NodeCounter = (Definition, fn(&NodeCounters) -> u64);

const NODE: [NodeCounter; 3] = [
    (
        Definition::counter("dafs_data_node_read_bytes_total", "File data read at a data server")
            .by(&["export", "node"]),
        |node| node.read_bytes,
    ),
    (
        Definition::counter(
            "dafs_data_node_written_bytes_total",
            "File data written at a data server",
        )
        .by(&["export", "node"]),
        |node| node.written_bytes,
    ),
    (
        Definition::counter(
            "dafs_data_node_indirect_bytes_total",
            "File data asked of a data server that another one has",
        )
        .by(&["export", "node"]),
        |node| node.indirect_bytes,
    ),
];

/// A counter of [`DirectUse`], and its field.
type DirectCounter = (Definition, fn(&DirectUse) -> &AtomicU64);

const DIRECT_USE: [DirectCounter; 4] = [
    (
        Definition::counter(
            "dafs_export_direct_reads_total",
            "Reads at data servers, as clients report them",
        )
        .by(&["export"]),
        |direct| &direct.reads,
    ),
    (
        Definition::counter(
            "dafs_export_direct_read_bytes_total",
            "File data read at data servers, as clients report it",
        )
        .by(&["export"]),
        |direct| &direct.read_bytes,
    ),
    (
        Definition::counter(
            "dafs_export_direct_writes_total",
            "Writes at data servers, as clients report them",
        )
        .by(&["export"]),
        |direct| &direct.writes,
    ),
    (
        Definition::counter(
            "dafs_export_direct_written_bytes_total",
            "File data written at data servers, as clients report it",
        )
        .by(&["export"]),
        |direct| &direct.written_bytes,
    ),
];

/// Returns the metrics that have labels.
#[cfg(test)]
fn labelled() -> Vec<Definition> {
    let single = [BUILD_INFO, OPERATION_DURATION, OPERATION_ERRORS, EXPORT_DURATION, COPIED_BYTES];
    let mut all: Vec<_> = [EXPORTS, CLIENTS, USERS].concat();
    all.extend(single);
    all.extend(NODE.iter().map(|(definition, _)| *definition));
    all.extend(DIRECT_USE.iter().map(|(definition, _)| *definition));
    all
}

impl Collector for ServerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let build = vec![("version", version), ("commit", commit().to_owned())];
        BUILD_INFO.begin(&mut encoder)?.encode_family(&build)?.encode_gauge(&1i64)?;
        process::encode(&mut encoder, self.started)?;
        self.operations(&mut encoder)?;
        self.parties(&mut encoder)?;
        for (definition, value) in (self.samples)() {
            let mut metric = definition.begin(&mut encoder)?;
            match definition.kind {
                Kind::Counter => count(&mut metric, value)?,
                _ => metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?,
            }
        }
        let nodes = (self.nodes)();
        for (definition, counter) in NODE.iter().filter(|_| !nodes.is_empty()) {
            let mut family = definition.begin(&mut encoder)?;
            for (labels, node) in &nodes {
                count(&mut family.encode_family(labels)?, counter(node))?;
            }
        }
        let mut copied = COPIED_BYTES.begin(&mut encoder)?;
        for site in dafs_mem::copies() {
            let labels = vec![("site", site.site.label().to_owned())];
            count(&mut copied.encode_family(&labels)?, site.bytes)?;
        }
        Ok(())
    }
}

fn count(metric: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
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
            let labels = vec![("front_end", by.label().to_owned()), ("operation", name.to_owned())];
            Some((labels, operation.errors.load(Ordering::Relaxed), &operation.latency))
        })
    }

    fn operations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut latency = OPERATION_DURATION.begin(encoder)?;
        for (labels, _, histogram) in self.each_operation() {
            let (buckets, sum_ns) = histogram.read();
            let mut family = latency.encode_family(&labels)?;
            encode_histogram(&mut family, &LatencyCounts { buckets, sum_ns })?;
        }
        let mut errors = OPERATION_ERRORS.begin(encoder)?;
        for (labels, failed, _) in self.each_operation() {
            count(&mut errors.encode_family(&labels)?, failed)?;
        }
        Ok(())
    }

    /// Encodes the use by exports, hosts and users.
    fn parties(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let namespace = self.service.namespace();
        let exports: Vec<_> = namespace.exports().cloned().collect();
        let label = |export: &Export| format!("/{}", export.name());
        let uses: Vec<_> =
            exports.iter().map(|export| (label(export), export.usage().now())).collect();
        encode_party(encoder, &EXPORTS, &uses)?;
        let mut latency = EXPORT_DURATION.begin(encoder)?;
        for (export, counts) in &uses {
            for class in Class::ALL {
                let labels = vec![("export", export.clone()), ("class", class.label().to_owned())];
                let mut family = latency.encode_family(&labels)?;
                encode_histogram(&mut family, &counts.latency[class as usize])?;
            }
        }
        direct_uses(encoder, &exports)?;
        let metrics = self.service.metrics();
        encode_party(encoder, &CLIENTS, &labelled_by(metrics.hosts().now()))?;
        encode_party(encoder, &USERS, &labelled_by(metrics.users().now()))
    }
}

/// Returns uses with their labels.
fn labelled_by<K: ToString>(uses: Vec<(Option<K>, UsageCounts)>) -> Vec<(String, UsageCounts)> {
    let label =
        |party: Option<K>| party.map_or_else(|| OTHERS.to_owned(), |party| party.to_string());
    uses.into_iter().map(|(party, counts)| (label(party), counts)).collect()
}

fn encode_histogram(encoder: &mut MetricEncoder<'_>, latency: &LatencyCounts) -> fmt::Result {
    let bounds: [(f64, u64); BUCKETS] =
        std::array::from_fn(|at| (Histogram::bound_seconds(at), latency.buckets[at]));
    let sum_seconds = latency.sum_ns as f64 / 1e9;
    encoder.encode_histogram::<NoLabelSet>(sum_seconds, latency.count(), &bounds, None)
}

/// Encodes the use by the parties of one kind.
fn encode_party(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &PartyMetrics,
    uses: &[(String, UsageCounts)],
) -> fmt::Result {
    let [operations, errors, read, written, seconds] = metrics;
    let party = errors.labels[0];
    let by_class = |name: &String, class: Class| {
        vec![(party, name.clone()), ("class", class.label().to_owned())]
    };
    let mut family = operations.begin(encoder)?;
    for (name, counts) in uses {
        for class in Class::ALL {
            let labels = by_class(name, class);
            let operations = counts.latency[class as usize].count();
            count(&mut family.encode_family(&labels)?, operations)?;
        }
    }
    for (at, definition) in [errors, read, written].into_iter().enumerate() {
        let mut family = definition.begin(encoder)?;
        for (name, counts) in uses {
            let labels = vec![(party, name.clone())];
            let totals = [counts.errors, counts.read_bytes, counts.written_bytes];
            count(&mut family.encode_family(&labels)?, totals[at])?;
        }
    }
    let mut family = seconds.begin(encoder)?;
    for (name, counts) in uses {
        for class in Class::ALL {
            let labels = by_class(name, class);
            let seconds = counts.latency[class as usize].sum_ns as f64 / 1e9;
            let mut metric = family.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
        }
    }
    Ok(())
}

/// Encodes the counters of I/O at data servers, for exports that have some.
fn direct_uses(encoder: &mut DescriptorEncoder<'_>, exports: &[Arc<Export>]) -> fmt::Result {
    for (definition, counter) in DIRECT_USE {
        let mut family = definition.begin(encoder)?;
        for export in exports.iter().filter(|export| export.store().layouts().is_some()) {
            let value = counter(export.direct_use()).load(Ordering::Relaxed);
            let labels = vec![("export", format!("/{}", export.name()))];
            count(&mut family.encode_family(&labels)?, value)?;
        }
    }
    Ok(())
}
