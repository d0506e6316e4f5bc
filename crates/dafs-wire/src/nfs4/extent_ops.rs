//! The operations of NFSv4.2 on ranges of files. They are ALLOCATE, DEALLOCATE, COPY, COPY_NOTIFY,
//! OFFLOAD_*, READ_PLUS, SEEK, WRITE_SAME, CLONE, IO_ADVISE (RFC 7862 15).

use super::bitmap::Bitmap;
use super::codec::{xdr_enum, xdr_struct};
use super::limits::*;
use super::status::Status;
use super::types::{NetworkAddress, StableHow, Stateid, Time, Verifier};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

xdr_struct! {
    /// Arguments of ALLOCATE (RFC 7862 15.1).
    #[derive(Copy)]
    pub struct AllocateArgs {
        /// The open.
        pub stateid: Stateid,
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
    }

    /// Arguments of DEALLOCATE (RFC 7862 15.4).
    #[derive(Copy)]
    pub struct DeallocateArgs {
        /// The open.
        pub stateid: Stateid,
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes.
        pub length: u64,
    }
}

/// The location of a server (`netloc4`).
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
    pub struct CopyArgs<'a> {
        /// The open of the source.
        pub source_stateid: Stateid,
        /// The open of the destination.
        pub destination_stateid: Stateid,
        /// First byte in the source.
        pub source_offset: u64,
        /// First byte in the destination.
        pub destination_offset: u64,
        /// Bytes to copy; 0 means to the end of the source.
        pub count: u64,
        /// True if the bytes must be copied in order.
        pub consecutive: bool,
        /// True if the client wants to wait for the end.
        pub synchronous: bool,
        /// The servers of the source; none means this server.
        pub source_servers: Vec<NetworkLocation<'a>> [max LIST_ITEMS_MAX],
    }

    /// The progress of a copy or a WRITE_SAME (`write_response4`).
    #[derive(Copy)]
    pub struct WriteResponse {
        /// The identifier of the operation if it continues after the reply.
        pub callback_id: Option<Stateid>,
        /// Bytes written.
        pub count: u64,
        /// The stability of the written data.
        pub committed: StableHow,
        /// The write verifier; it changes when unstable data was lost.
        pub verifier: Verifier,
    }

    /// The mode of a copy (`copy_requirements4`).
    #[derive(Copy)]
    pub struct CopyRequirements {
        /// True if the bytes are copied in order.
        pub consecutive: bool,
        /// True if the reply comes at the end of the copy.
        pub synchronous: bool,
    }

    /// Results of COPY (RFC 7862 15.2).
    #[derive(Copy)]
    pub struct CopyResult {
        /// The progress.
        pub response: WriteResponse,
        /// The mode of the copy. With the status OFFLOAD_NO_REQS the result has only this field:
        /// the modes that the server supports.
        pub requirements: CopyRequirements,
    }

    /// Arguments of COPY_NOTIFY (RFC 7862 15.3).
    #[derive(Copy)]
    pub struct CopyNotifyArgs<'a> {
        /// The open of the source.
        pub source_stateid: Stateid,
        /// The server that will copy.
        pub destination_server: NetworkLocation<'a>,
    }

    /// Results of COPY_NOTIFY (RFC 7862 15.3).
    pub struct CopyNotifyResult<'a> {
        /// The lifetime of the permission.
        pub lease_time: Time,
        /// The state-id that the destination must present.
        pub stateid: Stateid,
        /// The addresses of the source.
        pub source_servers: Vec<NetworkLocation<'a>> [max LIST_ITEMS_MAX],
    }

    /// Arguments of OFFLOAD_CANCEL (RFC 7862 15.8).
    #[derive(Copy)]
    pub struct OffloadCancelArgs {
        /// The copy.
        pub stateid: Stateid,
    }

    /// Arguments of OFFLOAD_STATUS (RFC 7862 15.9).
    #[derive(Copy)]
    pub struct OffloadStatusArgs {
        /// The copy.
        pub stateid: Stateid,
    }

    /// Results of OFFLOAD_STATUS (RFC 7862 15.9).
    #[derive(Copy)]
    pub struct OffloadStatusResult {
        /// Bytes copied.
        pub count: u64,
        /// The outcome, once it is known.
        pub complete: Option<Status>,
    }

    /// Arguments of IO_ADVISE (RFC 7862 15.5).
    #[derive(Copy)]
    pub struct IoAdviseArgs {
        /// The open.
        pub stateid: Stateid,
        /// First byte of the range.
        pub offset: u64,
        /// Length of the range, in bytes; 0 means to the end of the file.
        pub count: u64,
        /// The expected use of the range, by the numbers of [`IoAdvice`].
        pub hints: Bitmap,
    }
}

