//! Regions: their registrations with the device, and their keys for work.
//!
//! Invariants
//! * A key for peers is a registration of its own, which ends at once with its region. Local work
//!   uses another registration, without rights for peers, and holds it until it has completed. A
//!   region with both uses gets the second registration on first use.
//! * Where a device treats a read response as a write of the peer, the sink of a read has a
//!   registration that allows it, for as long as its region and its reads last. No other memory is
//!   registered like that: the peer knows the key, and could write with it at any time.
//! * This module checks bounds and rights of local segments; the device checks those of remote ones
//!   by domain, range and right.
//! * The device assigns the keys: drivers number them, so they are predictable, unlike those of
//!   other providers. Only the domain separates connections, and for a memory window the queue pair.
//! * A grant is in no domain of work, so no work of this side names it.

use super::cache::{Cache, Key, Registered};
use super::ffi;
use super::locked::{self, Purpose};
use super::plan::Span;
use super::sys::{Domain, Registration};
use super::window::Window;
use crate::memory::REGION_COUNT_MAX;
use crate::{
    Access, LocalSegment, MemoryRegion, PostError, ProtectionDomain, RegionId, RegisterError,
};
use dafs_mem::Buffer;
use rustc_hash::FxHashMap;
use std::io;
use std::sync::{Arc, Weak};

/// A registration that counts against the limit on locked memory.
#[derive(Debug)]
pub(super) struct Pinned {
    // Dropped first; then the share is released.
    pub(super) registration: Registration,
    _share: locked::Share,
}

/// The registration that posted work holds.
pub(super) type Held = Arc<Registered<Pinned>>;

/// The key by which the peer of one connection reads a buffer. Its end takes the key away.
#[derive(Debug)]
pub(super) enum Grant {
    // The order of the fields is the drop order.
    /// A window to a registration that the grants of a buffer share.
    Window { _window: Window, _shared: Held },
    /// A registration in the domain of the connection.
    Own { _registration: Pinned, _domain: Arc<Domain> },
}

/// The domain of grants: no connection has it, and nothing can be registered in it.
const NO_DOMAIN: ProtectionDomain = ProtectionDomain(0);

/// The number of regions from which on nothing is granted: peers ask for grants, and these leave half of
/// the regions to those that connections need.
const REGIONS_WITH_GRANTS_MAX: usize = REGION_COUNT_MAX / 2;

#[derive(Debug)]
struct Region {
    // The registrations are dropped before the buffer: the memory must outlive them.
    /// The grant that the region stands for, until its connection has ended.
    _grant: Option<Grant>,
    /// The registration for peers.
    _remote: Option<Pinned>,
    /// For local work; `None` before the first use, and if the buffer is empty.
    local: Option<Held>,
    /// For reads into it, where that needs another registration; `None` before the first.
    sink: Option<Held>,
    buffer: Arc<Buffer>,
    domain: ProtectionDomain,
    access: Access,
}

/// The regions of one adapter, with their domains.
pub(super) struct Memory {
    // The field order is the drop order.
    regions: Vec<Option<Region>>,
    cache: Cache<Pinned>,
    /// Registrations that windows are bound to, by domain and by the address of the buffer's object.
    /// The windows hold them.
    for_windows: FxHashMap<(ProtectionDomain, usize), Weak<Registered<Pinned>>>,
    domains: Vec<Domain>,
    free: Vec<u32>,
    region_bytes_max: u64,
    /// The right that a read's sink needs where the response is a write of the peer.
    sink_access: i32,
}

impl Memory {
    /// With `sink_is_written` the device treats a read response as a write of the peer.
    pub(super) fn new(idle_bytes_max: usize, region_bytes_max: u64, sink_is_written: bool) -> Self {
        Self {
            regions: Vec::new(),
            cache: Cache::new(idle_bytes_max),
            for_windows: FxHashMap::default(),
            domains: Vec::new(),
            free: Vec::new(),
            region_bytes_max,
            sink_access: if sink_is_written { ffi::ACCESS_REMOTE_WRITE } else { 0 },
        }
    }

    pub(super) fn add_domain(&mut self, domain: Domain) -> ProtectionDomain {
        self.domains.push(domain);
        ProtectionDomain(self.domains.len() as u32)
    }

    pub(super) fn domain(&self, domain: ProtectionDomain) -> Option<&Domain> {
        self.domains.get((domain.0 as usize).checked_sub(1)?)
    }

