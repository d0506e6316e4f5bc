//! Changes that survive a power failure, against the same changes on the local file system, each
//! followed by `fsync`.
//!
//! The floor is the work of a local program that is equally safe. A program that creates a file has
//! to sync the file and, by POSIX, the directory. ext4 and xfs make the name stable with the file,
//! so the floor is the cheaper of the two, and the other one is measured as well. A rename is
//! followed by a sync of the directory, an append by one of the file.
//!
//! Invariants
//! * Both sides work in one folder with all names, made anew for each sample.

use super::clients::together;
use super::{MANY, Site, TRANSPORTS, folder};
use crate::Plan;
use crate::report::{Case, Report, Sample};
use crate::targets::{Bound, Target};
use anyhow::{Context, Result};
use dafs_client::{Client, Create, FileHandle, OpenOptions, Stability, TransportChoice};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const APPEND_BYTES: usize = 4096;

/// Operations for counting requests.
const COUNTED: u64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Create,
    Rename,
    Append,
}

const CHANGES: [(Change, &str); 3] =
    [(Change::Create, "create"), (Change::Rename, "rename"), (Change::Append, "append 4 KiB")];

impl Change {
    /// The target of the time of many clients, against that of as many local threads.
    fn target(self) -> Target {
        Target::ratio(match self {
            Self::Create => 1.0,
            Self::Rename => 0.5,
            Self::Append => 1.5,
        })
    }
}

/// The side that runs it.
#[derive(Debug, Clone, Copy)]
enum Side {
    /// The local file system; `directory` if a create syncs the directory as well.
    Local {
        directory: bool,
    },
    Dafs {
        durable: bool,
        transport: TransportChoice,
    },
}

