//! A program that knows nothing of direct access: 4 KiB at a time from a slice of its own, one
//! after the other, with and without the client's cache, and the same on the local file.
//!
//! The file is in the server's page cache, and larger than the client's cache. The range that is
//! read again is smaller. Writes include the final commit.

use super::{TRANSPORTS, folder};
use crate::files::{FILE_BYTES, prepare};
use crate::report::{Case, Report, Sample};
use crate::{Plan, child::Process, cpu};
use anyhow::{Context, Result, ensure};
use dafs_client::{
    CacheOptions, Client, ConnectOptions, DafsUrl, File, OpenOptions, Stability, TransportChoice,
};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const PIECE: usize = 4096;
/// The range that is read again and again, or written.
const AGAIN_BYTES: u64 = 32 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Read,
    ReadAgain,
    Write,
}

/// The program's way to its file.
#[derive(Debug, Clone, Copy)]
enum Way {
    Local,
    Dafs { transport: TransportChoice, cache: bool },
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut rows = rows();
    rows.retain(|(case, ..)| case.name.contains(&plan.only));
    if rows.is_empty() {
        return Ok(());
    }
    let folder = folder(plan)?;
    let export = prepare(folder.path())?;
    cpu::pin(0)?;
    for _ in 0..plan.rounds {
        for (case, way, what) in &mut rows {
            let sample = match *way {
                Way::Local => local(plan, &export, *what),
                Way::Dafs { transport, cache } => remote(plan, &export, transport, cache, *what),
            };
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    cpu::unpin()?;
    let cases: Vec<Case> = rows.into_iter().map(|(case, ..)| case).collect();
    report.add("4 KiB in sequence, own CPUs", &cases);
    Ok(())
}

fn rows() -> Vec<(Case, Way, What)> {
    let mut rows = Vec::new();
    let whats = [(What::Read, "read"), (What::ReadAgain, "read again"), (What::Write, "write")];
    for (what, does) in whats {
        rows.push((Case::new(format!("local {does}"), None, None), Way::Local, what));
        for (medium, transport) in TRANSPORTS {
            let plain = format!("{medium} {does}");
            let cached = format!("{medium} {does}, cache");
            let floor = Some(plain.clone().into());
            let way = |cache| Way::Dafs { transport, cache };
            rows.push((Case::new(plain, None, None), way(false), what));
            rows.push((Case { floor, ..Case::new(cached, None, None) }, way(true), what));
        }
    }
    rows
}

/// Calls `one` with consecutive places of the file for the time of the plan, and `end` after the
/// last. The processor time of the process `server` counts as the server's.
fn run(
    plan: &Plan,
    what: What,
    server: Option<u32>,
    one: &mut dyn FnMut(&mut [u8], u64) -> Result<()>,
    end: &mut dyn FnMut() -> Result<()>,
) -> Result<Sample> {
    let bytes = if what == What::Read { FILE_BYTES } else { AGAIN_BYTES };
    let places = bytes / PIECE as u64;
    let mut piece = vec![5; PIECE];
    if what == What::ReadAgain {
        (0..places).try_for_each(|place| one(&mut piece, place * PIECE as u64))?;
    }
    let work = || {
        let (start, time) = (Instant::now(), Duration::from_millis(plan.milliseconds));
        let mut operations = 0;
        while operations & 255 != 0 || start.elapsed() < time {
            one(&mut piece, operations % places * PIECE as u64)?;
            operations += 1;
        }
        end()?;
        Ok((operations, operations * PIECE as u64))
    };
    Sample::of(|| cpu::times(server), work)
}

fn local(plan: &Plan, export: &Path, what: What) -> Result<Sample> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(export.join("data"))?;
    let one = |piece: &mut [u8], offset| match what {
        What::Write => file.write_all_at(piece, offset),
        What::Read | What::ReadAgain => file.read_exact_at(piece, offset),
    };
    let end = || if what == What::Write { file.sync_data() } else { Ok(()) };
    run(plan, what, None, &mut |piece, offset| Ok(one(piece, offset)?), &mut || Ok(end()?))
}

fn remote(
    plan: &Plan,
    export: &Path,
    transport: TransportChoice,
    cache: bool,
    what: What,
) -> Result<Sample> {
    let process = Process::serve(export, usize::from(cpu::cpu_count() > 1), "adaptive")?;
    let url = DafsUrl::parse(&format!("{}data", process.address))?;
    let cache = cache.then(CacheOptions::default);
    let options = ConnectOptions { transport, cache, ..ConnectOptions::default() };
    let client = Client::connect(&url, &options)?;
    let file = client.open(url.path(), &OpenOptions::read_write())?;
    let mut one = |piece: &mut [u8], offset| -> Result<()> { piece_of(&file, what, piece, offset) };
    let mut end = || -> Result<()> {
        if what == What::Write {
            file.commit(0, 0)?;
        }
        Ok(())
    };
    let sample = run(plan, what, Some(process.id()), &mut one, &mut end)?;
    file.close()?;
    client.disconnect()?;
    Ok(sample)
}

fn piece_of(file: &File, what: What, piece: &mut [u8], offset: u64) -> Result<()> {
    let bytes = match what {
        What::Write => file.write_at(piece, offset, Stability::Unstable)?,
        What::Read | What::ReadAgain => file.read_at(piece, offset)?,
    };
    ensure!(bytes == piece.len(), "short transfer");
    Ok(())
}
