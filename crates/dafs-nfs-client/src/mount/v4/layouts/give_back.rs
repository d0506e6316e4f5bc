//! The requests that commit what was written at data servers, report it to the server and give the
//! layout back (COMMIT, LAYOUTCOMMIT, LAYOUTERROR, LAYOUTRETURN; RFC 8881 13.7, 18.42, 18.44, RFC
//! 7862 15.6). [`dafs_parallel::Holder`] describes their order.

use super::Layouts;
use super::file::{At, FileLayout, Grant, Granted, Terms};
use super::grant::{IO_ANY, layoutreturn};
use super::io::{Failure, status_of};
use super::nodes::{self, Node};
use super::recall::{Said, Wide};
use crate::compound::Results;
use crate::files::{Handle, putfh};
use crate::mount::error::{MountError, Result};
use crate::mount::layout::{Component, NodeAddress, UnusableLayout};
use crate::mount::v4::client::Client;
use crate::mount::v4::exchange::Exchange;
use crate::mount::v4::flight::{TransferFlight, is_state_lost};
use dafs_mem::Mutex;
use dafs_parallel::{Act, LayoutState, Protocol, Refusal, Untold, Written};
use dafs_wire::nfs4::{
    DeviceError, FreeStateidArgs, LayoutBody, LayoutReturn, LayoutcommitArgs, LayouterrorArgs,
    LayoutreturnArgs, Op, OpNum, Stateid, Status,
};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The pause while another thread is just reading an answer.
const READING: Duration = Duration::from_millis(1);

/// The report of a file's writes that goes with its last CLOSE.
#[derive(Debug)]
pub(crate) struct LastReport {
    file: Arc<FileLayout>,
    written: Written,
    args: LayoutcommitArgs<'static>,
}

impl LastReport {
    /// Returns LAYOUTCOMMIT.
    pub(crate) fn op(&self) -> Op<'static> {
        Op::Layoutcommit(self.args)
    }

    /// Evaluates the results of PUTFH and LAYOUTCOMMIT.
    pub(crate) fn take(&self, results: &mut Results) -> Result<()> {
        let size = results.skip(&[OpNum::Putfh])?.take_layoutcommit()?.new_size;
        self.file.with(|state| state.told(self.written, size));
        Ok(())
    }
}

impl Layouts {
    /// Commits all unstable data and sends LAYOUTCOMMIT. Returns the verifier of all data servers.
    pub(crate) fn commit(&self, client: &Client, handle: &Handle) -> Result<[u8; 8]> {
        self.known(handle).map_or(Ok([0; 8]), |file| self.at(client, &file).commit())
    }

    /// Returns the report that can go with the last CLOSE of a file. `None` if there is nothing to
    /// report, or no layout to report it by: then [`dafs_parallel::Holder::tell`] asks for one.
    pub(super) fn last_report(file: &Arc<FileLayout>) -> Option<LastReport> {
        let written = file.written()?;
        let (grant, stateid) = file.held().filter(|(grant, _)| grant.write)?;
        if file.with(|state| state.is_returning()) {
            return None;
        }
        let args = layoutcommit(&grant, stateid, written);
        Some(LastReport { file: file.clone(), written, args })
    }

    /// Sends LAYOUTCOMMIT for a report that did not go with a CLOSE.
    pub(crate) fn tell_last(&self, client: &Client, report: &LastReport) -> Result<()> {
        self.at(client, &report.file).tell()
    }

    /// Sends LAYOUTCOMMIT ahead of another request. Losses do not concern its caller: a commit
    /// reports them.
    pub(super) fn tell_first(&self, client: &Client, file: &FileLayout) -> Result<()> {
        match self.at(client, file).tell() {
            Err(error @ MountError::WritesLost) => {
                tracing::warn!(%error, "a file is not what was written to it");
                Ok(())
            }
            other => other,
        }
    }
}

