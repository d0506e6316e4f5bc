//! `dafs mount`: makes the files of a server a part of the tree of this host.
//!
//! In the background, the command starts itself again and waits for the child's success, so that
//! errors reach the user.

use crate::descriptors::Given;
use crate::failure::Failure;
use crate::log::LogOptions;
use crate::manager::Manager;
use crate::output::complain;
use crate::remote::RemoteUrl;
use crate::session::Sessions;
use dafs_client::{Client, DafsUrl, Follow};
use dafs_fuse::{
    Ended, Mount as Mounted, MountError, MountOptions, MountPlace, Unmounted, limits, unmount,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Mount a directory of a dafs:// server, so that every program can use its files
///
/// It is served in the background until it is unmounted with dafs umount, or by a signal. A change
/// of another host is visible after --belief at the latest, and new file contents whenever a file
/// is opened. A mount made by root acts at the server as the user of each program, with its groups.
/// SIGUSR1 logs its counters.
#[derive(Debug, clap::Args)]
pub(crate) struct Mount {
    /// The directory to mount: dafs://HOST[:PORT]/PATH
    source: RemoteUrl,
    /// The mount point: a directory
    directory: PathBuf,
    /// Stay in the foreground until it is unmounted
    #[arg(short, long)]
    foreground: bool,
    /// Take it over from the process that serves it now, with all open files, and let that end
    #[arg(long)]
    take_over: bool,
    /// Admit other users; the permissions of the files decide. Always so for root
    #[arg(long)]
    allow_other: bool,
    /// Act as the user of the session for all programs, instead of as the user of each. Always so
    /// unless root mounts, and the server trusts this host
    #[arg(long)]
    one_user: bool,
    /// Mount it read-only
    #[arg(long)]
    read_only: bool,
    /// Lifetime of cached attributes and names
    #[arg(long, value_name = "SECONDS", default_value_t = limits::CACHE_TIMEOUT_DEFAULT.as_secs_f64())]
    belief: f64,
    /// Most concurrent operations
    #[arg(long, value_name = "COUNT", default_value_t = limits::THREADS_DEFAULT)]
    threads: usize,
    #[command(flatten)]
    log: LogOptions,
    /// Append the log to a file. Without it the log is on standard error, and in the background nowhere
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

/// Tells the child, in its environment, to report on standard output that it has mounted, and then
/// to detach from the terminal.
const IS_BACKGROUND: &str = "DAFS_MOUNT_IN_BACKGROUND";

/// The child's report that it has mounted.
const READY: &[u8] = b"mounted\n";

impl Mount {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let RemoteUrl::Dafs(url) = &self.source else {
            return Err(Failure::Usage(format!(
                "{} is no DAFS server; NFS servers are mounted with mount -t nfs",
                self.source
            )));
        };
        let is_background = std::env::var_os(IS_BACKGROUND).is_some();
        if !(self.foreground || is_background) {
            return start_in_background();
        }
        let given = is_background.then(Given::note);
        if self.foreground || self.log_file.is_some() {
            self.log.start(self.log_file.as_deref())?;
        }
        sessions.retry_forever();
        self.serve(url, sessions, given)
    }

    fn options(&self, url: &DafsUrl) -> Result<MountOptions, Failure> {
        let belief = Duration::try_from_secs_f64(self.belief)
            .map_err(|error| Failure::Usage(format!("--belief {}: {error}", self.belief)))?;
        Ok(MountOptions {
            source: url.to_string(),
            allow_other: self.allow_other || rustix::process::geteuid().is_root(),
            read_only: self.read_only,
            callers: !self.one_user && rustix::process::geteuid().is_root(),
            cache_timeout: belief,
            threads: self.threads,
        })
    }

    /// Serves the mount; in the background with the descriptors that this process was `given`.
    fn serve(
        &self,
        url: &DafsUrl,
        sessions: &mut Sessions<'_>,
        given: Option<Given>,
    ) -> Result<(), Failure> {
        let options = self.options(url)?;
        // Before the mount, so that no signal leaves it behind.
        let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])
            .map_err(|error| Failure::local("cannot handle signals", &error))?;
        let mounted = match self.take_over {
            true => self.take(url, sessions, &options)?,
            false => self.make(url, sessions, &options)?,
        };
        let client = mounted.client().clone();
        tracing::info!(%url, directory = %self.directory.display(), "mounted");
        watch_signals(signals, mounted.place().clone(), client.clone())?;
        if let Some(given) = given {
            let told = let_go(given).map_err(|error| Failure::local("cannot go on alone", &error));
            if told.is_err() {
                let _ = mounted.place().unmount();
            }
            told?;
        } else {
            Manager::of_process().ready(&format!("{url} at {}", self.directory.display()));
        }
        let ended = mounted.serve();
        log_counts(&client);
        match ended {
            Ok(Ended::Unmounted) => {
                // With an unreachable server, closing would not end.
                dafs_client::within(limits::FAREWELL, || sessions.close());
                Ok(())
            }
            Ok(Ended::HandedOver) => {
                sessions.abandon();
                Ok(())
            }
            Err(error) => Err(Failure::local(self.directory.display(), &error)),
        }
    }

    fn make(
        &self,
        url: &DafsUrl,
        sessions: &mut Sessions<'_>,
        options: &MountOptions,
    ) -> Result<Mounted, Failure> {
        let client = sessions.dafs_client(url)?;
        let root = client
            .resolve(url.path(), Follow::Yes)
            .map_err(|error| Failure::remote(&self.source, &error.into()))?;
        if !root.attributes.is_directory() {
            return Err(Failure::Failed(format!("{} is no directory", self.source)));
        }
        Ok(Mounted::new(&client, root.handle, &self.directory, options)?)
    }

    fn take(
        &self,
        url: &DafsUrl,
        sessions: &mut Sessions<'_>,
        options: &MountOptions,
    ) -> Result<Mounted, Failure> {
        let connect = |identity| sessions.dafs_client_as(url, identity);
        Mounted::take_over(&self.directory, options, connect)
    }
}

