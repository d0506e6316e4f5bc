//! What was written at data servers is made stable, told to the server, and the layout given back.
//!
//! Invariants
//! * A layout is given back only when nothing that was sent by it is unanswered.
//! * Unstable data is committed before its layout goes, or counted as lost.

use super::Layouts;
use super::ask::is_layout_lost;
use super::file::{FileLayout, Grant, Name};
use super::plan::Unusable;
use super::sent::{Committing, Uncommitted};
use crate::attributes::FileHandle;
use crate::backoff::{Backoff, is_passing};
use crate::driver::Shared;
use crate::error::{Error, Result};
use crate::limit::{self, Limit, without};
use crate::limits::LAYOUT_CHANNEL_TIME;
use dafs_parallel::limits::NODE_ANSWER_TIMEOUT;
use dafs_wire::dafs::{
    AttrMask, GetAttrInline, LayoutError, LayoutScope, Procedure, Reply, Request, Seq, Status,
    Verifier, XLayoutCommit, XLayoutReturn,
};
use std::sync::Arc;
use std::time::Duration;

/// How often it is tried to tell the server what was written, by other layouts each time.
const TELL_TRIES: u32 = 2;

impl Layouts {
    /// Gives a layout back, if it is held, with the errors that are the reason. When this returns it is
    /// not held any more.
    pub(super) fn give_back(
        &self,
        shared: &Arc<Shared>,
        layout: &FileLayout,
        grant: &Arc<Grant>,
        errors: &[LayoutError],
    ) {
        // What others have under way, and have written, is not given up because this thread is in a hurry; and
        // who finds it given back believes that the server knows.
        without(|| self.give_back_now(shared, layout, grant, errors));
    }

    fn give_back_now(
        &self,
        shared: &Arc<Shared>,
        layout: &FileLayout,
        grant: &Arc<Grant>,
        errors: &[LayoutError],
    ) {
        if !layout.begin_return(grant) {
            return;
        }
        layout.flights().iter().for_each(|sent| sent.settle_beside());
        let mut errors = errors.to_vec();
        errors.extend(commit_data(shared, layout, grant));
        // With errors it is told by right of another layout, that the server gives when it knows of them.
        let told = if errors.is_empty() { self.try_tell(shared, layout).map(drop) } else { Ok(()) };
        if let Some((_, name)) = layout.held() {
            let returned = return_layout(shared, layout.handle, name, &errors);
            if let Err(error) = returned.and(told) {
                tracing::debug!(%error, "a layout was given back");
            }
        }
        layout.returned();
    }

    /// Has everything stable that was written, and the server know of it. Gives the verifier of all
    /// data servers.
    pub(super) fn commit(&self, shared: &Arc<Shared>, layout: &FileLayout) -> Result<Verifier> {
        if let Some((grant, _)) = layout.held() {
            let errors = without(|| commit_data(shared, layout, &grant));
            if !errors.is_empty() {
                self.give_back(shared, layout, &grant, &errors);
            }
        }
        self.tell(shared, layout)?;
        Ok(Verifier(layout.verifier()))
    }

    /// Tells the server what was written, if that has not been done.
    pub(super) fn tell(&self, shared: &Arc<Shared>, layout: &FileLayout) -> Result<()> {
        // A layout that is gone is asked for once more.
        for _ in 0..TELL_TRIES {
            if self.try_tell(shared, layout)? {
                return Ok(());
            }
            layout.await_return();
        }
        // Whoever gave the layout back may have told it, and the server looks how far the file reaches then.
        let Some(written) = layout.written() else { return Ok(()) };
        let size = size_of(shared, layout.handle)?;
        if size >= written.end {
            layout.told(written, Some(size));
            return Ok(());
        }
        // It is there; only that nobody leaves the layout alone.
        let (procedure, status) = (Procedure::XLayoutCommit, Status::Delay);
        Err(Error::Status { procedure, status })
    }

    /// The same; false while there is no layout to tell it by, because one that is of no use for that is
    /// being given back.
    fn try_tell(&self, shared: &Arc<Shared>, layout: &FileLayout) -> Result<bool> {
        if layout.written().is_none() {
            return Ok(true);
        }
        let _one_at_a_time = layout.telling();
        // Who is asked whether to stop may use the file.
        limit::unstopped(|| self.tell_now(shared, layout))
    }

    fn tell_now(&self, shared: &Arc<Shared>, layout: &FileLayout) -> Result<bool> {
        let (mut tries, mut patience) = (TELL_TRIES, Backoff::new(Some(patience_of(shared))));
        while tries > 0 {
            let Some(written) = layout.written() else { return Ok(true) };
            let held = match layout.held().filter(|(grant, _)| grant.write) {
                Some(held) => Some(held),
                None if layout.is_returning() => return Ok(false),
                None => self.ask_to_tell(shared, layout)?,
            };
            let Some((grant, name)) = held else {
                // When the layout was given back the server has looked how far the file reaches.
                let size = size_of(shared, layout.handle)?;
                if size >= written.end {
                    layout.told(written, Some(size));
                    return Ok(true);
                }
                // One that has just started does not know yet that it can call, nor who has what.
                if patience.pause() {
                    continue;
                }
                if let Some(Limit { after, .. }) = Limit::current() {
                    // That this caller is in a hurry is nobody's loss.
                    return Err(Error::NotSent { server: shared.server_name().clone(), after });
                }
                break;
            };
            let args = XLayoutCommit {
                fh: layout.handle,
                state_id: name.state_id,
                seqid: name.seqid,
                reclaim: false,
                end: written.end,
            };
            let told = shared.ask(&Request::XLayoutCommit(args), |reply| match reply {
                Reply::XLayoutCommit(reply) => Some(reply.size),
                _ => None,
            });
            match told {
                Ok(size) => {
                    layout.told(written, Some(size));
                    return Ok(true);
                }
                Err(error) if is_lost(&error) && layout.is_returning() => return Ok(false),
                Err(error) if is_lost(&error) => {
                    layout.void_only(&grant);
                    tries -= 1;
                }
                // The data servers do not have what they have acknowledged.
                Err(error) if error.status() == Some(Status::Inval) => break,
                Err(error) => return Err(error),
            }
        }
        layout.abandon_written();
        Err(Error::WritesLost)
    }

