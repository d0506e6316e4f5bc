//! Measures the constants of this machine, and of a server or of one that is started for that.
//!
//! Invariants
//! * Each constant is the best of a few short periods, since other work only makes calls slower.
//! * The file of a measurement is gone at its end, a signal included.

use super::machine::{Absent, Cost, Identity, LARGE_BYTES, Line, Machine, SMALL_BYTES, Transport};
use super::server::OwnServer;
use super::signals::Signalled;
use crate::cli::{SessionOptions, TransportName};
use crate::failure::Failure;
use crate::remote::{
    Buffer, Create, Error, File, Follow, Handle, OpenOptions, Pending, Remote, RemoteUrl, Stability,
};
use crate::session::Sessions;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Periods of each measurement, and their time.
const PERIODS: usize = 3;
const PERIOD: Duration = Duration::from_millis(50);

/// Calls between two looks at the clock.
const CALLS: u32 = 8;

/// The file of a measurement: so many of the large transfers.
const FILE_BLOCKS: u64 = 8;

/// Small transfers go to so many places, which a server that shows its memory shows soon.
const PLACES: u64 = 64;

/// Large transfers under way.
const UNDER_WAY: usize = 4;

/// Seconds of one call, elapsed and of the processor.
#[derive(Debug, Clone, Copy)]
struct Point {
    elapsed: f64,
    cpu: f64,
}

fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The least time of a call.
fn best(
    signals: &Signalled,
    mut call: impl FnMut() -> Result<(), Failure>,
) -> Result<Point, Failure> {
    call()?;
    let mut best = Point { elapsed: f64::INFINITY, cpu: f64::INFINITY };
    for _ in 0..PERIODS {
        signals.check()?;
        let (begin, cpu, mut calls) = (Instant::now(), cpu_time(), 0_u32);
        while begin.elapsed() < PERIOD {
            (0..CALLS).try_for_each(|_| call())?;
            calls += CALLS;
        }
        let calls = f64::from(calls.max(1));
        let elapsed = begin.elapsed().as_secs_f64() / calls;
        if elapsed < best.elapsed {
            best = Point { elapsed, cpu: (cpu_time() - cpu).max(0.0) / calls };
        }
    }
    Ok(best)
}

fn cost(small: Point, large: Point) -> Cost {
    Cost {
        elapsed: Line::through(small.elapsed, large.elapsed),
        cpu: Line::through(small.cpu, large.cpu),
    }
}

/// This machine, and the server of a measurement.
pub(super) fn identity(session: &SessionOptions, server: Option<&RemoteUrl>) -> Identity {
    let name = rustix::system::uname();
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let host = read("/etc/machine-id").filter(|text| !text.is_empty());
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
    Identity {
        host: host.unwrap_or_else(|| name.nodename().to_string_lossy().into_owned()),
        kernel: name.release().to_string_lossy().into_owned(),
        cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server: server.map(ToString::to_string).unwrap_or_default(),
        options: format!(
            "transport={:?} wake={:?} checksums={}",
            session.transport, session.wake, session.checksums
        ),
    }
}

/// Measures everything.
pub(super) fn measure(
    session: &SessionOptions,
    server: Option<&RemoteUrl>,
    signals: &Signalled,
) -> Result<Machine, Failure> {
    let failed = |error: std::io::Error| Failure::local("nothing can be measured", &error);
    let dir = tempfile::Builder::new().prefix("dafs-advise").tempdir().map_err(failed)?;
    let (local, sync_seconds) = local(&dir.path().join("local"), signals)?;
    let (copy_byte_seconds, crossing_seconds) = (copy(signals)?, crossing(signals)?);
    let own = match server {
        Some(_) => None,
        None => Some(OwnServer::start(dir.path())?),
    };
    let urls = match (server, &own) {
        (Some(url), _) => variants(session, url),
        (None, Some(own)) => own.urls()?,
        (None, None) => Vec::new(),
    };
    // Before the own server ends.
    let mut sessions = Sessions::new(session);
    let measured = remotes(&mut sessions, &urls, signals);
    match &measured {
        Err(Failure::Unreachable(_)) => sessions.abandon(),
        _ => sessions.close(),
    }
    drop(own);
    // A failure after a signal says nothing about a transport.
    signals.check()?;
    let (transports, absent) = measured?;
    Ok(Machine {
        identity: identity(session, server),
        measured_unix_seconds: Timestamp::now().as_second(),
        local,
        sync_seconds,
        copy_byte_seconds,
        crossing_seconds,
        transports,
        absent,
    })
}

/// A transport to measure: its URL, and its name.
pub(super) struct Variant {
    pub(super) url: RemoteUrl,
    pub(super) name: &'static str,
    pub(super) optimistic: bool,
}

