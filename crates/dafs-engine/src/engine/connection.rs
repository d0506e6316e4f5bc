//! One connection: its phase, credits and streams.
//!
//! Invariants
//! * Nreq = posted + in progress. A receive is posted before the reply that grants it (DAFS 7).
//! * A stream has at most one request outstanding, and its sequence numbers are consecutive (DAFS
//!   O24). A violation drops the session.

use super::back::Back;
use super::chain::Chains;
use super::hints::Hints;
use super::measure::{Measured, UsedExports};
use super::proven::Proven;
use super::request::Call;
use super::shares::Weighed;
use super::shown::Shown;
use super::work::PendingId;
use crate::gss::PartialContext;
use crate::limits::SessionLimits;
use crate::ops::batch::Queue;
use dafs_dat::connections::{Admitted, Closed};
use dafs_dat::slots::Receives;
use dafs_dat::{Adapter, EndpointId, Instant, PeerInfo};
use dafs_service::TransportSecurity;
use dafs_service::durable::LoggedChange;
use dafs_service::{
    Arrival, Claim, Client, ClientKey, Level, OpenState, Owner, SessionProof, SessionReplies,
    StateId, Ticket, Weight,
};
use dafs_wire::dafs::{ByteOrder, RequestHeader, SessionId, SessionOptions};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The timeouts of a stalled connection: without progress of sends and RDMA, and without progress
/// of RDMA reads.
const STALL: [Duration; 2] = [Duration::from_secs(60); 2];

/// The same timeouts while others wait for the chunks that it holds.
const STALL_BEFORE_OTHERS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(1)];

/// The progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No message has arrived.
    New,
    /// A session exists. Its client has not authenticated.
    Unproven,
    /// In use.
    Ready,
    /// An additional channel of another connection's session.
    Bound,
    /// No request is accepted any more.
    Closing,
}

/// The channel that a connection was opened for (private data, DAFS 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    Operation,
    BackControl,
    /// The client reads exposed memory by RDMA: an extension.
    Optimistic,
}

pub(super) struct Connection {
    pub(super) endpoint: EndpointId,
    pub(super) peer: PeerInfo,
    /// The owner of its work for the scheduler.
    pub(super) owner: Owner,
    pub(super) channel: Channel,
    pub(super) phase: Phase,
    pub(super) opened_at: Instant,
    /// Its entry among the counted connections of the server.
    pub(super) admitted: Option<Arc<Admitted>>,
    /// The client's byte order, known from the first message.
    pub(super) order: ByteOrder,
    pub(super) receives: Receives,
    pub(super) credits: Credits,
    /// The importance of its session.
    pub(super) weighed: Weighed,
    pub(super) streams: Streams,
    pub(super) chains: Chains,
    /// Logged changes of requests in progress, by stream.
    pub(super) ops: FxHashMap<u16, LoggedChange>,
    pub(super) session: Option<Session>,
    /// The transport has ended it. It waits for the last of its jobs.
    pub(super) ended: bool,
    /// Additional state of a bound back-control channel.
    pub(super) back: Option<Box<Back>>,
    /// Hints that ride on its requests, by the lane of their stores.
    pub(super) hints: Vec<(u64, Arc<Hints>)>,
    /// Exposed memory that its peer may read.
    pub(super) shown: Shown,
    /// The work for batches, once there has been one.
    pub(super) batch: Option<Box<Queue>>,
    /// Authentication attempts so far. The flag is true while one is checked.
    pub(super) proofs: u32,
    pub(super) proving: bool,
    /// A context of GSS that needs another token of the client.
    pub(super) context: Option<PartialContext>,
    /// A version of the exports, and true if some of them admit proven sessions alone.
    pub(super) demands: Option<(u64, bool)>,
    /// The counters of the exports that its requests use.
    pub(super) exports: UsedExports,
    /// The log has told that an export demands more protection than this connection has.
    pub(super) has_noted_clear: bool,
    /// Set for the job that checks a proof, when its connection is gone.
    pub(super) gone: Arc<AtomicBool>,
    /// Emptied jobs of cancelled requests that are still in the queue of the pool.
    pub(super) canceled_jobs: u16,
    /// Sends and RDMA posted and not completed, and the time of the last completion.
    pub(super) work_posted: u32,
    pub(super) progress_at: Instant,
    /// Sends and RDMA writes posted so far. They complete in order.
    pub(super) sent_total: u64,
    /// RDMA reads among them, which hold chunks, and the time of the last completion of one.
    pub(super) fetches_posted: u32,
    pub(super) fetch_progress_at: Instant,
}

