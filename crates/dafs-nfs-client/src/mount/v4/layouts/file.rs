//! The layout of one file as its client knows it, and what was written by it; nothing here waits for a
//! server.
//!
//! Invariants
//! * One layout at a time is asked for, held or given back for a file (RFC 8881 12.5.2).
//! * Nothing is sent by right of a layout once it is being given back, and it is given back only when
//!   all that was sent by it has been answered.
//! * What was written and not told to the server stays known until the server has been told, or the
//!   loss is counted.

use super::grant::Grant;
use crate::files::Handle;
use crate::mount::limits::{LAYOUT_PAUSE_LONG, LAYOUT_PAUSE_SHORT, LAYOUT_THRESHOLD_BYTES};
use crate::mount::open::Moved;
use crate::mount::v4::flight::TransferFlight;
use dafs_wire::nfs4::{StableHow, Stateid, Status};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The layout of a file.
#[derive(Debug)]
pub(crate) struct FileLayout {
    pub(crate) handle: Handle,
    state: Mutex<State>,
    changed: Condvar,
    /// Held by whoever tells the server what was written.
    telling: Mutex<()>,
    /// Held by whoever commits unstable data: who finds none has waited for those who took it.
    committing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// What was read and written before a layout was asked for.
    moved_bytes: u64,
    /// No layout is asked for before, to read and to write: an empty file may have one for writers only.
    read_not_before: Option<Instant>,
    write_not_before: Option<Instant>,
    /// Transfers that are about to be sent by the layout.
    entering: u32,
    flights: Vec<Weak<TransferFlight>>,
    prune_at: usize,
    /// What was written at data servers and not told.
    written: Option<Written>,
    /// How far the file reaches as far as the server has told.
    size: u64,
    /// The verifiers of unstable data, by the component of the layout that is held.
    unstable: FxHashMap<usize, [u8; 8]>,
    /// How often unstable data was lost.
    losses: u64,
}

#[derive(Debug, Clone)]
enum Phase {
    None,
    /// Somebody asks, and this is what is held already, for reading.
    Asking(Option<(Arc<Grant>, Stateid)>),
    Held(Arc<Grant>, Stateid),
    /// It is being given back.
    Returning(Arc<Grant>, Stateid),
}

/// What was written and is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    /// Behind its last byte.
    pub(super) end: u64,
    /// Grows with every write.
    count: u64,
}

/// What to do for a transfer.
#[derive(Debug)]
pub(super) enum Want {
    Have(Arc<Grant>),
    /// To ask for one, by the state-id of the one that is held.
    Ask(Option<Stateid>),
    /// Through the server.
    None,
}

impl FileLayout {
    pub(super) fn new(handle: Handle) -> Self {
        let state = State {
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
        };
        let changed = Condvar::new();
        let (telling, committing) = (Mutex::new(()), Mutex::new(()));
        Self { handle, state: Mutex::new(state), changed, telling, committing }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread at a time tells the server what was written.
    pub(super) fn telling(&self) -> MutexGuard<'_, ()> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread at a time has data servers make stable what was written.
    pub(super) fn committing(&self) -> MutexGuard<'_, ()> {
        self.committing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a transfer of so many bytes goes by. Who is told to ask has to say what came of it.
    pub(super) fn want(&self, write: bool, bytes: u64, now: Instant) -> Want {
        let mut state = self.state();
        state.moved_bytes = state.moved_bytes.saturating_add(bytes);
        loop {
            let held = match &state.phase {
                Phase::Held(grant, _) if grant.write || !write => return Want::Have(grant.clone()),
                Phase::Held(grant, stateid) => Some((grant.clone(), *stateid)),
                Phase::Returning(..) => return Want::None,
                Phase::Asking(_) => {
                    state = self.wait(state);
                    continue;
                }
                Phase::None => None,
            };
            if state.moved_bytes < LAYOUT_THRESHOLD_BYTES
                || state.not_before(write).is_some_and(|time| now < time)
            {
                return Want::None;
            }
            let stateid = held.as_ref().map(|(_, stateid)| *stateid);
            state.phase = Phase::Asking(held);
            return Want::Ask(stateid);
        }
    }

    /// Whether to ask for a layout, whatever was moved, in order to tell what was written: there is
    /// none for writing. By the state-id of the one that is held, if any. Who is told so has to say what
    /// came of it.
    pub(super) fn must_ask(&self) -> Option<Option<Stateid>> {
        let mut state = self.state();
        while matches!(state.phase, Phase::Asking(_)) {
            state = self.wait(state);
        }
        let held = match &state.phase {
            Phase::None => None,
            Phase::Held(grant, stateid) if !grant.write => Some((grant.clone(), *stateid)),
            _ => return None,
        };
        let stateid = held.as_ref().map(|(_, stateid)| *stateid);
        state.phase = Phase::Asking(held);
        Some(stateid)
    }

    /// Waits until nobody is giving it back.
    pub(super) fn await_return(&self) {
        let mut state = self.state();
        while matches!(state.phase, Phase::Returning(..)) {
            state = self.wait(state);
        }
    }

    /// Whether somebody asks for a layout.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.state().phase, Phase::Asking(_))
    }

