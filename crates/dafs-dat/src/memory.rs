//! Registered memory: the region table that every provider uses.
//!
//! Invariants
//! * A key is a random 32-bit number and never zero, so that a guess fails. It becomes invalid with
//!   the end of its registration, or when a peer invalidates it.
//! * A lookup names the protection domain, the range and the required right, and returns memory
//!   only if all three match. Arithmetic on addresses from a peer is checked.

use crate::error::{PostError, RegisterError};
use crate::types::{Access, LocalSegment, ProtectionDomain, RegionId, RemoteBuffer};
use dafs_mem::{Buffer, CheckedSlice};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The most regions one adapter registers.
pub(crate) const REGION_COUNT_MAX: usize = 1 << 20;

/// The longest region, in bytes.
pub(crate) const REGION_BYTES_MAX: usize = 1 << 40;

/// A registration as its owner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRegion {
    /// The identifier for local use.
    pub id: RegionId,
    /// The key to give to a peer.
    pub key: u32,
    /// The address of the first byte, as a peer must state it.
    pub address: u64,
    /// Length in bytes.
    pub len: usize,
}

impl MemoryRegion {
    /// The descriptor of the piece at `offset` for a peer; `None` if it is not inside.
    pub fn remote(&self, offset: usize, len: u32) -> Option<RemoteBuffer> {
        if offset.checked_add(len as usize)? > self.len {
            return None;
        }
        Some(RemoteBuffer { key: self.key, address: self.address + offset as u64, len })
    }

    /// The piece at `offset` for local use.
    pub fn local(&self, offset: usize, len: usize) -> LocalSegment {
        LocalSegment { region: self.id, offset, len }
    }
}

#[derive(Debug)]
struct Entry {
    buffer: Arc<Buffer>,
    domain: ProtectionDomain,
    access: Access,
    /// Zero once it was invalidated; its number may by then be the key of another region.
    key: u32,
}

/// The regions of one adapter.
#[derive(Debug, Default)]
pub struct RegionTable {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_key: FxHashMap<u32, RegionId>,
}

