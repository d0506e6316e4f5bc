//! Predicts the time of a workload by each way to its files. The three questions are those of the
//! framework in the evaluation of DAFS for FreeBSD (Harvard 2004, section 6): is the program bound by
//! latency or by bandwidth, is it bound by the processor, and how does it use memory, caches and
//! prefetching.
//!
//! ```text
//! time = max(front, behind, processor time / processors)
//! front    outside of calls + waits + bytes moved while the program waits + copies
//! behind   bytes moved beside the program: read-ahead, and writes that a cache takes
//! ```
//!
//! Invariants
//! * Pure arithmetic on times and counts: no I/O, no clock.
//! * Predictions are finite and not negative. They never fall when calls, bytes or constants grow.

use super::machine::{Cost, Machine, Transport};
use super::workload::{Seconds, Transfers, Workload};
use serde::Serialize;

/// Bytes of a request of read-ahead or of a cache that writes: those of Linux's page cache.
const AHEAD_BYTES: f64 = 131_072.0;

/// Such requests under way.
const AHEAD_CALLS: f64 = 8.0;

/// Requests under way of a program that is changed to have several.
const BATCH_CALLS: f64 = 8.0;

/// Times closer than this share are equal: runs of a program differ by as much.
const BAND: f64 = 0.1;

/// The share of the base's time that an option must gain to be worth a change.
const GAIN_MIN: f64 = 0.02;

/// A program whose calls wait for less than this share of its time computes.
const WAIT_MIN: f64 = 0.1;

/// A way to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    /// Files of this machine.
    Local,
    /// A mount of the kernel's NFS client.
    Nfs,
    /// `dafs run`.
    Run,
    /// `dafs mount`.
    Mount,
    /// A program changed for the library: several requests under way, into registered memory.
    Api,
}

/// The comparison with local files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sign {
    Faster,
    Equal,
    Slower,
}

impl Sign {
    /// Compares times. Differences of a tenth are none.
    pub(super) fn of(seconds: f64, local: f64) -> Self {
        match () {
            () if seconds > local * (1.0 + BAND) => Self::Slower,
            () if seconds < local * (1.0 - BAND) => Self::Faster,
            () => Self::Equal,
        }
    }
}

/// The prediction for one way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Prediction {
    pub(super) way: Way,
    pub(super) transport: String,
    pub(super) optimistic: bool,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Seconds in which the program waits for answers.
    pub(super) latency_seconds: f64,
    /// Seconds in which its bytes are moved, also beside it.
    pub(super) bandwidth_seconds: f64,
    pub(super) against_local: Sign,
}

/// The limit of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Bound {
    /// It does nothing on files.
    Nothing,
    /// Its own work, beside which calls on files count little.
    Own,
    /// The number of its requests.
    Latency,
    /// The number of its bytes.
    Bandwidth,
}

/// The answers to the three questions, and what they rest on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Class {
    pub(super) bound: Bound,
    /// The transport for which this holds.
    pub(super) transport: String,
    /// Without read-ahead and caches: seconds of answers, and of bytes.
    pub(super) latency_seconds: f64,
    pub(super) bandwidth_seconds: f64,
    /// The size of a read whose latency and bytes take equal time.
    pub(super) even_bytes: f64,
    /// Outside of its calls it keeps at least one processor busy.
    pub(super) waits_for_cpu: bool,
    pub(super) is_aligned: bool,
    /// It seldom reads a place again.
    pub(super) has_own_cache: bool,
    /// It has several calls under way.
    pub(super) has_own_prefetch: bool,
    pub(super) is_in_order: bool,
}

/// An option, and its gain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) option: &'static str,
    /// The change is worth it.
    pub(super) set: bool,
    pub(super) gain_seconds: f64,
    pub(super) setting: &'static str,
    pub(super) why: &'static str,
}

/// The answer to everything.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Verdict {
    pub(super) class: Option<Class>,
    pub(super) predictions: Vec<Prediction>,
    pub(super) advice: Vec<Advice>,
}

/// The treatment of calls by a client.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Manner {
    read_ahead: bool,
    cache: bool,
    /// Writes are collected and go beside the program, until data is made stable.
    collects: bool,
    /// Requests under way, at least.
    calls_min: f64,
    /// Data goes through memory of the client's.
    copies: bool,
    /// Requests cross from the kernel to a process.
    crosses: bool,
}

