//! The choice of an RDMA device of this host for a session.
//!
//! Invariants
//! * A client that chooses by itself opens no device of a host where it may choose none.

use crate::limits::DEVICE_CONNECT_TIME;
use crate::options::RdmaDevices;
use dafs_dat::verbs::{
    DeviceInfo, DeviceKind, VerbsAdapter, VerbsConfig, has_devices, listed_devices,
    locked_memory_limit,
};
use std::net::SocketAddr;
use std::time::Duration;

/// The party that has chosen a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The user has asked for one.
    Asked,
    /// The client tries one of these before TCP.
    Automatic(RdmaDevices),
}

/// True if the client may try devices by itself, and this host has one.
pub(crate) fn may_try(wanted: RdmaDevices) -> bool {
    wanted != RdmaDevices::None && has_devices()
}

/// Opens the device that leads to a server.
///
/// # Errors
/// The reason why none is of use.
pub(crate) fn open(
    address: SocketAddr,
    choice: Choice,
    connect_timeout: Duration,
) -> Result<VerbsAdapter, String> {
    let mut handshake_timeout = connect_timeout;
    if let Choice::Automatic(_) = choice {
        check_all(&listed_devices(), choice)?;
        if let Some(bytes) = locked_memory_limit() {
            return Err(limited(bytes));
        }
        handshake_timeout = handshake_timeout.min(DEVICE_CONNECT_TIME);
    }
    let config = VerbsConfig { handshake_timeout, ..VerbsConfig::towards(address) };
    let adapter = VerbsAdapter::open(config).map_err(|error| error.to_string())?;
    check(adapter.device(), choice)?;
    Ok(adapter)
}

/// Buffers of any size are registered while the session lasts, so a limit would fail operations that
/// TCP carries out.
fn limited(bytes: u64) -> String {
    format!(
        "only {bytes} bytes may be registered with one; ulimit -l unlimited lifts this limit, and \
         transport=verbs accepts it"
    )
}

/// Checks that one of the devices, if there are some, may be used.
fn check_all(devices: &[DeviceInfo], choice: Choice) -> Result<(), String> {
    let reasons = devices.iter().filter_map(|device| check(device, choice).err());
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() || reasons.len() < devices.len() {
        return Ok(());
    }
    Err(reasons.join("; "))
}

fn check(device: &DeviceInfo, choice: Choice) -> Result<(), String> {
    let name = &device.name;
    match (device.kind, choice) {
        (DeviceKind::SoftIwarp, _) => Err(format!(
            "{name} is a siw device, and siw lets peers read any registered memory; \
             transport=iwarp goes to the same server without it"
        )),
        (DeviceKind::SoftRoce, Choice::Automatic(RdmaDevices::None | RdmaDevices::Adapters)) => {
            Err(format!(
                "{name} is a rxe device, RoCE in software, which only transport=verbs uses"
            ))
        }
        (DeviceKind::Iwarp, Choice::Automatic(_)) => {
            Err(format!("{name} is an iWARP device, which only transport=verbs uses"))
        }
        _ => Ok(()),
    }
}

/// The device of an adapter in words, for the reason of a choice.
pub(crate) fn describe(device: &DeviceInfo) -> String {
    format!("the RDMA device {}, {}", device.name, device.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICES: [Choice; 3] = [
        Choice::Asked,
        Choice::Automatic(RdmaDevices::Adapters),
        Choice::Automatic(RdmaDevices::All),
    ];

    fn device(kind: DeviceKind) -> DeviceInfo {
        DeviceInfo { name: "dev0".to_owned(), kind, is_active: true }
    }

    #[test]
    fn a_device_that_corrupts_is_never_used() {
        for choice in CHOICES {
            let reason = check(&device(DeviceKind::SoftIwarp), choice).unwrap_err();
            assert!(reason.contains("transport=iwarp"), "{reason}");
        }
    }

    #[test]
    fn a_client_chooses_only_adapters_by_itself() {
        for choice in CHOICES {
            for kind in [DeviceKind::Roce, DeviceKind::InfiniBand] {
                check(&device(kind), choice).unwrap();
            }
            let is_asked = choice == Choice::Asked;
            assert_eq!(check(&device(DeviceKind::Iwarp), choice).is_ok(), is_asked);
            let is_any = is_asked || choice == Choice::Automatic(RdmaDevices::All);
            let outcome = check(&device(DeviceKind::SoftRoce), choice);
            assert_eq!(outcome.is_ok(), is_any, "{outcome:?}");
            assert!(outcome.err().is_none_or(|reason| reason.contains("transport=verbs")));
        }
        assert!(!may_try(RdmaDevices::None));
    }

    #[test]
    fn one_device_that_may_be_chosen_is_enough() {
        let (soft, adapter) = (device(DeviceKind::SoftRoce), device(DeviceKind::Roce));
        let choice = Choice::Automatic(RdmaDevices::Adapters);
        check_all(&[], choice).unwrap();
        check_all(&[soft.clone(), adapter], choice).unwrap();
        let reason = check_all(&[soft, device(DeviceKind::Iwarp)], choice).unwrap_err();
        assert!(reason.contains("rxe device") && reason.contains("; dev0 is an iWARP"), "{reason}");
    }

    #[test]
    fn a_limit_comes_with_its_remedy() {
        assert!(limited(8 << 20).contains("8388608") && limited(1).contains("ulimit -l"));
        let text = describe(&device(DeviceKind::SoftRoce));
        assert_eq!(text, "the RDMA device dev0, RoCE in software (rxe)");
    }
}
