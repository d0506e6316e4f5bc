//! Runs a program and watches its calls on files, by the library of `dafs run`, which counts them in a
//! table that all its processes share.
//!
//! Invariants
//! * The program's arguments, input, output and exit status are its own. Its environment has two more
//!   variables.
//! * Any content of the table makes a workload: the program may have written to it.

use super::signals::Signalled;
use super::workload::{AtOnce, Seconds, Share, Transfers, Workload};
use crate::commands::run::{library, preload, unserved_program};
use crate::failure::Failure;
use dafs_client::program::Unserved;
use dafs_client::watch::{Count, TABLE_BYTES, TABLE_VARIABLE, Total, Watched, WatchedFile, head};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, geteuid, waitid};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Unseen bytes below this, and below a tenth of all, are not worth a remark: the loader reads some.
const UNSEEN_BYTES_MIN: u64 = 1 << 20;

/// Random characters in the name of the folder of the table: as hard to guess as a key of 128 bits.
const FOLDER_NAME_BYTES: usize = 22;

/// The counts of one file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct FileSeen {
    pub(super) path: String,
    pub(super) opens: u64,
    pub(super) reads: u64,
    pub(super) read_bytes: u64,
    reads_in_order: u64,
    reads_again: u64,
    reads_aligned: u64,
    read_seconds: f64,
    /// Calls by the power of two that their bytes do not exceed.
    read_sizes: BTreeMap<u64, u64>,
    pub(super) writes: u64,
    pub(super) written_bytes: u64,
    writes_in_order: u64,
    writes_aligned: u64,
    write_seconds: f64,
    write_sizes: BTreeMap<u64, u64>,
    pub(super) syncs: u64,
    sync_seconds: f64,
    mapped_bytes: u64,
    /// The furthest byte of a read or write.
    end: u64,
    pub(super) most_at_once: u64,
    asynchronous: u64,
    /// Bytes of streams of the C library, judged by their place when they were closed.
    stream_bytes: u64,
}

/// The run of a program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Observation {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) processes: u64,
    /// Those with the most bytes first.
    pub(super) files: Vec<FileSeen>,
    /// Limits of this observation, in words.
    pub(super) remarks: Vec<String>,
}

/// The outcome of a program: its status, and its work unless it could not be watched.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) status: ExitStatus,
    pub(super) seen: Result<(Observation, Workload), String>,
}

/// The file of a program, found as a shell does, with the exit status of shells where there is none.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.display();
    let absent = |why: &str| Failure::Ended { code: 127, text: Some(format!("{shown}: {why}")) };
    let unusable = |why: &str| Failure::Ended { code: 126, text: Some(format!("{shown}: {why}")) };
    let is_program = |path: &Path| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(absent("there is no such program"))
            }
            Err(error) => Err(unusable(&error.to_string())),
            Ok(_) if is_program(&path) => Ok(path),
            Ok(_) => Err(unusable("it is no program")),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let places: Vec<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join(name)).collect();
    let found = places.iter().find(|path| is_program(path)).cloned();
    found.ok_or_else(|| match places.iter().any(|path| path.is_file()) {
        true => unusable("it may not be executed"),
        false => absent("there is no such program in $PATH"),
    })
}

/// Runs a program, with its name as first of its words, and counts its calls on files below a
/// directory, or on all but those of the system.
pub(super) fn run(
    program: &Path,
    words: &[OsString],
    below: Option<&Path>,
    signals: &Signalled,
) -> Result<Outcome, Failure> {
    let (name, arguments) =
        words.split_first().ok_or_else(|| Failure::Usage("name a program to run".to_owned()))?;
    let mut command = Command::new(program);
    command.arg0(name).args(arguments);
    // A program that cannot be examined may be watched all the same, or its start tells why not.
    if let Ok(Some((path, why))) = unserved_program(program) {
        let status = started(&mut command, name, signals)?;
        return Ok(Outcome { status, seen: Err(unwatched(&path, why)) });
    }
    let failed = |error: io::Error| Failure::local("no table for the counts can be made", &error);
    let mut folder = tempfile::Builder::new();
    folder.prefix("dafs-advise").rand_bytes(FOLDER_NAME_BYTES);
    // In memory if there is such a place: a program that counts would wait for a disk at times.
    let dir = folder.tempdir_in("/dev/shm").or_else(|_| folder.tempdir()).map_err(failed)?;
    let table = dir.path().join("table");
    make_table(&table, below)?;
    if geteuid().is_root() {
        admit_all_users(dir.path(), &table).map_err(failed)?;
    }
    command.env(TABLE_VARIABLE, &table).env("LD_PRELOAD", preload(&library()?));
    let (io, cpu, begin) = (Io::now(), children_time(), Instant::now());
    let status = started(&mut command, name, signals)?;
    let seconds = begin.elapsed().as_secs_f64();
    let cpu = children_time().saturating_sub(cpu).as_secs_f64();
    let io = Io::now().zip(io).map(|(now, before)| now.since(before));
    let seen = match fs::read(&table).ok().and_then(|bytes| Watched::read(&bytes)) {
        Some(watched) if watched.total(Total::Processes) > 0 => {
            Ok(judged(&watched, seconds, cpu, io))
        }
        Some(_) => {
            Err("no process has loaded the library that counts, so nothing was watched: does the \
                        program clear LD_PRELOAD, or run as another user?"
                .to_owned())
        }
        None => Err("the table of the counts was destroyed, so nothing is known".to_owned()),
    };
    Ok(Outcome { status, seen })
}

