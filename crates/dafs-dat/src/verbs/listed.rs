//! The RDMA devices of this machine as the kernel lists them below `/sys`.
//!
//! Invariants
//! * No library is loaded and no device is opened. A program that holds a device open may hold up its
//!   removal.

use super::device::{DeviceInfo, DeviceKind};
use std::fs;
use std::path::Path;

/// Where the kernel lists its RDMA devices.
const CLASS: &str = "/sys/class/infiniband";

/// True if the kernel has an RDMA device. Loads no library, and opens no device.
pub fn has_devices() -> bool {
    fs::read_dir(CLASS).is_ok_and(|mut devices| devices.next().is_some())
}

/// The RDMA devices of this machine, sorted by name; none where the kernel has or shows none. Loads
/// no library, and opens no device, so it also names those that this user may not open.
pub fn listed_devices() -> Vec<DeviceInfo> {
    listed_in(Path::new(CLASS))
}

fn listed_in(class: &Path) -> Vec<DeviceInfo> {
    let Ok(entries) = fs::read_dir(class) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut devices: Vec<_> = names.map(|name| describe(&class.join(&name), name)).collect();
    devices.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    devices
}

fn describe(device: &Path, name: String) -> DeviceInfo {
    let read = |file: &str| fs::read_to_string(device.join(file)).unwrap_or_default();
    let node = read("node_type");
    // "4: RNIC"
    let node = node.trim().rsplit(' ').next().unwrap_or_default();
    let kind = match (node, is_software(device)) {
        ("RNIC", true) => DeviceKind::SoftIwarp,
        ("RNIC", false) => DeviceKind::Iwarp,
        ("CA", true) => DeviceKind::SoftRoce,
        ("CA", false) => match read("ports/1/link_layer").trim() {
            "Ethernet" => DeviceKind::Roce,
            "InfiniBand" => DeviceKind::InfiniBand,
            _ => DeviceKind::Other,
        },
        _ => DeviceKind::Other,
    };
    DeviceInfo { is_active: is_active(device), name, kind }
}

/// True if the kernel emulates the device. Only rxe names the network device that it works over as
/// its `parent`, and an adapter has a `device` on a bus.
fn is_software(device: &Path) -> bool {
    device.join("parent").exists() || !device.join("device").exists()
}

fn is_active(device: &Path) -> bool {
    let Ok(ports) = fs::read_dir(device.join("ports")) else { return false };
    ports.flatten().any(|port| {
        // "4: ACTIVE"
        let state = fs::read_to_string(port.path().join("state")).unwrap_or_default();
        state.trim().ends_with("ACTIVE")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of one device, with these files.
    fn listed(files: &[(&str, &str)]) -> Vec<DeviceInfo> {
        let class = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = class.path().join("dev0").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        listed_in(class.path())
    }

    #[test]
    fn adapters_and_devices_in_software_are_told_apart() {
        const ADAPTER: (&str, &str) = ("device/vendor", "0x15b3\n");
        const CHANNEL_ADAPTER: (&str, &str) = ("node_type", "1: CA\n");
        const RNIC: (&str, &str) = ("node_type", "4: RNIC\n");
        const ETHERNET: (&str, &str) = ("ports/1/link_layer", "Ethernet\n");
        const INFINIBAND: (&str, &str) = ("ports/1/link_layer", "InfiniBand\n");
        const PARENT: (&str, &str) = ("parent", "eth0\n");
        let kinds: [(&[(&str, &str)], DeviceKind); 9] = [
            (&[CHANNEL_ADAPTER, ADAPTER, ETHERNET], DeviceKind::Roce),
            (&[CHANNEL_ADAPTER, ADAPTER, INFINIBAND], DeviceKind::InfiniBand),
            (&[CHANNEL_ADAPTER, ADAPTER], DeviceKind::Other),
            (&[CHANNEL_ADAPTER, ETHERNET], DeviceKind::SoftRoce),
            // Older kernels give rxe the bus of its network device.
            (&[CHANNEL_ADAPTER, ADAPTER, ETHERNET, PARENT], DeviceKind::SoftRoce),
            (&[RNIC, ADAPTER], DeviceKind::Iwarp),
            (&[RNIC], DeviceKind::SoftIwarp),
            (&[("node_type", "5: usNIC\n"), ADAPTER, ETHERNET], DeviceKind::Other),
            (&[ADAPTER], DeviceKind::Other),
        ];
        for (files, kind) in kinds {
            let found = listed(files);
            let expected = DeviceInfo { name: "dev0".to_owned(), kind, is_active: false };
            assert_eq!(found, [expected], "{files:?}");
        }
    }

    #[test]
    fn a_device_is_active_by_any_of_its_ports() {
        let down = ("ports/1/state", "1: DOWN\n");
        assert!(!listed(&[down])[0].is_active);
        assert!(listed(&[down, ("ports/2/state", "4: ACTIVE\n")])[0].is_active);
        assert_eq!(listed_in(Path::new("/nowhere/infiniband")), []);
    }
}
