//! The delegations of a session, under the state-ids that the application knows.
//!
//! Invariants
//! * The application knows a delegation under one state-id for as long as it is held, as it does an
//!   open; the server's current state-id is filled in when a request is sent.
//! * A lost delegation is reported once and never sent to the server: its state-id may denote
//!   another one by now.

use super::BackEvent;
use crate::core::timers::earlier;
use dafs_dat::Instant;
use dafs_wire::dafs::{
    ClientId, Delegation, DelegationType, FileHandle, OpenReply, StateId, Status,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::Duration;

#[derive(Debug)]
struct HeldDelegation {
    handle: FileHandle,
    kind: DelegationType,
    /// The server's state-id of it.
    current: StateId,
    /// The run of the server that granted it.
    server: ClientId,
    /// The time since when the server has recalled it, or could not do so; the application has been
    /// notified.
    recalled: Option<Instant>,
    /// It is being returned; the application gets no more notices of it.
    returning: bool,
}

/// All delegations of a session.
#[derive(Debug, Default)]
pub(crate) struct Delegations {
    by_name: FxHashMap<StateId, HeldDelegation>,
    /// The time when the server's current run granted the first of them.
    held_since: Instant,
    /// Delegations of this run of the server without a holder, to be returned.
    pub(super) strays: Vec<StateId>,
    /// At most one recall or loss for each delegation, and a question for each credit.
    pub(super) events: VecDeque<BackEvent>,
}

impl Delegations {
    /// The server's state-id of a delegation.
    pub(crate) fn current(&self, name: StateId) -> Result<StateId, Status> {
        self.by_name.get(&name).map(|held| held.current).ok_or(Status::StaleStateId)
    }

    /// Records a delegation that `server` granted; returns its state-id for the application.
    pub(crate) fn granted(
        &mut self,
        handle: FileHandle,
        delegation: &Delegation<'_>,
        server: ClientId,
        now: Instant,
    ) -> Option<StateId> {
        let (kind, current, recalled) = parts(delegation)?;
        let recalled = recalled.then_some(now);
        let mut name = current;
        while name == StateId::ZERO || self.by_name.contains_key(&name) {
            let number = u64::from_ne_bytes(name.0);
            // The step is odd, so the sequence covers all numbers before one repeats.
            name = StateId(number.wrapping_add(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
        }
        let held = HeldDelegation { handle, kind, current, server, recalled, returning: false };
        if self.by_name.is_empty() {
            self.held_since = now;
        }
        self.by_name.insert(name, held);
        Some(name)
    }

    /// The delegation that the server recalls, or asks about; its state-id for the application, if
    /// it is held.
    pub(crate) fn find(&self, current: StateId, server: ClientId) -> Option<StateId> {
        let known = |held: &HeldDelegation| held.current == current && held.server == server;
        self.by_name.iter().find(|(_, held)| known(held)).map(|(name, _)| *name)
    }

    /// The delegation of a file, for BC_GETATTR.
    pub(crate) fn of_file(&self, handle: &FileHandle, server: ClientId) -> Option<StateId> {
        let known = |held: &HeldDelegation| {
            held.handle == *handle && held.server == server && !held.returning
        };
        self.by_name.iter().find(|(_, held)| known(held)).map(|(name, _)| *name)
    }

    /// Records a recall; true when the application must be notified.
    pub(crate) fn recall(&mut self, name: StateId, since: Instant) -> bool {
        let Some(held) = self.by_name.get_mut(&name) else { return false };
        let news = held.recalled.is_none() && !held.returning;
        held.recalled.get_or_insert(since);
        news
    }

    /// True while dirty data under it may be written: it is held, and the server has not waited for
    /// its return for `patience`, after which it revokes it.
    pub(crate) fn may_write(&self, name: StateId, now: Instant, patience: Duration) -> bool {
        let held = self.by_name.get(&name);
        held.is_some_and(|held| held.recalled.is_none_or(|since| now < since + patience))
    }

    /// Accounts for a suspension of the machine for `time`, which has passed for the server, too.
    /// Delegations that the server may have revoked meanwhile, because that is longer than its
    /// `patience`, are recalled here, because no recall can have arrived.
    pub(crate) fn slept(&mut self, time: Duration, now: Instant, patience: Duration) {
        self.held_since = earlier(self.held_since, time);
        for held in self.by_name.values_mut() {
            held.recalled = held.recalled.map(|since| earlier(since, time));
        }
        if time >= patience {
            self.recall_all(earlier(now, time));
        }
    }

    /// Recalls all delegations, because the server could not do so later.
    pub(crate) fn recall_all(&mut self, since: Instant) {
        let names: Vec<_> = self.by_name.keys().copied().collect();
        for name in names {
            if self.recall(name, since) {
                self.tell_unwanted(name);
            }
        }
    }

    /// Asks for the return of a delegation, for one that has no holder or that the server recalls.
    pub(crate) fn tell_unwanted(&mut self, delegation: StateId) {
        self.events.push_back(BackEvent::Recall { delegation, truncate: false });
    }

    fn tell_lost(&mut self, names: Vec<StateId>) {
        // The loss supersedes notices that have not been fetched.
        self.events.retain(|event| match event {
            BackEvent::Recall { delegation, .. } | BackEvent::Question { delegation, .. } => {
                !names.contains(delegation)
            }
            BackEvent::Lost { .. } => true,
        });
        self.events.extend(names.into_iter().map(|delegation| BackEvent::Lost { delegation }));
    }

    /// An open was reclaimed after a restart of the server, or with `anew` opened anew.
    pub(crate) fn regained(
        &mut self,
        reply: &OpenReply<'_>,
        anew: bool,
        server: ClientId,
        now: Instant,
    ) {
        // The delegation of a new open is a new one: others may have changed the file since.
        let regained = match anew {
            true => parts(&reply.delegation).map_or(Ok(None), |(_, name, _)| Err(name)),
            false => self.reclaimed(&reply.fh, &reply.delegation, server, now),
        };
        match regained {
            Ok(Some(delegation)) => self.tell_unwanted(delegation),
            Ok(None) => {}
            Err(stray) => self.strays.push(stray),
        }
    }

    /// True while it is held and not being returned.
    pub(crate) fn holds(&self, name: StateId) -> bool {
        self.by_name.get(&name).is_some_and(|held| !held.returning)
    }

    /// The application returns it; false when it is being returned already, or is not held any
    /// more.
    pub(crate) fn returning(&mut self, name: StateId) -> bool {
        let held = self.by_name.get_mut(&name);
        held.is_some_and(|held| !std::mem::replace(&mut held.returning, true))
    }

    /// The return is complete.
    pub(crate) fn returned(&mut self, name: StateId) {
        self.by_name.remove(&name);
    }

    /// The delegation to reclaim from a restarted server, with an open of a file.
    pub(crate) fn to_reclaim(&self, handle: &FileHandle, server: ClientId) -> DelegationType {
        let strange = |held: &&HeldDelegation| {
            held.handle == *handle && held.server != server && !held.returning
        };
        self.by_name.values().find(strange).map_or(DelegationType::None, |held| held.kind)
    }

    /// Processes the answer to that reclaim. Yields a delegation that the server recalls at once. A
    /// delegation that was not asked for has no holder, and is yielded as the error.
    fn reclaimed(
        &mut self,
        handle: &FileHandle,
        delegation: &Delegation<'_>,
        server: ClientId,
        now: Instant,
    ) -> Result<Option<StateId>, StateId> {
        let Some((kind, current, recall)) = parts(delegation) else { return Ok(None) };
        let known = self.by_name.iter_mut().find(|(_, held)| {
            held.handle == *handle && held.server != server && held.kind == kind && !held.returning
        });
        let Some((name, held)) = known else { return Err(current) };
        self.held_since = now;
        (held.current, held.server) = (current, server);
        let news = recall && held.recalled.is_none();
        if recall {
            held.recalled.get_or_insert(now);
        }
        Ok(news.then_some(*name))
    }

    /// Delegations that a restarted server did not grant again are lost.
    pub(crate) fn settle(&mut self, server: ClientId) {
        let gone = self.by_name.extract_if(|_, held| held.server != server);
        let gone = gone.filter(|(_, held)| !held.returning).map(|(name, _)| name).collect();
        self.tell_lost(gone);
    }

    /// All are lost, with the session.
    pub(crate) fn end(&mut self) {
        let all = self.by_name.drain().filter(|(_, held)| !held.returning);
        let all = all.map(|(name, _)| name).collect();
        self.tell_lost(all);
    }

    /// The server's state-id of the next delegation to return, which is marked as being returned.
    pub(crate) fn next_to_return(&mut self, server: ClientId) -> Option<StateId> {
        let held = |held: &&mut HeldDelegation| !held.returning && held.server == server;
        let next = self.by_name.values_mut().find(held)?;
        next.returning = true;
        Some(next.current)
    }

    /// The server has sent no recall before this time.
    pub(crate) fn held_since(&self) -> Instant {
        self.held_since
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

fn parts(delegation: &Delegation<'_>) -> Option<(DelegationType, StateId, bool)> {
    match *delegation {
        Delegation::None => None,
        Delegation::Read { state_id, recall, .. } => Some((DelegationType::Read, state_id, recall)),
        Delegation::Write { state_id, recall, .. } => {
            Some((DelegationType::Write, state_id, recall))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::dafs::{Ace, AceType};

    const NOW: Instant = Instant(5);
    const FILE: FileHandle = FileHandle { fs: [1; 16], file: [2; 48] };
    const OTHER: FileHandle = FileHandle { fs: [1; 16], file: [3; 48] };
    const FIRST: ClientId = ClientId([1; 8]);
    const SECOND: ClientId = ClientId([2; 8]);

    fn id(number: u8) -> StateId {
        StateId([number; 8])
    }

    fn read(state_id: StateId, recall: bool) -> Delegation<'static> {
        let permissions = Ace { ace_type: AceType::Allow, flag: 0, access_mask: 0, who: b"" };
        Delegation::Read { state_id, recall, permissions }
    }

    #[test]
    fn a_recall_is_told_once() {
        let mut held = Delegations::default();
        let name = held.granted(FILE, &read(id(1), false), FIRST, NOW).unwrap();
        assert_eq!(held.find(id(1), FIRST), Some(name));
        assert!(held.recall(name, NOW) && !held.recall(name, NOW));
        held.returned(name);
        assert_eq!(held.find(id(1), FIRST), None);
        assert!(!held.recall(name, NOW));
        let name = held.granted(FILE, &read(id(2), true), FIRST, NOW).unwrap();
        assert!(!held.recall(name, NOW), "it was told with the grant");
        assert_eq!(held.granted(FILE, &Delegation::None, FIRST, NOW), None);
    }

    #[test]
    fn a_reclaimed_delegation_keeps_its_name_and_others_are_lost() {
        let mut held = Delegations::default();
        let kept = held.granted(FILE, &read(id(1), false), FIRST, NOW).unwrap();
        let gone = held.granted(OTHER, &read(id(2), false), FIRST, NOW).unwrap();
        assert_eq!(held.to_reclaim(&FILE, FIRST), DelegationType::None);
        assert_eq!(held.to_reclaim(&FILE, SECOND), DelegationType::Read);
        assert_eq!(held.reclaimed(&FILE, &read(id(2), false), SECOND, NOW), Ok(None));
        assert_eq!(held.to_reclaim(&FILE, SECOND), DelegationType::None, "one open is enough");
        assert_eq!(held.reclaimed(&FILE, &read(id(9), false), SECOND, NOW), Err(id(9)));
        assert_eq!(held.current(kept), Ok(id(2)));
        held.settle(SECOND);
        assert!(held.events == [BackEvent::Lost { delegation: gone }]);
        assert_eq!(held.current(gone), Err(Status::StaleStateId));
        // The number of the lost one belongs to another now, and a state-id is never reused.
        let other = held.granted(OTHER, &read(id(1), false), SECOND, NOW).unwrap();
        assert_ne!(other, kept);
        assert_eq!(held.find(id(2), SECOND), Some(kept));
        assert_eq!(held.find(id(1), SECOND), Some(other));
    }

    #[test]
    fn a_delegation_being_returned_gets_no_notices() {
        let mut held = Delegations::default();
        let name = held.granted(FILE, &read(id(1), false), FIRST, NOW).unwrap();
        assert!(held.returning(name) && !held.returning(name));
        assert!(!held.holds(name) && !held.recall(name, NOW));
        assert_eq!(held.of_file(&FILE, FIRST), None);
        assert_eq!(held.to_reclaim(&FILE, SECOND), DelegationType::None);
        held.end();
        assert!(held.events.is_empty() && held.is_empty());
    }

    #[test]
    fn an_overdue_recall_allows_no_writing() {
        let (mut held, patience) = (Delegations::default(), Duration::from_secs(20));
        let name = held.granted(FILE, &read(id(1), false), FIRST, NOW).unwrap();
        let later = NOW + Duration::from_secs(100);
        assert!(held.may_write(name, later, patience));
        held.recall(name, later);
        held.recall(name, later + patience);
        assert!(held.may_write(name, later + patience / 2, patience));
        assert!(!held.may_write(name, later + patience, patience));
        assert!(!held.may_write(id(9), later, patience));
    }
}
