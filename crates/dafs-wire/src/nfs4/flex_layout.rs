//! The flexible file layout (RFC 8435): mirrors of a file at chosen data servers, and the report of
//! a client when it returns a layout.

use super::codec::xdr_struct;
use super::files_layout::{ComponentHandle, DataServer};
use super::layout_ops::{DeviceError, IoInfo};
use super::limits::*;
use super::types::{DeviceId, NetworkAddress, Stateid, Time};

/// The layout type of flexible files (`LAYOUT4_FLEX_FILES`).
pub const LAYOUT_FLEX_FILES: u32 = 4;

xdr_struct! {
    /// A protocol that a data server speaks (`ff_device_versions4`, RFC 8435 4.1).
    #[derive(Copy)]
    pub struct FlexVersion {
        /// The version of NFS.
        pub version: u32,
        /// Its minor version.
        pub minor_version: u32,
        /// The most bytes of a READ.
        pub read_bytes_max: u32,
        /// The most bytes of a WRITE.
        pub write_bytes_max: u32,
        /// True if the data server honours state-ids of the metadata server.
        pub tightly_coupled: bool,
    }

    /// A data server (`ff_device_addr4`, RFC 8435 4.1), the body of a device's address.
    pub struct FlexDevice<'a> {
        /// The addresses that reach it.
        pub server: DataServer<'a>,
        /// The protocol versions that it speaks.
        pub versions: Vec<FlexVersion> [max FLEX_VERSIONS_MAX],
    }

    /// A mirror at one data server (`ff_data_server4`, RFC 8435 5.1).
    pub struct FlexCopy<'a> {
        /// The data server.
        pub device: DeviceId,
        /// The preference for reads: a greater value is better.
        pub efficiency: u32,
        /// The state-id for use at the data server.
        pub stateid: Stateid,
        /// The file's handle there, for each protocol version.
        pub handles: Vec<ComponentHandle<'a>> [max FLEX_VERSIONS_MAX],
        /// The user for a data server that knows no state of the metadata server.
        pub user: &'a [u8] [max OWNER_NAME_BYTES_MAX],
        /// The group for such a data server.
        pub group: &'a [u8] [max OWNER_NAME_BYTES_MAX],
    }

    /// One mirror of a file (`ff_mirror4`, RFC 8435 5.1): on one data server, or in stripes on
    /// several.
    pub struct FlexMirror<'a> {
        /// The data servers.
        pub servers: Vec<FlexCopy<'a>> [max DATA_SERVERS_MAX],
    }

    /// The mirrors of a file (`ff_layout4`, RFC 8435 5.1), the body of a layout.
    pub struct FlexLayout<'a> {
        /// Bytes of a stripe; 0 without stripes.
        pub stripe_unit_bytes: u64,
        /// The mirrors.
        pub mirrors: Vec<FlexMirror<'a>> [max FLEX_MIRRORS_MAX],
        /// `ff_flags4`.
        pub flags: u32,
        /// The interval in seconds at which the server wants reports of use; 0 means never.
        pub stats_hint_seconds: u32,
    }

    /// Errors of a client in a range (`ff_ioerr4`, RFC 8435 9.1.1).
    pub struct FlexError {
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// The errors.
        pub errors: Vec<DeviceError> [max LIST_ITEMS_MAX],
    }

    /// The latency of operations of one kind (`ff_io_latency4`, RFC 8435 9.2.1).
    #[derive(Copy)]
    pub struct FlexLatency {
        /// Requested operations.
        pub requested: u64,
        /// Requested bytes.
        pub requested_bytes: u64,
        /// Completed operations.
        pub completed: u64,
        /// Completed bytes.
        pub completed_bytes: u64,
        /// Bytes that were not delivered.
        pub missed_bytes: u64,
        /// The time with any operation in progress.
        pub busy_time: Time,
        /// The sum of the times of all operations.
        pub total_time: Time,
    }

    /// The use of a data server by a client (`ff_layoutupdate4`, RFC 8435 9.2.2).
    #[derive(Copy)]
    pub struct FlexUpdate<'a> {
        /// The address that the client used.
        pub address: NetworkAddress<'a>,
        /// The file's handle there.
        pub handle: ComponentHandle<'a>,
        /// Reads.
        pub read: FlexLatency,
        /// Writes.
        pub write: FlexLatency,
        /// The measured period.
        pub duration: Time,
        /// True if the client and the data server are one machine.
        pub is_local: bool,
    }

    /// The same, with its layout (`ff_iostats4`, RFC 8435 9.2.3).
    #[derive(Copy)]
    pub struct FlexStats<'a> {
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// The reads.
        pub read: IoInfo,
        /// The writes.
        pub write: IoInfo,
        /// The device.
        pub device: DeviceId,
        /// The details.
        pub update: FlexUpdate<'a>,
    }

    /// The report of a client when it returns a layout (`ff_layoutreturn4`, RFC 8435 9.3), the body
    /// of a LAYOUTRETURN.
    pub struct FlexReturned<'a> {
        /// Errors.
        pub errors: Vec<FlexError> [max LIST_ITEMS_MAX],
        /// Use.
        pub stats: Vec<FlexStats<'a>> [max LIST_ITEMS_MAX],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs4::Status;
    use crate::xdr::{Decode, Decoder, Encode, Encoder};

    fn round<'a, T: Encode + Decode<'a> + PartialEq + std::fmt::Debug>(
        value: &T,
        bytes: &'a mut Vec<u8>,
    ) -> T {
        value.encode(&mut Encoder::new(bytes));
        let mut d = Decoder::new(bytes);
        let back = T::decode(&mut d).expect("what was encoded");
        assert_eq!(d.remaining(), 0);
        back
    }

    fn stateid(seqid: u32) -> Stateid {
        Stateid { seqid, other: [3; 12] }
    }

    #[test]
    fn a_layout_comes_back_and_has_the_bytes_of_the_standard() {
        let copy = FlexCopy {
            device: DeviceId([7; 16]),
            efficiency: 1,
            stateid: stateid(0),
            handles: vec![ComponentHandle(&[1, 2, 3])],
            user: b"0",
            group: b"12",
        };
        let layout = FlexLayout {
            stripe_unit_bytes: 0,
            mirrors: vec![
                FlexMirror { servers: vec![copy.clone()] },
                FlexMirror { servers: vec![copy] },
            ],
            flags: 0,
            stats_hint_seconds: 60,
        };
        let mut bytes = Vec::new();
        assert_eq!(round(&layout, &mut bytes), layout);
        // Unit, count of mirrors, each with a count of servers and one server; flags, hint.
        let one = 16 + 4 + 16 + (4 + 4 + 4) + (4 + 4) + (4 + 4);
        assert_eq!(bytes.len(), 8 + 4 + 2 * (4 + one) + 4 + 4);
    }

    #[test]
    fn a_device_comes_back() {
        let address = NetworkAddress { network: b"tcp", address: b"10.0.2.2.8.1" };
        let version = FlexVersion {
            version: 4,
            minor_version: 1,
            read_bytes_max: 1 << 20,
            write_bytes_max: 1 << 20,
            tightly_coupled: true,
        };
        let device = FlexDevice { server: DataServer(vec![address]), versions: vec![version; 2] };
        assert_eq!(round(&device, &mut Vec::new()), device);
    }

    #[test]
    fn a_layout_return_decodes_to_its_reports() {
        let time = Time { seconds: 3, nanoseconds: 4 };
        let latency = FlexLatency {
            requested: 1,
            requested_bytes: 2,
            completed: 3,
            completed_bytes: 4,
            missed_bytes: 5,
            busy_time: time,
            total_time: time,
        };
        let update = FlexUpdate {
            address: NetworkAddress { network: b"tcp", address: b"10.0.2.2.8.1" },
            handle: ComponentHandle(&[5; 64]),
            read: latency,
            write: latency,
            duration: time,
            is_local: false,
        };
        let io = IoInfo { count: 6, bytes: 7 };
        let device = DeviceId([7; 16]);
        let stats = FlexStats {
            offset: 0,
            length: u64::MAX,
            stateid: stateid(1),
            read: io,
            write: io,
            device,
            update,
        };
        let error = DeviceError { device_id: device, status: Status::Io, op: 38 };
        let errors =
            vec![FlexError { offset: 0, length: 8, stateid: stateid(1), errors: vec![error; 3] }];
        let returned = FlexReturned { errors, stats: vec![stats; 2] };
        assert_eq!(round(&returned, &mut Vec::new()), returned);
        let nothing = FlexReturned { errors: vec![], stats: vec![] };
        assert_eq!(round(&nothing, &mut Vec::new()), nothing);
    }
}