impl Protocol for Layouts {
    type Handle = Handle;
    type Name = Stateid;
    type Place = Component;
    type Address = NodeAddress;
    type Node = Node;
    type Terms = Terms;
    type Flight = TransferFlight;
    type Work = Said;
    type Lock<T: Debug + Default> = Mutex<T>;
    type Server = Client;
    type Unusable = UnusableLayout;
    type Error = MountError;
    type Report = DeviceError;
    type Commit = Option<(Arc<Client>, Exchange)>;

    const WRITES_LOST: MountError = MountError::WritesLost;

    fn parts(stateid: &mut Stateid) -> (&mut u32, &[u8]) {
        (&mut stateid.seqid, &stateid.other)
    }

    fn retire(nodes: Vec<Arc<Node>>) {
        nodes::retire(nodes);
    }

    fn has_writer(at: &At<'_>) -> bool {
        at.server.open_of(&at.file.handle, true).is_some()
    }

    fn ask_to_tell(at: &At<'_>, held: Option<Stateid>) -> Result<Granted, UnusableLayout> {
        let open = at.server.open_of(&at.file.handle, true);
        let open = open.ok_or(UnusableLayout::Refused(Status::OpenMode))?;
        at.client.ask(at.server, at.file, (&open, held), true)
    }

    fn refusal(_: &At<'_>, why: &UnusableLayout, _: bool) -> Option<Refusal> {
        let UnusableLayout::Refused(status) = *why else { return None };
        Some(Refusal { kept: !is_layout_lost(status), passing: is_passing(status) })
    }

    fn without_layout(why: UnusableLayout) -> Result<()> {
        tracing::warn!(%why, "what was written cannot be told to the server");
        Ok(())
    }

    /// A server that gives no layouts for now is not asked again (`long`).
    fn pauses(at: &At<'_>, long: bool) -> impl FnMut() -> Result<bool> + use<> {
        let mut retry_timer = at.server.link.retry_timer();
        move || Ok(!long && retry_timer.pause())
    }

    fn settle(flight: &TransferFlight) {
        while !flight.collect_for_slot() {
            std::thread::sleep(READING);
        }
    }

    fn begin_commit(at: &At<'_>, grant: &Grant, component: usize) -> Self::Commit {
        let client = grant.nodes[component].client(at.server).ok()?;
        let exchange = client.begin_commit(&grant.plan.places[component].handle).ok()?;
        Some((client, exchange))
    }

    fn finish_commit(
        _: &At<'_>,
        grant: &Grant,
        component: usize,
        begun: Self::Commit,
    ) -> Option<[u8; 8]> {
        let (client, exchange) = begun?;
        let again = || client.commit(&grant.plan.places[component].handle);
        let verifier = match client.finish_commit(exchange) {
            Ok(Some(verifier)) => Ok(verifier),
            // The data server has ended the session, as after an absence of its client. Its data is
            // still there.
            Ok(None) => again(),
            // The data server has noticed a loss of data, and reports it the next time.
            Err(error) if error.status() == Some(Status::Delay) => again(),
            Err(error) => Err(error),
        };
        if verifier.as_ref().is_err_and(|error| error.status().is_none()) {
            grant.nodes[component].failed();
        }
        verifier.ok()
    }

    fn commit_at_server(at: &At<'_>) -> Option<[u8; 8]> {
        at.server.commit(&at.file.handle).ok()
    }

    fn layout_commit(
        at: &At<'_>,
        grant: &Grant,
        stateid: Stateid,
        written: Written,
    ) -> Result<Option<u64>> {
        let args = layoutcommit(grant, stateid, written);
        let mut results = at.server.change(&|compound| {
            compound.op(&putfh(&at.file.handle)).op(&Op::Layoutcommit(args));
        })?;
        Ok(results.skip(&[OpNum::Putfh])?.take_layoutcommit()?.new_size)
    }

    fn untold(error: &MountError) -> Untold {
        match error.status() {
            Some(status) if is_layout_lost(status) => Untold::LayoutLost,
            Some(Status::Inval) => Untold::WritesLost,
            _ => Untold::Other,
        }
    }

    fn delayed(at: &At<'_>) -> MountError {
        at.file.with(LayoutState::abandon_written);
        MountError::WritesLost
    }

