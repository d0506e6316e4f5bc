//! The poll loop: posting queued work, taking completions, set-up and end of connections.

use super::adapter::{Entry, VerbsAdapter};
use super::connection::{Connection, Lane, Stage};
use super::ffi;
use super::fork;
use super::limits;
use super::sys::{self, Reaped};
use super::teardown::End;
use crate::{Completion, DisconnectReason, EndpointId, Event, Instant, Operation, WorkStatus};
use std::io;

impl VerbsAdapter {
    pub(super) fn turn(&mut self, now: Instant) {
        if fork::is_child() {
            return;
        }
        self.now = now;
        self.hand_over();
        self.reap();
        self.polls_since_cm += 1;
        if self.slept
            || !self.unsettled.is_empty()
            || self.polls_since_cm >= limits::POLLS_PER_CM_POLL
        {
            self.slept = false;
            self.polls_since_cm = 0;
            self.take_cm_events();
        }
        self.hand_over();
        self.settle();
    }

    /// Posts queued work to the device.
    pub(super) fn hand_over(&mut self) {
        if fork::is_child() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let Some(connection) = self.connection_mut(id) else { continue };
            connection.dirty = false;
            if let Err(error) = hand_over(connection) {
                self.end(id, End::Because(DisconnectReason::Lost(error.to_string())));
            } else if connection.closing && connection.is_open() && connection.is_sent() {
                self.end(id, End::Local);
            }
        }
        // The end of one connection may have made room for others.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    /// Takes completions from the device.
    pub(super) fn reap(&mut self) {
        let mut reaped = std::mem::take(&mut self.reaped);
        for queue in self.queues.iter() {
            let before = reaped.len();
            loop {
                match queue.reap(|completion| reaped.push(completion)) {
                    Ok(0) => break,
                    Ok(_) if reaped.len() - before >= limits::REAP_COUNT_PER_TURN => break,
                    Ok(_) => {}
                    Err(error) => {
                        if !std::mem::replace(&mut self.has_complained, true) {
                            tracing::error!(%error, "cannot take completions");
                        }
                        break;
                    }
                }
            }
        }
        for completion in reaped.drain(..) {
            match Lane::split(completion.id) {
                (id, Lane::Receive) => self.received(id, completion),
                (id, lane) => self.sent(id, lane, completion),
            }
        }
        self.reaped = reaped;
        let mut broken = std::mem::take(&mut self.broken);
        for (id, end) in broken.drain(..) {
            self.end(id, end);
        }
        self.broken = broken;
    }

    fn complete(&mut self, id: u64, work: u64, operation: Operation, status: WorkStatus) {
        let (endpoint, invalidated) = (EndpointId(id), None);
        let done = Completion { endpoint, work, operation, status, invalidated };
        self.events.push(Event::Completion(done));
    }

    fn received(&mut self, id: u64, completion: Reaped) {
        let Some(connection) = self.connection_mut(id) else { return };
        let Some(receive) = connection.receives.pop_front() else { return };
        if completion.status != ffi::WC_SUCCESS {
            self.complete(id, receive.work, Operation::Receive, WorkStatus::Flushed);
            return self.failed(id, completion.status, true);
        }
        connection.has_heard = true;
        if matches!(connection.stage, Stage::Accepted) {
            // The message has overtaken the connection manager's last message.
            connection.cm.notify_established();
            self.established(id, Vec::new(), None);
        }
        self.events.push(Event::Completion(Completion {
            endpoint: EndpointId(id),
            work: receive.work,
            operation: Operation::Receive,
            status: WorkStatus::Ok(completion.bytes),
            invalidated: completion.invalidated,
        }));
    }

    fn sent(&mut self, id: u64, lane: Lane, completion: Reaped) {
        let Some(connection) = self.connection_mut(id) else { return };
        let is_read = lane == Lane::Read;
        let queue = if is_read { &mut connection.reads } else { &mut connection.sends };
        let Some(done) = queue.pop_front() else { return };
        let must_look = !connection.waiting.is_empty() || connection.closing;
        let ok = completion.status == ffi::WC_SUCCESS;
        connection.has_heard |= ok && is_read;
        if let Some(done) = done {
            let status = if ok { WorkStatus::Ok(done.len) } else { WorkStatus::Flushed };
            self.complete(id, done.work, done.operation, status);
            if let Some(block) = done.staging {
                self.return_staging(block);
            }
        }
        if !ok {
            self.failed(id, completion.status, false);
        } else if must_look {
            self.mark_dirty(id);
        }
    }

