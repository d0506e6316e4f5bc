//! Append, sync, and the errors of a log that cannot be read.

use super::common::{Jobs, SEGMENT_BYTES, scan, start, sync};
use dafs_journal::sim::SimDisk;
use dafs_journal::{Disk, FileDisk, Log, LogFailed, Recovery, ScanError, Spawn, Workers};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

/// A log that has begun on a new disk.
fn begun() -> (Arc<SimDisk>, Jobs, Arc<Log>) {
    let (disk, jobs) = (Arc::new(SimDisk::new()), Jobs::default());
    let (_, log) = start(&disk, 1, &jobs);
    (disk, jobs, log)
}

/// A disk with a log of five stable records of 40 bytes, and the number of its segment.
fn five() -> (Arc<SimDisk>, u64) {
    let (disk, jobs, log) = begun();
    let mut last = 0;
    for at in 1..=5 {
        last = log.append(&[at; 40]).sequence;
        sync(&log, last, &jobs);
    }
    sync(&log, last, &jobs);
    let segment = disk.list().unwrap()[0];
    (disk, segment)
}

/// The position of the fifth record: behind the header, the end of the checkpoint with its
/// confirmation, and four records of 72 bytes with theirs.
const LAST: usize = 64 + 32 + 32 + 4 * (72 + 32);

fn expected() -> Vec<Vec<u8>> {
    (1..=5).map(|at| vec![at; 40]).collect()
}

#[test]
fn stable_records_are_read_back() {
    let (disk, _) = five();
    let (found, recovery) = scan(&disk, 1).unwrap();
    assert_eq!(found, expected());
    assert!(!recovery.rebooted());
    disk.cut_power(&mut || false);
    let (found, recovery) = scan(&disk, 2).unwrap();
    assert_eq!(found, expected());
    assert!(recovery.rebooted());
}

/// A timeout that is reached only by a deadlock.
const LONG: Duration = Duration::from_secs(20);

/// A disk with a patience for other syncs, whose calls end in a panic when the test says so.
#[derive(Default)]
struct OddDisk {
    disk: SimDisk,
    mad_write: AtomicBool,
    mad_sync: AtomicBool,
    patience: Duration,
    /// Each sync waits for an item of it, if there is one.
    held: Option<Mutex<mpsc::Receiver<()>>>,
}

impl OddDisk {
    fn begun(self, spawn: Spawn) -> (Arc<Self>, Arc<Log>) {
        let disk = Arc::new(self);
        let recovery = Recovery::scan(disk.clone(), [1; 16], &mut |_| ()).unwrap();
        (disk, recovery.start(SEGMENT_BYTES, spawn, &mut std::iter::empty()).unwrap())
    }
}

impl Disk for OddDisk {
    fn list(&self) -> io::Result<Vec<u64>> {
        self.disk.list()
    }

    fn key(&self) -> [u8; 16] {
        self.disk.key()
    }

    fn read(&self, segment: u64) -> io::Result<Vec<u8>> {
        self.disk.read(segment)
    }

    fn make(&self, segment: u64, len_bytes: u64) -> io::Result<()> {
        self.disk.make(segment, len_bytes)
    }

    fn write(&self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(!self.mad_write.load(Ordering::Relaxed), "a mistake in a write");
        self.disk.write(segment, offset, bytes)
    }

