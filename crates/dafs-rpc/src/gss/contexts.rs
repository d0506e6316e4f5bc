//! All contexts of a server, for all of its reactors and transports.
//!
//! A client may establish a context on one connection and use it on others, also over another
//! transport. So contexts belong to no connection.
//!
//! Invariants
//! * Contexts that have carried no verified call are limited apart from the others, with shares for
//!   hosts. So a flood of new contexts removes none that is in use and none of another host.
//! * Above the limit of the others, the principal with the most contexts loses its least recently
//!   used one. Its client makes a new one when it learns (RFC 2203 section 5.3.3.3).
//! * A host begins contexts at a bounded rate, which does not touch established ones.
//! * Requests that wait for a thread are bounded apart from contexts that wait for another token of
//!   their client: with a mechanism of one leg there are many of the former, for a short time.
//! * No thread holds two locks of this table at once.

use super::context::{Context, Established, Handle};
use super::establish::{Establishing, PartialContext};
use super::proven::Proven;
use super::queue::{Leg, Queue};
use super::rate::Rates;
use super::shares::{Full, Shares};
use crate::limits::{
    GSS_BEGINS_PER_SECOND, GSS_CONTEXTS_MAX, GSS_CONTEXTS_PER_SHARD, GSS_GRACE, GSS_HALF_OPEN_MAX,
    GSS_HALF_OPEN_PER_HOST_MAX, GSS_HALF_OPEN_TIMEOUT, GSS_SHARDS_MAX, GSS_UNPROVEN_DIVISOR,
};
use crate::news::News;
use dafs_dat::connections::Origin;
use dafs_mem::{Mutex, RwLock, Shrinking as _};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The limits of a table of contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextLimits {
    /// Established contexts, at least 1. An eighth of them may wait for their first call.
    pub contexts: usize,
    /// Contexts that wait for another token of their client.
    pub half_open: usize,
    /// The same for one host, or one user of this host.
    pub half_open_per_host: usize,
    /// Contexts that one host, or one user of this host, may begin in a second. After some quiet
    /// seconds it may begin four times as many at once.
    pub begins_per_second: u32,
}

impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            contexts: GSS_CONTEXTS_MAX,
            half_open: GSS_HALF_OPEN_MAX,
            half_open_per_host: GSS_HALF_OPEN_PER_HOST_MAX,
            begins_per_second: GSS_BEGINS_PER_SECOND,
        }
    }
}

/// Counters of a table of contexts: the first three now, the others since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextCounts {
    /// Established contexts.
    pub contexts: u64,
    /// Contexts that wait for another token of their client.
    pub half_open: u64,
    /// Requests for a context that wait for a thread, or have one.
    pub queued: u64,
    /// Contexts that were established.
    pub established: u64,
    /// Contexts that the mechanism refused to establish.
    pub failed: u64,
    /// Requests for a context that did not reach the mechanism, because too many were under way or
    /// the host began too many in a second.
    pub busy: u64,
    /// Contexts being established that were dropped: their client was too slow, or its host began
    /// too many.
    pub abandoned: u64,
    /// Contexts that made room for others.
    pub evicted: u64,
    /// Contexts whose time was over.
    pub expired: u64,
    /// Contexts that their clients destroyed.
    pub destroyed: u64,
    /// Calls in a context that the table does not have, or no longer has.
    pub unknown: u64,
    /// Calls whose header does not match its verifier.
    pub unverified: u64,
    /// Calls with a sequence number that another call had, or that is below the window.
    pub replayed: u64,
}

/// The counters that grow.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) established: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) abandoned: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) destroyed: AtomicU64,
    pub(super) unknown: AtomicU64,
    pub(super) unverified: AtomicU64,
    pub(super) replayed: AtomicU64,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// The contexts of a server.
