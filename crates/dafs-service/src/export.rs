//! Exports, and the name space that joins them.
//!
//! Invariants
//! * Every export has its own file system id, even when two export one directory. So a handle names
//!   its export, and thereby the rules.
//! * Export names are compared whole, never by prefix.

use crate::durable::Durability;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::metrics::{DirectUse, ExportUse};
use crate::network::Admits;
use crate::open::SharedKeys;
use crate::pseudo::PseudoStore;
use crate::{Result, limits};
use dafs_mem::RwLock;
use dafs_store::{Cred, FsId, Store, StoreError, Wait, Waits};
use dafs_tls::TransportSecurity;
use rustc_hash::{FxHashMap, FxHasher};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// The callers whose requests run as the anonymous user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    /// No callers.
    None,
    /// Root (the default).
    Root,
    /// All callers.
    All,
}

/// The user of callers that do not say who they are. Every export replaces it by its anonymous
/// user. No system has such a user.
pub const NO_USER: u32 = u32::MAX;

/// The clients that may read blocks of an export's files from memory of the server, without requests
/// (optimistic reads).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum OptimisticReads {
    /// None.
    #[default]
    Off,
    /// Those of this host, which map the memory.
    Local,
    /// Those of other hosts, too, by RDMA reads.
    Remote,
}

impl OptimisticReads {
    /// True if some clients may.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }

    /// True if clients may that map the memory, or those that read it by RDMA (`is_remote`).
    pub fn serves(self, is_remote: bool) -> bool {
        self >= if is_remote { Self::Remote } else { Self::Local }
    }
}

/// The rules of one export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// The callers that are squashed.
    pub squash: Squash,
    /// The credential of squashed callers.
    pub anonymous: Cred,
    /// The unauthenticated callers that are admitted.
    pub admits: Admits,
    /// The failures that replies to changes survive, so that a client that lost a reply can still
    /// get it.
    pub durable_replies: Durability,
    /// The callers that share keys exclude. A change holds for opens that come after it.
    pub shared_keys: SharedKeys,
    /// The clients that may read blocks of files from the server's memory.
    pub optimistic: OptimisticReads,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            squash: Squash::Root,
            anonymous: Cred::new(65534, 65534),
            admits: Admits::default(),
            durable_replies: Durability::Off,
            shared_keys: SharedKeys::default(),
            optimistic: OptimisticReads::Off,
        }
    }
}

/// One exported file system.
pub struct Export {
    name: String,
    fs: FsId,
    store: Arc<dyn Store>,
    options: ExportOptions,
    usage: Arc<ExportUse>,
    direct_use: Arc<DirectUse>,
    waits: Waits,
}

/// The part of an object that an operation uses, which decides if it may have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// Attributes and names.
    Object,
    /// Its data: the operation changes the size, removes the object, or allocates space.
    Data,
}

impl Export {
    /// Exports `store` under `name`, one component without '/', or "" for the only export of a
    /// server, which is then the root itself.
    pub fn new(name: &str, store: Arc<dyn Store>, options: ExportOptions) -> Self {
        let fs = Self::fs_of(&store.fs_id(), name);
        let waits = store.capabilities().waits;
        let (usage, direct_use) = (Arc::new(ExportUse::new(name)), Arc::default());
        Self { name: name.to_owned(), fs, store, options, usage, direct_use, waits }
    }

    /// The same export with other options. The counters go on.
    #[must_use]
    pub fn with_options(&self, options: ExportOptions) -> Self {
        let (usage, direct_use) = (self.usage.clone(), self.direct_use.clone());
        let (name, store) = (self.name.clone(), self.store.clone());
        Self { name, fs: self.fs, store, options, usage, direct_use, waits: self.waits }
    }

    /// True if the store may wait for other machines in such an operation.
    fn waits_for(&self, touch: Touch) -> bool {
        match self.waits {
            Waits::Never => false,
            Waits::Data => touch == Touch::Data,
            Waits::Always => true,
        }
    }

