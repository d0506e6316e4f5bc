//! Outgoing messages, and the RDMA writes before them.
//!
//! Invariants
//! * The server posts receives before it sends the message that grants their credits.
//! * The source memory of a message or write is kept until all of its work requests are complete.

use super::connection::Ending;
use super::link::{Context, Link, Tag};
use crate::call::ConnectionId;
use crate::handler::Handler;
use crate::limits::{RDMA_RECEIVE_BYTES_MAX, RDMA_SENDS_PER_CREDIT, RDMA_WORK_BYTES};
use crate::memory::Block;
use crate::reply::Reply;
use crate::server::group::add;
use dafs_dat::{Access, GATHER_SEGMENTS_MAX, LocalSegment, PostError, RegionId, RemoteBuffer};
use dafs_wire::rpcrdma::{Body, Header, HeaderFault};
use dafs_wire::xdr::{Encode, Encoder};
use smallvec::SmallVec;

/// An outgoing message, and the writes before it.
#[derive(Debug)]
pub(super) struct Outgoing {
    connection: ConnectionId,
    slot: u32,
    /// The reply whose bulk data is being written.
    reply: Option<Reply>,
    pub(super) copied: Option<Block>,
    regions: SmallVec<[RegionId; 2]>,
    /// Work requests that are not complete.
    remaining: u32,
    held_bytes: usize,
}

