//! The command line: options that all commands share, and the list of commands.

use crate::commands;
use crate::failure::Failure;
use clap::{Args, Parser, Subcommand, ValueEnum};
use dafs_client::{DafsUrl, TransportChoice, WaitPolicy};
use dafs_dat::Wake;
use std::ffi::OsString;
use std::path::PathBuf;

/// The end of the help.
const EXAMPLES: &str = "\
Examples:
  dafs serve DIR                        serve a directory to this host alone
  dafs ls -l dafs://localhost/
  dafs put FILE dafs://localhost/
  dafs mount dafs://localhost/ /mnt
  dafs get nfs://HOST/PATH .            copy from any NFS server
  sudo dafs config init                 a configuration, to serve other hosts
  dafs doctor                           the transports that work here";

/// Serve directories by direct access, and work with the files of such a server.
///
/// Files are named by URLs: dafs://HOST[:PORT]/PATH, or dafss:// inside TLS. Options stand behind a
/// question mark: fence-id=NAME, recovery=SECONDS, deadline=SECONDS, connect-timeout=SECONDS,
/// transport=auto|iwarp|shm|verbs, wait=adaptive|poll|sleep, checksums=yes|no, pnfs=yes|no,
/// optimistic=yes|no, inline-padding=yes|no, and sec=gss (Kerberos) with ccache=NAME or
/// keytab=FILE and principal=NAME.
///
/// The commands ls, stat, cat, get, put, cp, sync, check, clean, du, find, tree, warmup, rm, mkdir, mv,
/// ln, df, bench and advise also take URLs of NFS servers: nfs://HOST[:PORT]/PATH and
/// nfs+rdma://HOST[:PORT]/PATH. Their options are vers=3, 4.1 or 4.2, transport=iwarp, shm or verbs,
/// rsize, wsize, readahead, pnfs=yes|no; for Kerberos sec=krb5|krb5i|krb5p, keytab=FILE with
/// principal=NAME, or ccache=NAME; for TLS xprtsec=tls|mtls, ca=FILE, cert=FILE, key=FILE.
///
/// Exit status: 0 success, 1 failure, 2 wrong command line or configuration, 3 the server cannot
/// be reached or was lost.
#[derive(Debug, Parser)]
#[command(name = "dafs", version = dafs_server::version(), max_term_width = 100)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) session: SessionOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The arguments of this process. On an error, or for help, prints the message and ends the
    /// process.
    pub(crate) fn of_process() -> Self {
        let words: Vec<OsString> = std::env::args_os().collect();
        if words.get(1).is_some_and(|word| word == "run") {
            let OnlyRun { session, command: OnlyRunCommand::Run(run) } = OnlyRun::parse_from(words);
            return Self { session, command: Command::Run(run) };
        }
        Self::parse_from(words)
    }
}

/// The command line of `dafs run` alone. Building the parser of all commands takes longer than the
/// rest of the start, and each program started this way would pay for it.
#[derive(Debug, Parser)]
#[command(name = "dafs", version = dafs_server::version(), max_term_width = 100)]
struct OnlyRun {
    #[command(flatten)]
    session: SessionOptions,
    #[command(subcommand)]
    command: OnlyRunCommand,
}

#[derive(Debug, Subcommand)]
enum OnlyRunCommand {
    Run(commands::run::Run),
}