    fn sync(&self, segment: u64) -> io::Result<()> {
        assert!(!self.mad_sync.load(Ordering::Relaxed), "a mistake in a sync");
        if let Some(held) = &self.held {
            let _ = held.lock().unwrap().recv_timeout(LONG);
        }
        self.disk.sync(segment)
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn remove(&self, segment: u64) -> io::Result<()> {
        self.disk.remove(segment)
    }

    fn name(&self, segment: u64) -> String {
        self.disk.name(segment)
    }
}

/// Records that were about to be written or made stable are not known to be, so they are never
/// reported as stable.
#[test]
fn a_panic_of_the_disk_is_a_failure_that_everybody_is_told() {
    for in_sync in [false, true] {
        let jobs = Jobs::default();
        let (disk, log) = OddDisk::default().begun(jobs.spawn());
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = || {
            let told = told.clone();
            Box::new(move |done| told.lock().unwrap().push(done))
        };
        let set = |mad| match in_sync {
            true => disk.mad_sync.store(mad, Ordering::Relaxed),
            false => disk.mad_write.store(mad, Ordering::Relaxed),
        };
        let first = log.append(&[1; 40]).sequence;
        set(true);
        log.sync_soon(first, tell());
        log.sync_soon(first, tell());
        jobs.run();
        assert_eq!(*told.lock().unwrap(), [Err(LogFailed), Err(LogFailed)]);
        set(false);
        let second = log.append(&[2; 40]).sequence;
        log.sync_soon(second, tell());
        jobs.run();
        assert_eq!(told.lock().unwrap().pop(), Some(Err(LogFailed)));
        assert_eq!(log.sync_through(first), Err(LogFailed));
    }
}

#[test]
fn everybody_is_told_though_one_of_them_makes_a_mistake() {
    let (_disk, jobs, log) = begun();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = || {
        let told = told.clone();
        Box::new(move |done: Result<(), LogFailed>| {
            done.unwrap();
            told.fetch_add(1, Ordering::Relaxed);
        })
    };
    let sequence = log.append(&[1; 40]).sequence;
    log.sync_soon(sequence, Box::new(|_| panic!("a mistake")));
    log.sync_soon(sequence, tell());
    jobs.run();
    assert_eq!(told.load(Ordering::Relaxed), 1);
    let sequence = log.append(&[2; 40]).sequence;
    log.sync_soon(sequence, tell());
    jobs.run();
    assert_eq!(told.load(Ordering::Relaxed), 2);
}

#[test]
fn workers_outlive_the_mistakes_of_their_jobs() {
    let workers = Workers::start("test", 2).unwrap();
    let spawn = workers.spawn();
    (0..10).for_each(|_| spawn(Box::new(|| panic!("a mistake"))));
    let (tell, told) = mpsc::channel();
    let job = move || tell.send(std::thread::current().name().map(str::to_owned)).unwrap();
    spawn(Box::new(job));
    let name = told.recv().unwrap().unwrap();
    assert!(name.starts_with("test-"), "{name} had to run it");
    drop(workers);
}

#[test]
fn one_sync_serves_all_that_wait() {
    let (disk, jobs, log) = begun();
    let before = disk.syncs();
    let told = Arc::new(AtomicUsize::new(0));
    for at in 0..16 {
        let appended = log.append(&[at; 100]);
        let told = told.clone();
        log.sync_soon(
            appended.sequence,
            Box::new(move |done| {
                done.unwrap();
                told.fetch_add(1, Ordering::Relaxed);
            }),
        );
    }
    assert_eq!(told.load(Ordering::Relaxed), 0);
    assert_eq!(jobs.run(), 1);
    assert_eq!(told.load(Ordering::Relaxed), 16);
    assert_eq!(disk.syncs() - before, 1);
}

#[test]
fn threads_that_a_sync_has_served_do_not_wait_for_the_next_one() {
    let (open, gate) = mpsc::channel();
    // For the sync at the beginning.
    open.send(()).unwrap();
    let held = OddDisk { held: Some(Mutex::new(gate)), ..OddDisk::default() };
    let jobs = Jobs::default();
    let (_, log) = held.begun(jobs.spawn());
    let (tell, told) = mpsc::channel();
    let syncs = log.statistics().syncs;
    std::thread::scope(|scope| {
        let wait_for = |sequence| {
            let (log, tell) = (log.clone(), tell.clone());
            scope.spawn(move || {
                log.sync_through(sequence).unwrap();
                tell.send(sequence).unwrap();
            });
        };
        let together: Vec<u64> = (0..4).map(|at| log.append(&[at; 40]).sequence).collect();
        together.iter().for_each(|sequence| wait_for(*sequence));
        while log.statistics().syncs == syncs {
            std::thread::yield_now();
        }
        let late = log.append(b"late").sequence;
        wait_for(late);
        open.send(()).unwrap();
        let mut served: Vec<u64> = (0..4).map(|_| told.recv_timeout(LONG).unwrap()).collect();
        served.sort_unstable();
        assert_eq!(served, together, "the next sync has not ended");
        open.send(()).unwrap();
        assert_eq!(told.recv_timeout(LONG), Ok(late));
    });
}

/// Appends a record that is to become stable, and sends the result.
fn wait_for_record(log: &Arc<Log>, sender: &mpsc::Sender<Result<(), LogFailed>>) {
    let sender = sender.clone();
    let sequence = log.append(b"record").sequence;
    log.sync_soon(sequence, Box::new(move |done| sender.send(done).unwrap()));
}

/// Callers that were served together come again together, while one of them is being answered.
#[test]
fn a_sync_waits_for_as_many_as_the_one_before_has_served() {
    let (jobs, for_ever) = (Jobs::default(), Duration::from_secs(3600));
    let patient = OddDisk { patience: for_ever, ..OddDisk::default() };
    let (disk, log) = patient.begun(jobs.spawn());
    let (sender, told) = mpsc::channel();
    let wait = || wait_for_record(&log, &sender);
    let before = disk.disk.syncs();
    wait();
    // The first one expects no others.
    assert_eq!(jobs.run(), 1);
    wait();
    wait();
    wait();
    assert_eq!(jobs.run(), 1);
    assert_eq!((disk.disk.syncs() - before, told.try_iter().count()), (2, 4));
    wait();
    std::thread::scope(|scope| {
        scope.spawn(|| jobs.run());
        wait();
        wait();
    });
    assert_eq!((disk.disk.syncs() - before, told.try_iter().count()), (3, 3));
}

/// Earlier callers do not come again. Neither a sync nor ending workers wait for them for ever.
#[test]
fn a_single_waiter_is_served_also_while_the_server_stops() {
    let patient = OddDisk { patience: Duration::from_millis(20), ..OddDisk::default() };
    let workers = Workers::start("test", 1).unwrap();
    let (_, log) = patient.begun(workers.spawn());
    let (sender, told) = mpsc::channel();
    let wait = || wait_for_record(&log, &sender);
    // The worker is blocked until there are three.
    let (go, gone) = mpsc::channel();
    workers.spawn()(Box::new(move || gone.recv().unwrap()));
    (0..3).for_each(|_| wait());
    go.send(()).unwrap();
    assert!((0..3).all(|_| told.recv().unwrap().is_ok()));
    wait();
    assert!(told.recv().unwrap().is_ok());
    (0..3).for_each(|_| wait());
    drop(workers);
    assert_eq!(told.try_iter().filter(Result::is_ok).count(), 3);
    // The workers have ended.
    wait();
    assert_eq!(told.try_iter().filter(Result::is_ok).count(), 1);
}

#[test]
fn written_records_outlive_the_process_without_a_sync() {
    let (disk, _jobs, log) = begun();
    let first = log.append(b"one");
    log.append(b"two");
    assert!(scan(&disk, 1).unwrap().0.is_empty());
    log.flush(first.sequence).unwrap();
    assert_eq!(scan(&disk, 1).unwrap().0, [b"one", b"two"]);
    disk.cut_power(&mut || false);
    assert!(scan(&disk, 2).unwrap().0.is_empty());
}

#[test]
fn old_segments_go_and_what_is_of_use_stays() {
    let (disk, jobs, log) = begun();
    let mut rotations = 0;
    for at in 0..2000u32 {
        let appended = log.append(&at.to_le_bytes());
        if appended.full {
            let live: Vec<_> = (at - 2..=at).map(u32::to_le_bytes).collect();
            log.rotate(&mut live.iter().map(<[u8; 4]>::as_slice));
            jobs.run();
            rotations += 1;
            // The one in use, and the next one.
            assert_eq!(disk.list().unwrap().len(), 2);
        }
    }
    assert!(rotations > 3, "{rotations}");
    log.flush(u64::MAX).unwrap();
    let numbers: Vec<_> = scan(&disk, 1).unwrap().0.iter().map(|n| n[0]).collect();
    assert_eq!(numbers.last(), Some(&(1999u32 as u8)));
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)));
}

