//! Opens and share reservations.
//!
//! Invariants
//! * Two opens of a file by different owners never conflict: neither denies an access that the
//!   other has, and their share keys agree. The check and the entry into the table are one step
//!   under the table's lock.
//! * A state-id names one (owner, file). It does not change while the open lives, and is never used
//!   again.
//! * The store checks the caller's rights, by opening the file, before the open is entered. So an
//!   open that is not allowed does not affect others that are under way.

mod enter;
mod key;
mod run;
mod use_state;

pub(crate) use enter::{Break, Clock};
pub use key::{ShareKey, SharedKeys};

use crate::Result;
use crate::client::{Client, Clients};
use crate::delegation::{Delegation, DelegationKind, Delegations, NoDelegation, Want};
use crate::enter::{Conflicts, State};
use crate::error::ServiceError;
use crate::export::Exports;
use crate::exposure::{ExposedFile, Grant};
use crate::fence::Fences;
use crate::handle::Handle;
use crate::index::Life;
use crate::layout::Layouts;
use crate::lock::Locks;
use crate::state::{StateId, StateRef, next_seqid};
use crate::stateless::StatelessFiles;
use dafs_mem::Mutex;
use dafs_store::{Attr, CreateHow, DirChange, OpenFile, OpenMode, SetAttr, StoreError};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, MutexGuard};

/// All opens, and the files of callers without opens.
pub struct Opens {
    pub(crate) exports: Arc<Exports>,
    pub(crate) state: Arc<State>,
    pub(crate) clients: Arc<Clients>,
    fences: Arc<Fences>,
    layouts: Arc<Layouts>,
    conflicts: Arc<Conflicts>,
    delegations: Arc<Delegations>,
    locks: Arc<Locks>,
    pub(crate) stateless: StatelessFiles,
}

impl Opens {
    pub(crate) fn new(
        conflicts: Arc<Conflicts>,
        fences: Arc<Fences>,
        delegations: Arc<Delegations>,
        locks: Arc<Locks>,
    ) -> Self {
        let Conflicts { exports, state, clients, layouts, .. } = &*conflicts;
        let (exports, state) = (exports.clone(), state.clone());
        let (clients, layouts) = (clients.clone(), layouts.clone());
        let stateless = StatelessFiles::new();
        Self { exports, state, clients, fences, layouts, conflicts, delegations, locks, stateless }
    }
}

/// The access of an open, and the access that it denies to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "the names are the meaning")]
pub struct Share {
    pub read: bool,
    pub write: bool,
    pub deny_read: bool,
    pub deny_write: bool,
}

impl Share {
    pub(crate) fn conflicts(self, other: Share) -> bool {
        self.read && other.deny_read
            || self.write && other.deny_write
            || self.deny_read && other.read
            || self.deny_write && other.write
    }

    pub(crate) fn union(self, other: Share) -> Share {
        Share {
            read: self.read || other.read,
            write: self.write || other.write,
            deny_read: self.deny_read || other.deny_read,
            deny_write: self.deny_write || other.deny_write,
        }
    }

    pub(crate) fn contains(self, other: Share) -> bool {
        self.union(other) == self
    }

    pub(crate) fn denies(self) -> bool {
        self.deny_read || self.deny_write
    }

    /// True if it allows the operation: a write, or else a read.
    pub(crate) fn allows(self, write: bool) -> bool {
        if write { self.write } else { self.read || self.write }
    }

    pub(crate) fn mode(self) -> OpenMode {
        OpenMode { read: self.read, write: self.write }
    }

    /// Decodes the number that is also the number of its bit in [`Modes`].
    fn of_bits(bits: u8) -> Share {
        let set = |part: u8| bits & part != 0;
        Share { read: set(1), write: set(2), deny_read: set(4), deny_write: set(8) }
    }

    fn bits(self) -> u8 {
        u8::from(self.read)
            | u8::from(self.write) << 1
            | u8::from(self.deny_read) << 2
            | u8::from(self.deny_write) << 3
    }
}

/// The combinations of access and denial that an owner has opened a file with. A downgrade may only
/// go to a union of some of them (RFC 8881 18.18.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Modes(u16);

impl Modes {
    fn add(&mut self, share: Share) {
        self.0 |= 1 << share.bits();
    }

    /// Returns those that are a part of `share`.
    fn within(self, share: Share) -> Self {
        let inside = |bits: &u8| self.0 & 1 << bits != 0 && share.contains(Share::of_bits(*bits));
        Self((0..16).filter(inside).fold(0, |modes, bits| modes | 1 << bits))
    }

    fn union(self) -> Share {
        let set = (0..16).filter(|bits| self.0 & 1 << bits != 0).map(Share::of_bits);
        set.fold(Share::default(), Share::union)
    }
}

/// How to find or make the file to open.
#[derive(Debug, Clone, Copy)]
pub enum OpenHow {
    /// The file must exist.
    Existing,
    /// Create it as the store does. The attributes are for a new file, or size 0 to truncate.
    Create(CreateHow, SetAttr),
}

