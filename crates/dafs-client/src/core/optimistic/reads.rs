//! Reads of the application that may do without a request.
//!
//! Invariants
//! * A read is a hit only if the entries of its blocks, read behind its data, are those that the client
//!   knew before. So its bytes are the content of the file at one moment between its beginning and its
//!   end.
//! * A read of a small file is a hit only under an open of the file that allows reading.
//! * Every read that is no hit is a request in the end, and completes as one.
//! * Where a device answers for the server, a hit is at most two seconds behind a sign of life of it: one
//!   until the read begins, and one until its end. No frame is used again so soon, so a device that reads
//!   the server's memory again, for an answer that was lost, makes no false hit.

use super::channel::Phase;
use super::directory::{Miss, Plan, Question};
use super::{Asked, Missed, Optimistic, State};
use crate::core::blocks::ExposeAnswer;
use crate::core::call::{Call, Done, Due, Purpose, ReadCall, ReplyMessage, Task};
use crate::core::failure::Failure;
use crate::core::open_states::OpenStates;
use crate::core::session::{SessionCore, Stage};
use crate::core::users::User;
use crate::limits::{OPTIMISTIC_ANSWER_TIME, OPTIMISTIC_BYTES_MAX, OPTIMISTIC_HEARD_TIME};
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{FileHandle, Outcome, Reply, Request, StateId, Status, XExposeGet};

/// A read of the application by RDMA.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) tag: u64,
    due: Due,
    user: Option<User>,
    pub(super) call: ReadCall,
    pub(super) plan: Plan,
    /// The slot of its entries.
    pub(super) slot: Option<u32>,
    /// RDMA reads that are not done.
    pub(super) left: usize,
    /// The time when its first attempt was posted.
    posted_at: Instant,
    /// Its entries had changed once.
    is_second: bool,
}

impl Read {
    /// The same as a request to come.
    pub(super) fn into_call(self) -> Call {
        let Self { tag, due, user, call, .. } = self;
        let task = Task::Read(call);
        Call { tag, due, task, maybe_done: false, user, renewed: false }
    }
}

impl Optimistic {
    /// True if a read could be a hit.
    fn may_hit(&self, call: &ReadCall) -> bool {
        let len = call.into.len() as usize;
        self.is_wanted
            && (1..=OPTIMISTIC_BYTES_MAX).contains(&len)
            && call.state_id != StateId::ZERO
    }

    fn count_miss(&mut self, miss: Miss) {
        let counter = match miss {
            Miss::Absent(_) => &mut self.stats.absent,
            Miss::Entries(_) | Miss::Place(_) | Miss::Scattered => &mut self.stats.unknown,
        };
        *counter += 1;
    }

    /// The plan of a read, if it can begin now.
    fn plan(&mut self, opens: &OpenStates, call: &ReadCall, now: Instant) -> Option<Plan> {
        let part = (call.offset, call.into.len());
        // The place of a small file is not of the open, whose rights are judged here therefore.
        let may_read = opens.may_read(call.state_id, &call.handle);
        let small = may_read.then(|| self.small.plan(&call.handle, part, now)).flatten();
        let is_small = small.is_some();
        let planned = small.unwrap_or_else(|| self.directory.plan(call.state_id, part, now));
        match planned {
            Ok(plan) => match &self.state {
                State::Open(channel) if channel.has_room() => Some(plan),
                _ => None,
            },
            Err(miss) => {
                self.count_miss(miss);
                let (name, file) = (call.state_id, call.handle);
                let is_often = self.directory.missed(name);
                let may_ask = may_read && self.small.missed(&file, now) || is_often;
                if may_ask || is_small {
                    self.missed = Some(Missed { name, file, miss, is_small, may_ask });
                }
                None
            }
        }
    }
}

impl SessionCore {
    /// True if a read may do without a request.
    pub(in crate::core) fn may_hit(&self, call: &ReadCall) -> bool {
        self.optimistic.may_hit(call) && !self.link.info.checksums && self.stage == Stage::Ready
    }

