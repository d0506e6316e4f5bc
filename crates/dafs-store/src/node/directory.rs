//! A local directory as a node of a striped store.
//!
//! Components are files named by their ids, in up to 256 directories by the first byte, so that
//! none becomes too large. The file `node` identifies the node.
//!
//! Invariants
//! * A directory is used only if it holds the marker of the node. So a file system that is not
//!   mounted is not mistaken for an empty node.
//! * A directory is not used if others may write to it or to a directory in it, or if it belongs to
//!   a user other than the server's and root. No symlink is followed below it.
//! * The kernel reports lost data once, to the first sync after the loss. The thread that gets the
//!   error reports the loss before another thread may sync the component. A component stays open
//!   until its data is stable, because with its last descriptor the kernel may drop the error.

use super::{ComponentId, Digest, Node, NodeSpace, Written, digest};
use crate::advice::{advise_local, drop_cached};
use crate::leaving::Leaving;
use crate::limits::{
    COMPONENTS_CLOSED, COMPONENTS_OPEN_MAX, FILE_BYTES_MAX, LEAVING_BYTES_MAX,
    NODE_MARKER_BYTES_MAX,
};
use crate::own::{self, OwnError};
use crate::uses::Uses;
use crate::vectors::{before, continued, continued_to_end};
use crate::{Advised, CacheAdvice, Result, Stability, StoreError, TimeSpec, Wait};
use dafs_mem::Shrinking as _;
use dafs_mem::{Mutex, VolatileSlice, preadv2, pwritev2};
use rustc_hash::FxHashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;

/// The name of the marker.
const MARKER: &str = "node";

/// The reason why a directory is not that of the node.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum DirectoryError {
    #[error(
        "{0}/node is missing: is the file system that holds it mounted? If it is, copy the file back"
    )]
    Unmarked(PathBuf),
    #[error("{0} is not empty, and no directory of a node; give the node an empty one")]
    NotEmpty(PathBuf),
    #[error("{0} is of another node or another store, or {0}/node is damaged: copy it back")]
    Other(PathBuf),
    #[error("{0}")]
    Own(OwnError),
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
}

impl From<OwnError> for DirectoryError {
    fn from(error: OwnError) -> Self {
        match error {
            OwnError::Io(path, error) => Self::Io(path, error),
            error => Self::Own(error),
        }
    }
}

/// An open component.
struct Held {
    file: File,
    /// True if its name is known to be stable.
    named: AtomicBool,
    /// Held during a sync, until its outcome is reported.
    syncing: Mutex<()>,
    /// True if data was written since the last sync.
    written: AtomicBool,
    /// The value of `turns` at its last use.
    used: AtomicU64,
}

impl Held {
    fn new(file: File, named: bool) -> Self {
        let (syncing, written, used) = Default::default();
        Self { file, named: AtomicBool::new(named), syncing, written, used }
    }
}

/// The attributes of a component.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) size: u64,
    pub(super) space_used: u64,
    pub(super) mtime: TimeSpec,
}

/// A directory that holds components.
pub struct DirectoryNode {
    number: u32,
    root: PathBuf,
    verifier: AtomicU64,
    addresses: Vec<SocketAddr>,
    rdma_addresses: Vec<SocketAddr>,
    dafs_addresses: Vec<SocketAddr>,
    open: Mutex<FxHashMap<ComponentId, Arc<Held>>>,
    /// Counts the uses of components.
    turns: AtomicU64,
    /// Called when unstable data is lost.
    lost: Box<dyn Fn() + Send + Sync>,
    /// The running requests of clients on each component.
    uses: Uses<ComponentId>,
    /// Data that leaves the kernel's cache first.
    leaving: Leaving<ComponentId>,
}

impl std::fmt::Debug for DirectoryNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectoryNode").field("root", &self.root).finish_non_exhaustive()
    }
}

