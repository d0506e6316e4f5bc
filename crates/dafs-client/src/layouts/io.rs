//! Reads and writes at data servers. The client cuts a transfer by the layout and sends all parts
//! at once. A part that fails is read from another copy or done through the server.

use super::Layouts;
use super::file::{FileLayout, Grant};
use super::flight::Transfers;
use super::sent::{Failure, Piecemeal, Sent, is_outgrown};
use crate::backoff::is_passing;
use crate::buffer::IoBuffer;
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use crate::limit;
use crate::limits::OUTGROWN_TRIES;
use crate::opened::Opened;
use crate::pending::Moved;
use crate::span::Span;
use crate::transfer::{read_through, write_short};
use crate::write_state::Retained;
use dafs_parallel::aggregation::OFFSET_MAX;
use dafs_parallel::{Act, Fault, Protocol};
use dafs_wire::dafs::{Stability, Status, Verifier};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// A read or write under way at data servers. Its drop waits until it is over.
#[derive(Debug)]
pub(crate) struct DataServerTransfer {
    file: Arc<Opened>,
    layout: Arc<FileLayout>,
    grant: Arc<Grant>,
    /// Taken by the thread that waits, which drops the caller's memory before it returns the
    /// result.
    buffer: ForkMutex<Option<IoBuffer>>,
    start: usize,
    offset: u64,
    write: Option<Stability>,
    /// Notes unstable data in place of the file.
    retained: Option<Retained>,
    /// The pieces, each with its range in the transfer.
    pieces: Vec<(Range<usize>, Arc<Sent>)>,
}

/// Starts to read at data servers; `None` if the read has to go through the server.
pub(crate) fn begin_read(file: &Arc<Opened>, span: &Span<'_>) -> Option<DataServerTransfer> {
    begin(file, span, (None, None))
}

/// Starts to write at data servers; `None` if the write has to go through the server.
pub(crate) fn begin_write(
    file: &Arc<Opened>,
    span: &Span<'_>,
    stability: Stability,
) -> Option<DataServerTransfer> {
    begin(file, span, (Some(stability), None))
}

/// Starts an unstable write at data servers, for a caller that keeps the data.
pub(crate) fn begin_retained(
    file: &Arc<Opened>,
    span: &Span<'_>,
    retained: &Retained,
) -> Option<DataServerTransfer> {
    begin(file, span, (Some(Stability::Unstable), Some(retained)))
}

fn begin(
    file: &Arc<Opened>,
    span: &Span<'_>,
    (write, retained): (Option<Stability>, Option<&Retained>),
) -> Option<DataServerTransfer> {
    let (buffer, range, offset) = (span.buffer, &span.range, span.offset);
    let layouts = file.client.layouts()?;
    let layout = layouts.of(file, range.len())?;
    let shared = file.client.shared();
    // The way through the server reports arguments that make no sense.
    let is_inside = range.end <= buffer.len() && buffer.is_of(shared);
    let end = offset.checked_add(range.len() as u64).filter(|end| *end <= OFFSET_MAX);
    if range.is_empty() || !is_inside || end.is_none() || shared.check_process().is_err() {
        return None;
    }
    if write.is_some() && !file.may_write() {
        return None;
    }
    if write.is_none() && layout.extends() {
        // A data server may know the file only by its size at the metadata server.
        layouts.tell_first(shared, layout);
    }
    let (bytes, restarts) = (range.len() as u64, shared.restarts_heard());
    let grant = layouts.at(shared, layout).grant_for(
        (write.is_some(), bytes),
        |grant| grant.terms == restarts,
        file.may_write(),
        // The stop callback may use the file, and would wait for this very request.
        |_| limit::unstopped(|| layouts.ask_for(file, layout)),
    );
    let grant = grant.filter(|grant| layout.enter(grant))?;
    let (start, len) = (range.start, range.len());
    let (file, layout) = (file.clone(), layout.clone());
    let (retained, pieces) = (retained.cloned(), Vec::new());
    let lent = ForkMutex::new(Some(buffer.clone()));
    let mut transfer = DataServerTransfer {
        file,
        layout,
        grant,
        buffer: lent,
        start,
        offset,
        write,
        retained,
        pieces,
    };
    transfer.send(buffer, len);
    let sent = transfer.pieces.iter().map(|(_, sent)| Arc::downgrade(sent));
    transfer.layout.entered(sent);
    if transfer.pieces.iter().all(|(_, sent)| sent.is_turned_away()) {
        return None;
    }
    Some(transfer)
}

