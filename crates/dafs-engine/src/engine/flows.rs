//! The shares of staging chunks by the direction of their data.
//!
//! The server pulls the data of large writes by RDMA read. A client offers it as fast as its link
//! carries it, so that a slower disk would fill the memory of the server. Here the disk sets the pace:
//! nothing more is pulled until it has taken what is there.
//!
//! Invariants
//! * Neither direction takes all chunks. So a slow disk holds up no reads, and clients that take their
//!   data slowly hold up no writes.
//! * A session and an origin have a share of each direction, and a file system has one of what is
//!   pulled. The exception is a transfer that needs more at once and whose holder has none.
//! * A chunk counts until it is free: a pulled one until the store has taken its data, or until the
//!   connection has ended.

use crate::limits::{
    FLOW_CHUNKS_MAX, FLOW_CHUNKS_PER_ORIGIN_MAX, FLOW_CHUNKS_PER_SESSION_MAX,
    PULLED_CHUNKS_PER_STORE_MAX,
};
use dafs_service::{Origin, Owner};
use dafs_store::FsId;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// The direction of data through a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// To a client.
    Out,
    /// Pulled from a client, for this file system.
    In(FsId),
}

/// The chunks that a waiting transfer needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// Their number. A transfer that is gone needs none.
    pub(crate) chunks: usize,
    pub(crate) flow: Flow,
}

/// The number of chunks of each holder.
#[derive(Debug)]
struct Held<K>(FxHashMap<K, usize>);

impl<K> Default for Held<K> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<K: Eq + Hash> Held<K> {
    /// True if a holder may have `count` more. One without any may have more than `max` at once.
    fn fits(&self, holder: &K, count: usize, max: usize) -> bool {
        self.0.get(holder).is_none_or(|held| held + count <= max)
    }

    fn add(&mut self, holder: K) {
        *self.0.entry(holder).or_default() += 1;
    }

    fn remove(&mut self, holder: &K) {
        if let Some(count) = self.0.get_mut(holder) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(holder);
            }
        }
    }
}

/// The chunks of one direction.
#[derive(Debug, Default)]
struct Direction {
    chunks: usize,
    by_owner: Held<Owner>,
    by_origin: Held<Origin>,
}

/// The chunks of one transport that are in use.
#[derive(Debug, Default)]
pub(super) struct Flows {
    sent: Direction,
    pulled: Direction,
    pulled_by_store: Held<FsId>,
}

impl Flows {
    /// Returns the number of chunks with pulled data.
    pub(super) fn pulled(&self) -> usize {
        self.pulled.chunks
    }

    fn direction(&self, flow: Flow) -> &Direction {
        match flow {
            Flow::Out => &self.sent,
            Flow::In(_) => &self.pulled,
        }
    }

    fn direction_mut(&mut self, flow: Flow) -> &mut Direction {
        match flow {
            Flow::Out => &mut self.sent,
            Flow::In(_) => &mut self.pulled,
        }
    }

    /// True if a connection has any chunk.
    pub(super) fn has_any(&self, owner: &Owner) -> bool {
        [&self.sent, &self.pulled].iter().any(|flow| flow.by_owner.0.contains_key(owner))
    }

    /// True if a connection may take so many chunks, as far as its own share goes.
    fn is_own_share_free(&self, owner: &Owner, Need { chunks, flow }: Need) -> bool {
        self.direction(flow).by_owner.fits(owner, chunks, FLOW_CHUNKS_PER_SESSION_MAX)
    }

    /// True if it may take them, as far as shares go that it has together with others.
    fn is_common_share_free(&self, owner: &Owner, Need { chunks, flow }: Need) -> bool {
        let is_store_free = match &flow {
            Flow::Out => true,
            Flow::In(fs) => self.pulled_by_store.fits(fs, chunks, PULLED_CHUNKS_PER_STORE_MAX),
        };
        let by_origin = &self.direction(flow).by_origin;
        is_store_free && by_origin.fits(&owner.origin, chunks, FLOW_CHUNKS_PER_ORIGIN_MAX)
    }

    /// True if a connection may take so many chunks, as far as shares go.
    pub(super) fn is_share_free(&self, owner: &Owner, need: Need) -> bool {
        self.is_own_share_free(owner, need) && self.is_common_share_free(owner, need)
    }

