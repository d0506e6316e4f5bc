//! Ranges of a file cut into parts that lie on one component each.

use super::{Aggregation, OFFSET_MAX};

/// A part of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The offset of its first byte in the file.
    pub file_offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Its component.
    pub component: usize,
    /// The offset of its first byte in the component.
    pub component_offset: u64,
}

/// The parts of a range, in the order of the file.
#[derive(Debug, Clone)]
pub struct Parts<'a> {
    by: &'a dyn Aggregation,
    copy: usize,
    offset: u64,
    end: u64,
}

/// Cuts `bytes` from `offset` on of one copy into parts. Bytes behind the largest offset of a file
/// are left out.
pub fn parts(by: &dyn Aggregation, copy: usize, offset: u64, bytes: u64) -> Parts<'_> {
    assert!(copy < by.copies(), "there is no such copy");
    let end = offset.saturating_add(bytes).min(OFFSET_MAX);
    Parts { by, copy, offset, end }
}

impl Iterator for Parts<'_> {
    type Item = Part;

    /// Stripes that are contiguous on one component, as with a single server, are one part.
    fn next(&mut self) -> Option<Part> {
        if self.offset >= self.end {
            return None;
        }
        let place = self.by.locate(self.offset, self.copy);
        // A third-party driver may return a run of 0, which would loop for ever.
        let mut bytes = place.run_bytes.clamp(1, self.end - self.offset);
        while self.offset + bytes < self.end {
            let next = self.by.locate(self.offset + bytes, self.copy);
            if (next.component, next.offset) != (place.component, place.offset + bytes) {
                break;
            }
            bytes += next.run_bytes.clamp(1, self.end - self.offset - bytes);
        }
        let file_offset = self.offset;
        self.offset += bytes;
        let (component, component_offset) = (place.component, place.offset);
        Some(Part { file_offset, bytes, component, component_offset })
    }
}

/// The size of a file whose components have these sizes.
pub fn size(by: &dyn Aggregation, components: &[u64]) -> u64 {
    assert_eq!(components.len(), by.components(), "a size for each component");
    let implied_size = components.iter().enumerate().map(|(at, &bytes)| by.implied_size(at, bytes));
    implied_size.max().unwrap_or(0)
}
