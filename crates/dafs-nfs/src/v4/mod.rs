//! NFSv4.1 and 4.2 (RFC 8881, RFC 7862, RFC 8276): compounds, sessions, callbacks.

pub(crate) mod attr;
pub(crate) mod back_message;
pub(crate) mod callback;
mod class;
pub(crate) mod compound;
mod data;
mod digest;
pub(crate) mod dispatch;
pub(crate) mod journal;
pub(crate) mod ops;
mod persistent;
mod protect;
pub(crate) mod session;
mod session_ops;
mod slot;
pub(crate) mod stateid;
pub(crate) mod status;

#[cfg(test)]
mod tests;
