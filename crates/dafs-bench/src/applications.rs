//! Whole applications, unchanged: on local files, on a mount, under `dafs run`, and one through the
//! Python package. The work of each stands in a script of its own (`applications/`).
//!
//! Invariants
//! * The ways of one application run one after the other within a round, each in an empty folder.
//! * Every run compares the files that the application has left on the server with the expected
//!   ones.

use crate::folder::Folder;
use crate::fronts::{Front, ROOT, Site, Way, in_own_mounts, missing, output};
use crate::python::Interpreter;
use crate::report::{Case, Report, Sample};
use crate::signs::{self, Predicted, Sign};
use crate::{Plan, database, peer};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs are long, so a few rounds must do.
const ROUNDS_MAX: usize = 3;

/// The Python packages required besides ours.
const PACKAGES: [&str; 2] = ["fsspec", "pyarrow"];

struct Application {
    name: &'static str,
    script: &'static str,
    ways: &'static [Way],
    /// Programs that it consists of.
    programs: &'static [&'static str],
}

const EACH: &[Way] = &[Way::Local, Way::Mount, Way::Run];

const APPLICATIONS: [Application; 8] = [
    Application { name: "sqlite3", script: "sqlite.sh", ways: EACH, programs: &["sqlite3"] },
    Application {
        name: "Berkeley DB",
        script: "berkeley_db.sh",
        ways: EACH,
        programs: &["db5.3_load", "db5.3_dump", "db5.3_verify"],
    },
    Application { name: "git", script: "git.sh", ways: EACH, programs: &["git", "perl"] },
    Application { name: "tar", script: "tar.sh", ways: EACH, programs: &["tar", "perl"] },
    Application { name: "rsync", script: "rsync.sh", ways: EACH, programs: &["rsync", "perl"] },
    Application {
        name: "small files",
        script: "small_files.sh",
        ways: EACH,
        programs: &["perl", "md5sum"],
    },
    Application {
        name: "PostgreSQL",
        script: "postgresql.sh",
        // Its processes share mapped memory, which `dafs run` does not support.
        ways: &[Way::Local, Way::Mount],
        programs: &["pgbench", "psql", "setpriv"],
    },
    Application {
        name: "pyarrow",
        script: "parquet.py",
        ways: &[Way::Local, Way::Mount, Way::Fsspec],
        programs: &["python3"],
    },
];

/// The applications and the programs on Berkeley DB, one by one: words for [`Plan::only`] that name one each.
pub(crate) fn each() -> impl Iterator<Item = String> {
    let names = APPLICATIONS.into_iter().map(|application| format!("{}, ", application.name));
    names.chain([database::ROWS.to_owned()])
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    if let Some(reason) = missing() {
        report.skip("applications", &reason);
        return Ok(());
    }
    in_own_mounts(|| measure_inside(plan, report))
}

fn measure_inside(plan: &Plan, report: &mut Report) -> Result<()> {
    let (mut measured, mut signs) = (Vec::new(), Vec::new());
    for application in &APPLICATIONS {
        let mut cases = cases(application);
        cases.retain(|(case, _)| case.name.contains(&plan.only));
        if cases.is_empty() {
            continue;
        }
        let absent = application.programs.iter().find(|program| peer::find(program).is_none());
        if let Some(program) = absent {
            let reason = format!("there is no {program}; run: scripts/setup.sh bench");
            report.skip(application.name, &reason);
            continue;
        }
        match rounds(plan, application, &mut cases, report) {
            Ok(predicted) => {
                measured.extend(cases.into_iter().map(|(case, _)| case));
                signs.extend(predicted);
            }
            Err(error) => report.failed(application.name, &error),
        }
    }
    measured.retain(|case| !case.samples.is_empty());
    if !measured.is_empty() {
        report.add_programs("applications, against local files", &measured);
        signs::tell(report, &signs);
    }
    database::measure(plan, report)
}

/// Measures all cases of an application, and returns their predicted signs.
fn rounds(
    plan: &Plan,
    application: &Application,
    cases: &mut [(Case, Way)],
    report: &mut Report,
) -> Result<Vec<Sign>> {
    let Some(stage) = Stage::new(plan, application, report)? else { return Ok(Vec::new()) };
    for _ in 0..plan.rounds.min(ROUNDS_MAX) {
        for (case, way) in cases.iter_mut() {
            case.samples.push(stage.run(*way).with_context(|| case.name.clone())?);
        }
    }
    let signs = stage.predicted().map(|predicted| {
        let signs = cases.iter().filter_map(|(case, way)| predicted.sign(&case.name, *way, false));
        signs.collect()
    });
    Ok(signs::if_any(signs))
}

fn cases(application: &Application) -> Vec<(Case, Way)> {
    let name = |way: Way| format!("{}, {}", application.name, way.name());
    let case = |way: &Way| {
        let floor = (*way != Way::Local).then(|| name(Way::Local).into());
        (Case { floor, ..Case::new(name(*way), None, None) }, *way)
    };
    application.ways.iter().map(case).collect()
}