impl DirectoryNode {
    /// Makes an empty directory into that of a node of the store `store`, or checks that it is one.
    ///
    /// # Errors
    /// When it has other content.
    pub fn make(
        path: &Path,
        store: &[u8; 16],
        number: u32,
    ) -> std::result::Result<(), DirectoryError> {
        let io = |error| DirectoryError::Io(path.to_owned(), error);
        if fs::exists(path.join(MARKER)).map_err(io)? {
            return check_marker(path, store, number);
        }
        Self::check_empty(path)?;
        let marked = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path.join(MARKER))?;
            file.write_all(marker(store, number).as_bytes())?;
            file.sync_all()?;
            File::open(path)?.sync_all()
        };
        marked().map_err(io)
    }

    /// Checks that a directory is empty, so that it may become that of a node.
    ///
    /// # Errors
    /// [`DirectoryError::NotEmpty`] if it is not.
    pub fn check_empty(path: &Path) -> std::result::Result<(), DirectoryError> {
        // `lost+found` is in every new file system.
        let other = fs::read_dir(path)
            .map_err(|error| DirectoryError::Io(path.to_owned(), error))?
            .any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found"));
        if other {
            Err(DirectoryError::NotEmpty(path.to_owned()))
        } else {
            Ok(own::close_directory(path)?)
        }
    }

    /// Returns the store and the number of the node that a directory is marked for.
    ///
    /// # Errors
    /// [`DirectoryError::Other`] for a damaged marker.
    pub fn marked(path: &Path) -> std::result::Result<Option<([u8; 16], u32)>, DirectoryError> {
        let text = match own::read(&path.join(MARKER), NODE_MARKER_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DirectoryError::Io(path.to_owned(), error)),
        };
        let parsed = std::str::from_utf8(&text).ok().and_then(|text| {
            let rest = text.strip_prefix("dafs node ")?.strip_suffix('\n')?;
            let (number, store) = rest.split_once(" of ")?;
            Some((ComponentId::parse(store)?.0, number.parse().ok()?))
        });
        match parsed {
            Some((store, number)) if marker(&store, number).as_bytes() == text => {
                Ok(Some((store, number)))
            }
            _ => Err(DirectoryError::Other(path.to_owned())),
        }
    }

    /// Opens the directory of a node that was made before. `addresses` are those at which clients
    /// reach the node directly.
    ///
    /// # Errors
    /// When it is the directory of another node.
    pub fn open(
        path: &Path,
        store: &[u8; 16],
        number: u32,
        addresses: Vec<SocketAddr>,
    ) -> std::result::Result<Self, DirectoryError> {
        check_marker(path, store, number)?;
        check_inside(path)?;
        let mut verifier = [0; 8];
        getrandom::fill(&mut verifier)
            .map_err(|_| DirectoryError::Io(path.to_owned(), ErrorKind::Other.into()))?;
        Ok(Self {
            number,
            root: path.to_owned(),
            verifier: AtomicU64::new(u64::from_le_bytes(verifier)),
            addresses,
            rdma_addresses: Vec::new(),
            dafs_addresses: Vec::new(),
            open: Mutex::default(),
            turns: AtomicU64::new(0),
            lost: Box::new(|| {}),
            uses: Uses::default(),
            leaving: Leaving::new(LEAVING_BYTES_MAX),
        })
    }

    /// Sets the function that is called when unstable data is lost. It returns before another
    /// thread may sync the component.
    #[must_use]
    pub fn telling(self, lost: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { lost, ..self }
    }

    /// Sets the addresses for clients over RDMA.
    #[must_use]
    pub fn serving_rdma(self, rdma_addresses: Vec<SocketAddr>) -> Self {
        Self { rdma_addresses, ..self }
    }

    /// Sets the addresses for clients over DAFS.
    #[must_use]
    pub fn serving_dafs(self, dafs_addresses: Vec<SocketAddr>) -> Self {
        Self { dafs_addresses, ..self }
    }

    /// Returns the write verifier: it changes with each start, and with each failure of the device.
    pub fn verifier(&self) -> u64 {
        self.verifier.load(Ordering::SeqCst)
    }

    /// Makes the data of a component stable by `sync`.
    fn make_stable(
        &self,
        held: &Held,
        sync: impl FnOnce(&File) -> std::io::Result<()>,
    ) -> Result<()> {
        let _syncing = held.syncing.lock();
        // Concurrent writes count for the next sync.
        held.written.store(false, Ordering::SeqCst);
        Ok(sync(&held.file).inspect_err(|_| {
            self.verifier.fetch_add(1, Ordering::SeqCst);
            (self.lost)();
        })?)
    }

    /// Reads like [`Node::read`]. With [`Wait::Never`] it does not block on a device, but fails
    /// with [`StoreError::WouldBlock`].
    ///
    /// # Errors
    /// The directory's.
    pub fn read_waiting(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
        wait: Wait,
    ) -> Result<usize> {
        if wait == Wait::Allowed {
            return self.read(component, views, offset);
        }
        // An open may block on the device.
        let held = self.open.lock().get(component).cloned().ok_or(StoreError::WouldBlock)?;
        if offset > FILE_BYTES_MAX {
            return Ok(0);
        }
        match preadv2(held.file.as_fd(), views, offset, libc::RWF_NOWAIT) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Err(StoreError::WouldBlock)
            }
            read => Ok(read?),
        }
    }

    /// Begins a client's request, before its authorisation. [`Node::drop_grants`] waits for requests
    /// that have begun before it.
    pub(super) fn use_begins(&self, component: &ComponentId) -> u64 {
        self.uses.begin(component)
    }

    /// Ends a client's request.
    pub(super) fn use_ends(&self, component: &ComponentId, begun: u64) {
        self.uses.end(component, begun);
    }

    /// Returns the attributes of a component; `None` if it is missing.
    ///
    /// # Errors
    /// The directory's.
    pub(super) fn look(&self, component: &ComponentId) -> Result<Option<Seen>> {
        let Some(held) = self.component(component, false)? else { return Ok(None) };
        let stat = held.file.metadata()?;
        let nanoseconds = u32::try_from(stat.mtime_nsec()).unwrap_or(0);
        let mtime = TimeSpec { seconds: stat.mtime(), nanoseconds };
        let space_used = stat.blocks().saturating_mul(512);
        Ok(Some(Seen { size: stat.len(), space_used, mtime }))
    }

    fn path(&self, component: &ComponentId) -> PathBuf {
        self.directory(component).join(component.to_string())
    }

    /// Returns an open component; `None` if it is missing and `make` is false.
    fn component(&self, component: &ComponentId, make: bool) -> Result<Option<Arc<Held>>> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        if let Some(held) = self.open.lock().get(component) {
            held.used.store(turn, Ordering::Relaxed);
            return Ok(Some(held.clone()));
        }
        self.make_room();
        let path = self.path(component);
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let open = |make| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(make).mode(0o600).custom_flags(flags);
            options.open(&path)
        };
        let file = match open(make) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound && !make => {
                self.check_there()?;
                return Ok(None);
            }
            // A read-only file system suffices for reads.
            Err(error) if !make && is_read_only(&error) => {
                let file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
                return Ok(Some(Arc::new(Held::new(file, true))));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.check_there()?;
                self.make_directory(component)?;
                open(true)?
            }
            Err(error) => return Err(error.into()),
        };
        let mut open = self.open.lock();
        let held =
            open.entry(*component).or_insert_with(|| Arc::new(Held::new(file, false))).clone();
        held.used.store(turn, Ordering::Relaxed);
        Ok(Some(held))
    }

    /// Closes idle components if too many are open. Components with stable data come first, then
    /// those that were not used for the longest time.
    fn make_room(&self) {
        let mut open = self.open.lock();
        if open.len() < COMPONENTS_OPEN_MAX {
            return;
        }
        let idle = open.iter().filter(|(_, held)| Arc::strong_count(held) == 1);
        let mut idle: Vec<_> = idle
            .map(|(component, held)| {
                let written = held.written.load(Ordering::SeqCst);
                (written, held.used.load(Ordering::Relaxed), *component)
            })
            .collect();
        idle.sort_unstable();
        idle.truncate(COMPONENTS_CLOSED);
        let mut unstable = Vec::new();
        for (written, _, component) in idle {
            if written {
                unstable.extend(open.get(&component).map(|held| (component, held.clone())));
            } else {
                open.remove_and_shrink(&component);
            }
        }
        drop(open);
        for (component, held) in unstable {
            if let Err(error) = self.make_stable(&held, File::sync_data) {
                tracing::error!(%component, %error, "data of a component is lost");
            }
            let mut open = self.open.lock();
            let is_idle = |now: &Arc<Held>| {
                // One reference is here and one in the table.
                Arc::ptr_eq(now, &held)
                    && Arc::strong_count(now) == 2
                    && !now.written.load(Ordering::SeqCst)
            };
            if open.get(&component).is_some_and(is_idle) {
                open.remove_and_shrink(&component);
            }
        }
    }

    fn directory(&self, component: &ComponentId) -> PathBuf {
        self.root.join(format!("{:02x}", component.0[0]))
    }

    fn make_directory(&self, component: &ComponentId) -> Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(self.directory(component)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        Ok(File::open(&self.root)?.sync_all()?)
    }

    /// Checks the marker, because a missing component proves nothing if the file system is not
    /// mounted.
    fn check_there(&self) -> Result<()> {
        if self.root.join(MARKER).exists() { Ok(()) } else { Err(StoreError::Io) }
    }

    /// Makes the name of a component stable, once.
    fn sync_name(&self, component: &ComponentId, held: &Held) -> Result<()> {
        if !held.named.load(Ordering::Relaxed) {
            File::open(self.directory(component))?.sync_all()?;
            held.named.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn is_read_only(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES))
}

