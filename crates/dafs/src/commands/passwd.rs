//! `dafs passwd`: adds a user to a server's password file, or changes one.
//!
//! Invariants
//! * The file is replaced atomically, and never readable by others.
//! * The password is neither shown nor taken from the command line.

use crate::commands::serve::set_umask;
use crate::failure::Failure;
use crate::limits::PASSWORD_BYTES_MAX;
use crate::output::complain;
use dafs_engine::{
    PasswordFileError, check_user_name, password_line, password_lines, replace_password_line,
};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;

/// Set the password of a user in a server's password file
///
/// The password is asked for on the terminal, or is the first line of standard input. A user who is in the
/// file keeps the ids that no option names; a new one needs --uid and --gid. A running server reads
/// the file again at `dafs reload`. `dafs user` changes users of a running server at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Passwd {
    /// The password file; made if it does not exist
    file: PathBuf,
    /// The name that clients give with --user
    #[arg(value_name = "USER", value_parser = user_name)]
    name: String,
    /// The user id that the files are used with
    #[arg(long)]
    uid: Option<u32>,
    /// The group id that the files are used with
    #[arg(long)]
    gid: Option<u32>,
    /// All further group ids; none without a value
    #[arg(long, value_delimiter = ',', value_name = "GID,...", num_args = 0..=1)]
    groups: Option<Vec<u32>>,
}

/// Parses the name of a user.
pub(super) fn user_name(text: &str) -> Result<String, String> {
    check_user_name(text)?;
    Ok(text.to_owned())
}

impl Passwd {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        set_umask();
        let (uid, gid, groups) = self.ids()?;
        let password = new_password()?;
        let line = password_line(&self.name, uid, gid, &groups, password.as_bytes());
        replace_password_line(&self.file, &self.name, Some(&line)).map_err(|error| match error {
            PasswordFileError::Write { .. } => Failure::Failed(error.to_string()),
            error => Failure::Usage(error.to_string()),
        })
    }

    /// Returns the ids for the line: user, group, further groups. The file has those that no option names.
    fn ids(&self) -> Result<(u32, u32, Vec<u32>), Failure> {
        let lines = match password_lines(&self.file) {
            Err(PasswordFileError::Read { error, .. })
                if error.kind() == io::ErrorKind::NotFound =>
            {
                Vec::new()
            }
            lines => lines.map_err(|error| Failure::Usage(error.to_string()))?,
        };
        // Of several lines the last one is in force.
        let old = lines.into_iter().rfind(|line| line.name == self.name).map(|line| line.cred);
        let uid = self.uid.or(old.as_ref().map(|old| old.uid));
        let gid = self.gid.or(old.as_ref().map(|old| old.gid));
        let groups = self.groups.clone().or(old.map(|old| old.groups.to_vec()));
        match (uid, gid) {
            (Some(uid), Some(gid)) => Ok((uid, gid, groups.unwrap_or_default())),
            _ => Err(Failure::Usage(format!(
                "{} has no user {:?}: give --uid and --gid",
                self.file.display(),
                self.name
            ))),
        }
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
