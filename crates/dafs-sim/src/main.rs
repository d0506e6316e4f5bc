//! Runs simulated worlds by seed, and replays one with a trace.

#![forbid(unsafe_code)]

use clap::Parser;
use dafs_sim::crash::{self, CrashOptions, Danger as CrashDanger, EndAt};
use dafs_sim::{Danger, ExposureDanger, Profile, WorldOptions, check};
use std::ops::Range;
use std::process::ExitCode;

/// Runs the DAFS server and client through simulated worlds of broken connections.
#[derive(Debug, Parser)]
#[command(name = "dafs-sim", version)]
struct Arguments {
    /// The world to run.
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    seed: u64,
    /// Worlds to run, from the first up to but without the second number: A..B.
    #[arg(long, value_parser = parse_range)]
    seeds: Option<Range<u64>>,
    /// How much goes wrong: calm, mixed or rough.
    #[arg(long, default_value = "mixed")]
    faults: Profile,
    /// Operations of each client; 0 draws the number from the seed.
    #[arg(long, default_value_t = 0)]
    operations: u32,
    /// Worlds in which processes end and the power fails, instead of those in which connections
    /// break.
    #[arg(long)]
    crashes: bool,
    /// With --crashes: most clients.
    #[arg(long, requires = "crashes")]
    clients: Option<usize>,
    /// With --crashes: the numbers of the faults that happen, such as 0,2; all if not given.
    #[arg(long, requires = "crashes", value_parser = parse_numbers)]
    keep_faults: Option<Numbers>,
    /// With --crashes: a network that does nothing but delay.
    #[arg(long, requires = "crashes")]
    calm_network: bool,
    /// With --crashes: a deliberate bug, to prove that the checks find it.
    #[arg(long, requires = "crashes", default_value = "none")]
    danger: CrashDanger,
    /// With --crashes: shrinks the first world that fails.
    #[arg(long, requires = "crashes")]
    shrink: bool,
    /// With --crashes: ends the server and the first client at every place there is, one place per
    /// world; all other faults are left out.
    #[arg(long, requires = "crashes")]
    exhaust: bool,
    /// With --crashes: ends the server after this many persistent effects.
    #[arg(long, requires = "crashes")]
    end_server: Option<u64>,
    /// With --crashes: the same, with a power failure.
    #[arg(long, requires = "crashes")]
    cut_power: Option<u64>,
    /// With --crashes: ends the first client at this step.
    #[arg(long, requires = "crashes")]
    end_client: Option<u64>,
    /// Prints all operations of the clients and their answers.
    #[arg(long)]
    trace: bool,
    /// Also prints the log of the program, filtered by RUST_LOG.
    #[arg(long)]
    log: bool,
    /// Makes the store forget one write in this many, to prove that the checks find it.
    #[arg(long, default_value_t = 0)]
    danger_forget_write_every: u32,
    /// Makes the transport flip a bit in this many of a million pieces, to prove that the checks
    /// find it.
    #[arg(long, default_value_t = 0)]
    danger_corrupt_ppm: u32,
    /// Worlds in which clients read from memory that the server shows, and in which the server ends.
    #[arg(long, conflicts_with = "crashes")]
    optimistic: bool,
    /// With --optimistic: the clients are on other hosts, and read by RDMA.
    #[arg(long, requires = "optimistic")]
    remote: bool,
    /// With --optimistic: small files share memory of the server.
    #[arg(long, requires = "optimistic", conflicts_with = "remote")]
    small: bool,
    /// With --optimistic: a deliberate bug, to prove that the checks find it.
    #[arg(long, requires = "optimistic", default_value = "none")]
    danger_exposure: ExposureDanger,
}

impl Arguments {
    fn end(&self) -> Option<EndAt> {
        let server = self.end_server.map(|effects| EndAt::Server(effects, false));
        let power = self.cut_power.map(|effects| EndAt::Server(effects, true));
        server.or(power).or(self.end_client.map(EndAt::Client))
    }
}

/// Numbers of faults.
type Numbers = Vec<usize>;

fn parse_numbers(text: &str) -> Result<Numbers, String> {
    let wrong = || format!("{text:?} is no list of numbers; write for example 0,2");
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(|_| wrong())).collect()
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is no range; write for example 0..1000");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    Ok(from.parse().map_err(|_| wrong())?..to.parse().map_err(|_| wrong())?)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.log {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).without_time().init();
    }
    if arguments.crashes {
        return crashes(&arguments);
    }
    let seeds = arguments.seeds.clone().unwrap_or(arguments.seed..arguments.seed + 1);
    let (count, mut failed) = (seeds.end.saturating_sub(seeds.start), 0);
    for seed in seeds {
        let options = WorldOptions {
            seed,
            profile: arguments.faults,
            operations: arguments.operations,
            optimistic: arguments.optimistic,
            remote: arguments.remote,
            small: arguments.small,
            trace: arguments.trace,
            danger: Danger {
                forget_write_every: arguments.danger_forget_write_every,
                corrupt_ppm: arguments.danger_corrupt_ppm,
                exposure: arguments.danger_exposure,
            },
        };
        match check(&options) {
            Ok(report) if count == 1 => println!("seed {seed}: {report:#?}"),
            Ok(_) => {}
            Err(failure) => {
                failed += 1;
                println!("{failure}");
            }
        }
    }
    println!("{count} worlds, {failed} failed");
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs worlds of crashes.
fn crashes(arguments: &Arguments) -> ExitCode {
    let seeds = arguments.seeds.clone().unwrap_or(arguments.seed..arguments.seed + 1);
    let (count, mut failed) = (seeds.end.saturating_sub(seeds.start), 0);
    for seed in seeds {
        let options = CrashOptions {
            seed,
            clients_max: arguments.clients,
            operations_max: Some(arguments.operations).filter(|most| *most > 0),
            faults: arguments.keep_faults.clone(),
            calm_network: arguments.calm_network,
            trace: arguments.trace,
            danger: arguments.danger,
            end: arguments.end(),
        };
        if arguments.exhaust {
            match crash::exhaust(&options) {
                Ok(worlds) => println!("seed {seed}: {worlds} places"),
                Err(failure) => {
                    failed += 1;
                    println!("{failure}");
                }
            }
            continue;
        }
        match crash::check(&options) {
            Ok(report) if count == 1 => println!("seed {seed}: {report:#?}"),
            Ok(_) => {}
            Err(failure) => {
                failed += 1;
                println!("{failure}");
                if arguments.shrink && failed == 1 {
                    let shrunk = crash::shrink(*failure);
                    println!("after {} tries: {}", shrunk.tried, shrunk.plan);
                    println!("{}", shrunk.failure);
                }
            }
        }
    }
    println!("{count} worlds, {failed} failed");
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
