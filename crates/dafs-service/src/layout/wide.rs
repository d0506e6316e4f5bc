//! Recalls of many layouts of one client at once: of a file system, or of all (RFC 8881 20.3).
//!
//! Invariants
//! * Files are recalled one by one, each with its sequence number, unless that would take many
//!   calls and most of the client's layouts would be recalled anyway.
//! * While such a recall is out, the client gets no layout that it concerns, for a lease at most: a
//!   new layout could not be distinguished from those that it returns.
//! * A client that does not understand such a recall gets no other one.
//! * A layout in such a recall counts as recalled. If it is not returned in time, it is revoked.

use super::{LayoutState, Layouts};
use crate::client::{Client, ClientKey};
use crate::handle::Handle;
use crate::index::Held;
use crate::limits::LAYOUT_RECALLS_ONE_BY_ONE_MAX;
use crate::state::StateId;
use crate::table::{Ended, Notice, NoticeKind, StateTable};
use crate::{Result, ServiceError};
use dafs_mem::Mutex;
use dafs_store::{FsId, LayoutForm};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Layouts of one client and one file system, at least one.
type Group = Vec<Arc<LayoutState>>;

/// The wide recalls of one client.
#[derive(Default)]
pub(crate) struct WideRecalls {
    /// It does not understand recalls of this kind.
    refused: AtomicBool,
    pending: Mutex<Vec<Pending>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Pending {
    /// The file system, as the client names it. `None` for all.
    of: Option<FsId>,
    form: LayoutForm,
    since_ns: u64,
}

impl Pending {
    fn concerns(&self, fs: FsId, form: LayoutForm) -> bool {
        self.form == form && self.of.is_none_or(|own| own == fs)
    }
}

impl WideRecalls {
    fn begin(&self, of: Option<FsId>, form: LayoutForm, since_ns: u64) {
        let mut pending = self.pending.lock();
        pending.retain(|old| (old.of, old.form) != (of, form));
        pending.push(Pending { of, form, since_ns });
    }

    /// Ends a wide recall: the client has returned all layouts of a file system, or all it had.
    pub(super) fn end(&self, of: Option<FsId>, form: LayoutForm) {
        self.pending.lock().retain(|old| old.form != form || (of.is_some() && old.of != of));
    }
}

impl StateTable {
    /// Recalls layouts. Those of one client are recalled together where there are many.
    pub(super) fn recall_layouts(
        &mut self,
        layouts: Vec<Arc<LayoutState>>,
        now_ns: u64,
    ) -> Vec<Notice> {
        let mut groups: FxHashMap<_, Vec<_>> = FxHashMap::default();
        for layout in layouts {
            let group = (layout.client.key(), layout.handle.fs, layout.form);
            groups.entry(group).or_default().push(layout);
        }
        let (mut notices, mut wide) = (Vec::new(), Vec::new());
        for ((client, fs, form), group) in groups {
            let held = self.layouts_of_client(client, form, Some(fs));
            let fresh = |layout: &&Arc<LayoutState>| layout.lock().recalled_ns.is_none();
            let fresh = group.iter().filter(fresh).count();
            let many = fresh > LAYOUT_RECALLS_ONE_BY_ONE_MAX && 2 * fresh >= held.len();
            if many && !group[0].client.wide_recalls.refused.load(Ordering::SeqCst) {
                wide.push(held);
            } else {
                notices
                    .extend(group.iter().filter_map(|layout| self.recall_layout(layout, now_ns)));
            }
        }
        notices.extend(self.recall_wide(wide, now_ns));
        notices
    }

    /// Recalls file systems. They are recalled together when there are several, and they hold all
    /// layouts of that form of the client.
    fn recall_wide(&mut self, wide: Vec<Group>, now_ns: u64) -> Vec<Notice> {
        let mut clients: FxHashMap<_, Vec<Group>> = FxHashMap::default();
        for group in wide {
            clients.entry((group[0].client.key(), group[0].form)).or_default().push(group);
        }
        let mut notices = Vec::new();
        for ((client, form), groups) in clients {
            groups.iter().flatten().for_each(|layout| self.mark_recalled(layout, now_ns));
            let recalled = groups.iter().map(Vec::len).sum::<usize>();
            let all =
                groups.len() > 1 && self.layouts_of_client(client, form, None).len() == recalled;
            let groups = if all { &groups[..1] } else { &groups[..] };
            notices.extend(groups.iter().map(|group| {
                let LayoutState { client, handle, .. } = &*group[0];
                client.wide_recalls.begin((!all).then_some(handle.fs), form, now_ns);
                let what = NoticeKind::RecallLayouts { all, form };
                Notice { client: client.clone(), handle: *handle, what }
            }));
        }
        notices
    }

