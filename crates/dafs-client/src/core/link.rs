//! The operation channel of a session: its connection, the parameters that were negotiated for it,
//! and the messages that leave on it.
//!
//! Invariants
//! * A receive is posted before each request, so that its reply always finds one (DAFS 7).
//! * A request uses a credit only when it leaves: one that does not fit changes nothing.

use super::call::{Due, Flight, Refused, ReplyMessage};
use super::config::{SessionConfig, SessionInfo};
use super::connection::Connection;
use super::failure::Failure;
use super::memory::Piece;
use super::session::SessionStats;
use super::submit::{Outgoing, count_data};
use super::users::{User, Users};
use crate::limits::{LEASE_ASSUMED, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN};
use dafs_dat::{Adapter, Address, ConnectError, Instant};
use dafs_mem::{CheckedSlice, Inaccessible, Site};
use dafs_wire::dafs::{
    APPEND_INLINE_DATA_AT, Analyzer, ByteOrder, Checksum, Class, ClientId, CredHandle, ErrorBody,
    Fletcher32, HEADER_BYTES, Procedure, Request, RequestHeader, ResponseHeader, SessionId,
    SessionOptions, Status, encode_error, encode_request, is_valid_inline_write_header_size, seal,
};
use std::time::Duration;

/// The operation channel.
pub(crate) struct Link {
    pub(crate) config: SessionConfig,
    pub(crate) address: Address,
    pub(crate) order: ByteOrder,
    pub(crate) conn: Connection,
    pub(crate) info: SessionInfo,
    /// The registered users.
    pub(super) users: Users,
    /// The buffer in which messages are encoded.
    pub(crate) scratch: Vec<u8>,
    pub(crate) next_analyzer: u64,
    pub(crate) desired: u16,
    pub(crate) demand_peak: u16,
    /// The time that the caller passed last.
    pub(crate) now: Instant,
    pub(crate) last_request: Instant,
    /// The time of the last reply, or of the end of recovery.
    pub(crate) last_reply: Instant,
    /// The sending time of the latest request that was answered in a session in order; `None`
    /// before the first reply.
    pub(crate) promised_from: Option<Instant>,
    /// The time of the last reply in a session in order.
    pub(crate) answered_at: Instant,
    /// A lower bound of all deadlines of requests.
    pub(crate) first_deadline: Option<Instant>,
    pub(crate) stats: SessionStats,
}

impl Link {
    pub(crate) fn new(
        adapter: &mut dyn Adapter,
        config: SessionConfig,
        address: Address,
        now: Instant,
    ) -> Self {
        Self {
            address,
            order: config.byte_order,
            conn: new_connection(adapter, &config),
            info: SessionInfo { lease: LEASE_ASSUMED, ..SessionInfo::default() },
            users: Users::new(config.credential.as_ref()),
            scratch: vec![0; message_bytes(config.request_bytes)],
            next_analyzer: 1,
            desired: config.requests.max(1),
            demand_peak: 0,
            now,
            last_request: now,
            last_reply: now,
            promised_from: None,
            answered_at: now,
            first_deadline: None,
            stats: SessionStats::default(),
            config,
        }
    }

    /// Starts one attempt to connect.
    pub(crate) fn dial(&mut self, adapter: &mut dyn Adapter) -> Result<(), ConnectError> {
        let hello = super::hello::private_data(&self.config);
        // Connect requests and their replies carry none (DAFS O20).
        self.info.checksums = false;
        self.conn.endpoint = Some(adapter.connect(self.conn.domain, &self.address, &hello)?);
        Ok(())
    }

    /// Tells the transport how many bytes are still to be placed here.
    pub(crate) fn expect(&mut self, adapter: &mut dyn Adapter, more: u64, less: u64) {
        if more != less {
            self.conn.expected_bytes =
                self.conn.expected_bytes.saturating_add(more).saturating_sub(less);
            if let Some(endpoint) = self.conn.endpoint {
                adapter.expect_remote_writes(endpoint, self.conn.expected_bytes);
            }
        }
    }

