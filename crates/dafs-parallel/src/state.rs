//! The client's state machine for the layout of one file, and for the writes under it.
//!
//! ```text
//!        want, must_ask          granted           begin_return        returned
//! None ------------------> Asking ------> Held --------------> Returning -----> None
//!   ^                        |              | ^                    (void: the server forgot it)
//!   +------- refused --------+              | +- refused, and what was held for reading is kept
//!   +--------------- void ------------------+
//! ```
//!
//! Invariants
//! * At most one layout of a file is requested, held or returned at a time (RFC 8881 12.5.2).
//! * No transfer is sent under a layout once its return has begun, and the return is sent only when
//!   all transfers under it have been answered.
//! * Unreported writes stay known until the server has learned of them, or the loss is counted.

use crate::limits::{LAYOUT_PAUSE_LONG, LAYOUT_PAUSE_SHORT, LAYOUT_THRESHOLD_BYTES};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A granted layout.
pub trait LayoutGrant {
    /// True if it allows writes, too.
    fn is_for_writing(&self) -> bool;

    /// True if the server must learn of writes (LAYOUTCOMMIT).
    fn needs_layout_commit(&self) -> bool;
}

/// The layout of a file: `G` is the grant, `N` its name at the server (the state-id), `F` a
/// transfer that was sent under it.
#[derive(Debug)]
pub struct LayoutState<G, N, F> {
    phase: Phase<G, N>,
    /// Bytes read and written before a layout was requested.
    moved_bytes: u64,
    /// Times before which no layout for reading and for writing is requested: an empty file may
    /// have one for writers only.
    read_not_before: Option<Instant>,
    write_not_before: Option<Instant>,
    /// Transfers that are about to be sent under the layout.
    entering: u32,
    flights: Vec<Weak<F>>,
    prune_at: usize,
    /// Unreported writes at data servers.
    written: Option<Written>,
    /// The end of the file, as far as the server has reported it.
    size: u64,
    /// The verifiers of unstable data, by component of the held layout.
    unstable: FxHashMap<usize, [u8; 8]>,
    /// Number of losses of unstable data.
    losses: u64,
}

#[derive(Debug)]
enum Phase<G, N> {
    None,
    /// A thread requests a layout; it may already hold this one, for reading.
    Asking(Option<(Arc<G>, N)>),
    Held(Arc<G>, N),
    /// The layout is being returned.
    Returning(Arc<G>, N),
}

/// Writes that must be reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The end of the last written byte.
    pub end: u64,
    /// Grows with every write.
    count: u64,
}

/// The path of a transfer.
#[derive(Debug)]
pub enum Want<G, N> {
    /// It uses this layout.
    Have(Arc<G>),
    /// The caller must request one, with the name of the held one.
    Ask(Option<N>),
    /// Through the server.
    None,
}

/// A result, if it is available now.
#[derive(Debug)]
pub enum Step<T> {
    /// The result.
    Now(T),
    /// Another thread is deciding: the caller retries after a change.
    Wait,
}

/// The answer to a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recalled {
    /// Delay: the recall may have overtaken the grant.
    Later,
    /// The layout is being returned, or must be returned now.
    Yes,
    /// There is no such layout.
    Unknown,
}

impl<G, N, F> Default for LayoutState<G, N, F> {
    fn default() -> Self {
        Self {
            phase: Phase::None,
            moved_bytes: 0,
            read_not_before: None,
            write_not_before: None,
            entering: 0,
            flights: Vec::new(),
            prune_at: 64,
            written: None,
            size: 0,
            unstable: FxHashMap::default(),
            losses: 0,
        }
    }
}

impl<G: LayoutGrant, N: Clone, F> LayoutState<G, N, F> {
    /// Counts a transfer of `bytes`, before it asks for its path.
    pub fn count(&mut self, bytes: u64) {
        self.moved_bytes = self.moved_bytes.saturating_add(bytes);
    }

