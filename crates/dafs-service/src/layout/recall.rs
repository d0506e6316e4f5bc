//! Recalls and revocation of layouts.

use super::{Inner, LayoutState, Layouts};
use crate::Result as Answer;
use crate::client::{Client, ClientKey};
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::index::Held;
use crate::limits::ENDED_AT_ONCE_MAX;
use crate::open::Clock;
use crate::state::{StateId, StateRef, next_seqid};
use crate::table::{Blocked, Ended, Notice, NoticeKind, StateTable};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl LayoutState {
    fn notice(self: &Arc<Self>) -> Notice {
        let what = NoticeKind::RecallLayout { state: self.reference(), form: self.form };
        Notice { client: self.client.clone(), handle: self.handle, what }
    }

    /// True when it was recalled more than a lease ago.
    fn is_overdue(&self, clock: Clock) -> bool {
        let recalled_ns = self.lock().recalled_ns;
        recalled_ns.is_some_and(|at_ns| clock.now_ns.saturating_sub(at_ns) > clock.lease_ns)
    }
}

impl Inner {
    /// True if the recall is to be sent again. A partial return since has changed the sequence
    /// number. A recall with the same number would be old to its holder, and one that is two ahead
    /// would be from the future.
    fn recall_again(&mut self) -> bool {
        let again = std::mem::take(&mut self.resend);
        if again && self.seqid != self.recalled_seqid {
            self.seqid = next_seqid(self.seqid);
            self.recalled_seqid = self.seqid;
        }
        again
    }
}

impl StateTable {
    /// Checks that no other client holds a layout of the file, before its placement or content
    /// changes. Recalls the layouts of others, and revokes those that were not returned in time.
    pub(crate) fn clear_layouts(
        &mut self,
        key: &Handle,
        client: &Arc<Client>,
        clock: Clock,
        ended: &mut Ended,
    ) -> Result<(), Blocked> {
        let nothing_known = self.fencing.len() == 0 && self.returned_layouts.is_empty();
        if self.counts.layouts == 0 && nothing_known {
            return Ok(());
        }
        let others = |layout: &&Arc<LayoutState>| !Arc::ptr_eq(&layout.client, client);
        let layouts = self.files.get(key).into_iter().flat_map(|file| &file.layouts);
        let layouts: Vec<_> = layouts.filter(others).cloned().collect();
        let over = layouts.iter().filter(|layout| clock.is_over(&layout.client));
        let over: Vec<_> = over.map(|layout| layout.client.clone()).collect();
        if !over.is_empty() {
            return Err(Blocked::Expire(over));
        }
        let mut notices = Vec::new();
        let mut waiting = false;
        for layout in &layouts {
            if layout.is_overdue(clock) {
                self.revoke_layout(layout, clock, ended);
            } else {
                waiting = true;
                notices.extend(self.recall_layout(layout, clock.now_ns));
            }
        }
        let returned = self.clear_returned(key, client);
        if waiting { Err(Blocked::Recall(notices)) } else { returned }
    }

    /// Checks that no data server serves another client any more for a layout of the file that it
    /// has returned.
    pub(crate) fn clear_returned(
        &mut self,
        key: &Handle,
        client: &Arc<Client>,
    ) -> Result<(), Blocked> {
        if let Some(store) = self.returned_layouts.take(key, client) {
            self.hold_back_file(&store, *key, None);
        }
        if self.fencing.holds_back(key) { Err(Blocked::Fence(*key)) } else { Ok(()) }
    }

    fn revoke_layout(&mut self, layout: &Arc<LayoutState>, clock: Clock, ended: &mut Ended) {
        // Others shall not wait for this client at each file.
        let until_ns = clock.now_ns.saturating_add(clock.lease_ns);
        layout.client.layouts_from_ns.store(until_ns, Ordering::Relaxed);
        self.revoke(&Held::Layout(layout.clone()), false, ended);
        tracing::warn!(
            client = %layout.client.name().escape_ascii(),
            "a layout was not returned in time and is revoked"
        );
    }