#[test]
fn a_log_that_fails_says_so_to_everybody_and_for_good() {
    let (disk, jobs, log) = begun();
    disk.fail_after(Some(0));
    let told = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let (told, appended) = (told.clone(), log.append(b"x"));
        let done = move |done| {
            assert_eq!(done, Err(LogFailed));
            told.fetch_add(1, Ordering::Relaxed);
        };
        log.sync_soon(appended.sequence, Box::new(done));
        jobs.run();
        disk.fail_after(None);
    }
    assert_eq!(told.load(Ordering::Relaxed), 3);
    assert_eq!(log.flush(u64::MAX), Err(LogFailed));
}

#[test]
fn damage_in_the_middle_is_refused_and_nothing_is_touched() {
    let (disk, segment) = five();
    let whole = disk.read(segment).unwrap();
    // All but the last confirmation, which is not needed.
    for boot in [1, 2] {
        for byte in 0..LAST + 72 {
            disk.tamper(segment, |content| content[byte] ^= 0x10);
            let error = scan(&disk, boot).map(|_| ()).unwrap_err();
            let named = match &error {
                ScanError::Foreign { .. } => byte < 8,
                ScanError::OtherVersion { found, known: 4, .. } => {
                    (8..12).contains(&byte) && *found > 4
                }
                ScanError::Damaged { offset, .. } => *offset <= byte as u64,
                _ => false,
            };
            assert!(named, "byte {byte}: {error}");
            disk.tamper(segment, |content| content[byte] ^= 0x10);
        }
        assert_eq!(disk.read(segment).unwrap(), whole);
        assert_eq!(scan(&disk, boot).unwrap().0, expected());
    }
}

