//! The administrators' view of locks.

use super::book::{LockHolder, Orphan};
use super::ranges::Special;
use super::{LockKind, Locks, Range};
use crate::export::Namespace;
use crate::handle::Handle;
use crate::undo::{Entry, EntryHead};

/// The state of a lock (DAFS 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockStatus {
    /// Its holder is alive.
    Held,
    /// Its holder is gone. A conflicting request breaks it, unless the holder comes back.
    Breakable,
    /// It cannot be locked, and its bytes cannot be read or written, before it is repaired.
    Broken,
    /// It was lost, and the changes under it are to be undone before the range can be locked again.
    Undone,
}

/// A byte-range lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInfo {
    /// The file, by one of the exports that lead to it.
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
    /// Length in bytes. `u64::MAX` for all from `offset`.
    pub length: u64,
    /// For reading or writing.
    pub kind: LockKind,
    /// It outlives its holder.
    pub persist: bool,
    /// Changes under it are undone when its holder fails.
    pub autorecover: bool,
    /// It is held to repair the damage under a broken lock.
    pub repair: bool,
    /// The state.
    pub status: LockStatus,
    /// The holder, or the former one. Its key is 0 where it is not known any more.
    pub holder: LockHolder,
    /// Why the changes under it cannot be undone yet, in words.
    pub trouble: Option<String>,
}

impl Locks {
    /// Returns up to `max` of the byte-range locks of all clients. Lost locks with changes to undo
    /// come first, then broken and orphaned ones.
    pub fn info(&self, max: usize, now_ns: u64) -> Vec<LockInfo> {
        let namespace = self.exports.namespace();
        let lost =
            self.state.writers.undo.all().into_iter().filter(|entry| entry.is_lost()).take(max);
        let mut infos: Vec<_> = lost.map(|entry| of_undo(&namespace, &entry)).collect();
        let table = self.state.lock();
        let left_files =
            table.left_files.iter().filter_map(|key| Some((key, table.files.get(key)?)));
        for (key, state) in left_files {
            let file = namespace.handle_of(key);
            let broken = state.locks.broken().iter().map(|orphan| (orphan, LockStatus::Broken));
            let orphans =
                state.locks.orphans().iter().map(|orphan| (orphan, LockStatus::Breakable));
            let all =
                broken.chain(orphans).map(|(orphan, status)| of_orphan(&file, orphan, status));
            infos.extend(all.take(max.saturating_sub(infos.len())));
        }
        for file in table.files.values() {
            for held in file.locks.ranges.iter() {
                if infos.len() >= max {
                    return infos;
                }
                let state = file.lock_states.iter().find(|lock| lock.id == held.owner);
                // INVARIANT: ranges end with the state that owns them.
                let Some(state) = state else { continue };
                let client = &state.open.client;
                let status = match self.clients.is_over(client, now_ns) {
                    true => LockStatus::Breakable,
                    false => LockStatus::Held,
                };
                let holder = LockHolder::of(client, &state.owner);
                let handle = state.open.handle();
                let info = info(handle, held.range, held.kind, held.special, status, holder);
                let entry = self.state.writers.undo.find(&state.open.key);
                let recovers = entry.is_some_and(|entry| entry.is_of(state));
                infos.push(LockInfo { autorecover: info.autorecover || recovers, ..info });
            }
        }
        infos
    }
}

fn of_undo(namespace: &Namespace, entry: &Entry) -> LockInfo {
    let EntryHead { key, holder, persist, .. } = &entry.head;
    let (range, kind) = (Range { first: 0, last: u64::MAX }, LockKind::Write);
    let special = Special { number: 0, persist: *persist, autorecover: true, repair: false };
    let holder = holder.to_holder();
    let file = namespace.handle_of(key);
    let undone = info(&file, range, kind, Some(special), LockStatus::Undone, holder);
    LockInfo { trouble: entry.trouble(), ..undone }
}

fn of_orphan(file: &Handle, orphan: &Orphan, status: LockStatus) -> LockInfo {
    let holder = LockHolder::clone(&orphan.holder);
    info(file, orphan.range, orphan.kind, Some(orphan.special), status, holder)
}

fn info(
    handle: &Handle,
    range: Range,
    kind: LockKind,
    special: Option<Special>,
    status: LockStatus,
    holder: LockHolder,
) -> LockInfo {
    let is = |part: fn(&Special) -> bool| special.as_ref().is_some_and(part);
    LockInfo {
        handle: *handle,
        offset: range.first,
        length: range.length(),
        kind,
        persist: is(|special| special.persist),
        autorecover: is(|special| special.autorecover),
        repair: is(|special| special.repair),
        status,
        holder,
        trouble: None,
    }
}
