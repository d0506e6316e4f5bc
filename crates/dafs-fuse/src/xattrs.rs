//! Extended attributes of users.
//!
//! Invariants
//! * Only names of the space `user.` reach the server. The others are interpreted by a kernel, so
//!   the server's values of them must not be trusted.

use crate::kernel::{Errno, NodeId};
use crate::limits::{NAME_BYTES_MAX, XATTR_BYTES_MAX, XATTR_LIST_BYTES_MAX};
use crate::tree::{Outcome, Tree};
use dafs_client::{Error, SetXattr, Status};

const SPACE: &[u8] = b"user.";

/// The server's name of an attribute.
fn own_name(name: &[u8]) -> Outcome<&[u8]> {
    match name.strip_prefix(SPACE) {
        None => Err(Errno::EOPNOTSUPP),
        Some([]) => Err(Errno::EINVAL),
        Some(name) if name.len() > NAME_BYTES_MAX => Err(Errno::ERANGE),
        Some(name) => Ok(name),
    }
}

fn failed(error: Error) -> Errno {
    match error.status() {
        Some(Status::NoEnt) => Errno::ENODATA,
        Some(Status::FBig) => Errno::E2BIG,
        _ => error.into(),
    }
}

impl Tree {
    pub(crate) fn xattr(&self, node: NodeId, name: &[u8]) -> Outcome<Vec<u8>> {
        let value = self.client.xattr(&self.handle(node)?, own_name(name)?);
        let value = value.map_err(failed)?;
        if value.len() > XATTR_BYTES_MAX { Err(Errno::E2BIG) } else { Ok(value) }
    }

    /// Sets an attribute, as the flags `XATTR_CREATE` and `XATTR_REPLACE` say.
    pub(crate) fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Outcome<()> {
        let own = own_name(name)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let how = match flags {
            0 => SetXattr::Either,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            // Both flags together can never succeed.
            _ => return self.xattr(node, name).and(Err(Errno::EEXIST)),
        };
        let set = self.client.set_xattr(&self.handle(node)?, own, value, how);
        set.map_err(failed)
    }

    pub(crate) fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Outcome<()> {
        let removed = self.client.remove_xattr(&self.handle(node)?, own_name(name)?);
        removed.map_err(failed)
    }

    /// The names, each with a zero byte behind it.
    pub(crate) fn xattr_names(&self, node: NodeId) -> Outcome<Vec<u8>> {
        let found = self.client.xattr_names(&self.handle(node)?)?;
        let names: Vec<u8> = found.iter().flat_map(|name| [SPACE, name, b"\0"].concat()).collect();
        if names.len() > XATTR_LIST_BYTES_MAX { Err(Errno::E2BIG) } else { Ok(names) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_users_reach_the_server() {
        assert_eq!(own_name(b"user.a"), Ok(&b"a"[..]));
        assert_eq!(own_name(b"user."), Err(Errno::EINVAL));
        for name in [&b"security.capability"[..], b"system.posix_acl_access", b"trusted.x", b"user"]
        {
            assert_eq!(own_name(name), Err(Errno::EOPNOTSUPP));
        }
    }
}
