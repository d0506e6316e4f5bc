//! `dafs lock`: locks of files, for scripts.

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::{say, say_json};
use crate::remote::Error as RemoteError;
use crate::session::Sessions;
use dafs_client::{DafsUrl, Error, File, LockError, LockHolder, LockRange, OpenOptions, Status};
use dafs_server::{AdminReply, AdminRequest, LockReport};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::Duration;

/// Another client has the lock.
const EXIT_HELD: u8 = 4;

/// The lock is broken, and is not granted before it is repaired.
const EXIT_BROKEN: u8 = 5;

/// Lock files, also beyond a failure of the holder
///
/// A persistent lock whose holder fails is broken, and the next request for it fails.
/// No client can read or write the locked bytes until a client has locked them for repair, repaired
/// the data and unlocked them.
///
/// Exit status, besides those of all commands: 4 another client has the lock, 5 the lock is broken.
/// `hold` and `repair` end with the status of their command, if they ran one.
#[derive(Debug, clap::Args)]
pub(crate) struct Lock {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Hold a lock while a command runs, or without one until a signal (INT or TERM)
    ///
    /// With --auto-recover, the server restores the file if the command fails or is killed,
    /// whichever client wrote to it meanwhile; the changes of a successful command stay.
    Hold(Hold),
    /// Take over a broken lock while a command repairs the file; then it is free
    ///
    /// When the command fails, the repair counts as failed too: once the lease is over, the lock is
    /// broken again.
    Repair(Repair),
    /// Test whether the file could be locked
    Test(Test),
    /// Show the locks of all clients of a running server, broken ones first
    List(List),
}

#[derive(Debug, clap::Args)]
struct Bytes {
    /// First byte
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    offset: u64,
    /// Bytes; without this, all to the end
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    length: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Hold {
    /// The file
    file: DafsUrl,
    #[command(flatten)]
    bytes: Bytes,
    /// Conflict only with exclusive locks
    #[arg(long)]
    shared: bool,
    /// If the holder fails, tell the next client, and deny all access until the data is repaired
    #[arg(long)]
    persist: bool,
    /// If the holder or its command fails, undo the writes to the file; for the whole file
    #[arg(long, conflicts_with_all = ["shared", "offset", "length"])]
    auto_recover: bool,
    /// Timeout (0: do not wait); without this, none
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Print one JSON object when the lock is granted, or about its holder
    #[arg(long)]
    json: bool,
    /// The command to run meanwhile, with its arguments
    #[arg(last = true)]
    command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
struct Repair {
    /// The file
    file: DafsUrl,
    #[command(flatten)]
    bytes: Bytes,
    /// Print one JSON object when the lock is granted, or about its holder
    #[arg(long)]
    json: bool,
    /// The command that repairs the file, with its arguments; without one, the lock is freed at
    /// once
    #[arg(last = true)]
    command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
struct Test {
    /// The file
    file: DafsUrl,
    #[command(flatten)]
    bytes: Bytes,
    /// Conflict only with exclusive locks
    #[arg(long)]
    shared: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    place: Place,
    /// Print one JSON object per lock
    #[arg(long)]
    json: bool,
}

impl Lock {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        match &self.action {
            Action::Hold(hold) => hold.run(sessions),
            Action::Repair(repair) => repair.run(sessions),
            Action::Test(test) => test.run(sessions),
            Action::List(list) => list.run(),
        }
    }
}

impl Bytes {
    fn of(&self, range: LockRange) -> LockRange {
        range.bytes(self.offset, self.length())
    }

    fn length(&self) -> u64 {
        self.length.unwrap_or(u64::MAX)
    }
}

fn range(shared: bool) -> LockRange {
    if shared { LockRange::shared() } else { LockRange::exclusive() }
}

fn open(
    sessions: &mut Sessions<'_>,
    url: &DafsUrl,
    options: &OpenOptions,
) -> Result<File, Failure> {
    let client = sessions.dafs_client(url)?;
    client.open(url.path(), options).map_err(|error| failed(url, error))
}

fn failed(url: &DafsUrl, error: Error) -> Failure {
    Failure::remote(url, &RemoteError::from(error))
}

fn refused(url: &DafsUrl, json: bool, error: LockError) -> Failure {
    let (code, state, holder) = match error {
        LockError::Held(holder) => (EXIT_HELD, "held", holder),
        LockError::Broken(holder) => (EXIT_BROKEN, "broken", holder),
        LockError::Other(error) => return failed(url, error),
        error => return Failure::Failed(format!("{url}: {error}")),
    };
    if json && let Err(closed) = tell(url, state, Some(&holder)) {
        return closed;
    }
    let text = match state {
        "held" => format!("{url}: locked by {holder}"),
        _ => format!(
            "{url}: the lock is broken: {holder} has failed and may have left the file half changed; \
             mend it by `dafs lock repair`"
        ),
    };
    Failure::Ended { code, text: Some(text) }
}

fn tell(url: &DafsUrl, state: &str, holder: Option<&LockHolder>) -> Result<(), Failure> {
    let holder = holder.map(|holder| {
        json!({
            "client": format!("{:016x}", holder.client),
            "owner": holder.owner.escape_ascii().to_string(),
            "offset": holder.offset,
            "length": (holder.length != u64::MAX).then_some(holder.length),
            "exclusive": holder.exclusive,
        })
    });
    say!("{}", json!({ "url": url.to_string(), "state": state, "holder": holder }))
}

/// Runs a command, if there is one; returns its status if it did not succeed.
fn run(command: &[OsString]) -> Result<Option<ExitStatus>, Failure> {
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let status = std::process::Command::new(program).args(arguments).status();
    let status = status.map_err(|error| Failure::local(program.display(), &error))?;
    Ok((!status.success()).then_some(status))
}

fn ended(status: ExitStatus) -> Failure {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).and_then(|code| u8::try_from(code).ok());
    Failure::Ended { code: code.unwrap_or(1), text: None }
}

impl Hold {
    fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let mut signals = Signals::new([SIGINT, SIGTERM])
            .map_err(|error| Failure::local("cannot handle signals", &error))?;
        let options = if self.shared { OpenOptions::read() } else { OpenOptions::read_write() };
        let file = open(sessions, &self.file, &options)?;
        let wish = self.bytes.of(range(self.shared));
        let wish = wish.persist(self.persist).auto_recovery(self.auto_recover);
        let patience = self.timeout.map(Duration::from_secs);
        let locked = match patience {
            Some(Duration::ZERO) => file.try_lock(&wish),
            patience => file.lock(&wish, patience),
        };
        locked.map_err(|error| refused(&self.file, self.json, error))?;
        if self.json {
            tell(&self.file, "locked", None)?;
        } else if self.command.is_empty() {
            say!("locked")?;
        }
        let status = match self.command.is_empty() {
            true => {
                signals.forever().next();
                Ok(None)
            }
            false => run(&self.command),
        };
        let failed_command = !matches!(status, Ok(None));
        let given_up = match self.auto_recover && failed_command {
            true => file.abort_lock(),
            false => file.unlock(self.bytes.offset, self.bytes.length()),
        };
        given_up.and_then(|()| file.close()).map_err(|error| failed(&self.file, error))?;
        status?.map_or(Ok(()), |status| Err(ended(status)))
    }
}