xdr_enum! {
    closed
    /// The expected use of a range (`IO_ADVISE_type4`).
    pub enum IoAdvice {
        /// No particular use.
        Normal = 0,
        /// Read or written in order.
        Sequential = 1,
        /// Read or written from the end.
        SequentialBackwards = 2,
        /// Read or written in random order.
        Random = 3,
        /// It will be used soon.
        WillNeed = 4,
        /// It will be used soon; prefetch if that costs little.
        WillNeedOpportunistic = 5,
        /// It will not be used soon.
        DontNeed = 6,
        /// It will be used once.
        NoReuse = 7,
        /// It will be read.
        Read = 8,
        /// It will be written.
        Write = 9,
        /// It is near the range that the client reads now.
        InitProximity = 10,
    }
}

xdr_struct! {
    /// Results of IO_ADVISE (RFC 7862 15.5).
    #[derive(Copy)]
    pub struct IoAdviseResult {
        /// The hints that the server follows.
        pub hints: Bitmap,
    }

    /// Arguments of READ_PLUS (RFC 7862 15.10).
    #[derive(Copy)]
    pub struct ReadPlusArgs {
        /// The open, lock or delegation, or a special state-id.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Bytes to read.
        pub count: u32,
    }
}

/// One piece of a READ_PLUS result (`read_plus_content`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPlusContent<'a> {
    /// Bytes.
    Data {
        /// Offset of the bytes in the file.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Zeros that are not stored.
    Hole {
        /// Offset of the zeros in the file.
        offset: u64,
        /// Length in bytes.
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
    pub struct ReadPlusResult<'a> {
        /// True if the pieces extend to the end of the file.
        pub eof: bool,
        /// The pieces, in order.
        pub contents: Vec<ReadPlusContent<'a>> [max UNLIMITED],
    }
}

xdr_enum! {
    open
    /// The target of SEEK (`data_content4`); an undefined value is UNION_NOTSUPP.
    pub enum SeekWhat {
        /// The next stored byte.
        Data = 0,
        /// The next byte that is not stored.
        Hole = 1,
    }
}

xdr_struct! {
    /// Arguments of SEEK (RFC 7862 15.11).
    #[derive(Copy)]
    pub struct SeekArgs {
        /// The open.
        pub stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// The target.
        pub what: SeekWhat,
    }

    /// Results of SEEK (RFC 7862 15.11).
    #[derive(Copy)]
    pub struct SeekResult {
        /// True if the end of the file was reached.
        pub eof: bool,
        /// The offset of the target.
        pub offset: u64,
    }

    /// Blocks to write (`app_data_block4`).
    #[derive(Copy)]
    pub struct ApplicationDataBlock<'a> {
        /// The offset of the first block.
        pub offset: u64,
        /// Length of each block.
        pub block_bytes: u64,
        /// Number of blocks.
        pub block_count: u64,
        /// Offset of the number within a block.
        pub number_offset: u64,
        /// The first number.
        pub block_number: u32,
        /// Offset of the pattern within a block.
        pub pattern_offset: u64,
        /// The pattern.
        pub pattern: &'a [u8],
    }

    /// Arguments of WRITE_SAME (RFC 7862 15.12).
    #[derive(Copy)]
    pub struct WriteSameArgs<'a> {
        /// The open.
        pub stateid: Stateid,
        /// The stability that the data must have before the reply.
        pub stable: StableHow,
        /// The blocks to write.
        pub blocks: ApplicationDataBlock<'a>,
    }

    /// Arguments of CLONE (RFC 7862 15.13): from the saved to the current file handle.
    #[derive(Copy)]
    pub struct CloneArgs {
        /// The open of the source.
        pub source_stateid: Stateid,
        /// The open of the destination.
        pub destination_stateid: Stateid,
        /// First byte in the source.
        pub source_offset: u64,
        /// First byte in the destination.
        pub destination_offset: u64,
        /// Bytes to copy; 0 means to the end of the source.
        pub count: u64,
    }
}