    /// Begins a read by RDMA that may do without a request. Returns the call if it must be one.
    pub(in crate::core) fn read_optimistically(
        &mut self,
        adapter: &mut dyn Adapter,
        (tag, due): (u64, Due),
        user: &mut Option<User>,
        call: ReadCall,
    ) -> Option<ReadCall> {
        if !self.is_server_heard() {
            // This request brings the next sign of life.
            self.optimistic.stats.dead += 1;
            return Some(call);
        }
        let now = self.link.now;
        let planned = self.optimistic.plan(&self.calls.opens, &call, now);
        let Some(plan) = planned else { return Some(call) };
        let (user, slot, posted_at) = (user.take(), None, now);
        let read = Read { tag, due, user, call, plan, slot, left: 0, posted_at, is_second: false };
        self.begin_read(adapter, read);
        None
    }

    /// True unless a device answers reads, and the server has not answered a request for a while.
    fn is_server_heard(&self) -> bool {
        let is_recent = |at: Instant| self.link.now.since(at) <= OPTIMISTIC_HEARD_TIME;
        !self.link.config.device_answers_reads || self.link.promised_from.is_some_and(is_recent)
    }

    fn begin_read(&mut self, adapter: &mut dyn Adapter, read: Read) {
        let State::Open(channel) = &mut self.optimistic.state else {
            return self.calls.wait(&mut self.link, read.into_call());
        };
        if let Err(failure) = channel.begin(adapter, (read, self.link.now)) {
            self.lose_optimistic(adapter, failure);
            self.pump(adapter);
        }
    }

    /// Processes the end of an RDMA read.
    pub(super) fn on_optimistic_read(&mut self, adapter: &mut dyn Adapter, work: u64) {
        let now = self.link.now;
        let State::Open(channel) = &mut self.optimistic.state else { return };
        if let Some((fetch, page)) = channel.fetched(work) {
            match fetch.is_small {
                true => self.optimistic.small.fetched(&fetch, &page, now),
                false => self.optimistic.directory.fetched(&fetch, &page, now),
            }
            return;
        }
        let Some((mut read, entries)) = channel.done(work) else { return };
        let is_late = self.link.config.device_answers_reads
            && now.since(read.posted_at) > OPTIMISTIC_ANSWER_TIME;
        let Optimistic { directory, small, stats, .. } = &mut self.optimistic;
        let Read { tag, call, plan, .. } = &read;
        let is_same = match plan.is_small {
            true => small.verify(plan, &entries),
            false => directory.verify(call.state_id, plan, &entries),
        };
        if is_same && !is_late {
            let (bytes, end_of_file) = (plan.bytes, plan.is_end);
            stats.hits += 1;
            stats.bytes += u64::from(bytes);
            self.link.stats.bytes_read += u64::from(bytes);
            let purpose = Purpose::Caller(*tag);
            return self.finish(purpose, Done::Read { bytes, end_of_file });
        }
        stats.stale += 1;
        if !read.is_second
            && !is_late
            && let Some(plan) = self.optimistic.plan(&self.calls.opens, &read.call, now)
        {
            (read.plan, read.is_second) = (plan, true);
            return self.begin_read(adapter, read);
        }
        self.calls.wait(&mut self.link, read.into_call());
    }

