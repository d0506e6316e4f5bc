//! The work of a server in an interval, from the counts of two moments.
//!
//! Invariants
//! * A server that has started again counts from 0. No rate is negative then.

use super::latency::Latency;
use dafs_server::{
    ClientReport, ExportReport, ExposedReport, LatencyReport, NodeReport, SessionReport,
    StatusReport,
};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;

/// The counts of a server at one moment.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) time: Instant,
    pub(super) status: StatusReport,
    pub(super) clients: Vec<ClientReport>,
    pub(super) sessions: Vec<SessionReport>,
    pub(super) nodes: Vec<NodeReport>,
    pub(super) exposed: ExposedReport,
}

/// The work of a server in an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Activity {
    /// The busiest first.
    pub(super) clients: Vec<ClientActivity>,
    pub(super) optimistic: OptimisticActivity,
    pub(super) server: ServerActivity,
    pub(super) exports: Vec<ExportActivity>,
    pub(super) nodes: Vec<NodeActivity>,
    /// The state that clients have on files.
    #[serde(skip)]
    pub(super) holdings: Vec<Holding>,
}

/// Requests and bytes per second, and the durations of the requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Work {
    pub(super) requests: f64,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
    /// `None` if there were no requests.
    pub(super) latency_mean_seconds: Option<f64>,
    /// The duration that 99 of 100 requests did not exceed.
    pub(super) latency_p99_seconds: Option<f64>,
}

/// The server as a whole: rates of the interval, and numbers now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ServerActivity {
    pub(super) version: String,
    pub(super) process: u32,
    pub(super) uptime_seconds: u64,
    #[serde(flatten)]
    pub(super) work: Work,
    pub(super) refused: f64,
    /// 100 is one core.
    pub(super) cpu_percent: f64,
    pub(super) host_load: f64,
    pub(super) connections: u64,
    pub(super) dafs_clients: u64,
    pub(super) nfs_clients: u64,
    pub(super) credits: u64,
    pub(super) in_flight: u64,
    pub(super) open_files: u64,
    pub(super) locks: u64,
    pub(super) lock_waiters: u64,
    pub(super) delegations: u64,
}

/// The work for one client.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ClientActivity {
    pub(super) client: String,
    pub(super) name: String,
    pub(super) transport: String,
    #[serde(flatten)]
    pub(super) work: Work,
    /// Requests that its sessions may have outstanding.
    pub(super) credits: u64,
    /// Requests that are not answered.
    pub(super) in_flight: u64,
    pub(super) opens: u64,
    pub(super) locks: u64,
}

/// The work on one export.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ExportActivity {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) work: Work,
    pub(super) refused: f64,
}

/// The work of one data server: rates of the interval, and numbers now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NodeActivity {
    pub(super) export: String,
    pub(super) number: u32,
    pub(super) place: String,
    pub(super) connected: bool,
    pub(super) silent: bool,
    pub(super) leaving: bool,
    pub(super) empty: bool,
    pub(super) available_bytes: u64,
    pub(super) files_to_mend: Option<u64>,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
}

/// Optimistic reads: numbers now, and events per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct OptimisticActivity {
    pub(super) files: u64,
    pub(super) small_files: u64,
    pub(super) frames_published: u64,
    pub(super) frames_waiting: u64,
    pub(super) frames_free: u64,
    pub(super) missed: f64,
    pub(super) published: f64,
    pub(super) wasted: f64,
    pub(super) changed: f64,
    pub(super) evicted: f64,
    pub(super) restored: f64,
    pub(super) given: f64,
}

/// State that a client has on a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Holding {
    /// The client's own name.
    pub(super) client: String,
    pub(super) text: String,
}

/// The counts of a client or an export since its begin.
struct Counts<'a> {
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    latency: &'a [LatencyReport],
}

impl<'a> From<&'a ClientReport> for Counts<'a> {
    fn from(report: &'a ClientReport) -> Self {
        Self {
            requests: report.operations,
            read_bytes: report.read_bytes,
            written_bytes: report.written_bytes,
            latency: &report.latency,
        }
    }
}

