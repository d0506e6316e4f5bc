//! The connection to a data server: how it is made, and made again.
//!
//! Invariants
//! * A connection whose keys are spent, or whose secret is not accepted any more, is replaced while no call to the node and no known call of the
//!   node is under way. Calls to the node wait for the new one, up to `HELLO_TIME`, and the node counts
//!   as connected meanwhile.
//! * The calls of a node by one connection have ended before the next one is made: a write that a
//!   client repeats is not overtaken by its first attempt.

use super::answers::MetadataAnswers;
use super::{Shared, State};
use crate::hello::{HelloError, Initiator};
use crate::limits::{DRAIN_TIME, HELLO_TIME, RECONNECT_MAX, RECONNECT_MIN, RENEWAL_HOLD};
use crate::link::{Link, Lost};
use crate::memory;
use crate::tls::{self, Line, Secured, TlsError};
use dafs_wire::cluster::{HELLO_BYTES_MAX, Membership};
use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why there is no connection.
#[derive(Debug, Error)]
enum ConnectError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("cannot remember which directory the node has: {0}")]
    Memory(io::Error),
}

impl Shared {
    /// Makes a call by the connection. During a renewal it waits for the new one.
    pub(super) fn with_link<T>(
        &self,
        call: impl FnOnce(&Link) -> Result<T, Lost>,
    ) -> Result<T, Lost> {
        let mut state = self.lock();
        while let Some(left) = state.hold() {
            state = self.changed.wait_timeout(state, left).0;
        }
        let link = state.link.clone().ok_or(Lost)?;
        state.calls += 1;
        drop(state);
        let _under_way = UnderWay(self);
        call(&link)
    }

    /// Waits for the end of a connection. True if its keys were spent and calls wait for a new one.
    fn is_renewed(&self, link: &Link) -> bool {
        loop {
            link.wait_over();
            let mut state = self.lock();
            if link.is_closed() || state.stop {
                return false;
            }
            let began = Instant::now();
            state.held_until = Some(began + HELLO_TIME);
            let are_busy = |state: &mut State| state.calls > 0 && !state.stop;
            state = self.changed.wait_timeout_while(state, RENEWAL_HOLD, are_busy).0;
            let is_quiet = state.calls == 0 && !state.stop;
            drop(state);
            // The node does not know, so it may ask on. Calls that have come are answered first.
            let left = RENEWAL_HOLD.saturating_sub(began.elapsed());
            let is_over = is_quiet && link.close_between_calls(left);
            let mut state = self.lock();
            if is_over {
                state.link = None;
            } else {
                state.held_until = None;
            }
            drop(state);
            self.changed.notify_all();
            if is_over || link.is_closed() {
                return is_over;
            }
            // Calls that take long go on, and others with them, until the next attempt.
            self.pause(RECONNECT_MAX);
        }
    }

    /// Waits, but not for longer than this is needed.
    fn pause(&self, time: Duration) {
        drop(self.changed.wait_timeout_while(self.lock(), time, |state| !state.stop));
    }

    pub(super) fn run(self: Arc<Self>) {
        let number = self.config.number;
        let mut pause = RECONNECT_MIN;
        while !self.lock().stop {
            let connected = self.connect();
            let is_busy = matches!(connected, Err(ConnectError::Hello(HelloError::Busy)));
            if !is_busy {
                self.lock().held_until = None;
                self.changed.notify_all();
            }
            match connected {
                Ok(link) => {
                    tracing::info!(number, control = self.config.control, "a node is there");
                    pause = RECONNECT_MIN;
                    let is_renewed = self.is_renewed(&link);
                    if is_renewed {
                        tracing::info!(number, "the connection to a node gets new keys");
                    } else {
                        let mut state = self.lock();
                        state.link = None;
                        "the connection was lost".clone_into(&mut state.trouble);
                        let stop = state.stop;
                        drop(state);
                        if !stop {
                            let control = &self.config.control;
                            tracing::warn!(number, control, "a node was lost");
                        }
                    }
                    while !self.lock().stop && !link.drain(DRAIN_TIME) {
                        "what the node has asked for before is still under way"
                            .clone_into(&mut self.lock().trouble);
                    }
                    if is_renewed {
                        continue;
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    let mut state = self.lock();
                    if state.trouble != text {
                        let control = &self.config.control;
                        tracing::warn!(number, control, "a node cannot be used: {text}");
                        state.trouble = text;
                    }
                }
            }
            self.pause(pause);
            pause = (pause * 2).min(RECONNECT_MAX);
        }
    }

    /// Has the connection replaced if it may have been made with a secret that is not accepted any more:
    /// a third one that knows it may be between the two.
    pub(super) fn follow_secret(&self) {
        let (state, now) = (self.lock(), self.config.secret.now());
        let is_accepted = state.secrets.is_none_or(|secrets| secrets.are_accepted_by(now));
        if let Some(link) = state.link.as_ref().filter(|_| !is_accepted) {
            link.spend();
        }
    }

    fn connect(self: &Arc<Self>) -> Result<Arc<Link>, ConnectError> {
        let config = &self.config;
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        let mut connected = None;
        for address in config.control.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, HELLO_TIME) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let stream = connected.ok_or(last)?;
        let line = &mut Line { stream: &stream, end: Instant::now() + HELLO_TIME };
        let Secured { mut sender, mut receiver, binding } = tls::connect(line)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let secret = (&*config.secret, binding);
        let initiator = Initiator::new(secret, config.store, config.number, nonce);
        let secrets = initiator.secrets();
        sender.greet(&initiator.hello(), line)?;
        let challenge = receiver.receive(HELLO_BYTES_MAX, line)?;
        let membership = memory::recall(&config.memory).map_err(ConnectError::Memory)?;
        let membership = match membership {
            Membership::Known { incarnation, .. } if !config.holds_files => {
                Membership::Known { incarnation, joins: 0 }
            }
            membership => membership,
        };
        sender.greet(&initiator.join(challenge.body(), membership)?, line)?;
        let joined = receiver.receive(HELLO_BYTES_MAX, line)?;
        let member = Initiator::joined(joined.body(), membership)?;
        let answers = Arc::new(MetadataAnswers { node: self.clone() });
        let name = format!("dafs-node-{}", config.number);
        let ends = (sender, receiver);
        let link = Arc::new(Link::start(&name, stream, ends, answers, self.records_max)?);
        // Before any other work on this connection, because the record detects an older state of
        // the directory. The disk may take longer than a data server waits for a message.
        if let Err(error) = memory::remember(&config.memory, member.mark) {
            link.close();
            return Err(ConnectError::Memory(error));
        }
        let mut state = self.lock();
        if state.stop {
            link.close();
        }
        state.link = Some(link.clone());
        state.secrets = Some(secrets);
        state.member = Some(member);
        // With the new connection its cache is empty.
        state.old_grants_end = Duration::ZERO;
        state.trouble.clear();
        drop(state);
        // They may have changed meanwhile.
        self.follow_secret();
        Ok(link)
    }
}

/// A call that is counted until it ends, also by a panic.
struct UnderWay<'a>(&'a Shared);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.calls -= 1;
        if state.held_until.is_some() {
            self.0.changed.notify_all();
        }
    }
}
