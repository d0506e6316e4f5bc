//! Converts posted work into requests for the device.
//!
//! Invariants
//! * The requests of one work item are in order, and only the last is reported.
//! * A request has no empty segment, because some devices read a length of zero as a very large
//!   one. A zero-length read keeps its one.

use super::ffi::{self, ibv_sge};
use super::limits::PIECE_BYTES_MAX;
use super::qp::SendRequest;
use crate::RemoteBuffer;
use dafs_mem::{CheckedSlice, VolatileSlice};
use smallvec::SmallVec;

/// Local registered memory, in the device's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) key: u32,
    /// True if the application may make it inaccessible.
    pub(super) may_be_unmapped: bool,
}

impl Span {
    /// The span's memory.
    ///
    /// # Safety
    /// The span must belong to a buffer that lives as long as the view.
    pub(super) unsafe fn view<'a>(&self) -> CheckedSlice<'a> {
        let address = self.address as *mut u8;
        if self.may_be_unmapped {
            // SAFETY: the caller guarantees it.
            return unsafe { CheckedSlice::callers(address, self.len) };
        }
        // SAFETY: as above; memory of the library itself is always mapped.
        CheckedSlice::ours(unsafe { VolatileSlice::new(address, self.len) })
    }

    /// The span as a device segment. Its length fits, because work of more than 4 GiB is refused
    /// before.
    pub(super) fn segment(&self) -> ibv_sge {
        debug_assert!(u32::try_from(self.len).is_ok());
        ibv_sge { addr: self.address, length: self.len as u32, lkey: self.key }
    }
}

pub(super) type Spans = SmallVec<[Span; 4]>;
pub(super) type Requests = SmallVec<[SendRequest; 1]>;

/// Drops empty spans and joins adjacent ones.
pub(super) fn join(spans: impl IntoIterator<Item = Span>) -> Spans {
    let mut joined = Spans::new();
    for span in spans.into_iter().filter(|span| span.len > 0) {
        match joined.last_mut() {
            Some(last)
                if last.key == span.key && last.address + last.len as u64 == span.address =>
            {
                last.len += span.len;
            }
            _ => joined.push(span),
        }
    }
    joined
}

/// One message. It must not have more spans than the device gathers.
pub(super) fn send(spans: &[Span], invalidate: Option<u32>) -> SendRequest {
    SendRequest {
        opcode: if invalidate.is_some() { ffi::WR_SEND_WITH_INV } else { ffi::WR_SEND },
        segments: spans.iter().map(Span::segment).collect(),
        remote_address: 0,
        // siw's library takes the key to invalidate from this field; other libraries ignore it.
        remote_key: invalidate.unwrap_or(0),
        invalidate: invalidate.unwrap_or(0),
    }
}

/// A write of any length, split where the device gathers fewer segments or carries less.
pub(super) fn write(spans: &[Span], remote: RemoteBuffer, segment_count_max: usize) -> Requests {
    debug_assert!(segment_count_max > 0);
    let request = |address| SendRequest {
        opcode: ffi::WR_RDMA_WRITE,
        segments: SmallVec::new(),
        remote_address: address,
        remote_key: remote.key,
        invalidate: 0,
    };
    let mut requests = Requests::new();
    let mut address = remote.address;
    let mut current = request(address);
    let mut room = PIECE_BYTES_MAX;
    for span in spans {
        let mut rest = *span;
        while rest.len > 0 {
            if room == 0 || current.segments.len() == segment_count_max {
                requests.push(std::mem::replace(&mut current, request(address)));
                room = PIECE_BYTES_MAX;
            }
            let len = rest.len.min(room);
            current.segments.push(Span { len, ..rest }.segment());
            room -= len;
            // A peer's address may have any value; the device checks it.
            address = address.wrapping_add(len as u64);
            rest.address += len as u64;
            rest.len -= len;
        }
    }
    requests.push(current);
    requests
}

/// A read of any length into one span.
pub(super) fn read(span: Span, remote: RemoteBuffer) -> Requests {
    let mut requests = Requests::new();
    let (mut rest, mut address) = (span, remote.address);
    loop {
        let len = rest.len.min(PIECE_BYTES_MAX);
        requests.push(SendRequest {
            opcode: ffi::WR_RDMA_READ,
            segments: SmallVec::from_slice(&[Span { len, ..rest }.segment()]),
            remote_address: address,
            remote_key: remote.key,
            invalidate: 0,
        });
        rest.address += len as u64;
        rest.len -= len;
        address = address.wrapping_add(len as u64);
        if rest.len == 0 {
            return requests;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(address: u64, len: usize) -> Span {
        Span { address, len, key: 7, may_be_unmapped: false }
    }

    #[test]
    fn spans_that_touch_become_one() {
        let spans = [span(0, 0), span(10, 5), span(15, 5), span(21, 1), span(22, 0), span(22, 3)];
        assert_eq!(join(spans)[..], [span(10, 10), span(21, 4)]);
        let other = Span { key: 8, ..span(15, 5) };
        assert_eq!(join([span(10, 5), other])[..], [span(10, 5), other]);
        assert!(join([span(1, 0)]).is_empty());
    }

    fn pieces(requests: &Requests) -> Vec<(u64, Vec<(u64, u32)>)> {
        let segments = |r: &SendRequest| r.segments.iter().map(|s| (s.addr, s.length)).collect();
        requests.iter().map(|request| (request.remote_address, segments(request))).collect()
    }

    #[test]
    fn a_write_is_divided_by_segments_and_by_bytes() {
        let remote = RemoteBuffer { key: 3, address: 1000, len: u32::MAX };
        let spans = [span(10, 5), span(20, 6), span(30, 7)];
        let found = pieces(&write(&spans, remote, 2));
        assert_eq!(found, [(1000, vec![(10, 5), (20, 6)]), (1011, vec![(30, 7)])]);
        let long = [span(0, 3), span(1 << 40, PIECE_BYTES_MAX)];
        let most = PIECE_BYTES_MAX as u32 - 3;
        let (second, local) = (1000 + u64::from(most) + 3, (1 << 40) + u64::from(most));
        let want = [(1000, vec![(0, 3), (1 << 40, most)]), (second, vec![(local, 3)])];
        assert_eq!(pieces(&write(&long, remote, 6)), want);
        assert_eq!(pieces(&write(&[], remote, 6)), [(1000, vec![])]);
    }

    #[test]
    fn a_read_is_divided_by_bytes_and_may_be_empty() {
        let remote = RemoteBuffer { key: 3, address: 1000, len: 0 };
        assert_eq!(pieces(&read(span(10, 0), remote)), [(1000, vec![(10, 0)])]);
        let piece = PIECE_BYTES_MAX as u64;
        let found = pieces(&read(span(10, 2 * PIECE_BYTES_MAX + 1), remote));
        let want = [(1000, PIECE_BYTES_MAX as u32), (1000 + piece, PIECE_BYTES_MAX as u32)];
        assert_eq!(found.len(), 3);
        for (index, (address, len)) in want.into_iter().enumerate() {
            assert_eq!(found[index], (address, vec![(10 + index as u64 * piece, len)]));
        }
        assert_eq!(found[2], (1000 + 2 * piece, vec![(10 + 2 * piece, 1)]));
    }

    #[test]
    fn a_send_may_invalidate() {
        assert_eq!(send(&[], None).opcode, ffi::WR_SEND);
        let request = send(&[span(1, 2)], Some(9));
        assert_eq!((request.opcode, request.invalidate), (ffi::WR_SEND_WITH_INV, 9));
        assert_eq!(request.remote_key, 9);
    }
}
