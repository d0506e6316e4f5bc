//! Bytes in flight: transmission, arrival, placement.

use super::connection::{Connection, Frame, Memory, Piece, Side, Stage, Verb, gather};
use super::fabric::{Fabric, Wake};
use super::limits::GRID;
use crate::PostError;
use crate::types::{Access, Completion, Event, Operation, RemoteBuffer, WorkStatus};
use dafs_mem::Site;

/// The part of a remote buffer that one piece covers.
fn part(remote: RemoteBuffer, offset: usize, len: usize) -> Option<RemoteBuffer> {
    let address = remote.address.checked_add(offset as u64)?;
    Some(RemoteBuffer { key: remote.key, address, len: u32::try_from(len).ok()? })
}

impl Connection {
    /// Moves held-back work to the stream.
    pub(super) fn flush(&mut self, fabric: &mut Fabric, side: Side) {
        let line = &mut self.half_mut(side).line;
        let held = std::mem::take(&mut line.held);
        line.queue.extend(held);
        self.kick(fabric, side);
    }

    /// Schedules the next transmission of this side.
    pub(super) fn kick(&mut self, fabric: &mut Fabric, side: Side) {
        let id = self.id;
        let half = self.half_mut(side);
        let closing = matches!(half.line.queue.front(), Some(Frame { verb: Verb::Close, .. }));
        if half.line.queue.is_empty()
            || half.line.transmit_scheduled
            || !(half.may_speak || closing)
        {
            return;
        }
        half.line.transmit_scheduled = true;
        let delay = fabric.steps(fabric.faults.delay_steps_max.min(4));
        fabric.after(delay, id, Wake::Transmit(side));
    }

    /// Transmits the next piece of this side.
    pub(super) fn transmit(&mut self, fabric: &mut Fabric, side: Side) {
        let lost = self.lost;
        let half = self.half_mut(side);
        half.line.transmit_scheduled = false;
        let Some(frame) = half.line.queue.front() else { return };
        let remaining = frame.payload - half.line.head_sent;
        let take = if lost { remaining } else { draw_piece(fabric, remaining) };
        let piece = if lost { None } else { self.cut_piece(fabric, side, take) };
        if self.half(side).stage == Stage::Closed {
            return;
        }
        let line = &mut self.half_mut(side).line;
        line.head_sent += take;
        line.head_begun = true;
        if take == remaining {
            self.handed_over(fabric, side);
        }
        if let Some(piece) = piece {
            self.depart(fabric, side, piece);
        }
        if self.half(side).stage != Stage::Closed {
            self.kick(fabric, side);
        }
    }

    /// Copies `take` bytes of the first frame out of memory. `None` when the memory does not exist
    /// any more, which breaks the connection.
    fn cut_piece(&mut self, fabric: &mut Fabric, side: Side, take: usize) -> Option<Piece> {
        let half = self.half(side);
        let line = &half.line;
        let frame = line.queue.front()?;
        let mut bytes = Vec::with_capacity(take);
        if let Verb::ReadResponse(source) = frame.verb {
            let port = &fabric.ports[half.port];
            let view = part(source, line.head_sent, take)
                .ok_or(PostError::Bounds)
                .and_then(|wanted| port.readable((half.endpoint, half.domain), wanted));
            match view {
                Ok(view) => bytes = view.to_vec(Site::Sim),
                Err(error) => {
                    self.violate(fabric, side, &format!("RDMA read: {error}"));
                    return None;
                }
            }
        } else {
            gather(&frame.segments, line.head_sent, take, &mut bytes);
        }
        let half = self.half(side);
        let line = &half.line;
        let frame = line.queue.front()?;
        Some(Piece {
            at: fabric.now,
            verb: frame.verb.clone(),
            offset: line.head_sent,
            bytes,
            total: frame.payload,
            first: !line.head_begun,
            last: line.head_sent + take == frame.payload,
        })
    }

