//! Listings, read page by page.
//!
//! Invariants
//! * At most one page of a listing is in memory, whatever its length.

use super::attributes::DirEntry;
use super::error::{MountError, Result};
use super::protocol::Cursor;
use super::{Handle, Mount};

/// The entries of a directory.
#[derive(Debug)]
pub struct ReadDir {
    mount: Mount,
    dir: Handle,
    entries: std::vec::IntoIter<DirEntry>,
    /// The place at which the next page begins; `None` at the end.
    next: Option<Cursor>,
}

impl ReadDir {
    pub(crate) fn new(mount: Mount, dir: Handle) -> Self {
        Self { mount, dir, entries: Vec::new().into_iter(), next: Some(Cursor::default()) }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(Ok(entry));
            }
            let from = self.next.take()?;
            match self.mount.protocol().read_directory(&self.dir, from) {
                Ok(page) => {
                    if let Err(error) = check_progress(from, page.next) {
                        return Some(Err(error));
                    }
                    self.entries = page.entries.into_iter();
                    self.next = page.next;
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Refuses a page that is followed by itself: the client would ask for it for ever, and a caller
/// that collects entries would grow without bound.
fn check_progress(from: Cursor, next: Option<Cursor>) -> Result<()> {
    match next {
        Some(next) if next.cookie == from.cookie => {
            Err(MountError::protocol("a listing that goes on where it began"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_stands_still_is_refused() {
        let at = |cookie, byte| Cursor { cookie, verifier: [byte; 8] };
        assert!(check_progress(at(7, 1), Some(at(7, 1))).is_err());
        assert!(check_progress(at(7, 1), Some(at(7, 2))).is_err());
        assert!(check_progress(Cursor::default(), Some(at(0, 1))).is_err());
        assert!(check_progress(at(7, 1), Some(at(3, 1))).is_ok());
        assert!(check_progress(at(7, 1), None).is_ok());
    }
}
