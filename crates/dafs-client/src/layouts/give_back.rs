//! The requests that commit what was written at data servers, report it to the server
//! (LAYOUTCOMMIT) and give the layout back (LAYOUTRETURN). [`dafs_parallel::Holder`] describes
//! their order.

use super::Layouts;
use super::ask::is_layout_lost;
use super::file::{At, FileLayout, Grant, Granted, Name};
use super::io::status_of;
use super::nodes::Node;
use super::plan::{Place, Unusable};
use super::sent::{Committing, Failure, Sent, Uncommitted};
use crate::attributes::FileHandle;
use crate::backoff::{Backoff, is_passing};
use crate::driver::Shared;
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use crate::limit::{self, Limit, without};
use crate::limits::LAYOUT_CHANNEL_TIME;
use dafs_parallel::limits::NODE_ANSWER_TIMEOUT;
use dafs_parallel::{Act, Fault, Protocol, Refusal, Untold, Written};
use dafs_wire::dafs::{
    AttrMask, GetAttrInline, LayoutError, LayoutScope, Procedure, Reply, Request, Seq, Status,
    XLayoutCommit, XLayoutReturn,
};
use std::convert::Infallible;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

impl Layouts {
    /// Sends LAYOUTCOMMIT ahead of another request. Losses do not concern its caller: a commit
    /// reports them.
    pub(super) fn tell_first(&self, shared: &Arc<Shared>, file: &FileLayout) {
        if let Err(error) = self.at(shared, file).tell() {
            tracing::warn!(%error, "what was written to a file could not be told to the server");
        }
    }
}

impl Protocol for Layouts {
    type Handle = FileHandle;
    type Name = Name;
    type Place = Place;
    type Address = SocketAddr;
    type Node = Node;
    /// The restarts of the server that were seen before: a later run does not know the layout.
    type Terms = u64;
    type Flight = Sent;
    type Work = Infallible;
    type Lock<T: Debug + Default> = ForkMutex<T>;
    type Server = Arc<Shared>;
    type Unusable = Unusable;
    type Error = Error;
    type Report = LayoutError;
    type Commit = Result<Committing, Uncommitted>;

    const WRITES_LOST: Error = Error::WritesLost;

    fn parts(name: &mut Name) -> (&mut u32, &[u8]) {
        (&mut name.seqid, &name.state_id.0)
    }

    fn has_writer(at: &At<'_>) -> bool {
        at.server.writer_of(&at.file.handle).is_some()
    }

    fn ask_to_tell(at: &At<'_>, _: Option<Name>) -> Result<Granted, Unusable> {
        match at.server.writer_of(&at.file.handle) {
            Some(state_id) => at.client.ask(at.server, at.file, state_id, true),
            None => Err(Unusable::Refused(Status::XNoLayout)),
        }
    }

    fn refusal(at: &At<'_>, why: &Unusable, to_tell: bool) -> Option<Refusal> {
        let Unusable::Refused(status) = *why else { return None };
        let passing = if to_tell { passes(status) } else { at.client.passes(status) };
        Some(Refusal { kept: !is_layout_lost(status), passing })
    }

    fn without_layout(why: Unusable) -> Result<()> {
        match why {
            Unusable::Refused(status) if passes(status) => {
                Err(Error::Status { procedure: Procedure::XLayoutGet, status })
            }
            Unusable::Asking(error) => Err(error),
            why => {
                tracing::debug!(%why, "there is no layout to tell by what was written");
                Ok(())
            }
        }
    }

    /// A server that has just started may not know yet that it can call back, or where its data
    /// servers are.
    fn pauses(at: &At<'_>, long: bool) -> impl FnMut() -> Result<bool> + use<> {
        let shared = at.server;
        let deadline = if long { Some(patience_of(shared)) } else { shared.deadline() };
        let (mut backoff, server) = (Backoff::new(deadline), shared.server_name().clone());
        move || match (backoff.pause(), Limit::current()) {
            // A caller's deadline must not turn into a loss of data.
            (false, Some(Limit { after, .. })) if long => {
                Err(Error::NotSent { server: server.clone(), after })
            }
            (is_time, _) => Ok(is_time),
        }
    }

    fn settle(flight: &Sent) {
        flight.settle_for_sender();
    }

