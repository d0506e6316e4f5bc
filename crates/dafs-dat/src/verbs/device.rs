//! The RDMA devices of this machine, and the capabilities of the chosen one.

use super::cm::{CmId, EventChannel};
use super::command_thread;
use super::config::{VerbsConfig, VerbsDevice};
use super::error::VerbsError;
use super::ffi;
use super::library::Library;
use super::limits;
use super::qp::Depths;
use super::sys::Device;
use crate::GATHER_SEGMENTS_MAX;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Vendor number of the kernel's software RoCE, rxe.
const VENDOR_RXE: u32 = 0x00ff_ffff;

/// Vendor number of the kernel's software iWARP, siw.
const VENDOR_SIW: u32 = 0x0062_6d74;

/// The network of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over converged Ethernet by an adapter.
    Roce,
    /// RoCE by the kernel's rxe.
    SoftRoce,
    /// iWARP by an adapter.
    Iwarp,
    /// iWARP by the kernel's siw.
    SoftIwarp,
    /// A network that this provider does not support.
    Other,
}

impl DeviceKind {
    /// True if the kernel emulates the device.
    pub fn is_software(self) -> bool {
        matches!(self, Self::SoftRoce | Self::SoftIwarp)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::InfiniBand => "InfiniBand",
            DeviceKind::Roce => "RoCE",
            DeviceKind::SoftRoce => "RoCE in software (rxe)",
            DeviceKind::Iwarp => "iWARP",
            DeviceKind::SoftIwarp => "iWARP in software (siw)",
            DeviceKind::Other => "no reliable connections",
        })
    }
}

/// A device of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, as `rdma link` shows it.
    pub name: String,
    /// Its network.
    pub kind: DeviceKind,
    /// True if one of its ports is up.
    pub is_active: bool,
}

/// The RDMA devices of this machine; none is [`VerbsError::NoDevice`].
///
/// # Errors
/// A library or a device that is missing, with its remedy.
pub fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let library = Library::get()?;
    command_thread::run(|| {
        let found = Device::all(library)?;
        if found.is_empty() {
            return Err(VerbsError::NoDevice);
        }
        found.iter().map(describe).collect()
    })
}

fn describe(device: &Device) -> Result<DeviceInfo, VerbsError> {
    let attributes = device.attributes()?;
    let mut is_active = false;
    let mut is_ethernet = false;
    for number in 1..=attributes.phys_port_cnt {
        let port = device.port(number)?;
        is_active |= port.state == ffi::PORT_ACTIVE;
        is_ethernet |= port.link_layer == ffi::LINK_LAYER_ETHERNET;
    }
    let kind = match attributes.vendor_id {
        _ if device.is_iwarp() && attributes.vendor_id == VENDOR_SIW => DeviceKind::SoftIwarp,
        _ if device.is_iwarp() => DeviceKind::Iwarp,
        VENDOR_RXE if device.is_infiniband() => DeviceKind::SoftRoce,
        _ if device.is_infiniband() && is_ethernet => DeviceKind::Roce,
        _ if device.is_infiniband() => DeviceKind::InfiniBand,
        _ => DeviceKind::Other,
    };
    Ok(DeviceInfo { name: device.name(), kind, is_active })
}

/// The device of an adapter, with the values that follow from its limits and the settings.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) device: Device,
    pub(super) info: DeviceInfo,
    pub(super) depths: Depths,
    pub(super) inbound_reads_max: u8,
    pub(super) outbound_reads_max: u8,
    pub(super) region_bytes_max: u64,
    pub(super) completion_count_max: u32,
    /// Memory is granted by memory windows.
    pub(super) has_windows: bool,
}

impl Chosen {
    /// True if private data arrives padded with zeros, and an exchange of messages ends the
    /// connection.
    pub(super) fn is_infiniband(&self) -> bool {
        self.device.is_infiniband()
    }

    /// True if the kernel emulates the device, which needs system calls for posted work.
    pub(super) fn is_software(&self) -> bool {
        self.info.kind.is_software()
    }

    /// True if memory may be granted to peers. siw checks no rights. The peer of an iWARP adapter may be
    /// software, which does not know that a device answers its reads: it would trust the device for a
    /// server that is held up.
    pub(super) fn may_grant(&self) -> bool {
        self.is_infiniband()
    }

    /// True if the device treats the response to an own read as a write by the peer, and checks its
    /// rights. iWARP adapters do so; siw compares the response with the read and needs no right.
    pub(super) fn sink_is_written(&self) -> bool {
        self.info.kind == DeviceKind::Iwarp
    }
}

