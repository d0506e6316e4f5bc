//! A file that clients use under a lock, with all its possible states of lock and content.
//!
//! Requests overlap, are lost with their connections and outlive their clients, so the time of
//! their effect is unknown. The model keeps every possible state. A request may take effect at any
//! time until it is answered. An answer rules out the states in which it could not have been given.
//! When no state is left, the server has broken the rules.
//!
//! Invariants
//! * The set of states is closed: it contains the result of every event that needs no answer.
//! * An answer and a restart of the server remove only states that the rules of DAFS 9 exclude. A
//!   doubtful state stays.

use crate::pattern::WriteId;
use std::collections::BTreeSet;

/// Most states of a vault. More mean a bug in the model.
const STATES_MAX: usize = 20_000;

/// Bytes of the content: a sector, which is written as a whole or not at all.
pub(crate) const VAULT_BYTES: usize = 512;

/// The kind of its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VaultKind {
    Plain,
    Persist,
    AutoRecovery,
    /// Persistent and with recovery.
    Both,
}

impl VaultKind {
    pub(crate) fn persists(self) -> bool {
        matches!(self, Self::Persist | Self::Both)
    }

    pub(crate) fn recovers(self) -> bool {
        matches!(self, Self::AutoRecovery | Self::Both)
    }
}

/// A run of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) client: usize,
    pub(crate) run: u64,
}

/// A request to a vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Lock,
    /// Waits fairly: no later request is granted first.
    LockWait,
    Repair,
    /// LOCKT by an owner without locks.
    Test,
    /// Reads without an open.
    Peek,
    Read,
    Write(WriteId),
    Unlock,
    /// Releases the lock and rolls back the writes under it.
    Abort,
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    Ok,
    Content(Content),
    Denied,
    Broken,
    /// A repair of a lock that is not broken.
    NothingBroken,
    /// The open or its lock is gone, or its range must not be touched.
    Gone,
}

/// The content of a vault; `None`: zeros.
pub(crate) type Content = Option<WriteId>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    Free,
    Held(Holder),
    /// A persistent lock whose holder has been silent for a lease.
    Breakable(Holder),
    Broken,
    /// No holder, and not rolled back yet.
    Undoing,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    hold: Hold,
    /// The current content.
    content: Content,
    /// The content after a power failure.
    stable: Content,
    /// The content after a rollback. `None` if the holder's writes are not rolled back.
    base: Option<Content>,
    /// Unanswered requests that have taken effect, and their answers.
    done: Vec<(u64, Answer)>,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    holder: Holder,
    ask: Ask,
    /// The server has ended since it was asked.
    outlived: bool,
}

/// The knowledge about runs of clients and their leases.
pub(crate) trait Leases {
    /// Its process is running.
    fn is_alive(&self, holder: Holder) -> bool;

    /// It may have been silent for a lease since it opened the vault, or has ended.
    fn may_have_lapsed(&self, holder: Holder) -> bool;
}

/// The model of one vault.
#[derive(Debug)]
pub(crate) struct Vault {
    pub(crate) kind: VaultKind,
    states: BTreeSet<State>,
    pending: Vec<Pending>,
    last: u64,
    /// A request may be queued, so that others may be denied a free lock.
    queued: bool,
}

impl State {
    fn answer(&self, number: u64) -> Option<Answer> {
        self.done.iter().find(|(done, _)| *done == number).map(|(_, answer)| *answer)
    }

    fn with(&self, number: u64, answer: Answer) -> Self {
        let mut state = self.without(number);
        state.done.push((number, answer));
        state.done.sort_unstable();
        state
    }

    fn without(&self, number: u64) -> Self {
        let mut state = self.clone();
        state.done.retain(|(done, _)| *done != number);
        state
    }

    fn is_of_another(&self, holder: Holder) -> bool {
        matches!(self.hold, Hold::Held(other) | Hold::Breakable(other) if other != holder)
    }

    fn holding(&self, hold: Hold) -> Self {
        Self { hold, ..self.clone() }
    }

    /// Rolls back the writes under the lock, if it is a lock with recovery.
    fn rolled_back(&self, hold: Hold) -> Self {
        let mut state = self.holding(hold);
        if let Some(base) = state.base.take() {
            (state.content, state.stable) = (base, base);
        }
        state
    }

