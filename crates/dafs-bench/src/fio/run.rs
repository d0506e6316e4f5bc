//! One run of fio, and its preparations.

use crate::peer;
use crate::report::Sample;
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The root of the repository, where scripts and job files are.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Time that one run may take beyond the measured time.
const RUN_SECONDS_MAX: u64 = 10;

/// The job of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) name: &'static str,
    /// The job file.
    pub(super) file: &'static str,
    pub(super) writes: bool,
    /// True if operations are submitted by 16, and completions fetched as they come.
    pub(super) batches: bool,
}

/// The engine by which fio accesses the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Psync,
    IoUring,
    Libnfs,
    Iwarp,
    Shm,
}

/// The programs built for the benchmark.
pub(super) struct Programs {
    dafs: PathBuf,
    libnfs: Option<PathBuf>,
}

/// The times from the submission of an operation to its completion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Latency {
    pub(super) mean_us: f64,
    pub(super) percentile_99_us: f64,
}

/// The archive with the C library, which cargo puts beside this program.
fn archive() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("libdafs_capi.a"))
}

/// The missing requirement of fio, in words, if any.
pub(crate) fn missing() -> Option<String> {
    let ran = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if let Some(program) = ["fio", "cc", "dpkg-source"].into_iter().find(|name| !ran(name)) {
        return Some(format!("there is no {program}; run: scripts/setup.sh bench"));
    }
    if !archive().is_ok_and(|archive| archive.exists()) {
        return Some("there is no C library; run: cargo build --release -p dafs-capi".to_owned());
    }
    let headers = Command::new(format!("{ROOT}/fio/headers.sh")).output();
    if !headers.is_ok_and(|output| output.status.success()) {
        return Some("fio/headers.sh cannot make the headers of fio".to_owned());
    }
    None
}

impl Programs {
    /// Builds our engine in `folder`, and fio's own for libnfs, which Debian's fio lacks.
    pub(super) fn build(folder: &Path, with_libnfs: bool) -> Result<Self> {
        let prefix = folder.join("prefix");
        let script = |name: &str| Command::new(format!("{ROOT}/{name}"));
        let parts = ["library", "development", "fio"];
        let mut install = script("scripts/install.sh");
        install.args(parts).env("PREFIX", &prefix).env("ARCHIVE", archive()?);
        succeed(install.env("STRIP", "no").env_remove("DESTDIR").env_remove("LIBDIR"))?;
        let libnfs = folder.join("libfio_nfs.so");
        if with_libnfs {
            let output = script("fio/headers.sh").output()?;
            let headers = PathBuf::from(String::from_utf8(output.stdout)?.trim_end());
            let arguments = ["-O2", "-fPIC", "-shared", "-D_GNU_SOURCE", "-w", "-include"];
            let mut compiler = Command::new("cc");
            compiler.args(arguments).arg(headers.join("config-host.h"));
            compiler.arg("-o").arg(&libnfs).arg(headers.join("engines/nfs.c")).arg("-lnfs");
            succeed(&mut compiler)?;
        }
        let dafs = prefix.join("lib/libdafs_fio.so");
        Ok(Self { dafs, libnfs: with_libnfs.then_some(libnfs) })
    }
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Psync => "psync",
            Self::IoUring => "io_uring",
            Self::Libnfs => "libnfs",
            Self::Iwarp => "iwarp",
            Self::Shm => "shm",
        }
    }

    /// The arguments for this engine; `url` is that of the dafs server.
    pub(super) fn arguments(self, programs: &Programs, export: &Path, url: &str) -> Vec<String> {
        let local = |engine: &str| {
            vec![format!("--ioengine={engine}"), format!("--directory={}", export.display())]
        };
        let dafs = |transport: &str| {
            let engine = format!("--ioengine=external:{}", programs.dafs.display());
            vec![engine, format!("--dafs_url={url}"), format!("--dafs_transport={transport}")]
        };
        match self {
            Self::Psync => local("psync"),
            Self::IoUring => local("io_uring"),
            Self::Iwarp => dafs("iwarp"),
            Self::Shm => dafs("shm"),
            Self::Libnfs => {
                let engine = programs.libnfs.as_deref().unwrap_or(Path::new("nfs"));
                let (port, mount_port) = (peer::Ganesha::PORT, peer::Ganesha::MOUNT_PORT);
                let url = format!(
                    "nfs://127.0.0.1{}?version=3&nfsport={port}&mountport={mount_port}",
                    export.display()
                );
                vec![
                    format!("--ioengine=external:{}", engine.display()),
                    format!("--nfs_url={url}"),
                ]
            }
        }
    }
}