fn unwatched(path: &Path, why: Unserved) -> String {
    let why = match why {
        Unserved::Static => "is linked statically",
        Unserved::Rights => "runs with other rights than yours (setuid, setgid or capabilities)",
        Unserved::Foreign => "is a program for another kind of machine",
        Unserved::Nested => "is a script of a script, and so on",
    };
    format!(
        "NOT WATCHED: {} {why}, and loads no library that could count its calls. Nothing is predicted; \
         describe its work in a file, for --workload (docs/advise.md)",
        path.display()
    )
}

fn make_table(table: &Path, below: Option<&Path>) -> Result<(), Failure> {
    let below = below.map(|path| {
        path.canonicalize()
            .map_err(|error| Failure::Usage(format!("--below {}: {error}", path.display())))
    });
    let below = below.transpose()?.unwrap_or_default();
    let mut bytes =
        head(below.as_os_str().as_bytes()).map_err(|why| Failure::Usage(why.to_owned()))?;
    // Written whole: a program that counts on a page for which a full disk has no room would be killed.
    bytes.resize(TABLE_BYTES, 0);
    fs::write(table, bytes).map_err(|error| Failure::local(table.display(), &error))
}

/// Lets a program that becomes another user count its calls, as only those of root can. Users who do not
/// know the random name of the folder, which they cannot list, have no way to the table.
fn admit_all_users(folder: &Path, table: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
    fs::set_permissions(table, fs::Permissions::from_mode(0o666))
}

/// Runs a command to its end. An error is that of its start.
fn started(
    command: &mut Command,
    name: &OsStr,
    signals: &Signalled,
) -> Result<ExitStatus, Failure> {
    // After an interrupt it is not wanted any more.
    signals.check()?;
    let mut child = command.spawn().map_err(|error| {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        Failure::Ended { code, text: Some(format!("{}: {error}", name.display())) }
    })?;
    signals.pass_to(&child);
    let ended = ended(&child);
    // From here on the number may belong to another process.
    signals.release();
    let failed = |error: &io::Error| Failure::local(name.display(), error);
    ended.map_err(|error| failed(&error))?;
    child.wait().map_err(|error| failed(&error))
}

/// Waits for the end of a process, which keeps its number until it is waited for again.
fn ended(child: &Child) -> io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), options) {
            Err(Errno::INTR) => {}
            done => return done.map(drop).map_err(io::Error::from),
        }
    }
}

