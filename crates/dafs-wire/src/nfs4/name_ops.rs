//! Names, handles and attributes: LOOKUP, CREATE, REMOVE, RENAME, LINK, READDIR, READLINK, SECINFO,
//! PUTFH, GETFH, GETATTR, SETATTR, VERIFY, ACCESS (RFC 8881 18.1 - 18.37).
//!
//! Only the message limits names here: the server must answer NAMETOOLONG for a name that is too
//! long.

use super::bitmap::Bitmap;
use super::codec::{xdr_enum, xdr_struct, xdr_void};
use super::limits::*;
use super::session_ops::{FLAVOR_GSS, FLAVOR_NONE, FLAVOR_SYS};
use super::types::{Access, ChangeInfo, DeviceNumbers, Fattr, FileType, Stateid, Verifier};
use crate::xdr::{Decode, Decoder, Encode, Encoder, Payload, XdrError, no_such};

xdr_struct! {
    /// Arguments of ACCESS (RFC 8881 18.1).
    #[derive(Copy)]
    pub struct AccessArgs {
        /// The rights to check.
        pub access: Access,
    }

    /// Results of ACCESS (RFC 8881 18.1).
    #[derive(Copy)]
    pub struct AccessResult {
        /// The rights that could be checked.
        pub supported: Access,
        /// The rights that the caller has.
        pub access: Access,
    }
}

xdr_void! {
    /// Arguments of GETFH (RFC 8881 18.8).
    GetfhArgs;
    /// Arguments of LOOKUPP (RFC 8881 18.14).
    LookuppArgs;
    /// Arguments of PUTPUBFH (RFC 8881 18.20).
    PutpubfhArgs;
    /// Arguments of PUTROOTFH (RFC 8881 18.21).
    PutrootfhArgs;
    /// Arguments of READLINK (RFC 8881 18.24).
    ReadlinkArgs;
    /// Arguments of RESTOREFH (RFC 8881 18.27).
    RestorefhArgs;
    /// Arguments of SAVEFH (RFC 8881 18.28).
    SavefhArgs;
}

/// The object that CREATE makes (`createtype4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateType<'a> {
    /// A symbolic link with this text.
    Symlink(Payload<'a>),
    /// A block device.
    BlockDevice(DeviceNumbers),
    /// A character device.
    CharacterDevice(DeviceNumbers),
    /// A socket, a named pipe or a directory, or a type that CREATE cannot make (BADTYPE).
    Plain(FileType),
}

impl CreateType<'_> {
    /// The type of the object.
    pub fn file_type(&self) -> FileType {
        match self {
            Self::Symlink(_) => FileType::Symlink,
            Self::BlockDevice(_) => FileType::BlockDevice,
            Self::CharacterDevice(_) => FileType::CharacterDevice,
            Self::Plain(kind) => *kind,
        }
    }
}

impl<'a> Decode<'a> for CreateType<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match FileType::decode(d)? {
            FileType::Symlink => Self::Symlink(d.payload(UNLIMITED)?),
            FileType::BlockDevice => Self::BlockDevice(DeviceNumbers::decode(d)?),
            FileType::CharacterDevice => Self::CharacterDevice(DeviceNumbers::decode(d)?),
            kind => Self::Plain(kind),
        })
    }
}

impl Encode for CreateType<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        self.file_type().encode(e);
        match self {
            Self::Symlink(text) => e.payload(*text),
            Self::BlockDevice(numbers) | Self::CharacterDevice(numbers) => numbers.encode(e),
            Self::Plain(_) => {}
        }
    }
}

