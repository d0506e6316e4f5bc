//! Layouts: a client's right to read and write the content of a file at the data servers (RFC 8881
//! 12).
//!
//! Invariants
//! * A layout covers the whole file. Its holder may return it in parts. When no part is left, the
//!   layout ends. It ends with its holder's last open or delegation of the file (return_on_close).
//! * Layouts of several clients are compatible: the data servers order their I/O, as one server
//!   would. A change of the file behind layouts (a smaller size, a removal, another placement)
//!   waits until they have been returned.
//! * A layout that is not returned within a lease of its recall is revoked. A conflicting operation
//!   goes on only when no data server honours the layout any more ([`Fencing`]). The same holds for
//!   the holder's opens, locks and delegations when they are lost together with it. For others it
//!   also holds after an orderly return ([`Returned`]).
//! * Stock clients return layouts without a LAYOUTCOMMIT of their writes. So the server extends the
//!   file to its size at the data servers before it answers LAYOUTRETURN of a file. It does so soon
//!   after a return of many layouts, or after a layout has ended with its holder's last open. In
//!   any case it does so before the file is locked again.
//! * A modification time that a writer sets applies to its writes before. It does not replace the
//!   time of later changes.
//! * A client's write through this server is ordered after the writes that it has sent to data
//!   servers before ([`late`]).
//! * After a restart there are no layouts: clients ask again.

mod asking;
mod commit;
mod devices;
mod ends;
mod fencing;
mod grant;
mod late;
mod mtime;
mod recall;
mod report;
mod restart;
mod returned;
mod searchers;
mod spans;
mod ticket;
mod use_report;
mod vouch;
mod wide;

pub use grant::{LayoutGranted, LayoutRequest};
pub use ticket::{DeviceWithTicket, Ticket};
pub use use_report::{DeviceUse, IoCount};

use dafs_mem::Shrinking as _;
use devices::WatchedDevices;
pub(crate) use devices::Watching;
pub(crate) use fencing::Fencing;
pub(crate) use late::{DirectWriters, Late};
pub(crate) use returned::Returned;
pub(crate) use wide::{WideRecalls, tell_of_taken};

use crate::client::{Client, Clients, Holding};
use crate::enter::State;
use crate::error::ServiceError;
use crate::export::Exports;
use crate::fence::{FenceObject, Fences};
use crate::handle::Handle;
use crate::hosts::Shared;
use crate::index::{Held, Life};
use crate::limits::ENDED_AT_ONCE_MAX;
use crate::state::{StateId, StateRef, check_seqid, next_seqid};
use crate::table::{Ended, StateTable};
use crate::{Caller, Result};
use dafs_mem::Mutex;
use dafs_store::{Device, DeviceKey, FsId, LayoutForm, Store, TimeSpec, Wait};
use fencing::Written;
use rustc_hash::FxHashSet;
use spans::Spans;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// All layouts, and the devices that their clients are to be notified of.
pub struct Layouts {
    exports: Arc<Exports>,
    state: Arc<State>,
    clients: Arc<Clients>,
    fences: Arc<Fences>,
    watched_devices: WatchedDevices,
}

impl Layouts {
    pub(crate) fn new(exports: Arc<Exports>, clients: Arc<Clients>, fences: Arc<Fences>) -> Self {
        let (state, watched_devices) = (clients.state.clone(), WatchedDevices::default());
        Self { exports, state, clients, fences, watched_devices }
    }
}

/// One client's layout of one file.
pub(crate) struct LayoutState {
    pub(crate) id: StateId,
    pub(crate) client: Arc<Client>,
    /// The handle of the file that its holder uses.
    pub(crate) handle: Handle,
    /// The key under which layouts of the file are compared.
    pub(crate) key: Handle,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) form: LayoutForm,
    /// The lifetime of authorisations for this layout in the caches of data servers.
    grant_ttl: Duration,
    /// A data server was told that its holder may write there.
    written: AtomicBool,
    /// Its holder got no answer to a write there.
    failing: AtomicBool,
    pub(crate) life: Life,
    inner: Mutex<Inner>,
}

