//! Limits of this process: locked memory, which registering with a device needs, and open files.

use super::finding::Finding;
use super::host::Host;
use rustix::process::{Resource, getrlimit};

/// Locked memory below which RDMA over a device may fail, in bytes.
const LOCKED_BYTES_WANTED: u64 = 256 << 20;

/// Open files below which a server cannot have many clients.
const OPEN_FILES_WANTED: u64 = 65_536;

/// The capability that lifts the limit of locked memory (CAP_IPC_LOCK).
const IPC_LOCK_BIT: u32 = 14;

/// The limits of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Memory that may be locked, in bytes; `None` is unlimited.
    locked_bytes: Option<u64>,
    /// A capability lifts that limit.
    locks_at_will: bool,
    /// Files that may be open, after a server has raised its own limit; `None` is unlimited.
    open_files: Option<u64>,
}

impl Limits {
    pub(super) fn of_this_process(host: &Host) -> Self {
        Self {
            locked_bytes: getrlimit(Resource::Memlock).current,
            locks_at_will: locks_at_will(host),
            open_files: getrlimit(Resource::Nofile).maximum,
        }
    }
}

fn locks_at_will(host: &Host) -> bool {
    let status = host.read("proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> IPC_LOCK_BIT & 1 == 1)
}

pub(super) fn check(limits: &Limits, has_device: bool) -> Vec<Finding> {
    vec![check_locked(limits, has_device), check_files(limits)]
}

fn check_locked(limits: &Limits, has_device: bool) -> Finding {
    const TOPIC: &str = "locked memory";
    if limits.locks_at_will {
        return Finding::ok(TOPIC, "this user may lock any amount, by the capability IPC_LOCK");
    }
    let Some(bytes) = limits.locked_bytes else {
        return Finding::ok(TOPIC, "this user may lock any amount");
    };
    let size = size(bytes);
    if bytes >= LOCKED_BYTES_WANTED {
        return Finding::ok(TOPIC, format!("this user may lock {size}"));
    }
    let text = format!("this user may lock only {size}, and all memory of RDMA devices is locked");
    let fix = "in a shell: ulimit -l unlimited (as root, before su); for a service: \
               LimitMEMLOCK=infinity below [Service] in its unit; for logins: two lines \
               '* soft memlock unlimited' and '* hard memlock unlimited' in \
               /etc/security/limits.conf, then log in again";
    if has_device {
        Finding::problem(TOPIC, text, fix)
    } else {
        Finding::note(TOPIC, text, format!("needed with a device only: {fix}"))
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn check_files(limits: &Limits) -> Finding {
    const TOPIC: &str = "open files";
    match limits.open_files {
        Some(count) if count < OPEN_FILES_WANTED => Finding::note(
            TOPIC,
            format!("a process may open {count} files, and a server needs one for each client"),
            "for a service: LimitNOFILE=1048576 below [Service] in its unit; for logins: a line \
             '* hard nofile 1048576' in /etc/security/limits.conf, then log in again",
        ),
        Some(count) => Finding::ok(TOPIC, format!("a process may open {count} files")),
        None => Finding::ok(TOPIC, "a process may open any number of files"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    #[test]
    fn little_locked_memory_is_a_problem_only_with_a_device() {
        let limits = Limits { locked_bytes: Some(8 << 20), locks_at_will: false, open_files: None };
        let finding = check_locked(&limits, true);
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.text.contains("8 MiB"));
        for remedy in ["ulimit -l", "LimitMEMLOCK=infinity", "limits.conf"] {
            assert!(finding.fix.as_ref().unwrap().contains(remedy), "{remedy}");
        }
        assert_eq!(check_locked(&limits, false).level, Level::Note);
        let mighty = Limits { locks_at_will: true, ..limits };
        assert_eq!(check_locked(&mighty, true).level, Level::Ok);
        let small = Limits { locked_bytes: Some(64 << 10), ..limits };
        assert!(check_locked(&small, true).text.contains("64 KiB"));
    }

    #[test]
    fn the_capability_is_read_from_the_status() {
        let fake = Fake::new();
        assert!(!locks_at_will(&fake.host()));
        fake.file("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\nSeccomp:\t0\n");
        assert!(locks_at_will(&fake.host()));
        fake.file("proc/self/status", "CapEff:\t0000000000002000\n");
        assert!(!locks_at_will(&fake.host()));
    }
}
