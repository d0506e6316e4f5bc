//! `dafs clients`, `dafs expire`, `dafs reload` and `dafs accept-loss`: for the administrator of a
//! server.

use crate::commands::serve::set_umask;
use crate::failure::Failure;
use crate::limits::TOKEN_BYTES_MAX;
use crate::output::{say, say_json};
use dafs_server::{
    AdminError, AdminReply, AdminRequest, AdminServer, ClientReport, Config, ReloadReport,
    ask_admin_server, ask_server,
};
use indicatif::BinaryBytes;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The server of the command.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Place {
    /// The server's state directory; the same default as `dafs serve` has
    #[arg(long, value_name = "DIR")]
    state_directory: Option<PathBuf>,
    /// The server's configuration file, which names its state directory
    #[arg(long, value_name = "FILE", conflicts_with = "state_directory")]
    config: Option<PathBuf>,
    /// A server with `admin_listen`, also of another host: https://HOST:PORT or http://127.0.0.1:PORT. Its
    /// token comes from --token-file or $DAFS_ADMIN_TOKEN
    #[arg(long, value_name = "URL", conflicts_with_all = ["state_directory", "config"])]
    server: Option<AdminServer>,
    /// A file whose first line is the token of that server, in its state directory admin-token
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// The authorities that vouch for that server, for https
    #[arg(long, value_name = "FILE", requires = "server")]
    authorities: Option<PathBuf>,
}

impl Place {
    fn directory(&self) -> Result<PathBuf, Failure> {
        if self.server.is_some() {
            let text = "this changes a stopped server, so it works on the server's host alone";
            return Err(Failure::Usage(text.to_owned()));
        }
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
        let answer = match &self.server {
            None => ask_server(&self.directory()?, request),
            Some(server) => self.ask_over_http(server, request)?,
        };
        match answer {
            Ok(AdminReply::Failed(text)) => Err(Failure::Failed(text)),
            Ok(reply) => Ok(reply),
            Err(error @ (AdminError::Unreachable { .. } | AdminError::NoServer { .. })) => {
                Err(Failure::Unreachable(error.to_string()))
            }
            Err(error) => Err(Failure::Failed(error.to_string())),
        }
    }

    fn ask_over_http(
        &self,
        server: &AdminServer,
        request: &AdminRequest,
    ) -> Result<Result<AdminReply, AdminError>, Failure> {
        if server.is_secure() && self.authorities.is_none() {
            let text = "name those who vouch for the server: --authorities FILE, such as ca.pem of dafs pki";
            return Err(Failure::Usage(text.to_owned()));
        }
        let token = match &self.token_file {
            Some(path) => {
                first_line(path).map_err(|error| Failure::local(path.display(), &error))?
            }
            None => std::env::var("DAFS_ADMIN_TOKEN").map_err(|_| {
                let text = "no token: give --token-file FILE, or set DAFS_ADMIN_TOKEN";
                Failure::Usage(text.to_owned())
            })?,
        };
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::Usage("a token is one word of ASCII characters".to_owned()));
        }
        Ok(ask_admin_server(server, &token, self.authorities.clone(), request))
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

/// Returns the first line of a file, without blanks around it.
fn first_line(path: &Path) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(File::open(path)?.take(TOKEN_BYTES_MAX)).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

pub(super) fn other_answer() -> Failure {
    Failure::Failed("the server has answered another question; is it of another version?".into())
}

/// Show the clients of a running server, and their opens, locks and delegations
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
            "{:>16} {:<8} {:<9} {:>7} {:>6} {:>6} {:>6} {:>10} {:>10} {:>10}  name, user, address",
            "client",
            "protocol",
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
        say!(
            "{:016x} {:<8} {:<9} {:>6}s {:>6} {:>6} {:>6} {:>10} {:>10} {:>10}  {}",
            client.client,
            client.front_end,
            if client.transport.is_empty() { "-" } else { &client.transport },
            client.silent_seconds,
            client.opens,
            client.locks,
            client.delegations,
            client.operations,
            BinaryBytes(client.read_bytes).to_string(),
            BinaryBytes(client.written_bytes).to_string(),
            who(client),
        )?;
        let holds = client.holds.iter().filter(|_| self.holds);
        holds.into_iter().try_for_each(|held| say!("    {held}"))
    }
}

/// Returns what is known of a client's name, user and address, and a mark where the client may be gone.
fn who(client: &ClientReport) -> String {
    let known = [&client.name, &client.principal, &client.address].map(|text| text.trim());
    let known: Vec<&str> = known.into_iter().filter(|text| !text.is_empty()).collect();
    let mark = if client.courtesy {
        " (lease ended)"
    } else if client.front_end == "dafs" && client.sessions == 0 {
        " (disconnected)"
    } else {
        ""
    };
    format!("{}{mark}", known.join(", "))
}

/// End a client of a running server, and release its opens, locks and delegations
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

/// Let a running server read its configuration file again
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
