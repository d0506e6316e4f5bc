//! What was written at data servers is made stable, told to the server, and the layout given back
//! (COMMIT, LAYOUTCOMMIT, LAYOUTERROR, LAYOUTRETURN; RFC 8881 13.7, 18.42, 18.44, RFC 7862 15.6).
//!
//! Invariants
//! * A layout is given back only when nothing that was sent by it is unanswered.
//! * Unstable data is committed before its layout goes, or counted as lost.

use super::grant::{IO_ANY, layoutreturn};
use super::recall::Wide;
use super::{FileLayout, Grant, Layouts};
use crate::files::{Handle, putfh};
use crate::mount::error::{MountError, Result};
use crate::mount::layout::UnusableLayout;
use crate::mount::v4::client::Client;
use crate::mount::v4::exchange::Exchange;
use crate::mount::v4::flight::is_state_lost;
use dafs_parallel::Written;
use dafs_wire::nfs4::{
    DeviceError, FreeStateidArgs, LayoutBody, LayoutReturn, LayoutcommitArgs, LayouterrorArgs,
    LayoutreturnArgs, Op, OpNum, ResultBody, Stateid, Status,
};
use std::sync::Arc;
use std::time::Duration;

/// How often it is tried to tell the server what was written, by other layouts each time.
const TELL_TRIES: u32 = 2;

/// How long somebody is given who is just reading an answer.
const READING: Duration = Duration::from_millis(1);

/// A COMMIT under way at a data server.
struct Committing {
    before: [u8; 8],
    client: Arc<Client>,
    exchange: Exchange,
}

impl Layouts {
    /// Waits until everything that was sent by a layout has been answered.
    pub(super) fn settle(&self, file: &FileLayout) {
        for flight in file.flights() {
            while !flight.collect_for_slot() {
                std::thread::sleep(READING);
            }
        }
    }

    /// Gives a layout back, if it is held, with the errors that are the reason. When this returns it is
    /// not held any more.
    pub(super) fn give_back(
        &self,
        client: &Client,
        file: &FileLayout,
        grant: &Arc<Grant>,
        errors: &[DeviceError],
    ) {
        if !file.begin_return(grant) {
            return;
        }
        self.settle(file);
        let mut errors = errors.to_vec();
        errors.extend(self.commit_data(client, file, grant));
        let can_tell = client.minor_version >= 2;
        // First, so that the server waits for nobody who cannot be reached.
        if let Some((_, stateid)) = file.held()
            && can_tell
            && !errors.is_empty()
        {
            layouterror(client, &file.handle, stateid, &errors);
        }
        // What is not told now is told by right of another layout.
        let is_told_of_errors = can_tell || errors.is_empty();
        let told = if is_told_of_errors { self.try_tell(client, file).map(drop) } else { Ok(()) };
        if let Some((_, stateid)) = file.held() {
            let body = grant.terms.reader.returned(stateid, &errors);
            let returned = layoutreturn(client, &file.handle, stateid, &*grant.terms.reader, &body);
            if returned.as_ref().is_err_and(is_revoked) {
                // The server keeps it until its holder has seen that it is gone (RFC 8881 18.38).
                let _ = client.change_all(&|compound| {
                    compound.op(&Op::FreeStateid(FreeStateidArgs { stateid }));
                });
            }
            if let Err(error) = returned.and(told) {
                tracing::debug!(%error, "a layout was given back");
            }
        }
        file.returned();
    }

    /// Has everything stable that was written, and the server know of it. Gives the verifier of all
    /// data servers.
    pub(crate) fn commit(&self, client: &Client, handle: &Handle) -> Result<[u8; 8]> {
        let Some(file) = self.known(handle) else { return Ok([0; 8]) };
        if let Some((grant, _)) = file.held() {
            let errors = self.commit_data(client, &file, &grant);
            if !errors.is_empty() {
                self.give_back(client, &file, &grant, &errors);
            }
        }
        self.tell(client, &file)?;
        Ok(file.verifier())
    }

    /// Commits unstable data where it is; what is not there any more counts as lost. Gives the errors
    /// of data servers that cannot commit.
    fn commit_data(
        &self,
        client: &Client,
        file: &FileLayout,
        grant: &Arc<Grant>,
    ) -> Vec<DeviceError> {
        let _one_at_a_time = file.committing();
        let unstable = file.take_unstable(grant);
        if grant.plan.commits_at_server && !unstable.is_empty() {
            let verifier = client.commit(&file.handle).ok();
            if unstable.values().any(|before| Some(*before) != verifier) {
                file.lose();
            }
            return Vec::new();
        }
        // All data servers at a time.
        let begun: Vec<_> = unstable
            .into_iter()
            .map(|(component, before)| {
                let handle = &grant.plan.places[component].handle;
                let begun = grant.nodes[component].client(client).ok().and_then(|client| {
                    let exchange = client.begin_commit(handle).ok()?;
                    Some(Committing { before, client, exchange })
                });
                (component, begun)
            })
            .collect();
        let mut failed = Vec::new();
        for (component, begun) in begun {
            let verifier = begun.map(|Committing { before, client, exchange }| {
                let again = || client.commit(&grant.plan.places[component].handle);
                let verifier = match client.finish_commit(exchange) {
                    Ok(Some(verifier)) => Ok(verifier),
                    // It has ended the session, as it does with who was away. What it has is there.
                    Ok(None) => again(),
                    // It has found that data was lost meanwhile, and says so the next time.
                    Err(error) if error.status() == Some(Status::Delay) => again(),
                    Err(error) => Err(error),
                };
                if verifier.as_ref().is_err_and(|error| error.status().is_none()) {
                    grant.nodes[component].failed();
                }
                verifier.map(|verifier| verifier == before)
            });
            if !matches!(verifier, Some(Ok(true))) {
                file.lose();
            }
            if let None | Some(Err(_)) = verifier {
                let device_id = grant.plan.places[component].device;
                let (status, op) = (Status::Nxio, OpNum::Commit as u32);
                failed.push(DeviceError { device_id, status, op });
            }
        }
        failed
    }

