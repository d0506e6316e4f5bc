//! Admission: is there room for more state of a client, and which clients make room if there is
//! none.
//!
//! Invariants
//! * At a bound, expired clients lose their state first, those that are absent longest before
//!   others. No client with a running lease loses state to another.
//! * After that each host has its share ([`crate::hosts`]), so that one host leaves room for all
//!   others.
//! * A host that has had its share while there is room ends no state of hosts that have less than
//!   half as much.
//! * A refusal looks only at clients that are kept by courtesy. At most one refusal between two
//!   checks of leases looks at all of them in vain, because all other callers wait for the table
//!   meanwhile.

use crate::client::{Client, ClientKind};
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::hosts::{Shared, has_share, least_to_lose};
use crate::limits::{
    DELEGATIONS_MAX, DELEGATIONS_PER_CLIENT_MAX, ENDED_FOR_ROOM_MAX, LAYOUTS_MAX,
    LAYOUTS_PER_CLIENT_MAX, LOCK_RANGES_MAX, LOCK_RANGES_PER_CLIENT_MAX, LOCK_RANGES_PER_FILE_MAX,
    LOCK_STATES_MAX, LOCK_STATES_PER_CLIENT_MAX, OPENS_MAX, OPENS_PER_CLIENT_MAX,
    ROOM_MADE_FRACTION,
};
use crate::open::Clock;
use crate::state::StateId;
use crate::table::{Blocked, StateTable};
use rustc_hash::FxHashSet;
use std::sync::Arc;

type Room<T> = Result<T, Blocked>;

/// A client that asks for more state.
#[derive(Clone, Copy)]
pub(crate) struct Applicant<'a> {
    pub(crate) client: &'a Client,
    /// It reclaims the state that it had before a restart of the server.
    pub(crate) reclaims: bool,
    pub(crate) clock: Clock,
}

/// Clients that were expired at the last check of leases, those absent longest first.
#[derive(Default)]
pub(crate) struct ExpiredClients {
    clients: Vec<Arc<Client>>,
    /// Per kind: no client before this position has any of that kind left.
    looked: [usize; Shared::ALL.len()],
    /// Per kind: the last search that found no client to make room.
    vain: [Option<Vain>; Shared::ALL.len()],
}

/// A search of all clients in vain, so that further refusals do not repeat it.
struct Vain {
    /// The client whose host has most, among the clients that had some at a host with too little.
    /// It is the first to make room when its host gets more, or when less is enough.
    nearest: Option<Arc<Client>>,
}

impl ExpiredClients {
    pub(crate) fn new(clients: Vec<Arc<Client>>) -> Self {
        Self { clients, looked: Default::default(), vain: Default::default() }
    }
}

impl StateTable {
    /// Returns how much a client holds of one kind.
    pub(crate) fn held(&self, client: &Client, shared: Shared) -> usize {
        // The session of a DAFS client outlives its lease, and the record outlives that.
        let stays = client.kind() == ClientKind::Dafs && client.sessions() > 0;
        let held = self.by_client.get(&client.key());
        match shared {
            Shared::Clients => usize::from(!stays),
            Shared::Sessions if stays => 0,
            Shared::Sessions => client.sessions() as usize,
            Shared::Opens => held.map_or(0, |held| held.opens.len()),
            Shared::Locks => held.map_or(0, |held| held.locks.len()),
            Shared::Ranges => held.map_or(0, |held| held.ranges),
            Shared::Delegations => {
                held.map_or(0, |held| held.delegations.len() + held.revoked.len())
            }
            Shared::Layouts => held.map_or(0, |held| held.layouts.len()),
        }
    }

    /// Returns how much of one kind a client can be made to lose.
    fn to_lose(&self, client: &Client, shared: Shared, clock: Clock) -> usize {
        let is_over = !client.is_gone() && clock.is_over(client);
        if is_over { self.held(client, shared) } else { 0 }
    }

    /// True if it is known that no client can make room.
    fn is_vain(&self, shared: Shared, least: usize, clock: Clock) -> bool {
        let Some(Vain { nearest }) = &self.expired.vain[shared as usize] else { return false };
        let makes_room = |client: &Arc<Client>| {
            client.host().count(shared) >= least && self.to_lose(client, shared, clock) > 0
        };
        !nearest.as_ref().is_some_and(makes_room)
    }

