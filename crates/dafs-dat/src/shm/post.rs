//! Posting work: the fast paths.

use super::ShmAdapter;
use super::conn::{Conn, Piece, Receive, Stage, Work, message_kind, message_words};
use super::limits::{QUEUED_WORK_MAX, RECEIVES_MAX};
use super::ring::Corrupt;
use super::sys;
use crate::GATHER_SEGMENTS_MAX;
use crate::error::{DisconnectReason, PostError};
use crate::memory::RegionTable;
use crate::types::{
    Access, EndpointId, LocalSegment, Operation, ProtectionDomain, RemoteBuffer, RemoteWindow,
};
use dafs_mem::{CheckedSlice, Site};

/// Views of the segments of one send or write.
type Views<'a> = [CheckedSlice<'a>; GATHER_SEGMENTS_MAX];

fn no_views<'a>() -> Views<'a> {
    [CheckedSlice::from_mut(&mut []); GATHER_SEGMENTS_MAX]
}

/// Finds the local memory of a send or write and sums its length. Fills the caller's array, because
/// returning one would copy it.
fn find_local<'a>(
    regions: &'a RegionTable,
    domain: ProtectionDomain,
    segments: &[LocalSegment],
    views: &mut Views<'a>,
) -> Result<usize, PostError> {
    if segments.len() > GATHER_SEGMENTS_MAX {
        return Err(PostError::Length);
    }
    let mut total = 0usize;
    for (view, segment) in views.iter_mut().zip(segments) {
        *view = regions.local(domain, *segment, Access::empty())?;
        total = total.checked_add(segment.len).ok_or(PostError::Length)?;
    }
    if u32::try_from(total).is_err() {
        return Err(PostError::Length);
    }
    Ok(total)
}

/// The same memory, kept alive for work that has to wait.
fn keep(regions: &RegionTable, segments: &[LocalSegment]) -> Result<Vec<Piece>, PostError> {
    let piece = |segment: &LocalSegment| {
        let buffer = regions.buffer(segment.region).ok_or(PostError::Region)?.clone();
        Ok(Piece { buffer, offset: segment.offset, len: segment.len })
    };
    segments.iter().map(piece).collect()
}

/// The connection, if it accepts posted work.
fn open(conns: &mut super::Slab<Conn>, endpoint: EndpointId) -> Result<&mut Conn, PostError> {
    conns
        .get_mut(endpoint.0)
        .filter(|conn| matches!(conn.stage, Stage::Open) && conn.end.is_none())
        .ok_or(PostError::NotConnected)
}

impl ShmAdapter {
    pub(super) fn receive(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
    ) -> Result<(), PostError> {
        let conn = self
            .conns
            .get_mut(endpoint.0)
            .filter(|conn| !matches!(conn.stage, Stage::Closing))
            .ok_or(PostError::NotConnected)?;
        if conn.receives.len() >= RECEIVES_MAX {
            return Err(PostError::QueueFull);
        }
        if u32::try_from(segment.len).is_err() {
            return Err(PostError::Length);
        }
        self.regions.local(conn.domain, segment, Access::LOCAL_WRITE)?;
        let buffer = self.regions.buffer(segment.region).ok_or(PostError::Region)?.clone();
        let piece = Piece { buffer, offset: segment.offset, len: segment.len };
        conn.receives.push_back(Receive { work, piece });
        Ok(())
    }

    pub(super) fn send(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segments: &[LocalSegment],
        invalidate: Option<u32>,
    ) -> Result<(), PostError> {
        let conn = open(&mut self.conns, endpoint)?;
        let mut views = no_views();
        let total = find_local(&self.regions, conn.domain, segments, &mut views)?;
        let kind = message_kind(invalidate);
        let fits = conn.queue.is_empty()
            && match conn.producer.fits(kind, total) {
                Ok(room) => room.is_some(),
                Err(corrupt) => return self.broken(endpoint, corrupt),
            };
        if !fits {
            let pieces = keep(&self.regions, segments)?;
            return self.queue(endpoint, Work::Send { work, pieces, total, done: 0, invalidate });
        }
        let views = &views[..segments.len()];
        conn.producer.push(kind, true, message_words(invalidate), views, Site::ShmRingSend)?;
        conn.published = true;
        conn.complete(&mut self.ready, Operation::Send, work, total);
        let (asleep, dirty) = (conn.asleep || !conn.busy, conn.dirty);
        conn.dirty = true;
        if !dirty {
            self.dirty.push(endpoint.0);
        }
        if asleep {
            self.make_busy(endpoint.0);
        }
        Ok(())
    }