impl<'a> From<&'a ExportReport> for Counts<'a> {
    fn from(report: &'a ExportReport) -> Self {
        Self {
            requests: report.operations,
            read_bytes: report.read_bytes,
            written_bytes: report.written_bytes,
            latency: &report.latency,
        }
    }
}

/// The difference of counts.
#[derive(Default)]
struct Difference {
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
    latency: Latency,
}

impl Difference {
    fn between<'a, T>(before: Option<&'a T>, after: &'a T) -> Self
    where
        Counts<'a>: From<&'a T>,
    {
        let (before, after) = (before.map(Counts::from), Counts::from(after));
        let since = |count: fn(&Counts<'_>) -> u64| {
            count(&after).saturating_sub(before.as_ref().map_or(0, count))
        };
        let former_latency = before.as_ref().map(|before| before.latency).unwrap_or_default();
        Self {
            requests: since(|counts| counts.requests),
            read_bytes: since(|counts| counts.read_bytes),
            written_bytes: since(|counts| counts.written_bytes),
            latency: Latency::between(former_latency, after.latency),
        }
    }

    fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.latency.add(&other.latency);
    }

    fn work(&self, seconds: f64) -> Work {
        Work {
            requests: self.requests as f64 / seconds,
            read_bytes: self.read_bytes as f64 / seconds,
            written_bytes: self.written_bytes as f64 / seconds,
            latency_mean_seconds: self.latency.mean_seconds(),
            latency_p99_seconds: self.latency.quantile_seconds(0.99),
        }
    }
}

/// The interval between two moments.
struct Interval<'a> {
    before: &'a Look,
    after: &'a Look,
    seconds: f64,
}

impl Activity {
    pub(super) fn between(before: &Look, after: &Look) -> Self {
        let seconds = after.time.saturating_duration_since(before.time).as_secs_f64().max(0.001);
        let interval = Interval { before, after, seconds };
        let mut clients = interval.clients();
        clients.sort_by(|one, other| other.work.requests.total_cmp(&one.work.requests));
        let (server, exports) = interval.server();
        let holdings = after.clients.iter().flat_map(|client| {
            let name = &client.name;
            let of = move |text: &String| Holding { client: name.clone(), text: text.clone() };
            client.holds.iter().map(of)
        });
        Self {
            clients,
            optimistic: interval.optimistic(),
            server,
            exports,
            nodes: interval.nodes(),
            holdings: holdings.collect(),
        }
    }
}