/// The transports to try for a server: all, unless the URL or the command line names one.
fn variants(session: &SessionOptions, url: &RemoteUrl) -> Vec<Variant> {
    let is_given = session.transport != TransportName::Auto
        || match url {
            RemoteUrl::Dafs(url) => url.transport().is_some(),
            RemoteUrl::Nfs(_) => true,
        };
    if is_given {
        return vec![Variant { url: url.clone(), name: "", optimistic: false }];
    }
    let text = url.to_string();
    let join = if text.contains('?') { '&' } else { '?' };
    let tried = [("shm", false), ("shm", true), ("verbs", false), ("iwarp", false)];
    let variant = |(name, optimistic): (&'static str, bool)| {
        let more = if optimistic { "&optimistic=yes" } else { "" };
        // A URL with TLS excludes transports.
        let url = RemoteUrl::parse(&format!("{text}{join}transport={name}{more}")).ok()?;
        Some(Variant { url, name, optimistic })
    };
    tried.into_iter().filter_map(variant).collect()
}

/// Measures transports. It fails, as the last one does, if none can be measured.
fn remotes(
    sessions: &mut Sessions<'_>,
    variants: &[Variant],
    signals: &Signalled,
) -> Result<(Vec<Transport>, Vec<Absent>), Failure> {
    let (mut transports, mut absent, mut last) = (Vec::new(), Vec::new(), None);
    for variant in variants {
        signals.check()?;
        let remote = sessions.client(&variant.url);
        match remote.and_then(|remote| transport(&remote, variant, signals)) {
            Ok(transport) => transports.push(transport),
            // The other transports would fail for the same reason.
            Err(failure @ (Failure::Usage(_) | Failure::Ended { .. })) => return Err(failure),
            // Optimistic reads are those of a transport that has its own row.
            Err(_) if variant.optimistic => {}
            Err(failure) => {
                let why = failure.text().unwrap_or("it cannot be reached").to_owned();
                absent.push(Absent { name: variant.name.to_owned(), why });
                last = Some(failure);
            }
        }
    }
    match last {
        Some(failure) if transports.is_empty() => Err(failure),
        _ => Ok((transports, absent)),
    }
}

/// A file on a server that is removed at the end.
struct Subject<'a> {
    remote: &'a Remote,
    directory: Handle,
    name: String,
}

impl Drop for Subject<'_> {
    fn drop(&mut self) {
        // The constants are known all the same.
        let _ = self.remote.remove(&self.directory, self.name.as_bytes());
    }
}

fn transport(
    remote: &Remote,
    variant: &Variant,
    signals: &Signalled,
) -> Result<Transport, Failure> {
    let url = &variant.url;
    let failed = |error| Failure::remote(url, &error);
    let found = remote.resolve(url.path(), Follow::Yes).map_err(failed)?;
    if !found.attributes.is_directory() {
        return Err(Failure::Usage(format!(
            "{url} is no directory; name one, in which a file is made for the measurement and removed"
        )));
    }
    let name = format!(".dafs-advise-{}", std::process::id());
    let options = OpenOptions::read_write().create(Create::New).mode(0o600);
    let file = remote.open_at(&found.handle, name.as_bytes(), &options).map_err(failed)?;
    let subject = Subject { remote, directory: found.handle, name };
    let small = remote.buffer(SMALL_BYTES).map_err(failed)?;
    let mut write = Stream::new(remote, &file, true).map_err(failed)?;
    let write_large = best(signals, || write.step().map_err(failed))?;
    // By now each block of the file has been written: there were more steps than blocks.
    write.end().map_err(failed)?;
    drop(write);
    let mut place = Places::default();
    let write_small = best(signals, || {
        let at = place.next();
        file.write_from(&small, 0..SMALL_BYTES, at, Stability::Unstable).map(drop).map_err(failed)
    })?;
    let read_small = best(signals, || {
        file.read_into(&small, 0..SMALL_BYTES, place.next()).map(drop).map_err(failed)
    })?;
    let mut read = Stream::new(remote, &file, false).map_err(failed)?;
    let read_large = best(signals, || read.step().map_err(failed))?;
    read.end().map_err(failed)?;
    drop(read);
    let name = best(signals, || file.attributes().map(drop).map_err(failed))?;
    file.close().map_err(failed)?;
    drop(subject);
    Ok(Transport {
        name: match variant.name {
            "" => remote.transport().0,
            name => name.to_owned(),
        },
        nfs: matches!(remote, Remote::Nfs(_)),
        optimistic: variant.optimistic,
        read: cost(read_small, read_large),
        write: cost(write_small, write_large),
        name_seconds: name.elapsed,
        name_cpu_seconds: name.cpu,
    })
}

/// The places of small transfers, far from each other and in no order.
#[derive(Default)]
struct Places(u64);

impl Places {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(37);
        self.0 % PLACES * SMALL_BYTES as u64
    }
}

/// Large transfers in order, several under way.
struct Stream<'a> {
    remote: &'a Remote,
    file: &'a File,
    is_write: bool,
    next: u64,
    free: Vec<Buffer>,
    under_way: VecDeque<(Pending, Buffer)>,
}

impl<'a> Stream<'a> {
    fn new(remote: &'a Remote, file: &'a File, is_write: bool) -> Result<Self, Error> {
        let buffers = (0..UNDER_WAY).map(|_| -> Result<Buffer, Error> {
            let buffer = remote.buffer(LARGE_BYTES)?;
            buffer.view().fill(1);
            Ok(buffer)
        });
        let free = buffers.collect::<Result<_, Error>>()?;
        Ok(Self { remote, file, is_write, next: 0, free, under_way: VecDeque::new() })
    }