struct Inner {
    seqid: u32,
    /// The sequence number in the last grant.
    granted_seqid: u32,
    /// The names of the file's components at the data servers.
    components: Vec<Box<[u8]>>,
    /// The devices of its placement.
    devices: Vec<DeviceKey>,
    /// The last statistics that its holder has reported.
    use_reports: Vec<DeviceUse>,
    /// The parts held for reading only, and those for reading and writing.
    read: Spans,
    write: Spans,
    /// The modification time that its holder has set since its last write, as tar does.
    own_mtime: Option<TimeSpec>,
    /// No data server has asked about a write since this was set.
    quiet: bool,
    /// The time of its first recall.
    recalled_ns: Option<u64>,
    /// The sequence number in its last recall.
    recalled_seqid: u32,
    /// The recall could not be delivered.
    resend: bool,
}

/// The kind of use of a layout (layoutiomode4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutMode {
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
    /// Either. Only for a return.
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

    /// True if its holder may read, or write, at the data servers.
    pub(crate) fn covers(&self, write: bool) -> bool {
        let inner = self.lock();
        self.life.is_live() && (!inner.write.is_empty() || !write && !inner.read.is_empty())
    }

    /// Returns the note about writes that its holder may not have reported.
    fn written(&self, goes_on: bool) -> Written {
        Written { goes_on, mtime: self.lock().own_mtime, client: Some(self.client.key()) }
    }

    /// True if its holder may have written without reporting it.
    fn is_written(&self) -> bool {
        self.written.load(Ordering::SeqCst)
    }

    /// Returns a part of the layout. True if any part is left.
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

    /// True if this is a name of the file at a data server.
    fn leads_to(&self, component: &[u8]) -> bool {
        self.lock().components.iter().any(|known| **known == *component)
    }

    /// The layout, for administrators.
    pub(crate) fn holding(&self) -> Holding {
        let inner = self.lock();
        let (write, recalled) = (!inner.write.is_empty(), inner.recalled_ns.is_some());
        Holding::Layout { handle: self.handle, write, recalled }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
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

    /// Ends a layout that its holder has returned, or does not need. Notes the questions to data
    /// servers that follow from that.
    pub(crate) fn release_layout(&mut self, layout: &Arc<LayoutState>, ended: &mut Ended) {
        // With copies, the server could not find out which one is right. Their clients report
        // failures.
        let written = layout.is_written() && layout.form == LayoutForm::Stripes;
        if layout.failing.load(Ordering::SeqCst) {
            // A failed write may be executed late, but must not come after the holder's next
            // operation.
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

    /// Removes a layout from everything but the index.
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
        self.recalling_layouts.remove_and_shrink(&layout.id);
        if let Some(holdings) = self.by_client.get_mut(&client) {
            holdings.layouts.remove_and_shrink(&layout.id);
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
        if file.layouts.is_empty() && file.direct_writers.is_none()
            || file.opens.iter().any(|open| Arc::ptr_eq(&open.client, client))
            || file.delegations.iter().any(|held| Arc::ptr_eq(&held.client, client))
        {
            return;
        }
        file.remove_direct_writer(client.key());
        let theirs = |layout: &&Arc<LayoutState>| Arc::ptr_eq(&layout.client, client);
        let layouts: Vec<_> = file.layouts.iter().filter(theirs).cloned().collect();
        for layout in layouts {
            // A holder that closes the file after a recall has returned the layout.
            self.release_layout(&layout, ended);
        }
    }
}

impl Layouts {
    /// Takes the return of one file's layout (LAYOUTRETURN). Returns the state-id of the rest, if
    /// any is left.
    ///
    /// # Errors
    /// `OldStateId` for a state-id from before the last grant, those of the state-id, `WouldWait`.
    pub fn return_one(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        mode: LayoutMode,
        range: (u64, u64),
    ) -> Result<Option<StateRef>> {
        let layout = self.layout(caller, handle, state)?;
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        layout.life.check()?;
        // Its holder must know all that it returns. It may not have received a recall yet.
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
        self.state.finish(ended);
        if !left && layout.is_written() {
            self.recover_sizes(caller.client, &[layout.key]);
        }
        Ok(left.then_some(reference))
    }

    /// Takes the return of all layouts of a client in one form for some use: of one file system,
    /// that of `handle`, or of all (LAYOUTRETURN with FSID or ALL). For one file system it may wait
    /// for data servers for a while. For all it does not wait.
    pub fn return_many(
        &self,
        caller: Caller<'_>,
        of: Option<&Handle>,
        form: LayoutForm,
        mode: LayoutMode,
    ) {
        let (mut ended, mut written) = (Ended::default(), Vec::new());
        let table = self.state.lock();
        let held = table.by_client.get(&caller.client.key());
        let ids: Vec<StateId> = held.into_iter().flat_map(|held| &held.layouts).copied().collect();
        drop(table);
        // There may be many, and most of them of another form.
        for some in ids.chunks(ENDED_AT_ONCE_MAX) {
            let mut table = self.state.lock();
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
        self.state.finish(ended);
        if of.is_some() {
            self.recover_sizes(caller.client, &written);
        }
        if mode == LayoutMode::Any {
            caller.client.wide_recalls.end(of.map(|handle| handle.fs), form);
        }
    }

    /// Finds the layout of a state-id. An earlier sequence number is accepted, too: a client has
    /// several requests about one layout under way (RFC 8881 12.5.3).
    fn layout(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
    ) -> Result<Arc<LayoutState>> {
        match self.state.held(caller, Some(handle), state.id.into())? {
            Held::Layout(layout) => match check_seqid(layout.seqid(), state.seqid) {
                Ok(()) | Err(ServiceError::OldStateId) => Ok(layout),
                Err(error) => Err(error),
            },
            _ => Err(ServiceError::BadStateId),
        }
    }

    /// True if any export has its files on data servers.
    pub fn exist(&self) -> bool {
        self.exports.namespace().exports().any(|export| export.store().layouts().is_some())
    }

    /// True if clients that speak DAFS may get layouts of files in the export of an object.
    pub fn tells_of_layouts(&self, handle: &Handle) -> bool {
        let namespace = self.exports.namespace();
        let layouts = namespace.export(handle).ok().and_then(|export| export.store().layouts());
        layouts.is_some_and(|layouts| {
            let devices = layouts.devices();
            let is_served = |device: &DeviceKey| layouts.dafs_servers(device).is_some();
            // Without any devices it is not known yet if they will be served.
            layouts.mac(b"").is_some() && (devices.is_empty() || devices.iter().any(is_served))
        })
    }

    /// Finds a device of any export.
    pub fn device(&self, key: &DeviceKey) -> Option<Device> {
        let namespace = self.exports.namespace();
        let mut layouts = namespace.exports().filter_map(|export| export.store().layouts());
        layouts.find_map(|layouts| layouts.device(key))
    }

    /// The devices of the export of an object, if its layouts have this form.
    ///
    /// # Errors
    /// `BadHandle`.
    pub fn devices(&self, handle: &Handle, form: LayoutForm) -> Result<Vec<DeviceKey>> {
        let namespace = self.exports.namespace();
        let store = namespace.export(handle)?.store();
        let layouts = store.layouts().filter(|_| store.capabilities().layouts == Some(form));
        Ok(layouts.map(|layouts| layouts.devices()).unwrap_or_default())
    }

    /// Revokes the layouts of all files. When it has returned, no data server honours any of them.
    ///
    /// # Errors
    /// `Delay` when that is not certain yet.
    pub fn take_all(&self) -> Result<()> {
        let namespace = self.exports.namespace();
        let stores = namespace.exports().map(|export| export.store());
        let with_layouts = stores.filter(|store| store.layouts().is_some());
        let file_systems: FxHashSet<FsId> = with_layouts.map(|store| store.fs_id()).collect();
        // One that has to wait leaves none of the others out.
        let taken = file_systems.into_iter().map(|fs| self.take_of(&FenceObject::FileSystem(fs)));
        taken.fold(Ok(()), Result::and)
    }

    /// Revokes the layouts of a file, or of all files of a file system. When it has returned, no
    /// data server honours any of them.
    ///
    /// # Errors
    /// `Delay` when that is not certain yet. New layouts are not granted then either, if a fence
    /// exists.
    pub(crate) fn take_of(&self, object: &FenceObject) -> Result<()> {
        let concerns = |key: &Handle| match object {
            FenceObject::File(file) => file == key,
            FenceObject::FileSystem(fs) => *fs == key.fs,
        };
        let mut ended = Ended::default();
        let mut table = self.state.lock();
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
        self.state.finish(ended);
        self.fence_now(concerns)?;
        // Layouts of the last run are not known here.
        let fs = match object {
            FenceObject::File(key) => key.fs,
            FenceObject::FileSystem(fs) => *fs,
        };
        let namespace = self.exports.namespace();
        let mut stores = namespace.exports().map(|export| export.store());
        let layouts = stores.find(|store| store.fs_id() == fs).and_then(|store| store.layouts());
        layouts
            .map_or(Ok(()), |layouts| layouts.old_grants_expired())
            .map_err(|_| ServiceError::Delay)
    }
}
