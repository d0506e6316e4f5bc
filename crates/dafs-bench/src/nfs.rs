//! NFSv3 through Debian's libnfs: NFS-Ganesha and dafs on the same directory, in turn.
//!
//! Both servers run the whole time, in a network of their own; each case of a round is run against
//! one and then the other.

use crate::child::Process;
use crate::nfs4::{self, Client};
use crate::peer::{self, Ganesha};
use crate::report::{Case, Report, Sample};
use crate::targets::{Quantity, Target};
use crate::{Plan, cpu};
use anyhow::{Context, Result, bail, ensure};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Size of the file for reads; it fits the page cache of any machine.
const FILE_BYTES: u64 = 256 << 20;

/// Time that a sample may take beyond the measured time.
const SAMPLE_SECONDS_MAX: u64 = 60;

/// Entries of the directory that is listed, and of each that is listed once.
const ENTRIES: usize = 20_000;
const NEW_ENTRIES: usize = 10_000;

/// The case that lists a directory which no server has listed before: each round has one. Its number
/// follows.
const NEW_FOLDER: &str = "readdir:";

/// The most time of one operation at a time, relative to Ganesha's, where both ends have CPUs of their own.
const ONE_AT_A_TIME: Target = Target::ratio(0.9);

/// Display name, case of the load generator, depth, and the target for dafs.
type Load = (&'static str, &'static str, usize, Option<Target>);

const LOADS: [Load; 12] = [
    ("read 4 KiB depth 1", "random:4096", 1, None),
    (
        "read 4 KiB depth 32",
        "random:4096",
        32,
        Some(Target::at_most(Quantity::ServerMicroseconds, 3.0)),
    ),
    ("read 1 MiB depth 1", "order:1048576", 1, None),
    ("read 1 MiB depth 8", "order:1048576", 8, None),
    ("write 1 MiB depth 1", "write1m", 1, None),
    ("write 1 MiB depth 8", "write1m", 8, None),
    ("getattr depth 1", "getattr", 1, None),
    ("getattr depth 32", "getattr", 32, Some(Target::ratio(0.33))),
    ("create+write 4 KiB depth 8", "small", 8, None),
    ("create depth 32", "create", 32, Some(Target::ratio(0.33))),
    ("readdirplus, per entry", "readdir", 1, Some(Target::ratio(0.33))),
    ("readdirplus of a new folder, per entry", NEW_FOLDER, 1, Some(Target::ratio(1.0))),
];

/// A row that another command measures, and its target.
const SMALL_FILES: &str = "small files by our NFS client against Linux's (at most 1.5)";

/// Rows with another peer, and their targets.
const CHIMERA: [&str; 3] = [
    "remove depth 32 against chimera (server CPU at most 1)",
    "create depth 32, files in memory, against chimera's memfs (at most 0.9)",
    "readdirplus, files in memory, against chimera's memfs (at most 0.9)",
];

/// The same for NFSv4.1 and our own client.
const LOADS4: [(&str, nfs4::Load, usize); 5] = [
    ("read 4 KiB depth 1", nfs4::READ_4K, 1),
    ("read 4 KiB depth 32", nfs4::READ_4K, 32),
    ("read 1 MiB depth 8", nfs4::READ_1M, 8),
    ("getattr depth 1", nfs4::Load::Getattr, 1),
    ("getattr depth 32", nfs4::Load::Getattr, 32),
];

/// In the order of the targets.
const SERVERS: [&str; 2] = ["ganesha", "dafs"];

/// Idle clients whose memory is measured.
const CLIENTS: usize = 1000;

/// The second line of the create case.
const REMOVE: &str = "remove depth 32";

/// One server, for the load generator.
pub(crate) struct Server<'a> {
    pub(crate) host: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) mount_port: u16,
    pub(crate) path: &'a str,
    pub(crate) pid: u32,
}

