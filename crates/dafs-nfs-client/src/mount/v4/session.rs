//! A session: its slots, and the transfers that use them.
//!
//! Invariants
//! * A slot is free only when the server's answer to its last request was read, or the request was
//!   never carried out; a session that cannot tell is over.
//! * When transfers use all slots, a thread that needs one reads the answer to the oldest transfer.
//!   So transfers that are not waited for cause no deadlock.

use super::flight::TransferFlight;
use crate::slots::Slots;
use dafs_mem::{Condvar, Mutex};
use dafs_wire::nfs4::{CreateSessionResult, SequenceArgs, SequenceResult, SessionId};
use std::sync::Arc;
use std::time::Duration;

/// The interval at which a thread that waits for a slot looks for a transfer whose answer it can
/// read.
const SLOT_WATCH: Duration = Duration::from_millis(20);

/// Intervals after which such a thread takes a slot above the server's target. The server may have lowered
/// that while compounds of the waiting threads were under way in all slots below it.
const WATCHES_MAX: u32 = 50;

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) granted: CreateSessionResult,
    table: Mutex<Table>,
    freed: Condvar,
}

#[derive(Debug)]
struct Table {
    slots: Slots,
    /// The transfer in each slot, with its starting order.
    flights: Vec<Option<(u64, Arc<TransferFlight>)>>,
    flights_begun: u64,
    over: bool,
}

/// The session is over.
#[derive(Debug)]
pub(crate) struct Over;

impl Session {
    pub(crate) fn new(granted: CreateSessionResult) -> Self {
        let slots = Slots::new(granted.session_id, granted.fore.requests_max);
        let flights = (0..slots.count()).map(|_| None).collect();
        let table = Table { slots, flights, flights_begun: 0, over: false };
        Self { granted, table: Mutex::new(table), freed: Condvar::new() }
    }

    pub(crate) fn id(&self) -> SessionId {
        self.granted.session_id
    }

    pub(crate) fn is_over(&self) -> bool {
        self.table.lock().over
    }

    /// Ends the session: the server does not know it any more, or the state of its slots is in
    /// doubt.
    pub(crate) fn end(&self) {
        let mut table = self.table.lock();
        table.over = true;
        table.flights.iter_mut().for_each(|flight| *flight = None);
        drop(table);
        self.freed.notify_all();
    }

    /// Takes a slot, and waits for one if there is none.
    pub(crate) fn take(&self, cache_this: bool) -> Result<SequenceArgs, Over> {
        let mut table = self.table.lock();
        let mut watches = 0;
        loop {
            if table.over {
                return Err(Over);
            }
            let taken = match watches < WATCHES_MAX {
                true => table.slots.take(cache_this),
                false => table.slots.take_any(cache_this),
            };
            if let Some(sequence) = taken {
                return Ok(sequence);
            }
            let under_way = table.flights.iter().flatten();
            let oldest = under_way.min_by_key(|(begun, _)| *begun).map(|(_, f)| f.clone());
            if let Some(flight) = oldest {
                drop(table);
                if flight.collect_for_slot() {
                    table = self.table.lock();
                    continue;
                }
                table = self.table.lock();
            }
            // Calls of other threads use the slots, or another thread reads the answer to that
            // transfer.
            let waited = self.freed.wait_timeout(table, SLOT_WATCH);
            table = waited.0;
            watches += u32::from(waited.1.timed_out());
        }
    }

    /// Takes a slot if less than half of them are in use.
    pub(crate) fn take_spare(&self, cache_this: bool) -> Option<SequenceArgs> {
        let mut table = self.table.lock();
        if table.over { None } else { table.slots.take_spare(cache_this) }
    }

    /// Records the transfer in a slot.
    pub(crate) fn occupy(&self, sequence: &SequenceArgs, flight: &Arc<TransferFlight>) {
        let mut table = self.table.lock();
        let begun = table.flights_begun;
        table.flights_begun += 1;
        if let Some(place) = table.flights.get_mut(sequence.slot_id as usize) {
            *place = Some((begun, flight.clone()));
        }
    }

    /// Ends the request of a slot: with the result of its SEQUENCE, or without one if the server
    /// never counted it.
    pub(crate) fn release(&self, sequence: &SequenceArgs, result: Option<&SequenceResult>) {
        let mut table = self.table.lock();
        if let Some(place) = table.flights.get_mut(sequence.slot_id as usize) {
            *place = None;
        }
        match result {
            Some(result) if result.slot_id == sequence.slot_id => table.slots.done(result),
            Some(_) => table.over = true,
            None => table.slots.not_counted(sequence.slot_id),
        }
        drop(table);
        self.freed.notify_one();
    }

    /// Ends the request of a slot that the server counted without keeping its answer.
    pub(crate) fn release_counted(&self, sequence: &SequenceArgs) {
        let mut table = self.table.lock();
        if let Some(place) = table.flights.get_mut(sequence.slot_id as usize) {
            *place = None;
        }
        table.slots.counted(sequence.slot_id);
        drop(table);
        self.freed.notify_one();
    }
}
