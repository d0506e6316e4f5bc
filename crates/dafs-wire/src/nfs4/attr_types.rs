//! The types of attributes that are more than a number (RFC 8881 3.3 and 5, RFC 7862 12, RFC 8275,
//! RFC 9754).

use super::bitmap::Bitmap;
use super::codec::{xdr_enum, xdr_field, xdr_flags, xdr_struct};
use super::limits::*;
use super::types::Time;

xdr_flags! {
    /// How long file handles stay valid (`fh_expire_type`, RFC 8881 5.8.1.3); empty: for ever.
    pub struct FhExpireType {
        /// Not while the file is open.
        const NOEXPIRE_WITH_OPEN = 0x1;
        /// At any time.
        const VOLATILE_ANY = 0x2;
        /// When the file system moves.
        const VOL_MIGRATION = 0x4;
        /// When the object is renamed.
        const VOL_RENAME = 0x8;
    }
}

xdr_flags! {
    /// Which kinds of entries a list can have (`aclsupport`, RFC 8881 6.2.1.2).
    pub struct AclSupport {
        /// Entries that allow.
        const ALLOW = 0x1;
        /// Entries that deny.
        const DENY = 0x2;
        /// Entries that log.
        const AUDIT = 0x4;
        /// Entries that raise an alarm.
        const ALARM = 0x8;
    }
}

xdr_flags! {
    /// What names may be (`fs_charset_cap`, RFC 8881 14.4).
    pub struct CharsetCapability {
        /// There may be names that are not UTF-8.
        const CONTAINS_NON_UTF8 = 0x1;
        /// Only UTF-8 is taken.
        const ALLOWS_ONLY_UTF8 = 0x2;
    }
}

xdr_enum! {
    open
    /// How the change attribute moves (`change_attr_type`, RFC 7862 12.2.3).
    pub enum ChangeAttrType {
        /// It grows.
        MonotonicIncrease = 0,
        /// It grows by one per change.
        VersionCounter = 1,
        /// It grows by one per change unless layouts are held.
        VersionCounterNoPnfs = 2,
        /// It is a time.
        TimeMetadata = 3,
        /// Nothing is promised.
        Undefined = 4,
    }
}

xdr_struct! {
    /// Some bits of the mode (`mode_masked4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ModeMasked {
        /// Their values.
        pub value: u32,
        /// Which bits.
        pub mask: u32,
    }
}

xdr_struct! {
    /// The mode of a new object and the umask (`mode_umask4`, RFC 8275 4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ModeUmask {
        /// The mode without the umask.
        pub mode: u32,
        /// The umask, which default lists of the directory replace.
        pub umask: u32,
    }
}

xdr_struct! {
    /// Where a replica of a file system is (`fs_location4`).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsLocation<'a> {
        /// On which servers.
        pub servers: Vec<&'a [u8]> [max LIST_ITEMS_MAX],
        /// Under which path.
        pub root_path: Vec<&'a [u8]> [max PATH_COMPONENTS_MAX],
    }
}

xdr_struct! {
    /// Where a file system is (`fs_locations4`).
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct FsLocations<'a> {
        /// Its path on this server.
        pub root: Vec<&'a [u8]> [max PATH_COMPONENTS_MAX],
        /// Where it is elsewhere.
        pub locations: Vec<FsLocation<'a>> [max LIST_ITEMS_MAX],
    }
}

xdr_struct! {
    /// One server of a replica (`fs_locations_server4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsLocationsServer<'a> {
        /// How old its data is, in seconds.
        pub currency: i32,
        /// Bytes with a meaning by position.
        pub info: &'a [u8],
        /// The server.
        pub server: &'a [u8],
    }
}

xdr_struct! {
    /// One replica (`fs_locations_item4`).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsLocationsItem<'a> {
        /// On which servers.
        pub servers: Vec<FsLocationsServer<'a>> [max LIST_ITEMS_MAX],
        /// Under which path.
        pub root_path: Vec<&'a [u8]> [max PATH_COMPONENTS_MAX],
    }
}

xdr_struct! {
    /// Where a file system is, in detail (`fs_locations_info4`).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FsLocationsInfo<'a> {
        /// Flags.
        pub flags: u32,
        /// For how many seconds this holds.
        pub valid_for_seconds: i32,
        /// Its path on this server.
        pub root: Vec<&'a [u8]> [max PATH_COMPONENTS_MAX],
        /// Where it is elsewhere.
        pub items: Vec<FsLocationsItem<'a>> [max LIST_ITEMS_MAX],
    }
}

xdr_struct! {
    /// How a file system is kept (`fs4_status`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FsStatus<'a> {
        /// Whether it is not here now.
        pub absent: bool,
        /// 1 fixed, 2 updated, 3 versioned, 4 writable, 5 referral.
        pub kind: u32,
        /// Where it comes from.
        pub source: &'a [u8],
        /// Its version.
        pub current: &'a [u8],
        /// How old it is, in seconds.
        pub age_seconds: i32,
        /// As of when.
        pub version: Time,
    }
}

xdr_struct! {
    /// Opaque hints for one layout type (`threshold_item4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ThresholdItem<'a> {
        /// The layout type.
        pub layout_type: u32,
        /// Which hints there are.
        pub hints: Bitmap,
        /// Their values.
        pub values: &'a [u8],
    }
}

xdr_struct! {
    /// When I/O should go through the metadata server (`mdsthreshold4`).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Mdsthreshold<'a> {
        /// One item per layout type.
        pub items: Vec<ThresholdItem<'a>> [max LIST_ITEMS_MAX],
    }
}

xdr_struct! {
    /// How long a file is kept (`retention_get4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RetentionGet {
        /// In seconds; all ones: for ever.
        pub duration_seconds: u64,
        /// From when on, if it began.
        pub begin: Option<Time>,
    }
}

xdr_struct! {
    /// How long to keep a file (`retention_set4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RetentionSet {
        /// Whether to begin.
        pub enable: bool,
        /// In seconds.
        pub duration_seconds: Option<u64>,
    }
}

xdr_struct! {
    /// Changes when a policy changes (`change_policy4`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ChangePolicy {
        /// The major part.
        pub major: u64,
        /// The minor part.
        pub minor: u64,
    }
}

xdr_struct! {
    /// A security label (`sec_label4`, RFC 7862 12.2.4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SecLabel<'a> {
        /// The label format.
        pub format: u32,
        /// The policy.
        pub policy: u32,
        /// The label.
        pub label: &'a [u8],
    }
}

xdr_struct! {
    /// Which arguments OPEN understands (`open_arguments4`, RFC 9754).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OpenArguments {
        /// Values of the access: 1 read, 2 write, 3 both.
        pub share_access: Bitmap,
        /// Values of what is denied: 0 nothing, 1 read, 2 write, 3 both.
        pub share_deny: Bitmap,
        /// Wants: 3 any, 4 none, 5 cancel, 17 signal, 18 push, 20 delegated timestamps,
        /// 21 open or delegation.
        pub share_access_want: Bitmap,
        /// Claims, by the numbers of [`OpenClaim`](super::OpenClaim).
        pub open_claim: Bitmap,
        /// Ways to make a file: 0 unchecked, 1 guarded, 2 exclusive, 3 exclusive of 4.1.
        pub create_mode: Bitmap,
    }
}

xdr_struct! {
    /// A list of numbers, such as layout types.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Numbers32 {
        /// The numbers.
        pub numbers: Vec<u32> [max LIST_ITEMS_MAX],
    }
}