/// Runs fio once; the time of the process `server` counts as the server's. `None` when fio did not
/// end and was killed.
pub(super) fn once(
    plan: &Plan,
    programs: &Programs,
    target: &[String],
    load: Load,
    depth: usize,
    server: Option<u32>,
) -> Result<Option<(Sample, Latency)>> {
    let server_time =
        || server.map_or(Ok(Duration::ZERO), |server| cpu::process_time(Some(server)));
    let folder = programs.dafs.parent().context("the engine is in no folder")?;
    let before = server_time()?;
    let seconds = RUN_SECONDS_MAX + plan.milliseconds / 1000;
    let mut command = match target.iter().any(|argument| argument.starts_with("--nfs_url=")) {
        // In a PID namespace of its own, so that all processes end with the first one.
        true => {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "timeout"]);
            command
        }
        false => Command::new("timeout"),
    };
    let start = Instant::now();
    let output = command
        .args(["-k", "1", &seconds.to_string(), "fio"])
        // fio leaves files in its working directory.
        .current_dir(folder)
        .args(["--output-format=json", "--time_based"])
        .arg(format!("--runtime={}ms", plan.milliseconds))
        .arg(format!("--iodepth={depth}"))
        .args(target)
        .args(load.batches.then_some("--iodepth_batch=16"))
        .args(load.batches.then(|| format!("--iodepth_batch_complete_max={depth}")))
        .arg(format!("{ROOT}/fio/jobs/{}", load.file))
        .output()?;
    if start.elapsed() >= Duration::from_secs(seconds) {
        return Ok(None);
    }
    let server_cpu = server_time()?.saturating_sub(before);
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio failed: {said}");
    let text = String::from_utf8(output.stdout)?;
    let (sample, latency) = parse(&text, load.writes).with_context(|| said.into_owned())?;
    Ok(Some((Sample { server_cpu, ..sample }, latency)))
}

/// The used part of fio's output.
#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Direction,
    write: Direction,
    /// Milliseconds from the beginning of the job to its end.
    job_runtime: f64,
    /// Percent of the run time.
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Deserialize)]
struct Direction {
    total_ios: u64,
    io_bytes: u64,
    /// Milliseconds.
    runtime: u64,
    lat_ns: Times,
    clat_ns: Times,
}

#[derive(Deserialize)]
struct Times {
    mean: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

fn parse(text: &str, writes: bool) -> Result<(Sample, Latency)> {
    let start = text.find('{').context("fio printed no figures")?;
    let output: Output = serde_json::from_str(&text[start..])?;
    let job = output.jobs.into_iter().next().context("fio ran no job")?;
    let direction = if writes { job.write } else { job.read };
    ensure!(direction.total_ios > 0, "fio did nothing");
    let client_milliseconds = job.job_runtime * (job.usr_cpu + job.sys_cpu) / 100.0;
    let percentile_99 = direction.clat_ns.percentile.get("99.000000");
    let sample = Sample {
        operations: direction.total_ios,
        bytes: direction.io_bytes,
        elapsed: Duration::from_millis(direction.runtime),
        client_cpu: Duration::from_secs_f64(client_milliseconds.max(0.0) / 1e3),
        server_cpu: Duration::ZERO,
    };
    let latency = Latency {
        mean_us: direction.lat_ns.mean / 1e3,
        percentile_99_us: percentile_99.context("fio printed no percentiles")? / 1e3,
    };
    Ok((sample, latency))
}

impl Latency {
    /// The median of each value by itself.
    pub(super) fn median(all: &[Self]) -> Self {
        let median = |value: &dyn Fn(&Self) -> f64| {
            let mut values: Vec<f64> = all.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        Self {
            mean_us: median(&|latency| latency.mean_us),
            percentile_99_us: median(&|latency| latency.percentile_99_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: &str = r#"{"total_ios": 0, "io_bytes": 0, "runtime": 0,
        "lat_ns": {"mean": 0.0}, "clat_ns": {"mean": 0.0}}"#;

    fn printed() -> String {
        let write = r#"{"total_ios": 1000, "io_bytes": 4096000, "runtime": 250,
            "lat_ns": {"mean": 1500.0},
            "clat_ns": {"mean": 1400.0, "percentile": {"50.000000": 1300, "99.000000": 2500}}}"#;
        format!(
            r#"note: something
            {{"jobs": [{{"read": {NOTHING}, "write": {write}, "job_runtime": 260,
            "usr_cpu": 10.0, "sys_cpu": 40.0}}]}}"#
        )
    }

    #[test]
    fn figures_of_fio() {
        let (sample, latency) = parse(&printed(), true).unwrap();
        assert_eq!((sample.operations, sample.bytes), (1000, 4_096_000));
        assert_eq!(sample.elapsed, Duration::from_millis(250));
        assert_eq!(sample.client_cpu, Duration::from_millis(130));
        assert_eq!(latency, Latency { mean_us: 1.5, percentile_99_us: 2.5 });
    }

    #[test]
    fn no_figures() {
        assert!(parse(&printed(), false).is_err());
        assert!(parse("fio: it did not work", true).is_err());
    }
}
