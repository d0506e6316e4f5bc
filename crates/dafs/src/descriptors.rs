//! Descriptors that this process was given by whoever started it.

use std::os::fd::RawFd;

/// The first one that is not of standard input, output or errors.
const FIRST: RawFd = 3;

/// What this process was given beside its standard ones. The command line may name it, as the shell does
/// for `<(...)`, so that it must stay until that has been read.
#[derive(Debug)]
pub(crate) struct Given(Vec<RawFd>);

impl Given {
    /// To be called before this process opens anything that it keeps.
    pub(crate) fn note() -> Self {
        let listed: Vec<RawFd> = match std::fs::read_dir("/proc/self/fd") {
            Ok(entries) => entries
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .filter(|fd| *fd >= FIRST)
                .collect(),
            Err(error) => {
                tracing::debug!(%error, "what this process was given stays open");
                Vec::new()
            }
        };
        // The list had itself in it.
        Self(listed.into_iter().filter(|fd| is_open(*fd)).collect())
    }

    /// Whoever waits for the end of a pipe, or has a file locked, is not to wait for this process.
    pub(crate) fn close(self) {
        for fd in self.0 {
            // SAFETY: the number was open before this process opened anything, and nothing here owns
            // what it was given or closes it, so it is still that.
            unsafe { libc::close(fd) };
        }
    }
}

/// Lets this process open as many files as it ever may.
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