    /// Whether it is being given back.
    pub(super) fn is_returning(&self) -> bool {
        matches!(self.state().phase, Phase::Returning(..))
    }

    /// A layout was granted to whoever asked. `size` is that of the file, if the server told.
    pub(super) fn granted(&self, grant: &Arc<Grant>, stateid: Stateid, size: Option<u64>) {
        let mut state = self.state();
        state.phase = Phase::Held(grant.clone(), stateid);
        state.size = size.unwrap_or(state.size);
        self.changed.notify_all();
    }

    /// There was none, or it was of no use and has been given back. What was held is `kept`, or is
    /// gone with it. `write` says what was asked for.
    pub(super) fn refused(&self, write: bool, kept: bool, passing: bool, now: Instant) {
        let mut state = self.state();
        state.phase = match std::mem::replace(&mut state.phase, Phase::None) {
            Phase::Asking(Some((grant, stateid))) if kept => Phase::Held(grant, stateid),
            _ => Phase::None,
        };
        state.pause(write, if passing { LAYOUT_PAUSE_SHORT } else { LAYOUT_PAUSE_LONG }, now);
        self.changed.notify_all();
    }

    /// The layout that is held, with its state-id.
    pub(super) fn held(&self) -> Option<(Arc<Grant>, Stateid)> {
        match &self.state().phase {
            Phase::Held(grant, stateid) | Phase::Returning(grant, stateid) => {
                Some((grant.clone(), *stateid))
            }
            Phase::None | Phase::Asking(_) => None,
        }
    }

    /// Begins to send something by a layout; false if it is not held any more. [`Self::entered`] has to
    /// follow.
    pub(super) fn enter(&self, grant: &Arc<Grant>) -> bool {
        let mut state = self.state();
        let is_held = state.holds(grant) && matches!(state.phase, Phase::Held(..));
        state.entering += u32::from(is_held);
        is_held
    }

    /// All of it has been sent.
    pub(super) fn entered(&self, flights: impl Iterator<Item = Weak<TransferFlight>>) {
        let mut state = self.state();
        state.flights.extend(flights);
        if state.flights.len() >= state.prune_at {
            state.flights.retain(|flight| flight.strong_count() > 0);
            state.prune_at = 2 * state.flights.len() + 64;
        }
        state.entering -= 1;
        self.changed.notify_all();
    }

    /// What has been sent and may be unanswered, when nothing more is about to be sent.
    pub(super) fn flights(&self) -> Vec<Arc<TransferFlight>> {
        let mut state = self.state();
        while state.entering > 0 {
            state = self.wait(state);
        }
        state.prune_at = 64;
        std::mem::take(&mut state.flights).iter().filter_map(Weak::upgrade).collect()
    }

    /// A data server has written something. Gives the verifier of all of them, that of the time before
    /// this was lost.
    pub(crate) fn wrote(
        &self,
        grant: &Arc<Grant>,
        component: usize,
        end: u64,
        moved: &Moved,
    ) -> [u8; 8] {
        let mut state = self.state();
        if grant.plan.is_told && moved.bytes > 0 {
            let before = state.written.unwrap_or(Written { end: 0, count: 0 });
            let (end, count) = (before.end.max(end), before.count + 1);
            state.written = Some(Written { end, count });
        }
        let verifier = state.verifier();
        if moved.stable == StableHow::Unstable {
            let is_lost = match state.holds(grant) {
                true => {
                    let before = state.unstable.insert(component, moved.verifier);
                    before.is_some_and(|before| before != moved.verifier)
                }
                // Nobody will commit what came by a layout that is gone.
                false => true,
            };
            state.losses += u64::from(is_lost);
            if is_lost && state.holds(grant) {
                // What was lost is older.
                return state.verifier();
            }
        }
        verifier
    }

    /// Takes the verifiers that are to be compared at a commit.
    pub(super) fn take_unstable(&self) -> FxHashMap<usize, [u8; 8]> {
        std::mem::take(&mut self.state().unstable)
    }

    /// The verifier of all data servers together.
    pub(super) fn verifier(&self) -> [u8; 8] {
        self.state().verifier()
    }