    /// Releases the lock and keeps the writes under it.
    fn given_up(&self) -> Self {
        Self { base: None, ..self.holding(Hold::Free) }
    }
}

impl Vault {
    pub(crate) fn new(kind: VaultKind) -> Self {
        let (content, stable) = (None, None);
        let state = State { hold: Hold::Free, content, stable, base: None, done: Vec::new() };
        Self { kind, states: BTreeSet::from([state]), pending: Vec::new(), last: 0, queued: false }
    }

    /// Notes a request and returns its number.
    pub(crate) fn asked(&mut self, holder: Holder, ask: Ask, leases: &dyn Leases) -> u64 {
        self.last += 1;
        self.queued |= ask == Ask::LockWait;
        self.pending.push(Pending { number: self.last, holder, ask, outlived: false });
        self.close(leases);
        self.last
    }

    /// Handles the answer to a request.
    pub(crate) fn answered(
        &mut self,
        number: u64,
        answer: Answer,
        leases: &dyn Leases,
    ) -> Result<(), String> {
        self.close(leases);
        let before = std::mem::take(&mut self.states);
        let place = self.pending.iter().position(|pending| pending.number == number);
        let pending = place.map(|place| self.pending.remove(place));
        let fits = before.iter().filter(|state| state.answer(number) == Some(answer));
        self.states = fits
            .map(|state| {
                let mut state = state.without(number);
                if let Some(Pending { ask: Ask::Write(write), .. }) = pending
                    && state.content == Some(write)
                {
                    state.stable = state.content;
                }
                state
            })
            .collect();
        match self.states.is_empty() {
            true => Err(format!(
                "{:?} vault: {pending:?} cannot be told {answer:?}; possible was {before:#?}",
                self.kind
            )),
            false => Ok(()),
        }
    }

    /// Handles an answer that the request was not done and may be retried.
    pub(crate) fn put_off(&mut self, number: u64) -> Result<(), String> {
        self.states.retain(|state| state.answer(number).is_none());
        match self.states.is_empty() {
            true => Err(format!("{:?} vault: it was done and is put off", self.kind)),
            false => Ok(()),
        }
    }

    /// Handles the end of the server, with or without a power failure.
    pub(crate) fn server_ended(&mut self, power: bool, leases: &dyn Leases) {
        self.close(leases);
        self.pending.iter_mut().for_each(|pending| pending.outlived = true);
        let mut states: BTreeSet<State> = BTreeSet::new();
        let mut open: Vec<State> = std::mem::take(&mut self.states).into_iter().collect();
        while let Some(state) = open.pop() {
            if !states.insert(state.clone()) {
                continue;
            }
            if power && state.content != state.stable {
                // The pre-image, if there is one, is either content.
                let kept = State { content: state.stable, ..state.clone() };
                open.push(State { base: state.base.map(|_| state.stable), ..kept.clone() });
                open.push(kept);
            }
            for Pending { number, holder, ask, .. } in &self.pending {
                if state.answer(*number).is_none() {
                    continue;
                }
                // The answer is lost with the server: the request may be retried.
                let undone = state.without(*number);
                let hold = match (ask, state.hold) {
                    // Its holder does not know of the lock, and does not reclaim it.
                    (Ask::Lock | Ask::LockWait | Ask::Repair, Hold::Held(held))
                        if held == *holder =>
                    {
                        let persists = self.kind.persists() || *ask == Ask::Repair;
                        Some(if persists { Hold::Breakable(held) } else { Hold::Free })
                    }
                    // Its holder does not know of the release, and reclaims the lock.
                    (Ask::Unlock | Ask::Close | Ask::Abort, Hold::Free) => {
                        Some(Hold::Held(*holder))
                    }
                    _ => None,
                };
                if let Some(hold) = hold {
                    let mut other = undone.holding(hold);
                    if let Hold::Held(_) = hold {
                        other.base = self.kind.recovers().then_some(other.content);
                    }
                    open.push(other);
                }
                open.push(undone);
            }
        }
        self.states = states;
        self.close(leases);
    }