/// The state that all runs of one application share.
struct Stage {
    site: Site,
    inputs: Folder,
    scale: u64,
    script: PathBuf,
    /// The interpreter of the script.
    interpreter: PathBuf,
    python: Option<Interpreter>,
}

/// The paths of a run: its folder as the application sees it, and on the server.
struct Places<'a> {
    seen: &'a Path,
    served: &'a Path,
    scratch: &'a Path,
    url: Option<String>,
}

impl Stage {
    /// `None` when a program is missing, which is noted.
    fn new(plan: &Plan, application: &Application, report: &mut Report) -> Result<Option<Self>> {
        let (mut interpreter, mut python) = (PathBuf::from("bash"), None);
        if application.script.ends_with(".py") {
            let found = (virtual_environment(), Interpreter::find()?);
            let (Ok(program), Some(ours)) = found else {
                let reason = format!(
                    "it needs what this builds: cargo build --release -p dafs-python, and what pip can get: {}",
                    PACKAGES.join(", ")
                );
                report.skip(application.name, &reason);
                return Ok(None);
            };
            (interpreter, python) = (program, Some(ours));
        }
        let place = plan.disk.clone().unwrap_or_else(std::env::temp_dir);
        let this = Self {
            site: Site::start(&place)?,
            inputs: Folder::make(&place)?,
            scale: plan.scale,
            script: Path::new(ROOT).join("crates/dafs-bench/applications").join(application.script),
            interpreter,
            python,
        };
        let here = this.inputs.path();
        let places = Places { seen: here, served: here, scratch: here, url: None };
        this.phase(&this.site.front(Way::Local)?, "input", &places)?;
        Ok(Some(this))
    }

    fn run(&self, way: Way) -> Result<Sample> {
        let served = self.site.export.join("work");
        std::fs::create_dir(&served)?;
        let scratch =
            tempfile::Builder::new().prefix("scratch").tempdir_in(self.site.folder.path())?;
        let front = self.site.front(way)?;
        let seen = front.root.join("work");
        let url = match way {
            Way::Fsspec => Some(format!("{}work", self.site.url()?)),
            _ => None,
        };
        let places = Places { seen: &seen, served: &served, scratch: scratch.path(), url };
        self.phase(&front, "prepare", &places)?;
        let sample = Sample::of(
            || self.site.times(&front),
            || self.phase(&front, "run", &places).map(|()| (1, 0)),
        )?;
        drop(front);
        self.phase(&self.site.front(Way::Local)?, "check", &places)?;
        std::fs::remove_dir_all(&served)?;
        Ok(sample)
    }

    /// The predictions from a run that is watched, on local files.
    fn predicted(&self) -> Result<Predicted> {
        let work = self.site.export.join("work");
        std::fs::create_dir(&work)?;
        let scratch =
            tempfile::Builder::new().prefix("scratch").tempdir_in(self.site.folder.path())?;
        let front = self.site.front(Way::Local)?;
        let places = Places { seen: &work, served: &work, scratch: scratch.path(), url: None };
        self.phase(&front, "prepare", &places)?;
        let answer = self.site.folder.path().join("advise.json");
        let mut command = signs::watching(&work, &answer)?;
        command.arg(&self.interpreter);
        self.phase_by(command, "run", &places)?;
        self.phase(&front, "check", &places)?;
        std::fs::remove_dir_all(&work)?;
        Predicted::read(&answer)
    }

    fn phase(&self, front: &Front, phase: &str, places: &Places<'_>) -> Result<()> {
        self.phase_by(front.command(&self.interpreter), phase, places)
    }

    /// Runs a phase by a command that ends with the interpreter.
    fn phase_by(&self, mut command: Command, phase: &str, places: &Places<'_>) -> Result<()> {
        command.arg(&self.script).arg(phase).stdout(Stdio::null());
        command.env("D", places.seen).env("E", places.served).env("W", self.inputs.path());
        command.env("T", places.scratch).env("SCALE", self.scale.to_string());
        if let Some(python) = &self.python {
            command.env("PYTHONPATH", python.packages()).env("PYTHONDONTWRITEBYTECODE", "1");
        }
        if let Some(url) = &places.url {
            command.env("DAFS_URL", url);
        }
        let status = command.status()?;
        ensure!(status.success(), "{} {phase} ended with {status}", self.script.display());
        Ok(())
    }
}

/// A Python with the packages. It is kept in cargo's target directory, where the tests have it too.
fn virtual_environment() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(2).context("this program lies in no folder of cargo's")?;
    let folder = target.join("python-venv");
    let python = folder.join("bin/python");
    if !python.exists() {
        output(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let imports = format!("import {}", PACKAGES.join(", "));
    let has_all = Command::new(&python).args(["-c", &imports]).stderr(Stdio::null()).status()?;
    if !has_all.success() {
        let mut pip = Command::new(folder.join("bin/pip"));
        output(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(PACKAGES))?;
    }
    Ok(python)
}