/// Finds the device for the settings. `channel` has no identifiers yet.
pub(super) fn choose(
    library: &'static Library,
    channel: &EventChannel,
    config: &VerbsConfig,
) -> Result<Chosen, VerbsError> {
    let device = match &config.device {
        VerbsDevice::Any => any(library)?,
        VerbsDevice::At(address) if address.is_unspecified() => any(library)?,
        VerbsDevice::Named(name) => named(library, name)?,
        VerbsDevice::At(address) => at(library, channel, *address)?,
        VerbsDevice::Towards(address) => towards(library, channel, *address)?,
    };
    measure(device, config)
}

fn any(library: &'static Library) -> Result<Device, VerbsError> {
    let mut first = None;
    for device in Device::all(library)? {
        let info = describe(&device)?;
        if info.kind == DeviceKind::Other {
            continue;
        }
        if info.is_active {
            return Ok(device);
        }
        first.get_or_insert(device);
    }
    first.ok_or(VerbsError::NoDevice)
}

fn named(library: &'static Library, name: &str) -> Result<Device, VerbsError> {
    let devices = Device::all(library)?;
    if devices.is_empty() {
        return Err(VerbsError::NoDevice);
    }
    if let Some(device) = devices.iter().find(|device| device.name() == name) {
        return Ok(*device);
    }
    let names: Vec<_> = devices.iter().map(Device::name).collect();
    Err(VerbsError::Name { name: name.to_owned(), known: names.join(", ") })
}

/// The token of an identifier whose events no entry handles.
const NOBODY: u64 = 0;

fn probe(channel: &EventChannel) -> Result<CmId, VerbsError> {
    channel.identifier(NOBODY).map_err(VerbsError::ConnectionManager)
}

fn at(
    library: &'static Library,
    channel: &EventChannel,
    address: IpAddr,
) -> Result<Device, VerbsError> {
    let id = probe(channel)?;
    let missing = |detail| VerbsError::NoDeviceAt { address, detail };
    id.bind(SocketAddr::new(address, 0)).map_err(|error| missing(error.to_string()))?;
    Device::of(library, id.context())
        .ok_or_else(|| missing("the address belongs to no device".to_owned()))
}

fn towards(
    library: &'static Library,
    channel: &EventChannel,
    to: SocketAddr,
) -> Result<Device, VerbsError> {
    let id = probe(channel)?;
    let missing = |detail| VerbsError::NoDeviceAt { address: to.ip(), detail };
    id.resolve_address(to, limits::RESOLVE_TIMEOUT_MS).map_err(|e| missing(e.to_string()))?;
    let failed = |error| VerbsError::Io { what: "ask the connection manager", error };
    let timeout = Timespec { tv_sec: 1 + i64::from(limits::RESOLVE_TIMEOUT_MS) / 1000, tv_nsec: 0 };
    loop {
        if let Some(event) = channel.next().map_err(failed)? {
            return match event.kind {
                ffi::CM_ADDR_RESOLVED => Device::of(library, id.context())
                    .ok_or_else(|| missing("no device leads there".to_owned())),
                _ => {
                    let error = std::io::Error::from_raw_os_error(event.status.saturating_abs());
                    Err(missing(format!("no device leads there: {error}")))
                }
            };
        }
        let descriptor = channel.descriptor();
        let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        match poll(&mut set, Some(&timeout)) {
            Ok(0) => return Err(missing("no answer from the network".to_owned())),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// A count from the library, which declares it signed.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn measure(device: Device, config: &VerbsConfig) -> Result<Chosen, VerbsError> {
    let attributes = device.attributes()?;
    let info = describe(&device)?;
    let most = |value: i32, wanted: u8| count(value).min(u32::from(wanted)) as u8;
    let completion_count_max = count(attributes.max_cqe);
    let work_count_max = count(attributes.max_qp_wr).min(completion_count_max / 2);
    Ok(Chosen {
        depths: Depths {
            sends: config.send_count_max.min(work_count_max).max(2),
            receives: config.receive_count_max.min(work_count_max).max(1),
            segments: count(attributes.max_sge).clamp(1, GATHER_SEGMENTS_MAX as u32),
        },
        inbound_reads_max: most(attributes.max_qp_rd_atom, config.inbound_reads_max),
        outbound_reads_max: most(attributes.max_qp_init_rd_atom, config.outbound_reads_max),
        region_bytes_max: attributes.max_mr_size,
        completion_count_max,
        has_windows: config.memory_windows
            && attributes.device_cap_flags & ffi::DEVICE_MEM_WINDOW_TYPE_2B != 0,
        device,
        info,
    })
}