pub struct Contexts {
    pub(super) limits: ContextLimits,
    next_serial: AtomicU64,
    shards: Box<[RwLock<Shard>]>,
    /// Proven contexts of one shard.
    proven_per_shard: usize,
    /// Established contexts without a verified call.
    unproven: Mutex<Shares<()>>,
    half_open: Mutex<Shares<HalfOpen>>,
    queue: Mutex<Queue>,
    /// The rates at which hosts begin contexts.
    begins: Mutex<Rates>,
    /// Hosts whose refused contexts were logged.
    refused: News<Origin>,
    pub(super) counters: Counters,
}

/// A context that waits for a token of the initiator.
struct HalfOpen {
    handle: Handle,
    begun_ns: u64,
    /// The state of the mechanism.
    partial: Box<dyn PartialContext>,
}

/// A part of the table.
#[derive(Default)]
struct Shard {
    contexts: FxHashMap<u64, Entry>,
    /// The proven contexts by a time at which they had been used.
    proven: Proven,
    /// All contexts in the order of their ends.
    ends: BTreeSet<(u64, u64)>,
}

struct Entry {
    context: Arc<Context>,
    /// Its time in [`Shard::proven`], not later than its last use.
    ordered_ns: Option<u64>,
}

impl Contexts {
    /// An empty table.
    pub fn new(limits: ContextLimits) -> Arc<Self> {
        let unproven_max = (limits.contexts / GSS_UNPROVEN_DIVISOR).max(1);
        let proven_max = limits.contexts.saturating_sub(unproven_max).max(1);
        let shards = (proven_max / GSS_CONTEXTS_PER_SHARD).clamp(1, GSS_SHARDS_MAX);
        Arc::new(Self {
            limits,
            next_serial: AtomicU64::new(1),
            shards: (0..shards).map(|_| RwLock::default()).collect(),
            proven_per_shard: proven_max / shards,
            unproven: Mutex::new(Shares::new(unproven_max, unproven_max)),
            half_open: Mutex::new(Shares::new(limits.half_open, limits.half_open_per_host)),
            queue: Mutex::default(),
            begins: Mutex::new(Rates::new(limits.begins_per_second)),
            refused: News::default(),
            counters: Counters::default(),
        })
    }

    /// The current counters.
    pub fn counts(&self) -> ContextCounts {
        let contexts: usize = self.shards.iter().map(|shard| shard.read().contexts.len()).sum();
        let half_open = self.half_open.lock().len();
        let queued = self.queue.lock().len();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ContextCounts {
            contexts: contexts as u64,
            half_open: half_open as u64,
            queued: queued as u64,
            established: read(&self.counters.established),
            failed: read(&self.counters.failed),
            busy: read(&self.counters.busy),
            abandoned: read(&self.counters.abandoned),
            evicted: read(&self.counters.evicted),
            expired: read(&self.counters.expired),
            destroyed: read(&self.counters.destroyed),
            unknown: read(&self.counters.unknown),
            unverified: read(&self.counters.unverified),
            replayed: read(&self.counters.replayed),
        }
    }

    /// Removes contexts whose time is over. To be called about once a second with the monotonic
    /// time, in nanoseconds.
    pub fn tick(&self, now_ns: u64) {
        for shard in &self.shards {
            let ended = shard.write().take_ended(now_ns);
            count(&self.counters.expired, ended.len());
            ended.iter().for_each(|context| self.forget_unproven(context));
        }
        let timeout_ns = nanoseconds(GSS_HALF_OPEN_TIMEOUT);
        let is_late = |half: &HalfOpen| now_ns >= half.begun_ns.saturating_add(timeout_ns);
        let late = self.half_open.lock().remove_if(is_late);
        count(&self.counters.abandoned, late.len());
        self.begins.lock().tick(now_ns);
    }

    /// True if a refused context of this host should be logged. `now_ns` is the monotonic time, in
    /// nanoseconds.
    pub(crate) fn is_refusal_news(&self, host: Origin, now_ns: u64) -> bool {
        self.refused.is_news(host, now_ns)
    }

    fn shard(&self, serial: u64) -> &RwLock<Shard> {
        &self.shards[(serial % self.shards.len() as u64) as usize]
    }