    /// The path of a transfer. A caller that gets `Ask` must report the outcome.
    pub fn want(&mut self, write: bool, now: Instant) -> Step<Want<G, N>> {
        let held = match &self.phase {
            Phase::Held(grant, _) if grant.is_for_writing() || !write => {
                return Step::Now(Want::Have(grant.clone()));
            }
            Phase::Held(grant, name) => Some((grant.clone(), name.clone())),
            Phase::Returning(..) => return Step::Now(Want::None),
            Phase::Asking(_) => return Step::Wait,
            Phase::None => None,
        };
        if self.moved_bytes < LAYOUT_THRESHOLD_BYTES
            || self.not_before(write).is_some_and(|time| now < time)
        {
            return Step::Now(Want::None);
        }
        let name = held.as_ref().map(|(_, name)| name.clone());
        self.phase = Phase::Asking(held);
        Step::Now(Want::Ask(name))
    }

    /// Decides whether a layout must be requested, independent of the bytes moved, because writes
    /// must be reported and there is none for writing. Returns the name of the held one, if any. A
    /// caller that must request has to report the outcome.
    pub fn must_ask(&mut self) -> Step<Option<Option<N>>> {
        let held = match &self.phase {
            Phase::None => None,
            Phase::Held(grant, name) if !grant.is_for_writing() => {
                Some((grant.clone(), name.clone()))
            }
            Phase::Held(..) | Phase::Returning(..) => return Step::Now(None),
            Phase::Asking(_) => return Step::Wait,
        };
        let name = held.as_ref().map(|(_, name)| name.clone());
        self.phase = Phase::Asking(held);
        Step::Now(Some(name))
    }

