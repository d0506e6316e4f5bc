//! Encodes attributes for the client.

use super::owner::Names;
use super::{OF_FILE_SYSTEM, OF_QUOTA, acl, exclusive_create, layout_type, supported};
use crate::limits::TRANSFER_BYTES_MAX;
use crate::wire_handle;
use dafs_service::{Caller, FsLimits, Handle, OwnerKind, Service, ServiceError};
use dafs_store::{Acl, AclSupport, Attr as ObjectAttr, Capabilities, Kind, Quota, TimeSpec};
use dafs_wire::nfs4::{
    self, Attr, Bitmap, ChangeAttrType, CharsetCapability, DeviceNumbers, FhExpireType, FileType,
    FsLocations, Fsid, Numbers32, OpenArguments, ShareAccess, Status, Time, encode_fattr,
};
use dafs_wire::xdr::Encoder;
use std::time::Duration;

/// An object whose attributes are encoded.
pub(crate) struct Object<'a> {
    /// The source of further attributes.
    pub(crate) service: &'a Service,
    /// The caller.
    pub(crate) caller: Caller<'a>,
    /// The minor version of the compound.
    pub(crate) minor: u32,
    /// The names of owners. Those that are not known are written as numbers and noted there.
    pub(crate) names: &'a Names<'a>,
    /// The object.
    pub(crate) handle: Handle,
    /// Its attributes in the store.
    pub(crate) attr: ObjectAttr,
    /// The file id of the directory that it covers, if it is the root of an export (RFC 8881
    /// 5.8.2.23).
    pub(crate) mounted_on_file_id: Option<u64>,
}

/// Values besides the object's own attributes, fetched only when requested.
struct Extra {
    capabilities: Capabilities,
    limits: Option<FsLimits>,
    quota: Option<Quota>,
    acl: Option<Acl>,
    has_named_attrs: bool,
    lease: Duration,
}

/// Attributes that a store returns with a name, without further calls.
const PLAIN: Bitmap = Attr::set(&[
    Attr::Type,
    Attr::Change,
    Attr::Size,
    Attr::Fsid,
    Attr::RdattrError,
    Attr::Filehandle,
    Attr::Fileid,
    Attr::Mode,
    Attr::Numlinks,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::Rawdev,
    Attr::SpaceUsed,
    Attr::TimeAccess,
    Attr::TimeMetadata,
    Attr::TimeModify,
    Attr::MountedOnFileid,
]);

/// Writes those of the requested attributes that the object has.
///
/// # Errors
/// Those of a read of the attributes. Then no attribute is written.
pub(crate) fn encode(
    e: &mut Encoder<'_>,
    object: &Object<'_>,
    request: Bitmap,
) -> Result<(), ServiceError> {
    if request.is_subset_of(PLAIN) {
        encode_fattr(e, request, |attr, e| plain(attr, e, object));
        return Ok(());
    }
    let extra = Extra::fetch(object, request)?;
    let all = supported(object.minor, &extra.capabilities, Some(&object.attr));
    // An attribute that can only be set is left out. The operation that reads it is refused
    // elsewhere.
    let mask = request.and(all).and(Attr::GETTABLE);
    encode_fattr(e, mask, |attr, e| {
        if PLAIN.contains(attr.number()) {
            plain(attr, e, object)
        } else {
            further(attr, e, object, &extra)
        }
    });
    Ok(())
}

/// Writes only the attribute with the reason why there are no others.
pub(crate) fn encode_error(e: &mut Encoder<'_>, status: Status) {
    encode_fattr(e, Attr::set(&[Attr::RdattrError]), |_, e| e.value(&status));
}

/// Writes the attributes of a directory entry that need no access to its object.
pub(crate) fn encode_entry(e: &mut Encoder<'_>, request: Bitmap, mounted_on_file_id: u64) {
    encode_fattr(e, request, |attr, e| match attr {
        Attr::RdattrError => e.value(&Status::Ok),
        Attr::MountedOnFileid => e.u64(mounted_on_file_id),
        other => debug_assert!(false, "{other} needs a look at the object"),
    });
}

