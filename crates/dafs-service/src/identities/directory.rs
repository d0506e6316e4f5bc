//! The database of users of this host (`getent passwd`, `getent group`).

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
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

    /// Returns the number of a user, without its groups.
    ///
    /// # Errors
    /// As for [`user`](Self::user).
    fn uid(&self, name: &str) -> io::Result<Option<u32>>;

    /// Returns the number of a group.
    ///
    /// # Errors
    /// As for [`user`](Self::user).
    fn gid(&self, name: &str) -> io::Result<Option<u32>>;

    /// Returns the name of a user.
    ///
    /// # Errors
    /// As for [`user`](Self::user).
    fn user_name(&self, uid: u32) -> io::Result<Option<String>>;

    /// Returns the name of a group.
    ///
    /// # Errors
    /// As for [`user`](Self::user).
    fn group_name(&self, gid: u32) -> io::Result<Option<String>>;
}

/// The database that the C library of this host asks (nsswitch.conf).
#[derive(Debug, Default)]
pub struct LocalDirectory;

impl Directory for LocalDirectory {
    fn user(&self, name: &str) -> io::Result<Option<LocalUser>> {
        let Some(user) = User::from_name(name)? else { return Ok(None) };
        let name = CString::new(user.name)?;
        let groups = getgrouplist(&name, user.gid)?;
        let groups = groups.into_iter().map(Gid::as_raw).collect();
        Ok(Some(LocalUser { uid: Uid::as_raw(user.uid), gid: user.gid.as_raw(), groups }))
    }

    fn uid(&self, name: &str) -> io::Result<Option<u32>> {
        Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
    }

    fn gid(&self, name: &str) -> io::Result<Option<u32>> {
        Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
    }

    fn user_name(&self, uid: u32) -> io::Result<Option<String>> {
        Ok(User::from_uid(Uid::from_raw(uid))?.map(|user| user.name))
    }

    fn group_name(&self, gid: u32) -> io::Result<Option<String>> {
        Ok(Group::from_gid(Gid::from_raw(gid))?.map(|group| group.name))
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
        assert_eq!(LocalDirectory.uid("root").unwrap(), Some(0));
        assert_eq!(LocalDirectory.gid("root").unwrap(), Some(0));
        assert_eq!(LocalDirectory.user_name(0).unwrap().as_deref(), Some("root"));
        assert_eq!(LocalDirectory.group_name(0).unwrap().as_deref(), Some("root"));
        for name in ["no such user", "root\0"] {
            assert_eq!(LocalDirectory.uid(name).unwrap(), None);
            assert_eq!(LocalDirectory.gid(name).unwrap(), None);
        }
        assert_eq!(LocalDirectory.user_name(4_000_000_001).unwrap(), None);
        assert_eq!(LocalDirectory.group_name(4_000_000_001).unwrap(), None);
    }
}