    /// Drops idle registrations that cannot be used again.
    pub(super) fn sweep(&mut self) {
        self.cache.sweep();
    }

    pub(super) fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.check_room(&buffer, REGION_COUNT_MAX)?;
        let (address, len) = (buffer.as_ptr() as u64, buffer.len());
        let mut region = Region::new(buffer, domain, access);
        let mut key = 0;
        if len > 0 {
            let for_peers = Access::REMOTE_READ | Access::REMOTE_WRITE;
            if access.intersects(for_peers) {
                let access = raw_access(access);
                let remote = pin(&self.domains, domain, &region.buffer, access)?;
                key = remote.registration.remote_key();
                region._remote = Some(remote);
            } else {
                let held = self.take_local(&region)?;
                key = held.registration.registration.remote_key();
                region.local = Some(held);
            }
        }
        Ok(MemoryRegion { id: self.add(region), key, address, len })
    }

    /// Checks that one more region of this buffer is possible, among `most`.
    fn check_room(&self, buffer: &Buffer, most: usize) -> Result<(), RegisterError> {
        if self.regions.len() - self.free.len() >= most {
            return Err(RegisterError::TooMany(most));
        }
        let bytes = buffer.len();
        if bytes as u64 > self.region_bytes_max {
            let max = usize::try_from(self.region_bytes_max).unwrap_or(usize::MAX);
            return Err(RegisterError::TooLong { bytes, max });
        }
        Ok(())
    }

    fn add(&mut self, region: Region) -> RegionId {
        match self.free.pop() {
            Some(index) => {
                self.regions[index as usize] = Some(region);
                RegionId(index)
            }
            None => {
                self.regions.push(Some(region));
                RegionId((self.regions.len() - 1) as u32)
            }
        }
    }

    /// Registers a buffer for the peer of the one connection that has this domain, for reading.
    pub(super) fn grant_in(
        &mut self,
        domain: &Arc<Domain>,
        buffer: &Arc<Buffer>,
    ) -> Result<MemoryRegion, RegisterError> {
        self.check_room(buffer, REGIONS_WITH_GRANTS_MAX)?;
        let registration = pin_in(domain, buffer, (ffi::ACCESS_REMOTE_READ, Purpose::Grant))?;
        let key = registration.registration.remote_key();
        let grant = Grant::Own { _registration: registration, _domain: domain.clone() };
        Ok(self.add_grant(buffer, key, grant))
    }

    /// A window for a buffer, not bound yet, with the registration to which it can be bound.
    pub(super) fn window(
        &mut self,
        domain: ProtectionDomain,
        buffer: &Arc<Buffer>,
    ) -> Result<(Window, Held), RegisterError> {
        self.check_room(buffer, REGIONS_WITH_GRANTS_MAX)?;
        let found = find(&self.domains, domain)?;
        let key = (domain, Arc::as_ptr(buffer).addr());
        let shared = match self.for_windows.get(&key).and_then(Weak::upgrade) {
            Some(shared) => shared,
            None => {
                let registration = pin_in(found, buffer, (ffi::ACCESS_MW_BIND, Purpose::Grant))?;
                let shared = Arc::new(Registered { registration, buffer: buffer.clone() });
                self.for_windows.retain(|_, known| known.strong_count() > 0);
                self.for_windows.insert(key, Arc::downgrade(&shared));
                shared
            }
        };
        Ok((Window::new(found)?, shared))
    }

    /// Adds a grant as a region.
    pub(super) fn add_grant(
        &mut self,
        buffer: &Arc<Buffer>,
        key: u32,
        grant: Grant,
    ) -> MemoryRegion {
        let (address, len) = (buffer.as_ptr() as u64, buffer.len());
        let mut region = Region::new(buffer.clone(), NO_DOMAIN, Access::REMOTE_READ);
        region._grant = Some(grant);
        MemoryRegion { id: self.add(region), key, address, len }
    }

    /// Ends a grant whose connection ends. Its region stays until it is deregistered.
    pub(super) fn end_grant(&mut self, id: RegionId) {
        if let Some(Some(region)) = self.regions.get_mut(id.0 as usize) {
            region._grant = None;
        }
    }

    fn take_local(&mut self, region: &Region) -> Result<Held, RegisterError> {
        let Self { cache, domains, .. } = self;
        let writable = region.is_writable();
        let access = if writable { ffi::ACCESS_LOCAL_WRITE } else { 0 };
        cache.take(region.domain, &region.buffer, writable, || {
            pin(domains, region.domain, &region.buffer, access)
        })
    }

    pub(super) fn deregister(&mut self, id: RegionId) {
        let Some(region) = self.regions.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        self.free.push(id.0);
        if let Some(held) = region.local {
            let key = Key::new(region.domain, &region.buffer, region.access.contains(WRITE));
            drop((region._remote, held, region.sink, region.buffer));
            self.cache.give_back(key);
        }
    }

    /// Checks a segment.
    pub(super) fn check(
        &self,
        domain: ProtectionDomain,
        segment: LocalSegment,
        need: Access,
    ) -> Result<(), PostError> {
        let region = self
            .regions
            .get(segment.region.0 as usize)
            .and_then(Option::as_ref)
            .filter(|region| region.domain == domain)
            .ok_or(PostError::Region)?;
        if !region.access.contains(need) {
            return Err(PostError::Access);
        }
        match segment.offset.checked_add(segment.len) {
            Some(end) if end <= region.buffer.len() => Ok(()),
            _ => Err(PostError::Bounds),
        }
    }

    /// The device's address and key of a checked segment, and the holder of its registration; none
    /// for an empty buffer.
    pub(super) fn span(
        &mut self,
        segment: LocalSegment,
    ) -> Result<Option<(Span, Held)>, PostError> {
        let index = segment.region.0 as usize;
        let region = self.regions.get_mut(index).ok_or(PostError::Region)?;
        let Some(mut region) = region.take() else { return Err(PostError::Region) };
        if region.local.is_none() && !region.buffer.is_empty() {
            region.local = self.take_local(&region).inspect_err(tell_failure).ok();
        }
        let found = region.local.clone();
        let is_empty = region.buffer.is_empty();
        let address = region.buffer.as_ptr() as u64 + segment.offset as u64;
        let may_be_unmapped = region.buffer.may_be_unmapped();
        self.regions[index] = Some(region);
        match found {
            Some(held) => {
                let key = held.local_key();
                Ok(Some((Span { address, len: segment.len, key, may_be_unmapped }, held)))
            }
            None if is_empty => Ok(None),
            None => Err(PostError::Memory),
        }
    }

    /// As [`Memory::span`], for work of the one connection that has this domain. Registers the buffer
    /// for this work alone. The sink of a read has no right for peers: devices that need it have no such
    /// connections.
    pub(super) fn span_in(
        &self,
        domain: &Domain,
        segment: LocalSegment,
    ) -> Result<Option<(Span, Held)>, PostError> {
        let region = self.regions.get(segment.region.0 as usize).and_then(Option::as_ref);
        let region = region.ok_or(PostError::Region)?;
        if region.buffer.is_empty() {
            return Ok(None);
        }
        let access = if region.is_writable() { ffi::ACCESS_LOCAL_WRITE } else { 0 };
        let held = hold_in(domain, &region.buffer, access)?;
        let address = region.buffer.as_ptr() as u64 + segment.offset as u64;
        let (len, may_be_unmapped) = (segment.len, region.buffer.may_be_unmapped());
        Ok(Some((Span { address, len, key: held.local_key(), may_be_unmapped }, held)))
    }

    /// As [`Memory::span`], for the sink of a read.
    pub(super) fn sink_span(
        &mut self,
        segment: LocalSegment,
    ) -> Result<Option<(Span, Held)>, PostError> {
        if self.sink_access == 0 {
            return self.span(segment);
        }
        let Self { regions, domains, sink_access, .. } = self;
        let region = regions.get_mut(segment.region.0 as usize).and_then(Option::as_mut);
        let Some(region) = region else { return Err(PostError::Region) };
        if region.buffer.is_empty() {
            return Ok(None);
        }
        if region.sink.is_none() {
            let access = ffi::ACCESS_LOCAL_WRITE | *sink_access;
            let pinned = pin(domains, region.domain, &region.buffer, access);
            let registration = pinned.inspect_err(tell_failure).map_err(|_| PostError::Memory)?;
            let buffer = region.buffer.clone();
            region.sink = Some(Arc::new(Registered { registration, buffer }));
        }
        let address = region.buffer.as_ptr() as u64 + segment.offset as u64;
        let (len, may_be_unmapped) = (segment.len, region.buffer.may_be_unmapped());
        let held = region.sink.clone();
        Ok(held.map(|held| (Span { address, len, key: held.local_key(), may_be_unmapped }, held)))
    }

    /// Registers a staging block of the provider for sends.
    pub(super) fn staging(
        &mut self,
        domain: ProtectionDomain,
        buffer: &Arc<Buffer>,
    ) -> Result<Held, PostError> {
        let Self { cache, domains, .. } = self;
        let held = cache
            .take(domain, buffer, false, || pin(domains, domain, buffer, 0))
            .inspect_err(tell_failure)
            .map_err(|_| PostError::Memory)?;
        cache.give_back(Key::new(domain, buffer, false));
        Ok(held)
    }
}

