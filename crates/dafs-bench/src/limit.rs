//! A limit of the processor time or the memory of some processes, by a control group (cgroup).
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
const QUOTA_US: u64 = 1000;

/// Attempts to remove a group whose processes are about to end, and the pause between them.
const ATTEMPTS: usize = 100;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// The resource that a limit is about, and the name of its controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Resource {
    /// Percent of one processor.
    Cpu,
    /// Bytes of memory, with the pages of files that the processes read.
    Memory,
}

impl Resource {
    fn controller(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }
}

/// A limit for all its processes together.
pub(crate) struct Limit {
    holder: Process,
}

impl Limit {
    /// Makes a group that may use so much of a resource.
    pub(crate) fn start(resource: Resource, amount: u64) -> Result<Self> {
        let name = resource.controller();
        let holder = Process::start(&["hold-limit", name, &amount.to_string()])?;
        ensure!(!holder.address.is_empty(), "no limit of {name} here (cgroup)");
        Ok(Self { holder })
    }

    /// The file to which a process writes its number to be limited.
    pub(crate) fn processes(&self) -> PathBuf {
        Path::new(&self.holder.address).join(PROCESSES)
    }

    /// The words before a command line by which its process is limited.
    pub(crate) fn words(&self) -> Vec<String> {
        let script = "echo $$ >\"$0\" && exec \"$@\"";
        let processes = self.processes().display().to_string();
        ["sh", "-c", script, &processes].map(str::to_owned).into()
    }

    /// Pages of files that its processes have read again, because the kernel had given them up. Unknown
    /// where the kernel does not count them.
    pub(crate) fn refaults(&self) -> Option<u64> {
        let counters = Path::new(&self.holder.address).join("memory.stat");
        refaults(&std::fs::read_to_string(counters).ok()?)
    }

    /// Limits a process.
    pub(crate) fn take(&self, process: u32) -> Result<()> {
        let file = self.processes();
        std::fs::write(&file, process.to_string()).with_context(|| file.display().to_string())
    }
}

/// The pages of files that were read again, from a group's counters.
fn refaults(counters: &str) -> Option<u64> {
    let name = "workingset_refault_file ";
    counters.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Holds a group in a child until its parent is gone.
pub(crate) fn hold(resource: Resource, amount: u64) -> Result<()> {
    let is_possible = amount > 0 && (resource != Resource::Cpu || amount <= 100);
    ensure!(is_possible, "a limit is 1 to 100 percent, or 1 byte or more");
    leave_interrupts_to_parent()?;
    let hierarchy = Hierarchy::find(Path::new(ROOT), resource)?;
    let group = Group::make(hierarchy, resource, amount)?;
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
    fn find(root: &Path, resource: Resource) -> Result<Self> {
        let wanted = resource.controller();
        let of_resource = root.join(wanted);
        if of_resource.join(PROCESSES).exists() {
            return Ok(Self::One(of_resource));
        }
        let controllers = std::fs::read_to_string(root.join("cgroup.controllers"));
        let controllers = controllers.context("there are no control groups")?;
        let is_there = controllers.split_whitespace().any(|name| name == wanted);
        ensure!(is_there, "no control group limits {wanted}");
        Ok(Self::Two(root.to_owned()))
    }

    /// The files of a group and their content.
    fn settings(&self, resource: Resource, amount: u64) -> Vec<(&'static str, String)> {
        let period_us = QUOTA_US * 100 / amount.max(1);
        match (self, resource) {
            (Self::One(_), Resource::Cpu) => vec![
                ("cpu.cfs_period_us", period_us.to_string()),
                ("cpu.cfs_quota_us", QUOTA_US.to_string()),
            ],
            (Self::Two(_), Resource::Cpu) => {
                vec![("cpu.max", format!("{QUOTA_US} {period_us}"))]
            }
            (Self::One(_), Resource::Memory) => {
                vec![("memory.limit_in_bytes", amount.to_string())]
            }
            (Self::Two(_), Resource::Memory) => vec![("memory.max", amount.to_string())],
        }
    }
}

/// A group, removed on drop.
struct Group {
    folder: PathBuf,
    /// The file in which the resource was made one for this group, and the name of its controller.
    changed: Option<(PathBuf, &'static str)>,
}

impl Group {
    fn make(hierarchy: Hierarchy, resource: Resource, amount: u64) -> Result<Self> {
        let settings = hierarchy.settings(resource, amount);
        let name = resource.controller();
        let (above, changed) = match hierarchy {
            Hierarchy::One(above) => (above, None),
            Hierarchy::Two(above) => {
                let control = above.join(CONTROL);
                let set = std::fs::read_to_string(&control)?;
                let is_set = set.split_whitespace().any(|other| other == name);
                (above, (!is_set).then_some((control, name)))
            }
        };
        if let Some((control, name)) = &changed {
            let done = std::fs::write(control, format!("+{name}"));
            done.with_context(|| control.display().to_string())?;
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
        if let Some((control, name)) = &self.changed {
            let _ = std::fs::write(control, format!("-{name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn the_version_of_control_groups_is_found_and_decides_on_the_files() {
        use Resource::{Cpu, Memory};
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let files = |hierarchy: &Hierarchy, resource, amount| -> Vec<String> {
            let settings = hierarchy.settings(resource, amount).into_iter();
            settings.map(|(name, text)| name.to_owned() + "=" + &text).collect()
        };
        assert!(Hierarchy::find(root, Cpu).is_err());
        std::fs::write(root.join("cgroup.controllers"), "memory pids\n").expect("written");
        assert!(Hierarchy::find(root, Cpu).is_err());
        std::fs::write(root.join("cgroup.controllers"), "cpuset cpu memory\n").expect("written");
        for resource in [Cpu, Memory] {
            let two = Hierarchy::find(root, resource).expect("version 2");
            assert_eq!(two, Hierarchy::Two(root.to_owned()));
        }
        let two = Hierarchy::Two(root.to_owned());
        assert_eq!(files(&two, Cpu, 20), ["cpu.max=1000 5000"]);
        assert_eq!(files(&two, Memory, 1 << 20), ["memory.max=1048576"]);
        for (resource, wanted) in [
            (Cpu, vec!["cpu.cfs_period_us=2000", "cpu.cfs_quota_us=1000"]),
            (Memory, vec!["memory.limit_in_bytes=50"]),
        ] {
            let place = root.join(resource.controller());
            std::fs::create_dir(&place).expect("a folder");
            std::fs::write(place.join(PROCESSES), "").expect("written");
            let one = Hierarchy::find(root, resource).expect("version 1");
            assert_eq!(one, Hierarchy::One(place));
            assert_eq!(files(&one, resource, 50), wanted);
        }
    }

    #[test]
    fn pages_that_were_read_again_are_those_of_files() {
        let counters = "workingset_refault_anon 1\nworkingset_refault_file 42\nswap 3\n";
        assert_eq!(refaults(counters), Some(42));
        assert_eq!(refaults("cache 4096\nrss 0\n"), None);
    }

    #[test]
    fn a_resource_is_named_as_a_child_understands_it() {
        for resource in Resource::value_variants() {
            let named = Resource::from_str(resource.controller(), false);
            assert_eq!(named.as_ref(), Ok(resource));
        }
    }
}
