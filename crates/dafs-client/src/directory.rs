//! Directory listings, page by page.

use crate::attributes::{Attributes, FileHandle};
use crate::client::Client;
use crate::error::Result;
use dafs_wire::dafs::Verifier;
use std::collections::VecDeque;

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but a slash and zero.
    pub name: Vec<u8>,
    /// Attributes with the handle, or `None` where the server cannot read them.
    pub attributes: Option<Attributes>,
}

/// Iterator over a directory, without "." and "..", in the server's order. Fetches a page at a
/// time, with attributes and handles, so that a long listing needs no request per entry.
///
/// After an error it ends.
#[derive(Debug)]
pub struct ReadDir {
    pub(crate) client: Client,
    pub(crate) dir: FileHandle,
    pub(crate) cookie: u64,
    pub(crate) verifier: Verifier,
    pub(crate) page: VecDeque<DirEntry>,
    pub(crate) end: bool,
}

impl Client {
    /// Lists a directory.
    pub fn read_dir(&self, dir: &FileHandle) -> ReadDir {
        ReadDir {
            client: self.clone(),
            dir: *dir,
            cookie: 0,
            verifier: Verifier::ZERO,
            page: VecDeque::new(),
            end: false,
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.pop_front() {
                return Some(Ok(entry));
            }
            if self.end {
                return None;
            }
            if let Err(error) = self.fetch() {
                self.end = true;
                return Some(Err(error));
            }
        }
    }
}
