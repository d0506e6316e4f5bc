//! Random histories on a disk that loses and tears unstable data, against a model.

use super::common::{Jobs, SEGMENT_BYTES, scan, start};
use dafs_journal::Log;
use dafs_journal::sim::SimDisk;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of live records at any time: the latest ones.
const LIVE: usize = 20;

#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    Flush,
    Sync,
    RunJobs,
    Rotate,
    Kill,
    CutPower(Vec<bool>),
    CutPowerWhile(u64, Vec<bool>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lasts = prop::collection::vec(any::<bool>(), 1..12);
    let step = prop_oneof![
        12 => (0usize..1500).prop_map(Step::Append),
        2 => Just(Step::Flush),
        4 => Just(Step::Sync),
        4 => Just(Step::RunJobs),
        1 => Just(Step::Rotate),
        1 => Just(Step::Kill),
        1 => lasts.clone().prop_map(Step::CutPower),
        1 => (0u64..6, lasts).prop_map(|(calls, lasts)| Step::CutPowerWhile(calls, lasts)),
    ];
    prop::collection::vec(step, 1..120)
}

struct World {
    disk: Arc<SimDisk>,
    jobs: Jobs,
    log: Arc<Log>,
    boot: u8,
    /// Every appended record that is not lost. Each contains its position.
    history: Vec<Vec<u8>>,
    last: u64,
    /// The number of them that outlive the process.
    flushed: usize,
    /// The number of them that survive a loss of power.
    stable: Arc<AtomicUsize>,
}

impl World {
    fn live(history: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
        history[history.len().saturating_sub(LIVE)..].iter().map(Vec::as_slice)
    }

    fn append(&mut self, len: usize) {
        let mut record = (self.history.len() as u32).to_le_bytes().to_vec();
        record.resize(4 + len, 0x5a);
        let appended = self.log.append(&record);
        self.last = appended.sequence;
        self.history.push(record);
        if appended.full {
            self.log.rotate(&mut Self::live(&self.history));
        }
    }

    /// Reads the log again after a crash: at least `least` records must be found.
    fn recover(&mut self, least: usize) {
        self.jobs.forget();
        self.disk.fail_after(None);
        let (found, recovery) = scan(&self.disk, self.boot).unwrap();
        let number = |record: &[u8]| u32::from_le_bytes(record[..4].try_into().unwrap()) as usize;
        let known = found.last().map_or(0, |record| number(record) + 1);
        assert!(known >= least, "{known} of {least} records");
        let first = found.first().map_or(0, |record| number(record));
        assert_eq!(found, self.history[first..known], "a run without gaps");
        assert!(first == 0 || known - first >= LIVE, "what is of use is there");
        self.history.truncate(known);
        self.log = recovery
            .start(SEGMENT_BYTES, self.jobs.spawn(), &mut Self::live(&self.history))
            .unwrap();
        self.flushed = known;
        self.stable = Arc::new(AtomicUsize::new(known));
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append(len) => self.append(*len),
            Step::Flush => {
                self.log.flush(self.last).unwrap();
                self.flushed = self.history.len();
            }
            Step::Sync => {
                let (stable, count) = (self.stable.clone(), self.history.len());
                let done = move |done: Result<(), _>| {
                    // It fails when the power fails before its job runs.
                    if done.is_ok() {
                        stable.fetch_max(count, Ordering::Relaxed);
                    }
                };
                self.log.sync_soon(self.last, Box::new(done));
            }
            Step::RunJobs => {
                self.jobs.run();
            }
            Step::Rotate => self.log.rotate(&mut Self::live(&self.history)),
            Step::Kill => {
                let least = self.flushed.max(self.stable.load(Ordering::Relaxed));
                self.recover(least);
            }
            Step::CutPower(lasts) => {
                let mut lasts = lasts.iter().cycle();
                self.disk.cut_power(&mut || *lasts.next().unwrap());
                self.boot += 1;
                let least = self.stable.load(Ordering::Relaxed);
                self.recover(least);
            }
            Step::CutPowerWhile(calls, lasts) => {
                let stable = self.stable.load(Ordering::Relaxed);
                // The power fails in the middle of a job.
                self.disk.fail_after(Some(*calls));
                let told = self.stable.clone();
                let count = self.history.len();
                let done = move |done: Result<(), _>| {
                    if done.is_ok() {
                        told.fetch_max(count, Ordering::Relaxed);
                    }
                };
                self.log.sync_soon(self.last, Box::new(done));
                self.jobs.run();
                let mut lasts = lasts.iter().cycle();
                self.disk.cut_power(&mut || *lasts.next().unwrap());
                self.boot += 1;
                let least = self.stable.load(Ordering::Relaxed).max(stable);
                self.recover(least);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_stable_is_lost_and_nothing_is_made_up(steps in steps()) {
        let disk = Arc::new(SimDisk::new());
        let jobs = Jobs::default();
        let (_, log) = start(&disk, 0, &jobs);
        let stable = Arc::new(AtomicUsize::new(0));
        let (history, boot) = (Vec::new(), 0);
        let mut world = World { disk, jobs, log, boot, history, last: 0, flushed: 0, stable };
        for step in &steps {
            world.step(step);
        }
        world.step(&Step::Kill);
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..3),
        flips in prop::collection::vec((0usize..2000, any::<u8>()), 0..4),
        boot in 0u8..2,
    ) {
        let disk = Arc::new(SimDisk::new());
        let jobs = Jobs::default();
        let (_, log) = start(&disk, 0, &jobs);
        for at in 0..10u8 {
            log.append(&[at; 50]);
        }
        log.sync_now().unwrap();
        for (byte, mask) in flips {
            disk.tamper(1, |content| content[byte] ^= mask);
        }
        for (number, content) in (2..).zip(contents) {
            disk.tamper(number, |old| *old = content);
        }
        if let Ok((found, _)) = scan(&disk, boot) {
            prop_assert!(found.iter().all(|record| record.len() == 50));
        }
    }
}
