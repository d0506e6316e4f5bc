//! Optimistic reads: short reads of an open file from memory that a server on this host shows,
//! without a request (docs/protocol.md). The thread that reads copies the bytes itself.
//!
//! Over a network the session itself reads, by RDMA (`core::optimistic`).
//!
//! Every doubt ends in the ordinary read. After misses the client asks the server where blocks are,
//! at growing intervals while that brings nothing new. The answer comes while the client goes on with
//! ordinary reads, and the next miss takes it. It keeps the answers about small files when it closes them
//! (`small.rs`).
//!
//! Every read of an open file tries [`Opened::read_optimistically`] before the request: into any memory,
//! by [`Opened::read_shown`] into a buffer for a thread that waits, and by [`Opened::start_read`] for a
//! result that is taken later. Exceptions are batches and chains, whose requests do more than one read.
//!
//! Invariants
//! * A hit waits for no lock, and makes no system call but that of the clock, which needs no kernel.
//! * A miss waits for no answer.
//! * A fork never looks: its parent's session keeps what is shown right.
//! * Memory that was shown on a connection is read only as long as that connection is the present one.

mod small;

use crate::attributes::FileHandle;
use crate::core::{
    AskWidth, BLOCK_BYTES, BlockDirectory, BlockRead, Done, ExposeAnswer, ExposeQuestion, ReadCall,
    RemoteReadStats, SMALL_FILE_BYTES, WINDOW_BLOCKS,
};
use crate::driver::coarse_now;
use crate::error::{Error, Result};
use crate::fork::{ForkMutex, ForkRwLock};
use crate::limits::{
    OPTIMISTIC_ASK_PAUSE_MAX, OPTIMISTIC_ASK_PAUSE_MIN, OPTIMISTIC_BYTES_MAX,
    OPTIMISTIC_MISSES_BEFORE, OPTIMISTIC_NEWS_PAUSE,
};
use crate::opened::Opened;
use crate::operations::Mailbox;
use crate::outcome::failure_of;
use crate::pending::Moved;
use crate::span::Span;
use dafs_dat::Instant;
use dafs_mem::CheckedSlice;
use dafs_wire::dafs::{Outcome, Reply, Request, ShareAccess, Status, XExposeGet};
use small::{SmallFiles, Told, Turn};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a window.
const WINDOW_BYTES: u64 = WINDOW_BLOCKS * BLOCK_BYTES;

/// The reads of a client that could have been hits, by their outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OptimisticStats {
    /// Reads from the server's memory, without a request.
    pub hits: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Reads of blocks that the server did not show.
    pub absent: u64,
    /// Reads of blocks that changed meanwhile.
    pub stale: u64,
    /// Reads of blocks whose place the client did not know.
    pub unknown: u64,
    /// Reads while the server was dead or held up. Over an RDMA device also one a second, which asks
    /// if it is.
    pub dead: u64,
    /// Optimistic channels, over a network, that were lost after the server had bound them.
    pub lost: u64,
}

impl OptimisticStats {
    /// Adds the reads by RDMA.
    pub(crate) fn plus(self, remote: &RemoteReadStats) -> Self {
        Self {
            hits: self.hits + remote.hits,
            bytes: self.bytes + remote.bytes,
            absent: self.absent + remote.absent,
            stale: self.stale + remote.stale,
            unknown: self.unknown + remote.unknown,
            dead: self.dead + remote.dead,
            lost: self.lost + remote.lost,
        }
    }
}

/// The use of optimistic reads by one client.
#[derive(Debug, Default)]
pub(crate) struct OptimisticUse {
    is_on: AtomicBool,
    hits: AtomicU64,
    bytes: AtomicU64,
    absent: AtomicU64,
    stale: AtomicU64,
    unknown: AtomicU64,
    dead: AtomicU64,
    small: SmallFiles,
}

