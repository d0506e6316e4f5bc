//! A connection whose bytes are inside TLS: receiving, sending, the end.
//!
//! Invariants
//! * Every whole record of a read is opened and consumed before the turn ends, so no data waits
//!   without an event of the socket.
//! * A stream ends well only with close_notify (RFC 8446 6.1).
//! * The responder ends a connection whose keys are spent, when every message has its reply.

use super::connection::Connection;
use super::core::Core;
use super::limits::{TURN_BYTES, TURN_BYTES_PER_RECORD};
use super::teardown::{End, TlsEnd};
use super::transmit::{Progress, SendFailure};
use dafs_tls::{End as StreamEnd, Opened, RECORD_BYTES_MAX};
use std::io::{self, Read};

impl Connection {
    /// Receives records until the socket is drained. Returns true if anything arrived.
    pub(super) fn receive_records(&mut self, core: &mut Core) -> Result<bool, End> {
        let mut block = core.take_block();
        let result = self.receive_into(core, &mut block);
        core.give_block(block);
        let came = result?;
        if came {
            self.check_limit(core)?;
        }
        Ok(came)
    }

    fn receive_into(&mut self, core: &mut Core, block: &mut [u8]) -> Result<bool, End> {
        let mut total = 0;
        while total < TURN_BYTES {
            let room = &mut block[RECORD_BYTES_MAX..];
            let wanted = room.len();
            let bytes = match (&**self.stream).read(room) {
                Ok(0) => return Err(self.end_of_records()),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(End::Lost(error.to_string())),
            };
            let Some(tls) = self.tls.as_deref_mut() else { break };
            if let Some(client) = &mut tls.client {
                client.check().map_err(TlsEnd::Distrusted)?;
            }
            let start = tls.put_kept(block);
            let result = self.open_records(core, &mut block[start..RECORD_BYTES_MAX + bytes]);
            self.deliver(core)?;
            total += bytes.max(result? * TURN_BYTES_PER_RECORD);
            if bytes < wanted {
                break;
            }
        }
        Ok(total > 0)
    }

    /// Opens the whole records of `stream`, and keeps the rest. Returns their number.
    fn open_records(&mut self, core: &mut Core, stream: &mut [u8]) -> Result<usize, End> {
        let Some(tls) = self.tls.as_deref_mut() else { return Ok(0) };
        let (mut at, mut count) = (0, 0);
        while let Some((bytes, opened)) = tls.open(&mut stream[at..]).map_err(TlsEnd::Open)? {
            match opened {
                Opened::Data(plain) => self
                    .rx
                    .consume(plain, &mut core.regions, &mut core.inbound)
                    .map_err(End::Violation)?,
                Opened::Nothing => {}
                Opened::Closed => return Err(self.end_of_stream()),
            }
            (at, count) = (at + bytes, count + 1);
        }
        tls.keep(&stream[at..]);
        Ok(count)
    }

    /// Judges the server again before anything is sealed for it.
    pub(super) fn check_server(&self) -> Result<(), End> {
        let server = self.tls.as_ref().and_then(|tls| tls.server.as_ref());
        match server.filter(|_| !self.tx.is_empty()).map(|server| server.check()) {
            Some(Err(distrust)) => Err(TlsEnd::DistrustedServer(distrust).into()),
            _ => Ok(()),
        }
    }

    /// Sends queued work as records.
    pub(super) fn pump_records(&mut self, core: &mut Core) -> Result<Progress, SendFailure> {
        let Some(tls) = self.tls.as_deref_mut() else { return Ok(Progress::Idle) };
        let mut block = core.take_block();
        let result = self.tx.pump_sealed(
            (tls, &mut block),
            &self.stream,
            (&core.regions, &mut self.rx),
            &mut core.finished,
            TURN_BYTES,
        );
        core.give_block(block);
        result
    }

    /// Ends a peer's connection whose keys have protected enough, behind a reply. The initiator does
    /// not do it: a request of its own would be under way.
    pub(super) fn check_spent(&self, core: &Core) -> Result<(), End> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let is_quiet = || {
            // Every message has its reply if as many have left as have come.
            let is_answered = self.tx.send_msn == self.rx.send_msn && self.rx.at_boundary();
            is_answered && self.tx.is_empty() && !tls.is_pending() && self.rx.read_count() == 0
        };
        let is_due = !self.initiator && tls.count() >= core.config.records_max;
        if is_due && is_quiet() { Err(TlsEnd::Spent.into()) } else { Ok(()) }
    }

    /// Ends a connection that has gone on for too long without a moment to end it, before its keys
    /// reach their limit.
    pub(super) fn check_limit(&self, core: &Core) -> Result<(), End> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let limit = core.config.records_max + core.config.records_max / 2;
        if tls.count() >= limit { Err(TlsEnd::Spent.into()) } else { Ok(()) }
    }

    /// The end of the stream without close_notify.
    fn end_of_records(&self) -> End {
        match self.tls.as_ref().map(|tls| tls.end()) {
            Some(StreamEnd::Cut) if !self.closing => TlsEnd::Cut.into(),
            Some(StreamEnd::CutInRecord) => TlsEnd::CutInRecord.into(),
            _ => self.end_of_stream(),
        }
    }
}

#[cfg(test)]
mod tests;
