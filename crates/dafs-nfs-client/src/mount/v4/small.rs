//! Small files in one compound each, with many compounds under way: new files that get their name when they
//! are complete, the starts of files, and removals.
//!
//! Invariants
//! * A compound gives a new file its name only when the server has all of its content, and has it stable.
//! * These compounds never use more than half of the slots. So other calls find one, although a caller may
//!   wait for them while it has compounds under way.

use super::client::Client;
use super::exchange::{Exchange, Message, Outcome};
use super::files::opened;
use crate::compound::{Compound, Results};
use crate::files::{Handle, handle, putfh};
use crate::mount::attributes::with_nfs4;
use crate::mount::error::{MountError, Result};
use crate::mount::limits::{HEAD_BYTES, SMALL_FILE_BYTES_MAX, SMALL_RESULT_BYTES};
use crate::mount::retry_timer::RetryTimer;
use crate::mount::small::{FileStart, NewFile};
use crate::open::{Create, OpenOptions, append_open};
use dafs_wire::nfs4::{
    CloseArgs, DENY_NONE, DelegreturnArgs, Fattr, GetfhArgs, LookupArgs, Op, OpNum, OpenClaim,
    ReadArgs, RemoveArgs, RenameArgs, SavefhArgs, SetAttributes, SetattrArgs, ShareAccess,
    StableHow, Stateid, Status, VerifyArgs, Want, WriteArgs,
};
use std::sync::Arc;
use std::time::Duration;

/// Operations of the compound that makes a file.
const NEW_FILE_OPERATIONS: u32 = 11;

/// A compound under way. Dropping it waits for the answer, because the slot is in use until then.
#[derive(Debug)]
struct Flight {
    client: Arc<Client>,
    exchange: Option<Box<Exchange>>,
}

/// A new file under way.
#[derive(Debug)]
pub(crate) struct NewFlight {
    flight: Flight,
    dir: Handle,
    temporary_name: Vec<u8>,
    bytes: usize,
}

/// The start of a file under way.
#[derive(Debug)]
pub(crate) struct StartFlight {
    flight: Flight,
    bytes_max: usize,
}

/// A removal under way.
#[derive(Debug)]
pub(crate) struct RemovalFlight {
    flight: Flight,
    dir: Handle,
    name: Vec<u8>,
}

impl Client {
    /// The longest content of a small file, in bytes.
    pub(super) fn small_bytes_max(&self) -> usize {
        let limits = self.limits();
        let message = limits.request_bytes_max.min(limits.response_bytes_max);
        (message.saturating_sub(HEAD_BYTES) as usize).min(SMALL_FILE_BYTES_MAX)
    }

    /// Sends a compound, unless half of the slots are in use.
    fn begin(
        self: &Arc<Self>,
        cache_this: bool,
        data_bytes: usize,
        build: &dyn Fn(&mut Compound),
    ) -> Result<Option<Flight>> {
        let session = self.session(&mut self.link.retry_timer())?;
        let Some(sequence) = session.take_spare(cache_this) else { return Ok(None) };
        let mut compound = Compound::new(self.minor_version);
        compound.op(&Op::Sequence(sequence));
        build(&mut compound);
        let results_bytes_max = SMALL_RESULT_BYTES + data_bytes;
        let message = Message { compound, data: None, sink: None, results_bytes_max };
        let exchange = Exchange::begin(&self.link, session, sequence, message);
        Ok(Some(Flight { client: self.clone(), exchange: Some(Box::new(exchange)) }))
    }

    /// Begins to make a small file.
    pub(super) fn begin_new_file(self: &Arc<Self>, new: &NewFile<'_>) -> Result<Option<NewFlight>> {
        if self.limits().operations_max < NEW_FILE_OPERATIONS {
            return Ok(None);
        }
        let owner = self.open_number().to_be_bytes();
        let private = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let asked = OpenOptions {
            access: ShareAccess::WRITE | Want::None.number(),
            deny: DENY_NONE,
            owner: &owner,
            create: Create::Guarded(private),
        };
        let size = Some(new.data.len() as u64);
        let size = SetAttributes { size, ..SetAttributes::default() };
        let (size_values, size_mask) = (size.to_values(), size.mask());
        let (values, mask) = with_nfs4(new.attributes, |new| (new.to_values(), new.mask()));
        let (stateid, old_name, new_name) = (Stateid::CURRENT, new.temporary_name, new.name);
        let flight = self.begin(true, 0, &|compound| {
            compound.op(&putfh(new.dir));
            append_open(compound, OpenClaim::Null(old_name), &asked);
            compound.op(&Op::Getfh(GetfhArgs));
            if !new.data.is_empty() {
                let (stable, data) = (StableHow::FileSync, new.data.into());
                compound.op(&Op::Write(WriteArgs { stateid, offset: 0, stable, data }));
            }
            // A short WRITE does not end a compound.
            let attributes = Fattr { mask: size_mask, values: &size_values };
            compound.op(&Op::Verify(VerifyArgs { attributes }));
            let attributes = Fattr { mask, values: &values };
            compound.op(&Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes }));
            compound.op(&Op::Close(CloseArgs { seqid: 0, stateid }));
            compound.op(&putfh(new.dir)).op(&Op::Savefh(SavefhArgs));
            compound.op(&Op::Rename(RenameArgs { old_name, new_name }));
        })?;
        let (temporary_name, bytes) = (old_name.to_vec(), new.data.len());
        let dir = new.dir.clone();
        Ok(flight.map(|flight| NewFlight { flight, dir, temporary_name, bytes }))
    }

    /// Begins to read the start of a file without opening it.
    pub(super) fn begin_start(
        self: &Arc<Self>,
        dir: &Handle,
        name: &[u8],
        bytes_max: usize,
    ) -> Result<Option<StartFlight>> {
        let message = self.limits().response_bytes_max.saturating_sub(HEAD_BYTES);
        let count = u32::try_from(bytes_max).unwrap_or(u32::MAX).min(message);
        let bytes_max = count as usize;
        let flight = self.begin(false, bytes_max, &|compound| {
            compound.op(&putfh(dir)).op(&Op::Lookup(LookupArgs { name }));
            compound.op(&Op::Getfh(GetfhArgs));
            let stateid = Stateid::ANONYMOUS;
            compound.op(&Op::Read(ReadArgs { stateid, offset: 0, count }));
        })?;
        Ok(flight.map(|flight| StartFlight { flight, bytes_max }))
    }

    /// Begins to remove a name.
    pub(super) fn begin_remove(
        self: &Arc<Self>,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Option<RemovalFlight>> {
        let flight = self.begin(true, 0, &|compound| {
            compound.op(&putfh(dir)).op(&Op::Remove(RemoveArgs { name }));
        })?;
        let (dir, name) = (dir.clone(), name.to_vec());
        Ok(flight.map(|flight| RemovalFlight { flight, dir, name }))
    }
}

