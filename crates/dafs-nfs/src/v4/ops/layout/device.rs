//! GETDEVICEINFO and GETDEVICELIST (RFC 8881 18.40, 18.41): the addresses of data servers.
//!
//! A device never changes. A device that is not current any more is returned for as long as the
//! store knows it. So a client that requests notifications of changes is promised them, and is
//! notified when a device is gone. Stock clients cache a device only with that promise.
//!
//! A client over RDMA gets the RDMA addresses of each data server first, and the TCP addresses
//! behind them. Any other client gets the TCP addresses only.
//!
//! The order is for stock clients. Linux uses the first address of the list that it can connect to,
//! and of the later ones only those of the same network (`_nfs4_pnfs_v4_ds_connect` in
//! `fs/nfs/pnfs_nfs.c` of 6.12). So it uses RDMA, or TCP where RDMA is not possible, for instance
//! if another kind of device leads to the data server. Before 5.11 it accepts only TCP addresses.
//! With RDMA behind TCP it would never use RDMA, but would load the modules for it.
//!
//! Both lists name the same data servers, with the same key. A client may remember either, and have
//! connections of both kinds, and reaches the same files.

use super::form;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult};
use dafs_store::{Device, DeviceKey, LayoutForm, NfsAddresses};
use dafs_wire::nfs4::{
    Bitmap, DataServer, DeviceId, FilesDevice, FlexDevice, FlexVersion, GetdeviceinfoArgs,
    GetdeviceinfoResult, GetdevicelistArgs, GetdevicelistResult, LayoutBody, NOTIFY_DEVICE_CHANGE,
    NOTIFY_DEVICE_DELETE, NetworkAddress, Status,
};
use dafs_wire::xdr::{Encode, Encoder};
use std::net::SocketAddr;

/// The protocol version of data servers for flexible files.
const DATA_SERVER_VERSION: FlexVersion = FlexVersion {
    version: 4,
    minor_version: 1,
    read_bytes_max: TRANSFER_BYTES_MAX,
    write_bytes_max: TRANSFER_BYTES_MAX,
    tightly_coupled: true,
};

/// Bytes of the result besides the device's address.
const AROUND_BODY_BYTES: usize = 16;