struct Row {
    case: Case,
    change: Change,
    side: Side,
    clients: usize,
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut rows = rows();
    rows.retain(|row| row.case.name.contains(&plan.only));
    if rows.is_empty() {
        return Ok(());
    }
    let folder = folder(plan)?;
    let local = folder.path().join("local");
    std::fs::create_dir(&local)?;
    let durable = Site::start(folder.path(), "durable", "power", None)?;
    let plain = Site::start(folder.path(), "plain", "off", None)?;
    for _ in 0..plan.rounds {
        for Row { case, change, side, clients } in &mut rows {
            let sample = match *side {
                Side::Local { directory } => locally(plan, &local, *change, *clients, directory),
                Side::Dafs { durable: stable, transport } => {
                    let site = if stable { &durable } else { &plain };
                    remotely(plan, site, *change, *clients, transport)
                }
            };
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    let cases: Vec<Case> = rows.into_iter().map(|row| row.case).collect();
    report.add("changes that outlive a power cut", &cases);
    for (change, name) in CHANGES {
        let requests = requests(&durable, change)? / requests(&plain, change)?;
        let text = format!("{requests:.2} x those of a plain one (target: at most 1.5)");
        let name = format!("requests for a durable {name}");
        report.figure(&name, requests, &text);
        report.judge(&format!("{name}, against a plain one"), Bound::AtMost(1.5), requests, "");
    }
    Ok(())
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (change, name) in CHANGES {
        let mut add = |title: String, floor: Option<String>, target, side, clients| {
            let floor = floor.map(Into::into);
            let case = Case { floor, ..Case::new(title, None, target) };
            rows.push(Row { case, change, side, clients });
        };
        let local = format!("local {name}+fsync, {MANY} threads");
        add(local.clone(), None, None, Side::Local { directory: false }, MANY);
        if change == Change::Create {
            let title = format!("local {name}+fsync of both, {MANY} threads");
            add(title, Some(local.clone()), None, Side::Local { directory: true }, MANY);
        }
        for (medium, transport) in TRANSPORTS {
            let side = |durable| Side::Dafs { durable, transport };
            let title = format!("{medium} durable {name}, {MANY}");
            add(title, Some(local.clone()), Some(change.target()), side(true), MANY);
            let plain = format!("{medium} plain {name}, 1");
            add(plain.clone(), None, None, side(false), 1);
            let title = format!("{medium} durable {name}, 1");
            add(title, Some(plain), Some(Target::ratio(1.50)), side(true), 1);
        }
        let one = format!("local {name}+fsync, 1 thread");
        add(one, None, None, Side::Local { directory: false }, 1);
    }
    rows
}

/// Makes a folder for one sample. It stays until the end: ext4 is slow to make files just after
/// many were removed.
fn scratch(inside: &Path) -> Result<String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("sample-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    std::fs::create_dir(inside.join(&name))?;
    Ok(name)
}

fn locally(
    plan: &Plan,
    inside: &Path,
    change: Change,
    threads: usize,
    directory: bool,
) -> Result<Sample> {
    let folder = &inside.join(scratch(inside)?);
    let content = [7; APPEND_BYTES];
    together(plan, threads, None, |number| {
        let names = File::open(folder)?;
        let path = move |count| folder.join(name(number, count));
        let mut file = File::options().create(true).append(true).open(path(0))?;
        Ok(move |count: u64| {
            match change {
                Change::Create => {
                    File::create_new(path(count + 1))?.sync_all()?;
                    if directory {
                        names.sync_all()?;
                    }
                }
                Change::Rename => {
                    std::fs::rename(path(count), path(count + 1))?;
                    names.sync_all()?;
                }
                Change::Append => {
                    file.write_all(&content)?;
                    file.sync_all()?;
                }
            }
            Ok(())
        })
    })
}

fn remotely(
    plan: &Plan,
    site: &Site,
    change: Change,
    clients: usize,
    transport: TransportChoice,
) -> Result<Sample> {
    let folder = scratch(&site.export)?;
    together(plan, clients, Some(site.pid()), |number| {
        let mut changer = Changer::new(site.connect(transport)?, &folder, change, number)?;
        Ok(move |count| changer.change(count))
    })
}

fn requests(site: &Site, change: Change) -> Result<f64> {
    let folder = scratch(&site.export)?;
    let mut changer = Changer::new(site.connect(TransportChoice::Iwarp)?, &folder, change, 0)?;
    // Files are closed without waiting: the answer to a later request comes after the close.
    changer.client.ping()?;
    let before = changer.client.stats().answered;
    for count in 0..COUNTED {
        changer.change(count)?;
    }
    changer.client.ping()?;
    Ok((changer.client.stats().answered - before - 1) as f64 / COUNTED as f64)
}

/// A client of the load.
struct Changer {
    client: Client,
    change: Change,
    number: usize,
    names: FileHandle,
    file: dafs_client::File,
    content: [u8; APPEND_BYTES],
}

impl Changer {
    fn new(client: Client, folder: &str, change: Change, number: usize) -> Result<Self> {
        let names = client.lookup(&client.root(), folder.as_bytes())?;
        let options = OpenOptions::read_write().create(Create::New).mode(0o644);
        let file = client.open_at(&names, name(number, 0).as_bytes(), &options)?;
        Ok(Self { client, change, number, names, file, content: [7; APPEND_BYTES] })
    }

    fn change(&mut self, count: u64) -> Result<()> {
        let Self { client, names, number, .. } = self;
        let (old, new) = (name(*number, count), name(*number, count + 1));
        match self.change {
            Change::Create => {
                let options = OpenOptions::write().create(Create::New).mode(0o644);
                drop(client.open_at(names, new.as_bytes(), &options)?);
            }
            Change::Rename => client.rename(names, old.as_bytes(), names, new.as_bytes())?,
            Change::Append => {
                self.file.append(&self.content, Stability::FileSync)?;
            }
        }
        Ok(())
    }
}

fn name(number: usize, count: u64) -> String {
    format!("{number}-{count}")
}
