//! The client for Python.

use crate::batch::Batch;
use crate::buffer::Buffer;
use crate::chain::Chain;
use crate::directory::Listing;
use crate::error::{raise, raise_for};
use crate::file::RawFile;
use crate::group::sweep;
use crate::hint::Hint;
use crate::open::Opening;
use crate::path;
use crate::registration::Registration;
use crate::session::Session;
use crate::stat::Stat;
use crate::wait::{blocking, drop_detached, seconds};
use dafs_client::{
    CacheOptions, ConnectOptions, DafsUrl, Error, FenceChange, FenceObject, Follow, OpenOptions,
    SetAttributes, SetTime, Stability, Time,
};
use dafs_mem::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::sync::Arc;

/// A session with a server, for all threads of a process. A forked child gets one of its own with
/// its first call.
#[pyclass(frozen, subclass, module = "dafs")]
pub(crate) struct Client {
    url: DafsUrl,
    options: ConnectOptions,
    state: Mutex<State>,
}

enum State {
    Open { session: Arc<Session>, process: u32 },
    Closed,
}

impl State {
    /// The session that goes on in this process. `None` for the parent's session, and for one that
    /// has ended: the program goes on with a new one.
    fn session(&self, process: u32) -> PyResult<Option<Arc<Session>>> {
        match self {
            Self::Open { session, process: known } => {
                let goes_on = *known == process && !session.client.is_over();
                Ok(goes_on.then(|| session.clone()))
            }
            Self::Closed => Err(PyValueError::new_err("the client is closed")),
        }
    }
}

impl Client {
    /// The session of this process.
    pub(crate) fn session(&self, py: Python<'_>) -> PyResult<Arc<Session>> {
        sweep(py);
        let process = std::process::id();
        let known = self.state.lock().session(process)?;
        if let Some(session) = known {
            return Ok(session);
        }
        let new = blocking(py, || Session::connect(&self.url, &self.options)).map_err(raise)?;
        let new = Arc::new(new);
        let mut state = self.state.lock();
        if let Some(session) = state.session(process)? {
            // Another thread was faster.
            return Ok(session);
        }
        let old = std::mem::replace(&mut *state, State::Open { session: new.clone(), process });
        drop(state);
        drop_detached(old);
        Ok(new)
    }

    /// Does `work` with a path. The path is in its error.
    fn at<T: Send>(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        work: impl FnOnce(&dafs_client::Client, &[u8]) -> dafs_client::Result<T> + Send,
    ) -> PyResult<T> {
        let session = self.session(py)?;
        let name = path::path(path, &session.base)?;
        blocking(py, || work(&session.client, &name)).map_err(raise_for(path))
    }

    /// Does `work` with two paths. The first is in its error.
    fn at_both<T: Send>(
        &self,
        py: Python<'_>,
        (source, target): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
        work: impl FnOnce(&dafs_client::Client, &[u8], &[u8]) -> dafs_client::Result<T> + Send,
    ) -> PyResult<T> {
        let session = self.session(py)?;
        let (from, to) = (path::path(source, &session.base)?, path::path(target, &session.base)?);
        blocking(py, || work(&session.client, &from, &to)).map_err(raise_for(source))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The session ends with its last user.
        let state = self.state.get_mut();
        drop_detached(std::mem::replace(state, State::Closed));
    }
}

/// The attributes to change.
fn change(mode: Option<u32>) -> SetAttributes {
    SetAttributes { mode, ..SetAttributes::default() }
}

fn follow(links: bool) -> Follow {
    if links { Follow::Yes } else { Follow::No }
}

fn fenced(file_system: bool) -> FenceObject {
    if file_system { FenceObject::FileSystem } else { FenceObject::File }
}