impl Interval<'_> {
    fn rate(&self, before: u64, after: u64) -> f64 {
        after.saturating_sub(before) as f64 / self.seconds
    }

    fn clients(&self) -> Vec<ClientActivity> {
        let former: HashMap<u64, &ClientReport> =
            self.before.clients.iter().map(|client| (client.client, client)).collect();
        let mut credits: HashMap<u64, (u64, u64)> = HashMap::new();
        for session in &self.after.sessions {
            let sum = credits.entry(session.client).or_default();
            *sum = (sum.0 + u64::from(session.credits), sum.1 + u64::from(session.in_flight));
        }
        let of = |client: &ClientReport| {
            let is_known = !client.transport.is_empty();
            let transport = if is_known { &client.transport } else { &client.front_end };
            let (credits, in_flight) = credits.get(&client.client).copied().unwrap_or_default();
            let former = former.get(&client.client).copied();
            ClientActivity {
                client: format!("{:016x}", client.client),
                name: client.name.clone(),
                transport: transport.clone(),
                work: Difference::between(former, client).work(self.seconds),
                credits,
                in_flight,
                opens: client.opens,
                locks: client.locks,
            }
        };
        self.after.clients.iter().map(of).collect()
    }

    /// Returns the server, and its exports. Its work is that on all exports.
    fn server(&self) -> (ServerActivity, Vec<ExportActivity>) {
        let (was, is) = (&self.before.status, &self.after.status);
        let former: HashMap<&str, &ExportReport> =
            was.exports.iter().map(|export| (export.name.as_str(), export)).collect();
        let (mut all, mut refused, mut exports) = (Difference::default(), 0.0, Vec::new());
        for export in &is.exports {
            let former = former.get(export.name.as_str()).copied();
            let difference = Difference::between(former, export);
            let refusals = self.rate(former.map_or(0, |former| former.errors), export.errors);
            all.add(&difference);
            refused += refusals;
            let (name, work) = (export.name.clone(), difference.work(self.seconds));
            exports.push(ExportActivity { name, work, refused: refusals });
        }
        let sum = |count: fn(&SessionReport) -> u16| {
            self.after.sessions.iter().map(|session| u64::from(count(session))).sum::<u64>()
        };
        let server = ServerActivity {
            version: is.version.clone(),
            process: is.process,
            uptime_seconds: is.uptime_seconds,
            work: all.work(self.seconds),
            refused,
            cpu_percent: self.rate(was.cpu_milliseconds, is.cpu_milliseconds) / 10.0,
            host_load: is.host_load_milli as f64 / 1000.0,
            connections: is.connections,
            dafs_clients: is.dafs_clients,
            nfs_clients: is.nfs_clients,
            credits: sum(|session| session.credits),
            in_flight: sum(|session| session.in_flight),
            open_files: is.open_files,
            locks: is.locks,
            lock_waiters: is.lock_waiters,
            delegations: is.delegations,
        };
        (server, exports)
    }

    fn nodes(&self) -> Vec<NodeActivity> {
        let of = |node: &NodeReport| {
            let is_same =
                |other: &&NodeReport| (&other.export, other.number) == (&node.export, node.number);
            let former = self.before.nodes.iter().find(is_same);
            let since =
                |count: fn(&NodeReport) -> u64| self.rate(former.map_or(0, count), count(node));
            NodeActivity {
                export: node.export.clone(),
                number: node.number,
                place: node.place.clone(),
                connected: node.connected,
                silent: node.silent,
                leaving: node.leaving,
                empty: node.empty,
                available_bytes: node.available_bytes,
                files_to_mend: node.files_to_mend,
                read_bytes: since(|node| node.read_bytes),
                written_bytes: since(|node| node.written_bytes),
            }
        };
        self.after.nodes.iter().map(of).collect()
    }

    fn optimistic(&self) -> OptimisticActivity {
        let (was, is) = (&self.before.exposed, &self.after.exposed);
        OptimisticActivity {
            files: is.files,
            small_files: is.small_files,
            frames_published: is.frames_published,
            frames_waiting: is.frames_waiting,
            frames_free: is.frames_free,
            missed: self.rate(was.missed, is.missed),
            published: self.rate(was.published, is.published),
            wasted: self.rate(was.wasted, is.wasted),
            changed: self.rate(was.changed, is.changed),
            evicted: self.rate(was.evicted, is.evicted),
            restored: self.rate(was.restored, is.restored),
            given: self.rate(was.given, is.given),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    pub(in super::super) fn client(client: u64, operations: u64) -> ClientReport {
        ClientReport {
            client,
            front_end: "dafs".to_owned(),
            name: format!("c{client}"),
            transport: String::new(),
            principal: String::new(),
            address: String::new(),
            silent_seconds: 0,
            courtesy: false,
            sessions: 1,
            opens: 0,
            locks: 0,
            delegations: 0,
            operations,
            read_bytes: 8 * operations,
            written_bytes: 0,
            latency: Vec::new(),
            holds: Vec::new(),
        }
    }

    fn export(name: &str, operations: u64) -> ExportReport {
        ExportReport {
            name: name.to_owned(),
            read_only: false,
            operations,
            errors: operations / 2,
            read_bytes: 0,
            written_bytes: operations * 4096,
            // Each takes between 64 and 128 microseconds.
            latency: vec![LatencyReport {
                class: "write".to_owned(),
                total_microseconds: operations * 80,
                buckets: vec![0, 0, 0, 0, 0, 0, 0, operations],
            }],
        }
    }

    pub(in super::super) fn look(time: Instant, clients: Vec<ClientReport>) -> Look {
        let status = StatusReport {
            version: "1.2.3".to_owned(),
            process: 4711,
            addresses: Vec::new(),
            uptime_seconds: 11_462,
            exports: Vec::new(),
            connections: 3,
            dafs_clients: 2,
            nfs_clients: 1,
            open_files: 12,
            locks: 4,
            lock_waiters: 1,
            delegations: 5,
            host_load_milli: 520,
            cpu_milliseconds: 0,
        };
        let exposed = ExposedReport::default();
        Look { time, status, clients, sessions: Vec::new(), nodes: Vec::new(), exposed }
    }

    /// Two moments that are two seconds apart.
    pub(in super::super) fn looks(before: u64, after: u64) -> (Look, Look) {
        let time = Instant::now();
        let mut looks = (look(time, Vec::new()), look(time + Duration::from_secs(2), Vec::new()));
        looks.0.status.exports = vec![export("one", before)];
        looks.1.status.exports = vec![export("one", after), export("two", 6)];
        looks.1.status.cpu_milliseconds = 900;
        looks
    }

    #[test]
    fn rates_are_those_of_the_interval_and_the_busiest_client_comes_first() {
        let time = Instant::now();
        let mut before = look(time, vec![client(1, 100), client(2, 100)]);
        before.exposed =
            ExposedReport { missed: 10, restored: 7, files: 5, ..ExposedReport::default() };
        let clients = vec![client(1, 102), client(2, 110), client(3, 4)];
        let mut after = look(time + Duration::from_secs(2), clients);
        after.exposed = ExposedReport { missed: 30, restored: 3, files: 1, ..before.exposed };
        let activity = Activity::between(&before, &after);
        let rates: Vec<_> = activity
            .clients
            .iter()
            .map(|client| (client.name.as_str(), client.work.requests))
            .collect();
        assert_eq!(rates, [("c2", 5.0), ("c3", 2.0), ("c1", 1.0)]);
        let busiest = &activity.clients[0];
        assert_eq!((busiest.work.read_bytes, &*busiest.transport), (40.0, "dafs"));
        let OptimisticActivity { files, missed, restored, .. } = activity.optimistic;
        assert_eq!((files, missed, restored), (1, 10.0, 0.0), "a restart is no negative rate");
    }

    #[test]
    fn the_server_does_the_work_of_all_exports() {
        let (before, after) = looks(10, 14);
        let Activity { server, exports, .. } = Activity::between(&before, &after);
        assert_eq!((server.work.requests, server.refused, server.cpu_percent), (5.0, 2.5, 45.0));
        assert_eq!(server.work.written_bytes, 5.0 * 4096.0);
        assert!((server.work.latency_mean_seconds.unwrap() - 80e-6).abs() < 1e-9);
        assert!((server.work.latency_p99_seconds.unwrap() - 127.36e-6).abs() < 1e-9);
        let works: Vec<_> =
            exports.iter().map(|export| (&*export.name, export.work.requests)).collect();
        assert_eq!(works, [("one", 2.0), ("two", 3.0)]);
    }

    #[test]
    fn a_client_has_the_credits_of_all_its_sessions() {
        let (mut before, mut after) = looks(1, 1);
        before.clients = vec![client(7, 1)];
        after.clients = vec![client(7, 1)];
        let session = |client, credits, in_flight| SessionReport {
            client,
            credits,
            in_flight,
            ..SessionReport::default()
        };
        after.sessions = vec![session(7, 16, 3), session(7, 8, 0), session(9, 4, 1)];
        let activity = Activity::between(&before, &after);
        assert_eq!((activity.clients[0].credits, activity.clients[0].in_flight), (24, 3));
        assert_eq!((activity.server.credits, activity.server.in_flight), (28, 4));
    }
}
