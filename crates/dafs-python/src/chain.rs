//! Chains: requests that travel together, each carried out only if the one before it has succeeded.

use crate::error::raise;
use crate::file::{RawFile, range};
use crate::path;
use crate::session::Session;
use crate::stat::Stat;
use crate::wait::{blocking, drop_detached, raised};
use dafs_client::{File, LockRange, Stability, Step, StepIn, StepOn, Stepped};
use dafs_mem::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// Requests that are sent together, made by `Client.chain`.
#[pyclass(frozen, subclass, module = "dafs")]
pub(crate) struct Chain {
    session: Arc<Session>,
    members: Mutex<Vec<Member>>,
}

/// One request. Without a file it works on the object that was found before it.
enum Member {
    Lookup { names: Vec<Vec<u8>> },
    Stat,
    Read { file: Option<Arc<File>>, offset: u64, bytes: usize },
    Write { file: Option<Arc<File>>, offset: u64, data: Vec<u8> },
    Lock { file: Arc<File>, range: LockRange },
    Unlock { file: Arc<File>, offset: u64, length: u64 },
    MakeDirectory { name: Vec<u8>, mode: u32 },
    Remove { name: Vec<u8> },
}

fn on(file: Option<&Arc<File>>) -> StepOn<'_> {
    file.map_or(StepOn::Found, |file| StepOn::File(file))
}

impl Member {
    fn names(&self) -> Vec<&[u8]> {
        match self {
            Self::Lookup { names } => names.iter().map(Vec::as_slice).collect(),
            _ => Vec::new(),
        }
    }

    /// The request for the client library. `within` is the directory of a name.
    fn step<'a>(&'a self, root: StepIn, within: StepIn, names: &'a [&'a [u8]]) -> Step<'a> {
        match self {
            Self::Lookup { .. } => Step::Lookup { from: root, names },
            Self::Stat => Step::Attributes,
            Self::Read { file, offset, bytes } => {
                Step::Read { on: on(file.as_ref()), offset: *offset, bytes: *bytes }
            }
            Self::Write { file, offset, data } => {
                let stability = Stability::FileSync;
                Step::Write { on: on(file.as_ref()), offset: *offset, data, stability }
            }
            Self::Lock { file, range } => Step::Lock { file, range: *range },
            Self::Unlock { file, offset, length } => {
                Step::Unlock { file, offset: *offset, length: *length }
            }
            Self::MakeDirectory { name, mode } => Step::MakeDirectory { within, name, mode: *mode },
            Self::Remove { name } => Step::Remove { within, name },
        }
    }
}

fn opened(file: Option<PyRef<'_, RawFile>>) -> PyResult<Option<Arc<File>>> {
    file.map(|file| file.file()).transpose()
}

impl Chain {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session, members: Mutex::default() }
    }

    fn add(&self, member: Member) {
        self.members.lock().push(member);
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // A file may be closed with its last user.
        drop_detached(std::mem::take(self.members.get_mut()));
    }
}

#[pymethods]
impl Chain {
    fn __len__(&self) -> usize {
        self.members.lock().len()
    }

    fn lookup(&self, path: &Bound<'_, PyAny>) -> PyResult<()> {
        let path = path::path(path, &self.session.base)?;
        let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        self.add(Member::Lookup { names: names.map(<[u8]>::to_vec).collect() });
        Ok(())
    }

    fn stat(&self) {
        self.add(Member::Stat);
    }

    fn read(&self, bytes: usize, offset: u64, file: Option<PyRef<'_, RawFile>>) -> PyResult<()> {
        self.add(Member::Read { file: opened(file)?, offset, bytes });
        Ok(())
    }

    fn write(&self, data: &[u8], offset: u64, file: Option<PyRef<'_, RawFile>>) -> PyResult<()> {
        self.add(Member::Write { file: opened(file)?, offset, data: data.to_vec() });
        Ok(())
    }

    fn lock(
        &self,
        file: PyRef<'_, RawFile>,
        exclusive: bool,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<()> {
        let range = range(exclusive, offset, length);
        self.add(Member::Lock { file: file.file()?, range });
        Ok(())
    }

    fn unlock(&self, file: PyRef<'_, RawFile>, offset: u64, length: Option<u64>) -> PyResult<()> {
        let length = length.unwrap_or(u64::MAX);
        self.add(Member::Unlock { file: file.file()?, offset, length });
        Ok(())
    }

    fn mkdir(&self, name: &Bound<'_, PyAny>, mode: u32) -> PyResult<()> {
        self.add(Member::MakeDirectory { name: path::raw(name)?, mode });
        Ok(())
    }

    fn remove(&self, name: &Bound<'_, PyAny>) -> PyResult<()> {
        self.add(Member::Remove { name: path::raw(name)? });
        Ok(())
    }

    /// Sends the requests; returns one item for each, its result or its exception. The chain is
    /// empty then.
    fn run<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let members = std::mem::take(&mut *self.members.lock());
        let results = {
            let client = &self.session.client;
            let names: Vec<_> = members.iter().map(Member::names).collect();
            let mut steps = Vec::with_capacity(members.len());
            for (place, (member, names)) in members.iter().zip(&names).enumerate() {
                // Nothing has been found before the first one.
                let root = StepIn::Directory(client.root());
                let within = if place == 0 { root } else { StepIn::Found };
                steps.push(member.step(root, within, names));
            }
            blocking(py, || client.run_steps(&steps))
        };
        drop_detached(members);
        let results = results.map_err(raise)?;
        if let Some(raised) = raised() {
            // A handler's exception is not the error of one request.
            return Err(raised);
        }
        results.into_iter().map(|result| converted(py, result)).collect()
    }
}

fn converted(py: Python<'_>, result: dafs_client::Result<Stepped>) -> PyResult<Bound<'_, PyAny>> {
    Ok(match result {
        Ok(Stepped::Attributes(found)) => Bound::new(py, Stat::new(&found))?.into_any(),
        Ok(Stepped::Read(data)) => PyBytes::new(py, &data).into_any(),
        Ok(Stepped::Written(bytes)) => bytes.into_pyobject(py)?.into_any(),
        Ok(_) => py.None().into_bound(py),
        Err(error) => raise(error).into_value(py).into_bound(py).into_any(),
    })
}
