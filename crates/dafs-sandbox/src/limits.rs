//! The bounds of the sandbox.

/// The size of the file system that holds the directories above those that the server sees.
pub(crate) const ROOT_OPTIONS: &std::ffi::CStr = c"mode=0755,size=1m";

/// The first system call that a C library may try on the chance that the kernel has it. The numbers
/// of later calls are the same on all machines.
pub(crate) const PROBED_CALLS: std::ops::Range<i64> = 453..640;

/// The least ABI of Landlock for files: with ABI 1 no file can be renamed to another directory.
pub(crate) const FILES_ABI_MIN: u32 = 2;

/// The least ABI of Landlock for TCP.
pub(crate) const NETWORK_ABI_MIN: u32 = 4;

/// The least ABI of Landlock for device files.
pub(crate) const DEVICES_ABI_MIN: u32 = 5;

/// The least ABI of Landlock for signals and abstract sockets.
pub(crate) const SCOPES_ABI_MIN: u32 = 6;
