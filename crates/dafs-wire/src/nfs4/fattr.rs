//! Attribute values: those that a client sets, those that it reads, and their encoding by a server
//! (`fattr4`, RFC 8881 3.3.1, 5).
//!
//! Invariants
//! * Values are in numerical order of the attributes, and no bytes follow the last.
//! * An attribute that is unknown, not supported or read-only is reported before any value is
//!   decoded, because the length of an unknown value is unknown.

use super::acl::{Acl, Acl41};
use super::attr::{Attr, AttrUse};
use super::attr_types::*;
use super::bitmap::Bitmap;
use super::layout_ops::LayoutBody;
use super::status::Status;
use super::types::*;
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use thiserror::Error;

/// The reason why attributes cannot be set or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FattrError {
    /// An attribute that is unknown or not supported by the server; `None` for one whose number is
    /// too large to be stored.
    #[error("attribute {0:?} is not supported")]
    Unsupported(Option<u32>),
    /// An attribute that cannot be set.
    #[error("{0} cannot be set")]
    ReadOnly(Attr),
    /// A value that cannot be decoded, or bytes after the last.
    #[error("an attribute's value is wrong: {0}")]
    Value(#[from] XdrError),
}

impl FattrError {
    /// The status for SETATTR, OPEN and CREATE (RFC 8881 18.30.4).
    pub fn status(self) -> Status {
        match self {
            Self::Unsupported(_) => Status::AttrNotSupp,
            Self::ReadOnly(_) => Status::Inval,
            Self::Value(_) => Status::BadXdr,
        }
    }
}

/// Writes attributes: the mask, the length, and the values that `write` appends for each attribute
/// of the mask, in order. Undefined numbers are left out of the mask.
#[inline]
pub fn encode_fattr<'v>(
    e: &mut Encoder<'v>,
    mask: Bitmap,
    mut write: impl FnMut(Attr, &mut Encoder<'v>),
) {
    let mask = mask.and(Attr::KNOWN);
    mask.encode(e);
    let length_at = e.position();
    e.u32(0);
    for attr in mask.iter().filter_map(Attr::from_u32) {
        write(attr, e);
    }
    let bytes = e.position() - length_at - 4;
    // INVARIANT: replies are far shorter than 4 GiB, and every value is padded.
    e.patch_u32(length_at, bytes as u32);
}