impl DataServerTransfer {
    fn piecemeal<'a>(&'a self, buffer: &'a IoBuffer) -> Piecemeal<'a> {
        let Self { file, layout, grant, start, offset, write, .. } = self;
        let (start, offset, write) = (*start, *offset, *write);
        Piecemeal { file, layout, grant, buffer, start, offset, write }
    }

    fn send(&mut self, buffer: &IoBuffer, len: usize) {
        let plan = &self.grant.plan;
        let (copy, bytes_max) = match self.write {
            None => (self.grant.next_copy(), plan.read_bytes_max),
            Some(_) => (0, plan.write_bytes_max),
        };
        let ranges = plan.pieces(copy, self.offset, len, bytes_max as usize);
        let sender = self.piecemeal(buffer);
        let send = |range: Range<usize>| {
            let sent = match self.write {
                Some(_) => sender.send(range.clone(), 0..plan.driver.copies()),
                None => self.send_read(&sender, &range, copy),
            };
            (range, sent)
        };
        let pieces: Vec<_> = ranges.map(send).collect();
        let is_spread = pieces.len() > 1 || pieces.iter().any(|(_, sent)| !sent.is_of_one());
        self.pieces = pieces;
        if is_spread {
            // The thread that waits drives one session; other threads drive the others meanwhile.
            self.attend();
        }
    }

    /// Lets threads of the sessions drive it.
    pub(super) fn attend(&self) {
        self.pieces.iter().for_each(|(_, sent)| sent.attend());
    }

    /// True if data servers have answered all of it; if false, `waker` is called after another
    /// answer.
    pub(super) fn is_answered(&self, waker: Option<&Waker>) -> bool {
        // Each piece has to get the waker, so the count does not stop early.
        self.pieces.iter().filter(|(_, sent)| !sent.is_answered(waker)).count() == 0
    }

    /// True if only the result is left to take: no part goes through the server, and no
    /// LAYOUTCOMMIT may follow.
    pub(super) fn is_good(&self) -> bool {
        let may_be_told = self.write.is_some_and(|wanted| wanted != Stability::Unstable);
        !may_be_told && self.pieces.iter().all(|(_, sent)| sent.is_whole())
    }

    /// The transfers of its file.
    pub(super) fn transfers(&self) -> &Transfers {
        &self.file.layout.transfers
    }

    pub(super) fn layouts(&self) -> Option<&Arc<Layouts>> {
        self.file.client.layouts()
    }

    /// Waits until data servers have answered all of it, but not beyond `until`.
    pub(super) fn settle(&self, until: Option<Instant>) -> Result<()> {
        self.pieces.iter().try_for_each(|(_, sent)| sent.settle_until(until))
    }

    /// The same, for a thread that has not sent it.
    pub(super) fn settle_for_sender(&self) {
        self.pieces.iter().for_each(|(_, sent)| sent.settle_for_sender());
    }

    fn send_read(&self, sender: &Piecemeal<'_>, range: &Range<usize>, copy: usize) -> Arc<Sent> {
        let sent = sender.send(range.clone(), std::iter::once(copy));
        if !sent.is_away() {
            return sent;
        }
        // Another copy may be reachable.
        let others = self.grant.plan.other_copies(copy);
        let mut others = others.map(|other| sender.send(range.clone(), std::iter::once(other)));
        others.find(|sent| !sent.is_away()).unwrap_or(sent)
    }

