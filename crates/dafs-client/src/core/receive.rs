//! Incoming replies. Every field that a server sends is validated here before it is used.

use super::call::{Done, Flight, Purpose, ReplyMessage, Work, WriteCall};
use super::failure::Failure;
use super::link::Link;
use super::memory::Piece;
use super::session::{SessionCore, Stage};
use dafs_dat::Adapter;
use dafs_mem::{Inaccessible, Site, count_copy};
use dafs_wire::dafs::{
    ByteOrder, HEADER_BYTES, PROTOCOL_VERSION, Procedure, READ_INLINE_REPLY_DATA_AT, Reply,
    ResponseHeader, Stability, Status, WriteReply, verify,
};

/// Every reply to a read or write has its fixed section within this many bytes.
const HEAD_BYTES: usize = 64;

/// The offset of the message's length in a reply header (DAFS 5.3).
const LENGTH_AT: usize = 32;

impl SessionCore {
    /// Processes the message of `bytes` bytes in receive slot `slot`.
    pub(crate) fn on_message(
        &mut self,
        adapter: &mut dyn Adapter,
        slot: u32,
        bytes: usize,
    ) -> Result<(), Failure> {
        let mut head = [0; HEAD_BYTES];
        let head = self.link.fetch_head(slot, bytes, &mut head)?;
        let header = ResponseHeader::decode(head, self.link.order).map_err(Failure::protocol)?;
        if self.link.info.checksums {
            self.link.check_sum(slot, bytes)?;
        }
        let flight = self.link.match_reply(&header)?;
        self.link.conn.streams.replied(header.stream_id, header.target_nreq);
        self.link.expect(adapter, 0, flight.work.expected_bytes());
        self.link.stats.answered += 1;
        self.link.last_reply = self.link.now;
        // An answer during recovery says nothing about the requests that wait for its end: the next
        // of them may take the connection down as it did the last. Nor does it prove that the
        // server still keeps its promises to the session before. The last requests of recovery may
        // be answered after its end.
        let is_of_recovery = matches!(flight.purpose, Purpose::Discard | Purpose::Complete);
        let in_order = self.recovery.is_none() && !is_of_recovery;
        if in_order {
            self.link.promised_from = self.link.promised_from.max(Some(flight.sent_at));
        }
        let flight = self.calls.send_anew(&mut self.link, flight, header.status);
        let flight = flight.and_then(|flight| self.calls.delay(&self.link, flight, header.status));
        let Some(flight) = flight else { return Ok(()) };
        let purpose = flight.purpose;
        match self.link.result(slot, bytes, &head[HEADER_BYTES..], &header, &flight) {
            Ok(Done::Answered(reply)) if !matches!(purpose, Purpose::Caller(_)) => {
                self.on_own_reply(adapter, purpose, &reply)?;
            }
            Ok(Done::Answered(mut reply)) => {
                if let Work::Message { bytes, .. } = &flight.work
                    && self.calls.notes_now(purpose, flight.procedure)
                {
                    let server = self.link.info.client_id;
                    self.calls.take_note(
                        &self.link,
                        bytes,
                        &mut reply,
                        server,
                        flight.user.as_ref(),
                    );
                }
                self.finish(purpose, Done::Answered(reply));
            }
            Ok(done) => self.finish(purpose, done),
            // Over another connection the answer may arrive intact.
            Err(failure) if failure.is_passing() => {
                self.link.conn.flights[usize::from(header.stream_id)] = Some(flight);
                return Err(failure);
            }
            Err(failure) => {
                self.finish(purpose, Done::Lost(failure.clone()));
                return Err(failure);
            }
        }
        if in_order {
            // The session works, so the next loss starts a new recovery.
            self.lost_at = None;
            self.link.answered_at = self.link.now;
        }
        self.after_reply(purpose);
        Ok(())
    }

