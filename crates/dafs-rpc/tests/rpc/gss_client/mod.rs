//! Clients with security contexts, by the mechanism for tests of `dafs_gss`.

mod calls;
mod failures;
mod replies;
mod toy;