fn time(nanoseconds: i128) -> PyResult<SetTime> {
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000))
        .map_err(|_| PyValueError::new_err("a time is out of range"))?;
    // Below 10^9.
    let nseconds = nanoseconds.rem_euclid(1_000_000_000) as u32;
    Ok(SetTime::Client(Time { seconds, nseconds }))
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (url, *, transport = "auto", password = None, deadline = 60.0, recovery = 120.0,
        connect_timeout = 10.0, checksums = false, client_id = None, fence_id = None, cache_bytes = 0))]
    fn new(
        py: Python<'_>,
        url: &str,
        transport: &str,
        password: Option<String>,
        deadline: Option<f64>,
        recovery: Option<f64>,
        connect_timeout: f64,
        checksums: bool,
        client_id: Option<String>,
        fence_id: Option<String>,
        cache_bytes: usize,
    ) -> PyResult<Self> {
        let url = DafsUrl::parse(url).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let wrong = |error: Error| PyValueError::new_err(error.to_string());
        let mut options = ConnectOptions {
            transport: transport.parse().map_err(wrong)?,
            checksums,
            client_id,
            fence_id,
            deadline: deadline.map(seconds).transpose()?.flatten(),
            recovery: recovery.map(seconds).transpose()?.flatten(),
            ..ConnectOptions::default()
        };
        options.prove_by_password(&url, None, password).map_err(wrong)?;
        if let Some(time) = seconds(connect_timeout)? {
            options.connect_timeout = time;
        }
        if cache_bytes > 0 {
            options.cache = Some(CacheOptions::new(cache_bytes));
        }
        let session = blocking(py, || Session::connect(&url, &options)).map_err(raise)?;
        let process = std::process::id();
        let state = Mutex::new(State::Open { session: Arc::new(session), process });
        Ok(Self { url, options, state })
    }

    /// The URL.
    #[getter]
    fn url(&self) -> String {
        self.url.to_string()
    }

    /// The transport in use: "iwarp", "shm" or "verbs".
    #[getter]
    fn transport(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.session(py)?.client.transport().kind.to_string())
    }

    /// True if the session is connected now.
    #[getter]
    fn connected(&self, py: Python<'_>) -> PyResult<bool> {
        let known = match &*self.state.lock() {
            State::Open { session, process } if *process == std::process::id() => {
                Some(session.clone())
            }
            State::Open { .. } | State::Closed => None,
        };
        // An ended session is not replaced for this question.
        let session = known.map_or_else(|| self.session(py), Ok)?;
        Ok(py.detach(|| session.client.is_connected()))
    }

    /// The path that relative ones start at.
    #[getter]
    fn base<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        path::name(py, &self.session(py)?.base)
    }

    #[getter]
    fn closed(&self) -> bool {
        matches!(*self.state.lock(), State::Closed)
    }

    /// Ends the session. Later calls fail. A second call has no effect.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        sweep(py);
        let old = std::mem::replace(&mut *self.state.lock(), State::Closed);
        match old {
            State::Open { session, process } if process == std::process::id() => {
                blocking(py, || session.client.disconnect()).map_err(raise)
            }
            State::Open { .. } | State::Closed => Ok(()),
        }
    }

    /// Pings the server; returns the round trip in seconds.
    fn ping(&self, py: Python<'_>) -> PyResult<f64> {
        let session = self.session(py)?;
        let time = blocking(py, || session.client.ping()).map_err(raise)?;
        Ok(time.as_secs_f64())
    }

    /// The reads so far that could have been optimistic: a dictionary of their numbers by outcome, with
    /// the `bytes` of the hits and the channels that were `lost`. A forked child begins anew.
    fn optimistic_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.session(py)?;
        let found = py.detach(|| session.client.optimistic_stats());
        let said = PyDict::new(py);
        for (name, value) in [
            ("hits", found.hits),
            ("bytes", found.bytes),
            ("absent", found.absent),
            ("stale", found.stale),
            ("unknown", found.unknown),
            ("dead", found.dead),
            ("lost", found.lost),
        ] {
            said.set_item(name, value)?;
        }
        Ok(said)
    }

    /// Memory that the server reads and writes directly, over every transport.
    fn buffer(&self, py: Python<'_>, bytes: usize) -> PyResult<Buffer> {
        let session = self.session(py)?;
        let io = blocking(py, || session.client.buffer(bytes)).map_err(raise)?;
        Ok(Buffer::new(session, io))
    }

    /// Registers memory of Python until the registration is closed or dropped. The memory cannot be
    /// resized meanwhile.
    fn register(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<Registration> {
        Registration::new(py, self.session(py)?, memory)
    }

    /// An empty batch.
    fn batch(&self, py: Python<'_>) -> PyResult<Batch> {
        Ok(Batch::new(self.session(py)?))
    }

    /// An empty chain.
    fn chain(&self, py: Python<'_>) -> PyResult<Chain> {
        Ok(Chain::new(self.session(py)?))
    }

    /// The names on the fence list of a file, or of its file system; `None` without a list, when
    /// all clients have access.
    #[pyo3(signature = (path, *, file_system = false))]
    fn fence_list<'py>(
        &self,
        py: Python<'py>,
        path: &Bound<'py, PyAny>,
        file_system: bool,
    ) -> PyResult<Option<Vec<Bound<'py, PyString>>>> {
        let names = self.at(py, path, |client, name| {
            let found = client.resolve(name, Follow::Yes)?;
            client.fence_list(&found.handle, fenced(file_system))
        })?;
        names.map(|names| names.iter().map(|name| path::name(py, name)).collect()).transpose()
    }

    /// Changes a fence list: `how` is "set", "add", "remove" or "clear".
    #[pyo3(signature = (path, how, names = Vec::new(), *, file_system = false))]
    fn set_fence(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        how: &str,
        names: Vec<Bound<'_, PyAny>>,
        file_system: bool,
    ) -> PyResult<()> {
        let names = names.iter().map(path::raw).collect::<PyResult<Vec<_>>>()?;
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let change = match how {
            "set" => FenceChange::Set(&names),
            "add" => FenceChange::Add(&names),
            "remove" => FenceChange::Remove(&names),
            "clear" if names.is_empty() => FenceChange::Clear,
            "clear" => return Err(PyValueError::new_err("a list is cleared of all its names")),
            _ => {
                let text = "how is \"set\", \"add\", \"remove\" or \"clear\"";
                return Err(PyValueError::new_err(text));
            }
        };
        self.at(py, path, |client, name| {
            let found = client.resolve(name, Follow::Yes)?;
            client.set_fence(&found.handle, fenced(file_system), change)
        })
    }

    /// Opens a file: [`Opening`] has the meaning of the arguments.
    #[pyo3(signature = (
        path, access, create = "never", truncate = false, permissions = None, *, share_key = None,
        strict_key = false, deny = None, deny_delete = false, pattern = None, hint = None
    ))]
    fn open_raw(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        access: &str,
        create: &str,
        truncate: bool,
        permissions: Option<u32>,
        share_key: Option<u64>,
        strict_key: bool,
        deny: Option<&str>,
        deny_delete: bool,
        pattern: Option<&str>,
        hint: Option<Hint>,
    ) -> PyResult<RawFile> {
        let opening = Opening {
            access,
            create,
            truncate,
            permissions,
            share_key,
            strict_key,
            deny,
            deny_delete,
            pattern,
            hint,
        };
        let options = opening.options()?;
        let session = self.session(py)?;
        let name = path::path(path, &session.base)?;
        let file =
            blocking(py, || session.client.open(&name, &options)).map_err(raise_for(path))?;
        Ok(RawFile::new(session, file))
    }

    /// Makes and opens a file without a name, in the file system of a directory.
    fn open_unlinked_raw(
        &self,
        py: Python<'_>,
        directory: &Bound<'_, PyAny>,
        access: &str,
        permissions: u32,
    ) -> PyResult<RawFile> {
        let options = match access {
            "rw" => OpenOptions::read_write(),
            "w" => OpenOptions::write(),
            _ => return Err(PyValueError::new_err("access is \"w\" or \"rw\"")),
        };
        let options = options.attributes(change(Some(permissions)));
        let session = self.session(py)?;
        let name = path::path(directory, &session.base)?;
        let made = blocking(py, || {
            let found = session.client.resolve(&name, Follow::Yes)?;
            session.client.create_unlinked(&found.handle, &options)
        });
        Ok(RawFile::new(session, made.map_err(raise_for(directory))?))
    }

    /// Makes a file with content, which must not exist.
    fn create_raw(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        content: &[u8],
        permissions: u32,
    ) -> PyResult<()> {
        self.at(py, path, |client, name| {
            let place = client.resolve_new_from(&client.root(), name)?;
            let mode = SetAttributes::mode(permissions);
            let stability = Stability::Unstable;
            client.create_file(&place.dir, &place.name, &mode, content, stability).map(drop)
        })
    }

    /// Attributes of the object at a path; without `follow_symlinks`, of a symbolic link itself.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        follow_symlinks: bool,
    ) -> PyResult<Stat> {
        let found =
            self.at(py, path, |client, name| client.resolve(name, follow(follow_symlinks)))?;
        Ok(Stat::new(&found.attributes))
    }

    /// Iterates over a directory; without `follow_symlinks`, a symbolic link is an error.
    #[pyo3(signature = (path = None, *, follow_symlinks = true))]
    fn scandir(
        &self,
        py: Python<'_>,
        path: Option<Bound<'_, PyAny>>,
        follow_symlinks: bool,
    ) -> PyResult<Listing> {
        let path = path.unwrap_or_else(|| PyString::new(py, ".").into_any());
        let entries = self.at(py, &path, |client, name| {
            let found = client.resolve(name, follow(follow_symlinks))?;
            match found.attributes.is_directory() {
                true => Ok(client.read_dir(&found.handle)),
                false => Err(Error::Status {
                    procedure: dafs_client::Procedure::ReadDirDirect,
                    status: dafs_client::Status::NotDir,
                }),
            }
        })?;
        Ok(Listing::new(entries, path::raw(&path)?))
    }

    /// Makes a directory.
    #[pyo3(signature = (path, mode = 0o777))]
    fn mkdir(&self, py: Python<'_>, path: &Bound<'_, PyAny>, mode: u32) -> PyResult<()> {
        self.at(py, path, |client, name| {
            let place = client.resolve_new_directory_from(&client.root(), name)?;
            client.mkdir(&place.dir, &place.name, &change(Some(mode))).map(drop)
        })
    }

    /// Removes a name other than a directory's.
    fn unlink(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at(py, path, |client, name| client.remove_from(&client.root(), name, false))
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<()> {
        self.at(py, path, |client, name| client.remove_from(&client.root(), name, true))
    }

    /// Renames, replacing a target of the same kind.
    fn rename(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.at_both(py, (source, target), |client, from, to| {
            let root = client.root();
            let (from, to) = client.resolve_rename((&root, from), (&root, to))?;
            client.rename(&from.dir, &from.name, &to.dir, &to.name)
        })
    }

    /// Gives a file another name.
    fn link(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.at_both(py, (source, target), |client, from, to| {
            let root = client.root();
            client.link_from((&root, from), (&root, to))
        })
    }

    /// Makes a symbolic link at `target` with the text `text`, as `os.symlink` does.
    fn symlink(
        &self,
        py: Python<'_>,
        text: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let text = path::raw(text)?;
        self.at(py, target, |client, to| {
            let to = client.resolve_new_from(&client.root(), to)?;
            client.symlink(&to.dir, &to.name, &text).map(drop)
        })
    }

    /// The text of a symbolic link.
    fn readlink<'py>(
        &self,
        py: Python<'py>,
        path: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyString>> {
        let text = self.at(py, path, |client, name| {
            client.readlink(&client.resolve(name, Follow::No)?.handle)
        })?;
        path::name(py, &text)
    }

    /// Changes attributes: permission bits, numbers of owner and group, size, and times as a pair
    /// of nanoseconds (access, change of content).
    #[pyo3(signature = (path, *, mode = None, uid = None, gid = None, size = None, times_ns = None,
        follow_symlinks = true))]
    fn set_attributes(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        times_ns: Option<(i128, i128)>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (accessed, modified) = match times_ns {
            Some((accessed, modified)) => (Some(time(accessed)?), Some(time(modified)?)),
            None => (None, None),
        };
        let change = SetAttributes { mode, owner: uid, group: gid, size, accessed, modified };
        self.at(py, path, |client, name| {
            let found = client.resolve(name, follow(follow_symlinks))?;
            client.set_attributes(&found.handle, &change)
        })
    }

    /// Space of the file system of a path: a dictionary with those of `space_total`, `space_free`,
    /// `space_available`, `files_total`, `files_free` that the server reports, in bytes and files.
    fn statvfs<'py>(
        &self,
        py: Python<'py>,
        path: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let found = self.at(py, path, |client, name| {
            client.fs_status(&client.resolve(name, Follow::Yes)?.handle)
        })?;
        let said = PyDict::new(py);
        for (name, value) in [
            ("space_total", found.space_total),
            ("space_free", found.space_free),
            ("space_available", found.space_available),
            ("files_total", found.files_total),
            ("files_free", found.files_free),
        ] {
            if let Some(value) = value {
                said.set_item(name, value)?;
            }
        }
        Ok(said)
    }
}