    /// Fills up what is under way, and waits for the oldest.
    fn step(&mut self) -> Result<(), Error> {
        while let Some(buffer) = self.free.pop() {
            let offset = self.next % FILE_BLOCKS * LARGE_BYTES as u64;
            self.next += 1;
            let pending = match self.is_write {
                true => {
                    self.file.submit_write(&buffer, 0..LARGE_BYTES, offset, Stability::Unstable)?
                }
                false => self.file.submit_read(&buffer, 0..LARGE_BYTES, offset)?,
            };
            self.remote.flush()?;
            self.under_way.push_back((pending, buffer));
        }
        if let Some((pending, buffer)) = self.under_way.pop_front() {
            pending.wait()?;
            self.free.push(buffer);
        }
        Ok(())
    }

    /// Waits for all.
    fn end(&mut self) -> Result<(), Error> {
        while let Some((pending, buffer)) = self.under_way.pop_front() {
            pending.wait()?;
            self.free.push(buffer);
        }
        Ok(())
    }
}

/// Files of this machine, and the seconds of making 4 KiB stable.
fn local(path: &Path, signals: &Signalled) -> Result<(Transport, f64), Failure> {
    let failed = |error: std::io::Error| Failure::local(path.display(), &error);
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path);
    let file = file.map_err(failed)?;
    let mut small = vec![1; SMALL_BYTES];
    let mut large = vec![1; LARGE_BYTES];
    let (mut block, mut place) = (0, Places::default());
    let mut far = || {
        block = (block + 1) % FILE_BLOCKS;
        block * LARGE_BYTES as u64
    };
    (0..FILE_BLOCKS).try_for_each(|_| file.write_all_at(&large, far())).map_err(failed)?;
    let write_large = best(signals, || file.write_all_at(&large, far()).map_err(failed))?;
    let read_large = best(signals, || file.read_exact_at(&mut large, far()).map_err(failed))?;
    let write_small = best(signals, || file.write_all_at(&small, place.next()).map_err(failed))?;
    let read_small =
        best(signals, || file.read_exact_at(&mut small, place.next()).map_err(failed))?;
    let name = best(signals, || fs::metadata(path).map(drop).map_err(failed))?;
    file.sync_data().map_err(failed)?;
    let mut sync_seconds = f64::INFINITY;
    for _ in 0..PERIODS {
        file.write_all_at(&small, place.next()).map_err(failed)?;
        let begin = Instant::now();
        file.sync_data().map_err(failed)?;
        sync_seconds = sync_seconds.min(begin.elapsed().as_secs_f64());
    }
    let local = Transport {
        name: "local".to_owned(),
        nfs: false,
        optimistic: false,
        read: cost(read_small, read_large),
        write: cost(write_small, write_large),
        name_seconds: name.elapsed,
        name_cpu_seconds: name.cpu,
    };
    Ok((local, sync_seconds))
}

/// The seconds of a byte that is copied.
fn copy(signals: &Signalled) -> Result<f64, Failure> {
    let (from, mut to) = (vec![1_u8; LARGE_BYTES], vec![0_u8; LARGE_BYTES]);
    let point = best(signals, || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        Ok(())
    })?;
    Ok(point.elapsed / LARGE_BYTES as f64)
}

/// The seconds of waking another thread and of being woken by it.
fn crossing(signals: &Signalled) -> Result<f64, Failure> {
    let failed = |error: std::io::Error| Failure::local("no pipe", &error);
    let (mut asked, mut ask) = std::io::pipe().map_err(failed)?;
    let (mut answered, mut answer) = std::io::pipe().map_err(failed)?;
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while asked.read_exact(&mut byte).and_then(|()| answer.write_all(&byte)).is_ok() {}
    });
    let mut byte = [0];
    let point = best(signals, || {
        ask.write_all(&byte).and_then(|()| answered.read_exact(&mut byte)).map_err(failed)
    });
    // The thread ends with the pipe that it reads.
    drop(ask);
    let _ = echo.join();
    Ok(point?.elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        session: SessionOptions,
    }

    #[test]
    fn all_transports_are_tried_that_the_url_and_the_options_leave() {
        let names = |words: &[&str], url: &str| -> Vec<&'static str> {
            let line = <Line as clap::Parser>::parse_from(["x"].iter().chain(words));
            let url = RemoteUrl::parse(url).unwrap();
            variants(&line.session, &url).iter().map(|variant| variant.name).collect()
        };
        for url in ["dafs://h/a", "dafs://h/?pnfs=no"] {
            assert_eq!(names(&[], url), ["shm", "shm", "verbs", "iwarp"]);
        }
        assert_eq!(names(&[], "dafss://h/"), ["iwarp"]);
        assert_eq!(names(&["--transport=shm"], "dafs://h/"), [""]);
        assert_eq!(names(&[], "dafs://h/?transport=shm"), [""]);
        assert_eq!(names(&[], "nfs://h/"), [""]);
    }
}