/// The negotiated options of a session, and its client.
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) options: SessionOptions,
    pub(super) client_name: Vec<u8>,
    pub(super) client_verifier: u64,
    pub(super) client_key: ClientKey,
    /// The arrival of its request, in the order of all clients that register.
    pub(super) arrival: Arrival,
    /// Its id for fences. Empty if the client has given none.
    pub(super) fence_id: Vec<u8>,
    /// The client's record and credential, once it has authenticated.
    pub(super) proven: Option<Proven>,
    /// At data servers: the client's ticket from the metadata server, and the time of its arrival.
    pub(super) ticket: Option<(Arc<Ticket>, Instant)>,
    /// The open of the last request, which saves a lookup in a sequence of reads or writes.
    pub(super) last_open: Option<(StateId, Arc<OpenState>)>,
    /// The cached replies, if that was negotiated.
    pub(super) replies: Option<SessionReplies>,
}

/// The credits of one connection, as DAFS 7 counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Credits {
    /// Requests that the client may have outstanding.
    pub(super) nreq: u16,
    pub(super) posted: u16,
    pub(super) in_hand: u16,
    /// The last number that the client desired. 0 before the first.
    pub(super) desired: u16,
}

impl Credits {
    /// Returns the claim of a session of this weight.
    pub(super) fn claim(&self, limits: &SessionLimits, weight: Weight) -> Claim {
        let initial = limits.credits_initial.max(1);
        let wish = if self.desired == 0 { self.nreq.max(initial) } else { self.desired };
        let wanted = wish.clamp(1, limits.credits_per_session_max);
        Claim { weight, least: 1, wanted: wanted.into() }
    }

    /// Returns the credits to aim at with the next reply of a session with this claim. `room` is the
    /// number that all sessions together may still get. There is a `level` while they want more than
    /// there is.
    pub(super) fn target(&self, claim: &Claim, room: usize, level: Option<Level>) -> u16 {
        let goal = level.map_or(claim.wanted, |level| level.part(claim));
        let goal = u16::try_from(goal).unwrap_or(u16::MAX);
        if goal <= self.nreq {
            return goal;
        }
        // Doubling lets a busy client grow within a few replies, and a noisy one not at once.
        let step = self.nreq.saturating_mul(2).min(goal);
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        step.min(self.nreq.saturating_add(room)).max(1)
    }

    /// Returns the receives to post before a reply that carries `target`, and the number of credits
    /// then.
    pub(super) fn step(&self, target: u16) -> (u16, u16) {
        if target >= self.nreq { (target - self.nreq + 1, target) } else { (0, self.nreq - 1) }
    }

    pub(super) fn check(&self) {
        debug_assert_eq!(
            u32::from(self.nreq),
            u32::from(self.posted) + u32::from(self.in_hand),
            "credits, posted receives and requests in hand do not add up"
        );
    }
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    next_seq: u16,
    /// The numbers have been used up once and began again at zero.
    wrapped: bool,
    busy: bool,
    /// The number of its latest request with a durable reply.
    durable: Option<u16>,
    /// The number of its latest request that was cancelled.
    canceled: Option<u16>,
    /// The entry of its request, if that waits.
    waiting: Option<PendingId>,
    /// The use that its request makes.
    measured: Measured,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            next_seq: 1,
            wrapped: false,
            busy: false,
            durable: None,
            canceled: None,
            waiting: None,
            measured: Measured::default(),
        }
    }
}

/// The fate of a request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// There was none of this number.
    Unknown,
    /// It has no answer yet. Its entry, if it waits.
    Running(Option<PendingId>),
    /// It was answered.
    Answered,
    /// It was answered, because it had been cancelled.
    Canceled,
}

