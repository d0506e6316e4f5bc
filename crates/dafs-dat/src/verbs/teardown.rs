//! The end of connections.
//!
//! Invariants
//! * All posted work completes before the end is reported, and no event follows it.
//! * The device flushes work. If it does not do so in time, or the caller cannot wait, the queue
//!   pair is destroyed first, so that no memory is accessed after its completion.
//! * Grants end before the queue pair to whose peer they were made.
//! * An adapter that is dropped sends posted work first, if the peers take it in time. Its caller may
//!   have posted a last message.
//! * Of a device that was removed no identifier stays: the kernel waits for the end of each.
//! * The adapters of a process share the error events of a device; each takes those of its own
//!   queue pairs.

use super::adapter::{Entry, VerbsAdapter};
use super::connection::{Deadline, Stage};
use super::ffi;
use super::fork;
use super::limits;
use super::sys::Device;
use crate::{
    Completion, ConnectError, DisconnectReason, EndpointId, Event, Instant, Operation, WorkStatus,
};
use dafs_mem::Mutex;
use std::io;
use std::time::Duration;

/// The reason why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The caller ended it.
    Local,
    /// The peer disconnected.
    Peer,
    /// The queue pair failed, and the device reported no reason.
    Flushed,
    Because(DisconnectReason),
    /// It was never established.
    Setup(ConnectError),
}

impl End {
    fn reason(self) -> DisconnectReason {
        match self {
            End::Local => DisconnectReason::Local,
            End::Peer => DisconnectReason::Peer,
            End::Flushed => DisconnectReason::Lost("the device ended the connection".to_owned()),
            End::Because(reason) => reason,
            End::Setup(error) => DisconnectReason::Lost(error.to_string()),
        }
    }

    /// The same for a connection of this side that was never established.
    fn connect_error(self) -> ConnectError {
        match self {
            End::Setup(error) => error,
            End::Because(reason) => ConnectError::Io(io::Error::other(reason.to_string())),
            _ => ConnectError::Gone,
        }
    }
}

/// Error events of queue pairs that were read but not yet claimed, by device and number.
static TROUBLE: Mutex<Vec<(String, u32, i32)>> = Mutex::new(Vec::new());

/// The most events kept: events of queue pairs that other code of this process owns are never
/// claimed.
const TROUBLE_COUNT_MAX: usize = 1024;

/// The error event of this queue pair, if the device has reported one.
fn trouble(device: &Device, name: &str, number: u32) -> Option<&'static str> {
    let mut reports = TROUBLE.lock();
    while let Some((about, kind)) = device.async_event() {
        let Some(about) = about else {
            tracing::debug!(device = name, kind, "event of an RDMA device");
            continue;
        };
        if reports.len() >= TROUBLE_COUNT_MAX {
            reports.remove(0);
        }
        reports.push((name.to_owned(), about, kind));
    }
    let mut found = None;
    reports.retain(|(known, about, kind)| {
        let is_ours = known == name && *about == number;
        if is_ours {
            found = found.or(match *kind {
                ffi::EVENT_QP_ACCESS_ERR => Some("a key, range or right that the peer has not"),
                ffi::EVENT_QP_REQ_ERR => Some("a request that is not allowed"),
                ffi::EVENT_QP_FATAL => Some("a request that could not be carried out"),
                _ => None,
            });
        }
        !is_ours
    });
    found
}

impl VerbsAdapter {
    /// Begins the end of a connection; the first reason stays.
    pub(super) fn end(&mut self, id: u64, end: End) {
        let is_infiniband = self.chosen.is_infiniband();
        let Some(connection) = self.connection_mut(id) else { return };
        if matches!(connection.stage, Stage::Ending(_)) {
            return;
        }
        let number = connection.cm.queue_pair_number();
        // Check before the disconnect, which moves the queue pair to the error state itself.
        let is_in_error = is_infiniband && number.is_some() && connection.cm.is_in_error();
        let never_up = connection.is_initiator && matches!(connection.stage, Stage::Connecting);
        let end = match end {
            // The queue pair has failed here, not at the peer: the peer's message broke a rule.
            End::Peer | End::Flushed if !never_up => {
                let (device, name) = (self.chosen.device, &self.chosen.info.name);
                let found = number.and_then(|number| trouble(&device, name, number));
                let text = found.or(is_in_error.then_some("the device refused what the peer sent"));
                match text {
                    Some(text) => End::Because(DisconnectReason::Protocol(text.to_owned())),
                    // An iWARP device flushes when the peer has closed.
                    None if !is_infiniband => End::Peer,
                    None => end,
                }
            }
            end => end,
        };
        let Some(connection) = self.connection_mut(id) else { return };
        if number.is_none() || never_up || matches!(connection.stage, Stage::Accepting) {
            return self.conclude(id, end, never_up);
        }
        // It fails where the peer was faster. Then the queue pair is in its error state already, or
        // is destroyed after the timeout.
        if let Err(error) = connection.cm.disconnect() {
            tracing::debug!(%error, peer = %connection.peer, "no good-bye");
        }
        connection.stage = Stage::Ending(end);
        connection.deadline = Deadline::after(Duration::from_secs(limits::DRAIN_SECONDS));
        if !self.unsettled.contains(&id) {
            self.unsettled.push(id);
        }
    }

