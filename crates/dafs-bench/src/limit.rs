//! A limit of the processor time of some processes, by a control group (cgroup).
//!
//! Invariants
//! * A group lives as long as its holder, a child process. The holder ends the group's processes and
//!   removes it when its parent is gone, also if that is killed.

use crate::child::{Process, announce, leave_interrupts_to_parent, wait_for_parent};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The place where systems mount control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// The file of a group's processes.
const PROCESSES: &str = "cgroup.procs";

/// The file of version 2 that tells which resources the groups below are limited in.
const CONTROL: &str = "cgroup.subtree_control";

/// Processor time within one period: the least that the kernel takes, so that pauses are short.
const QUOTA_US: u32 = 1000;

/// Attempts to remove a group whose processes are about to end, and the pause between them.
const ATTEMPTS: usize = 100;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// A limit for all its processes together.
pub(crate) struct CpuLimit {
    holder: Process,
}

impl CpuLimit {
    /// Makes a group that may use so many percent of one processor.
    pub(crate) fn start(percent: u32) -> Result<Self> {
        let holder = Process::start(&["hold-limit", &percent.to_string()])?;
        ensure!(!holder.address.is_empty(), "no limit of processor time here (cgroup)");
        Ok(Self { holder })
    }

    /// The file to which a process writes its number to be limited.
    pub(crate) fn processes(&self) -> PathBuf {
        Path::new(&self.holder.address).join(PROCESSES)
    }

    /// Limits a process.
    pub(crate) fn take(&self, process: u32) -> Result<()> {
        let file = self.processes();
        std::fs::write(&file, process.to_string()).with_context(|| file.display().to_string())
    }
}

/// Holds a group in a child until its parent is gone.
pub(crate) fn hold(percent: u32) -> Result<()> {
    ensure!((1..=100).contains(&percent), "a limit is 1 to 100 percent");
    leave_interrupts_to_parent()?;
    let group = Group::make(Hierarchy::find(Path::new(ROOT))?, percent)?;
    announce(&group.folder.display().to_string())?;
    wait_for_parent();
    drop(group);
    Ok(())
}

/// The folder above a group, by the version of control groups.
#[derive(Debug, PartialEq, Eq)]
enum Hierarchy {
    One(PathBuf),
    Two(PathBuf),
}

impl Hierarchy {
    fn find(root: &Path) -> Result<Self> {
        let of_processors = root.join("cpu");
        if of_processors.join(PROCESSES).exists() {
            return Ok(Self::One(of_processors));
        }
        let controllers = std::fs::read_to_string(root.join("cgroup.controllers"));
        let controllers = controllers.context("there are no control groups")?;
        let has_processors = controllers.split_whitespace().any(|name| name == "cpu");
        ensure!(has_processors, "no control group limits processor time");
        Ok(Self::Two(root.to_owned()))
    }

    /// The files of a group and their content.
    fn settings(&self, percent: u32) -> Vec<(&'static str, String)> {
        let period_us = QUOTA_US * 100 / percent;
        match self {
            Self::One(_) => vec![
                ("cpu.cfs_period_us", period_us.to_string()),
                ("cpu.cfs_quota_us", QUOTA_US.to_string()),
            ],
            Self::Two(_) => vec![("cpu.max", format!("{QUOTA_US} {period_us}"))],
        }
    }
}

/// A group, removed on drop.
struct Group {
    folder: PathBuf,
    /// The file in which processor time was made a resource for this group.
    changed: Option<PathBuf>,
}

impl Group {
    fn make(hierarchy: Hierarchy, percent: u32) -> Result<Self> {
        let settings = hierarchy.settings(percent);
        let (above, changed) = match hierarchy {
            Hierarchy::One(above) => (above, None),
            Hierarchy::Two(above) => {
                let control = above.join(CONTROL);
                let set = std::fs::read_to_string(&control)?;
                let is_set = set.split_whitespace().any(|name| name == "cpu");
                (above, (!is_set).then_some(control))
            }
        };
        if let Some(control) = &changed {
            std::fs::write(control, "+cpu").with_context(|| control.display().to_string())?;
        }
        let folder = above.join(format!("dafs-bench-{}", std::process::id()));
        let group = Self { folder, changed };
        let folder = &group.folder;
        std::fs::create_dir(folder).with_context(|| folder.display().to_string())?;
        for (name, text) in settings {
            let file = folder.join(name);
            std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let processes = std::fs::read_to_string(self.folder.join(PROCESSES)).unwrap_or_default();
        let numbers = processes.lines().filter_map(|line| line.parse().ok());
        for process in numbers.filter_map(Pid::from_raw) {
            let _ = kill_process(process, Signal::KILL);
        }
        for _ in 0..ATTEMPTS {
            if std::fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                break;
            }
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        if let Some(control) = &self.changed {
            let _ = std::fs::write(control, "-cpu");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_control_groups_is_found_and_decides_on_the_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        assert!(Hierarchy::find(root).is_err());
        std::fs::write(root.join("cgroup.controllers"), "memory pids\n").expect("written");
        assert!(Hierarchy::find(root).is_err());
        std::fs::write(root.join("cgroup.controllers"), "cpuset cpu memory\n").expect("written");
        let two = Hierarchy::find(root).expect("version 2");
        assert_eq!(two, Hierarchy::Two(root.to_owned()));
        assert_eq!(two.settings(20), [("cpu.max", "1000 5000".to_owned())]);
        std::fs::create_dir(root.join("cpu")).expect("a folder");
        std::fs::write(root.join("cpu").join(PROCESSES), "").expect("written");
        let one = Hierarchy::find(root).expect("version 1");
        assert_eq!(one, Hierarchy::One(root.join("cpu")));
        let files: Vec<_> = one
            .settings(50)
            .into_iter()
            .map(|(name, text)| name.to_owned() + "=" + &text)
            .collect();
        assert_eq!(files, ["cpu.cfs_period_us=2000", "cpu.cfs_quota_us=1000"]);
    }
}
