//! Checkpoints in the manner of BTIO: several processes write a grid of points with five values
//! each into one file, step after step, and read it back. `native.py` has the same.
//!
//! Not obvious
//! * A row of the grid has 64 points, as in class A of that benchmark, and rows are assigned to
//!   processes in turn. One process therefore writes 2560 bytes at once, between the bytes of
//!   others.
//! * A step is collective: no process begins the next one before all have made theirs stable.
//! * Rows that are neighbours go into one request, as from a page cache. Only a single process has some.
//!
//! Invariants
//! * Each row has unique content. Every row is compared when it is read back, by another process
//!   than its writer.

use super::UNIT_BYTES;
use super::load::{WINDOW, finish, go, piece};
use super::patterns::Done;
use anyhow::{Context, Result, ensure};
use dafs_mem::Site;
use dafs_nfs_client::mount::{
    Create, File, Memory, MemorySlice, Mount, OpenOptions, PendingRead, StableHow,
};
use std::collections::VecDeque;
use std::ops::Range;

/// 64 points with five values of eight bytes.
const ROW_BYTES: usize = 64 * 5 * 8;

/// The most rows of a request.
const RUN_ROWS: u64 = (UNIT_BYTES / ROW_BYTES) as u64;

/// Number of times the grid is written, each time behind the last.
pub(super) const STEPS: u64 = 4;

/// The rows of one of several processes.
#[derive(Debug, Clone, Copy)]
struct Share {
    rank: u64,
    count: u64,
    /// The rows of one step, of all processes.
    rows: u64,
}

impl Share {
    /// The share of a process in a file of about `bytes`.
    fn new(rank: u64, count: u64, bytes: u64) -> Result<Self> {
        let rows = bytes / STEPS / ROW_BYTES as u64;
        ensure!(rank < count, "process {rank} is none of {count}");
        ensure!(rows >= count, "{bytes} bytes are too few for {count} processes");
        Ok(Self { rank, count, rows })
    }

    /// The rows of a step, by their numbers in the file.
    fn of_step(self, step: u64) -> impl Iterator<Item = u64> {
        let rows = step * self.rows + self.rank..(step + 1) * self.rows;
        rows.step_by(usize::try_from(self.count).unwrap_or(usize::MAX))
    }

    /// The share of the next process.
    fn next(self) -> Self {
        Self { rank: (self.rank + 1) % self.count, ..self }
    }
}

/// The content of a row.
fn row(number: u64) -> [u8; ROW_BYTES] {
    let mut bytes = [0; ROW_BYTES];
    for (at, value) in (0..).zip(bytes.as_chunks_mut().0) {
        *value = ((number + 1) << 16 | at).to_le_bytes();
    }
    bytes
}

fn place(number: u64) -> u64 {
    number * ROW_BYTES as u64
}

/// Writes and reads as process `rank` of `count`.
pub(super) fn run(
    mount: &Mount,
    path: &str,
    memory: &Memory,
    (rank, count): (u64, u64),
    bytes: u64,
) -> Result<Done> {
    let share = Share::new(rank, count, bytes)?;
    let mut rows = 0;
    let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o666);
    let file = mount.open(path.as_bytes(), &options)?;
    for step in 0..STEPS {
        go()?;
        rows += write(&file, memory, share.of_step(step))?;
    }
    file.close()?;
    go()?;
    let file = mount.open(path.as_bytes(), &OpenOptions::read())?;
    for step in 0..STEPS {
        rows += read(&file, memory, share.next().of_step(step))?;
    }
    file.close()?;
    Ok(Done { bytes: place(rows), transactions: rows })
}

/// Rows in runs of neighbours: the first of each run, and their number.
fn runs(rows: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in rows {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == number && *count < RUN_ROWS => *count += 1,
            _ => runs.push((number, 1)),
        }
    }
    runs
}

/// Writes rows and makes them stable; returns their number.
fn write(file: &File, memory: &Memory, rows: impl Iterator<Item = u64>) -> Result<u64> {
    let (mut under_way, mut done) = (VecDeque::new(), 0);
    for (turn, (first, count)) in runs(rows).into_iter().enumerate() {
        if under_way.len() >= WINDOW {
            finish(under_way.pop_front())?;
        }
        let memory = piece(memory, turn, count as usize * ROW_BYTES)?;
        for number in first..first + count {
            let part = memory.view().slice((number - first) as usize * ROW_BYTES, ROW_BYTES);
            part.context("a run is too long")?.copy_from(&row(number), Site::Inspect);
        }
        under_way.push_back(file.submit_write(memory, place(first), StableHow::Unstable)?);
        done += count;
    }
    while !under_way.is_empty() {
        finish(under_way.pop_front())?;
    }
    file.commit()?;
    Ok(done)
}

