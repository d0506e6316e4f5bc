//! The state of a port under its lock: the adapter and its connections.

use super::base::Base;
use super::core::Connection;
use crate::client::BackHandler;
use crate::client::core::ServerCall;
use dafs_dat::{Adapter, EndpointId, Event, Instant, PollBudget};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::Thread;

/// The thread that polls the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leader {
    Nobody,
    Polling,
    Sleeping,
}

pub(super) struct Driver {
    pub(super) base: Base,
    connections: FxHashMap<EndpointId, Connection>,
    /// Connections with callbacks to handle.
    called: VecDeque<EndpointId>,
    events: Vec<Event>,
    pub(super) leader: Leader,
    /// Polls before the leader sleeps. Data that comes from a slow link wakes it with each segment, and
    /// polling for the next one is in vain.
    pub(super) budget: PollBudget,
    /// Threads that wait for the leader.
    pub(super) followers: Vec<Thread>,
    /// Posted calls that may not have left.
    pub(super) held_back: usize,
    /// Counts the polls, so that the helper can see whether another thread makes progress.
    pub(super) drives: u64,
}

impl Driver {
    pub(super) fn new(adapter: Box<dyn Adapter>) -> Self {
        Self {
            base: Base::new(adapter),
            connections: FxHashMap::default(),
            called: VecDeque::new(),
            events: Vec::new(),
            leader: Leader::Nobody,
            budget: PollBudget::default(),
            followers: Vec::new(),
            held_back: 0,
            drives: 0,
        }
    }

    /// Polls the adapter once and dispatches its events. Returns how many of them a thread may wait
    /// for.
    pub(super) fn progress(&mut self, now: Instant) -> usize {
        self.drives = self.drives.wrapping_add(1);
        self.base.reap();
        self.held_back = 0;
        let mut events = std::mem::take(&mut self.events);
        let seen = self.base.adapter.poll(now, &mut events);
        let mut ended = 0;
        for event in events.drain(..) {
            ended += self.handle(event);
        }
        self.events = events;
        if seen > 0 {
            self.base.adapter.flush();
        }
        ended
    }

    fn handle(&mut self, event: Event) -> usize {
        let endpoint = match &event {
            Event::Completion(completion) => completion.endpoint,
            Event::Established { endpoint, .. }
            | Event::ConnectFailed { endpoint, .. }
            | Event::Disconnected { endpoint, .. } => *endpoint,
            Event::ConnectRequest { .. } => return 0,
        };
        let Some(connection) = self.connections.get_mut(&endpoint) else { return 0 };
        let stage = connection.stage();
        connection.handle(&mut self.base, event);
        if connection.has_back_calls() {
            self.called.push_back(endpoint);
        }
        let mut ended = connection.take_ended();
        if connection.stage() != stage {
            ended += 1;
            self.followers.iter().for_each(Thread::unpark);
        }
        if connection.is_gone() && connection.is_forgotten() {
            self.connections.remove(&endpoint);
        }
        ended
    }

    pub(super) fn add(&mut self, connection: Connection) {
        self.connections.insert(connection.endpoint, connection);
    }

    /// A connection, with the shared resources of the port.
    pub(super) fn on(&mut self, endpoint: EndpointId) -> Option<(&mut Connection, &mut Base)> {
        Some((self.connections.get_mut(&endpoint)?, &mut self.base))
    }

    /// Marks a connection as without handles.
    pub(super) fn forget(&mut self, endpoint: EndpointId) {
        let Some((connection, base)) = self.on(endpoint) else { return };
        connection.close(base);
        if connection.is_gone() {
            self.connections.remove(&endpoint);
        } else {
            connection.forget();
        }
    }

    /// Takes the next callback, with its handler.
    pub(super) fn next_back_call(&mut self) -> Option<(EndpointId, Arc<BackHandler>, ServerCall)> {
        while let Some(&endpoint) = self.called.front() {
            if let Some(connection) = self.connections.get_mut(&endpoint)
                && let Some(handler) = connection.back.clone()
                && let Some(call) = connection.take_back_call()
            {
                return Some((endpoint, handler, call));
            }
            self.called.pop_front();
        }
        None
    }

    /// True when a callback waits to be handled.
    pub(super) fn is_called(&self) -> bool {
        !self.called.is_empty()
    }

    /// True while a server may send callbacks.
    pub(super) fn may_be_called(&self) -> bool {
        self.connections.values().any(|connection| connection.back.is_some())
    }
}
