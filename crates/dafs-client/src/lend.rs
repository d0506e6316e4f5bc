//! A cache of registrations of memory that belongs to the application.
//!
//! Registering costs more than a small transfer, and most programs use the same memory again and
//! again.
//!
//! Invariants
//! * The cache is bounded in bytes and in number; a registration that an operation uses is never
//!   evicted.
//! * Every registration that was lent and has not ended is known here, cached or not.
//! * Memory is probed before it is registered, so that a wrong address is an error and no crash.
//! * Where a registration keeps the pages of its addresses (RDMA devices), none is cached: the program
//!   may map other memory at the same addresses without a word.

use crate::buffer::IoBuffer;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::limits::{LENT_BYTES_MAX, LENT_REGISTRATIONS_MAX};
use dafs_mem::{Buffer, PAGE_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// The number of registrations before an address that a lookup tries.
const NEIGHBOURS: usize = 8;

/// Memory of the application's that the server can reach: a range of a registered buffer.
#[derive(Debug, Clone)]
pub struct Lent {
    /// The registration, which may be longer than what was asked for.
    pub buffer: IoBuffer,
    /// The memory's range in the registration.
    pub range: Range<usize>,
}

/// Registrations, by their first address.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    by_start: BTreeMap<usize, Registration>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
    /// Registrations that were not cached: too long, too many, or at the address of another one.
    /// Each ends with its last handle; its memory goes when the adapter has released it, too.
    passing: Vec<(Range<usize>, Weak<Buffer>)>,
    /// The length of `passing` at which ended ones are removed.
    passing_max: usize,
}

#[derive(Debug)]
struct Registration {
    buffer: IoBuffer,
    used: u64,
}

impl Registrations {
    fn find(&mut self, memory: &Range<usize>) -> Option<Lent> {
        let before = self.by_start.range_mut(..=memory.start).rev().take(NEIGHBOURS);
        for (start, registration) in before {
            if start + registration.buffer.len() >= memory.end {
                self.clock += 1;
                registration.used = self.clock;
                let range = memory.start - start..memory.end - start;
                return Some(Lent { buffer: registration.buffer.clone(), range });
            }
        }
        None
    }

    /// Adds a new registration. Returns the evicted ones, which the caller drops after it has
    /// released the lock.
    fn enter(&mut self, start: usize, buffer: &IoBuffer, may_keep: bool) -> Vec<IoBuffer> {
        let mut over = Vec::new();
        if !may_keep || !self.keep(start, buffer, &mut over) {
            if self.passing.len() >= self.passing_max {
                self.passing.retain(|(_, memory)| memory.strong_count() > 0);
                self.passing_max = (2 * self.passing.len()).max(LENT_REGISTRATIONS_MAX);
            }
            let memory = Arc::downgrade(buffer.memory().buffer());
            self.passing.push((start..start + buffer.len(), memory));
        }
        over
    }

    /// Caches a registration, if there is room or can be made.
    fn keep(&mut self, start: usize, buffer: &IoBuffer, over: &mut Vec<IoBuffer>) -> bool {
        if buffer.len() > LENT_BYTES_MAX {
            return false;
        }
        // Of two that begin together only one has a place.
        if let Some(known) = self.by_start.get(&start)
            && (known.buffer.is_shared() || known.buffer.len() >= buffer.len())
        {
            return false;
        }
        over.extend(self.take(start));
        while self.bytes + buffer.len() > LENT_BYTES_MAX
            || self.by_start.len() >= LENT_REGISTRATIONS_MAX
        {
            let unused = self.by_start.iter().filter(|(_, known)| !known.buffer.is_shared());
            let Some((&oldest, _)) = unused.min_by_key(|(_, known)| known.used) else {
                return false;
            };
            over.extend(self.take(oldest));
        }
        self.clock += 1;
        self.bytes += buffer.len();
        self.by_start.insert(start, Registration { buffer: buffer.clone(), used: self.clock });
        true
    }

    fn take(&mut self, start: usize) -> Option<IoBuffer> {
        let registration = self.by_start.remove(&start)?;
        self.bytes -= registration.buffer.len();
        Some(registration.buffer)
    }

    /// Removes all that overlap; removes nothing if an operation uses any of it.
    fn forget(&mut self, memory: &Range<usize>) -> Result<Vec<IoBuffer>> {
        let overlapping = |(start, known): &(&usize, &Registration)| {
            **start < memory.end && *start + known.buffer.len() > memory.start
        };
        let found = self.by_start.iter().filter(overlapping);
        let found: Vec<_> =
            found.map(|(start, known)| (*start, known.buffer.is_shared())).collect();
        let mut passing = self.passing.iter();
        let passing = passing.any(|(range, buffer)| {
            range.start < memory.end && range.end > memory.start && buffer.strong_count() > 0
        });
        if passing || found.iter().any(|(_, used)| *used) {
            return Err(Error::BusyMemory);
        }
        Ok(found.into_iter().filter_map(|(start, _)| self.take(start)).collect())
    }
}

