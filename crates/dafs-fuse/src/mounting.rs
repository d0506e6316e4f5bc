//! Mounting and unmounting.
//!
//! Invariants
//! * A mount point is left by what is asked of the kernel alone, never by what a server answers: it
//!   always works, also when the process that served it is gone.

use crate::limits::{BELIEF_DEFAULT, THREADS_DEFAULT, THREADS_MAX};
use crate::serve::Server;
use crate::tree::Tree;
use dafs_client::{Client, FileHandle};
use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use thiserror::Error;

/// The types of these mounts, as the kernel lists them: mounted by root, and by the helper for users.
const FILE_SYSTEM_TYPES: [&[u8]; 2] = [b"fuse", b"fuse.dafs"];

/// How their sources begin.
const SOURCE_START: &[u8] = b"dafs://";

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The name of what is mounted, as lists of mounts show it: a URL.
    pub source: String,
    /// Whether other users than the one who mounts may use it.
    pub allow_other: bool,
    /// Whether nothing may be changed.
    pub read_only: bool,
    /// How long the kernel believes attributes and names before it asks again.
    pub belief: Duration,
    /// Threads that carry out requests.
    pub threads: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "dafs://".to_owned(),
            allow_other: false,
            read_only: false,
            belief: BELIEF_DEFAULT,
            threads: THREADS_DEFAULT,
        }
    }
}

/// Why something could not be mounted or unmounted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel has no FUSE, or does not let this user have it.
    #[error("cannot open /dev/fuse: {0}; load the kernel's fuse module, or ask for access to it")]
    Device(io::Error),
    /// The kernel refused.
    #[error("cannot mount on {}: {error}", directory.display())]
    Mount {
        /// Where.
        directory: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is nothing to unmount.
    #[error("{} is no mount of dafs; see /proc/self/mounts", .0.display())]
    NotMounted(PathBuf),
    /// The number of threads is zero or too large.
    #[error("{0} threads are not between 1 and {THREADS_MAX}")]
    Threads(usize),
    /// The kernel refused.
    #[error("cannot unmount {}: {error}", directory.display())]
    Unmount {
        /// Where.
        directory: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// A tree that is mounted and waits to be served.
#[derive(Debug)]
pub struct Mount {
    session: Session<Server>,
}

impl Mount {
    /// Mounts the tree below `root` on a directory.
    ///
    /// # Errors
    /// That this kernel, or this user, cannot.
    pub fn new(
        client: &Client,
        root: FileHandle,
        directory: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        if !(1..=THREADS_MAX).contains(&options.threads) {
            return Err(MountError::Threads(options.threads));
        }
        fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .map_err(MountError::Device)?;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(options.source.clone()),
            MountOption::Subtype("dafs".to_owned()),
            MountOption::DefaultPermissions,
            if options.read_only { MountOption::RO } else { MountOption::RW },
        ];
        config.acl = match options.allow_other {
            true => SessionACL::All,
            false => SessionACL::Owner,
        };
        config.n_threads = Some(options.threads);
        config.clone_fd = true;
        let server = Server::new(Tree::new(client.clone(), root), options.belief);
        let session = Session::new(server, directory, &config)
            .map_err(|error| MountError::Mount { directory: directory.to_owned(), error })?;
        Ok(Self { session })
    }

    /// Serves the mount until it is unmounted and nothing in it is in use any more.
    ///
    /// # Errors
    /// The kernel's, when it ends in another way.
    pub fn serve(self) -> io::Result<()> {
        self.session.run()
    }
}

/// What became of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone.
    Gone,
    /// Nobody can reach it any more; it goes when those who use it have ended or left it.
    Leaving,
}

/// Takes the mount of a DAFS tree from a directory. While programs use it, it only disappears from
/// the name space, and is gone when they have left.
///
/// # Errors
/// There is none, or the user may not.
pub fn unmount(directory: &Path) -> Result<Unmounted, MountError> {
    let fail = |error: io::Error| MountError::Unmount { directory: directory.to_owned(), error };
    let point = mount_point(directory).map_err(fail)?;
    let mounts = fs::read("/proc/self/mountinfo").map_err(fail)?;
    if !is_mounted(&mounts, point.as_os_str().as_bytes()) {
        return Err(MountError::NotMounted(directory.to_owned()));
    }
    match rustix::mount::unmount(&point, UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(Unmounted::Gone),
        Err(Errno::BUSY) => {}
        Err(Errno::PERM) => return unmount_as_user(&point).map_err(fail),
        Err(error) => return Err(fail(error.into())),
    }
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
    rustix::mount::unmount(&point, flags).map_err(|error| fail(error.into()))?;
    Ok(Unmounted::Leaving)
}

/// By the helper that lets users unmount what they mounted.
fn unmount_as_user(point: &Path) -> io::Result<Unmounted> {
    let mut last = io::Error::from_raw_os_error(libc::EPERM);
    for (arguments, outcome) in
        [(&["-u"][..], Unmounted::Gone), (&["-u", "-z"], Unmounted::Leaving)]
    {
        let mut helper = Command::new("fusermount3");
        helper.args(arguments).arg("--").arg(point);
        helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match helper.status() {
            Ok(status) if status.success() => return Ok(outcome),
            Ok(_) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The path of a mount point as the kernel lists it, without looking at the mount point itself, behind
/// which nobody may be left to answer.
fn mount_point(directory: &Path) -> io::Result<PathBuf> {
    let directory = std::path::absolute(directory)?;
    match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(directory),
    }
}

/// True when the kernel's list of mounts has one of ours at a path.
fn is_mounted(list: &[u8], point: &[u8]) -> bool {
    list.split(|&byte| byte == b'\n').any(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let at = fields.nth(4).map(unescaped);
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let is_ours = rest.next().is_some_and(|kind| FILE_SYSTEM_TYPES.contains(&kind))
            && rest.next().is_some_and(|source| source.starts_with(SOURCE_START));
        is_ours && at.as_deref() == Some(point)
    })
}

/// A field of the list: blanks and backslashes stand there as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let code = (first == b'\\')
            .then(|| behind.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.unwrap_or(first));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"22 1 0:21 / /proc rw,nosuid shared:12 - proc proc rw\n\
        90 22 0:50 / /mnt/a\\040b rw,nosuid,nodev - fuse.dafs dafs://h/ rw,user_id=0\n\
        91 22 0:51 / /mnt/c rw master:1 shared:2 - fuse.other x rw\n\
        92 22 0:52 / /mnt/d rw - fuse dafs://h/ rw\n\
        93 22 0:53 / /mnt/e rw - fuse other rw\n";

    #[test]
    fn only_mounts_of_this_kind_count() {
        assert!(is_mounted(LIST, b"/mnt/a b"));
        assert!(is_mounted(LIST, b"/mnt/d"));
        assert!(!is_mounted(LIST, b"/mnt/a"));
        assert!(!is_mounted(LIST, b"/mnt/e"));
        assert!(!is_mounted(LIST, b"/mnt/c"));
        assert!(!is_mounted(LIST, b"/proc"));
    }

    #[test]
    fn a_backslash_without_digits_is_itself() {
        assert_eq!(unescaped(b"a\\134b\\"), b"a\\b\\");
        assert_eq!(unescaped(b"\\9x"), b"\\9x");
    }

    #[test]
    fn what_is_not_mounted_is_not_unmounted() {
        let error = unmount(Path::new("/proc")).unwrap_err();
        assert!(matches!(error, MountError::NotMounted(_)), "{error}");
    }
}
