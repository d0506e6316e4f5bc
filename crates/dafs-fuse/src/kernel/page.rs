//! The kernel's pages.

/// The size of a page, in bytes.
pub(super) fn page_bytes() -> usize {
    // SAFETY: it only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(4096)
}
