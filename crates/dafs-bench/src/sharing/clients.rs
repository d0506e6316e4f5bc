//! Several concurrent clients.

use crate::report::Sample;
use crate::{Plan, cpu};
use anyhow::{Result, anyhow};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Makes `count` workers, each in a thread of its own, and lets them work concurrently, over and
/// over. Each call gets the number of the worker's earlier ones. Their resources are made before
/// and dropped after the measured time.
pub(super) fn together<W>(
    plan: &Plan,
    count: usize,
    server: Option<u32>,
    make: impl Fn(usize) -> Result<W> + Sync,
) -> Result<Sample>
where
    W: FnMut(u64) -> Result<()>,
{
    let (ready, done) = (Barrier::new(count + 1), Barrier::new(count + 1));
    let span = Duration::from_millis(plan.milliseconds);
    let work = |number: usize| -> Result<u64> {
        let mut worker = make(number);
        ready.wait();
        let worked = match &mut worker {
            Ok(worker) => repeat(span, worker),
            Err(_) => Ok(0),
        };
        done.wait();
        // All have arrived: teardown is not measured.
        worker.map(drop)?;
        worked
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        ready.wait();
        // Read in both cases, so that an error leaves no thread at a barrier.
        let before = cpu::times(server);
        let began = Instant::now();
        done.wait();
        let (elapsed, after) = (began.elapsed(), cpu::times(server));
        let mut operations = 0;
        for thread in threads {
            operations +=
                thread.join().map_err(|_| anyhow!("a client of the benchmark failed"))??;
        }
        let (before, after) = (before?, after?);
        Ok(Sample {
            operations,
            bytes: 0,
            elapsed,
            client_cpu: after.0.saturating_sub(before.0),
            server_cpu: after.1.saturating_sub(before.1),
        })
    })
}

fn repeat(span: Duration, worker: &mut impl FnMut(u64) -> Result<()>) -> Result<u64> {
    let end = Instant::now() + span;
    let mut count = 0;
    while Instant::now() < end {
        worker(count)?;
        count += 1;
    }
    Ok(count)
}