    /// Tells the server what was written, if that has not been done (LAYOUTCOMMIT).
    pub(super) fn tell(&self, client: &Client, file: &FileLayout) -> Result<()> {
        // A layout that is gone is asked for once more.
        for _ in 0..TELL_TRIES {
            if self.try_tell(client, file)? {
                return Ok(());
            }
            file.await_return();
        }
        file.abandon_written();
        Err(MountError::WritesLost)
    }

    /// The same; false while there is no layout to tell it by, because one that is of no use for that is
    /// being given back.
    fn try_tell(&self, client: &Client, file: &FileLayout) -> Result<bool> {
        let _one_at_a_time = file.telling();
        for _ in 0..TELL_TRIES {
            let Some(written) = file.written() else { return Ok(true) };
            let held = match file.held().filter(|(grant, _)| grant.write) {
                Some(held) => Some(held),
                None if file.is_returning() => return Ok(false),
                None => self.ask_to_tell(client, file)?,
            };
            let Some((grant, stateid)) = held else { break };
            match layoutcommit(client, &file.handle, stateid, &grant, written) {
                Ok(size) => {
                    file.told(written, size);
                    return Ok(true);
                }
                Err(error) if is_lost(&error) && file.is_returning() => return Ok(false),
                Err(error) if is_lost(&error) => file.void_only(&grant),
                // The data servers do not have what they have acknowledged.
                Err(error) if error.status() == Some(Status::Inval) => break,
                Err(error) => return Err(error),
            }
        }
        file.abandon_written();
        Err(MountError::WritesLost)
    }

    /// The same for somebody who asks for something else, whose business losses are not: a commit tells
    /// of them.
    pub(super) fn tell_first(&self, client: &Client, file: &FileLayout) -> Result<()> {
        match self.tell(client, file) {
            Err(error @ MountError::WritesLost) => {
                tracing::warn!(%error, "a file is not what was written to it");
                Ok(())
            }
            other => other,
        }
    }

    /// A layout for writing, for what was written by one that is gone.
    fn ask_to_tell(
        &self,
        client: &Client,
        file: &FileLayout,
    ) -> Result<Option<(Arc<Grant>, Stateid)>> {
        let mut patience = client.link.patience();
        let Some(open) = client.open_of(&file.handle, true) else { return Ok(None) };
        while let Some(held) = file.must_ask() {
            let stateid = match held {
                Some(stateid) => Ok(stateid),
                None => client.stateid(&open).map_err(UnusableLayout::from),
            };
            match stateid.and_then(|stateid| self.ask(client, &file.handle, stateid, true)) {
                Ok(granted) => file.granted(&granted),
                Err(UnusableLayout::Refused(status)) if is_passing(status) => {
                    file.refused(true, true, true);
                    if !patience.pause() {
                        return Ok(None);
                    }
                }
                Err(why) => {
                    tracing::warn!(%why, "what was written cannot be told to the server");
                    file.refused(true, false, false);
                    return Ok(None);
                }
            }
        }
        Ok(file.held().filter(|(grant, _)| grant.write))
    }
}

fn is_lost(error: &MountError) -> bool {
    error.status().is_some_and(is_layout_lost)
}

/// The server has taken it away.
fn is_revoked(error: &MountError) -> bool {
    let status = error.status();
    matches!(status, Some(Status::AdminRevoked | Status::DelegRevoked | Status::Expired))
}

/// There is none just now.
pub(super) fn is_passing(status: Status) -> bool {
    matches!(
        status,
        Status::Delay | Status::Grace | Status::LayoutTryLater | Status::RecallConflict
    )
}

/// The server does not know the layout any more.
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

/// Gives the new size, if it has changed.
fn layoutcommit(
    client: &Client,
    file: &Handle,
    stateid: Stateid,
    grant: &Grant,
    written: Written,
) -> Result<Option<u64>> {
    let args = LayoutcommitArgs {
        offset: 0,
        length: u64::MAX,
        reclaim: false,
        stateid,
        last_write_offset: written.end.checked_sub(1),
        time_modify: None,
        update: LayoutBody { layout_type: grant.terms.reader.layout_type(), body: b"" },
    };
    let mut results = client.change(&|compound| {
        compound.op(&putfh(file)).op(&Op::Layoutcommit(args));
    })?;
    match results.skip(&[OpNum::Putfh])?.take(OpNum::Layoutcommit)? {
        ResultBody::Layoutcommit(result) => Ok(result.new_size),
        _ => Err(MountError::protocol("no result of LAYOUTCOMMIT")),
    }
}

fn layouterror(client: &Client, file: &Handle, stateid: Stateid, errors: &[DeviceError]) {
    let args = LayouterrorArgs { offset: 0, length: u64::MAX, stateid, errors: errors.to_vec() };
    let told = client.change_all(&|compound| {
        compound.op(&putfh(file)).op(&Op::Layouterror(args.clone()));
    });
    // It is for the server's administrator to read; nothing here depends on it.
    if let Err(error) = told {
        tracing::debug!(%error, "the server did not take word of an error at a data server");
    }
}

/// Says that all layouts of a file system, or all there are, have been given back (RFC 8881 12.5.5.1).
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
