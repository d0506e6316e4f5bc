//! Making a mount: by this process, or by the helper for unprivileged users.

use crate::mounting::{MountError, MountOptions};
use crate::pass;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

/// The type of these mounts, as the kernel lists them.
const FILE_SYSTEM_TYPE: &str = "fuse.dafs";

/// The helper that mounts for users.
pub(crate) const HELPER: &str = "fusermount3";

/// The variable that holds the number of the socket through which the helper sends the device.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// Mounts on a directory; returns the device that is bound to the mount.
pub(crate) fn attach(directory: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let failed = |error| MountError::Mount { directory: directory.to_owned(), error };
    let device = match rustix::fs::open("/dev/fuse", flags, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::ACCESS | Errno::PERM) => return by_helper(directory, options).map_err(failed),
        Err(error) => return Err(MountError::Device(error.into())),
    };
    match attach_to(&device, directory, options) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => by_helper(directory, options).map_err(failed),
        Err(error) => Err(failed(error.into())),
    }
}

fn attach_to(device: &OwnedFd, directory: &Path, options: &MountOptions) -> Result<(), Errno> {
    let mut text = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        text.push_str(",allow_other");
    }
    let text = CString::new(text).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, options.read_only);
    rustix::mount::mount(&*options.source, directory, FILE_SYSTEM_TYPE, flags, &*text)
}

/// Mounts by the helper that lets users mount on their own directories.
fn by_helper(directory: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = pass::pair()?;
    // The helper, which is started right away, inherits it.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut helper = Command::new(HELPER);
    helper.arg("-o").arg(helper_options(options)).arg("--").arg(directory);
    helper.env(HELPER_SOCKET, theirs.as_raw_fd().to_string());
    helper.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = helper.spawn().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot start {HELPER}, which mounts for users: {error}"),
        )
    })?;
    drop(theirs);
    let received = pass::receive(&ours, &mut [0]);
    let status = child.wait()?;
    match received {
        Ok((_, Some(device))) if status.success() => Ok(device),
        // The helper has reported the reason to the user.
        _ => Err(io::Error::other(format!("{HELPER} did not mount it"))),
    }
}

/// The helper's options; a comma ends an option there unless it is escaped.
fn helper_options(options: &MountOptions) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut text = format!("nosuid,nodev,default_permissions,subtype=dafs,fsname={source}");
    if options.read_only {
        text.push_str(",ro");
    }
    if options.allow_other {
        text.push_str(",allow_other");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_adds_no_option_of_its_own() {
        let source = "dafs://h/a,suid,b\\".to_owned();
        let options = MountOptions { source, read_only: true, ..MountOptions::default() };
        let text = helper_options(&options);
        assert!(text.ends_with("fsname=dafs://h/a\\,suid\\,b\\\\,ro"), "{text}");
    }
}
