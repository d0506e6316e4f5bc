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
    helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = helper.spawn().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot start {HELPER}, which mounts for users: {error}"),
        )
    })?;
    drop(theirs);
    let received = pass::receive(&ours, &mut [0]);
    let output = child.wait_with_output()?;
    match received {
        Ok((_, Some(device))) if output.status.success() => Ok(device),
        _ => Err(io::Error::other(refusal(&output.stderr))),
    }
}

/// Returns the helper's reason on one line, and the remedy where that is known.
fn refusal(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let reason = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let reason = reason.collect::<Vec<_>>().join("; ");
    if reason.is_empty() {
        return format!("{HELPER} did not mount it, and gave no reason");
    }
    let remedy = if reason.contains("/dev/fuse") {
        "; as root: chmod 666 /dev/fuse. A container must be started with that device"
    } else if reason.contains("user_allow_other") {
        "; leave out --allow-other, or add that line as root"
    } else if reason.contains("Operation not permitted") {
        "; a container must be started with the right to mount (CAP_SYS_ADMIN)"
    } else {
        ""
    };
    format!("{reason}{remedy}")
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

    #[test]
    fn the_helper_gives_the_reason() {
        let closed = refusal(b"fusermount3: failed to open /dev/fuse: Permission denied\n");
        assert!(closed.starts_with("fusermount3: failed to open /dev/fuse: Perm"), "{closed}");
        assert!(closed.contains("chmod 666 /dev/fuse"), "{closed}");
        let other = refusal(b"fusermount3: bad mount point /x: No such file or directory\n\n");
        assert_eq!(other, "fusermount3: bad mount point /x: No such file or directory");
        assert!(refusal(b"").contains("no reason"));
    }
}
