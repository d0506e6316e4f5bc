//! What a data server exports: the components of one node, by the handles that layouts carry.
//!
//! Invariants
//! * A component is reached only by a handle that the metadata server has sealed, for this node. It
//!   says which bytes are here, so that nothing is read or written in the wrong place: what belongs to
//!   other nodes goes to them by [`Elsewhere`], and is counted.

use super::{ComponentHandle, DirectoryNode, Node};
use crate::data::nameless;
use crate::limits::FILE_BYTES_MAX;
use crate::vectors::{after, before};
use crate::{
    Attr, DataFile, DataFiles, FileId, FsId, FsStat, Kind, NAME_BYTES_MAX, OpenFile, PartOfFile,
    Result, Stability, StoreError, TimeSpec, Wait,
};
use dafs_mem::VolatileSlice;
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher128};
use std::any::Any;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The way to bytes that another node holds.
pub trait Elsewhere: Send + Sync {
    /// Fills the views from `offset` of the file that the handle belongs to.
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
    secret: [u8; 16],
    component_fs: FsId,
    elsewhere: Arc<dyn Elsewhere>,
    indirect_bytes: AtomicU64,
}

/// What every store of components under a secret is called.
pub fn component_store_fs(secret: &[u8; 16]) -> FsId {
    let mut hasher = SipHasher128::new_with_key(secret);
    hasher.write(b"components");
    let hash = hasher.finish128();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&hash.h1.to_le_bytes());
    bytes[8..].copy_from_slice(&hash.h2.to_le_bytes());
    FsId(bytes)
}

/// What is shown with bytes that a striped store stands behind.
pub fn word(secret: &[u8; 16], bytes: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher128::new_with_key(secret);
    hasher.write(b"word");
    hasher.write(bytes);
    hasher.finish128().as_bytes()
}

impl ComponentStore {
    /// The components of `node`. `secret` and `component_fs` are those of the striped store
    /// (`dafs_striped::StripedOptions`), `elsewhere` is the way to what other nodes have.
    pub fn new(
        node: Arc<DirectoryNode>,
        secret: [u8; 16],
        component_fs: FsId,
        elsewhere: Arc<dyn Elsewhere>,
    ) -> Self {
        let indirect_bytes = AtomicU64::new(0);
        let shared = Shared { node, secret, component_fs, elsewhere, indirect_bytes };
        Self { shared: Arc::new(shared) }
    }

    /// The component behind a handle.
    ///
    /// # Errors
    /// `BadHandle` for what the metadata server has not sealed for this node.
    pub fn component(&self, id: &FileId) -> Result<ComponentFile> {
        let handle = ComponentHandle::open(id, &self.shared.component_fs, &self.shared.secret)?;
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
    /// What the handle says.
    pub fn handle(&self) -> &ComponentHandle {
        &self.handle
    }

    /// Goes through a range in parts that lie here (`true`) or elsewhere, until one comes short: how
    /// far that went, and the error that has ended it.
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

    /// The way to bytes that another node has, which clients should not have asked for here.
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

    /// As far as the component reaches; how far the file does, only the metadata server knows. Since
    /// less means a hole, an error is one behind other bytes, too.
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

    fn commit(&self, _offset: u64, _len: u64) -> Result<()> {
        // Of a loss that others have found the node tells the door by itself.
        self.shared.node.commit(&self.handle.component).map(drop)
    }

    fn sync(&self) -> Result<()> {
        self.commit(0, 0)
    }

    /// What is known here: the component's size and times. Those of the file are the metadata
    /// server's.
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

impl PartOfFile for ComponentFile {}

impl DataFile for ComponentFile {
    fn use_begins(&self) -> u64 {
        self.shared.node.use_begins(&self.handle.component)
    }

    fn use_ends(&self, begun: u64) {
        self.shared.node.use_ends(&self.handle.component, begun);
    }

    /// As far as one part goes: here, or on one other node. Where one comes short, the next may still
    /// have something.
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

    /// Only the metadata server knows.
    fn file_size(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

impl DataFiles for ComponentStore {
    fn fs_id(&self) -> FsId {
        component_store_fs(&self.shared.secret)
    }

    fn open(&self, id: &FileId) -> Result<Arc<dyn DataFile>> {
        Ok(Arc::new(self.component(id)?))
    }

    fn word(&self, bytes: &[u8]) -> Option<[u8; 16]> {
        Some(word(&self.shared.secret, bytes))
    }

    /// Bytes that clients asked for here although another node holds them. Under current layouts there
    /// are none.
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
