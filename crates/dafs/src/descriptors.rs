//! Descriptors that this process has inherited.

use std::os::fd::RawFd;

/// The first one behind standard input, output and error.
const FIRST: RawFd = 3;

/// The inherited descriptors beyond the standard ones. The command line may name one, as the shell
/// does for `<(...)`, so they must stay open until that has been read.
#[derive(Debug)]
pub(crate) struct Given(Vec<RawFd>);

impl Given {
    /// Call it before this process opens any file that it keeps.
    pub(crate) fn note() -> Self {
        let listed: Vec<RawFd> = match std::fs::read_dir("/proc/self/fd") {
            Ok(entries) => entries
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .filter(|fd| *fd >= FIRST)
                .collect(),
            Err(error) => {
                tracing::debug!(%error, "inherited descriptors stay open");
                Vec::new()
            }
        };
        // The directory's own descriptor was in the listing.
        Self(listed.into_iter().filter(|fd| is_open(*fd)).collect())
    }

    /// Closes the descriptors. Another process may wait for the end of a pipe or for a file lock,
    /// and must not wait for this process.
    pub(crate) fn close(self) {
        for fd in self.0 {
            // SAFETY: the number was open before this process opened anything, and no code here
            // owns or closes inherited descriptors, so it still is the same.
            unsafe { libc::close(fd) };
        }
    }
}

/// Raises this process's limit of open files to the maximum.
pub(crate) fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: takes no memory and changes nothing.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}
