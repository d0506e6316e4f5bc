//! The memory for cached replies, which all sessions share by their weights.
//!
//! Invariants
//! * While there is enough, no session is asked to use less.
//! * Each session may cache [`REPLY_CACHE_SHARE_BYTES`], whatever its weight.
//! * Memory is short from the moment when all of it is taken until no more is taken than is shared
//!   out. Otherwise the first session that gives some back would end the shortage for all others.

use crate::limits::{
    REPLY_CACHE_BYTES_MAX, REPLY_CACHE_SHARE_BYTES, REPLY_CACHE_SHARED_NS, REPLY_CACHE_SPARE_SHARE,
};
use dafs_service::{Claim, Level, Weight, divide};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Stands for no level.
const NONE: u64 = u64::MAX;

/// The memory for cached replies of all sessions.
#[derive(Debug)]
pub(super) struct ReplyCache {
    bytes: AtomicUsize,
    bytes_max: usize,
    level: AtomicU64,
    /// When the memory is divided again.
    due_ns: AtomicU64,
}

impl Default for ReplyCache {
    fn default() -> Self {
        Self::with(REPLY_CACHE_BYTES_MAX)
    }
}

impl ReplyCache {
    pub(super) fn with(bytes_max: usize) -> Self {
        let (level, due_ns) = (AtomicU64::new(NONE), AtomicU64::new(0));
        Self { bytes: AtomicUsize::new(0), bytes_max, level, due_ns }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that sessions share.
    fn supply_bytes(&self) -> usize {
        self.bytes_max - self.bytes_max / REPLY_CACHE_SPARE_SHARE
    }

    fn is_short(&self) -> bool {
        let is_divided = self.level.load(Ordering::Relaxed) != NONE;
        self.bytes() > if is_divided { self.supply_bytes() } else { self.bytes_max }
    }

    /// Returns the bytes that a session of this weight may cache now.
    pub(super) fn allowance(&self, weight: Weight) -> usize {
        let bits = self.level.load(Ordering::Relaxed);
        if bits == NONE || !self.is_short() {
            return usize::MAX;
        }
        let bytes = Level::from_bits(bits).allowance(weight, REPLY_CACHE_SHARE_BYTES as u64);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Divides the memory if it is short, and that is due. `claims` returns the weight of each
    /// session and the bytes that it caches.
    pub(super) fn share(&self, now_ns: u64, claims: impl FnOnce() -> Vec<(Weight, usize)>) {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        let (next_ns, order) = (now_ns.saturating_add(REPLY_CACHE_SHARED_NS), Ordering::Relaxed);
        if !self.is_short()
            || now_ns < due_ns
            || self.due_ns.compare_exchange(due_ns, next_ns, order, order).is_err()
        {
            return;
        }
        let least = REPLY_CACHE_SHARE_BYTES as u64;
        let claim = |(weight, bytes)| Claim { weight, least, wanted: bytes as u64 };
        let claims: Vec<Claim> = claims().into_iter().map(claim).collect();
        let level = divide(self.supply_bytes() as u64, &claims);
        self.level.store(level.map_or(NONE, Level::to_bits), Ordering::Relaxed);
    }
}
