//! The content of files that is in the kernel's cache.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns the number of pages in a range of a file that are in the kernel's cache (`cachestat`,
/// since Linux 6.5). Brings none there.
///
/// # Errors
/// The error of the call; `ENOSYS` before Linux 6.5.
pub fn cached_pages(file: BorrowedFd<'_>, range: Range<u64>) -> io::Result<u64> {
    /// The number is the same on every processor.
    const CACHESTAT: libc::c_long = 451;
    // For the kernel a length of 0 reaches to the end of the file.
    if range.is_empty() {
        return Ok(0);
    }
    let range = [range.start, range.end - range.start];
    // The pages that are in memory come first.
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads the range, two numbers, and fills the counts, five of them.
    let asked = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    if asked < 0 { Err(io::Error::last_os_error()) } else { Ok(counts[0]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    #[test]
    fn pages_of_written_data_are_counted_by_range() {
        let path = std::env::temp_dir().join(format!("dafs-cached-{}", std::process::id()));
        let mut file = std::fs::File::create_new(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let page = crate::PAGE_BYTES as u64;
        file.write_all(&vec![7; 3 * crate::PAGE_BYTES]).unwrap();
        let count = |range| cached_pages(file.as_fd(), range);
        let Ok(all) = count(0..4 * page) else {
            println!("SKIPPED: the kernel does not tell");
            return;
        };
        assert_eq!(all, 3);
        assert_eq!(count(page..2 * page).unwrap(), 1);
        assert_eq!(count(3 * page..4 * page).unwrap(), 0);
        assert_eq!(count(page..page).unwrap(), 0);
    }
}
