//! The extension module `dafs._dafs`, the base of the Python package `dafs` (in python/dafs).
//!
//! Invariants
//! * No code waits for a server with the GIL held: see [`wait::blocking`].
//! * Locks of this crate are taken only with the GIL held, and for a few instructions. A fork
//!   therefore never finds one taken: `os.fork` holds the GIL, too.
//! * Python memory in an operation stays exported until the operation is over: a resize raises a
//!   `BufferError`.

mod batch;
mod buffer;
mod bytes;
mod chain;
mod client;
mod directory;
mod error;
mod file;
mod group;
mod hint;
mod memory;
mod open;
mod parts;
mod path;
mod registration;
mod session;
mod stat;
mod wait;

#[pyo3::pymodule]
mod _dafs {
    use pyo3::types::{PyModule, PyModuleMethods};
    use pyo3::{Bound, PyResult};

    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::chain::Chain;
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
    use crate::parts::read_parts;
    #[pymodule_export]
    use crate::registration::Registration;
    #[pymodule_export]
    use crate::stat::Stat;
    #[pymodule_export]
    use crate::wait::set_limit;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