    /// Returns the clients that are to lose all their state to make room for one kind: those that
    /// are absent longest and hold any of it. Only clients of hosts with at least `least` of it are
    /// chosen.
    pub(crate) fn expired_with(
        &mut self,
        shared: Shared,
        (least, max): (usize, usize),
        clock: Clock,
    ) -> Vec<Arc<Client>> {
        if self.is_vain(shared, least, clock) {
            return Vec::new();
        }
        let mut looked = self.expired.looked[shared as usize];
        let (mut found, mut freed, mut passed) = (Vec::new(), 0, false);
        let (mut nearest, mut most) = (None, 0);
        for client in &self.expired.clients[looked..] {
            let count = client.host().count(shared);
            if count < least {
                passed = true;
                if count > most && self.to_lose(client, shared, clock) > 0 {
                    (nearest, most) = (Some(client), count);
                }
                continue;
            }
            let held = self.to_lose(client, shared, clock);
            if held > 0 {
                found.push(client.clone());
                freed += held;
            } else if !found.is_empty() {
                break;
            } else if !passed {
                looked += 1;
            }
            if freed > max / ROOM_MADE_FRACTION || found.len() >= ENDED_FOR_ROOM_MAX {
                break;
            }
        }
        let vain = found.is_empty().then(|| Vain { nearest: nearest.cloned() });
        self.expired.looked[shared as usize] = looked;
        self.expired.vain[shared as usize] = vain;
        found
    }

    /// Checks that the host of a client may have more of a kind of which there is `all`. Reclaimed
    /// state was held before the restart. No host held more than half then, but hosts that held
    /// less may have reclaimed first.
    fn check_share(
        &mut self,
        by: Applicant<'_>,
        shared: Shared,
        (all, max): (usize, usize),
    ) -> Room<()> {
        let own = by.client.host().count(shared);
        let had = by.reclaims && own < max.div_ceil(2) && all < max;
        if had || has_share(own, all, max) {
            return Ok(());
        }
        let least = least_to_lose(own, all, max);
        let expired = self.expired_with(shared, (least, max), by.clock);
        if expired.is_empty() {
            return Err(ServiceError::Resource.into());
        }
        Err(Blocked::Expire(expired))
    }

    fn check_own(&self, client: &Client, shared: Shared, max: usize) -> Room<()> {
        if self.held(client, shared) >= max { Err(ServiceError::Resource.into()) } else { Ok(()) }
    }

    fn next_id(&self) -> Room<StateId> {
        Ok(self.index.next().ok_or(ServiceError::Resource)?)
    }

    /// Checks that there is room for another open of this client.
    pub(crate) fn check_room(&mut self, by: Applicant<'_>) -> Room<()> {
        self.check_own(by.client, Shared::Opens, OPENS_PER_CLIENT_MAX)?;
        let level = (self.counts.opens, OPENS_MAX.min(self.files_max));
        self.check_share(by, Shared::Opens, level)
    }

    /// Allocates a number for another open of this client.
    pub(crate) fn admit_open(&mut self, by: Applicant<'_>) -> Room<StateId> {
        self.check_room(by)?;
        self.next_id()
    }

    /// Allocates a number for another lock state of this client.
    pub(crate) fn admit_lock(&mut self, by: Applicant<'_>) -> Room<StateId> {
        self.check_own(by.client, Shared::Locks, LOCK_STATES_PER_CLIENT_MAX)?;
        let level = (self.counts.locks, LOCK_STATES_MAX);
        self.check_share(by, Shared::Locks, level)?;
        self.next_id()
    }

    /// Checks that there is room for another range of this client in a file.
    pub(crate) fn admit_range(&mut self, by: Applicant<'_>, key: &Handle) -> Room<()> {
        self.check_own(by.client, Shared::Ranges, LOCK_RANGES_PER_CLIENT_MAX)?;
        self.check_share(by, Shared::Ranges, (self.counts.ranges, LOCK_RANGES_MAX))?;
        self.check_file_ranges(by, key)
    }

