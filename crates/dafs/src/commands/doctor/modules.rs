//! Modules of the kernel: those for RDMA devices of programs, for soft devices, and for the
//! kernel's own NFS over RDMA.

use super::devices::{Device, network_device};
use super::finding::Finding;
use super::host::Host;

/// Files that exist only when a module works, also if it is built into the kernel and the kernel's
/// module lists are not readable.
const SIGNS: [(&str, &str); 4] = [
    ("ib_uverbs", "sys/class/infiniband_verbs"),
    ("rdma_ucm", "sys/class/misc/rdma_cm"),
    ("rpcrdma", "proc/sys/sunrpc/svc_rdma"),
    ("nfs", "proc/fs/nfsfs"),
];

/// The availability of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Loaded, or part of the kernel.
    Here,
    /// On disk.
    Loadable,
    /// This kernel was apparently built without it.
    Missing,
    /// The kernel's modules are not where they should be, as in a container.
    Unknown,
}

/// The modules and their purposes.
const MODULES: [(&str, &str); 6] = [
    ("ib_uverbs", "programs use RDMA devices"),
    ("rdma_ucm", "programs make RDMA connections"),
    ("siw", "makes an RDMA device (iWARP) of any network device"),
    ("rdma_rxe", "makes an RDMA device (RoCE) of any Ethernet device"),
    ("rpcrdma", "the kernel's NFS client and server use RDMA"),
    ("nfs", "the kernel mounts NFS"),
];

pub(super) fn check(host: &Host, devices: &[Device]) -> Vec<Finding> {
    const TOPIC: &str = "kernel module";
    let finding = |(name, purpose): (&str, &str)| {
        let needed = !devices.is_empty() && matches!(name, "ib_uverbs" | "rdma_ucm");
        let works = devices.iter().any(|device| match name {
            "siw" => device.name.starts_with("siw"),
            "rdma_rxe" => device.name.starts_with("rxe"),
            _ => false,
        });
        let state = if works { State::Here } else { state(host, name) };
        let (text, fix) = match state {
            State::Here => {
                return Finding::ok(TOPIC, format!("{name} is loaded ({purpose})"));
            }
            State::Loadable => (format!("{name} is not loaded ({purpose})"), load(host, name)),
            State::Missing => (
                format!("this kernel has no module {name} ({purpose})"),
                format!("if you need it, use a kernel that was built with {}", option(name)),
            ),
            // A built-in module without such a file looks the same.
            State::Unknown => {
                let text = format!("{name} is not visible here ({purpose})");
                let fix = format!("if you need it, on the host itself: {}", load(host, name));
                return Finding::note(TOPIC, text, fix);
            }
        };
        if needed { Finding::problem(TOPIC, text, fix) } else { Finding::note(TOPIC, text, fix) }
    };
    MODULES.into_iter().map(finding).collect()
}

fn state(host: &Host, name: &str) -> State {
    let loaded = SIGNS.iter().any(|(module, sign)| *module == name && host.exists(sign))
        || host.exists(&format!("sys/module/{name}"))
        || host
            .read("proc/modules")
            .is_some_and(|text| text.lines().any(|line| line.split(' ').next() == Some(name)));
    if loaded {
        return State::Here;
    }
    let Some(release) = host.read("proc/sys/kernel/osrelease") else { return State::Unknown };
    let listed = |file: &str| {
        let text = host.read(&format!("lib/modules/{release}/{file}"))?;
        Some(text.lines().any(|line| names_module(line, name)))
    };
    match (listed("modules.builtin"), listed("modules.dep")) {
        (Some(true), _) => State::Here,
        (_, Some(true)) => State::Loadable,
        (_, Some(false)) => State::Missing,
        (_, None) => State::Unknown,
    }
}