#[test]
fn another_key_is_told() {
    let (disk, _) = five();
    disk.change_key([1; 16]);
    for boot in [1, 2] {
        let error = scan(&disk, boot).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("key is not the one"), "{error}");
    }
}

#[test]
fn a_lost_header_is_damage_too() {
    let (disk, segment) = five();
    disk.tamper(segment, |content| content[..64].fill(0));
    let error = scan(&disk, 2).map(|_| ()).unwrap_err();
    assert!(matches!(error, ScanError::Damaged { .. }), "{error}");
}

#[test]
fn a_torn_tail_is_normal() {
    let (disk, segment) = five();
    disk.tamper(segment, |content| content[LAST + 50..].fill(0));
    assert_eq!(scan(&disk, 1).unwrap().0, expected()[..4]);
}

/// Two records that were written together: the second is readable and the first is not. Clients
/// choose the content of payloads, and a reused segment contains old ones.
#[test]
fn data_that_looks_like_records_does_not_break_the_scan() {
    for boot in [1, 2] {
        let (disk, segment) = five();
        disk.tamper(segment, |content| {
            let end = content.len();
            for at in (2048..end - 32).step_by(32) {
                let len = (end - at - 32) as u32;
                content[at + 4..at + 8].copy_from_slice(&len.to_le_bytes());
                content[at + 8..at + 16].copy_from_slice(&20u64.to_le_bytes());
                content[at + 24] = 1;
            }
        });
        assert_eq!(scan(&disk, boot).map_err(|error| error.to_string()).unwrap().0, expected());
    }
}

#[test]
fn reordered_unstable_writes_are_a_torn_tail_after_a_power_cut_only() {
    let (disk, segment) = five();
    let jobs = Jobs::default();
    let (_, log) = start(&disk, 1, &jobs);
    log.append(&[6; 600]);
    let last = log.append(&[7; 600]).sequence;
    log.flush(last).unwrap();
    let mut sectors = [false, false, true, true].into_iter();
    disk.cut_power(&mut || sectors.next().unwrap_or(true));
    assert_eq!(scan(&disk, 2).unwrap().0, expected());
    let error = scan(&disk, 1).map(|_| ()).unwrap_err();
    assert!(matches!(error, ScanError::Damaged { .. }), "{error}");
    assert_ne!(segment, disk.list().unwrap()[0]);
}

#[test]
fn an_error_names_its_remedy() {
    let check = |spoil: &dyn Fn(&Arc<SimDisk>, u64), expected: &[&str]| {
        let (disk, segment) = five();
        spoil(&disk, segment);
        let error = scan(&disk, 2).map(|_| ()).unwrap_err().to_string();
        for part in expected {
            assert!(error.contains(part), "{error:?} does not contain {part:?}");
        }
    };
    check(
        &|disk, n| disk.tamper(n, |content| content.truncate(200)),
        &["segment 1", "cut to 200 bytes", "another place"],
    );
    for behind in [0, 1] {
        check(&|disk, n| disk.tamper(n + behind, Vec::clear), &["cut to 0 bytes", "another place"]);
    }
    check(&|disk, n| disk.tamper(n, |content| content[8] = 9), &["version 9", "knows version 4"]);
    check(
        &|disk, n| disk.tamper(n, |content| content[..4].copy_from_slice(b"PK\x03\x04")),
        &["no journal", "50, 4b"],
    );
    check(
        &|disk, n| disk.tamper(n, |content| content[200] = 0xee),
        &["segment 1 is damaged at byte", "comes after it", "another place"],
    );
    check(
        &|disk, n| {
            // Then the live records are in the second segment alone.
            let jobs = Jobs::default();
            drop(start(disk, 1, &jobs));
            jobs.run();
            disk.tamper(n + 2, |content| content[64] ^= 1);
            disk.tamper(n + 2, |content| content[100..].fill(0));
        },
        &["segment 3 is damaged at byte 64", "checkpoint is not whole", "another place"],
    );
    check(
        &|disk, n| {
            disk.lose(n);
            disk.lose(n + 1);
            disk.tamper(n + 3, |content| content.resize(100, 0));
        },
        &["segment 3 is missing", "another place"],
    );
}

