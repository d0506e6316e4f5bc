//! The extension module `dafs._dafs`: what the Python package `dafs` (in python/dafs) stands on.
//!
//! Invariants
//! * Nothing waits for a server with Python's lock held: see [`wait::blocking`].
//! * Locks of this crate are taken only with Python's lock held, and for a few instructions. So no fork
//!   ever finds one taken: `os.fork` holds Python's lock, too.
//! * Memory of Python's that an operation names stays exported until the operation is over, so that
//!   whoever resizes it gets a `BufferError`.

mod batch;
mod buffer;
mod bytes;
mod client;
mod directory;
mod error;
mod file;
mod group;
mod memory;
mod path;
mod registration;
mod session;
mod stat;
mod wait;

#[pyo3::pymodule]
mod _dafs {
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::client::Client;
    #[pymodule_export]
    use crate::directory::{DirEntry, Listing};
    #[pymodule_export]
    use crate::error::{
        BrokenLockError, ForkedError, InDoubtError, LockedError, NotSentError, WritesLostError,
    };
    #[pymodule_export]
    use crate::file::RawFile;
    #[pymodule_export]
    use crate::group::{Completion, CompletionGroup};
    #[pymodule_export]
    use crate::registration::Registration;
    #[pymodule_export]
    use crate::stat::Stat;
    #[pymodule_export]
    use crate::wait::set_limit;
}