impl Server<'_> {
    fn address(&self) -> SocketAddr {
        (self.host, self.port).into()
    }
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    for row in CHIMERA.iter().filter(|row| row.contains(&plan.only)) {
        report.skip(row, peer::NO_CHIMERA);
    }
    if SMALL_FILES.contains(&plan.only) {
        report.skip(SMALL_FILES, "Linux's client runs in guests: dafs-bench pnfs");
    }
    if !LOADS.iter().any(|load| load.0.contains(&plan.only)) {
        return Ok(());
    }
    if let Some(reason) = peer::missing(None) {
        report.skip("nfs", &reason);
        return Ok(());
    }
    peer::in_own_network(|| measure_inside(plan, report))
}

fn measure_inside(plan: &Plan, report: &mut Report) -> Result<()> {
    // On tmpfs: on a disk, creating names would measure the disk.
    let shm = Path::new("/dev/shm");
    let directory = tempfile::Builder::new().prefix("dafs-bench").tempdir_in(shm)?;
    let export = directory.path().join("export");
    prepare(&export, plan.rounds)?;
    let load = peer::build_load(directory.path())?;
    for (name, together) in [("both ends on one CPU", true), ("own CPUs", false)] {
        let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
        // The server must not wait for clients of the last run.
        let _ = std::fs::remove_dir_all(export.with_extension("state"));
        let ganesha = Ganesha::start(&export, directory.path(), server_cpu)?;
        let dafs = Process::serve_nfs(&export, server_cpu)?;
        cpu::pin(0)?;
        let export_name = export.to_str().context("the directory's name is not UTF-8")?;
        let targets = [
            Server {
                host: Ipv4Addr::LOCALHOST,
                port: Ganesha::PORT,
                mount_port: Ganesha::MOUNT_PORT,
                path: export_name,
                pid: ganesha.id(),
            },
            Server {
                host: Ipv4Addr::LOCALHOST,
                port: dafs.port()?,
                mount_port: dafs.port()?,
                path: "/",
                pid: dafs.id(),
            },
        ];
        let cases = rounds(plan, &load, &targets, together)?;
        report.add(&format!("NFSv3 over TCP, {name}"), &cases);
        let cases = rounds4(plan, &targets)?;
        report.add(&format!("NFSv4.1 over TCP with our client, {name}"), &cases);
        if !together {
            memory(report, &targets)?;
        }
        cpu::unpin()?;
    }
    Ok(())
}

fn prepare(export: &Path, rounds: usize) -> Result<()> {
    for name in ["new", "many"] {
        std::fs::create_dir_all(export.join(name))?;
    }
    let content: Vec<u8> = (0..FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
    std::fs::write(export.join("data"), &content)?;
    std::fs::write(export.join("written"), &content)?;
    for number in 0..ENTRIES {
        std::fs::write(export.join(format!("many/entry-{number}")), "")?;
    }
    for round in 1..=rounds {
        let folder = export.join(format!("many-{round}"));
        std::fs::create_dir(&folder)?;
        for number in 0..NEW_ENTRIES {
            std::fs::write(folder.join(format!("entry-{number}")), "")?;
        }
    }
    Ok(())
}

fn rounds(
    plan: &Plan,
    load: &Path,
    targets: &[Server<'_>; 2],
    together: bool,
) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let has_own_cpus = !together && cpu::cpu_count() > 1;
    for (name, .., target) in LOADS.iter().filter(|load| load.0.contains(&plan.only)) {
        let is_one_at_a_time = has_own_cpus && name.ends_with("B depth 1");
        cases.extend(pair(name, target.or(is_one_at_a_time.then_some(ONE_AT_A_TIME))));
        if name.starts_with("create depth") {
            cases.extend(pair(REMOVE, Some(Target::ratio(0.33))));
        }
    }
    for round in 1..=plan.rounds {
        for (name, case, depth, _) in LOADS.iter().filter(|load| load.0.contains(&plan.only)) {
            let case = match *case {
                NEW_FOLDER => format!("{NEW_FOLDER}{round}"),
                case => case.to_owned(),
            };
            for (server, target) in SERVERS.into_iter().zip(targets) {
                let samples = sample(load, target, &case, *depth, plan.milliseconds)
                    .with_context(|| format!("{server} {name}"))?;
                let names = [format!("{server} {name}"), format!("{server} {REMOVE}")];
                for (name, sample) in names.iter().zip(samples) {
                    let case = cases.iter_mut().find(|case| case.name == *name);
                    case.context("a case without a place")?.samples.push(sample);
                }
            }
        }
    }
    Ok(cases)
}

/// The path of the export for NFSv4 clients.
fn path4(server: &str) -> &'static str {
    if server == "ganesha" { "export" } else { "" }
}

