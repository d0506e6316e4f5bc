//! Configurations that follow their files without a restart.
//!
//! Invariants
//! * Broken files never replace a configuration that works.
//! * A reload that finds the same certificates changes nothing, so a timer may ask for it.

use crate::config::{ClientFiles, ClientSide, ConfigError, ServerFiles, ServerSide};
use dafs_mem::{Mutex, RwLock};
use std::sync::Arc;

/// The result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The files are as before.
    Unchanged,
    /// New connections get the new files. The caller judges the old connections again.
    Changed {
        /// The new generation.
        generation: u64,
    },
}

/// A configuration that threads share, and how to read it again.
struct Shared<T> {
    current: RwLock<Arc<T>>,
    /// One reload at a time, so that generations grow.
    reloading: Mutex<()>,
}

impl<T> Shared<T> {
    fn new(first: T) -> Self {
        Self { current: RwLock::new(Arc::new(first)), reloading: Mutex::new(()) }
    }

    fn current(&self) -> Arc<T> {
        self.current.read().clone()
    }

    /// Takes what `load` reads, given the next generation, if `is_same` says that it differs.
    fn reload(
        &self,
        generation: impl Fn(&T) -> u64,
        is_same: impl Fn(&T, &T) -> bool,
        load: impl FnOnce(u64) -> Result<T, ConfigError>,
    ) -> Result<Reload, ConfigError> {
        let _one = self.reloading.lock();
        let old = self.current();
        let next = generation(&old) + 1;
        let new = load(next)?;
        if is_same(&old, &new) {
            return Ok(Reload::Unchanged);
        }
        *self.current.write() = Arc::new(new);
        Ok(Reload::Changed { generation: next })
    }
}

/// The configuration of a server, which follows its files.
pub struct ReloadingServer {
    files: ServerFiles,
    shared: Shared<ServerSide>,
}

impl std::fmt::Debug for ReloadingServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReloadingServer({:?})", self.files)
    }
}

impl ReloadingServer {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn open(files: ServerFiles, now_seconds: u64) -> Result<Self, ConfigError> {
        let shared = Shared::new(files.load(now_seconds)?);
        Ok(Self { files, shared })
    }

    /// The configuration for the next connection.
    pub fn current(&self) -> Arc<ServerSide> {
        self.shared.current()
    }

    /// The files that are read.
    pub fn files(&self) -> &ServerFiles {
        &self.files
    }

    /// Reads the files again. This blocks on the disk, so no reactor calls it.
    ///
    /// # Errors
    /// [`ConfigError`]; the old configuration stays.
    pub fn reload(&self, now_seconds: u64) -> Result<Reload, ConfigError> {
        let load = |generation| self.files.load_as(generation, now_seconds);
        self.shared.reload(ServerSide::generation, ServerSide::has_same_files, load)
    }
}

/// The configuration of a client, which follows its files.
pub struct ReloadingClient {
    files: ClientFiles,
    shared: Shared<ClientSide>,
}

impl std::fmt::Debug for ReloadingClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReloadingClient({:?})", self.files)
    }
}

impl ReloadingClient {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn open(files: ClientFiles, now_seconds: u64) -> Result<Self, ConfigError> {
        let shared = Shared::new(files.load(now_seconds)?);
        Ok(Self { files, shared })
    }

    /// The configuration for the next connection.
    pub fn current(&self) -> Arc<ClientSide> {
        self.shared.current()
    }

    /// The files that are read.
    pub fn files(&self) -> &ClientFiles {
        &self.files
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// [`ConfigError`]; the old configuration stays.
    pub fn reload(&self, now_seconds: u64) -> Result<Reload, ConfigError> {
        let load = |generation| self.files.load_as(generation, now_seconds);
        self.shared.reload(ClientSide::generation, ClientSide::has_same_files, load)
    }
}
