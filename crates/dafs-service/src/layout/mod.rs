//! Layouts: a client's knowledge of where a file's content lies, by which it reads and writes at the
//! data servers itself (RFC 8881 12).
//!
//! Invariants
//! * A layout tells of the whole file. What its holder gives back in parts is kept account of; when
//!   nothing is left, the layout is gone. It ends with its holder's last open or delegation of the
//!   file (return_on_close).
//! * Layouts of several clients stand beside each other: the data servers order what they do, as one
//!   server would. What changes the file behind them (a shorter size, a removal, another placement)
//!   comes after they have been given back.
//! * A layout that is not given back within a lease of its recall is revoked, and what it stood
//!   against goes on only when no data server honours it any more ([`Fencing`]). The same holds for what
//!   its holder had beside it, when that was lost: opens, locks and delegations; and for one that was
//!   given back, as far as others are concerned ([`Returned`]).
//! * Stock clients give layouts back without a LAYOUTCOMMIT of what they wrote. So the file reaches as
//!   far as the data servers have something of it before LAYOUTRETURN of a file is answered, and soon after
//!   many were given back together, or one has ended with its holder's last open; in any case before
//!   somebody has a lock of it again.
//! * A time that a writer gives its file is that of what it wrote before: it is not put over later changes.
//! * What a client writes through this server is not overtaken by what it has sent to data servers
//!   before ([`late`]).
//! * After a restart there are none: clients ask again.

mod commit;
mod devices;
mod fencing;
mod grant;
mod late;
mod mtime;
mod recall;
mod report;
mod restart;
mod returned;
mod spans;
mod ticket;
mod told;
mod vouch;
mod wide;

pub use grant::{LayoutGranted, LayoutRequest};
pub use ticket::{DeviceTold, Ticket};
pub use told::{DeviceUse, Moved};

pub(crate) use devices::{WatchedDevices, Watching};
pub(crate) use fencing::Fencing;
pub(crate) use late::{Late, Lent};
pub(crate) use returned::Returned;
pub(crate) use wide::{WideRecalls, tell_of_taken};

use crate::client::{Client, Holding};
use crate::error::ServiceError;
use crate::fence::FenceObject;
use crate::handle::Handle;
use crate::hosts::Shared;
use crate::index::{Held, Life};
use crate::limits::ENDED_AT_ONCE_MAX;
use crate::state::{StateId, StateRef, check_seqid, next_seqid};
use crate::table::{Ended, StateTable};
use crate::{Caller, Result, Service};
use dafs_store::{Device, DeviceKey, LayoutForm, Store, TimeSpec, Wait};
use fencing::Written;
use spans::Spans;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What one client has been told of where one file lies.
pub(crate) struct LayoutState {
    pub(crate) id: StateId,
    pub(crate) client: Arc<Client>,
    /// The file as its holder calls it.
    pub(crate) handle: Handle,
    /// The file as layouts are compared by.
    pub(crate) key: Handle,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) form: LayoutForm,
    /// How long data servers may go by what they were told of it.
    belief: Duration,
    /// A data server has been told that its holder may write there.
    written: AtomicBool,
    /// Its holder has no answer to something that it wrote there.
    failing: AtomicBool,
    pub(crate) life: Life,
    inner: Mutex<Inner>,
}

struct Inner {
    seqid: u32,
    /// The number that its holder was told with the last grant.
    granted_seqid: u32,
    /// What the file is called at the data servers.
    components: Vec<Box<[u8]>>,
    /// The devices that it names.
    devices: Vec<DeviceKey>,
    /// What its holder has said last that it did at them.
    told: Vec<DeviceUse>,
    /// What is held for reading only, and for reading and writing.
    read: Spans,
    write: Spans,
    /// The time of change that its holder has given the file since it wrote by it last, as tar does.
    own_mtime: Option<TimeSpec>,
    /// No data server has asked about a write since this was set.
    quiet: bool,
    /// When it was recalled first.
    recalled_ns: Option<u64>,
    /// The sequence number that it was recalled with last.
    recalled_seqid: u32,
    /// The recall could not be delivered.
    resend: bool,
}

