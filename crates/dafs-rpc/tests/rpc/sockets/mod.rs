//! Server and client over real sockets of this host.

mod back;
mod calls;
mod common;
mod hostile;
mod tls;
