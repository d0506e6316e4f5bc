//! A connection between two authenticated peers, with calls in both directions. One thread reads,
//! one writes, and some execute the peer's calls.
//!
//! Invariants
//! * Neither side has more than `CALLS_MAX` unanswered calls, and a peer with more is disconnected.
//!   So every queue is bounded, and a reading thread never waits for a writing one, which excludes
//!   a deadlock.
//! * A call that is not answered in time ends the connection: its effect is not known, and later
//!   calls must not overtake it.
//! * Calls that wait for other peers never occupy all the threads that execute calls.
//! * A peer sends a message every `ALIVE_INTERVAL`. One that is silent for `SILENCE_MAX` is gone.
//! * A connection whose keys have protected enough records says so. It works on until its owner has
//!   another one, up to the last record that a key may protect. A peer that always has a call under way
//!   does not keep its owner from ending it.

use crate::limits::{ALIVE_INTERVAL, CALLS_MAX, SILENCE_MAX, SLOW_WORKERS, WORKERS};
use crate::tls::{Message, Receiver, Sender, framed};
use dafs_mem::{Condvar, Mutex};
use dafs_wire::cluster::{Answer, Call, Frame, RECORD_BYTES_MAX};
use dafs_wire::xdr::{Decode, Decoder};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, RecvTimeoutError, channel};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The answers of a side to the other.
pub(crate) trait Answers: Send + Sync {
    /// Returns the resource that a call waits for.
    fn pace(&self, call: &Call<'_>) -> Pace;

    /// Executes a call. The answer may borrow from `space`.
    fn answer<'s>(&self, call: &Call<'_>, space: &'s mut Vec<u8>) -> Answer<'s>;
}

/// The resource that a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// None: it is answered at once.
    Quick,
    /// A local device.
    Device,
    /// Another peer.
    Others,
}

/// The call got no answer. Its effect is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the connection was lost")]
pub(crate) struct Lost;

#[derive(Default)]
struct State {
    closed: bool,
    /// The keys of either direction have protected enough records.
    spent: bool,
    next_id: u32,
    /// Own calls. `Some` after the answer has come.
    waiting: FxHashMap<u32, Option<Message>>,
    /// The peer's calls that no worker has taken yet.
    queue: VecDeque<(u32, Message)>,
    /// Those that wait for other peers, and the number of them that workers execute.
    slow: VecDeque<(u32, Message)>,
    slow_working: usize,
    /// The number of the peer's unanswered calls.
    owed: usize,
    /// Answers that the writing thread has not sent yet.
    unsent: usize,
    /// True while the connection ends in the next moment without these two.
    ending: bool,
    /// Threads that have not ended.
    threads: usize,
}

struct Shared {
    stream: TcpStream,
    state: Mutex<State>,
    /// Notifies the threads that wait for answers, for calls, or for the end.
    changed: Condvar,
    answers: Arc<dyn Answers>,
    outgoing: mpsc::Sender<Outgoing>,
    /// Records of one direction after which the connection is spent.
    records_max: u64,
}

/// Something for the writing thread: a [framed] message, or the end of the connection.
enum Outgoing {
    Call(Vec<u8>),
    Answer(Vec<u8>),
    End,
}