/// For what kind of use a layout is (layoutiomode4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutMode {
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
    /// Either; only to give back.
    Any,
}

impl LayoutMode {
    fn reads(self) -> bool {
        self != Self::ReadWrite
    }

    fn writes(self) -> bool {
        self != Self::Read
    }
}

impl LayoutState {
    pub(crate) fn seqid(&self) -> u32 {
        self.lock().seqid
    }

    fn reference(&self) -> StateRef {
        StateRef { id: self.id, seqid: self.seqid() }
    }

    /// Whether its holder may read, or write, at the data servers.
    pub(crate) fn covers(&self, write: bool) -> bool {
        let inner = self.lock();
        self.life.is_live() && (!inner.write.is_empty() || !write && !inner.read.is_empty())
    }

    /// What its holder may have written and did not tell.
    fn written(&self, goes_on: bool) -> Written {
        Written { goes_on, mtime: self.lock().own_mtime }
    }

    /// Whether its holder may have written what it did not tell.
    fn is_written(&self) -> bool {
        self.written.load(Ordering::SeqCst)
    }

    /// Takes a part of it back. Whether anything is left.
    fn give_up(&self, mode: LayoutMode, (offset, length): (u64, u64)) -> bool {
        let mut inner = self.lock();
        let end = offset.saturating_add(length);
        if mode.reads() {
            inner.read.remove(offset, end);
        }
        if mode.writes() {
            inner.write.remove(offset, end);
        }
        inner.seqid = next_seqid(inner.seqid);
        !inner.read.is_empty() || !inner.write.is_empty()
    }

    /// Whether this is what the file is called at a data server.
    fn leads_to(&self, component: &[u8]) -> bool {
        self.lock().components.iter().any(|known| **known == *component)
    }