    /// Processes the answer to a request of the session's own.
    fn on_own_reply(
        &mut self,
        adapter: &mut dyn Adapter,
        purpose: Purpose,
        reply: &ReplyMessage,
    ) -> Result<(), Failure> {
        match purpose {
            Purpose::Caller(_) | Purpose::Null | Purpose::Discard => {}
            Purpose::Hurry | Purpose::Return => {}
            Purpose::Complete => self.completion_due = false,
            Purpose::RegisterUser | Purpose::ReleaseUser => self.on_user_reply(reply),
            Purpose::Cancel => return self.on_cancel_reply(reply),
            Purpose::Expose(number) => return self.on_expose_reply(adapter, number, reply),
            Purpose::Stray(number) => self.calls.on_returned(number, reply.status, self.link.now),
            Purpose::Renew => return self.on_renewal_reply(adapter, reply),
            Purpose::Batch(message) => return self.on_batch_reply(adapter, message, reply),
            Purpose::Disconnect => self.end(adapter, Failure::Closed),
            Purpose::Check(_) | Purpose::Fetch(_) | Purpose::Reclaim(_) => {
                if let Some(recovery) = &mut self.recovery {
                    recovery.on_answer(&mut self.link, &mut self.calls, purpose, reply)?;
                }
            }
            _ => {
                debug_assert!(matches!(self.stage, Stage::Opening | Stage::Recovering));
                self.on_opening_reply(adapter, purpose, reply)?;
            }
        }
        Ok(())
    }
}

impl Link {
    /// The result of a request, from its reply.
    fn result(
        &mut self,
        slot: u32,
        bytes: usize,
        body: &[u8],
        header: &ResponseHeader,
        flight: &Flight,
    ) -> Result<Done, Failure> {
        let (procedure, status) = (flight.procedure, header.status);
        match &flight.work {
            Work::Message { .. } => {
                let mut message = vec![0; bytes];
                if self.conn.receives.fetch(slot, &mut message) != bytes {
                    return Err(Failure::protocol("a reply is longer than its receive"));
                }
                if procedure == Procedure::ReadInline && status.is_ok() {
                    let data = bytes.saturating_sub(READ_INLINE_REPLY_DATA_AT);
                    count_copy(Site::ClientInlineRead, data);
                }
                let order = self.order;
                Ok(Done::Answered(ReplyMessage { procedure, order, status, bytes: message }))
            }
            _ if !status.is_ok() => Ok(Done::Refused { procedure, status }),
            Work::ReadInline(call) => self.take_inline_data(slot, bytes, body, &call.into),
            Work::ReadDirect(call) => self.take_direct_read(body, &call.into),
            Work::Write(call) => self.take_write(procedure, body, call),
        }
    }