    /// Marks a layout as recalled. Returns the notice, unless it has been sent already.
    pub(super) fn recall_layout(
        &mut self,
        layout: &Arc<LayoutState>,
        now_ns: u64,
    ) -> Option<Notice> {
        let mut inner = layout.lock();
        let first = inner.recalled_ns.is_none();
        if first {
            // The recall is a change of the layout (RFC 8881 12.5.3).
            inner.seqid = next_seqid(inner.seqid);
            inner.recalled_seqid = inner.seqid;
        }
        inner.recalled_ns.get_or_insert(now_ns);
        let again = inner.recall_again();
        drop(inner);
        if first {
            self.recalling_layouts.insert(layout.id, layout.clone());
        }
        (first || again).then(|| layout.notice())
    }

    /// Ends a layout whose holder is gone without a report of its writes.
    pub(crate) fn abandon_layout(&mut self, layout: &Arc<LayoutState>, ended: &mut Ended) {
        self.hold_back(layout, layout.covers(true));
        self.end_layout(layout, ended);
    }

    /// Ends the layouts of a client on a file in the same way.
    pub(crate) fn abandon_layouts(
        &mut self,
        key: &Handle,
        handle: &Handle,
        client: &Arc<Client>,
        ended: &mut Ended,
    ) {
        let layouts = self.files.get(key).into_iter().flat_map(|file| &file.layouts);
        let theirs = |layout: &&Arc<LayoutState>| {
            layout.handle == *handle && Arc::ptr_eq(&layout.client, client)
        };
        let theirs: Vec<_> = layouts.filter(theirs).cloned().collect();
        theirs.iter().for_each(|layout| self.abandon_layout(layout, ended));
    }

    /// Revokes all layouts of a file.
    pub(crate) fn revoke_layouts(&mut self, key: &Handle, ended: &mut Ended) {
        let layouts = self.files.get(key).map(|file| file.layouts.clone()).unwrap_or_default();
        for layout in layouts {
            self.revoke(&Held::Layout(layout), false, ended);
        }
    }

    /// Revokes a layout, as a part of [`revoke`](Self::revoke).
    pub(crate) fn take_layout(&mut self, layout: &Arc<LayoutState>, ended: &mut Ended) {
        let written = !layout.lock().write.is_empty();
        self.hold_back(layout, written);
        self.end_layout(layout, ended);
        layout.client.is_layout_taken.store(true, Ordering::Relaxed);
    }
}

impl Layouts {
    /// Notes that the recall of a layout did not reach its holder, or that the holder does not know
    /// the layout yet. It is sent again at the next conflict, or when the client has a back channel
    /// again.
    pub fn recall_failed(&self, client: ClientKey, state: StateRef) {
        if let Some(layout) = self.find(client, state.id) {
            layout.lock().resend = true;
        }
    }

    /// Ends a layout that the client does not know (NFS4ERR_NOMATCHING_LAYOUT). The client has
    /// dropped it, or will learn of it only now, from an answer that the recall has overtaken. So
    /// no data server may honour it.
    pub fn forgotten(&self, client: ClientKey, state: StateRef) {
        let Some(layout) = self.find(client, state.id) else { return };
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        if layout.life.is_live() {
            table.abandon_layout(&layout, &mut ended);
        }
        drop(table);
        self.state.finish(ended);
    }

    fn find(&self, client: ClientKey, id: StateId) -> Option<Arc<LayoutState>> {
        match self.state.index.find(id) {
            Ok(Held::Layout(layout)) if layout.client.key() == client => Some(layout),
            _ => None,
        }
    }

    /// Sends again the recalls of layouts that did not reach a client.
    pub(crate) fn resend_recalls(&self, client: &Client) {
        let table = self.state.lock();
        let theirs = |layout: &&Arc<LayoutState>| {
            layout.client.key() == client.key() && layout.lock().recall_again()
        };
        let recalling = table.recalling_layouts.values().filter(theirs);
        let notices: Vec<_> = recalling.map(LayoutState::notice).collect();
        drop(table);
        notices.into_iter().for_each(Notice::deliver);
    }

    /// Recalls all layouts of files, because they have moved. The layouts of one client are
    /// recalled together where there are many.
    pub(super) fn recall_all(&self, keys: &[Handle], now_ns: u64) {
        let mut table = self.state.lock();
        let files = keys.iter().filter_map(|key| table.files.get(key));
        let held: Vec<_> = files.flat_map(|file| file.layouts.clone()).collect();
        let notices = table.recall_layouts(held, now_ns);
        drop(table);
        notices.into_iter().for_each(Notice::deliver);
    }

