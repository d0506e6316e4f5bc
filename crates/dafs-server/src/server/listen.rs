//! Listening sockets.

use super::sockets::Sockets;
use super::{BACKLOG, StartError};
use dafs_dat::{shm, shm_socket_name};
use dafs_wire::hand_over::SocketKind;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The number of attempts to bind the name for shared memory while its holder is unknown, and the
/// time between.
const NAME_TRIES: u32 = 10;
const NAME_REST: Duration = Duration::from_millis(100);

/// Makes a listening TCP socket: one that was passed to this process, or a new one.
pub(super) fn tcp(address: SocketAddr, sockets: &mut Sockets) -> Result<TcpListener, StartError> {
    let listener = match sockets.find_tcp(address) {
        Some(listener) => {
            tracing::info!(%address, "going on with a socket that was passed");
            listener
        }
        None => fresh(address)?,
    };
    let failed = |error| StartError::Listen { address, error };
    let bound = listener.local_addr().map_err(failed)?;
    sockets.keep(SocketKind::Tcp, bound, &listener).map_err(failed)?;
    Ok(listener)
}

/// Makes a new listening TCP socket.
pub(super) fn fresh(address: SocketAddr) -> Result<TcpListener, StartError> {
    let domain = socket2::Domain::for_address(address);
    let bind = || {
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(TcpListener::from(socket))
    };
    bind().map_err(|error| StartError::Listen { address, error })
}

/// Makes the abstract UNIX socket for shared memory. Every user of the host may bind its name. That
/// denies shared memory to clients, but not the server. Returns `None` then.
///
/// # Errors
/// Another server of root or of this user has the name.
fn local(address: SocketAddr, mut rest: impl FnMut()) -> io::Result<Option<OwnedFd>> {
    let name = shm_socket_name(address);
    let mut tries = 0..NAME_TRIES;
    let (error, holder) = loop {
        let error = match shm::bind_listener(&name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
            bound => return bound.map(Some),
        };
        match (shm::holder(&name), tries.next()) {
            // The holder has just gone, or is busy.
            (None, Some(_)) => rest(),
            (holder, _) => break (error, holder),
        }
    };
    let own = rustix::process::geteuid().as_raw();
    let holder = match holder {
        Some(process) if process.uid == 0 || process.uid == own => {
            return Err(io::Error::other(format!(
                "process {} of user {} has the abstract UNIX socket @{name}, by which clients of this \
                 host find shared memory: end it ({error})",
                process.pid, process.uid
            )));
        }
        Some(process) => format!("process {} of user {}", process.pid, process.uid),
        None => "another process".to_owned(),
    };
    tracing::error!(
        "no shared memory at {address}: {holder} has the abstract UNIX socket @{name}, by which \
         clients of this host look for it; they use the network instead, which is slower. End that \
         process (ss -xlp shows it), and start the server again"
    );
    Ok(None)
}

/// The sockets of one address: TCP for iWARP, and the abstract UNIX socket for shared memory.
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    pub(super) tcp: TcpListener,
    /// `None` while another user has its name.
    pub(super) shm: Option<OwnedFd>,
}

impl Listener {
    pub(super) fn bind(address: SocketAddr, sockets: &mut Sockets) -> Result<Self, StartError> {
        let tcp = tcp(address, sockets)?;
        let failed = |error| StartError::Listen { address, error };
        let bound = tcp.local_addr().map_err(failed)?;
        let listener = match sockets.find_shm(bound) {
            Some(shm) => Self { address: bound, tcp, shm: Some(shm) },
            None => Self::beside(tcp, address)?,
        };
        if let Some(shm) = &listener.shm {
            sockets.keep(SocketKind::Shm, bound, shm).map_err(failed)?;
        }
        Ok(listener)
    }

    pub(super) fn fresh(address: SocketAddr) -> Result<Self, StartError> {
        Self::beside(fresh(address)?, address)
    }

    fn beside(tcp: TcpListener, address: SocketAddr) -> Result<Self, StartError> {
        let failed = |error| StartError::Listen { address, error };
        let address = tcp.local_addr().map_err(failed)?;
        let shm = local(address, || std::thread::sleep(NAME_REST)).map_err(failed)?;
        Ok(Self { address, tcp, shm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_waits_for_a_name_while_it_is_not_known_whose_it_is() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};
        let address = "127.0.0.1:1".parse().expect("an address");
        let name = shm_socket_name(address);
        // It has the name and does not listen, like a server that is just ending.
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        let named = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
        bind(&socket, &named).expect("a name that is free");
        let (mut socket, mut rests) = (Some(socket), 0);
        let bound = local(address, || {
            rests += 1;
            socket.take_if(|_| rests == 3);
        });
        assert!(bound.expect("it is given up").is_some());
        assert_eq!(rests, 3);
    }

    #[test]
    fn a_server_starts_without_a_name_that_another_user_has() {
        let tcp = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (first, second) = (tcp(), tcp());
        let name = |tcp: &TcpListener| shm_socket_name(tcp.local_addr().expect("an address"));
        let address = first.local_addr().expect("an address");
        let own = shm::bind_listener(&name(&first)).expect("a name");
        let error = Listener::beside(first, address).err().expect("it is taken").to_string();
        let process = format!("process {} of user", std::process::id());
        assert!(error.contains(&process) && error.contains("@dafs-127.0.0.1:"), "{error}");
        drop(own);
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED the second half: only root can become another user");
            return;
        }
        let user = rustix::process::Uid::from_raw(1234);
        let taken = name(&second);
        let squatter = std::thread::spawn(move || {
            rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
            shm::bind_listener(&taken).expect("a name")
        });
        let _squatter = squatter.join().expect("no panic");
        let address = second.local_addr().expect("an address");
        assert!(Listener::beside(second, address).expect("it starts").shm.is_none());
    }
}
