//! Properties of the model, and its signs for the rows of docs/benchmarks.md whose work is known.

use super::machine::recorded::machine;
use super::machine::{Cost, Line, Machine};
use super::model::{Bound, Model, Prediction, Sign, Verdict, Way};
use super::workload::{AtOnce, Seconds, Share, Transfers, Workload};
use proptest::prelude::*;

fn judge(workload: &Workload, machine: &Machine) -> Verdict {
    Model { workload, machine }.judge()
}

fn predicted(verdict: &Verdict, way: Way, transport: &str) -> Prediction {
    let fits = |p: &&Prediction| p.way == way && (p.transport == transport || way == Way::Local);
    verdict.predictions.iter().find(fits).unwrap().clone()
}

fn share(share: f64) -> Share {
    Share::try_from(share).unwrap()
}

/// Reads, beside which a program on local files takes `local_seconds` in all.
fn reading(calls: u64, bytes_each: u64, in_order: f64, again: f64, local_seconds: f64) -> Workload {
    let bytes = calls * bytes_each;
    let within = machine().local.read.elapsed.of(calls as f64, bytes as f64);
    let outside = Seconds::near(local_seconds - within);
    let (in_order, again) = (share(in_order), share(again));
    let reads = Transfers { calls, bytes, in_order, again, aligned: Share::default() };
    Workload { outside_seconds: outside, cpu_seconds: outside, reads, ..Workload::default() }
}

/// The pages of the table of Berkeley DB, and its lookups. A cache for an eighth misses seven of
/// eight; one for all reads each page once.
const PAGES: u64 = 511 * 64;
const LOOKUPS: u64 = 150_000;

#[test]
fn the_signs_of_recorded_rows_are_right() {
    let page = 16 << 10;
    let misses = LOOKUPS * 7 / 8;
    let again = 1.0 - PAGES as f64 / misses as f64;
    let eighth = reading(misses, page, 0.0, again, 1.28);
    let all = reading(PAGES, page, 0.0, 0.0, 1.12);
    let scan = reading(PAGES, page, 1.0, 0.0, 0.70);
    let gzip = reading(550_000_000 / (32 << 10), 32 << 10, 1.0, 0.0, 16.1);
    // The row, its work, and the ratios of time of dafs run and the mount to the local files.
    let rows = [
        ("lookups, cache for an eighth", eighth, 5.4, 6.8),
        ("lookups, cache for all", all, 3.0, 5.1),
        ("scan", scan, 0.96, 1.30),
        ("gzip, whole", gzip, 1.03, 1.01),
    ];
    for (row, workload, run, mount) in rows {
        let verdict = judge(&workload, &machine());
        for (way, ratio) in [(Way::Run, run), (Way::Mount, mount)] {
            let found = predicted(&verdict, way, "shm").against_local;
            assert_eq!(found, Sign::of(ratio, 1.0), "{row}, {way:?}: {:?}", verdict.predictions);
        }
    }
}

/// Writes on a local file, beside which a program does nothing.
fn writing(calls: u64, bytes_each: u64) -> Workload {
    let writes = Transfers {
        calls,
        bytes: calls * bytes_each,
        in_order: share(1.0),
        ..Transfers::default()
    };
    Workload { writes, ..Workload::default() }
}

/// A mount hands on each write at once. The recorded row is that of cached writes of 4 KiB by one thread:
/// 1.4 us on a local file and 42 us on a mount.
#[test]
fn each_write_on_a_mount_is_a_request() {
    let verdict = judge(&writing(100_000, 4096), &machine());
    let seconds = |way, transport| predicted(&verdict, way, transport).seconds;
    let (local, mount) = (seconds(Way::Local, ""), seconds(Way::Mount, "shm"));
    assert!(mount > 10.0 * local && mount < 60.0 * local, "{mount} {local}");
    assert!(mount > seconds(Way::Run, "shm"));
    // The kernel's NFS client collects them.
    assert!(seconds(Way::Nfs, "tcp") < mount / 5.0, "{:?}", verdict.predictions);
}

/// The log of a database: each of 2000 transactions writes 8 KiB and makes them stable, four at once.
#[test]
fn syncs_share_their_time_and_each_waits_for_its_data() {
    let log = |at_once| Workload {
        syncs: 2000,
        sync_seconds: Some(Seconds::near(0.001)),
        at_once: AtOnce::near(at_once),
        ..writing(2000, 8192)
    };
    let seconds = |workload: &Workload, way, transport: &str| {
        predicted(&judge(workload, &machine()), way, transport).seconds
    };
    let (one, four) = (log(1.0), log(4.0));
    // As long as the program was watched to wait.
    let local = |workload: &Workload| seconds(workload, Way::Local, "");
    assert!((2.0..2.1).contains(&local(&one)), "{}", local(&one));
    assert!((0.5..0.6).contains(&local(&four)), "{}", local(&four));
    // On a mount beside them a write and a sync that cross, and by NFS a write and a commit.
    let more = |way, transport: &str| (seconds(&one, way, transport) - local(&one)) / 2000.0;
    let (mount, nfs) = (more(Way::Mount, "shm"), more(Way::Nfs, "tcp"));
    assert!((55e-6..90e-6).contains(&mount), "{mount}");
    assert!((75e-6..130e-6).contains(&nfs), "{nfs}");
}