const WRITE: Access = Access::LOCAL_WRITE;

impl Region {
    /// A region without a registration.
    fn new(buffer: Arc<Buffer>, domain: ProtectionDomain, access: Access) -> Self {
        let (_grant, _remote, local, sink) = (None, None, None, None);
        Self { _grant, _remote, local, sink, buffer, domain, access }
    }

    fn is_writable(&self) -> bool {
        self.access.contains(WRITE)
    }
}

impl Registered<Pinned> {
    /// The key for local work.
    pub(super) fn local_key(&self) -> u32 {
        self.registration.registration.local_key()
    }
}

fn tell_failure(error: &RegisterError) {
    tracing::warn!(%error, "memory cannot be registered for work of this side");
}

/// The rights in the device's terms; the device requires local write for every remote write.
fn raw_access(access: Access) -> i32 {
    let mut raw = 0;
    if access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
        raw |= ffi::ACCESS_LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_WRITE) {
        raw |= ffi::ACCESS_REMOTE_WRITE;
    }
    if access.contains(Access::REMOTE_READ) {
        raw |= ffi::ACCESS_REMOTE_READ;
    }
    raw
}

fn pin(
    domains: &[Domain],
    domain: ProtectionDomain,
    buffer: &Buffer,
    access: i32,
) -> Result<Pinned, RegisterError> {
    pin_in(find(domains, domain)?, buffer, (access, Purpose::Work))
}

