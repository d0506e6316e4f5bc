//! RDMA devices, and the files by which programs reach them.

use super::finding::Finding;
use super::host::Host;
use std::fmt;

/// The protocol of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Iwarp,
    Roce,
    InfiniBand,
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Iwarp => "iWARP",
            Kind::Roce => "RoCE",
            Kind::InfiniBand => "InfiniBand",
            Kind::Other => "a kind of RDMA that is not known here",
        })
    }
}

/// One port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) number: String,
    /// The state in the kernel's words: ACTIVE, DOWN, INIT.
    pub(super) state: String,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// True if the kernel emulates it.
    pub(super) is_software: bool,
    /// The network device that it belongs to.
    pub(super) network: Option<String>,
    pub(super) ports: Vec<Port>,
    /// The device file for programs, below /dev/infiniband.
    pub(super) verbs_file: Option<String>,
}

const CLASS: &str = "sys/class/infiniband";
const FILES: &str = "dev/infiniband";

/// The devices of the host.
pub(super) fn find(host: &Host) -> Vec<Device> {
    let verbs = "sys/class/infiniband_verbs";
    let files: Vec<(String, String)> = host
        .list(verbs)
        .into_iter()
        .filter_map(|file| Some((host.read(&format!("{verbs}/{file}/ibdev"))?, file)))
        .collect();
    let device = |name: String| {
        let verbs_file =
            files.iter().find(|(device, _)| *device == name).map(|(_, file)| file.clone());
        let ports = ports(host, &name);
        let (kind, is_software) = (kind(host, &name), is_software(host, &name));
        Device { kind, is_software, network: network(host, &name), ports, verbs_file, name }
    };
    host.list(CLASS).into_iter().map(device).collect()
}

fn kind(host: &Host, name: &str) -> Kind {
    let node = host.read(&format!("{CLASS}/{name}/node_type")).unwrap_or_default();
    if node.contains("RNIC") {
        return Kind::Iwarp;
    }
    match host.read(&format!("{CLASS}/{name}/ports/1/link_layer")).as_deref() {
        Some("Ethernet") => Kind::Roce,
        Some("InfiniBand") => Kind::InfiniBand,
        _ => Kind::Other,
    }
}

/// The same rule as that of clients, in dafs-dat's `listed_devices`.
fn is_software(host: &Host, name: &str) -> bool {
    let has = |file: &str| host.exists(&format!("{CLASS}/{name}/{file}"));
    has("parent") || !has("device")
}

/// The network device: named by soft devices, by the first address of a port, or by the bus.
fn network(host: &Host, name: &str) -> Option<String> {
    host.read(&format!("{CLASS}/{name}/parent"))
        .or_else(|| host.read(&format!("{CLASS}/{name}/ports/1/gid_attrs/ndevs/0")))
        .or_else(|| host.list(&format!("{CLASS}/{name}/device/net")).into_iter().next())
        .filter(|network| !network.is_empty())
}

fn ports(host: &Host, name: &str) -> Vec<Port> {
    let ports = format!("{CLASS}/{name}/ports");
    let port = |number: String| {
        let state = host.read(&format!("{ports}/{number}/state")).unwrap_or_default();
        // "4: ACTIVE"
        let state = state.rsplit(' ').next().unwrap_or_default().to_owned();
        Port { number, state }
    };
    host.list(&ports).into_iter().map(port).collect()
}

pub(super) fn check(host: &Host, devices: &[Device]) -> Vec<Finding> {
    if devices.is_empty() {
        return vec![Finding::note(
            "rdma device",
            "there is no RDMA device; dafs works without one, by its own iWARP over any network",
            format!(
                "the kernel's own NFS needs one for RDMA; a soft one does: modprobe siw && rdma \
                 link add siw0 type siw netdev {}",
                network_device(host)
            ),
        )];
    }
    let mut findings: Vec<Finding> = devices.iter().map(check_device).collect();
    findings.extend(devices.iter().filter_map(|device| check_verbs_file(host, device)));
    findings.push(check_manager(host));
    findings
}

/// A network device for an example: not loopback, preferably one that is up.
pub(super) fn network_device(host: &Host) -> String {
    let names = host.list("sys/class/net").into_iter().filter(|name| name != "lo");
    let rank =
        |name: &String| match host.read(&format!("sys/class/net/{name}/operstate")).as_deref() {
            Some("up") => 0,
            Some("unknown") => 1,
            _ => 2,
        };
    names.min_by_key(rank).unwrap_or_else(|| "eth0".to_owned())
}

fn check_device(device: &Device) -> Finding {
    const TOPIC: &str = "rdma device";
    let Device { name, kind, network, ports, .. } = device;
    let over = network.as_ref().map(|network| format!(" over {network}")).unwrap_or_default();
    let down = ports.iter().find(|port| port.state != "ACTIVE");
    match down {
        None if !ports.is_empty() => {
            Finding::ok(TOPIC, format!("{name}: {kind}{over}, all ports are active"))
        }
        None => Finding::note(
            TOPIC,
            format!("{name}: {kind}{over}, without a port"),
            "the kernel's log tells why: dmesg",
        ),
        Some(Port { number, state }) => {
            let fix = match (kind, network) {
                (Kind::InfiniBand, _) => "see to the cable and to a running subnet manager".into(),
                (_, Some(network)) => format!("ip link set {network} up, and see to the cable"),
                _ => "see to the cable, and that the network device is up".to_owned(),
            };
            let text = format!("{name}: {kind}{over}, port {number} is {state} and not ACTIVE");
            Finding::note(TOPIC, text, fix)
        }
    }
}

