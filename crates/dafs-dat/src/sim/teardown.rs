//! The end of connections.

use super::connection::{Connection, Half, Side, Stage, Verb};
use super::fabric::{Fabric, Wake};
use crate::types::{Event, Operation, WorkStatus};
use crate::{ConnectError, DisconnectReason};

impl Connection {
    /// Loses the link. Bytes in flight in the direction of `exact` still arrive (a cut after a
    /// known byte); of the other direction a drawn prefix does. Both sides will notice, each with
    /// its own delay.
    pub(super) fn lose(&mut self, fabric: &mut Fabric, exact: Option<Side>, why: &str) {
        if self.lost {
            return;
        }
        self.lost = true;
        fabric.counts.lost += 1;
        for side in Side::BOTH {
            if exact != Some(side) {
                self.keep_prefix(fabric, side);
            }
        }
        for side in Side::BOTH {
            let (id, half) = (self.id, self.half_mut(side));
            if half.stage == Stage::Closed {
                continue;
            }
            half.reason.get_or_insert_with(|| DisconnectReason::Lost(why.to_owned()));
            let delay = fabric.notice();
            fabric.after(delay, id, Wake::Notice(side));
        }
    }

    /// Drops all but a drawn prefix of the bytes that `side` has in flight.
    fn keep_prefix(&mut self, fabric: &mut Fabric, side: Side) {
        let flight = &mut self.half_mut(side).line.flight;
        let bytes: u64 = flight.iter().map(|piece| piece.stream_bytes()).sum();
        let mut left = fabric.rng.below(bytes + 1);
        for piece in std::mem::take(flight) {
            let len = piece.stream_bytes();
            if left >= len {
                left -= len;
                flight.push_back(piece);
            } else {
                fabric.counts.torn += 1;
                flight.extend(piece.truncated(left));
                return;
            }
        }
    }

    /// Ends the connection because the peer of `side` broke a rule; the peer will be informed.
    pub(super) fn violate(&mut self, fabric: &mut Fabric, side: Side, text: &str) {
        fabric.counts.violations += 1;
        let peer = self.half_mut(side.other());
        peer.reason.get_or_insert_with(|| DisconnectReason::Terminated(text.to_owned()));
        self.close(fabric, side, DisconnectReason::Protocol(text.to_owned()));
        self.lose(fabric, None, "the peer ended the connection");
    }

    /// Reports to `side` that the link is lost.
    pub(super) fn notice(&mut self, fabric: &mut Fabric, side: Side) {
        let reason = self.half_mut(side).reason.take();
        let lost = || DisconnectReason::Lost("the connection was lost".to_owned());
        self.close(fabric, side, reason.unwrap_or_else(lost));
    }

    /// Ends one side: flushes its work, then reports the end.
    pub(super) fn close(&mut self, fabric: &mut Fabric, side: Side, reason: DisconnectReason) {
        let failed = matches!((self.half(side).stage, side), (Stage::Opening, Side::Connector));
        if failed {
            let error = match reason {
                DisconnectReason::Local => ConnectError::Gone,
                other => ConnectError::Io(std::io::Error::new(
                    std::io::ErrorKind::ConnectionReset,
                    other.to_string(),
                )),
            };
            return self.fail(fabric, error);
        }
        let half = self.half_mut(side);
        if half.stage == Stage::Closed {
            return;
        }
        flush_all(fabric, half);
        if let Some(endpoint) = half.endpoint {
            let event = Event::Disconnected { endpoint, reason: Box::new(reason) };
            fabric.report(half.port, event);
        }
    }

    /// Reports that the connector's attempt has failed.
    pub(super) fn fail(&mut self, fabric: &mut Fabric, error: ConnectError) {
        let half = self.half_mut(Side::Connector);
        if half.stage != Stage::Opening {
            return;
        }
        flush_all(fabric, half);
        if let Some(endpoint) = half.endpoint {
            let event = Event::ConnectFailed { endpoint, error: Box::new(error) };
            fabric.report(half.port, event);
        }
    }
}

/// Completes all outstanding work of a side and forgets it.
fn flush_all(fabric: &mut Fabric, half: &mut Half) {
    half.stage = Stage::Closed;
    let (port, endpoint) = (half.port, half.endpoint);
    if let Some(endpoint) = endpoint {
        fabric.endpoints.remove(&endpoint);
    }
    for completion in std::mem::take(&mut half.line.done) {
        // The work was transmitted, so either status is valid; neither means that it arrived.
        let status =
            if fabric.rng.chance(500_000) { completion.status } else { WorkStatus::Flushed };
        fabric.complete(port, endpoint, completion.work, completion.operation, status);
    }
    let queue = std::mem::take(&mut half.line.queue);
    let held = std::mem::take(&mut half.line.held);
    for frame in queue.into_iter().chain(held) {
        let operation = match frame.verb {
            Verb::Send(_) => Operation::Send,
            Verb::Write(_) => Operation::RdmaWrite,
            Verb::ReadRequest(_) | Verb::ReadResponse(_) | Verb::Close => continue,
        };
        if let Some(work) = frame.work {
            fabric.complete(port, endpoint, work, operation, WorkStatus::Flushed);
        }
    }
    for read in std::mem::take(&mut half.reads) {
        fabric.complete(port, endpoint, read.work, Operation::RdmaRead, WorkStatus::Flushed);
    }
    let receives = half.current.take().into_iter().chain(std::mem::take(&mut half.receives));
    for receive in receives {
        fabric.complete(port, endpoint, receive.work, Operation::Receive, WorkStatus::Flushed);
    }
}
