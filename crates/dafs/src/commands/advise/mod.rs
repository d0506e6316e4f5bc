//! `dafs advise`: watches a program, or reads what it does, and says how long it would take with its
//! files on a server, why, and which options gain.
//!
//! | module | purpose |
//! |---|---|
//! | `observe` | runs the program, and reads the counts of its calls |
//! | `workload` | the work of a program, and descriptions of it |
//! | `measure`, `server`, `cache` | the constants of this machine and of a server, kept for the next time |
//! | `machine`, `model` | constants, and what follows from them: pure |
//! | `words` | the answer in words |

mod cache;
mod machine;
mod measure;
mod model;
#[cfg(test)]
mod model_prop;
mod observe;
mod server;
mod signals;
mod words;
mod workload;

use crate::cli::SessionOptions;
use crate::failure::Failure;
use crate::output::{complain, say};
use crate::remote::RemoteUrl;
use clap::Args;
use machine::Machine;
use model::Model;
use observe::Observation;
use serde_json::json;
use signals::Signalled;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use workload::Workload;

/// Watch a program on local files, and predict its time with its files on a server
///
/// The program runs as it would alone, on files of this machine or of a mount. Afterwards the command says
/// what limits it, how long it would take by NFS, dafs run, dafs mount and the library, and which
/// options gain. The answer goes to standard error, after the program's own output. The exit status is
/// the program's: 127 if there is none of that name, 126 if it cannot be run.
///
/// Before that, the costs of calls are measured once for each machine and server, which takes some
/// seconds. They are kept in $XDG_CACHE_HOME/dafs/advise.json.
#[derive(Debug, Args)]
pub(crate) struct Advise {
    /// Read a description of the work (TOML), in place of watching a program; the answer goes to
    /// standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["program", "below", "save"])]
    workload: Option<PathBuf>,
    /// Measure this server, in that directory; without it, one that is started on this host for the
    /// measurement
    #[arg(long, value_name = "URL")]
    server: Option<RemoteUrl>,
    /// Count only files below this directory; without it all but those of the system, such as /usr
    #[arg(long, value_name = "DIR")]
    below: Option<PathBuf>,
    /// Measure even if the costs are known
    #[arg(long)]
    measure: bool,
    /// Write the work that was seen as a description, for --workload
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the answer to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Answer by one JSON object
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(
        required_unless_present = "workload",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

impl Advise {
    pub(crate) fn run(&self, session: &SessionOptions) -> Result<(), Failure> {
        if let Some(option) = session.client_only().filter(|_| self.server.is_none()) {
            return Err(Failure::Usage(format!(
                "{option} is for a server; name one with --server"
            )));
        }
        let described = self.workload.as_deref().map(Workload::load).transpose()?;
        let program = self.program.first().map(|name| observe::find(name)).transpose()?;
        // A file that cannot be written is known before the program runs.
        let output = self.output.as_deref().map(|path| {
            let made = File::create(path).map_err(|error| Failure::local(path.display(), &error));
            made.map(|file| (path, file))
        });
        let mut output = output.transpose()?;
        let signals = Signalled::watch()?;
        let machine = self.machine(session, &signals)?;
        if let Some(workload) = described {
            let name = self.workload.as_deref().unwrap_or(Path::new(""));
            let text = self.answer(&name.display().to_string(), &workload, None, &machine)?;
            return match &mut output {
                Some((path, file)) => written(path, file, &text),
                None => say!("{}", text.trim_end()),
            };
        }
        let program = program.ok_or_else(|| Failure::Usage("name a program to run".to_owned()))?;
        let outcome = observe::run(&program, &self.program, self.below.as_deref(), &signals)?;
        let told = match &outcome.seen {
            Ok((observation, workload)) => self.tell(observation, workload, &machine, &mut output),
            Err(why) => {
                complain!("dafs: {why}");
                Ok(())
            }
        };
        // The program's status counts, whatever became of the answer.
        if let Some(text) = told.as_ref().err().and_then(Failure::text) {
            complain!("dafs: {text}");
        }
        ended(outcome.status)
    }

    /// The constants: those that are known, or new ones.
    fn machine(&self, session: &SessionOptions, signals: &Signalled) -> Result<Machine, Failure> {
        let place = cache::place();
        let server = self.server.as_ref();
        let known = match self.measure {
            true => None,
            false => cache::find(place.as_deref(), &measure::identity(session, server)),
        };
        if let Some(machine) = known {
            return Ok(machine);
        }
        if session.verbose {
            complain!("dafs: measuring the costs of calls, once");
        }
        let machine = measure::measure(session, server, signals)?;
        cache::keep(place.as_deref(), &machine);
        Ok(machine)
    }

    /// Tells what was seen.
    fn tell(
        &self,
        observation: &Observation,
        workload: &Workload,
        machine: &Machine,
        output: &mut Option<(&Path, File)>,
    ) -> Result<(), Failure> {
        let words: Vec<_> = self.program.iter().map(|word| word.to_string_lossy()).collect();
        let text = self.answer(&words.join(" "), workload, Some(observation), machine)?;
        match output {
            Some((path, file)) => written(path, file, &text)?,
            None => complain!("{}", text.trim_end()),
        }
        self.save.as_deref().map_or(Ok(()), |path| workload.save(path))
    }

    fn answer(
        &self,
        name: &str,
        workload: &Workload,
        observation: Option<&Observation>,
        machine: &Machine,
    ) -> Result<String, Failure> {
        let verdict = Model { workload, machine }.judge();
        if self.json {
            let answer = json!({
                "name": name,
                "workload": workload,
                "observation": observation,
                "class": verdict.class,
                "predictions": verdict.predictions,
                "advice": verdict.advice,
                "machine": machine,
            });
            return Ok(answer.to_string());
        }
        let name = name.escape_debug().to_string();
        words::tell(&name, workload, observation, machine, &verdict)
            .map_err(|error| Failure::Failed(error.to_string()))
    }
}

fn written(path: &Path, file: &mut File, text: &str) -> Result<(), Failure> {
    writeln!(file, "{}", text.trim_end()).map_err(|error| Failure::local(path.display(), &error))
}

/// The program's own end as that of this command: its exit status, or 128 and the signal, as in
/// shells.
fn ended(status: ExitStatus) -> Result<(), Failure> {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    match u8::try_from(code).unwrap_or(u8::MAX) {
        0 => Ok(()),
        code => Err(Failure::Ended { code, text: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        advise: Advise,
    }

    fn line(words: &[&str]) -> Result<Advise, clap::Error> {
        let words = ["x"].iter().chain(words);
        <Line as clap::Parser>::try_parse_from(words).map(|line| line.advise)
    }

    #[test]
    fn a_program_or_a_description_is_needed_and_not_both() {
        assert!(line(&[]).is_err() && line(&["--json"]).is_err());
        assert!(line(&["--workload", "a", "true"]).is_err());
        assert!(line(&["--workload", "a", "--save", "b"]).is_err());
        assert!(line(&["--workload", "a", "--server", "nfs://h/"]).is_ok());
        let advise = line(&["--json", "--", "sqlite3", "-cmd", "--measure"]).unwrap();
        assert_eq!(advise.program, ["sqlite3", "-cmd", "--measure"]);
        assert!(advise.json && !advise.measure);
    }

    #[test]
    fn the_end_of_the_program_is_that_of_the_command() {
        let code = |raw| ended(ExitStatus::from_raw(raw)).err().map(|failure| failure.exit_code());
        assert_eq!((code(0), code(7 << 8), code(9)), (None, Some(7), Some(137)));
    }
}
