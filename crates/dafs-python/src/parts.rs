//! Small parts of many files in one call.

use crate::client::Client;
use crate::error::{raise, raise_for};
use crate::path;
use crate::wait::{blocking, raised};
use dafs_client::FilePart;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Reads parts of files, given as path, offset and length, without opening them. The requests for
/// many parts are in flight together.
///
/// Returns one item for each part: its bytes and whether the file ends there, or its exception.
/// Raises for the end of the session and for timeouts.
#[pyfunction]
pub(crate) fn read_parts<'py>(
    py: Python<'py>,
    client: &Client,
    parts: Vec<(Bound<'py, PyAny>, u64, usize)>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let session = client.session(py)?;
    let names: Vec<_> = parts.iter().map(|(given, ..)| path::path(given, &session.base)).collect();
    let asked: Vec<_> = names
        .iter()
        .zip(&parts)
        .filter_map(|(name, &(_, offset, bytes))| {
            let path: &[u8] = name.as_ref().ok()?;
            Some(FilePart { path, offset, bytes })
        })
        .collect();
    let found = blocking(py, || session.client.read_parts(&asked)).map_err(raise)?;
    if let Some(raised) = raised() {
        // A handler's exception is not the error of one file.
        return Err(raised);
    }
    let mut found = found.into_iter();
    let mut results = Vec::with_capacity(parts.len());
    for (name, (given, ..)) in names.iter().zip(&parts) {
        let content = match name {
            Ok(_) => found.next().map(|content| content.map_err(raise_for(given))),
            Err(error) => Some(Err(error.clone_ref(py))),
        };
        results.push(match content {
            Some(Ok(content)) => {
                (PyBytes::new(py, &content.data), content.is_end).into_pyobject(py)?.into_any()
            }
            Some(Err(error)) => error.into_value(py).into_bound(py).into_any(),
            None => py.None().into_bound(py),
        });
    }
    Ok(results)
}