impl Manner {
    fn of(way: Way) -> Self {
        let cached = Self {
            read_ahead: true,
            cache: true,
            collects: true,
            calls_min: 1.0,
            copies: true,
            crosses: false,
        };
        match way {
            Way::Local | Way::Nfs => cached,
            Way::Run => Self { cache: false, collects: false, ..cached },
            // Its kernel caches reads, and hands on each write at once.
            Way::Mount => Self { collects: false, crosses: true, ..cached },
            Way::Api => Self { calls_min: BATCH_CALLS, copies: false, ..cached },
        }
    }
}

/// The parts of a prediction, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    front: f64,
    behind: f64,
    cpu: f64,
    latency: f64,
    bandwidth: f64,
}

impl Parts {
    fn and(self, other: Self) -> Self {
        Self {
            front: self.front + other.front,
            behind: self.behind + other.behind,
            cpu: self.cpu + other.cpu,
            latency: self.latency + other.latency,
            bandwidth: self.bandwidth + other.bandwidth,
        }
    }
}

/// A workload on a machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Model<'a> {
    pub(super) workload: &'a Workload,
    pub(super) machine: &'a Machine,
}

impl Model<'_> {
    /// Classifies, predicts and advises.
    pub(super) fn judge(&self) -> Verdict {
        let local = self.local();
        let seconds = self.seconds(local);
        let routes = self.machine.transports.iter().flat_map(|transport| {
            let ways: &[Way] = match (transport.nfs, transport.optimistic) {
                (true, _) => &[Way::Nfs],
                (_, true) => &[Way::Run],
                _ => &[Way::Run, Way::Mount, Way::Api],
            };
            ways.iter().map(move |way| (*way, transport))
        });
        let mut predictions =
            vec![self.prediction(Way::Local, &self.machine.local, local, seconds)];
        predictions.extend(routes.map(|(way, transport)| {
            self.prediction(way, transport, self.parts(transport, Manner::of(way)), seconds)
        }));
        Verdict { class: self.class(), predictions, advice: self.advice() }
    }

    fn prediction(&self, way: Way, by: &Transport, parts: Parts, local: f64) -> Prediction {
        let seconds = self.seconds(parts);
        Prediction {
            way,
            transport: by.name.clone(),
            optimistic: by.optimistic,
            seconds,
            cpu_seconds: parts.cpu,
            latency_seconds: parts.latency,
            bandwidth_seconds: parts.bandwidth,
            against_local: Sign::of(seconds, local),
        }
    }

    /// The elapsed time of parts that overlap.
    fn seconds(&self, parts: Parts) -> f64 {
        parts.front.max(parts.behind).max(parts.cpu / f64::from(self.machine.identity.cpus.max(1)))
    }

    /// The work outside of calls.
    fn outside(&self) -> Parts {
        let (front, cpu) = (self.workload.outside_seconds.get(), self.workload.cpu_seconds.get());
        Parts { front, cpu, ..Parts::default() }
    }

    /// The time to make data stable, beside the request for it. Syncs under way at once share it.
    fn sync_seconds(&self) -> f64 {
        let each = self.workload.sync_seconds.map_or(self.machine.sync_seconds, Seconds::get);
        self.workload.syncs as f64 * each / self.workload.at_once.get()
    }

    /// On files of this machine, whose data is in memory.
    fn local(&self) -> Parts {
        let (work, local) = (self.workload, &self.machine.local);
        let moved = |x: &Transfers, cost: Cost| {
            let (calls, bytes) = (x.calls as f64, x.bytes as f64);
            let (front, cpu) = (cost.elapsed.of(calls, bytes), cost.cpu.of(calls, bytes));
            Parts { front, cpu, bandwidth: bytes * cost.elapsed.byte_seconds, ..Parts::default() }
        };
        let sync = self.sync_seconds();
        let names = work.names as f64;
        let rest = Parts {
            front: names * local.name_seconds + sync,
            cpu: names * local.name_cpu_seconds,
            latency: sync,
            ..Parts::default()
        };
        let moves = moved(&work.reads, local.read).and(moved(&work.writes, local.write));
        self.outside().and(moves).and(rest)
    }

    /// By a transport.
    fn parts(&self, transport: &Transport, manner: Manner) -> Parts {
        let crossing = self.crossing(manner);
        let (names, syncs) = (self.workload.names as f64, self.workload.syncs as f64);
        let waited = names + syncs / self.workload.at_once.get();
        let waits = waited * (transport.name_seconds + crossing) + self.sync_seconds();
        let rest = Parts {
            front: waits,
            cpu: (names + syncs) * (transport.name_cpu_seconds + crossing),
            latency: waits,
            ..Parts::default()
        };
        let reads = self.reads(transport, manner);
        let writes = self.moved(&self.workload.writes, (transport, 1.0), manner, true);
        self.outside().and(reads).and(writes).and(rest)
    }

    fn crossing(&self, manner: Manner) -> f64 {
        if manner.crosses { self.machine.crossing_seconds } else { 0.0 }
    }

    /// Reads by a transport. A server that shows memory shows a place after its first read, which is a
    /// request by the same transport as ever.
    fn reads(&self, by: &Transport, manner: Manner) -> Parts {
        let reads = &self.workload.reads;
        let is_plain = |other: &&Transport| {
            !other.optimistic && (&other.name, other.nfs) == (&by.name, by.nfs)
        };
        let plain = self.machine.transports.iter().find(is_plain).filter(|_| by.optimistic);
        // A cache answers reads of a place that was read before.
        let Some(plain) = plain.filter(|_| !manner.cache) else {
            return self.moved(reads, (by, 1.0), manner, false);
        };
        let again = reads.again.get();
        let first = self.moved(reads, (plain, 1.0 - again), manner, false);
        first.and(self.moved(reads, (by, again), manner, false))
    }

    /// A share of the reads or writes, by a transport.
    fn moved(
        &self,
        x: &Transfers,
        (by, share): (&Transport, f64),
        manner: Manner,
        is_write: bool,
    ) -> Parts {
        let (cost, local) = match is_write {
            true => (by.write, self.machine.local.write),
            false => (by.read, self.machine.local.read),
        };
        let again = if manner.cache && !is_write { x.again.get() } else { 0.0 };
        // The share of the others that moves beside the program.
        let beside = match is_write {
            true => f64::from(u8::from(manner.collects)),
            false if manner.read_ahead => x.in_order.get(),
            false => 0.0,
        };
        let all = (x.calls as f64 * share, x.bytes as f64 * share);
        let part = |share: f64| (all.0 * share, all.1 * share);
        let (calls, bytes) = part((1.0 - again) * (1.0 - beside));
        let (ahead_calls, ahead_bytes) = part((1.0 - again) * beside);
        // A sync waits for a request with the data that it is about.
        let waited = if is_write { ahead_calls.min(self.workload.syncs as f64) } else { 0.0 };
        let requests = ahead_calls.min(ahead_bytes / AHEAD_BYTES).max(waited);
        let crossing = self.crossing(manner);
        let call = cost.elapsed.call_seconds + crossing;
        let call_cpu = cost.cpu.call_seconds + crossing;
        // Requests under way share their latency, not the processor.
        let at_once = self.workload.at_once.get().max(manner.calls_min);
        let latency = (calls * call / at_once).max(calls * call_cpu) + waited * call / at_once;
        let moves = bytes * cost.elapsed.byte_seconds;
        let ahead_cpu = requests * call_cpu + ahead_bytes * cost.cpu.byte_seconds;
        // Hits, and data that is there already, are answered on this machine.
        let here = part(1.0 - (1.0 - again) * (1.0 - beside));
        let copy = self.machine.copy_byte_seconds;
        let copies = match manner {
            Manner { crosses: true, .. } => (2.0 * bytes + ahead_bytes) * copy,
            Manner { copies: true, .. } => bytes * copy,
            _ => 0.0,
        };
        let ahead_moves = ahead_bytes * cost.elapsed.byte_seconds;
        Parts {
            front: latency + moves + ahead_cpu + local.elapsed.of(here.0, here.1) + copies,
            behind: requests * call / AHEAD_CALLS + ahead_moves,
            cpu: calls * call_cpu
                + bytes * cost.cpu.byte_seconds
                + ahead_cpu
                + local.cpu.of(here.0, here.1)
                + copies,
            latency,
            bandwidth: moves + ahead_moves,
        }
    }

    /// The transport that the class and the advice are about: the first of DAFS, else any.
    fn reference(&self) -> Option<&Transport> {
        let mut transports = self.machine.transports.iter();
        let dafs = transports.clone().find(|transport| !transport.nfs && !transport.optimistic);
        dafs.or_else(|| transports.next())
    }

    fn class(&self) -> Option<Class> {
        let (by, work) = (self.reference()?, self.workload);
        let plain = Manner {
            read_ahead: false,
            cache: false,
            collects: false,
            calls_min: 1.0,
            copies: false,
            crosses: false,
        };
        let parts = self.parts(by, plain);
        let waits = parts.latency + parts.bandwidth;
        let outside = work.outside_seconds.get();
        let bound = match () {
            () if work.is_idle() => Bound::Nothing,
            () if waits < WAIT_MIN * (outside + waits) => Bound::Own,
            () if parts.latency >= parts.bandwidth => Bound::Latency,
            () => Bound::Bandwidth,
        };
        let line = by.read.elapsed;
        let both = [&work.reads, &work.writes];
        // Of the calls in both directions.
        let share = |of: fn(&Transfers) -> f64| {
            let calls: f64 = both.iter().map(|x| x.calls as f64).sum();
            let some: f64 = both.iter().map(|x| x.calls as f64 * of(x)).sum();
            if calls > 0.0 { some / calls } else { 0.0 }
        };
        Some(Class {
            bound,
            transport: by.name.clone(),
            latency_seconds: parts.latency,
            bandwidth_seconds: parts.bandwidth,
            even_bytes: match line.byte_seconds > 0.0 {
                true => line.call_seconds / line.byte_seconds,
                false => 0.0,
            },
            waits_for_cpu: outside > 0.0 && work.cpu_seconds.get() >= 0.9 * outside,
            is_aligned: share(|x| x.aligned.get()) >= 0.9,
            has_own_cache: work.reads.again.get() < 0.1,
            has_own_prefetch: work.at_once.get() >= 1.5,
            is_in_order: share(|x| x.in_order.get()) >= 0.8,
        })
    }

    /// The options of `dafs run` and of the library, one after the other.
    fn advice(&self) -> Vec<Advice> {
        let Some(by) = self.reference().filter(|_| !self.workload.is_idle()) else {
            return Vec::new();
        };
        let base = Manner::of(Way::Run);
        let time = |by: &Transport, manner: Manner| self.seconds(self.parts(by, manner));
        let now = time(by, base);
        let mut advice = Vec::new();
        let mut add = |option, gain: f64, setting, why| {
            let gain_seconds = gain.max(0.0);
            let set = gain_seconds > GAIN_MIN * now;
            advice.push(Advice { option, set, gain_seconds, setting, why });
        };
        let slowest = self.machine.transports.iter().filter(|other| !other.optimistic);
        let way = |other: &Transport| if other.nfs { Way::Nfs } else { Way::Run };
        let slowest = slowest.map(|other| time(other, Manner::of(way(other)))).fold(now, f64::max);
        add(
            "transport",
            slowest - now,
            "transport=auto takes shm on the server's host and an RDMA device where there is one",
            "against the slowest transport that was measured",
        );
        let without = Manner { read_ahead: false, ..base };
        add(
            "read-ahead",
            time(by, without) - now,
            "dafs run and dafs mount do it; CacheOptions::for_readers in a program",
            "it hides the latency of reads in order",
        );
        let cached = Manner { cache: true, collects: true, ..base };
        add(
            "cache",
            now - time(by, cached),
            "use CacheOptions::new (cache_bytes= in Python), or dafs mount for reads",
            "it answers reads of a place that was read before, and takes writes at once",
        );
        let shown = self.machine.transports.iter().find(|other| other.optimistic);
        add(
            "optimistic",
            shown.map_or(0.0, |other| now - time(other, base)),
            "optimistic=yes in the URL, and dafs serve --optimistic on the same host",
            "small reads then need no request",
        );
        let batched = Manner { calls_min: BATCH_CALLS, ..base };
        add(
            "batch",
            now - time(by, batched),
            "several requests under way: completion groups, batches, fio's iodepth",
            "they share the latency that one call at a time pays each",
        );
        let registered = Manner { copies: false, ..base };
        add(
            "registered memory",
            now - time(by, registered),
            "read into memory from Client::buffer, or that begins at a page",
            "data then goes into it without a copy",
        );
        advice
    }
}