/// Processor time of children that have ended, with that of their own such children.
fn children_time() -> Duration {
    // SAFETY: all zero is a valid value of this plain structure, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_usec.unsigned_abs() as u32 * 1000)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Bytes that system calls of this process and of its ended children have moved, by any descriptor.
#[derive(Debug, Clone, Copy)]
struct Io {
    read_bytes: u64,
    written_bytes: u64,
}

impl Io {
    /// `None` where the kernel does not count them.
    fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/io").ok()?;
        let of = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        Some(Self { read_bytes: of("rchar:")?, written_bytes: of("wchar:")? })
    }

    fn since(self, before: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn file(of: WatchedFile<'_>) -> FileSeen {
    let get = |count| of.get(count);
    let sizes = |first| -> BTreeMap<u64, u64> {
        let calls = (0_u32..).zip(of.sizes(first)).filter(|(_, calls)| *calls > 0);
        calls.map(|(power, calls)| (1 << power, calls)).collect()
    };
    FileSeen {
        path: String::from_utf8_lossy(&of.path()).escape_debug().to_string(),
        opens: get(Count::Opens),
        reads: get(Count::Reads),
        read_bytes: get(Count::ReadBytes),
        reads_in_order: get(Count::ReadsInOrder),
        reads_again: get(Count::ReadsAgain),
        reads_aligned: get(Count::ReadsAligned),
        read_seconds: seconds(get(Count::ReadNanoseconds)),
        read_sizes: sizes(Count::ReadSizes),
        writes: get(Count::Writes),
        written_bytes: get(Count::WrittenBytes),
        writes_in_order: get(Count::WritesInOrder),
        writes_aligned: get(Count::WritesAligned),
        write_seconds: seconds(get(Count::WriteNanoseconds)),
        write_sizes: sizes(Count::WriteSizes),
        syncs: get(Count::Syncs),
        sync_seconds: seconds(get(Count::SyncNanoseconds)),
        mapped_bytes: get(Count::MappedBytes),
        end: get(Count::End),
        most_at_once: get(Count::MostAtOnce),
        asynchronous: get(Count::Asynchronous),
        stream_bytes: get(Count::StreamBytes),
    }
}

/// The work that a table tells of.
fn judged(watched: &Watched, seconds: f64, cpu: f64, io: Option<Io>) -> (Observation, Workload) {
    let mut files: Vec<FileSeen> = watched.files().map(file).collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.read_bytes.saturating_add(file.written_bytes)));
    let sum = |of: fn(&FileSeen) -> u64| files.iter().map(of).fold(0, u64::saturating_add);
    let times = |of: fn(&FileSeen) -> f64| files.iter().map(of).sum::<f64>();
    let (read_bytes, written_bytes) = (sum(|f| f.read_bytes), sum(|f| f.written_bytes));
    let (reads, writes) = (sum(|f| f.reads).min(read_bytes), sum(|f| f.writes).min(written_bytes));
    let syncs = sum(|f| f.syncs);
    let calls = watched.total(Total::Calls);
    let mut at_once = watched.total(Total::AtOnceSum) as f64 / calls.max(1) as f64;
    if sum(|f| f.asynchronous) > reads.saturating_add(writes) / 2 {
        // The number under way is not seen; there is a reason to submit more than one.
        at_once = at_once.max(2.0);
    }
    let at_once = AtOnce::near(at_once);
    let sync_seconds = times(|f| f.sync_seconds);
    let moving_seconds = times(|f| f.read_seconds) + times(|f| f.write_seconds);
    let within = moving_seconds + sync_seconds;
    let workload = Workload {
        outside_seconds: Seconds::near(seconds - within / at_once.get()),
        // A sync waits for the disk, a read or write of data in memory does not.
        cpu_seconds: Seconds::near(cpu - moving_seconds),
        names: watched.total(Total::Names),
        syncs,
        sync_seconds: (syncs > 0).then(|| Seconds::near(sync_seconds / syncs as f64)),
        at_once,
        mapped_bytes: sum(|f| f.mapped_bytes),
        reads: Transfers {
            calls: reads,
            bytes: read_bytes,
            in_order: Share::of(sum(|f| f.reads_in_order), reads),
            again: Share::of(sum(|f| f.reads_again), reads),
            aligned: Share::of(sum(|f| f.reads_aligned), reads),
        },
        writes: Transfers {
            calls: writes,
            bytes: written_bytes,
            in_order: Share::of(sum(|f| f.writes_in_order), writes),
            again: Share::default(),
            aligned: Share::of(sum(|f| f.writes_aligned), writes),
        },
    };
    let remarks = remarks(watched, io, read_bytes, written_bytes);
    let processes = watched.total(Total::Processes);
    (Observation { seconds, cpu_seconds: cpu, processes, files, remarks }, workload)
}

