//! Result data that the client reads from the socket straight into the caller's memory.

use super::core::{Results, results};
use super::error::CallError;
use super::memory::MemorySlice;
use super::request::{Locate, Located};
use crate::memory::Block;
use crate::record::Record;
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpc::{AcceptStatus, ReplyHeader, ReplyStatus};
use dafs_wire::xdr::{Decoder, MovedItem, UNIT_BYTES, padded};
use smallvec::smallvec;

/// The memory for the data of a reply, and how it is found.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) memory: MemorySlice,
    pub(crate) locate: Locate,
    /// Bytes of the body before the results.
    pub(crate) offset: usize,
}

/// The placed data of a record that has not arrived completely.
#[derive(Debug)]
pub(crate) struct PlacedData {
    /// The XID of the call.
    pub(crate) xid: u32,
    /// Bytes of the record before the data.
    pub(crate) at: usize,
    /// Bytes of the results before the data.
    pub(crate) position: usize,
    /// Length of the data, without padding.
    pub(crate) len: usize,
    /// Bytes that have arrived, padding included.
    done: usize,
    /// The destination; none after the call was cancelled.
    sink: Option<MemorySlice>,
}

impl PlacedData {
    /// Starts to place data in `sink`, which holds at least `len` bytes.
    pub(crate) fn new(xid: u32, at: usize, position: usize, len: usize, sink: MemorySlice) -> Self {
        debug_assert!(len <= sink.len());
        Self { xid, at, position, len, done: 0, sink: Some(sink) }
    }

    /// True when all data and padding have arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.left() == 0
    }

    /// Bytes that have not arrived, padding included.
    pub(crate) fn left(&self) -> usize {
        padded(self.len) - self.done
    }

    /// The destination of the next bytes, at most `len_max`; `None` for bytes to discard.
    pub(crate) fn space(&self, len_max: usize) -> Option<VolatileSlice<'_>> {
        let len = self.len.checked_sub(self.done).filter(|&left| left > 0)?.min(len_max);
        self.sink.as_ref()?.view().slice(self.done, len)
    }

    /// Counts up to `len` bytes as arrived and returns how many of them belong to the data and its
    /// padding.
    pub(crate) fn filled(&mut self, len: usize) -> usize {
        let len = len.min(self.left());
        self.done += len;
        len
    }

    /// Copies bytes that arrived in the input; returns how many of them belong to the data and its
    /// padding.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        if let Some(space) = self.space(bytes.len()) {
            space.copy_from(bytes, Site::RpcPlacement);
        }
        self.filled(bytes.len())
    }

    /// Discards the data from now on, because its call was cancelled.
    pub(crate) fn forsake(&mut self) {
        self.sink = None;
    }
}

/// Searches the first bytes of a reply for data that belongs in the sink.
pub(crate) fn locate(xid: u32, head: &[u8], sink: &Sink) -> Option<PlacedData> {
    let Sink { memory, locate, offset } = sink;
    let mut decoder = Decoder::new(head);
    let header = decoder.value::<ReplyHeader<'_>>().ok()?;
    let ReplyStatus::Accepted { status: AcceptStatus::Success, .. } = header.status else {
        return None;
    };
    let Located { position, len } = locate(decoder.rest().get(*offset..)?)?;
    let fits = len > 0 && len <= memory.len() && position.is_multiple_of(UNIT_BYTES);
    let at = (decoder.position() + offset).checked_add(position)?;
    fits.then(|| PlacedData::new(xid, at, position, len, memory.clone()))
}

/// Returns the results of a record whose data is in its place already.
pub(crate) fn placed_results(
    record: Record<'_>,
    placed: &PlacedData,
    is_raw: bool,
) -> Result<Results, CallError> {
    let mut results = results(record, 0, is_raw)?;
    if !placed.is_complete() {
        return Err(CallError::Malformed);
    }
    let at = if is_raw { placed.at } else { placed.position };
    let item = MovedItem { at: Some(at), len: placed.len };
    results.place(smallvec![item]);
    Ok(results)
}

/// Returns the results of a complete record and copies their data to its place.
pub(crate) fn results_apart(
    bytes: &[u8],
    mut placing: PlacedData,
    is_raw: bool,
) -> Result<Results, CallError> {
    let Some((before, data)) = bytes.split_at_checked(placing.at) else {
        return results(Record::Here(bytes), 0, is_raw);
    };
    // Take the data, then the padding.
    let taken = placing.append(data);
    let rest = &data[taken..];
    let block = Block::new(before.len() + rest.len());
    let mut block = block.map_err(|error| CallError::NoMemory(error.kind()))?;
    for part in [before, rest] {
        let copied = block.space(part.len()).copy_from(part, Site::RpcStaging);
        block.fill(copied);
    }
    placed_results(Record::Block(block), &placing, is_raw)
}
