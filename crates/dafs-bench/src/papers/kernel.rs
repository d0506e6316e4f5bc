//! The NFS client of Linux's kernel: direct reads and writes over TCP and RDMA, in a guest of the laboratory
//! and on this host.
//!
//! Not obvious
//! * `lab/kernel-sweep.sh` serves, mounts and measures. It ends at the end of its input, with all that it has
//!   started, also if this process is killed.
//! * The rows of one comparison have their server at the same place: on the host, or in a second guest for
//!   rxe, which works between guests alone.

use super::cells::size;
use super::groups::{self, Group, Row};
use super::results::{Quantity, Results, Sample};
use super::{Interrupt, Options};
use crate::child::await_word;
use crate::folder::Folder;
use crate::fronts;
use crate::report::median;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const BLOCKS: [usize; 4] = [4 << 10, 32 << 10, 256 << 10, 1 << 20];
const READ: &str = "read";
const WRITE: &str = "write";
const OPERATIONS: [&str; 2] = [READ, WRITE];

/// Time of a pass at full scale, and the shortest: the clock of processor time has 100 ticks in a second.
const MILLISECONDS: u64 = 1000;
const MILLISECONDS_MIN: u64 = 300;

/// Time for a script to start servers and guests, for a pass besides its own time, and to end.
const START_TIME: Duration = Duration::from_secs(150);
const PASS_SLACK: Duration = Duration::from_secs(10);
const END_TIME: Duration = Duration::from_secs(20);

/// The exit status of a script that was skipped; its last line has the reason.
const SKIPPED: i32 = 77;

/// A way of the bytes.
struct Way {
    name: &'static str,
    /// The script's LAB_TRANSPORT and LAB_SERVER.
    transport: &'static str,
    server: &'static str,
    /// The way over TCP beside which it is judged.
    tcp: Option<&'static str>,
}

static GUEST_WAYS: [Way; 4] = [
    Way { name: "TCP", transport: "tcp", server: "dafs", tcp: None },
    Way { name: "siw", transport: "siw", server: "dafs", tcp: Some("TCP") },
    Way { name: "TCP to a guest", transport: "tcp", server: "guest", tcp: None },
    Way { name: "rxe", transport: "rxe", server: "guest", tcp: Some("TCP to a guest") },
];

static HOST_WAYS: [Way; 2] = [
    Way { name: "TCP", transport: "tcp", server: "dafs", tcp: None },
    Way { name: "RDMA", transport: "rdma", server: "dafs", tcp: Some("TCP") },
];

fn ways(group: Group) -> &'static [Way] {
    if group == Group::Host { &HOST_WAYS } else { &GUEST_WAYS }
}

fn script() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.unwrap_or(Path::new("")).join("lab/kernel-sweep.sh")
}

/// The missing requirement, in words, if any.
pub(super) fn missing(group: Group) -> Option<String> {
    let script = script();
    if !script.exists() {
        let name = script.display();
        return Some(format!("there is no {name}; build dafs-bench in a checkout that stays"));
    }
    if !fronts::dafs().is_ok_and(|dafs| dafs.exists()) {
        let build = "cargo build --release -p dafs";
        return Some(format!("there is no dafs command beside this one; run: {build}"));
    }
    if group == Group::Host {
        return None;
    }
    let output = Command::new("bash").arg(script.with_file_name("lab.sh")).arg("ready").output();
    let said = match output {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let reason = said.lines().last().unwrap_or_default();
    Some(format!("there can be no guest: {}", reason.trim_start_matches("lab: ")))
}

/// Measures all ways of a group. The reasons are noted why some are missing.
pub(super) fn measure(
    group: Group,
    options: &Options,
    results: &mut Results,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let place = if group == Group::Host { "host" } else { "guest" };
    let ways = ways(group);
    let milliseconds = options.scale.saturating_mul(MILLISECONDS) / 100;
    let milliseconds = milliseconds.clamp(MILLISECONDS_MIN, MILLISECONDS);
    let mut sweeps = BTreeMap::new();
    for way in ways {
        let sweep = sweep(place, way, results.rounds, milliseconds, interrupt);
        // A script that an interrupt has ended, too, fails in its own words.
        interrupt.check()?;
        match sweep {
            Ok(sweep) => {
                sweeps.insert(way.name, sweep);
            }
            Err(error) => groups::skip_way(results, group, way.name, format!("{error:#}")),
        }
    }
    Ok(rows(group, ways, &sweeps))
}

/// A script of the laboratory. On drop its input ends, and it with that, or it is killed.
struct Script {
    child: Child,
    /// Open until the end: a script that tidies up says so.
    output: BufReader<ChildStdout>,
}

impl Drop for Script {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let end = Instant::now() + END_TIME;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                let _ = self.child.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.wait();
    }
}

