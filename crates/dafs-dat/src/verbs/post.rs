//! Posting: checks, keys, staging where the device gathers too few segments.

use super::adapter::{Place, VerbsAdapter};
use super::connection::{Done, Waiting};
use super::limits::{PIECE_BYTES_MAX, STAGING_BYTES_MAX, STAGING_BYTES_MIN, STAGING_COUNT_MAX};
use super::memory::{self, Held};
use super::plan::{self, Requests, Span, Spans};
use super::sys::Domain;
use crate::types::total_len;
use crate::{
    Access, EndpointId, LocalSegment, Operation, PostError, ProtectionDomain, RemoteBuffer,
};
use dafs_mem::{Buffer, Site};
use smallvec::SmallVec;
use std::sync::Arc;

type Holds = SmallVec<[Held; 2]>;

impl VerbsAdapter {
    /// The device's addresses and keys of segments, and the holders of their registrations.
    fn spans(
        &mut self,
        own_domain: Option<&Domain>,
        segments: &[LocalSegment],
    ) -> Result<(Spans, Holds), PostError> {
        let mut spans = Spans::new();
        let mut holds = Holds::new();
        for segment in segments.iter().filter(|segment| segment.len > 0) {
            let found = match own_domain {
                Some(own) => self.memory.span_in(own, *segment)?,
                None => self.memory.span(*segment)?,
            };
            if let Some((span, held)) = found {
                spans.push(span);
                if !holds.iter().any(|known| Arc::ptr_eq(known, &held)) {
                    holds.push(held);
                }
            }
        }
        Ok((plan::join(spans), holds))
    }

    fn check(
        &self,
        domain: ProtectionDomain,
        segments: &[LocalSegment],
        need: Access,
    ) -> Result<(), PostError> {
        segments.iter().try_for_each(|segment| self.memory.check(domain, *segment, need))
    }

    pub(super) fn queue_send(
        &mut self,
        endpoint: EndpointId,
        place: Place,
        work: u64,
        segments: &[LocalSegment],
        invalidate: Option<u32>,
    ) -> Result<(), PostError> {
        let len = total_len(segments)?;
        if len as usize > PIECE_BYTES_MAX {
            return Err(PostError::Length);
        }
        self.check(place.0, segments, Access::empty())?;
        let (mut spans, mut holds) = self.spans(place.1.as_deref(), segments)?;
        let mut staging = None;
        let most = self.chosen.depths.segments as usize;
        if spans.len() > most {
            let (block, held) = self.gather_rest(&place, &mut spans, most)?;
            holds.push(held);
            staging = Some(block);
        }
        let request = plan::send(&spans, invalidate);
        let done = Done { work, operation: Operation::Send, len, _held: holds, staging };
        self.queue(endpoint, SmallVec::from_iter([request]), done);
        Ok(())
    }

    pub(super) fn queue_write(
        &mut self,
        endpoint: EndpointId,
        place: Place,
        work: u64,
        segments: &[LocalSegment],
        remote: RemoteBuffer,
    ) -> Result<(), PostError> {
        let len = total_len(segments)?;
        self.check(place.0, segments, Access::empty())?;
        let (spans, holds) = self.spans(place.1.as_deref(), segments)?;
        let requests = plan::write(&spans, remote, self.chosen.depths.segments as usize);
        let done = Done { work, operation: Operation::RdmaWrite, len, _held: holds, staging: None };
        self.queue(endpoint, requests, done);
        Ok(())
    }

    pub(super) fn queue_read(
        &mut self,
        endpoint: EndpointId,
        place: Place,
        work: u64,
        segment: LocalSegment,
        remote: RemoteBuffer,
    ) -> Result<(), PostError> {
        self.check(place.0, &[segment], Access::LOCAL_WRITE)?;
        let peer_answers =
            self.connection_mut(endpoint.0).is_some_and(|connection| connection.outbound_reads > 0);
        if !peer_answers {
            // The peer answers no reads, so this one would never complete.
            return Err(PostError::QueueFull);
        }
        let sink = match &place.1 {
            Some(own) => self.memory.span_in(own, segment)?,
            None => self.memory.sink_span(segment)?,
        };
        let (requests, holds) = match sink {
            Some((span, held)) => (plan::read(span, remote), Holds::from_iter([held])),
            // An empty buffer has no address; a zero-length access may use any.
            None => (
                plan::read(Span { address: 0, len: 0, key: 0, may_be_unmapped: false }, remote),
                Holds::new(),
            ),
        };
        let len = remote.len;
        let done = Done { work, operation: Operation::RdmaRead, len, _held: holds, staging: None };
        self.queue(endpoint, requests, done);
        Ok(())
    }

    fn queue(&mut self, endpoint: EndpointId, requests: Requests, done: Done) {
        let Some(connection) = self.connection_mut(endpoint.0) else {
            debug_assert!(false, "checked by the caller");
            return;
        };
        let last = requests.len() - 1;
        let mut done = Some(done);
        connection.waiting.extend(requests.into_iter().enumerate().map(|(index, request)| {
            Waiting { request, done: if index == last { done.take() } else { None } }
        }));
        self.mark_dirty(endpoint.0);
    }

    /// Copies the segments that the device cannot gather into one staging block, which replaces
    /// them.
    fn gather_rest(
        &mut self,
        (domain, own_domain): &Place,
        spans: &mut Spans,
        most: usize,
    ) -> Result<(Arc<Buffer>, Held), PostError> {
        let bytes: usize = spans[most - 1..].iter().map(|span| span.len).sum();
        let block = self.take_staging(bytes)?;
        let held = match own_domain {
            Some(own) => memory::hold_in(own, &block, 0)?,
            None => self.memory.staging(*domain, &block)?,
        };
        let mut at = 0;
        for span in spans.drain(most - 1..) {
            let target = block.slice(at, span.len).ok_or(PostError::Bounds)?;
            // SAFETY: the caller holds the span's registration, which holds its buffer.
            let source = unsafe { span.view() };
            source.copy_to(target, Site::VerbsStaging)?;
            at += span.len;
        }
        let (address, key) = (block.as_ptr() as u64, held.local_key());
        spans.push(Span { address, len: bytes, key, may_be_unmapped: false });
        Ok((block, held))
    }

    fn take_staging(&mut self, bytes: usize) -> Result<Arc<Buffer>, PostError> {
        if let Some(index) = self.staging.iter().position(|block| block.len() >= bytes) {
            return Ok(self.staging.swap_remove(index));
        }
        let bytes = bytes.next_power_of_two().max(STAGING_BYTES_MIN);
        Buffer::zeroed(bytes).map(Arc::new).map_err(|_| PostError::Memory)
    }

    /// Keeps a staging block for the next message.
    pub(super) fn return_staging(&mut self, block: Arc<Buffer>) {
        if block.len() <= STAGING_BYTES_MAX && self.staging.len() < STAGING_COUNT_MAX {
            self.staging.push(block);
        }
    }
}