    /// Completes the first frame: it was transmitted completely, so its local memory may be reused.
    fn handed_over(&mut self, fabric: &mut Fabric, side: Side) {
        let id = self.id;
        let half = self.half_mut(side);
        let Some(frame) = half.line.queue.pop_front() else { return };
        half.line.head_sent = 0;
        half.line.head_begun = false;
        let operation = match frame.verb {
            Verb::Send(_) => Operation::Send,
            Verb::Write(_) => Operation::RdmaWrite,
            Verb::ReadRequest(_) | Verb::ReadResponse(_) => return,
            Verb::Close => {
                fabric.after(GRID, id, Wake::LocalDone(side));
                return;
            }
        };
        let (Some(work), Some(endpoint)) = (frame.work, half.endpoint) else { return };
        let status = WorkStatus::Ok(frame.payload as u32);
        let invalidated = None;
        let completion = Completion { endpoint, work, operation, status, invalidated };
        half.line.done.push_back(completion);
        let delay = fabric.hop();
        fabric.after(delay, id, Wake::LocalDone(side));
    }

    /// Puts a piece in flight, or the part of it before the cut.
    fn depart(&mut self, fabric: &mut Fabric, side: Side, mut piece: Piece) {
        let id = self.id;
        let delay = fabric.hop();
        let line = &mut self.half_mut(side).line;
        piece.at = line.last_arrival.max(fabric.now + delay);
        line.last_arrival = piece.at;
        let begin = line.position;
        line.position += piece.stream_bytes();
        let cut = line.cut.filter(|cut| *cut <= line.position);
        let at = piece.at;
        let piece = match cut {
            Some(cut) => {
                fabric.counts.torn += u64::from(cut < line.position || !piece.last);
                piece.truncated(cut.saturating_sub(begin))
            }
            None => Some(piece),
        };
        line.flight.extend(piece);
        fabric.at(at, id, Wake::Arrive(side.other()));
        if cut.is_some() {
            self.lose(fabric, Some(side), "the connection was cut");
        }
    }

    /// Delivers pieces to `side`.
    pub(super) fn arrive(&mut self, fabric: &mut Fabric, side: Side) {
        let from = side.other();
        if self.half(side).stage == Stage::Closed {
            self.half_mut(from).line.flight.clear();
            return;
        }
        let hosts = self.halves.each_ref().map(|half| fabric.ports[half.port].host);
        if fabric.is_blocked(hosts[0], hosts[1]) {
            // The pieces wait; the end of the partition schedules them again.
            return;
        }
        while self.half(side).stage != Stage::Closed {
            let flight = &mut self.half_mut(from).line.flight;
            if flight.front().is_none_or(|piece| piece.at > fabric.now) {
                break;
            }
            if let Some(piece) = flight.pop_front() {
                self.deliver(fabric, side, piece);
            }
        }
    }

    fn deliver(&mut self, fabric: &mut Fabric, side: Side, piece: Piece) {
        self.announce(fabric, side);
        if !self.half(side).may_speak {
            self.half_mut(side).may_speak = true;
            self.kick(fabric, side);
        }
        let outcome = match piece.verb.clone() {
            Verb::Send(invalidate) => self.place_message(fabric, side, &piece, invalidate),
            Verb::Write(target) => self.place_write(fabric, side, &piece, target),
            Verb::ReadRequest(source) => self.answer_read(fabric, side, source),
            Verb::ReadResponse(_) => self.place_response(fabric, side, &piece),
            Verb::Close => {
                self.close(fabric, side, crate::DisconnectReason::Peer);
                Ok(())
            }
        };
        if let Err(text) = outcome {
            self.violate(fabric, side, &text);
        }
    }

    /// Reports the connection to the acceptor before any other event.
    pub(super) fn announce(&mut self, fabric: &mut Fabric, side: Side) {
        let half = self.half_mut(side);
        if half.stage != Stage::Opening || side == Side::Connector {
            return;
        }
        if let Some(endpoint) = half.endpoint {
            half.stage = Stage::Up;
            let port = half.port;
            fabric.report(port, Event::Established { endpoint, private_data: Box::default() });
        }
    }