    /// A client has a new run; the server has ended all earlier ones.
    pub(crate) fn replaced(&mut self, now: Holder, leases: &dyn Leases) {
        self.close(leases);
        let older = |holder: Holder| holder.client == now.client && holder.run != now.run;
        let numbers: Vec<u64> = self
            .pending
            .extract_if(.., |pending| older(pending.holder))
            .map(|p| p.number)
            .collect();
        let states = std::mem::take(&mut self.states);
        self.states = states
            .into_iter()
            .map(|mut state| {
                state.done.retain(|(number, _)| !numbers.contains(number));
                match state.hold {
                    Hold::Held(holder) | Hold::Breakable(holder) if older(holder) => {
                        state.holding(self.left())
                    }
                    _ => state,
                }
            })
            .collect();
    }

    /// The state of a lock whose holder has ended for good.
    fn left(&self) -> Hold {
        if self.kind.persists() { Hold::Broken } else { Hold::Undoing }
    }

    /// The least and the most persistent locks that the server must still keep.
    pub(crate) fn kept(&mut self, leases: &dyn Leases) -> (usize, usize) {
        self.close(leases);
        let kept = |state: &State| matches!(state.hold, Hold::Breakable(_) | Hold::Broken);
        (self.states.iter().all(kept).into(), self.states.iter().any(kept).into())
    }

    /// Compares the content in the end, when no lock is held and all rollbacks are done.
    pub(crate) fn check(&self, content: Content) -> Result<(), String> {
        let rests = |state: &&State| match state.hold {
            Hold::Free | Hold::Breakable(_) => true,
            Hold::Broken => state.base.is_none(),
            Hold::Held(_) | Hold::Undoing => false,
        };
        match self.states.iter().filter(rests).any(|state| state.content == content) {
            true => Ok(()),
            false => {
                Err(format!("the {:?} vault holds {content:?}: {:#?}", self.kind, self.states))
            }
        }
    }

    /// Adds the result of every event that needs no answer.
    fn close(&mut self, leases: &dyn Leases) {
        let mut open: Vec<State> = self.states.iter().cloned().collect();
        while let Some(state) = open.pop() {
            for next in self.next(&state, leases) {
                if self.states.insert(next.clone()) {
                    open.push(next);
                }
            }
            assert!(self.states.len() <= STATES_MAX, "the model of a vault has grown too large");
        }
    }

    /// The states that may follow a state.
    fn next(&self, state: &State, leases: &dyn Leases) -> Vec<State> {
        let mut all = Vec::new();
        match state.hold {
            Hold::Held(holder) if leases.may_have_lapsed(holder) => {
                all.push(match self.kind.persists() {
                    true => state.holding(Hold::Breakable(holder)),
                    false => state.holding(Hold::Undoing),
                });
            }
            Hold::Breakable(holder) if leases.is_alive(holder) => {
                all.push(state.holding(Hold::Held(holder)));
            }
            Hold::Breakable(_) => all.push(state.holding(Hold::Broken)),
            Hold::Broken if state.base.is_some() => all.push(state.rolled_back(Hold::Broken)),
            Hold::Undoing => all.push(state.rolled_back(Hold::Free)),
            _ => {}
        }
        for pending in &self.pending {
            let Pending { number, holder, ask, outlived } = *pending;
            let lapsed = leases.may_have_lapsed(holder);
            let done = state.answer(number).is_some();
            // A server that has forgotten a session runs its retried requests again.
            if done && lapsed {
                all.push(state.without(number));
            }
            let harmless = matches!(ask, Ask::Read | Ask::Write(_) | Ask::Test | Ask::Peek);
            if !done || harmless {
                let effects = self.effects(state, holder, ask, lapsed);
                all.extend(effects.into_iter().map(|(state, answer)| state.with(number, answer)));
                // The release took effect before the server's end, unknown to this client. Another
                // client then took the lock and released it, also unknown to it, and was faster to
                // reclaim it.
                let gives_up = matches!(ask, Ask::Unlock | Ask::Close | Ask::Abort);
                if gives_up && outlived && state.is_of_another(holder) {
                    all.push(state.with(number, Answer::Gone));
                }
            }
        }
        all
    }

