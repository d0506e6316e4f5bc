//! The limit on locked memory: registered pages count against it unless the process has
//! CAP_IPC_LOCK.
//!
//! The kernel reports an excess as a bare ENOMEM, so the limit is checked before.

use std::sync::atomic::{AtomicU64, Ordering};

const PAGE_BYTES: u64 = dafs_mem::PAGE_BYTES as u64;

/// Bytes of whole pages that this process has registered, over all adapters.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// The bit of CAP_IPC_LOCK in /proc.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Counted pages; dropping this ends the count.
#[derive(Debug)]
pub(super) struct Share(u64);

impl Drop for Share {
    fn drop(&mut self) {
        REGISTERED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The limit would be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exceeded {
    pub(super) registered: u64,
    pub(super) limit: u64,
}

/// The bytes of all pages that the range touches.
fn page_bytes(address: u64, len: u64) -> u64 {
    let first = address / PAGE_BYTES;
    let end = address.saturating_add(len).div_ceil(PAGE_BYTES);
    end.saturating_sub(first).saturating_mul(PAGE_BYTES)
}

/// The purpose of registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Memory that a peer asks for. It leaves half of the limit to the memory that connections need.
    Grant,
    /// Memory of connections and of the program.
    Work,
}

impl Purpose {
    /// The bytes that may be registered in all when memory for this purpose is added.
    fn part_of(self, limit: u64) -> u64 {
        match self {
            Self::Grant => limit / 2,
            Self::Work => limit,
        }
    }
}

/// Counts a range that is about to be registered.
pub(super) fn take(purpose: Purpose, address: u64, len: usize) -> Result<Share, Exceeded> {
    let bytes = page_bytes(address, len as u64);
    let limit = limit().map(|limit| purpose.part_of(limit));
    take_below(bytes, limit).or_else(|exceeded| {
        // This is rare, so it may read a file.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if may_lock(&status) { take_below(bytes, None) } else { Err(exceeded) }
    })
}

fn take_below(bytes: u64, limit: Option<u64>) -> Result<Share, Exceeded> {
    let before = REGISTERED.fetch_add(bytes, Ordering::Relaxed);
    let share = Share(bytes);
    match limit {
        Some(limit) if before.saturating_add(bytes) > limit => {
            Err(Exceeded { registered: before, limit })
        }
        _ => Ok(share),
    }
}

/// The limit on the memory that this process may register, in bytes. `None` if it is unlimited.
pub fn locked_memory_limit() -> Option<u64> {
    let status = || std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    limit().filter(|_| !may_lock(&status()))
}

fn limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (failed == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// True if a process of this status is exempt from the limit.
fn may_lock(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_lifts_the_limit() {
        assert!(may_lock("Name:\tdafs\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n"));
        assert!(may_lock("CapEff:\t0000000000004000\n"));
        assert!(!may_lock("CapEff:\t0000000000000000\n"));
        assert!(!may_lock("CapInh:\t0000000000004000\n"));
        assert!(!may_lock(""));
    }

    #[test]
    fn whole_pages_count() {
        assert_eq!(page_bytes(4096, 0), 0);
        assert_eq!(page_bytes(4096, 1), 4096);
        assert_eq!(page_bytes(4095, 2), 8192);
        assert_eq!(page_bytes(u64::MAX, 10), 4096);
    }

    #[test]
    fn grants_leave_half_of_the_limit() {
        assert_eq!(Purpose::Work.part_of(9), 9);
        assert_eq!(Purpose::Grant.part_of(9), 4);
    }

    #[test]
    fn released_memory_is_no_longer_counted() {
        // Larger than all counts of other tests of this process.
        let bytes = 1 << 50;
        let share = take_below(bytes, Some(1 << 51)).unwrap();
        let error = take_below(bytes + 1, Some(1 << 51)).unwrap_err();
        assert!(error.registered >= bytes && error.limit == 1 << 51);
        drop(share);
        let share = take_below(bytes + 1, Some(1 << 51)).unwrap();
        drop(share);
        assert!(take_below(1 << 52, None).is_ok());
    }
}
