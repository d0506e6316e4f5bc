//! Arguments of the procedures (RFC 1813 3.3). FSSTAT, FSINFO, PATHCONF and READLINK take the same
//! as GETATTR; REMOVE, RMDIR and LOOKUP take a [`DirOpArgs`].

use super::VERIFIER_BYTES;
use super::field::record;
use super::types::{FileHandle, SetAttributes, Stability, Time};
use crate::xdr::{Decode, Decoder, Encode, Encoder, Payload, XdrError, no_such};

record! {
    /// GETATTR, READLINK, FSSTAT, FSINFO and PATHCONF.
    pub struct GetattrArgs<'a> {
        /// The object.
        pub object: FileHandle<'a>,
    }

    /// A name in a directory (diropargs3): LOOKUP, REMOVE and RMDIR, and part of others.
    pub struct DirOpArgs<'a> {
        /// The directory.
        pub dir: FileHandle<'a>,
        /// The name, any bytes.
        pub name: &'a [u8],
    }

    /// SETATTR.
    pub struct SetattrArgs<'a> {
        /// The object.
        pub object: FileHandle<'a>,
        /// The attributes to change.
        pub new: SetAttributes,
        /// Change only if this is still the object's ctime.
        pub guard: Option<Time>,
    }

    /// ACCESS.
    pub struct AccessArgs<'a> {
        /// The object.
        pub object: FileHandle<'a>,
        /// Bits of [`access`](super::access).
        pub wanted: u32,
    }

    /// READ.
    pub struct ReadArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// First byte.
        pub offset: u64,
        /// The most bytes to read.
        pub count: u32,
    }

    /// WRITE.
    pub struct WriteArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// First byte.
        pub offset: u64,
        /// Bytes to write, which repeats the length of the data.
        pub count: u32,
        /// The data that must be on stable storage before the reply.
        pub stable: Stability,
        /// The data.
        pub data: Payload<'a>,
    }
}

/// The treatment of an existing file by CREATE (createhow3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// Accept it; a size of 0 truncates it.
    Unchecked(SetAttributes),
    /// Fail.
    Guarded(SetAttributes),
    /// Fail unless a CREATE with the same verifier made it.
    Exclusive([u8; VERIFIER_BYTES]),
}

impl<'a> Decode<'a> for CreateHow {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match decoder.u32()? {
            0 => Decode::decode(decoder).map(Self::Unchecked),
            1 => Decode::decode(decoder).map(Self::Guarded),
            2 => Decode::decode(decoder).map(Self::Exclusive),
            other => Err(no_such("createmode3", other)),
        }
    }
}

impl Encode for CreateHow {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        match self {
            Self::Unchecked(attributes) => {
                encoder.u32(0);
                attributes.encode(encoder);
            }
            Self::Guarded(attributes) => {
                encoder.u32(1);
                attributes.encode(encoder);
            }
            Self::Exclusive(verifier) => {
                encoder.u32(2);
                verifier.encode(encoder);
            }
        }
    }
}

record! {
    /// CREATE.
    pub struct CreateArgs<'a> {
        /// The directory and the name.
        pub place: DirOpArgs<'a>,
        /// The treatment of an existing file.
        pub how: CreateHow,
    }

    /// MKDIR.
    pub struct MkdirArgs<'a> {
        /// The directory and the name.
        pub place: DirOpArgs<'a>,
        /// The attributes of the directory.
        pub attributes: SetAttributes,
    }

    /// SYMLINK.
    pub struct SymlinkArgs<'a> {
        /// The directory and the name.
        pub place: DirOpArgs<'a>,
        /// The attributes of the link.
        pub attributes: SetAttributes,
        /// The text of the link.
        pub target: Payload<'a>,
    }
}

/// The object that MKNOD makes (mknoddata3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum MknodObject {
    BlockDevice {
        attributes: SetAttributes,
        device: (u32, u32),
    },
    CharDevice {
        attributes: SetAttributes,
        device: (u32, u32),
    },
    Socket(SetAttributes),
    Fifo(SetAttributes),
    /// A type that MKNOD cannot make; the protocol has an error for it.
    Other(u32),
}

impl<'a> Decode<'a> for MknodObject {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let number = decoder.u32()?;
        let mut device = || -> Result<_, XdrError> {
            let attributes = SetAttributes::decode(decoder)?;
            Ok((attributes, (decoder.u32()?, decoder.u32()?)))
        };
        Ok(match number {
            3 => {
                let (attributes, device) = device()?;
                Self::BlockDevice { attributes, device }
            }
            4 => {
                let (attributes, device) = device()?;
                Self::CharDevice { attributes, device }
            }
            6 => Self::Socket(SetAttributes::decode(decoder)?),
            7 => Self::Fifo(SetAttributes::decode(decoder)?),
            other => Self::Other(other),
        })
    }
}

impl Encode for MknodObject {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        let mut head = |number, attributes: &SetAttributes| {
            encoder.u32(number);
            attributes.encode(encoder);
        };
        let device = match self {
            Self::BlockDevice { attributes, device } => {
                head(3, attributes);
                device
            }
            Self::CharDevice { attributes, device } => {
                head(4, attributes);
                device
            }
            Self::Socket(attributes) => return head(6, attributes),
            Self::Fifo(attributes) => return head(7, attributes),
            Self::Other(number) => return encoder.u32(*number),
        };
        encoder.u32(device.0);
        encoder.u32(device.1);
    }
}

record! {
    /// MKNOD.
    pub struct MknodArgs<'a> {
        /// The directory and the name.
        pub place: DirOpArgs<'a>,
        /// The object to make.
        pub object: MknodObject,
    }

    /// RENAME.
    pub struct RenameArgs<'a> {
        /// The old name.
        pub from: DirOpArgs<'a>,
        /// The new name.
        pub to: DirOpArgs<'a>,
    }

    /// LINK.
    pub struct LinkArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// The additional name.
        pub place: DirOpArgs<'a>,
    }

    /// READDIR.
    pub struct ReaddirArgs<'a> {
        /// The directory.
        pub dir: FileHandle<'a>,
        /// The cookie of the last entry; 0 starts at the beginning.
        pub cookie: u64,
        /// The verifier that came with the cookie; zeros at the start.
        pub verifier: [u8; VERIFIER_BYTES],
        /// The most bytes of the whole successful result.
        pub count: u32,
    }

    /// READDIRPLUS.
    pub struct ReaddirplusArgs<'a> {
        /// The directory.
        pub dir: FileHandle<'a>,
        /// The cookie of the last entry; 0 starts at the beginning.
        pub cookie: u64,
        /// The verifier that came with the cookie; zeros at the start.
        pub verifier: [u8; VERIFIER_BYTES],
        /// Most bytes of entries without their attributes and handles.
        pub dir_count: u32,
        /// Most bytes of the whole successful result.
        pub max_count: u32,
    }

    /// COMMIT.
    pub struct CommitArgs<'a> {
        /// The file.
        pub file: FileHandle<'a>,
        /// First byte.
        pub offset: u64,
        /// Length in bytes; 0 means to the end of the file.
        pub count: u32,
    }
}
