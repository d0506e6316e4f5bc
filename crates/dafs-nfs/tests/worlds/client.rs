//! A client of the model: its knowledge, its requests under way, and checks that the answers to it
//! are possible.
//!
//! Invariants
//! * Certain knowledge about a name stays true: only its slot changes the name, one request after
//!   the other.
//! * A right counts as held from the arrival of its grant until its release is sent, while the
//!   lease lasts. Over a restart it counts as held while the client must be able to reclaim it.

use crate::actions::*;
use crate::server::{LEASE_NS, decode};
use dafs_wire::nfs4::*;

pub(crate) const SLOTS: usize = 2;

/// The progress of a client's session setup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joined {
    No,
    Exchanged { sequence: u32 },
    Yes { session: SessionId, run: u32, complete: bool },
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Exchange,
    CreateSession,
    Act(Action),
}

/// A request without answer.
#[derive(Debug, Clone)]
pub(crate) struct Outstanding {
    pub(crate) xid: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) sent_ns: u64,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) sequence: u32,
    /// The possible objects of each name.
    pub(crate) names: [Vec<Entry>; NAMES],
    pub(crate) outstanding: Option<Outstanding>,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) place: Place,
    pub(crate) joined: Joined,
    pub(crate) id: Option<u64>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) holds: Vec<Hold>,
    /// The send time of the last request that is known to have renewed the lease.
    pub(crate) contact_ns: u64,
    pub(crate) asleep_until_ns: u64,
    /// The number of connections so far.
    pub(crate) generation: u32,
}

impl Client {
    pub(crate) fn new(number: usize, place: Place) -> Self {
        let slot = |_| Slot {
            sequence: 0,
            names: std::array::from_fn(|_| vec![Entry::Nothing]),
            outstanding: None,
        };
        Self {
            number,
            place,
            joined: Joined::No,
            id: None,
            slots: (0..SLOTS).map(slot).collect(),
            holds: Vec::new(),
            contact_ns: 0,
            asleep_until_ns: 0,
            generation: 0,
        }
    }

    /// True if no other client can have a conflicting right.
    pub(crate) fn surely_holds(&self, hold: &Hold, now_ns: u64) -> bool {
        now_ns <= hold.lost_until_ns.unwrap_or(self.contact_ns + LEASE_NS)
    }

    /// Handles a crash of the server. A client that did not complete its reclaims in a grace period
    /// may not reclaim in the next, not even state that it has reclaimed (RFC 8881 8.4.2.1).
    pub(crate) fn server_died(&mut self, now_ns: u64, in_grace: bool) {
        let done = matches!(self.joined, Joined::Yes { complete: true, .. });
        for at in 0..self.holds.len() {
            let sure = self.surely_holds(&self.holds[at], now_ns) && (done || in_grace);
            // Grace is as long as a lease.
            self.holds[at].lost_until_ns = Some(if sure { now_ns + LEASE_NS } else { 0 });
        }
    }

    /// Returns the client's open of a file that it locks.
    pub(crate) fn base(&self, file: usize) -> Option<Stateid> {
        let is_base = |hold: &&Hold| (hold.owner, hold.file) == (BASE, file);
        self.holds
            .iter()
            .find(|hold| is_base(hold) && hold.lost_until_ns.is_none())
            .map(|hold| hold.stateid)
    }

    /// Returns the next action that a new session needs before all others.
    pub(crate) fn setup(&mut self) -> Option<Action> {
        let Joined::Yes { complete, .. } = self.joined else { return None };
        if !complete {
            let opens: Vec<_> = (0..SHARED_FILES).map(|file| self.base(file).is_some()).collect();
            let lost = |hold: &&Hold| hold.lost_until_ns.is_some();
            let is_open = |hold: &&Hold| matches!(hold.right, Right::Open { .. });
            let mut lost = self.holds.iter().filter(lost);
            let next = lost.clone().find(is_open).or_else(|| lost.next());
            let Some(Hold { owner, file, right, .. }) = next.cloned() else {
                return Some(Action::Complete);
            };
            if matches!(right, Right::Lock { .. }) && !opens[file] {
                // The open could not be reclaimed, so this right cannot be either.
                self.holds.retain(|hold| hold.file != file || hold.lost_until_ns.is_none());
                return self.setup();
            }
            return Some(Action::Take { owner, file, right, reclaim: true });
        }
        let file = (0..LOCK_FILES).find(|file| self.base(*file).is_none())?;
        let right = Right::Open { access: ShareAccess::BOTH, deny: DENY_NONE };
        Some(Action::Take { owner: BASE, file, right, reclaim: false })
    }

