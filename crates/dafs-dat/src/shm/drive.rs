//! The poll loop: scanning rings, checking sockets, going to sleep.
//!
//! Connections with recent traffic are on the busy list, and every poll scans their rings. All
//! others have their sleep word set, so that their peers ring the doorbell, and epoll reports which
//! one. The sockets are checked once in a number of polls, and after every sleep.
//!
//! Invariants
//! * A panic in the work for one connection ends that connection and no other.

use super::ShmAdapter;
use super::conn::{Stage, Surroundings};
use super::limits::{
    BUSY_MIN, IDLE_POLLS, IDLE_POLLS_AT_SLEEP, LOOK_INTERVAL, POLLS_PER_LOOK, REPORTS_PER_LOOK,
};
use super::setup::{CloseNotice, LISTENER, REQUEST};
use super::sys;
use crate::confine::{FAULT, confined};
use crate::error::DisconnectReason;
use crate::time::Instant;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, fence};

impl ShmAdapter {
    /// The work of a poll, except for returning the events.
    pub(super) fn drive(&mut self, now: Instant) {
        self.ring_doorbells();
        if std::mem::take(&mut self.armed) {
            self.wake_busy();
        }
        self.polls_since_look += 1;
        if std::mem::take(&mut self.slept)
            || self.polls_since_look >= POLLS_PER_LOOK
            || now.since(self.looked_at) >= LOOK_INTERVAL
        {
            self.look(now);
        }
        if self.check_at.is_some_and(|at| now >= at) {
            self.check_timers(now);
        }
        self.scan();
    }

    /// Adds a connection to the busy list.
    pub(super) fn make_busy(&mut self, name: u64) {
        let Some(conn) = self.conns.get_mut(name) else { return };
        conn.idle_polls = 0;
        if conn.asleep {
            conn.asleep = false;
            conn.control.wake();
        }
        if !conn.busy {
            conn.busy = true;
            self.busy.push(name);
        }
    }

    /// After a sleep: clears the sleep words of busy connections, so that their peers do not ring.
    fn wake_busy(&mut self) {
        for name in &self.busy {
            if let Some(conn) = self.conns.get_mut(*name).filter(|conn| conn.asleep) {
                conn.asleep = false;
                conn.control.wake();
            }
        }
    }

    /// Rings sleeping peers that have had new records since.
    pub(super) fn ring_doorbells(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        // Orders the publication before the check of the sleep words; see `prepare_to_sleep`.
        fence(Ordering::SeqCst);
        for name in self.dirty.drain(..) {
            if let Some(conn) = self.conns.get_mut(name) {
                conn.ring_doorbell();
                (conn.dirty, conn.published) = (false, false);
            }
        }
    }

    /// Asks epoll which sockets are ready.
    fn look(&mut self, now: Instant) {
        (self.polls_since_look, self.looked_at) = (0, now);
        // Checked each time: a call on an epoll instance of the program would consume its
        // edge-triggered events.
        if self.epoll.check().is_err() {
            return;
        }
        if self.descriptors.is_due() && self.check_descriptors().is_err() {
            return;
        }
        let mut space = [const { MaybeUninit::uninit() }; REPORTS_PER_LOOK];
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (reports, rest) = match epoll::wait(&self.epoll, &mut space[..], Some(&zero)) {
            Ok(found) => found,
            Err(Errno::INTR) => return,
            // This adapter had the instance open, so the program has interfered.
            Err(_) => return self.descriptors.lose(),
        };
        if rest.is_empty() {
            // More sockets may be ready; check again in the next poll.
            self.polls_since_look = POLLS_PER_LOOK;
        }
        for report in reports {
            let token = report.data.u64();
            if token & REQUEST != 0 {
                let name = token & !REQUEST;
                if confined(|| self.request_ready(name)).is_none() {
                    self.drop_request(name);
                }
            } else if token & LISTENER != 0 {
                self.accept_incoming(token as u32, now);
            } else {
                self.confine(token, |adapter| adapter.socket_ready(token));
            }
        }
    }

    /// Runs work for a connection; returns none when it panics, which ends the connection.
    fn confine<T>(&mut self, name: u64, step: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let done = confined(|| step(self));
        if done.is_none() {
            // Withdraw the invalidated regions before any completion is reported.
            self.withdraw_invalidated();
            let stage = self.conns.get_mut(name).map(|conn| &conn.stage);
            if matches!(stage, Some(Stage::Dialing { .. } | Stage::Waiting)) {
                self.connect_failed(name, io::Error::other(FAULT).into());
            } else {
                self.finish(name, DisconnectReason::Lost(FAULT.to_owned()), CloseNotice::None);
            }
        }
        done
    }

    fn socket_ready(&mut self, name: u64) {
        let Some(conn) = self.conns.get_mut(name) else { return };
        match conn.stage {
            Stage::Dialing { .. } => {}
            Stage::Waiting => self.answer_ready(name),
            Stage::Open | Stage::Closing => {
                if let Err(reason) = conn.read_packets(&sys::PEER_MAPPINGS) {
                    conn.end.get_or_insert(reason);
                }
                conn.send_packets();
                self.make_busy(name);
            }
        }
    }