impl Extra {
    fn fetch(object: &Object<'_>, request: Bitmap) -> Result<Self, ServiceError> {
        let Object { service, caller, handle, .. } = object;
        let capabilities = service.capabilities(handle)?;
        let wants = |attr: Attr| request.contains(attr);
        let limits = if request.and(OF_FILE_SYSTEM.or(OF_QUOTA)).is_empty() {
            None
        } else {
            Some(service.fs_limits(*caller, handle)?)
        };
        let quota =
            if request.and(OF_QUOTA).is_empty() { None } else { service.quota(*caller, handle)? };
        let acl = if wants(Attr::Acl) && capabilities.acls != AclSupport::Mode {
            Some(service.acl(handle)?)
        } else {
            None
        };
        let has_named_attrs = wants(Attr::NamedAttr)
            && capabilities.xattrs
            && service.list_xattrs(*caller, handle).is_ok_and(|names| !names.is_empty());
        let lease = service.config().lease_time;
        Ok(Self { capabilities, limits, quota, acl, has_named_attrs, lease })
    }
}

/// Writes one of [`PLAIN`].
fn plain(attr: Attr, e: &mut Encoder<'_>, object: &Object<'_>) {
    let of = &object.attr;
    match attr {
        Attr::Type => e.value(&file_type(of.kind)),
        Attr::Change => e.u64(of.change),
        Attr::Size => e.u64(of.size),
        Attr::Fsid => e.value(&fsid(&object.handle)),
        Attr::RdattrError => e.value(&Status::Ok),
        Attr::Filehandle => e.opaque(&wire_handle::encode(&object.handle)),
        Attr::Fileid => e.u64(of.file_id),
        Attr::Mode => e.u32(of.mode & MODE_BITS),
        Attr::Numlinks => e.u32(of.links),
        Attr::Owner => e.opaque(object.names.text(OwnerKind::User, of.uid).as_bytes()),
        Attr::OwnerGroup => e.opaque(object.names.text(OwnerKind::Group, of.gid).as_bytes()),
        Attr::Rawdev => {
            let (major, minor) = of.raw_device;
            e.value(&DeviceNumbers { major, minor });
        }
        Attr::SpaceUsed => e.u64(of.space_used),
        Attr::TimeAccess => e.value(&time(of.atime)),
        Attr::TimeMetadata => e.value(&time(of.ctime)),
        Attr::TimeModify => e.value(&time(of.mtime)),
        Attr::MountedOnFileid => e.u64(object.mounted_on_file_id.unwrap_or(of.file_id)),
        other => debug_assert!(false, "{other} is not plain"),
    }
}

/// Writes one of the others.
fn further(attr: Attr, e: &mut Encoder<'_>, object: &Object<'_>, extra: &Extra) {
    let capabilities = &extra.capabilities;
    match attr {
        Attr::SupportedAttrs => {
            e.value(&supported(object.minor, capabilities, Some(&object.attr)));
        }
        Attr::FhExpireType => e.value(&FhExpireType::empty()),
        Attr::LinkSupport
        | Attr::SymlinkSupport
        | Attr::UniqueHandles
        | Attr::Cansettime
        | Attr::CasePreserving
        | Attr::ChownRestricted
        | Attr::Homogeneous
        | Attr::NoTrunc => e.bool(true),
        Attr::CaseInsensitive => e.bool(false),
        Attr::NamedAttr => e.bool(extra.has_named_attrs),
        Attr::LeaseTime => e.u32(extra.lease.as_secs().try_into().unwrap_or(u32::MAX)),
        Attr::Acl => acl::encode(e, extra.acl.as_ref(), object.names),
        Attr::Aclsupport => e.value(&match capabilities.acls {
            AclSupport::Mode => nfs4::AclSupport::empty(),
            AclSupport::Posix => nfs4::AclSupport::ALLOW | nfs4::AclSupport::DENY,
        }),
        Attr::FsLocations => e.value(&FsLocations::default()),
        Attr::Maxread | Attr::Maxwrite => e.u64(TRANSFER_BYTES_MAX.into()),
        Attr::TimeCreate => e.value(&object.attr.btime.map(time).unwrap_or_default()),
        Attr::TimeDelta => e.value(&Time { seconds: 0, nanoseconds: 1 }),
        Attr::SuppattrExclcreat => e.value(&exclusive_create(object.minor)),
        // Names are bytes. See the rules for names.
        Attr::FsCharsetCap => e.value(&CharsetCapability::CONTAINS_NON_UTF8),
        Attr::CloneBlksize => e.u32(capabilities.clone_block_bytes),
        // Stores promise only that it differs after a change.
        Attr::ChangeAttrType => e.value(&ChangeAttrType::Undefined),
        Attr::XattrSupport => e.bool(capabilities.xattrs),
        Attr::OpenArguments => e.value(&OPEN_ARGUMENTS),
        Attr::FsLayoutTypes => e.value(&layout_types(capabilities)),
        // Directories have none.
        Attr::LayoutTypes if object.attr.kind == Kind::Regular => {
            e.value(&layout_types(capabilities));
        }
        Attr::LayoutTypes => e.value(&Numbers32::default()),
        Attr::LayoutBlksize => e.u32(capabilities.layout_unit_bytes),
        other => of_file_system(other, e, extra),
    }
}

