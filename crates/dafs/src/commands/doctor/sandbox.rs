//! The kernel's means to confine a server, and the servers with a filter of system calls.
//!
//! Invariants
//! * The filter of a server may be that of its unit or container. So nothing here says that a server
//!   is in its sandbox: its log and metrics do.

use super::finding::Finding;
use super::host::Host;
use dafs_sandbox::Kernel;

const TOPIC: &str = "sandbox";

/// The least ABIs of Landlock for files, TCP, and signals.
const LANDLOCK: [(u32, &str, &str); 3] =
    [(2, "files", "5.19"), (4, "TCP", "6.7"), (6, "signals and abstract sockets", "6.12")];

pub(super) fn check(kernel: Kernel, host: &Host) -> Vec<Finding> {
    [landlock(kernel.landlock_abi), seccomp(kernel.seccomp), namespaces(host)]
        .into_iter()
        .chain(servers(host))
        .collect()
}

fn landlock(abi: u32) -> Finding {
    let fix = |linux: &str| {
        format!("boot Linux {linux} or later, with landlock among the names of its option lsm=")
    };
    let missing = LANDLOCK.iter().find(|(needed, ..)| abi < *needed);
    match missing {
        _ if abi == 0 => Finding::note(
            TOPIC,
            "this kernel has no Landlock, which confines files and TCP of a server",
            fix("6.12"),
        ),
        Some((_, part, linux)) => Finding::note(
            TOPIC,
            format!("Landlock has ABI {abi}, which does not confine {part}"),
            fix(linux),
        ),
        None => Finding::ok(TOPIC, format!("Landlock has ABI {abi}: files, TCP and signals")),
    }
}

fn seccomp(is_there: bool) -> Finding {
    match is_there {
        true => Finding::ok(TOPIC, "the kernel filters system calls (seccomp)"),
        false => Finding::note(
            TOPIC,
            "this kernel does not filter system calls (seccomp)",
            "boot a kernel with CONFIG_SECCOMP_FILTER",
        ),
    }
}

fn namespaces(host: &Host) -> Finding {
    match host.exists("proc/self/ns/mnt") {
        true => Finding::ok(TOPIC, "the kernel has mount namespaces, for a server of root"),
        false => Finding::note(
            TOPIC,
            "this kernel has no mount namespaces, by which a server of root is confined",
            "boot a kernel with CONFIG_NAMESPACES, and mount /proc",
        ),
    }
}

/// The servers that run on this host, by their command lines: `dafs serve`.
fn servers(host: &Host) -> Vec<Finding> {
    let processes = host.list("proc");
    let processes = processes.iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    processes.filter_map(|process| server(host, process)).collect()
}

fn server(host: &Host, process: &str) -> Option<Finding> {
    let command = host.read(&format!("proc/{process}/cmdline"))?;
    let mut words = command.split('\0');
    let program = words.next()?;
    (program == "dafs" || program.ends_with("/dafs")).then_some(())?;
    words.any(|word| word == "serve").then_some(())?;
    let status = host.read(&format!("proc/{process}/status"))?;
    let filters = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?;
    Some(match filters.trim() {
        "2" => Finding::ok(
            TOPIC,
            format!(
                "the server of process {process} has a filter of system calls, its own or that of \
                 its unit or container; its log and metrics tell the parts of its sandbox"
            ),
        ),
        _ => Finding::note(
            TOPIC,
            format!(
                "the server of process {process} has no filter of system calls, and so no sandbox"
            ),
            "sandbox = \"if possible\" in its configuration, or --sandbox if-possible",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    fn kernel(landlock_abi: u32) -> Kernel {
        Kernel { landlock_abi, seccomp: landlock_abi > 0 }
    }

    #[test]
    fn a_missing_part_is_noted_with_the_version_that_has_it() {
        let fake = Fake::new();
        fake.file("proc/self/ns/mnt", "");
        let levels = |abi| {
            let findings = check(kernel(abi), &fake.host());
            findings.iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        assert_eq!(levels(7), [Level::Ok; 3]);
        assert_eq!(levels(0), [Level::Note, Level::Note, Level::Ok]);
        let old = landlock(3);
        assert!(old.text.contains("ABI 3") && old.text.contains("TCP"), "{old}");
        assert!(old.fix.unwrap().contains("6.7"));
    }

    #[test]
    fn servers_are_told_with_their_sandbox() {
        let fake = Fake::new();
        fake.file("proc/self/ns/mnt", "");
        fake.file("proc/7/cmdline", "/usr/bin/dafs\0serve\0/srv");
        fake.file("proc/7/status", "Name:\tdafs\nSeccomp:\t2\nSeccomp_filters:\t2\n");
        fake.file("proc/8/cmdline", "dafs\0serve\0/srv");
        fake.file("proc/8/status", "Name:\tdafs\nSeccomp:\t0\n");
        fake.file("proc/9/cmdline", "/usr/bin/dafs\0ls");
        fake.file("proc/9/status", "Seccomp:\t0\n");
        let findings = check(kernel(7), &fake.host());
        let servers: Vec<_> = findings[3..].iter().map(|f| (f.level, f.text.as_str())).collect();
        assert_eq!(servers.len(), 2, "{servers:?}");
        assert!(servers[0].0 == Level::Ok && servers[0].1.contains("process 7"), "{servers:?}");
        // A unit or a container filters system calls, too.
        assert!(!servers[0].1.contains("confined"), "{servers:?}");
        assert!(servers[1].0 == Level::Note && servers[1].1.contains("process 8"), "{servers:?}");
    }
}
