//! Listings, read page by page.
//!
//! Invariants
//! * At most one page of a listing is in memory, whatever its length.
//! * No entry has a name that leads to another place, such as one with a slash.

use super::attributes::DirEntry;
use super::error::{MountError, Result};
use super::path::component;
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
                    let progress = check_progress(from, page.next);
                    if let Err(error) = progress.and_then(|()| check_names(&page.entries)) {
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

/// Refuses an invalid name of an entry, which would let a copy of the tree escape from its target
/// directory.
fn check_names(entries: &[DirEntry]) -> Result<()> {
    match entries.iter().all(|entry| component(&entry.name).is_ok()) {
        true => Ok(()),
        false => Err(MountError::protocol("a directory entry has a name that cannot be one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        let entry = |name: &[u8]| DirEntry { name: name.to_vec(), handle: None, attributes: None };
        assert!(check_names(&[entry(b"a"), entry(b"...")]).is_ok());
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b"] {
            assert!(check_names(&[entry(b"a"), entry(name)]).is_err(), "{name:?}");
        }
    }

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
