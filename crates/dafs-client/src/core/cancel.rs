//! X_CANCEL, an extension: asks the server to take out what it has not begun.
//!
//! Invariants
//! * The request changes no call by itself. A call that the server has taken out ends with the
//!   status X_CANCELED in its own answer or completion, all others end as always. So a lost answer
//!   to X_CANCEL costs nothing.
//! * An item is sent only in the session whose numbers it names.
//! * A call is not named if an earlier sending of it may have been carried out: its end as cancelled
//!   would be untrue.

use super::call::{Done, Purpose, ReplyMessage};
use super::failure::Failure;
use super::session::{SessionCore, Stage};
use crate::limits::CANCEL_ITEMS_MAX;
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{
    CancelItem, CancelKind, HEADER_BYTES, Outcome, Procedure, Reply, Request, Seq, SessionId,
    Status, XCancel,
};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;

/// Bytes of either message around its list: header, fixed section, count and pad.
const AROUND_BYTES: usize = HEADER_BYTES + 8 + 8;

/// Bytes of an item.
const ITEM_BYTES: usize = 16;

/// Work that the server is to be asked to take out, each with the session that it belongs to.
#[derive(Debug, Default)]
pub(crate) struct Cancels(VecDeque<(SessionId, CancelItem)>);

/// The item for a transfer of an asynchronous batch.
pub(super) fn transfer_item(number: u64) -> CancelItem {
    CancelItem { kind: CancelKind::Transfer, stream: 0, sequence: 0, request_id: number }
}

/// True for requests that the server may take out: those that move data.
fn is_transfer(procedure: Procedure) -> bool {
    use Procedure::{
        AppendDirect, AppendInline, BatchSubmit, ReadDirect, ReadInline, WriteDirect, WriteInline,
    };
    matches!(
        procedure,
        AppendDirect
            | AppendInline
            | BatchSubmit
            | ReadDirect
            | ReadInline
            | WriteDirect
            | WriteInline
    )
}

/// The end of a call that the server has taken out, and of every other as it is.
pub(super) fn unless_canceled(done: Done) -> Done {
    match &done {
        Done::Refused { status: Status::XCanceled, .. } => Done::Lost(Failure::Canceled),
        Done::Answered(reply) if reply.status() == Status::XCanceled => {
            Done::Lost(Failure::Canceled)
        }
        _ => done,
    }
}

impl SessionCore {
    /// Asks the server to take out transfers of batches, each named by its tag. Leaves the tags for
    /// which it cannot be asked.
    pub fn cancel_transfers_at_server(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        tags: &mut FxHashSet<u64>,
    ) {
        self.link.now = now;
        if self.link.info.cancels {
            self.back.batches.cancel_later(|tag| tags.remove(&tag));
            self.pump(adapter);
        }
    }

    /// Asks the server to take a call out that it has not begun. The call ends with
    /// [`Failure::Canceled`] if it does so in time, and as always if not. Returns false when the
    /// server has no such request, or the call cannot be named.
    ///
    /// The question needs a credit. So it waits while stuck requests hold all that the session has.
    pub fn cancel_at_server(&mut self, adapter: &mut dyn Adapter, now: Instant, tag: u64) -> bool {
        self.link.now = now;
        if !self.link.info.cancels || self.calls.chains.holds(tag) {
            return false;
        }
        if !self.back.batches.cancel_later(|found| found == tag) {
            let Some(item) = self.item_of(tag) else { return false };
            self.cancel_soon(item);
        }
        self.pump(adapter);
        true
    }

    /// The item for a request that waits for its answer.
    fn item_of(&self, tag: u64) -> Option<CancelItem> {
        let flights = self.link.conn.flights.iter().enumerate();
        let mut own = flights.filter_map(|(stream, flight)| Some((stream, flight.as_ref()?)));
        let (stream, flight) = own.find(|(_, flight)| {
            flight.purpose == Purpose::Caller(tag) && is_transfer(flight.procedure)
        })?;
        if flight.maybe_done {
            return None;
        }
        let (stream, sequence) = (u16::try_from(stream).ok()?, flight.sequence);
        Some(CancelItem { kind: CancelKind::Request, stream, sequence, request_id: 0 })
    }

    fn cancel_soon(&mut self, item: CancelItem) {
        let item = (self.link.info.session_id, item);
        if !self.cancels.0.contains(&item) {
            self.cancels.0.push_back(item);
        }
    }

    /// Sends what waits, as far as there are credits.
    pub(super) fn send_cancels(&mut self, adapter: &mut dyn Adapter) {
        for number in self.back.batches.take_cancels() {
            self.cancel_soon(transfer_item(number));
        }
        while matches!(self.stage, Stage::Ready | Stage::Closing)
            && !self.cancels.0.is_empty()
            && self.link.conn.has_room()
        {
            let info = &self.link.info;
            let room = info.request_bytes.min(info.response_bytes) as usize;
            let room = room.saturating_sub(AROUND_BYTES) / ITEM_BYTES;
            let count = self.cancels.0.len().min(room.clamp(1, CANCEL_ITEMS_MAX));
            let own = self.cancels.0.drain(..count).filter(|(of, _)| *of == info.session_id);
            let items: Vec<CancelItem> = own.map(|(_, item)| item).collect();
            if !items.is_empty() {
                let request = Request::XCancel(XCancel { items: Seq::new(&items) });
                self.send_own(adapter, Purpose::Cancel, &request);
            }
        }
    }

    /// Processes the answer to X_CANCEL. Cancelled work has an answer of its own.
    pub(super) fn on_cancel_reply(&mut self, reply: &ReplyMessage) -> Result<(), Failure> {
        match reply.decode().map_err(Failure::protocol)? {
            Outcome::Ok(Reply::XCancel(_)) => {}
            Outcome::Ok(_) => return Err(Failure::protocol("an answer of another procedure")),
            Outcome::Error { status, .. } => {
                self.link.info.cancels &= status != Status::NotSupp;
                self.back.batches.cancels_refused();
            }
        }
        Ok(())
    }
}