    fn begin_commit(at: &At<'_>, grant: &Grant, component: usize) -> Self::Commit {
        let (node, place) = (&grant.nodes[component], &grant.plan.places[component]);
        // The unstable data is only there, so the client tries the data server even after a
        // failure.
        let session = node.session_regardless(at.server, place);
        let session = session.map_err(|_| Uncommitted::Unreachable)?;
        Committing::begin(node.clone(), session, place.handle)
    }

    fn finish_commit(
        at: &At<'_>,
        grant: &Grant,
        component: usize,
        mut begun: Self::Commit,
    ) -> Option<[u8; 8]> {
        let (mut may_reconnect, mut patience) = (true, Backoff::new(Some(NODE_ANSWER_TIMEOUT)));
        loop {
            let came = begun.and_then(Committing::finish);
            let again = match &came {
                // The data server did nothing, or the outcome is unknown. Neither is its fault.
                Err(Uncommitted::PutOff | Uncommitted::Hurried) => patience.pause(),
                Err(Uncommitted::Over) => std::mem::take(&mut may_reconnect),
                _ => false,
            };
            if !again {
                return came.ok().map(|verifier| verifier.0);
            }
            begun = Self::begin_commit(at, grant, component);
        }
    }

    fn layout_commit(at: &At<'_>, _: &Grant, name: Name, written: Written) -> Result<Option<u64>> {
        let args = XLayoutCommit {
            fh: at.file.handle,
            state_id: name.state_id,
            seqid: name.seqid,
            reclaim: false,
            end: written.end,
        };
        at.server
            .ask(&Request::XLayoutCommit(args), |reply| Some(Some(reply.x_layout_commit()?.size)))
    }

    fn untold(error: &Error) -> Untold {
        match error.status() {
            Some(status) if is_layout_lost(status) => Untold::LayoutLost,
            Some(Status::Inval) => Untold::WritesLost,
            _ => Untold::Other,
        }
    }

    fn is_known(at: &At<'_>, written: Written) -> Result<bool> {
        let size = size_of(at.server, at.file.handle)?;
        let is_known = size >= written.end;
        if is_known {
            at.file.with(|state| state.told(written, Some(size)));
        }
        Ok(is_known)
    }

    /// The data is there, but other threads return the layout again and again.
    fn delayed(_: &At<'_>) -> Error {
        let (procedure, status) = (Procedure::XLayoutCommit, Status::Delay);
        Error::Status { procedure, status }
    }

    fn layout_return(at: &At<'_>, _: &Grant, name: Name, errors: &[LayoutError]) -> Result<()> {
        return_layout(at.server, at.file.handle, name, errors)
    }

    fn report(
        at: &At<'_>,
        grant: &Grant,
        (component, failure): (usize, &Failure),
        act: Act,
    ) -> Option<LayoutError> {
        let device = grant.plan.places[component].device;
        let status = status_of(failure)?;
        if status == Status::NotAuthorized || matches!(failure, Fault::Unreachable) {
            // The ticket may have expired.
            at.client.forget_device(device);
        }
        Some(LayoutError { device, status, writing: act != Act::Read })
    }

    fn unhurried<T>(work: impl FnOnce() -> T) -> T {
        without(work)
    }

    /// The stop callback may use the file.
    fn unstopped<T>(work: impl FnOnce() -> T) -> T {
        limit::unstopped(work)
    }
}

/// How long the client retries for a layout that the server does not grant. After a restart of the
/// server, data servers may come back later than clients.
fn patience_of(shared: &Shared) -> Duration {
    match shared.restarts_heard() {
        0 => LAYOUT_CHANNEL_TIME,
        _ => NODE_ANSWER_TIMEOUT,
    }
}

/// True if there may be a layout soon.
fn passes(status: Status) -> bool {
    is_passing(status) || status == Status::XLayoutRecalled
}

/// Asks the server for the size of a file.
fn size_of(shared: &Arc<Shared>, fh: FileHandle) -> Result<u64> {
    let request = GetAttrInline { fh, attributes: AttrMask::OBJECT_SIZE };
    shared.ask(&Request::GetAttrInline(request), |reply| {
        reply.get_attr_inline()?.attributes.object_size
    })
}

/// Gives the layout of a file back (LAYOUTRETURN).
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
