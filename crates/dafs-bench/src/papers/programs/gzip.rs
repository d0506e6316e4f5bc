//! gzip of files of the server, by one process and by two.
//!
//! Invariants
//! * Each result is compared with that of the same gzip on local files.
//! * Results are written to files of the client, because the commands of NFS write none to a server.

use super::stage::Stage;
use super::trials::{Door, Trial};
use crate::fronts::{Front, write_log};
use crate::papers::world;
use crate::peer;
use crate::report::Sample;
use anyhow::{Result, ensure};
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

/// The files, and the folder for results.
pub(super) struct Gzip {
    folder: PathBuf,
    pub(super) bytes: u64,
}

/// The missing requirement, in words, if any.
pub(super) fn missing() -> Option<String> {
    let absent = ["gzip", "nfs-cat"].into_iter().find(|program| peer::find(program).is_none())?;
    Some(format!("there is no {absent}; run: scripts/setup.sh bench"))
}

impl Gzip {
    /// Makes the halves in `files`, and their results in `folder`.
    pub(super) fn make(folder: &Path, files: &Path, scale: u64) -> Result<Self> {
        let bytes = (BYTES * scale / 100).max(BYTES_MIN);
        let this = Self { folder: folder.to_owned(), bytes };
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
            _ => front.root.join(half).display().to_string(),
        };
        let output = |process: usize| self.folder.join(format!("out-{process}"));
        let start = |process: usize, halves: &[&str]| -> Result<Child> {
            let mut command = front.command("sh");
            command.args(["-c", script]).arg(output(process));
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
            let mut expected = Vec::new();
            for half in *halves {
                expected.extend(std::fs::read(self.expected(half))?);
            }
            let is_same = std::fs::read(output(process))? == expected;
            ensure!(is_same, "gzip has written something else");
            std::fs::remove_file(output(process))?;
        }
        Ok(sample)
    }
}