    /// The established context with this handle, if its time is not over.
    pub(super) fn find(&self, handle: &[u8], now_ns: u64) -> Option<Arc<Context>> {
        let handle = Handle::from_bytes(handle)?;
        let context = {
            let shard = self.shard(handle.serial()).read();
            let entry = shard.contexts.get(&handle.serial())?;
            if entry.context.handle() != handle {
                return None;
            }
            entry.context.clone()
        };
        if now_ns < context.end_ns() {
            return Some(context);
        }
        if self.remove(&context) {
            count(&self.counters.expired, 1);
        }
        None
    }

    /// Records a verified call.
    pub(super) fn use_now(&self, context: &Context, now_ns: u64) {
        if !context.use_now(now_ns) {
            return;
        }
        let serial = context.handle().serial();
        self.forget_unproven_serial(serial);
        let evicted = self.shard(serial).write().prove(serial, now_ns, self.proven_per_shard);
        count(&self.counters.evicted, evicted.len());
    }

    /// Removes a context; calls that are under way are finished. True if the table had it.
    fn remove(&self, context: &Context) -> bool {
        let removed = self.shard(context.handle().serial()).write().take(context.handle().serial());
        self.forget_unproven(context);
        removed.is_some()
    }

    /// Removes a context at the request of its client.
    pub(super) fn destroy(&self, context: &Context) {
        if self.remove(context) {
            count(&self.counters.destroyed, 1);
        }
    }

    fn forget_unproven(&self, context: &Context) {
        if !context.is_proven() {
            self.forget_unproven_serial(context.handle().serial());
        }
    }

    fn forget_unproven_serial(&self, serial: u64) {
        self.unproven.lock().remove(serial);
    }

    /// Adds an established context of a host.
    pub(super) fn enter(
        &self,
        handle: Handle,
        origin: Origin,
        established: Established,
        now_ns: u64,
    ) -> Arc<Context> {
        let lifetime_ns = nanoseconds(established.remaining.saturating_add(GSS_GRACE));
        let end_ns = now_ns.saturating_add(lifetime_ns);
        let context = Arc::new(Context::new(handle, established, now_ns, end_ns));
        let serial = handle.serial();
        self.shard(serial).write().enter(context.clone());
        count(&self.counters.established, 1);
        let pushed = self.unproven.lock().push(serial, origin, (), |()| true);
        let gone = match pushed {
            Ok(gone) => gone.map(|(serial, ())| serial),
            Err(Full) => Some(serial),
        };
        if let Some(gone) = gone
            && self.shard(gone).write().take(gone).is_some()
        {
            count(&self.counters.evicted, 1);
        }
        context
    }

    /// Counts a request of a host for a new context, with a token of this length. None when there
    /// are too many.
    pub(super) fn begin(
        self: &Arc<Self>,
        origin: Origin,
        token_bytes: usize,
        now_ns: u64,
    ) -> Option<Establishing> {
        let is_in_time = self.begins.lock().take(origin, now_ns);
        if !is_in_time || !self.queue.lock().enter(origin, Leg::First, token_bytes) {
            count(&self.counters.busy, 1);
            return None;
        }
        let ticket = Ticket { contexts: self.clone(), origin, token_bytes };
        let serial = self.next_serial.fetch_add(1, Ordering::Relaxed);
        // Without random numbers there is no context; the client tries again.
        let Ok(handle) = Handle::new(serial) else {
            count(&self.counters.busy, 1);
            return None;
        };
        Some(Establishing::new(ticket, handle, now_ns, None))
    }

