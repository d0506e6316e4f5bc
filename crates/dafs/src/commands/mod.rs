//! One file per command.

pub(crate) mod admin;
pub(crate) mod advise;
pub(crate) mod bench;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod clean;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod df;
pub(crate) mod doctor;
pub(crate) mod du;
pub(crate) mod fence;
pub(crate) mod find;
pub(crate) mod get;
pub(crate) mod layout;
pub(crate) mod ln;
pub(crate) mod lock;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod mkdir;
pub(crate) mod mount;
pub(crate) mod mv;
mod operands;
pub(crate) mod passwd;
pub(crate) mod ping;
pub(crate) mod pki;
pub(crate) mod put;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod top;
pub(crate) mod tree;
pub(crate) mod user;
pub(crate) mod warmup;

use crate::cli::{Cli, Command};
use crate::failure::Failure;
use crate::output::{complain, say};
use crate::session::Sessions;

/// Runs the command.
pub(crate) fn run(cli: &Cli) -> Result<(), Failure> {
    let mut sessions = Sessions::new(&cli.session);
    let result = dispatch(cli, &mut sessions);
    if !matches!(result, Err(Failure::Unreachable(_) | Failure::OutputClosed)) {
        sessions.close();
    }
    result
}

fn dispatch(cli: &Cli, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
    match &cli.command {
        Command::Serve(command) => command.run(&cli.session),
        Command::Config(command) => command.run(),
        Command::Ls(command) => command.run(sessions),
        Command::Stat(command) => command.run(sessions),
        Command::Cat(command) => command.run(sessions),
        Command::Get(command) => command.run(sessions),
        Command::Put(command) => command.run(sessions),
        Command::Cp(command) => command.run(sessions),
        Command::Sync(command) => command.run(sessions),
        Command::Check(command) => command.run(sessions),
        Command::Clean(command) => command.run(sessions),
        Command::Du(command) => command.run(sessions),
        Command::Find(command) => command.run(sessions),
        Command::Tree(command) => command.run(sessions),
        Command::Warmup(command) => command.run(sessions),
        Command::Rm(command) => command.run(sessions),
        Command::Mkdir(command) => command.run(sessions),
        Command::Mount(command) => command.run(sessions),
        Command::Umount(command) => command.run(),
        Command::Mv(command) => command.run(sessions),
        Command::Ln(command) => command.run(sessions),
        Command::Df(command) => command.run(sessions),
        Command::Ping(command) => command.run(sessions),
        Command::Pki(command) => command.run(),
        Command::Bench(command) => command.run(sessions),
        Command::Advise(command) => command.run(&cli.session),
        Command::Doctor(command) => command.run(&cli.session),
        Command::Passwd(command) => command.run(),
        Command::User(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Clients(command) => command.run(),
        Command::Expire(command) => command.run(),
        Command::Reload(command) => command.run(),
        Command::AcceptLoss(command) => command.run(),
        Command::Sessions(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Layout(command) => command.run(),
        Command::Lock(command) => command.run(sessions),
        Command::Run(command) => command.run(&cli.session),
        Command::Fence(command) => command.run(sessions),
        Command::Cluster(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Manual(command) => command.run(),
        Command::Version => say!("dafs {}", dafs_server::version()),
    }
}

/// Runs `each` for every operand. A failure is reported and does not stop the others, unless the
/// server is gone.
fn for_each<T>(
    operands: &[T],
    mut each: impl FnMut(&T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut result = Ok(());
    for operand in operands {
        match each(operand) {
            Ok(()) => {}
            Err(Failure::Failed(text)) => {
                complain!("dafs: {text}");
                result = Err(Failure::Reported);
            }
            Err(Failure::Reported) => result = Err(Failure::Reported),
            Err(other) => return Err(other),
        }
    }
    result
}