xdr_struct! {
    /// Arguments of CREATE (RFC 8881 18.4).
    #[derive(Copy)]
    pub struct CreateArgs<'a> {
        /// The object to create.
        pub kind: CreateType<'a>,
        /// The name in the current directory.
        pub name: &'a [u8],
        /// The initial attributes of the object.
        pub attributes: Fattr<'a>,
    }

    /// Results of CREATE (RFC 8881 18.4).
    #[derive(Copy)]
    pub struct CreateResult {
        /// The change of the directory.
        pub change: ChangeInfo,
        /// The attributes that were set.
        pub attributes_set: Bitmap,
    }

    /// Arguments of GETATTR (RFC 8881 18.7).
    #[derive(Copy)]
    pub struct GetattrArgs {
        /// The requested attributes.
        pub request: Bitmap,
    }

    /// Results of GETATTR (RFC 8881 18.7).
    #[derive(Copy)]
    pub struct GetattrResult<'a> {
        /// The attributes.
        pub attributes: Fattr<'a>,
    }

    /// Results of GETFH (RFC 8881 18.8).
    #[derive(Copy)]
    pub struct GetfhResult<'a> {
        /// The current file handle.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
    }

    /// Arguments of LINK (RFC 8881 18.9).
    #[derive(Copy)]
    pub struct LinkArgs<'a> {
        /// The new name, in the current directory, of the saved file handle's object.
        pub name: &'a [u8],
    }

    /// Results of LINK (RFC 8881 18.9).
    #[derive(Copy)]
    pub struct LinkResult {
        /// The change of the directory.
        pub change: ChangeInfo,
    }

    /// Arguments of LOOKUP (RFC 8881 18.13).
    #[derive(Copy)]
    pub struct LookupArgs<'a> {
        /// The name in the current directory.
        pub name: &'a [u8],
    }

    /// Arguments of VERIFY and NVERIFY (RFC 8881 18.15, 18.31).
    #[derive(Copy)]
    pub struct VerifyArgs<'a> {
        /// The attributes to compare with.
        pub attributes: Fattr<'a>,
    }

    /// Arguments of OPENATTR (RFC 8881 18.17).
    #[derive(Copy)]
    pub struct OpenattrArgs {
        /// True to create the directory of named attributes.
        pub create: bool,
    }

    /// Arguments of PUTFH (RFC 8881 18.19).
    #[derive(Copy)]
    pub struct PutfhArgs<'a> {
        /// The new current file handle.
        pub handle: &'a [u8] [max FILE_HANDLE_BYTES_MAX],
    }

    /// Arguments of READDIR (RFC 8881 18.23).
    #[derive(Copy)]
    pub struct ReaddirArgs {
        /// The cookie of the last entry; 0 starts at the beginning.
        pub cookie: u64,
        /// The verifier of the last reply; zeros at the start.
        pub cookie_verifier: Verifier,
        /// A hint: the most bytes of names and cookies.
        pub directory_bytes: u32,
        /// The most bytes of the whole result.
        pub result_bytes_max: u32,
        /// The requested attributes of each entry.
        pub request: Bitmap,
    }

    /// One entry of a READDIR result (`entry4`, without the link to the next).
    #[derive(Copy)]
    pub struct DirectoryEntry<'a> {
        /// The cookie from which the listing continues after this entry.
        pub cookie: u64,
        /// The name of the entry.
        pub name: &'a [u8],
        /// The attributes of the entry's object.
        pub attributes: Fattr<'a>,
    }
}

/// Results of READDIR (RFC 8881 18.23): a verifier, then for each entry TRUE and a
/// [`DirectoryEntry`], then FALSE and the end-of-directory flag. A server writes these pieces
/// directly; a client reads them with [`ReaddirResult::entries`].
#[derive(Debug, Clone, Copy)]
pub struct ReaddirResult<'a> {
    /// The verifier for the next request.
    pub cookie_verifier: Verifier,
    /// True if the last entry is the last of the directory.
    pub eof: bool,
    entries: Decoder<'a>,
}

impl<'a> ReaddirResult<'a> {
    /// The entries, in order.
    pub fn entries(&self) -> DirectoryEntries<'a> {
        DirectoryEntries { rest: self.entries }
    }
}

impl<'a> Decode<'a> for ReaddirResult<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let cookie_verifier = Verifier::decode(d)?;
        let entries = *d;
        while d.bool()? {
            DirectoryEntry::decode(d)?;
        }
        Ok(Self { cookie_verifier, eof: d.bool()?, entries })
    }
}

impl Encode for ReaddirResult<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        self.cookie_verifier.encode(e);
        for entry in self.entries() {
            e.bool(true);
            entry.encode(e);
        }
        e.bool(false);
        e.bool(self.eof);
    }
}

/// Iterator over the entries of a [`ReaddirResult`].
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntries<'a> {
    rest: Decoder<'a>,
}

impl<'a> Iterator for DirectoryEntries<'a> {
    type Item = DirectoryEntry<'a>;