/// The file to open.
#[derive(Debug, Clone, Copy)]
pub enum OpenTarget<'a> {
    /// A name in a directory.
    Name {
        /// The directory.
        dir: &'a Handle,
        /// The name in it.
        name: &'a [u8],
    },
    /// The file itself. No file can be created.
    Handle(&'a Handle),
    /// A new file without a name, in the file system of this directory (DAFS 10.3).
    Unlinked {
        /// The directory, which stays as it is.
        dir: &'a Handle,
    },
}

/// The right by which a client opens (RFC 8881 18.16.1, open_claim_type4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenClaim {
    /// A new open (CLAIM_NULL, CLAIM_FH).
    New,
    /// An open that the client had before the server's restart, with the delegation that it had
    /// (CLAIM_PREVIOUS). The target must be a handle.
    Previous(Option<DelegationKind>),
    /// An open that a delegation allows, recalled or not (CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH).
    DelegateCurrent(StateRef),
}

/// The request to open a file.
#[derive(Debug, Clone, Copy)]
pub struct OpenRequest<'a> {
    /// The file.
    pub target: OpenTarget<'a>,
    /// The claim.
    pub claim: OpenClaim,
    /// The owner, unique within the client.
    pub owner: &'a [u8],
    /// Access and denial.
    pub share: Share,
    /// Forbids others to remove the file meanwhile (DAFS delete disposition).
    pub deny_delete: bool,
    /// The share key (DAFS 10.2).
    pub share_key: Option<ShareKey>,
    /// Find or create.
    pub how: OpenHow,
    /// The delegation that the client wants.
    pub want: Want,
}

impl<'a> OpenRequest<'a> {
    /// Makes a new open by name that wants no delegation and sets no key.
    pub fn by_name(
        dir: &'a Handle,
        name: &'a [u8],
        owner: &'a [u8],
        share: Share,
        how: OpenHow,
    ) -> Self {
        Self {
            target: OpenTarget::Name { dir, name },
            claim: OpenClaim::New,
            owner,
            share,
            deny_delete: false,
            share_key: None,
            how,
            want: Want::default(),
        }
    }

    /// True if an existing file is emptied.
    fn truncates(&self) -> bool {
        matches!(self.how, OpenHow::Create(CreateHow::Unchecked, SetAttr { size: Some(0), .. }))
    }

    /// The access that others must not deny.
    fn needs(&self) -> Share {
        Share { write: self.share.write || self.truncates(), ..self.share }
    }
}

/// The result of an open.
#[derive(Clone)]
pub struct Opened {
    /// The open.
    pub state: Arc<OpenState>,
    /// The sequence number of its state-id for this answer.
    pub seqid: u32,
    /// Attributes of the file.
    pub attr: Attr,
    /// The change of the directory. Zeros when the file was not opened by name.
    pub dir: DirChange,
    /// True when the file is new.
    pub created: bool,
    /// The delegation, or why there is none.
    pub delegation: std::result::Result<Delegation, NoDelegation>,
    /// True when the client asked for a delegation instead of an open, and got it. Then there is no
    /// open state-id (RFC 9754, OPEN4_RESULT_NO_OPEN_STATEID).
    pub delegation_only: bool,
}

/// The condition on open files under which a removal fails (DAFS 10.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveMode {
    /// Fails only if an open denies removal.
    Unchecked,
    /// Fails if the file is open at all.
    CheckOpen,
}

/// One open.
pub struct OpenState {
    id: StateId,
    pub(crate) client: Arc<Client>,
    handle: Handle,
    /// The key under which opens of the file are compared.
    pub(crate) key: Handle,
    owner: Box<[u8]>,
    /// The user that opened it first, as it claimed.
    pub(crate) uid: u32,
    pub(crate) life: Life,
    /// The bits of access and denial. They change only under the table's lock, so a search for
    /// conflicts under that lock takes no lock of each open.
    share_bits: AtomicU8,
    /// Its share key is strict. It changes only under the table's lock, for the same reason.
    strict_key: AtomicBool,
    /// Its export has become read-only since.
    read_only: AtomicBool,
    /// It has, or had, a grant to read its file without requests.
    has_grant: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    modes: Modes,
    deny_delete: bool,
    /// Its share key, if it has one. All keyed opens of a file have the same.
    share_key: Option<ShareKey>,
    /// The store's file and the mode that it was opened for.
    file: Option<(OpenMode, Arc<dyn OpenFile>)>,
    /// Counts the changes of the share by opens and downgrades, finished or not.
    changes: u32,
    /// The sequence number of the state-id: counts the finished changes.
    seqid: u32,
    /// Counted in the guards because it denies access, or has a strict key.
    guarded: bool,
    /// Lets its client read the file without requests.
    grant: Option<Grant>,
}

impl OpenState {
    /// Its state-id.
    pub fn id(&self) -> StateId {
        self.id
    }

    /// Its state-id with the current sequence number.
    pub fn reference(&self) -> StateRef {
        StateRef { id: self.id, seqid: self.seqid() }
    }

    /// The file's handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The owner's name.
    pub fn owner(&self) -> &[u8] {
        &self.owner
    }

