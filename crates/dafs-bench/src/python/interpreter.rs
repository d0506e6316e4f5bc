//! The process that runs Python.

use super::{Load, word};
use crate::child::Process;
use crate::files::FILE_BYTES;
use crate::report::Sample;
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The system's Python, with the package from this repository and the extension module that was
/// built beside this program.
pub(crate) struct Interpreter {
    packages: TempDir,
}

impl Interpreter {
    /// `None` where there is no Python, or no module for it.
    pub(crate) fn find() -> Result<Option<Self>> {
        let here = std::env::current_exe()?;
        let module = here.with_file_name("lib_dafs.so");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dafs-python/python/dafs");
        let sources = sources.canonicalize().context("the Python package is not there")?;
        let packages = tempfile::Builder::new().prefix("dafs-bench-python").tempdir()?;
        let package = packages.path().join("dafs");
        std::fs::create_dir(&package)?;
        for entry in std::fs::read_dir(sources)? {
            let entry = entry?;
            symlink(entry.path(), package.join(entry.file_name()))?;
        }
        symlink(module, package.join("_dafs.abi3.so"))?;
        let this = Self { packages };
        let found = this.command().args(["-c", "import dafs"]).stderr(Stdio::null()).status();
        Ok(found.is_ok_and(|status| status.success()).then_some(this))
    }

    /// The folder with our package, for `PYTHONPATH`.
    pub(crate) fn packages(&self) -> &Path {
        self.packages.path()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", self.packages.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    pub(super) fn run(&self, plan: &Plan, process: &Process, load: &Load) -> Result<Sample> {
        let mut child = self
            .command()
            .args(["-c", include_str!("reads.py"), &process.address, word(load.transport)])
            .args([load.memory.name(), &load.bytes.to_string(), &FILE_BYTES.to_string()])
            .arg(plan.milliseconds.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start Python")?;
        let sample = talk(&mut child, process, load);
        drop(child.stdin.take());
        let status = child.wait()?;
        let sample = sample?;
        ensure!(status.success(), "Python ended with {status}");
        Ok(sample)
    }
}

/// Starts the load when the child is ready, and reads its result.
fn talk(child: &mut Child, process: &Process, load: &Load) -> Result<Sample> {
    let mut said = BufReader::new(child.stdout.take().context("the child has no output")?).lines();
    let mut listen = || said.next().context("Python has nothing to say")?.context("a broken pipe");
    ensure!(listen()? == "ready", "Python is not ready");
    let before = (cpu::process_time(Some(child.id()))?, cpu::process_time(Some(process.id()))?);
    child.stdin.as_mut().context("the child has no input")?.write_all(b"go\n")?;
    let words = listen()?;
    let (operations, elapsed) = words.split_once(' ').context("half an answer")?;
    let operations = operations.parse()?;
    Ok(Sample {
        operations,
        bytes: operations * load.bytes as u64,
        elapsed: Duration::from_secs_f64(elapsed.parse()?),
        client_cpu: cpu::process_time(Some(child.id()))? - before.0,
        server_cpu: cpu::process_time(Some(process.id()))? - before.1,
    })
}