/// A connection. It ends when this is dropped, and its threads end by themselves.
pub(crate) struct Link {
    shared: Arc<Shared>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Link {
    /// Begins to work on an authenticated connection, which is spent after `records_max` records of
    /// one direction.
    pub(crate) fn start(
        name: &str,
        stream: TcpStream,
        (mut sender, mut receiver): (Sender, Receiver),
        answers: Arc<dyn Answers>,
        records_max: u64,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let (outgoing, incoming) = channel();
        let state = Mutex::new(State::default());
        let changed = Condvar::new();
        let shared = Shared { stream, state, changed, answers, outgoing, records_max };
        let shared = Arc::new(shared);
        // Its drop after an error ends the threads that were started.
        let link = Self { shared: shared.clone() };
        let own = shared.clone();
        link.spawn(name, move || own.read(&mut receiver))?;
        let own = shared.clone();
        link.spawn(name, move || own.write(&mut sender, &incoming))?;
        for _ in 0..WORKERS {
            let own = shared.clone();
            link.spawn(name, move || own.work())?;
        }
        Ok(link)
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let shared = self.shared.clone();
        shared.lock().threads += 1;
        let ended = Ended(shared);
        let whole = move || {
            let _ended = ended;
            run();
        };
        // The name of a thread has at most 15 bytes.
        let builder = std::thread::Builder::new().name(name.to_owned());
        builder.spawn(whole).map(|_: JoinHandle<()>| ())
    }

    /// Sends a call, waits for the answer for at most `limit`, and passes it to `take`.
    ///
    /// # Errors
    /// No answer came. The connection is over then.
    pub(crate) fn call<T>(
        &self,
        call: Call<'_>,
        limit: Duration,
        take: impl FnOnce(Answer<'_>) -> T,
    ) -> Result<T, Lost> {
        let end = Instant::now() + limit;
        let shared = &*self.shared;
        let mut state = shared.lock();
        while state.waiting.len() >= CALLS_MAX && !state.closed {
            state = shared.wait(state, end)?;
        }
        if state.closed {
            return Err(Lost);
        }
        let id = state.next_id;
        state.next_id = id.wrapping_add(1);
        state.waiting.insert(id, None);
        drop(state);
        let sent = shared.outgoing.send(Outgoing::Call(frame(&Frame::Call { id, call })));
        let mut state = shared.lock();
        let answer = loop {
            match state.waiting.get_mut(&id).map(Option::take) {
                Some(Some(answer)) => break answer,
                Some(None) if sent.is_ok() && !state.closed => {}
                _ => {
                    state.waiting.remove(&id);
                    return Err(Lost);
                }
            }
            state = match shared.wait(state, end) {
                Ok(state) => state,
                Err(lost) => {
                    shared.close();
                    shared.lock().waiting.remove(&id);
                    return Err(lost);
                }
            };
        };
        state.waiting.remove(&id);
        drop(state);
        shared.changed.notify_all();
        // The answer was decoded once before, so it is valid.
        match Frame::decode(&mut Decoder::new(answer.body())) {
            Ok(Frame::Answer { answer, .. }) => Ok(take(answer)),
            _ => Err(Lost),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.shared.close();
    }

    /// Lets the owner replace the connection, as when its keys have protected enough records.
    pub(crate) fn spend(&self) {
        self.shared.lock().spent = true;
        self.shared.changed.notify_all();
    }

    /// Waits until the connection has ended, or its keys have protected enough records.
    pub(crate) fn wait_over(&self) {
        let mut state = self.shared.lock();
        while !state.closed && !state.spent {
            state = self.shared.changed.wait(state);
        }
    }

    /// Ends the connection when the calls that the peer has made are answered, and takes no others
    /// meanwhile. This side has none under way. False if that takes longer than `limit`: then it works
    /// on.
    pub(crate) fn close_between_calls(&self, limit: Duration) -> bool {
        let shared = &*self.shared;
        let mut state = shared.lock();
        state.ending = true;
        shared.end_between_calls(&mut state);
        let waits = |state: &mut State| !state.closed;
        (state, _) = shared.changed.wait_timeout_while(state, limit, waits);
        state.ending = false;
        let is_closed = state.closed;
        drop(state);
        shared.changed.notify_all();
        is_closed
    }

    /// Ends the connection, and waits until all calls of the peer are over. False if they are not
    /// within `limit`.
    pub(crate) fn drain(&self, limit: Duration) -> bool {
        // Between calls it has ended, and the peer is about to end its direction.
        if !self.is_closed() {
            self.shared.close();
        }
        let busy = |state: &mut State| state.threads > 0;
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), limit, busy);
        !waited.1.timed_out()
    }
}

/// Notes the end of a thread, also by a panic.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        // A connection is useless without any of its threads. At an end between calls the reader
        // goes on.
        if !self.0.lock().closed {
            self.0.close();
        }
        self.0.lock().threads -= 1;
        self.0.changed.notify_all();
    }
}