    /// Refuses an operation that may wait, for a caller that may not.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn check_wait(&self, wait: Wait, touch: Touch) -> Result<()> {
        let waits = wait == Wait::Never && self.waits_for(touch);
        if waits { Err(ServiceError::WouldWait) } else { Ok(()) }
    }

    /// Returns the file system id of the export of a store under a name.
    pub fn fs_of(store: &FsId, name: &str) -> FsId {
        let mut hasher = SipHasher13::new_with_keys(0x6461_6673, 0x6578_706f_7274);
        hasher.write(&store.0);
        hasher.write(name.as_bytes());
        let hash = hasher.finish128();
        let mut fs = [0; 16];
        fs[..8].copy_from_slice(&hash.h1.to_be_bytes());
        fs[8..].copy_from_slice(&hash.h2.to_be_bytes());
        FsId(fs)
    }

    /// The name below the root.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file system id.
    pub fn fs(&self) -> FsId {
        self.fs
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The rules.
    pub fn options(&self) -> &ExportOptions {
        &self.options
    }

    /// Counts the operations in this export.
    pub fn usage(&self) -> &Arc<ExportUse> {
        &self.usage
    }

    /// The I/O at its data servers that clients have reported.
    pub fn direct_use(&self) -> &DirectUse {
        &self.direct_use
    }

    /// The handle of its top directory.
    pub fn root(&self) -> Handle {
        Handle { fs: self.fs, file: self.store.root() }
    }

    /// The key under which opens of an object are compared: two exports of one directory lead to
    /// the same files.
    pub(crate) fn key(&self, handle: &Handle) -> Handle {
        Handle { fs: self.store.fs_id(), file: handle.file }
    }

    /// Maps a caller's credential to the one that the store sees.
    pub fn map_cred<'a>(&'a self, cred: &'a Cred) -> Cow<'a, Cred> {
        match self.options.squash {
            _ if cred.uid == NO_USER => Cow::Borrowed(&self.options.anonymous),
            Squash::All => Cow::Borrowed(&self.options.anonymous),
            Squash::Root if cred.uid == 0 => Cow::Borrowed(&self.options.anonymous),
            // Group 0 is as powerful as the files of that group make it, so it is squashed with
            // root.
            Squash::Root if cred.is_in(0) => {
                let anonymous = self.options.anonymous.gid;
                let map = |gid: u32| if gid == 0 { anonymous } else { gid };
                Cow::Owned(Cred {
                    uid: cred.uid,
                    gid: map(cred.gid),
                    groups: cred.groups.iter().map(|&gid| map(gid)).collect(),
                })
            }
            Squash::Root | Squash::None => Cow::Borrowed(cred),
        }
    }

    /// Refuses if the export is read-only.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.options.read_only { Err(StoreError::ReadOnly.into()) } else { Ok(()) }
    }
}

/// Why exports cannot be put together.
#[derive(Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum NamespaceError {
    #[error("there is nothing to export; name a directory or an [[export]]")]
    Empty,
    #[error("two exports are called {0:?}; give each its own name")]
    Duplicate(String),
    #[error(
        "{0:?} cannot be the name of an export; use 1 to 255 characters without '/', and neither \
         \".\" nor \"..\""
    )]
    Name(String),
}

/// All exports of a server, and the root where clients start.
pub struct Namespace {
    by_fs: FxHashMap<FsId, Arc<Export>>,
    root: Handle,
    /// The read-only directory of exports, when there are several.
    pseudo: Option<FsId>,
    by_name: FxHashMap<Vec<u8>, Arc<Export>>,
    /// The strictest demand of an export on connections.
    strictest: TransportSecurity,
}

impl Namespace {
    /// Puts exports together. One export with an empty name is the root itself; otherwise the
    /// root is a read-only directory with one entry for each.
    ///
    /// # Errors
    /// Names that are not usable or not unique.
    pub fn new(exports: Vec<Export>) -> std::result::Result<Self, NamespaceError> {
        let mut by_fs = FxHashMap::default();
        let mut by_name = FxHashMap::default();
        if exports.is_empty() {
            return Err(NamespaceError::Empty);
        }
        let demands = exports.iter().map(|export| export.options.admits.transport_security);
        let strictest = demands.max().unwrap_or_default();
        if let [only] = exports.as_slice()
            && only.name.is_empty()
        {
            let root = only.root();
            let fs = only.fs;
            by_fs.extend(exports.into_iter().map(|export| (fs, Arc::new(export))));
            return Ok(Self { by_fs, root, pseudo: None, by_name, strictest });
        }
        for export in exports {
            let name = export.name.clone();
            if name.is_empty()
                || name == "."
                || name == ".."
                || name.len() > dafs_store::NAME_BYTES_MAX
                || name.contains(['/', '\0'])
            {
                return Err(NamespaceError::Name(name));
            }
            let export = Arc::new(export);
            by_fs.insert(export.fs, export.clone());
            if by_name.insert(name.clone().into_bytes(), export).is_some() {
                return Err(NamespaceError::Duplicate(name));
            }
        }
        let mut names: Vec<_> = by_name.keys().cloned().collect();
        names.sort();
        let store = Arc::new(PseudoStore::new(names));
        let admits = Admits::any_of(by_name.values().map(|export| &export.options.admits));
        let options = ExportOptions { read_only: true, admits, ..ExportOptions::default() };
        let pseudo = Arc::new(Export::new("", store, options));
        let root = pseudo.root();
        let pseudo_fs = pseudo.fs;
        by_fs.insert(pseudo_fs, pseudo);
        Ok(Self { by_fs, root, pseudo: Some(pseudo_fs), by_name, strictest })
    }

    /// The handle where clients start.
    pub fn root(&self) -> Handle {
        self.root
    }

