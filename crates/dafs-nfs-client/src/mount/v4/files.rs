//! Operations on files: OPEN, CLOSE, SETATTR, COMMIT, SEEK.

use super::client::{Client, random};
use super::exchange::{Exchange, Message, Outcome};
use super::flight::{is_state_lost, is_time_wanted};
use super::layouts::{LastReport, Layouts};
use super::take_attributes;
use crate::compound::{Compound, Results};
use crate::files::{Handle, handle, putfh};
use crate::mount::attributes::{SetAttributes, with_nfs4};
use crate::mount::error::{MountError, Result};
use crate::mount::limits::SMALL_RESULT_BYTES;
use crate::mount::open::Open;
use crate::mount::options::{self, OpenOptions};
use crate::open::{self, append_open};
use dafs_wire::nfs4::{
    self, Attr, Bitmap, CloseArgs, CommitArgs, DENY_NONE, DelegreturnArgs, Fattr, GetattrArgs,
    GetfhArgs, Op, OpNum, OpenClaim, OpenDelegation, SeekArgs, SeekWhat, SetattrArgs, ShareAccess,
    Stateid, Want,
};
use std::sync::Arc;

const SIZE: Bitmap = Attr::set(&[Attr::Size]);

impl Client {
    pub(super) fn open(
        &self,
        current: &Handle,
        claim: OpenClaim<'_>,
        options: &OpenOptions,
    ) -> Result<Arc<Open>> {
        let number = self.open_number();
        let owner = number.to_be_bytes();
        let mut new =
            nfs4::SetAttributes { mode: Some(options.mode), ..nfs4::SetAttributes::default() };
        let create = match options.create {
            options::Create::No => open::Create::No,
            options::Create::IfMissing => {
                // Truncates an existing file; the server checks it against the caller's right to
                // write.
                new.size = options.truncate.then_some(0);
                open::Create::Unchecked(new)
            }
            options::Create::New => open::Create::Exclusive(random(), new),
        };
        let read = if options.read { ShareAccess::READ } else { 0 };
        let write = if options.write { ShareAccess::WRITE } else { 0 };
        let asked = open::OpenOptions {
            access: read | write | Want::None.number(),
            deny: DENY_NONE,
            owner: &owner,
            create,
        };
        // Short files are not worth a layout. An OPEN that changes the file asks for no size,
        // because it is not idempotent.
        let changes = options.truncate || options.create != options::Create::No;
        let asks_size = options.read && !changes && self.layouts().is_some();
        let mut results = self.change(&|compound| {
            compound.op(&putfh(current));
            append_open(compound, claim, &asked);
            compound.op(&Op::Getfh(GetfhArgs));
            if asks_size {
                compound.op(&Op::Getattr(GetattrArgs { request: SIZE }));
            }
        })?;
        let (stateid, delegation) = opened(&mut results)?;
        let handle = handle(&mut results)?;
        let open = Open::new(number, handle, options.read, options.write, stateid);
        // The open stands, even if its size is missing.
        let size = asks_size.then(|| take_attributes(&mut results, |attributes| attributes.size));
        let open = Arc::new(open.of_size(size.and_then(|size| size.ok().flatten())));
        self.remember(&open);
        if options.truncate
            && options.create == options::Create::IfMissing
            && let Some(layouts) = self.layouts()
        {
            layouts.resized(&open.handle, 0);
        }
        if let Some(stateid) = delegation {
            // It was not asked for, and this client does not process recalls of delegations.
            self.change_by(&open.handle, &Op::Delegreturn(DelegreturnArgs { stateid }))?;
        }
        if options.truncate && options.create != options::Create::IfMissing {
            let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
            if let Err(error) = self.set_attributes(&open.handle, Some(&open), &cut) {
                // The open is closed again, and the caller gets the first error.
                let _ = self.close(&open);
                return Err(error);
            }
        }
        Ok(open)
    }

    pub(super) fn close(&self, open: &Open) -> Result<()> {
        let Some(layouts) = self.layouts() else { return self.close_open(open) };
        let done = match layouts.closing(self, open) {
            Ok(Some(report)) => self.close_with(layouts, open, &report),
            told => {
                let closed = self.close_open(open);
                told.and(closed)
            }
        };
        layouts.closed(self, &open.handle);
        done
    }

    /// LAYOUTCOMMIT and CLOSE in one call. An error of LAYOUTCOMMIT ends the compound, so that the
    /// file is still open: a server that has restarted gives a new layout only for an open.
    fn close_with(&self, layouts: &Layouts, open: &Open, report: &LastReport) -> Result<()> {
        let session = self.session(&mut self.link.retry_timer());
        let (Ok(session), Ok(stateid)) = (session, self.stateid(open)) else {
            return self.tell_and_close(layouts, open, report);
        };
        let answer = self.change(&|compound| {
            compound.op(&putfh(&open.handle)).op(&report.op());
            // The server may have been replaced since the last attempt, and the open reclaimed.
            compound.op(&Op::Close(CloseArgs { seqid: 0, stateid: open.stateid() }));
        });
        let told = answer.and_then(|mut results| report.take(&mut results).map(|()| results));
        let error = match told {
            Ok(results) => {
                self.forget(open);
                if session.is_over() && self.session(&mut self.link.retry_timer()).is_ok() {
                    // Another thread may have reclaimed it at the same time.
                    let _ = self.close_open(open);
                }
                return closed(results.finish().map_err(MountError::from));
            }
            Err(error) => error,
        };
        if error.status().is_none() || is_time_wanted(&error) {
            // The client has waited for the server for as long as one may.
            let _ = self.close_open(open);
            return Err(error);
        }
        if session.is_over() {
            // The server may have carried this out, and the answer is lost. Then it knows neither the
            // layout nor the open, and cannot say whether it has learned of the writes.
            let _ = self.reopen(open, stateid, &error, &mut self.link.retry_timer());
        }
        self.tell_and_close(layouts, open, report)
    }

