//! Attributes on their way from the client: what SETATTR, CREATE and OPEN are to set.

use super::get::MODE_BITS;
use super::{SETTABLE, acl, owner, supported};
use dafs_store::{Acl, Capabilities, SetAttr, SetTime, TimeSpec};
use dafs_wire::nfs4::{
    Attr, Bitmap, Fattr, ModeMasked, ModeUmask, SetAttributes, SetTime as WireTime, Status,
};

/// What is to be set, in terms of the service.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Change {
    /// What the store sets in one step.
    pub(crate) plain: SetAttr,
    /// The access control list, which is set after the mode (RFC 8881 6.4.1.3).
    pub(crate) acl: Option<Acl>,
    /// What is taken from the mode of a new object, unless its directory hands down rights
    /// (RFC 8275 4).
    pub(crate) umask: Option<u32>,
    /// Bits of the mode to set over those that the object has.
    pub(crate) mode_masked: Option<ModeMasked>,
    /// What the client named.
    pub(crate) mask: Bitmap,
}

/// What the attributes are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An object that is there.
    Existing,
    /// An object that is being made.
    New,
    /// A file that is being made exclusively.
    NewExclusive,
}

/// Reads what a client wants set.
///
/// # Errors
/// `AttrNotSupp` for what is not kept, `Inval` for what cannot be set or makes no sense, `BadOwner`,
/// `BadXdr`.
pub(crate) fn parse(
    fattr: &Fattr<'_>,
    minor: u32,
    capabilities: &Capabilities,
    purpose: Purpose,
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
    // The umask is for new objects, the mask for old ones (RFC 8275 4, RFC 8881 6.2.5).
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
            uid: set.owner.map(owner::parse).transpose()?,
            gid: set.owner_group.map(owner::parse).transpose()?,
            size: set.size,
            atime: set.time_access.map(time).transpose()?,
            mtime: set.time_modify.map(time).transpose()?,
        },
        acl: set.acl.as_ref().map(acl::decode).transpose()?,
        umask: set.mode_umask.map(|both| both.umask),
        mode_masked: set.mode_masked,
        mask: fattr.mask,
    })
}

impl Change {
    /// Takes the umask from the mode, where `inherits` says that the directory does not decide
    /// about the rights of new objects itself.
    ///
    /// # Errors
    /// Those of `inherits`, which is asked only when there is a umask.
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

/// The new mode of an object under `mode_set_masked`.
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
