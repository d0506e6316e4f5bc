//! Tells the service manager the state of this process, by the protocol of sd_notify(3).
//!
//! Invariants
//! * The socket is connected before the process gives up files and sockets, its path being one of them.
//! * Without a manager that asks for it nothing happens. No failure here ends the process.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The environment variable with the name of the manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The service manager that has started this process, if it wants to be told.
pub(crate) struct Manager(Option<UnixDatagram>);

impl Manager {
    /// Finds the manager in the environment of this process.
    pub(crate) fn of_process() -> Self {
        let Some(name) = std::env::var_os(SOCKET) else { return Self(None) };
        match connect(&name) {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                tracing::warn!(?name, %error, "the service manager cannot be told of the start");
                Self(None)
            }
        }
    }

    /// Tells that the process does its work from now on, and what that is.
    pub(crate) fn ready(&self, work: &str) {
        self.tell(&format!("READY=1\nSTATUS={work}"));
    }

    /// Tells that this process takes the place of the one that the manager has started.
    pub(crate) fn took_over(&self) {
        self.tell(&format!("MAINPID={}", std::process::id()));
    }

    /// Tells that the process is about to end.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, state: &str) {
        let Some(socket) = &self.0 else { return };
        if let Err(error) = socket.send(state.as_bytes()) {
            tracing::warn!(%error, "the service manager was not told: {state}");
        }
    }
}

/// Connects with a socket in the file system, or behind an @ with one of the abstract name space.
fn connect(name: &OsStr) -> std::io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &OsStr, manager: &UnixDatagram) -> String {
        let own = Manager(Some(connect(name).unwrap()));
        own.took_over();
        own.ready("serving dafs://h/");
        own.stopping();
        let mut text = String::new();
        for _ in 0..3 {
            let mut bytes = [0; 256];
            let length = manager.recv(&mut bytes).unwrap();
            text.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
            text.push('|');
        }
        text
    }

    #[test]
    fn a_manager_hears_of_start_and_end() {
        let id = std::process::id();
        let wanted = format!("MAINPID={id}|READY=1\nSTATUS=serving dafs://h/|STOPPING=1|");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        assert_eq!(told(path.as_os_str(), &manager), wanted);
        let name = format!("dafs-test-of-managers-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        assert_eq!(told(OsStr::new(&format!("@{name}")), &manager), wanted);
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        Manager(None).ready("serving");
        assert!(connect(OsStr::new("/nowhere/at/all")).is_err());
    }
}
