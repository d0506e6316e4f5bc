//! `dafs run`: starts an unmodified program, with files of a server below a prefix.
//!
//! The work is done in the program itself, by a library that interposes the C library.

use crate::cli::{SessionOptions, TransportName};
use crate::failure::Failure;
use crate::limits::{DEADLINE_SECONDS, RECOVERY_SECONDS};
use clap::Args;
use dafs_client::DafsUrl;
use dafs_client::program::{Unserved, User, unserved};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The file name of the library.
const LIBRARY: &str = "libdafs_preload.so";

/// Run a program, with directories of servers in its name space
///
/// The program sees the directory of the URL below the prefix, which need not exist. So do the
/// programs that it starts. There is no mount. Programs that are linked statically or run with
/// other rights than yours cannot be served, and the command says so.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Serve a directory below a prefix: /PREFIX=dafs://HOST[:PORT]/PATH
    #[arg(long, value_name = "PREFIX=URL", required = true, value_parser = place)]
    at: Vec<(String, DafsUrl)>,
    /// Leave a path below a prefix to the local file system
    #[arg(long, value_name = "PATH")]
    bypass: Vec<PathBuf>,
    /// Append to a file a report of the calls served and not served, a line for each process; - is
    /// standard error
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Parses the value of `--at`.
fn place(text: &str) -> Result<(String, DafsUrl), String> {
    let (prefix, url) =
        text.split_once('=').ok_or("write it as /PREFIX=dafs://HOST[:PORT]/PATH")?;
    if !prefix.starts_with('/') || prefix.contains('\n') || prefix.trim_matches('/').is_empty() {
        return Err(format!("{prefix:?} is no absolute path other than the root"));
    }
    if prefix.split('/').any(|part| part == "." || part == "..") {
        return Err(format!("{prefix:?} has . or .. in it"));
    }
    Ok((prefix.to_owned(), DafsUrl::parse(url).map_err(|error| error.to_string())?))
}

impl Run {
    pub(crate) fn run(&self, session: &SessionOptions) -> Result<(), Failure> {
        if session.wake.is_some() {
            return Err(Failure::Usage("dafs run has no --wake".to_owned()));
        }
        let library = library()?;
        let (name, arguments) = self
            .program
            .split_first()
            .ok_or_else(|| Failure::Usage("name a program to run".to_owned()))?;
        let program = self.find(name)?;
        can_be_served(&program)?;
        let mut command = Command::new(&program);
        command.arg0(name).args(arguments);
        self.set_environment(&mut command, session, &library)?;
        let error = command.exec();
        Err(Failure::local(program.display(), &error))
    }

    fn set_environment(
        &self,
        command: &mut Command,
        session: &SessionOptions,
        library: &Path,
    ) -> Result<(), Failure> {
        // Settings of an outer dafs run must not apply to this one.
        for (name, _) in std::env::vars_os() {
            if name.as_bytes().starts_with(b"DAFS_RUN_") {
                command.env_remove(name);
            }
        }
        command.env("LD_PRELOAD", preload(library));
        let at: Vec<String> =
            self.at.iter().map(|(prefix, url)| format!("{prefix}={url}")).collect();
        command.env("DAFS_RUN_AT", at.join("\n"));
        let mut bypass = Vec::new();
        for path in &self.bypass {
            bypass.push(
                std::path::absolute(path)
                    .map_err(|error| Failure::local(path.display(), &error))?,
            );
        }
        let text: Vec<&[u8]> = bypass.iter().map(|path| path.as_os_str().as_bytes()).collect();
        command.env("DAFS_RUN_BYPASS", OsString::from_vec(text.join(&b'\n')));
        match &self.report {
            Some(report) if report.as_os_str() != "-" => {
                let absolute = std::path::absolute(report)
                    .map_err(|error| Failure::local(report.display(), &error))?;
                command.env("DAFS_RUN_REPORT", absolute);
            }
            Some(report) => {
                command.env("DAFS_RUN_REPORT", report);
            }
            None => {}
        }
        match session.transport {
            TransportName::Auto => {}
            TransportName::Iwarp => drop(command.env("DAFS_RUN_TRANSPORT", "iwarp")),
            TransportName::Shm => drop(command.env("DAFS_RUN_TRANSPORT", "shm")),
            TransportName::Verbs => drop(command.env("DAFS_RUN_TRANSPORT", "verbs")),
        }
        command.env("DAFS_RUN_DEADLINE", session.deadline.unwrap_or(DEADLINE_SECONDS).to_string());
        command.env("DAFS_RUN_RECOVERY", session.recovery.unwrap_or(RECOVERY_SECONDS).to_string());
        if session.checksums {
            command.env("DAFS_RUN_CHECKSUMS", "1");
        }
        self.at.iter().try_for_each(|(_, url)| session.check_fence_id(url))?;
        if let Some(fence_id) = &session.fence_id {
            command.env("DAFS_RUN_FENCE_ID", fence_id);
        }
        if let Some(user) = self.user(session)? {
            command.env("DAFS_RUN_USER", user);
        }
        if let Some(path) = &session.password_file {
            let absolute = std::path::absolute(path)
                .map_err(|error| Failure::local(path.display(), &error))?;
            command.env("DAFS_RUN_PASSWORD_FILE", absolute);
        }
        Ok(())
    }
}

