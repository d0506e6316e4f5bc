//! The time that a session with many outstanding requests takes to recover after it has lost its
//! server, or only its connection.
//!
//! The clock starts when the server answers again: at the first successful connection to it or,
//! when only the connection was lost, with that loss. It stops with the last of the outstanding
//! requests. The pauses between the client's attempts to connect are part of this time.
//!
//! Invariants
//! * The server is stopped before it is killed, and the case waits until no more answers arrive.
//!   The number of outstanding requests is thus known; some have taken effect and some not.
//! * Each create that was answered has made its file, and no other file exists.

use super::{TRANSPORTS, folder};
use crate::Plan;
use crate::child::Process;
use crate::report::{Case, Report, Sample};
use crate::targets::{Quantity, Target};
use anyhow::{Context, Result, anyhow, bail, ensure};
use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, OpenOptions, Stability, TransportChoice,
};
use dafs_mem::Mutex;
use rustix::process::Signal;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Outstanding requests.
const UNDER_WAY: usize = 64;

const BYTES: usize = 4096;

/// The file for writes.
const FILE: &str = "written";

/// Time of load before the loss.
const LOAD_TIME: Duration = Duration::from_millis(50);

/// After this time without an answer, no more are on their way.
const QUIET: Duration = Duration::from_millis(20);

/// Timeout of a wait.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Idempotent: may be done twice.
    Writes,
    /// Not idempotent.
    Creates,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The server is killed and started again.
    Server,
    /// Only the connection; the server stays.
    Connection,
}

struct Row {
    case: Case,
    transport: TransportChoice,
    kind: Kind,
    loss: Loss,
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut rows = rows();
    rows.retain(|row| row.case.name.contains(&plan.only));
    if rows.is_empty() {
        return Ok(());
    }
    for _ in 0..plan.rounds {
        for Row { case, transport, kind, loss } in &mut rows {
            let folder = folder(plan)?;
            let sample = match loss {
                Loss::Server => server_lost(folder.path(), *transport, *kind),
                Loss::Connection => connection_lost(folder.path(), *transport, *kind),
            };
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    let cases: Vec<Case> = rows.into_iter().map(|row| row.case).collect();
    report.add(&format!("recovery with {UNDER_WAY} requests under way"), &cases);
    Ok(())
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name) in [(Kind::Writes, "writes"), (Kind::Creates, "creates")] {
        for (medium, transport) in TRANSPORTS {
            let title = format!("{medium} {name}, server killed");
            let case =
                Case::new(title, None, Some(Target::at_most(Quantity::Microseconds, 50_000.0)));
            rows.push(Row { case, transport, kind, loss: Loss::Server });
        }
        let case = Case::new(
            format!("iwarp {name}, connection lost"),
            None,
            Some(Target::at_most(Quantity::Microseconds, 50_000.0)),
        );
        let (transport, loss) = (TransportChoice::Iwarp, Loss::Connection);
        rows.push(Row { case, transport, kind, loss });
    }
    rows
}

fn connect(url: &DafsUrl, transport: TransportChoice) -> Result<Client> {
    let options =
        ConnectOptions { transport, requests: UNDER_WAY as u16 + 1, ..ConnectOptions::default() };
    Ok(Client::connect(url, &options)?)
}

/// Kills the server and starts it again.
fn server_lost(folder: &Path, transport: TransportChoice, kind: Kind) -> Result<Sample> {
    let export = folder.join("export");
    std::fs::create_dir(&export)?;
    let server = Process::serve_sharing(&export, "power", 0, None)?;
    let (address, pid) = (server.dafs_address()?, server.id());
    let client = connect(&server.url()?, transport)?;
    let mut restarted = None;
    let (answered, sample) = under_load(&client, kind, |load| {
        server.signal(Signal::STOP)?;
        load.await_quiet(pid)?;
        server.kill()?;
        std::thread::scope(|scope| {
            let starter =
                scope.spawn(|| Process::serve_sharing(&export, "power", address.port(), None));
            let began = first_connection(address);
            let server = starter.join().map_err(|_| anyhow!("the server does not start"))?;
            restarted = Some(server?);
            began
        })
    })?;
    verify(&export, kind, answered)?;
    Ok(sample)
}

/// Cuts only the connection.
fn connection_lost(folder: &Path, transport: TransportChoice, kind: Kind) -> Result<Sample> {
    let export = folder.join("export");
    std::fs::create_dir(&export)?;
    let server = Process::serve_sharing(&export, "power", 0, None)?;
    let relay = Relay::start(server.dafs_address()?)?;
    let url = DafsUrl::parse(&format!("dafs://{}/", relay.address))?;
    let client = connect(&url, transport)?;
    let (answered, sample) = under_load(&client, kind, |load| {
        server.signal(Signal::STOP)?;
        load.await_quiet(server.id())?;
        relay.cut();
        server.signal(Signal::CONT)?;
        Ok(Instant::now())
    })?;
    verify(&export, kind, answered)?;
    Ok(sample)
}

/// The time of the first connection that the server accepts.
fn first_connection(address: SocketAddr) -> Result<Instant> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if TcpStream::connect(address).is_ok() {
            return Ok(Instant::now());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    bail!("the server does not come back")
}

/// Checks that each create that was answered has made its file, and no more.
fn verify(export: &Path, kind: Kind, answered: u64) -> Result<()> {
    let files = std::fs::read_dir(export)?.count() as u64;
    ensure!(
        kind == Kind::Writes || files == answered + 1,
        "{answered} creates were answered, and there are {files} files with the one that is written"
    );
    Ok(())
}

/// The state shared with the workers.
struct Load<'a> {
    client: &'a Client,
    /// No more requests are started.
    over: AtomicBool,
    /// Started and not answered.
    under_way: AtomicU64,
    answered: AtomicU64,
    last: Mutex<Option<Instant>>,
}