pub(in crate::v4::ops) fn getdeviceinfo(
    cx: &mut OpContext<'_>,
    args: &GetdeviceinfoArgs,
) -> OpResult {
    let form = form(cx, args.layout_type)?;
    let key = DeviceKey(args.device_id.0);
    let device = cx.service().layouts.device(&key).ok_or(Status::NoEnt)?;
    let mut body = body(&device, form, cx.call().is_rdma).ok_or(Status::NoEnt)?;
    let wanted = body.len() + AROUND_BODY_BYTES;
    match args.result_bytes_max as usize {
        // The client only asked which notifications are supported.
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
    if !cx.service().layouts.watch_device(cx.caller()?.client, key, form, wanted) {
        notifications = Bitmap::EMPTY;
    }
    cx.answer(&GetdeviceinfoResult {
        address: LayoutBody { layout_type: args.layout_type, body: &body },
        notifications,
    })
}

pub(in crate::v4::ops) fn getdevicelist(
    cx: &mut OpContext<'_>,
    args: &GetdevicelistArgs,
) -> OpResult {
    let handle = cx.current()?;
    let form = form(cx, args.layout_type)?;
    let devices = cx.service().layouts.devices(&handle, form)?;
    let verifier = cx.write_verifier();
    if args.devices_max == 0 {
        return Err(Status::TooSmall.into());
    }
    if args.cookie != 0 && args.cookie_verifier != verifier {
        return Err(Status::NotSame.into());
    }
    let from = usize::try_from(args.cookie).unwrap_or(usize::MAX).min(devices.len());
    let until = from.saturating_add(args.devices_max as usize).min(devices.len());
    cx.answer(&GetdevicelistResult {
        cookie: until as u64,
        cookie_verifier: verifier,
        devices: devices[from..until].iter().map(|key| DeviceId(key.0)).collect(),
        eof: until == devices.len(),
    })
}

/// Returns the body of a device's address. `None` for a device that such layouts do not name.
fn body(device: &Device, form: LayoutForm, by_rdma: bool) -> Option<Vec<u8>> {
    let servers: Vec<Vec<_>> = device.servers.iter().map(|server| told(server, by_rdma)).collect();
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

/// Returns the networks and addresses of a data server for a client, best first.
fn told(server: &NfsAddresses, by_rdma: bool) -> Vec<(&'static str, String)> {
    let rdma = server.rdma.iter().filter(|_| by_rdma);
    let rdma = rdma.map(|address| (network(address, true), universal(address)));
    let tcp = server.tcp.iter().map(|address| (network(address, false), universal(address)));
    rdma.chain(tcp).collect()
}

/// Returns the network of an address (RFC 5665 5.1, RFC 8166 9).
fn network(address: &SocketAddr, is_rdma: bool) -> &'static str {
    match (address.is_ipv4(), is_rdma) {
        (true, false) => "tcp",
        (false, false) => "tcp6",
        (true, true) => "rdma",
        (false, true) => "rdma6",
    }
}

/// Returns the universal address (RFC 5665 5.2.3.3): the address with the port's two bytes behind
/// it.
fn universal(address: &SocketAddr) -> String {
    let port = address.port();
    format!("{}.{}.{}", address.ip(), port >> 8, port & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::xdr::{Decode, Decoder};

    #[test]
    fn addresses_are_universal() {
        let read = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let [four, six] = ["10.0.2.2:2049", "[fd00::2]:2050"].map(read);
        assert_eq!(universal(&four), "10.0.2.2.8.1");
        assert_eq!(universal(&six), "fd00::2.8.2");
        let networks = |is_rdma| [four, six].map(|address| network(&address, is_rdma));
        assert_eq!(networks(false), ["tcp", "tcp6"]);
        assert_eq!(networks(true), ["rdma", "rdma6"]);
    }

    /// Reads the networks and addresses of the servers in a body.
    fn read(body: &[u8], form: LayoutForm) -> Vec<Vec<String>> {
        let mut d = Decoder::new(body);
        let servers = match form {
            LayoutForm::Stripes => FilesDevice::decode(&mut d).expect("a device").servers,
            LayoutForm::Copies => vec![FlexDevice::decode(&mut d).expect("a device").server],
        };
        d.finish().expect("nothing else");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let address = |address: &NetworkAddress<'_>| {
            format!("{} {}", text(address.network), text(address.address))
        };
        servers.iter().map(|server| server.0.iter().map(address).collect()).collect()
    }

    #[test]
    fn clients_over_rdma_get_rdma_addresses() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let both = NfsAddresses {
            tcp: vec![address("10.0.2.2:2051")],
            rdma: vec![address("10.0.2.2:20049"), address("[fd00::2]:20049")],
        };
        let tcp = NfsAddresses::over_tcp(vec![address("[fd00::2]:2052")]);
        let device = Device { pattern: vec![0, 1], servers: vec![both.clone(), tcp] };
        let told = |device: &Device, form, by_rdma| {
            read(&body(device, form, by_rdma).expect("a body"), form)
        };
        let by_tcp = [vec!["tcp 10.0.2.2.8.3"], vec!["tcp6 fd00::2.8.4"]];
        assert_eq!(told(&device, LayoutForm::Stripes, false), by_tcp);
        let first = ["rdma 10.0.2.2.78.81", "rdma6 fd00::2.78.81", "tcp 10.0.2.2.8.3"];
        let by_rdma = [first.to_vec(), vec!["tcp6 fd00::2.8.4"]];
        assert_eq!(told(&device, LayoutForm::Stripes, true), by_rdma);
        let single = Device { pattern: vec![0], servers: vec![both] };
        assert_eq!(told(&single, LayoutForm::Copies, false), [["tcp 10.0.2.2.8.3"]]);
        assert_eq!(told(&single, LayoutForm::Copies, true), [first]);
    }
}
