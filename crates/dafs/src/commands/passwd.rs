//! `dafs passwd`: adds a user to a server's password file, or changes one.
//!
//! Invariants
//! * The file is replaced atomically, and never readable by others.
//! * The password is neither shown nor taken from the command line.

use crate::commands::serve::set_umask;
use crate::failure::Failure;
use crate::limits::PASSWORD_BYTES_MAX;
use crate::output::complain;
use dafs_engine::{PasswordFileError, check_user_name, password_line, replace_password_line};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;

/// Set the password of a user in a server's password file
///
/// The password is asked for on the terminal, or is the first line of standard input. A running
/// server reads the file again at `dafs reload`. `dafs user` changes users of a running server at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Passwd {
    /// The password file; made if it does not exist
    file: PathBuf,
    /// The name that clients give with --user
    #[arg(value_name = "USER", value_parser = user_name)]
    name: String,
    /// The user id that the files are used with
    #[arg(long)]
    uid: u32,
    /// The group id that the files are used with
    #[arg(long)]
    gid: u32,
    /// Further group ids
    #[arg(long, value_delimiter = ',', value_name = "GID,...")]
    groups: Vec<u32>,
}

/// Parses the name of a user.
pub(super) fn user_name(text: &str) -> Result<String, String> {
    check_user_name(text)?;
    Ok(text.to_owned())
}

impl Passwd {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        set_umask();
        let password = new_password()?;
        let line = password_line(&self.name, self.uid, self.gid, &self.groups, password.as_bytes());
        replace_password_line(&self.file, &self.name, Some(&line)).map_err(|error| match error {
            PasswordFileError::Write { .. } => Failure::Failed(error.to_string()),
            error => Failure::Usage(error.to_string()),
        })
    }
}

/// Asks for a new password on the terminal, or reads the first line of standard input.
///
/// # Errors
/// It is empty or too long, or the two on the terminal differ.
pub(super) fn new_password() -> Result<String, Failure> {
    match ask_password()? {
        password if password.is_empty() => {
            Err(Failure::Usage("the password is empty; nothing was changed".to_owned()))
        }
        password => Ok(password),
    }
}

fn ask_password() -> Result<String, Failure> {
    let failed = |error: io::Error| Failure::local("cannot read the password", &error);
    if !io::stdin().is_terminal() {
        return read_line().map_err(failed);
    }
    let ask = |prompt: &str| {
        let _ = write!(io::stderr().lock(), "{prompt}");
        let answer = crate::terminal::without_echo(read_line);
        complain!("");
        answer.map_err(failed)
    };
    let first = ask("Password: ")?;
    if ask("The same again: ")? != first {
        return Err(Failure::Usage("the two passwords differ; nothing was changed".to_owned()));
    }
    Ok(first)
}

/// One line of standard input without its end.
fn read_line() -> io::Result<String> {
    let mut line = String::new();
    let limit = PASSWORD_BYTES_MAX as u64 + 1;
    io::stdin().lock().take(limit).read_line(&mut line)?;
    let text = line.trim_end_matches(['\n', '\r']);
    if text.len() > PASSWORD_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is longer than 1024 bytes"));
    }
    Ok(text.to_owned())
}