    /// Records that the peer's side of the ring is corrupt; the next poll reports the end.
    fn broken(&mut self, endpoint: EndpointId, corrupt: Corrupt) -> Result<(), PostError> {
        self.fail(endpoint, corrupt.into());
        Err(PostError::NotConnected)
    }

    fn fail(&mut self, endpoint: EndpointId, reason: DisconnectReason) {
        if let Some(conn) = self.conns.get_mut(endpoint.0) {
            conn.end.get_or_insert(reason);
            self.make_busy(endpoint.0);
        }
    }

    /// Queues work, and starts it if it is the first.
    fn queue(&mut self, endpoint: EndpointId, work: Work) -> Result<(), PostError> {
        let conn = open(&mut self.conns, endpoint)?;
        if conn.queue.len() >= QUEUED_WORK_MAX {
            return Err(PostError::QueueFull);
        }
        conn.queue.push_back(work);
        if conn.queue.len() == 1 {
            if let Err(reason) = conn.progress(&mut self.ready) {
                conn.end.get_or_insert(reason);
            }
            if !conn.dirty {
                conn.dirty = true;
                self.dirty.push(endpoint.0);
            }
        }
        self.make_busy(endpoint.0);
        Ok(())
    }

    /// Reads region packets that wait, if `key` is not among the known ones.
    fn learn_regions(&mut self, endpoint: EndpointId, key: u32) -> Result<(), PostError> {
        let conn = open(&mut self.conns, endpoint)?;
        if conn.regions.knows(key) || !conn.region_packets_wait() {
            return Ok(());
        }
        match conn.read_packets(&sys::PEER_MAPPINGS) {
            Ok(()) if conn.end.is_some() => self.make_busy(endpoint.0),
            Ok(()) => {}
            Err(reason) => self.fail(endpoint, reason),
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segments: &[LocalSegment],
        remote: RemoteBuffer,
    ) -> Result<(), PostError> {
        self.learn_regions(endpoint, remote.key)?;
        let conn = open(&mut self.conns, endpoint)?;
        let mut views = no_views();
        let total = find_local(&self.regions, conn.domain, segments, &mut views)?;
        if total > remote.len as usize {
            return Err(PostError::Length);
        }
        let found = conn.regions.find(&conn.control, remote, total, Access::REMOTE_WRITE);
        let Some(found) = found else {
            let pieces = keep(&self.regions, segments)?;
            let done = 0;
            return self.queue(endpoint, Work::Write { work, pieces, total, done, remote });
        };
        let mut offset = 0;
        for view in &views[..segments.len()] {
            if let Some(target) = found.view.slice(offset, view.len()) {
                view.copy_to(target, Site::ShmRdma)?;
            }
            offset += view.len();
        }
        conn.complete(&mut self.ready, Operation::RdmaWrite, work, total);
        Ok(())
    }

    pub(super) fn read(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
        remote: RemoteBuffer,
    ) -> Result<(), PostError> {
        self.learn_regions(endpoint, remote.key)?;
        let conn = open(&mut self.conns, endpoint)?;
        if segment.len != remote.len as usize {
            return Err(PostError::Length);
        }
        let sink = self.regions.local(conn.domain, segment, Access::LOCAL_WRITE)?;
        let found = conn.regions.find(&conn.control, remote, segment.len, Access::REMOTE_READ);
        let Some(found) = found else {
            let buffer = self.regions.buffer(segment.region).ok_or(PostError::Region)?.clone();
            let sink = Piece { buffer, offset: segment.offset, len: segment.len };
            return self.queue(endpoint, Work::Read { work, sink, remote });
        };
        sink.copy_from(found.view, Site::ShmRdma)?;
        conn.complete(&mut self.ready, Operation::RdmaRead, work, segment.len);
        Ok(())
    }

    pub(super) fn window(
        &mut self,
        endpoint: EndpointId,
        remote: RemoteBuffer,
        need: Access,
    ) -> Option<RemoteWindow> {
        self.learn_regions(endpoint, remote.key).ok()?;
        let conn = open(&mut self.conns, endpoint).ok()?;
        let found = conn.regions.find(&conn.control, remote, remote.len as usize, need)?;
        let (ptr, mapping) = (found.view.as_ptr(), found.mapping.clone());
        let len = found.view.len();
        Some(if found.writable {
            // SAFETY: the range lies in `mapping`, which is unmapped only when its last owner
            // drops, and which is writable because the peer granted writing.
            unsafe { RemoteWindow::new(ptr, len, mapping) }
        } else {
            // SAFETY: as above, but mapped for reading alone.
            unsafe { RemoteWindow::read_only(ptr, len, mapping) }
        })
    }
}