    /// Does the same for the ranges of one file, because each change looks at all of them.
    fn check_file_ranges(&self, by: Applicant<'_>, key: &Handle) -> Room<()> {
        let Some(file) = self.files.get(key) else { return Ok(()) };
        let all = file.locks.ranges.len();
        if all < LOCK_RANGES_PER_FILE_MAX / 2 {
            return Ok(());
        }
        let host = by.client.host().host();
        let owners: FxHashSet<StateId> = file
            .lock_states
            .iter()
            .filter(|lock| lock.open.client.host().host() == host)
            .map(|lock| lock.id)
            .collect();
        let own = file.locks.ranges.iter().filter(|range| owners.contains(&range.owner)).count();
        let max = LOCK_RANGES_PER_FILE_MAX;
        let had = by.reclaims && own < max / 2 && all < max;
        if had || has_share(own, all, max) {
            return Ok(());
        }
        let holders: FxHashSet<StateId> =
            file.locks.ranges.iter().map(|range| range.owner).collect();
        let expired = file
            .lock_states
            .iter()
            .filter(|lock| holders.contains(&lock.id) && by.clock.is_over(&lock.open.client))
            .map(|lock| &lock.open.client)
            .max_by_key(|client| client.idle_ns(by.clock.now_ns));
        Err(match expired {
            Some(expired) => Blocked::Expire(vec![expired.clone()]),
            None => ServiceError::Resource.into(),
        })
    }

    /// Allocates a number for another delegation of this client. Revoked ones count until they are
    /// freed.
    pub(crate) fn admit_delegation(&mut self, by: Applicant<'_>) -> Room<StateId> {
        self.check_own(by.client, Shared::Delegations, DELEGATIONS_PER_CLIENT_MAX)?;
        let all = self.counts.delegations + self.counts.revoked;
        let level = (all, DELEGATIONS_MAX.min(self.files_max));
        self.check_share(by, Shared::Delegations, level)?;
        self.next_id()
    }

