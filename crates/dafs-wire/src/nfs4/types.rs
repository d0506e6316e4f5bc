//! Small types that operations share (RFC 8881 3.3).

use super::bitmap::Bitmap;
use super::codec::{xdr_enum, xdr_flags, xdr_struct};
use super::limits::*;
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};
use std::fmt;

/// Declares types of a fixed number of opaque bytes.
macro_rules! opaque_types {
    ($( $( #[$meta:meta] )* $name:ident, $bytes:ident; )*) => { $(
        $( #[$meta] )*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub [u8; $bytes]);

        impl<'a> Decode<'a> for $name {
            #[inline]
            fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
                Ok(Self(*d.fixed::<$bytes>()?))
            }
        }

        impl Encode for $name {
            #[inline]
            fn encode(&self, e: &mut Encoder<'_>) {
                e.fixed(&self.0);
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "("))?;
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str(")")
            }
        }
    )* };
}

opaque_types! {
    /// Eight bytes that distinguish incarnations (`verifier4`).
    Verifier, VERIFIER_BYTES;
    /// The identifier of a session (`sessionid4`).
    SessionId, SESSION_ID_BYTES;
    /// The identifier of a pNFS device (`deviceid4`).
    DeviceId, DEVICE_ID_BYTES;
}

xdr_struct! {
    /// The identifier of a piece of state and its version (`stateid4`, RFC 8881 8.2).
    #[derive(Copy, Hash, Default)]
    pub struct Stateid {
        /// The version; 0 means the current one.
        pub seqid: u32,
        /// The identifier, opaque to the client.
        pub other: [u8; STATEID_OTHER_BYTES],
    }
}

impl Stateid {
    /// All zeros: I/O without an open (RFC 8881 8.2.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; STATEID_OTHER_BYTES] };
    /// All ones: I/O that may bypass locks on reads (RFC 8881 8.2.3).
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; STATEID_OTHER_BYTES] };
    /// The state-id that an earlier operation of this compound returned (RFC 8881 16.2.3.1.2).
    pub const CURRENT: Self = Self { seqid: 1, other: [0; STATEID_OTHER_BYTES] };
    /// A state-id that is never valid (RFC 8881 8.2.3).
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; STATEID_OTHER_BYTES] };
}

xdr_struct! {
    /// A point in time, since the beginning of 1970 (`nfstime4`). The server must refuse a billion
    /// nanoseconds and more.
    #[derive(Copy, Hash, PartialOrd, Ord, Default)]
    pub struct Time {
        /// Whole seconds.
        pub seconds: i64,
        /// The nanoseconds.
        pub nanoseconds: u32,
    }
}

/// A new value for a time (`settime4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SetTime {
    /// The server's current time.
    Server,
    /// This time.
    Client(Time),
}

impl<'a> Decode<'a> for SetTime {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => Ok(Self::Server),
            1 => Ok(Self::Client(Time::decode(d)?)),
            how => Err(no_such("time_how4", how)),
        }
    }
}

impl Encode for SetTime {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Server => e.u32(0),
            Self::Client(time) => {
                e.u32(1);
                time.encode(e);
            }
        }
    }
}

