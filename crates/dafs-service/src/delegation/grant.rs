//! Grants of delegations.

use super::{
    Delegation, DelegationKind, DelegationState, Delegations, Inner, NoDelegation, WantKind,
};
use crate::Caller;
use crate::admit::Applicant;
use crate::client::ClientKind;
use crate::export::Export;
use crate::handle::Handle;
use crate::index::Life;
use crate::limits::{RECALL_QUIET_NS, WRITE_QUIET_NS};
use crate::open::{OpenClaim, OpenRequest, OpenState};
use crate::table::{Blocked, StateTable};
use dafs_mem::Mutex;
use dafs_store::{Attr, Kind, OpenMode, StoreError, Watch};
use std::sync::Arc;

type Granted = Result<Delegation, NoDelegation>;

impl Delegations {
    /// Grants a delegation with an open that has succeeded, if the client wants one, can be called
    /// back, and no other client uses the file in conflict.
    pub(crate) fn grant(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        open: &Arc<OpenState>,
        attr: &Attr,
    ) -> Granted {
        let kind = self.wanted(caller, request, attr)?;
        let key = open.key;
        let table = self.state.lock();
        let free = self.check_free(&table, caller, &key, kind, request.claim);
        drop(table);
        free?;
        let need = OpenMode { read: true, write: kind.writes() };
        let file = open.file_for(need).map_or_else(
            || {
                let cred = export.map_cred(caller.cred);
                let file = export.store().open(&cred, &open.handle().file, need)?;
                Ok::<_, StoreError>(self.state.writers.count(key, need, file))
            },
            Ok,
        );
        // Otherwise its holder would allow accesses that the store refuses.
        let file = file.map_err(|_| NoDelegation::Policy)?;
        // The store must report changes that bypass the server, or a delegation would promise too
        // much.
        let what = if kind.writes() { Watch::Uses } else { Watch::Changes };
        export.store().watch(&key.file, what).map_err(|_| NoDelegation::Policy)?;
        // Counted before the check for recent writes. See the guards.
        self.state.guards.add(&key);
        let (mut table, mut expired) = (self.state.lock(), Vec::new());
        let id = self.check_free(&table, caller, &key, kind, request.claim).and_then(|()| {
            let current = StateTable::check_current(caller.client).is_ok();
            let reclaims = matches!(request.claim, OpenClaim::Previous(_));
            match table.admit_delegation(Applicant { reclaims, ..self.state.applicant(caller) }) {
                Ok(id) if current && open.life.is_live() => return Ok(id),
                Err(Blocked::Expire(clients)) => expired = clients,
                _ => {}
            }
            Err(NoDelegation::Resource)
        });
        let id = match id {
            Ok(id) => id,
            Err(error) => {
                drop(table);
                self.clients.expire_soon(expired);
                self.state.guards.remove(&key);
                export.store().unwatch(&key.file);
                return Err(error);
            }
        };
        let timestamps = request.want.timestamps;
        let delegation = Arc::new(DelegationState {
            id,
            client: caller.client.clone(),
            handle: *open.handle(),
            key,
            kind,
            uid: caller.cred.uid,
            store: export.store().clone(),
            life: Life::default(),
            inner: Mutex::new(Inner {
                file: Some(file),
                recalled_ns: None,
                resend: false,
                query: None,
                granted: (attr.change, attr.size),
                looks: 0,
            }),
        });
        table.enter_delegation(&delegation);
        // Only a reclaim comes so far without a back channel (RFC 8881 10.2.1).
        let recall = !caller.client.back_channel();
        Ok(Delegation { state: delegation.reference(), kind, timestamps, recall })
    }

    /// Returns the kind of delegation to try for.
    fn wanted(
        &self,
        caller: Caller<'_>,
        request: &OpenRequest<'_>,
        attr: &Attr,
    ) -> Result<DelegationKind, NoDelegation> {
        // Neither kind can be called back for one.
        let kind_never = matches!(caller.client.kind(), ClientKind::Stateless | ClientKind::Nlm);
        let never = kind_never || !self.state.config.delegations;
        if let OpenClaim::Previous(kind) = request.claim {
            // Nor is a delegation of another configuration granted again. The open alone is
            // reclaimed.
            return kind.filter(|_| !never).ok_or(NoDelegation::Policy);
        }
        let by_share =
            if request.share.write { DelegationKind::Write } else { DelegationKind::Read };
        let (kind, asked) = match request.want.kind {
            WantKind::None => return Err(NoDelegation::NotWanted),
            WantKind::Cancel => return Err(NoDelegation::Cancelled),
            WantKind::NoPreference => (by_share, false),
            WantKind::Any => (by_share, true),
            WantKind::Read => (DelegationKind::Read, true),
            WantKind::Write => (DelegationKind::Write, true),
        };
        let refuse = |why| Err(if asked { why } else { NoDelegation::Policy });
        if never {
            return Err(NoDelegation::Policy);
        }
        if attr.kind != Kind::Regular {
            return refuse(NoDelegation::FileType);
        }
        if !caller.client.back_channel() {
            return refuse(NoDelegation::Resource);
        }
        match request.claim {
            OpenClaim::New => Ok(kind),
            // The client has one already.
            OpenClaim::DelegateCurrent(_) | OpenClaim::Previous(_) => Err(NoDelegation::Policy),
        }
    }

    /// Checks that no state and no operation conflicts with a new delegation.
    fn check_free(
        &self,
        table: &StateTable,
        caller: Caller<'_>,
        key: &Handle,
        kind: DelegationKind,
        claim: OpenClaim,
    ) -> Result<(), NoDelegation> {
        let contention = Err(NoDelegation::Contention);
        if table.recalled.contains_key(key)
            && table
                .recalled
                .get(key)
                .is_some_and(|at_ns| caller.now_ns.saturating_sub(*at_ns) < RECALL_QUIET_NS)
            || self.state.guards.written_lately(key, caller.now_ns, WRITE_QUIET_NS)
        {
            return contention;
        }
        // Its holder locks the file locally. A reclaimed delegation was held before the restart.
        let is_new = !matches!(claim, OpenClaim::Previous(_));
        if table.fencing.holds_back(key) || is_new && table.fencing.is_written(key) {
            return contention;
        }
        let Some(file) = table.files.get(key) else { return Ok(()) };
        if file.changing + file.removing_checked + file.removing_unchecked > 0 {
            return contention;
        }
        // Its holder would grant itself locks that no client gets before a repair. A reclaimed
        // delegation was held before the restart, perhaps by the holder of the lock.
        let is_left = !file.locks.broken().is_empty() || !file.locks.orphans().is_empty();
        if is_left && matches!(claim, OpenClaim::New) {
            return contention;
        }
        for other in &file.delegations {
            if Arc::ptr_eq(&other.client, caller.client) {
                return Err(match (other.kind, kind) {
                    (DelegationKind::Read, DelegationKind::Write) => NoDelegation::Upgrade,
                    (DelegationKind::Write, DelegationKind::Read) => NoDelegation::Downgrade,
                    _ => NoDelegation::Policy,
                });
            }
            if other.kind.writes() || kind.writes() {
                return contention;
            }
        }
        let others = |open: &&Arc<OpenState>| !Arc::ptr_eq(&open.client, caller.client);
        let stands_against = |open: &Arc<OpenState>| {
            let share = open.share();
            kind.writes() || share.write || share.deny_read
        };
        if file.opens.iter().filter(others).any(stands_against) { contention } else { Ok(()) }
    }
}