fn layout_types(capabilities: &Capabilities) -> Numbers32 {
    Numbers32 { numbers: capabilities.layouts.map(layout_type).into_iter().collect() }
}

/// Writes one of [`OF_FILE_SYSTEM`] or [`OF_QUOTA`].
fn of_file_system(attr: Attr, e: &mut Encoder<'_>, extra: &Extra) {
    let Some(FsLimits { stat, .. }) = &extra.limits else {
        debug_assert!(false, "{attr} is supported but not known here");
        return;
    };
    let quota = extra.quota.unwrap_or_default();
    // A limit above the free space does not matter.
    let left = |limit: Option<u64>| {
        limit.map_or(u64::MAX, |limit| limit.saturating_sub(quota.used)).min(stat.space_available)
    };
    match attr {
        Attr::QuotaAvailHard => e.u64(left(quota.hard)),
        Attr::QuotaAvailSoft => e.u64(left(quota.soft.or(quota.hard))),
        Attr::QuotaUsed => e.u64(quota.used),
        Attr::FilesAvail => e.u64(stat.files_available),
        Attr::FilesFree => e.u64(stat.files_free),
        Attr::FilesTotal => e.u64(stat.files_total),
        Attr::Maxfilesize => e.u64(stat.file_bytes_max),
        Attr::Maxlink => e.u32(stat.links_max),
        Attr::Maxname => e.u32(stat.name_bytes_max),
        Attr::SpaceAvail => e.u64(stat.space_available),
        Attr::SpaceFree => e.u64(stat.space_free),
        Attr::SpaceTotal => e.u64(stat.space_total),
        other => debug_assert!(false, "{other} is supported but not known here"),
    }
}

/// The permission bits of a mode (RFC 8881 6.2.4).
pub(crate) const MODE_BITS: u32 = 0o7777;

/// The arguments of OPEN that this server supports. It grants no delegations with time attributes.
const OPEN_ARGUMENTS: OpenArguments = OpenArguments {
    share_access: Bitmap::of(&[ShareAccess::READ, ShareAccess::WRITE, ShareAccess::BOTH]),
    share_deny: Bitmap::of(&[nfs4::DENY_NONE, nfs4::DENY_READ, nfs4::DENY_WRITE, nfs4::DENY_BOTH]),
    share_access_want: Bitmap::of(&[3, 4, 5, 21]),
    open_claim: Bitmap::of(&[0, 1, 2, 4, 5]),
    create_mode: Bitmap::of(&[0, 1, 2, 3]),
};

/// Returns the type of an object.
fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Regular => FileType::Regular,
        Kind::Directory => FileType::Directory,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::Symlink => FileType::Symlink,
        Kind::Socket => FileType::Socket,
        Kind::Fifo => FileType::Fifo,
        Kind::AttrDirectory => FileType::AttributeDirectory,
        Kind::NamedAttr => FileType::NamedAttribute,
    }
}

/// Returns the file system id: each export is a file system of its own.
pub(crate) fn fsid(handle: &Handle) -> Fsid {
    let [a, b, c, d, e, f, g, h, rest @ ..] = handle.fs.0;
    Fsid { major: u64::from_be_bytes([a, b, c, d, e, f, g, h]), minor: u64::from_be_bytes(rest) }
}

fn time(time: TimeSpec) -> Time {
    Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}
