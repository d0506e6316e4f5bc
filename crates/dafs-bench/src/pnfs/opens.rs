//! The cost of LAYOUTGET when a client opens a small file, reads it and closes it: with LAYOUTGET
//! in the compound of OPEN, as Linux sends it, against without.
//!
//! Not obvious
//! * Both read from the server. The path of data is the subject of another table.
//! * A close returns the layout implicitly (`return_on_close`), and that cost counts as well.
//! * The two ways take turns on the same files, so that both find the same state of everything
//!   else.

use super::load::go;
use super::patterns::Done;
use anyhow::{Context, Result, ensure};
use dafs_nfs_client::{
    Create, Handle, OpenOptions, Options, Session, append_open, connect, patiently, read_result,
};
use dafs_wire::nfs4::{
    DENY_NONE, GetfhArgs, LayoutgetArgs, Op, OpNum, OpenClaim, PutfhArgs, SetAttributes,
    ShareAccess, StableHow, Stateid, Want,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const FILE_BYTES: u32 = 4096;
const FILES: usize = 32;

/// Number of opens of each file in each way.
const ROUNDS: usize = 16;

/// Attempts, and the time between them, to get a layout of a new file.
const ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The files layout, for reading.
const LAYOUT_FILES: u32 = 1;
const IO_READ: u32 = 1;

/// Most bytes of a layout.
const LAYOUT_BYTES_MAX: u32 = 16 << 10;

/// Returns the medians without and with LAYOUTGET.
pub(super) fn run(server: SocketAddr, path: &str) -> Result<(Duration, Duration)> {
    // The server gives no layouts to a client without a back channel.
    let options = Options { minor_version: 1, ..Options::new(b"dafs-bench opens") };
    let session = patiently(|| connect(server, &options))?;
    let (folder, prefix) = path.rsplit_once('/').context("no folder")?;
    let directory = session.lookup_path(folder)?;
    let names: Vec<_> = (0..FILES).map(|number| format!("{prefix}-{number}")).collect();
    names.iter().try_for_each(|name| make(&session, &directory, name))?;
    names.iter().try_for_each(|name| warm(&session, &directory, name))?;
    go()?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for name in &names {
            // The ways alternate in being the first to open a file.
            for asks in [round % 2 == 0, round % 2 == 1] {
                let began = Instant::now();
                open_read_close(&session, &directory, name, asks)?;
                if asks { &mut with } else { &mut without }.push(began.elapsed());
            }
        }
    }
    Ok((median(without), median(with)))
}

/// Encodes the times as one line's numbers.
pub(super) fn as_done((without, with): (Duration, Duration)) -> Result<Done> {
    let number = |time: Duration| u64::try_from(time.as_nanos());
    Ok(Done { bytes: number(without)?, transactions: number(with)? })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Waits until there is a layout of a new file.
fn warm(session: &Session, directory: &Handle, name: &str) -> Result<()> {
    for _ in 0..ATTEMPTS {
        if open_read_close(session, directory, name, true).is_ok() {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    open_read_close(session, directory, name, true)
}

fn make(session: &Session, directory: &Handle, name: &str) -> Result<()> {
    let new = SetAttributes { mode: Some(0o666), ..SetAttributes::default() };
    let options = OpenOptions { create: Create::Unchecked(new), ..OpenOptions::default() };
    let file = patiently(|| session.open(directory, name.as_bytes(), &options))?;
    let content = [7; FILE_BYTES as usize];
    patiently(|| {
        session.write(&file.handle, file.stateid, 0, &content, StableHow::FileSync).map(drop)
    })?;
    Ok(patiently(|| session.close(&file))?)
}

/// One open, one read, one close; three calls.
fn open_read_close(session: &Session, directory: &Handle, name: &str, asks: bool) -> Result<()> {
    let options = OpenOptions {
        access: ShareAccess::READ | Want::None.number(),
        deny: DENY_NONE,
        ..OpenOptions::default()
    };
    let mut results = session.call_cached(|compound| {
        compound.op(&Op::Putfh(PutfhArgs { handle: &directory.0 }));
        append_open(compound, OpenClaim::Null(name.as_bytes()), &options);
        compound.op(&Op::Getfh(GetfhArgs));
        if asks {
            compound.op(&Op::Layoutget(LayoutgetArgs {
                signal_available: false,
                layout_type: LAYOUT_FILES,
                io_mode: IO_READ,
                offset: 0,
                length: u64::MAX,
                length_min: 0,
                stateid: Stateid::CURRENT,
                result_bytes_max: LAYOUT_BYTES_MAX,
            }));
        }
    })?;
    let stateid = results.skip(&[OpNum::Putfh])?.take_open()?.stateid;
    let handle = Handle(results.take_getfh()?.handle.to_vec());
    if asks {
        let granted = results.take_layoutget()?;
        // Otherwise the close would cost less than a separate LAYOUTRETURN.
        ensure!(granted.return_on_close && !granted.layouts.is_empty(), "no layout until close");
    }
    let mut content = [0; FILE_BYTES as usize];
    let mut read = session.submit_read(&handle, stateid, 0, FILE_BYTES)?.wait()?;
    let (got, _) = read_result(&mut read, &mut content)?;
    ensure!(got == content.len() && content == [7; FILE_BYTES as usize], "{name} is not right");
    session
        .call_cached(|compound| {
            let close = dafs_wire::nfs4::CloseArgs { seqid: 0, stateid };
            compound.op(&Op::Putfh(PutfhArgs { handle: &handle.0 })).op(&Op::Close(close));
        })?
        .finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_one_that_took_long() {
        let times = [3, 1, 900, 2, 4].map(Duration::from_micros);
        assert_eq!(median(times.to_vec()), Duration::from_micros(3));
        assert_eq!(median(Vec::new()), Duration::ZERO);
    }
}
