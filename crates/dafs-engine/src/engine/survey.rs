//! The administrators' view of sessions. Each session is asked through the inbox of its reactor,
//! because only the reactor knows the session's state.

use super::back::Mail;
use super::connection::Connection;
use super::registry::Registry;
use crate::limits::SURVEY_TIME;
use dafs_service::Client;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

/// A session at some moment.
#[derive(Debug, Clone)]
pub struct SessionFacts {
    /// The id of the session.
    pub id: [u8; 8],
    /// Its client.
    pub client: Arc<Client>,
    /// The id by which fences exclude it, empty for none.
    pub fence_id: Vec<u8>,
    /// The peer, as in the log.
    pub peer: String,
    /// The name of the transport.
    pub transport: &'static str,
    /// The client may choose users itself.
    pub trusted: bool,
    /// Messages carry checksums.
    pub checksums: bool,
    /// Seconds since the connection was accepted.
    pub age_seconds: u64,
    /// Requests that the client may have outstanding.
    pub credits: u16,
    /// The weight of the session, 1 to 10,000.
    pub weight: u32,
    /// The credits that its weight gives it, while sessions want more than there are.
    pub share: Option<u16>,
    /// Requests that have arrived and are not answered.
    pub in_flight: u16,
    /// Cached replies, if the session caches any: their number, and their bytes.
    pub replies: Option<(usize, usize)>,
}

/// The channel for an answer.
pub(crate) type Answer = mpsc::Sender<SessionFacts>;

impl Registry {
    /// Returns all sessions that answer in time. The reactor of the others is blocked.
    pub fn survey(&self) -> Vec<SessionFacts> {
        let (answer, answers) = mpsc::channel();
        for address in self.session_addresses() {
            address.post(Mail::Survey(answer.clone()));
        }
        drop(answer);
        let until = Instant::now() + SURVEY_TIME;
        let mut sessions = Vec::new();
        // The channel closes when the last session has answered or gone.
        while let Ok(facts) = answers.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            sessions.push(facts);
        }
        sessions
    }
}

impl Connection {
    /// Returns the facts of its session, if that is in use.
    pub(super) fn facts(
        &self,
        transport: &'static str,
        share: Option<u16>,
        now: dafs_dat::Instant,
    ) -> Option<SessionFacts> {
        let session = self.session.as_ref()?;
        let (proven, replies) = (session.proven.as_ref()?, session.replies.as_ref());
        Some(SessionFacts {
            id: session.id.0,
            client: proven.client.clone(),
            fence_id: session.fence_id.clone(),
            peer: self.peer.to_string(),
            transport,
            trusted: proven.admission.trusted,
            checksums: session.options.use_checksums,
            age_seconds: now.since(self.opened_at).as_secs(),
            credits: self.credits.nreq,
            weight: self.weighed.weight.get(),
            share,
            in_flight: self.credits.in_hand,
            replies: replies.map(|replies| (replies.len(), replies.len_bytes())),
        })
    }
}
