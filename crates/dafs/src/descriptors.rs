//! Descriptors that this process was given by whoever started it.

/// The first one that is not of standard input, output or errors.
const FIRST: libc::c_uint = 3;

/// What this process was given beside its standard ones, programs that it starts do not get.
pub(crate) fn keep_from_children() {
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: with this flag nothing is closed: descriptors are marked, which changes nothing for whoever
    // uses them here.
    let result = unsafe { libc::close_range(FIRST, libc::c_uint::MAX, flags) };
    if result != 0 {
        // A kernel before Linux 5.11.
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "programs that are started get all that this one was given");
    }
}
