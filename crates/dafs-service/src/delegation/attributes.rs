//! Attributes of files on which another client has a write delegation: the server asks the holder
//! for size and change attribute (CB_GETATTR, RFC 8881 10.4.3).

use super::{DelegationState, Delegations, Inner};
use crate::client::Client;
use crate::handle::Handle;
use crate::limits::{ATTR_ANSWER_FRESH_NS, ATTR_ANSWER_WAIT_NS};
use crate::open::Break;
use crate::table::{Blocked, Notice, NoticeKind};
use crate::{Caller, Result};
use dafs_store::{Attr, TimeSpec};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// The answer of the holder of a write delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttrAnswer {
    /// Its change attribute. It differs from the granted one when the holder has changed the file.
    pub change: u64,
    /// Its size, in bytes.
    pub size: u64,
    /// Time of the last access, from a holder that may set it (RFC 9754).
    pub atime: Option<TimeSpec>,
    /// Time of the last change of the content, from such a holder.
    pub mtime: Option<TimeSpec>,
}

/// A query to a holder.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query {
    number: u64,
    asked_ns: u64,
    answer: Answer,
    /// A caller has used the answer.
    used: bool,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Awaited,
    Failed,
    Is(AttrAnswer),
}

/// The next step for a query.
enum Step {
    Use(AttrAnswer),
    Ask,
    Await,
    Recall,
}

impl Query {
    fn step(query: &mut Option<Self>, now_ns: u64) -> Step {
        let Some(query) = query else { return Step::Ask };
        let age_ns = now_ns.saturating_sub(query.asked_ns);
        match query.answer {
            Answer::Is(answer)
                if age_ns < ATTR_ANSWER_FRESH_NS || !query.used && age_ns < ATTR_ANSWER_WAIT_NS =>
            {
                query.used = true;
                Step::Use(answer)
            }
            Answer::Is(_) => Step::Ask,
            Answer::Awaited if age_ns < ATTR_ANSWER_WAIT_NS => Step::Await,
            Answer::Awaited | Answer::Failed => Step::Recall,
        }
    }
}

impl DelegationState {
    /// The number of the query that its holder has not answered yet.
    pub(crate) fn awaited_query(&self) -> Option<u64> {
        let query = self.lock().query?;
        matches!(query.answer, Answer::Awaited).then_some(query.number)
    }
}

impl Delegations {
    /// Returns the attributes for this caller. If another client holds a write delegation, it is
    /// asked. If this caller may have written at data servers, they are.
    ///
    /// # Errors
    /// The store's. `WouldWait`, `Delay` while these have not answered.
    pub fn attributes(&self, caller: Caller<'_>, handle: &Handle) -> Result<Attr> {
        let namespace = self.exports.namespace();
        let export = namespace.export(handle)?;
        let key = export.key(handle);
        self.layouts.extend_to_own_writes(caller, export, handle)?;
        if !self.state.guards.maybe_guarded(&key) {
            return self.state.getattr_in(export, handle);
        }
        match self.ask_holder(caller, &key)? {
            Some((delegation, answer)) => {
                let attr = self.state.getattr_in(export, handle)?;
                Ok(merged(&mut delegation.lock(), attr, &answer))
            }
            None => self.state.getattr_in(export, handle),
        }
    }

    fn ask_holder(
        &self,
        caller: Caller<'_>,
        key: &Handle,
    ) -> Result<Option<(Arc<DelegationState>, AttrAnswer)>> {
        let clock = self.state.clock(caller);
        self.conflicts.enter(caller, |table, ended| {
            let other = |delegation: &&Arc<DelegationState>| {
                delegation.kind.writes() && !Arc::ptr_eq(&delegation.client, caller.client)
            };
            let file = table.files.get(key);
            let holder = file.and_then(|file| file.delegations.iter().find(other)).cloned();
            // A holder that cannot be reached does not block other clients.
            let reachable = |delegation: &Arc<DelegationState>| {
                delegation.client.back_channel() && !clock.is_over(&delegation.client)
            };
            let Some(holder) = holder.filter(reachable) else { return Ok(None) };
            let mut inner = holder.lock();
            match Query::step(&mut inner.query, caller.now_ns) {
                Step::Use(answer) => {
                    drop(inner);
                    Ok(Some((holder, answer)))
                }
                Step::Await => Err(Blocked::Recall(Vec::new())),
                Step::Ask => {
                    let number = self.queries.fetch_add(1, Ordering::Relaxed);
                    let (asked_ns, answer) = (caller.now_ns, Answer::Awaited);
                    inner.query = Some(Query { number, asked_ns, answer, used: false });
                    drop(inner);
                    let (client, handle) = (holder.client.clone(), holder.handle);
                    let what = NoticeKind::GetAttr { query: number };
                    table.queries.insert(number, holder);
                    Err(Blocked::Recall(vec![Notice { client, handle, what }]))
                }
                Step::Recall => {
                    drop(inner);
                    table.clear_delegations(key, caller.client, Break::Read, clock, ended)?;
                    Ok(None)
                }
            }
        })
    }

    /// Takes the holder's answer to [`Front::get_attr`](crate::Front::get_attr). `None` means that
    /// the call failed: then the delegation is recalled.
    pub fn attr_answer(&self, client: &Client, query: u64, answer: Option<AttrAnswer>) {
        let mut table = self.state.lock();
        let theirs = |delegation: &Arc<DelegationState>| delegation.client.key() == client.key();
        if !table.queries.get(&query).is_some_and(theirs) {
            return;
        }
        let Some(delegation) = table.queries.remove(&query) else { return };
        if let Some(asked) = &mut delegation.lock().query
            && asked.number == query
        {
            asked.answer = answer.map_or(Answer::Failed, Answer::Is);
        }
        drop(table);
        self.state.returned.notify_all();
    }
}

/// Merges the holder's answer into the store's attributes. As long as the holder has changes that
/// it has not written back, every query sees another change attribute.
fn merged(inner: &mut Inner, attr: Attr, answer: &AttrAnswer) -> Attr {
    // The store knows the changes that were written back.
    let (change, size) = inner.granted;
    if answer.change == change && (answer.size == size || answer.size == attr.size) {
        return attr;
    }
    inner.looks += 1;
    // Times of files are wall clock times. The service uses the wall clock for nothing else.
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = TimeSpec {
        seconds: i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since_epoch.subsec_nanos(),
    };
    Attr {
        size: answer.size,
        change: attr.change.max(inner.granted.0).wrapping_add(inner.looks),
        mtime: answer.mtime.unwrap_or(now),
        atime: answer.atime.unwrap_or(attr.atime),
        ctime: now,
        ..attr
    }
}