    /// As administrators see it.
    pub(crate) fn holding(&self) -> Holding {
        let inner = self.lock();
        let (write, recalled) = (!inner.write.is_empty(), inner.recalled_ns.is_some());
        Holding::Layout { handle: self.handle, write, recalled }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateTable {
    pub(crate) fn enter_layout(&mut self, layout: &Arc<LayoutState>) {
        self.files.entry(layout.key).or_default().layouts.push(layout.clone());
        self.counts.layouts += 1;
        layout.client.host().add(Shared::Layouts, 1);
        layout.client.laid_out.fetch_add(1, Ordering::Relaxed);
        self.by_client.entry(layout.client.key()).or_default().layouts.insert(layout.id);
        self.index.insert(Held::Layout(layout.clone()));
    }

    /// Ends a layout that its holder has given back, or does without. What that leaves to be asked of
    /// data servers is noted.
    pub(crate) fn release_layout(&mut self, layout: &Arc<LayoutState>, ended: &mut Ended) {
        // Of copies it would have to be found out which is right; their clients tell what failed.
        let written = layout.is_written() && layout.form == LayoutForm::Stripes;
        if layout.failing.load(Ordering::SeqCst) {
            // It may be carried out late, and must not come after what its holder does next.
            self.hold_back(layout, written);
        } else {
            if !self.returned_layouts.add(layout) {
                self.hold_back(layout, false);
            }
            if written {
                self.fencing.note_written(&layout.store, layout.key, layout.written(false));
            }
        }
        self.end_layout(layout, ended);
    }

    pub(super) fn end_layout(&mut self, layout: &Arc<LayoutState>, ended: &mut Ended) {
        self.withdraw_layout(layout, ended);
        layout.life.end();
        self.index.remove(layout.id);
    }

    /// Takes a layout out of everything but the index.
    pub(crate) fn withdraw_layout(&mut self, layout: &Arc<LayoutState>, ended: &mut Ended) {
        let (key, client) = (layout.key, layout.client.key());
        let Some(file) = self.files.get_mut(&key) else { return };
        let before = file.layouts.len();
        file.layouts.retain(|other| !Arc::ptr_eq(other, layout));
        if file.layouts.len() == before {
            return;
        }
        self.counts.layouts -= 1;
        layout.client.host().remove(Shared::Layouts, 1);
        layout.client.laid_out.fetch_sub(1, Ordering::Relaxed);
        self.recalling_layouts.remove(&layout.id);
        if let Some(holdings) = self.by_client.get_mut(&client) {
            holdings.layouts.remove(&layout.id);
        }
        ended.held.push(Held::Layout(layout.clone()));
        self.tidy_client(client);
        self.tidy(&key);
    }

    /// Ends the layouts of a client on a file that it has neither open nor delegated any more
    /// (return_on_close, RFC 8881 18.43.3).
    pub(crate) fn drop_unheld_layouts(
        &mut self,
        key: &Handle,
        client: &Arc<Client>,
        ended: &mut Ended,
    ) {
        let Some(file) = self.files.get_mut(key) else { return };
        if file.layouts.is_empty() && file.lent.is_none()
            || file.opens.iter().any(|open| Arc::ptr_eq(&open.client, client))
            || file.delegations.iter().any(|held| Arc::ptr_eq(&held.client, client))
        {
            return;
        }
        file.take_back(client.key());
        let theirs = |layout: &&Arc<LayoutState>| Arc::ptr_eq(&layout.client, client);
        let layouts: Vec<_> = file.layouts.iter().filter(theirs).cloned().collect();
        for layout in layouts {
            // Who was asked for it and closes the file instead has given it back.
            self.release_layout(&layout, ended);
        }
    }
}

impl Service {
    /// Takes back what a client returns of one file's layout (LAYOUTRETURN). Returns the state-id
    /// of what is left, if anything is.
    ///
    /// # Errors
    /// `OldStateId` for one from before the last grant, those of the state-id, `WouldWait`.
    pub fn return_layout(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        mode: LayoutMode,
        range: (u64, u64),
    ) -> Result<Option<StateRef>> {
        let layout = self.layout(caller, handle, state)?;
        let mut ended = Ended::default();
        let mut table = self.lock_table();
        layout.life.check()?;
        // Its holder has to know all that it gives back. It may not have heard of a recall yet.
        let granted = layout.lock().granted_seqid;
        if check_seqid(granted, state.seqid) == Err(ServiceError::OldStateId) {
            return Err(ServiceError::OldStateId);
        }
        if caller.wait == Wait::Never && layout.is_written() {
            return Err(ServiceError::WouldWait);
        }
        let left = layout.give_up(mode, range);
        let reference = layout.reference();
        if !left {
            table.release_layout(&layout, &mut ended);
        }
        drop(table);
        self.finish(ended);
        if !left && layout.is_written() {
            self.settle_now(&[layout.key]);
        }
        Ok(left.then_some(reference))
    }

    /// Takes back all layouts of a client in one form for some use: of one file system, that of
    /// `handle`, or of all (LAYOUTRETURN with FSID or ALL). Of one file system it may wait for data servers
    /// for a while; those of all hold up nobody.
    pub fn return_layouts(
        &self,
        caller: Caller<'_>,
        of: Option<&Handle>,
        form: LayoutForm,
        mode: LayoutMode,
    ) {
        let (mut ended, mut written) = (Ended::default(), Vec::new());
        let table = self.lock_table();
        let held = table.by_client.get(&caller.client.key());
        let ids: Vec<StateId> = held.into_iter().flat_map(|held| &held.layouts).copied().collect();
        drop(table);
        // They may be many, and most of them of another form.
        for some in ids.chunks(ENDED_AT_ONCE_MAX) {
            let mut table = self.lock_table();
            for id in some {
                let Ok(Held::Layout(layout)) = table.index.find(*id) else { continue };
                if layout.form != form || of.is_some_and(|handle| handle.fs != layout.handle.fs) {
                    continue;
                }
                if !layout.give_up(mode, (0, u64::MAX)) {
                    table.release_layout(&layout, &mut ended);
                    written.extend(layout.is_written().then_some(layout.key));
                }
            }
        }
        self.finish(ended);
        if of.is_some() {
            self.settle_now(&written);
        }
        if mode == LayoutMode::Any {
            self.wide_recall_is_over(caller.client, of.map(|handle| handle.fs), form);
        }
    }

    /// The layout that a state-id stands for. An earlier sequence number is good, too: a client has
    /// several requests about one layout under way (RFC 8881 12.5.3).
    fn layout(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
    ) -> Result<Arc<LayoutState>> {
        match self.held(caller, Some(handle), state.id.into())? {
            Held::Layout(layout) => match check_seqid(layout.seqid(), state.seqid) {
                Ok(()) | Err(ServiceError::OldStateId) => Ok(layout),
                Err(error) => Err(error),
            },
            _ => Err(ServiceError::BadStateId),
        }
    }
}

impl Service {
    /// Whether any export spreads its files over data servers.
    pub fn has_layouts(&self) -> bool {
        self.namespace().exports().any(|export| export.store().layouts().is_some())
    }

    /// Whether clients that speak DAFS may be told where files of the export of an object lie.
    pub fn tells_of_layouts(&self, handle: &Handle) -> bool {
        let namespace = self.namespace();
        let layouts = namespace.export(handle).ok().and_then(|export| export.store().layouts());
        layouts.is_some_and(|layouts| {
            let devices = layouts.devices();
            let is_served = |device: &DeviceKey| layouts.dafs_servers(device).is_some();
            // As long as there are none it is not known whether they will be served.
            layouts.word(b"").is_some() && (devices.is_empty() || devices.iter().any(is_served))
        })
    }

    /// A device, of whatever export.
    pub fn device(&self, key: &DeviceKey) -> Option<Device> {
        let namespace = self.namespace();
        let mut layouts = namespace.exports().filter_map(|export| export.store().layouts());
        layouts.find_map(|layouts| layouts.device(key))
    }

    /// The devices of the export of an object, if that has its files in this form.
    ///
    /// # Errors
    /// `BadHandle`.
    pub fn devices(&self, handle: &Handle, form: LayoutForm) -> Result<Vec<DeviceKey>> {
        let namespace = self.namespace();
        let store = namespace.export(handle)?.store();
        let layouts = store.layouts().filter(|_| store.capabilities().layouts == Some(form));
        Ok(layouts.map(|layouts| layouts.devices()).unwrap_or_default())
    }
}

impl Service {
    /// Takes the layouts of a file, or of all files of a file system, from whoever has them. When it has
    /// returned, no data server goes by any of them.
    ///
    /// # Errors
    /// `Delay` when that is not sure yet; no new ones are given then either, if a fence stands.
    pub(crate) fn take_layouts_of(&self, object: &FenceObject) -> Result<()> {
        let concerns = |key: &Handle| match object {
            FenceObject::File(file) => file == key,
            FenceObject::FileSystem(fs) => *fs == key.fs,
        };
        let mut ended = Ended::default();
        let mut table = self.lock_table();
        let files = table.files.iter().filter(|(key, _)| concerns(key));
        let layouts: Vec<_> = files.flat_map(|(_, file)| file.layouts.clone()).collect();
        for layout in layouts {
            table.revoke(&Held::Layout(layout), true, &mut ended);
        }
        for (key, store) in table.returned_layouts.take_all(concerns) {
            table.hold_back_file(&store, key, None);
        }
        drop(table);
        if matches!(object, FenceObject::FileSystem(_)) {
            tell_of_taken(&mut ended);
        }
        self.finish(ended);
        self.fence_now(concerns)?;
        // Layouts of the last run are not known here.
        let fs = match object {
            FenceObject::File(key) => key.fs,
            FenceObject::FileSystem(fs) => *fs,
        };
        let namespace = self.namespace();
        let mut stores = namespace.exports().map(|export| export.store());
        let layouts = stores.find(|store| store.fs_id() == fs).and_then(|store| store.layouts());
        layouts.map_or(Ok(()), |layouts| layouts.settled()).map_err(|_| ServiceError::Delay)
    }
}
