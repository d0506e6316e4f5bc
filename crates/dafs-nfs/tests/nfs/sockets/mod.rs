//! The NFS front ends over real connections, with the user-level client: tests that need several
//! connections, threads or callbacks.

mod dense;
mod harness;
mod hostile;
mod sessions;