    fn layout_return(
        at: &At<'_>,
        grant: &Grant,
        stateid: Stateid,
        errors: &[DeviceError],
    ) -> Result<()> {
        let reader = &*grant.terms.reader;
        let body = reader.returned(stateid, errors);
        let returned = layoutreturn(at.server, &at.file.handle, stateid, reader, &body);
        if returned.as_ref().is_err_and(is_revoked) {
            // The server keeps the state-id until its holder knows of the revocation (RFC 8881
            // 18.38).
            let _ = at.server.change_all(&|compound| {
                compound.op(&Op::FreeStateid(FreeStateidArgs { stateid }));
            });
        }
        returned
    }

    /// LAYOUTERROR comes first, so that the server does not wait for an unreachable data server.
    fn report_before(at: &At<'_>, errors: &[DeviceError]) -> bool {
        let can_tell = at.server.minor_version >= 2;
        if can_tell && let Some((_, stateid)) = at.file.held() {
            layouterror(at.server, &at.file.handle, stateid, errors);
        }
        can_tell
    }

    fn report(
        _: &At<'_>,
        grant: &Grant,
        (component, failure): (usize, &Failure),
        act: Act,
    ) -> Option<DeviceError> {
        let op = match act {
            Act::Read => OpNum::Read,
            Act::Write => OpNum::Write,
            Act::Commit => OpNum::Commit,
        };
        let device_id = grant.plan.places[component].device;
        Some(DeviceError { device_id, status: status_of(failure)?, op: op as u32 })
    }
}

fn layoutcommit(grant: &Grant, stateid: Stateid, written: Written) -> LayoutcommitArgs<'static> {
    LayoutcommitArgs {
        offset: 0,
        length: u64::MAX,
        reclaim: false,
        stateid,
        last_write_offset: written.end.checked_sub(1),
        time_modify: None,
        update: LayoutBody { layout_type: grant.terms.reader.layout_type(), body: b"" },
    }
}

/// True if the server has revoked the layout.
fn is_revoked(error: &MountError) -> bool {
    let status = error.status();
    matches!(status, Some(Status::AdminRevoked | Status::DelegRevoked | Status::Expired))
}

/// True if the refusal is transient.
pub(super) fn is_passing(status: Status) -> bool {
    matches!(
        status,
        Status::Delay | Status::Grace | Status::LayoutTryLater | Status::RecallConflict
    )
}

/// True if the server does not know the layout any more.
pub(super) fn is_layout_lost(status: Status) -> bool {
    let is_none = matches!(
        status,
        Status::BadLayout
            | Status::NoMatchingLayout
            | Status::PnfsNoLayout
            | Status::LayoutUnavailable
    );
    is_none || is_state_lost(status)
}

fn layouterror(client: &Client, file: &Handle, stateid: Stateid, errors: &[DeviceError]) {
    let args = LayouterrorArgs { offset: 0, length: u64::MAX, stateid, errors: errors.to_vec() };
    let told = client.change_by(file, &Op::Layouterror(args));
    // The report is for the server's administrator; nothing here depends on it.
    if let Err(error) = told {
        tracing::debug!(%error, "the server did not take word of an error at a data server");
    }
}

/// Reports that all layouts of a file system, or all there are, have been given back (RFC 8881
/// 12.5.5.1).
pub(super) fn say(client: &Client, layout_type: u32, of: &Wide) {
    /// `layoutreturn_type4`.
    const OF_FILE_SYSTEM: u32 = 2;
    const OF_ALL: u32 = 3;
    let kind = if matches!(of, Wide::All) { OF_ALL } else { OF_FILE_SYSTEM };
    let returned = LayoutReturn::Wider(kind);
    let args = LayoutreturnArgs { reclaim: false, layout_type, io_mode: IO_ANY, returned };
    let said = client.change_all(&|compound| {
        if let Wide::FileSystem(file) = of {
            compound.op(&putfh(file));
        }
        compound.op(&Op::Layoutreturn(args));
    });
    if let Err(error) = said {
        tracing::debug!(%error, "the server did not hear that its layouts were given back");
    }
}