fn find(domains: &[Domain], domain: ProtectionDomain) -> io::Result<&Domain> {
    let found = (domain.0 as usize).checked_sub(1).and_then(|index| domains.get(index));
    let missing = || io::Error::new(io::ErrorKind::InvalidInput, "no such protection domain");
    found.ok_or_else(missing)
}

/// Registers a buffer for work of the one connection that has this domain.
pub(super) fn hold_in(
    domain: &Domain,
    buffer: &Arc<Buffer>,
    access: i32,
) -> Result<Held, PostError> {
    let pinned = pin_in(domain, buffer, (access, Purpose::Work)).inspect_err(tell_failure);
    let registration = pinned.map_err(|_| PostError::Memory)?;
    Ok(Arc::new(Registered { registration, buffer: buffer.clone() }))
}

fn pin_in(
    domain: &Domain,
    buffer: &Buffer,
    (access, purpose): (i32, Purpose),
) -> Result<Pinned, RegisterError> {
    let bytes = buffer.len();
    let share = locked::take(purpose, buffer.as_ptr() as u64, bytes).map_err(|exceeded| {
        let locked::Exceeded { registered, limit } = exceeded;
        RegisterError::LockedMemory { bytes, registered, limit }
    })?;
    let registration = domain.register(buffer, access)?;
    Ok(Pinned { registration, _share: share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_translated() {
        assert_eq!(raw_access(Access::empty()), 0);
        assert_eq!(raw_access(Access::LOCAL_WRITE), ffi::ACCESS_LOCAL_WRITE);
        assert_eq!(raw_access(Access::REMOTE_READ), ffi::ACCESS_REMOTE_READ);
        // A device refuses a remote write right without a local one.
        let write = ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_WRITE;
        assert_eq!(raw_access(Access::REMOTE_WRITE), write);
    }

    #[test]
    fn the_limit_comes_with_its_remedy() {
        let error = RegisterError::LockedMemory { bytes: 8192, registered: 65536, limit: 65536 };
        let text = error.to_string();
        for word in ["8192", "65536", "ulimit -l unlimited", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
            assert!(text.contains(word), "{word} is missing in: {text}");
        }
    }
}
