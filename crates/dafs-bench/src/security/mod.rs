//! Kerberos and TLS against claims in the clear: the same reads and writes of one file through our own
//! clients, from one server; and the same from NFS-Ganesha.
//!
//! Each sample is a client process of its own, because the libraries of Kerberos take their
//! configuration from the environment of the process.

mod load;
mod world;

pub(crate) use load::Load;
pub(crate) use world::serve;

use crate::report::{Case, Measure, Report, Sample};
use crate::targets::{Quantity, Target};
use crate::{Plan, cpu, peer};
use anyhow::{Context, Result};
use dafs_testkit::realm::Realm;
use world::{At, World};

/// Size of the file; it fits the page cache of any machine.
const FILE_BYTES: u64 = 256 << 20;

const LARGE: usize = 1 << 20;

/// The operation that a client repeats.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Reads anywhere.
    Read,
    /// Writes anywhere.
    Write,
    /// Connects, which establishes a context or makes a handshake.
    Connect,
}

/// Name, action, bytes, depth.
const LOADS: [(&str, Action, usize, usize); 4] = [
    ("read 4 KiB depth 32", Action::Read, 4096, 32),
    ("read 1 MiB depth 8", READ_LARGE.0, READ_LARGE.1, READ_LARGE.2),
    ("write 1 MiB depth 8", Action::Write, LARGE, 8),
    ("connect", Action::Connect, 0, 1),
];

const READ_LARGE: (Action, usize, usize) = (Action::Read, LARGE, 8);

/// A way of protection: its name, the scheme and the options of its URL, and the targets of the loads.
struct Way {
    name: &'static str,
    url: (&'static str, &'static str),
    targets: [Option<Target>; LOADS.len()],
}

impl Way {
    const fn new(name: &'static str, scheme: &'static str, options: &'static str) -> Self {
        Self { name, url: (scheme, options), targets: [None; LOADS.len()] }
    }
}

const PER_CONNECTION: Option<Target> =
    Some(Target::at_most(Quantity::ServerMicrosecondsMore, 300.0));
const PER_TLS: Option<Target> = Some(Target::ratio(1.6));

/// The first way is the floor of the others.
const TCP: [Way; 6] = [
    Way::new("sys", "nfs", ""),
    Way {
        targets: [Some(Target::ratio(1.35)), None, None, PER_CONNECTION],
        ..Way::new("krb5", "nfs", "sec=krb5")
    },
    Way {
        targets: [None, Some(Target::at_most(Quantity::ServerMicroseconds, 1311.0)), None, None],
        ..Way::new("krb5i", "nfs", "sec=krb5i")
    },
    Way::new(SEALED, "nfs", "sec=krb5p"),
    Way { targets: [None, PER_TLS, None, PER_CONNECTION], ..Way::new("tls", "nfs", "xprtsec=tls") },
    Way::new("krb5 over tls", "nfs", "sec=krb5&xprtsec=tls"),
];

const RDMA: [Way; 6] = [
    Way::new("sys", "nfs+rdma", "transport=iwarp"),
    Way::new("krb5", "nfs+rdma", "transport=iwarp&sec=krb5"),
    Way::new("krb5i", "nfs+rdma", "transport=iwarp&sec=krb5i"),
    Way::new(SEALED, "nfs+rdma", "transport=iwarp&sec=krb5p"),
    Way {
        targets: [None, PER_TLS, None, None],
        ..Way::new("tls", "nfs+rdma", "transport=iwarp&xprtsec=tls")
    },
    Way::new("krb5 over tls", "nfs+rdma", "transport=iwarp&sec=krb5&xprtsec=tls"),
];

const DAFS: [Way; 4] = [
    Way::new("clear", "dafs", "transport=iwarp"),
    Way::new("gss", "dafs", "transport=iwarp&sec=gss"),
    Way { targets: [None, PER_TLS, None, None], ..Way::new("tls", "dafss", "xprtsec=tls") },
    Way::new("gss over tls", "dafss", "xprtsec=tls&sec=gss"),
];

/// The way whose messages are sealed by Kerberos.
const SEALED: &str = "krb5p";

/// What MIT's library needs for the same; its speed is a floor beside the first way's.
const LIBRARY: &str = "MIT's library seals 1 MiB";

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    if let Some(reason) = peer::missing(Some(peer::GSSAPI)) {
        report.skip("security", &reason);
        return Ok(());
    }
    peer::in_own_network(|| measure_inside(plan, report))
}

fn measure_inside(plan: &Plan, report: &mut Report) -> Result<()> {
    let Some(realm) = Realm::start() else {
        report.skip("security", "there is no KDC; run: scripts/setup.sh bench");
        return Ok(());
    };
    let folder = tempfile::Builder::new().prefix("dafs-bench").tempdir_in("/dev/shm")?;
    let world = World::new(&realm, folder.path())?;
    for (place, together) in [("both ends on one CPU", true), ("own CPUs", false)] {
        let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
        let ganesha = world.serve_ganesha(server_cpu)?;
        let dafs = world.serve(Some(server_cpu))?;
        cpu::pin(0)?;
        for (front, ways) in [
            ("NFSv4.1 over TCP", &TCP[..]),
            ("NFSv4.1 over iWARP", &RDMA[..]),
            ("DAFS over iWARP", &DAFS[..]),
        ] {
            let cases = rounds(plan, &world, &dafs, ways)?;
            report.add(&format!("security, {front}, {place}"), &cases);
        }
        let cases = against_ganesha(plan, &world, [&ganesha, &dafs])?;
        report.add(&format!("security, NFSv4.1 over TCP, NFS-Ganesha and dafs, {place}"), &cases);
        cpu::unpin()?;
    }
    let cases = in_parallel(plan, &world)?;
    report.add("security, NFSv4.1 over TCP, krb5p on more CPUs", &cases);
    Ok(())
}

