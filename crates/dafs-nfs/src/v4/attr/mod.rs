//! Attributes of objects (RFC 8881 5, RFC 7862 12, RFC 8275, RFC 8276, RFC 9754).
//!
//! Invariants
//! * Each attribute in `supported_attrs` can be read or set. No other can be read or set.
//! * An attribute's value has the same bytes in GETATTR, READDIR and VERIFY.

pub(crate) mod acl;
pub(crate) mod get;
pub(crate) mod owner;
pub(crate) mod set;

use dafs_store::{AclSupport, Attr as ObjectAttr, Capabilities, LayoutForm};
use dafs_wire::nfs4::{Attr, Bitmap, LAYOUT_FILES, LAYOUT_FLEX_FILES};

/// Attributes that every object has in both minor versions.
const BASE: Bitmap = Attr::set(&[
    Attr::SupportedAttrs,
    Attr::Type,
    Attr::FhExpireType,
    Attr::Change,
    Attr::Size,
    Attr::LinkSupport,
    Attr::SymlinkSupport,
    Attr::NamedAttr,
    Attr::Fsid,
    Attr::UniqueHandles,
    Attr::LeaseTime,
    Attr::RdattrError,
    Attr::Aclsupport,
    Attr::Cansettime,
    Attr::CaseInsensitive,
    Attr::CasePreserving,
    Attr::ChownRestricted,
    Attr::Filehandle,
    Attr::Fileid,
    Attr::FilesAvail,
    Attr::FilesFree,
    Attr::FilesTotal,
    Attr::FsLocations,
    Attr::Homogeneous,
    Attr::Maxfilesize,
    Attr::Maxlink,
    Attr::Maxname,
    Attr::Maxread,
    Attr::Maxwrite,
    Attr::Mode,
    Attr::NoTrunc,
    Attr::Numlinks,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::Rawdev,
    Attr::SpaceAvail,
    Attr::SpaceFree,
    Attr::SpaceTotal,
    Attr::SpaceUsed,
    Attr::TimeAccess,
    Attr::TimeAccessSet,
    Attr::TimeDelta,
    Attr::TimeMetadata,
    Attr::TimeModify,
    Attr::TimeModifySet,
    Attr::MountedOnFileid,
    Attr::ModeSetMasked,
    Attr::SuppattrExclcreat,
    Attr::FsCharsetCap,
    // It belongs to minor version 2 (RFC 9754), but is valid in both, and clients of both request
    // it.
    Attr::OpenArguments,
]);

/// Attributes of minor version 2 and its extensions.
const MINOR_2: Bitmap =
    Attr::set(&[Attr::CloneBlksize, Attr::ChangeAttrType, Attr::ModeUmask, Attr::XattrSupport]);

/// Attributes of objects on file systems with data servers (RFC 8881 5.12).
const OF_LAYOUTS: Bitmap = Attr::set(&[Attr::FsLayoutTypes, Attr::LayoutTypes]);

/// The space and the limits of the file system, which come from one call.
const OF_FILE_SYSTEM: Bitmap = Attr::set(&[
    Attr::FilesAvail,
    Attr::FilesFree,
    Attr::FilesTotal,
    Attr::Maxfilesize,
    Attr::Maxlink,
    Attr::Maxname,
    Attr::SpaceAvail,
    Attr::SpaceFree,
    Attr::SpaceTotal,
]);

/// The quota of the caller (RFC 8881 5.8.2.28 to 5.8.2.30).
const OF_QUOTA: Bitmap = Attr::set(&[Attr::QuotaAvailHard, Attr::QuotaAvailSoft, Attr::QuotaUsed]);

/// Attributes that SETATTR accepts.
const SETTABLE: Bitmap = Attr::set(&[
    Attr::Size,
    Attr::Acl,
    Attr::Mode,
    Attr::Owner,
    Attr::OwnerGroup,
    Attr::TimeAccessSet,
    Attr::TimeModifySet,
    Attr::ModeSetMasked,
    Attr::ModeUmask,
]);

/// Attributes that an exclusive create accepts. The times are left out, because the store may keep
/// the verifier in them.
pub(crate) const EXCLUSIVE_CREATE: Bitmap =
    Attr::set(&[Attr::Mode, Attr::Owner, Attr::OwnerGroup, Attr::ModeUmask]);

/// Attributes in which an exclusive create may keep its verifier, so that the client sets them
/// afterwards (RFC 8881 18.16.4).
pub(crate) const VERIFIER_KEPT_IN: Bitmap = Attr::set(&[Attr::TimeAccessSet, Attr::TimeModifySet]);

/// Returns the attributes that an object on a store of these capabilities has. `object` is `None`
/// where it is not known yet.
pub(crate) fn supported(
    minor: u32,
    capabilities: &Capabilities,
    object: Option<&ObjectAttr>,
) -> Bitmap {
    let mut set = if minor >= 2 { BASE.or(MINOR_2) } else { BASE };
    if capabilities.acls != AclSupport::Mode {
        set.insert(Attr::Acl);
    }
    if capabilities.layouts.is_some() {
        set = set.or(OF_LAYOUTS);
    }
    if capabilities.quotas {
        set = set.or(OF_QUOTA);
    }
    if capabilities.layout_unit_bytes != 0 {
        set.insert(Attr::LayoutBlksize);
    }
    if object.is_some_and(|object| object.btime.is_some()) {
        set.insert(Attr::TimeCreate);
    }
    set
}

/// Returns the attributes that an exclusive create accepts in this minor version.
pub(crate) fn exclusive_create(minor: u32) -> Bitmap {
    if minor >= 2 { EXCLUSIVE_CREATE } else { EXCLUSIVE_CREATE.without(Attr::ModeUmask.number()) }
}

/// Returns the layout type of a form.
pub(in crate::v4) fn layout_type(form: LayoutForm) -> u32 {
    match form {
        LayoutForm::Stripes => LAYOUT_FILES,
        LayoutForm::Copies => LAYOUT_FLEX_FILES,
    }
}