/// How to reach a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct SessionOptions {
    /// How data travels: shm on one host, verbs by an RDMA device, iwarp over any TCP network (dafs://
    /// and nfs+rdma://)
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub(crate) transport: TransportName,
    /// How to wait: poll uses a whole core for the lowest latency, sleep the least CPU
    #[arg(long, global = true, value_enum)]
    pub(crate) wake: Option<WakeName>,
    /// Prove to be this user; the password comes from --password-file or $DAFS_PASSWORD
    #[arg(long = "user", global = true, value_name = "NAME")]
    pub(crate) session_user: Option<String>,
    /// A file whose first line is the password
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// The name of this client in fences (dafs://); the same as ?fence-id=NAME behind a URL
    #[arg(long, global = true, value_name = "NAME", value_parser = commands::fence::fence_id)]
    pub(crate) fence_id: Option<String>,
    /// Ask for checksums over all messages and data
    #[arg(long, global = true)]
    pub(crate) checksums: bool,
    /// Timeout of a request in seconds (0: none; default 60, and none for mounts);
    /// ?deadline=SECONDS in a URL takes precedence
    #[arg(long, global = true, value_name = "SECONDS")]
    pub(crate) deadline: Option<u64>,
    /// Seconds to retry after the connection to a dafs:// server was lost (0: fail at once; default
    /// 120, and without end for mounts); ?recovery=SECONDS in a URL takes precedence
    #[arg(long, global = true, value_name = "SECONDS")]
    pub(crate) recovery: Option<u64>,
    /// Say on standard error which transport is used, and why
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

