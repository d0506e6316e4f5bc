//! Returns unused memory to the system.
//!
//! The C library keeps freed memory, which after a burst of work may be hundreds of mebibytes. A
//! thread compares the resident memory with what is in use, and returns the rest after a while.

#[cfg(target_env = "gnu")]
pub(crate) fn keep_trimmed() -> std::io::Result<()> {
    use crate::limits::{MAPPED_BYTES_MIN, TRIM_INTERVAL};
    // Without a fixed bound the library raises it to the largest freed block. So large blocks would
    // come from its heaps, where small objects next to them keep the heaps from being reused.
    // SAFETY: sets a parameter of the heap; takes no memory.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) };
    let watch = || {
        let mut trimmer = Trimmer::default();
        loop {
            std::thread::sleep(TRIM_INTERVAL);
            if trimmer.is_due(unused_bytes()) {
                // SAFETY: takes no memory of ours; gives back pages that hold no object.
                unsafe { libc::malloc_trim(0) };
                trimmer.note_trimmed(unused_bytes());
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
    Some(resident.saturating_sub(of_files) * dafs_mem::PAGE_BYTES)
}

/// Decides when pages are returned.
#[derive(Debug, Default)]
struct Trimmer {
    /// Unused bytes that could not be returned, because there are objects on the same pages.
    kept_bytes: usize,
    /// More than that was unused at the last check.
    waits: bool,
}

impl Trimmer {
    /// True if enough was unused at the last check, and still is.
    fn is_due(&mut self, unused_bytes: usize) -> bool {
        self.kept_bytes = self.kept_bytes.min(unused_bytes);
        let enough = unused_bytes - self.kept_bytes >= crate::limits::TRIM_BYTES_MIN;
        let due = enough && self.waits;
        self.waits = enough && !due;
        due
    }

    /// Notes what is unused after pages were returned.
    fn note_trimmed(&mut self, unused_bytes: usize) {
        self.kept_bytes = unused_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TRIM_BYTES_MIN;

    #[test]
    fn pages_go_back_when_they_were_unused_for_a_while() {
        let mut trimmer = Trimmer::default();
        let much = 10 * TRIM_BYTES_MIN;
        assert!(!trimmer.is_due(TRIM_BYTES_MIN - 1) && !trimmer.is_due(TRIM_BYTES_MIN - 1));
        assert!(!trimmer.is_due(much));
        assert!(trimmer.is_due(much));
        // What could not be returned is not tried again, until more is unused.
        trimmer.note_trimmed(2 * TRIM_BYTES_MIN);
        assert!(!trimmer.is_due(3 * TRIM_BYTES_MIN - 1) && !trimmer.is_due(3 * TRIM_BYTES_MIN - 1));
        assert!(!trimmer.is_due(3 * TRIM_BYTES_MIN) && trimmer.is_due(3 * TRIM_BYTES_MIN));
        trimmer.note_trimmed(2 * TRIM_BYTES_MIN);
        assert!(!trimmer.is_due(TRIM_BYTES_MIN));
        assert!(!trimmer.is_due(2 * TRIM_BYTES_MIN) && trimmer.is_due(2 * TRIM_BYTES_MIN));
        // Nor is memory that is in use all the time.
        trimmer.note_trimmed(0);
        for _ in 0..10 {
            assert!(!trimmer.is_due(0) && !trimmer.is_due(much));
        }
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn freed_memory_is_found_to_be_resident() {
        let before = resident_bytes().unwrap();
        let block = vec![1_u8; 64 << 20];
        let during = resident_bytes().unwrap();
        assert!(during >= before + (48 << 20), "{before} {during}");
        drop(std::hint::black_box(block));
    }
}
