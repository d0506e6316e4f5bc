//! OPEN: find or make the file, open it in the store, enter the open, grant a delegation.

use super::enter::Reserved;
use super::{OpenClaim, OpenHow, OpenRequest, OpenTarget, Opened, Opens, covers};
use crate::client::ClientKind;
use crate::delegation::DelegationState;
use crate::error::ServiceError;
use crate::export::{Export, Touch};
use crate::handle::Handle;
use crate::index::Held;
use crate::limits::{OPEN_TRIES_MAX, OWNER_BYTES_MAX};
use crate::stateless::open_as_owner;
use crate::table::{Blocked, Ended};
use crate::{Caller, Result};
use dafs_store::{
    AccessMask, Attr, CreateHow, Created, Cred, DirChange, Kind, OpenFile, OpenMode, SetAttr,
    StoreError, Wait,
};
use std::sync::Arc;

const READ: OpenMode = OpenMode { read: true, write: false };
const WRITE: OpenMode = OpenMode { read: false, write: true };

/// The change information of no directory.
const NO_CHANGE: DirChange = DirChange { before: 0, after: 0, atomic: true, attr: None };

fn is_directory_there(export: &Export, target: &OpenTarget<'_>) -> bool {
    match target {
        OpenTarget::Name { dir, .. } => export.store().getattr(&dir.file).is_ok(),
        _ => true,
    }
}

impl Opens {
    /// Opens a regular file or named attribute.
    ///
    /// # Errors
    /// Those of the store, also for a strict share key without the right to write the file.
    /// `ShareDenied`, `KeyMismatch`. `Grace`, `NoGrace`, `ReclaimBad`,
    /// `ReclaimConflict` by the claim. Those of the state-id for a claim by delegation. `WouldWait`
    /// or `Delay` while other clients return delegations.
    pub fn open(&self, caller: Caller<'_>, request: &OpenRequest<'_>) -> Result<Opened> {
        if !(request.share.read || request.share.write) {
            return Err(StoreError::Invalid.into());
        }
        if request.owner.len() > OWNER_BYTES_MAX {
            return Err(ServiceError::Resource);
        }
        let creates = matches!(request.how, OpenHow::Create(..));
        let by = match request.target {
            OpenTarget::Name { dir, .. } | OpenTarget::Unlinked { dir } => dir,
            OpenTarget::Handle(_) if creates => return Err(StoreError::Invalid.into()),
            OpenTarget::Handle(handle) => handle,
        };
        let mut right = self.check_claim(caller, request)?;
        if self.clients.needs_record(caller.client) {
            if caller.wait == Wait::Never {
                return Err(ServiceError::WouldWait);
            }
            self.clients.record(caller.client);
            // Grace may have ended during this wait.
            right = self.check_claim(caller, request)?;
        }
        let namespace = self.exports.namespace();
        let export = namespace.export(by)?;
        if request.share.write || creates {
            export.writable()?;
        }
        if matches!(request.how, OpenHow::Create(_, SetAttr { size: Some(_), .. })) {
            export.check_wait(caller.wait, Touch::Data)?;
        }
        let by_name = matches!(request.target, OpenTarget::Name { .. });
        let exclusive = matches!(request.how, OpenHow::Create(CreateHow::Exclusive(_), _));
        if by_name && exclusive && caller.wait == Wait::Never {
            // The store makes the file stable before it reports the creation.
            return Err(ServiceError::WouldWait);
        }
        for _ in 0..OPEN_TRIES_MAX {
            let tried = match request.target {
                OpenTarget::Name { dir, name } => {
                    self.open_name(caller, export, request, right.as_deref(), dir, name)
                }
                OpenTarget::Handle(handle) => {
                    self.layouts.find_end_before_reclaim(caller, export, request, handle)?;
                    let attr = export.store().getattr(&handle.file)?;
                    let right = right.as_deref();
                    self.open_existing(caller, export, request, right, *handle, attr)
                }
                OpenTarget::Unlinked { dir } => self.open_unlinked(caller, export, request, dir),
            };
            match tried {
                // A race: another client made the file between the lookup and the create.
                Err(ServiceError::Store(StoreError::Exists))
                    if matches!(request.how, OpenHow::Create(CreateHow::Unchecked, _)) => {}
                // A race: another client removed it between the lookup and the open. If its
                // directory was removed, no retry can make the file.
                Err(ServiceError::Store(StoreError::Stale))
                    if matches!(request.how, OpenHow::Create(CreateHow::Unchecked, _))
                        && is_directory_there(export, &request.target) => {}
                done => return done,
            }
        }
        Err(StoreError::Busy.into())
    }