impl SessionOptions {
    /// The first given option that only clients use.
    pub(crate) fn client_only(&self) -> Option<&'static str> {
        [
            (self.transport != TransportName::Auto, "--transport"),
            (self.session_user.is_some(), "--user"),
            (self.password_file.is_some(), "--password-file"),
            (self.fence_id.is_some(), "--fence-id"),
            (self.checksums, "--checksums"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }

    /// Checks that option and URL do not name different users.
    pub(crate) fn check_user(&self, url: &DafsUrl) -> Result<(), Failure> {
        match (self.session_user.as_deref(), url.user()) {
            (Some(given), Some(of_url)) if given != of_url => Err(Failure::Usage(format!(
                "--user says {given}, and {url} says {of_url}; leave one of them out"
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that option and URL do not give different fence ids.
    pub(crate) fn check_fence_id(&self, url: &DafsUrl) -> Result<(), Failure> {
        match (self.fence_id.as_deref(), url.fence_id()) {
            (Some(given), Some(of_url)) if given != of_url => Err(Failure::Usage(format!(
                "--fence-id says {given}, and {url} says {of_url}; leave one of them out"
            ))),
            _ => Ok(()),
        }
    }
}

/// The transports by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// shm if the server runs on this host, else verbs if an RDMA adapter leads to a server that
    /// listens for one, else iwarp
    Auto,
    /// RDMA over TCP
    Iwarp,
    /// Shared memory
    Shm,
    /// An RDMA device
    Verbs,
}

impl From<TransportName> for TransportChoice {
    fn from(name: TransportName) -> Self {
        match name {
            TransportName::Auto => Self::Auto,
            TransportName::Iwarp => Self::Iwarp,
            TransportName::Shm => Self::Shm,
            TransportName::Verbs => Self::Verbs,
        }
    }
}

/// The ways to wait by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WakeName {
    /// Poll for a while, then sleep
    Adaptive,
    /// Never sleep
    Poll,
    /// Sleep at once
    Sleep,
}

impl From<WakeName> for WaitPolicy {
    fn from(name: WakeName) -> Self {
        match name {
            WakeName::Adaptive => Self::default(),
            WakeName::Poll => Self::Poll,
            WakeName::Sleep => Self::Sleep,
        }
    }
}

impl From<WakeName> for Wake {
    fn from(name: WakeName) -> Self {
        match name {
            WakeName::Adaptive => Self::Adaptive,
            WakeName::Poll => Self::Poll,
            WakeName::Sleep => Self::Sleep,
        }
    }
}

/// The command. `--help` has this order: servers, files, mounts, measurements, administration.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(commands::serve::Serve),
    Config(commands::config::Config),
    Ls(commands::ls::Ls),
    Stat(commands::stat::Stat),
    Cat(commands::cat::Cat),
    Get(commands::get::Get),
    Put(commands::put::Put),
    Cp(commands::cp::Cp),
    Sync(commands::sync::Sync),
    Check(commands::check::Check),
    Clean(commands::clean::Clean),
    Du(commands::du::Du),
    Find(commands::find::Find),
    Tree(commands::tree::Tree),
    Warmup(commands::warmup::Warmup),
    Rm(commands::rm::Rm),
    Mkdir(commands::mkdir::Mkdir),
    Mv(commands::mv::Mv),
    Ln(commands::ln::Ln),
    Df(commands::df::Df),
    Mount(commands::mount::Mount),
    #[command(alias = "unmount")]
    Umount(commands::mount::Umount),
    Run(commands::run::Run),
    Ping(commands::ping::Ping),
    Bench(commands::bench::Bench),
    Advise(commands::advise::Advise),
    Doctor(commands::doctor::Doctor),
    Status(commands::status::Status),
    Top(commands::top::Top),
    Clients(commands::admin::Clients),
    Sessions(commands::sessions::Sessions),
    Reload(commands::admin::Reload),
    User(commands::user::User),
    Passwd(commands::passwd::Passwd),
    Pki(commands::pki::Pki),
    Expire(commands::admin::Expire),
    AcceptLoss(commands::admin::AcceptLoss),
    Lock(commands::lock::Lock),
    Fence(commands::fence::Fence),
    Layout(commands::layout::Layout),
    Cluster(commands::cluster::Cluster),
    Completions(commands::completions::Completions),
    #[command(hide = true)]
    Manual(commands::manual::Manual),
    /// Show the version, as --version does
    #[command(hide = true)]
    Version,
}

/// Shows each command that `--help` shows, with the names of those that lead to it, as `dafs`, `cluster`.
#[cfg(test)]
pub(crate) fn walk(visit: &mut dyn FnMut(&[String], &clap::Command)) {
    fn go(
        path: &mut Vec<String>,
        command: &clap::Command,
        visit: &mut dyn FnMut(&[String], &clap::Command),
    ) {
        path.push(command.get_name().to_owned());
        visit(path, command);
        for below in command.get_subcommands() {
            if !below.is_hide_set() && below.get_name() != "help" {
                go(path, below, visit);
            }
        }
        path.pop();
    }
    let mut root = <Cli as clap::CommandFactory>::command();
    root.build();
    go(&mut Vec::new(), &root, visit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_examples_are_right() {
        for line in EXAMPLES.lines().skip(1) {
            let command = line.trim().trim_start_matches("sudo ").split("  ").next().unwrap();
            let parsed = Cli::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{command}: {parsed:?}");
        }
    }

    #[test]
    fn habits_of_other_commands_are_understood() {
        for line in [
            "dafs cp -r dafs://h/a b",
            "dafs cp -R a dafs://h/",
            "dafs get -r dafs://h/a b",
            "dafs put --recursive a dafs://h/",
            "dafs sync -r a dafs://h/",
            "dafs sync -P a dafs://h/",
            "dafs put --progress a dafs://h/",
            "dafs df -h dafs://h/",
            "dafs unmount /mnt",
        ] {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn options_may_stand_before_and_after_the_command() {
        for line in ["dafs --transport shm df dafs://h/", "dafs df dafs://h/ --transport shm"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(cli.session.transport, TransportName::Shm);
        }
    }

    /// A user cannot tell from the output which of the two parsers has read the arguments.
    #[test]
    fn run_alone_reads_as_run_among_all_commands() {
        for line in [
            "dafs run --help",
            "dafs run -h",
            "dafs run --at",
            "dafs run --transport none --at /a=dafs://h/ true",
            "dafs run",
        ] {
            let words = || line.split(' ');
            let all = Cli::try_parse_from(words()).unwrap_err();
            let alone = OnlyRun::try_parse_from(words()).unwrap_err();
            assert_eq!((alone.kind(), alone.to_string()), (all.kind(), all.to_string()), "{line}");
        }
        let words = "dafs run --deadline 3 --at /a=dafs://h/ --checksums cat --at -v".split(' ');
        let all = Cli::try_parse_from(words.clone()).unwrap();
        let Command::Run(run) = all.command else { panic!("another command") };
        let alone = OnlyRun::try_parse_from(words).unwrap();
        let OnlyRunCommand::Run(only) = alone.command;
        assert_eq!(format!("{only:?}"), format!("{run:?}"));
        assert_eq!(format!("{:?}", alone.session), format!("{:?}", all.session));
    }
}
