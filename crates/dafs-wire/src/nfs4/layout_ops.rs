//! Parallel NFS: layouts and devices (RFC 8881 18.40 - 18.44, RFC 7862 15.6, 15.7). Bodies that
//! depend on the layout type stay opaque.

use super::bitmap::Bitmap;
use super::codec::xdr_struct;
use super::limits::*;
use super::status::Status;
use super::types::{DeviceId, Stateid, Time, Verifier};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};

xdr_struct! {
    /// A value whose form depends on a layout type (`layoutupdate4`, `device_addr4`,
    /// `layout_content4`, `layouthint4`).
    #[derive(Copy)]
    pub struct LayoutBody<'a> {
        /// The layout type.
        pub layout_type: u32,
        /// The body that the layout type defines.
        pub body: &'a [u8],
    }

    /// Arguments of GETDEVICEINFO (RFC 8881 18.40).
    #[derive(Copy)]
    pub struct GetdeviceinfoArgs {
        /// The device.
        pub device_id: DeviceId,
        /// The layout type.
        pub layout_type: u32,
        /// The most bytes of the result.
        pub result_bytes_max: u32,
        /// The changes to notify.
        pub notifications: Bitmap,
    }

    /// Results of GETDEVICEINFO (RFC 8881 18.40). With TOOSMALL the required size follows instead.
    #[derive(Copy)]
    pub struct GetdeviceinfoResult<'a> {
        /// The address of the device.
        pub address: LayoutBody<'a>,
        /// The changes that the server will notify.
        pub notifications: Bitmap,
    }

    /// Arguments of GETDEVICELIST (RFC 8881 18.41).
    #[derive(Copy)]
    pub struct GetdevicelistArgs {
        /// The layout type.
        pub layout_type: u32,
        /// The most devices of the result.
        pub devices_max: u32,
        /// The cookie of the last reply.
        pub cookie: u64,
        /// The verifier of the last reply.
        pub cookie_verifier: Verifier,
    }

    /// Results of GETDEVICELIST (RFC 8881 18.41).
    pub struct GetdevicelistResult {
        /// The cookie for the next request.
        pub cookie: u64,
        /// The verifier for the next request.
        pub cookie_verifier: Verifier,
        /// The devices.
        pub devices: Vec<DeviceId> [max LIST_ITEMS_MAX],
        /// True if the last device is the last of all.
        pub eof: bool,
    }

    /// Arguments of LAYOUTCOMMIT (RFC 8881 18.42).
    #[derive(Copy)]
    pub struct LayoutcommitArgs<'a> {
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// True if the server restarted meanwhile (a reclaim).
        pub reclaim: bool,
        /// The layout.
        pub stateid: Stateid,
        /// The last byte written, if any.
        pub last_write_offset: Option<u64>,
        /// The time of the last write, if known.
        pub time_modify: Option<Time>,
        /// The part that the layout type defines.
        pub update: LayoutBody<'a>,
    }

    /// Results of LAYOUTCOMMIT (RFC 8881 18.42).
    #[derive(Copy)]
    pub struct LayoutcommitResult {
        /// The new size, if it changed.
        pub new_size: Option<u64>,
    }

    /// Arguments of LAYOUTGET (RFC 8881 18.43).
    #[derive(Copy)]
    pub struct LayoutgetArgs {
        /// True if the server shall signal when a layout becomes available.
        pub signal_available: bool,
        /// The layout type.
        pub layout_type: u32,
        /// 1: read, 2: read and write; any other value is BADIOMODE.
        pub io_mode: u32,
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// The least length that the client can use, in bytes.
        pub length_min: u64,
        /// An open or a layout.
        pub stateid: Stateid,
        /// The most bytes of the result.
        pub result_bytes_max: u32,
    }

    /// A range of a layout (`layout4`).
    #[derive(Copy)]
    pub struct Layout<'a> {
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// 1: read, 2: read and write.
        pub io_mode: u32,
        /// The content that the layout type defines.
        pub content: LayoutBody<'a>,
    }

    /// Results of LAYOUTGET (RFC 8881 18.43). With LAYOUTTRYLATER a flag follows instead.
    pub struct LayoutgetResult<'a> {
        /// True if the last close returns the layout.
        pub return_on_close: bool,
        /// The layout.
        pub stateid: Stateid,
        /// Its ranges.
        pub layouts: Vec<Layout<'a>> [max LIST_ITEMS_MAX],
    }

    /// A returned layout of one file (`layoutreturn_file4`).
    #[derive(Copy)]
    pub struct ReturnedLayout<'a> {
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// The part that the layout type defines.
        pub body: &'a [u8],
    }
}

/// The scope of a LAYOUTRETURN (`layoutreturn4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutReturn<'a> {
    /// A layout of the current file handle.
    File(ReturnedLayout<'a>),
    /// A wider scope, by its number: 2 the file system, 3 all layouts.
    Wider(u32),
}

/// The number of [`LayoutReturn::File`] (`LAYOUTRETURN4_FILE`).
const RETURN_FILE: u32 = 1;

impl<'a> Decode<'a> for LayoutReturn<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            RETURN_FILE => Ok(Self::File(ReturnedLayout::decode(d)?)),
            kind => Ok(Self::Wider(kind)),
        }
    }
}

impl Encode for LayoutReturn<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::File(layout) => {
                e.u32(RETURN_FILE);
                layout.encode(e);
            }
            Self::Wider(kind) => e.u32(*kind),
        }
    }
}

xdr_struct! {
    /// Arguments of LAYOUTRETURN (RFC 8881 18.44).
    #[derive(Copy)]
    pub struct LayoutreturnArgs<'a> {
        /// True if the server restarted meanwhile (a reclaim).
        pub reclaim: bool,
        /// The layout type.
        pub layout_type: u32,
        /// 1: read, 2: read and write, 3: any.
        pub io_mode: u32,
        /// The scope of the return.
        pub returned: LayoutReturn<'a>,
    }

    /// Results of LAYOUTRETURN (RFC 8881 18.44).
    #[derive(Copy)]
    pub struct LayoutreturnResult {
        /// The layout's state-id, if a part of the layout remains.
        pub stateid: Option<Stateid>,
    }

    /// An error that a client met at a device (`device_error4`).
    #[derive(Copy)]
    pub struct DeviceError {
        /// The device.
        pub device_id: DeviceId,
        /// The error.
        pub status: Status,
        /// The number of the operation.
        pub op: u32,
    }

    /// Arguments of LAYOUTERROR (RFC 7862 15.6).
    pub struct LayouterrorArgs {
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// The errors.
        pub errors: Vec<DeviceError> [max LIST_ITEMS_MAX],
    }

    /// The amount that a client read or wrote (`io_info4`).
    #[derive(Copy)]
    pub struct IoInfo {
        /// Operations.
        pub count: u64,
        /// Bytes.
        pub bytes: u64,
    }

    /// Arguments of LAYOUTSTATS (RFC 7862 15.7).
    #[derive(Copy)]
    pub struct LayoutstatsArgs<'a> {
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
        pub device_id: DeviceId,
        /// The part that the layout type defines.
        pub update: LayoutBody<'a>,
    }
}
