//! The threads that notify holders of recalls and losses: a holder may take long and uses the
//! client.
//!
//! Invariants
//! * A holder is notified of one thing at a time, in order. A slow holder delays the others only
//!   when [`CALLERS_MAX`] holders are slow.
//! * Every notice that was queued before the end is delivered.

use super::{DelegationHolder, DelegationNotice};
use crate::driver::Shared;
use crate::limits::CALLERS_MAX;
use dafs_dat::confine::confined;
use dafs_mem::{Condvar, Mutex};
use dafs_wire::dafs::StateId;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A notice for a holder.
pub(super) struct Notice {
    pub(super) name: StateId,
    pub(super) holder: Weak<dyn DelegationHolder>,
    pub(super) news: DelegationNotice,
    /// When it was queued.
    since: Instant,
}

impl Notice {
    pub(super) fn new(
        name: StateId,
        holder: Weak<dyn DelegationHolder>,
        news: DelegationNotice,
    ) -> Self {
        Self { name, holder, news, since: Instant::now() }
    }

    /// The holder's address, which tells it from others while it exists.
    fn place(&self) -> usize {
        self.holder.as_ptr().cast::<()>().addr()
    }
}

/// The threads that call holders: a permanent one, and temporary ones while that is not enough.
pub(super) struct Caller {
    state: Mutex<State>,
    changed: Condvar,
    /// Notices that have not reached their holders, to be read without the lock.
    pending_notices: Arc<AtomicUsize>,
    shared: Weak<Shared>,
    itself: Weak<Self>,
}

#[derive(Default)]
struct State {
    notices: VecDeque<Notice>,
    /// The holders that are being called.
    telling: Vec<usize>,
    /// Threads that wait for a notice.
    idle: usize,
    threads: usize,
    stop: bool,
}

impl Caller {
    pub(super) fn start(
        shared: Weak<Shared>,
        pending_notices: Arc<AtomicUsize>,
    ) -> io::Result<Arc<Self>> {
        let caller = Arc::new_cyclic(|itself| {
            let (state, changed, itself) = (Mutex::default(), Condvar::new(), itself.clone());
            Self { state, changed, pending_notices, shared, itself }
        });
        caller.spawn(&mut caller.state.lock(), true)?;
        Ok(caller)
    }

    fn spawn(&self, state: &mut State, stays: bool) -> io::Result<()> {
        let Some(own) = self.itself.upgrade() else { return Ok(()) };
        let thread = std::thread::Builder::new().name("dafs-recalls".into());
        thread.spawn(move || own.run(stays))?;
        state.threads += 1;
        Ok(())
    }

    pub(super) fn push(&self, notice: Notice) {
        let mut state = self.state.lock();
        self.pending_notices.fetch_add(1, Ordering::Relaxed);
        state.notices.push_back(notice);
        if state.notices.len() > state.idle
            && state.threads < CALLERS_MAX
            && let Err(error) = self.spawn(&mut state, false)
        {
            tracing::debug!(%error, "recalls wait for one another");
        }
        self.changed.notify_one();
    }

    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// The age of the oldest queued notice.
    pub(super) fn waiting(&self) -> Duration {
        self.state.lock().notices.front().map_or(Duration::ZERO, |notice| notice.since.elapsed())
    }

    fn run(&self, stays: bool) {
        while let Some(notice) = self.next(stays) {
            let place = notice.place();
            // A panic of a holder ends this notice only; others are still delivered.
            let _ = confined(|| self.tell(notice));
            self.state.lock().telling.retain(|told| *told != place);
        }
    }

    fn tell(&self, Notice { name, holder, news, .. }: Notice) {
        // The delegation stays valid until the holder returns it, so the recall counts as heard.
        if matches!(news, DelegationNotice::Recall { .. }) {
            self.pending_notices.fetch_sub(1, Ordering::Release);
        }
        match (holder.upgrade(), news) {
            (Some(holder), DelegationNotice::Recall { truncate }) => holder.recall(truncate),
            (Some(holder), DelegationNotice::Lost) => holder.lost(),
            (None, DelegationNotice::Lost) => {}
            // The holder was dropped without returning the delegation.
            (None, DelegationNotice::Recall { .. }) => {
                if let Some(shared) = self.shared.upgrade() {
                    shared.leave_delegation(name);
                }
            }
        }
        if news == DelegationNotice::Lost {
            self.pending_notices.fetch_sub(1, Ordering::Release);
        }
    }