    /// Unstable data is gone.
    pub(super) fn lose(&self) {
        self.state().losses += 1;
    }

    /// What is to be told.
    pub(super) fn written(&self) -> Option<Written> {
        self.state().written
    }

    /// Whether something was written behind the end that the server knows.
    pub(super) fn extends(&self) -> bool {
        let state = self.state();
        state.written.is_some_and(|written| written.end > state.size)
    }

    /// The server was told so much.
    pub(super) fn told(&self, written: Written, size: Option<u64>) {
        let mut state = self.state();
        state.size = size.unwrap_or(state.size).max(written.end);
        if state.written == Some(written) {
            state.written = None;
        }
    }

    /// Nobody will be told of what was written; it counts as lost.
    pub(super) fn abandon_written(&self) {
        let mut state = self.state();
        if state.written.take().is_some() {
            state.losses += 1;
        }
    }

    /// The file was given another size by this client.
    pub(super) fn resized(&self, size: u64) {
        let mut state = self.state();
        state.size = size;
        if state.written.is_some_and(|written| written.end > size) {
            state.written = None;
        }
    }

    /// Begins to give a layout back; false if it is not held any more, and when another thread has
    /// given it back meanwhile.
    pub(super) fn begin_return(&self, grant: &Arc<Grant>) -> bool {
        let mut state = self.state();
        loop {
            match &state.phase {
                Phase::Held(held, stateid) if Arc::ptr_eq(held, grant) => {
                    state.phase = Phase::Returning(held.clone(), *stateid);
                    return true;
                }
                Phase::Returning(held, _) if Arc::ptr_eq(held, grant) => state = self.wait(state),
                _ => return false,
            }
        }
    }

    /// It was given back.
    pub(super) fn returned(&self, now: Instant) {
        let mut state = self.state();
        state.phase = Phase::None;
        state.unstable.clear();
        state.pause(true, LAYOUT_PAUSE_SHORT, now);
        self.changed.notify_all();
    }

    /// The server has forgotten all layouts. Unstable data may be there still; nobody can tell.
    pub(super) fn void(&self) {
        let mut state = self.state();
        // Who asks, or gives it back, learns of it by the answer.
        if matches!(state.phase, Phase::Held(..)) {
            state.phase = Phase::None;
            if !std::mem::take(&mut state.unstable).is_empty() {
                state.losses += 1;
            }
        }
        self.changed.notify_all();
    }

    /// The server recalls the layout of this name (RFC 8881 12.5.5.2.1, 20.3). With OK it has to be
    /// given back now.
    pub(super) fn recall(&self, stateid: Stateid) -> Status {
        let mut state = self.state();
        match &mut state.phase {
            // The recall may have overtaken the answer that tells of the layout.
            Phase::Asking(_) => Status::Delay,
            Phase::Held(_, held) if held.other == stateid.other => {
                // The number that the return has to be of; numbers wrap.
                if stateid.seqid.wrapping_sub(held.seqid) < u32::MAX / 2 {
                    held.seqid = stateid.seqid;
                }
                Status::Ok
            }
            // It is on its way already.
            Phase::Returning(_, held) if held.other == stateid.other => Status::Ok,
            _ => Status::NoMatchingLayout,
        }
    }
}