    /// Its access and denial now.
    pub fn share(&self) -> Share {
        Share::of_bits(self.share_bits.load(Ordering::SeqCst))
    }

    fn set_share(&self, share: Share) {
        self.share_bits.store(share.bits(), Ordering::SeqCst);
    }

    /// True while it excludes callers without its share key.
    pub(crate) fn has_strict_key(&self) -> bool {
        self.strict_key.load(Ordering::SeqCst)
    }

    /// Sets the key in `inner`, which is that of this open, and the copy of its strictness.
    fn set_key(&self, inner: &mut Inner, key: Option<ShareKey>) {
        inner.share_key = key;
        self.strict_key.store(key.is_some_and(|key| key.strict), Ordering::SeqCst);
    }

    /// Returns the store's file, if the open allows `need`.
    ///
    /// # Errors
    /// `OpenMode` when it does not allow it, `StaleStateId` when the open has ended, `AdminRevoked`
    /// when it was revoked, `ReadOnly` for writing when its export has become read-only.
    pub fn file(&self, need: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let inner = self.lock();
        self.life.check()?;
        if !covers(self.share().mode(), need) {
            return Err(ServiceError::OpenMode);
        }
        if need.write && self.read_only.load(Ordering::Relaxed) {
            return Err(StoreError::ReadOnly.into());
        }
        let file = inner.file.as_ref().map(|(_, file)| file.clone());
        file.ok_or(ServiceError::BadStateId)
    }

    /// Sets if its export is read-only.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    pub(crate) fn seqid(&self) -> u32 {
        self.lock().seqid.max(1)
    }

    /// Returns its file, whatever its mode.
    pub(crate) fn any_file(&self) -> Option<Arc<dyn OpenFile>> {
        self.lock().file.as_ref().map(|(_, file)| file.clone())
    }

    /// Returns its file, if its mode in the store allows `need`.
    pub(crate) fn file_for(&self, need: OpenMode) -> Option<Arc<dyn OpenFile>> {
        let inner = self.lock();
        inner.file.as_ref().filter(|(mode, _)| covers(*mode, need)).map(|(_, file)| file.clone())
    }

    pub(crate) fn take_file(&self) -> Option<Arc<dyn OpenFile>> {
        self.lock().file.take().map(|(_, file)| file)
    }

    /// Lets its client read the file without requests, if it is open for reading. Returns true if it
    /// may. `new` makes a grant of this exposure.
    pub(crate) fn grant_exposure(
        &self,
        file: &Arc<ExposedFile>,
        new: impl FnOnce() -> Option<Grant>,
    ) -> bool {
        let mut inner = self.lock();
        if inner.grant.as_ref().is_some_and(|grant| Arc::ptr_eq(grant.file(), file)) {
            return true;
        }
        let may_read = inner.file.is_some() && self.life.is_live() && self.share().read;
        let Some(grant) = may_read.then(new).flatten() else { return false };
        let former = inner.grant.replace(grant);
        self.has_grant.store(true, Ordering::Relaxed);
        drop(inner);
        drop(former);
        true
    }

    /// Takes its grant away, to be dropped without locks.
    pub(crate) fn take_grant(&self) -> Option<Grant> {
        self.lock().grant.take()
    }

    /// Returns its exposed file, if it has a grant.
    pub(crate) fn exposed(&self) -> Option<Arc<ExposedFile>> {
        if !self.has_grant.load(Ordering::Relaxed) {
            return None;
        }
        self.lock().grant.as_ref().map(|grant| grant.file().clone())
    }

    /// True if its client may read the memory of this exposure without requests.
    pub fn is_shown(&self, exposure: u64) -> bool {
        self.exposed().is_some_and(|file| file.id() == exposure)
    }

    /// Notes if it is counted in the guards. Returns the note before.
    pub(crate) fn set_guarded(&self, guarded: bool) -> bool {
        std::mem::replace(&mut self.lock().guarded, guarded)
    }

    /// An open with this share has succeeded. Returns the sequence number for the answer.
    fn succeed(&self, share: Share) -> u32 {
        let mut inner = self.lock();
        inner.modes.add(share);
        inner.seqid = next_seqid(inner.seqid);
        inner.seqid
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

fn covers(mode: OpenMode, need: OpenMode) -> bool {
    (mode.read || !need.read) && (mode.write || !need.write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_downgrade_target_is_the_union_of_what_lies_within() {
        let share = |read, write| Share { read, write, ..Share::default() };
        let mut modes = Modes::default();
        modes.add(share(true, true));
        assert_eq!(modes.within(share(true, false)).union(), Share::default());
        modes.add(share(true, false));
        assert_eq!(modes.within(share(true, false)).union(), share(true, false));
        assert_eq!(modes.within(share(false, true)).union(), Share::default());
        modes.add(Share { deny_read: true, ..share(false, true) });
        let wide = Share { deny_read: true, ..share(true, true) };
        assert_eq!(modes.within(wide).union(), wide);
    }

    #[test]
    fn every_share_has_a_number_of_its_own() {
        for bits in 0..16 {
            assert_eq!(Share::of_bits(bits).bits(), bits);
        }
    }
}