impl RegionTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `buffer`. `random` yields the key; it is called again while the key is taken.
    ///
    /// # Errors
    /// When the table is full or the buffer too long.
    pub fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
        mut random: impl FnMut() -> u32,
    ) -> Result<MemoryRegion, RegisterError> {
        if self.entries.len() - self.free.len() >= REGION_COUNT_MAX {
            return Err(RegisterError::TooMany(REGION_COUNT_MAX));
        }
        if buffer.len() > REGION_BYTES_MAX {
            return Err(RegisterError::TooLong { bytes: buffer.len(), max: REGION_BYTES_MAX });
        }
        let key = loop {
            let key = random();
            if key != 0 && !self.by_key.contains_key(&key) {
                break key;
            }
        };
        let (address, len) = (buffer.as_ptr() as u64, buffer.len());
        let entry = Some(Entry { buffer, domain, access, key });
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let id = RegionId(index);
        self.by_key.insert(key, id);
        Ok(MemoryRegion { id, key, address, len })
    }

    /// True if memory may be granted to peers. The regions that peers ask for leave half of the table to
    /// those that their connections need.
    pub(crate) fn has_room_for_grants(&self) -> bool {
        self.entries.len() - self.free.len() < REGION_COUNT_MAX / 2
    }

    /// Ends a registration and returns its buffer.
    pub fn deregister(&mut self, id: RegionId) -> Option<Arc<Buffer>> {
        let entry = self.entries.get_mut(id.0 as usize)?.take()?;
        if entry.key != 0 {
            self.by_key.remove(&entry.key);
        }
        self.free.push(id.0);
        Some(entry.buffer)
    }

    /// Finds the region whose key a peer may invalidate.
    ///
    /// # Errors
    /// An unknown key or one of another domain, with the same error for both; a region without
    /// remote access, whose key no peer was given.
    pub fn find_invalidatable(
        &self,
        domain: ProtectionDomain,
        key: u32,
    ) -> Result<RegionId, PostError> {
        let id = *self.by_key.get(&key).ok_or(PostError::Region)?;
        let entry = self.entries[id.0 as usize]
            .as_ref()
            .filter(|entry| entry.domain == domain)
            .ok_or(PostError::Region)?;
        if !entry.access.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE) {
            return Err(PostError::Access);
        }
        Ok(id)
    }

    /// Invalidates a key on request of a peer. The region stays until it is deregistered.
    ///
    /// # Errors
    /// As [`RegionTable::find_invalidatable`].
    pub fn invalidate(
        &mut self,
        domain: ProtectionDomain,
        key: u32,
    ) -> Result<RegionId, PostError> {
        let id = self.find_invalidatable(domain, key)?;
        self.by_key.remove(&key);
        if let Some(entry) = &mut self.entries[id.0 as usize] {
            entry.key = 0;
        }
        Ok(id)
    }

    /// The memory of a local segment.
    ///
    /// # Errors
    /// The check that failed.
    pub fn local(
        &self,
        domain: ProtectionDomain,
        segment: LocalSegment,
        need: Access,
    ) -> Result<CheckedSlice<'_>, PostError> {
        let entry = self
            .entries
            .get(segment.region.0 as usize)
            .and_then(Option::as_ref)
            .filter(|entry| entry.domain == domain)
            .ok_or(PostError::Region)?;
        if !entry.access.contains(need) {
            return Err(PostError::Access);
        }
        entry.buffer.checked(segment.offset, segment.len).ok_or(PostError::Bounds)
    }

    /// The buffer of a region, to keep it alive while work uses it.
    pub fn buffer(&self, id: RegionId) -> Option<&Arc<Buffer>> {
        self.entries.get(id.0 as usize)?.as_ref().map(|entry| &entry.buffer)
    }

    /// The memory that a peer names, with its region and the offset inside it.
    ///
    /// # Errors
    /// The check that failed; an unknown key and one of another domain give the same error.
    pub fn remote(
        &self,
        domain: ProtectionDomain,
        remote: RemoteBuffer,
        need: Access,
    ) -> Result<(LocalSegment, CheckedSlice<'_>), PostError> {
        let id = *self.by_key.get(&remote.key).ok_or(PostError::Region)?;
        let entry = self.entries[id.0 as usize]
            .as_ref()
            .filter(|entry| entry.domain == domain)
            .ok_or(PostError::Region)?;
        if !entry.access.contains(need) {
            return Err(PostError::Access);
        }
        let offset = remote
            .address
            .checked_sub(entry.buffer.as_ptr() as u64)
            .and_then(|offset| usize::try_from(offset).ok())
            .ok_or(PostError::Bounds)?;
        let len = remote.len as usize;
        let view = entry.buffer.checked(offset, len).ok_or(PostError::Bounds)?;
        Ok((LocalSegment { region: id, offset, len }, view))
    }

    /// The memory that a peer names to read it: of the domain of its connection, or of the domain of
    /// what is granted to that connection alone.
    ///
    /// # Errors
    /// As [`RegionTable::remote`].
    pub(crate) fn readable(
        &self,
        (domain, granted): Readable,
        remote: RemoteBuffer,
    ) -> Result<CheckedSlice<'_>, PostError> {
        let found = granted.map(|granted| self.remote(granted, remote, Access::REMOTE_READ));
        match found {
            None | Some(Err(PostError::Region)) => {
                self.remote(domain, remote, Access::REMOTE_READ).map(|(_, view)| view)
            }
            Some(found) => found.map(|(_, view)| view),
        }
    }
}