/// Measures one way.
fn sweep(
    place: &str,
    way: &Way,
    rounds: usize,
    milliseconds: u64,
    interrupt: &Interrupt,
) -> Result<Sweep> {
    let folder = Folder::make(&std::env::temp_dir())?;
    let mut command = Command::new("bash");
    command.arg(script()).arg(place).args([rounds.to_string(), milliseconds.to_string()]);
    command.args(BLOCKS.map(|block| block.to_string()));
    command.env("TMPDIR", folder.path()).env("DAFS", fronts::dafs()?);
    command.env("LAB_TRANSPORT", way.transport).env("LAB_SERVER", way.server);
    // The script makes its own network, and drops the other variables of the laboratory.
    command.env_remove("LAB_NET");
    let passes = u32::try_from(rounds)?.saturating_mul((BLOCKS.len() * OPERATIONS.len()) as u32);
    let limit = START_TIME + (Duration::from_millis(milliseconds) + PASS_SLACK) * passes;
    let sweep = listen(&mut command, limit, interrupt)?;
    let (count, wanted) = (sweep.0.len(), BLOCKS.len() * OPERATIONS.len());
    ensure!(count == wanted, "{count} of {wanted} rows came");
    Ok(sweep)
}

/// Runs a script to its end and takes its samples. The rest of its output is shown.
fn listen(command: &mut Command, limit: Duration, interrupt: &Interrupt) -> Result<Sweep> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(child.stdout.take().context("no output")?);
    let mut script = Script { child, output };
    let (mut sweep, mut last, mut failure) = (Sweep::default(), String::new(), None);
    let end = Instant::now() + limit;
    loop {
        interrupt.check()?;
        ensure!(Instant::now() < end, "not done after {} seconds", limit.as_secs());
        if await_word(&script.output, 1).is_err() {
            continue;
        }
        let mut line = String::new();
        if script.output.read_line(&mut line)? == 0 {
            break;
        }
        if sweep.take(&line)? {
            continue;
        }
        print!("{line}");
        line.trim_end().clone_into(&mut last);
        // The log of the server follows.
        if last.starts_with("FAILED: ") {
            failure = Some(last.clone());
        }
    }
    match script.child.wait()?.code() {
        Some(0) => Ok(sweep),
        Some(SKIPPED) => bail!("{last}"),
        _ => bail!("lab/kernel-sweep.sh: {}", failure.unwrap_or(last)),
    }
}