    /// Encodes a request of the session's own; the caller has made sure that there is a credit.
    pub(super) fn encode_own(
        &mut self,
        request: &Request<'_>,
    ) -> Result<(RequestHeader, usize), Refused> {
        let header = self.next_header(request.procedure(), None)?;
        let bytes = encode_request(&mut self.scratch, self.order, &header, request)?;
        Ok((header, bytes))
    }

    /// A request as it is kept until it can be sent.
    pub(super) fn encoded(&mut self, request: &Request<'_>) -> Result<Vec<u8>, Refused> {
        let header = RequestHeader::default();
        let bytes = encode_request(&mut self.scratch, self.order, &header, request)?;
        count_data(request, &[Site::ClientInlineWrite, Site::ClientKept]);
        Ok(self.scratch[..bytes].to_vec())
    }

    /// The answer that the server would give.
    pub(super) fn reply_here(
        &self,
        procedure: Procedure,
        status: Status,
    ) -> Result<ReplyMessage, Refused> {
        let header = ResponseHeader::answering(&RequestHeader::default(), 1).with_status(status);
        let mut bytes = vec![0; HEADER_BYTES];
        encode_error(&mut bytes, self.order, &header, procedure, &ErrorBody::None)?;
        Ok(ReplyMessage { procedure, order: self.order, status, bytes })
    }

    /// Asks for credits for so many requests at a time, with the next request.
    pub(super) fn want_credits(&mut self, wanted: usize) {
        let wanted = u16::try_from(wanted).unwrap_or(u16::MAX).min(self.config.requests_max);
        self.desired = self.desired.max(wanted);
        self.demand_peak = self.demand_peak.max(wanted);
    }

    pub(super) fn count_transfer(&mut self, inline: bool) {
        if inline {
            self.stats.inline_transfers += 1;
        } else {
            self.stats.direct_transfers += 1;
        }
    }

    pub(super) fn fits_inline(&self, bytes: u32, data_at: usize, message_bytes: u32) -> bool {
        !self.config.always_direct
            && bytes <= self.config.inline_bytes
            && data_at + bytes as usize <= message_bytes as usize
    }

    /// The place where a request has inline data of this length, if the session pads it (DAFS 13.1)
    /// and the message has room for the padding.
    pub(super) fn padding(&self, data_bytes: usize) -> Option<u32> {
        let at = self.info.inline_write_header_bytes;
        let fits = data_bytes.saturating_add(at as usize) <= self.info.request_bytes as usize;
        (self.config.pad_writes && at != 0 && data_bytes != 0 && fits).then_some(at)
    }

    /// The same for the data of any request.
    pub(super) fn padding_of(&self, request: &Request<'_>) -> Option<u32> {
        match request {
            Request::AppendInline(args) => self.padding(args.data.len()),
            Request::WriteInline(args) => self.padding(args.data.len()),
            _ => None,
        }
    }

    /// True when data of this length can be appended within a message.
    pub(crate) fn appends_inline(&self, bytes: usize) -> bool {
        let message_bytes = self.info.request_bytes;
        let short = u32::try_from(bytes).ok();
        short.is_some_and(|bytes| self.fits_inline(bytes, APPEND_INLINE_DATA_AT, message_bytes))
    }

    /// The checksum that travels with direct data, when checksums are on (DAFS O20).
    ///
    /// # Errors
    /// The data is unmapped.
    pub(crate) fn data_checksum(&self, data: CheckedSlice<'_>) -> Result<Checksum, Inaccessible> {
        self.checksum_of(std::iter::once(data))
    }