/// Declares a set of optional attributes, in the order of their numbers.
macro_rules! attribute_set {
    ($( #[$meta:meta] )* pub struct $name:ident<$lt:lifetime> {
        $( $( #[$fmeta:meta] )* $attr:ident $field:ident: $ty:ty, )*
    }) => {
        $( #[$meta] )*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $name<$lt> { $( $( #[$fmeta] )* pub $field: Option<$ty>, )* }

        impl<$lt> $name<$lt> {
            /// The attributes that such a set can have.
            pub const KNOWN: Bitmap = Attr::set(&[$( Attr::$attr, )*]);

            /// The attributes in this set.
            pub fn mask(&self) -> Bitmap {
                let mut mask = Bitmap::EMPTY;
                $( if self.$field.is_some() {
                    mask = mask.with(Attr::$attr as u32);
                } )*
                mask
            }

            /// Reads the values of `mask`, of which every member is known.
            fn read(mask: Bitmap, values: &$lt [u8]) -> Result<Self, FattrError> {
                let mut set = Self::default();
                let mut d = Decoder::new(values);
                for attr in mask.iter().filter_map(Attr::from_u32) {
                    match attr {
                        $( Attr::$attr => set.$field = Some(<$ty>::decode(&mut d)?), )*
                        #[allow(unreachable_patterns, reason = "one of the sets has all")]
                        other => return Err(FattrError::Unsupported(Some(other.number()))),
                    }
                }
                d.finish()?;
                Ok(set)
            }

            /// Writes the mask, the length and the values.
            pub fn encode(&self, e: &mut Encoder<'_>) {
                encode_fattr(e, self.mask(), |attr, e| match attr {
                    $( Attr::$attr => {
                        if let Some(value) = &self.$field {
                            value.encode(e);
                        }
                    } )*
                    #[allow(unreachable_patterns, reason = "one of the sets has all")]
                    _ => {}
                });
            }

            /// The values alone, as in [`Fattr::values`].
            pub fn to_values(&self) -> Vec<u8> {
                let mut values = Vec::new();
                let mut e = Encoder::new(&mut values);
                $( if let Some(value) = &self.$field {
                    value.encode(&mut e);
                } )*
                values
            }
        }
    };
}

attribute_set! {
    /// The attributes that a client sets with SETATTR, OPEN, CREATE and similar operations.
    pub struct SetAttributes<'a> {
        /// The length of the file.
        Size size: u64,
        /// The access control list.
        Acl acl: Acl<'a>,
        /// True if the file was saved.
        Archive archive: bool,
        /// True if the object is hidden.
        Hidden hidden: bool,
        /// The MIME type.
        Mimetype mimetype: &'a [u8],
        /// The mode.
        Mode mode: u32,
        /// The owner, as `user@domain` or a number.
        Owner owner: &'a [u8],
        /// The group, as `group@domain` or a number.
        OwnerGroup owner_group: &'a [u8],
        /// True if the object belongs to the system.
        System system: bool,
        /// The access time.
        TimeAccessSet time_access: SetTime,
        /// The time of the last backup.
        TimeBackup time_backup: Time,
        /// The time of creation.
        TimeCreate time_create: Time,
        /// The modification time.
        TimeModifySet time_modify: SetTime,
        /// The list of entries that allow and deny.
        Dacl dacl: Acl41<'a>,
        /// The list of entries that log.
        Sacl sacl: Acl41<'a>,
        /// A hint for layouts.
        LayoutHint layout_hint: LayoutBody<'a>,
        /// The new retention of the file.
        RetentionSet retention: RetentionSet,
        /// The new retention of the file after an event.
        RetentevtSet retention_event: RetentionSet,
        /// Bits that forbid the removal.
        RetentionHold retention_hold: u64,
        /// Some bits of the mode.
        ModeSetMasked mode_masked: ModeMasked,
        /// A security label.
        SecLabel sec_label: SecLabel<'a>,
        /// The mode and the umask of a new object.
        ModeUmask mode_umask: ModeUmask,
        /// The access time that the holder of a delegation maintained.
        TimeDelegAccess time_deleg_access: Time,
        /// The modification time that the holder of a delegation maintained.
        TimeDelegModify time_deleg_modify: Time,
    }
}

impl<'a> SetAttributes<'a> {
    /// Decodes the attributes to set. `supported` are the attributes that the server supports for
    /// the object.
    ///
    /// # Errors
    /// [`FattrError::Unsupported`] first, then [`FattrError::ReadOnly`], then
    /// [`FattrError::Value`].
    pub fn decode(fattr: &Fattr<'a>, supported: Bitmap) -> Result<Self, FattrError> {
        let unsupported = fattr.mask.minus(supported.and(Attr::KNOWN));
        if !unsupported.is_empty() {
            return Err(FattrError::Unsupported(unsupported.iter().next()));
        }
        for attr in fattr.mask.iter().filter_map(Attr::from_u32) {
            if attr.usage() == AttrUse::Get {
                return Err(FattrError::ReadOnly(attr));
            }
        }
        Self::read(fattr.mask, fattr.values)
    }
}

attribute_set! {
    /// The attributes that a client reads with GETATTR and READDIR, and returns to CB_GETATTR.
    pub struct Attributes<'a> {
        /// The attributes that the server supports for the object.
        SupportedAttrs supported_attrs: Bitmap,
        /// The type of the object.
        Type kind: FileType,
        /// The expiry of file handles.
        FhExpireType fh_expire_type: FhExpireType,
        /// The change attribute.
        Change change: u64,
        /// The length of the file.
        Size size: u64,
        /// True if there are hard links.
        LinkSupport link_support: bool,
        /// True if there are symbolic links.
        SymlinkSupport symlink_support: bool,
        /// True if the object has named attributes.
        NamedAttr named_attr: bool,
        /// The file system.
        Fsid fsid: Fsid,
        /// True if one object has one handle.
        UniqueHandles unique_handles: bool,
        /// The length of leases, in seconds.
        LeaseTime lease_time_seconds: u32,
        /// The reason why the other attributes are missing.
        RdattrError rdattr_error: Status,
        /// The access control list.
        Acl acl: Acl<'a>,
        /// The types of entries that such a list can have.
        Aclsupport aclsupport: AclSupport,
        /// True if the file was saved.
        Archive archive: bool,
        /// True if times can be set.
        Cansettime cansettime: bool,
        /// True if names that differ only in case are the same.
        CaseInsensitive case_insensitive: bool,
        /// True if names keep their case.
        CasePreserving case_preserving: bool,
        /// True if only privileged callers can change the owner of a file.
        ChownRestricted chown_restricted: bool,
        /// The file handle.
        Filehandle filehandle: &'a [u8],
        /// The number of the object in its file system.
        Fileid fileid: u64,
        /// Objects that the caller can still create.
        FilesAvail files_avail: u64,
        /// Objects that can still be created.
        FilesFree files_free: u64,
        /// Total number of objects.
        FilesTotal files_total: u64,
        /// The locations of the file system.
        FsLocations fs_locations: FsLocations<'a>,
        /// True if the object is hidden.
        Hidden hidden: bool,
        /// True if all objects of the file system have the same attributes.
        Homogeneous homogeneous: bool,
        /// The longest file.
        Maxfilesize maxfilesize: u64,
        /// The most links.
        Maxlink maxlink: u32,
        /// The longest name.
        Maxname maxname: u32,
        /// The longest read.
        Maxread maxread: u64,
        /// The longest write.
        Maxwrite maxwrite: u64,
        /// The MIME type.
        Mimetype mimetype: &'a [u8],
        /// The mode.
        Mode mode: u32,
        /// True if names that are too long are refused.
        NoTrunc no_trunc: bool,
        /// The number of links.
        Numlinks numlinks: u32,
        /// The owner.
        Owner owner: &'a [u8],
        /// The group.
        OwnerGroup owner_group: &'a [u8],
        /// The rest of the hard quota, in bytes.
        QuotaAvailHard quota_avail_hard: u64,
        /// The rest of the soft quota, in bytes.
        QuotaAvailSoft quota_avail_soft: u64,
        /// The used part of the quota, in bytes.
        QuotaUsed quota_used: u64,
        /// The numbers of a device node.
        Rawdev rawdev: DeviceNumbers,
        /// Bytes that the caller can still use.
        SpaceAvail space_avail: u64,
        /// Bytes that are free.
        SpaceFree space_free: u64,
        /// Total bytes.
        SpaceTotal space_total: u64,
        /// Bytes that the object uses.
        SpaceUsed space_used: u64,
        /// True if the object belongs to the system.
        System system: bool,
        /// The access time.
        TimeAccess time_access: Time,
        /// The new access time.
        TimeAccessSet time_access_set: SetTime,
        /// The time of the last backup.
        TimeBackup time_backup: Time,
        /// The time of creation.
        TimeCreate time_create: Time,
        /// The precision of times.
        TimeDelta time_delta: Time,
        /// The time of the last change of attributes.
        TimeMetadata time_metadata: Time,
        /// The modification time.
        TimeModify time_modify: Time,
        /// The new modification time.
        TimeModifySet time_modify_set: SetTime,
        /// The number of the directory that a file system is mounted on.
        MountedOnFileid mounted_on_fileid: u64,
        /// The delay of notifications about directories.
        DirNotifDelay dir_notif_delay: Time,
        /// The delay of notifications about entries.
        DirentNotifDelay dirent_notif_delay: Time,
        /// The list of entries that allow and deny.
        Dacl dacl: Acl41<'a>,
        /// The list of entries that log.
        Sacl sacl: Acl41<'a>,
        /// Changes when a policy changes.
        ChangePolicy change_policy: ChangePolicy,
        /// The status of the file system.
        FsStatus fs_status: FsStatus<'a>,
        /// Layout types of the file system.
        FsLayoutTypes fs_layout_types: Numbers32,
        /// A hint for layouts.
        LayoutHint layout_hint: LayoutBody<'a>,
        /// Layout types of the file.
        LayoutTypes layout_types: Numbers32,
        /// The block length of layouts.
        LayoutBlksize layout_blksize: u32,
        /// The alignment of layouts.
        LayoutAlignment layout_alignment: u32,
        /// The locations of the file system in detail.
        FsLocationsInfo fs_locations_info: FsLocationsInfo<'a>,
        /// The thresholds below which I/O should go through the metadata server.
        Mdsthreshold mdsthreshold: Mdsthreshold<'a>,
        /// The retention of the file.
        RetentionGet retention_get: RetentionGet,
        /// The new retention of the file.
        RetentionSet retention_set: RetentionSet,
        /// The retention of the file after an event.
        RetentevtGet retentevt_get: RetentionGet,
        /// The new retention of the file after an event.
        RetentevtSet retentevt_set: RetentionSet,
        /// Bits that forbid the removal.
        RetentionHold retention_hold: u64,
        /// Some bits of the mode.
        ModeSetMasked mode_set_masked: ModeMasked,
        /// The attributes that an exclusive create can set.
        SuppattrExclcreat suppattr_exclcreat: Bitmap,
        /// The character set of names.
        FsCharsetCap fs_charset_cap: CharsetCapability,
        /// The block length of CLONE.
        CloneBlksize clone_blksize: u32,
        /// Bytes that the removal of the object would free.
        SpaceFreed space_freed: u64,
        /// The behaviour of the change attribute.
        ChangeAttrType change_attr_type: ChangeAttrType,
        /// A security label.
        SecLabel sec_label: SecLabel<'a>,
        /// The mode and the umask of a new object.
        ModeUmask mode_umask: ModeUmask,
        /// True if there are extended attributes.
        XattrSupport xattr_support: bool,
        /// True if the data must be fetched from a slow medium.
        Offline offline: bool,
        /// The access time that the holder of a delegation maintains.
        TimeDelegAccess time_deleg_access: Time,
        /// The modification time that the holder of a delegation maintains.
        TimeDelegModify time_deleg_modify: Time,
        /// The arguments that OPEN supports.
        OpenArguments open_arguments: OpenArguments,
    }
}

impl<'a> Attributes<'a> {
    /// Decodes attributes of a reply.
    ///
    /// # Errors
    /// [`FattrError::Unsupported`], [`FattrError::Value`].
    pub fn decode(fattr: &Fattr<'a>) -> Result<Self, FattrError> {
        let unknown = fattr.mask.minus(Self::KNOWN);
        if !unknown.is_empty() {
            return Err(FattrError::Unsupported(unknown.iter().next()));
        }
        Self::read(fattr.mask, fattr.values)
    }
}