    /// Waits until it is over. To be called once.
    ///
    /// # Errors
    /// The server's, where a part went through it.
    pub(crate) fn wait(&self) -> Result<Moved> {
        let taken = Error::Argument("the result has been taken already");
        let buffer = self.buffer.lock()?.take().ok_or(taken)?;
        // All parts are over before any is retried.
        self.pieces.iter().for_each(|(_, sent)| sent.settle());
        let mut all = Moved { bytes: 0, end_of_file: false };
        for (range, sent) in &self.pieces {
            let moved = match self.write {
                None => self.read(&buffer, range, sent)?,
                Some(stability) => self.written(&buffer, range, sent, stability)?,
            };
            all.bytes += moved.bytes;
            all.end_of_file = moved.end_of_file;
            if moved.bytes < range.len() {
                break;
            }
        }
        Ok(all)
    }

    /// A part of it, for a transfer through the server.
    fn part<'a>(&self, buffer: &'a IoBuffer, part: &Range<usize>) -> Span<'a> {
        let range = self.start + part.start..self.start + part.end;
        Span { buffer, range, offset: self.offset + part.start as u64 }
    }

    fn read(&self, buffer: &IoBuffer, range: &Range<usize>, sent: &Sent) -> Result<Moved> {
        let moved = match sent.take(false, range.len()) {
            Ok(moved) => moved,
            Err(failed) => {
                let copies = 0..self.grant.plan.driver.copies();
                // If there is only one copy, it has just failed.
                let copies = copies.skip(usize::from(self.grant.plan.driver.copies() == 1));
                let other = copies.filter_map(|copy| self.read_from(buffer, range, copy)).next();
                self.minded(&failed, Act::Read);
                match other {
                    Some(moved) => moved,
                    None => return self.read_through(buffer, range.clone()),
                }
            }
        };
        // A data server may know only an older size of the file from the metadata server.
        match moved.bytes < range.len() {
            true => {
                let rest = self.read_through(buffer, range.start + moved.bytes..range.end)?;
                Ok(Moved { bytes: moved.bytes + rest.bytes, ..rest })
            }
            false => Ok(Moved { bytes: moved.bytes, end_of_file: moved.eof }),
        }
    }

    /// Reads a piece from a copy now; `None` if that fails, too.
    fn read_from(
        &self,
        buffer: &IoBuffer,
        range: &Range<usize>,
        copy: usize,
    ) -> Option<dafs_parallel::Moved<Stability>> {
        let sent = self.send_again(buffer, range, std::iter::once(copy))?;
        sent.take(false, range.len()).ok()
    }

    /// Sends a piece again; `None` if the layout is not held any more.
    fn send_again(
        &self,
        buffer: &IoBuffer,
        range: &Range<usize>,
        copies: impl Iterator<Item = usize>,
    ) -> Option<Arc<Sent>> {
        if !self.layout.enter(&self.grant) {
            return None;
        }
        let sent = self.piecemeal(buffer).send(range.clone(), copies);
        self.layout.entered(std::iter::once(Arc::downgrade(&sent)));
        Some(sent)
    }

    /// Takes the result of a piece that was written. Where a session was too old, sends the piece
    /// again by a newer one.
    fn take_written(
        &self,
        buffer: &IoBuffer,
        range: &Range<usize>,
        sent: &Sent,
    ) -> Result<dafs_parallel::Moved<Stability>, dafs_parallel::Faults<Error>> {
        let mut came = sent.take(true, range.len());
        for _ in 0..OUTGROWN_TRIES {
            let is_old = |(_, failure): &(usize, Failure)| matches!(failure, Fault::Failed(error) if is_outgrown(error));
            if !came.as_ref().is_err_and(|failed| failed.iter().any(is_old)) {
                break;
            }
            let copies = 0..self.grant.plan.driver.copies();
            let Some(again) = self.send_again(buffer, range, copies) else { break };
            came = again.take(true, range.len());
        }
        came
    }

    fn written(
        &self,
        buffer: &IoBuffer,
        range: &Range<usize>,
        sent: &Sent,
        wanted: Stability,
    ) -> Result<Moved> {
        let mut done = 0;
        let failed = match self.take_written(buffer, range, sent) {
            Ok(moved) if wanted == Stability::Unstable => {
                if moved.stable == Stability::Unstable {
                    let verifier = Verifier(moved.verifier);
                    match &self.retained {
                        Some(retained) => retained.at_data_servers.written(verifier),
                        None => self.file.layout.written(verifier),
                    }
                }
                done = moved.bytes;
                Vec::new()
            }
            // If data was lost since, LAYOUTCOMMIT may not have covered this write.
            Ok(moved)
                if moved.stable != Stability::Unstable
                    && moved.verifier == self.layout.verifier() =>
            {
                // The data is stable, but the server decides how much of it the file has. If
                // LAYOUTCOMMIT fails, the whole piece goes through the server.
                let is_to_tell = moved.stable < wanted || self.layout.extends();
                let is_told = !is_to_tell || self.tell();
                done = if is_told { moved.bytes } else { 0 };
                Vec::new()
            }
            Ok(_) => Vec::new(),
            Err(failed) => failed,
        };
        self.minded(&failed, Act::Write);
        if done < range.len() {
            let part = self.part(buffer, &(range.start + done..range.end));
            let writes = self.retained.as_ref().map(|retained| retained.through.clone());
            let writes = writes.or_else(|| self.file.watch(wanted));
            let written = write_short(&self.file, &part, wanted, writes.as_ref());
            written.map_err(|error| match error {
                // Data servers may have done the write.
                Error::NotSent { server, after } => Error::Deadline { server, after },
                error => error,
            })?;
        }
        Ok(Moved { bytes: range.len(), end_of_file: false })
    }

    /// Sends LAYOUTCOMMIT for what was written; false if that fails.
    fn tell(&self) -> bool {
        let client = &self.file.client;
        let told = client.layouts().map(|layouts| layouts.at(client.shared(), &self.layout).tell());
        let told = told.unwrap_or(Ok(()));
        told.inspect_err(|error| tracing::debug!(%error, "a stable write goes through the server"))
            .is_ok()
    }

    /// Gives the layout back if any failure requires it. The server learns of all failures: a copy
    /// that may be written late differs from the others.
    fn minded(&self, failed: &[(usize, Failure)], act: Act) {
        let Some(layouts) = self.file.client.layouts() else { return };
        if act == Act::Read && limit::is_over() {
            // The caller's deadline says nothing about the data server.
            return;
        }
        let at = layouts.at(self.file.client.shared(), &self.layout);
        at.give_back_after(&self.grant, failed, act);
    }

    fn read_through(&self, buffer: &IoBuffer, range: Range<usize>) -> Result<Moved> {
        let client = &self.file.client;
        if self.layout.written().is_some()
            && let Some(layouts) = client.layouts()
        {
            layouts.tell_first(client.shared(), &self.layout);
        }
        let bytes = read_through(&self.file, &self.part(buffer, &range))?;
        Ok(Moved { bytes, end_of_file: bytes < range.len() })
    }
}

/// The status that reports a failure to the server; `None` for a transient one.
pub(super) fn status_of(failure: &Failure) -> Option<Status> {
    match failure {
        Fault::Unavailable | Fault::Short => None,
        // This client failed, not the data server.
        Fault::Failed(Error::BadMemory | Error::Memory(_) | Error::TooMany) => None,
        Fault::Unreachable => Some(Status::Io),
        Fault::Failed(error) => match error.status() {
            // The data server works; its session is too old.
            Some(_) if is_outgrown(error) => None,
            Some(status) => Some(status).filter(|status| !is_passing(*status)),
            None => Some(Status::Io),
        },
    }
}
