//! A tree of small files, copied by `dafs put` to a server and by `cp -a` to the local files.
//!
//! Invariants
//! * All files are in memory, on both sides.
//! * Each copy is compared with the tree, and removed without being measured.

use super::ways::{MEMORY, dafs};
use super::{Site, output};
use crate::report::{Case, Report, Sample};
use crate::targets::Target;
use crate::{Plan, cpu, peer};
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Files of the tree at full scale, the fewest, and those of one folder.
const FILES: u64 = 8000;
const FILES_MIN: u64 = 100;
const FILES_OF_FOLDER: u64 = 100;

/// The length of a file.
const FILE_BYTES: usize = 2048;

/// The name of a copy.
const COPY: &str = "copy";

const LOCAL: &str = "copy of small files, cp -a";

/// Name, transport of `dafs put`, target.
const CASES: [(&str, Option<&str>, Option<Target>); 3] = [
    (LOCAL, None, None),
    ("copy of small files, dafs put, shm", Some("shm"), Some(Target::ratio(2.0))),
    ("copy of small files, dafs put, iwarp", Some("iwarp"), Some(Target::ratio(3.0))),
];

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut list: Vec<(Case, Option<&str>)> = CASES
        .into_iter()
        .map(|(name, transport, target)| {
            let floor = transport.map(|_| LOCAL);
            (Case::new(name, floor, target), transport)
        })
        .collect();
    list.retain(|(case, _)| case.name.contains(&plan.only));
    if list.is_empty() {
        return Ok(());
    }
    let site = Site::start(Path::new(MEMORY))?;
    let tree = site.folder.path().join("tree");
    let files = (FILES * plan.scale / 100).max(FILES_MIN);
    plant(&tree, files)?;
    for _ in 0..plan.rounds {
        for (case, transport) in &mut list {
            let sample = run(&site, &tree, files, *transport);
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    let cases: Vec<Case> = list.into_iter().map(|(case, _)| case).collect();
    report.add(&format!("copies of {files} files of {FILE_BYTES} bytes"), &cases);
    Ok(())
}

/// Makes the tree.
fn plant(tree: &Path, files: u64) -> Result<()> {
    for number in 0..files {
        let folder = tree.join((number / FILES_OF_FOLDER).to_string());
        std::fs::create_dir_all(&folder)?;
        let mut content = number.to_string();
        content += &".".repeat(FILE_BYTES - content.len());
        std::fs::write(folder.join(number.to_string()), content)?;
    }
    Ok(())
}

fn run(site: &Site, tree: &Path, files: u64, transport: Option<&str>) -> Result<Sample> {
    let copy = site.export.join(COPY);
    let mut command = match transport {
        None => Command::new("cp"),
        Some(_) => Command::new(dafs()?),
    };
    match transport {
        None => command.arg("-a").arg(tree).arg(&copy),
        Some(transport) => {
            let url = site.server.file_url(COPY)?.to_string();
            command.args(["--transport", transport, "put"]).arg(tree).arg(url)
        }
    };
    let sample = Sample::of(
        || Ok((cpu::children_time(), cpu::process_time(Some(site.server.id()))?)),
        || {
            output(&mut command)?;
            Ok((files, files * FILE_BYTES as u64))
        },
    )?;
    peer::run("diff", [OsStr::new("-r"), tree.as_ref(), copy.as_ref()])?;
    std::fs::remove_dir_all(&copy)?;
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_its_files_in_folders_of_equal_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = folder.path().join("tree");
        plant(&tree, 250).expect("planted");
        let count = |name: &str| std::fs::read_dir(tree.join(name)).expect("a folder").count();
        assert_eq!(["0", "1", "2"].map(count), [100, 100, 50]);
        let last = std::fs::read(tree.join("2/249")).expect("a file");
        assert!(last.starts_with(b"249.") && last.len() == FILE_BYTES);
    }

    #[test]
    fn each_put_is_compared_with_cp_and_has_a_target() {
        for (name, transport, target) in CASES {
            assert_eq!(transport.is_some(), target.is_some(), "{name}");
            assert_eq!(transport.is_none(), name == LOCAL, "{name}");
        }
    }
}