xdr_struct! {
    /// The identifier of a file system within a server (`fsid4`).
    #[derive(Copy, Hash, Default)]
    pub struct Fsid {
        /// The major part.
        pub major: u64,
        /// The minor part.
        pub minor: u64,
    }

    /// The numbers of a device node (`specdata4`).
    #[derive(Copy, Hash, Default)]
    pub struct DeviceNumbers {
        /// The major number.
        pub major: u32,
        /// The minor number.
        pub minor: u32,
    }

    /// The change of a directory's change attribute (`change_info4`).
    #[derive(Copy, Hash, Default)]
    pub struct ChangeInfo {
        /// True if no other operation can have happened between the two values.
        pub atomic: bool,
        /// The change attribute before the operation.
        pub before: u64,
        /// The change attribute after the operation.
        pub after: u64,
    }

    /// The maker, name and date of a piece of software (`nfs_impl_id4`).
    #[derive(Copy)]
    pub struct ImplementationId<'a> {
        /// The domain name of the maker.
        pub domain: &'a [u8],
        /// The name of the software.
        pub name: &'a [u8],
        /// The build date.
        pub date: Time,
    }

    /// The owner of opens or of byte-range locks (`state_owner4`). In 4.1 the server takes the
    /// client from the session and ignores the one here (RFC 8881 18.16.3).
    #[derive(Copy)]
    pub struct StateOwner<'a> {
        /// The client.
        pub client_id: u64,
        /// The identifier of the owner within the client.
        pub owner: &'a [u8] [max OPAQUE_BYTES_MAX],
    }

    /// A network address (`netaddr4`, RFC 5665).
    #[derive(Copy)]
    pub struct NetworkAddress<'a> {
        /// The kind of network, such as `tcp` or `tcp6`.
        pub network: &'a [u8],
        /// The universal address.
        pub address: &'a [u8],
    }

    /// Encoded attributes (`fattr4`): the mask, and the values in numerical order.
    #[derive(Copy, Default)]
    pub struct Fattr<'a> {
        /// The attributes that are present.
        pub mask: Bitmap,
        /// The values; see [`SetAttributes`](super::SetAttributes) and
        /// [`Attributes`](super::Attributes).
        pub values: &'a [u8],
    }
}

xdr_enum! {
    open
    /// The type of an object (`nfs_ftype4`).
    pub enum FileType {
        /// A regular file.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        BlockDevice = 3,
        /// A character device.
        CharacterDevice = 4,
        /// A symbolic link.
        Symlink = 5,
        /// A socket.
        Socket = 6,
        /// A named pipe.
        Fifo = 7,
        /// A directory of named attributes.
        AttributeDirectory = 8,
        /// A named attribute.
        NamedAttribute = 9,
    }
}

xdr_enum! {
    closed
    /// The stability of written data (`stable_how4`).
    pub enum StableHow {
        /// In memory; a COMMIT must follow.
        Unstable = 0,
        /// The data and the metadata that is needed to find it are stable.
        DataSync = 1,
        /// Data and all attributes are stable.
        FileSync = 2,
    }
}

xdr_flags! {
    /// Rights that ACCESS checks and grants (RFC 8881 18.1, RFC 8276 8.5).
    pub struct Access {
        /// Read data, list a directory.
        const READ = 0x0001;
        /// Look names up.
        const LOOKUP = 0x0002;
        /// Rewrite data, change entries.
        const MODIFY = 0x0004;
        /// Write new data, add entries.
        const EXTEND = 0x0008;
        /// Remove an entry.
        const DELETE = 0x0010;
        /// Execute a file.
        const EXECUTE = 0x0020;
        /// Read extended attributes.
        const XATTR_READ = 0x0040;
        /// Set and remove extended attributes.
        const XATTR_WRITE = 0x0080;
        /// List extended attributes.
        const XATTR_LIST = 0x0100;
    }
}

xdr_enum! {
    open
    /// The kind of a delegation (`open_delegation_type4`, RFC 8881 18.16, RFC 9754).
    pub enum DelegationType {
        /// No delegation.
        None = 0,
        /// A read delegation.
        Read = 1,
        /// A write delegation.
        Write = 2,
        /// No delegation, with a reason.
        NoneExt = 3,
        /// A read delegation whose holder maintains the access time (RFC 9754).
        ReadAttributes = 4,
        /// A write delegation whose holder maintains the times (RFC 9754).
        WriteAttributes = 5,
    }
}

impl<'a> Decode<'a> for () {
    #[inline]
    fn decode(_: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(())
    }
}

impl Encode for () {
    #[inline]
    fn encode(&self, _: &mut Encoder<'_>) {}
}
