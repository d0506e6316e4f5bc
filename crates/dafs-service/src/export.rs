//! Exports and how they hang together in one name space.
//!
//! Invariants
//! * Every export has its own file system id, even when two export one directory, so that a handle
//!   says which export (and whose rules) it belongs to.
//! * Export names are compared whole, never by prefix.

use crate::durable::Durability;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::metrics::{DirectUse, Usage};
use crate::network::Admits;
use crate::pseudo::PseudoStore;
use crate::{Result, limits};
use dafs_store::{Cred, FsId, Store, StoreError, Wait, Waits};
use rustc_hash::{FxHashMap, FxHasher};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use thiserror::Error;

/// Whose requests run as the anonymous user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    /// Nobody's.
    None,
    /// Root's (the default).
    Root,
    /// Everybody's.
    All,
}

/// The user of callers that do not say who they are; every export puts its anonymous user in place
/// of it. No system has such a user.
pub const NO_USER: u32 = u32::MAX;

/// Rules of one export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// Who is squashed.
    pub squash: Squash,
    /// Whom squashed callers become.
    pub anonymous: Cred,
    /// Which callers that only claim who they are may come in.
    pub admits: Admits,
    /// What replies to changes survive, so that a client that lost one can ask what became of it.
    pub durable_replies: Durability,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            squash: Squash::Root,
            anonymous: Cred::new(65534, 65534),
            admits: Admits::default(),
            durable_replies: Durability::Off,
        }
    }
}

/// One exported file system.
pub struct Export {
    name: String,
    fs: FsId,
    store: Arc<dyn Store>,
    options: ExportOptions,
    usage: Usage,
    direct_use: DirectUse,
    waits: Waits,
}

/// What an operation does with what a handle leads to, as far as it may have to wait for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It looks at it, or changes names and attributes.
    Object,
    /// It changes where data ends, removes something, or asks for space.
    Data,
}

impl Export {
    /// Exports `store` under `name`, one component without '/', or "" for the only export of a
    /// server, which is then the root itself.
    pub fn new(name: &str, store: Arc<dyn Store>, options: ExportOptions) -> Self {
        let fs = Self::fs_of(&store.fs_id(), name);
        let waits = store.capabilities().waits;
        let (usage, direct_use) = (Usage::default(), DirectUse::default());
        Self { name: name.to_owned(), fs, store, options, usage, direct_use, waits }
    }

    /// Whether the store may wait for other machines then.
    fn waits_for(&self, touch: Touch) -> bool {
        match self.waits {
            Waits::Never => false,
            Waits::Data => touch == Touch::Data,
            Waits::Always => true,
        }
    }

