//! Servers with all their parts, and clients of each protocol.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;
mod direct;
mod fronts;
mod gluster;
mod importance;
mod kerberos;
mod kerberos_dafs;
mod kerberos_mounts;
mod kerberos_sessions;
mod layouts;
mod metrics;
mod mounts;
mod scrub;
mod striped;
mod take_over;
mod tls;
mod tls_data;
mod tls_users;
