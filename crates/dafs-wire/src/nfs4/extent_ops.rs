//! What NFSv4.2 added for ranges of files: ALLOCATE, DEALLOCATE, COPY, COPY_NOTIFY, OFFLOAD_*,
//! READ_PLUS, SEEK, WRITE_SAME, CLONE, IO_ADVISE (RFC 7862 15).

use super::bitmap::Bitmap;
use super::codec::{no_such, xdr_enum, xdr_field, xdr_struct};
use super::limits::*;
use super::status::Status;
use super::types::{NetworkAddress, StableHow, Stateid, Time, Verifier};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};

xdr_struct! {
    /// Arguments of ALLOCATE (RFC 7862 15.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AllocateArgs {
        /// The open.
        pub stateid: Stateid,
        /// Where the range begins.
        pub offset: u64,
        /// How long it is.
        pub length: u64,
    }
}

xdr_struct! {
    /// Arguments of DEALLOCATE (RFC 7862 15.4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DeallocateArgs {
        /// The open.
        pub stateid: Stateid,
        /// Where the range begins.
        pub offset: u64,
        /// How long it is.
        pub length: u64,
    }
}

/// Where a server is found (`netloc4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkLocation<'a> {
    /// By name.
    Name(&'a [u8]),
    /// By URL.
    Url(&'a [u8]),
    /// By address.
    Address(NetworkAddress<'a>),
}

impl<'a> Decode<'a> for NetworkLocation<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            1 => Ok(Self::Name(d.opaque(UNLIMITED)?)),
            2 => Ok(Self::Url(d.opaque(UNLIMITED)?)),
            3 => Ok(Self::Address(NetworkAddress::decode(d)?)),
            kind => Err(no_such("netloc_type4", kind)),
        }
    }
}

impl Encode for NetworkLocation<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Name(name) => {
                e.u32(1);
                e.opaque(name);
            }
            Self::Url(url) => {
                e.u32(2);
                e.opaque(url);
            }
            Self::Address(address) => {
                e.u32(3);
                address.encode(e);
            }
        }
    }
}

xdr_struct! {
    /// Arguments of COPY (RFC 7862 15.2): from the saved to the current file handle.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CopyArgs<'a> {
        /// The open of the source.
        pub source_stateid: Stateid,
        /// The open of the destination.
        pub destination_stateid: Stateid,
        /// Where to read.
        pub source_offset: u64,
        /// Where to write.
        pub destination_offset: u64,
        /// How much; 0: to the end of the source.
        pub count: u64,
        /// Whether the bytes have to be copied in order.
        pub consecutive: bool,
        /// Whether the client wants to wait for the end.
        pub synchronous: bool,
        /// Where the source is; none: on this server.
        pub source_servers: Vec<NetworkLocation<'a>> [max LIST_ITEMS_MAX],
    }
}

xdr_struct! {
    /// How far a copy or a WRITE_SAME went (`write_response4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct WriteResponse {
        /// The name of the operation if it goes on behind the reply.
        pub callback_id: Option<Stateid>,
        /// How much was written.
        pub count: u64,
        /// How stable it is.
        pub committed: StableHow,
        /// Changes when unstable data was lost.
        pub verifier: Verifier,
    }
}

xdr_struct! {
    /// How a copy is made (`copy_requirements4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyRequirements {
        /// Whether in order.
        pub consecutive: bool,
        /// Whether the reply comes at the end.
        pub synchronous: bool,
    }
}

xdr_struct! {
    /// Results of COPY (RFC 7862 15.2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyResult {
        /// How far it went.
        pub response: WriteResponse,
        /// How it is made. With the status OFFLOAD_NO_REQS these alone follow: what could be had.
        pub requirements: CopyRequirements,
    }
}

xdr_struct! {
    /// Arguments of COPY_NOTIFY (RFC 7862 15.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CopyNotifyArgs<'a> {
        /// The open of the source.
        pub source_stateid: Stateid,
        /// Who will copy.
        pub destination_server: NetworkLocation<'a>,
    }
}

xdr_struct! {
    /// Results of COPY_NOTIFY (RFC 7862 15.3).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CopyNotifyResult<'a> {
        /// How long the permission lasts.
        pub lease_time: Time,
        /// What the destination has to show.
        pub stateid: Stateid,
        /// Where the source is.
        pub source_servers: Vec<NetworkLocation<'a>> [max LIST_ITEMS_MAX],
    }
}

xdr_struct! {
    /// Arguments of OFFLOAD_CANCEL (RFC 7862 15.8).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OffloadCancelArgs {
        /// The copy.
        pub stateid: Stateid,
    }
}

xdr_struct! {
    /// Arguments of OFFLOAD_STATUS (RFC 7862 15.9).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OffloadStatusArgs {
        /// The copy.
        pub stateid: Stateid,
    }
}

xdr_struct! {
    /// Results of OFFLOAD_STATUS (RFC 7862 15.9).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OffloadStatusResult {
        /// How much was copied.
        pub count: u64,
        /// The outcome, once it is known.
        pub complete: Option<Status>,
    }
}