    /// Sends an operation to where it may wait, if the store may.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn check_wait(&self, wait: Wait, touch: Touch) -> Result<()> {
        let waits = wait == Wait::Never && self.waits_for(touch);
        if waits { Err(ServiceError::WouldWait) } else { Ok(()) }
    }

    /// The file system id of the export of a store under a name.
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

    /// Its file system id.
    pub fn fs(&self) -> FsId {
        self.fs
    }

    /// Its store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Its rules.
    pub fn options(&self) -> &ExportOptions {
        &self.options
    }

    /// What was done in it.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// What clients say that they did at its data servers.
    pub fn direct_use(&self) -> &DirectUse {
        &self.direct_use
    }

    /// The handle of its top directory.
    pub fn root(&self) -> Handle {
        Handle { fs: self.fs, file: self.store.root() }
    }

    /// What an object is called where opens are compared: two exports of one directory lead to the
    /// same files.
    pub(crate) fn key(&self, handle: &Handle) -> Handle {
        Handle { fs: self.store.fs_id(), file: handle.file }
    }

    /// The credential that the store sees for a caller.
    pub fn map_cred<'a>(&'a self, cred: &'a Cred) -> Cow<'a, Cred> {
        match self.options.squash {
            _ if cred.uid == NO_USER => Cow::Borrowed(&self.options.anonymous),
            Squash::All => Cow::Borrowed(&self.options.anonymous),
            Squash::Root if cred.uid == 0 => Cow::Borrowed(&self.options.anonymous),
            // Group 0 is as powerful as its files make it; it goes with root.
            Squash::Root if cred.gid == 0 || cred.groups.contains(&0) => {
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

/// All exports of a server, and the root that clients start from.
pub struct Namespace {
    by_fs: FxHashMap<FsId, Arc<Export>>,
    root: Handle,
    /// The read-only directory of exports, when there are several.
    pseudo: Option<FsId>,
    by_name: FxHashMap<Vec<u8>, Arc<Export>>,
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
        if let [only] = exports.as_slice()
            && only.name.is_empty()
        {
            let root = only.root();
            let fs = only.fs;
            by_fs.extend(exports.into_iter().map(|export| (fs, Arc::new(export))));
            return Ok(Self { by_fs, root, pseudo: None, by_name });
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
        Ok(Self { by_fs, root, pseudo: Some(pseudo_fs), by_name })
    }

    /// Where clients start.
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

    /// Whether something done with what a handle leads to may wait for other machines. In the directory
    /// of exports that goes for their roots.
    pub fn waits_for(&self, handle: &Handle, touch: Touch) -> bool {
        if Some(handle.fs) == self.pseudo {
            return self.exports().any(|export| export.waits_for(Touch::Object));
        }
        self.by_fs.get(&handle.fs).is_some_and(|export| export.waits_for(touch))
    }

    /// By whose machines something done with what a handle leads to may be held up: the same number for
    /// all that wait for the same, 0 where none but this machine is waited for.
    pub fn lane(&self, handle: &Handle) -> u64 {
        if !self.waits_for(handle, Touch::Data) {
            return 0;
        }
        let mut hasher = FxHasher::default();
        handle.fs.hash(&mut hasher);
        hasher.finish().max(1)
    }

    /// The real exports, in no order.
    pub fn exports(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.by_fs.values().filter(|export| Some(export.fs) != self.pseudo)
    }

    /// A handle of the object that opens are compared by `key` for: the inverse of [`Export::key`],
    /// by the first of the exports that lead to it. The key itself if there is none.
    pub(crate) fn handle_of(&self, key: &Handle) -> Handle {
        let exports = self.exports().filter(|export| export.store.fs_id() == key.fs);
        let first = exports.min_by(|one, other| one.name.cmp(&other.name));
        first.map_or(*key, |export| Handle { fs: export.fs, file: key.file })
    }

    /// The export that hangs below the directory of exports at `name`.
    pub(crate) fn mounted(&self, dir: &Handle, name: &[u8]) -> Option<Handle> {
        (Some(dir.fs) == self.pseudo).then(|| self.by_name.get(name).map(|e| e.root())).flatten()
    }

    /// The number of the entry in the directory of exports that an export's root stands for; `None`
    /// for anything else.
    pub fn mounted_on(&self, handle: &Handle) -> Option<u64> {
        let pseudo = self.by_fs.get(&self.pseudo?)?;
        let export = self.by_fs.get(&handle.fs).filter(|export| export.root() == *handle)?;
        let (store, cred) = (&pseudo.store, Cred::new(0, 0));
        let entry = store.lookup(&cred, &store.root(), export.name.as_bytes()).ok()?;
        Some(entry.1.file_id)
    }

    /// The directory above an export's root, if it is that of the exports.
    pub(crate) fn above(&self, dir: &Handle) -> Option<Handle> {
        let pseudo = self.pseudo?;
        let export = self.by_fs.get(&dir.fs)?;
        (dir.fs != pseudo && export.store.root() == dir.file).then_some(self.root)
    }
}

const _: () = assert!(limits::PATH_COMPONENTS_MAX > 1);

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{MemoryOptions, MemoryStore};

    #[test]
    fn who_is_nobody_is_the_anonymous_user_of_every_export() {
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
