//! The types of attributes that are not a plain number (RFC 8881 3.3 and 5, RFC 7862 12, RFC 8275,
//! RFC 9754).

use super::bitmap::Bitmap;
use super::codec::{xdr_enum, xdr_flags, xdr_struct};
use super::limits::*;
use super::types::Time;

xdr_flags! {
    /// The expiry of file handles (`fh_expire_type`, RFC 8881 5.8.1.3); empty means persistent.
    pub struct FhExpireType {
        /// They do not expire while the file is open.
        const NOEXPIRE_WITH_OPEN = 0x1;
        /// They may expire at any time.
        const VOLATILE_ANY = 0x2;
        /// They expire when the file system moves.
        const VOL_MIGRATION = 0x4;
        /// They expire when the object is renamed.
        const VOL_RENAME = 0x8;
    }

    /// The types of entries that a list can have (`aclsupport`, RFC 8881 6.2.1.2).
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

    /// The character set of names (`fs_charset_cap`, RFC 8881 14.4).
    pub struct CharsetCapability {
        /// Some names may not be UTF-8.
        const CONTAINS_NON_UTF8 = 0x1;
        /// Only UTF-8 is accepted.
        const ALLOWS_ONLY_UTF8 = 0x2;
    }
}

xdr_enum! {
    open
    /// The behaviour of the change attribute (`change_attr_type`, RFC 7862 12.2.3).
    pub enum ChangeAttrType {
        /// It increases.
        MonotonicIncrease = 0,
        /// It increases by one per change.
        VersionCounter = 1,
        /// It increases by one per change unless layouts are held.
        VersionCounterNoPnfs = 2,
        /// It is a time.
        TimeMetadata = 3,
        /// No property is guaranteed.
        Undefined = 4,
    }
}

xdr_struct! {
    /// Some bits of the mode (`mode_masked4`).
    #[derive(Copy)]
    pub struct ModeMasked {
        /// The values of the bits.
        pub value: u32,
        /// The bits that change.
        pub mask: u32,
    }

    /// The mode of a new object and the umask (`mode_umask4`, RFC 8275 4).
    #[derive(Copy)]
    pub struct ModeUmask {
        /// The mode without the umask.
        pub mode: u32,
        /// The umask, which a default list of the directory overrides.
        pub umask: u32,
    }

    /// The location of a replica of a file system (`fs_location4`).
    pub struct FsLocation<'a> {
        /// The servers that hold it.
        pub servers: Vec<&'a [u8]> [max LIST_ITEMS_MAX],
        /// The path on these servers.
        pub root_path: Vec<&'a [u8]> [max PATH_COMPONENTS_MAX],
    }

    /// The locations of a file system (`fs_locations4`).
    #[derive(Default)]
    pub struct FsLocations<'a> {
        /// The path of the file system on this server.
        pub root: Vec<&'a [u8]> [max PATH_COMPONENTS_MAX],
        /// Its other locations.
        pub locations: Vec<FsLocation<'a>> [max LIST_ITEMS_MAX],
    }

    /// One server of a replica (`fs_locations_server4`).
    #[derive(Copy)]
    pub struct FsLocationsServer<'a> {
        /// The age of its data, in seconds.
        pub currency: i32,
        /// Bytes that are defined by position.
        pub info: &'a [u8],
        /// The server.
        pub server: &'a [u8],
    }

    /// One replica (`fs_locations_item4`).
    pub struct FsLocationsItem<'a> {
        /// The servers that hold it.
        pub servers: Vec<FsLocationsServer<'a>> [max LIST_ITEMS_MAX],
        /// The path on these servers.
        pub root_path: Vec<&'a [u8]> [max PATH_COMPONENTS_MAX],
    }

    /// The locations of a file system in detail (`fs_locations_info4`).
    pub struct FsLocationsInfo<'a> {
        /// Flags.
        pub flags: u32,
        /// Seconds for which this information is valid.
        pub valid_for_seconds: i32,
        /// The path of the file system on this server.
        pub root: Vec<&'a [u8]> [max PATH_COMPONENTS_MAX],
        /// Its other locations.
        pub items: Vec<FsLocationsItem<'a>> [max LIST_ITEMS_MAX],
    }

    /// The status of a file system (`fs4_status`).
    #[derive(Copy)]
    pub struct FsStatus<'a> {
        /// True if the file system is absent now.
        pub absent: bool,
        /// 1 fixed, 2 updated, 3 versioned, 4 writable, 5 referral.
        pub kind: u32,
        /// The source of the file system.
        pub source: &'a [u8],
        /// The version of the file system.
        pub current: &'a [u8],
        /// The age of the file system, in seconds.
        pub age_seconds: i32,
        /// The time of the version.
        pub version: Time,
    }

    /// Opaque hints for one layout type (`threshold_item4`).
    #[derive(Copy)]
    pub struct ThresholdItem<'a> {
        /// The layout type.
        pub layout_type: u32,
        /// The hints that are present.
        pub hints: Bitmap,
        /// The values of the hints.
        pub values: &'a [u8],
    }

    /// The thresholds below which I/O should go through the metadata server (`mdsthreshold4`).
    pub struct Mdsthreshold<'a> {
        /// One item per layout type.
        pub items: Vec<ThresholdItem<'a>> [max LIST_ITEMS_MAX],
    }

    /// The retention of a file (`retention_get4`).
    #[derive(Copy)]
    pub struct RetentionGet {
        /// Duration in seconds; all ones means forever.
        pub duration_seconds: u64,
        /// The start of the retention, if it has begun.
        pub begin: Option<Time>,
    }

    /// A new retention of a file (`retention_set4`).
    #[derive(Copy)]
    pub struct RetentionSet {
        /// True to begin the retention.
        pub enable: bool,
        /// Duration in seconds.
        pub duration_seconds: Option<u64>,
    }

    /// Changes when a policy changes (`change_policy4`).
    #[derive(Copy)]
    pub struct ChangePolicy {
        /// The major part.
        pub major: u64,
        /// The minor part.
        pub minor: u64,
    }

    /// A security label (`sec_label4`, RFC 7862 12.2.4).
    #[derive(Copy)]
    pub struct SecLabel<'a> {
        /// The label format.
        pub format: u32,
        /// The policy.
        pub policy: u32,
        /// The label.
        pub label: &'a [u8],
    }

    /// The arguments that OPEN supports (`open_arguments4`, RFC 9754).
    #[derive(Copy)]
    pub struct OpenArguments {
        /// Values of the access: 1 read, 2 write, 3 both.
        pub share_access: Bitmap,
        /// Values of denied access: 0 none, 1 read, 2 write, 3 both.
        pub share_deny: Bitmap,
        /// Wants: 3 any, 4 none, 5 cancel, 17 signal, 18 push, 20 delegated timestamps,
        /// 21 open or delegation.
        pub share_access_want: Bitmap,
        /// Claims, by the numbers of [`OpenClaim`](super::OpenClaim).
        pub open_claim: Bitmap,
        /// Create modes: 0 unchecked, 1 guarded, 2 exclusive, 3 exclusive of 4.1.
        pub create_mode: Bitmap,
    }

    /// A list of numbers, such as layout types.
    #[derive(Default)]
    pub struct Numbers32 {
        /// The numbers.
        pub numbers: Vec<u32> [max LIST_ITEMS_MAX],
    }
}
