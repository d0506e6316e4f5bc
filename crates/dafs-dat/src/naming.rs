//! The names under which servers offer shared memory. Both sides derive the same name from the
//! server's network address, so it needs no configuration.
//!
//! A server bound to one address listens on the abstract UNIX socket `dafs-IP:PORT`, one bound to
//! the wildcard address on `dafs-*:PORT`. Abstract names belong to a network namespace, so two
//! containers do not share them by accident.

use std::net::SocketAddr;

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
    fn a_client_also_finds_a_server_on_the_wildcard() {
        let found = shm_socket_candidates("10.0.0.1:7".parse().unwrap());
        assert!(found.contains(&shm_socket_name("0.0.0.0:7".parse().unwrap())));
        assert!(found.contains(&shm_socket_name("10.0.0.1:7".parse().unwrap())));
    }
}
