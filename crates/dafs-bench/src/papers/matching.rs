//! Bandwidth matching: a server that fetches the data of writes takes no more of it than its disk
//! writes, so that its memory stays small and it has time for readers.
//!
//! Invariants
//! * The disk is a layer above the server's files that writes at a rate and reads at once. No write is
//!   faster than that, which is checked.
//! * A reader is measured beside the writer and without it in the same round.

use crate::child::{Process, announce, wait_for_parent};
use crate::report::median;
use crate::{cpu, files, memory};
use anyhow::{Context, Result, anyhow, ensure};
use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, File, IoBuffer, OpenOptions, TransportChoice,
};
use dafs_testkit::Served;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The rate of the disk: a sixth of the papers' links.
const DISK_BYTES_PER_SECOND: u64 = 20_000_000;

/// The writes under way, and the bytes of each.
const WRITES: files::Load = files::Load::Write { bytes: 256 << 10, depth: 64 };

/// The time from the first write to the measurement, and the shortest measurement.
const SETTLE: Duration = Duration::from_millis(300);
const TIME_MIN: Duration = Duration::from_millis(500);

/// The rows.
pub(crate) const MEMORY: &str = "memory that writes to a slow disk take at the server";
pub(crate) const READS: &str = "rate of reads beside writes to a slow disk";

/// The values of both rows: MiB at most, and the median of rates relative to those without writes.
pub(super) struct Matched {
    pub(super) memory_mib: f64,
    pub(super) reads: f64,
}

/// A client with a file and memory for its transfers.
struct End {
    client: Client,
    file: File,
    buffer: IoBuffer,
    load: files::Load,
}

impl End {
    fn connect(
        address: &str,
        name: &str,
        options: &OpenOptions,
        load: files::Load,
    ) -> Result<Self> {
        let url = DafsUrl::parse(&format!("{address}{name}"))?;
        let iwarp = ConnectOptions { transport: TransportChoice::Iwarp, ..Default::default() };
        let client = Client::connect(&url, &iwarp)?;
        let file = client.open(url.path(), options)?;
        let buffer = client.buffer(load.bytes() * load.depth())?;
        Ok(Self { client, file, buffer, load })
    }

    /// The bytes in a second.
    fn rate(&self, time: Duration) -> Result<f64> {
        let began = Instant::now();
        let count = files::run(&self.client, &self.file, &self.buffer, self.load, time)?;
        Ok((count * self.load.bytes() as u64) as f64 / began.elapsed().as_secs_f64())
    }
}

/// Measures a number of rounds.
pub(super) fn measure(rounds: usize, time: Duration) -> Result<Matched> {
    let cpu = usize::from(cpu::cpu_count() > 1).to_string();
    let server = Process::start(&["serve-slow-disk", &cpu])?;
    ensure!(!server.address.is_empty(), "the server on a slow disk does not start");
    cpu::pin(0)?;
    let outcome = measure_on(&server, rounds, time.max(TIME_MIN));
    cpu::unpin()?;
    outcome
}

fn measure_on(server: &Process, rounds: usize, time: Duration) -> Result<Matched> {
    let address = &server.address;
    let reader = End::connect(address, "data", &OpenOptions::read(), files::READ_1)?;
    reader.rate(SETTLE)?;
    let before = memory::resident_bytes(server.id())?;
    let (mut memory_mib, mut reads) = (0.0_f64, Vec::new());
    for _ in 0..rounds {
        let alone = reader.rate(time)?;
        let (began, is_begun) = mpsc::channel();
        let (beside, resident) = std::thread::scope(|scope| -> Result<(f64, usize)> {
            let writer = scope.spawn(move || -> Result<f64> {
                let options = OpenOptions::write().create(Create::IfMissing);
                let writer = End::connect(address, "written", &options, WRITES)?;
                began.send(())?;
                writer.rate(SETTLE + 2 * time)
            });
            // It ends early only by an error, which it tells in the end.
            let _ = is_begun.recv();
            std::thread::sleep(SETTLE);
            let beside = reader.rate(time)?;
            let resident = memory::resident_bytes(server.id())?;
            let written = writer.join().map_err(|_| anyhow!("the writer failed"))??;
            let most = DISK_BYTES_PER_SECOND as f64 * 1.1;
            ensure!(written <= most, "{written:.0} bytes a second were written to the slow disk");
            Ok((beside, resident))
        })?;
        memory_mib = memory_mib.max(resident.saturating_sub(before) as f64 / f64::from(1 << 20));
        reads.push(beside / alone);
    }
    Ok(Matched { memory_mib, reads: median(reads) })
}

/// Serves a file whose content is in memory, on a slow disk, until the parent ends.
pub(crate) fn serve(cpu: usize) -> Result<()> {
    cpu::pin(cpu)?;
    let served = Served::with(|setup| setup.disk_bytes_per_second = Some(DISK_BYTES_PER_SECOND));
    let data = served.path().join("data");
    std::fs::File::create(&data)?.set_len(files::FILE_BYTES)?;
    std::io::copy(&mut std::fs::File::open(&data)?, &mut std::io::sink())
        .context("the file cannot be read")?;
    announce(&served.url())?;
    wait_for_parent();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_to_a_slow_disk_take_their_time_and_reads_none() {
        const RATE: u32 = 1 << 20;
        let served = Served::with(|setup| setup.disk_bytes_per_second = Some(u64::from(RATE)));
        let rate = |options: &OpenOptions, load| {
            let end = End::connect(&served.url(), "data", options, load).expect("it is open");
            end.rate(Duration::from_millis(300)).expect("it runs")
        };
        let options = OpenOptions::write().create(Create::IfMissing);
        let written = rate(&options, files::Load::Write { bytes: 64 << 10, depth: 2 });
        assert!(written <= f64::from(RATE), "{written:.0} bytes a second");
        let data = std::fs::File::options().write(true).open(served.path().join("data"));
        data.and_then(|data| data.set_len(files::FILE_BYTES)).expect("extended");
        let load = files::Load::Read { bytes: 64 << 10, depth: 1, random: false };
        let read = rate(&OpenOptions::read(), load);
        assert!(read > f64::from(RATE), "{read:.0} bytes a second");
    }
}
