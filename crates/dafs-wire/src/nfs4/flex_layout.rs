//! The flexible file layout (RFC 8435): copies of a file at data servers of its own choice, and what
//! clients say about their use of them when they give a layout back.

use super::codec::{xdr_field, xdr_struct};
use super::files_layout::{ComponentHandle, DataServer};
use super::layout_ops::{DeviceError, IoInfo};
use super::limits::*;
use super::types::{DeviceId, NetworkAddress, Stateid, Time};

/// The layout type of flexible files (`LAYOUT4_FLEX_FILES`).
pub const LAYOUT_FLEX_FILES: u32 = 4;

xdr_struct! {
    /// A protocol that a data server speaks (`ff_device_versions4`, RFC 8435 4.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FlexVersion {
        /// The version of NFS.
        pub version: u32,
        /// Its minor version.
        pub minor_version: u32,
        /// The most bytes of a READ.
        pub read_bytes_max: u32,
        /// The most bytes of a WRITE.
        pub write_bytes_max: u32,
        /// State-ids of the metadata server hold at the data server.
        pub tightly_coupled: bool,
    }
}

xdr_struct! {
    /// A data server (`ff_device_addr4`, RFC 8435 4.1), the body of a device's address.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FlexDevice<'a> {
        /// The addresses that lead to it.
        pub server: DataServer<'a>,
        /// What it speaks.
        pub versions: Vec<FlexVersion> [max FLEX_VERSIONS_MAX],
    }
}

xdr_struct! {
    /// A copy at one data server (`ff_data_server4`, RFC 8435 5.1).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FlexCopy<'a> {
        /// The data server.
        pub device: DeviceId,
        /// The greater, the better is this one to read from.
        pub efficiency: u32,
        /// By which state-id the data server is used.
        pub stateid: Stateid,
        /// What the file is called there, for each version that it speaks.
        pub handles: Vec<ComponentHandle<'a>> [max FLEX_VERSIONS_MAX],
        /// The user that a data server goes by which knows no state of the metadata server.
        pub user: &'a [u8] [max OWNER_NAME_BYTES_MAX],
        /// The group, likewise.
        pub group: &'a [u8] [max OWNER_NAME_BYTES_MAX],
    }
}

xdr_struct! {
    /// One of the copies that a file has (`ff_mirror4`, RFC 8435 5.1): on one data server, or in stripes on
    /// several.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FlexMirror<'a> {
        /// Where it lies.
        pub servers: Vec<FlexCopy<'a>> [max DATA_SERVERS_MAX],
    }
}

xdr_struct! {
    /// Where the copies of a file lie (`ff_layout4`, RFC 8435 5.1), the body of a layout.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FlexLayout<'a> {
        /// Bytes of a stripe; 0 where there are none.
        pub stripe_unit_bytes: u64,
        /// The copies.
        pub mirrors: Vec<FlexMirror<'a>> [max FLEX_MIRRORS_MAX],
        /// `ff_flags4`.
        pub flags: u32,
        /// How often the server would like to hear of the use, in seconds; 0 for never.
        pub stats_hint_seconds: u32,
    }
}

xdr_struct! {
    /// Errors that a client met in a range (`ff_ioerr4`, RFC 8435 9.1.1).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FlexError {
        /// Where the range begins.
        pub offset: u64,
        /// How long it is.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// The errors.
        pub errors: Vec<DeviceError> [max LIST_ITEMS_MAX],
    }
}

xdr_struct! {
    /// How long operations of one kind took (`ff_io_latency4`, RFC 8435 9.2.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FlexLatency {
        /// Operations that were asked for.
        pub requested: u64,
        /// Their bytes.
        pub requested_bytes: u64,
        /// Operations that were answered.
        pub completed: u64,
        /// Their bytes.
        pub completed_bytes: u64,
        /// Bytes that were not delivered.
        pub missed_bytes: u64,
        /// The time with any operation under way.
        pub busy_time: Time,
        /// The time of all operations together.
        pub total_time: Time,
    }
}

xdr_struct! {
    /// What a client did at a data server (`ff_layoutupdate4`, RFC 8435 9.2.2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FlexUpdate<'a> {
        /// The address that it used.
        pub address: NetworkAddress<'a>,
        /// What the file is called there.
        pub handle: ComponentHandle<'a>,
        /// Reads.
        pub read: FlexLatency,
        /// Writes.
        pub write: FlexLatency,
        /// Over what time.
        pub duration: Time,
        /// The client and the data server are one machine.
        pub is_local: bool,
    }
}

xdr_struct! {
    /// The same, with the layout it belongs to (`ff_iostats4`, RFC 8435 9.2.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FlexStats<'a> {
        /// Where the range begins.
        pub offset: u64,
        /// How long it is.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// What was read.
        pub read: IoInfo,
        /// What was written.
        pub write: IoInfo,
        /// The device.
        pub device: DeviceId,
        /// The details.
        pub update: FlexUpdate<'a>,
    }
}

xdr_struct! {
    /// What a client says when it gives a layout back (`ff_layoutreturn4`, RFC 8435 9.3), the body of a
    /// LAYOUTRETURN.
    #[derive(Debug, Clone, PartialEq, Eq)]
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
    fn what_is_said_with_a_return_comes_back() {
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