/// The domain of a connection, and that of memory that is granted to its peer alone.
pub(crate) type Readable = (ProtectionDomain, Option<ProtectionDomain>);

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (RegionTable, MemoryRegion) {
        let mut table = RegionTable::new();
        let buffer = Arc::new(Buffer::zeroed(100).unwrap());
        let region =
            table.register(ProtectionDomain(1), buffer, Access::REMOTE_READ, || 0x1234).unwrap();
        (table, region)
    }

    #[test]
    fn a_key_opens_only_its_own_range_domain_and_right() {
        let (table, region) = table();
        let inside = region.remote(10, 90).unwrap();
        let get = |domain, remote, need| {
            table.remote(ProtectionDomain(domain), remote, need).map(|(s, _)| s)
        };
        assert_eq!(get(1, inside, Access::REMOTE_READ).unwrap().offset, 10);
        assert_eq!(get(2, inside, Access::REMOTE_READ), Err(PostError::Region));
        assert_eq!(get(1, inside, Access::REMOTE_WRITE), Err(PostError::Access));
        let forged = RemoteBuffer { key: 0x1235, ..inside };
        assert_eq!(get(1, forged, Access::REMOTE_READ), Err(PostError::Region));
        let past = RemoteBuffer { len: 91, ..inside };
        assert_eq!(get(1, past, Access::REMOTE_READ), Err(PostError::Bounds));
        let before = RemoteBuffer { address: region.address - 1, ..inside };
        assert_eq!(get(1, before, Access::REMOTE_READ), Err(PostError::Bounds));
        let wrap = RemoteBuffer { address: u64::MAX, ..inside };
        assert_eq!(get(1, wrap, Access::REMOTE_READ), Err(PostError::Bounds));
    }

    #[test]
    fn a_key_dies_with_its_registration() {
        let (mut table, region) = table();
        assert!(table.deregister(region.id).is_some());
        assert!(table.deregister(region.id).is_none());
        let remote = region.remote(0, 1).unwrap();
        let found = table.remote(ProtectionDomain(1), remote, Access::REMOTE_READ);
        assert_eq!(found.map(|_| ()), Err(PostError::Region));
    }

    #[test]
    fn an_invalidated_key_is_refused_and_its_region_stays() {
        let (mut table, region) = table();
        let remote = region.remote(0, 1).unwrap();
        let domain = ProtectionDomain(1);
        let other = ProtectionDomain(2);
        assert_eq!(table.invalidate(other, region.key), Err(PostError::Region));
        assert_eq!(table.invalidate(domain, 0x1235), Err(PostError::Region));
        assert!(table.remote(domain, remote, Access::REMOTE_READ).is_ok());
        assert_eq!(table.invalidate(domain, region.key), Ok(region.id));
        let found = table.remote(domain, remote, Access::REMOTE_READ);
        assert_eq!(found.map(|_| ()), Err(PostError::Region));
        assert_eq!(table.invalidate(domain, region.key), Err(PostError::Region));
        assert!(table.local(domain, region.local(0, 100), Access::empty()).is_ok());
        // The number may be drawn again; the end of the old region does not affect the new one.
        let buffer = Arc::new(Buffer::zeroed(100).unwrap());
        let again = table.register(domain, buffer, Access::REMOTE_READ, || 0x1234).unwrap();
        assert_eq!(again.key, region.key);
        assert!(table.deregister(region.id).is_some());
        let remote = again.remote(0, 1).unwrap();
        assert!(table.remote(domain, remote, Access::REMOTE_READ).is_ok());
    }

    #[test]
    fn a_key_without_remote_access_cannot_be_invalidated() {
        let mut table = RegionTable::new();
        let buffer = Arc::new(Buffer::zeroed(100).unwrap());
        let domain = ProtectionDomain(1);
        let region = table.register(domain, buffer, Access::LOCAL_WRITE, || 7).unwrap();
        assert_eq!(table.invalidate(domain, region.key), Err(PostError::Access));
    }

    #[test]
    fn a_peer_reads_what_is_granted_to_it_beside_its_own_domain() {
        let (mut table, own) = table();
        let buffer = Arc::new(Buffer::zeroed(50).unwrap());
        let granted = ProtectionDomain(9);
        let region = table.register(granted, buffer, Access::REMOTE_READ, || 0x99).unwrap();
        let read = |domains, region: &MemoryRegion| {
            table.readable(domains, region.remote(0, 50).unwrap()).map(|view| view.len())
        };
        let domain = ProtectionDomain(1);
        assert_eq!(read((domain, None), &own), Ok(50));
        assert_eq!(read((domain, Some(granted)), &own), Ok(50));
        assert_eq!(read((domain, Some(granted)), &region), Ok(50));
        assert_eq!(read((domain, None), &region), Err(PostError::Region));
        assert_eq!(read((domain, Some(ProtectionDomain(8))), &region), Err(PostError::Region));
        let write = table.remote(granted, region.remote(0, 1).unwrap(), Access::REMOTE_WRITE);
        assert_eq!(write.map(|_| ()), Err(PostError::Access));
    }

    #[test]
    fn grants_leave_half_of_the_table() {
        let mut table = RegionTable::new();
        table.entries.resize_with(REGION_COUNT_MAX / 2 - 1, || None);
        assert!(table.has_room_for_grants());
        table.entries.push(None);
        assert!(!table.has_room_for_grants());
        table.free.push(0);
        assert!(table.has_room_for_grants());
    }

    #[test]
    fn a_region_names_only_its_inside() {
        let (_, region) = table();
        assert!(region.remote(100, 0).is_some());
        assert!(region.remote(100, 1).is_none());
        assert!(region.remote(usize::MAX, 1).is_none());
    }
}
