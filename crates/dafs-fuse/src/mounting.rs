//! Mounting and unmounting.
//!
//! Invariants
//! * Unmounting only asks the kernel, and depends on no answer of a server: it always works, also
//!   when the process that served the mount is gone.

use crate::attach::{HELPER, attach};
use crate::handover::{self, Listener, TakeOverError, Taken};
use crate::kernel::Device;
use crate::limits::{CACHE_TIMEOUT_DEFAULT, KEPT_PATIENCE, THREADS_DEFAULT, THREADS_MAX};
use crate::serve::Server;
use crate::session::{self, Session};
use crate::tree::Tree;
use dafs_client::{Client, ClientIdentity, FileHandle};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The types of these mounts, as the kernel lists them: these, and those of
/// earlier versions.
const FILE_SYSTEM_TYPES: [&[u8]; 2] = [b"fuse.dafs", b"fuse"];

/// The kernel's list of all mounts.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The starts of their sources.
const SOURCE_STARTS: [&[u8]; 2] = [b"dafs://", b"dafss://"];

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The name of the mounted tree, as lists of mounts show it: a URL.
    pub source: String,
    /// Lets other users than the one who mounts use it.
    pub allow_other: bool,
    /// Refuses changes.
    pub read_only: bool,
    /// Acts as the user of each program, with its groups, if the server trusts the client to act for
    /// users ([`SessionInfo::trusted`](dafs_client::SessionInfo::trusted)). Otherwise the server
    /// sees the user of the session alone.
    pub callers: bool,
    /// The timeout of the kernel's cache of attributes and names.
    pub cache_timeout: Duration,
    /// Threads that carry out requests.
    pub threads: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "dafs://".to_owned(),
            allow_other: false,
            read_only: false,
            callers: false,
            cache_timeout: CACHE_TIMEOUT_DEFAULT,
            threads: THREADS_DEFAULT,
        }
    }
}

/// The reason why a mount or an unmount failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel has no FUSE, or denies it to this user.
    #[error("cannot open /dev/fuse: {0}; load the kernel's fuse module, or ask for access to it")]
    Device(io::Error),
    /// The kernel refused.
    #[error("cannot mount on {}: {error}", directory.display())]
    Mount {
        /// The mount point.
        directory: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// There is no mount.
    #[error("{} is no mount of dafs; see /proc/self/mounts", .0.display())]
    NotMounted(PathBuf),
    /// Another process serves it, and goes on with that.
    #[error("cannot take {} over: {error}", directory.display())]
    TakeOver {
        /// The mount point.
        directory: PathBuf,
        /// The reason.
        error: TakeOverError,
    },
    /// The number of threads is zero or too large.
    #[error("{0} threads are not between 1 and {THREADS_MAX}")]
    Threads(usize),
    /// The kernel refused.
    #[error("cannot unmount {}: {error}", directory.display())]
    Unmount {
        /// The mount point.
        directory: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
}

/// A tree that is mounted and ready to be served.
#[derive(Debug)]
pub struct Mount {
    session: Arc<Session>,
    place: MountPlace,
    source: String,
    /// The process that had it before.
    former: Option<UnixStream>,
}

/// The reason why a mount is not served any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was unmounted, and is not in use any more.
    Unmounted,
    /// Another process has it, and with it all opens at the server: this one must end without
    /// closing anything, and so without ending its session in order.
    HandedOver,
}

/// The place of a mount: identifies this mount, and no other there before or after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPlace {
    /// The directory, as the kernel lists it.
    point: PathBuf,
    /// The kernel's device number of the mount.
    device: String,
}

impl Mount {
    /// Mounts the tree below `root` on a directory.
    ///
    /// # Errors
    /// This kernel, or this user, cannot mount it.
    pub fn new(
        client: &Client,
        root: FileHandle,
        directory: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        if !(1..=THREADS_MAX).contains(&options.threads) {
            return Err(MountError::Threads(options.threads));
        }
        let failed = |error| MountError::Mount { directory: directory.to_owned(), error };
        let point = directory.canonicalize().map_err(failed)?;
        let device = Device::new(attach(&point, options)?);
        let begun = session::begin(&device).and_then(|agreed| {
            let mounts = fs::read(MOUNTS)?;
            let mount = top(&mounts, point.as_os_str().as_bytes());
            let gone = || io::Error::other("it was unmounted at once");
            Ok((agreed, mount.ok_or_else(gone)?.device.to_owned()))
        });
        let (agreed, name) = begun.map_err(|error| {
            let _ = unmount(&point);
            failed(error)
        })?;
        let place = MountPlace { point, device: name };
        let tree = Tree::new(client.clone(), root);
        let server = Server::new(device, agreed, tree, options.cache_timeout)
            .acting_for_callers(options.callers);
        let session = Arc::new(Session::new(Arc::new(server), options.threads));
        session.prepare().map_err(|error| {
            let _ = place.unmount();
            failed(error)
        })?;
        Ok(Self { session, place, source: options.source.clone(), former: None })
    }

