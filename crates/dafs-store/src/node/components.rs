//! The export of a data server: the components of one node, by the handles in layouts.
//!
//! Invariants
//! * A component is reached only by a handle that the metadata server has sealed for this node. The
//!   handle shows which bytes are here, so no data is read or written in the wrong place: requests
//!   for bytes of other nodes go to them by [`Elsewhere`], and are counted.

use super::{ComponentHandle, DirectoryNode, Node};
use crate::data::nameless;
use crate::limits::FILE_BYTES_MAX;
use crate::vectors::{after, before};
use crate::{
    Advised, Attr, CacheAdvice, DataFile, DataFiles, DataKeys, FileId, FsId, FsStat, Kind,
    NAME_BYTES_MAX, OpenFile, PartOfFile, Result, Stability, StoreError, TimeSpec, Wait,
};
use dafs_mem::VolatileSlice;
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher128};
use std::any::Any;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Access to bytes on other nodes.
pub trait Elsewhere: Send + Sync {
    /// Fills the views from `offset` of the file of the handle.
    ///
    /// # Errors
    /// The other node's.
    fn read(
        &self,
        handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize>;

    /// Writes the views to `offset` of that file.
    ///
    /// # Errors
    /// The other node's.
    fn write(
        &self,
        handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<usize>;
}

/// The components of a node as a store without names.
pub struct ComponentStore {
    shared: Arc<Shared>,
}

struct Shared {
    node: Arc<DirectoryNode>,
    keys: DataKeys,
    component_fs: FsId,
    elsewhere: Arc<dyn Elsewhere>,
    indirect_bytes: AtomicU64,
}

/// Returns the file system id of the components of a store, from the identity of that. It outlives
/// a change of the keys.
pub fn component_store_fs(store: &[u8; 16]) -> FsId {
    let mut hasher = SipHasher128::new_with_key(store);
    hasher.write(b"components");
    let hash = hasher.finish128();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&hash.h1.to_le_bytes());
    bytes[8..].copy_from_slice(&hash.h2.to_le_bytes());
    FsId(bytes)
}

/// Returns the MAC by which data servers verify that bytes come from their striped store.
pub fn mac(key: &[u8; 16], bytes: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher128::new_with_key(key);
    hasher.write(b"word");
    hasher.write(bytes);
    hasher.finish128().as_bytes()
}

impl ComponentStore {
    /// Makes a store of the components of `node`. `keys` and `component_fs` are those of the
    /// striped store (`dafs_striped::StripedOptions`), `elsewhere` reaches the other nodes.
    pub fn new(
        node: Arc<DirectoryNode>,
        keys: DataKeys,
        component_fs: FsId,
        elsewhere: Arc<dyn Elsewhere>,
    ) -> Self {
        let indirect_bytes = AtomicU64::new(0);
        let shared = Shared { node, keys, component_fs, elsewhere, indirect_bytes };
        Self { shared: Arc::new(shared) }
    }

    /// Opens the component of a handle.
    ///
    /// # Errors
    /// `BadHandle` for a handle that the metadata server has not sealed for this node.
    pub fn component(&self, id: &FileId) -> Result<ComponentFile> {
        let handle = ComponentHandle::open_with(id, &self.shared.component_fs, &self.shared.keys)?;
        if handle.node != self.shared.node.number() {
            return Err(StoreError::BadHandle);
        }
        Ok(ComponentFile { shared: self.shared.clone(), id: *id, handle })
    }
}

impl std::fmt::Debug for ComponentStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComponentStore").field("node", &self.shared.node).finish_non_exhaustive()
    }
}

/// A component in use.
pub struct ComponentFile {
    shared: Arc<Shared>,
    id: FileId,
    handle: ComponentHandle,
}

impl ComponentFile {
    /// Returns the decoded handle.
    pub fn handle(&self) -> &ComponentHandle {
        &self.handle
    }