impl State {
    fn holds(&self, grant: &Arc<Grant>) -> bool {
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

    fn verifier(&self) -> [u8; 8] {
        self.losses.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::open::Keeper;
    use crate::mount::v4::layouts::plan::{Plan, READERS};
    use dafs_layout::{Packing, Striped};
    use std::sync::atomic::AtomicUsize;

    fn grant(write: bool) -> Arc<Grant> {
        let driver = Striped::round_robin(4096, 1, 0, Packing::Sparse).unwrap();
        let plan = Plan {
            driver: Arc::new(driver),
            places: Vec::new(),
            preferred: vec![0],
            commits_at_server: false,
            is_told: true,
            read_bytes_max: 4096,
            write_bytes_max: 4096,
        };
        let (nodes, turn) = (Vec::new(), AtomicUsize::new(0));
        let (return_on_close, reader) = (true, READERS[0]);
        Arc::new(Grant { plan, nodes, write, fsid: None, return_on_close, reader, turn })
    }

    fn stateid(seqid: u32, name: u8) -> Stateid {
        Stateid { seqid, other: [name; 12] }
    }

    fn wrote(bytes: usize, verifier: u8) -> Moved {
        let (stable, keeper) = (StableHow::Unstable, Keeper::Server);
        Moved { bytes, eof: false, stable, keeper, verifier: [verifier; 8] }
    }

    /// A file whose layout for writing is held.
    fn held() -> (FileLayout, Arc<Grant>) {
        let file = FileLayout::new(Handle(vec![1]));
        let grant = grant(true);
        assert!(matches!(file.want(true, LAYOUT_THRESHOLD_BYTES, Instant::now()), Want::Ask(None)));
        file.granted(&grant, stateid(1, 1), Some(100));
        (file, grant)
    }

    #[test]
    fn a_layout_is_asked_for_when_it_is_worth_while_and_not_again_at_once() {
        let file = FileLayout::new(Handle(vec![1]));
        let now = Instant::now();
        assert!(matches!(file.want(false, LAYOUT_THRESHOLD_BYTES - 1, now), Want::None));
        assert!(matches!(file.want(false, 1, now), Want::Ask(None)));
        file.refused(false, true, true, now);
        assert!(matches!(file.want(false, 1, now), Want::None));
        let later = now + LAYOUT_PAUSE_SHORT;
        assert!(matches!(file.want(false, 1, later), Want::Ask(None)));
        file.granted(&grant(false), stateid(1, 1), None);
        assert!(matches!(file.want(false, 1, later), Want::Have(_)));
        // One for reading is not enough to write; it stays if there is no other.
        assert!(matches!(file.want(true, 1, later), Want::Ask(Some(_))));
        file.refused(true, true, false, later);
        assert!(matches!(file.want(false, 1, later), Want::Have(_)));
        assert!(matches!(file.want(true, 1, later + LAYOUT_PAUSE_SHORT), Want::None));
    }

    #[test]
    fn recalls_and_answers_may_overtake_each_other() {
        let file = FileLayout::new(Handle(vec![1]));
        assert_eq!(file.recall(stateid(2, 1)), Status::NoMatchingLayout);
        assert!(matches!(file.want(true, LAYOUT_THRESHOLD_BYTES, Instant::now()), Want::Ask(None)));
        // The answer is on its way.
        assert_eq!(file.recall(stateid(2, 1)), Status::Delay);
        let grant = grant(true);
        file.granted(&grant, stateid(1, 1), None);
        assert_eq!(file.recall(stateid(2, 9)), Status::NoMatchingLayout, "of another layout");
        assert_eq!(file.recall(stateid(2, 1)), Status::Ok);
        assert_eq!(file.held().unwrap().1, stateid(2, 1), "the return is of the recall's number");
        // An older one comes late and changes nothing.
        assert_eq!(file.recall(stateid(1, 1)), Status::Ok);
        assert_eq!(file.held().unwrap().1, stateid(2, 1));
        assert!(file.begin_return(&grant));
        assert_eq!(file.recall(stateid(3, 1)), Status::Ok, "it is on its way");
        assert!(!file.enter(&grant), "nothing more is sent");
        file.returned(Instant::now());
        assert!(!file.begin_return(&grant));
        assert_eq!(file.recall(stateid(3, 1)), Status::NoMatchingLayout);
    }

    #[test]
    fn what_was_written_is_known_until_it_is_told() {
        let (file, grant) = held();
        file.wrote(&grant, 0, 50, &wrote(50, 7));
        assert!(!file.extends(), "the file reaches to 100");
        let first = file.written().unwrap();
        file.wrote(&grant, 0, 150, &wrote(50, 7));
        assert!(file.extends());
        // Told is what was known then; what came since stays.
        file.told(first, None);
        let second = file.written().unwrap();
        file.told(second, Some(150));
        assert_eq!((file.written(), file.extends()), (None, false));
        file.wrote(&grant, 0, 200, &wrote(50, 7));
        file.resized(10);
        assert_eq!(file.written(), None, "it is cut off");
    }

    #[test]
    fn losses_change_the_verifier() {
        let (file, grant) = held();
        let first = file.wrote(&grant, 0, 50, &wrote(50, 7));
        assert_eq!(file.wrote(&grant, 1, 50, &wrote(50, 8)), first, "servers have their own");
        let second = file.wrote(&grant, 0, 50, &wrote(50, 9));
        assert_ne!(second, first);
        assert_eq!(file.take_unstable().len(), 2);
        assert_eq!(file.wrote(&grant, 0, 50, &wrote(50, 10)), second, "after a commit");
        // The server forgets, and with it goes who could commit.
        file.void();
        assert_ne!(file.verifier(), second);
        assert!(file.held().is_none() && file.written().is_some());
        let third = file.verifier();
        let late = file.wrote(&grant, 0, 50, &wrote(50, 10));
        assert_ne!(late, file.verifier(), "by a layout that is gone: nobody will commit it");
        assert_eq!(late, third);
        file.abandon_written();
        assert_eq!(file.written(), None);
    }
}
