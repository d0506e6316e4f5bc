//! `dafs bench`: throughput and latency of a server and its network, for sequential and random
//! reads and writes.

mod histogram;
mod interrupt;
mod load;

use crate::failure::Failure;
use crate::output::say;
use crate::remote::{Create, File, Follow, Handle, OpenOptions, Remote, RemoteUrl};
use crate::session::Sessions;
use clap::ValueEnum;
use interrupt::Interrupt;
use load::{Load, Outcome};
use serde_json::json;
use std::time::Duration;

/// Measure reads and writes of one file
///
/// URL is a directory, in which the command makes a file and removes it afterwards, or a file,
/// which is only read.
#[derive(Debug, clap::Args)]
pub(crate) struct Bench {
    /// A directory to make a file in, or a file to read
    url: RemoteUrl,
    /// The loads to measure; all possible ones if left out
    #[arg(long = "run", value_enum, value_delimiter = ',', value_name = "KIND,...")]
    runs: Vec<Kind>,
    /// Length of the file that is made; k, m and g may follow
    #[arg(long, value_parser = bytes, default_value = "256m")]
    size: u64,
    /// Length of one read or write; 1m in order and 4k at random if left out
    #[arg(long, value_parser = bytes)]
    block: Option<u64>,
    /// Most outstanding reads or writes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Seconds for each load
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Print one JSON object per kind and line
    #[arg(long)]
    json: bool,
}

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(super) enum Kind {
    /// Reading in order
    SeqRead,
    /// Reading at random places
    RandRead,
    /// Writing in order, and committing at the end
    SeqWrite,
    /// Writing at random places, and committing at the end
    RandWrite,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::SeqRead => "seqread",
            Self::RandRead => "randread",
            Self::SeqWrite => "seqwrite",
            Self::RandWrite => "randwrite",
        }
    }

    pub(super) fn is_write(self) -> bool {
        matches!(self, Self::SeqWrite | Self::RandWrite)
    }

    pub(super) fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite)
    }

    fn block_bytes(self) -> u64 {
        if self.is_random() { 4 << 10 } else { 1 << 20 }
    }
}

/// A length, with `k`, `m` or `g` for the binary thousand, million and billion.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || "write a number of bytes, which k, m or g may follow".to_owned();
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1u64),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    number.filter(|&bytes| bytes > 0).ok_or_else(wrong)
}

/// The file of the measurement.
struct Subject<'a> {
    remote: &'a Remote,
    /// The directory and name of a file that this command has made.
    made: Option<(Handle, String)>,
}

impl Drop for Subject<'_> {
    fn drop(&mut self) {
        if let Some((directory, name)) = &self.made {
            // The measured values are printed all the same.
            let _ = self.remote.remove(directory, name.as_bytes());
        }
    }
}

