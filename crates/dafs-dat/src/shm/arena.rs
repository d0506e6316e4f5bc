//! Memory that this side can share with peers, and the regions that peers share with it.
//!
//! Every shareable buffer is a memory file (memfd) of its own. So a peer that receives a region can
//! reach that buffer and no other memory of this process. A region without remote write access is
//! shared through a read-only descriptor.
//!
//! Invariants
//! * A region of a peer is used only while its key is in the peer's slot, and only within the
//!   bounds and the access that the peer announced. Its mapping lives as long as any window to it.
//! * The mappings of one peer are bounded. Those of all peers share a budget of the process, which
//!   counts a mapping until its last window is dropped.
//! * Memory that cannot be shared (ordinary memory, too many regions, limits) takes the staged path
//!   through the ring, where the owner checks every access against its own table. A region that is
//!   not found here is therefore no error.
//! * A buffer to be granted belongs to the server's user, although a thread of the server may still
//!   have the identity of its last caller. A caller that owned it could open it for writing.

use super::layout::Control;
use super::limits::{KEY_SLOTS, PEER_MAPPED_BYTES_MAX};
use super::packet::RegionPacket;
use super::sys::{self, Budget, Mapping};
use crate::descriptors::{Guarded, Watch};
use crate::types::{Access, RemoteBuffer};
use dafs_mem::sys::as_server;
use dafs_mem::{Buffer, PAGE_BYTES, VolatileSlice};
use rustc_hash::FxHashMap;
use rustix::fs::FallocateFlags;
use rustix::mm::MlockFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The backing of a shareable buffer.
pub(super) struct Arena {
    file: Guarded<OwnedFd>,
    /// Keeps the pages mapped.
    _mapping: Mapping,
    /// Counts the adapter's live shareable buffers.
    alive: Arc<AtomicUsize>,
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Arena {
    /// The arena behind a buffer, if it has one.
    pub(super) fn of(buffer: &Buffer) -> Option<&Arena> {
        buffer.owner().downcast_ref()
    }

    /// A descriptor for a peer, with that access.
    pub(super) fn descriptor(&self, access: Access) -> io::Result<OwnedFd> {
        self.file.check()?;
        if access.contains(Access::REMOTE_WRITE) {
            sys::duplicate(&self.file)
        } else {
            as_server()?;
            sys::read_only(self.file.as_fd())
        }
    }
}

/// Allocates a buffer of whole pages that peers may be granted to read.
///
/// # Errors
/// The kernel's, such as for too many open files. `EACCES` while the thread acts for a user.
pub fn exposed_buffer(bytes: usize) -> io::Result<Buffer> {
    as_server()?;
    let buffer = allocate(bytes, &Arc::default(), usize::MAX, &Watch::default())?;
    match Arena::of(&buffer) {
        Some(_) => Ok(buffer),
        None => Err(io::Error::from_raw_os_error(libc::EMFILE)),
    }
}

/// Keeps the pages of a buffer in memory from their first use on: they are not swapped out.
///
/// # Errors
/// `ENOMEM`, `EAGAIN` or `EPERM` beyond what the process may lock (RLIMIT_MEMLOCK).
pub fn lock(buffer: &Buffer) -> io::Result<()> {
    let memory = buffer.as_ptr().cast();
    // SAFETY: the buffer is mapped as long as it is borrowed. Locking changes none of its bytes.
    unsafe { rustix::mm::mlock_with(memory, buffer.len(), MlockFlags::ONFAULT)? };
    Ok(())
}

/// Undoes [`lock`]. So does the end of the buffer.
///
/// # Errors
/// The kernel's.
pub fn unlock(buffer: &Buffer) -> io::Result<()> {
    let memory = buffer.as_ptr().cast();
    // SAFETY: the buffer is mapped as long as it is borrowed. Unlocking changes none of its bytes.
    unsafe { rustix::mm::munlock(memory, buffer.len())? };
    Ok(())
}

/// Takes the content of a buffer of [`exposed_buffer`] away, also from peers that have mapped it:
/// from now on they find zeros. Pages that a peer touches afterwards are charged to that peer.
///
/// # Errors
/// The kernel's. Then peers may still find the content.
pub fn discard(buffer: &Buffer) -> io::Result<()> {
    let arena = Arena::of(buffer).ok_or(io::ErrorKind::InvalidInput)?;
    arena.file.check()?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let bytes = buffer.len().next_multiple_of(PAGE_BYTES) as u64;
    Ok(rustix::fs::fallocate(arena.file.as_fd(), flags, 0, bytes)?)
}

/// Allocates a shareable buffer, or an ordinary one when `max` shareable ones are alive or the
/// process has no file descriptors.
pub(super) fn allocate(
    bytes: usize,
    alive: &Arc<AtomicUsize>,
    max: usize,
    watch: &Watch,
) -> io::Result<Buffer> {
    if bytes == 0 || alive.load(Ordering::Relaxed) >= max {
        return Buffer::zeroed(bytes);
    }
    let len = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    let file = match sys::memory_file("dafs-buffer", len) {
        Ok(file) => Guarded::new(file, watch),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            return Buffer::zeroed(bytes);
        }
        Err(error) => return Err(error),
    };
    let mapping = Mapping::new(file.as_fd(), len, true)?;
    let ptr = mapping.ptr();
    alive.fetch_add(1, Ordering::Relaxed);
    let owner = Box::new(Arena { file, _mapping: mapping, alive: alive.clone() });
    // SAFETY: the mapping inside `owner` covers `bytes` at `ptr`, is writable and is unmapped only
    // when `owner` drops; no code makes a reference into it.
    Ok(unsafe { Buffer::from_owner(ptr, bytes, owner) })
}

