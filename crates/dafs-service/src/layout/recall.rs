//! Recalls and revocation of layouts.

use super::{Inner, LayoutState};
use crate::client::{Client, ClientKey};
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::index::Held;
use crate::limits::ENDED_AT_ONCE_MAX;
use crate::open::Clock;
use crate::state::{StateId, StateRef, next_seqid};
use crate::table::{Blocked, Ended, Notice, NoticeKind, StateTable};
use crate::{Result as Answer, Service};
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
    /// Whether the recall is to be sent again. What was given back in part since has changed the number;
    /// a recall of the same number would be old to its holder, one that is two ahead from the future.
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
    /// Checks that no other client knows where the file lies, before that, or what is there, becomes
    /// another: recalls the layouts of others, and takes away those that were not given back in time.
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
        if let Some(store) = self.returned_layouts.take(key, client) {
            self.hold_back_file(&store, *key, None);
        }
        match self.fencing.holds_back(key) {
            _ if waiting => Err(Blocked::Recall(notices)),
            true => Err(Blocked::Fence(*key)),
            false => Ok(()),
        }
    }

    fn revoke_layout(&mut self, layout: &Arc<LayoutState>, clock: Clock, ended: &mut Ended) {
        // Others shall not wait for this client with each file.
        let until_ns = clock.now_ns.saturating_add(clock.lease_ns);
        layout.client.layouts_from_ns.store(until_ns, Ordering::Relaxed);
        self.revoke(&Held::Layout(layout.clone()), false, ended);
        tracing::warn!(
            client = %layout.client.name().escape_ascii(),
            "a layout was not given back in time and is revoked"
        );
    }

    /// Marks a layout as recalled; the notice, unless it has been sent already.
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

    /// Ends a layout whose holder is gone, and did not say what it wrote.
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

    /// Takes all layouts of a file away.
    pub(crate) fn revoke_layouts(&mut self, key: &Handle, ended: &mut Ended) {
        let layouts = self.files.get(key).map(|file| file.layouts.clone()).unwrap_or_default();
        for layout in layouts {
            self.revoke(&Held::Layout(layout), false, ended);
        }
    }

    /// Takes a layout away from its holder; part of [`revoke`](Self::revoke).
    pub(crate) fn take_layout(&mut self, layout: &Arc<LayoutState>, ended: &mut Ended) {
        let written = !layout.lock().write.is_empty();
        self.hold_back(layout, written);
        self.end_layout(layout, ended);
        layout.client.is_layout_taken.store(true, Ordering::Relaxed);
    }
}

impl Service {
    /// The recall of a layout did not reach its holder, or the holder does not know it yet. It is
    /// sent again at the next conflict, or when the client has a back channel again.
    pub fn layout_recall_failed(&self, client: ClientKey, state: StateRef) {
        if let Some(layout) = self.layout_of(client, state.id) {
            layout.lock().resend = true;
        }
    }

    /// The client knows of no such layout (NFS4ERR_NOMATCHING_LAYOUT): it has given it up, or will
    /// learn of it only now, from an answer that the recall has overtaken. So no data server is to go by
    /// it.
    pub fn layout_forgotten(&self, client: ClientKey, state: StateRef) {
        let Some(layout) = self.layout_of(client, state.id) else { return };
        let mut ended = Ended::default();
        let mut table = self.lock_table();
        if layout.life.is_live() {
            table.abandon_layout(&layout, &mut ended);
        }
        drop(table);
        self.finish(ended);
    }

    fn layout_of(&self, client: ClientKey, id: StateId) -> Option<Arc<LayoutState>> {
        match self.index.find(id) {
            Ok(Held::Layout(layout)) if layout.client.key() == client => Some(layout),
            _ => None,
        }
    }

    /// Sends the recalls of a client's layouts again that did not reach it.
    pub(crate) fn resend_layout_recalls(&self, client: &Client) {
        let table = self.lock_table();
        let theirs = |layout: &&Arc<LayoutState>| {
            layout.client.key() == client.key() && layout.lock().recall_again()
        };
        let recalling = table.recalling_layouts.values().filter(theirs);
        let notices: Vec<_> = recalling.map(LayoutState::notice).collect();
        drop(table);
        notices.into_iter().for_each(Notice::deliver);
    }

