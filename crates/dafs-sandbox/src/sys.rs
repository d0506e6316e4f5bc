//! The system calls that no crate wraps safely.
//!
//! Invariants
//! * All unsafe code of this crate is here.

use seccompiler::sock_filter;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// Mounts below the named one are meant, too (`mount_setattr(2)`).
const RECURSIVE: libc::c_uint = 0x8000;

/// The flag that asks `landlock_create_ruleset(2)` for the ABI alone.
const LANDLOCK_VERSION: libc::c_uint = 1;

/// Returns the ABI of Landlock. `None` without Landlock.
pub(crate) fn landlock_abi() -> Option<u32> {
    // SAFETY: with this flag the kernel wants a null pointer and no size, and only returns a number.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_VERSION,
        )
    };
    u32::try_from(abi).ok().filter(|&abi| abi > 0)
}

/// True if the kernel filters system calls.
pub(crate) fn has_seccomp() -> bool {
    // SAFETY: a null program is refused with EFAULT where there are filters, and with EINVAL where
    // there are none. Nothing is installed.
    let refused = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0_u32,
            ptr::null::<libc::c_void>(),
        )
    };
    refused == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// The header of a program, as the kernel reads it (`struct sock_fprog`).
#[repr(C)]
struct Program {
    instructions: libc::c_ushort,
    first: *const sock_filter,
}

/// Installs a filter of system calls, for all threads. `log` makes the kernel log each call that it
/// denies.
///
/// # Errors
/// The kernel's. EACCES means that `no_new_privs` is not set.
pub(crate) fn install_filter(program: &[sock_filter], log: bool) -> io::Result<()> {
    let instructions = libc::c_ushort::try_from(program.len()).map_err(io::Error::other)?;
    let program = Program { instructions, first: program.as_ptr() };
    let mut flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
    if log {
        flags |= libc::SECCOMP_FILTER_FLAG_LOG;
    }
    // SAFETY: the header names as many instructions as the slice has, and both outlive the call. The
    // kernel copies them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            ptr::from_ref(&program),
        )
    };
    match done {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has another filter"))),
    }
}

/// Gives the process a mount namespace of its own, with copies of all mounts.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub(crate) fn new_mount_namespace() -> io::Result<()> {
    // SAFETY: this process has one thread (`confine` has counted), so no other thread relies on
    // sharing its root and its working directory with this one.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    Ok(())
}

/// Sets attributes (`MOUNT_ATTR_*`) of a mount, and of those below it.
///
/// # Errors
/// The kernel's. ENOSYS before Linux 5.12.
pub(crate) fn set_mount_attributes(path: &Path, attributes: u64, below: bool) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let wanted =
        libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = if below { RECURSIVE } else { 0 };
    // SAFETY: the path ends with a zero, the structure has the size that is named, and both outlive
    // the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            ptr::from_ref(&wanted),
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Calls of tests.

    use std::io::{self, Read, Write};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Runs `work` in a child process with one thread, and returns its text.
    pub(crate) fn in_child(work: impl FnOnce() -> String) -> String {
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        // SAFETY: the child has a copy of this thread alone. It takes no lock that another thread of
        // the parent may hold, other than the allocator's, which the C library makes usable again.
        match unsafe { libc::fork() } {
            0 => {
                drop(reader);
                let text = catch_unwind(AssertUnwindSafe(work));
                let text = text.unwrap_or_else(|_| "the child has panicked".to_owned());
                let written = writer.write_all(text.as_bytes());
                drop(writer);
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { libc::_exit(i32::from(written.is_err())) }
            }
            -1 => panic!("no child: {}", io::Error::last_os_error()),
            child => {
                drop(writer);
                let mut text = String::new();
                reader.read_to_string(&mut text).expect("the child's text");
                let mut status = 0;
                // SAFETY: waits for the child that was made above.
                let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert!(ended == child && status == 0, "the child ended with {status}: {text}");
                text
            }
        }
    }

    /// Makes a system call with plain numbers.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn call(number: libc::c_long, arguments: [usize; 4]) -> io::Result<i64> {
        let [a, b, c, d] = arguments;
        // SAFETY: tests name calls that the filter denies, or that take numbers and null pointers.
        let done = unsafe { libc::syscall(number, a, b, c, d, 0_usize, 0_usize) };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(done) }
    }
}