    /// Continues with a context that waits for a token of the initiator; this one has `token_bytes`.
    pub(super) fn resume(
        self: &Arc<Self>,
        handle: &[u8],
        (origin, token_bytes): (Origin, usize),
        now_ns: u64,
    ) -> Option<Establishing> {
        let handle = Handle::from_bytes(handle)?;
        if !self.queue.lock().enter(origin, Leg::Next, token_bytes) {
            return None;
        }
        let ticket = Ticket { contexts: self.clone(), origin, token_bytes };
        let mut half_open = self.half_open.lock();
        let half = half_open.entry(handle.serial()).filter(|half| half.handle == handle)?;
        let timeout_ns = nanoseconds(GSS_HALF_OPEN_TIMEOUT);
        if now_ns >= half.begun_ns.saturating_add(timeout_ns) {
            return None;
        }
        let HalfOpen { begun_ns, partial, .. } = half_open.remove(handle.serial())?;
        drop(half_open);
        Some(Establishing::new(ticket, handle, begun_ns, Some(partial)))
    }

    /// Keeps the state of a mechanism until the initiator sends its next token.
    pub(super) fn suspend(
        &self,
        handle: Handle,
        origin: Origin,
        begun_ns: u64,
        partial: Box<dyn PartialContext>,
    ) {
        let half = HalfOpen { handle, begun_ns, partial };
        let pushed = self.half_open.lock().push(handle.serial(), origin, half, |_| true);
        // Too many wait, and the oldest of the host goes; without one, this one.
        count(&self.counters.abandoned, usize::from(!matches!(pushed, Ok(None))));
    }
}

/// A place among the requests that wait for a thread, or have one. Dropped, it is free.
pub(super) struct Ticket {
    pub(super) contexts: Arc<Contexts>,
    pub(super) origin: Origin,
    token_bytes: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.contexts.queue.lock().leave(self.origin, self.token_bytes);
    }
}

impl Shard {
    fn enter(&mut self, context: Arc<Context>) {
        let serial = context.handle().serial();
        self.ends.insert((context.end_ns(), serial));
        self.contexts.insert(serial, Entry { context, ordered_ns: None });
    }

    fn take(&mut self, serial: u64) -> Option<Arc<Context>> {
        let Entry { context, ordered_ns } = self.contexts.remove_and_shrink(&serial)?;
        self.ends.remove(&(context.end_ns(), serial));
        if let Some(ordered_ns) = ordered_ns {
            self.proven.remove(&context.principal().exported_name, (ordered_ns, serial));
        }
        Some(context)
    }

    fn take_ended(&mut self, now_ns: u64) -> Vec<Arc<Context>> {
        let mut ended = Vec::new();
        while let Some(&(end_ns, serial)) = self.ends.first()
            && end_ns <= now_ns
        {
            self.ends.pop_first();
            ended.extend(self.take(serial));
        }
        ended
    }

    /// Orders a context among the proven ones, and removes those above the limit.
    fn prove(&mut self, serial: u64, now_ns: u64, max: usize) -> Vec<Arc<Context>> {
        let Some(entry) = self.contexts.get_mut(&serial) else { return Vec::new() };
        entry.ordered_ns = Some(now_ns);
        self.proven.insert(&entry.context.principal().exported_name, (now_ns, serial));
        let mut evicted = Vec::new();
        while self.proven.len() > max
            && let Some(context) = self.take_proven()
        {
            evicted.push(context);
        }
        evicted
    }

    /// Removes the least recently used context of the principal that has the most.
    ///
    /// Calls do not change the order. So a context that was used after its time in the order moves
    /// up here, at most once for each of its calls.
    fn take_proven(&mut self) -> Option<Arc<Context>> {
        loop {
            let (ordered_ns, serial) = self.proven.first()?;
            // INVARIANT: `take` removes a context from both.
            let entry = self.contexts.get_mut(&serial)?;
            let used_ns = entry.context.used_ns();
            if used_ns <= ordered_ns {
                return self.take(serial);
            }
            entry.ordered_ns = Some(used_ns);
            let principal = &entry.context.principal().exported_name;
            self.proven.remove(principal, (ordered_ns, serial));
            self.proven.insert(principal, (used_ns, serial));
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contexts").field("limits", &self.limits).finish_non_exhaustive()
    }
}