/// The machine, with a server that shows memory to clients of its host.
fn showing() -> Machine {
    let mut machine = machine();
    let mut shown = machine.transports[0].clone();
    shown.optimistic = true;
    let hit = |line: Line| Line { call_seconds: 0.0, ..line };
    shown.read = Cost { elapsed: hit(shown.read.elapsed), cpu: hit(shown.read.cpu) };
    machine.transports.insert(1, shown);
    machine
}

/// The first read of a place is a request. Berkeley DB with a cache for all of its table reads each page
/// once, and with one for an eighth four times.
#[test]
fn only_places_that_were_read_before_are_shown() {
    let (page, misses) = (16 << 10, LOOKUPS * 7 / 8);
    let again = 1.0 - PAGES as f64 / misses as f64;
    let eighth = reading(misses, page, 0.0, again, 1.28);
    let all = reading(PAGES, page, 0.0, 0.0, 1.12);
    let by = |verdict: &Verdict, optimistic: bool| {
        let mut ways = verdict.predictions.iter().filter(|one| one.way == Way::Run);
        ways.find(|one| one.transport == "shm" && one.optimistic == optimistic).unwrap().clone()
    };
    let verdict = judge(&all, &showing());
    let (plain, shown) = (by(&verdict, false), by(&verdict, true));
    assert_eq!((shown.seconds, shown.against_local), (plain.seconds, Sign::Slower));
    let verdict = judge(&eighth, &showing());
    let (plain, shown) = (by(&verdict, false), by(&verdict, true));
    assert_eq!(shown.against_local, Sign::Slower);
    assert!(shown.seconds < 0.9 * plain.seconds, "{shown:?} {plain:?}");
}

#[test]
fn classes_follow_the_sizes_of_reads() {
    let bound = |workload: &Workload| judge(workload, &machine()).class.unwrap().bound;
    assert_eq!(bound(&reading(100_000, 512, 0.0, 0.0, 0.2)), Bound::Latency);
    assert_eq!(bound(&reading(2_000, 8 << 20, 0.0, 0.0, 3.0)), Bound::Bandwidth);
    assert_eq!(bound(&reading(100, 4096, 0.0, 0.0, 60.0)), Bound::Own);
    assert_eq!(bound(&Workload::default()), Bound::Nothing);
    assert!(judge(&Workload::default(), &machine()).advice.is_empty());
}

#[test]
fn options_are_advised_where_they_gain() {
    let set = |workload: &Workload, option: &str| {
        let advice = judge(workload, &machine()).advice;
        advice.iter().find(|advice| advice.option == option).unwrap().set
    };
    let random = reading(100_000, 4096, 0.0, 0.0, 1.0);
    assert!(set(&random, "batch") && !set(&random, "read-ahead") && !set(&random, "cache"));
    assert!(!set(&random, "optimistic"), "no transport shows memory");
    let again = reading(100_000, 4096, 0.0, 0.9, 1.0);
    assert!(set(&again, "cache"));
    let ordered = reading(100_000, 4096, 1.0, 0.0, 1.0);
    assert!(set(&ordered, "read-ahead") && !set(&ordered, "batch"));
    let large = reading(5_000, 1 << 20, 0.0, 0.0, 1.0);
    assert!(set(&large, "registered memory"));
    let own = reading(100, 4096, 0.0, 0.0, 60.0);
    assert!(judge(&own, &machine()).advice.iter().all(|advice| !advice.set));
}

#[test]
fn a_machine_without_transports_predicts_local_files_alone() {
    let machine = Machine { transports: Vec::new(), ..machine() };
    let verdict = judge(&reading(10, 4096, 0.0, 0.0, 1.0), &machine);
    assert_eq!((verdict.predictions.len(), verdict.class, verdict.advice.len()), (1, None, 0));
}

fn transfers() -> impl Strategy<Value = Transfers> {
    let shares = (0.0..=1.0_f64, 0.0..=1.0_f64, 0.0..=1.0_f64);
    (0..=1_u64 << 40, 1..=1_u64 << 20, shares).prop_map(|(calls, each, (first, second, third))| {
        let (in_order, again, aligned) = (share(first), share(second), share(third));
        Transfers { calls, bytes: calls * each, in_order, again, aligned }
    })
}