    /// The live layouts of a client in one form, of one file system or of all.
    fn layouts_of_client(
        &self,
        client: ClientKey,
        form: LayoutForm,
        of: Option<FsId>,
    ) -> Vec<Arc<LayoutState>> {
        let held = self.by_client.get(&client);
        let ids: Vec<StateId> = held.into_iter().flat_map(|held| &held.layouts).copied().collect();
        let layouts = ids.into_iter().filter_map(|id| match self.index.find(id) {
            Ok(Held::Layout(layout)) => Some(layout),
            _ => None,
        });
        let wanted = |layout: &Arc<LayoutState>| {
            layout.form == form && of.is_none_or(|fs| layout.handle.fs == fs)
        };
        layouts.filter(wanted).collect()
    }

    /// Marks a layout as recalled without a new sequence number, because a wide recall names none.
    fn mark_recalled(&mut self, layout: &Arc<LayoutState>, now_ns: u64) {
        layout.lock().recalled_ns.get_or_insert(now_ns);
        self.recalling_layouts.insert(layout.id, layout.clone());
    }
}

/// Notifies clients of revoked layouts, such as those of an export that is gone, so that they need
/// not discover each. A client that is not reached discovers them one by one.
pub(crate) fn tell_of_taken(ended: &mut Ended) {
    let mut told: Vec<(ClientKey, FsId, LayoutForm)> = Vec::new();
    let mut notices = Vec::new();
    for held in &ended.held {
        let Held::Layout(layout) = held else { continue };
        let group = (layout.client.key(), layout.handle.fs, layout.form);
        let refused = layout.client.wide_recalls.refused.load(Ordering::SeqCst);
        if !refused && !told.contains(&group) {
            told.push(group);
            let what = NoticeKind::RecallLayouts { all: false, form: layout.form };
            notices.push(Notice { client: layout.client.clone(), handle: layout.handle, what });
        }
    }
    ended.notices.extend(notices);
}

impl Layouts {
    /// Refuses a layout while the client is asked to return all of its kind.
    pub(super) fn check_wide_recalls(
        &self,
        client: &Client,
        handle: &Handle,
        form: LayoutForm,
        now_ns: u64,
    ) -> Result<()> {
        let lease_ns = self.state.config.lease_ns();
        let mut pending = client.wide_recalls.pending.lock();
        // The layouts of a client that has not answered for so long have been revoked.
        pending.retain(|recall| now_ns.saturating_sub(recall.since_ns) <= lease_ns);
        match pending.iter().any(|recall| recall.concerns(handle.fs, form)) {
            true => Err(ServiceError::RecallConflict),
            false => Ok(()),
        }
    }

    /// Ends the layouts of a wide recall that the client does not have: of the file system of `of`,
    /// or of all. It has dropped them, or will learn of them only now. So no data server may honour
    /// any.
    pub fn wide_forgotten(&self, client: ClientKey, of: Option<&Handle>, form: LayoutForm) {
        let of = of.map(|handle| handle.fs);
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        for layout in table.layouts_of_client(client, form, of) {
            let recalled = layout.lock().recalled_ns.is_some();
            if recalled && layout.life.is_live() {
                table.abandon_layout(&layout, &mut ended);
            }
        }
        drop(table);
        self.state.finish(ended);
        if let Ok(client) = self.clients.find(client) {
            client.wide_recalls.end(of, form);
        }
    }

    /// Notes that a wide recall did not reach the client, or that the client does not understand
    /// it. Its layouts are recalled one by one at the next conflict, or when the client has a back
    /// channel again.
    pub fn wide_recall_failed(&self, client: ClientKey, of: Option<&Handle>, form: LayoutForm) {
        let of = of.map(|handle| handle.fs);
        let Ok(known) = self.clients.find(client) else { return };
        known.wide_recalls.refused.store(true, Ordering::SeqCst);
        known.wide_recalls.end(of, form);
        for layout in self.state.lock().layouts_of_client(client, form, of) {
            let mut inner = layout.lock();
            inner.resend = inner.recalled_ns.is_some();
        }
    }
}
