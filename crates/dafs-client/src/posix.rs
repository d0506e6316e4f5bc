//! The server's answers in terms of POSIX, for front ends whose callers know files and no servers.

use crate::attributes::{Attributes, FileHandle, ObjectType, Owner, SetAttributes, Time};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::open::OpenOptions;
use dafs_wire::dafs::Status;
use std::ffi::c_int;

/// The number of an owner that the server names without a number.
pub const NOBODY: u32 = 65534;

/// The error number for callers that read EAGAIN in another way than "the server is busy": a server
/// that answers DELAY for longer than the deadline counts as unreachable.
pub fn errno(error: &Error) -> c_int {
    match error.status() {
        Some(Status::Resource) if error.to_errno() == libc::ENFILE => libc::ENFILE,
        Some(Status::Delay | Status::Grace | Status::Resource) => libc::ETIMEDOUT,
        _ => error.to_errno(),
    }
}

/// The bits of a mode that hold the object's type.
pub fn type_bits(kind: ObjectType) -> u32 {
    match kind {
        ObjectType::Directory | ObjectType::AttrDirectory => libc::S_IFDIR,
        ObjectType::BlockDevice => libc::S_IFBLK,
        ObjectType::CharDevice => libc::S_IFCHR,
        ObjectType::Symlink => libc::S_IFLNK,
        ObjectType::Socket => libc::S_IFSOCK,
        ObjectType::Fifo => libc::S_IFIFO,
        ObjectType::Regular | ObjectType::NamedAttr | ObjectType::Invalid => libc::S_IFREG,
    }
}

/// The mode, as `stat` returns it.
pub fn mode(of: &Attributes) -> u32 {
    type_bits(of.kind) | of.mode & 0o7777
}

/// The number of an owner or a group.
pub fn number(of: &Owner) -> u32 {
    of.id().unwrap_or(NOBODY)
}

/// The space that an object takes, in units of 512 bytes.
pub fn blocks(of: &Attributes) -> u64 {
    of.space_used.div_ceil(512)
}

/// The three times of an object. The time of the content replaces one that the server does not
/// keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of the attributes.
    pub changed: Time,
}

impl Times {
    /// The times of an object.
    pub fn of(attributes: &Attributes) -> Self {
        Self::from_kept(attributes.accessed, attributes.modified, attributes.changed)
    }

    fn from_kept(accessed: Option<Time>, modified: Option<Time>, changed: Option<Time>) -> Self {
        let or_modified = |time: Option<Time>| time.or(modified).unwrap_or_default();
        Self {
            accessed: or_modified(accessed),
            modified: or_modified(None),
            changed: or_modified(changed),
        }
    }
}

/// Does `chown` with neither owner nor group: it still clears setuid and setgid, and updates the
/// time of change. Where there is nothing to clear, it does not fail for lack of ownership.
///
/// # Errors
/// The server's answer.
pub fn chown_to_same(client: &Client, object: &FileHandle) -> Result<()> {
    let now = client.attributes(object)?;
    let again = SetAttributes { group: now.group.id(), ..SetAttributes::default() };
    if again.is_empty() {
        return Ok(());
    }
    match client.set_attributes(object, &again) {
        Err(error) if error.status() == Some(Status::Perm) && now.mode & 0o6000 == 0 => Ok(()),
        done => done,
    }
}

/// The options for the access mode in `flags`; other flags are ignored.
pub fn open_options(flags: c_int) -> OpenOptions {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => OpenOptions::read(),
        libc::O_WRONLY => OpenOptions::write(),
        _ => OpenOptions::read_write(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::dafs::Procedure;

    #[test]
    fn a_server_that_puts_things_off_is_none_to_try_again() {
        let of = |status| errno(&Error::Status { procedure: Procedure::Open, status });
        assert_eq!(of(Status::Grace), libc::ETIMEDOUT);
        assert_eq!(of(Status::Resource), libc::ENFILE, "too many open files");
        assert_eq!(of(Status::Locked), libc::EAGAIN);
        assert_eq!(of(Status::NoEnt), libc::ENOENT);
    }

    #[test]
    fn a_time_that_is_not_kept_is_that_of_the_content() {
        let at = |seconds| Some(Time { seconds, nseconds: 0 });
        let seconds =
            |times: Times| [times.accessed, times.modified, times.changed].map(|time| time.seconds);
        assert_eq!(seconds(Times::from_kept(at(1), at(2), at(3))), [1, 2, 3]);
        assert_eq!(seconds(Times::from_kept(None, at(2), None)), [2, 2, 2]);
        assert_eq!(seconds(Times::from_kept(None, None, at(3))), [0, 0, 3]);
    }
}
