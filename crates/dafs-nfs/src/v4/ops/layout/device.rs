//! GETDEVICEINFO and GETDEVICELIST (RFC 8881 18.40, 18.41): where data servers are.
//!
//! A device never changes; one that is not current any more is told for as long as the store knows
//! it. So whoever asks for word of changes is promised it, and told of devices that are gone: stock
//! clients keep what they know of a device only then.

use super::form;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::v4::compound::{Compound, OpError, OpResult};
use dafs_store::{Device, DeviceKey, LayoutForm};
use dafs_wire::nfs4::{
    Bitmap, DataServer, DeviceId, FilesDevice, FlexDevice, FlexVersion, GetdeviceinfoArgs,
    GetdeviceinfoResult, GetdevicelistArgs, GetdevicelistResult, LayoutBody, NOTIFY_DEVICE_CHANGE,
    NOTIFY_DEVICE_DELETE, NetworkAddress, Status, Verifier,
};
use dafs_wire::xdr::{Encode, Encoder};
use std::net::SocketAddr;

/// What data servers speak to clients that have flexible files.
const DATA_SERVER_VERSION: FlexVersion = FlexVersion {
    version: 4,
    minor_version: 1,
    read_bytes_max: TRANSFER_BYTES_MAX,
    write_bytes_max: TRANSFER_BYTES_MAX,
    tightly_coupled: true,
};

/// What the result takes besides the device's address, in bytes.
const AROUND_BODY_BYTES: usize = 16;

pub(in crate::v4::ops) fn getdeviceinfo(
    cx: &mut Compound<'_>,
    args: &GetdeviceinfoArgs,
) -> OpResult {
    let form = form(cx, args.layout_type)?;
    let key = DeviceKey(args.device_id.0);
    let device = cx.shared.service.device(&key).ok_or(Status::NoEnt)?;
    let mut body = body(&device, form).ok_or(Status::NoEnt)?;
    let wanted = body.len() + AROUND_BODY_BYTES;
    match args.result_bytes_max as usize {
        // Only which changes are to be told was asked for.
        0 => body.clear(),
        max if max < wanted => {
            cx.encoder().u32(wanted as u32);
            return Err(OpError::WithBody(Status::TooSmall));
        }
        _ => {}
    }
    let mut notifications = Bitmap::EMPTY;
    for kind in [NOTIFY_DEVICE_CHANGE, NOTIFY_DEVICE_DELETE] {
        if args.notifications.contains(kind) {
            notifications.insert(kind);
        }
    }
    let wanted = notifications != Bitmap::EMPTY;
    let service = cx.shared.service.clone();
    if !service.watch_device(cx.caller()?.client, key, form, wanted) {
        notifications = Bitmap::EMPTY;
    }
    cx.encoder().value(&GetdeviceinfoResult {
        address: LayoutBody { layout_type: args.layout_type, body: &body },
        notifications,
    });
    Ok(())
}

pub(in crate::v4::ops) fn getdevicelist(
    cx: &mut Compound<'_>,
    args: &GetdevicelistArgs,
) -> OpResult {
    let handle = cx.current()?;
    form(cx, args.layout_type)?;
    let devices = cx.shared.service.devices(&handle)?;
    let verifier = Verifier(cx.shared.write_verifier.current());
    if args.devices_max == 0 {
        return Err(Status::TooSmall.into());
    }
    if args.cookie != 0 && args.cookie_verifier != verifier {
        return Err(Status::NotSame.into());
    }
    let from = usize::try_from(args.cookie).unwrap_or(usize::MAX).min(devices.len());
    let until = from.saturating_add(args.devices_max as usize).min(devices.len());
    cx.encoder().value(&GetdevicelistResult {
        cookie: until as u64,
        cookie_verifier: verifier,
        devices: devices[from..until].iter().map(|key| DeviceId(key.0)).collect(),
        eof: until == devices.len(),
    });
    Ok(())
}

/// The body of a device's address; `None` for a device that such layouts do not name.
fn body(device: &Device, form: LayoutForm) -> Option<Vec<u8>> {
    let text = |address: &SocketAddr| (network(address), universal(address));
    let servers: Vec<Vec<_>> =
        device.servers.iter().map(|server| server.iter().map(text).collect()).collect();
    let mut bytes = Vec::with_capacity(64);
    let mut servers = servers.iter().map(|server| {
        let addresses = server.iter().map(|(network, address)| NetworkAddress {
            network: network.as_bytes(),
            address: address.as_bytes(),
        });
        DataServer(addresses.collect())
    });
    let mut e = Encoder::new(&mut bytes);
    match form {
        LayoutForm::Stripes => {
            let servers = servers.collect();
            FilesDevice { stripe_indices: device.pattern.clone(), servers }.encode(&mut e);
        }
        LayoutForm::Copies => {
            let server = servers.next().filter(|_| device.servers.len() == 1)?;
            FlexDevice { server, versions: vec![DATA_SERVER_VERSION] }.encode(&mut e);
        }
    }
    Some(bytes)
}

fn network(address: &SocketAddr) -> &'static str {
    if address.is_ipv4() { "tcp" } else { "tcp6" }
}

/// The universal address (RFC 5665 5.2.3.3): the port's two bytes behind the address.
fn universal(address: &SocketAddr) -> String {
    let port = address.port();
    format!("{}.{}.{}", address.ip(), port >> 8, port & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_universal() {
        let four: SocketAddr = "10.0.2.2:2049".parse().expect("an address");
        assert_eq!((network(&four), universal(&four).as_str()), ("tcp", "10.0.2.2.8.1"));
        let six: SocketAddr = "[fd00::2]:2050".parse().expect("an address");
        assert_eq!((network(&six), universal(&six).as_str()), ("tcp6", "fd00::2.8.2"));
    }
}