impl Load<'_> {
    fn begin(&self) -> bool {
        let more = !self.over.load(Ordering::SeqCst);
        self.under_way.fetch_add(u64::from(more), Ordering::SeqCst);
        more
    }

    fn end(&self) {
        self.answered.fetch_add(1, Ordering::SeqCst);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        *self.last.lock() = Some(Instant::now());
    }

    /// Waits until a stopped server has left all requests outstanding, and stops new ones.
    fn await_quiet(&self, pid: u32) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let mut seen = None;
        while Instant::now() < end {
            let answered = self.answered.load(Ordering::SeqCst);
            let under_way = self.under_way.load(Ordering::SeqCst);
            let full = under_way == UNDER_WAY as u64
                && usize::from(self.client.stats().in_flight) >= UNDER_WAY;
            if seen == Some(answered) && full {
                self.over.store(true, Ordering::SeqCst);
                return Ok(());
            }
            seen = Some(answered);
            std::thread::sleep(QUIET);
        }
        bail!("the requests do not pile up before process {pid}")
    }
}

/// Runs requests, calls `lose` to take the server away and bring it back, and waits for the
/// requests. `lose` returns the time when the server was back. Returns the number of answered
/// requests, and the time.
fn under_load(
    client: &Client,
    kind: Kind,
    lose: impl FnOnce(&Load<'_>) -> Result<Instant>,
) -> Result<(u64, Sample)> {
    let options = OpenOptions::read_write().create(Create::New).mode(0o644);
    let root = client.root();
    let file = client.open_at(&root, FILE.as_bytes(), &options)?;
    let load = Load {
        client,
        over: AtomicBool::new(false),
        under_way: AtomicU64::new(0),
        answered: AtomicU64::new(0),
        last: Mutex::new(None),
    };
    let content = [7; BYTES];
    let work = |number: usize| -> Result<()> {
        let mut count = 0;
        while load.begin() {
            let result = match kind {
                Kind::Writes => {
                    let offset = (count * UNDER_WAY + number) * BYTES;
                    file.write_at(&content, offset as u64, Stability::Unstable).map(drop)
                }
                Kind::Creates => {
                    let name = format!("{number}-{count}");
                    client.open_at(&root, name.as_bytes(), &options).map(drop)
                }
            };
            load.end();
            result?;
            count += 1;
        }
        Ok(())
    };
    let (began, client_cpu) = std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> =
            (0..UNDER_WAY).map(|number| scope.spawn(move || work(number))).collect();
        std::thread::sleep(LOAD_TIME);
        let began = lose(&load);
        load.over.store(true, Ordering::SeqCst);
        let before = crate::cpu::process_time(None)?;
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a worker of the benchmark failed"))??;
        }
        let used = crate::cpu::process_time(None)?.saturating_sub(before);
        anyhow::Ok((began?, used))
    })?;
    let last = load.last.lock().context("no answer")?;
    let sample = Sample {
        operations: 1,
        bytes: 0,
        elapsed: last.saturating_duration_since(began),
        client_cpu,
        server_cpu: Duration::ZERO,
    };
    Ok((load.answered.load(Ordering::SeqCst), sample))
}

/// Relays between client and server, and can cut the connections.
struct Relay {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let streams = Arc::new(Mutex::new(Vec::new()));
        let made = streams.clone();
        // It ends with the process.
        std::thread::spawn(move || -> Result<()> {
            loop {
                let (client, server) = (listener.accept()?.0, TcpStream::connect(server)?);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    to.set_nodelay(true)?;
                    let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
                    std::thread::spawn(move || {
                        // The end of one direction ends both.
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                let mut streams = made.lock();
                streams.extend([client, server]);
            }
        });
        Ok(Self { address, streams })
    }

    /// Cuts all present connections.
    fn cut(&self) {
        for stream in self.streams.lock().drain(..) {
            // A connection that has ended already is ignored.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