    fn next(&mut self) -> Option<DirectoryEntry<'a>> {
        let mut ahead = self.rest;
        // The whole list was validated when the result was decoded, so errors cannot occur here.
        let entry = match ahead.bool() {
            Ok(true) => DirectoryEntry::decode(&mut ahead).ok()?,
            _ => return None,
        };
        self.rest = ahead;
        Some(entry)
    }
}

xdr_struct! {
    /// Results of READLINK (RFC 8881 18.24).
    #[derive(Copy)]
    pub struct ReadlinkResult<'a> {
        /// The text of the link.
        pub text: Payload<'a>,
    }

    /// Arguments of REMOVE (RFC 8881 18.25).
    #[derive(Copy)]
    pub struct RemoveArgs<'a> {
        /// The name in the current directory.
        pub name: &'a [u8],
    }

    /// Results of REMOVE (RFC 8881 18.25).
    #[derive(Copy)]
    pub struct RemoveResult {
        /// The change of the directory.
        pub change: ChangeInfo,
    }

    /// Arguments of RENAME (RFC 8881 18.26).
    #[derive(Copy)]
    pub struct RenameArgs<'a> {
        /// The name in the saved directory.
        pub old_name: &'a [u8],
        /// The name in the current directory.
        pub new_name: &'a [u8],
    }

    /// Results of RENAME (RFC 8881 18.26).
    #[derive(Copy)]
    pub struct RenameResult {
        /// The change of the saved directory.
        pub source: ChangeInfo,
        /// The change of the current directory.
        pub target: ChangeInfo,
    }

    /// Arguments of SECINFO (RFC 8881 18.29).
    #[derive(Copy)]
    pub struct SecinfoArgs<'a> {
        /// The name in the current directory.
        pub name: &'a [u8],
    }
}

xdr_enum! {
    closed
    /// The object of SECINFO_NO_NAME (`secinfo_style4`).
    pub enum SecinfoStyle {
        /// The current file handle.
        Current = 0,
        /// The parent of the current file handle.
        Parent = 1,
    }
}

xdr_struct! {
    /// Arguments of SECINFO_NO_NAME (RFC 8881 18.45).
    #[derive(Copy)]
    pub struct SecinfoNoNameArgs {
        /// The object.
        pub style: SecinfoStyle,
    }
}

/// An allowed security flavor (`secinfo4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security<'a> {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys,
    /// RPCSEC_GSS with this mechanism, quality of protection and service.
    Gss {
        /// The mechanism, as an ASN.1 object identifier.
        mechanism: &'a [u8],
        /// Quality of protection.
        quality: u32,
        /// The service (RFC 2203).
        service: u32,
    },
    /// Another flavor.
    Other(u32),
}

impl<'a> Decode<'a> for Security<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.u32()? {
            FLAVOR_NONE => Self::None,
            FLAVOR_SYS => Self::Sys,
            FLAVOR_GSS => Self::Gss {
                mechanism: d.opaque(UNLIMITED)?,
                quality: d.u32()?,
                service: match d.u32()? {
                    service @ 1..=3 => service,
                    service => return Err(no_such("rpc_gss_svc_t", service)),
                },
            },
            flavor => Self::Other(flavor),
        })
    }
}

impl Encode for Security<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::None => e.u32(FLAVOR_NONE),
            Self::Sys => e.u32(FLAVOR_SYS),
            Self::Gss { mechanism, quality, service } => {
                e.u32(FLAVOR_GSS);
                e.opaque(mechanism);
                e.u32(*quality);
                e.u32(*service);
            }
            Self::Other(flavor) => e.u32(*flavor),
        }
    }
}

xdr_struct! {
    /// Results of SECINFO and SECINFO_NO_NAME (RFC 8881 18.29, 18.45).
    pub struct SecinfoResult<'a> {
        /// The flavors, the preferred one first.
        pub flavors: Vec<Security<'a>> [max LIST_ITEMS_MAX],
    }

    /// Arguments of SETATTR (RFC 8881 18.30).
    #[derive(Copy)]
    pub struct SetattrArgs<'a> {
        /// The open or lock under which the size changes.
        pub stateid: Stateid,
        /// The attributes to set.
        pub attributes: Fattr<'a>,
    }

    /// Results of SETATTR (RFC 8881 18.30); they follow the status even if it is an error.
    #[derive(Copy, Default)]
    pub struct SetattrResult {
        /// The attributes that were set.
        pub attributes_set: Bitmap,
    }
}