    /// The possible effects of a request in a state.
    fn effects(
        &self,
        state: &State,
        holder: Holder,
        ask: Ask,
        lapsed: bool,
    ) -> Vec<(State, Answer)> {
        let same = |answer| (state.clone(), answer);
        let mine = state.hold == Hold::Held(holder);
        let mut all = Vec::new();
        match ask {
            Ask::Lock | Ask::LockWait => all.push(match state.hold {
                Hold::Free => {
                    let base = self.kind.recovers().then_some(state.content);
                    (State { base, ..state.holding(Hold::Held(holder)) }, Answer::Ok)
                }
                Hold::Held(other) if other != holder => same(Answer::Denied),
                Hold::Breakable(other) if other != holder => {
                    (state.holding(Hold::Broken), Answer::Broken)
                }
                Hold::Held(_) | Hold::Breakable(_) => {
                    (state.holding(Hold::Held(holder)), Answer::Ok)
                }
                Hold::Broken => same(Answer::Broken),
                Hold::Undoing => return all,
            }),
            Ask::Repair => all.push(match state.hold {
                // A repair rolls back first; its own writes are not rolled back.
                Hold::Broken => (state.rolled_back(Hold::Held(holder)), Answer::Ok),
                _ => same(Answer::NothingBroken),
            }),
            Ask::Test => all.push(match state.hold {
                Hold::Free | Hold::Undoing => same(Answer::Ok),
                Hold::Held(_) | Hold::Breakable(_) => same(Answer::Denied),
                Hold::Broken => same(Answer::Broken),
            }),
            Ask::Peek => all.push(match state.hold {
                Hold::Broken => same(Answer::Gone),
                _ => same(Answer::Content(state.content)),
            }),
            Ask::Read if mine => all.push(same(Answer::Content(state.content))),
            Ask::Write(write) if mine => {
                let written = State { content: Some(write), ..state.clone() };
                all.push((State { stable: Some(write), ..written.clone() }, Answer::Ok));
                all.push((written, Answer::Ok));
            }
            Ask::Unlock | Ask::Close if mine => all.push((state.given_up(), Answer::Ok)),
            Ask::Abort if mine && state.base.is_none() => all.push(same(Answer::Gone)),
            Ask::Abort if mine => all.push((state.rolled_back(Hold::Free), Answer::Ok)),
            Ask::Unlock | Ask::Close => match state.hold {
                Hold::Breakable(other) if other == holder => {
                    all.push((state.given_up(), Answer::Ok));
                    if ask == Ask::Close {
                        all.push(same(Answer::Ok));
                    }
                }
                _ => all.push(same(Answer::Ok)),
            },
            Ask::Read | Ask::Write(_) | Ask::Abort => {}
        }
        // A repair does not queue: queued requests cannot be granted before it.
        let waits = matches!(ask, Ask::Lock | Ask::LockWait) && state.hold != Hold::Broken;
        if waits && !mine && self.queued {
            all.push(same(Answer::Denied));
        }
        if lapsed && !mine && !matches!(ask, Ask::Test | Ask::Peek) {
            all.push(same(Answer::Gone));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Holder = Holder { client: 0, run: 1 };
    const TWO: Holder = Holder { client: 1, run: 1 };

    struct Kept;

    impl Leases for Kept {
        fn is_alive(&self, _holder: Holder) -> bool {
            true
        }

        fn may_have_lapsed(&self, _holder: Holder) -> bool {
            false
        }
    }

    /// Two clients believe that they hold the lock, because the answers to their releases were
    /// lost.
    #[test]
    fn a_lock_is_gone_for_one_of_two_who_take_it_back_after_a_restart() {
        for (ends, may_be_gone) in [(false, false), (true, true)] {
            let mut vault = Vault::new(VaultKind::Both);
            let lock = vault.asked(ONE, Ask::Lock, &Kept);
            vault.answered(lock, Answer::Ok, &Kept).unwrap();
            let unlock = vault.asked(ONE, Ask::Unlock, &Kept);
            let lock = vault.asked(TWO, Ask::Lock, &Kept);
            vault.answered(lock, Answer::Ok, &Kept).unwrap();
            vault.asked(TWO, Ask::Abort, &Kept);
            if ends {
                vault.server_ended(false, &Kept);
            }
            assert_eq!(vault.answered(unlock, Answer::Gone, &Kept).is_ok(), may_be_gone);
        }
    }
}