impl Repair {
    fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let file = open(sessions, &self.file, &OpenOptions::read_write())?;
        let (offset, length) = (self.bytes.offset, self.bytes.length());
        self.take_over(&file)?;
        if self.json {
            tell(&self.file, "repairing", None)?;
        }
        if let Some(status) = run(&self.command)? {
            // An end without a disconnect leaves the lock as it was: to be repaired.
            std::mem::forget(file);
            sessions.abandon();
            return Err(ended(status));
        }
        let closed = file.unlock(offset, length);
        closed.and_then(|()| file.close()).map_err(|error| failed(&self.file, error))
    }
}

impl Repair {
    /// Locks for repair. A lock whose holder is gone breaks only when a client requests it.
    fn take_over(&self, file: &File) -> Result<(), Failure> {
        let (offset, length) = (self.bytes.offset, self.bytes.length());
        match file.lock_for_repair(offset, length) {
            Err(LockError::Other(error)) if error.status() == Some(Status::Inval) => {}
            taken => return taken.map_err(|error| refused(&self.file, self.json, error)),
        }
        let taken = match file.try_lock(&self.bytes.of(range(false))) {
            Ok(()) => {
                file.unlock(offset, length).map_err(|error| failed(&self.file, error))?;
                let text =
                    format!("{}: the lock is not broken, nothing is to be repaired", self.file);
                return Err(Failure::Failed(text));
            }
            Err(LockError::Broken(_)) => file.lock_for_repair(offset, length),
            refusal => refusal,
        };
        taken.map_err(|error| refused(&self.file, self.json, error))
    }
}

impl Test {
    fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let file = open(sessions, &self.file, &OpenOptions::read())?;
        let tested = file.test_lock(&self.bytes.of(range(self.shared)));
        match tested.map_err(|error| refused(&self.file, self.json, error))? {
            Some(holder) => Err(refused(&self.file, self.json, LockError::Held(holder))),
            None if self.json => tell(&self.file, "free", None),
            None => say!("free"),
        }
    }
}

impl List {
    fn run(&self) -> Result<(), Failure> {
        let AdminReply::Locks(locks) = self.place.ask(&AdminRequest::Locks)? else {
            return Err(other_answer());
        };
        if self.json {
            return locks.iter().try_for_each(say_json);
        }
        say!(
            "{:<9} {:<5} {:<15} {:>16} {:>12} {:>12}  file, name of the client",
            "state",
            "kind",
            "also",
            "client",
            "offset",
            "length"
        )?;
        locks.iter().try_for_each(show)
    }
}

fn show(lock: &LockReport) -> Result<(), Failure> {
    let length = lock.length.map_or_else(|| "end".to_owned(), |length| length.to_string());
    let also = match (lock.repair, lock.persist, lock.auto_recover) {
        (true, ..) => "repair",
        (_, true, true) => "persist+recover",
        (_, true, false) => "persist",
        (_, false, true) => "recover",
        (_, false, false) => "-",
    };
    say!(
        "{:<9} {:<5} {:<15} {:016x} {:>12} {:>12}  {}, {}",
        lock.state,
        if lock.exclusive { "write" } else { "read" },
        also,
        lock.client,
        lock.offset,
        length,
        lock.file,
        lock.name
    )?;
    match &lock.trouble {
        Some(trouble) => say!("          cannot be undone yet: {trouble}"),
        None => Ok(()),
    }
}
