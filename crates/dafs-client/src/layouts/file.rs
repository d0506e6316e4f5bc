//! The layout of one file: the state machine of `dafs-parallel` under a lock, with a place to wait for its
//! changes. Nothing here waits for a server.

use super::nodes::Node;
use super::plan::Place;
use super::sent::Sent;
use crate::attributes::FileHandle;
use crate::fork::ForkMutex;
use dafs_parallel::limits::LAYOUT_THRESHOLD_BYTES;
use dafs_parallel::{LayoutGrant, LayoutState, Plan, Recalled, Step, Want, Written};
use dafs_wire::dafs::{StateId, Verifier};
use rustc_hash::FxHashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// What the server knows a layout by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    pub(super) state_id: StateId,
    pub(super) seqid: u32,
}

/// A layout.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) plan: Plan<Place>,
    /// The data server of each component.
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) write: bool,
    /// Restarts of the server that had been seen: a later run knows nothing of it.
    pub(super) restarts: u64,
    /// Grows with every read, so that copies take turns.
    pub(super) turn: AtomicUsize,
}

impl LayoutGrant for Grant {
    fn is_for_writing(&self) -> bool {
        self.write
    }

    fn is_told(&self) -> bool {
        self.plan.is_told
    }
}

type State = LayoutState<Grant, Name, Sent>;

/// The layout of a file.
#[derive(Debug)]
pub(crate) struct FileLayout {
    pub(super) handle: FileHandle,
    state: ForkMutex<State>,
    changed: Condvar,
    /// Held by whoever tells the server what was written.
    telling: ForkMutex<()>,
    /// Held by whoever commits unstable data: who finds none has waited for those who took it.
    committing: ForkMutex<()>,
}

/// The lock is taken by those alone who have made sure that this is no fork.
impl FileLayout {
    pub(super) fn new(handle: FileHandle) -> Self {
        let mut state = State::default();
        // Whoever asks for it has moved so much already.
        state.count(LAYOUT_THRESHOLD_BYTES);
        let (state, changed) = (ForkMutex::new(state), Condvar::new());
        let (telling, committing) = (ForkMutex::default(), ForkMutex::default());
        Self { handle, state, changed, telling, committing }
    }

    /// Takes a step, as soon as no other thread is at what it is about.
    fn step<T>(&self, mut step: impl FnMut(&mut State) -> Step<T>) -> T {
        let mut state = self.state.lock_here();
        loop {
            match step(&mut state) {
                Step::Now(result) => return result,
                Step::Wait => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Changes what others may wait for.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock_here());
        self.changed.notify_all();
        result
    }

    pub(super) fn telling(&self) -> MutexGuard<'_, ()> {
        self.telling.lock_here()
    }

    pub(super) fn committing(&self) -> MutexGuard<'_, ()> {
        self.committing.lock_here()
    }

    /// What a transfer goes by. Who is told to ask has to say what came of it. `restarts` are those of
    /// the server.
    pub(super) fn want(&self, write: bool, bytes: u64, restarts: u64) -> Want<Grant, Name> {
        self.change(|state| {
            state.count(bytes);
            if state.held().is_some_and(|(grant, _)| grant.restarts != restarts) {
                state.void();
            }
        });
        self.step(|state| state.want(write, Instant::now()))
    }

    /// Whether to ask for a layout in order to tell what was written ([`LayoutState::must_ask`]).
    pub(super) fn must_ask(&self) -> bool {
        self.step(LayoutState::must_ask).is_some()
    }

    /// Waits until nobody is giving it back.
    pub(super) fn await_return(&self) {
        self.step(|state| if state.is_returning() { Step::Wait } else { Step::Now(()) });
    }

    pub(super) fn is_returning(&self) -> bool {
        self.state.lock_here().is_returning()
    }

    pub(super) fn granted(&self, grant: &Arc<Grant>, name: Name) {
        self.change(|state| state.granted(grant, name, None));
    }

    pub(super) fn refused(&self, write: bool, kept: bool, passing: bool) {
        self.change(|state| state.refused(write, kept, passing, Instant::now()));
    }

    pub(super) fn held(&self) -> Option<(Arc<Grant>, Name)> {
        self.state.lock_here().held()
    }

    /// Begins to send something by a layout; false if it is not held any more. [`Self::entered`] has to
    /// follow.
    pub(super) fn enter(&self, grant: &Arc<Grant>) -> bool {
        self.state.lock_here().enter(grant)
    }

    pub(super) fn entered(&self, sent: impl Iterator<Item = Weak<Sent>>) {
        self.change(|state| state.entered(sent));
    }

    /// What has been sent and may be unanswered, when nothing more is about to be sent.
    pub(super) fn flights(&self) -> Vec<Arc<Sent>> {
        self.step(LayoutState::flights)
    }

    /// A data server has written `bytes` bytes up to `end`; `unstable` is its verifier if they are not
    /// stable. Gives the verifier of all of them.
    pub(super) fn wrote(
        &self,
        grant: &Arc<Grant>,
        component: usize,
        wrote: (u64, usize),
        unstable: Option<Verifier>,
    ) -> [u8; 8] {
        let unstable = unstable.map(|verifier| verifier.0);
        self.state.lock_here().wrote(grant, component, wrote, unstable)
    }

    /// The verifiers of what is unstable at the data servers of a layout, by components. What another one has
    /// written that is held now stays.
    pub(super) fn take_unstable(&self, grant: &Arc<Grant>) -> FxHashMap<usize, [u8; 8]> {
        let mut state = self.state.lock_here();
        match state.held() {
            Some((held, _)) if Arc::ptr_eq(&held, grant) => state.take_unstable(),
            _ => FxHashMap::default(),
        }
    }

    /// The verifier of all data servers together.
    pub(super) fn verifier(&self) -> Verifier {
        Verifier(self.state.lock_here().verifier())
    }

    /// Unstable data is gone.
    pub(super) fn lose(&self) {
        self.state.lock_here().lose();
    }

    pub(super) fn written(&self) -> Option<Written> {
        self.state.lock_here().written()
    }

    /// Whether something was written behind the end that the server knows.
    pub(super) fn extends(&self) -> bool {
        self.state.lock_here().extends()
    }

    pub(super) fn told(&self, written: Written, size: u64) {
        self.state.lock_here().told(written, Some(size));
    }

    pub(super) fn abandon_written(&self) {
        self.state.lock_here().abandon_written();
    }

    pub(super) fn forget_size(&self) {
        self.state.lock_here().forget_size();
    }

    /// Begins to give a layout back; false if it is not held any more, and when another thread has
    /// given it back meanwhile.
    pub(super) fn begin_return(&self, grant: &Arc<Grant>) -> bool {
        self.step(|state| state.begin_return(grant))
    }

    pub(super) fn returned(&self) {
        self.change(|state| state.returned(Instant::now()));
    }

    /// The server knows nothing of this layout any more. Another may be held meanwhile.
    pub(super) fn void(&self, grant: &Arc<Grant>) {
        self.change(|state| {
            if state.held().is_some_and(|(held, _)| Arc::ptr_eq(&held, grant)) {
                state.void();
            }
        });
    }

    /// The server recalls a layout: that of this name, or any.
    pub(super) fn recall(&self, name: Option<Name>) -> Recalled {
        let means = |held: &mut Name| {
            let Some(name) = name else { return true };
            let is_it = held.state_id == name.state_id;
            // The number that the return has to be of; numbers wrap.
            if is_it && name.seqid.wrapping_sub(held.seqid) < u32::MAX / 2 {
                held.seqid = name.seqid;
            }
            is_it
        };
        self.state.lock_here().recall(means)
    }
}