    /// The same for somebody who asks for something else, whose business losses are not: a commit tells
    /// of them.
    pub(super) fn tell_first(&self, shared: &Arc<Shared>, layout: &FileLayout) {
        if let Err(error) = self.tell(shared, layout) {
            tracing::warn!(%error, "what was written to a file could not be told to the server");
        }
    }

    /// A layout for writing, for what was written by one that is gone; `None` if there is none. A server that
    /// puts it off is asked again.
    fn ask_to_tell(
        &self,
        shared: &Arc<Shared>,
        layout: &FileLayout,
    ) -> Result<Option<(Arc<Grant>, Name)>> {
        let mut backoff = Backoff::new(shared.deadline());
        while layout.must_ask().is_some() {
            let asked = match shared.writer_of(&layout.handle) {
                Some(state_id) => self.ask(shared, layout, state_id, true),
                None => Err(Unusable::Refused(Status::XNoLayout)),
            };
            let why = match asked {
                Ok(granted) => {
                    layout.granted(&granted);
                    continue;
                }
                Err(why) => why,
            };
            let kept = matches!(&why, Unusable::Refused(status) if !is_layout_lost(*status));
            let passing = matches!(&why, Unusable::Refused(status) if passes(*status));
            layout.refused(true, kept, passing);
            match why {
                Unusable::Refused(_) if passing && backoff.pause() => {}
                Unusable::Refused(status) if passing => {
                    return Err(Error::Status { procedure: Procedure::XLayoutGet, status });
                }
                Unusable::Asking(error) => return Err(error),
                why => {
                    tracing::debug!(%why, "there is no layout to tell by what was written");
                    return Ok(None);
                }
            }
        }
        Ok(layout.held().filter(|(grant, _)| grant.write))
    }
}

/// Commits unstable data where it is; what is not there any more counts as lost. Gives the errors of data
/// servers that cannot commit.
fn commit_data(shared: &Arc<Shared>, layout: &FileLayout, grant: &Arc<Grant>) -> Vec<LayoutError> {
    let _one_at_a_time = layout.committing();
    let begin = |component: usize| -> Result<Committing, Uncommitted> {
        let (node, place) = (&grant.nodes[component], &grant.plan.places[component]);
        // There is no other way to what was written there, so it is tried also when it has failed.
        let session = node.session_regardless(shared, place);
        let session = session.map_err(|_| Uncommitted::Unreachable)?;
        Committing::begin(node.clone(), session, place.handle)
    };
    // All data servers at a time.
    let begun: Vec<_> = layout
        .take_unstable(grant)
        .into_iter()
        .map(|(component, before)| (component, Verifier(before), begin(component)))
        .collect();
    let mut failed = Vec::new();
    for (component, before, mut begun) in begun {
        let (mut may_reconnect, mut patience) = (true, Backoff::new(Some(NODE_ANSWER_TIMEOUT)));
        let verifier = loop {
            let came = begun.and_then(Committing::finish);
            let again = match &came {
                // Nothing was done, or it is not known, and that is nobody's fault.
                Err(Uncommitted::PutOff | Uncommitted::Hurried) => patience.pause(),
                Err(Uncommitted::Over) => std::mem::take(&mut may_reconnect),
                _ => false,
            };
            if !again {
                break came;
            }
            begun = begin(component);
        };
        if !matches!(verifier, Ok(now) if now == before) {
            layout.lose();
        }
        if verifier.is_err() {
            let device = grant.plan.places[component].device;
            failed.push(LayoutError { device, status: Status::Io, writing: true });
        }
    }
    failed
}

/// How long it is tried to get a layout from a server that has none. Data servers may come back to one that was
/// restarted after its clients do.
fn patience_of(shared: &Shared) -> Duration {
    match shared.restarts_heard() {
        0 => LAYOUT_CHANNEL_TIME,
        _ => NODE_ANSWER_TIMEOUT,
    }
}

/// There may be a layout soon.
fn passes(status: Status) -> bool {
    is_passing(status) || status == Status::XLayoutRecalled
}

/// How far a file reaches as the server knows it.
fn size_of(shared: &Arc<Shared>, fh: FileHandle) -> Result<u64> {
    let request = GetAttrInline { fh, attributes: AttrMask::OBJECT_SIZE };
    shared.ask(&Request::GetAttrInline(request), |reply| match reply {
        Reply::GetAttrInline(reply) => reply.attributes.object_size,
        _ => None,
    })
}

fn is_lost(error: &Error) -> bool {
    error.status().is_some_and(is_layout_lost)
}

/// Gives the layout of a file back.
pub(super) fn return_layout(
    shared: &Arc<Shared>,
    fh: FileHandle,
    name: Name,
    errors: &[LayoutError],
) -> Result<()> {
    let request = Request::XLayoutReturn(XLayoutReturn {
        fh,
        state_id: name.state_id,
        seqid: name.seqid,
        scope: LayoutScope::File,
        errors: Seq::new(errors),
    });
    shared.ask(&request, |reply| matches!(reply, Reply::XLayoutReturn).then_some(()))
}
