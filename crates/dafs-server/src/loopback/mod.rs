//! Whose process is at the other end of a TCP connection on this host.
//!
//! A loopback address says nothing about the user behind it, and a client may claim to be anybody.
//! The kernel knows the owner of each socket. It is asked for the one connection first; its list of
//! all, `/proc/net/tcp`, takes milliseconds, in which a reactor does nothing else.

mod diag;

use dafs_dat::PeerProcess;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The group of a user without an entry in `/etc/passwd`.
const NO_GROUP: u32 = 65_534;

/// The state of an established connection in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

/// The user of the process that connected from `peer` to one of our `ports`; `None` when it is not
/// a process of this host or cannot be found.
pub(crate) fn owner(peer: SocketAddr, ports: &[u16]) -> Option<PeerProcess> {
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    if !peer.ip().is_loopback() {
        return None;
    }
    let uid = ask(peer, ports).or_else(|| look_up(peer, ports))?;
    let groups = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(PeerProcess { pid: 0, uid, gid: primary_group(&groups, uid).unwrap_or(NO_GROUP) })
}

/// Asks for the connection to the address of this host that nearly everybody uses.
fn ask(peer: SocketAddr, ports: &[u16]) -> Option<u32> {
    let own: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let mut answers = ports.iter().map(|&port| diag::owner(peer, SocketAddr::new(own, port)));
    answers.find_map(|answer| answer.ok().flatten())
}

/// Looks for a connection to any address of this host.
fn look_up(peer: SocketAddr, ports: &[u16]) -> Option<u32> {
    let table = if peer.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    find(&std::fs::read_to_string(table).ok()?, peer, ports)
}

/// The owner of the socket whose own end is `peer` and whose other end is a port of ours.
fn find(table: &str, peer: SocketAddr, ports: &[u16]) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let remote = endpoint(remote)?;
        let ours = remote.ip().is_loopback() && ports.contains(&remote.port());
        if state != ESTABLISHED || endpoint(local)? != peer || !ours {
            return None;
        }
        fields.nth(3)?.parse().ok()
    })
}

/// Reads an address as `/proc/net/tcp` writes it: words in the machine's byte order, a port.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at * 8)?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

fn primary_group(passwd: &str, uid: u32) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let own: u32 = fields.next()?.parse().ok()?;
        if own == uid { fields.next()?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_names_the_owner_of_a_connection() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let peer = stream.local_addr().unwrap();
            let found = owner(peer, &[port]).unwrap();
            assert_eq!(found.uid, rustix::process::geteuid().as_raw());
            assert_eq!(owner(peer, &[port.wrapping_add(1)]), None);
        }
        assert_eq!(owner("192.0.2.1:7".parse().unwrap(), &[7]), None);
    }

    #[test]
    fn other_addresses_of_this_host_are_looked_up() {
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, uid) = (stream.local_addr().unwrap(), rustix::process::geteuid().as_raw());
        assert_eq!(ask(peer, &[port]), None);
        assert_eq!(owner(peer, &[port]).unwrap().uid, uid);
        assert_eq!(look_up(peer, &[port]), Some(uid));
    }

    #[test]
    fn groups_come_from_the_password_file() {
        let passwd = "root:x:0:0:root:/:/bin/sh\nanna:x:1000:100:Anna:/:/bin/sh\n";
        assert_eq!(primary_group(passwd, 1000), Some(100));
        assert_eq!(primary_group(passwd, 7), None);
    }
}
