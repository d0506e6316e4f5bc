//! The command `dafs`: serves directories and works with files of a server.
//!
//! Exit status: 0 done, 1 something failed, 2 the command line or configuration is wrong, 3 the
//! server cannot be reached or was lost, 128 + n ended by signal n.

mod cli;
mod commands;
mod completions;
mod copy;
mod descriptors;
mod failure;
mod heap;
mod limits;
mod log;
mod log_limit;
mod manager;
mod manual;
mod output;
mod remote;
mod session;
mod show;
mod terminal;

use output::complain;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::of_process();
    match commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(text) = failure.text() {
                complain!("dafs: {text}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
