//! Connecting from a port below 1024, which tells many servers that root vouches for the caller.

use super::options::MountOptions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect as start, socket_with};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

/// The ports that are tried: those above the well-known ones (as in bindresvport).
const PORT_FIRST: u16 = 665;
const PORT_COUNT: u16 = 1024 - PORT_FIRST;

/// Connects to a server over TCP; from a reserved port if that is asked for, allowed and possible.
pub(crate) fn connect(address: SocketAddr, options: &MountOptions) -> io::Result<TcpStream> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    if options.reserved_port {
        // Processes start at different ports, so that they do not compete for the first ones.
        let shift = (std::process::id() % u32::from(PORT_COUNT)) as u16;
        for _ in 0..PORT_COUNT {
            let turn = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(shift) % PORT_COUNT;
            match from_port(PORT_FIRST + turn, address, options) {
                Ok(stream) => return Ok(stream),
                // The port is in use, or was so a moment ago.
                Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
                Err(Errno::ACCESS | Errno::PERM) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    TcpStream::connect_timeout(&address, options.connect_timeout)
}

fn from_port(port: u16, address: SocketAddr, options: &MountOptions) -> Result<TcpStream, Errno> {
    let (family, any) = match address {
        SocketAddr::V4(_) => (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        SocketAddr::V6(_) => (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::new(any, port))?;
    let until = Instant::now() + options.connect_timeout;
    match start(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break rustix::net::sockopt::socket_error(&socket)??,
                Err(error) => return Err(error),
            }
        },
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from(socket))
}