    /// Recalls all layouts, because their handles were made with a key that data servers will
    /// refuse later. Clients have a lease to return them, and get others.
    pub fn renew_all(&self, now_ns: u64) {
        let files: Vec<_> = self.state.lock().files.keys().copied().collect();
        self.recall_all(&files, now_ns);
    }

    /// Recalls all layouts of a file that is about to move and of which no new ones are granted.
    /// When this returns without an error, no data server honours any of them.
    ///
    /// # Errors
    /// `Delay` when that is not certain yet.
    pub fn vacate(&self, key: &Handle, now_ns: u64) -> Answer<()> {
        self.recall_all(&[*key], now_ns);
        let clock = Clock { now_ns, lease_ns: self.state.config.lease_ns() };
        let mut table = self.state.lock();
        if let Some(store) = table.returned_layouts.take_file(key) {
            table.hold_back_file(&store, *key, None);
        }
        let file = table.files.get(key);
        let granting = file.is_some_and(|file| file.granting > 0);
        let held = file.map(|file| file.layouts.clone()).unwrap_or_default();
        drop(table);
        for layout in held.iter().filter(|layout| clock.is_over(&layout.client)) {
            self.clients.end_lease(&layout.client, now_ns)?;
        }
        if granting || !held.is_empty() {
            return Err(ServiceError::Delay);
        }
        self.fence_if_free(key)
    }

    /// True if no client writes to a file at the data servers. A grant under way, unreported
    /// writes, and a return a moment ago count as writers. With `recall` their layouts are
    /// recalled. An expired client cannot be called, so its lease ends.
    fn has_no_writers(&self, key: &Handle, recall: bool, now_ns: u64) -> bool {
        let clock = Clock { now_ns, lease_ns: self.state.config.lease_ns() };
        let mut table = self.state.lock();
        if let Some(store) = table.returned_layouts.take_file(key) {
            table.hold_back_file(&store, *key, None);
        }
        let fenced = table.fencing.has(key);
        let Some(file) = table.files.get(key) else { return !fenced };
        let granting = file.granting > 0;
        let writes = |layout: &&Arc<LayoutState>| layout.covers(true);
        let writers: Vec<_> = file.layouts.iter().filter(writes).cloned().collect();
        let none = !granting && writers.is_empty() && !fenced;
        let recalled = writers.iter().filter(|_| recall);
        let (over, there): (Vec<_>, Vec<_>) =
            recalled.partition(|layout| clock.is_over(&layout.client));
        let notices: Vec<_> =
            there.iter().filter_map(|layout| table.recall_layout(layout, now_ns)).collect();
        drop(table);
        self.clients.expire_soon(over.iter().map(|layout| layout.client.clone()).collect());
        notices.into_iter().for_each(Notice::deliver);
        none
    }

    /// Revokes layouts that were not returned in time, and recalls those of files that have moved.
    pub(crate) fn tick(&self, now_ns: u64) {
        let mut moved = Vec::new();
        for export in self.exports.namespace().exports() {
            let store = export.store();
            let Some(layouts) = store.layouts() else { continue };
            let fs = store.fs_id();
            layouts.take_moved(&mut |file| moved.push(Handle { fs, file }));
            layouts.take_gone(&mut |device| self.device_is_gone(device));
            layouts.take_write_recalls(&mut |file, recall| {
                self.has_no_writers(&Handle { fs, file }, recall, now_ns)
            });
        }
        if !moved.is_empty() {
            self.recall_all(&moved, now_ns);
        }
        self.tell_of_devices();
        let clock = Clock { now_ns, lease_ns: self.state.config.lease_ns() };
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        table.returned_layouts.tick(now_ns);
        // A layout of an expired client ends with all its other state, when there is a conflict.
        let overdue =
            |layout: &&Arc<LayoutState>| layout.is_overdue(clock) && !clock.is_over(&layout.client);
        let overdue: Vec<_> = table.recalling_layouts.values().filter(overdue).cloned().collect();
        drop(table);
        for some in overdue.chunks(ENDED_AT_ONCE_MAX) {
            let mut table = self.state.lock();
            // Some have been returned since.
            for layout in some.iter().filter(|layout| layout.life.is_live()) {
                table.revoke_layout(layout, clock, &mut ended);
            }
        }
        self.state.finish(ended);
    }
}
