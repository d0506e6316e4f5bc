//! Extended attributes of users, which are named attributes on the server.
//!
//! Invariants
//! * Only names of the space `user.` reach the server. The others mean something to a kernel, and what a
//!   server says about them must not be believed.

use crate::convert::errno;
use crate::kernel::{Errno, NodeId};
use crate::limits::{NAME_BYTES_MAX, XATTR_BYTES_MAX, XATTR_LIST_BYTES_MAX};
use crate::tree::{Outcome, Tree};
use dafs_client::{Create, Error, FileHandle, OpenOptions, Stability, Status};

const SPACE: &[u8] = b"user.";

/// What the server calls an attribute.
fn own_name(name: &[u8]) -> Outcome<&[u8]> {
    match name.strip_prefix(SPACE) {
        None => Err(Errno::EOPNOTSUPP),
        Some([]) => Err(Errno::EINVAL),
        Some(name) if name.len() > NAME_BYTES_MAX => Err(Errno::ERANGE),
        Some(name) => Ok(name),
    }
}

fn failed(error: &Error) -> Errno {
    match error.status() {
        Some(Status::NoEnt) => Errno::ENODATA,
        _ => errno(error),
    }
}

impl Tree {
    fn attribute_directory(&self, node: NodeId) -> Outcome<FileHandle> {
        self.client.attribute_directory(&self.handle(node)?).map_err(|error| failed(&error))
    }

    pub(crate) fn xattr(&self, node: NodeId, name: &[u8]) -> Outcome<Vec<u8>> {
        let name = own_name(name)?;
        let directory = self.attribute_directory(node)?;
        let failed = |error| failed(&error);
        let file = self.client.open_at(&directory, name, &OpenOptions::read()).map_err(failed)?;
        let mut value = vec![0; XATTR_BYTES_MAX + 1];
        let len = file.read_at(&mut value, 0).map_err(failed)?;
        if len > XATTR_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        value.truncate(len);
        Ok(value)
    }

    /// Sets one, as the flags `XATTR_CREATE` and `XATTR_REPLACE` say.
    pub(crate) fn set_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Outcome<()> {
        let name = own_name(name)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let create = match flags {
            libc::XATTR_CREATE => Create::New,
            libc::XATTR_REPLACE => Create::Never,
            _ => Create::IfMissing,
        };
        let directory = self.attribute_directory(node)?;
        let options = OpenOptions::write().create(create).truncate(create != Create::New);
        let failed = |error| failed(&error);
        let file = self.client.open_at(&directory, name, &options).map_err(failed)?;
        file.write_at(value, 0, Stability::FileSync).map_err(failed)?;
        file.close().map_err(failed)
    }

    pub(crate) fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Outcome<()> {
        let name = own_name(name)?;
        let directory = self.attribute_directory(node)?;
        self.client.remove(&directory, name).map_err(|error| failed(&error))
    }

    /// The names, each with a zero byte behind it.
    pub(crate) fn xattr_names(&self, node: NodeId) -> Outcome<Vec<u8>> {
        let directory = match self.attribute_directory(node) {
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => return Ok(Vec::new()),
            other => other?,
        };
        let mut names = Vec::new();
        for entry in self.client.read_dir(&directory) {
            let name = entry.map_err(|error| errno(&error))?.name;
            names.extend_from_slice(SPACE);
            names.extend_from_slice(&name);
            names.push(0);
            if names.len() > XATTR_LIST_BYTES_MAX {
                return Err(Errno::E2BIG);
            }
        }
        Ok(names)
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
