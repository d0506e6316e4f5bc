//! Segments of exposed memory that a connection's peer may map.
//!
//! Invariants
//! * A peer is shown segments of files alone that its session has a grant of, and the life page.
//! * The regions of a connection end with it, and those of a discarded segment soon after.

use super::request::Context;
use crate::exposed::{ExposedMemory, Segment};
use dafs_dat::{Adapter, EndpointId, MemoryRegion};
use dafs_service::{ExposedFile, OpenState};
use dafs_store::OpenFile;
use dafs_wire::dafs::ExposedSegment;
use std::sync::Arc;

/// The longest read that is worth frames, in bytes. Longer ones gain little.
const EXPOSED_READ_BYTES_MAX: usize = 64 << 10;

/// The segments that a peer may map, with their regions.
#[derive(Default)]
pub(super) struct Shown(Vec<(Arc<Segment>, MemoryRegion)>);

impl Shown {
    /// Shows a segment, unless it is shown already. `None` where the peer cannot map it.
    fn show(
        &mut self,
        segment: &Arc<Segment>,
        endpoint: EndpointId,
        adapter: &mut dyn Adapter,
    ) -> Option<ExposedSegment> {
        let known = self.0.iter().find(|(known, _)| Arc::ptr_eq(known, segment));
        let region = match known {
            Some((_, region)) => *region,
            None => {
                let region = adapter.grant(endpoint, &segment.buffer)?;
                self.0.push((segment.clone(), region));
                region
            }
        };
        Some(ExposedSegment {
            address: region.address,
            number: segment.number.into(),
            key: region.key,
            bytes: region.len as u32,
            kind: segment.kind,
        })
    }

    /// Ends the regions of discarded segments.
    pub(super) fn trim(&mut self, endpoint: EndpointId, adapter: &mut dyn Adapter) {
        self.0.retain(|(segment, region)| {
            // Once: another thread may discard it meanwhile.
            let is_live = segment.is_live();
            if !is_live {
                adapter.revoke(endpoint, region.id);
            }
            is_live
        });
    }

    /// Ends all regions.
    pub(super) fn release(&mut self, endpoint: EndpointId, adapter: &mut dyn Adapter) {
        self.0.drain(..).for_each(|(_, region)| adapter.revoke(endpoint, region.id));
    }
}

impl Context<'_> {
    /// Returns the memory in which files are exposed, if this connection's peer can map it. A session
    /// with checksums has none: nothing sums what is not sent.
    pub(crate) fn exposed_memory(&self) -> Option<Arc<ExposedMemory>> {
        let may_map = self.link.adapter.can_grant() && !self.connection.checksums();
        self.shared.exposed.as_ref().filter(|_| may_map).cloned()
    }

    /// True if the peer is on another host.
    pub(crate) fn is_peer_remote(&self) -> bool {
        self.connection.peer.process.is_none()
    }

    /// Shows segments to the peer, as far as it can map more.
    pub(crate) fn show(&mut self, segments: &[Arc<Segment>]) -> Vec<ExposedSegment> {
        let (adapter, endpoint) = (&mut *self.link.adapter, self.connection.endpoint);
        let shown = &mut self.connection.shown;
        shown.trim(endpoint, adapter);
        segments.iter().map_while(|segment| shown.show(segment, endpoint, adapter)).collect()
    }

    /// Notes that a request has read `len` bytes of a file. Blocks that are read often and are in
    /// memory are exposed to clients with a grant.
    pub(crate) fn note_read(
        &self,
        file: &dyn OpenFile,
        open: Option<&OpenState>,
        (offset, len): (u64, usize),
    ) {
        let (Some(open), Some(memory)) = (open, &self.shared.exposed) else { return };
        if !(1..=EXPOSED_READ_BYTES_MAX).contains(&len) {
            return;
        }
        let noted = self.shared.service.note_read(open, (offset, len as u64), self.now.0);
        let Some((exposed, fills)) = noted else { return };
        // Behind a block that is not in memory, others are not worth a try.
        let mut is_cold = false;
        for fill in fills {
            let is_worth = !(fill.is_neighbour && is_cold);
            exposed.fill(fill, || {
                let bytes = is_worth.then(|| memory.read_block(file, &fill)).flatten();
                is_cold |= fill.is_neighbour && bytes.is_none();
                bytes.unwrap_or(0)
            });
        }
    }

    /// Makes room for a file that is to be exposed, for which there was no memory.
    pub(crate) fn make_room_for(&self, exposed: &ExposedFile) {
        self.shared.service.make_room_for_exposed(exposed);
    }
}
