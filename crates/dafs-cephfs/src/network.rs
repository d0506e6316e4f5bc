//! Network namespaces: a thread enters one; its sockets and child threads belong to it.
//!
//! Invariants
//! * The calling thread stays in its namespace.

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Runs `work` in the network namespace at `path` (as `/run/netns/NAME` or `/proc/PID/ns/net`), or
/// in the current one if there is none. Sockets that it opens and threads that it starts belong to
/// that namespace.
///
/// # Errors
/// The namespace does not exist, or this process may not enter it.
pub fn in_network<T: Send>(path: Option<&Path>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let Some(path) = path else { return Ok(work()) };
    let namespace = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    std::thread::scope(|scope| {
        let there = std::thread::Builder::new().name("dafs-network".to_owned());
        let there = there.spawn_scoped(scope, || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })?;
        there.join().unwrap_or_else(|_| Err(io::Error::other("a thread has failed")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_network_is_left_alone() {
        assert_eq!(in_network(None, || 5).unwrap(), 5);
        let absent = in_network(Some(Path::new("/proc/self/ns/absent")), || panic!("done anyway"));
        assert_eq!(absent.unwrap_err().kind(), io::ErrorKind::NotFound);
        let no_network = in_network(Some(Path::new("/dev/null")), || panic!("done anyway"));
        assert!(no_network.is_err());
    }
}