    /// Handles the loss of the session, and checks that the server had a reason.
    fn session_lost(&mut self, run: u32, now_ns: u64) {
        let Joined::Yes { run: session_run, .. } = self.joined else { return };
        if session_run == run {
            let over = now_ns > self.contact_ns + LEASE_NS;
            assert!(over, "the session is gone, the lease was not over");
            self.holds.iter_mut().for_each(|hold| hold.lost_until_ns = Some(0));
        }
        for slot in &mut self.slots {
            slot.sequence = 0;
            if let Some(Outstanding { what: What::Act(action), .. }) = slot.outstanding.take() {
                slot.doubt(&action);
            }
        }
        self.joined = Joined::No;
    }

    /// Handles an answer to a slot's request. Returns the right that was granted, if any.
    pub(crate) fn answered(
        &mut self,
        slot: usize,
        results: &[u8],
        run: u32,
        now_ns: u64,
    ) -> Option<(u8, usize, Right)> {
        let outstanding = self.slots[slot].outstanding.clone()?;
        let results = decode(results);
        let first = &results[0];
        match (&outstanding.what, first.status) {
            (_, Status::Delay) if results.len() == 1 => return None,
            (What::Exchange, Status::Ok) => {
                let ResultBody::ExchangeId(result) = &first.body else { panic!("{first:?}") };
                let confirmed = result.flags.contains(ExchangeFlags::CONFIRMED_R);
                let same = self.id == Some(result.client_id);
                assert!(!same || !confirmed, "the server took the session and kept the client");
                self.id = Some(result.client_id);
                self.joined = Joined::Exchanged { sequence: result.sequence_id };
            }
            (What::CreateSession, Status::Ok) => {
                let ResultBody::CreateSession(result) = &first.body else { panic!("{first:?}") };
                self.joined = Joined::Yes { session: result.session_id, run, complete: false };
            }
            (What::CreateSession, Status::StaleClientId) => {
                (self.id, self.joined) = (None, Joined::No);
            }
            (What::Act(_), Status::BadSession) => {
                self.session_lost(run, now_ns);
                return None;
            }
            (What::Act(_), Status::Ok) if has_expired(&results) => {
                self.session_lost(run, now_ns);
                return None;
            }
            (What::Act(action), Status::Ok) => {
                self.contact_ns = self.contact_ns.max(outstanding.sent_ns);
                self.slots[slot].outstanding = None;
                return self.acted(slot, action, &results, now_ns);
            }
            _ => panic!("{outstanding:?}: {results:?}"),
        }
        self.slots[slot].outstanding = None;
        None
    }

