//! Data servers: one session with each, made when it is needed first, for all files of a client.
//!
//! Invariants
//! * A data server knows this client by the name that the metadata server knows it by, and believes it by
//!   what that has told of the device.
//! * One that cannot be reached is left alone for a while, longer each time, and nobody waits for it
//!   meanwhile.

use super::plan::Place;
use crate::connect;
use crate::core::{Authenticator, Challenge, Proof};
use crate::driver::Shared;
use crate::error::Result;
use crate::fork::ForkMutex;
use crate::options::{Authentication, ConnectOptions, Credential};
use dafs_parallel::Avoidance;
use dafs_parallel::limits::{DATA_SERVERS_MAX, NODE_ANSWER_TIMEOUT, NODE_CONNECT_TIMEOUT};
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// The data servers that a client has heard of, by their addresses.
#[derive(Debug)]
pub(super) struct Nodes {
    /// How the client is connected to the metadata server.
    options: Arc<ConnectOptions>,
    known: ForkMutex<FxHashMap<Arc<[SocketAddr]>, Arc<Node>>>,
}

/// A data server.
#[derive(Debug)]
pub(super) struct Node {
    options: Arc<ConnectOptions>,
    state: ForkMutex<State>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Arc<Shared>>,
    avoidance: Avoidance,
}

/// Why a data server cannot be used just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Away {
    /// It has been tried a short while ago.
    Known,
    /// It has just been tried.
    News,
}

impl Nodes {
    pub(super) fn new(options: ConnectOptions) -> Self {
        Self { options: Arc::new(options), known: ForkMutex::default() }
    }

    /// The data server of a component; `None` if there are too many.
    pub(super) fn node(&self, place: &Place) -> Option<Arc<Node>> {
        let mut known = self.known.lock_here();
        if let Some(node) = known.get(&place.addresses) {
            return Some(node.clone());
        }
        if known.len() >= DATA_SERVERS_MAX {
            return None;
        }
        let (options, state) = (self.options.clone(), ForkMutex::default());
        let node = Arc::new(Node { options, state });
        known.insert(place.addresses.clone(), node.clone());
        Some(node)
    }
}

impl Node {
    /// The session with this data server, made anew if need be. `of` is that with the metadata server.
    pub(super) fn session(&self, of: &Shared, place: &Place) -> Result<Arc<Shared>, Away> {
        let mut state = self.state.lock_here();
        if let Some(session) = &state.session
            && !session.is_over()
        {
            return Ok(session.clone());
        }
        state.session = None;
        if state.avoidance.is_left_alone(Instant::now()) {
            return Err(Away::Known);
        }
        // Whether it is there is found out for all.
        match crate::limit::without(|| self.connect(of, place)) {
            Ok(session) => {
                state.session = Some(session.clone());
                state.avoidance.reached();
                Ok(session)
            }
            Err(reasons) => {
                tracing::warn!(%reasons, "a data server cannot be reached");
                state.avoidance.failed(Instant::now());
                Err(Away::News)
            }
        }
    }

    /// A session began too long ago to write by. Whoever needs one next makes another; what is under way by
    /// this one goes on.
    pub(super) fn outgrow(&self, session: &Arc<Shared>) {
        let mut state = self.state.lock_here();
        // That of now may be another: others that met the same were looked at before.
        if state.session.as_ref().is_some_and(|now| Arc::ptr_eq(now, session)) {
            state.session = None;
        }
    }

    /// It did not answer.
    pub(super) fn failed(&self) {
        let (mut state, now) = (self.state.lock_here(), Instant::now());
        // What failed at the same time is one failure.
        if !state.avoidance.is_left_alone(now) {
            state.avoidance.failed(now);
        }
    }

    fn connect(&self, of: &Shared, place: &Place) -> Result<Arc<Shared>, String> {
        let identity = of.identity().map_err(|error| error.to_string())?;
        let deadline = self.options.deadline.unwrap_or(NODE_ANSWER_TIMEOUT);
        let options = ConnectOptions {
            authentication: Authentication::Custom(Arc::new(Ticket(place.ticket.clone()))),
            // Whose rights count was judged at the open.
            credential: Credential::Session,
            connect_timeout: self.options.connect_timeout.min(NODE_CONNECT_TIMEOUT),
            deadline: Some(deadline.min(NODE_ANSWER_TIMEOUT)),
            // There is another way to the data: what fails is not tried again here.
            recovery: None,
            identity: Some(identity),
            ..(*self.options).clone()
        };
        let mut reasons = Vec::new();
        for address in &*place.addresses {
            match connect::open_data_server(*address, &options) {
                Ok(session) => return Ok(session),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(reasons.join("; "))
    }
}

/// What shows a data server who this client is.
struct Ticket(Arc<[u8]>);

impl Authenticator for Ticket {
    fn begin(&self) -> Result<Proof, String> {
        Ok(Proof::Text { id: b"x-ticket".to_vec(), password: self.0.to_vec() })
    }

    fn next(&self, _: &Challenge) -> Result<Proof, String> {
        Err("the data server wants more than the metadata server's word".into())
    }
}