/// Encodes a frame as a [framed] message.
fn frame(frame: &Frame<'_>) -> Vec<u8> {
    let data_bytes = match frame {
        Frame::Call { call: Call::Write { data, .. } | Call::WriteFile { data, .. }, .. }
        | Frame::Answer { answer: Answer::Data(data), .. } => data.len(),
        _ => 0,
    };
    framed(frame, data_bytes)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn wait<'s>(
        &self,
        state: MutexGuard<'s, State>,
        end: Instant,
    ) -> Result<MutexGuard<'s, State>, Lost> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Lost);
        }
        Ok(self.changed.wait_timeout(state, left).0)
    }

    fn close(&self) {
        self.end(&mut self.lock());
        // Wakes the threads that sleep in the socket.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.changed.notify_all();
    }

    fn end(&self, state: &mut State) {
        if !std::mem::replace(&mut state.closed, true) {
            state.queue.clear();
            state.slow.clear();
            let _ = self.outgoing.send(Outgoing::End);
        }
    }

    /// Ends the connection if that is wanted and no call of the peer is known. The peer may have sent one
    /// that was not taken: it gets no answer, and is not carried out. The reading thread discards it until
    /// the peer has ended its direction: the answers would be lost otherwise, because a socket without
    /// a reader resets the connection.
    fn end_between_calls(&self, state: &mut State) {
        if state.ending && state.owed + state.unsent == 0 {
            self.end(state);
            let _ = self.stream.shutdown(Shutdown::Write);
            self.changed.notify_all();
        }
    }

    /// Notes how many records one direction has had.
    fn count(&self, records: u64) {
        if records >= self.records_max && !std::mem::replace(&mut self.lock().spent, true) {
            self.changed.notify_all();
        }
    }

    fn read(&self, receiver: &mut Receiver) {
        let mut closed_at: Option<Instant> = None;
        loop {
            let received = receiver.receive(RECORD_BYTES_MAX, &mut &self.stream);
            self.count(receiver.records());
            let taken = received.and_then(|message| self.take(message));
            let is_closed = self.lock().closed;
            if let Err(error) = taken {
                if !is_closed {
                    tracing::debug!(%error, "a connection of the cluster has ended");
                }
                return;
            }
            if is_closed && closed_at.get_or_insert_with(Instant::now).elapsed() > SILENCE_MAX {
                return;
            }
        }
    }

    /// Handles a message.
    fn take(&self, message: Message) -> io::Result<()> {
        let mut d = Decoder::new(message.body());
        let taken = Frame::decode(&mut d).and_then(|frame| d.finish().map(|()| frame));
        let (id, pace) = match taken.map_err(io::Error::other)? {
            Frame::Alive => return Ok(()),
            Frame::Answer { id, .. } => {
                let mut state = self.lock();
                let waiting = state.waiting.get_mut(&id).filter(|answer| answer.is_none());
                *waiting.ok_or_else(|| io::Error::other("an answer to no call"))? = Some(message);
                drop(state);
                self.changed.notify_all();
                return Ok(());
            }
            Frame::Call { id, call } => {
                let mut state = self.lock();
                // No answer to a call of this side can be behind it.
                while state.ending && !state.closed {
                    state = self.changed.wait(state);
                }
                if state.closed {
                    return Ok(());
                }
                state.owed += 1;
                if state.owed > CALLS_MAX {
                    return Err(io::Error::other("too many calls at once"));
                }
                drop(state);
                let pace = self.answers.pace(&call);
                if pace == Pace::Quick {
                    self.carry_out(id, &call);
                    return Ok(());
                }
                (id, pace)
            }
        };
        let mut state = self.lock();
        if !state.closed {
            let State { queue, slow, .. } = &mut *state;
            let queue = if pace == Pace::Others { slow } else { queue };
            queue.push_back((id, message));
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn carry_out(&self, id: u32, call: &Call<'_>) {
        let mut space = Vec::new();
        let answer = self.answers.answer(call, &mut space);
        let answer = frame(&Frame::Answer { id, answer });
        // Before the peer can get the answer.
        let mut state = self.lock();
        state.owed -= 1;
        state.unsent += 1;
        drop(state);
        let _ = self.outgoing.send(Outgoing::Answer(answer));
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.closed {
            let mut slow = None;
            if state.queue.is_empty() && state.slow_working < SLOW_WORKERS {
                slow = state.slow.pop_front();
            }
            let is_slow = slow.is_some();
            let Some((id, message)) = slow.or_else(|| state.queue.pop_front()) else {
                state = self.changed.wait(state);
                continue;
            };
            state.slow_working += usize::from(is_slow);
            drop(state);
            // The call was decoded once before, so it is valid.
            if let Ok(Frame::Call { call, .. }) = Frame::decode(&mut Decoder::new(message.body())) {
                self.carry_out(id, &call);
            }
            state = self.lock();
            // This worker looks for the next slow call itself.
            state.slow_working -= usize::from(is_slow);
        }
    }

    fn write(&self, sender: &mut Sender, incoming: &mpsc::Receiver<Outgoing>) {
        while !self.lock().closed {
            let (message, is_answer) = match incoming.recv_timeout(ALIVE_INTERVAL) {
                Ok(Outgoing::Call(message)) => (message, false),
                Ok(Outgoing::Answer(message)) => (message, true),
                Err(RecvTimeoutError::Timeout) => (frame(&Frame::Alive), false),
                Ok(Outgoing::End) | Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(error) = sender.send(message, &mut &self.stream) {
                tracing::debug!(%error, "a peer of the cluster takes nothing");
                return;
            }
            if is_answer {
                let mut state = self.lock();
                state.unsent -= 1;
                self.end_between_calls(&mut state);
            }
            self.count(sender.records());
        }
    }
}

#[cfg(test)]
mod tests;
