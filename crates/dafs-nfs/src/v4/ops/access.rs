//! ACCESS (RFC 8881 18.1, RFC 8276 8.5).

use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpResult, without_perm};
use dafs_store::AccessMask;
use dafs_wire::nfs4::{Access, AccessArgs, AccessResult, Status};

/// Rights on extended attributes, with the right on the object that implies each. The kernel
/// requires the same rights for `user.` attributes.
const XATTR_RIGHTS: [(Access, AccessMask); 3] = [
    (Access::XATTR_READ, AccessMask::READ),
    (Access::XATTR_WRITE, AccessMask::MODIFY),
    (Access::XATTR_LIST, AccessMask::READ),
];

pub(crate) fn access(cx: &mut OpContext<'_>, args: &AccessArgs) -> OpResult {
    let handle = cx.current()?;
    let asked = args.access;
    if asked.has_unknown() {
        return Err(Status::Inval.into());
    }
    // The values of ACCESS are those of the store.
    let mut wanted = AccessMask::from_bits_truncate(asked.bits());
    for (xattr, right) in XATTR_RIGHTS {
        if asked.contains(xattr) {
            wanted |= right;
        }
    }
    let granted = cx.service().access(cx.caller()?, &handle, wanted).map_err(without_perm)?;
    let mut answer = Access::from_bits_retain(granted.bits()) & asked;
    for (xattr, right) in XATTR_RIGHTS {
        if asked.contains(xattr) && granted.contains(right) {
            answer |= xattr;
        }
    }
    cx.answer(&AccessResult { supported: asked, access: answer })
}