fn workloads() -> impl Strategy<Value = Workload> {
    let counts = (0..=1_u64 << 40, 0..=1_u64 << 40);
    let times = (0.0..1e9_f64, 0.0..1e9_f64, 1.0..1000.0_f64);
    (transfers(), transfers(), counts, times).prop_map(|(reads, writes, (names, syncs), times)| {
        Workload {
            outside_seconds: Seconds::near(times.0),
            cpu_seconds: Seconds::near(times.1),
            names,
            syncs,
            sync_seconds: None,
            at_once: AtOnce::near(times.2),
            mapped_bytes: 0,
            reads,
            writes,
        }
    })
}

fn machines() -> impl Strategy<Value = Machine> {
    let line = || (0.0..1.0_f64, 0.0..1e-3_f64);
    let line =
        move || line().prop_map(|(call_seconds, byte_seconds)| Line { call_seconds, byte_seconds });
    let cost = move || (line(), line()).prop_map(|(elapsed, cpu)| Cost { elapsed, cpu });
    (cost(), cost(), cost(), 0.0..1.0_f64).prop_map(|(first, second, third, time)| {
        let mut machine = machine();
        for (transport, cost) in machine.transports.iter_mut().zip([first, second, third]) {
            (transport.read, transport.write, transport.name_seconds) = (cost, cost, time);
        }
        machine.crossing_seconds = time;
        machine
    })
}

/// Asserts that no prediction has become less.
fn grown(less: &Verdict, more: &Verdict) -> Result<(), TestCaseError> {
    for (less, more) in less.predictions.iter().zip(&more.predictions) {
        // Sums are rounded.
        prop_assert!(more.seconds >= less.seconds * (1.0 - 1e-9), "{less:?} {more:?}");
        prop_assert!(more.cpu_seconds >= less.cpu_seconds * (1.0 - 1e-9), "{less:?} {more:?}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn predictions_are_numbers_and_grow_with_the_work(
        workload in workloads(),
        machine in machines(),
        more in 1..1_u64 << 20,
    ) {
        let verdict = judge(&workload, &machine);
        for p in &verdict.predictions {
            let times = [p.seconds, p.cpu_seconds, p.latency_seconds, p.bandwidth_seconds];
            prop_assert!(times.iter().all(|time| time.is_finite() && *time >= 0.0), "{p:?}");
        }
        for advice in &verdict.advice {
            prop_assert!(advice.gain_seconds.is_finite() && advice.gain_seconds >= 0.0);
        }
        let mut larger = workload.clone();
        larger.reads.bytes += more;
        grown(&verdict, &judge(&larger, &machine))?;
        let mut larger = workload.clone();
        larger.writes.calls += more;
        larger.writes.bytes += more;
        grown(&verdict, &judge(&larger, &machine))?;
        let larger = Workload { names: workload.names + more, ..workload.clone() };
        grown(&verdict, &judge(&larger, &machine))?;
        let larger = Workload { syncs: workload.syncs + more, ..workload };
        grown(&verdict, &judge(&larger, &machine))?;
    }

    #[test]
    fn predictions_grow_with_latency_and_shrink_with_bandwidth(
        workload in workloads(),
        machine in machines(),
        factor in 1.0..100.0_f64,
    ) {
        let verdict = judge(&workload, &machine);
        let changed = |change: fn(&mut Line, f64)| {
            let mut slower = machine.clone();
            for transport in &mut slower.transports {
                for cost in [&mut transport.read, &mut transport.write] {
                    change(&mut cost.elapsed, factor);
                    change(&mut cost.cpu, factor);
                }
            }
            judge(&workload, &slower)
        };
        grown(&verdict, &changed(|line, factor| line.call_seconds *= factor))?;
        grown(&verdict, &changed(|line, factor| line.byte_seconds *= factor))?;
        let slower = Machine { crossing_seconds: machine.crossing_seconds * factor, ..machine.clone() };
        grown(&verdict, &judge(&workload, &slower))?;
    }
}

proptest! {
    #[test]
    fn no_description_hurts(text in "[ -~\n]{0,200}") {
        if let Err((line, why)) = Workload::parse(&text) {
            prop_assert!(line >= 1 && line <= text.lines().count().max(1) + 1 && !why.is_empty());
        }
    }

    #[test]
    fn no_number_in_a_description_hurts(key in 0_usize..7, number in any::<f64>()) {
        let keys = ["outside_seconds", "cpu_seconds", "names", "syncs", "sync_seconds", "at_once",
            "[reads]\nin_order"];
        if let Ok(workload) = Workload::parse(&format!("{} = {number:?}\n", keys[key])) {
            let verdict = judge(&workload, &machine());
            prop_assert!(verdict.predictions.iter().all(|p| p.seconds.is_finite()));
        }
    }
}
