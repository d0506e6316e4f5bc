//! Copying trees between this host and a server, or between servers: the common part of `get` and `put`.
//! The source of `put` may be on a server, too.
//!
//! One thread walks the source tree, depth first, and puts the objects into a bounded queue.
//! Workers take them from there. A small file is one round trip to the server that gets it, and each worker
//! has several of them under way. A large file is cut into pieces of which several are under way. Its data
//! goes between the kernel and transfer memory without a user-space copy, and stays in that memory between
//! two servers.
//!
//! Invariants
//! * Memory does not grow with the size of the tree. The exceptions are one entry for each file
//!   with several names, until all of them have been met, a bounded number of objects that met a
//!   full file system, and the directories above these and the current one. They are held open, so
//!   the limit of open files bounds the depth of a tree. A synchronisation also keeps the names that the
//!   copy has in them.
//! * No object appears under its final name before it is complete.
//! * A directory gets its final permissions and times after its contents.
//! * A piece of memory is used again only after its transfer has ended.

pub(crate) mod check;
pub(crate) mod clean;
mod content;
mod digest;
mod error;
pub(crate) mod filter;
pub(crate) mod get;
mod interrupt;
mod links;
mod local;
mod pace;
mod pieces;
pub(crate) mod put;
mod queue;
mod report;
mod room;
mod source;
pub(crate) mod sync;
mod temporary;
mod tree;
pub(crate) mod view;
pub(crate) mod warmup;
mod worker;

pub(crate) use report::{can_draw, style};

use crate::failure::Failure;
use crate::remote::RemoteUrl;
use clap::Args;
use report::Report;
use std::sync::Arc;

/// Options of a copy, besides names, contents, permissions and times.
#[derive(Debug, Args)]
pub(crate) struct CopyOptions {
    /// Means nothing: directories are always copied with their contents
    #[arg(short = 'r', long = "recursive", short_alias = 'R')]
    _recursive: bool,
    /// Means nothing: on a terminal the progress is always shown
    #[arg(short = 'P', long = "progress")]
    _progress: bool,
    /// Keep owner and group too; requires root
    #[arg(long)]
    pub(crate) owner: bool,
    /// Keep named attributes (user.* extended attributes) too
    #[arg(long)]
    pub(crate) xattrs: bool,
    /// Read every copied file again and compare checksums
    #[arg(long)]
    pub(crate) verify: bool,
    /// Write every file to stable storage before it gets its final name
    #[arg(long)]
    pub(crate) sync: bool,
    /// Print a summary as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl CopyOptions {
    /// Refuses options that the server of a URL does not support.
    fn check(&self, url: &RemoteUrl) -> Result<(), Failure> {
        match url {
            RemoteUrl::Nfs(_) if self.xattrs => Err(Failure::Usage(format!(
                "--xattrs cannot be used with {url}: extended attributes are copied by dafs:// only"
            ))),
            _ => Ok(()),
        }
    }
}

/// Runs a copy with the signal handler, and prints the result, with `json` as one object.
fn supervise(
    json: bool,
    bytes_per_second: Option<u64>,
    copy: impl FnOnce(&Report) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (report, result) = watched(bytes_per_second, copy)?;
    let result = report.result().and(result);
    let told = report.summary(json);
    result.and(told)
}

/// Runs a copy with the signal handler. Returns its report, and its own result.
fn watched(
    bytes_per_second: Option<u64>,
    copy: impl FnOnce(&Report) -> Result<(), Failure>,
) -> Result<(Arc<Report>, Result<(), Failure>), Failure> {
    crate::descriptors::raise_limit();
    let report = Arc::new(Report::with_limit(bytes_per_second));
    let watch = interrupt::watch(&report)?;
    let result = copy(&report);
    watch.end();
    Ok((report, result))
}
