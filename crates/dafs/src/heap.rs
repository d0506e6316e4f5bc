//! Returns unused memory to the system.
//!
//! The C library keeps freed memory, which after a burst of work may be hundreds of mebibytes. A
//! thread compares the resident memory with what is in use, and returns the rest after a while.

use crate::limits::TRIM_BYTES_MIN;

/// The most checks that are left out after attempts without effect.
const PAUSE_MAX: u32 = 64;
/// An amount of so many times the least to return ends a pause.
const WORTHWHILE: usize = 16;

#[cfg(target_env = "gnu")]
pub(crate) fn keep_trimmed() -> std::io::Result<()> {
    use crate::limits::{MAPPED_BYTES_MIN, TRIM_INTERVAL};
    // Without a fixed bound the library raises it to the largest freed block. So large blocks would
    // come from its heaps, where small objects next to them keep the heaps from being reused. A
    // fixed bound also fixes the free bytes at the end of a heap that are returned at once: at the
    // default, each block of some 100 KiB would be mapped anew.
    for parameter in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: sets a parameter of the heap; takes no memory.
        let is_set = unsafe { libc::mallopt(parameter, MAPPED_BYTES_MIN) } == 1;
        debug_assert!(is_set, "the library knows these parameters and allows this size");
    }
    let watch = || {
        let mut trimmer = Trimmer::default();
        loop {
            std::thread::sleep(TRIM_INTERVAL);
            let before_bytes = unused_bytes();
            if trimmer.is_due(before_bytes) {
                // SAFETY: takes no memory of ours; gives back pages that hold no object.
                unsafe { libc::malloc_trim(0) };
                trimmer.note_trimmed(before_bytes, unused_bytes());
            }
        }
    };
    std::thread::Builder::new().name("dafs-trim".to_owned()).spawn(watch).map(drop)
}

/// Other C libraries manage this themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_trimmed() -> std::io::Result<()> {
    Ok(())
}

/// Returns the resident memory in which the heap has no object. Mapped memory of other kinds, such as stacks,
/// is counted, too.
#[cfg(target_env = "gnu")]
fn unused_bytes() -> usize {
    // SAFETY: takes no memory; returns statistics of the heap.
    let heap = unsafe { libc::mallinfo2() };
    resident_bytes().unwrap_or(0).saturating_sub(heap.uordblks + heap.hblkhd)
}

/// Returns the resident memory that belongs to no file. `None` if the system does not say.
#[cfg(target_env = "gnu")]
fn resident_bytes() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = pages.split(' ').skip(1).map(str::parse::<usize>);
    let (resident, of_files) = (pages.next()?.ok()?, pages.next()?.ok()?);
    // SAFETY: returns a constant of the system.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    Some(resident.saturating_sub(of_files) * page_bytes)
}

/// Decides when pages are returned.
#[derive(Debug, Default)]
struct Trimmer {
    /// Unused bytes that could not be returned: they share pages with objects, or belong to other
    /// mappings, such as buffers of transfers.
    kept_bytes: usize,
    /// More than that was unused at the last check.
    waits: bool,
    /// Checks to leave out, and how many were left out after the last attempt without effect.
    pause: u32,
    last_pause: u32,
}

impl Trimmer {
    /// True if enough was unused at the last check, and still is.
    fn is_due(&mut self, unused_bytes: usize) -> bool {
        self.kept_bytes = self.kept_bytes.min(unused_bytes);
        let more_bytes = unused_bytes - self.kept_bytes;
        if self.pause > 0 && more_bytes < WORTHWHILE * TRIM_BYTES_MIN {
            self.pause -= 1;
            return false;
        }
        let enough = more_bytes >= TRIM_BYTES_MIN;
        let due = enough && self.waits;
        self.waits = enough && !due;
        due
    }

    /// Notes what was unused before and after pages were returned.
    fn note_trimmed(&mut self, before_bytes: usize, after_bytes: usize) {
        self.kept_bytes = after_bytes;
        let had_effect = before_bytes.saturating_sub(after_bytes) >= TRIM_BYTES_MIN;
        self.last_pause = if had_effect { 0 } else { (2 * self.last_pause).clamp(1, PAUSE_MAX) };
        self.pause = self.last_pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_back_when_they_were_unused_for_a_while() {
        let mut trimmer = Trimmer::default();
        let much = 10 * TRIM_BYTES_MIN;
        assert!(!trimmer.is_due(TRIM_BYTES_MIN - 1) && !trimmer.is_due(TRIM_BYTES_MIN - 1));
        assert!(!trimmer.is_due(much));
        assert!(trimmer.is_due(much));
        // The trimmer does not retry pages that it could not return, until more is unused.
        trimmer.note_trimmed(much, 2 * TRIM_BYTES_MIN);
        assert!(!trimmer.is_due(3 * TRIM_BYTES_MIN - 1) && !trimmer.is_due(3 * TRIM_BYTES_MIN - 1));
        assert!(!trimmer.is_due(3 * TRIM_BYTES_MIN) && trimmer.is_due(3 * TRIM_BYTES_MIN));
        trimmer.note_trimmed(3 * TRIM_BYTES_MIN, 2 * TRIM_BYTES_MIN);
        assert!(!trimmer.is_due(TRIM_BYTES_MIN));
        assert!(!trimmer.is_due(2 * TRIM_BYTES_MIN) && trimmer.is_due(2 * TRIM_BYTES_MIN));
        // Nor is memory that is in use all the time.
        trimmer.note_trimmed(2 * TRIM_BYTES_MIN, 0);
        for _ in 0..10 {
            assert!(!trimmer.is_due(0) && !trimmer.is_due(much));
        }
    }

    #[test]
    fn attempts_without_effect_become_rare() {
        let (mut trimmer, mut attempts) = (Trimmer::default(), 0);
        for check in 0..1000 {
            // Buffers that come and go, of which the heap knows nothing.
            let unused_bytes = if check % 5 == 0 { 0 } else { 10 * TRIM_BYTES_MIN };
            if trimmer.is_due(unused_bytes) {
                attempts += 1;
                trimmer.note_trimmed(unused_bytes, unused_bytes);
            }
        }
        assert!((5..30).contains(&attempts), "{attempts}");
        trimmer.note_trimmed(10 * TRIM_BYTES_MIN, 0);
        assert!(!trimmer.is_due(10 * TRIM_BYTES_MIN) && trimmer.is_due(10 * TRIM_BYTES_MIN));
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn resident_memory_is_found() {
        let block = std::hint::black_box(vec![1_u8; 256 << 20]);
        assert!(resident_bytes().unwrap() >= block.len());
    }
}