    /// Takes over a mount that another process serves, with all its opens and locks. `connect`
    /// connects to its server as the client that it is given. Read-only mode and access of other
    /// users stay as they are.
    ///
    /// # Errors
    /// There is no such mount, its process does not hand it over, or `connect` has failed. The
    /// other process goes on then.
    pub fn take_over<E: From<MountError>>(
        directory: &Path,
        options: &MountOptions,
        connect: impl FnOnce(ClientIdentity) -> Result<Client, E>,
    ) -> Result<Self, E> {
        if !(1..=THREADS_MAX).contains(&options.threads) {
            return Err(MountError::Threads(options.threads).into());
        }
        let place = MountPlace::find(directory)?;
        let connect = |identity| connect(identity).map_err(Failed::Caller);
        let taken = handover::take(&place.device, options, connect);
        let Taken { session, former } = taken.map_err(|failed| match failed {
            Failed::Caller(error) => error,
            Failed::TakeOver(error) => {
                MountError::TakeOver { directory: directory.to_owned(), error }.into()
            }
        })?;
        Ok(Self { session, place, source: options.source.clone(), former: Some(former) })
    }

    /// The place of the mount.
    pub fn place(&self) -> &MountPlace {
        &self.place
    }

    /// The client of its server.
    pub fn client(&self) -> &Client {
        &self.session.server.tree.client
    }

    /// Serves the mount until it is unmounted and not in use any more, or another process takes it
    /// over.
    ///
    /// # Errors
    /// Those of the kernel, when it ends in another way. It is unmounted then.
    pub fn serve(mut self) -> io::Result<Ended> {
        let ended = self.serve_or_fail();
        if let Ok(Ended::HandedOver) = ended {
            // The opens must not be closed.
            std::mem::forget(self);
            return ended;
        }
        if ended.is_err() {
            drop(self.place.unmount());
        }
        if let Err(error) = self.session.server.kept.settle(KEPT_PATIENCE) {
            tracing::error!(?error, "what was written last may be lost");
        }
        ended
    }

    fn serve_or_fail(&mut self) -> io::Result<Ended> {
        let former = self.former.take();
        let listener = Listener::start(&self.session, &self.place.device, &self.source, former)?;
        self.session.go_on()?;
        loop {
            match self.session.run()? {
                session::Ended::Unmounted => return Ok(Ended::Unmounted),
                session::Ended::Stopped => {
                    while let Some(successor) = listener.ready() {
                        match handover::give(&self.session.server, &successor) {
                            Ok(()) => return Ok(Ended::HandedOver),
                            Err(error) => tracing::warn!(%error, "the mount was not taken over"),
                        }
                    }
                }
                session::Ended::Stuck => {
                    // The other process sees that its connection is closed, and programs wait no
                    // longer. A process that connects just now is refused, too.
                    drop(listener.ready());
                    tracing::warn!("the mount was not taken over: an operation does not end");
                    handover::resume(&self.session.server);
                }
            }
            self.session.go_on()?;
            // A process that has connected in the meantime waits until all threads have stopped.
            if listener.is_ready() {
                self.session.stop()?;
            }
        }
    }
}

/// The reason why a mount was not taken over: an error of the caller's part, or of this crate's.
enum Failed<E> {
    Caller(E),
    TakeOver(TakeOverError),
}

impl<E> From<TakeOverError> for Failed<E> {
    fn from(error: TakeOverError) -> Self {
        Self::TakeOver(error)
    }
}

impl MountPlace {
    /// The mount of ours that is on a directory.
    fn find(directory: &Path) -> Result<Self, MountError> {
        let fail =
            |error: io::Error| MountError::Unmount { directory: directory.to_owned(), error };
        let mounts = fs::read(MOUNTS).map_err(fail)?;
        let place = |point: PathBuf| {
            let mount = top(&mounts, point.as_os_str().as_bytes()).filter(|mount| mount.is_ours)?;
            let device = mount.device.to_owned();
            Some(Self { point, device })
        };
        // The directory is accessed only as a last resort: there may be no process behind the mount
        // point to answer.
        let as_written = mount_point(directory).ok().and_then(place);
        let found = as_written.or_else(|| directory.canonicalize().ok().and_then(place));
        found.ok_or_else(|| MountError::NotMounted(directory.to_owned()))
    }

