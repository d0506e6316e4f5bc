//! Decodes attributes from the client, for SETATTR, CREATE and OPEN.

use super::get::MODE_BITS;
use super::owner::Names;
use super::{SETTABLE, acl, supported};
use dafs_service::OwnerKind;
use dafs_store::{Acl, Capabilities, SetAttr, SetTime, TimeSpec};
use dafs_wire::nfs4::{
    Attr, Bitmap, Fattr, ModeMasked, ModeUmask, SetAttributes, SetTime as WireTime, Status,
};

/// The attributes to set, in terms of the service.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Change {
    /// The attributes that the store sets in one step.
    pub(crate) plain: SetAttr,
    /// The access control list, which is set after the mode (RFC 8881 6.4.1.3).
    pub(crate) acl: Option<Acl>,
    /// The umask, applied to the mode of a new object unless it inherits rights from its directory
    /// (RFC 8275 4).
    pub(crate) umask: Option<u32>,
    /// Bits of the mode to set over those of the object.
    pub(crate) mode_masked: Option<ModeMasked>,
    /// The attributes that the client named.
    pub(crate) mask: Bitmap,
}

/// The purpose of the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An existing object.
    Existing,
    /// An object that is being made.
    New,
    /// A file that is being made exclusively.
    NewExclusive,
}

/// Decodes the attributes that a client sets.
///
/// # Errors
/// `AttrNotSupp` for attributes that are not stored. `Inval` for those that cannot be set, or make
/// no sense. `BadOwner`, `BadXdr`, `Delay`.
pub(crate) fn parse(
    fattr: &Fattr<'_>,
    minor: u32,
    capabilities: &Capabilities,
    purpose: Purpose,
    names: &Names<'_>,
) -> Result<Change, Status> {
    let known = supported(minor, capabilities, None);
    if purpose == Purpose::NewExclusive
        && !fattr.mask.is_subset_of(super::exclusive_create(minor))
        && fattr.mask.is_subset_of(known)
    {
        return Err(Status::Inval);
    }
    let set = SetAttributes::decode(fattr, known).map_err(|error| error.status())?;
    debug_assert!(fattr.mask.is_subset_of(SETTABLE), "what is not settable was refused");
    let one = |attr: Attr| u32::from(fattr.mask.contains(attr));
    if one(Attr::Mode) + one(Attr::ModeUmask) + one(Attr::ModeSetMasked) > 1 {
        return Err(Status::Inval);
    }
    // The umask is for new objects, the mask for existing ones (RFC 8275 4, RFC 8881 6.2.5).
    let mode = match (set.mode, set.mode_umask, set.mode_masked, purpose) {
        (Some(mode), None, None, _) => Some(checked(mode)?),
        (None, Some(ModeUmask { mode, umask }), None, Purpose::New | Purpose::NewExclusive) => {
            checked(umask)?;
            Some(checked(mode)?)
        }
        (None, None, Some(masked), Purpose::Existing) => {
            checked(masked.mask | masked.value)?;
            if masked.value & !masked.mask != 0 {
                return Err(Status::Inval);
            }
            None
        }
        (None, None, None, _) => None,
        _ => return Err(Status::Inval),
    };
    Ok(Change {
        plain: SetAttr {
            mode,
            uid: set.owner.map(|text| names.parse(OwnerKind::User, text)).transpose()?,
            gid: set.owner_group.map(|text| names.parse(OwnerKind::Group, text)).transpose()?,
            size: set.size,
            atime: set.time_access.map(time).transpose()?,
            mtime: set.time_modify.map(time).transpose()?,
        },
        acl: set.acl.as_ref().map(|acl| acl::decode(acl, names)).transpose()?,
        umask: set.mode_umask.map(|both| both.umask),
        mode_masked: set.mode_masked,
        mask: fattr.mask,
    })
}

impl Change {
    /// Applies the umask to the mode, unless `inherits` returns true: then the directory decides
    /// about the rights of new objects.
    ///
    /// # Errors
    /// Those of `inherits`, which is called only when there is a umask.
    pub(crate) fn settle_umask<E>(
        &mut self,
        inherits: impl FnOnce() -> Result<bool, E>,
    ) -> Result<(), E> {
        if let (Some(umask), Some(mode)) = (self.umask, self.plain.mode)
            && umask & mode != 0
            && !inherits()?
        {
            self.plain.mode = Some(mode & !umask);
        }
        Ok(())
    }
}

/// Returns the new mode of an object under `mode_set_masked`.
pub(crate) fn masked(mode: u32, change: ModeMasked) -> u32 {
    mode & MODE_BITS & !change.mask | change.value
}

fn checked(mode: u32) -> Result<u32, Status> {
    if mode & !MODE_BITS == 0 { Ok(mode) } else { Err(Status::Inval) }
}

fn time(time: WireTime) -> Result<SetTime, Status> {
    match time {
        WireTime::Server => Ok(SetTime::Now),
        WireTime::Client(time) if time.nanoseconds >= 1_000_000_000 => Err(Status::Inval),
        WireTime::Client(time) => {
            Ok(SetTime::To(TimeSpec { seconds: time.seconds, nanoseconds: time.nanoseconds }))
        }
    }
}