    /// Recalls all layouts of a file, because it lies elsewhere now.
    pub(crate) fn recall_layouts_of(&self, key: &Handle, now_ns: u64) {
        self.recall_layouts_of_all(&[*key], now_ns);
    }

    /// The same of many files, whose layouts go together where one client has many.
    fn recall_layouts_of_all(&self, keys: &[Handle], now_ns: u64) {
        let mut table = self.lock_table();
        let files = keys.iter().filter_map(|key| table.files.get(key));
        let held: Vec<_> = files.flat_map(|file| file.layouts.clone()).collect();
        let notices = table.recall_layouts(held, now_ns);
        drop(table);
        notices.into_iter().for_each(Notice::deliver);
    }

    /// Has everybody give back the layouts of a file of which no new ones are given, because it is about
    /// to lie elsewhere. Done when it has returned without an error: then no data server goes by any.
    ///
    /// # Errors
    /// `Delay` when it is not done yet.
    pub fn vacate(&self, key: &Handle, now_ns: u64) -> Answer<()> {
        self.recall_layouts_of(key, now_ns);
        let clock = Clock { now_ns, lease_ns: self.lease_ns() };
        let mut table = self.lock_table();
        if let Some(store) = table.returned_layouts.take_file(key) {
            table.hold_back_file(&store, *key, None);
        }
        let file = table.files.get(key);
        let granting = file.is_some_and(|file| file.granting > 0);
        let held = file.map(|file| file.layouts.clone()).unwrap_or_default();
        drop(table);
        for layout in held.iter().filter(|layout| clock.is_over(&layout.client)) {
            self.end_lease(&layout.client, now_ns)?;
        }
        if granting || !held.is_empty() {
            return Err(ServiceError::Delay);
        }
        self.fence_if_free(key)
    }

    /// Whether nobody writes to a file at the data servers, nor is about to be told where, nor has gone
    /// without a word, nor may be served for what was given back a moment ago. With `recall` those who do
    /// are asked to stop; who is away cannot be asked, and loses its lease.
    fn has_no_writers(&self, key: &Handle, recall: bool, now_ns: u64) -> bool {
        let clock = Clock { now_ns, lease_ns: self.lease_ns() };
        let mut table = self.lock_table();
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
        self.doom(over.iter().map(|layout| layout.client.clone()).collect());
        notices.into_iter().for_each(Notice::deliver);
        none
    }

    /// Takes away what was not given back in time, and recalls the layouts of files that lie elsewhere now.
    pub(crate) fn tick_layouts(&self, now_ns: u64) {
        let mut moved = Vec::new();
        for export in self.namespace().exports() {
            let store = export.store();
            let Some(layouts) = store.layouts() else { continue };
            let fs = store.fs_id();
            layouts.take_moved(&mut |file| moved.push(Handle { fs, file }));
            layouts.take_gone(&mut |device| self.device_is_gone(device));
            layouts.take_lent(&mut |file, recall| {
                self.has_no_writers(&Handle { fs, file }, recall, now_ns)
            });
        }
        if !moved.is_empty() {
            self.recall_layouts_of_all(&moved, now_ns);
        }
        self.tell_of_devices();
        let clock = Clock { now_ns, lease_ns: self.lease_ns() };
        let mut ended = Ended::default();
        let mut table = self.lock_table();
        table.returned_layouts.tick(now_ns);
        // One whose holder is away goes with everything else it has, when somebody needs it.
        let overdue =
            |layout: &&Arc<LayoutState>| layout.is_overdue(clock) && !clock.is_over(&layout.client);
        let overdue: Vec<_> = table.recalling_layouts.values().filter(overdue).cloned().collect();
        drop(table);
        for some in overdue.chunks(ENDED_AT_ONCE_MAX) {
            let mut table = self.lock_table();
            // Some have come back since.
            for layout in some.iter().filter(|layout| layout.life.is_live()) {
                table.revoke_layout(layout, clock, &mut ended);
            }
        }
        self.finish(ended);
    }
}
