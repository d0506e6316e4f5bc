//! Addresses to listen on, as administrators write them.

use super::{DEFAULT_PORT, NFS_PORT, NFS_RDMA_PORT};
use std::net::{Ipv4Addr, SocketAddr};

/// Parses `HOST:PORT`, `:PORT` or `PORT` into an address to listen on. Names are resolved.
///
/// # Errors
/// The text to write instead.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, DEFAULT_PORT)
}

/// Does the same as [`parse_listen`], for RDMA devices.
///
/// # Errors
/// The text to write instead.
pub fn parse_listen_verbs(text: &str) -> Result<SocketAddr, String> {
    match parse_listen(text)? {
        address if address.port() == 0 => {
            Err(format!("{address}: name the port, which devices do not choose"))
        }
        address => Ok(address),
    }
}

/// Does the same as [`parse_listen`], for NFS.
///
/// # Errors
/// The text to write instead.
pub fn parse_listen_nfs(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, NFS_PORT)
}

/// Does the same as [`parse_listen`], for NFS over RDMA.
///
/// # Errors
/// The text to write instead.
pub fn parse_listen_nfs_rdma(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, NFS_RDMA_PORT)
}

fn parse_address(text: &str, example_port: u16) -> Result<SocketAddr, String> {
    use std::net::ToSocketAddrs;
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    // With the name of a zone, as in [fe80::1%eth0]:20490.
    let in_brackets = text.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    let found = match in_brackets.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some(host_and_port) => host_and_port.to_socket_addrs(),
        None => text.to_socket_addrs(),
    };
    found.ok().and_then(|mut addresses| addresses.next()).ok_or_else(|| {
        format!("{text:?} is no address; write HOST:PORT, such as 127.0.0.1:{example_port}")
    })
}