impl Client {
    /// Lets the server reach memory of the caller's, registering it if it is not registered yet.
    /// The registration is cached for the next time, within [`limits::LENT_BYTES_MAX`] and
    /// [`limits::LENT_REGISTRATIONS_MAX`]; the least recently used are evicted. With an RDMA device
    /// none is cached.
    ///
    /// [`limits::LENT_BYTES_MAX`]: crate::limits::LENT_BYTES_MAX
    /// [`limits::LENT_REGISTRATIONS_MAX`]: crate::limits::LENT_REGISTRATIONS_MAX
    ///
    /// # Safety
    /// As [`Client::register`], and the memory must stay mapped until [`forget_memory`] has been
    /// called for it, or the client and all its clones are gone.
    ///
    /// [`forget_memory`]: Client::forget_memory
    ///
    /// # Errors
    /// [`Error::BadMemory`]: it is not mapped, or may not be written. Those of
    /// [`Client::register`].
    pub unsafe fn lend(&self, address: *mut u8, bytes: usize) -> Result<Lent> {
        let start = address as usize;
        let end = start.checked_add(bytes).ok_or(Error::BadMemory)?;
        if let Some(lent) = self.lent().lock()?.find(&(start..end)) {
            return Ok(lent);
        }
        if !is_writable(address, bytes) {
            return Err(Error::BadMemory);
        }
        // SAFETY: as the caller has promised. It lies in mapped, writable memory.
        let buffer = unsafe { self.register(address, bytes)? };
        let may_keep = !self.shared().pins_memory();
        let over = self.lent().lock()?.enter(start, &buffer, may_keep);
        drop(over);
        Ok(Lent { buffer, range: 0..bytes })
    }

    /// Ends the registrations of any of `bytes` bytes at `address` that [`Client::lend`] has made,
    /// cached or not. Call it before lent memory is unmapped; memory that goes back to a heap does
    /// not need it.
    ///
    /// # Errors
    /// [`Error::BusyMemory`]: an operation or a buffer uses it, and nothing is changed.
    pub fn forget_memory(&self, address: *const u8, bytes: usize) -> Result<()> {
        let start = address as usize;
        let memory = start..start.saturating_add(bytes);
        // Registrations without a user may not have ended yet.
        self.shared().reap();
        let over = self.lent().lock()?.forget(&memory)?;
        drop(over);
        Ok(())
    }
}

/// True when every byte can be written and read. The kernel copies private pages that were shared.
pub fn is_writable(address: *const u8, bytes: usize) -> bool {
    populate(address, bytes, libc::MADV_POPULATE_WRITE)
}

/// True when every byte can be read.
pub fn is_readable(address: *const u8, bytes: usize) -> bool {
    populate(address, bytes, libc::MADV_POPULATE_READ)
}

fn populate(address: *const u8, bytes: usize, advice: i32) -> bool {
    if bytes == 0 {
        return true;
    }
    let Some(end) = (address as usize).checked_add(bytes) else { return false };
    let start = address as usize & !(page_bytes() - 1);
    if start == 0 {
        return false;
    }
    loop {
        // SAFETY: this advice maps pages that the process has asked for, and changes no content.
        let done = unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) } == 0;
        if done {
            return true;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // The memory is mapped but cannot be populated: memory of a device, or locked by
            // another user. Or the kernel is older than 5.14 and does not know the advice.
            Some(libc::EINVAL) => return is_advice_unknown(),
            _ => return false,
        }
    }
}

/// True when the kernel rejects the advice even for memory that is certainly good.
fn is_advice_unknown() -> bool {
    let good = 0u8;
    let page = (&raw const good as usize & !(page_bytes() - 1)) as *mut libc::c_void;
    // SAFETY: as above; the page is one of this thread's stack.
    unsafe { libc::madvise(page, page_bytes(), libc::MADV_POPULATE_READ) != 0 }
}