/// The limits of an observation, in words.
fn remarks(watched: &Watched, io: Option<Io>, read_bytes: u64, written_bytes: u64) -> Vec<String> {
    let mut remarks = Vec::new();
    let left_out = watched.total(Total::FilesLeftOut);
    if left_out > 0 {
        remarks.push(format!(
            "{left_out} opens of files had no room in the table: their work is missing"
        ));
    }
    for (total, why) in [
        (Total::Static, "are linked statically"),
        (Total::Rights, "run with other rights"),
        (Total::Foreign, "are for another kind of machine"),
    ] {
        let count = watched.total(total);
        if count > 0 {
            remarks.push(format!("NOT WATCHED: {count} programs that it has started, which {why}"));
        }
    }
    // The first one is started by this command.
    let unseen = watched.total(Total::Starts).saturating_add(1);
    let unseen = unseen.saturating_sub(watched.total(Total::Processes));
    if unseen > 0 {
        remarks.push(format!(
            "NOT WATCHED: {unseen} programs that it has started, which did not reach the library or \
             the table of the counts"
        ));
    }
    let Some(io) = io else { return remarks };
    for (what, all, seen, others) in [
        ("read", io.read_bytes, read_bytes, Total::OtherReadBytes),
        ("written", io.written_bytes, written_bytes, Total::OtherWrittenBytes),
    ] {
        let unseen = all.saturating_sub(seen).saturating_sub(watched.total(others));
        if unseen >= UNSEEN_BYTES_MIN && unseen > all / 10 {
            remarks.push(format!(
                "{unseen} bytes were {what} by calls that are not seen: of streams that stayed open, or past \
                 the C library"
            ));
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_client::watch::{FILES_MAX, MAGIC, READY, record_at};

    struct Table(Vec<u8>);

    impl Table {
        fn new() -> Self {
            let mut bytes = head(b"").unwrap();
            bytes.resize(TABLE_BYTES, 0);
            Self(bytes)
        }

        fn put(&mut self, word: usize, value: u64) -> &mut Self {
            self.0[word * 8..][..8].copy_from_slice(&value.to_ne_bytes());
            self
        }

        fn read(&self) -> Watched {
            Watched::read(&self.0).unwrap()
        }
    }

    #[test]
    fn counts_become_shares_and_times() {
        let mut table = Table::new();
        let at = |count: Count| record_at(5) + count as usize;
        table.put(at(Count::State), READY).put(at(Count::Reads), 100);
        table.put(at(Count::ReadBytes), 409_600).put(at(Count::ReadsInOrder), 75);
        table.put(at(Count::ReadsAgain), 50).put(at(Count::ReadNanoseconds), 2_000_000_000);
        table.put(at(Count::ReadSizes) + 12, 100).put(at(Count::Syncs), 4);
        table.put(at(Count::SyncNanoseconds), 400_000_000);
        table.put(Total::Calls as usize, 104).put(Total::AtOnceSum as usize, 208);
        table.put(Total::Names as usize, 3).put(Total::Static as usize, 1);
        table.put(Total::Processes as usize, 2).put(Total::Starts as usize, 1);
        let io = Io { read_bytes: 10 << 20, written_bytes: 10 };
        let (seen, workload) = judged(&table.read(), 5.0, 4.0, Some(io));
        assert_eq!((workload.reads.calls, workload.names, workload.syncs), (100, 3, 4));
        assert_eq!((workload.reads.in_order.get(), workload.reads.again.get()), (0.75, 0.5));
        assert_eq!(workload.at_once.get(), 2.0);
        assert!((workload.outside_seconds.get() - 3.8).abs() < 1e-9);
        assert!((workload.cpu_seconds.get() - 2.0).abs() < 1e-9);
        assert!((workload.sync_seconds.unwrap().get() - 0.1).abs() < 1e-9);
        assert_eq!(seen.files[0].read_sizes, BTreeMap::from([(4096, 100)]));
        assert_eq!(seen.remarks.len(), 2, "{:?}", seen.remarks);
    }

    #[test]
    fn a_table_of_nonsense_is_a_workload_all_the_same() {
        let mut table = Table(vec![0xff; TABLE_BYTES]);
        table.put(0, MAGIC);
        for number in 0..FILES_MAX {
            table.put(record_at(number), READY);
        }
        let (seen, workload) = judged(&table.read(), f64::NAN, f64::INFINITY, None);
        assert_eq!(seen.files.len(), FILES_MAX);
        assert!(workload.reads.in_order.get() <= 1.0 && workload.outside_seconds.get() >= 0.0);
    }

    #[test]
    fn programs_are_found_as_shells_find_them() {
        let code = |name: &str| find(OsStr::new(name)).unwrap_err().exit_code();
        assert!(find(OsStr::new("sh")).is_ok() && find(OsStr::new("/bin/sh")).is_ok());
        assert_eq!(code("/no/such/program"), 127);
        assert_eq!(code("no-such-program-at-all"), 127);
        assert_eq!(code("/dev/null"), 126);
        assert_eq!(code("/tmp/"), 126);
    }
}
