//! Recalls and revocation.

use super::{DelegationState, Delegations};
use crate::client::{Client, ClientKey};
use crate::handle::Handle;
use crate::index::Held;
use crate::limits::{ENDED_AT_ONCE_MAX, RECALL_QUIET_NS, RECALLED_FILES_MAX};
use crate::open::{Break, Clock};
use crate::state::StateRef;
use crate::table::{Blocked, Ended, Notice, NoticeKind, StateTable};
use dafs_mem::Shrinking as _;
use std::sync::Arc;

impl DelegationState {
    fn notice(self: &Arc<Self>, truncate: bool) -> Notice {
        let what = NoticeKind::Recall { state: self.reference(), truncate };
        Notice { client: self.client.clone(), handle: self.handle, what }
    }

    fn stands_against(&self, client: &Arc<Client>, breaks: Break) -> bool {
        !Arc::ptr_eq(&self.client, client) && (self.kind.writes() || breaks != Break::Read)
    }

    /// True when it was recalled more than a lease ago.
    fn is_overdue(&self, clock: Clock) -> bool {
        let recalled_ns = self.lock().recalled_ns;
        recalled_ns.is_some_and(|at_ns| clock.now_ns.saturating_sub(at_ns) > clock.lease_ns)
    }
}

impl StateTable {
    /// Checks that no delegation of another client conflicts with an operation. Recalls those that
    /// do, and revokes those that were not returned in time.
    pub(crate) fn clear_delegations(
        &mut self,
        key: &Handle,
        client: &Arc<Client>,
        breaks: Break,
        clock: Clock,
        ended: &mut Ended,
    ) -> Result<(), Blocked> {
        let Some(file) = self.files.get(key) else { return Ok(()) };
        if file.delegations.is_empty() {
            return Ok(());
        }
        let against =
            |delegation: &&Arc<DelegationState>| delegation.stands_against(client, breaks);
        let against: Vec<_> = file.delegations.iter().filter(against).cloned().collect();
        let (over, against): (Vec<_>, Vec<_>) =
            against.into_iter().partition(|delegation| clock.is_over(&delegation.client));
        if !over.is_empty() {
            let clients = over.iter().map(|delegation| delegation.client.clone());
            return Err(Blocked::Expire(clients.collect()));
        }
        let truncate = matches!(breaks, Break::Change { truncate: true });
        let mut notices = Vec::new();
        let mut waiting = false;
        for delegation in &against {
            if delegation.is_overdue(clock) {
                self.revoke_overdue(delegation, ended);
            } else {
                waiting = true;
                notices.extend(self.recall(delegation, truncate, clock.now_ns));
            }
        }
        if waiting { Err(Blocked::Recall(notices)) } else { Ok(()) }
    }

    /// Revokes a delegation that was not returned in time.
    fn revoke_overdue(&mut self, delegation: &Arc<DelegationState>, ended: &mut Ended) {
        self.revoke(&Held::Delegation(delegation.clone()), false, ended);
        tracing::warn!(
            client = %delegation.client.name().escape_ascii(),
            "a delegation was not returned in time and is revoked"
        );
    }

    /// Marks a delegation as recalled. Returns the notice, unless it has been sent already.
    fn recall(
        &mut self,
        delegation: &Arc<DelegationState>,
        truncate: bool,
        now_ns: u64,
    ) -> Option<Notice> {
        if self.recalled.len() < RECALLED_FILES_MAX {
            self.recalled.insert(delegation.key, now_ns);
        }
        let mut inner = delegation.lock();
        let first = inner.recalled_ns.is_none();
        inner.recalled_ns.get_or_insert(now_ns);
        let again = std::mem::take(&mut inner.resend);
        drop(inner);
        if first {
            self.recalling.insert(delegation.id, delegation.clone());
        }
        (first || again).then(|| delegation.notice(truncate))
    }
}

impl Delegations {
    /// Notes that the recall of a delegation did not reach its holder, or that the holder does not
    /// know the delegation yet. It is sent again at the next conflict, or when the client has a
    /// back channel again.
    pub fn recall_failed(&self, client: ClientKey, state: StateRef) {
        if let Ok(Held::Delegation(delegation)) = self.state.index.find(state.id)
            && delegation.client.key() == client
        {
            delegation.lock().resend = true;
        }
    }

    /// Sends again the recalls that did not reach a client.
    pub(crate) fn resend_recalls(&self, client: &Client) {
        let table = self.state.lock();
        let theirs = |delegation: &&Arc<DelegationState>| {
            delegation.client.key() == client.key() && std::mem::take(&mut delegation.lock().resend)
        };
        let notices: Vec<_> =
            table.recalling.values().filter(theirs).map(|d| d.notice(false)).collect();
        drop(table);
        notices.into_iter().for_each(Notice::deliver);
    }

    /// Revokes delegations that were not returned in time, and forgets old recalls.
    pub(crate) fn tick(&self, now_ns: u64) {
        let clock = Clock { now_ns, lease_ns: self.state.config.lease_ns() };
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        table.recalled.retain(|_, at_ns| now_ns.saturating_sub(*at_ns) < RECALL_QUIET_NS);
        table.recalled.shrink_if_sparse();
        let overdue = |delegation: &&Arc<DelegationState>| {
            // A delegation of an expired client ends with all its other state, when there is a
            // conflict.
            delegation.is_overdue(clock) && !clock.is_over(&delegation.client)
        };
        let overdue: Vec<_> = table.recalling.values().filter(overdue).cloned().collect();
        drop(table);
        for some in overdue.chunks(ENDED_AT_ONCE_MAX) {
            let mut table = self.state.lock();
            // Some have been returned since.
            for delegation in some.iter().filter(|delegation| delegation.life.is_live()) {
                table.revoke_overdue(delegation, &mut ended);
            }
        }
        self.state.finish(ended);
    }

    /// Recalls all delegations on a file: a local process has changed it, bypassing the server, or
    /// a lock on it is broken.
    pub(crate) fn recall_all(&self, key: &Handle, now_ns: u64) {
        let mut table = self.state.lock();
        let held = table.files.get(key).map(|file| file.delegations.clone()).unwrap_or_default();
        let notices: Vec<_> =
            held.iter().filter_map(|delegation| table.recall(delegation, false, now_ns)).collect();
        drop(table);
        notices.into_iter().for_each(Notice::deliver);
    }
}
