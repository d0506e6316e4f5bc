//! gzip of files of the server, by one process and by two.
//!
//! Invariants
//! * Each result is compared with that of the same gzip on local files. That of the program on our
//!   API, whose zlib packs otherwise, is unpacked and compared with the input.
//! * Results are written to files of the client, because the commands of NFS write none to a server.
//!   The program on our API writes them to the server.

use super::stage::Stage;
use super::trials::{Door, Trial};
use crate::fronts::{Front, ROOT, write_log};
use crate::papers::world;
use crate::peer;
use crate::report::Sample;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// The size of both halves together.
const BYTES: u64 = 550 << 20;
/// The client reads ahead from the fifth MiB of a file on, so that small ones would tell nothing.
const BYTES_MIN: u64 = 16 << 20;
const HALVES: [&str; 2] = ["first", "second"];

/// The files of each process.
const BY_ONE: &[&[&str]] = &[&HALVES];
const BY_TWO: &[&[&str]] = &[&[HALVES[0]], &[HALVES[1]]];

/// Packs files one after the other. Without name and time in it, the output is the same everywhere.
const PACK: &str = "for file; do gzip -n -c \"$file\"; done >\"$0\"";
const FETCH_AND_PACK: &str = "for url; do nfs-cat \"$url\" | gzip -n; done >\"$0\"";

/// Unpacks a result, and compares that with the files.
const UNPACK: &str = "gzip -dc \"$0\" >\"$0.plain\" && cat \"$@\" | cmp - \"$0.plain\"";

/// The files, and the folder for results.
pub(super) struct Gzip {
    folder: PathBuf,
    /// The program on our API.
    converted: Option<PathBuf>,
    pub(super) bytes: u64,
}

/// The missing requirement, in words, if any.
pub(super) fn missing() -> Option<String> {
    let absent = ["gzip", "nfs-cat"].into_iter().find(|program| peer::find(program).is_none())?;
    Some(format!("there is no {absent}; run: scripts/setup.sh bench"))
}

/// The C library, which cargo puts beside this program.
fn library() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("libdafs_capi.a"))
}

/// The missing requirement of the program on our API, in words, if any.
pub(super) fn missing_converted() -> Option<String> {
    if !library().is_ok_and(|library| library.exists()) {
        let build = "cargo build --release -p dafs-capi";
        return Some(format!("there is no libdafs_capi.a beside this command; run: {build}"));
    }
    let is_there = peer::find("cc").is_some() && Path::new("/usr/include/zlib.h").exists();
    (!is_there).then(|| "there is no cc or zlib1g-dev; run: scripts/setup.sh bench".to_owned())
}

impl Gzip {
    /// Builds the program on our API.
    pub(super) fn convert(&mut self) -> Result<()> {
        let root = Path::new(ROOT).join("crates/dafs-capi");
        let (program, library) = (self.folder.join("gzip"), library()?);
        let (include, source) = (root.join("include"), root.join("examples/gzip.c"));
        let before: [&OsStr; 7] = [
            "-O2".as_ref(),
            "-I".as_ref(),
            include.as_ref(),
            "-o".as_ref(),
            program.as_ref(),
            source.as_ref(),
            library.as_ref(),
        ];
        let libraries = ["-lz", "-lgcc_s", "-lpthread", "-lm", "-ldl"].map(OsStr::new);
        peer::run("cc", before.into_iter().chain(libraries))?;
        self.converted = Some(program);
        Ok(())
    }

    /// Makes the halves in `files`, and their results in `folder`.
    pub(super) fn make(folder: &Path, files: &Path, scale: u64) -> Result<Self> {
        let bytes = (BYTES * scale / 100).max(BYTES_MIN);
        let this = Self { folder: folder.to_owned(), converted: None, bytes };
        for (number, half) in (0..).zip(HALVES) {
            let file = files.join(half);
            write_log(&file, bytes / 2, number)?;
            let packed = File::create(this.expected(half))?;
            let mut command = Command::new("gzip");
            let status = command.args(["-n", "-c"]).arg(&file).stdout(packed).status()?;
            ensure!(status.success(), "gzip ended with {status}");
        }
        Ok(this)
    }