    fn acted(
        &mut self,
        slot: usize,
        action: &Action,
        results: &[OpResult<'_>],
        now_ns: u64,
    ) -> Option<(u8, usize, Right)> {
        let last = &results[results.len() - 1];
        match action {
            Action::Take { owner, file, right, reclaim } => {
                let taken = self.took(*owner, *file, *right, *reclaim, last, now_ns);
                return taken.then_some((*owner, *file, *right));
            }
            Action::Release(_) => assert_eq!(last.status, Status::Ok, "{action:?}"),
            Action::Complete => match (last.status, &mut self.joined) {
                (Status::Ok, Joined::Yes { complete, .. }) => *complete = true,
                (Status::Delay, _) => {}
                _ => panic!("{action:?}: {results:?}"),
            },
            _ => self.slots[slot].changed(action, results),
        }
        None
    }

    fn took(
        &mut self,
        owner: u8,
        file: usize,
        right: Right,
        reclaim: bool,
        last: &OpResult<'_>,
        now_ns: u64,
    ) -> bool {
        let is_same = |hold: &Hold| (hold.owner, hold.file, hold.right) == (owner, file, right);
        let held = self.holds.iter().position(is_same);
        let stateid = match (&last.body, last.status) {
            (ResultBody::Open(opened), _) => opened.stateid,
            (ResultBody::Lock(locked), _) => locked.stateid,
            (_, Status::Delay) => return false,
            (_, Status::Grace | Status::Denied | Status::ShareDenied) if !reclaim => return false,
            (_, Status::NoGrace | Status::ReclaimBad | Status::ReclaimConflict) if reclaim => {
                let hold = self.holds.remove(held.expect("only what was held is reclaimed"));
                let over = !self.surely_holds(&hold, now_ns);
                assert!(over, "{hold:?} is not given back: {last:?}");
                return false;
            }
            _ => panic!("{right:?} {reclaim}: {last:?}"),
        };
        match held {
            Some(at) => {
                assert!(reclaim);
                (self.holds[at].stateid, self.holds[at].lost_until_ns) = (stateid, None);
            }
            None => {
                assert!(!reclaim);
                self.holds.push(Hold { owner, file, right, stateid, lost_until_ns: None });
            }
        }
        true
    }
}

/// True if the client's lease ended after the SEQUENCE of the request.
fn has_expired(results: &[OpResult<'_>]) -> bool {
    let last = results.last().expect("a request has operations");
    matches!(last.status, Status::Expired | Status::DeadSession)
}

impl Slot {
    /// Returns the object of a name, if it is certain.
    pub(crate) fn sure(&self, at: usize) -> Option<&Entry> {
        let [entry] = &self.names[at][..] else { return None };
        Some(entry)
    }

    fn is(&self, at: usize) -> Entry {
        self.sure(at).cloned().expect("only what is sure is worked on")
    }

    /// Returns the status of an action, and the names that it changes with their new objects.
    fn outcome(&self, action: &Action) -> (Status, Vec<(usize, Entry)>) {
        match action {
            Action::MakeDirectory(at) | Action::MakeFile(at, _)
                if self.is(*at) != Entry::Nothing =>
            {
                (Status::Exist, vec![])
            }
            Action::MakeDirectory(at) => (Status::Ok, vec![(*at, Entry::Directory)]),
            Action::MakeFile(at, value) => (Status::Ok, vec![(*at, Entry::File(vec![*value]))]),
            Action::Write(at, _) | Action::Remove(at) | Action::Rename(at, _)
                if self.is(*at) == Entry::Nothing =>
            {
                (Status::NoEnt, vec![])
            }
            Action::Write(at, value) => (Status::Ok, vec![(*at, Entry::File(vec![*value]))]),
            Action::Remove(at) => (Status::Ok, vec![(*at, Entry::Nothing)]),
            Action::Rename(from, to) => {
                (Status::Ok, vec![(*to, self.is(*from)), (*from, Entry::Nothing)])
            }
            _ => panic!("{action:?} changes no name"),
        }
    }

    /// Checks the answer to a change or a look. It is wrong if the request was executed never or
    /// twice.
    fn changed(&mut self, action: &Action, results: &[OpResult<'_>]) {
        let last = &results[results.len() - 1];
        let (at, found) = match action {
            Action::Look(at) => match (&last.body, last.number, last.status) {
                (ResultBody::Read(read), ..) => {
                    (*at, Entry::File(read.data.here().unwrap().to_vec()))
                }
                (_, number, Status::NoEnt) if number == OpNum::Lookup as u32 => {
                    (*at, Entry::Nothing)
                }
                (_, _, Status::IsDir) => (*at, Entry::Directory),
                (_, _, Status::Grace | Status::Delay) => return,
                _ => panic!("{action:?}: {results:?}"),
            },
            _ => {
                let changes = matches!(last.number, number if number == OpNum::Open as u32
                    || number == OpNum::Create as u32
                    || number == OpNum::Remove as u32
                    || number == OpNum::Rename as u32);
                if changes && matches!(last.status, Status::Grace | Status::Delay) {
                    return;
                }
                let (status, entries) = self.outcome(action);
                assert_eq!(last.status, status, "{action:?} of {:?}: {results:?}", self.names);
                entries.into_iter().for_each(|(at, entry)| self.names[at] = vec![entry]);
                return;
            }
        };
        assert!(self.names[at].contains(&found), "{found:?} of {:?}", self.names[at]);
        self.names[at] = vec![found];
    }

    /// The server crashed or expired the client, and may have executed the action before.
    fn doubt(&mut self, action: &Action) {
        if matches!(
            action,
            Action::Look(_) | Action::Take { .. } | Action::Release(_) | Action::Complete
        ) {
            return;
        }
        for (at, entry) in self.outcome(action).1 {
            if matches!(action, Action::MakeFile(..)) {
                self.names[at].push(Entry::File(Vec::new()));
            }
            self.names[at].push(entry);
        }
    }
}