/// The size of the kernel's pages, which need not be that of most machines. No system call.
fn page_bytes() -> usize {
    // SAFETY: the call takes no memory.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::TransportChoice;
    use crate::served::{Served, connected};

    #[test]
    fn the_same_memory_is_registered_once() {
        let served = Served::new();
        for transport in [TransportChoice::Iwarp, TransportChoice::Shm] {
            let client = served.client(transport);
            let memory = vec![7u8; 1 << 16].leak();
            let (address, bytes) = (memory.as_mut_ptr(), memory.len());
            // SAFETY: leaked, and only touched through the client.
            let whole = unsafe { client.lend(address, bytes).unwrap() };
            // SAFETY: as above.
            let part = unsafe { client.lend(address.wrapping_add(4096), 100).unwrap() };
            assert_eq!(part.range, 4096..4196);
            assert!(Arc::ptr_eq(part.buffer.memory(), whole.buffer.memory()));
            let busy = client.forget_memory(address.wrapping_add(bytes - 1), 1);
            assert!(matches!(busy, Err(Error::BusyMemory)), "{busy:?}");
            drop((whole, part));
            client.forget_memory(address.wrapping_add(bytes), 1).unwrap();
            assert_eq!(client.lent().lock_here().by_start.len(), 1);
            client.forget_memory(address.wrapping_add(bytes - 1), 1).unwrap();
            assert_eq!(client.lent().lock_here().bytes, 0);
        }
    }

    #[test]
    fn retained_registrations_are_bounded_and_the_oldest_goes() {
        let (_served, client) = connected();
        let memory = vec![0u8; LENT_REGISTRATIONS_MAX + 1].leak();
        let address = |at: usize| std::ptr::from_ref(&memory[at]).cast_mut();
        for at in 0..=LENT_REGISTRATIONS_MAX {
            // SAFETY: leaked, and never transferred.
            drop(unsafe { client.lend(address(at), 1).unwrap() });
            // The first registration is used all the time.
            // SAFETY: as above.
            drop(unsafe { client.lend(address(0), 1).unwrap() });
        }
        let kept = client.lent().lock_here();
        assert_eq!(kept.by_start.len(), LENT_REGISTRATIONS_MAX);
        assert!(kept.by_start.contains_key(&(address(0) as usize)));
        assert!(!kept.by_start.contains_key(&(address(1) as usize)));
    }

    #[test]
    fn an_unretained_registration_is_known_too() {
        let (_served, client) = connected();
        let memory = vec![0u8; 1 << 16].leak();
        let address = memory.as_mut_ptr();
        let busy = |at: usize| {
            let forgotten = client.forget_memory(address.wrapping_add(at), 1);
            matches!(forgotten, Err(Error::BusyMemory))
        };
        // SAFETY: leaked, and never transferred, as below.
        let short = unsafe { client.lend(address, 4096).unwrap() };
        // SAFETY: as above.
        let long = unsafe { client.lend(address, 8192).unwrap() };
        drop(short);
        // Both begin here, and one of them was not cached.
        assert!(busy(0) && busy(8191));
        assert!(!busy(8192));
        drop(long);
        client.forget_memory(address, 8192).unwrap();
        // A registration in use is not evicted.
        let kept: Vec<_> = (0..LENT_REGISTRATIONS_MAX)
            // SAFETY: as above.
            .map(|at| unsafe { client.lend(address.wrapping_add(at), 1).unwrap() })
            .collect();
        // SAFETY: as above.
        let other = unsafe { client.lend(address.wrapping_add(8192), 1).unwrap() };
        drop(kept);
        assert!(busy(8192));
        drop(other);
        client.forget_memory(address, 1 << 16).unwrap();
        assert_eq!(client.lent().lock_here().bytes, 0);
    }

    #[test]
    fn a_loan_that_is_not_cached_ends_with_its_handle() {
        let (_served, client) = connected();
        let memory = vec![0u8; 4096].leak();
        let start = memory.as_ptr() as usize;
        let range = start..start + 4096;
        // SAFETY: leaked, and never transferred.
        let buffer = unsafe { client.register(memory.as_mut_ptr(), 4096).unwrap() };
        let mut known = Registrations::default();
        assert!(known.enter(start, &buffer, false).is_empty());
        assert!(known.find(&range).is_none());
        assert!(known.forget(&range).is_err());
        drop(buffer);
        known.forget(&range).unwrap();
    }

    #[test]
    fn a_past_loan_takes_no_room() {
        let (_served, client) = connected();
        let memory = vec![0u8; 8192].leak();
        // SAFETY: leaked, and never transferred, as below.
        let _kept = unsafe { client.lend(memory.as_mut_ptr(), 1).unwrap() };
        for _ in 0..3 * LENT_REGISTRATIONS_MAX {
            // SAFETY: as above.
            drop(unsafe { client.lend(memory.as_mut_ptr(), 8192).unwrap() });
        }
        assert!(client.lent().lock_here().passing.len() <= LENT_REGISTRATIONS_MAX);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let (_served, client) = connected();
        let text = "not to be written";
        for (address, bytes) in [
            (std::ptr::null_mut(), 1),
            (std::ptr::without_provenance_mut(1 << 46), 4096),
            (std::ptr::without_provenance_mut(usize::MAX), 2),
            (text.as_ptr().cast_mut(), text.len()),
            (vec![0u8; 16].leak().as_mut_ptr(), isize::MAX as usize),
        ] {
            // SAFETY: nothing is transferred.
            let lent = unsafe { client.lend(address, bytes) };
            assert!(matches!(lent, Err(Error::BadMemory)), "{address:?} {bytes}: {lent:?}");
        }
        assert!(is_readable(text.as_ptr(), text.len()));
    }
}
