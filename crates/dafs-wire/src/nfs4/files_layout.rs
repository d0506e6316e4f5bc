//! The files layout (RFC 8881 13): the distribution of a file's stripes over data servers that
//! speak NFSv4.1, and the addresses of such a set of servers.

use super::codec::xdr_struct;
use super::limits::*;
use super::types::{DeviceId, NetworkAddress};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use std::net::{IpAddr, SocketAddr};

/// The layout type of files (`LAYOUT4_NFSV4_1_FILES`).
pub const LAYOUT_FILES: u32 = 1;

/// The unit of stripes and their packing (`nfl_util4`): the unit is a multiple of 64, and the bits
/// below are flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripeUnit(pub u32);

impl StripeUnit {
    /// Components without holes (`NFL4_UFLG_DENSE`).
    const DENSE: u32 = 1;
    /// COMMIT goes to the metadata server (`NFL4_UFLG_COMMIT_THRU_MDS`).
    const COMMIT_THROUGH_MDS: u32 = 2;
    /// The bits of the unit (`NFL4_UFLG_STRIPE_UNIT_SIZE_MASK`).
    const UNIT: u32 = 0xffff_ffc0;

    /// `None` for a unit that cannot be encoded: zero, or not a multiple of 64.
    pub fn new(unit_bytes: u32, dense: bool) -> Option<Self> {
        let told = unit_bytes != 0 && unit_bytes & !Self::UNIT == 0;
        told.then_some(Self(if dense { unit_bytes | Self::DENSE } else { unit_bytes }))
    }

    /// Bytes of a stripe.
    pub fn unit_bytes(self) -> u32 {
        self.0 & Self::UNIT
    }

    /// True if components have no holes.
    pub fn dense(self) -> bool {
        self.0 & Self::DENSE != 0
    }

    /// True if COMMIT goes to the metadata server.
    pub fn commits_through_mds(self) -> bool {
        self.0 & Self::COMMIT_THROUGH_MDS != 0
    }
}

impl Decode<'_> for StripeUnit {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
        d.u32().map(Self)
    }
}

impl Encode for StripeUnit {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(self.0);
    }
}

/// The handle of a file at one data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComponentHandle<'a>(pub &'a [u8]);

impl<'a> Decode<'a> for ComponentHandle<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.opaque(FILE_HANDLE_BYTES_MAX).map(Self)
    }
}

impl Encode for ComponentHandle<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.opaque(self.0);
    }
}

xdr_struct! {
    /// The distribution of a file's stripes (`nfsv4_1_file_layout4`, RFC 8881 13.3), the body of a
    /// layout.
    pub struct FilesLayout<'a> {
        /// The data servers and their stripe pattern.
        pub device: DeviceId,
        /// Bytes of a stripe, and the packing.
        pub unit: StripeUnit,
        /// The pattern index of the stripe at `pattern_offset`.
        pub first_stripe_index: u32,
        /// The offset in the file at which the pattern begins.
        pub pattern_offset: u64,
        /// The file's handles at the data servers: one for all, none (the file's own handle), or
        /// one for each.
        pub handles: Vec<ComponentHandle<'a>> [max STRIPES_MAX],
    }
}

/// A data server: the addresses that reach it (`multipath_list4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataServer<'a>(pub Vec<NetworkAddress<'a>>);

impl<'a> Decode<'a> for DataServer<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let count = d.array_len(MULTIPATHS_MAX, 8)?;
        (0..count).map(|_| NetworkAddress::decode(d)).collect::<Result<_, _>>().map(Self)
    }
}

impl Encode for DataServer<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(self.0.len() as u32);
        self.0.iter().for_each(|address| address.encode(e));
    }
}