/// The slots of a session. Expired slots stay known: a request on one may be under way, and when
/// the number rises again they continue with their numbers.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Stream>,
}

impl Streams {
    pub(super) fn ensure(&mut self, count: u16) {
        if self.slots.len() < usize::from(count) {
            self.slots.resize(usize::from(count), Stream::default());
        }
    }

    /// Begins a request.
    ///
    /// # Errors
    /// The reason why the session must be dropped.
    pub(super) fn begin(&mut self, header: &RequestHeader) -> Result<(), String> {
        let (id, seq) = (header.stream_id, header.seq_number);
        let count = self.slots.len();
        let Some(stream) = self.slots.get_mut(usize::from(id)) else {
            return Err(format!("stream {id} does not exist; there are {count}"));
        };
        if stream.busy {
            return Err(format!("stream {id} still has a request outstanding"));
        }
        if stream.next_seq != seq {
            return Err(format!(
                "sequence number {seq} on stream {id}; {} was due",
                stream.next_seq
            ));
        }
        stream.busy = true;
        stream.next_seq = seq.wrapping_add(1);
        stream.wrapped |= stream.next_seq == 0;
        stream.canceled.take_if(|canceled| *canceled == seq);
        stream.waiting = None;
        stream.measured = Measured::default();
        Ok(())
    }

    /// The use that the request of a stream makes.
    pub(super) fn measured(&mut self, id: u16) -> Option<&mut Measured> {
        self.slots.get_mut(usize::from(id)).map(|stream| &mut stream.measured)
    }

    /// Notes the entry of a request that waits.
    pub(super) fn note_waiting(&mut self, id: u16, pending: PendingId) {
        if let Some(stream) = self.slots.get_mut(usize::from(id)) {
            stream.waiting = Some(pending);
        }
    }

    /// Notes that a request was cancelled.
    pub(super) fn note_canceled(&mut self, id: u16, seq: u16) {
        if let Some(stream) = self.slots.get_mut(usize::from(id)) {
            stream.canceled = Some(seq);
        }
    }

    /// The fate of a request, as far as its number tells.
    pub(super) fn fate(&self, id: u16, seq: u16) -> Fate {
        const HALF: u16 = 1 << 15;
        let Some(stream) = self.slots.get(usize::from(id)) else { return Fate::Unknown };
        let last = stream.next_seq.wrapping_sub(1);
        let was_sent = match stream.wrapped {
            true => last.wrapping_sub(seq) < HALF,
            false => (1..=last).contains(&seq),
        };
        match was_sent {
            true if stream.busy && seq == last => Fate::Running(stream.waiting),
            true if stream.canceled == Some(seq) => Fate::Canceled,
            true => Fate::Answered,
            false => Fate::Unknown,
        }
    }

    /// True if a request could begin, for a message whose checksum is wrong (DAFS O21).
    pub(super) fn is_free(&self, id: u16) -> bool {
        self.slots.get(usize::from(id)).is_some_and(|stream| !stream.busy)
    }

    /// Notes that a request has a durable reply.
    pub(super) fn keep_durable(&mut self, id: u16, seq: u16) {
        if let Some(stream) = self.slots.get_mut(usize::from(id)) {
            stream.durable = Some(seq);
        }
    }

    /// True once if the durable reply of a stream must be dropped, because the request numbers wrap
    /// around: half of them have been used since.
    pub(super) fn outlives(&mut self, id: u16, seq: u16) -> bool {
        const HALF: u16 = 1 << 15;
        let Some(stream) = self.slots.get_mut(usize::from(id)) else { return false };
        stream.durable.take_if(|durable| seq.wrapping_sub(*durable) >= HALF).is_some()
    }

    /// Ends a request whose reply is on its way.
    pub(super) fn end(&mut self, id: u16) {
        if let Some(stream) = self.slots.get_mut(usize::from(id)) {
            stream.busy = false;
        }
    }
}

impl Connection {
    /// Drops the logged change of a request that is not executed. Others may wait for its change
    /// locks. A change whose execution has begun is in doubt. Work without a request has no logged
    /// change.
    pub(super) fn drop_change(&mut self, call: &Call) {
        if let Some(stream) = call.stream() {
            self.ops.remove(&stream);
        }
    }