#[test]
fn files_are_made_reused_and_used_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for round in 0..3u8 {
        let disk = Arc::new(FileDisk::open(&path, || ()).unwrap());
        assert!(FileDisk::open(&path, || ()).is_err(), "used by another");
        let workers = Workers::start("test", 2).unwrap();
        let mut found = Vec::new();
        let recovery =
            Recovery::scan(disk.clone(), [1; 16], &mut |record| found.push(record.to_vec()));
        assert_eq!(found, kept);
        let mut live = found.iter().map(Vec::as_slice);
        let log = recovery.unwrap().start(SEGMENT_BYTES, workers.spawn(), &mut live).unwrap();
        for at in 0..200u32 {
            kept.push([&at.to_le_bytes()[..], &[round; 60]].concat());
            let appended = log.append(kept.last().unwrap());
            if appended.full {
                kept.drain(..kept.len() - 3);
                log.rotate(&mut kept.iter().map(Vec::as_slice));
            }
        }
        log.sync_now().unwrap();
        drop(workers);
        let names = std::fs::read_dir(&path).unwrap().count();
        assert!(names <= 6, "{names} files");
    }
}

#[test]
fn threads_share_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FileDisk::open(dir.path(), || ()).unwrap());
    let workers = Workers::start("test", 2).unwrap();
    let recovery = Recovery::scan(disk, [1; 16], &mut |_| ()).unwrap();
    let log = recovery.start(1 << 20, workers.spawn(), &mut std::iter::empty()).unwrap();
    let start = Arc::new(Barrier::new(8));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (log, start) = (log.clone(), start.clone());
            scope.spawn(move || {
                start.wait();
                for _ in 0..50 {
                    let (tell, told) = mpsc::channel();
                    let sequence = log.append(&[5; 200]).sequence;
                    log.sync_soon(sequence, Box::new(move |done| tell.send(done).unwrap()));
                    told.recv().unwrap().unwrap();
                }
            });
        }
    });
    let statistics = log.statistics();
    assert_eq!((statistics.records, statistics.waiters), (400, 400));
    assert!(statistics.syncs <= 401);
}

#[test]
fn a_journal_without_its_key_is_not_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let open = || FileDisk::open(dir.path(), || ());
    let first = open().unwrap().key();
    let disk = open().unwrap();
    assert_eq!(disk.key(), first, "kept");
    disk.make(1, 4096).unwrap();
    drop(disk);
    let key = dir.path().join("key");
    std::fs::write(&key, [0; 15]).unwrap();
    let error = open().err().unwrap().to_string();
    assert!(error.contains("damaged") && error.contains("bring back a copy"), "{error}");
    std::fs::remove_file(&key).unwrap();
    let error = open().err().unwrap().to_string();
    assert!(error.contains("missing"), "{error}");
    assert!(!key.exists(), "nothing was changed");
}

#[test]
fn no_file_of_a_journal_is_reached_by_a_symlink() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (path, victim) = (dir.path().join("journal"), dir.path().join("victim"));
    let open = || FileDisk::open(&path, || ());
    open().unwrap().make(1, 4096).unwrap();
    let swap = |name: &str| {
        std::fs::rename(path.join(name), &victim).unwrap();
        symlink(&victim, path.join(name)).unwrap();
        std::fs::read(&victim).unwrap()
    };
    let swap_back = |name: &str, before: Vec<u8>| {
        assert_eq!(std::fs::read(&victim).unwrap(), before, "{name}");
        std::fs::rename(&victim, path.join(name)).unwrap();
    };
    for name in ["key", "lock"] {
        let before = swap(name);
        let error = open().err().unwrap().to_string();
        assert!(error.contains(name) && error.contains("is a symlink"), "{error}");
        swap_back(name, before);
    }
    let disk = open().unwrap();
    let before = swap("segment-0000000000000001");
    disk.read(1).unwrap_err();
    disk.write(1, 0, b"x").unwrap_err();
    swap_back("segment-0000000000000001", before);
    // A new file replaces the link.
    std::fs::write(&victim, [7; 4096]).unwrap();
    for name in ["unfinished", "spare"] {
        symlink(&victim, path.join(name)).unwrap();
    }
    disk.make(2, 4096).unwrap();
    assert_eq!(disk.read(2).unwrap(), [0; 4096]);
    assert_eq!(std::fs::read(&victim).unwrap(), [7; 4096]);
    drop(disk);
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    symlink(dir.path().join("moved"), &path).unwrap();
    let error = open().err().unwrap().to_string();
    assert!(error.contains("is a symlink"), "{error}");
}