    /// After a read that was no hit, and has been sent as a request: asks for what is missing.
    pub(in crate::core) fn after_miss(&mut self, adapter: &mut dyn Adapter) {
        let Some(missed) = self.optimistic.missed.take() else { return };
        let Missed { name, file, miss, is_small, may_ask } = missed;
        let now = self.link.now;
        let (is_bound, may_fetch) = match &self.optimistic.state {
            State::Open(channel) => (channel.phase == Phase::Bound, channel.may_fetch()),
            _ => return self.dial_optimistic(adapter),
        };
        let Some(window) = miss.window().filter(|_| is_bound) else { return };
        let Optimistic { directory, small, .. } = &mut self.optimistic;
        let fetch = match miss {
            Miss::Absent(_) | Miss::Entries(_) if may_fetch && is_small => small.fetch(&file, now),
            Miss::Absent(_) | Miss::Entries(_) if may_fetch => directory.fetch(name, window, now),
            _ => None,
        };
        if let (Some(fetch), State::Open(channel)) = (fetch, &mut self.optimistic.state) {
            if let Err(failure) = channel.fetch(adapter, (fetch, now)) {
                self.lose_optimistic(adapter, failure);
                self.pump(adapter);
            }
            return;
        }
        // An absent block may also be one of a file that has memory anew.
        if matches!(miss, Miss::Entries(_)) || !may_ask || self.optimistic.small.is_asking() {
            return;
        }
        if !self.has_room() {
            // The credits may have shrunk to those of the reads: one, for one read at a time.
            let outstanding = usize::from(self.link.conn.streams.outstanding());
            return self.link.want_credits(outstanding + 1);
        }
        // The state-id of an open that is lost may denote another one there.
        let Ok(state_id) = self.calls.opens.current(name) else { return };
        // The place of a small file is for all of it.
        let needed = if is_small { 0 } else { window };
        let question = self.optimistic.directory.question(name, needed, now);
        let open = (file, state_id);
        question.into_iter().for_each(|question| self.ask_where(adapter, open, question));
    }

    fn ask_where(
        &mut self,
        adapter: &mut dyn Adapter,
        (fh, state_id): (FileHandle, StateId),
        question: Question,
    ) {
        let of_small = self.optimistic.small.asks(&fh);
        let (exposure, known) = match question.exposure {
            0 => of_small,
            exposure => (exposure, question.known),
        };
        let (window, last) = (*question.windows.start(), *question.windows.end());
        // INVARIANT: a question names 64 windows at most.
        let windows = (last - window + 1) as u32;
        let small = true;
        let get = XExposeGet { fh, state_id, window, exposure, windows, known, small };
        let request = Request::XExposeGet(get);
        self.optimistic.last_question += 1;
        let number = self.optimistic.last_question;
        let (ended, known) = (self.optimistic.ended, (exposure, known));
        self.optimistic.questions.insert(number, Asked { question, file: fh, known, ended });
        self.send_own(adapter, Purpose::Expose(number), &request);
    }

    /// Processes the answer to such a question.
    pub(in crate::core) fn on_expose_reply(
        &mut self,
        adapter: &mut dyn Adapter,
        number: u64,
        reply: &ReplyMessage,
    ) -> Result<(), Failure> {
        let answer = match reply.decode().map_err(Failure::protocol)? {
            Outcome::Ok(Reply::XExposeGet(reply)) => Some(ExposeAnswer::of(&reply)),
            Outcome::Ok(_) => return Err(Failure::protocol("an answer of another procedure")),
            Outcome::Error { status: Status::NotSupp, .. } => {
                self.optimistic.is_wanted = false;
                None
            }
            Outcome::Error { .. } => None,
        };
        let now = self.link.now;
        let Some(asked) = self.optimistic.questions.remove(&number) else { return Ok(()) };
        let Asked { question, file, known, ended } = asked;
        // Keys of a channel that is gone are no good, and the directory has forgotten the question.
        if ended != self.optimistic.ended {
            return Ok(());
        }
        let Optimistic { directory, small, state, .. } = &mut self.optimistic;
        let (of_small, alone) = match answer {
            // It ends the right of the open to an exposure of the file alone.
            Some(answer) if answer.base != 0 => (Some(answer), Some(ExposeAnswer::default())),
            answer => (None, answer),
        };
        let is_placed = small.answered(&file, (known, of_small), now);
        let is_new = directory.answered(&question, alone, now);
        let State::Open(channel) = state else { return Ok(()) };
        // A fetch that the directory has handed out must begin, or the page waits for it for ever.
        let fetch = match (channel.may_fetch(), is_placed) {
            (false, _) => None,
            (true, true) => small.fetch(&file, now),
            (true, false) if is_new => directory.fetch(question.name, question.needed, now),
            (true, false) => None,
        };
        if let Some(fetch) = fetch
            && let Err(failure) = channel.fetch(adapter, (fetch, now))
        {
            self.lose_optimistic(adapter, failure);
        }
        Ok(())
    }
}