    /// True while a thread requests a layout.
    pub fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Asking(_))
    }

    /// True while the layout is being returned.
    pub fn is_returning(&self) -> bool {
        matches!(self.phase, Phase::Returning(..))
    }

    /// Notes the grant of a layout. `size` is that of the file, if the server has reported it.
    pub fn granted(&mut self, grant: &Arc<G>, name: N, size: Option<u64>) {
        self.phase = Phase::Held(grant.clone(), name);
        // Others may have truncated it while there was no layout.
        self.size = size.unwrap_or(0);
    }

    /// Notes a refusal, or a useless grant that has been returned. The held layout is `kept`, or
    /// gone with it. `write` is the requested mode.
    pub fn refused(&mut self, write: bool, kept: bool, passing: bool, now: Instant) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::None) {
            Phase::Asking(Some((grant, name))) if kept => Phase::Held(grant, name),
            _ => Phase::None,
        };
        self.pause(write, if passing { LAYOUT_PAUSE_SHORT } else { LAYOUT_PAUSE_LONG }, now);
    }

    /// The layout that is held, with its name.
    pub fn held(&self) -> Option<(Arc<G>, N)> {
        match &self.phase {
            Phase::Held(grant, name) | Phase::Returning(grant, name) => {
                Some((grant.clone(), name.clone()))
            }
            Phase::None | Phase::Asking(_) => None,
        }
    }

    /// Begins to send a transfer under a layout; false if it is no longer held. [`Self::entered`]
    /// has to follow.
    pub fn enter(&mut self, grant: &Arc<G>) -> bool {
        let is_held = matches!(&self.phase, Phase::Held(held, _) if Arc::ptr_eq(held, grant));
        self.entering += u32::from(is_held);
        is_held
    }

    /// Notes that the transfer has been sent completely.
    pub fn entered(&mut self, flights: impl Iterator<Item = Weak<F>>) {
        self.flights.extend(flights);
        if self.flights.len() >= self.prune_at {
            self.flights.retain(|flight| flight.strong_count() > 0);
            self.prune_at = 2 * self.flights.len() + 64;
        }
        self.entering -= 1;
    }

    /// The transfers that may be unanswered, when no more are about to be sent.
    pub fn flights(&mut self) -> Step<Vec<Arc<F>>> {
        if self.entering > 0 {
            return Step::Wait;
        }
        self.prune_at = 64;
        Step::Now(std::mem::take(&mut self.flights).iter().filter_map(Weak::upgrade).collect())
    }

    /// Notes that a data server has written `bytes` bytes up to `end`; `unstable` is its verifier
    /// if they are not stable. Returns the common verifier, that of the time before any of this
    /// data was lost.
    pub fn wrote(
        &mut self,
        grant: &Arc<G>,
        component: usize,
        (end, bytes): (u64, usize),
        unstable: Option<[u8; 8]>,
    ) -> [u8; 8] {
        if grant.needs_layout_commit() && bytes > 0 {
            let before = self.written.unwrap_or(Written { end: 0, count: 0 });
            self.written = Some(Written { end: before.end.max(end), count: before.count + 1 });
        }
        let verifier = self.verifier();
        let Some(told) = unstable else { return verifier };
        let holds = self.holds(grant);
        let is_lost = match holds {
            true => self.unstable.insert(component, told).is_some_and(|before| before != told),
            // Data under a layout that is gone will not be committed.
            false => true,
        };
        self.losses += u64::from(is_lost);
        // If the layout is still held, only older data was lost.
        if is_lost && holds { self.verifier() } else { verifier }
    }

    /// Takes the verifiers, to be compared at a commit.
    pub fn take_unstable(&mut self) -> FxHashMap<usize, [u8; 8]> {
        std::mem::take(&mut self.unstable)
    }

    /// Takes the unstable writes of one layout. Those of another layout that is held now stay.
    pub fn take_unstable_of(&mut self, grant: &Arc<G>) -> FxHashMap<usize, [u8; 8]> {
        if self.holds(grant) { self.take_unstable() } else { FxHashMap::default() }
    }

    /// The verifier of all data servers together.
    pub fn verifier(&self) -> [u8; 8] {
        self.losses.to_be_bytes()
    }

    /// True if unstable data was lost.
    pub fn has_lost(&self) -> bool {
        self.losses > 0
    }

    /// Counts a loss of unstable data.
    pub fn lose(&mut self) {
        self.losses += 1;
    }

    /// The unreported writes.
    pub fn written(&self) -> Option<Written> {
        self.written
    }

    /// True if a write lies behind the end that the server knows.
    pub fn extends(&self) -> bool {
        self.written.is_some_and(|written| written.end > self.size)
    }

    /// Notes that the server has learned of writes.
    pub fn told(&mut self, written: Written, size: Option<u64>) {
        self.size = size.unwrap_or(self.size).max(written.end);
        if self.written == Some(written) {
            self.written = None;
        }
    }

    /// Drops unreported writes; they count as lost.
    pub fn abandon_written(&mut self) {
        if self.written.take().is_some() {
            self.losses += 1;
        }
    }

    /// Notes that this client has set the size of the file.
    pub fn resized(&mut self, size: u64) {
        self.size = size;
        if self.written.is_some_and(|written| written.end > size) {
            self.written = None;
        }
    }

    /// Forgets the end of the file. Unreported writes stay.
    pub fn forget_size(&mut self) {
        self.size = 0;
    }

    /// Begins to return a layout; false if it is no longer held, also when another thread has
    /// returned it meanwhile.
    pub fn begin_return(&mut self, grant: &Arc<G>) -> Step<bool> {
        match &self.phase {
            Phase::Held(held, name) if Arc::ptr_eq(held, grant) => {
                self.phase = Phase::Returning(held.clone(), name.clone());
                Step::Now(true)
            }
            Phase::Returning(held, _) if Arc::ptr_eq(held, grant) => Step::Wait,
            _ => Step::Now(false),
        }
    }

    /// Notes that the layout has been returned.
    pub fn returned(&mut self, now: Instant) {
        self.phase = Phase::None;
        self.unstable.clear();
        // Others may truncate the file from now on, without a recall.
        self.size = 0;
        self.pause(true, LAYOUT_PAUSE_SHORT, now);
    }

    /// Voids the layout, because the server has forgotten all of them. Unstable data may still
    /// exist; this is unknown.
    pub fn void(&mut self) {
        // A thread that requests or returns it learns of this by the answer.
        if matches!(self.phase, Phase::Held(..)) {
            self.phase = Phase::None;
            if !std::mem::take(&mut self.unstable).is_empty() {
                self.losses += 1;
            }
        }
    }

    /// Voids a held layout that is not `known` to the server. Returns true if there was one.
    pub fn void_unless(&mut self, known: impl FnOnce(&G) -> bool) -> bool {
        let is_void = matches!(&self.phase, Phase::Held(held, _) if !known(held));
        if is_void {
            self.void();
        }
        is_void
    }

    /// Handles a recall. `means` returns true if it is about the layout with this name, and updates
    /// the name to the server's.
    pub fn recall(&mut self, means: impl FnOnce(&mut N) -> bool) -> Recalled {
        let is_meant = match &mut self.phase {
            Phase::Asking(_) => return Recalled::Later,
            Phase::Held(_, held) => means(held),
            // The return is under way, with the name of that time.
            Phase::Returning(_, held) => means(&mut held.clone()),
            Phase::None => false,
        };
        if is_meant { Recalled::Yes } else { Recalled::Unknown }
    }

    fn holds(&self, grant: &Arc<G>) -> bool {
        match &self.phase {
            Phase::Held(held, _) | Phase::Returning(held, _) => Arc::ptr_eq(held, grant),
            Phase::None | Phase::Asking(_) => false,
        }
    }

    fn not_before(&self, write: bool) -> Option<Instant> {
        if write { self.write_not_before } else { self.read_not_before }
    }

    fn pause(&mut self, write: bool, pause: Duration, now: Instant) {
        self.read_not_before = now.checked_add(pause);
        if write {
            self.write_not_before = self.read_not_before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Grant {
        write: bool,
    }

    impl LayoutGrant for Grant {
        fn is_for_writing(&self) -> bool {
            self.write
        }

        fn needs_layout_commit(&self) -> bool {
            true
        }
    }

    type State = LayoutState<Grant, u32, ()>;

    fn grant(write: bool) -> Arc<Grant> {
        Arc::new(Grant { write })
    }

    fn want(state: &mut State, write: bool, bytes: u64, now: Instant) -> Want<Grant, u32> {
        state.count(bytes);
        match state.want(write, now) {
            Step::Now(want) => want,
            Step::Wait => panic!("nobody asks"),
        }
    }

    fn wrote(state: &mut State, grant: &Arc<Grant>, at: usize, end: u64, verifier: u8) -> [u8; 8] {
        state.wrote(grant, at, (end, 50), Some([verifier; 8]))
    }

    /// A file with a held layout for writing.
    fn held() -> (State, Arc<Grant>) {
        let (mut state, grant) = (State::default(), grant(true));
        let asked = want(&mut state, true, LAYOUT_THRESHOLD_BYTES, Instant::now());
        assert!(matches!(asked, Want::Ask(None)));
        state.granted(&grant, 1, Some(100));
        (state, grant)
    }

    #[test]
    fn a_layout_is_asked_for_when_it_is_worth_while_and_not_again_at_once() {
        let (mut state, now) = (State::default(), Instant::now());
        assert!(matches!(want(&mut state, false, LAYOUT_THRESHOLD_BYTES - 1, now), Want::None));
        assert!(matches!(want(&mut state, false, 1, now), Want::Ask(None)));
        assert!(matches!(state.want(false, now), Step::Wait), "another one asks");
        state.refused(false, true, true, now);
        assert!(matches!(want(&mut state, false, 1, now), Want::None));
        let later = now + LAYOUT_PAUSE_SHORT;
        assert!(matches!(want(&mut state, false, 1, later), Want::Ask(None)));
        state.granted(&grant(false), 1, None);
        assert!(matches!(want(&mut state, false, 1, later), Want::Have(_)));
        // A layout for reading does not allow writes; it stays if there is no other.
        assert!(matches!(want(&mut state, true, 1, later), Want::Ask(Some(1))));
        state.refused(true, true, false, later);
        assert!(matches!(want(&mut state, false, 1, later), Want::Have(_)));
        assert!(matches!(want(&mut state, true, 1, later + LAYOUT_PAUSE_SHORT), Want::None));
    }

    #[test]
    fn nothing_is_sent_by_what_is_given_back_and_it_goes_when_all_is_sent() {
        let (mut state, grant) = held();
        assert_eq!(state.recall(|_| false), Recalled::Unknown, "of another layout");
        assert_eq!(state.recall(|name| std::mem::replace(name, 2) == 1), Recalled::Yes);
        assert_eq!(state.held().unwrap().1, 2, "the return is of the recall's number");
        assert!(state.enter(&grant));
        assert!(matches!(state.begin_return(&grant), Step::Now(true)));
        assert!(matches!(state.begin_return(&grant), Step::Wait), "one thread does it");
        assert!(matches!(state.flights(), Step::Wait), "something is about to be sent");
        let flight = Arc::new(());
        state.entered([Arc::downgrade(&flight)].into_iter());
        assert!(matches!(state.flights(), Step::Now(sent) if sent.len() == 1));
        assert_eq!(state.recall(|name| std::mem::replace(name, 3) == 2), Recalled::Yes);
        assert_eq!(state.held().unwrap().1, 2, "it is on its way");
        assert!(!state.enter(&grant), "nothing more is sent");
        assert!(matches!(want(&mut state, true, 1, Instant::now()), Want::None));
        state.returned(Instant::now());
        assert!(matches!(state.begin_return(&grant), Step::Now(false)));
        assert_eq!(state.recall(|_| true), Recalled::Unknown);
    }

    #[test]
    fn a_recall_may_overtake_the_answer() {
        let mut state = State::default();
        let asked = want(&mut state, true, LAYOUT_THRESHOLD_BYTES, Instant::now());
        assert!(matches!(asked, Want::Ask(None)) && state.is_asking());
        assert_eq!(state.recall(|_| true), Recalled::Later);
    }

    #[test]
    fn writes_are_known_until_they_are_reported() {
        let (mut state, grant) = held();
        wrote(&mut state, &grant, 0, 50, 7);
        assert!(!state.extends(), "the file reaches to 100");
        let first = state.written().unwrap();
        wrote(&mut state, &grant, 0, 150, 7);
        assert!(state.extends());
        // The report covers the writes known then; later ones stay.
        state.told(first, None);
        let second = state.written().unwrap();
        state.told(second, Some(150));
        assert_eq!((state.written(), state.extends()), (None, false));
        wrote(&mut state, &grant, 0, 50, 7);
        state.forget_size();
        assert!(state.written().is_some() && state.extends(), "it may end anywhere");
        wrote(&mut state, &grant, 0, 200, 7);
        state.resized(10);
        assert_eq!(state.written(), None, "it is cut off");
    }

    #[test]
    fn how_far_a_file_reaches_is_believed_while_its_layout_is_held() {
        let (mut state, grant) = held();
        wrote(&mut state, &grant, 0, 50, 7);
        assert!(!state.extends());
        assert!(matches!(state.begin_return(&grant), Step::Now(true)));
        state.returned(Instant::now());
        assert!(state.extends(), "others may have cut it meanwhile");
        let (mut state, before) = held();
        state.void();
        assert!(matches!(state.must_ask(), Step::Now(Some(None))));
        let after = self::grant(true);
        state.granted(&after, 2, None);
        wrote(&mut state, &after, 0, 50, 7);
        assert!(state.extends() && !Arc::ptr_eq(&before, &after), "there was none for a while");
    }

    #[test]
    fn losses_change_the_verifier() {
        let (mut state, grant) = held();
        let first = wrote(&mut state, &grant, 0, 50, 7);
        assert_eq!(wrote(&mut state, &grant, 1, 50, 8), first, "servers have their own");
        assert!(!state.has_lost());
        let second = wrote(&mut state, &grant, 0, 50, 9);
        assert_ne!(second, first);
        assert!(state.has_lost());
        assert_eq!(state.take_unstable().len(), 2);
        assert_eq!(wrote(&mut state, &grant, 0, 50, 10), second, "after a commit");
        // With the server's layouts, the means to commit are gone.
        state.void();
        assert_ne!(state.verifier(), second);
        assert!(state.held().is_none() && state.written().is_some());
        let third = state.verifier();
        let late = wrote(&mut state, &grant, 0, 50, 10);
        assert_ne!(late, state.verifier(), "by a layout that is gone: nobody will commit it");
        assert_eq!(late, third);
        state.abandon_written();
        assert_eq!(state.written(), None);
    }
}