    /// Handles a failed completion: the first shows the reason, the others are flushed because of
    /// it.
    fn failed(&mut self, id: u64, status: i32, is_receive: bool) {
        let is_ending = self
            .connection_mut(id)
            .is_none_or(|connection| matches!(connection.stage, Stage::Ending(_)));
        if is_ending || self.broken.iter().any(|(known, _)| *known == id) {
            return;
        }
        let text = || sys::status_text(self.library, status);
        let end = match status {
            ffi::WC_WR_FLUSH_ERR => End::Flushed,
            ffi::WC_LOC_LEN_ERR if is_receive => End::Because(DisconnectReason::Protocol(
                "a message longer than its receive".to_owned(),
            )),
            _ if is_receive => End::Because(DisconnectReason::Protocol(text())),
            ffi::WC_RNR_RETRY_EXC_ERR => End::Because(DisconnectReason::Terminated(
                "the peer had no receive for a message".to_owned(),
            )),
            ffi::WC_REM_ACCESS_ERR
            | ffi::WC_REM_INV_REQ_ERR
            | ffi::WC_REM_OP_ERR
            | ffi::WC_REM_ABORT_ERR => End::Because(DisconnectReason::Terminated(text())),
            ffi::WC_RETRY_EXC_ERR | ffi::WC_RESP_TIMEOUT_ERR => {
                End::Because(DisconnectReason::Lost("the peer does not answer".to_owned()))
            }
            _ => End::Because(DisconnectReason::Lost(text())),
        };
        self.broken.push((id, end));
    }

    /// Handles entries with a deadline.
    fn settle(&mut self) {
        let now = self.now;
        let mut unsettled = std::mem::take(&mut self.unsettled);
        unsettled.retain(|id| match self.slots.get_mut(*id) {
            None => false,
            Some(Entry::Request(request)) => {
                if request.deadline.is_over(now) {
                    self.drop_request(*id);
                    return false;
                }
                true
            }
            Some(Entry::Lingering { deadline, .. }) => {
                if deadline.is_over(now) {
                    self.slots.remove(*id);
                    return false;
                }
                true
            }
            Some(Entry::Connection(connection)) => {
                if connection.is_settled() {
                    return false;
                }
                let is_over = connection.deadline.is_over(now);
                match connection.stage {
                    Stage::Ending(_) if is_over || connection.is_drained() => {
                        self.finish(*id);
                        false
                    }
                    Stage::Ending(_) => true,
                    Stage::Open if !connection.closing => {
                        if is_over {
                            connection.go_on_opening();
                            self.mark_dirty(*id);
                        }
                        true
                    }
                    // The end of the connection sets its own deadline.
                    _ if is_over => {
                        self.time_is_up(*id);
                        false
                    }
                    _ => true,
                }
            }
        });
        // Keep the entries that were added meanwhile.
        unsettled.append(&mut self.unsettled);
        self.unsettled = unsettled;
    }

    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        let deadlines = self.unsettled.iter().filter_map(|id| {
            let deadline = match self.slots.get(*id)? {
                Entry::Request(request) => request.deadline,
                Entry::Lingering { deadline, .. } => *deadline,
                Entry::Connection(connection) => connection.deadline,
            };
            Some(deadline.at.unwrap_or(self.now))
        });
        deadlines.min()
    }

    pub(super) fn prepare_to_sleep(&mut self) -> io::Result<bool> {
        if fork::is_child() {
            return Err(super::VerbsError::Forked.into());
        }
        self.hand_over();
        self.memory.sweep();
        self.slept = true;
        if !self.events.is_empty() {
            return Ok(false);
        }
        self.queues.channel().drain();
        if !self.is_removed {
            match self.queues.request_notices() {
                // The kernel has taken the device away. Only identifiers that are bound to the device
                // have an event for that, and those of a listener at all addresses are not.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    let device = &self.chosen.info.name;
                    tracing::error!(device, "the RDMA device was removed");
                    self.is_removed = true;
                }
                requested => requested?,
            }
        }
        // The channel does not report completions from before the request.
        self.reap();
        self.hand_over();
        let is_ready = self.unsettled.iter().any(|id| match self.slots.get(*id) {
            Some(Entry::Connection(connection)) => {
                matches!(connection.stage, Stage::Ending(_)) && connection.is_drained()
            }
            _ => false,
        });
        Ok(self.events.is_empty() && !is_ready)
    }
}

fn hand_over(connection: &mut Connection) -> io::Result<()> {
    match connection.stage {
        Stage::Accepting => {
            let depths = super::cm::ReadDepths {
                inbound: connection.inbound_reads,
                outbound: connection.outbound_reads,
            };
            connection.cm.accept(&connection.private_data, depths)?;
            connection.private_data = Vec::new();
            connection.stage = Stage::Accepted;
            Ok(())
        }
        Stage::Open => connection.post_waiting(),
        _ => Ok(()),
    }
}
