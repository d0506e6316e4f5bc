//! Requests that wait: for the kernel, which reads the data that they have missed (io_uring), or on
//! the pool.
//!
//! Invariants
//! * The kernel only fills its page cache. Then the request runs again on its reactor, from the
//!   operation that has missed, with all checks: of its state, of locks, of fences. So a request that
//!   has lost its right meanwhile gets nothing, and a file that was changed is read as it is now.
//! * A request waits for the kernel once. If its data is missing again, because memory is short, it
//!   goes to the pool.
//! * Requests overtake one another here as on the pool. A request of a session keeps its slot.
//! * A read goes on when its connection ends or its request is cancelled. Its request then runs for
//!   nobody. A reactor that ends drops its requests; the ring keeps what the kernel still uses.

use crate::args::Args;
use crate::shared::NfsShared;
use crate::v3;
use crate::v4::compound::end::Parked;
use dafs_rpc::{AcceptStatus, AuthStatus, Injector, OwnedArgs, RejectStatus, Rejection, Responder};
use dafs_service::{FileRange, Owner, PageReads, Place};
use dafs_store::OpenFile;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reads that had to wait for a disk, by their way.
#[derive(Debug, Default)]
pub(crate) struct Misses {
    ring: AtomicU64,
    pool: AtomicU64,
}

impl Misses {
    pub(crate) fn count(&self, by_ring: bool) {
        let counter = if by_ring { &self.ring } else { &self.pool };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the reads by the ring, and those on the pool, also after the ring.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [&self.ring, &self.pool].map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// Returns the range of a read that did not find all its data in memory. It ends with a local file. For
/// the size of another one, the reactor might have to wait.
pub(crate) fn missed(file: &Arc<dyn OpenFile>, offset: u64, bytes: usize) -> FileRange {
    let attr = file.read_descriptor().and_then(|_| file.attr().ok());
    let left = attr.map_or(u64::MAX, |attr| attr.size.saturating_sub(offset));
    let bytes = bytes.min(usize::try_from(left).unwrap_or(usize::MAX));
    FileRange { file: file.clone(), offset, bytes }
}

/// A request that has to wait, with its arguments and the way of its answer.
pub(crate) enum Waiting {
    /// Of NFSv4.
    Compound(Box<Parked>, OwnedArgs, Responder),
    /// Of NFSv3, for this owner.
    Procedure(Box<v3::Parked>, Owner, OwnedArgs, Responder),
}

impl Waiting {
    /// Returns the range that it has missed, once. `None` when it waits for something else.
    pub(crate) fn take_missed(&mut self) -> Option<FileRange> {
        match self {
            Self::Compound(parked, ..) => parked.take_missed(),
            Self::Procedure(parked, ..) => parked.take_missed(),
        }
    }

    fn owner(&self) -> Owner {
        match self {
            Self::Compound(parked, ..) => parked.owner(),
            Self::Procedure(_, owner, ..) => *owner,
        }
    }

    /// Runs it after its read, and on the pool if it has to wait again.
    pub(crate) fn run_again(self, shared: &Arc<NfsShared>) {
        let mut left = match self {
            Self::Compound(parked, args, responder) => {
                match parked.run_again(Args::of_owned(&args)) {
                    Ok(reply) => return responder.respond(reply),
                    Err(parked) => Self::Compound(parked, args, responder),
                }
            }
            Self::Procedure(parked, owner, args, responder) => {
                match parked.run_again(Args::of_owned(&args)) {
                    v3::Answer::Reply(reply) => return responder.respond(reply),
                    v3::Answer::Parked(parked) => Self::Procedure(parked, owner, args, responder),
                    v3::Answer::TooWeak => return responder.reject(too_weak()),
                    // Its arguments were understood before.
                    v3::Answer::Garbage | v3::Answer::NoProcedure | v3::Answer::Drop => {
                        return responder.reject(Rejection::Accept(AcceptStatus::SystemError));
                    }
                }
            }
        };
        if left.take_missed().is_some() {
            shared.misses.count(false);
        }
        left.run_on_pool(shared);
    }

    /// Runs the rest on the pool, as often as it has to wait.
    pub(crate) fn run_on_pool(self, shared: &Arc<NfsShared>) {
        match self {
            Self::Compound(parked, args, responder) => {
                go_on(shared.clone(), parked, args, responder);
            }
            Self::Procedure(parked, owner, args, responder) => {
                let (gate, lane) = (parked.gate(), shared.lane(parked.place()));
                let job = move || match parked.run(Args::of_owned(&args)) {
                    Ok(reply) => responder.respond(reply),
                    Err(v3::TooWeak) => responder.reject(too_weak()),
                };
                match gate {
                    None => shared.run_in(Place { lane, owner }, Box::new(job)),
                    Some(gate) => gate.then(owner, Box::new(job)),
                }
            }
        }
    }
}

fn too_weak() -> Rejection {
    Rejection::Reject(RejectStatus::Auth(AuthStatus::TooWeak))
}

/// Runs the rest of a compound on the pool, as often as it has to wait.
fn go_on(shared: Arc<NfsShared>, parked: Box<Parked>, args: OwnedArgs, responder: Responder) {
    let (pool, gate, owner) = (shared.clone(), parked.gate(), parked.owner());
    // A compound that has waited for the journal goes on in lane 0, whose jobs wait for no other
    // machine.
    let lane = gate.as_ref().map_or_else(|| parked.lane(), |_| 0);
    let job = Box::new(move || match parked.run(Args::of_owned(&args), lane) {
        Ok(reply) => responder.respond(reply),
        Err(parked) => go_on(shared, parked, args, responder),
    });
    match gate {
        None => pool.run_in(Place { lane, owner }, job),
        Some(gate) => gate.then(owner, job),
    }
}

/// A reactor's way to have the kernel read, and the requests that wait for it.
pub(crate) struct Disk {
    pages: Box<dyn PageReads>,
    injector: Injector<()>,
    waiting: FxHashMap<u64, Waiting>,
    next_token: u64,
    /// Those whose reads have ended.
    ready: VecDeque<Waiting>,
    /// Kept for its memory.
    ended: Vec<u64>,
}

impl Disk {
    pub(crate) fn new(pages: Box<dyn PageReads>, injector: Injector<()>) -> Self {
        let (waiting, ready, ended) = (FxHashMap::default(), VecDeque::new(), Vec::new());
        Self { pages, injector, waiting, next_token: 0, ready, ended }
    }

    /// Has a range read for a request, or returns the request.
    pub(crate) fn begin(&mut self, range: FileRange, request: Waiting) -> Option<Waiting> {
        let token = self.next_token;
        if !self.pages.begin(token, request.owner().origin, range) {
            return Some(request);
        }
        self.next_token += 1;
        self.waiting.insert(token, request);
        None
    }

    /// Begins the reads of a turn, and finds those that have ended. Returns the time of the next turn
    /// that is needed, which is now if there are some.
    pub(crate) fn turn(&mut self, now_ns: u64) -> Option<u64> {
        let retry_at_ns = self.pages.turn(now_ns, self.injector.descriptor(), &mut self.ended);
        let Self { waiting, ready, ended, .. } = self;
        ready.extend(ended.drain(..).filter_map(|token| waiting.remove(&token)));
        if ready.is_empty() { retry_at_ns } else { Some(now_ns) }
    }

    /// Takes a request whose read has ended.
    pub(crate) fn take_ready(&mut self) -> Option<Waiting> {
        self.ready.pop_front()
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}
