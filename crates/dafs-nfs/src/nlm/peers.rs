//! The way from the server to the lock managers and status monitors of its clients.

use dafs_rpc::client::Procedure;
use std::io;
use std::net::IpAddr;

/// Calls programs on the hosts of NFSv3 clients. The assembly of the server has the sockets.
pub trait Peers: Send + Sync {
    /// The name of this host, which its notifications carry.
    fn host_name(&self) -> &[u8];

    /// Calls a procedure at a host, whose rpcbind names the port. Returns the results in XDR. May
    /// wait for some seconds.
    ///
    /// # Errors
    /// The host cannot be reached, has no such program, or gives no answer.
    fn call(&self, host: IpAddr, procedure: Procedure, args: &[u8]) -> io::Result<Vec<u8>>;
}
