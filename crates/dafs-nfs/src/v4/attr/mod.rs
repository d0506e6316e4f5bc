//! Attributes of objects (RFC 8881 5, RFC 7862 12, RFC 8275, RFC 8276, RFC 9754).
//!
//! Invariants
//! * What `supported_attrs` names can be had or set; what can be neither had nor set is not named.
//! * An attribute's value is the same bytes in GETATTR, READDIR and VERIFY.

pub(crate) mod acl;
pub(crate) mod get;
pub(crate) mod owner;
pub(crate) mod set;

use dafs_store::{AclSupport, Attr as ObjectAttr, Capabilities};
use dafs_wire::nfs4::{Attr, Bitmap};

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
    // Belongs to minor version 2 (RFC 9754), but holds for both, and clients of both look for it.
    Attr::OpenArguments,
]);

/// What minor version 2 and its extensions add.
const MINOR_2: Bitmap =
    Attr::set(&[Attr::CloneBlksize, Attr::ChangeAttrType, Attr::ModeUmask, Attr::XattrSupport]);

/// What objects have on file systems whose files are spread over data servers (RFC 8881 5.12).
const OF_LAYOUTS: Bitmap = Attr::set(&[Attr::FsLayoutTypes, Attr::LayoutTypes]);

/// The space and the limits of the file system, which are asked for in one call.
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

/// What SETATTR takes.
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

/// What an exclusive create takes: not the times, in which the store may keep the verifier.
pub(crate) const EXCLUSIVE_CREATE: Bitmap =
    Attr::set(&[Attr::Mode, Attr::Owner, Attr::OwnerGroup, Attr::ModeUmask]);

/// Where an exclusive create may keep its verifier, so that the client sets them afterwards
/// (RFC 8881 18.16.4).
pub(crate) const VERIFIER_KEPT_IN: Bitmap = Attr::set(&[Attr::TimeAccessSet, Attr::TimeModifySet]);

/// The attributes that an object on a store of these capabilities has. `object` is left out where
/// it is not known yet.
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
    if capabilities.layout_unit_bytes != 0 {
        set.insert(Attr::LayoutBlksize);
    }
    if object.is_some_and(|object| object.btime.is_some()) {
        set.insert(Attr::TimeCreate);
    }
    set
}

/// What an exclusive create takes in this minor version.
pub(crate) fn exclusive_create(minor: u32) -> Bitmap {
    if minor >= 2 { EXCLUSIVE_CREATE } else { EXCLUSIVE_CREATE.without(Attr::ModeUmask.number()) }
}
