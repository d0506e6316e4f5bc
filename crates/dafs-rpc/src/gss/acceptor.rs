//! The parts of a server that establish contexts.

use super::contexts::Contexts;
use super::establish::PartialContext;
use dafs_dat::connections::Origin;
use std::sync::Arc;

/// Work that may block.
pub type Job = Box<dyn FnOnce() + Send>;

/// The table of contexts, the mechanism, and the threads for it. All reactors share them.
pub trait Acceptor: Send + Sync {
    /// The table of contexts.
    fn contexts(&self) -> &Arc<Contexts>;

    /// The state of the mechanism for a new context.
    fn begin(&self) -> Box<dyn PartialContext>;

    /// Runs a step of the mechanism on a thread that may block, by turns of the callers' origins.
    fn run(&self, origin: Origin, job: Job);
}
