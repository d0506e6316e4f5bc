//! Configurations that follow their files without a restart.
//!
//! Invariants
//! * Broken files never replace a configuration that works.
//! * A reload that finds the same certificates changes nothing, so a timer may ask for it.
//! * A broken file is reported once for each of its changes. Where the failure may pass without
//!   another change, each look tries again.

use crate::config::{ClientFiles, ClientSide, ConfigError, Loading, ServerFiles, ServerSide};
use dafs_mem::{Mutex, RwLock};
use std::fs;
use std::mem::{self, Discriminant};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
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

/// The files of one end, and the configuration that they make.
pub trait Files {
    /// The configuration.
    type Side;

    /// All files that are named.
    fn paths(&self) -> Vec<&Path>;

    #[doc(hidden)]
    fn load_as(&self, loading: Loading) -> Result<Self::Side, ConfigError>;

    #[doc(hidden)]
    fn generation(side: &Self::Side) -> u64;

    #[doc(hidden)]
    fn has_same_files(one: &Self::Side, other: &Self::Side) -> bool;

    /// Tells the new configuration which of its parts are those of the old one.
    #[doc(hidden)]
    fn follow_on(_old: &Self::Side, _new: &mut Self::Side) {}
}

impl Files for ServerFiles {
    type Side = ServerSide;

    fn paths(&self) -> Vec<&Path> {
        let further = self.authorities.iter().chain(&self.revocations);
        [&self.certificate, &self.key].into_iter().chain(further).map(|path| &**path).collect()
    }

    fn load_as(&self, loading: Loading) -> Result<ServerSide, ConfigError> {
        Self::load_as(self, loading)
    }

    fn generation(side: &ServerSide) -> u64 {
        side.generation()
    }

    fn has_same_files(one: &ServerSide, other: &ServerSide) -> bool {
        one.has_same_files(other)
    }

    fn follow_on(old: &ServerSide, new: &mut ServerSide) {
        if old.trust.has_same_files(&new.trust) {
            new.trust_generation = old.trust_generation;
        }
        new.rules = old.rules;
    }
}

impl Files for ClientFiles {
    type Side = ClientSide;

    fn paths(&self) -> Vec<&Path> {
        let further = self.revocations.iter().chain(&self.certificate).chain(&self.key);
        std::iter::once(&self.authorities).chain(further).map(|path| &**path).collect()
    }

    fn load_as(&self, loading: Loading) -> Result<ClientSide, ConfigError> {
        Self::load_as(self, loading)
    }

    fn generation(side: &ClientSide) -> u64 {
        side.generation()
    }

    fn has_same_files(one: &ClientSide, other: &ClientSide) -> bool {
        one.has_same_files(other)
    }
}

/// The state of a file: a file that was replaced or written has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds. Neither can be set back by a copy that keeps times.
    changed: (i64, i64),
}

impl Stamp {
    /// None for a file that is not there.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let changed = (found.ctime(), found.ctime_nsec());
        Some(Self { device: found.dev(), inode: found.ino(), bytes: found.len(), changed })
    }
}

/// A configuration that threads share, and that follows its files.
pub struct Reloading<F: Files> {
    files: F,
    current: RwLock<Arc<F::Side>>,
    /// The files at the last look. One reload at a time, so that generations grow.
    looked: Mutex<Looked>,
}

/// The last look at the files.
#[derive(Debug)]
struct Looked {
    stamps: Vec<Option<Stamp>>,
    /// The failure that the next look tries to pass.
    failure: Option<Discriminant<ConfigError>>,
}

/// True for a failure that may pass while the files stay as they are.
fn may_pass(error: &ConfigError) -> bool {
    matches!(error, ConfigError::Io(..) | ConfigError::NotYetValid { .. })
}

/// The configuration of a server, which follows its files.
pub type ReloadingServer = Reloading<ServerFiles>;

/// The configuration of a client, which follows its files.
pub type ReloadingClient = Reloading<ClientFiles>;

impl<F: Files + std::fmt::Debug> std::fmt::Debug for Reloading<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reloading({:?})", self.files)
    }
}

impl<F: Files> Reloading<F> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn open(files: F, now_seconds: u64) -> Result<Self, ConfigError> {
        let looked = Mutex::new(Looked { stamps: stamps(&files), failure: None });
        let first = files.load_as(Loading { generation: 1, now_seconds })?;
        Ok(Self { files, current: RwLock::new(Arc::new(first)), looked })
    }

    /// The configuration for the next connection.
    pub fn current(&self) -> Arc<F::Side> {
        self.current.read().clone()
    }

    /// The files that are read.
    pub fn files(&self) -> &F {
        &self.files
    }

    /// Reads the files again. This blocks on the disk, so no reactor calls it.
    ///
    /// # Errors
    /// [`ConfigError`]; the old configuration stays.
    pub fn reload(&self, now_seconds: u64) -> Result<Reload, ConfigError> {
        let mut looked = self.looked.lock();
        looked.stamps = stamps(&self.files);
        self.try_reload(&mut looked, now_seconds)
    }

    /// Reads the files again if one of them has changed since the last look, or if the failure of
    /// that look may have passed. This blocks on the disk.
    ///
    /// # Errors
    /// [`ConfigError`], once for each change and failure; the old configuration stays.
    pub fn follow(&self, now_seconds: u64) -> Result<Reload, ConfigError> {
        let mut looked = self.looked.lock();
        let now = stamps(&self.files);
        let has_changed = looked.stamps != now;
        if !has_changed && looked.failure.is_none() {
            return Ok(Reload::Unchanged);
        }
        looked.stamps = now;
        let before = looked.failure;
        match self.try_reload(&mut looked, now_seconds) {
            // The caller knows it already.
            Err(_) if !has_changed && looked.failure == before => Ok(Reload::Unchanged),
            reloaded => reloaded,
        }
    }

    fn try_reload(&self, looked: &mut Looked, now_seconds: u64) -> Result<Reload, ConfigError> {
        let reloaded = self.reload_locked(now_seconds);
        let failure = reloaded.as_ref().err().filter(|error| may_pass(error));
        looked.failure = failure.map(mem::discriminant);
        reloaded
    }

    fn reload_locked(&self, now_seconds: u64) -> Result<Reload, ConfigError> {
        let old = self.current();
        let generation = F::generation(&old) + 1;
        let mut new = self.files.load_as(Loading { generation, now_seconds })?;
        if F::has_same_files(&old, &new) {
            return Ok(Reload::Unchanged);
        }
        F::follow_on(&old, &mut new);
        *self.current.write() = Arc::new(new);
        Ok(Reload::Changed { generation })
    }
}

impl ReloadingServer {
    /// Says whether there are rules for the users that certificates of clients name, and that they have
    /// changed. Connections of such clients end, and begin again under these rules. Without rules the names
    /// mean nothing.
    pub fn change_rules(&self, has_rules: bool) {
        let _one_at_a_time = self.looked.lock();
        let new = self.current().with_rules(has_rules);
        *self.current.write() = Arc::new(new);
    }
}

fn stamps(files: &impl Files) -> Vec<Option<Stamp>> {
    files.paths().into_iter().map(Stamp::of).collect()
}
