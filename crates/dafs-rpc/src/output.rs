//! The queue of records to one peer, without I/O.
//!
//! Invariants
//! * A record that was sent in part stays first until it has been sent completely.

use crate::limits::PARTS_INLINE;
use crate::reply::{Part, PieceData, Reply};
use dafs_mem::{IOV_COUNT_MAX, VolatileSlice};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Bytes to send, for one system call.
pub(crate) type Parts<'a> = SmallVec<[VolatileSlice<'a>; PARTS_INLINE]>;

/// Bytes to seal together.
pub(crate) type Chunks<'a> = SmallVec<[&'a [u8]; PARTS_INLINE]>;

/// Outgoing records.
#[derive(Debug, Default)]
pub(crate) struct Output {
    queue: VecDeque<Reply>,
    /// Bytes of the first record that have been sent.
    sent: usize,
    /// Memory that the queue holds.
    held_bytes: usize,
}

impl Output {
    #[inline]
    pub(crate) fn push(&mut self, record: Reply) {
        self.held_bytes += record.held_bytes();
        self.queue.push_back(record);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queued records.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of memory that they hold.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The next bytes to send, as many parts as one system call takes.
    pub(crate) fn gather<'a>(&'a self, parts: &mut Parts<'a>) {
        let mut skip = self.sent;
        for record in &self.queue {
            record.gather(skip, parts);
            skip = 0;
            if parts.len() >= IOV_COUNT_MAX {
                break;
            }
        }
    }

    /// The next bytes to send, at most `bytes_max`, in memory that no peer can change. Returns how
    /// many; none when there is other memory among them.
    pub(crate) fn chunks<'a>(&'a self, bytes_max: usize, chunks: &mut Chunks<'a>) -> Option<usize> {
        let (mut skip, mut left) = (self.sent, bytes_max);
        let mut is_private = true;
        for record in &self.queue {
            record.visit_record(|part| {
                let bytes = match part {
                    Part::Head(bytes) => bytes,
                    Part::Piece(PieceData::Block(block)) => block.bytes(),
                    Part::Piece(PieceData::Placed(..)) => {
                        is_private = false;
                        &[]
                    }
                };
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                let taken = left.min(bytes.len() - skipped);
                left -= taken;
                if taken > 0 {
                    chunks.push(&bytes[skipped..skipped + taken]);
                }
            });
            if left == 0 || !is_private {
                break;
            }
        }
        is_private.then_some(bytes_max - left)
    }

    /// Removes the first `len` of the gathered bytes, which have been sent.
    pub(crate) fn sent(&mut self, len: usize) {
        self.sent += len;
        while let Some(first) = self.queue.front() {
            let bytes = first.record_bytes();
            if self.sent < bytes {
                return;
            }
            self.sent -= bytes;
            self.held_bytes -= first.held_bytes();
            self.queue.pop_front();
        }
        debug_assert_eq!((self.sent, self.held_bytes), (0, 0), "more was sent than there was");
    }

    /// Lends an empty queue memory that all connections share, so that an idle connection holds
    /// almost none; or returns that memory.
    pub(crate) fn lend(&mut self, spare: &mut VecDeque<Reply>) {
        if self.queue.is_empty() {
            std::mem::swap(&mut self.queue, spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Site;
    use proptest::prelude::*;

    fn record(content: &[u8], bulk: usize) -> Reply {
        let mut record = Reply::from_bytes(content);
        let mut space = record.bulk(bulk).unwrap();
        space.view().fill(content.len() as u8);
        space.finish(bulk);
        record.seal(content.len() as u32);
        record
    }

    proptest! {
        #[test]
        fn all_bytes_leave_once_in_order(
            records in prop::collection::vec((0usize..50, 0usize..9000), 1..20),
            steps in prop::collection::vec(1usize..9000, 1..50),
        ) {
            let mut output = Output::default();
            let mut want = Vec::new();
            for (len, bulk) in records {
                let record = record(&vec![1; len * 4], bulk);
                let mut parts = Parts::new();
                record.gather(0, &mut parts);
                parts.iter().for_each(|part| want.extend(part.to_vec(Site::Inspect)));
                drop(parts);
                output.push(record);
            }
            let mut got = Vec::new();
            for step in steps.into_iter().cycle() {
                let mut bytes = Vec::new();
                let mut parts = Parts::new();
                output.gather(&mut parts);
                parts.iter().for_each(|part| bytes.extend(part.to_vec(Site::Inspect)));
                drop(parts);
                bytes.truncate(step);
                let mut chunks = Chunks::new();
                let len = output.chunks(step, &mut chunks).unwrap();
                prop_assert!(chunks.concat() == bytes && len == bytes.len());
                drop(chunks);
                output.sent(bytes.len());
                got.append(&mut bytes);
                if output.is_empty() {
                    break;
                }
            }
            prop_assert!(got == want);
            prop_assert_eq!(output.held_bytes(), 0);
        }
    }
}