impl Run {
    /// The user for all servers. There is one password, which must not reach another user's server.
    fn user<'a>(&'a self, session: &'a SessionOptions) -> Result<Option<&'a str>, Failure> {
        let user = session.session_user.as_deref().or(self.at[0].1.user());
        let is_same = |url: &DafsUrl| {
            url.user().is_none() && session.session_user.is_some() || url.user() == user
        };
        match self.at.iter().find(|(_, url)| !is_same(url)) {
            None => Ok(user),
            Some((prefix, url)) => Err(Failure::Usage(format!(
                "{prefix} is to be served to {}, and something else to {}: there is one user and one \
                 password for all; put the same user into every URL, or name it with --user",
                url.user().unwrap_or("nobody in particular"),
                user.unwrap_or("nobody in particular"),
            ))),
        }
    }
}

impl Run {
    /// The file of a program, found as a shell does. A served file is skipped in `$PATH`, and is an
    /// error as a path.
    fn find(&self, name: &OsStr) -> Result<PathBuf, Failure> {
        let is_program = |path: &Path| {
            path.metadata()
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        if name.as_bytes().contains(&b'/') {
            let path = PathBuf::from(name);
            return match path.metadata() {
                _ if self.serves(&path) => Err(Failure::Failed(format!(
                    "{} lies on the server, and programs are started from this machine: copy it out first, or \
                     leave its path to this machine with --bypass",
                    path.display()
                ))),
                Err(error) => Err(Failure::local(path.display(), &error)),
                Ok(_) if is_program(&path) => Ok(path),
                Ok(_) => Err(Failure::Failed(format!("{} is no program", path.display()))),
            };
        }
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        std::env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|path| !self.serves(path) && is_program(path))
            .ok_or_else(|| {
                Failure::Failed(format!("{}: there is no such program in $PATH", name.display()))
            })
    }

    /// True if a path is below a prefix, by its text or through its links.
    fn serves(&self, path: &Path) -> bool {
        let serves = |path: &Path| {
            let is_below = |place: &Path| path.starts_with(plain(place));
            self.at.iter().any(|(prefix, _)| is_below(Path::new(prefix)))
                && !self.bypass.iter().any(|place| is_below(place))
        };
        serves(&plain(path)) || path.canonicalize().is_ok_and(|path| serves(&path))
    }
}

/// An absolute path with `..` resolved lexically, as in the library.
fn plain(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut plain = PathBuf::new();
    for part in absolute.components() {
        match part {
            // The parent of the root is the root.
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// The value of `LD_PRELOAD` with a library before those that are preloaded now.
pub(super) fn preload(library: &Path) -> OsString {
    let mut preload = library.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_PRELOAD").filter(|more| !more.is_empty()) {
        preload.push(":");
        preload.push(more);
    }
    preload
}

/// The library, if the loader can be told of it.
pub(super) fn library() -> Result<PathBuf, Failure> {
    let library = find_library()?;
    if library.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        return Err(Failure::Failed(format!(
            "{} cannot be preloaded: the loader takes blanks and colons for the ends of paths; put it \
             elsewhere, and name it with DAFS_PRELOAD_LIBRARY",
            library.display()
        )));
    }
    Ok(library)
}

/// The library: where the user says, beside this command, or where it is installed.
fn find_library() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("DAFS_PRELOAD_LIBRARY") {
        let path = PathBuf::from(path);
        return path.is_file().then_some(path.clone()).ok_or_else(|| {
            Failure::Usage(format!(
                "DAFS_PRELOAD_LIBRARY says {}, which is no file",
                path.display()
            ))
        });
    }
    let own = std::env::current_exe().map_err(|error| Failure::local("/proc/self/exe", &error))?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = [beside.join(LIBRARY), beside.join("../lib/dafs").join(LIBRARY)];
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        Failure::Failed(format!(
            "there is no {LIBRARY} beside {} nor in ../lib/dafs; name it with DAFS_PRELOAD_LIBRARY",
            own.display()
        ))
    })
}