    fn expected(&self, half: &str) -> PathBuf {
        self.folder.join(format!("{half}.gz"))
    }

    /// Packs both halves by as many processes as the trial's step says.
    pub(super) fn run(&self, trial: &Trial, front: &Front, stage: &Stage) -> Result<Sample> {
        let halves = if trial.step == 1 { BY_ONE } else { BY_TWO };
        let script = if trial.door == Door::Nfs { FETCH_AND_PACK } else { PACK };
        let name = |half: &str| match trial.door {
            Door::Nfs => stage.nfs_url(half),
            Door::Api => half.to_owned(),
            _ => front.root.join(half).display().to_string(),
        };
        let output_name = |process: usize| format!("out-{process}");
        let output = |process: usize| match trial.door {
            Door::Api => stage.export.join(output_name(process)),
            _ => self.folder.join(output_name(process)),
        };
        let start = |process: usize, halves: &[&str]| -> Result<Child> {
            let mut command = match trial.door {
                Door::Api => {
                    let program = self.converted.as_ref().context("a trial without its program")?;
                    let mut command = front.command(program);
                    command.arg(&stage.url).arg(output_name(process));
                    command
                }
                _ => {
                    let mut command = front.command("sh");
                    command.args(["-c", script]).arg(output(process));
                    command
                }
            };
            command.args(halves.iter().map(|half| name(half)));
            world::at(stage.node(), || Ok(command.spawn()?))
        };
        let work = || -> Result<(u64, u64)> {
            let each = halves.iter().enumerate();
            let started = each.map(|(process, halves)| start(process, halves));
            let mut children = started.collect::<Result<Vec<Child>>>()?;
            let ended: Vec<_> = children.iter_mut().map(Child::wait).collect();
            for status in ended {
                let status = status?;
                ensure!(status.success(), "gzip ended with {status}");
            }
            Ok((1, self.bytes))
        };
        let sample = Sample::of(|| Ok((front.client_time()?, stage.server_time()?)), work)?;
        for (process, halves) in halves.iter().enumerate() {
            let output = output(process);
            match trial.door {
                Door::Api => compare_unpacked(&output, &stage.export, halves)?,
                _ => self.compare(&output, halves)?,
            }
            std::fs::remove_file(output)?;
        }
        Ok(sample)
    }

    fn compare(&self, output: &Path, halves: &[&str]) -> Result<()> {
        let mut expected = Vec::new();
        for half in halves {
            expected.extend(std::fs::read(self.expected(half))?);
        }
        ensure!(std::fs::read(output)? == expected, "gzip has written something else");
        Ok(())
    }
}

/// Compares an unpacked result with the files that were packed.
fn compare_unpacked(output: &Path, files: &Path, halves: &[&str]) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", UNPACK]).arg(output).args(halves.iter().map(|half| files.join(half)));
    ensure!(command.status()?.success(), "the converted gzip has packed something else");
    Ok(std::fs::remove_file(output.with_extension("plain"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_unpacks_to_other_files_is_found() {
        if missing().is_some() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        for half in HALVES {
            std::fs::write(folder.path().join(half), half).expect("written");
        }
        let output = folder.path().join("out");
        let packed = File::create(&output).expect("created");
        let mut command = Command::new("gzip");
        command.args(["-n", "-c"]).args(HALVES).current_dir(folder.path()).stdout(packed);
        assert!(command.status().expect("it runs").success());
        compare_unpacked(&output, folder.path(), &HALVES).expect("the same");
        assert!(compare_unpacked(&output, folder.path(), &HALVES[..1]).is_err());
    }
}