/// A region of the peer that this process has mapped.
#[derive(Debug)]
struct Entry {
    region: RegionPacket,
    mapping: Arc<Mapping>,
}

/// A found piece of a peer's region.
pub(super) struct Found<'a> {
    /// May be written only with `writable`; a lookup that needs a right to write implies it.
    pub(super) view: VolatileSlice<'a>,
    pub(super) writable: bool,
    pub(super) mapping: &'a Arc<Mapping>,
}

/// The regions that one peer shares with this side.
#[derive(Debug, Default)]
pub(super) struct PeerRegions {
    entries: FxHashMap<u32, Entry>,
    bytes: usize,
}

impl PeerRegions {
    /// Adds a region that the peer shares. A region that exceeds a limit is ignored without an
    /// error, because the ring still reaches it.
    ///
    /// # Errors
    /// The fault in the region, worded for the peer.
    pub(super) fn add(
        &mut self,
        region: RegionPacket,
        file: OwnedFd,
        mappings: &'static Budget,
    ) -> Result<(), &'static str> {
        let len = usize::try_from(region.len)
            .ok()
            .and_then(|len| len.checked_next_multiple_of(PAGE_BYTES))
            .filter(|&len| len > 0)
            .ok_or("a region of impossible length")?;
        if region.address.checked_add(region.len).is_none() {
            return Err("a region that leaves the address space");
        }
        if self.entries.contains_key(&region.key) {
            return Err("a region with a key that is in use");
        }
        // A correct peer shares no more regions than it has slots.
        if self.entries.len() >= KEY_SLOTS || len > PEER_MAPPED_BYTES_MAX - self.bytes {
            return Ok(());
        }
        sys::check_memory_file(file.as_fd(), len)?;
        let writable = region.access.contains(Access::REMOTE_WRITE);
        let Ok(mapping) = Mapping::within(mappings, file.as_fd(), len, writable) else {
            return Ok(());
        };
        self.bytes += len;
        self.entries.insert(region.key, Entry { region, mapping: Arc::new(mapping) });
        Ok(())
    }

    /// Removes a region that the peer has withdrawn.
    pub(super) fn remove(&mut self, key: u32) {
        if let Some(entry) = self.entries.remove(&key) {
            self.bytes -= entry.mapping.len();
        }
    }

    /// The first `len` bytes of the range that `remote` names, if the peer shares it with the right
    /// `need`.
    pub(super) fn find(
        &self,
        control: &Control,
        remote: RemoteBuffer,
        len: usize,
        need: Access,
    ) -> Option<Found<'_>> {
        let entry = self.entries.get(&remote.key)?;
        let region = &entry.region;
        let offset = remote.address.checked_sub(region.address)?;
        let inside = offset.checked_add(len as u64)? <= region.len;
        if !inside || !region.access.contains(need) || !control.peer_shows(region.slot, region.key)
        {
            return None;
        }
        let view = entry.mapping.view(usize::try_from(offset).ok()?, len)?;
        let writable = region.access.contains(Access::REMOTE_WRITE);
        Some(Found { view, writable, mapping: &entry.mapping })
    }

    /// True if the key is known, used or not.
    pub(super) fn knows(&self, key: u32) -> bool {
        self.entries.contains_key(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Site;
    use dafs_mem::sys::{FileIdentity, act_as};

    fn share(bytes: usize, access: Access) -> (RegionPacket, OwnedFd, Buffer) {
        let alive = Arc::new(AtomicUsize::new(0));
        let buffer = allocate(bytes, &alive, 1, &Watch::default()).unwrap();
        let file = Arena::of(&buffer).unwrap().descriptor(access).unwrap();
        let (address, len) = (buffer.as_ptr() as u64, bytes as u64);
        (RegionPacket { key: 7, slot: 0, access, address, len }, file, buffer)
    }

    fn add(region: RegionPacket, file: OwnedFd) -> Result<PeerRegions, &'static str> {
        let mut regions = PeerRegions::default();
        regions.add(region, file, &sys::PEER_MAPPINGS).map(|()| regions)
    }

    #[test]
    fn one_peer_may_show_only_so_many_regions() {
        static AMPLE: Budget = Budget::new(usize::MAX);
        let (region, _, buffer) = share(10, Access::REMOTE_READ);
        let mut regions = PeerRegions::default();
        for key in 0..2000 {
            let file = Arena::of(&buffer).unwrap().descriptor(Access::REMOTE_READ).unwrap();
            regions.add(RegionPacket { key, ..region }, file, &AMPLE).unwrap();
        }
        assert_eq!(regions.entries.len(), KEY_SLOTS);
        assert_eq!(regions.bytes, KEY_SLOTS * PAGE_BYTES);
        assert!(!regions.knows(1999));
    }

    #[test]
    fn a_mapping_counts_until_the_last_window_to_it_is_gone() {
        static TWO: Budget = Budget::new(2);
        let (region, _, buffer) = share(10, Access::REMOTE_READ);
        let mut regions = PeerRegions::default();
        let add = |regions: &mut PeerRegions, key| {
            let file = Arena::of(&buffer).unwrap().descriptor(Access::REMOTE_READ).unwrap();
            regions.add(RegionPacket { key, ..region }, file, &TWO).unwrap();
            regions.knows(key)
        };
        assert!(add(&mut regions, 1) && add(&mut regions, 2));
        let window = regions.entries[&1].mapping.clone();
        regions.remove(1);
        assert!(!add(&mut regions, 3), "the window still holds its mapping");
        // Another connection uses the same budget.
        assert!(!add(&mut PeerRegions::default(), 3));
        drop(window);
        assert!(add(&mut regions, 3));
        drop(regions);
        let mut regions = PeerRegions::default();
        assert!(add(&mut regions, 4) && add(&mut regions, 5));
    }

    #[test]
    fn a_shown_region_is_the_same_memory() {
        let (region, file, buffer) = share(5000, Access::REMOTE_WRITE);
        let regions = add(region, file).unwrap();
        let mapping = &regions.entries[&7].mapping;
        mapping.view(4990, 5).unwrap().copy_from(b"hello", Site::Inspect);
        assert_eq!(buffer.slice(4990, 5).unwrap().to_vec(Site::Inspect), b"hello");
    }

    #[test]
    fn discarded_memory_is_zeros_in_every_mapping() {
        let buffer = exposed_buffer(2 * PAGE_BYTES).unwrap();
        buffer.view().fill(7);
        let file = Arena::of(&buffer).unwrap().descriptor(Access::REMOTE_READ).unwrap();
        let peer = Mapping::new(file.as_fd(), 2 * PAGE_BYTES, false).unwrap();
        assert_eq!(peer.view(PAGE_BYTES, 3).unwrap().to_vec(Site::Inspect), [7; 3]);
        discard(&buffer).unwrap();
        assert_eq!(peer.view(PAGE_BYTES, 3).unwrap().to_vec(Site::Inspect), [0; 3]);
        assert_eq!(buffer.slice(0, 3).unwrap().to_vec(Site::Inspect), [0; 3]);
        assert!(discard(&Buffer::zeroed(10).unwrap()).is_err());
        // The peer cannot do the same to the server.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&file, flags, 0, PAGE_BYTES as u64).is_err());
    }

    #[test]
    fn locked_memory_can_be_discarded_and_unlocked() {
        let buffer = exposed_buffer(2 * PAGE_BYTES).unwrap();
        if let Err(error) = lock(&buffer) {
            println!("SKIPPED: the process may lock no memory: {error}");
            return;
        }
        buffer.view().fill(7);
        discard(&buffer).unwrap();
        assert_eq!(buffer.slice(PAGE_BYTES, 2).unwrap().to_vec(Site::Inspect), [0; 2]);
        unlock(&buffer).unwrap();
    }

    #[test]
    fn a_thread_that_has_acted_for_a_user_makes_and_shows_memory_of_the_server() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can act for another user");
            return;
        }
        // Identities belong to threads.
        let thread = std::thread::spawn(|| {
            let act = || {
                let user = FileIdentity { uid: 1234, gid: 1234, groups: Arc::new([]) };
                drop(act_as(user).unwrap());
            };
            act();
            let buffer = exposed_buffer(PAGE_BYTES).unwrap();
            let arena = Arena::of(&buffer).unwrap();
            assert_eq!(rustix::fs::fstat(arena.file.as_fd()).unwrap().st_uid, 0);
            act();
            assert!(arena.descriptor(Access::REMOTE_READ).is_ok());
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let (region, _, _buffer) = share(4096, Access::REMOTE_WRITE);
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(add(region, file).is_err_and(|text| text.contains("sealed")));
        let pipe = rustix::pipe::pipe().unwrap();
        assert!(add(region, pipe.0).is_err());
    }

    #[test]
    fn a_region_longer_than_its_file_is_refused() {
        let (region, file, _buffer) = share(4096, Access::REMOTE_WRITE);
        assert!(add(RegionPacket { len: 4097, ..region }, file).is_err());
    }

    #[test]
    fn a_readable_region_is_shown_read_only() {
        let (_, file, _buffer) = share(4096, Access::REMOTE_READ);
        assert!(Mapping::new(file.as_fd(), 4096, true).is_err());
        assert!(Mapping::new(file.as_fd(), 4096, false).is_ok());
    }

    #[test]
    fn beyond_the_limit_memory_is_ordinary() {
        let alive = Arc::new(AtomicUsize::new(0));
        let first = allocate(10, &alive, 1, &Watch::default()).unwrap();
        assert!(Arena::of(&allocate(10, &alive, 1, &Watch::default()).unwrap()).is_none());
        drop(first);
        assert!(Arena::of(&allocate(10, &alive, 1, &Watch::default()).unwrap()).is_some());
    }
}