impl Bench {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let remote = sessions.client(&self.url)?;
        let failed = |error| Failure::remote(&self.url, &error);
        let found = remote.resolve(self.url.path(), Follow::Yes).map_err(failed)?;
        if found.attributes.is_directory() {
            return self.in_directory(&remote, found.handle);
        }
        let runs = match self.runs.as_slice() {
            [] => vec![Kind::SeqRead, Kind::RandRead],
            runs => runs.to_vec(),
        };
        if runs.iter().any(|kind| kind.is_write()) {
            return Err(Failure::Usage(format!(
                "{} is a file, and is not written to; name a directory to make a file in",
                self.url
            )));
        }
        let file = remote.open(self.url.path(), &OpenOptions::read()).map_err(failed)?;
        self.measure(&remote, &file, found.attributes.size, &runs, &Interrupt::watch()?)?;
        file.close().map_err(failed)
    }

    fn in_directory(&self, remote: &Remote, directory: Handle) -> Result<(), Failure> {
        let failed = |error| Failure::remote(&self.url, &error);
        let runs = match self.runs.as_slice() {
            [] => vec![Kind::SeqWrite, Kind::RandWrite, Kind::SeqRead, Kind::RandRead],
            runs => runs.to_vec(),
        };
        let interrupt = Interrupt::watch()?;
        let name = format!(".dafs-bench-{}", std::process::id());
        let options = OpenOptions::read_write().create(Create::New).mode(0o600);
        let file = remote.open_at(&directory, name.as_bytes(), &options).map_err(failed)?;
        let _subject = Subject { remote, made: Some((directory, name)) };
        let load = self.load(Kind::SeqWrite);
        load.fill(remote, &file, self.size, &interrupt).map_err(failed)?;
        self.measure(remote, &file, self.size, &runs, &interrupt)?;
        file.close().map_err(failed)
    }

    fn load(&self, kind: Kind) -> Load {
        Load {
            kind,
            block_bytes: self.block.unwrap_or(kind.block_bytes()),
            depth: self.depth as usize,
            time: Duration::from_secs(self.seconds.into()),
        }
    }

    fn measure(
        &self,
        remote: &Remote,
        file: &File,
        size: u64,
        runs: &[Kind],
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        interrupt.check()?;
        let (transport, why) = remote.transport();
        if !self.json {
            say!("{}: transport {transport}: {why}", remote.server())?;
            say!(
                "{:<10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11}",
                "",
                "MiB/s",
                "ops/s",
                "p50 us",
                "p90 us",
                "p99 us",
                "max us",
                "CPU %",
                "CPU s/GiB"
            )?;
        }
        for &kind in runs {
            let load = self.load(kind);
            if load.block_bytes > size {
                return Err(Failure::Usage(format!(
                    "the file has {size} bytes, and one {} takes {}; choose a smaller --block",
                    kind.name(),
                    load.block_bytes
                )));
            }
            let outcome = load
                .run(remote, file, size, interrupt)
                .map_err(|error| Failure::remote(&self.url, &error))?;
            interrupt.check()?;
            self.show(&load, &outcome, &transport)?;
        }
        Ok(())
    }

    fn show(&self, load: &Load, outcome: &Outcome, transport: &str) -> Result<(), Failure> {
        let seconds = outcome.time.as_secs_f64();
        let cpu_seconds = outcome.cpu.as_secs_f64();
        let mebibytes = outcome.bytes as f64 / f64::from(1 << 20);
        let latency = &outcome.latency;
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| microseconds(latency.quantile(share)));
        let max = microseconds(latency.max());
        let operations_per_second = latency.count() as f64 / seconds;
        let cpu_per_gibibyte = cpu_seconds / (mebibytes / 1024.0).max(f64::MIN_POSITIVE);
        if self.json {
            let object = json!({
                "run": load.kind.name(),
                "url": self.url.to_string(),
                "transport": transport,
                "block_bytes": load.block_bytes,
                "depth": load.depth,
                "seconds": seconds,
                "bytes": outcome.bytes,
                "mebibytes_per_second": mebibytes / seconds,
                "operations_per_second": operations_per_second,
                "latency_microseconds": { "p50": p50, "p90": p90, "p99": p99, "max": max },
                "client_cpu_seconds": cpu_seconds,
                "client_cpu_seconds_per_gibibyte": cpu_per_gibibyte,
            });
            return say!("{object}");
        }
        say!(
            "{:<10} {:>9.1} {:>9.0} {p50:>9.1} {p90:>9.1} {p99:>9.1} {max:>9.1} {:>9.1} {:>11.3}",
            load.kind.name(),
            mebibytes / seconds,
            operations_per_second,
            cpu_seconds / seconds * 100.0,
            cpu_per_gibibyte,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_units() {
        assert_eq!(bytes("512"), Ok(512));
        assert_eq!((bytes("4k"), bytes("2G")), (Ok(4096), Ok(2 << 30)));
        for wrong in ["", "k", "0", "-1", "1t", "99999999999g"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
