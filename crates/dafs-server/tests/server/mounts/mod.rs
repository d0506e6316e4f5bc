//! Mounts of the user-level NFS client against a real server on a directory: the file operations of
//! programs, with cut connections and restarted servers.

mod files;
mod harness;
mod names;
mod recovery;
mod small;
