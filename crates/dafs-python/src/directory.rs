//! Listings of directories.

use crate::error::raise;
use crate::path;
use crate::stat::Stat;
use crate::wait::blocking;
use dafs_client::ReadDir;
use dafs_mem::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::Arc;

/// One entry of a directory.
#[pyclass(frozen, module = "dafs")]
pub(crate) struct DirEntry {
    #[pyo3(get)]
    name: Py<PyAny>,
    /// `None` if the server cannot read them. For a symbolic link, its own.
    #[pyo3(get)]
    stat: Option<Py<Stat>>,
    directory: Arc<[u8]>,
}

impl DirEntry {
    fn is_of(&self, kind: u32) -> bool {
        self.stat.as_ref().is_some_and(|stat| stat.get().kind() == kind)
    }
}

#[pymethods]
impl DirEntry {
    /// The name behind the path that `scandir` was called with.
    #[getter]
    fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let mut whole = self.directory.to_vec();
        if !whole.ends_with(b"/") {
            whole.push(b'/');
        }
        whole.extend(path::raw(self.name.bind(py))?);
        path::name(py, &whole)
    }

    /// True for a directory. Symbolic links are not followed, here and below.
    fn is_dir(&self) -> bool {
        self.is_of(libc::S_IFDIR)
    }

    /// True for a regular file.
    fn is_file(&self) -> bool {
        self.is_of(libc::S_IFREG)
    }

    /// True for a symbolic link.
    fn is_symlink(&self) -> bool {
        self.is_of(libc::S_IFLNK)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<dafs.DirEntry {}>", self.name.bind(py).repr()?))
    }
}

/// Iterator over a directory, in the server's order, a page at a time.
#[pyclass(frozen, module = "dafs")]
pub(crate) struct Listing {
    /// Taken out during a request to the server.
    entries: Mutex<Option<ReadDir>>,
    /// Its path, as it was given.
    directory: Arc<[u8]>,
}

impl Listing {
    pub(crate) fn new(entries: ReadDir, directory: Vec<u8>) -> Self {
        Self { entries: Mutex::new(Some(entries)), directory: directory.into() }
    }
}

#[pymethods]
impl Listing {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<DirEntry>> {
        let entries = || self.entries.lock();
        let Some(mut inner) = entries().take() else {
            return Err(PyValueError::new_err("another thread is using this listing"));
        };
        let (found, inner) = blocking(py, move || (inner.next(), inner));
        *entries() = Some(inner);
        let Some(found) = found else { return Ok(None) };
        let found = found.map_err(raise)?;
        let stat = found.attributes.map(|found| Py::new(py, Stat::new(&found))).transpose()?;
        let name = path::name(py, &found.name)?.into_any().unbind();
        Ok(Some(DirEntry { name, stat, directory: self.directory.clone() }))
    }
}
