//! `dafs sessions`: for the administrator of a running server.

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::{say, say_json};
use dafs_server::{AdminReply, AdminRequest, SessionReport};

/// Show the sessions of DAFS clients of a server of this host, and the state of each
#[derive(Debug, clap::Args)]
pub(crate) struct Sessions {
    #[command(flatten)]
    place: Place,
    /// Print one JSON object per session
    #[arg(long)]
    json: bool,
}

impl Sessions {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let AdminReply::Sessions(sessions) = self.place.ask(&AdminRequest::Sessions)? else {
            return Err(other_answer());
        };
        if self.json {
            return sessions.iter().try_for_each(say_json);
        }
        say!(
            "{:>16} {:>16} {:<9} {:>7} {:>7} {:>9} {:>7} {:>6} {:>6} {:>6} {:<12} peer, name",
            "session",
            "client",
            "transport",
            "age",
            "credits",
            "in flight",
            "replies",
            "opens",
            "locks",
            "deleg.",
            "fence id"
        )?;
        sessions.iter().try_for_each(show)
    }
}

fn show(session: &SessionReport) -> Result<(), Failure> {
    let replies = session.replies.map_or_else(|| "-".to_owned(), |count| count.to_string());
    say!(
        "{:>16} {:016x} {:<9} {:>6}s {:>7} {:>9} {:>7} {:>6} {:>6} {:>6} {:<12} {}, {}",
        session.session,
        session.client,
        session.transport,
        session.age_seconds,
        session.credits,
        session.in_flight,
        replies,
        session.opens,
        session.locks,
        session.delegations,
        session.fence_id.as_deref().unwrap_or("-"),
        session.peer,
        session.name,
    )
}
