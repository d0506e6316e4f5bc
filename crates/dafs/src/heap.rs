//! Returns unused memory to the system.
//!
//! The C library keeps freed memory, which after a burst of work may be hundreds of mebibytes. A
//! thread checks the heap periodically, and returns pages that have been free for a while.

#[cfg(target_env = "gnu")]
pub(crate) fn keep_trimmed() -> std::io::Result<()> {
    use crate::limits::TRIM_INTERVAL;
    let watch = || {
        let mut trimmer = Trimmer::default();
        loop {
            std::thread::sleep(TRIM_INTERVAL);
            // SAFETY: takes no memory; returns statistics of the heap.
            let free_bytes = unsafe { libc::mallinfo2() }.fordblks;
            if trimmer.is_due(free_bytes) {
                // SAFETY: takes no memory of ours; gives back pages that hold no object.
                unsafe { libc::malloc_trim(0) };
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

/// Decides when pages are returned. The library counts them as free afterwards, too.
#[derive(Debug, Default)]
struct Trimmer {
    /// Free bytes whose pages were returned, or that were too few.
    done_bytes: usize,
    /// More than that was free at the last check.
    waits: bool,
}

impl Trimmer {
    /// True if enough was free at the last check, and still is.
    fn is_due(&mut self, free_bytes: usize) -> bool {
        use crate::limits::TRIM_BYTES_MIN;
        self.done_bytes = self.done_bytes.min(free_bytes);
        let enough = free_bytes - self.done_bytes >= TRIM_BYTES_MIN;
        let due = enough && self.waits;
        self.waits = enough && !due;
        if due {
            self.done_bytes = free_bytes;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TRIM_BYTES_MIN;

    #[test]
    fn pages_go_back_when_they_were_free_for_a_while() {
        let mut trimmer = Trimmer::default();
        let much = 10 * TRIM_BYTES_MIN;
        assert!(!trimmer.is_due(TRIM_BYTES_MIN - 1) && !trimmer.is_due(TRIM_BYTES_MIN - 1));
        assert!(!trimmer.is_due(much));
        assert!(trimmer.is_due(much));
        // Returned pages are not returned again before they have been in use.
        assert!(!trimmer.is_due(much) && !trimmer.is_due(much));
        assert!(!trimmer.is_due(TRIM_BYTES_MIN));
        assert!(!trimmer.is_due(much) && trimmer.is_due(much));
        // Nor is memory that is in use all the time.
        for _ in 0..10 {
            assert!(!trimmer.is_due(0) && !trimmer.is_due(much));
        }
    }
}