    /// True if all connections together may take so many chunks of this direction.
    pub(super) fn is_free(&self, Need { chunks, flow }: Need) -> bool {
        self.direction(flow).chunks + chunks <= FLOW_CHUNKS_MAX
    }

    /// True if a connection could take chunks if others had fewer.
    pub(super) fn are_others_in_the_way(&self, owner: &Owner, need: Need) -> bool {
        self.is_own_share_free(owner, need)
            && !(self.is_common_share_free(owner, need) && self.is_free(need))
    }

    pub(super) fn enter(&mut self, owner: &Owner, flow: Flow) {
        let direction = self.direction_mut(flow);
        direction.chunks += 1;
        direction.by_owner.add(*owner);
        direction.by_origin.add(owner.origin);
        if let Flow::In(fs) = flow {
            self.pulled_by_store.add(fs);
        }
    }

    pub(super) fn leave(&mut self, owner: &Owner, flow: Flow) {
        let direction = self.direction_mut(flow);
        direction.chunks -= 1;
        direction.by_owner.remove(owner);
        direction.by_origin.remove(&owner.origin);
        if let Flow::In(fs) = flow {
            self.pulled_by_store.remove(&fs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FS: Flow = Flow::In(FsId([1; 16]));
    const OTHER: Flow = Flow::In(FsId([2; 16]));

    fn owner(user: u32, number: u64) -> Owner {
        Owner { origin: Origin::User(user), number }
    }

    fn is_free(flows: &Flows, owner: Owner, chunks: usize, flow: Flow) -> bool {
        let need = Need { chunks, flow };
        flows.is_share_free(&owner, need) && flows.is_free(need)
    }

    fn fill(flows: &mut Flows, owner: Owner, flow: Flow) -> usize {
        let mut count = 0;
        while is_free(flows, owner, 1, flow) {
            flows.enter(&owner, flow);
            count += 1;
        }
        count
    }

    #[test]
    fn sessions_origins_and_file_systems_have_shares_of_what_is_pulled() {
        let mut flows = Flows::default();
        assert_eq!(fill(&mut flows, owner(1, 1), FS), 16);
        assert_eq!(fill(&mut flows, owner(1, 2), FS), 16);
        assert_eq!(fill(&mut flows, owner(1, 3), FS), 0, "the origin has its share");
        let other = Need { chunks: 1, flow: OTHER };
        assert!(flows.are_others_in_the_way(&owner(1, 3), other));
        assert_eq!(fill(&mut flows, owner(2, 4), FS), 16);
        assert_eq!(fill(&mut flows, owner(3, 5), FS), 0, "the file system has its share");
        assert_eq!(fill(&mut flows, owner(3, 5), OTHER), 16);
        assert_eq!(flows.pulled(), 64);
        assert!(!flows.is_free(other) && flows.are_others_in_the_way(&owner(9, 9), other));
        assert!(!flows.are_others_in_the_way(&owner(3, 5), other), "it has its own share");
    }

    #[test]
    fn each_direction_leaves_chunks_to_the_other() {
        for (one, two) in [(FS, Flow::Out), (Flow::Out, FS)] {
            let mut flows = Flows::default();
            for user in 1..=4 {
                for number in 1..=4 {
                    fill(&mut flows, owner(user, number), one);
                }
            }
            assert!(fill(&mut flows, owner(1, 1), two) == 16, "of the same session, too");
            assert!(flows.has_any(&owner(1, 1)) && !flows.has_any(&owner(7, 7)));
        }
    }

    #[test]
    fn a_transfer_that_needs_more_at_once_gets_it_where_nothing_is_held() {
        let mut flows = Flows::default();
        let (one, two) = (owner(1, 1), owner(2, 2));
        assert!(is_free(&flows, one, 60, FS));
        flows.enter(&one, FS);
        assert!(!is_free(&flows, one, 60, FS) && !is_free(&flows, two, 60, FS));
        assert!(is_free(&flows, two, 60, OTHER) && is_free(&flows, one, 60, Flow::Out));
        flows.leave(&one, FS);
        assert!(is_free(&flows, two, 60, FS));
        assert_eq!(flows.pulled(), 0);
    }
}