    pub(super) fn new(
        endpoint: EndpointId,
        (peer, owner): (PeerInfo, Owner),
        channel: Channel,
        now: Instant,
    ) -> Self {
        let mut streams = Streams::default();
        streams.ensure(1);
        Self {
            endpoint,
            peer,
            owner,
            channel,
            phase: Phase::New,
            opened_at: now,
            admitted: None,
            order: ByteOrder::NATIVE,
            receives: Receives::default(),
            credits: Credits { nreq: 1, ..Credits::default() },
            weighed: Weighed::default(),
            streams,
            chains: Chains::default(),
            ops: FxHashMap::default(),
            shown: Shown::default(),
            session: None,
            ended: false,
            back: None,
            hints: Vec::new(),
            batch: None,
            proofs: 0,
            proving: false,
            context: None,
            demands: None,
            exports: UsedExports::default(),
            has_noted_clear: false,
            gone: Arc::default(),
            canceled_jobs: 0,
            work_posted: 0,
            sent_total: 0,
            progress_at: now,
            fetches_posted: 0,
            fetch_progress_at: now,
        }
    }

    /// Notes that it has a session. From now on it is not closed to make room for another
    /// connection.
    pub(super) fn establish(&mut self, phase: Phase) {
        self.phase = phase;
        if let Some(admitted) = &self.admitted {
            admitted.establish();
        }
    }

    /// Returns the reason for its close, if it is not counted any more.
    pub(super) fn closed(&self) -> Option<Closed> {
        self.admitted.as_ref()?.closed()
    }

    /// Ends it because the client violated a rule, or because it broke.
    pub(super) fn abort(&mut self, adapter: &mut dyn Adapter, reason: &str) {
        if self.ended {
            return;
        }
        tracing::warn!(peer = %self.peer, "session dropped: {reason}");
        self.phase = Phase::Closing;
        adapter.abort(self.endpoint);
    }

    /// Returns the client's record and credential, once the client has authenticated.
    pub(super) fn proven(&self) -> Option<&Proven> {
        self.session.as_ref()?.proven.as_ref()
    }

    /// True if the client's proof has ended for so long. Only proofs by GSS end.
    pub(super) fn proof_ended_before(&self, now: Instant, time: Duration) -> bool {
        let proof = self.proven().and_then(|proven| proven.admission.gss.as_ref());
        proof.is_some_and(|proof| proof.until + time < now)
    }

    /// True if the client must prove its principal again before anything else.
    pub(super) fn has_proof_ended(&self, now: Instant) -> bool {
        self.proof_ended_before(now, Duration::ZERO)
    }

    /// True on a channel that no other user can read or change: inside TLS, or memory shared with a
    /// process that the kernel names.
    pub(super) fn is_private(&self) -> bool {
        self.peer.transport_security() != TransportSecurity::None
    }

    /// Returns what its session has proven, for the rules of exports.
    pub(super) fn session_proof(&self) -> SessionProof {
        match self.proven().and_then(|proven| proven.admission.gss.as_ref()) {
            None => SessionProof::Unproven,
            Some(_) if self.is_private() => SessionProof::ProvenInPrivate,
            Some(_) => SessionProof::Proven,
        }
    }

    pub(super) fn client(&self) -> Option<&Arc<Client>> {
        self.proven().map(|proven| &proven.client)
    }

    pub(super) fn kept_replies(&mut self) -> Option<&mut SessionReplies> {
        self.session.as_mut()?.replies.as_mut()
    }

    pub(super) fn fence_id(&self) -> &[u8] {
        self.session.as_ref().map_or(&[], |session| &session.fence_id)
    }

    pub(super) fn count_posted(&mut self, now: Instant) {
        self.sent_total += 1;
        self.count_work(now);
    }

    /// Returns the number of completed sends and RDMA writes.
    pub(super) fn sent_completed(&self) -> u64 {
        self.sent_total - u64::from(self.work_posted - self.fetches_posted)
    }

    fn count_work(&mut self, now: Instant) {
        if self.work_posted == 0 {
            self.progress_at = now;
        }
        self.work_posted += 1;
    }

