//! The layout of one file under a lock, with a condition variable for its phases. No method sends a
//! request; some wait for a thread that does.
//!
//! Invariants
//! * A read or a write at data servers takes the lock once for its layout, once before and once
//!   after it is sent, and once for each answer to a write. Only the list of transfers under way
//!   allocates.

use crate::{Grant, Granted, LayoutState, Lock, Protocol, Recalled, Step, Want, Written};
use dafs_mem::Condvar;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A layout and its present name.
pub(crate) type NamedGrant<P> = (Arc<Grant<P>>, <P as Protocol>::Name);

type State<P> = LayoutState<Grant<P>, <P as Protocol>::Name, <P as Protocol>::Flight>;

/// The layout of a file, and the writes that were made by it.
#[derive(Debug)]
pub struct FileLayout<P: Protocol> {
    /// The file.
    pub handle: P::Handle,
    state: P::Lock<State<P>>,
    changed: Condvar,
    /// Held by the thread that sends LAYOUTCOMMIT.
    pub(crate) telling: P::Lock<()>,
    /// Locked by the thread that commits unstable data.
    pub(crate) committing: P::Lock<()>,
}

impl<P: Protocol> FileLayout<P> {
    /// A file without a layout.
    pub fn new(handle: P::Handle) -> Self {
        let (state, changed) = (P::Lock::default(), Condvar::new());
        let (telling, committing) = (P::Lock::default(), P::Lock::default());
        Self { handle, state, changed, telling, committing }
    }

    /// Takes a step of the state machine. Waits while another thread's step is in the way.
    fn step<T>(&self, mut step: impl FnMut(&mut State<P>) -> Step<T>) -> T {
        let mut state = self.state.hold();
        loop {
            match step(&mut state) {
                Step::Now(result) => return result,
                Step::Wait => {
                    state = self.changed.wait(state);
                }
            }
        }
    }

    /// Reads the state, or changes something that no thread waits for.
    pub fn with<T>(&self, act: impl FnOnce(&mut State<P>) -> T) -> T {
        act(&mut self.state.hold())
    }

    /// Changes the phase of the layout, and wakes the threads that wait for that.
    pub fn change<T>(&self, change: impl FnOnce(&mut State<P>) -> T) -> T {
        let result = change(&mut self.state.hold());
        self.changed.notify_all();
        result
    }

    /// Returns the layout for a transfer of so many bytes. A thread that gets [`Want::Ask`] has to
    /// report the outcome. A layout that is not `known` to the server any more is forgotten first.
    pub fn want(
        &self,
        write: bool,
        bytes: u64,
        known: impl Fn(&Grant<P>) -> bool,
    ) -> Want<Grant<P>, P::Name> {
        let mut bytes = Some(bytes);
        self.step(|state| {
            if let Some(bytes) = bytes.take() {
                state.count(bytes);
                if state.void_unless(&known) {
                    self.changed.notify_all();
                }
            }
            state.want(write, Instant::now())
        })
    }

    /// See [`LayoutState::must_ask`].
    pub(crate) fn must_ask(&self) -> Option<Option<P::Name>> {
        self.step(LayoutState::must_ask)
    }

    /// Waits until no thread is giving the layout back.
    pub(crate) fn await_return(&self) {
        self.step(|state| if state.is_returning() { Step::Wait } else { Step::Now(()) });
    }

    /// True while a thread gives the layout back.
    pub(crate) fn is_returning(&self) -> bool {
        self.state.hold().is_returning()
    }

    /// Notes the layout that was granted to this thread.
    pub fn granted(&self, Granted { grant, name, size }: &Granted<P>) {
        self.change(|state| state.granted(grant, *name, *size));
    }

    /// Notes a refusal, or a layout that was of no use and has been given back
    /// ([`LayoutState::refused`]).
    pub fn refused(&self, write: bool, kept: bool, passing: bool) {
        self.change(|state| state.refused(write, kept, passing, Instant::now()));
    }

    /// The held layout, with its name.
    pub fn held(&self) -> Option<NamedGrant<P>> {
        self.state.hold().held()
    }

    /// Begins to send a transfer by a layout; false if it is not held any more. [`Self::entered`]
    /// has to follow.
    pub fn enter(&self, grant: &Arc<Grant<P>>) -> bool {
        self.state.hold().enter(grant)
    }

    /// Notes that the transfer has been sent completely.
    pub fn entered(&self, flights: impl Iterator<Item = Weak<P::Flight>>) {
        self.change(|state| state.entered(flights));
    }

    /// Returns the transfers that may be unanswered. Waits while a thread is about to send another.
    pub fn flights(&self) -> Vec<Arc<P::Flight>> {
        self.step(LayoutState::flights)
    }

    /// Notes a write at a data server, by its end and length; `unstable` is the server's verifier
    /// if the data is not stable. Returns the common verifier, that of the time before any of this
    /// data was lost.
    pub fn wrote(
        &self,
        grant: &Arc<Grant<P>>,
        component: usize,
        wrote: (u64, usize),
        unstable: Option<[u8; 8]>,
    ) -> [u8; 8] {
        self.state.hold().wrote(grant, component, wrote, unstable)
    }

    /// The common verifier of all data servers.
    pub fn verifier(&self) -> [u8; 8] {
        self.state.hold().verifier()
    }

    /// True if unstable data was lost.
    pub fn has_lost(&self) -> bool {
        self.state.hold().has_lost()
    }

    /// The writes that LAYOUTCOMMIT has to report.
    pub fn written(&self) -> Option<Written> {
        self.state.hold().written()
    }

    /// True if a write lies behind the end that the server knows.
    pub fn extends(&self) -> bool {
        self.state.hold().extends()
    }

    /// Begins to give a layout back; false if it is not held any more, also when another thread has
    /// given it back meanwhile.
    pub fn begin_return(&self, grant: &Arc<Grant<P>>) -> bool {
        self.step(|state| state.begin_return(grant))
    }

    /// Notes that the layout was given back.
    pub fn returned(&self) {
        self.change(|state| state.returned(Instant::now()));
    }

    /// Handles a recall of the layout with this name, or of any layout.
    pub fn recall(&self, name: Option<P::Name>) -> Recalled {
        self.state.hold().recall(|held| {
            let Some(mut name) = name else { return true };
            let ((number, is_held), (recalled, is_meant)) = (P::parts(held), P::parts(&mut name));
            // LAYOUTRETURN must carry the recall's sequence number. Numbers wrap, and an old recall
            // may come late.
            if is_held == is_meant && recalled.wrapping_sub(*number) < u32::MAX / 2 {
                *number = *recalled;
            }
            is_held == is_meant
        })
    }
}
