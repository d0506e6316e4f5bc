//! The names under which servers offer shared memory. Both sides derive the same name from the
//! server's network address, so it needs no configuration.
//!
//! A server bound to one address listens on the abstract UNIX socket `dafs-IP:PORT`, one bound to
//! the wildcard address on `dafs-*:PORT`. Abstract names belong to a network namespace, so two
//! containers do not share them by accident.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The socket name of a server whose network listener is bound to `bound`.
pub fn shm_socket_name(bound: SocketAddr) -> String {
    let ip = bound.ip().to_canonical();
    if ip.is_unspecified() {
        format!("dafs-*:{}", bound.port())
    } else {
        format!("dafs-{ip}:{}", bound.port())
    }
}

/// The socket names that a client tries for a server at `address`, best first.
pub fn shm_socket_candidates(address: SocketAddr) -> [String; 2] {
    [shm_socket_name(address), format!("dafs-*:{}", address.port())]
}

/// True when a server at the address may offer shared memory: packets sent there would come from
/// that address.
pub fn is_local(address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    let any = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // Connecting a datagram socket picks the route and its source address; nothing is sent.
    let chosen = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    chosen.is_ok_and(|chosen| chosen.ip() == address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_bound_address() {
        let name = |text: &str| shm_socket_name(text.parse().unwrap());
        assert_eq!(name("127.0.0.1:20490"), "dafs-127.0.0.1:20490");
        assert_eq!(name("0.0.0.0:7"), "dafs-*:7");
        assert_eq!(name("[::]:7"), "dafs-*:7");
        assert_eq!(name("[::1]:7"), "dafs-::1:7");
        assert_eq!(name("[::ffff:10.0.0.1]:7"), "dafs-10.0.0.1:7");
    }

    #[test]
    fn only_addresses_of_this_machine_are_local() {
        let local = |text: &str| is_local(text.parse().unwrap());
        assert!(local("127.0.0.1:20490") && local("127.8.8.8:1") && local("[::1]:20490"));
        assert!(local("[::ffff:127.0.0.1]:20490"));
        // Addresses for documentation (RFC 5737, RFC 3849) belong to no host.
        assert!(!local("192.0.2.1:20490") && !local("[2001:db8::1]:20490"));
    }

    #[test]
    fn a_client_also_finds_a_server_on_the_wildcard() {
        let found = shm_socket_candidates("10.0.0.1:7".parse().unwrap());
        assert!(found.contains(&shm_socket_name("0.0.0.0:7".parse().unwrap())));
        assert!(found.contains(&shm_socket_name("10.0.0.1:7".parse().unwrap())));
    }
}
