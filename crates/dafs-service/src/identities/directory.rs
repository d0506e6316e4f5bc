//! The database of users of this host (`getent passwd`, `getent group`).

use nix::unistd::{Uid, User, getgrouplist};
use std::ffi::CString;
use std::fmt::Debug;
use std::io;

/// A user of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalUser {
    /// The user's number.
    pub uid: u32,
    /// Its primary group.
    pub gid: u32,
    /// All its groups.
    pub groups: Vec<u32>,
}

/// A database of users. Its calls may block.
pub trait Directory: Debug + Send + Sync {
    /// Looks a user up by name. `None` if there is no such user. The C library names no groups of a
    /// source that fails, and reports only failures of the lookup of the user.
    ///
    /// # Errors
    /// When the database, or a service behind it, fails.
    fn user(&self, name: &str) -> io::Result<Option<LocalUser>>;
}

/// The database that the C library of this host asks (nsswitch.conf).
#[derive(Debug, Default)]
pub struct LocalDirectory;

impl Directory for LocalDirectory {
    fn user(&self, name: &str) -> io::Result<Option<LocalUser>> {
        let Some(user) = User::from_name(name)? else { return Ok(None) };
        let name = CString::new(user.name)?;
        let groups = getgrouplist(&name, user.gid)?;
        let groups = groups.into_iter().map(nix::unistd::Gid::as_raw).collect();
        Ok(Some(LocalUser { uid: Uid::as_raw(user.uid), gid: user.gid.as_raw(), groups }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_a_stranger_is_not() {
        let root = LocalDirectory.user("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(LocalDirectory.user("no such user").unwrap(), None);
        assert_eq!(LocalDirectory.user("root\0").unwrap(), None);
    }
}
