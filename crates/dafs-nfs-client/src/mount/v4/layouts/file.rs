//! The layout of one file as its client knows it, and what was written by it: the state machine of
//! `dafs-parallel` under a lock, with a place to wait for its changes. Nothing here waits for a server.

use super::grant::Grant;
use crate::files::Handle;
use crate::mount::open::Moved;
use crate::mount::v4::flight::TransferFlight;
use dafs_parallel::{LayoutState, Recalled, Step, Want, Written};
use dafs_wire::nfs4::{StableHow, Stateid, Status};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

type State = LayoutState<Grant, Stateid, TransferFlight>;

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

impl FileLayout {
    pub(super) fn new(handle: Handle) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let (telling, committing) = (Mutex::new(()), Mutex::new(()));
        Self { handle, state, changed, telling, committing }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step, as soon as no other thread is at what it is about.
    fn step<T>(&self, mut step: impl FnMut(&mut State) -> Step<T>) -> T {
        let mut state = self.state();
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
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
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
    pub(super) fn want(&self, write: bool, bytes: u64, now: Instant) -> Want<Grant, Stateid> {
        self.state().count(bytes);
        self.step(|state| state.want(write, now))
    }

    /// So many bytes were moved that nobody had counted when they were asked for.
    pub(crate) fn count(&self, bytes: u64) {
        self.state().count(bytes);
    }

    /// Whether to ask for a layout in order to tell what was written ([`LayoutState::must_ask`]).
    pub(super) fn must_ask(&self) -> Option<Option<Stateid>> {
        self.step(LayoutState::must_ask)
    }

    /// Waits until nobody is giving it back.
    pub(super) fn await_return(&self) {
        self.step(|state| if state.is_returning() { Step::Wait } else { Step::Now(()) });
    }

    /// Whether somebody asks for a layout.
    pub(super) fn is_asking(&self) -> bool {
        self.state().is_asking()
    }

    /// Whether it is being given back.
    pub(super) fn is_returning(&self) -> bool {
        self.state().is_returning()
    }

    /// A layout was granted to whoever asked. `size` is that of the file, if the server told.
    pub(super) fn granted(&self, grant: &Arc<Grant>, stateid: Stateid, size: Option<u64>) {
        self.change(|state| state.granted(grant, stateid, size));
    }

    /// There was none, or it was of no use and has been given back ([`LayoutState::refused`]).
    pub(super) fn refused(&self, write: bool, kept: bool, passing: bool, now: Instant) {
        self.change(|state| state.refused(write, kept, passing, now));
    }

    /// The layout that is held, with its state-id.
    pub(super) fn held(&self) -> Option<(Arc<Grant>, Stateid)> {
        self.state().held()
    }

    /// Begins to send something by a layout; false if it is not held any more. [`Self::entered`] has to
    /// follow.
    pub(super) fn enter(&self, grant: &Arc<Grant>) -> bool {
        self.state().enter(grant)
    }

    /// All of it has been sent.
    pub(super) fn entered(&self, flights: impl Iterator<Item = Weak<TransferFlight>>) {
        self.change(|state| state.entered(flights));
    }

    /// What has been sent and may be unanswered, when nothing more is about to be sent.
    pub(super) fn flights(&self) -> Vec<Arc<TransferFlight>> {
        self.step(LayoutState::flights)
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
        let unstable = (moved.stable == StableHow::Unstable).then_some(moved.verifier);
        self.state().wrote(grant, component, (end, moved.bytes), unstable)
    }

    /// Takes the verifiers that are to be compared at a commit.
    pub(super) fn take_unstable(&self) -> FxHashMap<usize, [u8; 8]> {
        self.state().take_unstable()
    }

    /// The verifier of all data servers together.
    pub(super) fn verifier(&self) -> [u8; 8] {
        self.state().verifier()
    }

    /// Unstable data is gone.
    pub(super) fn lose(&self) {
        self.state().lose();
    }

    /// What is to be told.
    pub(super) fn written(&self) -> Option<Written> {
        self.state().written()
    }

    /// Whether something was written behind the end that the server knows.
    pub(super) fn extends(&self) -> bool {
        self.state().extends()
    }

    /// The server was told so much.
    pub(super) fn told(&self, written: Written, size: Option<u64>) {
        self.state().told(written, size);
    }

    /// Nobody will be told of what was written; it counts as lost.
    pub(super) fn abandon_written(&self) {
        self.state().abandon_written();
    }

    /// The file was given another size by this client.
    pub(super) fn resized(&self, size: u64) {
        self.state().resized(size);
    }

    /// Begins to give a layout back; false if it is not held any more, and when another thread has
    /// given it back meanwhile.
    pub(super) fn begin_return(&self, grant: &Arc<Grant>) -> bool {
        self.step(|state| state.begin_return(grant))
    }

    /// It was given back.
    pub(super) fn returned(&self, now: Instant) {
        self.change(|state| state.returned(now));
    }

    /// The server has forgotten all layouts. Unstable data may be there still; nobody can tell.
    pub(super) fn void(&self) {
        self.change(LayoutState::void);
    }

    /// The server recalls the layout of this name (RFC 8881 12.5.5.2.1, 20.3). With OK it has to be
    /// given back now.
    pub(super) fn recall(&self, stateid: Stateid) -> Status {
        let means = |held: &mut Stateid| {
            let is_it = held.other == stateid.other;
            // The number that the return has to be of; numbers wrap.
            if is_it && stateid.seqid.wrapping_sub(held.seqid) < u32::MAX / 2 {
                held.seqid = stateid.seqid;
            }
            is_it
        };
        match self.state().recall(means) {
            Recalled::Later => Status::Delay,
            Recalled::Yes => Status::Ok,
            Recalled::Unknown => Status::NoMatchingLayout,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::mount::layout::Component;
    use crate::mount::v4::layouts::files::FilesReader;
    use dafs_parallel::Plan;
    use dafs_parallel::aggregation::{Packing, Striped};
    use dafs_parallel::limits::LAYOUT_THRESHOLD_BYTES;
    use dafs_wire::nfs4::{DeviceId, Fsid};
    use std::sync::atomic::AtomicUsize;

    /// A layout without data servers.
    pub(crate) fn grant(write: bool) -> Arc<Grant> {
        grant_of(write, None, &[])
    }

    /// A layout of a file of a file system, with components on devices and without data servers.
    pub(crate) fn grant_of(write: bool, fsid: Option<Fsid>, devices: &[DeviceId]) -> Arc<Grant> {
        let driver = Striped::round_robin(4096, 1, 0, Packing::Sparse).unwrap();
        let place = |&device: &DeviceId| {
            let (addresses, handle, stateid) = (Vec::new(), Handle(vec![1]), None);
            Component { device, addresses, handle, stateid }
        };
        let plan = Plan {
            driver: Arc::new(driver),
            places: devices.iter().map(place).collect(),
            preferred: vec![0],
            commits_at_server: false,
            is_told: true,
            read_bytes_max: 4096,
            write_bytes_max: 4096,
        };
        let (nodes, turn, range) = (Vec::new(), AtomicUsize::new(0), 0..u64::MAX);
        let (return_on_close, reader) = (true, Arc::new(FilesReader));
        Arc::new(Grant { plan, range, nodes, write, fsid, return_on_close, reader, turn })
    }

    fn stateid(seqid: u32, name: u8) -> Stateid {
        Stateid { seqid, other: [name; 12] }
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
}