    /// As [`data_checksum`](Self::data_checksum), for data in several pieces, one behind the other.
    ///
    /// # Errors
    /// The data is unmapped.
    pub(crate) fn checksum_of<'a>(
        &self,
        data: impl IntoIterator<Item = CheckedSlice<'a>>,
    ) -> Result<Checksum, Inaccessible> {
        if !self.info.checksums {
            return Ok(Checksum::ZERO);
        }
        let mut sums = Fletcher32::new();
        data.into_iter().try_for_each(|part| part.scan(|bytes| sums.update(bytes)))?;
        Ok(sums.finish())
    }

    /// The header of the next request. The caller has made sure that there is a credit. No credit
    /// is used yet, so a request that does not fit changes nothing.
    pub(super) fn next_header(
        &mut self,
        procedure: Procedure,
        user: Option<&User>,
    ) -> Result<RequestHeader, Refused> {
        let next = self.conn.streams.peek().ok_or(Refused::Full)?;
        let cred_handle = self.credential_for(procedure, user)?;
        Ok(RequestHeader {
            desired_nreq: self.desired,
            analyzer: Analyzer(self.next_analyzer.to_ne_bytes()),
            cred_handle,
            stream_id: next.stream,
            seq_number: next.sequence,
            ..RequestHeader::default()
        })
    }

    /// Sends one request: a receive first, then the message. It is outstanding in any case, so a
    /// failure ends it with its connection.
    pub(super) fn transmit(
        &mut self,
        adapter: &mut dyn Adapter,
        message: Outgoing,
    ) -> Result<(), Failure> {
        let Outgoing { purpose, due: deadline, procedure, header, work, bytes, data, .. } = message;
        let (user, renewed, credential) = (message.user, message.renewed, header.cred_handle);
        if self.info.checksums && data.is_none() {
            seal(&mut self.scratch[..bytes]);
        }
        let (now, taken) = (self.now, self.conn.streams.take());
        debug_assert_eq!(taken.map(|taken| taken.stream), Some(header.stream_id));
        let (analyzer, expected) = (self.next_analyzer, work.expected_bytes());
        self.next_analyzer += 1;
        self.last_request = now;
        self.conn.shrink_at = None;
        self.demand_peak = self.demand_peak.max(self.conn.streams.outstanding());
        self.note_deadline(deadline);
        let sequence = header.seq_number;
        self.conn.flights[usize::from(header.stream_id)] = Some(Flight {
            purpose,
            procedure,
            sequence,
            analyzer,
            sent_at: now,
            deadline,
            work,
            maybe_done: false,
            user,
            renewed,
            credential,
        });
        self.post(adapter, bytes, data)?;
        self.expect(adapter, expected, 0);
        Ok(())
    }

    /// Posts a receive for the reply, if none is left over, and the message in `scratch`.
    fn post(
        &mut self,
        adapter: &mut dyn Adapter,
        bytes: usize,
        data: Option<Piece>,
    ) -> Result<(), Failure> {
        let conn = &mut self.conn;
        let endpoint = conn.endpoint.ok_or_else(|| Failure::lost("there is no connection"))?;
        if conn.posted < usize::from(conn.streams.outstanding()) {
            let slot = conn.receives.take(adapter)?.ok_or_else(no_slot)?;
            let segment = conn.receives.segment(slot, conn.receives.message_bytes());
            adapter.post_receive(endpoint, slot.into(), segment).map_err(Failure::lost)?;
            conn.posted += 1;
        }
        let slot = conn.sends.take(adapter)?.ok_or_else(no_slot)?;
        conn.sends.store(slot, &self.scratch[..bytes]);
        let head = conn.sends.segment(slot, bytes);
        let posted = match data {
            Some(data) => adapter.post_send(endpoint, slot.into(), &[head, data.local()?]),
            None => adapter.post_send(endpoint, slot.into(), &[head]),
        };
        posted.map_err(Failure::lost)
    }

    pub(crate) fn note_deadline(&mut self, due: Due) {
        if let Some((at, _)) = due {
            self.first_deadline = Some(self.first_deadline.map_or(at, |first| first.min(at)));
        }
    }

    /// The credential that requests of a procedure run under.
    ///
    /// # Errors
    /// The user is not registered.
    fn credential_for(
        &mut self,
        procedure: Procedure,
        user: Option<&User>,
    ) -> Result<CredHandle, Refused> {
        Ok(match procedure {
            // These need none (DAFS 12), and a restarted server no longer knows the client's
            // credential.
            Procedure::CheckResponse | Procedure::FetchResponse => CredHandle::SESSION,
            _ if procedure.class() == Class::Special => CredHandle::SESSION,
            _ => self.users.handle(user).ok_or(Refused::NotTrusted)?,
        })
    }

    pub(super) fn proposal(&self) -> SessionOptions {
        SessionOptions {
            use_checksums: self.config.checksums,
            use_response_cache: self.config.recovery.is_some(),
            max_credentials: 0,
            max_request_size: self.conn.sends.message_bytes() as u32,
            max_response_size: self.conn.receives.message_bytes() as u32,
            max_requests: self.config.requests.into(),
            inline_write_header_size: self.config.inline_write_header_bytes,
            // The channel is made only when it is needed.
            use_back_control_channel: !self.config.is_data_server,
            use_rdma_read_channel: false,
        }
    }

    /// Checks the parameters in the server's answer.
    pub(super) fn accept_options(
        &mut self,
        options: &SessionOptions,
        (session_id, client_id): (SessionId, ClientId),
    ) -> Result<(), Failure> {
        let size = |what: &str, stated: u32, ours: usize| {
            if (MESSAGE_BYTES_MIN as usize..=ours).contains(&(stated as usize)) {
                return Ok(stated);
            }
            Err(Failure::refused(format_args!(
                "the server wants {what} of {stated} bytes where {MESSAGE_BYTES_MIN} to {ours} \
                 were offered"
            )))
        };
        if self.config.checksums && !options.use_checksums {
            return Err(Failure::refused(
                "the server does not do the checksums that were asked for",
            ));
        }
        let padding = options.inline_write_header_size;
        if !is_valid_inline_write_header_size(padding) {
            return Err(Failure::protocol(format_args!("inline_write_header_size is {padding}")));
        }
        let requests = u16::try_from(options.max_requests).unwrap_or(u16::MAX);
        if requests == 0 {
            return Err(Failure::protocol("the server grants no credit"));
        }
        self.info.request_bytes =
            size("requests", options.max_request_size, self.conn.sends.message_bytes())?;
        self.info.response_bytes =
            size("responses", options.max_response_size, self.conn.receives.message_bytes())?;
        self.info.session_id = session_id;
        self.info.client_id = client_id;
        self.info.checksums = options.use_checksums;
        // Only the credits in headers count: a server may agree to many requests and grant one
        // until the client has authenticated.
        self.info.requests = requests;
        self.users.limit(options.max_credentials);
        self.info.inline_write_header_bytes = padding;
        self.scratch.resize(self.info.request_bytes as usize, 0);
        Ok(())
    }

    /// The time that the server waits for the return of a delegation before it revokes it, less a
    /// part for the transmission.
    pub(super) fn patience_of_server(&self) -> Duration {
        self.info.lease * 2 / 3
    }

    /// Any request renews all leases (DAFS 7), so only silence needs a keep-alive; a third of the
    /// lease leaves room for two that fail.
    pub(super) fn keep_alive_at(&self) -> Instant {
        const INTERVAL_MIN: Duration = Duration::from_secs(1);
        self.last_request + (self.info.lease / 3).max(INTERVAL_MIN)
    }
}

/// A connection for the sizes that the session proposes.
pub(crate) fn new_connection(adapter: &mut dyn Adapter, config: &SessionConfig) -> Connection {
    let (request_bytes, response_bytes) =
        (message_bytes(config.request_bytes), message_bytes(config.response_bytes));
    Connection::new(adapter, config.requests_max, request_bytes, response_bytes)
}

fn message_bytes(wish: u32) -> usize {
    wish.clamp(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX) as usize
}

fn no_slot() -> Failure {
    Failure::memory("the message pool is used up")
}