impl<H: Handler> Context<'_, H> {
    /// Sends an RDMA_ERROR for a message.
    pub(super) fn refuse(&mut self, xid: u32, fault: HeaderFault) {
        self.connection.credits.end();
        self.grant();
        if let Err(ending) = self.send_error(xid, fault) {
            self.fail(ending);
        }
    }

    pub(super) fn send_error(&mut self, xid: u32, fault: HeaderFault) -> Result<(), Ending> {
        add(&self.core.counters().rdma_errors, 1);
        let credits = self.connection.credits.granted();
        let header = Header { xid, credits, body: Body::Error(fault) };
        let out = self.begin_message()?;
        self.send(out, &header, None, |_| {})
    }

    /// Raises the grant for the next message and posts its receives.
    pub(super) fn grant(&mut self) {
        let aim = self.connection.credits.aim(self.core.shared.config.rdma_credits_max);
        let inline_bytes = self.core.shared.config.rdma_inline_bytes;
        let roomy = self.core.receive_slots * inline_bytes < RDMA_RECEIVE_BYTES_MAX;
        if aim > self.connection.credits.granted() && roomy {
            self.connection.credits.raise(aim);
        }
        self.post_receives();
    }

    /// Posts the receives that are missing.
    pub(super) fn post_receives(&mut self) {
        if self.connection.is_closing() {
            return;
        }
        let config = &self.core.shared.config;
        let missing = self.connection.credits.missing() as usize;
        for left in (1..=missing).rev() {
            let receives = &mut self.connection.receives;
            let adapter = &mut *self.link.adapter;
            let mut slot = receives.take_lowest();
            if slot.is_none() {
                let grown =
                    receives.grow(adapter, self.link.domain, left, config.rdma_inline_bytes);
                if let Err(error) = grown {
                    return self.fail(error);
                }
                self.core.receive_slots += left;
                slot = receives.take_lowest();
            }
            let Some((slot, segment)) = slot else { return };
            let work = Tag::Receive(slot).pack();
            if let Err(error) = adapter.post_receive(self.connection.endpoint, work, segment) {
                receives.give_back(slot);
                return self.fail(error);
            }
            self.connection.credits.post();
        }
    }

    /// Takes the slots that a message needs.
    pub(super) fn begin_message(&mut self) -> Result<u32, Ending> {
        let sends_max = RDMA_SENDS_PER_CREDIT.saturating_mul(self.connection.credits.usable() + 4);
        if self.connection.sends >= sends_max {
            return Err(Ending::Unread);
        }
        let slot = self.link.sends.take(&mut *self.link.adapter)?;
        if self.connection.sends == 0 {
            self.connection.sends_since_ns = self.core.now_ns;
        }
        self.connection.sends += 1;
        let held_bytes = self.link.sends.slot_bytes();
        let outgoing = Outgoing {
            connection: self.connection.id,
            slot,
            reply: None,
            copied: None,
            regions: SmallVec::new(),
            remaining: 0,
            held_bytes,
        };
        self.hold(held_bytes);
        Ok(self.link.outgoing.insert(outgoing))
    }

    /// Registers a block as the source of writes.
    pub(super) fn source(
        &mut self,
        out: u32,
        block: &Block,
        range: std::ops::Range<usize>,
    ) -> Result<LocalSegment, Ending> {
        // INVARIANT: only a block that is being dropped has no memory.
        let Some(buffer) = block.lend() else { return Err(PostError::Region.into()) };
        let access = Access::empty();
        let region = self.link.adapter.register(self.link.domain, buffer.clone(), access)?;
        if let Some(outgoing) = self.link.outgoing.get_mut(out) {
            outgoing.regions.push(region.id);
        }
        Ok(region.local(range.start, range.len()))
    }

    /// Writes local memory to the pieces of the peer's memory, which have the same total length.
    pub(super) fn write(
        &mut self,
        out: u32,
        locals: &[LocalSegment],
        remotes: impl Iterator<Item = RemoteBuffer>,
    ) -> Result<(), Ending> {
        let mut locals = locals.iter().copied();
        let mut rest: Option<LocalSegment> = None;
        for mut remote in remotes {
            while remote.len > 0 {
                let mut gathered: SmallVec<[LocalSegment; GATHER_SEGMENTS_MAX]> = SmallVec::new();
                let mut bytes = 0;
                while gathered.len() < GATHER_SEGMENTS_MAX && bytes < remote.len as usize {
                    let Some(local) = rest.take().or_else(|| locals.next()) else { break };
                    let len = local.len.min(remote.len as usize - bytes);
                    gathered.push(LocalSegment { len, ..local });
                    bytes += len;
                    if len < local.len {
                        let (offset, len) = (local.offset + len, local.len - len);
                        rest = Some(LocalSegment { offset, len, ..local });
                    }
                }
                if bytes == 0 {
                    debug_assert!(false, "less is written than was said");
                    return Ok(());
                }
                let now = RemoteBuffer { len: bytes as u32, ..remote };
                let (endpoint, work) = (self.connection.endpoint, Tag::Out(out).pack());
                self.link.adapter.rdma_write(endpoint, work, &gathered, now)?;
                self.posted(out);
                add(&self.core.counters().rdma_writes, 1);
                add(&self.core.counters().rdma_written_bytes, bytes as u64);
                remote.address = remote.address.wrapping_add(bytes as u64);
                remote.len -= bytes as u32;
            }
        }
        Ok(())
    }

    /// Sends a message: the header and what `fill` appends to it.
    pub(super) fn send(
        &mut self,
        out: u32,
        header: &Header,
        invalidate: Option<u32>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Ending> {
        let mut scratch = std::mem::take(&mut self.core.scratch);
        scratch.clear();
        header.encode(&mut Encoder::new(&mut scratch));
        fill(&mut scratch);
        let sent = self.post_message(out, &scratch, invalidate);
        self.core.scratch = scratch;
        self.or_end(out, sent.map_err(Ending::from))
    }

    fn post_message(
        &mut self,
        out: u32,
        message: &[u8],
        invalidate: Option<u32>,
    ) -> Result<(), PostError> {
        let Some(&mut Outgoing { slot, .. }) = self.link.outgoing.get_mut(out) else {
            return Err(PostError::Region);
        };
        // SAFETY: the message has taken the slot, and is posted below.
        let space = unsafe { self.link.sends.bytes_mut(slot) };
        let Some(space) = space.get_mut(..message.len()) else { return Err(PostError::Length) };
        space.copy_from_slice(message);
        let segments = [self.link.sends.segment(slot, message.len())];
        let (endpoint, work) = (self.connection.endpoint, Tag::Out(out).pack());
        let adapter = &mut self.link.adapter;
        match invalidate {
            Some(key) => adapter.post_send_invalidate(endpoint, work, &segments, key)?,
            None => adapter.post_send(endpoint, work, &segments)?,
        }
        self.posted(out);
        add(&self.core.counters().sent_bytes, message.len() as u64);
        Ok(())
    }

    /// Keeps a reply whose data is being written. Its other parts were sent with the message.
    pub(super) fn keep_until_sent(&mut self, out: u32, mut reply: Reply) {
        let Some(outgoing) = self.link.outgoing.get_mut(out) else { return };
        if outgoing.regions.is_empty() {
            return;
        }
        let held_bytes = reply.held_bytes()
            + outgoing.copied.as_ref().map_or(0, Block::capacity)
            + outgoing.remaining as usize * RDMA_WORK_BYTES;
        outgoing.held_bytes += held_bytes;
        // The next call may use the call chunks.
        reply.forget_call_chunks();
        outgoing.reply = Some(reply);
        self.hold(held_bytes);
    }

    fn posted(&mut self, out: u32) {
        if let Some(outgoing) = self.link.outgoing.get_mut(out) {
            outgoing.remaining += 1;
        }
    }

    /// Passes a result on; after a failure, a message without posted work has ended.
    pub(super) fn or_end<T, E: Into<Ending>>(
        &mut self,
        out: u32,
        result: Result<T, E>,
    ) -> Result<T, Ending> {
        result.map_err(|error| {
            if self.link.outgoing.get_mut(out).is_some_and(|out| out.remaining == 0) {
                self.message_over(out);
            }
            error.into()
        })
    }

    /// Handles the completion of one work request of a message.
    pub(super) fn sent_part(&mut self, out: u32) {
        self.connection.sends_since_ns = self.core.now_ns;
        let Some(outgoing) = self.link.outgoing.get_mut(out) else { return };
        debug_assert!(outgoing.remaining > 0, "work that nobody waits for");
        outgoing.remaining = outgoing.remaining.saturating_sub(1);
        if outgoing.remaining == 0 {
            self.message_over(out);
        }
    }

    fn message_over(&mut self, out: u32) {
        let Some(mut outgoing) = self.link.outgoing.remove(out) else { return };
        for region in outgoing.regions.drain(..) {
            self.link.adapter.deregister(region);
        }
        outgoing.copied.iter().for_each(Block::take_back);
        outgoing.reply.iter().for_each(Reply::take_back);
        self.link.sends.give_back(outgoing.slot);
        self.connection.sends -= 1;
        self.release(outgoing.held_bytes);
    }
}