    /// Completes the end of a connection that the device has drained, or that cannot wait for that.
    pub(super) fn finish(&mut self, id: u64) {
        let Some(connection) = self.connection_mut(id) else { return };
        match std::mem::replace(&mut connection.stage, Stage::Ending(End::Local)) {
            Stage::Ending(end) => self.conclude(id, end, false),
            stage => debug_assert!(false, "finished in {stage:?}"),
        }
    }

    fn conclude(&mut self, id: u64, end: End, never_up: bool) {
        let Some(Entry::Connection(mut connection)) = self.slots.remove(id) else { return };
        let number = connection.cm.queue_pair_number();
        connection.grants.drain(..).for_each(|grant| self.memory.end_grant(grant));
        connection.cm.destroy_queue_pair();
        if let Some(queue) = connection.queue {
            let entries = connection.depths.sends + connection.depths.receives;
            self.queues.give_back(queue, entries);
        }
        if let Some(number) = number {
            // Queue pair numbers are reused, so drop old events.
            trouble(&self.chosen.device, &self.chosen.info.name, number);
        }
        let endpoint = EndpointId(id);
        let mut flush = |work, operation| {
            let (status, invalidated) = (WorkStatus::Flushed, None);
            let done = Completion { endpoint, work, operation, status, invalidated };
            self.events.push(Event::Completion(done));
        };
        let waiting = connection.waiting.drain(..).map(|waiting| waiting.done);
        let mut blocks = Vec::new();
        let posted = connection.sends.drain(..).chain(connection.reads.drain(..));
        for done in posted.chain(waiting).flatten() {
            flush(done.work, done.operation);
            blocks.extend(done.staging);
        }
        for receive in connection.receives.drain(..) {
            flush(receive.work, Operation::Receive);
        }
        for block in blocks {
            self.return_staging(block);
        }
        tracing::debug!(peer = %connection.peer, ?end, "connection ends");
        let must_linger = self.chosen.is_infiniband()
            && !self.is_removed
            && !never_up
            && !matches!(end, End::Peer);
        let event = if never_up && !matches!(end, End::Local) {
            Event::ConnectFailed { endpoint, error: Box::new(end.connect_error()) }
        } else {
            let reason = end.reason();
            if let DisconnectReason::Protocol(text) = &reason {
                tracing::warn!(peer = %connection.peer, "protocol error: {text}");
            }
            Event::Disconnected { endpoint, reason: Box::new(reason) }
        };
        self.events.push(event);
        // Completions of the destroyed queue pair occupy room until they are taken.
        self.reap();
        if must_linger {
            let deadline = Deadline::after(self.config.linger_timeout);
            let mut cm = connection.cm;
            let linger = self.slots.insert(|id| {
                cm.set_token(id);
                Entry::Lingering { _cm: cm, deadline }
            });
            self.unsettled.extend(linger);
        }
    }

    /// True while a connection has work that the device has not completed.
    fn has_unsent(&self) -> bool {
        self.slots.iter().any(|entry| match entry {
            Entry::Connection(connection) => connection.is_open() && !connection.is_sent(),
            Entry::Request(_) | Entry::Lingering { .. } => false,
        })
    }
}

impl Drop for VerbsAdapter {
    fn drop(&mut self) {
        // A queue pair that is destroyed sends nothing more, unlike a socket that is closed.
        let until = Instant::now() + Duration::from_millis(limits::DROP_MILLISECONDS);
        while !fork::is_child() && self.has_unsent() && Instant::now() < until {
            self.hand_over();
            self.reap();
            std::thread::sleep(Duration::from_micros(50));
        }
        // Before the queue pairs.
        let Self { slots, memory, .. } = self;
        for entry in slots.iter() {
            if let Entry::Connection(connection) = entry {
                connection.grants.iter().for_each(|grant| memory.end_grant(*grant));
            }
        }
    }
}