xdr_struct! {
    /// Arguments of IO_ADVISE (RFC 7862 15.5).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct IoAdviseArgs {
        /// The open.
        pub stateid: Stateid,
        /// Where the range begins.
        pub offset: u64,
        /// How long it is; 0: to the end.
        pub count: u64,
        /// What will be done with it, by the numbers of [`IoAdvice`].
        pub hints: Bitmap,
    }
}

xdr_enum! {
    closed
    /// What will be done with a range (`IO_ADVISE_type4`).
    pub enum IoAdvice {
        /// Nothing special.
        Normal = 0,
        /// Read or written in order.
        Sequential = 1,
        /// Read or written from the end.
        SequentialBackwards = 2,
        /// In no order.
        Random = 3,
        /// Soon.
        WillNeed = 4,
        /// Soon, if that costs little.
        WillNeedOpportunistic = 5,
        /// Not soon.
        DontNeed = 6,
        /// Once.
        NoReuse = 7,
        /// It will be read.
        Read = 8,
        /// It will be written.
        Write = 9,
        /// It is near what the client reads now.
        InitProximity = 10,
    }
}

xdr_struct! {
    /// Results of IO_ADVISE (RFC 7862 15.5).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct IoAdviseResult {
        /// The hints that are followed.
        pub hints: Bitmap,
    }
}

xdr_struct! {
    /// Arguments of READ_PLUS (RFC 7862 15.10).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ReadPlusArgs {
        /// The open, lock or delegation, or a special state-id.
        pub stateid: Stateid,
        /// Where to begin.
        pub offset: u64,
        /// How much to read.
        pub count: u32,
    }
}

/// One piece of a READ_PLUS result (`read_plus_content`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPlusContent<'a> {
    /// Bytes.
    Data {
        /// Where they are in the file.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Zeros that are not stored.
    Hole {
        /// Where they are in the file.
        offset: u64,
        /// How many.
        length: u64,
    },
}

impl<'a> Decode<'a> for ReadPlusContent<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => Ok(Self::Data { offset: d.u64()?, data: d.opaque(UNLIMITED)? }),
            1 => Ok(Self::Hole { offset: d.u64()?, length: d.u64()? }),
            content => Err(no_such("data_content4", content)),
        }
    }
}

impl Encode for ReadPlusContent<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Data { offset, data } => {
                e.u32(0);
                e.u64(*offset);
                e.opaque(data);
            }
            Self::Hole { offset, length } => {
                e.u32(1);
                e.u64(*offset);
                e.u64(*length);
            }
        }
    }
}

xdr_struct! {
    /// Results of READ_PLUS (RFC 7862 15.10).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ReadPlusResult<'a> {
        /// Whether the pieces reach the end of the file.
        pub eof: bool,
        /// The pieces, in order.
        pub contents: Vec<ReadPlusContent<'a>> [max UNLIMITED],
    }
}

xdr_enum! {
    open
    /// What SEEK looks for (`data_content4`); an unknown value is UNION_NOTSUPP.
    pub enum SeekWhat {
        /// The next byte that is stored.
        Data = 0,
        /// The next byte that is not.
        Hole = 1,
    }
}

xdr_struct! {
    /// Arguments of SEEK (RFC 7862 15.11).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SeekArgs {
        /// The open.
        pub stateid: Stateid,
        /// Where to begin.
        pub offset: u64,
        /// What to look for.
        pub what: SeekWhat,
    }
}

xdr_struct! {
    /// Results of SEEK (RFC 7862 15.11).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SeekResult {
        /// Whether the end of the file was reached.
        pub eof: bool,
        /// Where it is.
        pub offset: u64,
    }
}

xdr_struct! {
    /// Blocks to write (`app_data_block4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ApplicationDataBlock<'a> {
        /// Where the first one goes.
        pub offset: u64,
        /// Length of each.
        pub block_bytes: u64,
        /// How many.
        pub block_count: u64,
        /// Where the number stands within a block.
        pub number_offset: u64,
        /// The first number.
        pub block_number: u32,
        /// Where the pattern stands within a block.
        pub pattern_offset: u64,
        /// The pattern.
        pub pattern: &'a [u8],
    }
}

xdr_struct! {
    /// Arguments of WRITE_SAME (RFC 7862 15.12).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct WriteSameArgs<'a> {
        /// The open.
        pub stateid: Stateid,
        /// How stable the data has to be.
        pub stable: StableHow,
        /// What to write.
        pub blocks: ApplicationDataBlock<'a>,
    }
}

xdr_struct! {
    /// Arguments of CLONE (RFC 7862 15.13): from the saved to the current file handle.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CloneArgs {
        /// The open of the source.
        pub source_stateid: Stateid,
        /// The open of the destination.
        pub destination_stateid: Stateid,
        /// Where to read.
        pub source_offset: u64,
        /// Where to write.
        pub destination_offset: u64,
        /// How much; 0: to the end of the source.
        pub count: u64,
    }
}
