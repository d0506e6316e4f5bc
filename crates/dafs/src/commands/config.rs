//! `dafs config`: makes a first configuration file, and checks one without a server.
//!
//! Invariants
//! * A check is the server's own reading of the file. It opens no port and changes no file.
//! * No file is overwritten.

use crate::failure::Failure;
use crate::manual::CONFIG_FILE;
use crate::output::{complain, print, say};
use dafs_server::{Config as Configuration, check_config};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The text of a first configuration file.
const EXAMPLE: &str = include_str!("config/example.toml");

/// Make a configuration file of a server, or check one
#[derive(Debug, clap::Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Check a configuration file, and the files that it names, without starting a server
    ///
    /// A mistake is printed with file, line and remedy, and the exit status is 2. Settings that are
    /// allowed and probably not meant are printed as warnings; with --strict the exit status is 1
    /// then. Run it as the user that runs the server, because it reads the same files.
    Check {
        /// The file
        #[arg(default_value = CONFIG_FILE)]
        file: PathBuf,
        /// Exit with status 1 when there are warnings
        #[arg(long)]
        strict: bool,
    },
    /// Write a first configuration file, with explanations
    ///
    /// A file that exists stays as it is, and the exit status is 1.
    Init {
        /// The file; - prints it instead
        #[arg(default_value = CONFIG_FILE)]
        file: PathBuf,
    },
}

impl Config {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.action {
            Action::Check { file, strict } => check(file, *strict),
            Action::Init { file } if file.as_os_str() == "-" => print(EXAMPLE),
            Action::Init { file } => init(file),
        }
    }
}

fn check(file: &Path, strict: bool) -> Result<(), Failure> {
    let config = Configuration::load(file).map_err(|error| Failure::Usage(error.to_string()))?;
    check_config(&config).map_err(|error| Failure::Usage(error.to_string()))?;
    for warning in &config.warnings {
        complain!("dafs: warning: {warning}");
    }
    let exports = match config.exports.len() {
        1 => "1 export".to_owned(),
        count => format!("{count} exports"),
    };
    match config.warnings.len() {
        0 => say!("{}: right, {exports}", file.display()),
        _ => {
            say!("{}: can be used, {exports}, with the warnings above", file.display())?;
            if strict { Err(Failure::Reported) } else { Ok(()) }
        }
    }
}

fn init(file: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::local(file.display(), &error);
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed)?;
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(file);
    let mut made = made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::Failed(format!(
            "{} exists, and stays as it is; `dafs config init -` prints a first file",
            file.display()
        )),
        _ => failed(error),
    })?;
    let written = made.write_all(EXAMPLE.as_bytes()).and_then(|()| made.sync_all());
    let written = written.inspect_err(|_| {
        // The next try would find half a file, and leave it as it is.
        let _ = std::fs::remove_file(file);
    });
    written.map_err(failed)?;
    say!("{} is made. Next: name your exports in it, then run", file.display())?;
    say!("  dafs config check {}", file.display())?;
    match file == Path::new(CONFIG_FILE) {
        true => say!("  systemctl enable --now dafs"),
        false => say!("  dafs serve --config {}", file.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Configuration {
        let folder = tempfile::tempdir().unwrap();
        let text = text.replace("/srv/projects", &folder.path().display().to_string());
        let path = folder.path().join("dafs.toml");
        std::fs::write(&path, text).unwrap();
        Configuration::load(&path).unwrap()
    }

    #[test]
    fn the_example_is_right_as_it_is_and_with_all_of_its_settings() {
        let plain = load(EXAMPLE);
        assert_eq!(plain.warnings, [""; 0]);
        plain.check_exposure().unwrap();
        let is_setting = |line: &str| {
            line.strip_prefix('#')
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '['))
        };
        let lines = EXAMPLE.lines();
        let all: Vec<&str> =
            lines.map(|line| if is_setting(line) { &line[1..] } else { line }).collect();
        let all = load(&format!("{}\n", all.join("\n")));
        assert!(all.auth.password_file.is_some() && all.tls.is_some() && all.nfs.is_on());
        assert_eq!(all.warnings, [""; 0]);
    }

    #[test]
    fn nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/dafs.toml");
        init(&file).unwrap();
        std::fs::write(&file, "mine").unwrap();
        assert_eq!(init(&file).unwrap_err().exit_code(), 1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}