    /// Transfers a range in parts, each here (`true`) or on another node, until one is short.
    /// Returns the number of bytes, and the error that has ended it.
    fn in_parts(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        mut transfer: impl FnMut(bool, &[VolatileSlice<'_>], u64) -> Result<usize>,
    ) -> (usize, Result<()>) {
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        let unit = u64::from(self.handle.unit_bytes.get());
        let mut done = 0;
        while done < wanted {
            let Some(at) = offset.checked_add(done as u64) else {
                return (done, Err(StoreError::FileTooBig));
            };
            let local = self.handle.local_bytes(at);
            let len = if local > 0 { local } else { unit - at % unit };
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(wanted - done);
            let part = before(&after(views, done), len);
            match transfer(local > 0, &part, at) {
                Ok(count) => {
                    done += count;
                    if count < len {
                        break;
                    }
                }
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    /// Returns the access to bytes on another node, and counts them. A client with a current layout
    /// does not ask for them here.
    fn elsewhere(&self, views: &[VolatileSlice<'_>]) -> &dyn Elsewhere {
        let len: usize = views.iter().map(VolatileSlice::len).sum();
        self.shared.indirect_bytes.fetch_add(len as u64, Ordering::Relaxed);
        &*self.shared.elsewhere
    }
}

impl OpenFile for ComponentFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.id
    }

    /// Reads up to the end of the component; only the metadata server knows the size of the file. A
    /// short count means a hole, so an error is returned even after some bytes.
    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        let node = &self.shared.node;
        let read = |local, views: &[VolatileSlice<'_>], at| match (local, wait) {
            (true, _) => node.read_waiting(&self.handle.component, views, at, wait),
            (false, Wait::Never) => Err(StoreError::WouldBlock),
            (false, Wait::Allowed) => self.elsewhere(views).read(&self.handle, views, at),
        };
        let (done, end) = self.in_parts(views, offset, read);
        end.map(|()| done)
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        if wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        let write = |local, views: &[VolatileSlice<'_>], at| {
            if local {
                let component = &self.handle.component;
                Ok(self.shared.node.write(component, views, at, stability)?.count)
            } else {
                self.elsewhere(views).write(&self.handle, views, at, stability)
            }
        };
        match self.in_parts(views, offset, write) {
            (0, Err(error)) => Err(error),
            (done, _) => Ok(done),
        }
    }

    fn sync(&self) -> Result<()> {
        // The node itself notifies the front end of a loss that another request has found.
        self.shared.node.commit(&self.handle.component).map(drop)
    }

    /// Returns the component's size and times. Only the metadata server knows those of the file.
    fn attr(&self) -> Result<Attr> {
        let found = self.shared.node.look(&self.handle.component)?;
        let mtime = found.map_or(TimeSpec::default(), |found| found.mtime);
        let size = found.map_or(0, |found| found.size);
        let seconds = mtime.seconds.unsigned_abs().wrapping_mul(1_000_000_000);
        Ok(Attr {
            size,
            space_used: found.map_or(0, |found| found.space_used),
            file_id: SipHasher24::new().hash(&self.handle.component.0),
            atime: mtime,
            mtime,
            ctime: mtime,
            change: seconds.wrapping_add(u64::from(mtime.nanoseconds)),
            ..nameless(Kind::Regular)
        })
    }
}

impl PartOfFile for ComponentFile {
    /// Bytes of other nodes are not in the cache of this one.
    fn advise_part(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        let local = self.handle.local_bytes(offset);
        let len = if len == 0 { local } else { len.min(local) };
        if len == 0 {
            return Ok(Advised::Ignored);
        }
        self.shared.node.advise(&self.handle.component, offset, len, advice)
    }
}

impl DataFile for ComponentFile {
    fn use_begins(&self) -> u64 {
        self.shared.node.use_begins(&self.handle.component)
    }

    fn use_ends(&self, begun: u64) {
        self.shared.node.use_ends(&self.handle.component, begun);
    }

    /// Up to the end of one part, which is here or on another node. After a short part the next one
    /// may still have data.
    fn served_bytes(&self, offset: u64, len: usize) -> Result<usize> {
        if len == 0 {
            return Ok(len);
        }
        let unit = u64::from(self.handle.unit_bytes.get());
        let part = match self.handle.local_bytes(offset) {
            0 => unit - offset % unit,
            local => local,
        };
        Ok(usize::try_from(part).unwrap_or(usize::MAX).min(len))
    }

    /// Only the metadata server knows it.
    fn file_size(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

impl DataFiles for ComponentStore {
    fn fs_id(&self) -> FsId {
        component_store_fs(self.shared.keys.store())
    }

    fn open(&self, id: &FileId) -> Result<Arc<dyn DataFile>> {
        Ok(Arc::new(self.component(id)?))
    }

    fn macs(&self, bytes: &[u8]) -> Vec<[u8; 16]> {
        self.shared.keys.accepted().map(|key| mac(&key, bytes)).collect()
    }

    /// Bytes that clients asked for here although another node has them. There are none under
    /// current layouts.
    fn indirect_bytes(&self) -> u64 {
        self.shared.indirect_bytes.load(Ordering::Relaxed)
    }

    fn space(&self) -> Result<FsStat> {
        let space = self.shared.node.space()?;
        Ok(FsStat {
            space_total: space.total,
            space_free: space.free,
            space_available: space.available,
            name_bytes_max: NAME_BYTES_MAX as u32,
            file_bytes_max: FILE_BYTES_MAX,
            ..FsStat::default()
        })
    }
}