    /// Allocates a number for another layout of this client. `fenced` counts the files of the store
    /// that data servers may still honour ended layouts of.
    pub(crate) fn admit_layout(&mut self, by: Applicant<'_>, fenced: usize) -> Room<StateId> {
        self.check_own(by.client, Shared::Layouts, LAYOUTS_PER_CLIENT_MAX)?;
        let level = (self.counts.layouts + fenced, LAYOUTS_MAX);
        self.check_share(by, Shared::Layouts, level)?;
        self.next_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Service;
    use crate::client::{ClientKey, Identity};
    use crate::hosts::{Host, HostUse};

    const CLOCK: Clock = Clock { now_ns: 1000, lease_ns: 90 };

    fn client(key: u64, host: u32, renewed_ns: u64) -> Arc<Client> {
        let (host, nobody) =
            (HostUse::new(Host::User(host)), Identity { mechanism: "none", principal: Vec::new() });
        let key = ClientKey(key);
        Client::new(key, ClientKind::Nfs, b"c", 1, nobody, Arc::new(host), renewed_ns)
    }

    /// Tries to admit state for a client now.
    fn admit(table: &mut StateTable, shared: Shared, client: &Client) -> Room<()> {
        admit_by(table, shared, Applicant { client, reclaims: false, clock: CLOCK })
    }

    fn admit_by(table: &mut StateTable, shared: Shared, by: Applicant<'_>) -> Room<()> {
        let key = Handle { fs: dafs_store::FsId([0; 16]), file: FILE };
        match shared {
            Shared::Opens => table.admit_open(by).map(drop),
            Shared::Locks => table.admit_lock(by).map(drop),
            Shared::Ranges => table.admit_range(by, &key),
            Shared::Delegations => table.admit_delegation(by).map(drop),
            Shared::Layouts => table.admit_layout(by, 0).map(drop),
            Shared::Clients | Shared::Sessions => unreachable!("these are not held in the table"),
        }
    }

    const FILE: dafs_store::FileId = dafs_store::FileId([0; 48]);

    /// At every bound: absent clients lose first, then hosts get shares.
    #[test]
    fn each_bound_is_shared_and_those_away_make_room() {
        let kinds = [
            (Shared::Opens, OPENS_MAX),
            (Shared::Locks, LOCK_STATES_MAX),
            (Shared::Ranges, LOCK_RANGES_MAX),
            (Shared::Delegations, DELEGATIONS_MAX),
            (Shared::Layouts, LAYOUTS_MAX),
        ];
        for (shared, max) in kinds {
            let service = Service::of_memory();
            let mut guard = service.state.lock();
            let table = &mut *guard;
            let (greedy, honest) = (client(1, 1, CLOCK.now_ns), client(2, 2, CLOCK.now_ns));
            let away = [client(3, 1, 20), client(4, 3, 10)];
            greedy.host().add(shared, max / 2);
            let counts = &mut table.counts;
            (counts.opens, counts.locks, counts.ranges) = (max / 2, max / 2, max / 2);
            (counts.delegations, counts.layouts) = (max / 2, max / 2);
            assert!(admit(table, shared, &honest).is_ok());
            let refused =
                |outcome| matches!(outcome, Err(Blocked::Refused(ServiceError::Resource)));
            assert!(refused(admit(table, shared, &greedy)), "{shared:?}");
            // Reclaims succeed up to the old share, in any order of the clients' return.
            let returned = client(5, 4, CLOCK.now_ns);
            returned.host().add(shared, max / 2 - 1);
            let returns = Applicant { client: &returned, reclaims: true, clock: CLOCK };
            assert!(admit_by(table, shared, returns).is_ok());
            returned.host().add(shared, 1);
            assert!(refused(admit_by(table, shared, returns)));
            // Clients without state of the kind are not ended, nor are clients of smaller hosts
            // while there is room.
            let [same, smaller] = &away;
            same.host().add(shared, max / 2);
            for (expired, all, is_taken) in
                [(same, max / 2, true), (smaller, max / 2, false), (smaller, max, true)]
            {
                let counts = &mut table.counts;
                (counts.opens, counts.locks, counts.ranges) = (all, all, all);
                (counts.delegations, counts.layouts) = (all, all);
                table.expired = ExpiredClients::new(vec![away[1].clone(), away[0].clone()]);
                assert!(refused(admit(table, shared, &greedy)));
                let held = table.by_client.entry(expired.key()).or_default();
                let id = StateId(expired.key().0);
                held.ranges = 1;
                for ids in [&mut held.opens, &mut held.locks, &mut held.delegations] {
                    ids.insert(id);
                }
                held.layouts.insert(id);
                table.expired = ExpiredClients::new(vec![away[1].clone(), away[0].clone()]);
                match admit(table, shared, &greedy) {
                    Err(Blocked::Expire(clients)) if is_taken => {
                        assert!(clients.len() == 1 && Arc::ptr_eq(&clients[0], expired));
                    }
                    outcome => assert!(!is_taken && refused(outcome), "{shared:?} of {all}"),
                }
                table.by_client.clear();
            }
        }
    }

    /// A client that was passed over because its host had little makes room as soon as the host has
    /// enough, or less is enough. Others are not examined again before the next check of leases.
    #[test]
    fn one_that_was_passed_over_makes_room_when_its_host_has_enough() {
        for grows in [true, false] {
            let service = Service::of_memory();
            let mut guard = service.state.lock();
            let table = &mut *guard;
            let away = [client(3, 3, 10), client(4, 4, 20), client(5, 5, 30)];
            for (client, count) in away.iter().zip([40, 60, 90]) {
                client.host().add(Shared::Opens, count);
            }
            // The last one's host has most, but a live client holds that.
            for client in &away[..2] {
                table.by_client.entry(client.key()).or_default().opens.insert(StateId(1));
            }
            table.expired = ExpiredClients::new(away.to_vec());
            let mut expired = |least| table.expired_with(Shared::Opens, (least, OPENS_MAX), CLOCK);
            assert!(expired(100).is_empty());
            let least = if grows { 100 } else { 60 };
            if grows {
                away[1].host().add(Shared::Opens, 39);
                assert!(expired(least).is_empty());
                away[1].host().add(Shared::Opens, 1);
            }
            let found = expired(least);
            assert!(found.len() == 1 && Arc::ptr_eq(&found[0], &away[1]), "{found:?}");
        }
    }

    /// A host whose count goes down takes many refusals, and one search of all absent clients.
    #[test]
    fn refusals_look_in_vain_once() {
        let service = Service::of_memory();
        let mut guard = service.state.lock();
        let table = &mut *guard;
        let away: Vec<_> = (0..100).map(|key| client(key, key as u32, 10)).collect();
        for client in &away {
            client.host().add(Shared::Opens, 1);
            table.by_client.entry(client.key()).or_default().opens.insert(StateId(1));
        }
        table.expired = ExpiredClients::new(away);
        assert!(table.expired_with(Shared::Opens, (1000, OPENS_MAX), CLOCK).is_empty());
        for least in (2..1000).rev() {
            assert!(table.is_vain(Shared::Opens, least, CLOCK), "{least}");
        }
        assert!(!table.expired_with(Shared::Opens, (1, OPENS_MAX), CLOCK).is_empty());
    }
}
