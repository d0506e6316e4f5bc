//! One kind of load on one file.
//!
//! Invariants
//! * Memory is allocated before the clock starts.
//! * Every transfer is over before the file is closed.

use super::Kind;
use super::histogram::Histogram;
use super::interrupt::Interrupt;
use crate::remote::{Buffer, Error, File, Pending, Remote, Stability};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The parameters of a load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) kind: Kind,
    pub(super) block_bytes: u64,
    pub(super) depth: usize,
    pub(super) time: Duration,
}

/// The result of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) bytes: u64,
    pub(super) time: Duration,
    /// Processor time of this process.
    pub(super) cpu: Duration,
    pub(super) latency: Histogram,
}

/// An outstanding transfer.
struct Flight {
    pending: Pending,
    buffer: Buffer,
    begun: Instant,
}

impl Load {
    /// Writes the file once.
    pub(super) fn fill(
        &self,
        remote: &Remote,
        file: &File,
        size: u64,
        interrupt: &Interrupt,
    ) -> Result<(), Error> {
        let mut free = self.buffers(remote, self.block_bytes.min(size))?;
        let mut under_way: VecDeque<(Pending, Buffer)> = VecDeque::new();
        let mut offset = 0;
        let more = |offset| offset < size && !interrupt.is_there();
        while more(offset) || !under_way.is_empty() {
            match free.pop().filter(|_| more(offset)) {
                Some(buffer) => {
                    let bytes = self.block_bytes.min(size - offset) as usize;
                    let pending =
                        file.submit_write(&buffer, 0..bytes, offset, Stability::Unstable)?;
                    remote.flush()?;
                    under_way.push_back((pending, buffer));
                    offset += bytes as u64;
                }
                None => {
                    let Some((pending, buffer)) = under_way.pop_front() else { break };
                    pending.wait()?;
                    free.push(buffer);
                }
            }
        }
        if interrupt.is_there() { Ok(()) } else { file.commit() }
    }

    fn buffers(&self, remote: &Remote, bytes: u64) -> Result<Vec<Buffer>, Error> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let buffers = (0..self.depth).map(|at| {
            let buffer = remote.buffer(bytes)?;
            buffer.view().fill(at as u8 | 1);
            Ok(buffer)
        });
        buffers.collect()
    }

    /// Runs until the time is over or a signal comes.
    pub(super) fn run(
        &self,
        remote: &Remote,
        file: &File,
        size: u64,
        interrupt: &Interrupt,
    ) -> Result<Outcome, Error> {
        let mut free = self.buffers(remote, self.block_bytes)?;
        let block = self.block_bytes as usize;
        let mut places = Places::new(size / self.block_bytes, self.kind.is_random());
        let mut latency = Histogram::new();
        let mut under_way: VecDeque<Flight> = VecDeque::new();
        let mut bytes = 0;
        let (start, cpu_start) = (Instant::now(), cpu_time());
        loop {
            while start.elapsed() < self.time
                && !interrupt.is_there()
                && let Some(buffer) = free.pop()
            {
                let offset = places.next() * self.block_bytes;
                let begun = Instant::now();
                let pending = match self.kind.is_write() {
                    true => file.submit_write(&buffer, 0..block, offset, Stability::Unstable)?,
                    false => file.submit_read(&buffer, 0..block, offset)?,
                };
                remote.flush()?;
                under_way.push_back(Flight { pending, buffer, begun });
            }
            let Some(Flight { pending, buffer, begun }) = under_way.pop_front() else { break };
            bytes += pending.wait()? as u64;
            latency.add(begun.elapsed());
            free.push(buffer);
        }
        if self.kind.is_write() && !interrupt.is_there() {
            file.commit()?;
        }
        let (time, cpu) = (start.elapsed(), cpu_time().saturating_sub(cpu_start));
        Ok(Outcome { bytes, time, cpu, latency })
    }
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The sequence of blocks.
struct Places {
    count: u64,
    next: u64,
    random: Option<u64>,
}

impl Places {
    /// Blocks of a file with `count` of them, which is not 0.
    fn new(count: u64, is_random: bool) -> Self {
        // The same places every time, so that runs can be compared.
        Self { count: count.max(1), next: 0, random: is_random.then_some(0x9e37_79b9_7f4a_7c15) }
    }

    fn next(&mut self) -> u64 {
        match &mut self.random {
            Some(state) => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                *state % self.count
            }
            None => {
                let place = self.next;
                self.next = (place + 1) % self.count;
                place
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_in_the_file() {
        let mut places = Places::new(3, false);
        let seen: Vec<u64> = (0..7).map(|_| places.next()).collect();
        assert_eq!(seen, [0, 1, 2, 0, 1, 2, 0]);
        let mut places = Places::new(5, true);
        let seen: Vec<u64> = (0..200).map(|_| places.next()).collect();
        assert!((0..5).all(|place| seen.contains(&place)));
        assert!(seen.iter().all(|place| *place < 5));
    }
}