/// Logs the counters of a mount.
fn log_counts(client: &Client) {
    let stats = client.stats();
    tracing::info!(
        requests = stats.answered,
        read_bytes = stats.bytes_read,
        written_bytes = stats.bytes_written,
        in_flight = stats.in_flight,
        credits = stats.credits,
        connections_lost = stats.recoveries,
        server_restarts = stats.restarts,
        optimistic_hits = client.optimistic_stats().hits,
        "counts"
    );
}

/// Logs the counters at SIGUSR1, and unmounts when another signal comes. A second one of these ends the
/// process at once, also while the kernel waits for data that cannot be written any more.
fn watch_signals(mut signals: Signals, place: MountPlace, client: Client) -> Result<(), Failure> {
    let no_thread = |error| Failure::local("no thread for signals", &error);
    let (first, begin) = mpsc::channel();
    let take_down = move || {
        if begin.recv().is_err() {
            return;
        }
        match place.unmount() {
            Ok(Unmounted::Gone) => {}
            Ok(Unmounted::Leaving) | Err(MountError::NotMounted(_)) => complain!(
                "dafs: the mount is in use; ending when its users have left, or by another signal"
            ),
            Err(error) => complain!("dafs: {error}"),
        }
    };
    let watch = move || {
        let mut is_ending = false;
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                log_counts(&client);
                continue;
            }
            if std::mem::replace(&mut is_ending, true) {
                std::process::exit(128 + signal);
            }
            tracing::info!(signal, "unmounting");
            let _ = first.send(());
        }
    };
    let thread = || std::thread::Builder::new().name("dafs-signals".into());
    thread().spawn(take_down).map_err(no_thread)?;
    thread().spawn(watch).map(drop).map_err(no_thread)
}

/// Runs this command line again in the background, and waits until that has mounted.
fn start_in_background() -> Result<(), Failure> {
    let local = |error| Failure::local("cannot start in the background", &error);
    let program = std::env::current_exe().map_err(local)?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut child = Command::new(program)
        .args(arguments)
        .env(IS_BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(local)?;
    let mut said = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(READY.len() as u64).read_to_end(&mut said).map_err(local)?;
    }
    if said == READY {
        return Ok(());
    }
    // The child has told the user why.
    let status = child.wait().map_err(local)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Err(Failure::Ended { code, text: None })
}

/// Reports success to the parent, and detaches from it, its terminal and its descriptors.
fn let_go(given: Given) -> std::io::Result<()> {
    given.close();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::process::setsid()?;
    std::env::set_current_dir("/")?;
    let mut output = std::io::stdout();
    output.write_all(READY)?;
    output.flush()?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        match error {
            MountError::Threads(_) => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

/// Unmount what dafs mount has mounted
///
/// It always works: while programs still use files in it, it disappears from the tree of this host at
/// once and ends when they have closed them; also when the process that served it was killed.
#[derive(Debug, clap::Args)]
pub(crate) struct Umount {
    /// Where it is mounted
    #[arg(required = true)]
    directories: Vec<PathBuf>,
}

impl Umount {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        super::for_each(&self.directories, |directory| {
            let directory: &Path = directory;
            match unmount(directory)? {
                Unmounted::Gone => {}
                Unmounted::Leaving => complain!(
                    "dafs: {} was in use; it ends when its users have left it",
                    directory.display()
                ),
            }
            Ok(())
        })
    }
}
