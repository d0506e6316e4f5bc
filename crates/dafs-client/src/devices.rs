//! The choice of an RDMA device of this host for a session.

use crate::limits::DEVICE_CONNECT_TIME;
use dafs_dat::verbs::{
    DeviceInfo, DeviceKind, VerbsAdapter, VerbsConfig, has_devices, locked_memory_limit,
};
use std::net::SocketAddr;
use std::time::Duration;

/// The party that has chosen a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The user has asked for one.
    Asked,
    /// The client tries whether one works better than TCP.
    Automatic,
}

/// True if this host has a device that the client may try by itself.
pub(crate) fn may_try(wanted: bool) -> bool {
    wanted && has_devices()
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
    if choice == Choice::Automatic {
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

fn check(device: &DeviceInfo, choice: Choice) -> Result<(), String> {
    let name = &device.name;
    match (device.kind, choice) {
        (DeviceKind::SoftIwarp, _) => Err(format!(
            "{name} is a siw device, and siw lets peers read any registered memory; \
             transport=iwarp goes to the same server without it"
        )),
        (DeviceKind::Iwarp, Choice::Automatic) => {
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

    fn device(kind: DeviceKind) -> DeviceInfo {
        DeviceInfo { name: "dev0".to_owned(), kind, is_active: true }
    }

    #[test]
    fn a_device_that_corrupts_is_never_used() {
        for choice in [Choice::Asked, Choice::Automatic] {
            let reason = check(&device(DeviceKind::SoftIwarp), choice).unwrap_err();
            assert!(reason.contains("transport=iwarp"), "{reason}");
            for kind in [DeviceKind::Roce, DeviceKind::SoftRoce, DeviceKind::InfiniBand] {
                check(&device(kind), choice).unwrap();
            }
        }
        check(&device(DeviceKind::Iwarp), Choice::Asked).unwrap();
        assert!(check(&device(DeviceKind::Iwarp), Choice::Automatic).is_err());
        assert!(!may_try(false));
    }

    #[test]
    fn a_limit_comes_with_its_remedy() {
        assert!(limited(8 << 20).contains("8388608") && limited(1).contains("ulimit -l"));
        let text = describe(&device(DeviceKind::SoftRoce));
        assert_eq!(text, "the RDMA device dev0, RoCE in software (rxe)");
    }
}
