//! `dafs clients`, `dafs expire`, `dafs reload` and `dafs accept-loss`: for the administrator of a
//! server.

use crate::commands::serve::set_umask;
use crate::failure::Failure;
use crate::output::{say, say_json};
use dafs_server::{
    AdminError, AdminReply, AdminRequest, ClientReport, Config, ReloadReport, ask_server,
};
use indicatif::BinaryBytes;
use std::path::PathBuf;

/// The server of the command.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// The server's state directory; the same default as `dafs serve` has
    #[arg(long, value_name = "DIR")]
    state_directory: Option<PathBuf>,
    /// The server's configuration file, which names its state directory
    #[arg(long, value_name = "FILE", conflicts_with = "state_directory")]
    config: Option<PathBuf>,
}

impl Place {
    fn directory(&self) -> Result<PathBuf, Failure> {
        let of_file = self.config.as_deref().map(Config::load).transpose();
        let of_file = of_file.map_err(|error| Failure::Usage(error.to_string()))?;
        let of_file = of_file.and_then(|config| config.state_directory);
        let directory = self.state_directory.clone().or(of_file);
        let directory = directory.or_else(dafs_server::default_state_directory);
        directory.ok_or_else(|| {
            Failure::Usage("neither HOME nor XDG_STATE_HOME is set; use --state-directory".into())
        })
    }

    pub(super) fn ask(&self, request: &AdminRequest) -> Result<AdminReply, Failure> {
        let directory = self.directory()?;
        match ask_server(&directory, request) {
            Ok(AdminReply::Failed(text)) => Err(Failure::Failed(text)),
            Ok(reply) => Ok(reply),
            Err(error @ AdminError::Unreachable { .. }) => {
                Err(Failure::Unreachable(error.to_string()))
            }
            Err(error) => Err(Failure::Failed(error.to_string())),
        }
    }

    /// Sends an order, and prints its result.
    pub(super) fn order(&self, request: &AdminRequest) -> Result<(), Failure> {
        match self.ask(request)? {
            AdminReply::Done(text) => {
                say!("{text}")
            }
            _ => Err(other_answer()),
        }
    }
}

pub(super) fn other_answer() -> Failure {
    Failure::Failed("the server has answered another question; is it of another version?".into())
}

/// Show the clients of a server of this host, and their opens, locks and delegations
#[derive(Debug, clap::Args)]
pub(crate) struct Clients {
    #[command(flatten)]
    place: Place,
    /// Show each file that is open, locked or delegated, too
    #[arg(long)]
    holds: bool,
    /// Print one JSON object per client
    #[arg(long)]
    json: bool,
}

impl Clients {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let AdminReply::Clients(clients) = self.place.ask(&AdminRequest::Clients)? else {
            return Err(other_answer());
        };
        if self.json {
            return clients.iter().try_for_each(say_json);
        }
        say!(
            "{:>16} {:<5} {:<9} {:>7} {:>6} {:>6} {:>6} {:>10} {:>10} {:>10}  name",
            "client",
            "door",
            "transport",
            "silent",
            "opens",
            "locks",
            "deleg.",
            "requests",
            "read",
            "written"
        )?;
        for client in &clients {
            self.show(client)?;
        }
        Ok(())
    }

    fn show(&self, client: &ClientReport) -> Result<(), Failure> {
        let ended = if client.courtesy { " (lease ended)" } else { "" };
        say!(
            "{:016x} {:<5} {:<9} {:>6}s {:>6} {:>6} {:>6} {:>10} {:>10} {:>10}  {}{ended}",
            client.client,
            client.door,
            if client.transport.is_empty() { "-" } else { &client.transport },
            client.silent_seconds,
            client.opens,
            client.locks,
            client.delegations,
            client.operations,
            BinaryBytes(client.read_bytes).to_string(),
            BinaryBytes(client.written_bytes).to_string(),
            client.name,
        )?;
        let holds = client.holds.iter().filter(|_| self.holds);
        holds.into_iter().try_for_each(|held| say!("    {held}"))
    }
}

/// End a client of a server of this host, and release its opens, locks and delegations
///
/// The client notices at its next request, and starts anew. It loses its unwritten data, so this is
/// for clients that will not come back.
#[derive(Debug, clap::Args)]
pub(crate) struct Expire {
    #[command(flatten)]
    place: Place,
    /// The client, as `dafs clients` shows it
    #[arg(value_parser = client_key)]
    client: u64,
}

fn client_key(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| "write the first column of `dafs clients`".to_owned())
}

impl Expire {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.place.order(&AdminRequest::Expire { client: self.client })
    }
}

/// Let a server of this host read its configuration file again
///
/// Exports are added, changed and removed; clients of the others are not affected. So are the users of
/// password_file, and the rules for certificates and for importance. Each changed key is printed: applied, or
/// refused until the next restart. A file that cannot be used changes nothing. SIGHUP does the same.
#[derive(Debug, clap::Args)]
pub(crate) struct Reload {
    #[command(flatten)]
    place: Place,
}

impl Reload {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        say!("{}", reload(&self.place)?)
    }
}

/// Has a server read its configuration file again.
pub(super) fn reload(place: &Place) -> Result<ReloadReport, Failure> {
    match place.ask(&AdminRequest::Reload)? {
        AdminReply::Reloaded(report) => Ok(report),
        _ => Err(other_answer()),
    }
}

/// Let a stopped server start without a lost state file
///
/// A server does not start when a file of its state directory is missing, damaged or older than the
/// last one. Its message names the file, and the state that is lost with it. After this command the
/// next start accepts the present file of that name, or makes a new one.
#[derive(Debug, clap::Args)]
pub(crate) struct AcceptLoss {
    /// The file, as the server names it; `inventory` for all of them
    name: String,
    #[command(flatten)]
    place: Place,
}

impl AcceptLoss {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        set_umask();
        let (directory, name) = (self.place.directory()?, &self.name);
        let was_listed = dafs_server::accept_loss(&directory, name)
            .map_err(|error| Failure::Failed(error.to_string()))?;
        if !was_listed {
            return say!(
                "{name} is not in the inventory, so the next start makes a new one if \
                 nothing is there; move away what is damaged"
            );
        }
        say!("the next start uses the present file {name}, or makes a new one")
    }
}