    /// The first notice that can be delivered now. A notice whose holder is busy is left to the
    /// thread that is calling this holder.
    fn next(&self, stays: bool) -> Option<Notice> {
        let mut state = self.state.lock();
        loop {
            let State { notices, telling, .. } = &mut *state;
            let place = notices.iter().position(|notice| !telling.contains(&notice.place()));
            if let Some(notice) = place.and_then(|place| notices.remove(place)) {
                telling.push(notice.place());
                return Some(notice);
            }
            if state.stop || !stays {
                // Under the same lock: a producer must not count on a thread that has stopped
                // looking.
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state);
            state.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delegation::HeldAttributes;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A timeout that is reached only when a notice is missing.
    const LONG: Duration = Duration::from_secs(20);

    struct Holder {
        told: Sender<(u32, DelegationNotice)>,
        number: u32,
        /// Blocks a recall.
        gate: Option<Mutex<Receiver<()>>>,
    }

    impl DelegationHolder for Holder {
        fn recall(&self, truncate: bool) {
            self.told.send((self.number, DelegationNotice::Recall { truncate })).unwrap();
            if let Some(gate) = &self.gate {
                gate.lock().recv().unwrap();
            }
        }

        fn attributes(&self) -> Option<HeldAttributes> {
            None
        }

        fn lost(&self) {
            self.told.send((self.number, DelegationNotice::Lost)).unwrap();
        }
    }

    const RECALL: DelegationNotice = DelegationNotice::Recall { truncate: false };

    struct Mad;

    impl DelegationHolder for Mad {
        fn recall(&self, _: bool) {
            panic!("on purpose");
        }

        fn attributes(&self) -> Option<HeldAttributes> {
            None
        }

        fn lost(&self) {}
    }

    #[test]
    fn a_holder_that_panics_keeps_nobody_from_being_told() {
        let caller = Caller::start(Weak::new(), Arc::default()).unwrap();
        let (told, tells) = channel();
        let mad: Arc<dyn DelegationHolder> = Arc::new(Mad);
        let good: Arc<dyn DelegationHolder> = Arc::new(Holder { told, number: 1, gate: None });
        for _ in 0..2 * CALLERS_MAX {
            caller.push(Notice::new(StateId::ZERO, Arc::downgrade(&mad), RECALL));
        }
        caller.push(Notice::new(StateId::ZERO, Arc::downgrade(&good), RECALL));
        assert_eq!(tells.recv_timeout(LONG).unwrap(), (1, RECALL));
        caller.stop();
    }

    #[test]
    fn a_holder_that_takes_long_keeps_nobody_else_waiting() {
        let pending_notices = Arc::<AtomicUsize>::default();
        let caller = Caller::start(Weak::new(), pending_notices.clone()).unwrap();
        let (told, tells) = channel();
        let mut gates = Vec::new();
        let slow: Vec<Arc<dyn DelegationHolder>> = (0..CALLERS_MAX as u32)
            .map(|number| {
                let (open, gate) = channel();
                gates.push(open);
                let gate = Some(Mutex::new(gate));
                Arc::new(Holder { told: told.clone(), number, gate }) as Arc<dyn DelegationHolder>
            })
            .collect();
        let quick: Arc<dyn DelegationHolder> = Arc::new(Holder { told, number: 1000, gate: None });
        let push = |holder: &Arc<dyn DelegationHolder>, news| {
            caller.push(Notice::new(StateId::ZERO, Arc::downgrade(holder), news));
        };
        for holder in &slow[1..] {
            push(holder, RECALL);
            push(holder, DelegationNotice::Lost);
        }
        let mut begun: Vec<_> =
            slow[1..].iter().map(|_| tells.recv_timeout(LONG).unwrap()).collect();
        begun.sort_unstable_by_key(|(number, _)| *number);
        assert!(begun.iter().zip(1..).all(|(told, number)| *told == (number, RECALL)));
        push(&quick, RECALL);
        assert_eq!(tells.recv_timeout(LONG).unwrap(), (1000, RECALL), "others take long");
        // All threads are in slow holders now, so no notice is delivered.
        push(&slow[0], RECALL);
        assert_eq!(tells.recv_timeout(LONG).unwrap(), (0, RECALL));
        push(&quick, DelegationNotice::Lost);
        assert_eq!(pending_notices.load(Ordering::SeqCst), slow.len());
        assert!(caller.waiting() > Duration::ZERO && tells.try_recv().is_err());
        gates.iter().for_each(|gate| gate.send(()).unwrap());
        let mut rest: Vec<_> = slow.iter().map(|_| tells.recv_timeout(LONG).unwrap()).collect();
        rest.sort_unstable_by_key(|(number, _)| *number);
        assert!(rest.iter().all(|(_, news)| *news == DelegationNotice::Lost));
        assert_eq!(rest.last().map(|(number, _)| *number), Some(1000));
        caller.stop();
    }
}
