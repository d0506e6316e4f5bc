//! A session, and how to have another one like it.

use dafs_client::{
    Authentication, CacheOptions, Client, ConnectOptions, DafsUrl, IoBuffer, TransportChoice,
    TransportKind,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::wait::seconds;

/// A session of this process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The path of the URL, without a slash at the end.
    pub(crate) base: Vec<u8>,
    /// The client keeps content, so that what is read is better copied out of that.
    pub(crate) is_cached: bool,
    /// Memory that Python got from this client, by address. Who owns it takes it out.
    buffers: Mutex<BTreeMap<usize, IoBuffer>>,
}

impl Session {
    pub(crate) fn connect(url: &DafsUrl, options: &ConnectOptions) -> dafs_client::Result<Self> {
        let client = Client::connect(url, options)?;
        let mut base = url.path().to_vec();
        while base.last() == Some(&b'/') {
            base.pop();
        }
        let is_cached = options.cache.is_some();
        Ok(Self { client, base, is_cached, buffers: Mutex::default() })
    }

    /// True when memory that is not of the client's own is reached by copying.
    pub(crate) fn copies_foreign_memory(&self) -> bool {
        self.client.transport().kind == TransportKind::Shm
    }

    fn buffers(&self) -> MutexGuard<'_, BTreeMap<usize, IoBuffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_buffer(&self, buffer: &IoBuffer) {
        let address = buffer.view().as_ptr() as usize;
        self.buffers().insert(address, buffer.clone());
    }

    pub(crate) fn remove_buffer(&self, buffer: &IoBuffer) {
        self.buffers().remove(&(buffer.view().as_ptr() as usize));
    }

    /// The buffer of this client's that a piece of memory lies in, and where.
    pub(crate) fn own_buffer(
        &self,
        address: usize,
        len: usize,
    ) -> Option<(IoBuffer, Range<usize>)> {
        let buffers = self.buffers();
        let (start, buffer) = buffers.range(..=address).next_back()?;
        let at = address - start;
        let end = at.checked_add(len)?;
        (end <= buffer.len()).then(|| (buffer.clone(), at..end))
    }
}

/// What a connection needs, from the arguments of `connect`.
pub(crate) fn options(
    url: &DafsUrl,
    transport: &str,
    password: Option<String>,
    deadline: Option<f64>,
    recovery: Option<f64>,
    connect_timeout: f64,
    checksums: bool,
    client_id: Option<String>,
    fence_id: Option<String>,
    cache_bytes: usize,
) -> PyResult<ConnectOptions> {
    let transport = match transport {
        "auto" => TransportChoice::Auto,
        "iwarp" => TransportChoice::Iwarp,
        "shm" => TransportChoice::Shm,
        _ => return Err(PyValueError::new_err("a transport is \"auto\", \"iwarp\" or \"shm\"")),
    };
    let authentication = match (url.user(), password) {
        (Some(user), Some(password)) => Authentication::Text { id: user.to_owned(), password },
        (None, Some(_)) => {
            return Err(PyValueError::new_err("a password needs a user: dafs://USER@HOST/"));
        }
        (_, None) => Authentication::None,
    };
    let mut options = ConnectOptions {
        transport,
        authentication,
        checksums,
        client_id,
        fence_id,
        deadline: deadline.map(seconds).transpose()?.flatten(),
        recovery: recovery.map(seconds).transpose()?.flatten(),
        ..ConnectOptions::default()
    };
    if let Some(time) = seconds(connect_timeout)? {
        options.connect_timeout = time;
    }
    if cache_bytes > 0 {
        options.cache = Some(CacheOptions::new(cache_bytes));
    }
    Ok(options)
}