/// The loads that the plan wants, by number.
fn wanted(plan: &Plan) -> Vec<usize> {
    (0..LOADS.len()).filter(|&number| LOADS[number].0.contains(&plan.only)).collect()
}

/// Every load in every way.
fn rounds(plan: &Plan, world: &World<'_>, at: &At, ways: &[Way]) -> Result<Vec<Case>> {
    let floor = ways[0].name;
    let wanted = wanted(plan);
    let mut cases = Vec::new();
    for &number in &wanted {
        let (load, ..) = LOADS[number];
        for way in ways {
            let mut case = Case::new(format!("{} {load}", way.name), None, way.targets[number]);
            if way.name != floor {
                case.floor = Some(format!("{floor} {load}").into());
                // The target of small reads is about the server alone.
                let is_small = number == 0;
                case.measure = if is_small { Measure::ServerCpu } else { Measure::Elapsed };
            }
            cases.push(case);
        }
    }
    let sealed = format!("{SEALED} {}", LOADS[1].0);
    let has_sealed = cases.iter().any(|case| case.name == sealed);
    let mut library = Case::new(LIBRARY, None, None);
    for _ in 0..plan.rounds {
        if has_sealed {
            library.samples.push(world.seal(plan, LARGE)?);
        }
        let mut place = cases.iter_mut();
        for &number in &wanted {
            let (load, action, block, depth) = LOADS[number];
            for way in ways {
                let running = world.start(plan, at, way.url, (action, block, depth))?;
                let sample = running.sample().with_context(|| format!("{} {load}", way.name))?;
                place.next().context("a case without a place")?.samples.push(sample);
            }
        }
    }
    let samples = cases.iter().find(|case| case.name == sealed).map(|case| case.samples.clone());
    if let Some(samples) = samples {
        let ours =
            Case::new(format!("{sealed}, server CPU"), Some(LIBRARY), Some(Target::ratio(0.56)));
        cases.extend([library, Case { measure: Measure::ServerCpu, samples, ..ours }]);
    }
    Ok(cases)
}

/// The ways that NFS-Ganesha has, too.
fn against_ganesha(plan: &Plan, world: &World<'_>, servers: [&At; 2]) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for number in wanted(plan) {
        let (load, action, block, depth) = LOADS[number];
        for way in TCP.iter().filter(|way| !way.url.1.contains("xprtsec")) {
            let name = format!("{} {load}", way.name);
            let floor = format!("ganesha {name}");
            let mut pair = [
                Case::new(floor.clone(), None, None),
                Case { floor: Some(floor.into()), ..Case::new(format!("dafs {name}"), None, None) },
            ];
            for _ in 0..plan.rounds {
                for (case, at) in pair.iter_mut().zip(servers) {
                    let running = world.start(plan, at, way.url, (action, block, depth))?;
                    case.samples.push(running.sample().with_context(|| case.name.clone())?);
                }
            }
            cases.extend(pair);
        }
    }
    Ok(cases)
}

/// One client of a server with one thread, all on one CPU; against as many clients and threads as there
/// are CPUs.
fn in_parallel(plan: &Plan, world: &World<'_>) -> Result<Vec<Case>> {
    let count = cpu::cpu_count();
    let target = (count == 2).then_some(Target::ratio(0.6));
    let floor = "1 client, 1 CPU";
    let mut cases = [
        Case::new(floor, None, None),
        Case::new(format!("{count} clients, {count} CPUs"), Some(floor), target),
    ];
    let way = TCP.iter().find(|way| way.name == SEALED).context("no way is sealed")?;
    for _ in 0..plan.rounds {
        for (case, clients) in cases.iter_mut().zip([1, count]) {
            let cpu = (clients == 1).then_some(0);
            let at = world.serve(cpu)?;
            cpu.map_or_else(cpu::unpin, cpu::pin)?;
            let running: Vec<_> = (0..clients)
                .map(|_| world.start(plan, &at, way.url, READ_LARGE))
                .collect::<Result<_>>()?;
            let samples: Vec<Sample> =
                running.into_iter().map(load::Running::sample).collect::<Result<_>>()?;
            cpu::unpin()?;
            case.samples.push(together(&samples));
        }
    }
    Ok(cases.into())
}

/// The sum of samples that were taken at the same time from one server.
fn together(samples: &[Sample]) -> Sample {
    Sample {
        operations: samples.iter().map(|sample| sample.operations).sum(),
        bytes: samples.iter().map(|sample| sample.bytes).sum(),
        elapsed: samples.iter().map(|sample| sample.elapsed).max().unwrap_or_default(),
        client_cpu: samples.iter().map(|sample| sample.client_cpu).sum(),
        server_cpu: samples.iter().map(|sample| sample.server_cpu).max().unwrap_or_default(),
    }
}
