//! Listening sockets that were open before this process, as systemd passes them
//! (`sd_listen_fds(3)`). They outlive a restart of the server. So clients that connect meanwhile
//! wait in the queue, instead of a refusal and a retry seconds later.

use rustix::net::sockopt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The first descriptor that is passed.
const FIRST: RawFd = 3;

/// Sockets passed to this process, by their bound address.
pub(super) struct Inherited(Vec<(SocketAddr, TcpListener)>);

impl Inherited {
    /// Takes the passed sockets. A second call finds none.
    pub(super) fn take() -> Self {
        static TAKEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        if TAKEN.swap(true, std::sync::atomic::Ordering::Relaxed) {
            return Self(Vec::new());
        }
        let variable = |name| std::env::var(name).ok();
        let own = variable("LISTEN_PID").and_then(|pid| pid.parse::<u32>().ok());
        let count = variable("LISTEN_FDS").and_then(|count| count.parse::<RawFd>().ok());
        match (own, count) {
            (Some(pid), Some(count)) if pid == std::process::id() => {
                Self((FIRST..FIRST.saturating_add(count.clamp(0, 256))).filter_map(adopt).collect())
            }
            _ => Self(Vec::new()),
        }
    }

    /// Takes the socket for an address, if it was passed.
    pub(super) fn find(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let place = self.0.iter().position(|(bound, _)| *bound == address)?;
        Some(self.0.swap_remove(place).1)
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        for (address, _) in &self.0 {
            tracing::warn!(%address, "a socket was passed that the configuration does not name");
        }
    }
}

fn adopt(fd: RawFd) -> Option<(SocketAddr, TcpListener)> {
    // SAFETY: the process that set LISTEN_PID to this process's id gave it the ownership of these
    // descriptors. They are taken once, at the start, before any other code could have opened
    // descriptors of these numbers.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).ok()?;
    let is_listening = sockopt::socket_acceptconn(&fd).ok()?;
    let listener = TcpListener::from(fd);
    let address = listener.local_addr().ok().filter(|_| is_listening)?;
    listener.set_nonblocking(true).ok()?;
    Some((address, listener))
}
