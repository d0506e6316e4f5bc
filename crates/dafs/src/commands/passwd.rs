//! `dafs passwd`: adds a user to a server's password file, or changes one.
//!
//! Invariants
//! * The file is replaced atomically, and never readable by others.
//! * The password is neither shown nor taken from the command line.

use crate::commands::serve::set_umask;
use crate::failure::Failure;
use crate::limits::PASSWORD_BYTES_MAX;
use crate::output::complain;
use dafs_engine::{PasswordFileError, password_line, password_text};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Set the password of a user in a server's password file
///
/// The password is asked for on the terminal, or is the first line of standard input. A running
/// server reads the file when it starts.
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

fn user_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(':') || text.starts_with('#') {
        return Err("a name is not empty, has no ':' and does not begin with '#'".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("a name has no control characters".to_owned());
    }
    Ok(text.to_owned())
}

impl Passwd {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        set_umask();
        let password = ask_password()?;
        if password.is_empty() {
            return Err(Failure::Usage("the password is empty; nothing was changed".to_owned()));
        }
        let line = password_line(&self.name, self.uid, self.gid, &self.groups, password.as_bytes());
        let failed = |error: io::Error| Failure::local(self.file.display(), &error);
        // A file that others can write must not become trusted.
        let old = match password_text(&self.file) {
            Err(PasswordFileError::Read { error, .. })
                if error.kind() == io::ErrorKind::NotFound =>
            {
                String::new()
            }
            other => other.map_err(|error| Failure::Usage(error.to_string()))?,
        };
        replace(&self.file, &with_line(&old, &self.name, &line)).map_err(failed)
    }
}

/// The file's text with the user's line replaced or added. Comments and the rest stay.
fn with_line(old: &str, name: &str, line: &str) -> String {
    let mut text = String::new();
    let mut placed = false;
    for known in old.lines() {
        if known.split_once(':').is_some_and(|(user, _)| user == name) {
            if !std::mem::replace(&mut placed, true) {
                text.push_str(line);
                text.push('\n');
            }
            continue;
        }
        text.push_str(known);
        text.push('\n');
    }
    if !placed {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Writes a temporary file with mode 0600, and renames it into place.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // A symlink stays, and its target is replaced: that was read.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}.new", std::process::id()));
    let aside = PathBuf::from(aside);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, path)
    };
    write().inspect_err(|_| {
        // The first error matters more than one from the cleanup.
        let _ = fs::remove_file(&aside);
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_line_replaces_the_one_of_its_user_only() {
        let old = "# users\nanna:1:1::x\nannabel:2:2::y\n";
        let expected = "# users\nanna:9:9::z\nannabel:2:2::y\n";
        assert_eq!(with_line(old, "anna", "anna:9:9::z"), expected);
        assert_eq!(with_line("", "bert", "bert:1:1::x"), "bert:1:1::x\n");
    }

    #[test]
    fn the_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        fs::write(&path, "old").unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