/// The file to blame, the program or its interpreter, and the reason, if it does not load the library.
pub(super) fn unserved_program(program: &Path) -> Result<Option<(PathBuf, Unserved)>, Failure> {
    let has_capabilities =
        |path: &Path| rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let found = unserved(program, User { uid, gid, has_capabilities });
    found.map_err(|(path, error)| Failure::local(path.display(), &error))
}

/// Checks that a program, and its interpreter, load the library.
fn can_be_served(program: &Path) -> Result<(), Failure> {
    let Some((path, why)) = unserved_program(program)? else { return Ok(()) };
    let path = path.display();
    Err(Failure::Failed(match why {
        Unserved::Rights => format!(
            "{path} runs with other rights than yours (setuid, setgid or capabilities), and such programs take no \
             library from their users; use dafs mount, or dafs get and put"
        ),
        Unserved::Static => format!(
            "{path} is linked statically: nothing can be put between it and the kernel; use dafs mount, or dafs \
             get and put"
        ),
        Unserved::Foreign => format!("{path} is a program for another kind of machine"),
        Unserved::Nested => format!("{path} is a script of a script, and so on"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert!(place("/a=dafs://h/x").is_ok());
        for text in
            ["/a", "a=dafs://h/", "/=dafs://h/", "//=dafs://h/", "/a/../b=dafs://h/", "/a=nfs://h/"]
        {
            assert!(place(text).is_err(), "{text}");
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        session: SessionOptions,
        #[command(flatten)]
        run: Run,
    }

    #[test]
    fn no_program_is_started_in_place_of_one_that_is_served() {
        let work = std::env::temp_dir().join(format!("dafs-run-{}", std::process::id()));
        let work = std::path::absolute(work).unwrap();
        for place in ["here/local", "there"] {
            std::fs::create_dir_all(work.join(place)).unwrap();
            std::fs::write(work.join(place).join("tool"), "").unwrap();
        }
        std::os::unix::fs::symlink(work.join("here"), work.join("there/link")).unwrap();
        let at = format!("--at={}=dafs://h/", work.join("here").display());
        let bypass = format!("--bypass={}", work.join("here/local").display());
        let serves = |options: &[&str], path: &str| {
            let words = ["x"].iter().chain(options).chain(&["true"]);
            <Line as clap::Parser>::parse_from(words).run.serves(&work.join(path))
        };
        for path in ["here/local/tool", "there/../here/local/tool", "there/link/local/tool"] {
            assert!(serves(&[&at], path), "{path}");
            assert!(!serves(&[&at, &bypass], path), "{path}");
        }
        assert!(!serves(&[&at], "there/tool") && !serves(&[&at], "here/../there/tool"));
        std::fs::remove_dir_all(work).unwrap();
    }

    #[test]
    fn one_user_for_all() {
        let user = |words: &[&str]| {
            let words = ["x"].iter().chain(words).chain(&["true"]);
            let line = <Line as clap::Parser>::parse_from(words);
            line.run.user(&line.session).ok().map(|user| user.map(str::to_owned))
        };
        let (anne, bob, none) =
            ("--at=/a=dafs://anne@h/", "--at=/b=dafs://bob@i/", "--at=/c=dafs://j/");
        assert_eq!(user(&[anne]), Some(Some("anne".to_owned())));
        assert_eq!(user(&[none]), Some(None));
        assert_eq!(user(&[none, "--user=eve"]), Some(Some("eve".to_owned())));
        assert_eq!(user(&[anne, bob]), None);
        assert_eq!(user(&[none, anne]), None);
        assert_eq!(user(&[anne, none]), None);
        assert_eq!(user(&[anne, "--user=bob"]), None);
    }
}