fn rounds4(plan: &Plan, targets: &[Server<'_>; 2]) -> Result<Vec<Case>> {
    let loads: Vec<_> =
        LOADS4.iter().filter(|(name, ..)| name.contains(&plan.only)).copied().collect();
    let mut cases: Vec<Case> = loads.iter().flat_map(|(name, ..)| pair(name, None)).collect();
    for _ in 0..plan.rounds {
        for (server, target) in SERVERS.into_iter().zip(targets) {
            let client = Client::open(target.address(), path4(server))?;
            for (name, load, depth) in &loads {
                let sample = client.run(*load, *depth, plan.milliseconds, target.pid)?;
                let name = format!("{server} {name}");
                let case = cases.iter_mut().find(|case| case.name == name);
                case.context("a case without a place")?.samples.push(sample);
            }
        }
    }
    Ok(cases)
}

/// Measures the memory of idle clients.
fn memory(report: &mut Report, targets: &[Server<'_>; 2]) -> Result<()> {
    println!("\nmemory of {CLIENTS} idle NFSv4.1 clients");
    for (server, target) in SERVERS.into_iter().zip(targets) {
        let bytes = nfs4::idle_clients_bytes(target.address(), target.pid, CLIENTS)?;
        let text = format!("{:.1} KiB each", bytes as f64 / 1024.0 / CLIENTS as f64);
        report.figure(&format!("{CLIENTS} clients, {server}, bytes"), bytes as f64, &text);
    }
    Ok(())
}

/// The peer's case, and ours compared with it.
fn pair(name: &str, target: Option<Target>) -> [Case; 2] {
    let floor = format!("ganesha {name}");
    [
        Case::new(floor.clone(), None, None),
        Case { floor: Some(floor.into()), ..Case::new(format!("dafs {name}"), None, target) },
    ]
}

/// Runs one case and returns a sample for each line of the load generator. All server time counts
/// for the first line, except for creates, where it is divided by the time of each part.
pub(crate) fn sample(
    load: &Path,
    target: &Server<'_>,
    case: &str,
    depth: usize,
    milliseconds: u64,
) -> Result<Vec<Sample>> {
    let before = cpu::process_time(Some(target.pid))?;
    // libnfs hangs at times.
    let seconds = SAMPLE_SECONDS_MAX + milliseconds / 1000;
    let output = Command::new("timeout")
        .args(["-k", "5", &seconds.to_string()])
        .arg(load)
        .args([target.host.to_string(), target.port.to_string(), target.mount_port.to_string()])
        .args([target.path, case, &depth.to_string(), &milliseconds.to_string()])
        .output()?;
    let server_cpu = cpu::process_time(Some(target.pid))?.saturating_sub(before);
    ensure!(
        output.status.success(),
        "the load generator failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    let mut samples = text.lines().map(parse).collect::<Result<Vec<_>>>()?;
    ensure!(!samples.is_empty(), "the load generator said nothing");
    let elapsed: Duration = samples.iter().map(|sample| sample.elapsed).sum();
    for sample in &mut samples {
        let share = sample.elapsed.as_secs_f64() / elapsed.as_secs_f64().max(f64::EPSILON);
        sample.server_cpu = server_cpu.mul_f64(share);
    }
    Ok(samples)
}

fn parse(line: &str) -> Result<Sample> {
    let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [operations, bytes, elapsed_ns, cpu_ns] = numbers[..] else {
        bail!("the load generator said {line:?}");
    };
    Ok(Sample {
        operations,
        bytes,
        elapsed: Duration::from_nanos(elapsed_ns),
        client_cpu: Duration::from_nanos(cpu_ns),
        server_cpu: Duration::ZERO,
    })
}
