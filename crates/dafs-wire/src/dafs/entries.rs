//! Directory entries (DAFS 5.4, 6, O12).
//!
//! Invariants
//! * The writer never writes beyond its area. After `finish` the area holds a complete counted
//!   array; before that its content is not valid.
//! * The offsets of an entry's attribute block and name count from the start of the array.

use super::attributes::Attributes;
use super::codec::{Scope, Writer, layout};
use super::error::{DecodeError, EncodeError};
use super::limits::UNLIMITED;
use super::order::ByteOrder;
use super::seq::Seq;

layout! {
    /// One entry of a directory.
    pub struct DirEntry<'a> [16, array 8 max UNLIMITED] {
        /// The cookie from which the listing continues after this entry; never 0, 1 or 2.
        cookie: u64 = 0,
        /// The attributes; empty when they are not available (DAFS O59).
        attributes: Attributes<'a> = 8,
        /// The name, any bytes (a decision of dafs: names that are not UTF-8 must survive).
        name: &'a [u8] = 12,
    }
}

/// The output of a [`DirEntriesWriter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntriesLength {
    /// Length of the counted array in bytes.
    pub bytes: usize,
    /// Entries in it.
    pub count: usize,
}

/// Writes a directory entry by entry into a reply or a direct buffer.
///
/// The fixed parts must be contiguous while their number is unknown. So they grow from the front of
/// the area, and names and attributes grow from its back; `finish` closes the gap.
#[derive(Debug)]
pub struct DirEntriesWriter<'b> {
    area: &'b mut [u8],
    order: ByteOrder,
    count: usize,
    /// Start of names and attributes; a multiple of 8.
    heap: usize,
    /// End of names and attributes, without padding.
    heap_end: usize,
}

const ENTRY_BYTES: usize = 16;
const ENTRIES_AT: usize = 8;

impl<'b> DirEntriesWriter<'b> {
    /// A writer into `area`, whose first byte is at a multiple of 8 from the start of the message
    /// or of the direct buffers.
    ///
    /// # Errors
    /// The area cannot hold an empty array (8 bytes).
    pub fn new(area: &'b mut [u8], order: ByteOrder) -> Result<Self, EncodeError> {
        let room = area.len();
        if room < ENTRIES_AT {
            return Err(EncodeError::NoRoom { room });
        }
        let heap = room & !7;
        Ok(Self { area, order, count: 0, heap, heap_end: heap })
    }

    /// Entries written so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Length of the array in bytes if it were finished now.
    pub fn bytes(&self) -> usize {
        self.entries_end() + (self.heap_end - self.heap)
    }

    fn entries_end(&self) -> usize {
        ENTRIES_AT + self.count * ENTRY_BYTES
    }

    /// Adds an entry; returns false, with the writer unchanged, when it does not fit.
    pub fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        let at = self.entries_end();
        let scratch = at + ENTRY_BYTES;
        if scratch > self.heap {
            return false;
        }
        // The rest is written at the start of the gap, to learn its length, and then moved to the
        // end of the gap.
        let mut writer = Writer::new(&mut self.area[..self.heap], scratch, self.order);
        let Ok(block) = entry.attributes.write_block(&mut writer) else { return false };
        let Ok(name) = writer.string(entry.name) else { return false };
        let bytes = writer.end() - scratch;
        let padded = bytes.next_multiple_of(8);
        let heap = self.heap - padded;
        self.area.copy_within(scratch..scratch + bytes, heap);
        self.area[heap + bytes..heap + padded].fill(0);
        if self.count == 0 {
            self.heap_end = heap + bytes;
        }
        self.heap = heap;
        let mut writer = Writer::new(self.area, 0, self.order);
        // INVARIANT: the 16 bytes at `at` end before the heap, so these cannot fail.
        let stored = writer
            .put_u64(at, entry.cookie)
            .and_then(|()| writer.put_count(at + 8, heap + block - scratch))
            .and_then(|()| writer.put_count(at + 12, heap + name - scratch));
        if stored.is_ok() {
            self.count += 1;
        }
        stored.is_ok()
    }

    /// Closes the gap and writes the count.
    ///
    /// # Errors
    /// There are more entries or bytes than the format can count.
    pub fn finish(self) -> Result<DirEntriesLength, EncodeError> {
        let entries_end = self.entries_end();
        let length = DirEntriesLength { bytes: self.bytes(), count: self.count };
        let gap = self.heap - entries_end;
        self.area.copy_within(self.heap..self.heap_end, entries_end);
        let mut writer = Writer::new(self.area, 0, self.order);
        writer.put_count(0, self.count)?;
        writer.put_u32(4, 0)?;
        for at in (ENTRIES_AT..entries_end).step_by(ENTRY_BYTES) {
            for field in [at + 8, at + 12] {
                writer.lower_u32(field, gap)?;
            }
        }
        Ok(length)
    }
}

/// Reads the bare array of a direct READDIR (DAFS O12).
///
/// # Errors
/// The fault in the array.
pub fn decode_entries_direct(
    bytes: &[u8],
    order: ByteOrder,
) -> Result<Seq<'_, DirEntry<'_>>, DecodeError> {
    Seq::read_array(Scope::new(bytes, order))
}

/// Writes a bare array of entries at byte 0 (DAFS O12); returns its length in bytes.
///
/// # Errors
/// The array does not fit `out`.
pub fn encode_entries_direct(
    entries: Seq<'_, DirEntry<'_>>,
    out: &mut [u8],
    order: ByteOrder,
) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(out, 0, order);
    entries.write_array(&mut writer)?;
    Ok(writer.end())
}