impl OptimisticUse {
    /// Begins to read that way.
    pub(crate) fn start(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn count(&self, outcome: BlockRead) {
        let counter = match outcome {
            BlockRead::Hit(bytes) => {
                self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                &self.hits
            }
            BlockRead::Absent => &self.absent,
            BlockRead::Stale => &self.stale,
            BlockRead::Unknown => &self.unknown,
            BlockRead::Dead => &self.dead,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> OptimisticStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OptimisticStats {
            hits: of(&self.hits),
            bytes: of(&self.bytes),
            absent: of(&self.absent),
            stale: of(&self.stale),
            unknown: of(&self.unknown),
            dead: of(&self.dead),
            lost: 0,
        }
    }

    /// Returns an answer about places. A server without the extension is asked no more.
    fn checked(&self, answer: Result<ExposeAnswer>) -> Option<ExposeAnswer> {
        if let Err(Error::Status { status: Status::NotSupp, .. }) = &answer {
            self.is_on.store(false, Ordering::Relaxed);
        }
        answer.ok()
    }
}

/// The start of a read through the server.
#[derive(Debug)]
pub(crate) enum ReadStart {
    /// It is over, without a request.
    Hit(Moved),
    /// It must be requested.
    Request(ReadCall),
}

/// The places of an open file's blocks in the server's memory.
#[derive(Debug, Default)]
pub(crate) struct Optimistic {
    known: ForkRwLock<Option<BlockDirectory>>,
    misses: AtomicU32,
    asking: ForkMutex<Asking>,
}

/// The last question, and the pause after it.
#[derive(Debug, Default)]
struct Asking {
    last: Instant,
    pause: Duration,
    /// The window with a block at an unknown place about which its answer had nothing new.
    vain: Option<u64>,
    width: AskWidth,
    /// The question, until its answer is taken.
    asked: Option<Asked>,
}

/// A question under way.
#[derive(Debug)]
struct Asked {
    question: ExposeQuestion,
    /// The windows that the read needed which was no hit, and was the reason to ask.
    needed: RangeInclusive<u64>,
    /// True if the places of these windows were known.
    was_known: bool,
    /// The outcome of that read.
    outcome: BlockRead,
    /// It was the first such read of its open.
    is_first: bool,
    /// It was a long read, so the question is about the place of a small file alone.
    is_long: bool,
    answer: Mailbox,
}

impl Asked {
    /// Takes the answer, if it has come.
    fn take(&self) -> Option<Done> {
        self.answer.lock_here().take()
    }
}

impl Asking {
    /// True if it is time for a question about a window. A file that is shown, and has a block there at
    /// an unknown place, has something new, unless the server has just been asked in vain.
    fn is_due(&self, now: Instant, outcome: BlockRead, is_shown: bool, window: u64) -> bool {
        let is_news = is_shown && outcome == BlockRead::Unknown && self.vain != Some(window);
        let pause = match (is_news, self.vain) {
            (false, _) => self.pause,
            (true, None) => self.pause.min(OPTIMISTIC_NEWS_PAUSE),
            // The server may lack memory for the pages of many windows.
            (true, Some(_)) => self.pause.min(OPTIMISTIC_ASK_PAUSE_MIN),
        };
        self.asked.is_none() && now >= self.last + pause
    }

    /// Takes the question under way, and its answer, if that has come.
    fn take_answered(&mut self) -> Option<(Asked, Done)> {
        let done = self.asked.as_ref()?.take()?;
        Some((self.asked.take()?, done))
    }

    /// Notes whether the answer had something new, and whether the places are known that were needed.
    fn answered(&mut self, asked: &Asked, is_new: bool, is_known: bool) {
        self.width.answered(asked.was_known, is_known);
        self.pause = match is_new {
            true => OPTIMISTIC_ASK_PAUSE_MIN,
            false => (self.pause * 2).clamp(OPTIMISTIC_ASK_PAUSE_MIN, OPTIMISTIC_ASK_PAUSE_MAX),
        };
        let is_vain = !is_new && asked.outcome == BlockRead::Unknown;
        self.vain = is_vain.then_some(*asked.needed.start());
    }
}

impl Opened {
    /// Starts a read through the server. The server is not needed if it shows all that is wanted.
    pub(crate) fn start_read(&self, call: ReadCall) -> ReadStart {
        match self.read_optimistically(call.into.checked(), call.offset) {
            Some(bytes) => {
                let end_of_file = bytes < call.into.len() as usize;
                ReadStart::Hit(Moved { bytes, end_of_file })
            }
            None => ReadStart::Request(call),
        }
    }

    /// As [`read_optimistically`](Self::read_optimistically), into a part of a buffer.
    ///
    /// # Errors
    /// A range outside the buffer, or beyond the largest file.
    pub(crate) fn read_shown(&self, span: &Span<'_>) -> Result<Option<usize>> {
        let shared = self.client.shared();
        if !shared.optimistic().is_on() {
            return Ok(None);
        }
        let piece = span.piece(shared, usize::MAX)?;
        Ok(self.read_optimistically(piece.checked(), span.offset))
    }

    /// Reads from the server's memory, if all that is wanted is there. Returns the bytes read: fewer
    /// than the target has at the end of the file. On `None` any part of the target may have
    /// changed.
    pub(crate) fn read_optimistically(
        &self,
        target: CheckedSlice<'_>,
        offset: u64,
    ) -> Option<usize> {
        let shared = self.client.shared();
        let usage = shared.optimistic();
        if !usage.is_on()
            || target.is_empty()
            || target.len() > OPTIMISTIC_BYTES_MAX && offset >= SMALL_FILE_BYTES
            || self.access == ShareAccess::Write
            || shared.check_process().is_err()
        {
            return None;
        }
        let now = coarse_now();
        let mut outcome = self.read_known(target, offset, now);
        if outcome.is_none_or(BlockRead::asks) && self.take_answers(now) {
            outcome = self.read_known(target, offset, now);
        }
        // A long read of an unknown place is none that could have been a hit.
        if outcome.is_some() || target.len() <= OPTIMISTIC_BYTES_MAX {
            usage.count(outcome.unwrap_or(BlockRead::Unknown));
        }
        let outcome = outcome.unwrap_or(BlockRead::Unknown);
        if let BlockRead::Hit(bytes) = outcome {
            return Some(bytes);
        }
        if outcome.asks() && !self.has_changed(outcome) {
            self.ask_where(offset, target.len(), (now, outcome));
        }
        None
    }

    /// Reads blocks at known places. `None` if there are none. A read that is longer than others is a hit
    /// if a small file ends in it: programs read with long buffers.
    fn read_known(&self, target: CheckedSlice<'_>, offset: u64, now: Instant) -> Option<BlockRead> {
        let shared = self.client.shared();
        let connection = shared.connection();
        let small = &shared.optimistic().small;
        let small = |target| small.read(&self.handle, (target, offset), (now, connection));
        if target.len() > OPTIMISTIC_BYTES_MAX {
            let outcome = small(target.slice(0, OPTIMISTIC_BYTES_MAX)?)?;
            // The file may go on behind a part that it fills.
            let is_full = outcome == BlockRead::Hit(OPTIMISTIC_BYTES_MAX);
            return Some(if is_full { BlockRead::Unknown } else { outcome });
        }
        let present = |known: &&BlockDirectory| known.is_of(connection);
        // Another thread may be taking an answer of the server.
        let outcome = self.optimistic.known.try_read().and_then(|known| {
            let known = known.as_ref().filter(present)?;
            Some(known.read(target, offset, now))
        });
        outcome.or_else(|| small(target))
    }

    /// True if a block of a small file is absent because the file has changed: the server has nothing new
    /// to tell. An exposure of the file alone, which the open may know, may have ended.
    fn has_changed(&self, outcome: BlockRead) -> bool {
        let shared = self.client.shared();
        let is_alone = || self.optimistic.known.try_read().is_none_or(|known| known.is_some());
        outcome == BlockRead::Absent
            && !is_alone()
            && shared.optimistic().small.is_absent(&self.handle, shared.connection())
    }

    /// Asks the server where blocks are, if that is due, without waiting for the answer. After a long read
    /// it asks for the place of a small file alone.
    fn ask_where(&self, offset: u64, len: usize, (now, outcome): (Instant, BlockRead)) {
        let optimistic = &self.optimistic;
        let misses = optimistic.misses.fetch_add(1, Ordering::Relaxed);
        let is_first = misses < OPTIMISTIC_MISSES_BEFORE;
        let shared = self.client.shared();
        let small = &shared.optimistic().small;
        let is_long = len > OPTIMISTIC_BYTES_MAX;
        // A program with a long buffer reads a file once, and then at its end.
        if is_long && !is_first {
            return;
        }
        // No small file has a block behind that.
        let turn = match offset < SMALL_FILE_BYTES {
            true => small.missed(&self.handle, is_first, now),
            false => Turn::Alone,
        };
        if turn == Turn::Wait || turn == Turn::Alone && is_first {
            return;
        }
        let Some(mut asking) = optimistic.asking.try_lock() else { return };
        // A pause may be shorter than a step of the coarse clock.
        let asks_at = Instant::now();
        let window = offset / WINDOW_BYTES;
        let connection = shared.connection();
        let known = optimistic.known.read_here();
        let is_alone = !is_long && (turn == Turn::Alone || known.is_some());
        if connection == 0
            || asking.asked.is_some()
            || is_alone && !asking.is_due(asks_at, outcome, known.is_some(), window)
        {
            return;
        }
        let present = known.as_ref().filter(|known| known.is_of(connection) && known.is_alive(now));
        let (exposure, count) = match (present, &*known) {
            (Some(known), _) if !is_long => (known.exposure(), known.segment_count()),
            (None, Some(_)) if !is_long => (0, 0),
            _ => small.question(&self.handle, (now, connection)),
        };
        let has_page = |window| present.is_some_and(|known| known.has_page(window));
        let needed = window..=offset.saturating_add(len as u64 - 1) / WINDOW_BYTES;
        let windows =
            if is_long { needed.clone() } else { asking.width.windows(&needed, has_page) };
        let was_known = needed.clone().all(has_page);
        drop(known);
        let request = Request::XExposeGet(XExposeGet {
            fh: self.handle,
            state_id: self.state_id,
            window: *windows.start(),
            exposure,
            // INVARIANT: a question names 64 windows at most.
            windows: if is_long { 0 } else { (windows.end() - windows.start() + 1) as u32 },
            known: count,
            small: true,
        });
        if !is_long {
            asking.last = asks_at;
        }
        small.asks(&self.handle, now);
        let answer = Mailbox::default();
        if shared.ask_later(&request, answer.clone()).is_ok() {
            let question = ExposeQuestion { exposure, known: count, connection, windows };
            let asked = Asked { question, needed, was_known, outcome, is_first, is_long, answer };
            asking.asked = Some(asked);
        }
    }

    /// Takes the answers that have come: to the question of this open, and to those of opens that have
    /// ended. Returns true if one has something new.
    fn take_answers(&self, now: Instant) -> bool {
        let is_own_new = self.take_answer(now);
        self.take_left(now) || is_own_new
    }

    /// Takes the answer to the question under way, if it has come. Returns true if it has something
    /// new.
    fn take_answer(&self, now: Instant) -> bool {
        let Some(mut asking) = self.optimistic.asking.try_lock() else { return false };
        let Some((asked, done)) = asking.take_answered() else { return false };
        let shared = self.client.shared();
        // The answer may have come on a later connection, or have been about an earlier one.
        if asked.question.connection != shared.connection() {
            return false;
        }
        let usage = shared.optimistic();
        let answer = usage.checked(answer_of(done, shared.server_name()));
        let (told, is_new) = self.take_places(answer, &asked);
        usage.small.answered(&self.handle, (told, is_new), asked.is_first, now);
        if !asked.is_long {
            let known = self.optimistic.known.read_here();
            let has_page = |window| known.as_ref().is_some_and(|known| known.has_page(window));
            let is_known = asked.needed.clone().all(has_page);
            drop(known);
            asking.answered(&asked, is_new, is_known);
        }
        is_new
    }

    /// Takes the answers to questions of opens that have ended, as far as they have come. Returns true if
    /// one has the new place of a small file.
    fn take_left(&self, now: Instant) -> bool {
        let shared = self.client.shared();
        let usage = shared.optimistic();
        let mut has_new = false;
        while let Some((file, asked, done)) = usage.small.take_left() {
            if asked.question.connection != shared.connection() {
                continue;
            }
            let (told, is_new) = match usage.checked(answer_of(done, shared.server_name())) {
                Some(answer) if answer.base != 0 => {
                    (Told::Small, self.take_place(&file, answer, &asked.question))
                }
                // The open that could read there has ended.
                Some(answer) if answer.exposure != 0 => (Told::Alone, false),
                _ => (Told::Nothing, false),
            };
            usage.small.answered(&file, (told, is_new), asked.is_first, now);
            has_new |= is_new;
        }
        has_new
    }

    /// Takes the places of blocks out of an answer. Returns its content, and true if that is new.
    fn take_places(&self, answer: Option<ExposeAnswer>, asked: &Asked) -> (Told, bool) {
        let Some(answer) = answer else { return (Told::Nothing, false) };
        if answer.base != 0 {
            *self.optimistic.known.write_here() = None;
            return (Told::Small, self.take_place(&self.handle, answer, &asked.question));
        }
        if asked.is_long {
            return (Told::Nothing, false);
        }
        let told = if answer.exposure == 0 { Told::Nothing } else { Told::Alone };
        let shared = self.client.shared();
        let former = self.optimistic.known.read_here().clone();
        let map = |remote| shared.map_exposed(remote);
        let (known, is_new) = BlockDirectory::after(former, answer, &asked.question, map);
        *self.optimistic.known.write_here() = known;
        (told, is_new)
    }

    /// Takes the place of a small file. Returns true if it is new.
    fn take_place(
        &self,
        file: &FileHandle,
        answer: ExposeAnswer,
        question: &ExposeQuestion,
    ) -> bool {
        let shared = self.client.shared();
        let map = |remote| shared.map_exposed(remote);
        shared.optimistic().small.take(file, answer, question, map)
    }
}

impl Drop for Opened {
    /// The answer to a question under way may have the place of a small file.
    fn drop(&mut self) {
        // A fork has none.
        let Some(mut asking) = self.optimistic.asking.try_lock() else { return };
        if let Some(asked) = asking.asked.take() {
            self.client.shared().optimistic().small.leave(self.handle, asked);
        }
    }
}

/// The answer to X_EXPOSE_GET.
fn answer_of(done: Done, server: &Arc<str>) -> Result<ExposeAnswer> {
    let Done::Answered(reply) = done else { return Err(failure_of(done, server)) };
    let procedure = reply.procedure();
    match reply.decode() {
        Ok(Outcome::Ok(Reply::XExposeGet(reply))) => Ok(ExposeAnswer::of(&reply)),
        Ok(Outcome::Error { status, .. }) => Err(Error::Status { procedure, status }),
        _ => {
            let reason = "an answer of another kind".into();
            Err(Error::Protocol { server: server.clone(), reason })
        }
    }
}

#[cfg(test)]
mod tests;