    /// Copies the start of the message into private memory, as a message of its own: its length
    /// field is checked against the true length and then set to the number of bytes copied.
    fn fetch_head<'a>(
        &self,
        slot: u32,
        bytes: usize,
        head: &'a mut [u8; HEAD_BYTES],
    ) -> Result<&'a [u8], Failure> {
        if bytes < HEADER_BYTES {
            return Err(Failure::protocol(format_args!("a reply of {bytes} bytes has no header")));
        }
        let head = &mut head[..bytes.min(HEAD_BYTES)];
        self.conn.receives.fetch(slot, head);
        let stated = word(self.order, head, LENGTH_AT);
        if stated as usize != bytes {
            return Err(Failure::protocol(format_args!(
                "a reply of {bytes} bytes says that it has {stated}"
            )));
        }
        let fetched = head.len() as u32;
        head[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&match self.order {
            ByteOrder::Big => fetched.to_be_bytes(),
            ByteOrder::Little => fetched.to_le_bytes(),
        });
        Ok(head)
    }

    /// Finds the request that a reply belongs to.
    fn match_reply(&mut self, header: &ResponseHeader) -> Result<Flight, Failure> {
        let stream = usize::from(header.stream_id);
        let Some(flight) = self.conn.flights.get_mut(stream).and_then(Option::take) else {
            return Err(Failure::protocol(format_args!(
                "a reply came on stream {stream}, where nothing was asked"
            )));
        };
        let same = header.seq_number == flight.sequence
            && header.analyzer.0 == flight.analyzer.to_ne_bytes();
        let version =
            header.protocol_version == PROTOCOL_VERSION || header.status == Status::IllegalProt;
        if same && version {
            return Ok(flight);
        }
        // The request is still unanswered; it ends with the session.
        let procedure = flight.procedure;
        self.conn.flights[stream] = Some(flight);
        Err(Failure::protocol(format_args!(
            "the reply to {} carries another {}",
            procedure.name(),
            if same { "protocol version" } else { "sequence number or tag" }
        )))
    }

    /// A bad checksum ends the session (DAFS O21).
    fn check_sum(&mut self, slot: u32, bytes: usize) -> Result<(), Failure> {
        let mut message = vec![0; bytes];
        self.conn.receives.fetch(slot, &mut message);
        if verify(&message) {
            Ok(())
        } else {
            Err(Failure::corrupt("the checksum of a reply does not match its content"))
        }
    }

    fn take_inline_data(
        &mut self,
        slot: u32,
        bytes: usize,
        body: &[u8],
        into: &Piece,
    ) -> Result<Done, Failure> {
        if body.len() < READ_INLINE_REPLY_DATA_AT - HEADER_BYTES {
            return Err(Failure::protocol("the reply to READ_INLINE is too short"));
        }
        let (end_of_file, stated) = (word(self.order, body, 0), word(self.order, body, 4));
        let carried = bytes - READ_INLINE_REPLY_DATA_AT;
        if end_of_file > 1 || stated as usize != carried || stated > into.len() {
            return Err(Failure::protocol(format_args!(
                "READ_INLINE of {} bytes was answered with {stated}, of which {carried} came",
                into.len()
            )));
        }
        check_progress(stated, end_of_file == 1, into)?;
        let data = self
            .conn
            .receives
            .view(slot, READ_INLINE_REPLY_DATA_AT, carried)
            .ok_or_else(|| Failure::protocol("a reply is longer than its receive"))?;
        if let Err(gone) = into.checked().copy_from(data, Site::ClientInlineRead) {
            return Ok(Done::Lost(gone.into()));
        }
        self.stats.bytes_read += u64::from(stated);
        Ok(Done::Read { bytes: stated, end_of_file: end_of_file == 1 })
    }

    fn take_direct_read(&mut self, body: &[u8], into: &Piece) -> Result<Done, Failure> {
        let reply = match Reply::decode_body(Procedure::ReadDirect, body, self.order) {
            Ok(Reply::ReadDirect(reply)) => reply,
            Ok(_) => return Err(Failure::protocol("READ_DIRECT was answered otherwise")),
            Err(error) => return Err(Failure::protocol(error)),
        };
        if reply.bytes_read > into.len() {
            return Err(Failure::protocol(format_args!(
                "READ_DIRECT of {} bytes was answered with {}",
                into.len(),
                reply.bytes_read
            )));
        }
        check_progress(reply.bytes_read, reply.eof, into)?;
        let data = into.first(reply.bytes_read);
        let sum = match self.data_checksum(data) {
            _ if into.is_lost() => return Ok(Done::Lost(Inaccessible.into())),
            Err(gone) => return Ok(Done::Lost(gone.into())),
            Ok(sum) => sum,
        };
        if self.info.checksums && sum != reply.direct_checksum {
            return Err(Failure::corrupt("the checksum of data read does not match"));
        }
        self.stats.bytes_read += u64::from(reply.bytes_read);
        Ok(Done::Read { bytes: reply.bytes_read, end_of_file: reply.eof })
    }

    pub(crate) fn take_write(
        &mut self,
        procedure: Procedure,
        body: &[u8],
        call: &WriteCall,
    ) -> Result<Done, Failure> {
        let (asked, stability) = (call.from.len(), call.stability);
        let WriteReply { count, committed, verifier } =
            match Reply::decode_body(procedure, body, self.order) {
                Ok(Reply::WriteInline(reply) | Reply::WriteDirect(reply)) => reply,
                Ok(_) => return Err(Failure::protocol("a write was answered otherwise")),
                Err(error) => return Err(Failure::protocol(error)),
            };
        // The metadata server decides about the file's size and times.
        let least = match self.config.is_data_server {
            true => stability.min(Stability::DataSync),
            false => stability,
        };
        if count > asked || committed < least {
            return Err(Failure::protocol(format_args!(
                "a write of {asked} bytes was answered with {count} bytes and {committed:?} \
                 where {stability:?} was asked"
            )));
        }
        self.stats.bytes_written += u64::from(count);
        Ok(Done::Written { bytes: count, committed, verifier })
    }
}

/// A read of no bytes before the end of the file would keep a reader going for ever, or make it
/// take the file for shorter than it is.
fn check_progress(bytes: u32, end_of_file: bool, into: &Piece) -> Result<(), Failure> {
    if bytes == 0 && !end_of_file && !into.is_empty() {
        return Err(Failure::protocol("a read yielded nothing before the end of the file"));
    }
    Ok(())
}

/// The word at `at` of a private copy; the caller has checked the length.
fn word(order: ByteOrder, bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    match order {
        ByteOrder::Big => u32::from_be_bytes(word),
        ByteOrder::Little => u32::from_le_bytes(word),
    }
}