    /// LAYOUTCOMMIT and CLOSE in a call each.
    fn tell_and_close(&self, layouts: &Layouts, open: &Open, report: &LastReport) -> Result<()> {
        let told = layouts.tell_last(self, report);
        let closed = self.close_open(open);
        told.and(closed)
    }

    fn close_open(&self, open: &Open) -> Result<()> {
        self.forget(open);
        let Ok(stateid) = self.stateid(open) else { return Ok(()) };
        closed(self.change_by(&open.handle, &Op::Close(CloseArgs { seqid: 0, stateid })))
    }

    pub(super) fn set_attributes(
        &self,
        object: &Handle,
        open: Option<&Open>,
        new: &SetAttributes,
    ) -> Result<()> {
        let (values, mask) = with_nfs4(new, |new| (new.to_values(), new.mask()));
        let mut retry_timer = self.link.retry_timer();
        loop {
            let stateid = match open.filter(|open| open.write && new.size.is_some()) {
                Some(open) => self.stateid(open)?,
                None => Stateid::ANONYMOUS,
            };
            // A later LAYOUTCOMMIT would extend the file again.
            if new.size.is_some()
                && let Some(layouts) = self.layouts()
            {
                layouts.tell_of(self, object)?;
            }
            let attributes = Fattr { mask, values: &values };
            let set = self.change_by(object, &Op::Setattr(SetattrArgs { stateid, attributes }));
            match (set, open) {
                (Err(error), Some(open)) if error.status().is_some_and(is_state_lost) => {
                    self.reopen(open, stateid, &error, &mut retry_timer)?;
                }
                (other, _) => {
                    if let (Some(layouts), Some(size), Ok(())) = (self.layouts(), new.size, &other)
                    {
                        layouts.resized(object, size);
                    }
                    return other;
                }
            }
        }
    }

    pub(super) fn seek(&self, open: &Open, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        let mut retry_timer = self.link.retry_timer();
        loop {
            let stateid = self.stateid(open)?;
            let found = self.ask(&|compound| {
                let args = SeekArgs { stateid, offset, what };
                compound.op(&putfh(&open.handle)).op(&Op::Seek(args));
            });
            match found {
                Err(error) if error.status().is_some_and(is_state_lost) => {
                    self.reopen(open, stateid, &error, &mut retry_timer)?;
                }
                Err(error) => return Err(error),
                Ok(mut results) => {
                    let result = results.skip(&[OpNum::Putfh])?.take_seek()?;
                    return Ok((!result.eof).then_some(result.offset));
                }
            }
        }
    }

    pub(super) fn commit(&self, file: &Handle) -> Result<[u8; 8]> {
        committed(self.call(false, SMALL_RESULT_BYTES, &|compound| {
            compound.op(&putfh(file)).op(&COMMIT_ALL);
        })?)
    }

    /// Starts to commit a component of a file at this data server.
    pub(super) fn begin_commit(&self, component: &Handle) -> Result<Exchange> {
        let (session, sequence) = loop {
            let session = self.session(&mut self.link.retry_timer())?;
            if let Ok(sequence) = session.take(false) {
                break (session, sequence);
            }
        };
        let mut compound = Compound::new(self.minor_version);
        compound.op(&Op::Sequence(sequence)).op(&putfh(component)).op(&COMMIT_ALL);
        let results_bytes_max = SMALL_RESULT_BYTES;
        let message = Message { compound, data: None, sink: None, results_bytes_max };
        Ok(Exchange::begin(&self.link, session, sequence, message))
    }

    /// Waits for the end of that; returns the verifier. `None`: the data server has ended the
    /// session.
    pub(super) fn finish_commit(&self, exchange: Exchange) -> Result<Option<[u8; 8]>> {
        match exchange.finish(&self.link, &mut self.link.retry_timer()) {
            Outcome::Done { results, status } => {
                self.note(status);
                committed(results).map(Some)
            }
            Outcome::Repeat | Outcome::SessionOver { .. } => Ok(None),
            Outcome::Failed(error) => Err(error),
        }
    }
}

/// All of a file.
const COMMIT_ALL: Op<'static> = Op::Commit(CommitArgs { offset: 0, count: 0 });

/// The outcome of CLOSE.
fn closed(outcome: Result<()>) -> Result<()> {
    match outcome {
        // The server has closed it before.
        Err(error) if error.status().is_some_and(is_state_lost) => Ok(()),
        other => other,
    }
}

/// The verifier in the result of COMMIT.
fn committed(mut results: Results) -> Result<[u8; 8]> {
    Ok(results.skip(&[OpNum::Putfh])?.take_commit()?.verifier.0)
}

/// The open in the result of OPEN, and a delegation that came with it.
pub(super) fn opened(results: &mut Results) -> Result<(Stateid, Option<Stateid>)> {
    let result = results.skip(&[OpNum::Putfh])?.take_open()?;
    let delegation = match &result.delegation {
        OpenDelegation::Read(given) => Some(given.stateid),
        OpenDelegation::Write(given) => Some(given.stateid),
        _ => None,
    };
    Ok((result.stateid, delegation))
}
