//! Listings, read as far as they are looked at.
//!
//! Invariants
//! * Of a listing at most one part of a server's answer is kept, whatever its length.

use super::attributes::DirEntry;
use super::error::Result;
use super::protocol::Cursor;
use super::{Handle, Mount};

/// The entries of a directory.
#[derive(Debug)]
pub struct ReadDir {
    mount: Mount,
    dir: Handle,
    entries: std::vec::IntoIter<DirEntry>,
    /// Where the next part begins; none when there is none.
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
                    self.entries = page.entries.into_iter();
                    self.next = page.next;
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