impl Link {
    /// Forgets the messages of a connection that has ended, so that no further work is posted.
    /// Their data does not return to the pool, because the work may still be in progress.
    pub(super) fn reclaim_messages(&mut self, id: ConnectionId) {
        for outgoing in self.outgoing.remove_all(|outgoing| outgoing.connection == id) {
            for region in outgoing.regions {
                self.adapter.deregister(region);
            }
            self.sends.give_back(outgoing.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_dat::sim::{SimFaults, SimNetwork};

    #[test]
    fn slots_of_an_ended_connection_are_freed() {
        let network = SimNetwork::new(1, SimFaults::none());
        let mut link = Link::new(Box::new(network.adapter(1)), 1024);
        let [one, other] = [1, 2].map(|serial| ConnectionId::new(0, 0, serial));
        let outgoing = [one, other].map(|connection| {
            let slot = link.sends.take(&mut *link.adapter).unwrap();
            let (copied, regions) = (None, SmallVec::new());
            let (reply, remaining, held_bytes) = (None, 1, 1024);
            (slot, Outgoing { connection, slot, reply, copied, regions, remaining, held_bytes })
        });
        let [one, other] =
            outgoing.map(|(slot, out)| (slot, out.connection, link.outgoing.insert(out)));
        link.reclaim_messages(one.1);
        assert!(link.outgoing.get_mut(one.2).is_none() && link.outgoing.get_mut(other.2).is_some());
        assert_eq!(link.sends.take(&mut *link.adapter).unwrap(), one.0);
    }
}
