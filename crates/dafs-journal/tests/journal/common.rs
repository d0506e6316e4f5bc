//! The fixture of the log's tests: a simulated disk, with jobs that run when the test says so.

use dafs_journal::sim::SimDisk;
use dafs_journal::{Disk, Log, Recovery, ScanError, Spawn};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

pub(crate) const SEGMENT_BYTES: u64 = 16 << 10;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Jobs in order.
#[derive(Default, Clone)]
pub(crate) struct Jobs(Arc<Mutex<VecDeque<Job>>>);

impl Jobs {
    pub(crate) fn spawn(&self) -> Spawn {
        let jobs = self.0.clone();
        Arc::new(move |job| jobs.lock().unwrap().push_back(job))
    }

    pub(crate) fn run(&self) -> usize {
        let mut count = 0;
        loop {
            let job = self.0.lock().unwrap().pop_front();
            let Some(job) = job else { return count };
            job();
            count += 1;
        }
    }

    pub(crate) fn forget(&self) {
        self.0.lock().unwrap().clear();
    }
}

/// Returns the records that are read, and the log ready to begin.
pub(crate) fn scan(disk: &Arc<SimDisk>, boot: u8) -> Result<(Vec<Vec<u8>>, Recovery), ScanError> {
    let disk: Arc<dyn Disk> = disk.clone();
    let mut found = Vec::new();
    let recovery = Recovery::scan(disk, [boot; 16], &mut |record| found.push(record.to_vec()))?;
    Ok((found, recovery))
}

/// Begins a log with the records that were read.
pub(crate) fn start(disk: &Arc<SimDisk>, boot: u8, jobs: &Jobs) -> (Vec<Vec<u8>>, Arc<Log>) {
    let (found, recovery) = scan(disk, boot).unwrap();
    let mut live = found.iter().map(Vec::as_slice);
    let log = recovery.start(SEGMENT_BYTES, jobs.spawn(), &mut live).unwrap();
    (found, log)
}

/// Runs jobs until the log is stable up to `sequence`.
pub(crate) fn sync(log: &Arc<Log>, sequence: u64, jobs: &Jobs) {
    let told = Arc::new(Mutex::new(None));
    let tell = told.clone();
    log.sync_soon(sequence, Box::new(move |done| *tell.lock().unwrap() = Some(done)));
    jobs.run();
    assert_eq!(told.lock().unwrap().take(), Some(Ok(())));
}
