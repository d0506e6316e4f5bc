//! The log of requests: slow ones in the log of the server, and all or slow ones in a file.
//!
//! Invariants
//! * A thread of its own formats and writes. It looks for requests now and then, so those who answer
//!   requests neither wait for it nor wake it. They drop what the queue has no room for, and count that.
//! * The files are bounded: one of about `bytes_max` bytes, and the last few before it.

use crate::config::{AccessLogConfig, Config};
use crate::limits::{ACCESS_LOGS_KEPT, REQUEST_LOG_INTERVAL, REQUEST_LOG_QUEUE_MAX};
use crate::server::StartError;
use dafs_service::{LogSink, LoggedRequest};
use dafs_store::vital;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// The thread that writes the log. It ends when this is dropped.
pub(crate) struct RequestLog {
    sink: LogSink,
    reopen: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RequestLog {
    /// Opens the file and starts the thread, if the configuration wants a log of requests.
    ///
    /// # Errors
    /// The file cannot be opened, or the system has no thread left.
    pub(crate) fn start(config: &Config) -> Result<Option<Self>, StartError> {
        let slow_ns =
            config.slow_operation.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        if slow_ns.is_none() && config.access_log.is_none() {
            return Ok(None);
        }
        let logs_all = config.access_log.as_ref().is_some_and(|log| !log.only_slow);
        let file = config.access_log.clone().map(LogFile::open).transpose()?;
        let (queue, requests) = sync_channel(REQUEST_LOG_QUEUE_MAX);
        let reopen = Arc::new(AtomicBool::new(false));
        let asked = reopen.clone();
        let thread = vital::spawn("dafs-log", move || run(&requests, file, &asked))?;
        let sink = LogSink { slow_ns, logs_all, queue };
        Ok(Some(Self { sink, reopen, thread: Some(thread) }))
    }

    /// Returns the way to this log.
    pub(crate) fn sink(&self) -> LogSink {
        self.sink.clone()
    }

    /// Returns a flag. Once it is set, the file is opened anew by its name.
    pub(crate) fn reopen(&self) -> Arc<AtomicBool> {
        self.reopen.clone()
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        // The thread may have ended for an error.
        let _ = self.sink.queue.send(None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(requests: &Receiver<Option<LoggedRequest>>, mut file: Option<LogFile>, reopen: &AtomicBool) {
    loop {
        if reopen.swap(false, Ordering::Relaxed) {
            with(&mut file, LogFile::reopen);
        }
        match requests.try_recv() {
            Ok(Some(request)) => {
                if request.is_slow {
                    warn(&request);
                }
                with(&mut file, |file| file.write(&request));
            }
            Err(TryRecvError::Empty) => {
                with(&mut file, |file| file.writer.flush());
                std::thread::sleep(REQUEST_LOG_INTERVAL);
            }
            Ok(None) | Err(TryRecvError::Disconnected) => break,
        }
    }
    with(&mut file, |file| file.writer.flush());
}

/// Uses the file, if there is one. An error is logged, and may cost lines.
fn with(file: &mut Option<LogFile>, act: impl FnOnce(&mut LogFile) -> io::Result<()>) {
    if let Some(file) = file
        && let Err(error) = act(file)
    {
        tracing::warn!(file = %file.config.file.display(), %error, "an error of the access log");
    }
}

/// Writes a slow request to the log of the server.
fn warn(request: &LoggedRequest) {
    let millis = |ns: u64| ns / 1_000_000;
    let [reactor_ns, queue_ns, pool_ns] = request.stages_ns;
    tracing::warn!(
        front_end = request.front_end.label(),
        operation = request.operation,
        export = request.export.as_ref().map_or("", |export| export.name()),
        peer = %request.host,
        user = request.user,
        total_ms = millis(request.done.duration_ns),
        reactor_ms = millis(reactor_ns),
        queue_ms = millis(queue_ns),
        pool_ms = millis(pool_ns),
        read_bytes = request.done.read_bytes,
        written_bytes = request.done.written_bytes,
        "slow operation"
    );
}

/// A line of the access log.
#[derive(Serialize)]
struct Line<'a> {
    time: &'a str,
    front_end: &'a str,
    operation: &'a str,
    client: &'a str,
    user: Option<u32>,
    export: Option<&'a str>,
    ok: bool,
    slow: bool,
    microseconds: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Line<'_> {
    /// Appends the line to `out`.
    fn write(&self, is_json: bool, out: &mut Vec<u8>) -> io::Result<()> {
        if is_json {
            serde_json::to_writer(&mut *out, self)?;
            return writeln!(out);
        }
        let Self { time, front_end, operation, client, .. } = self;
        write!(out, "{time} {front_end} {operation} client={client}")?;
        if let Some(user) = self.user {
            write!(out, " user={user}")?;
        }
        if let Some(export) = self.export {
            write!(out, " export=/{}", export.escape_default())?;
        }
        let status = if self.ok { "ok" } else { "refused" };
        let slow = if self.slow { " slow" } else { "" };
        let (read, written, us) = (self.read_bytes, self.written_bytes, self.microseconds);
        writeln!(out, " {status} read={read} written={written} microseconds={us}{slow}")
    }
}

/// The file with its size.
struct LogFile {
    config: AccessLogConfig,
    writer: BufWriter<File>,
    bytes: u64,
    /// The line that is being made.
    line: Vec<u8>,
}

impl LogFile {
    fn open(config: AccessLogConfig) -> Result<Self, StartError> {
        let (writer, bytes) = append_to(&config.file)
            .map_err(|error| StartError::AccessLog { path: config.file.clone(), error })?;
        Ok(Self { config, writer, bytes, line: Vec::new() })
    }

    /// Writes what there is, and goes on in the file that has the name now.
    fn reopen(&mut self) -> io::Result<()> {
        let flushed = self.writer.flush();
        (self.writer, self.bytes) = append_to(&self.config.file)?;
        flushed
    }

    fn write(&mut self, request: &LoggedRequest) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = Line {
            time: &timestamp(now.as_secs(), now.subsec_millis()),
            front_end: request.front_end.label(),
            operation: request.operation,
            client: &request.host.to_string(),
            user: request.user,
            export: request.export.as_ref().map(|export| export.name()),
            ok: !request.done.failed,
            slow: request.is_slow,
            microseconds: request.done.duration_ns / 1000,
            read_bytes: request.done.read_bytes,
            written_bytes: request.done.written_bytes,
        };
        self.line.clear();
        line.write(self.config.is_json, &mut self.line)?;
        self.writer.write_all(&self.line)?;
        self.bytes += self.line.len() as u64;
        if self.bytes >= self.config.bytes_max { self.rotate() } else { Ok(()) }
    }

    /// Renames the file, and those before it, and begins another one. After an error it goes on in the
    /// same file, and tries again when that has grown by as much.
    fn rotate(&mut self) -> io::Result<()> {
        self.bytes = 0;
        let file = &self.config.file;
        for number in (0..ACCESS_LOGS_KEPT).rev() {
            match std::fs::rename(numbered(file, number), numbered(file, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.reopen()
    }
}

fn append_to(file: &Path) -> io::Result<(BufWriter<File>, u64)> {
    // A device would be renamed when it has taken enough, and a pipe may block.
    if std::fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is no regular file"));
    }
    let opened = OpenOptions::new().append(true).create(true).mode(0o640).open(file)?;
    let bytes = opened.metadata()?.len();
    Ok((BufWriter::with_capacity(64 << 10, opened), bytes))
}

/// Returns the name of the file that was begun so many files ago.
fn numbered(file: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return file.to_owned();
    }
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Returns a time since 1970 in UTC, in the form of RFC 3339.
fn timestamp(seconds: u64, millis: u32) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second, day) = (second / 3600, second / 60 % 60, second % 60, days + 1);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::{Done, FrontEnd, Host};

    fn request() -> LoggedRequest {
        LoggedRequest {
            front_end: FrontEnd::Nfs3,
            operation: "READ",
            host: Host::V4([192, 0, 2, 1]),
            user: Some(1000),
            export: None,
            done: Done { duration_ns: 5_000_000, failed: false, read_bytes: 7, written_bytes: 0 },
            stages_ns: [0; 3],
            is_slow: true,
        }
    }

    fn config(folder: &Path, is_json: bool) -> AccessLogConfig {
        let file = folder.join("access");
        AccessLogConfig { file, is_json, only_slow: false, bytes_max: 1000 }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(timestamp(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(951_782_400, 5), "2000-02-29T00:00:00.005Z");
        assert_eq!(timestamp(951_868_799, 0), "2000-02-29T23:59:59.000Z");
        assert_eq!(timestamp(1_735_689_599, 999), "2024-12-31T23:59:59.999Z");
        assert_eq!(timestamp(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn lines_have_both_forms() {
        let folder = tempfile::tempdir().unwrap();
        for is_json in [false, true] {
            let config = config(folder.path(), is_json);
            let _ = std::fs::remove_file(&config.file);
            let mut file = LogFile::open(config.clone()).unwrap();
            file.write(&request()).unwrap();
            file.writer.flush().unwrap();
            let text = std::fs::read_to_string(&config.file).unwrap();
            if is_json {
                let line: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(line["user"], 1000);
                assert_eq!(line["microseconds"], 5000);
                assert_eq!(line["export"], serde_json::Value::Null);
            } else {
                let rest = " nfs3 READ client=192.0.2.1 user=1000 ok read=7 written=0 \
                            microseconds=5000 slow\n";
                assert!(text.ends_with(rest), "{text}");
            }
        }
    }

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = LogFile::open(config(folder.path(), true)).unwrap();
        for _ in 0..100 {
            file.write(&request()).unwrap();
        }
        file.writer.flush().unwrap();
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
        assert_eq!(files.len(), 1 + ACCESS_LOGS_KEPT as usize);
        assert!(files.iter().all(|file| file.metadata().unwrap().len() < 1500));
    }

    #[test]
    fn a_device_or_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for file in [Path::new("/dev/null"), folder.path()] {
            let config = AccessLogConfig { file: file.to_owned(), ..config(folder.path(), false) };
            assert!(matches!(LogFile::open(config), Err(StartError::AccessLog { .. })));
        }
    }

    #[test]
    fn a_failed_renaming_loses_no_lines_and_is_tried_again_later() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), true);
        let mut file = LogFile::open(config.clone()).unwrap();
        // A file cannot take the place of a directory.
        std::fs::create_dir(numbered(&config.file, ACCESS_LOGS_KEPT)).unwrap();
        std::fs::write(numbered(&config.file, ACCESS_LOGS_KEPT - 1), "").unwrap();
        let failed = (0..100).filter(|_| file.write(&request()).is_err()).count();
        file.writer.flush().unwrap();
        assert!((5..50).contains(&failed), "{failed}");
        assert_eq!(std::fs::read_to_string(&config.file).unwrap().lines().count(), 100);
    }

    #[test]
    fn a_file_that_was_moved_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), false);
        let mut file = LogFile::open(config.clone()).unwrap();
        file.write(&request()).unwrap();
        std::fs::rename(&config.file, folder.path().join("moved")).unwrap();
        file.reopen().unwrap();
        file.write(&request()).unwrap();
        file.writer.flush().unwrap();
        for name in ["moved", "access"] {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            assert_eq!(text.lines().count(), 1, "{name}");
        }
    }
}