    pub(super) fn count_fetch(&mut self, now: Instant) {
        self.count_work(now);
        if self.fetches_posted == 0 {
            self.fetch_progress_at = now;
        }
        self.fetches_posted += 1;
    }

    /// True if the client has stalled. The timeout is shorter if others wait for the chunks that it
    /// holds.
    pub(super) fn is_stalled(&self, now: Instant, others_wait: impl FnOnce() -> bool) -> bool {
        let passed = |[any, reads]: [Duration; 2]| {
            self.work_posted > 0 && now.since(self.progress_at) > any
                || self.fetches_posted > 0 && now.since(self.fetch_progress_at) > reads
        };
        passed(STALL) || passed(STALL_BEFORE_OTHERS) && others_wait()
    }

    /// True if messages carry checksums now (DAFS O20).
    pub(super) fn checksums(&self) -> bool {
        match &self.back {
            Some(back) => back.checksums(),
            None => self.session.as_ref().is_some_and(|session| session.options.use_checksums),
        }
    }

    pub(super) fn response_bytes_max(&self) -> usize {
        match &self.session {
            Some(session) => session.options.max_response_size as usize,
            None => crate::limits::SMALL_REPLY_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::divide;

    fn limits() -> SessionLimits {
        SessionLimits { credits_initial: 8, credits_per_session_max: 64, ..Default::default() }
    }

    fn target(credits: Credits, room: usize, level: Option<Level>) -> u16 {
        credits.target(&credits.claim(&limits(), Weight::default()), room, level)
    }

    fn credits(nreq: u16, desired: u16) -> Credits {
        Credits { nreq, posted: nreq - 1, in_hand: 1, desired }
    }

    #[test]
    fn credits_rise_on_demand_and_fall_when_returned() {
        assert_eq!(target(credits(8, 0), 100, None), 8);
        assert_eq!(target(credits(8, 50), 100, None), 16);
        assert_eq!(target(credits(8, 50), 3, None), 11);
        assert_eq!(target(credits(60, 500), 100, None), 64);
        assert_eq!(target(credits(60, 4), 100, None), 4);
    }

    #[test]
    fn scarce_credits_fall_and_rise_to_the_share() {
        let claims = [credits(60, 60); 3].map(|it| it.claim(&limits(), Weight::default()));
        let level = divide(60, &claims);
        assert!(level.is_some());
        assert_eq!(target(credits(60, 60), 0, level), 20);
        assert_eq!(target(credits(2, 60), 100, level), 4);
        assert_eq!(target(credits(16, 60), 100, level), 20);
        assert_eq!(target(credits(16, 60), 1, level), 17);
        assert_eq!(target(credits(60, 5), 0, level), 5);
        // One credit is left to everybody.
        assert_eq!(target(credits(60, 60), 0, divide(0, &claims)), 1);
    }

    #[test]
    fn receives_posted_follow_the_draft() {
        // M + 1 to rise by M, 1 to stay, none to fall by one.
        assert_eq!(credits(8, 0).step(12), (5, 12));
        assert_eq!(credits(8, 0).step(8), (1, 8));
        assert_eq!(credits(8, 0).step(2), (0, 7));
    }

    #[test]
    fn streams_refuse_what_is_out_of_order() {
        let mut streams = Streams::default();
        streams.ensure(2);
        let request = |stream_id, seq_number| RequestHeader {
            stream_id,
            seq_number,
            ..RequestHeader::default()
        };
        assert!(streams.begin(&request(2, 1)).is_err());
        assert!(streams.begin(&request(1, 2)).is_err());
        streams.begin(&request(1, 1)).unwrap();
        assert!(!streams.is_free(1));
        assert!(streams.begin(&request(1, 2)).is_err());
        streams.end(1);
        streams.begin(&request(1, 2)).unwrap();
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut streams = Streams::default();
        streams.ensure(1);
        for number in 1..=70_000u32 {
            let seq_number = number as u16;
            let header = RequestHeader { seq_number, ..RequestHeader::default() };
            streams.begin(&header).unwrap();
            streams.end(0);
        }
    }
}
