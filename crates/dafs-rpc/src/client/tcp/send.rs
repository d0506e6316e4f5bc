//! Sending: calls at once or in batches, and answers to callbacks.
//!
//! Invariants
//! * The client sends a record completely, or the connection ends.
//! * While the socket does not accept data the client reads, because the server may wait for that;
//!   otherwise both sides could deadlock.

use super::{READER_WATCH, Shared, is_passing};
use crate::client::error::CallError;
use crate::client::gss::{Head, Outgoing};
use crate::client::request::gather;
use crate::limits::GATHERING_CALLS_MIN;
use crate::memory::source;
use crate::output::{Output, Parts};
use crate::reply::Reply;
use dafs_wire::rpc::FragmentMark;
use dafs_wire::rpc::limits::FRAGMENT_MARK_BYTES;
use rustix::event::PollFlags;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Shared {
    /// Sends a call; waits while the socket's buffer is full.
    pub(in crate::client) fn send(
        &self,
        xid: u32,
        Outgoing { request, head: source_of_head, .. }: &Outgoing<'_>,
    ) -> Result<(), CallError> {
        self.check()?;
        let mut head = Vec::with_capacity(512);
        head.extend_from_slice(&[0; FRAGMENT_MARK_BYTES]);
        source_of_head.encode(&self.options, xid, request.procedure, &mut head);
        let mut parts = Parts::new();
        let args_bytes = gather(request, &mut parts)?;
        let mark = FragmentMark::whole(head.len() - FRAGMENT_MARK_BYTES + args_bytes)
            .ok_or(CallError::TooLong(args_bytes))?;
        head[..FRAGMENT_MARK_BYTES].copy_from_slice(&mark.to_bytes());
        parts.insert(0, source(&head));
        let deadline = Instant::now() + self.options.call_timeout;
        let mut outbound = self.outbound.lock();
        self.flush(&mut outbound, deadline);
        self.check()?;
        if !outbound.is_empty() {
            return Err(CallError::TimedOut);
        }
        source_of_head.leaves();
        let mut begun = false;
        while !parts.is_empty() {
            match self.send_parts(&parts, deadline) {
                Ok(sent) => {
                    begun |= sent > 0;
                    skip(&mut parts, sent);
                }
                Err(error) => {
                    if begun || self.is_inside_record() {
                        self.break_off("the server did not take a record in time".to_owned());
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Queues a call to be sent later.
    pub(in crate::client) fn queue(&self, record: Reply, head: &Head<'_>) -> Result<(), CallError> {
        self.check()?;
        let mut outbound = self.outbound.lock();
        head.leaves();
        outbound.push(record);
        self.unsent.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// True when a call may wait in the queue without harm: the server has enough to do.
    pub(in crate::client) fn may_queue(&self) -> bool {
        let unanswered = self.core().unanswered();
        unanswered >= GATHERING_CALLS_MIN && self.outbound.lock().len() * 2 < unanswered
    }

    /// Sends a record as soon as possible, without waiting. Bytes that cannot be sent now leave
    /// with the next send, or when a thread waits.
    pub(in crate::client) fn send_record(&self, record: Reply) {
        // Another thread may be sending. It may even be this thread, if the callback came while it
        // could not send.
        let now = Instant::now();
        match self.outbound.try_lock() {
            Some(mut outbound) => {
                outbound.push(record);
                self.unsent.store(true, Ordering::Relaxed);
                self.flush(&mut outbound, now);
            }
            None => {
                let this = self.this.clone();
                let later = std::thread::Builder::new().name("dafs-rpc-answer".to_owned());
                let sent = later.spawn(move || {
                    if let Some(shared) = this.upgrade() {
                        let mut outbound = shared.outbound.lock();
                        outbound.push(record);
                        shared.unsent.store(true, Ordering::Relaxed);
                        shared.flush(&mut outbound, now + shared.options.call_timeout);
                    }
                });
                if let Err(error) = sent {
                    tracing::warn!(%error, "cannot start a thread to answer the server");
                }
            }
        }
    }

    /// Sends the queue until the deadline; a failure ends the connection. The rest stays queued.
    pub(super) fn flush(&self, outbound: &mut Output, deadline: Instant) {
        while !outbound.is_empty() && self.broken().is_none() {
            let mut parts = Parts::new();
            outbound.gather(&mut parts);
            let sent = self.send_parts(&parts, deadline);
            drop(parts);
            match sent {
                Ok(sent) => outbound.sent(sent),
                Err(CallError::TimedOut) => return,
                Err(_) => break,
            }
        }
        self.unsent.store(false, Ordering::Relaxed);
    }

    /// Sends some of the parts. While the socket does not accept data, reads, because the server
    /// may wait for that.
    fn send_parts(&self, parts: &Parts<'_>, deadline: Instant) -> Result<usize, CallError> {
        loop {
            match self.transmit(parts) {
                Ok(sent) => return Ok(sent),
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    self.break_off(error.to_string());
                    self.check()?;
                }
            }
            let reading = self.begin_reading();
            let mut events = PollFlags::OUT;
            if reading.is_some() {
                events |= PollFlags::IN;
            }
            // The reading thread may stop at any time; then this thread must read.
            let now = Instant::now();
            match self.poll(events, deadline.min(now + READER_WATCH)) {
                Ok(ready) if ready.is_empty() && now >= deadline => {
                    return Err(CallError::TimedOut);
                }
                Ok(ready) if reading.is_some() && ready.intersects(PollFlags::IN) => self.read(),
                Ok(_) => {}
                Err(error) => self.break_off(error.to_string()),
            }
            self.check()?;
        }
    }
}

/// Removes the first `len` bytes.
fn skip(parts: &mut Parts<'_>, mut len: usize) {
    let whole = parts.iter().take_while(|part| {
        let gone = part.len() <= len;
        len -= if gone { part.len() } else { 0 };
        gone
    });
    let whole = whole.count();
    parts.drain(..whole);
    if let Some(first) = parts.first_mut() {
        // INVARIANT: the part is longer than what is left of `len`, or it had been counted.
        *first = first.slice(len, first.len() - len).expect("a shorter part of it");
    }
}
