//! Fills that have begun. Each of them must end, or its block and its frame stay out of use, and few are
//! under way at a time.
//!
//! Invariants
//! * A panic leaves no fill under way: neither that which it interrupts, nor those behind it.

use super::file::Fill;
use super::files::ExposedFile;

/// Fills of a file that have begun. Its end ends those that are left, without content.
#[derive(Debug)]
pub struct Begun<'a> {
    exposed: &'a ExposedFile,
    left: std::vec::IntoIter<Fill>,
}

impl ExposedFile {
    /// Takes over fills of this file that have begun, each to be ended by [`fill`](Self::fill).
    pub fn begun(&self, fills: Vec<Fill>) -> Begun<'_> {
        Begun { exposed: self, left: fills.into_iter() }
    }
}

impl Iterator for Begun<'_> {
    type Item = Fill;

    fn next(&mut self) -> Option<Fill> {
        self.left.next()
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        for fill in self.left.by_ref() {
            self.exposed.fill(fill, || 0);
        }
    }
}

/// A fill whose content is not read yet. Its end ends the fill, unless that is taken out.
pub(super) struct Unread<'a> {
    pub(super) exposed: &'a ExposedFile,
    pub(super) fill: Option<Fill>,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        if let Some(fill) = self.fill.take() {
            self.exposed.file.lock().end_fill(fill, 0, &*self.exposed.memory);
        }
    }
}