    /// Unmounts this mount from its directory, if no other has been mounted there since.
    ///
    /// # Errors
    /// As [`unmount`].
    pub fn unmount(&self) -> Result<Unmounted, MountError> {
        let fail = |error| MountError::Unmount { directory: self.point.clone(), error };
        let mounts = fs::read(MOUNTS).map_err(fail)?;
        match top(&mounts, self.point.as_os_str().as_bytes()) {
            Some(mount) if mount.is_ours && mount.device == self.device => take_off(&self.point),
            _ => Err(MountError::NotMounted(self.point.clone())),
        }
    }
}

/// The state of a mount after `unmount`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone.
    Gone,
    /// It is detached; it goes when its users have ended or left it.
    Leaving,
}

/// Unmounts a DAFS tree from a directory. While programs use it, it only disappears from the name
/// space, and is gone when they have left.
///
/// # Errors
/// There is no mount, or the user may not unmount it.
pub fn unmount(directory: &Path) -> Result<Unmounted, MountError> {
    take_off(&MountPlace::find(directory)?.point)
}

/// Unmounts a mount point.
fn take_off(point: &Path) -> Result<Unmounted, MountError> {
    let fail = |error: io::Error| MountError::Unmount { directory: point.to_owned(), error };
    match rustix::mount::unmount(point, UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(Unmounted::Gone),
        Err(Errno::BUSY) => {}
        Err(Errno::PERM) => return unmount_as_user(point).map_err(fail),
        Err(error) => return Err(fail(error.into())),
    }
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
    rustix::mount::unmount(point, flags).map_err(|error| fail(error.into()))?;
    Ok(Unmounted::Leaving)
}

/// Unmounts by the helper that lets users unmount their own mounts.
fn unmount_as_user(point: &Path) -> io::Result<Unmounted> {
    let mut last = io::Error::from_raw_os_error(libc::EPERM);
    for (arguments, outcome) in
        [(&["-u"][..], Unmounted::Gone), (&["-u", "-z"], Unmounted::Leaving)]
    {
        let mut helper = Command::new(HELPER);
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

/// The path of a mount point as the kernel lists it, without accessing the mount point itself,
/// which may have no process to answer.
fn mount_point(directory: &Path) -> io::Result<PathBuf> {
    let directory = std::path::absolute(directory)?;
    match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(directory),
    }
}

/// A line of the kernel's list of mounts.
#[derive(Debug, PartialEq, Eq)]
struct Listed<'a> {
    device: &'a str,
    is_ours: bool,
}

/// The mount at a path; the last one covers those before it.
fn top<'a>(list: &'a [u8], point: &[u8]) -> Option<Listed<'a>> {
    let mut lines = list.split(|&byte| byte == b'\n').rev();
    lines.find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let at = fields.nth(1).map(unescaped);
        if at.as_deref() != Some(point) {
            return None;
        }
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let is_ours = rest.next().is_some_and(|kind| FILE_SYSTEM_TYPES.contains(&kind))
            && rest
                .next()
                .is_some_and(|source| SOURCE_STARTS.iter().any(|start| source.starts_with(start)));
        Some(Listed { device, is_ours })
    })
}

/// A field of the list: blanks and backslashes are written as three octal digits.
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
        93 22 0:53 / /mnt/e rw - fuse other rw\n\
        94 22 0:54 / /mnt/f rw - fuse.dafs dafs://h/ rw\n\
        95 94 0:55 / /mnt/f rw - tmpfs tmpfs rw\n";

    fn is_ours(point: &[u8]) -> Option<bool> {
        top(LIST, point).map(|mount| mount.is_ours)
    }

    #[test]
    fn only_mounts_of_this_kind_count() {
        assert_eq!((is_ours(b"/mnt/a b"), is_ours(b"/mnt/d")), (Some(true), Some(true)));
        assert_eq!((is_ours(b"/mnt/a"), is_ours(b"/mnt")), (None, None));
        assert_eq!((is_ours(b"/mnt/e"), is_ours(b"/mnt/c")), (Some(false), Some(false)));
        assert_eq!(top(LIST, b"/mnt/d"), Some(Listed { device: "0:52", is_ours: true }));
    }

    #[test]
    fn a_mount_is_covered_by_a_later_one() {
        assert_eq!(is_ours(b"/mnt/f"), Some(false));
    }

    #[test]
    fn a_backslash_without_digits_is_itself() {
        assert_eq!(unescaped(b"a\\134b\\"), b"a\\b\\");
        assert_eq!(unescaped(b"\\9x"), b"\\9x");
    }

    #[test]
    fn a_path_without_a_mount_is_not_unmounted() {
        let error = unmount(Path::new("/proc")).unwrap_err();
        assert!(matches!(error, MountError::NotMounted(_)), "{error}");
    }
}