impl NetworkAddress<'_> {
    /// The socket address, if this is a universal address of a TCP network or of one with RDMA (RFC
    /// 5665 5.2.3); true for RDMA.
    pub fn socket_address(&self) -> Option<(SocketAddr, bool)> {
        let (is_ipv6, is_rdma) = match self.network {
            b"tcp" => (false, false),
            b"tcp6" => (true, false),
            b"rdma" => (false, true),
            b"rdma6" => (true, true),
            _ => return None,
        };
        let text = std::str::from_utf8(self.address).ok()?;
        let (rest, low) = text.rsplit_once('.')?;
        let (host, high) = rest.rsplit_once('.')?;
        let port = u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]);
        let ip: IpAddr = host.parse().ok()?;
        let is_usable = ip.is_ipv6() == is_ipv6 && port != 0 && !ip.is_unspecified();
        is_usable.then(|| (SocketAddr::new(ip, port), is_rdma))
    }
}

xdr_struct! {
    /// Data servers and their stripe pattern (`nfsv4_1_file_layout_ds_addr4`, RFC 8881 13.3), the
    /// body of a device's address.
    pub struct FilesDevice<'a> {
        /// For each pattern index the number of its server.
        pub stripe_indices: Vec<u32> [max STRIPES_MAX],
        /// The data servers.
        pub servers: Vec<DataServer<'a>> [max DATA_SERVERS_MAX],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round<'a, T: Encode + Decode<'a> + PartialEq + std::fmt::Debug>(
        value: &T,
        bytes: &'a mut Vec<u8>,
    ) -> T {
        let mut e = Encoder::new(bytes);
        value.encode(&mut e);
        let mut d = Decoder::new(bytes);
        let back = T::decode(&mut d).expect("what was encoded");
        assert_eq!(d.remaining(), 0);
        back
    }

    #[test]
    fn a_layout_comes_back() {
        let layout = FilesLayout {
            device: DeviceId([7; 16]),
            unit: StripeUnit::new(65_536, true).expect("a unit"),
            first_stripe_index: 2,
            pattern_offset: 0,
            handles: vec![ComponentHandle(&[1, 2, 3]), ComponentHandle(&[4; 64])],
        };
        assert_eq!(round(&layout, &mut Vec::new()), layout);
        assert_eq!(layout.unit.unit_bytes(), 65_536);
        assert!(layout.unit.dense() && !layout.unit.commits_through_mds());
    }

    #[test]
    fn a_device_comes_back() {
        let address = |address: &'static [u8]| NetworkAddress { network: b"tcp", address };
        let device = FilesDevice {
            stripe_indices: vec![0, 1, 1],
            servers: vec![
                DataServer(vec![address(b"10.0.2.2.8.1")]),
                DataServer(vec![address(b"10.0.2.2.8.2"), address(b"10.0.3.2.8.2")]),
            ],
        };
        assert_eq!(round(&device, &mut Vec::new()), device);
    }

    #[test]
    fn universal_addresses_are_read() {
        let read = |network: &'static str, address: &'static str| {
            let address =
                NetworkAddress { network: network.as_bytes(), address: address.as_bytes() };
            address.socket_address().map(|(socket, rdma)| (socket.to_string(), rdma))
        };
        assert_eq!(read("tcp", "10.0.2.2.8.1"), Some(("10.0.2.2:2049".into(), false)));
        assert_eq!(read("rdma", "10.0.2.2.78.81"), Some(("10.0.2.2:20049".into(), true)));
        assert_eq!(read("tcp6", "fd00::2.8.2"), Some(("[fd00::2]:2050".into(), false)));
        for (network, address) in [
            ("tcp", "fd00::2.8.2"),
            ("tcp6", "10.0.2.2.8.1"),
            ("udp", "10.0.2.2.8.1"),
            ("tcp", "10.0.2.2.8"),
            ("tcp", "10.0.2.2.8.256"),
            ("tcp", "10.0.2.2.0.0"),
            ("tcp", "0.0.0.0.8.1"),
            ("tcp", "host.8.1"),
            ("tcp", ""),
        ] {
            assert_eq!(read(network, address), None, "{network} {address}");
        }
    }

    #[test]
    fn units_that_cannot_be_told_are_none() {
        assert_eq!(StripeUnit::new(0, false), None);
        assert_eq!(StripeUnit::new(100, false), None);
        assert_eq!(StripeUnit::new(64, false), Some(StripeUnit(64)));
    }
}
