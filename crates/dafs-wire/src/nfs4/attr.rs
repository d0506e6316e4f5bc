//! The numbers of attributes and their use (RFC 8881 5, RFC 7862 12, RFC 8275, RFC 8276, RFC 9754).
//!
//! Invariants
//! * Every number has one value of [`Attr`]; the numbers are those of the RFCs.

use super::bitmap::Bitmap;
use std::fmt;

/// The use of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttrUse {
    /// GETATTR and READDIR read it.
    Get,
    /// SETATTR, OPEN and CREATE set it.
    Set,
    /// It can be read and set.
    GetSet,
}

macro_rules! attributes {
    ($( $attr:ident = $number:literal, $name:literal, $access:ident; )*) => {
        /// An attribute.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the names are those of the RFCs")]
        pub enum Attr { $( $attr = $number, )* }

        impl Attr {
            /// Every attribute, in numerical order.
            pub const ALL: &'static [Self] = &[$( Self::$attr, )*];

            /// The attribute with this number.
            #[inline]
            pub const fn from_u32(number: u32) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$attr), )*
                    _ => None,
                }
            }

            /// The attribute's name in the RFCs.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$attr => $name, )* }
            }

            /// The use of the attribute.
            pub const fn usage(self) -> AttrUse {
                match self { $( Self::$attr => AttrUse::$access, )* }
            }
        }
    };
}

attributes! {
    SupportedAttrs = 0, "supported_attrs", Get;
    Type = 1, "type", Get;
    FhExpireType = 2, "fh_expire_type", Get;
    Change = 3, "change", Get;
    Size = 4, "size", GetSet;
    LinkSupport = 5, "link_support", Get;
    SymlinkSupport = 6, "symlink_support", Get;
    NamedAttr = 7, "named_attr", Get;
    Fsid = 8, "fsid", Get;
    UniqueHandles = 9, "unique_handles", Get;
    LeaseTime = 10, "lease_time", Get;
    RdattrError = 11, "rdattr_error", Get;
    Acl = 12, "acl", GetSet;
    Aclsupport = 13, "aclsupport", Get;
    Archive = 14, "archive", GetSet;
    Cansettime = 15, "cansettime", Get;
    CaseInsensitive = 16, "case_insensitive", Get;
    CasePreserving = 17, "case_preserving", Get;
    ChownRestricted = 18, "chown_restricted", Get;
    Filehandle = 19, "filehandle", Get;
    Fileid = 20, "fileid", Get;
    FilesAvail = 21, "files_avail", Get;
    FilesFree = 22, "files_free", Get;
    FilesTotal = 23, "files_total", Get;
    FsLocations = 24, "fs_locations", Get;
    Hidden = 25, "hidden", GetSet;
    Homogeneous = 26, "homogeneous", Get;
    Maxfilesize = 27, "maxfilesize", Get;
    Maxlink = 28, "maxlink", Get;
    Maxname = 29, "maxname", Get;
    Maxread = 30, "maxread", Get;
    Maxwrite = 31, "maxwrite", Get;
    Mimetype = 32, "mimetype", GetSet;
    Mode = 33, "mode", GetSet;
    NoTrunc = 34, "no_trunc", Get;
    Numlinks = 35, "numlinks", Get;
    Owner = 36, "owner", GetSet;
    OwnerGroup = 37, "owner_group", GetSet;
    QuotaAvailHard = 38, "quota_avail_hard", Get;
    QuotaAvailSoft = 39, "quota_avail_soft", Get;
    QuotaUsed = 40, "quota_used", Get;
    Rawdev = 41, "rawdev", Get;
    SpaceAvail = 42, "space_avail", Get;
    SpaceFree = 43, "space_free", Get;
    SpaceTotal = 44, "space_total", Get;
    SpaceUsed = 45, "space_used", Get;
    System = 46, "system", GetSet;
    TimeAccess = 47, "time_access", Get;
    TimeAccessSet = 48, "time_access_set", Set;
    TimeBackup = 49, "time_backup", GetSet;
    TimeCreate = 50, "time_create", GetSet;
    TimeDelta = 51, "time_delta", Get;
    TimeMetadata = 52, "time_metadata", Get;
    TimeModify = 53, "time_modify", Get;
    TimeModifySet = 54, "time_modify_set", Set;
    MountedOnFileid = 55, "mounted_on_fileid", Get;
    DirNotifDelay = 56, "dir_notif_delay", Get;
    DirentNotifDelay = 57, "dirent_notif_delay", Get;
    Dacl = 58, "dacl", GetSet;
    Sacl = 59, "sacl", GetSet;
    ChangePolicy = 60, "change_policy", Get;
    FsStatus = 61, "fs_status", Get;
    FsLayoutTypes = 62, "fs_layout_types", Get;
    LayoutHint = 63, "layout_hint", Set;
    LayoutTypes = 64, "layout_types", Get;
    LayoutBlksize = 65, "layout_blksize", Get;
    LayoutAlignment = 66, "layout_alignment", Get;
    FsLocationsInfo = 67, "fs_locations_info", Get;
    Mdsthreshold = 68, "mdsthreshold", Get;
    RetentionGet = 69, "retention_get", Get;
    RetentionSet = 70, "retention_set", Set;
    RetentevtGet = 71, "retentevt_get", Get;
    RetentevtSet = 72, "retentevt_set", Set;
    RetentionHold = 73, "retention_hold", GetSet;
    ModeSetMasked = 74, "mode_set_masked", Set;
    SuppattrExclcreat = 75, "suppattr_exclcreat", Get;
    FsCharsetCap = 76, "fs_charset_cap", Get;
    CloneBlksize = 77, "clone_blksize", Get;
    SpaceFreed = 78, "space_freed", Get;
    ChangeAttrType = 79, "change_attr_type", Get;
    SecLabel = 80, "sec_label", GetSet;
    ModeUmask = 81, "mode_umask", Set;
    XattrSupport = 82, "xattr_support", Get;
    Offline = 83, "offline", Get;
    TimeDelegAccess = 84, "time_deleg_access", Set;
    TimeDelegModify = 85, "time_deleg_modify", Set;
    OpenArguments = 86, "open_arguments", Get;
}

impl Attr {
    /// Every attribute.
    pub const KNOWN: Bitmap = Self::all_with(true, true);
    /// The attributes that can be read.
    pub const GETTABLE: Bitmap = Self::all_with(true, false);
    /// The attributes that can be set.
    pub const SETTABLE: Bitmap = Self::all_with(false, true);

    /// The number of the attribute.
    #[inline]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The set of these attributes.
    pub const fn set(attrs: &[Self]) -> Bitmap {
        let mut set = Bitmap::EMPTY;
        let mut at = 0;
        while at < attrs.len() {
            set = set.with(attrs[at] as u32);
            at += 1;
        }
        set
    }

    const fn all_with(get: bool, set: bool) -> Bitmap {
        let mut found = Bitmap::EMPTY;
        let mut at = 0;
        while at < Self::ALL.len() {
            let attr = Self::ALL[at];
            let wanted = match attr.usage() {
                AttrUse::Get => get,
                AttrUse::Set => set,
                AttrUse::GetSet => true,
            };
            if wanted {
                found = found.with(attr as u32);
            }
            at += 1;
        }
        found
    }
}

impl From<Attr> for u32 {
    #[inline]
    fn from(attr: Attr) -> u32 {
        attr as u32
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