    /// Checks the claim. Returns the delegation that it is based on, if any.
    fn check_claim(
        &self,
        caller: Caller<'_>,
        request: &OpenRequest<'_>,
    ) -> Result<Option<Arc<DelegationState>>> {
        match request.claim {
            OpenClaim::New => self.clients.check_new_state(caller.client).map(|()| None),
            OpenClaim::Previous(_) => {
                self.clients.check_reclaim(caller.client)?;
                match request.target {
                    OpenTarget::Handle(_) => Ok(None),
                    OpenTarget::Name { .. } | OpenTarget::Unlinked { .. } => {
                        Err(StoreError::Invalid.into())
                    }
                }
            }
            OpenClaim::DelegateCurrent(state) => {
                self.clients.check_new_state(caller.client)?;
                let Held::Delegation(delegation) = self.state.held(caller, None, state)? else {
                    return Err(ServiceError::BadStateId);
                };
                if request.share.write && !delegation.kind.writes() {
                    return Err(ServiceError::OpenMode);
                }
                Ok(Some(delegation))
            }
        }
    }

    fn open_name(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        right: Option<&DelegationState>,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Opened> {
        let cred = export.map_cred(caller.cred);
        let store = export.store();
        // An exclusive create must reach the store even if the name exists: it may be a retry. A
        // guarded one most often makes a file, and the store finds out if the name exists.
        let is_guarded = matches!(request.how, OpenHow::Create(CreateHow::Guarded, _));
        if !is_guarded && !matches!(request.how, OpenHow::Create(CreateHow::Exclusive(_), _)) {
            match store.lookup(&cred, &dir.file, name) {
                Ok((id, attr)) => {
                    let handle = Handle { fs: dir.fs, file: id };
                    return self.open_existing(caller, export, request, right, handle, attr);
                }
                Err(StoreError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let OpenHow::Create(how, attr) = request.how else {
            return Err(StoreError::NotFound.into());
        };
        let how = match how {
            CreateHow::Exclusive(verifier) => CreateHow::Exclusive(verifier),
            CreateHow::Unchecked | CreateHow::Guarded => CreateHow::Guarded,
        };
        // Do not create a file that cannot be opened afterwards.
        let by = self.state.applicant(caller);
        let made = self.conflicts.enter(caller, |table, _| table.check_room(by)).and_then(|()| {
            let mode = request.share.mode();
            Ok(store.create(&cred, &dir.file, name, how, &attr, mode)?)
        });
        match made {
            Ok(made) => self.open_made(caller, export, request, dir, made),
            // That the name exists goes before any other reason.
            Err(error)
                if is_guarded
                    && error != ServiceError::Store(StoreError::Exists)
                    && store.lookup(&cred, &dir.file, name).is_ok() =>
            {
                Err(StoreError::Exists.into())
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a file without a name. A retry could not find it again, so there is no exclusive
    /// creation.
    fn open_unlinked(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        dir: &Handle,
    ) -> Result<Opened> {
        let OpenHow::Create(CreateHow::Unchecked | CreateHow::Guarded, attr) = request.how else {
            return Err(StoreError::Invalid.into());
        };
        let by = self.state.applicant(caller);
        self.conflicts.enter(caller, |table, _| table.check_room(by))?;
        let (cred, mode) = (export.map_cred(caller.cred), request.share.mode());
        let made = export.store().create_unlinked(&cred, &dir.file, &attr, mode)?;
        self.open_made(caller, export, request, dir, made)
    }

    /// Enters the open of a file that the store has just made, or that this request had made
    /// before.
    fn open_made(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        dir: &Handle,
        made: Created,
    ) -> Result<Opened> {
        let cred = export.map_cred(caller.cred);
        let handle = Handle { fs: dir.fs, file: made.id };
        if !made.created {
            self.fences.check(&caller.subject, &handle)?;
            check_key_right(export, &cred, request, &handle)?;
        }
        // A request that has made a file is not idempotent, so it waits here if it must. That
        // happens only when another client has found and opened the new file at this moment, or when
        // the client has held nothing for a lease just now.
        let wait = if made.created { Wait::Allowed } else { caller.wait };
        let patient = Caller { wait, ..caller };
        let mut reserved = self.reserve(patient, export, request, handle);
        if made.created && reserved.is_err() && self.clients.needs_record(caller.client) {
            // Its record was removed meanwhile. The new one stays for a lease.
            self.clients.record(caller.client);
            reserved = self.reserve(patient, export, request, handle);
        }
        let reserved = reserved?;
        let installed = self.install(export, &cred, request, &reserved, made.file);
        let opened = self.finish(
            caller,
            export,
            request,
            &reserved,
            installed.map(|()| made.attr),
            made.dir,
        )?;
        Ok(Opened { created: made.created, ..opened })
    }

    fn open_existing(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        right: Option<&DelegationState>,
        handle: Handle,
        attr: Attr,
    ) -> Result<Opened> {
        match attr.kind {
            Kind::Regular | Kind::NamedAttr => {}
            Kind::Directory | Kind::AttrDirectory => return Err(StoreError::IsDirectory.into()),
            Kind::Symlink => return Err(StoreError::Symlink.into()),
            // DAFS has no better status for the other types.
            _ if caller.client.kind() == ClientKind::Dafs => return Err(StoreError::Invalid.into()),
            _ => return Err(StoreError::BadType.into()),
        }
        if right.is_some_and(|delegation| delegation.key != export.key(&handle)) {
            return Err(ServiceError::BadStateId);
        }
        // The request may have named only the directory.
        self.fences.check(&caller.subject, &handle)?;
        let cred = export.map_cred(caller.cred);
        let file = match caller.client.kind() {
            ClientKind::Nlm => open_to_lock(export, &cred, request, &handle)?,
            _ => export.store().open(&cred, &handle.file, request.share.mode())?,
        };
        check_key_right(export, &cred, request, &handle)?;
        let mut emptied = None;
        if request.truncates() {
            if !request.share.write {
                // An open without write access empties the file only if the caller may write.
                let writable = export.store().open(&cred, &handle.file, WRITE)?;
                emptied = Some(self.state.writers.count(export.key(&handle), WRITE, writable));
            }
            self.locks.check_span(&handle, 0, u64::MAX)?;
            if self.state.writers.must_wait_to_cut(&export.key(&handle), 0, caller.wait) {
                return Err(ServiceError::WouldWait);
            }
        }
        // Held until the file is emptied, so that no new delegation misses the change.
        let emptying = match request.truncates() {
            true => Some(self.conflicts.begin_change(caller, export.key(&handle), Some(0))?),
            false => None,
        };
        let reserved = self.reserve(caller, export, request, handle)?;
        let installed = self
            .install(export, &cred, request, &reserved, file)
            .and_then(|()| empty(export, &cred, request, &reserved, emptied, attr));
        // The opener may have a delegation now.
        drop(emptying);
        let change = match request.target {
            OpenTarget::Name { dir, .. } => {
                let change = export.store().getattr(&dir.file).map(|attr| attr.change);
                change.map_or(NO_CHANGE, |at| DirChange {
                    before: at,
                    after: at,
                    atomic: true,
                    attr: None,
                })
            }
            OpenTarget::Handle(_) | OpenTarget::Unlinked { .. } => NO_CHANGE,
        };
        self.finish(caller, export, request, &reserved, installed, change)
    }

    fn reserve(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        handle: Handle,
    ) -> Result<Reserved> {
        let key = export.key(&handle);
        let clock = self.state.clock(caller);
        let rule = export.options().shared_keys;
        let share_key = request.share_key.map(|key| rule.apply(key));
        let request = &OpenRequest { share_key, ..*request };
        let reserved = self.conflicts.enter(caller, |table, ended| {
            if self.clients.needs_record(caller.client) {
                // Its record was removed since the check, because it held no state.
                let may_wait = caller.wait == Wait::Allowed;
                let again = if may_wait { ServiceError::Delay } else { ServiceError::WouldWait };
                return Err(Blocked::Refused(again));
            }
            table.reserve(caller, clock, handle, key, request, ended)
        });
        match (reserved, request.claim) {
            // Two clients cannot both have had it before the restart.
            (
                Err(ServiceError::ShareDenied | ServiceError::KeyMismatch),
                OpenClaim::Previous(_),
            ) => Err(ServiceError::ReclaimConflict),
            (reserved, _) => reserved,
        }
    }

    /// Completes an open whose file is there, or cancels it.
    fn finish(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        reserved: &Reserved,
        attr: Result<Attr>,
        dir: DirChange,
    ) -> Result<Opened> {
        let state = reserved.state.clone();
        // The loss of an export meanwhile revoked only opens that were entered before.
        let attr = attr.and_then(|attr| {
            let namespace = self.exports.namespace();
            let export = namespace.export(&state.handle)?;
            state.set_read_only(export.writable().is_err());
            Ok(attr)
        });
        let attr = match attr {
            Ok(attr) => attr,
            Err(error) => {
                let mut ended = Ended::default();
                self.state.lock().cancel(reserved, &mut ended);
                self.state.finish(ended);
                return Err(error);
            }
        };
        let seqid = state.succeed(request.share);
        let delegation = self.delegations.grant(caller, export, request, &state, &attr);
        let mut delegation_only =
            delegation.is_ok() && request.want.open_xor && reserved.before.is_none();
        if delegation_only {
            let mut ended = Ended::default();
            let mut table = self.state.lock();
            // Another open of the same owner that has joined meanwhile was told its state-id.
            delegation_only = reserved.is_last_change();
            if delegation_only {
                table.release_open(&state, &mut ended);
            }
            drop(table);
            self.state.finish(ended);
        }
        Ok(Opened { state, seqid, attr, dir, created: false, delegation, delegation_only })
    }

    /// Gives the open a file for all its access: the one that it has, or `file`, which is open for
    /// the access of this request, or a new one for both.
    fn install(
        &self,
        export: &Export,
        cred: &Cred,
        request: &OpenRequest<'_>,
        reserved: &Reserved,
        file: Arc<dyn OpenFile>,
    ) -> Result<()> {
        let state = &reserved.state;
        if state.client.kind() == ClientKind::Nlm {
            // Its reads and writes do not name an open.
            return Ok(());
        }
        let mut inner = state.lock();
        let need = state.share().mode();
        if inner.file.as_ref().is_some_and(|(mode, _)| covers(*mode, need)) {
            return Ok(());
        }
        if covers(request.share.mode(), need) {
            let mode = request.share.mode();
            inner.file = Some((mode, self.state.writers.count(state.key, mode, file)));
            return Ok(());
        }
        drop(inner);
        let both = export.store().open(cred, &state.handle.file, need)?;
        state.lock().file = Some((need, self.state.writers.count(state.key, need, both)));
        Ok(())
    }
}

/// Checks that an NFSv3 client may lock a file, by opening it. The right to read it is enough for
/// any lock, because a program may lock a file for writing that it has open for reading (flock). A
/// denial of access to others needs the rights of the access.
fn open_to_lock(
    export: &Export,
    cred: &Cred,
    request: &OpenRequest<'_>,
    handle: &Handle,
) -> Result<Arc<dyn OpenFile>> {
    if request.share.denies() {
        return open_as_owner(export, cred, handle, request.share.mode());
    }
    match open_as_owner(export, cred, handle, READ) {
        Err(ServiceError::Store(StoreError::Access)) => open_as_owner(export, cred, handle, WRITE),
        opened => opened,
    }
}

/// Checks that the caller may exclude others from a file. A strict share key does so even if its open
/// only reads, so it needs the right to write.
///
/// # Errors
/// `Access`, `ReadOnly`, and the store's.
fn check_key_right(
    export: &Export,
    cred: &Cred,
    request: &OpenRequest<'_>,
    handle: &Handle,
) -> Result<()> {
    let rule = export.options().shared_keys;
    let is_strict = request.share_key.is_some_and(|key| rule.apply(key).strict);
    // The right was checked when the key was new.
    let is_reclaim = matches!(request.claim, OpenClaim::Previous(_));
    if !is_strict || is_reclaim || request.share.write {
        return Ok(());
    }
    export.writable()?;
    let granted = export.store().access(cred, &handle.file, AccessMask::MODIFY)?;
    if granted.contains(AccessMask::MODIFY) { Ok(()) } else { Err(StoreError::Access.into()) }
}

/// Empties an existing file, if the request says so: by `file`, or else by the file of the open.
/// Returns its attributes.
fn empty(
    export: &Export,
    cred: &Cred,
    request: &OpenRequest<'_>,
    reserved: &Reserved,
    file: Option<Arc<dyn OpenFile>>,
    attr: Attr,
) -> Result<Attr> {
    if !request.truncates() {
        return Ok(attr);
    }
    let state = &reserved.state;
    let change = SetAttr { size: Some(0), ..SetAttr::default() };
    let file = file.or_else(|| state.any_file());
    Ok(export.store().setattr(cred, &state.handle.file, &change, file.as_deref())?)
}
