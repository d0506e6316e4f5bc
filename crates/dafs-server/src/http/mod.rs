//! Small servers with HTTP/1.1 (RFC 9112) and TLS: one request a connection, for few peers.
//!
//! | part | file |
//! |---|---|
//! | the port and its threads | `port.rs` |
//! | the bytes of a peer, with a deadline | `line.rs` |
//! | TLS | `tls.rs` |
//! | administration for other machines | `admin.rs` |
//! | the page for a browser, which uses that | `page.rs`, `page.html` |
//! | whom that admits, as a function of the head of a request | `rules.rs` |
//! | the token | `token.rs` |
//! | the client of it | `client.rs` |

mod admin;
mod client;
mod line;
mod page;
mod port;
mod rules;
mod tls;
mod token;

pub(crate) use admin::AdminPort;
pub use client::{AdminServer, ask};
pub(crate) use line::{Line, Timed, finish};
pub(crate) use port::Port;
pub(crate) use tls::Secured;
pub(crate) use token::TOKEN_FILE;
