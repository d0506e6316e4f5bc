//! Small parts of many files, read without opening them: one chain of LOOKUP and READ for each (DAFS
//! 8), with many chains in flight.
//!
//! Invariants
//! * A call has at most [`PART_CHAINS_MAX`] chains in flight, so it leaves room in the queue.
//! * Each part has one result, in the order of the parts.

use crate::Takes;
use crate::attributes::FileHandle;
use crate::cache::Effect;
use crate::chain::{is_link, straight, take_data};
use crate::client::Client;
use crate::core::ReplyMessage;
use crate::driver::{Shared, Slot};
use crate::error::{Error, Result};
use crate::limits::PART_CHAINS_MAX;
use crate::path::Follow;
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{Request, Status};
use std::collections::VecDeque;

/// A part of a file, by the path of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePart<'a> {
    /// The path from the root. Symbolic links are followed.
    pub path: &'a [u8],
    /// The offset.
    pub offset: u64,
    /// The most bytes.
    pub bytes: usize,
}

/// The content of a part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartContent {
    /// The bytes; fewer than asked for only at the end of the file.
    pub data: Vec<u8>,
    /// True when the file ends behind them. The server may not report the end if exactly the last
    /// byte was asked for.
    pub is_end: bool,
}

/// A chain of LOOKUP and READ in flight. Dropping it abandons the answers.
struct Flight<'a> {
    shared: &'a Shared,
    slots: Vec<Slot>,
    /// Bytes that READ asks for.
    asked: u32,
}

impl Client {
    /// Reads parts of files without opening them. One round trip serves many parts that fit a
    /// message each ([`step_read_bytes_max`](Self::step_read_bytes_max)). Longer parts, and paths
    /// with symbolic links, take further round trips of their own. Share reservations of others are
    /// respected; no reservation is made.
    ///
    /// # Errors
    /// The end of the session, or a timeout. Errors of single files are in their results: the
    /// server's answer, or a path that cannot be one.
    pub fn read_parts(&self, parts: &[FilePart<'_>]) -> Result<Vec<Result<PartContent>>> {
        drop(self.before(|| Effect::ReadAny));
        let mut results = Vec::with_capacity(parts.len());
        let mut flights = VecDeque::with_capacity(PART_CHAINS_MAX);
        let mut rest = parts.iter();
        loop {
            while flights.len() < PART_CHAINS_MAX
                && let Some(part) = rest.next()
            {
                flights.push_back((part, self.start_part(part)));
            }
            let Some((part, started)) = flights.pop_front() else { return Ok(results) };
            match started.and_then(|flight| self.end_part(part, flight)) {
                Err(error) if !is_of_one_file(&error) => return Err(error),
                result => results.push(result),
            }
        }
    }

    /// Sends the chain for a part. `None` if the part needs more than that.
    fn start_part(&self, part: &FilePart<'_>) -> Result<Option<Flight<'_>>> {
        let Some(names) = straight(part.path)? else { return Ok(None) };
        let root = self.root();
        let lookup = wire::Lookup { dir: root, path: wire::Path::new(&names) };
        let read = self.read_request(&root, part.offset, part.bytes);
        let asked = read.byte_count;
        let chain = [
            (Request::Lookup(lookup), Takes::Nothing.flags()),
            (Request::ReadInline(read), Takes::Handle.flags()),
        ];
        match self.shared().start_chain(&chain) {
            Ok(slots) => Ok(Some(Flight { shared: self.shared(), slots, asked })),
            // The session has one credit, or others have filled the queue.
            Err(Error::ChainTooLong { .. } | Error::TooMany) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn end_part(&self, part: &FilePart<'_>, flight: Option<Flight<'_>>) -> Result<PartContent> {
        let first = flight.map(|flight| self.first_of(flight));
        let (handle, mut content) = match first {
            Some(Ok(found)) => found,
            Some(Err(error)) if !wants_other_way(&error) => return Err(error),
            _ => {
                let handle = self.resolve(part.path, Follow::Yes)?.handle;
                (handle, PartContent { data: Vec::new(), is_end: false })
            }
        };
        while !content.is_end && content.data.len() < part.bytes {
            let done = content.data.len();
            let offset = part.offset.saturating_add(done as u64);
            let request = self.read_request(&handle, offset, part.bytes - done);
            let asked = request.byte_count;
            content.is_end = self.ask(&Request::ReadInline(request), |reply| {
                take_data(reply, asked, &mut content.data)
            })?;
        }
        Ok(content)
    }

    /// Waits for the answers of a chain.
    fn first_of(&self, flight: Flight<'_>) -> Result<(FileHandle, PartContent)> {
        let asked = flight.asked;
        let mut replies = flight.answers().into_iter();
        let mut next = || match replies.next() {
            Some(reply) => succeeded(reply?),
            None => Err(self.shared().broken(&"a chain was answered in part")),
        };
        let (found, read) = (next()?, next()?);
        let handle = self.take(Some(&found), |reply| Some(reply.lookup()?.fh))?;
        let mut data = Vec::new();
        let is_end = self.take(Some(&read), |reply| take_data(reply, asked, &mut data))?;
        Ok((handle, PartContent { data, is_end }))
    }
}

impl Flight<'_> {
    fn answers(mut self) -> Vec<Result<ReplyMessage>> {
        let slots = std::mem::take(&mut self.slots);
        slots.iter().map(|slot| self.shared.wait_reply(slot, None)).collect()
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            self.shared.abandon(slot);
        }
    }
}

/// An answer without a failure.
pub(crate) fn succeeded(reply: ReplyMessage) -> Result<ReplyMessage> {
    match reply.status() {
        status if status.is_ok() => Ok(reply),
        status => Err(Error::Status { procedure: reply.procedure(), status }),
    }
}

/// True when requests one by one may succeed where the chain has failed: with a symbolic link on the
/// path, a busy server, or a connection that was replaced.
fn wants_other_way(error: &Error) -> bool {
    let was_replaced = matches!(error, Error::Unsendable(_) | Error::InDoubt { .. });
    let is_unknown = error.status() == Some(Status::CrHandConflict);
    was_replaced || is_unknown || error.is_passing() || is_link(error)
}

/// True for errors that say nothing about other files.
fn is_of_one_file(error: &Error) -> bool {
    matches!(
        error,
        Error::Argument(_) | Error::Status { .. } | Error::SymlinkLoop(_) | Error::TooLong(_)
    )
}