fn marker(store: &[u8; 16], number: u32) -> String {
    format!("dafs node {number} of {}\n", ComponentId(*store))
}

fn check_marker(
    path: &Path,
    store: &[u8; 16],
    number: u32,
) -> std::result::Result<(), DirectoryError> {
    match own::read(&path.join(MARKER), NODE_MARKER_BYTES_MAX) {
        Ok(text) if text == marker(store, number).as_bytes() => Ok(own::close_directory(path)?),
        Ok(_) => Err(DirectoryError::Other(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(DirectoryError::Unmarked(path.to_owned()))
        }
        Err(error) => Err(DirectoryError::Io(path.to_owned(), error)),
    }
}

/// Checks the directories of components.
fn check_inside(path: &Path) -> std::result::Result<(), DirectoryError> {
    let failed = |error| DirectoryError::Io(path.to_owned(), error);
    for entry in fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let is_first_byte = |name: &str| name.len() == 2 && u8::from_str_radix(name, 16).is_ok();
        if name.to_str().is_some_and(is_first_byte) {
            own::check_inner_directory(&path.join(name))?;
        }
    }
    Ok(())
}

impl Node for DirectoryNode {
    fn number(&self) -> u32 {
        self.number
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    fn rdma_addresses(&self) -> Vec<SocketAddr> {
        self.rdma_addresses.clone()
    }

    fn dafs_addresses(&self) -> Vec<SocketAddr> {
        self.dafs_addresses.clone()
    }

    fn read(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        let room = usize::try_from(FILE_BYTES_MAX.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(held) = self.component(component, false)? else { return Ok(0) };
        let views = before(views, room);
        continued_to_end(&views, offset, |views, at| preadv2(held.file.as_fd(), views, at, 0))
    }

    fn digest(&self, component: &ComponentId, offset: u64, len: usize) -> Result<Digest> {
        let read = |view: VolatileSlice<'_>| self.read(component, &[view], offset);
        // An error of a file system that is not mounted is none of its device.
        digest::of_file(component, &self.path(component), (offset, len), read)
            .map_err(|error| self.check_there().map_or(StoreError::NoDevice, |()| error))
    }

    fn write(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<Written> {
        if offset > FILE_BYTES_MAX {
            return Err(StoreError::FileTooBig);
        }
        let held = self.component(component, true)?.ok_or(StoreError::Io)?;
        // The verifier from before the write, so that its change shows a concurrent loss of data.
        let verifier = self.verifier();
        held.written.store(true, Ordering::SeqCst);
        // The write and the sync are separate calls: if the write itself fails, no earlier data is
        // lost.
        let count =
            continued(views, offset, |views, at| pwritev2(held.file.as_fd(), views, at, 0))?;
        if stability != Stability::Unstable {
            self.make_stable(&held, File::sync_data)?;
            self.sync_name(component, &held)?;
        }
        Ok(Written { count, verifier })
    }

    fn advise(
        &self,
        component: &ComponentId,
        offset: u64,
        len: u64,
        advice: CacheAdvice,
    ) -> Result<Advised> {
        if advice.is_pattern() {
            return Ok(Advised::Ignored);
        }
        let Some(held) = self.component(component, false)? else { return Ok(Advised::Ignored) };
        let order = (&self.leaving, *component);
        advise_local(held.file.as_fd(), (offset, len), advice, order, |other, range| {
            // Data that cannot be dropped stays until the kernel needs its memory.
            if let Ok(Some(held)) = self.component(&other, false) {
                let _ = drop_cached(held.file.as_fd(), range);
            }
        })
    }

    fn commit(&self, component: &ComponentId) -> Result<u64> {
        if let Some(held) = self.component(component, false)? {
            self.make_stable(&held, File::sync_data)?;
            self.sync_name(component, &held)?;
            for range in self.leaving.committed(*component) {
                let _ = drop_cached(held.file.as_fd(), &range);
            }
        }
        Ok(self.verifier())
    }

    fn truncate(&self, component: &ComponentId, size: u64) -> Result<()> {
        let Some(held) = self.component(component, false)? else { return Ok(()) };
        if held.file.metadata()?.len() > size {
            held.file.set_len(size)?;
            self.make_stable(&held, File::sync_all)?;
        }
        Ok(())
    }

    fn size(&self, component: &ComponentId) -> Result<u64> {
        match self.component(component, false)? {
            Some(held) => Ok(held.file.metadata()?.len()),
            None => Ok(0),
        }
    }

    fn remove(&self, component: &ComponentId) -> Result<()> {
        // A running request would make the component again, and it would never be removed.
        self.uses.await_end(component)?;
        self.open.lock().remove(component);
        match fs::remove_file(self.path(component)) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => self.check_there(),
            Err(error) => Err(error.into()),
        }
    }

    fn space(&self) -> Result<NodeSpace> {
        let stat = rustix::fs::statvfs(&self.root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(NodeSpace {
            total: bytes(stat.f_blocks),
            free: bytes(stat.f_bfree),
            available: bytes(stat.f_bavail),
        })
    }

    fn await_uses(&self, limit: Duration) -> Result<()> {
        self.uses.await_all(limit)
    }

    fn drop_grants(&self, component: &ComponentId) -> Result<()> {
        self.uses.await_end(component)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const COMPONENT: ComponentId = ComponentId([7; 16]);

    /// A node, and the number of its reports of lost data.
    struct Told {
        node: DirectoryNode,
        lost: Arc<AtomicUsize>,
        _dir: tempfile::TempDir,
    }

    fn told() -> Told {
        let dir = tempfile::tempdir().expect("a directory");
        DirectoryNode::make(dir.path(), &[1; 16], 1).expect("made");
        let node = DirectoryNode::open(dir.path(), &[1; 16], 1, vec![]).expect("opened");
        let lost = Arc::new(AtomicUsize::new(0));
        let count = lost.clone();
        let node = node.telling(Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        Told { node, lost, _dir: dir }
    }

    impl Told {
        /// Replaces a component by a device that cannot be synced.
        fn hold(&self, path: &str) {
            let file = OpenOptions::new().read(true).write(true).open(path).expect("a device");
            self.node.open.lock().insert(COMPONENT, Arc::new(Held::new(file, true)));
        }

        fn write(&self, stability: Stability) -> Result<Written> {
            let mut bytes = *b"data";
            self.node.write(&COMPONENT, &[VolatileSlice::from_mut(&mut bytes)], 0, stability)
        }

        fn lost(&self) -> usize {
            self.lost.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || DirectoryNode::open(dir.path(), &[1; 16], 1, vec![]).map(drop);
        let set = |path: &Path, mode| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .expect("a mode");
        };
        set(dir.path(), 0o777);
        let made = DirectoryNode::make(dir.path(), &[1; 16], 1);
        assert!(matches!(made, Err(DirectoryError::Own(OwnError::Writable(_)))), "{made:?}");
        set(dir.path(), 0o755);
        DirectoryNode::make(dir.path(), &[1; 16], 1).expect("made");
        open().expect("opened");
        let below = dir.path().join("0a");
        set(dir.path(), 0o757);
        assert!(matches!(open(), Err(DirectoryError::Own(OwnError::Writable(_)))));
        set(dir.path(), 0o755);
        for mode in [0o775, 0o757] {
            fs::create_dir(&below).expect("a directory");
            set(&below, mode);
            assert!(matches!(open(), Err(DirectoryError::Own(OwnError::Writable(_)))));
            fs::remove_dir(&below).expect("removed");
        }
        // A mode of shared directories. Only the root of a file system would be closed to others,
        // and this is none.
        set(dir.path(), 0o1777);
        assert!(matches!(open(), Err(DirectoryError::Own(OwnError::Writable(_)))));
        let mode = fs::metadata(dir.path()).expect("a directory").mode();
        assert_eq!(mode & 0o7777, 0o1777, "it is as it was");
        set(dir.path(), 0o755);
        std::os::unix::fs::symlink("/etc", &below).expect("a symlink");
        assert!(matches!(open(), Err(DirectoryError::Own(OwnError::NoDirectory(_)))));
    }

    #[test]
    fn a_loss_is_reported_before_the_next_sync() {
        let Told { node, _dir, .. } = told();
        let file = OpenOptions::new().write(true).open("/dev/null").expect("a device");
        let held = Arc::new(Held::new(file, true));
        let (told, seen) = (Arc::new(AtomicUsize::new(0)), held.clone());
        let count = told.clone();
        let node = node.telling(Box::new(move || {
            assert!(seen.syncing.try_lock().is_none(), "nobody else may ask yet");
            count.fetch_add(1, Ordering::SeqCst);
        }));
        node.open.lock().insert(COMPONENT, held);
        let before = node.verifier();
        node.commit(&COMPONENT).expect_err("a device without a disk");
        assert_eq!(told.load(Ordering::SeqCst), 1);
        assert_ne!(node.verifier(), before);
    }

    #[test]
    fn a_write_that_fails_loses_nothing_that_was_written_before() {
        let told = told();
        told.hold("/dev/full");
        let before = told.node.verifier();
        assert_eq!(told.write(Stability::Data), Err(StoreError::NoSpace));
        assert_eq!((told.node.verifier(), told.lost()), (before, 0));
        // Written data that cannot be made stable is lost.
        told.hold("/dev/null");
        told.write(Stability::Unstable).expect("written");
        assert_eq!((told.node.verifier(), told.lost()), (before, 0));
        told.write(Stability::Data).expect_err("not stable");
        assert_eq!(told.lost(), 1);
        assert_ne!(told.node.verifier(), before);
    }

    #[test]
    fn a_component_is_closed_when_what_was_written_to_it_is_stable() {
        let told = told();
        told.hold("/dev/null");
        told.write(Stability::Unstable).expect("written");
        let write = |number: usize, written| {
            let component = ComponentId((number as u128 + 1).to_be_bytes());
            let mut bytes = *b"data";
            let views = [VolatileSlice::from_mut(&mut bytes)];
            told.node.write(&component, &views, 0, Stability::Unstable).expect("written");
            let open = told.node.open.lock();
            assert!(open.len() <= COMPONENTS_OPEN_MAX);
            open[&component].written.store(written, Ordering::SeqCst);
        };
        let is_open = || told.node.open.lock().contains_key(&COMPONENT);
        (0..2 * COMPONENTS_OPEN_MAX).for_each(|number| write(number, false));
        assert!(is_open(), "others have nothing to lose");
        assert_eq!(told.lost(), 0);
        let more = 2 * COMPONENTS_OPEN_MAX..3 * COMPONENTS_OPEN_MAX + 1;
        more.for_each(|number| write(number, true));
        assert!(!is_open());
        assert_eq!(told.lost(), 1, "what was written could not be made stable");
    }
}