    /// The export that a handle belongs to.
    ///
    /// # Errors
    /// `BadHandle` for a file system that this server does not export.
    pub fn export(&self, handle: &Handle) -> Result<&Arc<Export>> {
        self.by_fs.get(&handle.fs).ok_or(ServiceError::Store(StoreError::BadHandle))
    }

    /// True if such an operation on the object may wait for other machines. In the directory of
    /// exports, the roots of the exports decide.
    pub fn waits_for(&self, handle: &Handle, touch: Touch) -> bool {
        if Some(handle.fs) == self.pseudo {
            return self.exports().any(|export| export.waits_for(Touch::Object));
        }
        self.by_fs.get(&handle.fs).is_some_and(|export| export.waits_for(touch))
    }

    /// The machines that may delay an operation on the object, as a number: equal for all
    /// operations that wait for the same machines, 0 if only this machine is waited for.
    pub fn lane(&self, handle: &Handle) -> u64 {
        if !self.waits_for(handle, Touch::Data) {
            return 0;
        }
        let mut hasher = FxHasher::default();
        handle.fs.hash(&mut hasher);
        hasher.finish().max(1)
    }

    /// The least protection of connections that the object demands, or the strictest of all exports
    /// for a handle of none.
    pub fn transport_security(&self, handle: &Handle) -> TransportSecurity {
        match self.by_fs.get(&handle.fs) {
            Some(export) => export.options.admits.transport_security,
            None => self.strictest,
        }
    }

    /// The strictest demand of an export on connections.
    pub fn strictest_transport_security(&self) -> TransportSecurity {
        self.strictest
    }

    /// The real exports, in no order.
    pub fn exports(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.by_fs.values().filter(|export| Some(export.fs) != self.pseudo)
    }

    /// Returns a handle of the object with this key: the inverse of [`Export::key`], by the first
    /// of the exports that lead to it. Returns the key itself if there is none.
    pub(crate) fn handle_of(&self, key: &Handle) -> Handle {
        let exports = self.exports().filter(|export| export.store.fs_id() == key.fs);
        let first = exports.min_by(|one, other| one.name.cmp(&other.name));
        first.map_or(*key, |export| Handle { fs: export.fs, file: key.file })
    }

    /// True if an export admits proven users alone.
    pub fn demands_proof(&self) -> bool {
        self.exports().any(|export| export.options.admits.demands_proof())
    }

    /// The export that a path from `dir` leads into at its first component. No other component
    /// leads from one export to another.
    pub fn entered(&self, dir: &Handle, name: &[u8]) -> Option<&Arc<Export>> {
        (Some(dir.fs) == self.pseudo).then(|| self.by_name.get(name)).flatten()
    }

    /// The export that is mounted at `name` in the directory of exports.
    pub(crate) fn mounted(&self, dir: &Handle, name: &[u8]) -> Option<Handle> {
        self.entered(dir, name).map(|export| export.root())
    }

    /// The number of the directory entry that an export's root is mounted on. `None` for other
    /// objects.
    pub fn mounted_on(&self, handle: &Handle) -> Option<u64> {
        let pseudo = self.by_fs.get(&self.pseudo?)?;
        let export = self.by_fs.get(&handle.fs).filter(|export| export.root() == *handle)?;
        let (store, cred) = (&pseudo.store, Cred::new(0, 0));
        let entry = store.lookup(&cred, &store.root(), export.name.as_bytes()).ok()?;
        Some(entry.1.file_id)
    }

    /// The parent of an export's root, if that is the directory of exports.
    pub(crate) fn above(&self, dir: &Handle) -> Option<Handle> {
        let pseudo = self.pseudo?;
        let export = self.by_fs.get(&dir.fs)?;
        (dir.fs != pseudo && export.store.root() == dir.file).then_some(self.root)
    }
}

/// The exports now, which the administrator may replace.
pub(crate) struct Exports {
    namespace: RwLock<Arc<Namespace>>,
    /// Counts the replacements.
    version: AtomicU64,
}

impl Exports {
    pub(crate) fn new(namespace: Namespace) -> Self {
        Self { namespace: RwLock::new(Arc::new(namespace)), version: AtomicU64::new(0) }
    }

    pub(crate) fn namespace(&self) -> Arc<Namespace> {
        self.namespace.read().clone()
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn replace(&self, namespace: Arc<Namespace>) {
        *self.namespace.write() = namespace;
        self.version.fetch_add(1, Ordering::Release);
    }
}

const _: () = assert!(limits::PATH_COMPONENTS_MAX > 1);

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{MemoryOptions, MemoryStore};

    #[test]
    fn user_nobody_is_the_anonymous_user_of_every_export() {
        for squash in [Squash::None, Squash::Root, Squash::All] {
            let anonymous = Cred::new(1000, 100);
            let options = ExportOptions { squash, anonymous, ..ExportOptions::default() };
            let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
            let export = Export::new("", store, options);
            let nobody = Cred::new(NO_USER, NO_USER);
            assert_eq!(*export.map_cred(&nobody), Cred::new(1000, 100), "{squash:?}");
        }
    }
}