    fn place_message(
        &mut self,
        fabric: &mut Fabric,
        side: Side,
        piece: &Piece,
        invalidate: Option<u32>,
    ) -> Result<(), String> {
        let half = self.half_mut(side);
        if piece.first {
            let receive = half
                .receives
                .pop_front()
                .ok_or_else(|| "a message arrived without a posted receive".to_owned())?;
            if receive.memory.len < piece.total {
                let text = format!(
                    "a message of {} bytes arrived for a receive of {}",
                    piece.total, receive.memory.len
                );
                half.receives.push_front(receive);
                return Err(text);
            }
            half.current = Some(receive);
        }
        let Some(receive) = &half.current else { return Ok(()) };
        store(fabric, &receive.memory, piece);
        if piece.last {
            let (work, port, endpoint) = (receive.work, half.port, half.endpoint);
            if let Some(key) = invalidate {
                fabric.ports[port]
                    .invalidate(half.domain, key)
                    .map_err(|error| format!("a message asks to invalidate a key: {error}"))?;
            }
            half.current = None;
            fabric.counts.messages += 1;
            fabric.received(port, endpoint, work, piece.total as u32, invalidate);
        }
        Ok(())
    }

    fn place_write(
        &mut self,
        fabric: &mut Fabric,
        side: Side,
        piece: &Piece,
        target: RemoteBuffer,
    ) -> Result<(), String> {
        let half = self.half(side);
        let describe = |error: PostError| format!("RDMA write: {error}");
        let port = &fabric.ports[half.port];
        // The whole range must fit before its first byte is placed.
        let whole = part(target, 0, piece.total).ok_or_else(|| describe(PostError::Bounds))?;
        let all = port.remote(half.domain, whole, Access::REMOTE_WRITE).map_err(describe)?;
        let view = all
            .slice(piece.offset, piece.bytes.len())
            .ok_or_else(|| describe(PostError::Bounds))?;
        view.copy_from(&piece.bytes, Site::Sim);
        let (len, spot) = (piece.bytes.len() as u64, piece.bytes.len() / 2);
        let byte = piece.bytes.get(spot).copied();
        if let (Some(byte), true) = (byte, fabric.rng.chance(fabric.faults.danger_corrupt_ppm)) {
            view.slice(spot, 1).map(|view| view.copy_from(&[byte ^ 0x10], Site::Sim));
        }
        fabric.digest.bytes(&piece.bytes);
        fabric.counts.rdma_bytes += len;
        Ok(())
    }

    fn answer_read(
        &mut self,
        fabric: &mut Fabric,
        side: Side,
        source: RemoteBuffer,
    ) -> Result<(), String> {
        let half = self.half_mut(side);
        let port = &mut fabric.ports[half.port];
        port.readable((half.endpoint, half.domain), source)
            .map_err(|error| format!("RDMA read: {error}"))?;
        port.granted_reads += u64::from(port.granted.contains_key(&source.key));
        half.line.queue.push_back(Frame {
            verb: Verb::ReadResponse(source),
            work: None,
            segments: Vec::new(),
            payload: source.len as usize,
        });
        self.kick(fabric, side);
        Ok(())
    }

    fn place_response(
        &mut self,
        fabric: &mut Fabric,
        side: Side,
        piece: &Piece,
    ) -> Result<(), String> {
        let half = self.half_mut(side);
        let Some(read) = half.reads.front() else {
            return Err("a read response arrived that nobody asked for".to_owned());
        };
        store(fabric, &read.memory, piece);
        if fabric.rng.chance(fabric.faults.danger_corrupt_ppm) && !piece.bytes.is_empty() {
            let wrong = [piece.bytes[0] ^ 0x10];
            read.memory.view(piece.offset, 1).map(|view| view.copy_from(&wrong, Site::Sim));
        }
        fabric.counts.rdma_bytes += piece.bytes.len() as u64;
        if piece.last {
            let (work, port, endpoint) = (read.work, half.port, half.endpoint);
            half.reads.pop_front();
            let status = WorkStatus::Ok(piece.total as u32);
            fabric.complete(port, endpoint, work, Operation::RdmaRead, status);
        }
        Ok(())
    }
}

/// Places a piece into local memory of sufficient length.
fn store(fabric: &mut Fabric, memory: &Memory, piece: &Piece) {
    fabric.digest.bytes(&piece.bytes);
    if let Some(view) = memory.view(piece.offset, piece.bytes.len()) {
        view.copy_from(&piece.bytes, Site::Sim);
    }
}

/// Draws how many of `remaining` bytes the next piece carries.
fn draw_piece(fabric: &mut Fabric, remaining: usize) -> usize {
    let most = (fabric.faults.piece_bytes_max.max(1) as usize).min(remaining);
    if most == 0 || fabric.rng.chance(700_000) {
        return most;
    }
    fabric.rng.between(1, most as u64) as usize
}