const PERMISSIONS: &str = "make it mode 0666 by an udev rule, as distributions do: \
                           KERNEL==\"uverbs*|rdma_cm\", MODE=\"0666\"";

fn check_verbs_file(host: &Host, device: &Device) -> Option<Finding> {
    const TOPIC: &str = "rdma access";
    let name = &device.name;
    let path = device.verbs_file.as_ref().map(|file| format!("{FILES}/{file}"));
    let Some(path) = path.filter(|path| host.exists(path)) else {
        let text = format!("{name} has no file below /{FILES}, so programs cannot use it");
        return Some(Finding::problem(TOPIC, text, "modprobe ib_uverbs, and run udev"));
    };
    if !host.may_use(&path) {
        let text = format!("this user may not use {name}: /{path} cannot be opened");
        return Some(Finding::problem(TOPIC, text, PERMISSIONS));
    }
    Some(Finding::ok(TOPIC, format!("this user may use {name} by /{path}")))
}

/// The connection manager, without which no program makes a connection.
fn check_manager(host: &Host) -> Finding {
    const TOPIC: &str = "rdma access";
    let path = format!("{FILES}/rdma_cm");
    if !host.exists(&path) {
        let text = format!("there is no /{path}, so programs cannot make RDMA connections");
        return Finding::problem(TOPIC, text, "modprobe rdma_ucm, and run udev");
    }
    if !host.may_use(&path) {
        let text = format!("this user may not make RDMA connections: /{path} cannot be opened");
        return Finding::problem(TOPIC, text, PERMISSIONS);
    }
    Finding::ok(TOPIC, format!("this user may make RDMA connections by /{path}"))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    fn soft_device(fake: &Fake) {
        fake.file("sys/class/infiniband/siw0/node_type", "4: RNIC\n");
        fake.file("sys/class/infiniband/siw0/parent", "eth0\n");
        fake.file("sys/class/infiniband/siw0/ports/1/state", "4: ACTIVE\n");
    }

    #[test]
    fn a_soft_device_in_order() {
        let fake = Fake::new();
        soft_device(&fake);
        fake.file("sys/class/infiniband_verbs/uverbs0/ibdev", "siw0\n");
        fake.file("dev/infiniband/uverbs0", "");
        fake.file("dev/infiniband/rdma_cm", "");
        let devices = find(&fake.host());
        assert_eq!(devices.len(), 1);
        assert_eq!((devices[0].kind, devices[0].network.as_deref()), (Kind::Iwarp, Some("eth0")));
        assert!(devices[0].is_software);
        let findings = check(&fake.host(), &devices);
        assert_eq!(findings.len(), 3);
        assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
        assert!(findings[0].text.contains("siw0: iWARP over eth0"));
    }

    #[test]
    fn a_device_that_programs_cannot_reach_is_a_problem() {
        let fake = Fake::new();
        soft_device(&fake);
        let findings = check(&fake.host(), &find(&fake.host()));
        let fixes: Vec<_> = findings
            .iter()
            .filter(|finding| finding.level == Level::Problem)
            .filter_map(|finding| finding.fix.as_deref())
            .collect();
        assert_eq!(fixes, ["modprobe ib_uverbs, and run udev", "modprobe rdma_ucm, and run udev"]);
    }

    #[test]
    fn a_port_that_is_down_names_its_network() {
        let fake = Fake::new();
        let device = "sys/class/infiniband/mlx5_0";
        fake.file(&format!("{device}/node_type"), "1: CA");
        fake.file(&format!("{device}/ports/1/link_layer"), "Ethernet");
        fake.file(&format!("{device}/ports/1/state"), "1: DOWN");
        fake.file(&format!("{device}/device/net/ens1/mtu"), "1500");
        let devices = find(&fake.host());
        assert_eq!((devices[0].kind, devices[0].network.as_deref()), (Kind::Roce, Some("ens1")));
        assert!(!devices[0].is_software);
        let finding = check_device(&devices[0]);
        assert_eq!(finding.level, Level::Note);
        assert!(finding.text.contains("port 1 is DOWN"), "{finding}");
        assert!(finding.fix.unwrap().contains("ip link set ens1 up"));
    }

    #[test]
    fn without_a_device_a_soft_one_is_proposed_for_a_network_that_is_here() {
        let fake = Fake::new();
        fake.file("sys/class/net/lo/mtu", "65536");
        fake.file("sys/class/net/dummy0/operstate", "down");
        fake.file("sys/class/net/wlan7/operstate", "up");
        let findings = check(&fake.host(), &find(&fake.host()));
        assert!(findings[0].fix.as_ref().unwrap().contains("netdev wlan7"));
    }
}