/// Reads rows and compares them; returns their number.
fn read(file: &File, memory: &Memory, rows: impl Iterator<Item = u64>) -> Result<u64> {
    let mut under_way: VecDeque<(PendingRead, MemorySlice, Range<u64>)> = VecDeque::new();
    let (mut runs, mut done) = (runs(rows).into_iter().enumerate(), 0);
    loop {
        while under_way.len() < WINDOW
            && let Some((turn, (first, count))) = runs.next()
        {
            let memory = piece(memory, turn, count as usize * ROW_BYTES)?;
            let read = file.submit_read(memory.clone(), place(first))?;
            under_way.push_back((read, memory, first..first + count));
        }
        let Some((read, memory, numbers)) = under_way.pop_front() else { return Ok(done) };
        let (got, mut found) = (read.wait()?, vec![0; memory.len()]);
        memory.view().copy_to(&mut found, Site::Inspect);
        let mut rows = found.get(..got).context("more than was asked for")?.chunks(ROW_BYTES);
        for number in numbers {
            check(number, rows.next().unwrap_or_default())?;
            done += 1;
        }
    }
}

/// Checks the content of a row.
fn check(number: u64, found: &[u8]) -> Result<()> {
    let wanted = row(number);
    let differs = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
    ensure!(differs.is_none(), "row {number} of the grid is wrong from byte {differs:?} on");
    ensure!(found.len() == ROW_BYTES, "row {number} of the grid has {} bytes", found.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_written_by_one_process_and_read_by_another() {
        for count in [1, 2, 3, 8] {
            let share = |rank| Share::new(rank, count, 1 << 20).expect("a share");
            let rows = share(0).rows;
            assert_eq!(rows, (1 << 20) / 4 / 2560);
            let (mut writer, mut reader) =
                (vec![None; 4 * rows as usize], vec![None; 4 * rows as usize]);
            for rank in 0..count {
                for step in 0..STEPS {
                    for number in share(rank).of_step(step) {
                        assert_eq!(number / rows, step);
                        assert_eq!(writer[number as usize].replace(rank), None);
                    }
                    for number in share(rank).next().of_step(step) {
                        assert_eq!(reader[number as usize].replace(rank), None);
                    }
                }
            }
            assert!(writer.iter().zip(&reader).all(|(writer, reader)| {
                writer.is_some() && reader.is_some() && (count == 1 || writer != reader)
            }));
            // The neighbours of a row belong to other processes.
            assert!(count == 1 || writer.windows(2).filter(|two| two[0] == two[1]).count() < 4);
        }
        assert!(Share::new(8, 8, 1 << 20).is_err());
        assert!(Share::new(0, 8, 8 * 2560).is_err(), "some would have nothing");
    }

    #[test]
    fn neighbours_go_into_one_request_of_a_unit_at_most() {
        assert!(RUN_ROWS as usize * ROW_BYTES <= UNIT_BYTES);
        assert_eq!(runs(7..7 + RUN_ROWS + 2), [(7, RUN_ROWS), (7 + RUN_ROWS, 2)]);
        assert_eq!(runs([1, 3, 4, 9].into_iter()), [(1, 1), (3, 2), (9, 1)]);
        let share = Share::new(1, 2, 1 << 20).expect("a share");
        assert!(runs(share.of_step(1)).iter().all(|(_, count)| *count == 1));
        assert!(runs(std::iter::empty()).is_empty());
    }

    #[test]
    fn a_row_that_is_short_shifted_or_in_another_place_is_noticed() {
        let right = row(7);
        check(7, &right).expect("it is right");
        assert!(check(8, &right).is_err());
        assert!(check(7, &right[..2000]).is_err());
        let shifted = [&right[8..], &right[..8]].concat();
        assert!(check(7, &shifted).is_err());
        for at in [0, 1279, 2559] {
            let mut wrong = right;
            wrong[at] ^= 1;
            assert!(check(7, &wrong).is_err(), "byte {at}");
        }
    }
}