    /// Advances every busy connection.
    fn scan(&mut self) {
        let mut index = 0;
        let mut left = false;
        while let Some(&name) = self.busy.get(index) {
            if self.conns.get_mut(name).is_none() {
                self.busy.swap_remove(index);
                continue;
            }
            left |= self.confine(name, |adapter| adapter.scan_one(name)) == Some(true);
            index += 1;
        }
        if left {
            fence(Ordering::SeqCst);
            self.drop_idle();
        }
    }

    /// Advances one connection; returns true when its sleep word was set because it is idle.
    fn scan_one(&mut self, name: u64) -> bool {
        let Some(conn) = self.conns.get_mut(name) else { return false };
        if conn.has_work() || matches!(conn.stage, Stage::Closing) {
            self.advance(name);
            return false;
        }
        conn.idle_polls = conn.idle_polls.saturating_add(1);
        let leaves = conn.idle_polls > IDLE_POLLS && self.busy.len() > BUSY_MIN;
        if leaves {
            conn.control.sleep(false);
            conn.asleep = true;
        }
        leaves
    }

    /// Removes connections whose sleep word is set from the busy list, unless records arrived
    /// meanwhile. A full fence is required between setting the word and this call.
    fn drop_idle(&mut self) {
        let conns = &mut self.conns;
        self.busy.retain(|&name| {
            let Some(conn) = conns.get_mut(name) else { return false };
            if conn.asleep && conn.has_work() {
                conn.asleep = false;
                conn.control.wake();
                conn.idle_polls = 0;
            }
            conn.busy = !conn.asleep;
            conn.busy
        });
    }

    /// Applies the records of one connection, sends queued work, ends the connection if it is over.
    fn advance(&mut self, name: u64) {
        let Some(conn) = self.conns.get_mut(name) else { return };
        let mut around = Surroundings {
            regions: &mut self.regions,
            ready: &mut self.ready,
            invalidated: &mut self.invalidated,
        };
        let taken = conn.take_records(&mut around);
        if !self.invalidated.is_empty() {
            self.withdraw_invalidated();
        }
        let Some(conn) = self.conns.get_mut(name) else { return };
        let outcome = taken.and_then(|taken| Ok((taken, conn.progress(&mut self.ready)?)));
        let reason = match outcome {
            Ok((taken, moved)) => {
                if taken || moved {
                    conn.idle_polls = 0;
                    if !conn.dirty {
                        conn.dirty = true;
                        self.dirty.push(name);
                    }
                }
                let closing = matches!(conn.stage, Stage::Closing);
                if closing && (conn.end.is_some() || !conn.stalled()) {
                    return self.finish(name, DisconnectReason::Local, CloseNotice::Close);
                }
                // Records that the peer published before its end are still delivered.
                match conn.end.take_if(|_| !conn.consumer.ready()) {
                    Some(reason) => reason,
                    None => return,
                }
            }
            Err(reason) => reason,
        };
        let notice = match reason {
            DisconnectReason::Protocol(_) => CloseNotice::Terminate,
            _ => CloseNotice::None,
        };
        self.finish(name, reason, notice);
    }

    /// Withdraws invalidated regions from all peers that share them, before the invalidation is
    /// reported.
    fn withdraw_invalidated(&mut self) {
        let mut regions = std::mem::take(&mut self.invalidated);
        for region in regions.drain(..) {
            self.withdraw(region);
        }
        self.invalidated = regions;
    }

    /// Sets the sleep words and checks once more. Returns true if there is no work.
    pub(super) fn prepare_to_sleep(&mut self) -> bool {
        self.ring_doorbells();
        self.armed = true;
        for name in &self.busy {
            if let Some(conn) = self.conns.get_mut(*name) {
                conn.control.sleep(conn.stalled());
                conn.asleep = true;
            }
        }
        // Orders the sleep words before the check of the rings. This fence and the peer's in
        // `ring_doorbells` have an order, and the side with the later one sees the other's write.
        fence(Ordering::SeqCst);
        let mut quiet = self.ready.is_empty();
        for index in 0..self.busy.len() {
            let name = self.busy[index];
            quiet &= self.confine(name, |adapter| adapter.is_still(name)) == Some(true);
        }
        if quiet && self.busy.len() > BUSY_MIN {
            self.forget_idle();
        }
        self.slept = quiet;
        quiet
    }

    /// True if a connection has no work.
    fn is_still(&mut self, name: u64) -> bool {
        let Some(conn) = self.conns.get_mut(name) else { return true };
        conn.look_at_socket();
        let closing = matches!(conn.stage, Stage::Closing) && !conn.stalled();
        !(conn.consumer.ready() || conn.end.is_some() || closing || conn.can_move())
    }

    /// Removes connections that have been idle for a while: they need no scan after the sleep,
    /// because their words stay set.
    fn forget_idle(&mut self) {
        let conns = &mut self.conns;
        self.busy.retain(|&name| {
            let Some(conn) = conns.get_mut(name) else { return false };
            conn.busy = conn.idle_polls < IDLE_POLLS_AT_SLEEP || conn.stalled();
            conn.busy
        });
    }
}