/// The samples of a way, by operation and block.
#[derive(Default)]
struct Sweep(BTreeMap<(&'static str, usize), Vec<Sample>>);

impl Sweep {
    /// Takes one line of the script; false if it is no sample.
    fn take(&mut self, line: &str) -> Result<bool> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["sample", operation, ref numbers @ ..] = words[..] else { return Ok(false) };
        let known = OPERATIONS.into_iter().find(|known| *known == operation);
        let operation = known.with_context(|| format!("an unknown operation: {operation}"))?;
        let numbers: Result<Vec<u64>, _> = numbers.iter().map(|number| number.parse()).collect();
        let numbers = numbers?;
        let [block, bytes, crossed, elapsed_us, client_us, server_us] = numbers[..] else {
            bail!("a sample has other numbers: {line}");
        };
        ensure!(block > 0 && bytes >= block, "nothing was moved: {line}");
        ensure!(elapsed_us > 0, "no time has passed: {line}");
        ensure!(crossed >= bytes, "{crossed} of {bytes} bytes crossed: {line}");
        let sample = Sample {
            operations: bytes / block,
            bytes,
            elapsed_ns: elapsed_us.saturating_mul(1000),
            client_cpu_ns: client_us.saturating_mul(1000),
            server_cpu_ns: server_us.saturating_mul(1000),
            copied_bytes: None,
            crossed_bytes: Some(crossed),
        };
        self.0.entry((operation, usize::try_from(block)?)).or_default().push(sample);
        Ok(true)
    }

    /// The median of a quantity; not a number where there is none.
    fn value(&self, quantity: Quantity, operation: &'static str, block: usize) -> f64 {
        let samples = self.0.get(&(operation, block)).into_iter().flatten();
        median(samples.map(|sample| quantity.of(sample)).collect())
    }

    /// The highest throughput in MB/s, and its block.
    fn best(&self, operation: &'static str) -> (f64, usize) {
        let rate = |block| (self.value(Quantity::Throughput, operation, block), block);
        let best = BLOCKS.map(rate).into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        best.unwrap_or((f64::NAN, 0))
    }

    /// The least of the bytes that the kernel counted, for each byte of an operation.
    fn crossed(&self, operation: &str) -> f64 {
        let samples = self.0.iter().filter(|((of, _), _)| *of == operation);
        let shares = samples.flat_map(|(_, samples)| samples).filter_map(|sample| {
            let crossed = sample.crossed_bytes? as f64;
            Some(crossed / sample.bytes as f64)
        });
        shares.min_by(f64::total_cmp).unwrap_or(f64::NAN)
    }
}

/// The rows of each way, and those that judge RDMA beside TCP.
fn rows(group: Group, ways: &[Way], sweeps: &BTreeMap<&'static str, Sweep>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |case: String, unit: &str, value| {
        rows.push(Row { group, case, unit: unit.to_owned(), value });
    };
    for way in ways {
        let (name, Some(sweep)) = (way.name, sweeps.get(way.name)) else { continue };
        for &(operation, block) in sweep.0.keys() {
            let case = format!("{name}: {operation} {}", size(block));
            add(
                case.clone(),
                Quantity::Throughput.unit(),
                sweep.value(Quantity::Throughput, operation, block),
            );
            for quantity in [Quantity::ClientCpu, Quantity::ServerCpu] {
                let (unit, value) = (quantity.unit(), sweep.value(quantity, operation, block));
                // The clock is too coarse for less.
                if value > 0.0 {
                    add(format!("{case}, {unit}"), unit, value);
                }
            }
        }
        for operation in OPERATIONS {
            let case = format!("{name}: {operation}, bytes that the kernel counted");
            add(case, "of each byte", sweep.crossed(operation));
        }
        let block = sweep.best(READ).1 as f64 / 1024.0;
        add(format!("{name}: block of the best read"), "KiB", block);
        let tcp = way.tcp.and_then(|tcp| Some((tcp, sweeps.get(tcp)?)));
        let Some((tcp_name, tcp)) = tcp else { continue };
        let gain = |operation| sweep.best(operation).0 / tcp.best(operation).0;
        let cpu = |block| {
            let value = |sweep: &Sweep| sweep.value(Quantity::ClientCpu, READ, block);
            value(sweep) / value(tcp)
        };
        let most = BLOCKS.map(cpu).into_iter().max_by(f64::total_cmp).unwrap_or(f64::NAN);
        let ratio = "relative to TCP";
        add(format!("{name}: best read / {tcp_name}"), ratio, gain(READ));
        add(format!("{name}: client CPU of a read, at most / {tcp_name}"), ratio, most);
        let case = format!("{name}: gain of writes beside that of reads / {tcp_name}");
        add(case, "relative to reads", gain(WRITE) / gain(READ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Proof, Value};
    use super::super::groups::Groups;
    use super::super::list;
    use super::*;

    /// A way whose reads and writes take so long with any block. The client is busy for half of the time.
    fn sweep_of(read_us: u64, write_us: u64) -> Sweep {
        let mut sweep = Sweep::default();
        for (operation, elapsed_us) in [(READ, read_us), (WRITE, write_us)] {
            for block in BLOCKS {
                let (bytes, cpu_us) = (10 * block, elapsed_us / 2);
                let line =
                    format!("sample {operation} {block} {bytes} {bytes} {elapsed_us} {cpu_us} 0");
                assert!(sweep.take(&line).expect("a sample"));
            }
        }
        sweep
    }

    #[test]
    fn lines_of_the_script_become_samples_and_others_are_told_apart() {
        let mut sweep = Sweep::default();
        for line in ["--- after 3 s: round 1", "", "samples"] {
            assert!(!sweep.take(line).expect("no sample"), "{line}");
        }
        for microseconds in [2000, 1000, 4000] {
            let line = format!("sample read 4096 8192 8192 {microseconds} 600 0\n");
            assert!(sweep.take(&line).expect("a sample"));
        }
        let value = |quantity| sweep.value(quantity, READ, 4096);
        assert!((value(Quantity::Throughput) - 4.096).abs() < 1e-9);
        assert!((value(Quantity::ClientCpu) - 300.0).abs() < 1e-9);
        assert!(value(Quantity::ServerCpu).abs() < 1e-9);
        assert!(sweep.value(Quantity::Throughput, WRITE, 4096).is_nan());
        for wrong in [
            "sample sing 4096 8192 8192 2000 600 0",
            "sample read 4096 8192 8192 2000 600",
            "sample read 4096 8192 8192 fast 600 0",
            "sample read 4096 0 0 2000 600 0",
            // The script has not understood dd.
            "sample read 4096 8192 8192 0 600 0",
            // The bytes took another way.
            "sample read 4096 8192 4096 2000 600 0",
        ] {
            assert!(sweep.take(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_claim_on_the_kernels_client_finds_its_row() {
        let mut groups = Groups::default();
        for group in [Group::Guest, Group::Host] {
            let ways = ways(group);
            let each = ways.iter().map(|way| {
                let sweep = if way.tcp.is_some() { sweep_of(50, 80) } else { sweep_of(100, 80) };
                (way.name, sweep)
            });
            groups.rows.extend(rows(group, ways, &each.collect()));
        }
        for claim in list::claims() {
            let Proof::Rows(_, Value::GroupPlain(place)) = claim.proof else { continue };
            if [Group::Guest, Group::Host].contains(&place.group) {
                let value = groups.value(place).expect(place.case);
                let wanted = match claim.id {
                    "P3-F16" if claim.text.contains("1.6 times") => 2.0,
                    "P3-F15" | "P3-F16" => 1024.0,
                    _ => 0.5,
                };
                assert!((value - wanted).abs() < 1e-9, "{}: {value}", place.case);
            }
        }
        let crossed = groups.rows.iter().filter(|row| row.case.ends_with("the kernel counted"));
        assert_eq!(crossed.filter(|row| (row.value - 1.0).abs() < 1e-9).count(), 12);
        // A server that seems to need no time has no row.
        assert!(groups.rows.iter().all(|row| row.value > 0.0), "{:?}", groups.rows);
    }

    #[test]
    fn a_script_ends_with_its_input_and_tells_why_it_was_skipped_or_failed() {
        let interrupt = Interrupt::default();
        let listen = |script: &str, seconds| {
            let mut command = Command::new("sh");
            listen(command.args(["-c", script]), Duration::from_secs(seconds), &interrupt)
        };
        let error = |script: &str, seconds| match listen(script, seconds) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        let sweep = listen("echo sample read 1 2 2 3 4 5; echo and more", 60).expect("it ends");
        assert_eq!(sweep.0.len(), 1);
        assert_eq!(error("echo there is no gcc; exit 77", 60), "there is no gcc");
        let failed = "echo 'FAILED: no bytes'; echo its log; exit 1";
        assert_eq!(error(failed, 60), "lab/kernel-sweep.sh: FAILED: no bytes");
        let folder = tempfile::tempdir().expect("a folder");
        let ended = folder.path().join("ended");
        let script = format!("read -r _; : >'{}'", ended.display());
        assert_eq!(error(&script, 0), "not done after 0 seconds");
        assert!(ended.exists(), "it was killed");
    }
}
