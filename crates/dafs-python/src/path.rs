//! Paths as Python gives them: text, bytes, or an object that is a path.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// As in Linux.
const ENOENT: i32 = 2;

/// The raw bytes of a path, from the root of the server. A relative one starts at `base`. The empty
/// path names no object, as in POSIX.
pub(crate) fn path(given: &Bound<'_, PyAny>, base: &[u8]) -> PyResult<Vec<u8>> {
    let bytes = raw(given)?;
    if bytes.is_empty() {
        return Err(PyOSError::new_err((ENOENT, "the path is empty", given.clone().unbind())));
    }
    if bytes.contains(&0) {
        return Err(PyValueError::new_err("embedded null byte"));
    }
    if bytes.first() == Some(&b'/') {
        return Ok(bytes);
    }
    let mut path = base.to_vec();
    path.push(b'/');
    path.extend(bytes);
    Ok(path)
}

/// The raw bytes of a path or of the text of a symbolic link.
pub(crate) fn raw(given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    if given.is_instance_of::<PyString>() {
        return Ok(given.extract::<OsString>()?.into_vec());
    }
    let inner = given.py().import("os")?.call_method1("fspath", (given,))?;
    match inner.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().to_vec()),
        Err(_) => Ok(inner.extract::<OsString>()?.into_vec()),
    }
}

/// A name for Python. Bytes that are not UTF-8 become surrogates, as everywhere in Python.
pub(crate) fn name<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyString>> {
    OsStr::from_bytes(name).into_pyobject(py).map_err(PyErr::from)
}
