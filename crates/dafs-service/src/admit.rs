//! Whether there is room for more state of a client, and who makes room where there is none.
//!
//! Invariants
//! * At a bound, clients whose lease is over lose what they hold first, those away longest before
//!   others. No client whose lease runs loses anything to another.
//! * After that each host has its share ([`crate::hosts`]), so that one leaves room for all others.
//! * A refusal costs the same however many clients there are.

use crate::client::{Client, ClientKind};
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::hosts::{Shared, has_share};
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

/// Clients whose lease was over when leases were last looked at, those away longest first.
#[derive(Default)]
pub(crate) struct Absent {
    clients: Vec<Arc<Client>>,
    /// Up to where none has anything of a kind any more.
    looked: [usize; Shared::ALL.len()],
}

impl Absent {
    pub(crate) fn new(clients: Vec<Arc<Client>>) -> Self {
        Self { clients, looked: Default::default() }
    }
}

impl StateTable {
    /// What a client has of something.
    fn held(&self, client: &Client, shared: Shared) -> usize {
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

    /// The clients that are to lose everything so that there is room for some more of something: those
    /// away longest that have any of it.
    pub(crate) fn absent_with(
        &mut self,
        shared: Shared,
        max: usize,
        clock: Clock,
    ) -> Vec<Arc<Client>> {
        let mut looked = self.absent.looked[shared as usize];
        let (mut found, mut freed) = (Vec::new(), 0);
        for client in &self.absent.clients[looked..] {
            let is_over = !client.is_gone() && clock.is_over(client);
            let held = if is_over { self.held(client, shared) } else { 0 };
            if held > 0 {
                found.push(client.clone());
                freed += held;
            } else if found.is_empty() {
                looked += 1;
            } else {
                break;
            }
            if freed > max / ROOM_MADE_FRACTION || found.len() >= ENDED_FOR_ROOM_MAX {
                break;
            }
        }
        self.absent.looked[shared as usize] = looked;
        found
    }

    /// Whether the host of a client may have more of something that there is `all` of.
    fn check_share(
        &mut self,
        client: &Client,
        shared: Shared,
        (all, max): (usize, usize),
        clock: Clock,
    ) -> Room<()> {
        if has_share(client.host().count(shared), all, max) {
            return Ok(());
        }
        let absent = self.absent_with(shared, max, clock);
        if absent.is_empty() {
            return Err(ServiceError::Resource.into());
        }
        Err(Blocked::Expire(absent))
    }

    fn check_own(&self, client: &Client, shared: Shared, max: usize) -> Room<()> {
        if self.held(client, shared) >= max { Err(ServiceError::Resource.into()) } else { Ok(()) }
    }

    fn next_id(&self) -> Room<StateId> {
        Ok(self.index.next().ok_or(ServiceError::Resource)?)
    }

    /// Whether there is room for another open of this client.
    pub(crate) fn check_room(&mut self, client: &Client, clock: Clock) -> Room<()> {
        self.check_own(client, Shared::Opens, OPENS_PER_CLIENT_MAX)?;
        let level = (self.counts.opens, OPENS_MAX.min(self.files_max));
        self.check_share(client, Shared::Opens, level, clock)
    }

    /// A number for another open of this client.
    pub(crate) fn admit_open(&mut self, client: &Client, clock: Clock) -> Room<StateId> {
        self.check_room(client, clock)?;
        self.next_id()
    }

    /// A number for another lock state of this client.
    pub(crate) fn admit_lock(&mut self, client: &Client, clock: Clock) -> Room<StateId> {
        self.check_own(client, Shared::Locks, LOCK_STATES_PER_CLIENT_MAX)?;
        let level = (self.counts.locks, LOCK_STATES_MAX);
        self.check_share(client, Shared::Locks, level, clock)?;
        self.next_id()
    }

    /// Whether there is room for another range of this client in a file.
    pub(crate) fn admit_range(&mut self, client: &Client, key: &Handle, clock: Clock) -> Room<()> {
        self.check_own(client, Shared::Ranges, LOCK_RANGES_PER_CLIENT_MAX)?;
        self.check_share(client, Shared::Ranges, (self.counts.ranges, LOCK_RANGES_MAX), clock)?;
        self.check_file_ranges(client, key, clock)
    }

    /// The same of the ranges of one file, each change of which looks at all of them.
    fn check_file_ranges(&self, client: &Client, key: &Handle, clock: Clock) -> Room<()> {
        let Some(file) = self.files.get(key) else { return Ok(()) };
        let all = file.locks.ranges.len();
        if all < LOCK_RANGES_PER_FILE_MAX / 2 {
            return Ok(());
        }
        let host = client.host().host();
        let owners: FxHashSet<StateId> = file
            .lock_states
            .iter()
            .filter(|lock| lock.open.client.host().host() == host)
            .map(|lock| lock.id)
            .collect();
        let own = file.locks.ranges.iter().filter(|range| owners.contains(&range.owner)).count();
        if has_share(own, all, LOCK_RANGES_PER_FILE_MAX) {
            return Ok(());
        }
        let holders: FxHashSet<StateId> =
            file.locks.ranges.iter().map(|range| range.owner).collect();
        let absent = file
            .lock_states
            .iter()
            .filter(|lock| holders.contains(&lock.id) && clock.is_over(&lock.open.client))
            .map(|lock| &lock.open.client)
            .max_by_key(|client| client.idle_ns(clock.now_ns));
        Err(match absent {
            Some(absent) => Blocked::Expire(vec![absent.clone()]),
            None => ServiceError::Resource.into(),
        })
    }

    /// A number for another delegation of this client; revoked ones count until they are freed.
    pub(crate) fn admit_delegation(&mut self, client: &Client, clock: Clock) -> Room<StateId> {
        self.check_own(client, Shared::Delegations, DELEGATIONS_PER_CLIENT_MAX)?;
        let all = self.counts.delegations + self.counts.revoked;
        let level = (all, DELEGATIONS_MAX.min(self.files_max));
        self.check_share(client, Shared::Delegations, level, clock)?;
        self.next_id()
    }

    /// A number for another layout of this client, of a store that has so many files which data servers
    /// may still go by after their layouts are over.
    pub(crate) fn admit_layout(
        &mut self,
        client: &Client,
        fenced: usize,
        clock: Clock,
    ) -> Room<StateId> {
        self.check_own(client, Shared::Layouts, LAYOUTS_PER_CLIENT_MAX)?;
        let level = (self.counts.layouts + fenced, LAYOUTS_MAX);
        self.check_share(client, Shared::Layouts, level, clock)?;
        self.next_id()
    }
}