/// True if a line such as `kernel/fs/nfs/nfs.ko.xz: ...` names that module. File names may have
/// dashes for underscores.
fn names_module(line: &str, name: &str) -> bool {
    let path = line.split(':').next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    let stem = file.split(".ko").next().unwrap_or_default();
    stem.replace('-', "_") == name
}

fn load(host: &Host, name: &str) -> String {
    let link = |device: &str, kind: &str| {
        let network = network_device(host);
        format!("modprobe {name} && rdma link add {device} type {kind} netdev {network}")
    };
    match name {
        "siw" => link("siw0", "siw"),
        "rdma_rxe" => link("rxe0", "rxe"),
        _ => format!("modprobe {name}"),
    }
}

fn option(name: &str) -> &'static str {
    match name {
        "ib_uverbs" => "CONFIG_INFINIBAND_USER_ACCESS",
        "rdma_ucm" => "CONFIG_INFINIBAND_USER_ACCESS and CONFIG_INFINIBAND_ADDR_TRANS",
        "siw" => "CONFIG_RDMA_SIW",
        "rdma_rxe" => "CONFIG_RDMA_RXE",
        "rpcrdma" => "CONFIG_SUNRPC_XPRT_RDMA",
        _ => "CONFIG_NFS_FS",
    }
}

#[cfg(test)]
mod tests {
    use super::super::devices;
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    fn kernel(fake: &Fake) {
        fake.file("proc/sys/kernel/osrelease", "6.1.0-1\n");
        fake.file("proc/modules", "nfs 100 0 - Live 0x0\nnfs_acl 1 0 - Live 0x0\n");
        fake.file("lib/modules/6.1.0-1/modules.builtin", "kernel/a/rdma_ucm.ko\n");
        let text = "kernel/a/ib-uverbs.ko.xz: kernel/b/ib_core.ko\nkernel/c/xsiw.ko: siw.ko\n";
        fake.file("lib/modules/6.1.0-1/modules.dep", text);
    }

    #[test]
    fn loaded_built_in_on_disk_and_missing_are_told_apart() {
        let fake = Fake::new();
        kernel(&fake);
        fake.file("sys/module/rpcrdma/refcnt", "0");
        let host = fake.host();
        assert_eq!(state(&host, "nfs"), State::Here);
        assert_eq!(state(&host, "rpcrdma"), State::Here);
        assert_eq!(state(&host, "rdma_ucm"), State::Here);
        assert_eq!(state(&host, "ib_uverbs"), State::Loadable);
        assert_eq!(state(&host, "siw"), State::Missing);
        assert_eq!(state(&Fake::new().host(), "siw"), State::Unknown);
    }

    #[test]
    fn parts_of_the_kernel_are_known_by_what_they_do() {
        let fake = Fake::new();
        fake.file("sys/class/infiniband/siw0/node_type", "4: RNIC");
        fake.file("sys/class/infiniband_verbs/uverbs0/ibdev", "siw0");
        fake.file("sys/class/misc/rdma_cm/dev", "10:122");
        let host = fake.host();
        let findings = check(&host, &devices::find(&host));
        let here: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.level == Level::Ok)
            .filter_map(|finding| finding.text.split(' ').next())
            .collect();
        assert_eq!(here, ["ib_uverbs", "rdma_ucm", "siw"]);
        assert!(findings.iter().all(|finding| finding.level != Level::Problem));
    }

    #[test]
    fn with_a_device_what_programs_need_is_a_problem() {
        let fake = Fake::new();
        kernel(&fake);
        let problems = |fake: &Fake| -> Vec<String> {
            check(&fake.host(), &devices::find(&fake.host()))
                .into_iter()
                .filter(|finding| finding.level == Level::Problem)
                .filter_map(|finding| finding.fix)
                .collect()
        };
        assert!(problems(&fake).is_empty());
        fake.file("sys/class/infiniband/siw0/node_type", "4: RNIC");
        assert_eq!(problems(&fake), ["modprobe ib_uverbs"]);
    }
}
