//! Copying trees between this host and a server: what `get` and `put` share.
//!
//! One thread walks the source tree, depth first, and puts what it finds into a bounded queue;
//! workers take it from there, so that many small files are under way together. A large file is
//! cut into pieces of which several are under way. File data goes between the kernel and transfer
//! memory; no user-space copy is made.
//!
//! Invariants
//! * Memory does not grow with the size of the tree, except by one entry for each file with
//!   several names that has not been met under all of them, and by the directories above the one that is
//!   read. These are held open, so the limit of open files bounds how deep a tree may be.
//! * Nothing appears under its final name before it is complete.
//! * A directory gets its final permissions and times after all that is in it.
//! * A piece of memory is used again only when no transfer uses it any more.

mod digest;
pub(crate) mod get;
mod interrupt;
mod links;
mod local;
mod pieces;
pub(crate) mod put;
mod queue;
mod report;
mod temporary;
mod trouble;

use crate::failure::Failure;
use crate::remote::RemoteUrl;
use clap::Args;
use report::Report;
use std::sync::Arc;

/// What to do besides copying names, contents, permissions and times.
#[derive(Debug, Args)]
pub(crate) struct CopyOptions {
    /// Keep owner and group too, which takes root's rights
    #[arg(long)]
    pub(crate) owner: bool,
    /// Keep named attributes (user.* extended attributes) too
    #[arg(long)]
    pub(crate) xattrs: bool,
    /// Read every copied file again and compare checksums
    #[arg(long)]
    pub(crate) verify: bool,
    /// Have every file on stable storage before it gets its final name
    #[arg(long)]
    pub(crate) sync: bool,
    /// Print a summary as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl CopyOptions {
    /// Refuses what the server of a URL cannot do.
    fn check(&self, url: &RemoteUrl) -> Result<(), Failure> {
        match url {
            RemoteUrl::Nfs(_) if self.xattrs => Err(Failure::Usage(format!(
                "--xattrs cannot be used with {url}: extended attributes are copied by dafs:// only"
            ))),
            _ => Ok(()),
        }
    }
}

/// A directory on whose end those above it wait.
trait Ends {
    /// The directory it is in, which it holds no longer.
    fn above(&mut self) -> Option<Arc<Self>>;

    /// All that is in it is done. A second time does nothing.
    fn finish(&mut self);
}

/// Ends a directory. Those above that end with it do so one after the other: a tree may be deeper than
/// the stack of a thread.
fn end<D: Ends>(directory: &mut D) {
    directory.finish();
    let mut above = directory.above();
    while let Some(mut ended) = above.and_then(Arc::into_inner) {
        ended.finish();
        above = ended.above();
    }
}

/// Runs a copy under the eye of the signal handler and says how it went.
fn supervise(
    options: &CopyOptions,
    copy: impl FnOnce(&Report) -> Result<(), Failure>,
) -> Result<(), Failure> {
    crate::descriptors::raise_limit();
    let report = Arc::new(Report::new());
    let watch = interrupt::watch(&report)?;
    let result = copy(&report);
    watch.end();
    let result = report.result().and(result);
    let told = report.summary(options.json);
    result.and(told)
}