impl Flight {
    /// Waits for the results.
    fn results(&mut self) -> Result<Results> {
        let Some(exchange) = self.exchange.take() else {
            return Err(MountError::Argument("a compound was waited for twice"));
        };
        let mut retry_timer = match exchange.session().is_over() {
            // Another request may have waited for the server for as long as one may.
            true => RetryTimer::new(Duration::ZERO),
            false => self.client.link.retry_timer(),
        };
        match exchange.finish(&self.client.link, &mut retry_timer) {
            Outcome::Done { results, status } => {
                self.client.note(status);
                Ok(results)
            }
            // The compound was not carried out, or that is not known.
            Outcome::Repeat | Outcome::SessionOver { .. } => {
                Err(MountError::Refused { operation: "SEQUENCE", status: Status::BadSession })
            }
            Outcome::Failed(error) => Err(error),
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.exchange.is_some() {
            // There is no caller to report an error to.
            let _ = self.results();
        }
    }
}

impl NewFlight {
    /// Waits until the file has its name. After an error the temporary name is removed, if there is a
    /// server.
    pub(crate) fn wait(mut self) -> Result<()> {
        let mut results = match self.flight.results() {
            Ok(results) => results,
            Err(error) => {
                if !error.is_fatal() {
                    self.remove();
                }
                return Err(error);
            }
        };
        let (stateid, delegation) = opened(&mut results)?;
        let file = match handle(&mut results) {
            Ok(file) => file,
            Err(error) => {
                self.remove();
                return Err(error.into());
            }
        };
        let client = &self.flight.client;
        let done = self.look(&mut results);
        if done.is_err() {
            // The server may have closed it.
            let _ = client.change_by(&file, &Op::Close(CloseArgs { seqid: 0, stateid }));
            self.remove();
        }
        if let Some(stateid) = delegation {
            // It was not asked for, and the file is not open any more.
            let _ = client.change_by(&file, &Op::Delegreturn(DelegreturnArgs { stateid }));
        }
        done
    }

    /// Evaluates the results behind those of the open.
    fn look(&self, results: &mut Results) -> Result<()> {
        if self.bytes > 0 && results.take_write()?.count as usize != self.bytes {
            return Err(MountError::WriteZero);
        }
        let rest = [OpNum::Verify, OpNum::Setattr, OpNum::Close, OpNum::Putfh, OpNum::Savefh];
        results.skip(&rest)?.skip(&[OpNum::Rename])?;
        Ok(())
    }

    /// Removes the temporary name. The caller gets the error that led to this, not another one.
    fn remove(&self) {
        let remove = Op::Remove(RemoveArgs { name: &self.temporary_name });
        let _ = self.flight.client.change_by(&self.dir, &remove);
    }
}

impl StartFlight {
    /// Waits for the start of the file.
    pub(crate) fn wait(mut self) -> Result<FileStart> {
        let mut results = self.flight.results()?;
        let handle = handle(results.skip(&[OpNum::Putfh, OpNum::Lookup])?)?;
        let read = results.take_read()?;
        match read.data.here() {
            Some(data) if data.len() <= self.bytes_max => {
                Ok(FileStart { handle, data: data.to_vec(), is_whole: read.eof })
            }
            _ => Err(MountError::protocol("the data of a READ is not what was asked for")),
        }
    }
}

impl RemovalFlight {
    /// Waits for the end of the removal.
    pub(crate) fn wait(mut self) -> Result<()> {
        let done = self.flight.results().and_then(|results| Ok(results.finish()?));
        match done {
            Err(error) if is_repeatable(&error) => {
                let remove = Op::Remove(RemoveArgs { name: &self.name });
                self.flight.client.change_by(&self.dir, &remove)
            }
            done => done,
        }
    }
}

/// True for a removal that was not carried out, or may have been and can be repeated.
fn is_repeatable(error: &MountError) -> bool {
    matches!(error.status(), Some(Status::Delay | Status::Grace | Status::BadSession))
}
